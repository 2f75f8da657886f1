//! The port of `chat` to the models that servers list, served by the relay.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::HeaderMap;

use crate::chat::{ListedModel, ModelDirectory};
use crate::relay_ports::RelayedModels;
use crate::upstream::{NoModelList, Upstream};

/// How long an endpoint may take to list its models.
const LIST_WITHIN: Duration = Duration::from_secs(15);

impl ModelDirectory for RelayedModels {
    fn list_models(&self) -> Vec<BoxFuture<'_, Result<Vec<ListedModel>, String>>> {
        self.0.upstreams().map(|upstream| list_models(upstream).boxed()).collect()
    }

    fn aliases(&self) -> Vec<(String, String)> {
        self.0.aliases().map(|(alias, target)| (alias.to_owned(), target.to_owned())).collect()
    }

    fn target(&self, id: &str) -> String {
        self.0.target(id).to_owned()
    }

    fn configured_window(&self, id: &str) -> Option<u64> {
        self.0.configured_window(id)
    }
}

/// Asks an endpoint for its models.
///
/// # Errors
/// What is wrong, for people.
async fn list_models(upstream: &Arc<Upstream>) -> Result<Vec<ListedModel>, String> {
    let name = &upstream.name;
    let models = match upstream.ask_models(HeaderMap::new(), LIST_WITHIN).await {
        Ok(models) => models,
        Err(problem @ NoModelList::KeyRefused(..)) => {
            return Err(format!(
                "`{name}` cannot be used: {problem}. Give the key as `api_key` or `api_key_env` of an \
                 [[upstream]] with this URL in respool.toml, or in the environment variable VLLM_API_KEY"
            ));
        }
        Err(NoModelList::Unreachable(error)) => return Err(error.error.message),
        Err(problem) => return Err(format!("`{name}` cannot be used: {problem}")),
    };
    if models.is_empty() {
        return Err(format!("`{name}` lists no models: is its URL right?"));
    }
    Ok(models.into_iter().map(|model| ListedModel { id: model.id, window: model.window }).collect())
}
