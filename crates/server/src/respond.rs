//! Replies: errors as HTTP in OpenAI's shape, JSON, the head of a stream, and respool's own small pages.

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use hyper::body::Body as _;

use super::final_error::ErrorForm;
use relay::RequestProgress;
use store::StoreError;
use telemetry::{Outcome, ReplyHead, RequestRecord, TRACEPARENT, metrics as recorded};
use translate::{ClientProgram, ErrorReply, openai_error};
use wire::{ApiError, ErrorCode};

/// The header that names a request in logs on both sides.
pub(super) static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The header that says what was taken out of a conversation that the model's window cannot hold.
const TRIMMED: &str = "x-respool-trimmed";

/// The longest request id that is taken over.
const LONGEST_ID: usize = 128;

/// The `retry-after` of a request that the store could not serve, in seconds.
const RETRY_AFTER: u64 = 5;

/// Returns the error of a store that cannot be read or written at present.
pub(super) fn store_failed(error: StoreError) -> ApiError {
    ApiError { retry_after: Some(RETRY_AFTER), ..ApiError::new(503, ErrorCode::StoreFailed, error.0) }
}

/// Returns the request's id: the client's own, its trace's, or a new one.
pub(super) fn request_id(headers: &HeaderMap) -> String {
    fn header_text(value: Option<&HeaderValue>) -> Option<&str> {
        value.and_then(|value| value.to_str().ok()).map(str::trim)
    }
    let own = header_text(headers.get(&REQUEST_ID))
        .filter(|id| !id.is_empty() && id.len() <= LONGEST_ID && !id.contains(' '));
    let trace = || {
        header_text(headers.get(&TRACEPARENT))
            .and_then(|value| value.split('-').nth(1))
            .filter(|id| id.len() == 32)
    };
    own.or_else(trace).map_or_else(new_id, str::to_owned)
}

/// Returns a random id of 32 hexadecimal digits. The formatting of numbers would take five times as long.
fn new_id() -> String {
    let random = rand::random::<[u8; 16]>();
    let digit = |at: usize| b"0123456789abcdef"[usize::from((random[at / 2] >> (4 * (at % 2))) & 15)];
    let digits: [u8; 32] = std::array::from_fn(digit);
    std::str::from_utf8(&digits).unwrap_or_default().to_owned()
}

/// Returns the id that goes upstream, if it is not the request's own. All requests of a trace share the
/// trace's id, and vLLM makes its own from what it gets: two of one trace must differ, so the span's id is
/// added.
pub(super) fn upstream_id(headers: &HeaderMap, id: &str) -> Option<String> {
    let mut parts = headers.get(&TRACEPARENT)?.to_str().ok()?.split('-').skip(1);
    let (trace, span) = (parts.next()?, parts.next()?);
    (trace == id).then(|| format!("{trace}-{span}"))
}

/// How a reply ends, if it is not simply whole. The value travels in the extensions of the reply until
/// `leaves` records it.
#[derive(Clone, Debug)]
enum Ending {
    /// The reply is this error.
    Error(Outcome, String, Option<ErrorCode>),
    /// The body records its own end.
    InBody,
}

/// Returns a reply with a JSON body.
pub(super) fn json_response(status: StatusCode, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Records that the request failed.
pub(super) fn record_failure(error: &ApiError, record: &RequestRecord) {
    record.record_failure(outcome_of(error), &error.message, error.code.map(ErrorCode::as_str));
}

fn outcome_of(error: &ApiError) -> Outcome {
    if error.code == Some(ErrorCode::ShuttingDown) { Outcome::Shutdown } else { Outcome::Error }
}

/// Returns an error as its own HTTP status, in OpenAI's shape.
pub(super) fn error_response(error: &ApiError) -> Response {
    error_reply(openai_error(error, ClientProgram::Other), error)
}

/// Returns an error in the form that its client needs. `id`: the request's, which Anthropic's clients read in
/// the body.
pub(super) fn error_as(form: ErrorForm, error: ApiError, id: &str) -> Response {
    let error = form.apply_to(error);
    error_reply(form.error_reply(&error, id), &error)
}

fn error_reply(reply: ErrorReply, error: &ApiError) -> Response {
    let status = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::BAD_GATEWAY);
    let mut response = with_error(json_response(status, reply.body), error);
    if let Some(seconds) = error.retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    for (name, value) in reply.headers {
        if let Ok(value) = HeaderValue::try_from(value) {
            response.headers_mut().insert(HeaderName::from_static(name), value);
        }
    }
    response
}

/// Returns a reply whose body is a stream of events, all of which are there.
pub(super) fn stream_response(body: Body) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// Returns a reply whose body is a stream of events that ends with this error.
pub(super) fn failed_stream(body: Body, error: &ApiError) -> Response {
    with_error(stream_response(body), error)
}

fn with_error(mut response: Response, error: &ApiError) -> Response {
    response.extensions_mut().insert(Ending::Error(outcome_of(error), error.message.clone(), error.code));
    response
}

/// Returns the reply, whose body goes on recording what happens to the request, and its end.
pub(super) fn recorded_in_body(mut response: Response) -> Response {
    response.extensions_mut().insert(Ending::InBody);
    response
}

/// Returns the reply as it leaves, with the request's id: its status and its end are recorded.
pub(super) fn finish_response(mut response: Response, record: &RequestRecord) -> Response {
    record.record_head(response.status().as_u16());
    if let Some(account) = &record.start().account {
        account.reply_begins(reply_head(&response));
    }
    match response.extensions_mut().remove::<Ending>() {
        None => record.mark_whole(),
        Some(Ending::Error(outcome, message, code)) => {
            record.record_failure(outcome, &message, code.map(ErrorCode::as_str));
        }
        Some(Ending::InBody) => {}
    }
    if let Ok(id) = HeaderValue::try_from(&*record.start().id) {
        response.headers_mut().insert(&REQUEST_ID, id);
    }
    response
}

fn reply_head(response: &Response) -> ReplyHead {
    let content_type = response.headers().get(header::CONTENT_TYPE);
    ReplyHead {
        is_error: response.status().as_u16() >= 400,
        is_stream: content_type.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream")),
        bytes: response.body().size_hint().exact().unwrap_or_default(),
    }
}

/// Returns the reply with a header that says what was taken out of the conversation.
pub(super) fn with_trimmed(mut response: Response, progress: &RequestProgress) -> Response {
    if let Some(trimmed) = progress.trimmed_parts().and_then(|trimmed| HeaderValue::try_from(trimmed).ok()) {
        response.headers_mut().insert(TRIMMED, trimmed);
    }
    response
}

/// Returns the end of a stream that failed after its head had left: an honest error event, and the end.
pub(super) fn failed_tail(error: &ApiError, record: &RequestRecord) -> Bytes {
    record_failure(error, record);
    let mut out = Vec::new();
    wire::sse::write_data(&mut out, &error.to_stream_json());
    wire::sse::write_data(&mut out, wire::sse::DONE);
    out.into()
}

/// Returns the error of a reply in another form than the request asked for. That would be a fault of respool.
pub(super) fn wrong_form() -> ApiError {
    let what = "respool prepared the reply in the wrong form. This is a fault of respool; please report it";
    ApiError::new(500, ErrorCode::WrongForm, what)
}

/// Answers `/health`: this process is up.
pub(super) async fn answer_health() -> Response {
    let mut response = Response::new(Body::from(format!(
        r#"{{"status":"ok","name":"respool","version":"{}"}}"#,
        env!("CARGO_PKG_VERSION")
    )));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Answers `/metrics` in Prometheus's text format.
pub(super) async fn answer_metrics() -> Response {
    let mut response = Response::new(Body::from(recorded::render_page()));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use testing::rows::row_of;

    #[test]
    fn a_reply_brings_its_end_along() {
        let check = |response: Response, expected: (&str, u16, &str)| {
            let row = row_of(|record| {
                let left = finish_response(response, record);
                assert_eq!(left.headers()[&REQUEST_ID], "r");
            });
            assert_eq!((&*row.outcome, row.status, &*row.error_code), expected);
        };
        let error = ApiError::new(404, ErrorCode::NotFound, "there is no such route");
        check(json_response(StatusCode::ACCEPTED, "{}"), ("ok", 202, ""));
        check(super::error_response(&error), ("error", 404, "not_found"));
        check(error_as(ErrorForm::default(), error.clone(), "r"), ("error", 404, "not_found"));
        check(stream_response(Body::empty()), ("ok", 200, ""));
        check(failed_stream(Body::empty(), &error), ("error", 200, "not_found"));
        check(recorded_in_body(stream_response(Body::empty())), ("client_gone", 200, ""));
        let stopped = ApiError::new(503, ErrorCode::ShuttingDown, "respool was stopped");
        check(super::error_response(&stopped), ("shutdown", 503, "shutting_down"));
    }

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
