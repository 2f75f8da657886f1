//! What the routes have in common that respool answers from its own state: their record, and how an answer or an error leaves.

use axum::extract::Request;
use axum::response::Response;
use http::StatusCode;
use serde_json::Value;

use super::{App, permission, respond};
use store::StoreError;
use telemetry::{RequestRecord, RequestStart};
use wire::{ApiError, ErrorCode};

/// The record of a request: `name` with method and path, `route` as metrics count it.
pub(super) fn record(app: &App, request: &Request, name: &str, route: &'static str) -> RequestRecord {
    let start = RequestStart::new(respond::request_id(request.headers()), name.to_owned(), route);
    RequestRecord::begin(start.of_account(permission::account(request.extensions())), &app.recording)
}

pub(super) fn leave(body: Result<Value, ApiError>, record: &RequestRecord) -> Response {
    let response = match body {
        Ok(body) => respond::json(StatusCode::OK, body.to_string()),
        Err(error) => respond::error(&error),
    };
    respond::leaves(response, record)
}

/// The store cannot be read or written.
pub(super) fn store_failed(error: StoreError) -> ApiError {
    ApiError::new(500, ErrorCode::StoreFailed, error.0)
}
