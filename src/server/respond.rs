//! Replies: errors as HTTP in OpenAI's shape, JSON, the head of a stream, and respool's own small pages.

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};

use crate::observe::{Outcome, SharedLine, metrics as recorded};
use crate::relay::ErrorForm;
use crate::translate::{ErrorReply, chat_error};
use crate::wire::{ApiError, ErrorCode};

/// The header that names a request in logs on both sides.
pub(super) const REQUEST_ID: &str = "x-request-id";

/// The header that says what was taken out of a conversation that the model's window cannot hold.
const TRIMMED: &str = "x-respool-trimmed";

/// The longest request id that is taken over.
const LONGEST_ID: usize = 128;

/// The request's id: the client's own, its trace's, or a new one.
pub(super) fn request_id(headers: &HeaderMap) -> String {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let own = text(REQUEST_ID).filter(|id| !id.is_empty() && id.len() <= LONGEST_ID && !id.contains(' '));
    let trace = || text("traceparent").and_then(|value| value.split('-').nth(1)).filter(|id| id.len() == 32);
    own.or_else(trace).map_or_else(|| format!("{:032x}", rand::random::<u128>()), str::to_owned)
}

/// The id that goes upstream. All requests of a trace share the trace's id, and vLLM makes its own from what it gets:
/// two of one trace must differ, so the span's id is added.
pub(super) fn upstream_id(headers: &HeaderMap, id: &str) -> String {
    let trace = headers.get("traceparent").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mut parts = trace.split('-').skip(1);
    match (parts.next(), parts.next()) {
        (Some(trace), Some(span)) if trace == id => format!("{trace}-{span}"),
        _ => id.to_owned(),
    }
}

/// A reply with a JSON body; notes in the line that it leaves.
pub(super) fn json(status: StatusCode, body: impl Into<Body>, line: &SharedLine) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    leaves(&mut response, line);
    response
}

/// Notes in the line that the request failed.
pub(super) fn failed(error: &ApiError, line: &SharedLine) {
    line.with(|line| {
        line.outcome =
            if error.code == Some(ErrorCode::ShuttingDown) { Outcome::Shutdown } else { Outcome::Error };
        line.error.get_or_insert_with(|| error.message.clone());
        line.error_code = error.code.map(ErrorCode::as_str);
    });
}

/// An error as its own HTTP status, in OpenAI's shape.
pub(super) fn error(error: &ApiError, line: &SharedLine) -> Response {
    failed(error, line);
    error_reply(chat_error(error), error.retry_after, line)
}

/// An error in the form that its client needs.
pub(super) fn error_as(form: ErrorForm, error: ApiError, line: &SharedLine) -> Response {
    let error = form.apply(error);
    failed(&error, line);
    let id = line.with(|line| line.id.clone());
    error_reply(form.reply(&error, &id), error.retry_after, line)
}

fn error_reply(reply: ErrorReply, retry_after: Option<u64>, line: &SharedLine) -> Response {
    let status = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::BAD_GATEWAY);
    let mut response = json(status, reply.body, line);
    if let Some(seconds) = retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    for (name, value) in reply.headers {
        if let Ok(value) = HeaderValue::try_from(value) {
            response.headers_mut().insert(HeaderName::from_static(name), value);
        }
    }
    response
}

/// The head of a stream of events.
pub(super) fn stream(body: Body, line: &SharedLine) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    leaves(&mut response, line);
    response
}

/// Puts the request id on a reply and notes its status.
pub(super) fn leaves(response: &mut Response, line: &SharedLine) {
    let (id, trimmed) = line.with(|line| {
        line.status = response.status().as_u16();
        line.first_byte();
        (line.id.clone(), line.trimmed.clone())
    });
    for (name, value) in [(REQUEST_ID, Some(id)), (TRIMMED, trimmed)] {
        if let Some(value) = value.and_then(|value| HeaderValue::try_from(value).ok()) {
            response.headers_mut().insert(name, value);
        }
    }
}

/// The end of a stream that failed after its head had left: an honest error event, and the end.
pub(super) fn failed_tail(error: &ApiError, line: &SharedLine) -> Bytes {
    failed(error, line);
    let mut out = Vec::new();
    crate::sse::write_data(&mut out, &error.to_stream_json());
    crate::sse::write_data(&mut out, crate::sse::DONE);
    out.into()
}

/// `/health`: this process is up.
pub(super) async fn health() -> Response {
    let mut response = Response::new(Body::from(format!(
        r#"{{"status":"ok","name":"respool","version":"{}"}}"#,
        env!("CARGO_PKG_VERSION")
    )));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// `/metrics`: Prometheus's text format.
pub(super) async fn metrics() -> Response {
    let mut response = Response::new(Body::from(recorded::page()));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clients_own_id_is_taken() {
        let check = |pairs: &[(&'static str, &'static str)]| {
            let pairs =
                pairs.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)));
            request_id(&pairs.collect::<HeaderMap>())
        };
        assert_eq!(check(&[("x-request-id", "abc-1"), ("traceparent", "00-aa-b-01")]), "abc-1");
        assert_eq!(
            check(&[("traceparent", "00-e737c19a947e27451a1aaf3f07df61d9-077ce95b883eb76e-01")]),
            "e737c19a947e27451a1aaf3f07df61d9"
        );
        assert_eq!(check(&[("x-request-id", "two words"), ("traceparent", "nonsense")]).len(), 32);
        assert_ne!(check(&[]), check(&[]));
    }
}
