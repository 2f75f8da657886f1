//! Asks the upstreams whether they serve the models of experts. Used by `respool expert validate`, `list` and
//! `show`, and for the log of `serve`.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::run::NO_MODEL;
use crate::cli::failure::Failure;
use crate::cli::reachability::{Reachability, ask_all};
use crate::cli::runtime::new_runtime;
use crate::cli::upstreams::ServedUpstreams;
use experts::ExpertConfig;
use openexperts::suggest_nearest;
use settings::{Loaded, Settings};
use upstream::Fleet;

/// How long a server has to list its models.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// How long a server has where its answer is one of many facts.
const ANSWER_SOON: Duration = Duration::from_secs(1);

/// The findings about the model of an expert.
#[derive(Default)]
pub(super) struct ModelCheck {
    /// Why its requests fail until a person changes something.
    pub(super) problem: Option<String>,
    /// The upstreams whose models are not known.
    pub(super) warnings: Vec<String>,
}

/// Asks the upstreams for their models, and looks for the one that an expert uses.
pub(super) async fn check_model(loaded: &Loaded, expert: &str) -> Result<ModelCheck, Failure> {
    let settings = &loaded.settings;
    if settings.experts.model.is_none() {
        return Ok(ModelCheck { problem: Some(NO_MODEL.to_owned()), ..ModelCheck::default() });
    }
    let abort = CancellationToken::new();
    let upstreams = ServedUpstreams::open(settings, &abort).await.map_err(|found| loaded.problems(found))?;
    let found = ask_all(&upstreams.fleet, ANSWER_WITHIN).await;
    abort.cancel();
    Ok(find_model(settings, &settings.experts.settings_of(expert), &found))
}

/// The models that the upstreams list at the moment.
pub(super) struct ListedModels<'a> {
    settings: &'a Settings,
    found: Vec<Reachability>,
}

impl<'a> ListedModels<'a> {
    /// Asks the upstreams. Those that do not answer soon are left out.
    pub(super) fn ask(loaded: &'a Loaded) -> Self {
        let settings = &loaded.settings;
        let asked = async {
            let abort = CancellationToken::new();
            let upstreams = ServedUpstreams::open(settings, &abort).await.ok()?;
            let found = ask_all(&upstreams.fleet, ANSWER_SOON).await;
            abort.cancel();
            Some(found)
        };
        let runtime = settings.experts.model.as_ref().and_then(|_| new_runtime().ok());
        let found = runtime.and_then(|runtime| runtime.block_on(asked)).unwrap_or_default();
        Self { settings, found }
    }

    /// Returns why the work of an expert fails: it has no model, or no upstream lists it.
    pub(super) fn find_problem(&self, expert: &str) -> Option<String> {
        let experts = &self.settings.experts;
        if experts.model.is_none() {
            return Some(NO_MODEL.to_owned());
        }
        find_model(self.settings, &experts.settings_of(expert), &self.found).problem
    }
}

/// Logs the models of experts that no upstream lists.
pub(in crate::cli) async fn warn_of_lost_models(settings: &Settings, fleet: &Fleet) {
    let experts = &settings.experts;
    if experts.model.is_none() {
        return;
    }
    let found = ask_all(fleet, ANSWER_WITHIN).await;
    let own = experts.by_name.keys().map(|name| experts.settings_of(name));
    let all = std::iter::once(experts.settings_of("")).chain(own);
    let lost: BTreeSet<String> = all.filter_map(|own| find_model(settings, &own, &found).problem).collect();
    for problem in lost {
        tracing::warn!(target: "respool::expert", "the work of experts will fail: {problem}");
    }
}

/// Looks for the model of an expert among those that the upstreams list.
fn find_model(settings: &Settings, own: &ExpertConfig, found: &[Reachability]) -> ModelCheck {
    let is_asked = |one: &&Reachability| own.upstream.as_ref().is_none_or(|name| one.name == *name);
    let found: Vec<&Reachability> = found.iter().filter(is_asked).collect();
    let silent = found.iter().filter_map(|one| Some((&one.name, one.problem.as_ref()?)));
    let warnings: Vec<String> = silent
        .map(|(name, problem)| format!("the models of the upstream `{name}` are not known: {problem}"))
        .collect();
    let listed: Vec<&str> = found.iter().flat_map(|one| &one.models).map(|model| model.id.as_str()).collect();
    let model = own.model.as_deref().unwrap_or_default();
    if !warnings.is_empty() || listed.is_empty() || listed.contains(&settings.relay.target(model)) {
        return ModelCheck { problem: None, warnings };
    }
    let near = suggest_nearest(model, listed.iter().copied());
    let problem = format!(
        "no upstream lists the model {model:?}: {near}correct `model` in [experts]. Available models: {}",
        listed.join(", ")
    );
    ModelCheck { problem: Some(problem), warnings }
}
