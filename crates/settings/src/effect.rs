//! Decides which parts of a changed configuration take effect at once, and which need a restart. Pure. Called
//! by `cli` when the file changes.
//!
//! An agent may be able to write the file. A change therefore waits for a restart, which a person makes, if
//! it gives agents more than they had, sends a key of the environment to a new address, runs a new program,
//! or makes clients' keys unnecessary. All comparisons are with the settings in effect, so the way back from
//! a stricter setting needs a restart too.

use std::collections::BTreeSet;

use super::loaded::Loaded;
use super::settings::Settings;
use agent::AgentConfig;
use alerts::SinkConfig;
use upstream::{Address, UpstreamConfig};

/// These keys, and all keys below them, take effect at once. All others need a restart.
pub(super) const AT_ONCE: [&str; 21] = [
    "adapt",
    "agents",
    "alerts",
    "budgets",
    "capture",
    "client_keys",
    "client_keys_env",
    "context",
    "experts.model",
    "keep_fields",
    "limits",
    "models",
    "prices",
    "reasoning",
    "recovery",
    "tool_parsing",
    "tools.policy",
    "tools_mode",
    "upstream",
    "usage.compare",
    "usage.currency",
];

/// Keys among them of which a part may wait for a restart, with words that say when each takes effect.
#[cfg(test)]
pub(super) const IN_PART: [(&str, &str); 10] = [
    ("agents.<NAME>.tools", "at once; tools that the agent did not have after a restart"),
    ("agents.<NAME>.system_prompt_file", "after a restart"),
    ("alerts.sink.program", "at once; a new one after a restart"),
    ("alerts.sink.token_env", "at once; at a new address after a restart"),
    ("client_keys", "at once; the last key goes after a restart"),
    ("client_keys_env", "at once; the last key goes after a restart"),
    ("experts.model", "at once; the first one after a restart"),
    ("tools.policy", "new denials at once, new permissions after a restart"),
    ("upstream.api_key_env", "at once; at a new address after a restart"),
    ("upstream.url", "at once; a new `replay:` after a restart"),
];

/// Returns true for a key that takes effect at once, at least in part.
pub(super) fn is_at_once(path: &str) -> bool {
    AT_ONCE.iter().any(|at_once| is_below(path, at_once))
}

fn is_below(path: &str, above: &str) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// The result of a changed configuration. The policy is the one in the file; `tools` decides which policies
/// apply together.
#[derive(Clone, Debug)]
pub struct Change {
    /// The settings to apply now.
    pub settings: Settings,
    /// The keys that change now, as they are written.
    pub live: Vec<String>,
    /// The keys that wait for a restart, each with the reason where that is not the key itself.
    pub waiting: Vec<String>,
}

impl Loaded {
    /// Returns what this configuration changes. `start` is the configuration at the start of the process,
    /// `before` the one that was read last, `holds` the settings in effect.
    pub fn change(&self, start: &Self, before: &Self, holds: &Settings) -> Change {
        let mut waiting = Vec::new();
        let settings = apply_changes(holds, &self.settings, &mut waiting);
        let restart = self.changed_keys(start).into_iter().filter(|key| !is_at_once(key));
        waiting.splice(0..0, restart);
        let live = self.changed_keys(before).into_iter().filter(|key| is_at_once(key)).collect();
        Change { settings, live, waiting }
    }
}

/// Returns the settings in effect after `new`: everything in it that may take effect at once.
fn apply_changes(holds: &Settings, new: &Settings, waiting: &mut Vec<String>) -> Settings {
    let mut settings = holds.clone();
    settings.server.limits = new.server.limits.clone();
    settings.relay = new.relay.clone();
    settings.prices = new.prices.clone();
    settings.budgets = new.budgets.clone();
    settings.capture = new.capture.clone();
    settings.usage.compare.clone_from(&new.usage.compare);
    settings.usage.currency.clone_from(&new.usage.currency);
    settings.tools.policy = new.tools.policy.clone();
    apply_keys(&mut settings, new, waiting);
    apply_upstreams(&mut settings, new, waiting);
    // Which keys hold decides whether they go along, and not what the file says.
    let end_here = settings.server.asks_for_keys();
    settings.upstreams.iter_mut().for_each(|upstream| upstream.client_keys_end_here = end_here);
    apply_agents(&mut settings, new, waiting);
    if settings.experts.model.is_some() == new.experts.model.is_some() {
        settings.experts.model.clone_from(&new.experts.model);
    } else {
        waiting.push("experts.model (whether experts run at all)".to_owned());
    }
    settings.alerts = new.alerts.clone();
    settings.alerts.sink.retain(|sink| {
        let is_known = sink_is_known(&holds.alerts.sink, sink);
        if !is_known {
            waiting.push(format!("alerts.sink (a new one of type `{}`)", sink.kind));
        }
        is_known
    });
    settings
}

fn apply_keys(settings: &mut Settings, new: &Settings, waiting: &mut Vec<String>) {
    let mut server = settings.server.clone();
    server.client_keys.clone_from(&new.server.client_keys);
    server.client_keys_env.clone_from(&new.server.client_keys_env);
    if settings.server.asks_for_keys() && !server.asks_for_keys() {
        waiting.push("client_keys (removing the last one would open the server)".to_owned());
        return;
    }
    settings.server = server;
}

/// Applies the list of upstreams as a whole or not at all, because agents and experts refer to its entries by
/// name.
fn apply_upstreams(settings: &mut Settings, new: &Settings, waiting: &mut Vec<String>) {
    let known = &settings.upstreams;
    let is_new_replay = |upstream: &&UpstreamConfig| {
        matches!(upstream.url, Address::Replay(_)) && !known.iter().any(|it| it.url == upstream.url)
    };
    let takes_key = |upstream: &&UpstreamConfig| {
        let has_it = |it: &UpstreamConfig| it.api_key_env == upstream.api_key_env && it.url == upstream.url;
        upstream.api_key_env.is_some() && !known.iter().any(has_it)
    };
    let mut why: Vec<String> = Vec::new();
    why.extend(new.upstreams.iter().filter(is_new_replay).map(|it| format!("`{}` is a new replay", it.name)));
    let sends = |it: &UpstreamConfig| format!("`{}` would get a key of the environment", it.name);
    why.extend(new.upstreams.iter().filter(takes_key).map(sends));
    let of_experts = settings.experts.by_name.values().filter_map(|expert| expert.upstream.as_ref());
    for wanted in of_experts.chain(&settings.experts.upstream) {
        if !new.upstreams.iter().any(|upstream| upstream.name == *wanted) {
            why.push(format!("experts still ask `{wanted}`"));
        }
    }
    if why.is_empty() {
        settings.upstreams.clone_from(&new.upstreams);
    } else {
        waiting.push(format!("upstream ({})", why.join(", ")));
    }
}

fn apply_agents(settings: &mut Settings, new: &Settings, waiting: &mut Vec<String>) {
    let before = std::mem::take(&mut settings.agents);
    let names: BTreeSet<&str> = settings.upstreams.iter().map(|upstream| upstream.name.as_str()).collect();
    for (name, wanted) in &new.agents {
        let known = before.get(name);
        let is_served = wanted.upstream.as_deref().is_none_or(|upstream| names.contains(upstream));
        match known {
            _ if !is_served => waiting.push(format!("agents.{name} (its upstream waits)")),
            None if wanted.tools.is_empty() && wanted.system_prompt_file.is_none() => {
                settings.agents.insert(name.clone(), wanted.clone());
            }
            None => waiting.push(format!("agents.{name} (a new agent with tools or a prompt file)")),
            Some(known) => {
                let agent = no_more_than(known, wanted);
                if agent.tools != wanted.tools {
                    waiting.push(format!("agents.{name}.tools (those that it did not have)"));
                }
                if agent.system_prompt_file != wanted.system_prompt_file {
                    waiting.push(format!("agents.{name}.system_prompt_file"));
                }
                settings.agents.insert(name.clone(), agent);
            }
        }
    }
}

/// Returns the agent as it is wanted, with no tool and no file that it did not have.
fn no_more_than(known: &AgentConfig, wanted: &AgentConfig) -> AgentConfig {
    let tools = wanted.tools.iter().filter(|tool| known.tools.contains(tool)).cloned().collect();
    AgentConfig { tools, system_prompt_file: known.system_prompt_file.clone(), ..wanted.clone() }
}

/// Returns true for a sink that runs no new program, and sends no token of the environment to a new address.
fn sink_is_known(known: &[SinkConfig], sink: &SinkConfig) -> bool {
    let runs_known = sink.program.is_empty() || known.iter().any(|it| it.program == sink.program);
    let same_token =
        |it: &SinkConfig| it.token_env == sink.token_env && it.url == sink.url && it.kind == sink.kind;
    runs_known && (sink.token_env.is_none() || known.iter().any(same_token))
}

#[cfg(test)]
mod tests;
