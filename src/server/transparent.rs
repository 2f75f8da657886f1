//! Every route that is not respool's own: method, path, query, headers and bodies pass both ways as they come.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use bytes::Bytes;
use futures::{Stream, StreamExt as _, TryStreamExt as _};
use http::{HeaderMap, Method, header};

use super::{App, Peer, permission, respond};
use crate::observe::{Outcome, RequestLine, SharedLine};
use crate::relay::{Forward, Passing};
use crate::upstream::{Incoming, Outgoing, Place};
use crate::wire::{ApiError, ErrorCode};

/// A body that is no longer is read before it is sent, when there are several upstreams.
const SHORT: u64 = 1 << 20;

pub(super) async fn transparent(State(app): State<App>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let uri = parts.uri;
    let id = respond::request_id(&parts.headers);
    let mut line = RequestLine::start(id.clone(), format!("{} {}", parts.method, uri.path()));
    line.route = "transparent";
    line.account = permission::account(&parts.extensions);
    let line = SharedLine::new(line, &app.recording);
    if permission::is_own(uri.path()) {
        return respond::error(&no_route(uri.path()), &line);
    }
    let costs = parts.method == Method::POST && permission::costs(uri.path());
    if costs && let Err(error) = permission::within_budget(&app, &line, "", &Bytes::new()) {
        return respond::error(&error, &line);
    }
    let mut headers = parts.headers;
    if let Ok(id) = http::HeaderValue::from_str(&id) {
        headers.insert(respond::REQUEST_ID, id);
    }
    let body = match passing(&app, &parts.method, &headers, body).await {
        Ok(body) => body,
        Err(error) => return respond::error(&error, &line),
    };
    let path_and_query = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let peer = parts.extensions.get::<Peer>().map(|peer| peer.0);
    let request = Forward { method: parts.method, path_and_query, headers, body, peer };
    let sent = tokio::select! {
        sent = app.relay.forward(request, &line) => sent,
        () = app.abort.cancelled() => {
            let stopped = ApiError::new(503, ErrorCode::ShuttingDown, "respool was stopped before the upstream answered");
            return respond::error(&stopped, &line);
        }
    };
    match sent {
        Ok(answer) => passed_on(&app, answer.into_parts(), line),
        Err(error) => respond::error(&error, &line),
    }
}

/// What is not checked as a model server's route does not go to one.
fn no_route(path: &str) -> ApiError {
    let what = format!("respool has no route `{}`, and does not pass it on", path.escape_default());
    ApiError::new(404, ErrorCode::NotFound, what)
}

/// The body as it comes; whole, where it says which of several upstreams is meant and is short.
async fn passing(app: &App, method: &Method, headers: &HeaderMap, body: Body) -> Result<Passing, ApiError> {
    if http_body::Body::is_end_stream(&body) {
        return Ok(Passing::Whole(Bytes::new()));
    }
    let is_json = headers
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
    let length = http_body::Body::size_hint(&body).exact();
    let is_short = length.is_some_and(|length| length <= SHORT);
    let pieces = pieces(body, app.limits.client_timeout);
    if !(app.relay.wants_models_of_others() && method == Method::POST && is_json && is_short) {
        return Ok(Passing::Streamed(Some(Outgoing::streamed(pieces, length))));
    }
    let whole = pieces.map_ok(|piece| piece.to_vec()).try_concat().await;
    whole.map(|bytes| Passing::Whole(bytes.into())).map_err(|error| {
        ApiError::bad_request(ErrorCode::IncompleteBody, format!("the request body broke off: {error}"))
    })
}

/// The client's body, until nothing of it comes for too long.
fn pieces(body: Body, patience: Duration) -> impl Stream<Item = Result<Bytes, axum::BoxError>> {
    async_stream::stream! {
        let mut pieces = body.into_data_stream();
        loop {
            match tokio::time::timeout(patience, pieces.next()).await {
                Ok(Some(piece)) => yield piece.map_err(Into::into),
                Ok(None) => break,
                Err(_) => break yield Err(format!("nothing of it came for {patience:?} (`limits.client_timeout`)").into()),
            }
        }
    }
}

fn passed_on(
    app: &App,
    parts: (http::StatusCode, HeaderMap, Incoming, Option<Place>),
    line: SharedLine,
) -> Response {
    let (status, headers, mut pieces, place) = parts;
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    respond::leaves(&mut response, &line);
    // A cut connection is the only honest way to say that a body of unknown form broke off.
    let abort = app.abort.clone();
    let watched = async_stream::stream! {
        // Until this has ended, or is dropped.
        let _place = place;
        loop {
            let piece = tokio::select! {
                biased;
                piece = pieces.piece() => piece.map_err(|fault| format!("the upstream's reply broke off: {fault:?}")),
                () = abort.cancelled() => Err("respool was stopped before the reply was complete".to_owned()),
            };
            match piece {
                Ok(Some(piece)) => yield Ok(piece),
                Ok(None) => break line.with(|line| line.outcome = Outcome::Ok),
                Err(text) => {
                    let outcome = if abort.is_cancelled() { Outcome::Shutdown } else { Outcome::Error };
                    line.with(|line| (line.outcome, line.error) = (outcome, Some(text.clone())));
                    break yield Err(text);
                }
            }
        }
    };
    *response.body_mut() = Body::from_stream(watched);
    response
}
