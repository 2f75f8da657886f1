//! `respool serve`: everything started in order, and ended in order.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::advice::{self, Advice, advice};
use super::agents::{Equipped, OpenTools, agents, equipped, model_accesses};
use super::reload::Reloading;
use super::{Failure, experts, log_problem, sealing, usage};
use crate::agent::AgentConfig;
use crate::alerts::{Alerts, Watched};
use crate::config::{Flags, Loaded, Settings};
use crate::expert::Experts;
use crate::observe::{self, Recording};
use crate::relay::{Relay, RelayLimits};
use crate::server::{Access, App, BodyRoom, KeptResponses, Listen, Stop, router, run};
use crate::tools::{Sources, Tools};
use crate::translate::GuardLimits;
use crate::units::{Unusable, both};
use crate::upstream::replay::{self, Replay};
use crate::upstream::{Address, Fleet, LISTS_EVERY, Upstream, UpstreamConfig};

pub(super) fn serve(loaded: &Loaded, flags: Flags) -> Result<(), Failure> {
    let flush = observe::init(&loaded.settings.log).map_err(|why| log_problem(loaded, why))?;
    observe::metrics::install();
    raise_descriptor_limit();
    let result = runtime()?.block_on(run_server(loaded, flags));
    drop(flush);
    result
}

/// The runtime that all commands use.
pub(super) fn runtime() -> Result<tokio::runtime::Runtime, String> {
    // Fails only when a provider is installed already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.map_err(|error| format!("the runtime cannot be started: {error}"))
}

async fn run_server(loaded: &Loaded, flags: Flags) -> Result<(), Failure> {
    let settings = &loaded.settings;
    let open = advice::open_to_all(settings);
    if !open.is_empty() {
        return Err(loaded.problems(open).into());
    }
    let stop = Stop::default();
    let app = app(settings, &stop.abort).await.map_err(|found| loaded.problems(found))?;
    for Advice { text, todo } in advice(settings) {
        tracing::warn!(target: "respool::server", todo, "{text}");
    }
    let hangup =
        signal(SignalKind::hangup()).map_err(|error| format!("signals cannot be handled: {error}"))?;
    let listener = bind(&settings.server.listen).await?;
    let names: Vec<String> = settings.upstreams.iter().map(|upstream| upstream.name.clone()).collect();
    tracing::info!(
        target: "respool::server",
        version = env!("CARGO_PKG_VERSION"),
        listen = listener.local_addr().map(|address| address.to_string()).unwrap_or_default(),
        upstreams = names.join(","),
        config = loaded.file.as_ref().map(|path| path.display().to_string()),
        "ready"
    );
    tokio::spawn(on_signals(stop.clone(), signals()?));
    let reloading = Reloading { flags, usage: Arc::clone(&app.usage), alerts: Arc::clone(&app.alerts) };
    tokio::spawn(reloading.watch(loaded.clone(), hangup, stop.abort.clone()));
    // A file at its size limit (`LimitFSIZE=` of systemd) is then an error of the write, and not the end of the process.
    let _ = signal(SignalKind::from_raw(nix::libc::SIGXFSZ));
    let (agents, access, experts) = (Arc::clone(&app.agents), Arc::clone(&app.access), app.experts.clone());
    let usage = Arc::clone(&app.usage);
    let watched =
        Watched { relay: Arc::clone(&app.relay), agents: Arc::clone(&app.agents), usage: Arc::clone(&usage) };
    tokio::spawn(Arc::clone(&app.alerts).watch(watched, stop.abort.clone()));
    agents.start().await;
    if let Some(experts) = &experts {
        experts.start(&stop.abort);
    }
    run(listener, router(app), stop.clone(), settings.server.limits.drain).await;
    stop.abort.cancel();
    agents.ended().await;
    if let Some(experts) = &experts {
        experts.ended().await;
    }
    access.save().await;
    usage.flush().await;
    tracing::info!(target: "respool::server", "stopped");
    Ok(())
}

/// The relay over the configured upstreams and the agents over it; replays among the upstreams are started, and end with
/// `abort`.
///
/// # Errors
/// Every setting that cannot be used.
pub async fn app(settings: &Settings, abort: &CancellationToken) -> Result<App, Vec<Unusable>> {
    assembled(settings, abort, parts(settings, abort).await).await
}

/// The same, with other tools for its agents.
///
/// # Errors
/// Every setting that cannot be used.
pub async fn app_with(
    settings: &Settings,
    abort: &CancellationToken,
    tools: &OpenTools<'_>,
) -> Result<App, Vec<Unusable>> {
    let parts = both(fleet(settings, abort).await, equipped(settings, tools).await);
    let parts = both(parts, Sources::open(&settings.tools))
        .map(|((fleet, equipped), sources)| (fleet, equipped, Arc::new(sources)));
    assembled(settings, abort, parts).await
}

/// What an app is made of, but for the store of runs.
type Parts = (Arc<Fleet>, Vec<Equipped>, Arc<Sources>);

/// Opens all that the settings name.
///
/// # Errors
/// Every setting that cannot be used.
pub(super) async fn parts(settings: &Settings, abort: &CancellationToken) -> Result<Parts, Vec<Unusable>> {
    let sources = Sources::open(&settings.tools);
    let open = |config| -> BoxFuture<'_, _> { Box::pin(tools_of(sources.as_ref().ok(), config)) };
    let parts = both(fleet(settings, abort).await, equipped(settings, &open).await);
    both(sources, parts).map(|(sources, (fleet, equipped))| (fleet, equipped, Arc::new(sources)))
}

/// The tools that an agent's settings name. Without sources nothing can be said of them.
async fn tools_of(sources: Option<&Sources>, config: AgentConfig) -> Result<Arc<dyn Tools>, Vec<String>> {
    let set = sources.ok_or_else(Vec::new)?.select(&config.tools).await?;
    Ok(Arc::new(set))
}

async fn assembled(
    settings: &Settings,
    abort: &CancellationToken,
    parts: Result<Parts, Vec<Unusable>>,
) -> Result<App, Vec<Unusable>> {
    let access = Access::new(&settings.server, advice::lends_key(settings));
    let ((fleet, equipped, sources), access) = both(parts, access)?;
    let access = Arc::new(access);
    let bounds = bounds(settings);
    let usage = usage::ledger(settings).await?;
    let relay = Arc::new(Relay::new(settings.relay.clone(), Arc::clone(&fleet), bounds));
    let agents = agents(settings, &relay, &fleet, bounds, equipped, abort.clone());
    agents.tell_accounts(access.clone());
    let alerts = Alerts::new(settings.alerts.clone(), settings.store.state_dir.clone(), abort);
    let alerts = Arc::new(alerts);
    let recording = Recording {
        content: settings.log.content,
        sink: Some(usage.clone()),
        in_flight: Some(Arc::clone(&usage.in_flight)),
    };
    agents.record_in(recording.clone());
    tokio::spawn(Arc::clone(&usage).keep(abort.clone()));
    if let Some(store) = agents.store() {
        access.keep_in(Arc::clone(store)).await;
    }
    if settings.server.asks_for_keys() {
        tokio::spawn(Arc::clone(&access).watch(abort.clone()));
    }
    let agents_store = agents.store().cloned();
    let hooks = experts::serve(settings, agents.store(), abort).await;
    let served = match model_accesses(settings, &relay, &fleet, bounds) {
        Some(models) => {
            Some(Experts::open(settings.experts.clone(), Arc::clone(&agents), sources, models).await)
        }
        None => None,
    };
    Ok(App {
        relay,
        agents,
        experts: served,
        access,
        given_up: Arc::default(),
        responses: Arc::new(KeptResponses::new(&settings.store, agents_store)),
        sealer: Arc::new(sealing::sealer(&settings.store.state_dir)),
        bodies: BodyRoom::new(settings.server.limits.max_bodies.max(settings.server.limits.max_body)),
        hooks,
        limits: settings.server.limits.clone(),
        recording,
        usage,
        alerts,
        abort: abort.clone(),
    })
}

/// The configured upstreams; what they serve is asked again and again until `abort`.
///
/// # Errors
/// Every upstream that cannot be used.
pub(super) async fn fleet(
    settings: &Settings,
    abort: &CancellationToken,
) -> Result<Arc<Fleet>, Vec<Unusable>> {
    let (mut upstreams, mut problems) = (Vec::new(), Vec::new());
    for (index, config) in settings.upstreams.iter().enumerate() {
        match started(config, abort).await.and_then(|config| Upstream::new(&config)) {
            Ok(upstream) => upstreams.push(Arc::new(upstream)),
            Err(why) => problems.push(Unusable::new(&["upstream", &index.to_string(), "url"], why)),
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    let fleet = Arc::new(Fleet::new(upstreams, LISTS_EVERY));
    if fleet.is_several() {
        tokio::spawn(Arc::clone(&fleet).keep_lists(abort.clone()));
    }
    Ok(fleet)
}

pub(super) fn bounds(settings: &Settings) -> RelayLimits {
    let limits = &settings.server.limits;
    RelayLimits {
        max_body: limits.max_body.bytes(),
        guard: GuardLimits { max_tool_results: limits.max_tool_results, max_repeats: limits.max_repeats },
    }
}

async fn started(config: &UpstreamConfig, abort: &CancellationToken) -> Result<UpstreamConfig, String> {
    let Address::Replay(dir) = &config.url else { return Ok(config.clone()) };
    let replay = Replay::load(dir).map_err(|error| format!("upstream `{}`: {error}", config.name))?;
    let url = start_replay(Arc::new(replay), abort).await?;
    Ok(UpstreamConfig { url, ..config.clone() })
}

/// Serves a replay on a free loopback port until `abort`.
pub(super) async fn start_replay(replay: Arc<Replay>, abort: &CancellationToken) -> Result<Address, String> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await;
    let listener = listener.map_err(|error| format!("the replay upstream cannot listen: {error}"))?;
    let address =
        listener.local_addr().map_err(|error| format!("the replay upstream cannot listen: {error}"))?;
    tokio::spawn(replay::serve(listener, replay, abort.clone()));
    format!("http://{address}").parse()
}

async fn bind(listen: &Listen) -> Result<TcpListener, String> {
    let bound = TcpListener::bind((listen.host.as_str(), listen.port)).await;
    bound.map_err(|error| {
        let what_to_do = match error.kind() {
            io::ErrorKind::AddrInUse => {
                "another program uses this port (another respool?); stop it or choose another with --listen"
            }
            io::ErrorKind::PermissionDenied => {
                "ports below 1024 need a privilege; choose a higher one with --listen"
            }
            _ => "correct --listen or `listen` in respool.toml",
        };
        format!("cannot listen on {listen}: {error}; {what_to_do}")
    })
}

pub(super) fn signals() -> Result<[Signal; 2], String> {
    let handler = |kind| signal(kind).map_err(|error| format!("signals cannot be handled: {error}"));
    Ok([handler(SignalKind::terminate())?, handler(SignalKind::interrupt())?])
}

/// The first signal drains, the second one ends what is left at once.
pub(super) async fn on_signals(stop: Stop, [mut terminate, mut interrupt]: [Signal; 2]) {
    let mut next = async || tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} };
    next().await;
    tracing::info!(target: "respool::server", "stopping: no new requests; those in flight may finish");
    stop.drain.cancel();
    next().await;
    tracing::warn!(target: "respool::server", "stopping at once");
    stop.abort.cancel();
    tokio::time::sleep(Duration::from_millis(100)).await;
    std::process::exit(130);
}

/// A thousand streams need two thousand descriptors; many systems start a process with 1024 and allow it more.
fn raise_descriptor_limit() {
    if let Err(error) = rlimit::increase_nofile_limit(u64::MAX) {
        tracing::warn!(target: "respool::server", %error, "the limit of open files cannot be raised");
    }
}
