//! Asks each upstream which models it serves, for `respool upstreams` and for the banner of `serve`.

use std::time::{Duration, Instant};

use futures::future::join_all;
use http::HeaderMap;
use serde_json::{Value, json};

use crate::upstream::{Fleet, Upstream};

/// The answer of an upstream.
#[derive(Clone, Debug)]
pub(super) struct Reachability {
    pub(super) name: String,
    /// The reason why it cannot be used.
    pub(super) problem: Option<String>,
    pub(super) models: Vec<ListedModel>,
    pub(super) took: Duration,
}

/// A model in the list of a server.
#[derive(Clone, Debug)]
pub(super) struct ListedModel {
    pub(super) id: String,
    /// The window in tokens, if the server reports it.
    pub(super) window: Option<u64>,
}

impl Reachability {
    /// Lists the names of the models, or the reason why they are not known.
    pub(super) fn describe_models(&self) -> String {
        match &self.problem {
            Some(problem) => problem.clone(),
            None if self.models.is_empty() => "lists no models".to_owned(),
            None => self.models.iter().map(|model| model.id.as_str()).collect::<Vec<_>>().join(", "),
        }
    }

    pub(super) fn json(&self) -> Value {
        let model = |model: &ListedModel| json!({"id": model.id, "context_window": model.window});
        json!({
            "name": self.name, "ready": self.problem.is_none(), "problem": self.problem,
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
    let asked = tokio::time::timeout(within, upstream.get_json("/v1/models", HeaderMap::new())).await;
    let listed = match asked {
        Ok(Ok((status, body))) if status.is_success() => {
            let list = serde_json::from_slice::<Value>(&body);
            list.inspect(|_| upstream.learn_list(&body))
                .map_err(|_| "answers with something other than JSON".to_owned())
        }
        Ok(Ok((status, _))) if matches!(status.as_u16(), 401 | 403) => {
            Err(format!("rejects the key (HTTP {})", status.as_u16()))
        }
        Ok(Ok((status, _))) => Err(format!("answers HTTP {}", status.as_u16())),
        Ok(Err(error)) => Err(error.error.message),
        Err(_) => Err(format!("does not answer within {} s", within.as_secs())),
    };
    let model = |entry: &Value| {
        Some(ListedModel { id: entry["id"].as_str()?.to_owned(), window: entry["max_model_len"].as_u64() })
    };
    let entries = listed.as_ref().ok().and_then(|list| list["data"].as_array());
    let models = entries.into_iter().flatten().filter_map(model).collect();
    Reachability { name: upstream.name.clone(), problem: listed.err(), models, took: began.elapsed() }
}
