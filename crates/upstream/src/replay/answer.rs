//! The answers of the replay upstream: recorded replies, and vLLM's own words where nothing is recorded.

use std::convert::Infallible;
use std::error::Error;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use serde_json::{Value, json};

use super::framing;
use super::recording::{Form, Recording};
use super::request::Refusal;

/// The body of every answer.
pub(super) type ReplayBody = BoxBody<Bytes, Infallible>;

/// The version that the replay upstream behaves like.
const VERSION: &str = "0.32.0";
/// The window listed for every model: gpt-oss' context length.
const MAX_MODEL_LEN: u32 = 131_072;
/// When the models were created, in Unix seconds: the day of the recordings, so that answers can be compared.
const CREATED: u32 = 1_795_223_698;

/// An answer, before it is sent.
#[derive(Debug)]
pub(super) struct ReplayResponse {
    pub(super) status: StatusCode,
    headers: HeaderMap,
    pieces: Vec<Bytes>,
    chunked: bool,
    /// How long nothing is sent.
    pub(super) silence: Duration,
}

impl ReplayResponse {
    fn new(status: StatusCode, body: impl Into<Bytes>) -> Self {
        let headers = HeaderMap::from_iter([(header::SERVER, HeaderValue::from_static("uvicorn"))]);
        Self { status, headers, pieces: vec![body.into()], chunked: false, silence: Duration::ZERO }
    }

    fn json(status: StatusCode, body: &Value) -> Self {
        Self::new(status, body.to_string())
            .with_header(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))
    }

    fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// Returns all bytes of the body, without framing.
    pub(super) fn whole_body(&self) -> Bytes {
        match self.pieces.as_slice() {
            [whole] => whole.clone(),
            pieces => pieces.concat().into(),
        }
    }

    /// Makes the response; each piece of a chunked answer leaves as one chunk, `delay` after the one before.
    pub(super) fn into_response(self, delay: Duration) -> Response<ReplayBody> {
        let body = if self.chunked {
            chunked_body(self.pieces, delay)
        } else {
            Full::new(self.whole_body()).boxed()
        };
        let mut response = Response::new(body);
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        response
    }
}

fn chunked_body(pieces: Vec<Bytes>, delay: Duration) -> ReplayBody {
    let frames = stream::iter(pieces).then(move |piece| async move {
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        Ok(Frame::data(piece))
    });
    BodyExt::boxed(StreamBody::new(frames))
}

/// Returns the recorded reply; its usage chunk only when the request asked for one.
pub(super) fn recorded_response(recording: &Recording, include_usage: bool) -> ReplayResponse {
    let chunked = recording.form == Form::Stream && recording.status.is_success();
    let pieces = if chunked && !include_usage {
        framing::without_usage(&recording.pieces)
    } else {
        recording.pieces.clone()
    };
    let Recording { status, silence, .. } = *recording;
    ReplayResponse { status, headers: recording.headers.clone(), pieces, chunked, silence }
}

/// Returns an error of the serving layer.
pub(super) fn refusal_response(refusal: Refusal) -> ReplayResponse {
    let Refusal { status, message, kind, param } = refusal;
    let error = json!({"message": message, "type": kind, "param": param, "code": status.as_u16()});
    ReplayResponse::json(status, &json!({"error": error}))
}

/// Returns a request whose body broke off or is larger than the replay upstream takes.
pub(super) fn unreadable_body(error: &(dyn Error + Send + Sync)) -> ReplayResponse {
    detail_response(StatusCode::PAYLOAD_TOO_LARGE, &format!("The request body cannot be read: {error}"))
}

/// Returns an error of the web framework below vLLM: no error object.
pub(super) fn detail_response(status: StatusCode, text: &str) -> ReplayResponse {
    ReplayResponse::json(status, &json!({"detail": text}))
}

/// Returns the error of a known path with another method.
pub(super) fn method_not_allowed(allowed: &Method) -> ReplayResponse {
    let answer = detail_response(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
    match HeaderValue::from_str(allowed.as_str()) {
        Ok(allowed) => answer.with_header(header::ALLOW, allowed),
        Err(_) => answer,
    }
}

/// Answers `GET /health`.
pub(super) fn health_response() -> ReplayResponse {
    ReplayResponse::new(StatusCode::OK, Bytes::new())
}

/// Answers `GET /version`.
pub(super) fn version_response() -> ReplayResponse {
    ReplayResponse::json(StatusCode::OK, &json!({"version": VERSION}))
}

/// Answers `GET /v1/models`.
pub(super) fn models_response<'n>(ids: impl Iterator<Item = &'n str>) -> ReplayResponse {
    let data: Vec<Value> = ids.map(model_object).collect();
    ReplayResponse::json(StatusCode::OK, &json!({"object": "list", "data": data}))
}

fn model_object(id: &str) -> Value {
    let permission = json!({
        "id": format!("modelperm-{id}"), "object": "model_permission", "created": CREATED,
        "allow_create_engine": false, "allow_sampling": true, "allow_logprobs": true, "allow_search_indices": false,
        "allow_view": true, "allow_fine_tuning": false, "organization": "*", "group": null, "is_blocking": false,
    });
    json!({
        "id": id, "object": "model", "created": CREATED, "owned_by": "vllm", "root": id, "parent": null,
        "max_model_len": MAX_MODEL_LEN, "permission": [permission],
    })
}

/// Returns the header names in lower case with their values, for checks of a request.
pub(super) fn readable_headers(headers: &HeaderMap) -> Vec<(String, String)> {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    headers.iter().map(|(name, value)| (name.as_str().to_owned(), text(value))).collect()
}
