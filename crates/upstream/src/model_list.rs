//! The question which models a server has, and the one judgement of its answer: the list of models that
//! clients see, `/ready`, the page, alerts, `respool check` and the other commands all follow it.

use std::time::Duration;

use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{HeaderMap, StatusCode};
use serde_json::Value;
use tokio::time::timeout;
use tool_call_parser::PreferredDialects;
use wire::ErrorCode;

use super::client::Upstream;
use super::failure::UpstreamError;
use super::model_facts::is_gpt_oss;
use super::server::Server;

/// A model in the list of a server.
#[derive(Clone, Debug)]
pub struct ListedModel {
    /// Its name in requests.
    pub id: String,
    /// Its window in tokens, if the server reports it.
    pub window: Option<u64>,
    /// The program behind the list, as far as its owner shows it.
    pub server: Option<Server>,
    /// The whole entry.
    pub entry: Value,
    pub(super) is_harmony: bool,
    pub(super) prior: PreferredDialects,
}

impl ListedModel {
    fn read(entry: Value) -> Option<Self> {
        let id = entry["id"].as_str()?.to_owned();
        // It may say what the model is when its name does not.
        let root = entry["root"].as_str().unwrap_or_default();
        Some(Self {
            window: announced_window(&entry),
            server: Server::from_owner(entry["owned_by"].as_str().unwrap_or_default()),
            is_harmony: is_gpt_oss(&id) || is_gpt_oss(root),
            prior: PreferredDialects::from_model_names([id.as_str(), root]),
            id,
            entry,
        })
    }
}

/// Returns the window that a server announces: `max_model_len` of vLLM, `n_ctx` of each slot of llama.cpp;
/// others have other names.
fn announced_window(entry: &Value) -> Option<u64> {
    let names =
        ["/max_model_len", "/meta/n_ctx", "/context_length", "/context_window", "/metadata/context_length"];
    names.iter().find_map(|name| entry.pointer(name)?.as_u64()).filter(|window| *window > 0)
}

/// Reads the answer of `/v1/models`.
fn read_list(body: &[u8]) -> Option<Vec<ListedModel>> {
    let mut list: Value = serde_json::from_slice(body).ok()?;
    let Value::Array(models) = list.get_mut("data")?.take() else { return None };
    Some(models.into_iter().filter_map(ListedModel::read).collect())
}

/// The reason why a server cannot be used, as its answer to `GET /v1/models` shows it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NoModelList {
    /// It cannot be reached, or its answer breaks off.
    #[error("{}", message_of(.0))]
    Unreachable(Box<UpstreamError>),
    /// It does not answer in time.
    #[error("it does not answer /v1/models within {} s", .0.as_secs())]
    Silent(Duration),
    /// It does not accept the key.
    #[error("it rejects the key (HTTP {})", .0.as_u16())]
    KeyRefused(StatusCode, Bytes),
    /// It asks for a key, and got none.
    #[error("it asks for a key (HTTP {})", .status.as_u16())]
    KeyMissing {
        /// The status of its answer.
        status: StatusCode,
        /// Its answer.
        body: Bytes,
        /// The keys of clients are passed on, and may open it.
        clients_may_help: bool,
    },
    /// It answers with another error.
    #[error("it answers /v1/models with HTTP {}", .0.as_u16())]
    Status(StatusCode, Bytes),
    /// It answers with something else, as a web page does.
    #[error("it answers /v1/models with {}", if *.is_page { "a web page" } else { "something that is not a list of models" })]
    NotAList {
        /// It is HTML.
        is_page: bool,
    },
}

impl NoModelList {
    /// Returns true if no server of models is at this address.
    pub fn is_wrong_address(&self) -> bool {
        match self {
            Self::Status(status, _) => status.is_client_error() || status.is_redirection(),
            Self::NotAList { .. } => true,
            Self::Unreachable(_) | Self::Silent(_) | Self::KeyRefused(..) | Self::KeyMissing { .. } => false,
        }
    }

    /// Returns true if it answers requests whose client sends a key.
    pub fn waits_for_client_key(&self) -> bool {
        matches!(self, Self::KeyMissing { clients_may_help: true, .. })
    }

    /// Returns true if it answers no request until its owner corrects the key or the certificate.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::KeyRefused(..) => true,
            Self::KeyMissing { clients_may_help, .. } => !clients_may_help,
            Self::Unreachable(error) => error.error.code == Some(ErrorCode::UpstreamTls),
            Self::Silent(_) | Self::Status(..) | Self::NotAList { .. } => false,
        }
    }

    /// Returns the error for a client that asked the upstream of this name.
    pub fn into_upstream_error(self, name: &str) -> UpstreamError {
        match self {
            Self::Unreachable(error) => *error,
            Self::Silent(_) => {
                let what = "does not answer /v1/models";
                UpstreamError::new_broken(name, 504, ErrorCode::UpstreamTimeout, what, "")
            }
            Self::KeyRefused(status, body)
            | Self::KeyMissing { status, body, .. }
            | Self::Status(status, body) => {
                UpstreamError::from_answer(name, status.as_u16(), &String::from_utf8_lossy(&body))
            }
            Self::NotAList { .. } => {
                let what = "answered /v1/models with something that is not a list of models: check its `url`";
                UpstreamError::new_broken(name, 502, ErrorCode::UpstreamInvalidJson, what, "")
            }
        }
    }
}

/// Returns the message of an error about an upstream that the reader knows.
fn message_of(error: &UpstreamError) -> String {
    error.error.message.replacen(&format!("upstream `{}` ", error.upstream), "it ", 1)
}

impl Upstream {
    /// Returns true if the server is another respool.
    pub async fn is_respool(&self, within: Duration) -> bool {
        let asked = timeout(within, self.get_json("/health", HeaderMap::new())).await;
        let health =
            asked.ok().and_then(Result::ok).and_then(|(_, body)| serde_json::from_slice::<Value>(&body).ok());
        health.is_some_and(|health| health["name"] == "respool")
    }

    /// Asks the server for its models, and learns from the answer.
    ///
    /// # Errors
    /// [`NoModelList`] if the server does not list them within this time.
    pub async fn ask_models(
        &self,
        headers: HeaderMap,
        within: Duration,
    ) -> Result<Vec<ListedModel>, NoModelList> {
        // What a client's own key opens or not is no fact for others.
        let is_own = self.has_key() || !headers.contains_key(AUTHORIZATION);
        let answer = self.query_models(headers, within).await;
        if is_own && self.state.note_list(answer.as_deref()) {
            let names = self.state.models().unwrap_or_default().join(",");
            tracing::info!(target: "respool::upstream", upstream = self.name, models = names, "this upstream lists its models");
        }
        answer
    }

    async fn query_models(
        &self,
        headers: HeaderMap,
        within: Duration,
    ) -> Result<Vec<ListedModel>, NoModelList> {
        let has_key = self.has_key() || headers.contains_key(AUTHORIZATION);
        // Boxed: the future is large, and part of those of requests.
        let asked = timeout(within, Box::pin(self.get_json("/v1/models", headers))).await;
        let answered = asked.map_err(|_| NoModelList::Silent(within))?;
        let (status, body) = answered.map_err(|error| NoModelList::Unreachable(Box::new(error)))?;
        match status {
            status if status.is_success() => {}
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if has_key => {
                return Err(NoModelList::KeyRefused(status, body));
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                let clients_may_help = !self.client_keys_end_here();
                return Err(NoModelList::KeyMissing { status, body, clients_may_help });
            }
            status => return Err(NoModelList::Status(status, body)),
        }
        let is_page = body.trim_ascii_start().starts_with(b"<");
        let models = read_list(&body).ok_or(NoModelList::NotAList { is_page })?;
        self.learn_list(&models);
        Ok(models)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn parse_models(body: &str) -> Vec<ListedModel> {
        read_list(body.as_bytes()).unwrap()
    }

    fn summaries(body: &str) -> Vec<(String, Option<u64>, bool)> {
        parse_models(body).into_iter().map(|model| (model.id, model.window, model.is_harmony)).collect()
    }

    #[test]
    fn windows_as_vllm_lists_them() {
        let captured = include_str!("../../../fixtures/vllm/v0.32.0-llama-hermes/50-models.resp.http");
        let (_, body) = captured.split_once("\r\n\r\n").unwrap();
        assert_eq!(summaries(body), [("tiny".to_owned(), Some(2048), false)]);
        let renamed = r#"{"data":[{"id":"big","root":"openai/gpt-oss-120b"},{"id":3}]}"#;
        assert!(parse_models(renamed).iter().all(|model| !model.prior.is_empty()));
        assert_eq!(summaries(renamed), [("big".to_owned(), None, true)]);
    }

    #[test]
    fn windows_have_many_names() {
        for (entry, expected) in [
            (r#"{"id":"a","max_model_len":4096}"#, Some(4096)),
            (r#"{"id":"a","meta":{"n_ctx":65536,"n_ctx_train":131072}}"#, Some(65_536)),
            (r#"{"id":"a","metadata":{"context_length":131072}}"#, Some(131_072)),
            (r#"{"id":"a","context_length":0}"#, None),
        ] {
            assert_eq!(parse_models(&format!(r#"{{"data":[{entry}]}}"#))[0].window, expected, "{entry}");
        }
    }

    #[test]
    fn servers_are_known_by_their_lists() {
        let list = parse_models(r#"{"data":[{"id":"a","owned_by":"sglang"},{"id":"b","owned_by":"me"}]}"#);
        let servers: Vec<_> = list.into_iter().map(|model| model.server).collect();
        assert_eq!(servers, [Some(Server::SgLang), None]);
    }

    #[test]
    fn other_answers_are_no_list() {
        for body in ["[]", "{}", r#"{"data":{}}"#, "<html>", ""] {
            assert!(read_list(body.as_bytes()).is_none(), "{body}");
        }
        assert!(parse_models(r#"{"data":[]}"#).is_empty());
    }

    #[test]
    fn wrong_addresses_are_recognised() {
        let status = |status| NoModelList::Status(status, Bytes::new());
        assert!(
            NoModelList::NotAList { is_page: true }.is_wrong_address()
                && status(StatusCode::NOT_FOUND).is_wrong_address()
        );
        assert!(!status(StatusCode::SERVICE_UNAVAILABLE).is_wrong_address());
        assert!(!NoModelList::Silent(Duration::from_secs(1)).is_wrong_address());
    }
}
