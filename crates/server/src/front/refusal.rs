//! Answers requests that are refused before any route sees them.

use axum::response::Response;
use http::{HeaderValue, Request, StatusCode, header, request};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use super::arrival::begin_record;
use crate::agent_apis::refuse_unrouted;
use crate::app::{App, Peer};
use crate::{body, respond};
use wire::ApiError;

/// Refuses a request whose body has not been read.
pub(crate) async fn refuse_request(app: App, request: Request<Incoming>, error: ApiError) -> Response {
    let (parts, body) = request.into_parts();
    body::discard_rest(body.into_data_stream()).await;
    refuse_with_head(&app, &parts, error)
}

/// Refuses a request whose body was read.
pub(crate) fn refuse_with_head(app: &App, parts: &request::Parts, error: ApiError) -> Response {
    let name = format!("{} {}", parts.method, parts.uri.path());
    let record = begin_record(app, &parts.headers, &parts.extensions, name, "refused");
    if let Some(Peer(client)) = parts.extensions.get() {
        record.set_refused_client(*client);
    }
    let is_unknown = error.status == 401;
    let response = refuse_unrouted(app, parts, error, &record.start().id);
    let mut response = respond::finish_response(response, &record);
    if is_unknown && response.status() == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}
