//! Every route that is not respool's own: method, path, query, headers and bodies pass both ways as they
//! come. Of a JSON body and of a form the model is read, and an alias in it becomes its target; of a reply
//! the token counts are read for the log.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use http_body_util::BodyExt;

use super::app::{App, Peer};
use super::front::{Arrival, check_budget, form_reader};
use super::page::session;
use super::paths::{is_own, uses_model};
use super::reported_usage::usage_at_end;
use super::upload::{BufferedUpload, record_model, stream_upload};
use super::{agent_apis, body, form, respond};
use relay::{Forward, Passing, is_safe};
use telemetry::{Outcome, RequestRecord, TRACEPARENT};
use upstream::{Outgoing, UpstreamPlace, UpstreamResponse};
use wire::{ApiError, ErrorCode, Pieces};

/// The bytes of a reply's end that are kept, to read its token counts.
const TAIL: usize = 16 << 10;

pub(super) async fn pass_through(State(app): State<App>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let name = format!("{} {}", parts.method, parts.uri.path());
    let peer = parts.extensions.get::<Peer>().map(|peer| peer.0);
    let mut arrival = Arrival::new(app, parts, peer, name, "other");
    let response = if is_own(arrival.parts.uri.path()) {
        respond::error_response(&no_route(arrival.parts.uri.path()))
    } else {
        pass_on(&mut arrival, body).await
    };
    respond::finish_response(response, &arrival.record)
}

/// Passes a request on. The caller makes the reply leave.
pub(super) async fn pass_on(arrival: &mut Arrival, body: Body) -> Response {
    let (app, parts, record) = (&arrival.app, &mut arrival.parts, &arrival.record);
    let form = agent_apis::error_form(app, parts.uri.path(), &parts.headers);
    let refuse = |error| respond::error_as(form, error, &record.start().id);
    let headers = outgoing_headers(std::mem::take(&mut parts.headers), record);
    record.set_route("transparent");
    let uses_model = !is_safe(&parts.method) && uses_model(parts.uri.path());
    let upload = buffered_upload(app, &parts.method, &headers, body, record).await.and_then(|upload| {
        if uses_model {
            check_budget(app, record.start(), "")?;
        }
        Ok(upload)
    });
    let BufferedUpload { body, model, refusal } = match upload {
        Ok(upload) => upload,
        Err(error) => return refuse(error),
    };
    let is_head = parts.method == Method::HEAD;
    let request = Forward {
        method: parts.method.clone(),
        path_and_query: parts.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned(),
        headers,
        body,
        model,
        peer: arrival.peer,
        record: record.clone(),
    };
    let sent = tokio::select! {
        sent = app.relay.forward(request) => sent,
        () = app.abort.cancelled() => {
            let stopped = ApiError::new(503, ErrorCode::ShuttingDown, "respool was stopped before the upstream answered");
            return refuse(stopped);
        }
    };
    match sent {
        Ok(answer) => pass_back(app, answer, is_head, record.clone()),
        Err(error) => refuse(refusal.get().cloned().unwrap_or(error)),
    }
}

/// Adds the request's id and trace to the client's headers.
fn outgoing_headers(mut headers: HeaderMap, record: &RequestRecord) -> HeaderMap {
    if let Some(part_of) = record.traceparent() {
        headers.insert(&TRACEPARENT, part_of);
    }
    if let Ok(id) = HeaderValue::from_str(&record.start().id) {
        headers.insert(&respond::REQUEST_ID, id);
    }
    headers
}

/// Returns the error of a path below respool's own routes: such paths are not passed on.
fn no_route(path: &str) -> ApiError {
    let what = format!("respool has no route `{}`, and does not pass it on", path.escape_default());
    ApiError::new(404, ErrorCode::NotFound, what)
}

/// Returns the body as it goes up, and the model that it names. The model decides where it goes, and an alias
/// becomes its target. JSON is read whole, and a form as far as necessary.
async fn buffered_upload(
    app: &App,
    method: &Method,
    headers: &HeaderMap,
    body: Body,
    record: &RequestRecord,
) -> Result<BufferedUpload, ApiError> {
    if hyper::body::Body::is_end_stream(&body) {
        return Ok(BufferedUpload::new(Passing::Whole(Pieces::default()), String::new()));
    }
    let content_type =
        headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let is_plain = headers.get(header::CONTENT_ENCODING).is_none_or(|encoding| encoding == "identity");
    let is_read = !is_safe(method) && is_plain;
    if let Some(reader) = form_reader(headers).filter(|_| is_read) {
        return form::buffer_form(app, reader, body, record).await;
    }
    let length = hyper::body::Body::size_hint(&body).exact();
    let max = app.limits.max_body;
    // What is larger than a chat request may be is left to the server.
    let is_json = content_type.starts_with("application/json") && length.is_none_or(|length| length <= max.0);
    if !(is_read && is_json) {
        let pieces = stream_upload(BodyExt::into_data_stream(body), app.limits.client_timeout);
        let body = Some(Outgoing::from_stream(pieces, length));
        return Ok(BufferedUpload::new(Passing::Streamed { body, beginning: Bytes::new() }, String::new()));
    }
    let whole = body::read_body(body, &app.limits, &app.bodies).await?;
    let named = app.relay.named_model(&whole);
    record.set_stream(named.stream);
    record_model(app, &named.model, record);
    Ok(BufferedUpload::new(Passing::Whole(named.body.into()), named.target))
}

/// Passes the upstream's answer back, and records how it ends.
fn pass_back(app: &App, answer: Box<UpstreamResponse>, is_head: bool, record: RequestRecord) -> Response {
    let (status, headers, mut pieces, place) = answer.into_parts();
    let outcome =
        if status.is_client_error() || status.is_server_error() { Outcome::Error } else { Outcome::Ok };
    let mut seen = Delivered::from_headers(&headers, is_head);
    if seen.is_whole() {
        record.record_forwarded_reply(outcome, None, None);
    }
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    guard_origin(response.headers_mut());
    // A cut connection is the only honest way to say that a body of unknown form broke off.
    let abort = app.abort.clone();
    let watched = async_stream::stream! {
        // Until this has ended, or is dropped.
        let place = place;
        loop {
            let piece = tokio::select! {
                biased;
                piece = pieces.next_piece() => piece.map_err(|fault| format!("the upstream's reply broke off: {fault:?}")),
                () = abort.cancelled() => Err("respool was stopped before the reply was complete".to_owned()),
            };
            match piece {
                Ok(Some(piece)) => {
                    place.iter().for_each(UpstreamPlace::note_piece);
                    seen.add_piece(&piece);
                    // A client stops reading once all that was announced has arrived.
                    if seen.is_whole() {
                        record.record_forwarded_reply(outcome, usage_at_end(&seen.tail), None);
                    }
                    yield Ok(piece);
                }
                Ok(None) => break record.record_forwarded_reply(outcome, usage_at_end(&seen.tail), None),
                Err(text) => {
                    let outcome = if abort.is_cancelled() { Outcome::Shutdown } else { Outcome::Error };
                    record.record_forwarded_reply(outcome, None, Some(text.clone()));
                    // What has arrived leaves before the connection is cut.
                    tokio::task::yield_now().await;
                    break yield Err(text);
                }
            }
        }
    };
    *response.body_mut() = Body::from_stream(watched);
    respond::recorded_in_body(response)
}

/// The headers of an upstream that are passed on, besides those that [`is_passed`] knows by a part of their
/// name. Browsers obey many others for a whole origin (`clear-site-data`, `nel`, `alt-svc`, `report-to` …).
const PASSED: &str = "\
    accept-ranges age allow cache-control cf-ray connection date deprecation etag expires last-modified link \
    location pragma preference-applied proxy-authenticate retry-after server server-timing set-cookie sunset \
    te trailer transfer-encoding upgrade vary via warning www-authenticate";
/// The beginnings and the parts of such names.
const PASSED_BEGINNINGS: [&str; 8] =
    ["access-control-", "anthropic-", "content-", "llm-", "nvcf-", "openai-", "trace", "x-"];
const PASSED_PARTS: [&str; 4] = ["ratelimit", "rate-limit", "request-id", "processing-ms"];

fn is_passed(name: &HeaderName) -> bool {
    let name = name.as_str();
    PASSED.split_ascii_whitespace().any(|known| known == name)
        || PASSED_BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
        || PASSED_PARTS.iter().any(|part| name.contains(part))
}

/// Keeps what an upstream sends from acting on respool's origin in a browser: its HTML runs no scripts there,
/// and it sets neither respool's session nor rules for the whole origin.
fn guard_origin(headers: &mut HeaderMap) {
    let unknown: Vec<HeaderName> = headers.keys().filter(|name| !is_passed(name)).cloned().collect();
    for name in unknown {
        headers.remove(name);
    }
    if let header::Entry::Occupied(cookies) = headers.entry(header::SET_COOKIE) {
        let (name, cookies) = cookies.remove_entry_mult();
        let others: Vec<HeaderValue> = cookies.filter(|cookie| !is_session(cookie)).collect();
        headers.extend(others.into_iter().map(|cookie| (name.clone(), cookie)));
    }
    headers.append(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
}

/// True for a cookie under the name of the page's session.
fn is_session(cookie: &HeaderValue) -> bool {
    let text = String::from_utf8_lossy(cookie.as_bytes());
    text.split(['=', ';']).next().is_some_and(|name| name.trim() == session::COOKIE)
}

/// The part of a reply that has left, as its record needs it.
#[derive(Debug, Default)]
struct Delivered {
    bytes: u64,
    /// How many bytes were announced.
    announced: Option<u64>,
    /// The last of it.
    tail: Vec<u8>,
}

impl Delivered {
    fn from_headers(headers: &HeaderMap, is_head: bool) -> Self {
        let length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
        let announced = if is_head { Some(0) } else { length.and_then(|length| length.parse().ok()) };
        Self { announced, ..Self::default() }
    }

    fn add_piece(&mut self, piece: &[u8]) {
        self.bytes += piece.len() as u64;
        let piece = &piece[piece.len().saturating_sub(TAIL)..];
        let over = (self.tail.len() + piece.len()).saturating_sub(2 * TAIL);
        if over > 0 {
            self.tail.drain(..self.tail.len().min(over + TAIL));
        }
        self.tail.extend_from_slice(piece);
    }

    fn is_whole(&self) -> bool {
        self.announced.is_some_and(|announced| self.bytes >= announced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_cannot_act_on_respools_origin() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("set-cookie", "respool_session=stolen; Path=/"),
            ("set-cookie", "sticky=1"),
            ("set-cookie", " respool_session =x"),
            ("clear-site-data", "\"*\""),
            ("refresh", "0; url=https://evil.example"),
            ("strict-transport-security", "max-age=31536000"),
            ("content-security-policy", "default-src 'self'"),
            ("content-type", "text/html"),
            ("nel", "{}"),
            ("report-to", "{}"),
            ("reporting-endpoints", "a=\"https://evil.example\""),
            ("alt-svc", "h3=\":443\""),
            ("service-worker-allowed", "/"),
            ("some-header-of-tomorrow", "1"),
            ("openai-processing-ms", "7"),
            ("anthropic-ratelimit-requests-remaining", "3"),
            ("ratelimit-reset", "1"),
            ("request-id", "r"),
            ("retry-after", "1"),
            ("x-vendor", "1"),
        ] {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        guard_origin(&mut headers);
        let mut left: Vec<String> =
            headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        left.sort();
        let expected = [
            "anthropic-ratelimit-requests-remaining: 3",
            "content-security-policy: default-src 'self'",
            "content-security-policy: sandbox",
            "content-type: text/html",
            "openai-processing-ms: 7",
            "ratelimit-reset: 1",
            "request-id: r",
            "retry-after: 1",
            "set-cookie: sticky=1",
            "x-content-type-options: nosniff",
            "x-vendor: 1",
        ];
        assert_eq!(left, expected);
    }

    fn delivered(announced: Option<u64>, pieces: &[&str]) -> (bool, Option<u64>) {
        let mut seen = Delivered { announced, ..Delivered::default() };
        pieces.iter().for_each(|piece| seen.add_piece(piece.as_bytes()));
        (seen.is_whole(), usage_at_end(&seen.tail).map(|usage| usage.prompt))
    }

    #[test]
    fn a_reply_is_whole_once_announced_bytes_left() {
        let usage = r#"{"usage":{"prompt_tokens":7,"completion_tokens":2}}"#;
        let (first, second) = usage.split_at(20);
        assert_eq!(delivered(Some(usage.len() as u64), &[first, second]), (true, Some(7)));
        assert_eq!(delivered(Some(usage.len() as u64 + 1), &[usage]), (false, Some(7)));
        assert_eq!(delivered(None, &[usage]), (false, Some(7)));
        assert_eq!(delivered(Some(0), &[]), (true, None));
        let long = "x".repeat(5 * TAIL);
        assert_eq!(delivered(None, &[&long, &long, usage]), (false, Some(7)));
    }
}
