//! The port of `chat` to the models that servers list, served by the relay.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::{HeaderMap, StatusCode};

use crate::relay_ports::RelayedModels;
use adapt::Rule;
use chat::{ListedModel, ModelDirectory, NoModels};
use settings::VLLM_KEY;
use upstream::{NoModelList, Upstream, takes_no_media};

/// How long an endpoint may take to list its models.
const LIST_WITHIN: Duration = Duration::from_secs(15);

impl ModelDirectory for RelayedModels {
    fn list_models(&self) -> Vec<BoxFuture<'_, Result<Vec<ListedModel>, NoModels>>> {
        let list = |upstream: &Arc<Upstream>| {
            let upstream = Arc::clone(upstream);
            let list = async move {
                let (name, listed) =
                    (&upstream.name, upstream.ask_models(HeaderMap::new(), LIST_WITHIN).await);
                let models = listed.map_err(|problem| match problem {
                    NoModelList::Status(StatusCode::SERVICE_UNAVAILABLE, _) => {
                        NoModels::NotReady(problem.into_upstream_error(name).error.message)
                    }
                    problem => NoModels::Unusable(explain_problem(name, problem)),
                })?;
                if models.is_empty() {
                    return Err(NoModels::NoneListed(name.clone()));
                }
                Ok(models
                    .into_iter()
                    .map(|model| ListedModel { id: model.id, window: model.window })
                    .collect())
            };
            list.boxed()
        };
        self.0.upstreams().map(list).collect()
    }

    fn aliases(&self) -> Vec<(String, String)> {
        let config = self.0.config();
        config.aliases().map(|alias| (alias.to_owned(), config.target(alias).to_owned())).collect()
    }

    fn target(&self, id: &str) -> String {
        self.0.target(id).to_owned()
    }

    fn configured_window(&self, id: &str) -> Option<u64> {
        self.0.config().modes_for(id).context_window
    }

    fn takes_only_text(&self, id: &str) -> bool {
        self.0.config().vision(id).is_none()
            && self.0.upstreams().all(|upstream| takes_no_media(upstream, self.0.target(id), &Rule::NoImages))
    }
}

/// Explains why a server cannot be used, to a person.
fn explain_problem(name: &str, problem: NoModelList) -> String {
    match problem {
        NoModelList::Unreachable(error) => error.error.message,
        NoModelList::KeyRefused(..) => format!(
            "`{name}` cannot be used: {problem}. Correct it where it is given: in the environment variable \
             {VLLM_KEY}, or as `api_key` or `api_key_env` of the [[upstream]] in respool.toml"
        ),
        NoModelList::KeyMissing { .. } => format!(
            "`{name}` cannot be used: {problem}. Give the key as `api_key` or `api_key_env` of an [[upstream]] \
             with this URL in respool.toml, or in the environment variable {VLLM_KEY}"
        ),
        problem => format!("`{name}` cannot be used: {problem}"),
    }
}
