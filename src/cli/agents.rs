//! Builds the agents of a configuration: their prompts, how they reach a model, their tools, and the store of
//! their runs.

use std::sync::Arc;

use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use super::failure::Failure;
use crate::relay_ports::RelayedModels;
use agent::{Agent, AgentConfig, Agents, Supervision};
use experts::{ExpertConfig, FindShortage, ModelAccess, ModelAccesses};
use relay::{ReasoningField, Relay, RelayLimits};
use settings::Settings;
use store::Store;
use telemetry::ErrorReport;
use tools::{Tools, UnavailableTool};
use upstream::{Fleet, LISTS_EVERY};
use usage::{Exhausted, Ledger, Owner, Shortage};
use wire::units::{UnusableSetting, zip_results};

/// Opens the tools that an agent's settings name.
pub type OpenTools<'a> =
    dyn Fn(AgentConfig) -> BoxFuture<'a, Result<Arc<dyn Tools>, Vec<UnavailableTool>>> + Send + Sync + 'a;

/// Reads the system prompt of the agent of this name.
pub(super) type ReadPrompt<'a> =
    dyn Fn(&str, &AgentConfig) -> Result<Option<String>, Failure> + Send + Sync + 'a;

/// An agent's settings, with everything they name.
pub(super) struct ResolvedAgent {
    name: String,
    config: AgentConfig,
    prompt: Option<String>,
    tools: Arc<dyn Tools>,
}

/// Reads and opens what the agents' settings name.
///
/// # Errors
/// Everything that is unavailable. The list may be empty if `tools` gave no reason.
pub(super) async fn resolve_agents(
    settings: &Settings,
    tools: &OpenTools<'_>,
    prompt: &ReadPrompt<'_>,
) -> Result<Vec<ResolvedAgent>, Vec<UnusableSetting>> {
    let (mut all, mut problems) = (Vec::new(), Vec::new());
    for (name, config) in &settings.agents {
        let prompt = prompt(name, config).map_err(|why| {
            vec![UnusableSetting::new(&["agents", name, "system_prompt_file"], why.to_string())]
        });
        let fault = |why| UnusableSetting::new(&["agents", name, "tools"], why);
        let tools =
            tools(config.clone()).await.map_err(|whys| whys.into_iter().map(fault).collect::<Vec<_>>());
        match zip_results(prompt, tools) {
            Ok((prompt, tools)) => {
                all.push(ResolvedAgent { name: name.clone(), config: config.clone(), prompt, tools });
            }
            Err(found) => problems.extend(found),
        }
    }
    if all.len() == settings.agents.len() { Ok(all) } else { Err(problems) }
}

/// Returns the agents on this fleet.
pub(super) fn build_agents(
    settings: &Settings,
    relay: &Arc<Relay>,
    fleet: &Arc<Fleet>,
    bounds: RelayLimits,
    equipped: Vec<ResolvedAgent>,
    shutdown: CancellationToken,
) -> Result<Arc<Agents>, UnusableSetting> {
    let all = agents_with_models(settings, relay, fleet, bounds, equipped);
    // The usage of named keys is counted in this store too.
    let has_experts = settings.experts.dir.is_dir() || settings.experts.model.is_some();
    let has_database = settings.store.store.url.is_some();
    let needs_store =
        !all.is_empty() || has_experts || has_database || settings.server.client_keys_file.is_some();
    let store = if needs_store { open_store(settings)? } else { None };
    let report = ErrorReport::new(settings.store.state_dir.join(&settings.log.errors_dir));
    Ok(Arc::new(Agents::new(all, store, report, settings.log.content, shutdown)))
}

/// Returns each agent, with how it reaches its model.
pub(super) fn agents_with_models(
    settings: &Settings,
    relay: &Arc<Relay>,
    fleet: &Arc<Fleet>,
    bounds: RelayLimits,
    equipped: Vec<ResolvedAgent>,
) -> Vec<Agent> {
    let agent = |ResolvedAgent { name, config, prompt, tools }| {
        let relay = match &config {
            AgentConfig { upstream: None, .. } if !config.reads_for_itself() => Arc::clone(relay),
            config => Arc::new(own_relay(settings, config, fleet, bounds)),
        };
        Agent {
            name: name.into(),
            prompt,
            model: Arc::new(RelayedModels(relay)),
            tools,
            window: settings.relay.modes_for(&config.model).context_window,
            target: settings.relay.target(&config.model).to_owned(),
            reasoning: reasoning_field(settings, &config),
            supervision: Supervision::default(),
            config,
        }
    };
    equipped.into_iter().map(agent).collect()
}

/// Returns a relay that knows only the agent's upstream, and leaves it to the agent to judge replies.
fn own_relay(settings: &Settings, config: &AgentConfig, fleet: &Arc<Fleet>, bounds: RelayLimits) -> Relay {
    let fleet = match &config.upstream {
        None => Arc::clone(fleet),
        Some(name) => {
            let wanted = fleet.iter().filter(|upstream| upstream.name == *name).cloned().collect();
            Arc::new(Fleet::new(wanted, LISTS_EVERY))
        }
    };
    let mut relay = settings.relay.clone();
    if config.reads_for_itself() {
        relay.recovery.attempts = 0;
    }
    Relay::new(relay, fleet, bounds)
}

/// Returns how experts reach their models; `None` if they have none.
pub(super) fn model_accesses(
    settings: &Settings,
    relay: &Arc<Relay>,
    fleet: &Arc<Fleet>,
    bounds: RelayLimits,
    usage: &Arc<Ledger>,
) -> Option<ModelAccesses> {
    let access = |model: String, upstream: Option<String>| {
        let config = AgentConfig { model: model.clone(), upstream, ..AgentConfig::default() };
        let relay = match &config.upstream {
            None => Arc::clone(relay),
            Some(_) => Arc::new(own_relay(settings, &config, fleet, bounds)),
        };
        ModelAccess {
            find_shortage: shortage_finder(Arc::clone(usage), Arc::clone(&relay), model.clone()),
            model: Arc::new(RelayedModels(relay)),
            target: settings.relay.target(&model).to_owned(),
            window: settings.relay.modes_for(&model).context_window,
            reasoning: reasoning_field(settings, &config),
            model_id: model,
        }
    };
    let default = settings.experts.model.clone()?;
    let has_own = |config: &ExpertConfig| config.model.is_some() || config.upstream.is_some();
    let named = settings.experts.by_name.iter().filter(|(_, config)| has_own(config)).map(|(name, _)| {
        let config = settings.experts.settings_of(name);
        (name.clone(), access(config.model.unwrap_or_default(), config.upstream))
    });
    Some(ModelAccesses {
        by_name: named.collect(),
        default: access(default, settings.experts.upstream.clone()),
    })
}

/// Returns what says whether a budget is spent for the agents of a model.
fn shortage_finder(usage: Arc<Ledger>, relay: Arc<Relay>, model: String) -> Arc<FindShortage> {
    Arc::new(move |agent| {
        let spent = usage.check_spent(Owner { key: "", agent }).err()?;
        let is_free = relay.costs_nothing(&model, |name| usage.is_free(name));
        (!is_free).then(|| describe_shortage(&spent))
    })
}

fn describe_shortage(Exhausted { shortage, scope, budget, .. }: &Exhausted) -> String {
    match shortage {
        Shortage::Spent | Shortage::UnderWay => format!(
            "today's budget for {} ({budget}) is used up: its events wait until 00:00 UTC, or until it is raised in `[budgets]`",
            scope.describe()
        ),
        Shortage::Unknown => {
            "the database that counts the budgets of all processes cannot be reached: its events wait until it can be".to_owned()
        }
    }
}

/// Returns the system prompt from its file.
pub(super) fn read_prompt(_: &str, config: &AgentConfig) -> Result<Option<String>, Failure> {
    let read = |path: &std::path::PathBuf| {
        std::fs::read_to_string(path)
            .map_err(|error| format!("{} cannot be read: {error}; correct the path", path.display()).into())
    };
    config.system_prompt_file.as_ref().map(read).transpose()
}

fn reasoning_field(settings: &Settings, config: &AgentConfig) -> Option<&'static str> {
    match settings.relay.modes_for(&config.model).reasoning {
        ReasoningField::ReasoningContent => Some("reasoning_content"),
        ReasoningField::Reasoning => Some("reasoning"),
        ReasoningField::Drop => None,
    }
}

/// Agents also work without a store: respool reports what cannot be kept, and no answer is lost. A database
/// that several processes share is not left out silently.
fn open_store(settings: &Settings) -> Result<Option<Arc<Store>>, UnusableSetting> {
    match Store::open(&settings.store) {
        Ok(store) => {
            if settings.store.store.url.is_some() {
                tracing::warn!(
                    target: "respool::store",
                    database = store.place(),
                    "processes that use this database share runs, queue, approvals, kept responses and usage; what they do not share, \
                     such as experts' files, is in docs/scaling.md"
                );
            }
            Ok(Some(Arc::new(store)))
        }
        Err(error) if settings.store.store.url.is_some() => {
            Err(UnusableSetting::new(&["store", "url"], error.0))
        }
        Err(error) => {
            tracing::error!(target: "respool::store", %error, "runs are not stored and will not survive a restart");
            Ok(None)
        }
    }
}
