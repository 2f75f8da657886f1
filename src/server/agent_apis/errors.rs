//! Errors as the client's own API has them.

use axum::body::Body;
use axum::response::Response;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::memory::Owner;
use super::reply::failed_stream;
use super::writer::Writer;
use super::{Api, program};
use crate::observe::SharedLine;
use crate::server::{App, respond};
use crate::translate::messages::http_error as messages_error;
use crate::translate::responses::{fails_as_stream, http_error as responses_error};
use crate::translate::{ClientProgram, ErrorReply};
use crate::wire::ApiError;

/// Who asks, as far as errors differ.
#[derive(Clone, Debug)]
pub(super) struct Client {
    pub(super) api: Api,
    pub(super) program: ClientProgram,
    pub(super) request_id: String,
    pub(super) owner: Owner,
}

impl Client {
    pub(super) fn new(api: Api, app: &App, headers: &HeaderMap, line: &SharedLine) -> Self {
        let owner = app.responses.owner(headers);
        Self { api, program: program(headers), request_id: line.with(|line| line.id.clone()), owner }
    }

    /// The error as a status of its own.
    pub(super) fn refused(&self, error: &ApiError, line: &SharedLine) -> Response {
        let reply = match self.api {
            Api::Responses => responses_error(error),
            Api::Messages => messages_error(error, self.program, &self.request_id),
        };
        reshaped(respond::error(error, line), reply)
    }

    /// The error of a request for a stream, before any event has left: a status, or a stream that fails where the client understands only that.
    pub(super) fn failed(&self, error: &ApiError, writer: &mut Writer, line: &SharedLine) -> Response {
        if self.api == Api::Responses && fails_as_stream(error, self.program) {
            return failed_stream(error, writer, line);
        }
        self.refused(error, line)
    }
}

/// An error that was answered before any route, in the shape of this path's API.
pub(in crate::server) fn in_shape_of(
    path: &str,
    error: &ApiError,
    headers: &HeaderMap,
    id: &str,
    response: Response,
) -> Response {
    let path = path.strip_suffix("/count_tokens").unwrap_or(path);
    match Api::of(path) {
        Some(Api::Messages) => reshaped(response, messages_error(error, program(headers), id)),
        _ => response,
    }
}

fn reshaped(mut response: Response, reply: ErrorReply) -> Response {
    *response.status_mut() = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::BAD_GATEWAY);
    for (name, value) in reply.headers {
        if let Ok(value) = HeaderValue::try_from(value) {
            response.headers_mut().insert(HeaderName::from_static(name), value);
        }
    }
    *response.body_mut() = Body::from(reply.body);
    response
}
