//! The models that a server lists, and why it lists nothing.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use serde_json::Value;
use tool_call_parser::PreferredDialects;
use wire::ErrorCode;

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
pub(super) fn read_list(body: &[u8]) -> Option<Vec<ListedModel>> {
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

    /// Returns true if it will refuse a request, too. A key that gets a 403 may only lack the right to list.
    pub(super) fn bars_requests(&self) -> bool {
        self.is_refusal() && !matches!(self, Self::KeyRefused(StatusCode::FORBIDDEN, _))
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
