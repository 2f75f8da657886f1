//! The two APIs of agent clients, and functions that all files of this folder need.

use axum::response::Response;
use http::{HeaderMap, HeaderValue, header};

use crate::respond;
use relay::Wire;
use upstream::OwnWire;

/// Which of the two APIs a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Api {
    /// OpenAI's Responses.
    Responses,
    /// Anthropic's Messages.
    Messages,
}

impl Api {
    /// Returns the API of a path, with or without its `/v1`.
    pub(super) fn from_path(path: &str) -> Option<Self> {
        match path.strip_prefix("/v1").unwrap_or(path) {
            "/responses" => Some(Self::Responses),
            "/messages" => Some(Self::Messages),
            _ => None,
        }
    }

    pub(super) fn wire(self) -> Wire {
        match self {
            Self::Responses => Wire::Responses,
            Self::Messages => Wire::Messages,
        }
    }

    pub(super) fn own_wire(self) -> OwnWire {
        match self {
            Self::Responses => OwnWire::Responses,
            Self::Messages => OwnWire::Messages,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Responses => "responses",
            Self::Messages => "messages",
        }
    }
}

/// The request that a path stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// A turn.
    Turn(Api),
    /// The count of a request's tokens, in the Messages API.
    CountTokens,
}

impl Call {
    /// Returns the call of a path, with or without its `/v1`.
    pub(crate) fn from_path(path: &str) -> Option<Self> {
        if path.strip_prefix("/v1").unwrap_or(path) == "/messages/count_tokens" {
            return Some(Self::CountTokens);
        }
        Api::from_path(path).map(Self::Turn)
    }
}

/// Adds the request's id where Anthropic's clients read it.
pub(crate) fn with_request_id(mut response: Response) -> Response {
    let headers = response.headers_mut();
    if let Some(id) = headers.get(&respond::REQUEST_ID).cloned() {
        headers.entry("request-id").or_insert(id);
    }
    response
}

/// Makes a chat request ask for a stream: a stream can be collected into a whole reply, but not the other
/// way round.
pub(super) fn as_stream(mut chat: String) -> String {
    chat.pop();
    chat.push_str(r#","stream":true,"stream_options":{"include_usage":true}}"#);
    chat
}

/// Turns the client's headers into those of the chat route: a key in Anthropic's header becomes a bearer
/// token, and headers of Anthropic's API alone are removed.
pub(super) fn upstream_headers(mut headers: HeaderMap) -> HeaderMap {
    let key = headers.remove("x-api-key").and_then(|key| key.to_str().map(str::to_owned).ok());
    let bearer = key.and_then(|key| HeaderValue::try_from(format!("Bearer {key}")).ok());
    if let Some(mut bearer) = bearer.filter(|_| !headers.contains_key(header::AUTHORIZATION)) {
        bearer.set_sensitive(true);
        headers.insert(header::AUTHORIZATION, bearer);
    }
    let foreign: Vec<_> =
        headers.keys().filter(|name| name.as_str().starts_with("anthropic-")).cloned().collect();
    foreign.iter().for_each(|name| {
        headers.remove(name);
    });
    headers
}

/// Estimates the tokens of a request: four bytes of JSON each, a little less than measured in prompts of
/// agents.
pub(super) fn estimated_tokens(bytes: usize) -> u64 {
    bytes.div_ceil(4) as u64
}
