//! Asks each upstream which models it serves, for `respool upstreams` and for the banner of `serve`.

use std::time::{Duration, Instant};

use futures::future::join_all;
use http::HeaderMap;
use serde_json::{Value, json};

use upstream::{Fleet, ListedModel, NoModelList, Upstream};

/// The note on an upstream that is another respool, which works and need not be meant.
pub(super) const IS_RESPOOL: &str = "this is a respool, not a model server";

/// The answer of an upstream.
#[derive(Clone, Debug)]
pub(super) struct Reachability {
    pub(super) name: String,
    /// The reason why it cannot be used.
    pub(super) problem: Option<String>,
    /// It asks for a key, and respool has none for it.
    pub(super) asks_for_key: bool,
    pub(super) is_respool: bool,
    pub(super) models: Vec<ListedModel>,
    pub(super) took: Duration,
}

impl Reachability {
    /// Lists the names of the models, or the reason why they are not known.
    pub(super) fn describe_models(&self) -> String {
        match &self.problem {
            Some(problem) => problem.clone(),
            None => self.models.iter().map(|model| model.id.as_str()).collect::<Vec<_>>().join(", "),
        }
    }

    pub(super) fn json(&self) -> Value {
        let model = |model: &ListedModel| json!({"id": model.id, "context_window": model.window});
        json!({
            "name": self.name, "ready": self.problem.is_none(), "problem": self.problem, "respool": self.is_respool,
            "milliseconds": clock::to_millis(self.took),
            "models": self.models.iter().map(model).collect::<Vec<_>>(),
        })
    }
}

/// Asks all upstreams at the same time; each has `within` to answer.
pub(super) async fn ask_all(fleet: &Fleet, within: Duration) -> Vec<Reachability> {
    join_all(fleet.iter().map(|upstream| query_upstream(upstream, within))).await
}

async fn query_upstream(upstream: &Upstream, within: Duration) -> Reachability {
    let began = Instant::now();
    let listed = upstream.ask_models(HeaderMap::new(), within).await;
    let asks_for_key = listed.as_ref().is_err_and(NoModelList::waits_for_client_key);
    let (models, problem) = match listed {
        Ok(models) if models.is_empty() => (models, Some("it lists no models".to_owned())),
        Ok(models) => (models, None),
        Err(problem) => (Vec::new(), Some(problem.to_string())),
    };
    let took = began.elapsed();
    let is_respool = problem.is_none() && upstream.is_respool(within).await;
    Reachability { name: upstream.name.clone(), problem, asks_for_key, is_respool, models, took }
}
