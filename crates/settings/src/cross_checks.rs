//! Checks the settings as a whole: keys that exclude each other, names that are used twice or lead nowhere,
//! variables that are not set. Reads the secrets that are kept in the environment.

use std::collections::BTreeMap;

use super::flags::Environment;
use super::problem::{Place, Problems};
use super::settings::Settings;
use super::tree::{Table, find_value, place_of};

use ::config::ValueKind;
use adapt::UNDECLARABLE;
use agent::{AgentConfig, OPERATOR_KEY, Parser};
use alerts::SinkKind;
use experts::ExpertConfig;
use server::ServerConfig;
use store::RunsConfig;
use tool_call_parser::dialects;
use tools::McpConfig;
use usage::UsageConfig;
use wire::units::Secret;

/// Checks the whole and fills in what `*_env` keys name.
pub(super) fn check_settings(
    settings: &mut Settings,
    tree: &Table,
    environment: &Environment,
    uses_no_secrets: bool,
    problems: &mut Problems,
) {
    let mut check = Check { tree, environment, uses_no_secrets, problems };
    check.keys_in_environment(settings);
    check.check_upstreams(settings);
    check.model_ids(settings);
    check.dialects_exist(settings);
    check.check_declared_fields(settings);
    check.check_alias_loops(settings);
    check.check_gateway(settings);
    check.check_experts(settings);
    check.check_runs(settings);
    check.check_usage(settings);
    check.check_sinks(settings);
    for (name, agent) in &settings.agents {
        check.check_agent(name, agent, settings);
    }
    for (name, server) in &settings.tools.mcp {
        check.check_mcp_server(name, server);
    }
}

struct Check<'a> {
    tree: &'a Table,
    environment: &'a Environment,
    uses_no_secrets: bool,
    problems: &'a mut Problems,
}

impl Check<'_> {
    fn place(&self, path: &[&str]) -> Place {
        place_of(self.tree, path)
    }

    fn report(&mut self, path: &[&str], message: impl Into<String>) {
        let place = self.place(path);
        self.problems.add(place, path_text(path), message);
    }

    fn keys_in_environment(&mut self, settings: &mut Settings) {
        for (index, upstream) in settings.upstreams.iter_mut().enumerate() {
            let at = ["upstream", &index.to_string()];
            self.check_secret(&at, "api_key", &mut upstream.api_key, upstream.api_key_env.as_deref());
            settings.tools.local.key_variables.extend(upstream.api_key_env.clone());
        }
        self.client_keys(settings);
        let ServerConfig { client_keys_env, operator_keys_env, .. } = &settings.server;
        settings
            .tools
            .local
            .key_variables
            .extend([client_keys_env, operator_keys_env].into_iter().flatten().cloned());
        let is_set = self.environment.get(OPERATOR_KEY).is_some();
        settings.tools.local.key_variables.extend(is_set.then(|| OPERATOR_KEY.to_owned()));
        for (index, sink) in settings.alerts.sink.iter_mut().enumerate() {
            let at = ["alerts", "sink", &index.to_string()];
            self.check_secret(&at, "token", &mut sink.token, sink.token_env.as_deref());
            settings.tools.local.key_variables.extend(sink.token_env.clone());
        }
        if let Some(variable) = settings.otlp.headers_env.clone() {
            match self.environment.get(&variable).filter(|text| http::HeaderValue::from_str(text).is_ok()) {
                Some(text) => settings.otlp.headers = Some(Secret::new(text)),
                None if self.uses_no_secrets => {}
                None => self.report(
                    &["otlp", "headers_env"],
                    format!("the environment variable {variable} is not set, or cannot be read as headers; set it, or remove this"),
                ),
            }
            settings.tools.local.key_variables.push(variable);
        }
        let gateway = &mut settings.tools.gateway;
        settings.tools.local.key_variables.extend(gateway.token_env.clone());
        self.check_secret(&["tools", "gateway"], "token", &mut gateway.token, gateway.token_env.as_deref());
    }

    /// Reads the clients' keys. Where clients need one of respool's keys, none goes to an upstream.
    fn client_keys(&mut self, settings: &mut Settings) {
        let ServerConfig { client_keys, client_keys_env, operator_keys, operator_keys_env, .. } =
            &mut settings.server;
        self.keys_of("client_keys", client_keys, client_keys_env.as_deref());
        let variable = operator_keys_env.as_deref().or_else(|| {
            let is_set = self.environment.get(OPERATOR_KEY).is_some_and(|key| !key.trim().is_empty());
            is_set.then_some(OPERATOR_KEY)
        });
        self.keys_of("operator_keys", operator_keys, variable);
        let end_here = settings.server.asks_for_keys();
        settings.upstreams.iter_mut().for_each(|upstream| upstream.client_keys_end_here = end_here);
    }

    /// Reads the keys of a list that is written here, or in a variable.
    fn keys_of(&mut self, list: &str, keys: &mut Vec<Secret>, variable: Option<&str>) {
        let is_set = |name: &&str| self.environment.get(*name).is_some_and(|text| !text.trim().is_empty());
        // Only `serve` needs them: without them it does not start (`cli::advice`).
        let variable = variable.filter(|name| is_set(name) || !keys.is_empty());
        let mut all = (!keys.is_empty()).then(|| Secret::new(""));
        self.check_secret(&[], list, &mut all, variable);
        let Some(all) = all.filter(|_| keys.is_empty()) else { return };
        let written = all.expose_secret().split([',', ' ', '\t', '\n']).filter(|key| !key.is_empty());
        keys.extend(written.map(Secret::new));
        if keys.is_empty() {
            let variable = format!("{list}_env");
            self.report(&[&variable], "the variable holds no key; put at least one in, or remove this");
        }
    }

    /// Checks one secret that is written as `key` or named by `key_env`, not both.
    fn check_secret(
        &mut self,
        section: &[&str],
        key: &str,
        secret: &mut Option<Secret>,
        variable: Option<&str>,
    ) {
        let Some(variable) = variable else { return };
        let by_name = format!("{key}_env");
        let path = [section, &[by_name.as_str()]].concat();
        if secret.is_some() {
            let other = self.place(&[section, &[key]].concat());
            self.report(&path, format!("{key} is set too ({other}); keep one of them"));
            return;
        }
        let read = self.environment.get(variable).map(|text| text.trim()).filter(|text| !text.is_empty());
        match read {
            None if self.uses_no_secrets => {}
            None => self.report(
                &path,
                format!("the environment variable {variable} is not set or empty; set it, or write {key}"),
            ),
            Some(text) if http::HeaderValue::from_str(text).is_err() => {
                self.report(&path, format!("the environment variable {variable} holds a character that an HTTP header cannot carry"));
            }
            Some(text) => *secret = Some(Secret::new(text)),
        }
    }

    fn check_runs(&mut self, settings: &Settings) {
        let (found, least) = (settings.store.runs.max_size, RunsConfig::LEAST_SIZE);
        if found < least {
            self.report(
                &["runs", "max_size"],
                format!("\"{found}\" is too small; it must be at least \"{least}\""),
            );
        }
    }

    fn check_usage(&mut self, settings: &Settings) {
        let (found, least) = (settings.usage.max_size, UsageConfig::LEAST_SIZE);
        if found < least {
            self.report(
                &["usage", "max_size"],
                format!("\"{found}\" is too small; it must be at least \"{least}\""),
            );
        }
    }

    /// Checks that each kind of sink has the keys that it needs.
    fn check_sinks(&mut self, settings: &Settings) {
        for (index, sink) in settings.alerts.sink.iter().enumerate() {
            let index = index.to_string();
            let written = find_value(self.tree, &["alerts", "sink", &index, "type"]).map(|kind| &kind.kind);
            let is_known =
                matches!(written, Some(ValueKind::String(kind)) if SinkKind::NAMES.contains(&kind.as_str()));
            if !is_known {
                // That is a problem of its own, and `kind` a default.
                continue;
            }
            let needed = match sink.kind {
                SinkKind::Command => {
                    [("program", !sink.program.is_empty()), ("program", true), ("program", true)]
                }
                SinkKind::Email => {
                    [("url", sink.url.is_some()), ("from", sink.from.is_some()), ("to", sink.to.is_some())]
                }
                SinkKind::OpenClaw => [("url", sink.url.is_some()), ("to", sink.to.is_some()), ("url", true)],
                SinkKind::Webhook | SinkKind::Ntfy | SinkKind::Slack => {
                    [("url", sink.url.is_some()), ("url", true), ("url", true)]
                }
            };
            for (key, _) in needed.into_iter().filter(|(_, is_set)| !is_set) {
                self.report(
                    &["alerts", "sink", &index, key],
                    format!("a sink of the type {} needs {key}; add it", sink.kind),
                );
            }
            let schemes: &[&str] = match sink.kind {
                SinkKind::Command => continue,
                SinkKind::Email => &["smtp://", "smtps://"],
                _ => &["http://", "https://"],
            };
            let has_scheme = |url: &str| {
                let begin = |scheme: &&str| url.get(..scheme.len()).unwrap_or_default();
                schemes.iter().any(|scheme| begin(scheme).eq_ignore_ascii_case(scheme))
            };
            // The address is not repeated: it may hold a secret.
            if sink.url.as_deref().is_some_and(|url| !has_scheme(url)) {
                self.report(
                    &["alerts", "sink", &index, "url"],
                    format!(
                        "the address of a sink of the type {} begins with {}",
                        sink.kind,
                        schemes.join(" or ")
                    ),
                );
            }
        }
    }

    fn check_upstreams(&mut self, settings: &Settings) {
        let mut names = BTreeMap::new();
        for (index, upstream) in settings.upstreams.iter().enumerate() {
            let index = index.to_string();
            let at = ["upstream", &index, "name"];
            let here = self.place(&at);
            if upstream.models.as_ref().is_some_and(Vec::is_empty) {
                self.report(
                    &["upstream", &index, "models"],
                    "is empty; list models, or leave it out to ask the server",
                );
            }
            let own = |key| find_value(self.tree, &["upstream", &index, key]).is_some();
            if !own("name") && !own("url") {
                continue;
            }
            if let Some(first) = names.insert(upstream.name.as_str(), here) {
                self.report(
                    &at,
                    format!(
                        "{:?} is the name of another upstream too ({first}); give each its own name",
                        upstream.name
                    ),
                );
            }
        }
    }

    /// Checks that the dialects of `[models]` are in the table.
    fn dialects_exist(&mut self, settings: &Settings) {
        for (id, model) in &settings.relay.models {
            for name in model.dialects.iter().flatten() {
                if dialects::TABLE.iter().all(|dialect| dialect.name != name) {
                    self.report(
                        &["models", id, "dialects"],
                        format!("there is no dialect {name:?}; docs/dialects.md lists them"),
                    );
                }
            }
        }
    }

    /// Checks that the fields that `[models]` declares leave the request what it is.
    fn check_declared_fields(&mut self, settings: &Settings) {
        for (id, model) in &settings.relay.models {
            let tables =
                [("set", &model.set), ("default", &model.default), ("reasoning_off", &model.reasoning_off)];
            for (table, fields) in tables {
                for field in UNDECLARABLE.into_iter().filter(|field| fields.contains_key(*field)) {
                    self.report(
                        &["models", id, table, field],
                        format!("`{field}` makes the request what it is; only the client can set it"),
                    );
                }
            }
        }
    }

    /// Agents, aliases and upstream models share one namespace: what a client writes as `model`.
    fn model_ids(&mut self, settings: &Settings) {
        let served = |id: &str| {
            let serves = |models: &Vec<String>| models.iter().any(|model| model == id);
            settings.upstreams.iter().find(|upstream| upstream.models.as_ref().is_some_and(serves))
        };
        for id in settings.relay.aliases() {
            if let Some(upstream) = served(id) {
                self.report(
                    &["models", id, "target"],
                    format!(
                        "the upstream {:?} serves a model {id:?}; an alias needs an id of its own",
                        upstream.name
                    ),
                );
            }
        }
        for name in settings.agents.keys() {
            let other = match (served(name), settings.relay.models.contains_key(name)) {
                (Some(upstream), _) => format!("a model of the upstream {:?}", upstream.name),
                (None, true) => format!("an entry of [models] ({})", self.place(&["models", name])),
                (None, false) => continue,
            };
            self.report(
                &["agents", name],
                format!("{name:?} is {other} too; an agent needs an id of its own"),
            );
        }
    }

    fn check_alias_loops(&mut self, settings: &Settings) {
        let models = &settings.relay.models;
        let target = |id: &str| models.get(id).and_then(|model| model.target.as_deref());
        for id in settings.relay.aliases() {
            let chain: Vec<&str> =
                std::iter::successors(target(id), |id| target(id)).take(models.len()).collect();
            let Some(end) = chain.iter().position(|step| *step == id) else { continue };
            // Each circle is reported once, at the first of its ids.
            if chain[..end].iter().all(|step| *step > id) {
                let circle = [&[id], &chain[..=end]].concat().join(" -> ");
                self.report(
                    &["models", id, "target"],
                    format!("the aliases go in a circle ({circle}); let one name a real model"),
                );
            }
        }
    }

    fn check_agent(&mut self, name: &str, agent: &AgentConfig, settings: &Settings) {
        let at = |key| ["agents", name, key];
        let known: Vec<String> = settings.upstreams.iter().map(|upstream| upstream.name.clone()).collect();
        self.upstream_exists(&at("upstream"), agent.upstream.as_ref(), &known);
        if settings.agents.contains_key(settings.relay.target(&agent.model)) {
            self.report(
                &at("model"),
                format!("{:?} is an agent; name a model that an upstream serves", agent.model),
            );
        }
        for parser in &agent.parsers {
            let Parser::Dialect(name) = parser else { continue };
            if dialects::TABLE.iter().all(|dialect| dialect.name != name) {
                self.report(
                    &at("parsers"),
                    format!("there is no dialect {name:?}; docs/dialects.md lists them"),
                );
            }
        }
        for tool in &agent.tools {
            let server = tool.strip_prefix("mcp:").map(|rest| rest.split('/').next().unwrap_or(rest));
            if let Some(server) = server.filter(|server| !settings.tools.mcp.contains_key(*server)) {
                let message =
                    format!("{tool:?} names no MCP server that is configured; add [tools.mcp.{server}]");
                self.report(&at("tools"), message);
            }
        }
    }

    /// Reads the secrets of hooks, and checks the upstreams that experts name.
    fn check_experts(&mut self, settings: &mut Settings) {
        let known: Vec<String> = settings.upstreams.iter().map(|upstream| upstream.name.clone()).collect();
        let experts = &mut settings.experts;
        self.upstream_exists(&["experts", "upstream"], experts.upstream.as_ref(), &known);
        for (name, expert) in &mut experts.by_name {
            self.upstream_exists(&["experts", name, "upstream"], expert.upstream.as_ref(), &known);
            for (trigger, variable) in &expert.hook_secret_env {
                // Commands that need no secret work without it; `serve` does not start.
                let text = self.environment.get(variable).map(|text| text.trim()).unwrap_or_default();
                if text.len() >= ExpertConfig::SHORTEST_SECRET {
                    expert.hook_secrets.insert(trigger.clone(), Secret::new(text));
                }
            }
            settings.tools.local.key_variables.extend(expert.hook_secret_env.values().cloned());
        }
    }

    fn upstream_exists(&mut self, path: &[&str], wanted: Option<&String>, known: &[String]) {
        if let Some(wanted) = wanted.filter(|wanted| !known.contains(wanted)) {
            self.report(
                path,
                format!("there is no upstream {wanted:?}. Available upstreams: {}", known.join(", ")),
            );
        }
    }

    fn check_gateway(&mut self, settings: &Settings) {
        let gateway = &settings.tools.gateway;
        let others = [
            ("token", gateway.token.is_some() && gateway.token_env.is_none()),
            ("token_env", gateway.token_env.is_some()),
            ("session_key", gateway.session_key.is_some()),
        ];
        for (key, set) in others {
            if set && gateway.url.is_none() {
                self.report(
                    &["tools", "gateway", key],
                    "has no effect without tools.gateway.url; add that, or remove this",
                );
            }
        }
    }

    fn check_mcp_server(&mut self, name: &str, server: &McpConfig) {
        let at = |key| ["tools", "mcp", name, key];
        match (&server.command, &server.url) {
            (None, None) => {
                self.report(&["tools", "mcp", name], "needs a command or a url; add one");
            }
            (Some(_), Some(_)) => {
                let other = self.place(&at("command"));
                self.report(
                    &at("url"),
                    format!("command is set too ({other}); a server has one or the other"),
                );
            }
            (Some(_), None) if !server.headers.is_empty() => {
                self.report(
                    &at("headers"),
                    "headers go with a url, and this server has a command; leave them out",
                );
            }
            (None, Some(_)) => {
                for (key, set) in [("args", !server.args.is_empty()), ("env", !server.env.is_empty())] {
                    if set {
                        self.report(
                            &at(key),
                            format!("{key} go with a command, and this server has a url; leave them out"),
                        );
                    }
                }
            }
            _ => {}
        }
    }
}

/// Returns a path as the keys of problems are written: `upstream[1].api_key`.
pub(super) fn path_text(path: &[&str]) -> String {
    let mut out = String::new();
    for step in path {
        let is_list = ["upstream", "tools.policy.rule", "alerts.sink"].contains(&out.as_str());
        let step = if is_list && step.parse::<usize>().is_ok() {
            format!("[{step}]")
        } else if out.is_empty() {
            (*step).to_owned()
        } else {
            format!(".{}", super::show::bare_or_quoted(step))
        };
        out.push_str(&step);
    }
    out
}
