//! Who asks on these routes, as far as errors and kept responses need it. The form of an error is `ErrorForm`'s.

use axum::body::Body;
use axum::response::Response;
use http::{HeaderMap, header};

use super::writer::Writer;
use super::{Api, Call};
use crate::agent::client_digest;
use crate::observe::SharedLine;
use crate::relay::{ErrorForm, Wire, program_of};
use crate::server::{App, respond};
use crate::translate::ClientProgram;
use crate::wire::ApiError;

/// Who asks.
#[derive(Clone, Debug)]
pub(super) struct Client {
    pub(super) errors: ErrorForm,
    pub(super) request_id: String,
    /// Stands for the key.
    pub(super) owner: String,
}

impl Client {
    pub(super) fn new(app: &App, api: Api, headers: &HeaderMap, line: &SharedLine) -> Self {
        let key = headers.get(header::AUTHORIZATION).map_or(&[][..], |key| key.as_bytes());
        Self {
            errors: app.error_form(api.wire(), program_of(headers)),
            request_id: line.with(|line| line.id.clone()),
            owner: client_digest(key),
        }
    }

    /// The same client, where its request says more of its program than its headers.
    pub(super) fn of_program(mut self, program: ClientProgram) -> Self {
        self.errors.program = self.errors.program.or(program);
        self
    }

    /// The error as a status of its own.
    pub(super) fn refused(&self, error: ApiError, line: &SharedLine) -> Response {
        respond::error_as(self.errors, error, line)
    }

    /// The error of a request for a stream, before any event has left: a status, or a stream that fails where the client understands
    /// only that.
    pub(super) fn failed(&self, error: ApiError, writer: &mut Writer, line: &SharedLine) -> Response {
        if !self.errors.fails_as_stream(&error) {
            return self.refused(error, line);
        }
        let mut out = Vec::new();
        writer.begin(&mut out);
        self.end(error, writer, &mut out, line);
        respond::stream(Body::from(out), line)
    }

    /// The error as the end of a stream.
    pub(super) fn end(&self, error: ApiError, writer: &mut Writer, out: &mut Vec<u8>, line: &SharedLine) {
        let (error, code) = self.errors.at_end(error);
        respond::failed(&error, line);
        writer.fail(&error, &code, out);
    }
}

/// The form of errors of a path for whoever sent these headers.
pub(in crate::server) fn error_form(app: &App, path: &str, headers: &HeaderMap) -> ErrorForm {
    match Call::of(path) {
        Some(Call::Turn(api)) => app.error_form(api.wire(), program_of(headers)),
        Some(Call::CountTokens) => app.error_form(Wire::Messages, program_of(headers)),
        None => app.error_form(Wire::Chat, ClientProgram::Other),
    }
}
