//! `respool serve`: starts everything in order, and ends it in order.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::advice::{self, Advice, advice};
use super::agents::{Equipped, OpenTools, agents, equipped, model_accesses, read_prompt};
use super::reload::{Reloading, Stamp};
use super::upstreams::ServedUpstreams;
use super::{Failure, banner, experts, log_problem, misspelt_note, sealing, usage};
use crate::agent::AgentConfig;
use crate::alerts::{Alerts, Watched};
use crate::config::{Flags, Loaded, Settings};
use crate::expert::Experts;
use crate::observe::{self, Recording};
use crate::otlp::Traces;
use crate::relay::{Relay, RelayLimits};
use crate::relay_ports::RelayProbes;
use crate::server::{Access, App, BodyRoom, KeptResponses, LimitsConfig, Listen, Stop, router, run};
use crate::tools::{Sources, Tools};
use crate::translate::GuardLimits;
use crate::units::{Unusable, both};
use crate::upstream::Fleet;

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
    // Fails only if a provider is installed already, which is just as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.map_err(|error| format!("the runtime cannot be started: {error}"))
}

async fn run_server(loaded: &Loaded, flags: Flags) -> Result<(), Failure> {
    let settings = &loaded.settings;
    let seen = Stamp::of(loaded);
    let found = advice::start_problems(settings);
    if !found.is_empty() {
        return Err(loaded.problems(found).into());
    }
    let stop = Stop::default();
    let parts = parts(settings, &stop.abort).await;
    let Assembled { app, upstreams, sources, traces } =
        assembled(settings, &stop.abort, parts).await.map_err(|found| loaded.problems(found))?;
    for misspelt in &loaded.misspelt {
        tracing::warn!(target: "respool::server", "{}", misspelt_note(misspelt));
    }
    for Advice { text, todo } in advice(settings) {
        tracing::warn!(target: "respool::server", todo, "{text}");
    }
    let hangup =
        signal(SignalKind::hangup()).map_err(|error| format!("signals cannot be handled: {error}"))?;
    let listener = bind(&settings.server.listen).await?;
    announce(loaded, &listener, &upstreams.fleet)?;
    tokio::spawn(on_signals(stop.clone(), signals()?));
    // A file that reaches its size limit (systemd's `LimitFSIZE=`) then fails the write instead of ending the process.
    let _ = signal(SignalKind::from_raw(nix::libc::SIGXFSZ));
    let (agents, access, experts) = (Arc::clone(&app.agents), Arc::clone(&app.access), app.experts.clone());
    let usage = Arc::clone(&app.usage);
    let (relay, relays) = watch::channel(Arc::clone(&app.relay));
    let upstreams_now = Arc::new(RelayProbes(relays));
    let watched =
        Watched { upstreams: upstreams_now, agents: Arc::clone(&app.agents), usage: Arc::clone(&usage) };
    tokio::spawn(Arc::clone(&app.alerts).watch(watched, stop.abort.clone()));
    let routes = router(app);
    let reloading = Reloading {
        flags,
        start: loaded.clone(),
        seen,
        holds: settings.clone(),
        current: routes.current(),
        upstreams,
        sources,
        relay,
        stop: stop.abort.clone(),
    };
    tokio::spawn(reloading.watch(hangup));
    tokio::spawn(Arc::clone(&access).keep_operators(stop.abort.clone()));
    agents.start_housekeeping().await;
    if let Some(experts) = &experts {
        experts.start(&stop.abort);
    }
    let left = run(listener, routes, stop.clone()).await;
    stop.abort.cancel();
    agents.wait_for_runs(left).await;
    if let Some(experts) = &experts {
        experts.wait_for_end().await;
    }
    access.save().await;
    usage.flush().await;
    if let Some(traces) = traces {
        traces.flush().await;
    }
    tracing::info!(target: "respool::server", "stopped");
    Ok(())
}

/// Says where the server listens: in the log, and to a person at a terminal with a banner.
fn announce(loaded: &Loaded, listener: &TcpListener, fleet: &Arc<Fleet>) -> Result<(), String> {
    let address = listener
        .local_addr()
        .map_err(|error| format!("the address of the listener is not known: {error}"))?;
    let settings = &loaded.settings;
    if banner::is_wanted(settings) {
        let (loaded, fleet) = (loaded.clone(), Arc::clone(fleet));
        tokio::spawn(async move { banner::print_banner(&loaded, address, &fleet).await });
    }
    let names: Vec<String> = settings.upstreams.iter().map(|upstream| upstream.name.clone()).collect();
    tracing::info!(
        target: "respool::server",
        version = env!("CARGO_PKG_VERSION"),
        listen = address.to_string(),
        upstreams = names.join(","),
        config = loaded.file.as_ref().map(|path| path.display().to_string()),
        "ready"
    );
    Ok(())
}

/// The relay on the configured upstreams, and the agents on it. Replays among the upstreams are started, and end with `abort`.
///
/// # Errors
/// Every unusable setting.
pub async fn app(settings: &Settings, abort: &CancellationToken) -> Result<App, Vec<Unusable>> {
    let parts = parts(settings, abort).await;
    Ok(assembled(settings, abort, parts).await?.kept())
}

/// The same, with different tools for its agents.
///
/// # Errors
/// Every unusable setting.
pub async fn app_with(
    settings: &Settings,
    abort: &CancellationToken,
    tools: &OpenTools<'_>,
) -> Result<App, Vec<Unusable>> {
    let parts =
        both(ServedUpstreams::open(settings, abort).await, equipped(settings, tools, &read_prompt).await);
    let parts = both(parts, Sources::open(&settings.tools))
        .map(|((upstreams, equipped), sources)| (upstreams, equipped, Arc::new(sources)));
    Ok(assembled(settings, abort, parts).await?.kept())
}

/// Ends the work of a command: its runs stop, and what they used is written.
pub(super) async fn finish(app: &App, stop: &CancellationToken) {
    stop.cancel();
    app.agents.wait_for_runs(app.limits.drain).await;
    app.usage.flush().await;
}

/// What an app is built from, except the store of runs.
type Parts = (ServedUpstreams, Vec<Equipped>, Arc<Sources>);

/// An app, and what is needed to build another one from a changed configuration.
struct Assembled {
    app: App,
    upstreams: ServedUpstreams,
    sources: Arc<Sources>,
    /// Where traces go.
    traces: Option<Arc<Traces>>,
}

impl Assembled {
    /// The app of a configuration that never changes.
    fn kept(self) -> App {
        self.upstreams.kept();
        self.app
    }
}

/// Opens everything that the settings name.
///
/// # Errors
/// Every unusable setting.
pub(super) async fn parts(settings: &Settings, abort: &CancellationToken) -> Result<Parts, Vec<Unusable>> {
    let sources = Sources::open(&settings.tools);
    let open = |config| -> BoxFuture<'_, _> { Box::pin(tools_of(sources.as_ref().ok(), config)) };
    let parts =
        both(ServedUpstreams::open(settings, abort).await, equipped(settings, &open, &read_prompt).await);
    both(sources, parts).map(|(sources, (upstreams, equipped))| (upstreams, equipped, Arc::new(sources)))
}

/// The tools that an agent's settings name. Without sources they cannot be checked.
pub(super) async fn tools_of(
    sources: Option<&Sources>,
    config: AgentConfig,
) -> Result<Arc<dyn Tools>, Vec<String>> {
    let set = sources.ok_or_else(Vec::new)?.select(&config.tools).await?;
    Ok(Arc::new(set))
}

async fn assembled(
    settings: &Settings,
    abort: &CancellationToken,
    parts: Result<Parts, Vec<Unusable>>,
) -> Result<Assembled, Vec<Unusable>> {
    let access = Access::new(&settings.server, advice::lends_key(settings));
    let ((upstreams, equipped, sources), access) = both(parts, access)?;
    let fleet = Arc::clone(&upstreams.fleet);
    let access = Arc::new(access);
    let bounds = bounds(settings);
    let traces =
        Traces::open(&settings.otlp).map_err(|why| vec![Unusable::new(&["otlp", "endpoint"], why)])?;
    let usage = usage::ledger(settings).await?;
    let relay = Arc::new(Relay::new(settings.relay.clone(), Arc::clone(&fleet), bounds));
    let agents = agents(settings, &relay, &fleet, bounds, equipped, abort.clone());
    agents.use_accounts(access.clone());
    let alerts = Alerts::new(super::alerts::config(settings), settings.store.state_dir.clone(), abort);
    let alerts = Arc::new(alerts);
    let recording = Recording {
        content: settings.log.content,
        sink: Some(usage.clone()),
        in_flight: Some(Arc::clone(&usage.in_flight)),
        spans: traces.clone().map(|traces| traces as _),
    };
    if let Some(traces) = &traces {
        tokio::spawn(Arc::clone(traces).keep(abort.clone()));
    }
    agents.record_in(recording.clone());
    tokio::spawn(Arc::clone(&usage).keep(abort.clone()));
    if let Some(store) = agents.store() {
        access.keep_in(Arc::clone(store)).await;
    }
    if settings.server.asks_for_keys() {
        tokio::spawn(Arc::clone(&access).watch(abort.clone()));
    }
    let agents_store = agents.store().cloned();
    let catalog = experts::catalog(settings).await;
    let accesses = model_accesses(settings, &relay, &fleet, bounds);
    let served = accesses.zip(catalog.clone()).map(|(models, catalog)| {
        let (config, agents) = (settings.experts.clone(), Arc::clone(&agents));
        Experts::open(config, agents, Arc::clone(&sources), models, catalog)
    });
    let hooks =
        catalog.and_then(|catalog| experts::serve(settings, catalog, agents.store(), served.as_ref(), abort));
    let app = App {
        relay,
        agents,
        experts: served,
        access,
        failed_streams: Arc::default(),
        responses: Arc::new(KeptResponses::new(&settings.store, agents_store)),
        sealer: Arc::new(sealing::sealer(&settings.store.state_dir)),
        bodies: bodies(&settings.server.limits),
        hooks,
        limits: settings.server.limits.clone(),
        recording,
        usage,
        alerts,
        abort: abort.clone(),
    };
    Ok(Assembled { app, upstreams, sources, traces })
}

/// The room for request bodies: at least enough for one of the largest.
pub(super) fn bodies(limits: &LimitsConfig) -> BodyRoom {
    BodyRoom::new(limits.max_bodies.max(limits.max_body))
}

pub(super) fn bounds(settings: &Settings) -> RelayLimits {
    let limits = &settings.server.limits;
    RelayLimits {
        max_body: limits.max_body.bytes(),
        guard: GuardLimits { max_tool_results: limits.max_tool_results, max_repeats: limits.max_repeats },
    }
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

/// The first signal drains; the second ends what is left at once.
pub(super) async fn on_signals(stop: Stop, [mut terminate, mut interrupt]: [Signal; 2]) {
    let mut next = async || tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} };
    next().await;
    tracing::info!(target: "respool::server", "stopping: no new requests; those in progress may finish");
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
