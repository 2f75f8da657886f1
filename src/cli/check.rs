//! `respool check`: tests what a user would otherwise find out one failure at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::Args;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use http::HeaderMap;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::assembly::{app, open_parts};
use super::failure::Failure;
use super::findings::Findings;
use super::listing::{Noun, parse_span};
use super::options::misspelt_note;
use super::plain_http::plain_address;
use super::reachability::IS_RESPOOL;
use super::running::unkept_records;
use super::runtime::new_runtime;
use super::say::{say, say_on_stderr};
use super::template_check::{PROBE_WITHIN, check_template};
use super::tool_check::check_tools;
use alerts::Rule;
use relay::{Opened, Origin, Relay, StreamPart};
use server::{Access, App, is_for_everybody, is_open_to_others};
use settings::{Advice, find_advice, find_unknown_keys, find_unknown_names, start_problems, uses_own_key};
use settings::{Loaded, Place, Settings, VLLM_KEY};
use store::{Store, find_damaged, find_set_aside, try_directory, write_remedy};
use telemetry::{Recording, RequestRecord, RequestStart};
use tool_call_parser::PreferredDialects;
use tools::{reached_services, sandbox_level};
use translate::Reply;
use upstream::{ListedModel, NoModelList, Upstream, UpstreamConfig};
use wire::turn::Note;
use wire::units::format_duration;
use wire::{ApiError, CERTIFICATE_REFUSED_TODO, ErrorCode, Object};

/// A server that has not answered after this time is named, while it still has time.
const EARLY: Duration = Duration::from_secs(20);

/// How much of the log file's end is read, in bytes, and how many routes are named.
const READ_LOG: u64 = 16 << 20;
const MOST_ROUTES: usize = 20;

const TOOL: &str = "respool_check";

#[derive(Args, Debug)]
pub(super) struct CheckArgs {
    /// How long a model may take for each of its answers
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = parse_span)]
    timeout: Duration,
}

pub(super) fn run_check(loaded: &Loaded, arguments: &CheckArgs) -> Result<(), Failure> {
    let mut findings = Findings::default();
    say("configuration");
    match &loaded.file {
        Some(path) => findings.ok(&format!("{} can be read", path.display())),
        None => findings.ok(
            "no respool.toml in ~/.config/respool or /etc/respool; defaults, environment and flags are valid",
        ),
    }
    if let Some(file) = &loaded.unread {
        findings.warn(
            &format!(
                "{} is not read, because no option names it; `respool serve` refuses to start in this directory",
                file.display()
            ),
            "add --config respool.toml, or move the file to ~/.config/respool",
        );
    }
    for problem in loaded.problems(start_problems(&loaded.settings)).iter() {
        findings.fail(
            &format!("`serve` would not start: {problem}"),
            "correct it; docs/configuration.md says what each setting takes",
        );
    }
    for misspelt in &loaded.misspelt {
        findings.warn(
            &misspelt_note(misspelt),
            "a setting is RESPOOL__SECTION__KEY, with two underscores for each dot",
        );
    }
    for Advice { text, todo } in
        find_advice(&loaded.settings).into_iter().chain(find_unknown_names(&loaded.settings))
    {
        findings.warn(&text, &todo);
    }
    check_keys(&loaded.settings, &mut findings);
    unknown_routes(&loaded.settings, &mut findings);
    state_directory(&loaded.settings.store.state_dir, &mut findings);
    certificate_file(std::env::var_os("SSL_CERT_FILE"), &mut findings);
    log_file(&loaded.settings, &mut findings);
    check_sandbox(&loaded.settings, &mut findings);
    let runtime = new_runtime()?;
    let failures = findings.failures;
    runtime.block_on(check_database(&loaded.settings, &mut findings));
    if findings.failures == failures
        && let Some(problem) = runtime.block_on(unkept_records(&loaded.settings))
    {
        findings.fail(&problem, "its alerts say what to do: `respool alerts list`, or the page");
    }
    runtime.block_on(check_upstreams(loaded, arguments.timeout, &mut findings))?;
    match findings.failures {
        0 => {
            let result = match findings.warnings {
                0 => "All checks passed.".to_owned(),
                1 => "No check failed, but there is a warning above.".to_owned(),
                count => format!("No check failed, but there are {count} warnings above."),
            };
            say(&format!("{result} `respool serve`, with the same options, starts the relay."));
            Ok(())
        }
        1 => Err("one check failed".to_owned().into()),
        count => Err(format!("{count} checks failed").into()),
    }
}

/// Checks the names of client keys in other sections. An unusable file of keys is reported with the
/// upstreams.
fn check_keys(settings: &Settings, findings: &mut Findings) {
    let Ok(access) = Access::new(&settings.server, uses_own_key(settings)) else { return };
    let names = access.key_names();
    if let Some(file) = &settings.server.client_keys_file {
        let count = Noun("key", "keys").count_things(names.len());
        findings.ok(&format!("{count} of clients, with those of {}", file.display()));
        if is_open_to_others(file) {
            let text = format!("others on this machine can read the client keys in {}", file.display());
            findings.warn(&text, &format!("chmod 600 {}", file.display()));
        }
    }
    for Advice { text, todo } in find_unknown_keys(settings, &names) {
        findings.warn(&text, &todo);
    }
}

/// Routes that requests in the log file used, and that respool does not pass on as it is configured.
fn unknown_routes(settings: &Settings, findings: &mut Findings) {
    let Some(file) = settings.log.file.as_ref().filter(|_| !settings.server.allow_admin_routes) else {
        return;
    };
    let Ok(routes) = routes_passed_on(file) else { return };
    let unknown = routes.into_iter().filter(|(method, path)| {
        method.parse().is_ok_and(|method| !is_for_everybody(&settings.server, &method, path))
    });
    let unknown: BTreeSet<String> = unknown.map(|(_, path)| format!("{path:?}")).collect();
    if unknown.is_empty() {
        return;
    }
    let unknown: Vec<String> = unknown.into_iter().take(MOST_ROUTES).collect();
    findings.warn(
        &format!(
            "{} has requests for routes that are not passed on any more: {}",
            file.display(),
            unknown.join(", ")
        ),
        &format!("to pass them on, set `pass_routes = [{}]`", unknown.join(", ")),
    );
}

/// Lists method and path of the requests at the end of a log file that went to a model server unchanged.
fn routes_passed_on(file: &Path) -> std::io::Result<BTreeSet<(String, String)>> {
    let mut file = File::open(file)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(READ_LOG)))?;
    let mut end = Vec::new();
    file.take(READ_LOG).read_to_end(&mut end)?;
    let lines =
        end.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<Value>(line).ok());
    let passed = lines.filter(|line| line["route"] == "transparent");
    let route = |line: Value| {
        let (method, path) = line["request"].as_str()?.split_once(' ')?;
        Some((method.to_owned(), path.to_owned()))
    };
    Ok(passed.filter_map(route).collect())
}

/// Checks that `serve` can write to the state directory. It creates a missing one.
fn state_directory(dir: &Path, findings: &mut Findings) {
    let present = dir.ancestors().find(|path| path.exists()).unwrap_or(Path::new("."));
    for file in find_damaged(dir) {
        findings.fail(
            &format!("{} is damaged", file.display()),
            "end all processes of respool that use it, and start `respool serve`: it sets the file aside",
        );
    }
    for file in find_set_aside(dir) {
        let text = format!("a damaged database was set aside as {}", file.display());
        findings.warn(&text, Rule::DatabaseSetAside.todo());
    }
    match try_directory(present) {
        Ok(()) => findings.ok(&format!("the state directory {} can be written", dir.display())),
        Err(error) => findings.fail(
            &format!("the state directory {} cannot be written: {error}", dir.display()),
            &format!(
                "{}, or set another `state_dir`; without one, runs, responses and usage are not kept",
                write_remedy(&error)
            ),
        ),
    }
}

/// Checks that the certificates of `SSL_CERT_FILE` can be read. If they cannot be, none is trusted.
fn certificate_file(file: Option<OsString>, findings: &mut Findings) {
    let Some(file) = file.map(PathBuf::from) else { return };
    if let Err(error) = std::fs::read(&file) {
        findings.fail(
            &format!("SSL_CERT_FILE names {}, which cannot be read: {error}", file.display()),
            "correct the variable or remove it; until then no server is trusted at an https address",
        );
    }
}

/// Checks that `serve` can write its log file, which is not made here.
fn log_file(settings: &Settings, findings: &mut Findings) {
    let Some(file) = &settings.log.file else { return };
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    let write = || try_directory(folder.unwrap_or(Path::new(".")));
    let written = match (File::options().append(true).open(file), write()) {
        (Err(error), written) if error.kind() == ErrorKind::NotFound => written,
        // A file of a full disk can be opened.
        (Ok(_), Err(error)) if error.kind() == ErrorKind::StorageFull => Err(error),
        (opened, _) => opened.map(drop),
    };
    match written {
        Ok(()) => findings.ok(&format!("the log file {} can be written", file.display())),
        Err(error) => findings.fail(
            &format!("the log file {} cannot be written: {error}", file.display()),
            &format!(
                "{}, or correct `[log] file`; {}",
                write_remedy(&error),
                // A file of a full disk can be opened.
                if error.kind() == ErrorKind::StorageFull {
                    "until then log lines are lost"
                } else {
                    "`serve` does not start without it"
                }
            ),
        ),
    }
}

/// Checks the database that the configuration names. Nothing is changed in it: its tables may be those of
/// nodes of another version.
async fn check_database(settings: &Settings, findings: &mut Findings) {
    let config = &settings.store;
    let found = match Store::has_schema(config) {
        Ok(None) => return,
        Ok(Some(false)) => {
            return findings.ok("the database can be used; the first `respool serve` of this version makes or updates its tables");
        }
        Ok(Some(true)) => Store::open_in_place(config),
        Err(error) => Err(error),
    };
    let nodes = match &found {
        Ok(store) => store.nodes().await,
        Err(error) => Err(error.clone()),
    };
    match (found, nodes) {
        (Ok(store), Ok(nodes)) => {
            let names: Vec<&str> =
                nodes.iter().filter(|node| !node.is_lost).map(|node| node.name.as_str()).collect();
            let nodes = if names.is_empty() { "no node".to_owned() } else { names.join(", ") };
            findings.ok(&format!("{} can be used; in service: {nodes}", store.place()));
        }
        (_, Err(error)) | (Err(error), _) => findings.fail(
            &error.to_string(),
            "docs/scaling.md says what happens while the database is away, and how nodes are upgraded",
        ),
    }
}

/// Reports how tool commands are confined.
fn check_sandbox(settings: &Settings, findings: &mut Findings) {
    let local = &settings.tools.local;
    let level = sandbox_level(local);
    let is_on = local.network == Some(true);
    let network = if is_on { "with" } else { "without" };
    let text = format!("sandbox of commands: {level}");
    if let Some(services) = reached_services(local) {
        let whose = if is_on { "network of commands" } else { "network of commands in the chat" };
        let remedy = "with `tools.local.network = false` commands have none; with `tools.local.sandbox = \"require\"` none runs so";
        findings.warn(&format!("{whose}: {services}"), remedy);
    }
    match level.gap() {
        None => findings.ok(&format!("{text}; {network} a network for agents")),
        Some(gap) => findings.warn(
            &format!("{text}; {gap}"),
            "docs/tools.md says what each level stops and what it needs; with `tools.local.sandbox = \"require\"` no agent starts without one; \
             `respool service check` checks under the rules of the unit",
        ),
    }
}

/// Checks all upstreams at once: each is reported when its check ends, so that one that hangs is the last.
async fn check_upstreams(loaded: &Loaded, timeout: Duration, findings: &mut Findings) -> Result<(), Failure> {
    let abort = CancellationToken::new();
    // Whether `serve` would start.
    let (_upstreams, _agents, sources) =
        open_parts(&loaded.settings, &abort).await.map_err(|found| loaded.problems(found))?;
    check_tools(loaded, &sources, findings).await;
    let upstreams = &loaded.settings.upstreams;
    let checks = (0..upstreams.len()).map(|index| {
        let alone = if upstreams.len() == 1 { Findings::default() } else { Findings::held_back() };
        check_upstream(loaded, index, timeout, alone, &abort)
    });
    let mut checks: FuturesUnordered<_> = checks.collect();
    // What all servers list; `None` once one of them lists nothing.
    let mut listed = Some(Vec::new());
    while let Some(checked) = checks.next().await {
        let (found, models) = checked?;
        findings.add(found);
        listed = listed.zip(models).map(|(listed, models)| [listed, models].concat());
    }
    if let Some(mut listed) = listed {
        listed.sort_unstable();
        listed.dedup();
        check_wanted_models(&loaded.settings, &listed, findings);
    }
    abort.cancel();
    Ok(())
}

/// Checks one upstream. Returns its findings and models; `None`: it lists none.
async fn check_upstream(
    loaded: &Loaded,
    index: usize,
    timeout: Duration,
    mut findings: Findings,
    abort: &CancellationToken,
) -> Result<(Findings, Option<Vec<String>>), Failure> {
    let config = &loaded.settings.upstreams[index];
    // Whatever the turns store is deleted with this directory: checking changes nothing in the owner's.
    let scratch =
        tempfile::tempdir().map_err(|error| format!("no temporary directory can be made: {error}"))?;
    let alone = settings_of_one(&loaded.settings, config, scratch.path());
    let app = app(&alone, abort).await.map_err(|found| loaded.problems(found))?;
    let Some(upstream) = app.relay.upstreams().next() else { return Ok((findings, Some(Vec::new()))) };
    findings.heading(&format!("upstream `{}` ({})", upstream.name, config.url));
    let address = UpstreamAddress { url: config.url.to_string(), place: loaded.place_of_upstream(index) };
    let Some(list) = models_of(upstream, &address, &mut findings).await else { return Ok((findings, None)) };
    let models: Vec<String> = list.iter().map(|model| model.id.clone()).collect();
    let own_places = report_server(upstream, &list, &mut findings).await;
    for wanted in config.models.iter().flatten() {
        if !models.contains(wanted) {
            findings.fail(
                &format!("`models` names {wanted:?}, which this server does not serve"),
                "correct `models` of this [[upstream]], or start the server with --served-model-name",
            );
        }
    }
    if let Some(model) =
        config.models.iter().flatten().find(|model| models.contains(model)).or(models.first())
    {
        counting_of(upstream, model, &mut findings).await;
        dialects_of(upstream, model, &mut findings);
        check_template(upstream, model, &loaded.settings.relay.adapt, &mut findings).await;
        if let Some(places) = own_places {
            check_places(places, config.max_concurrency, &mut findings);
        }
        let patience = Patience { upstream: &upstream.name, model, limit: timeout };
        round_trip(&app, &patience, &mut findings).await;
    }
    Ok((findings, Some(models)))
}

/// Returns the settings with this upstream alone, so that the round trip is its own.
fn settings_of_one(settings: &Settings, upstream: &UpstreamConfig, state_dir: &Path) -> Settings {
    let mut alone =
        Settings { upstreams: vec![upstream.clone()], agents: BTreeMap::new(), ..settings.clone() };
    // Another model that answers would hide why this one does not.
    for model in alone.relay.models.values_mut() {
        model.fallback.clear();
        model.vision = None;
    }
    state_dir.clone_into(&mut alone.store.state_dir);
    alone.store.store.url = None;
    alone.usage.keep = Duration::ZERO;
    alone
}

/// Names the agents, experts and other names of models whose model is in no server's list.
fn check_wanted_models(settings: &Settings, listed: &[String], findings: &mut Findings) {
    let agents =
        settings.agents.iter().map(|(name, agent)| (&agent.model, format!("the agent `{name}` uses")));
    let experts = settings.experts.model.iter().map(|model| (model, "experts use".to_owned()));
    let relay = &settings.relay;
    // A fallback may begin with the name of its upstream.
    let of_upstream = |name: &str| {
        let (upstream, model) = name.split_once('/')?;
        settings.upstreams.iter().any(|one| one.name == upstream).then(|| model.to_owned())
    };
    let is_listed = |name: &str| listed.iter().any(|it| it == relay.target(name));
    let is_known = |name: &str| is_listed(name) || of_upstream(name).is_some_and(|model| is_listed(&model));
    let lost = agents.chain(experts).chain(relay.named_models()).filter(|(model, _)| !is_known(model));
    for (index, (model, what_for)) in lost.enumerate() {
        if index == 0 {
            findings.heading("models");
        }
        let what = format!("no upstream lists the model {model:?}, which {what_for}");
        findings.fail(&what, &format!("correct the name; the listed ones are {}", listed.join(", ")));
    }
    let is_compared = |name: &String| settings.usage.compare.contains(name);
    for name in settings.prices.keys().filter(|name| !is_known(name) && !is_compared(name)) {
        let what = format!("[prices] has {name:?}, which no upstream lists, so no request has this price");
        findings.warn(&what, &format!("correct the name; the listed ones are {}", listed.join(", ")));
    }
}

/// An upstream's address, and where it was written.
struct UpstreamAddress {
    url: String,
    place: Place,
}

impl UpstreamAddress {
    /// Names the setting as a person knows it.
    fn setting_name(&self) -> String {
        if self.place.is_flag() {
            "the address after --upstream".to_owned()
        } else {
            format!("`url` of this upstream ({})", self.place)
        }
    }

    async fn when_unreachable(&self, code: Option<ErrorCode>) -> String {
        if let Some(plain) = plain_address(&self.url).await {
            return format!("the server answers without TLS: make {} {plain}", self.setting_name());
        }
        if code == Some(ErrorCode::UpstreamTls) {
            return self.with_place(CERTIFICATE_REFUSED_TODO);
        }
        if self.place.is_default() {
            return "start a model server there, or name yours with --upstream URL".to_owned();
        }
        format!(
            "check that the server is running and has loaded its model (until then vLLM refuses connections), and that {} is right",
            self.setting_name()
        )
    }

    fn when_wrong(&self, upstream: &Upstream) -> String {
        // One `/v1` at its end is not part of it.
        if self.url.trim_end_matches('/').ends_with("/v1") {
            return format!("write /v1 once: make {} {}", self.setting_name(), self.url);
        }
        let asked = upstream.address().endpoint_url("/v1/models").unwrap_or_default();
        let setting = self.setting_name();
        format!("{asked} was asked: check that {setting} is the base URL of an OpenAI-compatible server")
    }

    /// Adds where this upstream is configured.
    fn with_place(&self, todo: &str) -> String {
        format!("{} ({})", todo.trim_end_matches('.'), self.place)
    }

    fn when_key_is_refused(&self) -> String {
        let setting = if self.place.is_flag() || self.place.is_default() {
            VLLM_KEY.to_owned()
        } else {
            format!("`api_key` or `api_key_env` of this upstream ({})", self.place)
        };
        format!(
            "correct {setting}: the server wants the key that it was started with (`vllm serve --api-key`)"
        )
    }

    fn when_key_is_missing(&self) -> String {
        let key = "the key that the model server was started with (`vllm serve --api-key`)";
        if self.place.is_flag() || self.place.is_default() {
            return format!(
                "set {VLLM_KEY} to {key} and name the server with --upstream {}, or write `url` and `api_key` into respool.toml as [[upstream]]",
                self.url
            );
        }
        format!("set `api_key` or `api_key_env` of this upstream to {key}")
    }
}

/// Reports whether an upstream can be reached, its models, and their windows.
async fn models_of(
    upstream: &Upstream,
    address: &UpstreamAddress,
    findings: &mut Findings,
) -> Option<Vec<ListedModel>> {
    let began = Instant::now();
    let models = match upstream.ask_models(HeaderMap::new(), PROBE_WITHIN).await {
        Ok(models) => models,
        Err(problem) => {
            let todo = match &problem {
                NoModelList::Unreachable(error) if error.error.code == Some(ErrorCode::UpstreamDns) => {
                    format!("check the host name in {}", address.setting_name())
                }
                NoModelList::Unreachable(error) => address.when_unreachable(error.error.code).await,
                NoModelList::KeyMissing { .. } => address.when_key_is_missing(),
                NoModelList::KeyRefused(..) => address.when_key_is_refused(),
                _ if problem.is_wrong_address() => address.when_wrong(upstream),
                _ => "look at the server's log".to_owned(),
            };
            findings.fail(&problem.to_string(), &todo);
            return None;
        }
    };
    findings.ok(&format!("reachable in {} ms", began.elapsed().as_millis()));
    if upstream.is_respool(PROBE_WITHIN).await {
        let behind = format!(
            "make {} that of the model server behind it, if you mean that one",
            address.setting_name()
        );
        findings.warn(IS_RESPOOL, &format!("{behind}; else check the other respool for its own upstreams"));
        return None;
    }
    if models.is_empty() {
        findings.fail("it lists no models", &format!("load a model, or correct {}", address.setting_name()));
        return None;
    }
    models.iter().for_each(|model| window_of(model, findings));
    Some(models)
}

fn window_of(ListedModel { id, window, .. }: &ListedModel, findings: &mut Findings) {
    match window {
        Some(window) if *window < 32_768 => findings.warn(
            &format!("model {id}: context of {window} tokens"),
            "OpenClaw's own prompt takes about 15,000 tokens; start the server with a larger context if memory allows (vLLM: --max-model-len, llama.cpp: -c)",
        ),
        Some(window) => findings.ok(&format!("model {id}: context of {window} tokens (set contextWindow in OpenClaw to this)")),
        None => findings.warn(
            &format!("model {id}: the server does not report its context length"),
            &format!("set `context_window` under [models.{id:?}], and `contextWindow` in OpenClaw, which assumes 200,000 tokens otherwise"),
        ),
    }
}

/// Reports which program the server is. Returns how many requests it works on at a time, if it says so.
async fn report_server(upstream: &Upstream, list: &[ListedModel], findings: &mut Findings) -> Option<u64> {
    upstream.probe_version().await;
    if let Some((major, minor)) = upstream.server_traits().version {
        findings.ok(&format!("vLLM {major}.{minor}"));
        return None;
    }
    let Some((server, page)) = upstream.ask_server(list, &HeaderMap::new()).await else {
        findings.ok("the server does not say which program it is; respool adapts to what it refuses");
        return None;
    };
    let version = page.as_deref().and_then(|page| server.describe_version(page));
    findings.ok(&version.unwrap_or_else(|| server.name().to_owned()));
    server.count_places(&page?)
}

/// Compares the places that a server says it has with those that respool gives.
fn check_places(places: u64, max_concurrency: Option<usize>, findings: &mut Findings) {
    let text = format!("the server works on {places} requests at a time");
    match max_concurrency {
        Some(given) if given as u64 == places => findings.ok(&format!("{text}, as `max_concurrency` says")),
        _ => findings.warn(&text, &suggest_places(places)),
    }
}

/// Suggests the setting for a server that works on this number of requests at a time.
pub(super) fn suggest_places(places: u64) -> String {
    format!(
        "set `max_concurrency = {places}` of this [[upstream]] in respool.toml: then people go before work in \
         the background (docs/requests.md)"
    )
}

/// Reports how the tokens of a prompt are counted when respool must know whether it fits.
async fn counting_of(upstream: &Upstream, model: &str, findings: &mut Findings) {
    upstream.learn_models(&HeaderMap::new()).await;
    let body = json!({"model": model, "messages": [{"role": "user", "content": "ping"}]}).to_string();
    let Ok(request) = Object::parse(&body) else { return };
    let way = if upstream.models.facts_of(model).is_harmony {
        "counted by respool, with gpt-oss's own tokens (o200k_harmony)"
    } else if upstream.count_tokens(&request, &HeaderMap::new()).await.is_some() {
        "counted by the server (/tokenize)"
    } else {
        "estimated, because the server has no /tokenize; respool learns from its replies and refusals"
    };
    findings.ok(&format!("model {model}: prompt tokens are {way}"));
}

/// Reports which forms of calls are tried first.
fn dialects_of(upstream: &Upstream, model: &str, findings: &mut Findings) {
    let prior = PreferredDialects::from_model_names([model]).or(upstream.models.facts_of(model).prior);
    let names: Vec<_> = prior.names().collect();
    findings.ok(&if names.is_empty() {
        format!(
            "model {model}: its way of writing tool calls is unknown, so every form is tried \
             (`dialects` of [models.\"{model}\"] sets which ones come first)"
        )
    } else {
        format!("model {model}: tool calls in its text are tried in these forms first: {}", names.join(", "))
    });
}

/// Tries a call, its result and the answer through the relay's own path.
async fn round_trip(app: &App, patience: &Patience<'_>, findings: &mut Findings) {
    let model = patience.model;
    let question = json!({"role": "user", "content": format!("Call the tool {TOOL} with the word \"ping\", then tell me what it returned.")});
    let began = Instant::now();
    let reply = match patience.wait(ask_model(&app.relay, model, std::slice::from_ref(&question))).await {
        Ok(reply) => reply,
        Err(error) => return report_refusal(&error, findings),
    };
    let Some((choice, call)) =
        reply.choices.iter().find_map(|choice| Some((choice, choice.turn.calls.first()?)))
    else {
        return findings.warn(
            &format!("model {model} answered without calling the tool it was asked to call"),
            "try a model that is trained to use tools; with vLLM, check that --tool-call-parser fits the model",
        );
    };
    let dialect = choice.turn.notes.iter().find_map(|note| match note {
        Note::Dialect(name) => Some(*name),
        _ => None,
    });
    match dialect {
        None => findings.ok("the server's own tool-call parser works"),
        Some(name) => {
            findings.ok(&format!("the server leaves calls in the text; respool reads them (dialect {name})"));
        }
    }
    let called = json!({"role": "assistant", "content": null, "tool_calls": [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}]});
    let result = json!({"role": "tool", "tool_call_id": call.id, "content": "pong"});
    match patience.wait(ask_model(&app.relay, model, &[question, called, result])).await {
        Ok(_) => findings
            .ok(&format!("model {model}: call, result and answer in {:.1} s", began.elapsed().as_secs_f32())),
        Err(error) => return report_refusal(&error, findings),
    }
    match patience.wait(stream_answer(&app.relay, model)).await {
        Ok(()) => findings.ok(&format!("model {model}: a streamed answer is complete")),
        Err(error) => findings.fail(
            &format!("a streamed answer failed: {}", error.message),
            "look for this request in the server's log",
        ),
    }
}

fn report_refusal(error: &ApiError, findings: &mut Findings) {
    let todo = match error.message.as_str() {
        text if text.contains("--enable-auto-tool-choice") => {
            "start vLLM with --enable-auto-tool-choice --tool-call-parser NAME (gpt-oss: openai, Qwen: hermes or qwen3_coder)"
        }
        text if text.contains("context length") => "start vLLM with a larger --max-model-len",
        _ => "look for this request in the server's log",
    };
    findings.fail(&format!("the tool-call round trip failed: {}", error.message), todo);
}

async fn ask_model(relay: &Arc<Relay>, model: &str, messages: &[Value]) -> Result<Reply, ApiError> {
    let tool = json!({"type": "function", "function": {"name": TOOL, "description": "Returns an answer to a word.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}}});
    let body = json!({"model": model, "messages": messages, "tools": [tool], "max_tokens": 1024});
    match send_request(relay, &body).await? {
        Opened::Reply(reply) => Ok(*reply),
        Opened::Body(_) | Opened::Stream(_) => {
            Err(ApiError::new(500, ErrorCode::NotWhole, "the reply was not read"))
        }
    }
}

/// Reads a streamed answer, as requests without tools get it from the server.
async fn stream_answer(relay: &Arc<Relay>, model: &str) -> Result<(), ApiError> {
    let question = json!({"role": "user", "content": "Answer with one word."});
    let body = json!({"model": model, "messages": [question], "stream": true, "max_tokens": 1024});
    let Opened::Stream(mut stream) = send_request(relay, &body).await? else { return Ok(()) };
    loop {
        match stream.next().await {
            StreamPart::Frames(_) | StreamPart::Steps(_) => {}
            StreamPart::Failed(error) => return Err(error),
            StreamPart::End => return Ok(()),
        }
    }
}

async fn send_request(relay: &Arc<Relay>, body: &Value) -> Result<Opened, ApiError> {
    let start = RequestStart::new("respool-check".into(), "check", "other");
    let record = RequestRecord::begin(start, &Recording::default());
    let body = Bytes::from(body.to_string());
    relay.read(body, Origin::internal(HeaderMap::new(), record)).await?.ask_model().await
}

/// How long a model is waited for.
struct Patience<'a> {
    upstream: &'a str,
    model: &'a str,
    limit: Duration,
}

impl Patience<'_> {
    /// Waits for a turn of the model, and says early when it takes long.
    async fn wait<T>(&self, turn: impl Future<Output = Result<T, ApiError>>) -> Result<T, ApiError> {
        let Self { upstream, model, limit } = self;
        let limit_text = format_duration(*limit);
        let early = async {
            tokio::time::sleep(EARLY).await;
            say_on_stderr(&format!(
                "        the upstream `{upstream}` accepts requests and has not finished its answer: {model} was asked {} s ago, and has \
                 {limit_text} (--timeout)",
                EARLY.as_secs()
            ));
            std::future::pending().await
        };
        let late = format!("it accepts requests and has not finished its answer within {limit_text}");
        tokio::select! {
            biased;
            answer = tokio::time::timeout(*limit, turn) => {
                answer.unwrap_or_else(|_| Err(ApiError::new(504, ErrorCode::TooSlow, late)))
            }
            never = early => never,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_passed_routes_of_the_log_count() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let lines = [
            r#"{"message":"request","request":"POST /v1/files","route":"transparent"}"#,
            r#"{"message":"request","request":"POST /v1/files","route":"transparent"}"#,
            r#"{"message":"request","request":"POST /sleep","route":"refused"}"#,
            r#"{"message":"ready"}"#,
            "no JSON",
            r#"{"message":"request","request":"GET /v1/batches/a","route":"transparent"}"#,
        ];
        std::fs::write(file.path(), lines.join("\n")).unwrap();
        let found: Vec<_> = routes_passed_on(file.path()).unwrap().into_iter().collect();
        let pair = |method: &str, path: &str| (method.to_owned(), path.to_owned());
        assert_eq!(found, [pair("GET", "/v1/batches/a"), pair("POST", "/v1/files")]);
    }
}
