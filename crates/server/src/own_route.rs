//! The record and the reply of the routes that respool answers from its own state.

use axum::extract::Request;
use axum::response::Response;
use http::StatusCode;
use serde_json::Value;

use super::app::App;
use super::front::begin_record;
use super::respond;
use telemetry::RequestRecord;
use wire::ApiError;

/// Begins the record of a request; `name` and `route` as for [`begin_record`].
pub(super) fn begin_own_record(
    app: &App,
    request: &Request,
    name: &str,
    route: &'static str,
) -> RequestRecord {
    begin_record(app, request.headers(), request.extensions(), name.to_owned(), route)
}

pub(super) fn finish_response(body: Result<Value, ApiError>, record: &RequestRecord) -> Response {
    let response = match body {
        Ok(body) => respond::json_response(StatusCode::OK, body.to_string()),
        Err(error) => respond::error_response(&error),
    };
    respond::finish_response(response, record)
}
