//! Every route that is not respool's own: method, path, query, headers and bodies pass both ways as they come.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use bytes::Bytes;
use futures::{Stream, StreamExt as _};

use super::{App, respond};
use crate::observe::{Outcome, RequestLine, SharedLine};
use crate::upstream::{Call, Incoming, Outgoing};
use crate::wire::ApiError;

pub(super) async fn transparent(State(app): State<App>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let uri = parts.uri;
    let id = respond::request_id(&parts.headers);
    let mut line = RequestLine::start(id.clone(), format!("{} {}", parts.method, uri.path()));
    line.route = "transparent";
    let line = SharedLine::new(line, app.log_content);
    let Some(upstream) = app.relay.upstreams().next() else {
        return respond::error(&ApiError::new(500, "no_upstream", "no upstream is configured"), &line);
    };
    line.with(|line| line.upstream.clone_from(&upstream.name));
    let mut headers = parts.headers;
    if let Ok(id) = http::HeaderValue::from_str(&id) {
        headers.insert(respond::REQUEST_ID, id);
    }
    let path_and_query = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let bodiless = http_body::Body::is_end_stream(&body);
    let body = if bodiless {
        Outgoing::empty()
    } else {
        Outgoing::streamed(pieces(body, app.limits.client_timeout))
    };
    let call = Call { method: parts.method, path_and_query, headers, body, verbatim: true };
    let sent = tokio::select! {
        sent = upstream.send(call) => sent,
        () = app.abort.cancelled() => {
            let stopped = ApiError::new(503, "shutting_down", "respool was stopped before the upstream answered");
            return respond::error(&stopped, &line);
        }
    };
    match sent {
        Ok(answer) => passed_on(&app, answer.into_parts(), line),
        Err(error) => respond::error(&error.logged(&line), &line),
    }
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

fn passed_on(app: &App, parts: (http::StatusCode, http::HeaderMap, Incoming), line: SharedLine) -> Response {
    let (status, headers, mut pieces) = parts;
    line.with(|line| {
        line.upstream_status = Some(status.as_u16());
        line.outcome = Outcome::ClientGone;
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    respond::leaves(&mut response, &line);
    // A cut connection is the only honest way to say that a body of unknown form broke off.
    let abort = app.abort.clone();
    let watched = async_stream::stream! {
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
