//! What the routes have in common that respool answers from its own state: their log line, and how an answer or an error leaves.

use axum::extract::Request;
use axum::response::Response;
use http::StatusCode;
use serde_json::Value;

use super::{App, permission, respond};
use crate::observe::{Outcome, RequestLine, SharedLine};
use crate::store::StoreError;
use crate::wire::{ApiError, ErrorCode};

/// The line of a request: `name` with method and path, `route` as metrics count it.
pub(super) fn line(app: &App, request: &Request, name: &str, route: &'static str) -> SharedLine {
    let mut line = RequestLine::start(respond::request_id(request.headers()), name.to_owned());
    line.route = route;
    line.account = permission::account(request.extensions());
    SharedLine::new(line, &app.recording)
}

pub(super) fn leave(body: Result<Value, ApiError>, line: &SharedLine) -> Response {
    match body {
        Ok(body) => {
            line.with(|line| line.outcome = Outcome::Ok);
            respond::json(StatusCode::OK, body.to_string(), line)
        }
        Err(error) => respond::error(&error, line),
    }
}

/// The store cannot be read or written.
pub(super) fn store_failed(error: StoreError) -> ApiError {
    ApiError::new(500, ErrorCode::StoreFailed, error.0)
}
