//! The part of `respool expert validate NAME` that asks the upstreams whether they serve the expert's model.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::run::NO_MODEL;
use crate::cli::failure::Failure;
use crate::cli::reachability::ask_all;
use crate::cli::upstreams::ServedUpstreams;
use crate::config::Loaded;
use crate::openexperts::suggest_nearest;

/// How long a server has to list its models.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

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
    let own = settings.experts.settings_of(expert);
    let Some(model) = own.model.filter(|_| settings.experts.model.is_some()) else {
        return Ok(ModelCheck { problem: Some(NO_MODEL.to_owned()), ..ModelCheck::default() });
    };
    let abort = CancellationToken::new();
    let upstreams = ServedUpstreams::open(settings, &abort).await.map_err(|found| loaded.problems(found))?;
    let mut found = ask_all(&upstreams.fleet, ANSWER_WITHIN).await;
    abort.cancel();
    if let Some(upstream) = &own.upstream {
        found.retain(|one| one.name == *upstream);
    }
    let silent = found.iter().filter_map(|one| Some((&one.name, one.problem.as_ref()?)));
    let warnings: Vec<String> = silent
        .map(|(name, problem)| format!("the models of the upstream `{name}` are not known: {problem}"))
        .collect();
    let listed: Vec<&str> = found.iter().flat_map(|one| &one.models).map(|model| model.id.as_str()).collect();
    if !warnings.is_empty() || listed.is_empty() || listed.contains(&settings.relay.target(&model)) {
        return Ok(ModelCheck { problem: None, warnings });
    }
    let near = suggest_nearest(&model, listed.iter().copied());
    let problem = format!(
        "no upstream lists the model {model:?}: {near}correct `model` in [experts]. Available models: {}",
        listed.join(", ")
    );
    Ok(ModelCheck { problem: Some(problem), warnings })
}
