//! Builds an app from the settings: upstreams, agents, experts, usage, alerts and everything else that
//! requests meet.

use std::sync::Arc;

use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use super::agents::{OpenTools, ResolvedAgent, build_agents, model_accesses, read_prompt, resolve_agents};
use super::upstreams::ServedUpstreams;
use super::{experts, sealing, shared_folder, usage};
use ::experts::Experts;
use ::usage::Ledger;
use agent::AgentConfig;
use alerts::Alerts;
use relay::{Relay, RelayLimits};
use server::{Access, AgentApiState, App, AppParts, BodyBudget, KeptResponses, LimitsConfig};
use settings::Settings;
use telemetry::otlp::Traces;
use telemetry::{Captures, Recording};
use tools::{Sources, Tools, UnavailableTool};
use translate::GuardLimits;
use wire::units::{UnusableSetting, zip_results};

/// Builds the app of these settings. Replays among the upstreams are started, and end with `abort`.
///
/// # Errors
/// Every unusable setting.
pub async fn app(settings: &Settings, abort: &CancellationToken) -> Result<App, Vec<UnusableSetting>> {
    let parts = open_parts(settings, abort).await;
    Ok(assemble(settings, abort, parts).await?.into_app())
}

/// Builds the app with other tools for its agents.
///
/// # Errors
/// Every unusable setting.
pub async fn app_with(
    settings: &Settings,
    abort: &CancellationToken,
    tools: &OpenTools<'_>,
) -> Result<App, Vec<UnusableSetting>> {
    let parts = zip_results(
        ServedUpstreams::open(settings, abort).await,
        resolve_agents(settings, tools, &read_prompt).await,
    );
    let parts = zip_results(parts, Sources::open(&settings.tools))
        .map(|((upstreams, equipped), sources)| (upstreams, equipped, Arc::new(sources)));
    Ok(assemble(settings, abort, parts).await?.into_app())
}

/// Ends the work of a command: its runs stop, and what they used is written.
pub(super) async fn finish_work(app: &App, stop: &CancellationToken) {
    stop.cancel();
    app.agents.wait_for_runs(app.limits.drain).await;
    app.usage.close().await;
}

/// The parts of an app, except the store of runs.
pub(super) type Parts = (ServedUpstreams, Vec<ResolvedAgent>, Arc<Sources>);

/// An app, and the parts from which another one is built when the configuration changes.
pub(super) struct Assembled {
    pub(super) app: App,
    pub(super) upstreams: ServedUpstreams,
    pub(super) sources: Arc<Sources>,
    /// Where traces go.
    pub(super) traces: Option<Arc<Traces>>,
}

impl Assembled {
    /// Returns the app of a configuration that never changes.
    fn into_app(self) -> App {
        self.upstreams.into_fleet();
        self.app
    }
}

/// Opens everything that the settings name.
///
/// # Errors
/// Every unusable setting.
pub(super) async fn open_parts(
    settings: &Settings,
    abort: &CancellationToken,
) -> Result<Parts, Vec<UnusableSetting>> {
    let sources = Sources::open(&settings.tools);
    let open = |config| -> BoxFuture<'_, _> { Box::pin(tools_of(sources.as_ref().ok(), config)) };
    let parts = zip_results(
        ServedUpstreams::open(settings, abort).await,
        resolve_agents(settings, &open, &read_prompt).await,
    );
    zip_results(sources, parts)
        .map(|(sources, (upstreams, equipped))| (upstreams, equipped, Arc::new(sources)))
}

/// Returns the tools that an agent's settings name. Without sources they cannot be checked.
pub(super) async fn tools_of(
    sources: Option<&Sources>,
    config: AgentConfig,
) -> Result<Arc<dyn Tools>, Vec<UnavailableTool>> {
    let set = sources.ok_or_else(Vec::new)?.select_tools(&config.tools).await?;
    Ok(Arc::new(set))
}

/// Builds the app from its parts.
pub(super) async fn assemble(
    settings: &Settings,
    abort: &CancellationToken,
    parts: Result<Parts, Vec<UnusableSetting>>,
) -> Result<Assembled, Vec<UnusableSetting>> {
    let access = Access::new(&settings.server, settings::uses_own_key(settings));
    let ((upstreams, equipped, sources), access) = zip_results(parts, access)?;
    let fleet = Arc::clone(&upstreams.fleet);
    let access = Arc::new(access);
    let bounds = relay_limits(settings);
    let traces =
        Traces::open(&settings.otlp).map_err(|why| vec![UnusableSetting::new(&["otlp", "endpoint"], why)])?;
    let usage = usage::open_ledger(settings).await?;
    let names = settings.agents.keys().cloned().collect();
    let relay = Relay::new(settings.relay.clone(), Arc::clone(&fleet), bounds).with_agents(names);
    let relay = Arc::new(relay);
    let agents = build_agents(settings, &relay, &fleet, bounds, equipped, abort.clone())
        .map_err(|problem| vec![problem])?;
    agents.use_accounts(access.clone());
    let alerts = Alerts::new(super::alerts::alerts_config(settings), settings.store.state_dir.clone(), abort);
    let alerts = Arc::new(alerts);
    let recording = begin_recording(settings, &usage, traces.clone());
    if let Some(traces) = &traces {
        tokio::spawn(Arc::clone(traces).send_until(abort.clone()));
    }
    agents.record_in(recording.clone());
    tokio::spawn(Arc::clone(&usage).write_until(abort.clone()));
    if let Some(store) = agents.store() {
        usage.use_key_store(Arc::clone(store)).await;
        tokio::spawn(Arc::clone(&usage).share_until(abort.clone()));
        // Where the database is away, the first seconds of the server try again.
        let _ = access.share_sessions(store).await;
        shared_folder::check_folder(&settings.store, store).await.map_err(|problem| vec![problem])?;
    }
    if settings.server.asks_for_keys() {
        tokio::spawn(Arc::clone(&access).watch_key_file(Arc::clone(&alerts), abort.clone()));
    }
    let agents_store = agents.store().cloned();
    let catalog = experts::open_catalog(settings).await;
    let accesses = model_accesses(settings, &relay, &fleet, bounds, &usage);
    let served = accesses.zip(catalog.clone()).map(|(models, catalog)| {
        let (config, agents) = (settings.experts.clone(), Arc::clone(&agents));
        Experts::open(config, agents, Arc::clone(&sources), models, catalog)
    });
    let hooks = catalog.and_then(|catalog| {
        experts::serve_experts(settings, catalog, agents.store(), served.as_ref(), abort)
    });
    let app = Arc::new(AppParts {
        relay,
        agents,
        experts: served,
        access,
        agent_apis: Arc::new(AgentApiState {
            sealer: Arc::new(sealing::open_sealer(&settings.store.state_dir, agents_store.as_deref()).await),
            responses: Arc::new(KeptResponses::new(&settings.store, agents_store)),
            failed_streams: Arc::default(),
        }),
        bodies: body_budget(&settings.server.limits),
        hooks,
        limits: settings.server.limits.clone(),
        recording,
        usage,
        alerts,
        abort: abort.clone(),
    });
    Ok(Assembled { app, upstreams, sources, traces })
}

/// Returns the places where requests are recorded.
fn begin_recording(settings: &Settings, usage: &Arc<Ledger>, traces: Option<Arc<Traces>>) -> Recording {
    let captures = Captures::new(&settings.store.state_dir, settings.capture.clone());
    captures.remove_old();
    Recording {
        content: settings.log.content,
        sink: Some(usage.clone()),
        in_flight: Some(Arc::clone(&usage.in_flight)),
        spans: traces.map(|traces| traces as _),
        captures: Some(captures),
    }
}

/// Returns the room for request bodies: at least enough for one of the largest.
pub(super) fn body_budget(limits: &LimitsConfig) -> BodyBudget {
    BodyBudget::new(limits.max_bodies.max(limits.max_body))
}

/// Returns the limits that the relay keeps.
pub(super) fn relay_limits(settings: &Settings) -> RelayLimits {
    let limits = &settings.server.limits;
    RelayLimits {
        max_body: limits.max_body.to_usize(),
        guard: GuardLimits { max_tool_results: limits.max_tool_results, max_repeats: limits.max_repeats },
    }
}
