//! Finds out whether a server is loading a model: llama.cpp's router, Ollama, LM Studio and llama-swap hold a
//! request back until its model is loaded. Called by `relay` while an answer is awaited.

use std::sync::PoisonError;
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use serde_json::Value;
use tokio::time::timeout;

use super::client::Upstream;
use super::headers::question_headers;
use super::server::Server;

/// How long the question may take.
const WITHIN: Duration = Duration::from_secs(2);

impl Upstream {
    /// Returns true when the server says that it is loading this model. `headers`: the client's, for its key.
    pub async fn is_loading(&self, model: &str, headers: &HeaderMap) -> bool {
        self.learn_models(headers).await;
        let server = *self.models.server.read().unwrap_or_else(PoisonError::into_inner);
        let Some((server, page)) = server.and_then(|server| Some((server, load_page(server)?))) else {
            return false;
        };
        match timeout(WITHIN, Box::pin(self.get_json(page, question_headers(headers)))).await {
            Ok(Ok((StatusCode::OK, body))) => {
                serde_json::from_slice(&body).is_ok_and(|page: Value| says_loading(server, &page, model))
            }
            _ => false,
        }
    }
}

/// The page on which a server lists the states of its models.
fn load_page(server: Server) -> Option<&'static str> {
    match server {
        Server::LlamaCpp => Some("/v1/models"),
        Server::Ollama => Some("/api/ps"),
        Server::LmStudio => Some("/api/v0/models"),
        Server::LlamaSwap => Some("/running"),
        Server::Vllm | Server::SgLang => None,
    }
}

/// Reads the state of a model that has been asked for.
fn says_loading(server: Server, page: &Value, model: &str) -> bool {
    let listed = |list: &str, key: &str| -> Option<&Value> {
        let is_model = |entry: &&Value| entry[key].as_str().is_some_and(|name| is_same_model(name, model));
        page[list].as_array()?.iter().find(is_model)
    };
    match server {
        Server::LlamaCpp => listed("data", "id").is_some_and(|entry| entry["status"]["value"] == "loading"),
        // Only loaded models are listed.
        Server::Ollama => page["models"].is_array() && listed("models", "name").is_none(),
        Server::LmStudio => listed("data", "id").is_some_and(|entry| entry["state"] != "loaded"),
        Server::LlamaSwap => listed("running", "model").is_some_and(|entry| entry["state"] == "starting"),
        Server::Vllm | Server::SgLang => false,
    }
}

/// Returns true for the name of this model; Ollama adds a tag.
fn is_same_model(name: &str, model: &str) -> bool {
    name == model || name.strip_suffix(":latest") == Some(model)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn servers_list_what_they_load() {
        let check = |server: Server, loading: Value, loaded: Value| {
            assert!(says_loading(server, &loading, "m"), "{loading}");
            for other in [loaded, json!({}), json!([])] {
                assert!(!says_loading(server, &other, "m"), "{other}");
            }
        };
        let router = |state: &str| json!({"data": [{"id": "m", "status": {"value": state}}]});
        check(Server::LlamaCpp, router("loading"), router("loaded"));
        check(Server::Ollama, json!({"models": []}), json!({"models": [{"name": "m:latest"}]}));
        let studio = |state: &str| json!({"data": [{"id": "m", "state": state}]});
        check(Server::LmStudio, studio("not-loaded"), studio("loaded"));
        let swap = |state: &str| json!({"running": [{"model": "m", "state": state}]});
        check(Server::LlamaSwap, swap("starting"), swap("ready"));
    }
}
