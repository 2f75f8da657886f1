//! The relay itself: its settings, its upstreams, and what it remembers of conversations and recent requests.
//!
//! What it does with a request stands in `reading` (a body becomes a `ClientRequest`), `answer` (which
//! becomes a reply) and `forward` (requests that it does not read).

use std::collections::HashMap;
use std::sync::Arc;

use super::config::{FinalErrors, RelayConfig};
use super::memory::{Memory, MemoryLimits};
use super::missing_model::available_models;
use super::recent::{Recent, RecentLimits};
use bytes::Bytes;

use adapt::Declared;
use telemetry::RequestRecord;
use translate::GuardLimits;
use upstream::{Fleet, OutcomeReport, Tier, Upstream, UpstreamError};
use wire::Object;

/// Relays requests to the configured upstreams.
#[derive(Debug)]
pub struct Relay {
    pub(super) config: Arc<RelayConfig>,
    /// The parameters that the owner declares, by the id that clients use.
    declared: HashMap<String, Arc<Declared>>,
    nothing_declared: Arc<Declared>,
    /// Some model has another one that may answer in its place.
    pub(super) has_fallbacks: bool,
    /// The agents that may be asked for in place of a model.
    agents: Vec<String>,
    pub(super) fleet: Arc<Fleet>,
    pub(super) max_body: usize,
    pub(super) guard: GuardLimits,
    pub(super) memory: Option<Arc<Memory>>,
    pub(super) recent: Recent,
}

/// Bounds that the relay keeps.
#[derive(Clone, Copy, Debug)]
pub struct RelayLimits {
    /// The largest reply, in bytes.
    pub max_body: usize,
    /// When the loop guard answers.
    pub guard: GuardLimits,
}

impl Relay {
    /// Relays to these upstreams.
    pub fn new(config: RelayConfig, fleet: Arc<Fleet>, limits: RelayLimits) -> Self {
        let memory = config.recovery.reasoning_memory.then(|| Arc::new(Memory::new(MemoryLimits::default())));
        let recent = Recent::new(RecentLimits::default());
        let (max_body, guard) = (limits.max_body, limits.guard);
        let (declared, nothing_declared) = (config.declared_parameters(), Arc::default());
        let has_fallbacks =
            config.models.values().any(|model| !model.fallback.is_empty() || model.vision.is_some());
        let config = Arc::new(config);
        let agents = Vec::new();
        Self {
            config,
            declared,
            nothing_declared,
            has_fallbacks,
            agents,
            fleet,
            max_body,
            guard,
            memory,
            recent,
        }
    }

    /// Names these agents, too, where it names the available models.
    #[must_use]
    pub fn with_agents(self, agents: Vec<String>) -> Self {
        Self { agents, ..self }
    }

    /// Returns the relay that follows this one when the configuration changes. It remembers the same
    /// conversations.
    #[must_use]
    pub fn succeeding(&self, config: RelayConfig, fleet: Arc<Fleet>, limits: RelayLimits) -> Self {
        let new = Self::new(config, fleet, limits);
        let memory = new.memory.map(|memory| self.memory.clone().unwrap_or(memory));
        Self { memory, ..new }
    }

    /// Returns the form of errors that leave after all that could be tried.
    pub fn final_errors(&self) -> FinalErrors {
        self.config.recovery.final_errors
    }

    /// Returns the upstreams, the default one first.
    pub fn upstreams(&self) -> impl Iterator<Item = &Arc<Upstream>> {
        self.fleet.iter()
    }

    /// Returns the models that the upstreams are known to serve, and their other names.
    pub fn known_models(&self) -> Vec<String> {
        let mut models = self.fleet.known_models();
        let is_served = |alias: &&str| models.iter().any(|model| model == self.config.target(alias));
        let served: Vec<String> = self.config.aliases().filter(is_served).map(str::to_owned).collect();
        models.extend(served);
        models
    }

    /// Returns the end of an error about a missing model of this name: the available ones, unless the client
    /// may use certain models only.
    pub(super) fn describe_models(&self, wrong: &str, record: &RequestRecord) -> String {
        if record.start().account.as_ref().is_some_and(|account| account.is_restricted()) {
            return ". `/v1/models` lists the available ones".to_owned();
        }
        let refusals = self.fleet.refusals().map(|(it, why)| format!("those of `{}` ({why})", it.name));
        let mut known = self.known_models();
        // Its upstream may still list a model that it has just refused.
        known.retain(|name| self.target(name) != self.target(wrong));
        known.extend(self.agents.iter().cloned());
        available_models(wrong, &known, &refusals.collect::<Vec<_>>())
    }

    /// Returns the models that `[models]` names and no upstream serves, each with what it is named for; none
    /// while the models of an upstream are not known.
    pub fn missing_models(&self) -> Vec<(String, String)> {
        // A client's key may open other models.
        let lists: Option<Vec<_>> = self.fleet.iter().map(|upstream| upstream.state.models()).collect();
        let Some(known) = lists.map(|lists| lists.concat()) else { return Vec::new() };
        let is_known = |name: &str| known.iter().any(|it| it == self.target(self.split_upstream(name).1));
        let missing = self.config.named_models().filter(|(name, _)| !is_known(name));
        missing.map(|(name, what_for)| (name.clone(), what_for)).collect()
    }

    /// Returns its configuration.
    pub fn config(&self) -> &RelayConfig {
        &self.config
    }

    /// Returns the model that an id stands for.
    pub fn target<'a>(&'a self, id: &'a str) -> &'a str {
        self.config.target(id)
    }

    /// Returns the parameters that the owner declares for the model of this id.
    pub(super) fn declared_parameters(&self, id: &str) -> &Arc<Declared> {
        self.declared.get(id).unwrap_or(&self.nothing_declared)
    }

    /// Returns the body with the parameters that the owner declares for its model. `None` when nothing
    /// changes.
    pub(super) fn declared_body(&self, body: &Bytes) -> Option<Bytes> {
        if self.declared.is_empty() {
            return None;
        }
        let text = std::str::from_utf8(body).ok()?;
        let model = Object::parse(text).ok()?.string("model")?;
        let declared = self.declared_parameters(&model);
        (!declared.changes_nothing()).then(|| declared.apply_to_body(text).map(Bytes::from)).flatten()
    }

    /// Reports to the upstream's circuit how a request went.
    pub(super) fn report_outcome(&self, error: Option<&UpstreamError>, report: OutcomeReport) {
        match error {
            // It may be well, and is of no use.
            Some(error) if report.is_own_key_refused(error) => {}
            Some(error) if counts_against_upstream(error) => report.report_failure(&error.loggable),
            error => {
                let was_down = report.report_success();
                // Perhaps it came back with another model.
                if was_down || error.is_some_and(|error| error.status == Some(404)) {
                    self.fleet.want_lists();
                }
            }
        }
    }
}

/// Returns true for a connection that fails, a 5xx and an answer that cannot be read. The client's own
/// mistakes and the model's say nothing about the upstream.
fn counts_against_upstream(error: &UpstreamError) -> bool {
    match error.tier {
        Tier::Transient => true,
        Tier::Fatal => error.error.status >= 500,
        Tier::Glitch | Tier::ContextOverflow | Tier::Rejected => false,
    }
}
