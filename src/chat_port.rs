//! The port of `chat` to the models that servers list, served by the relay.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::HeaderMap;
use serde_json::Value;
use tokio::time::timeout;

use crate::chat::{ListedModel, ModelDirectory};
use crate::relay_ports::RelayedModels;
use crate::upstream::Upstream;

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
    let (status, body) = match timeout(LIST_WITHIN, upstream.get_json("/v1/models", HeaderMap::new())).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => return Err(error.error.message),
        Err(_) => return Err(format!("`{name}` does not answer within {} s", LIST_WITHIN.as_secs())),
    };
    match status.as_u16() {
        200 => {
            upstream.learn_list(&body);
            read_list(&body).ok_or_else(|| format!("`{name}` lists no models: is its URL right?"))
        }
        status @ 401..=403 => Err(format!(
            "`{name}` refuses the key, or needs one (HTTP {status}): give it as `api_key` or `api_key_env` \
             of an [[upstream]] with this URL in respool.toml; --upstream with an address sends none"
        )),
        status => Err(format!("`{name}` answers HTTP {status} when asked for its models")),
    }
}

fn read_list(body: &[u8]) -> Option<Vec<ListedModel>> {
    let list: Value = serde_json::from_slice(body).ok()?;
    let model = |model: &Value| {
        Some(ListedModel { id: model["id"].as_str()?.to_owned(), window: announced_window(model) })
    };
    let models: Vec<ListedModel> = list["data"].as_array()?.iter().filter_map(model).collect();
    (!models.is_empty()).then_some(models)
}

/// Returns the window that a server announces: vLLM calls it `max_model_len`; others have other names.
fn announced_window(model: &Value) -> Option<u64> {
    let metadata = &model["metadata"];
    [&model["max_model_len"], &model["context_length"], &model["context_window"], &metadata["context_length"]]
        .into_iter()
        .find_map(Value::as_u64)
        .filter(|window| *window > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_have_many_names() {
        let body = br#"{"data":[{"id":"a","max_model_len":4096},{"id":"b","metadata":{"context_length":131072}},{"id":"c"},{}]}"#;
        let found: Vec<(String, Option<u64>)> =
            read_list(body).unwrap().into_iter().map(|model| (model.id, model.window)).collect();
        let expected = [("a", Some(4096)), ("b", Some(131_072)), ("c", None)];
        assert_eq!(found, expected.map(|(id, window)| (id.to_owned(), window)));
        assert_eq!(read_list(b"{\"data\":[]}"), None);
        assert_eq!(read_list(b"<html>"), None);
    }
}
