//! The client of a request on these routes, as errors and kept responses need it. `ErrorForm` decides the
//! form of an error.

use std::collections::HashSet;
use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, Method, header, request};

use super::api::{Api, Call};
use super::failed_streams::{self, FailedStreams};
use super::writer::Writer;
use crate::app::App;
use crate::final_error::ErrorForm;
use crate::respond;
use agent::client_digest;
use relay::{Wire, program_of};
use translate::responses::ResponseEvents;
use translate::{ClientProgram, Ids, is_final};
use wire::{ApiError, Object};

/// Anthropic's clients send it.
const VERSION: &str = "anthropic-version";

/// The client of a request.
#[derive(Clone, Debug)]
pub(super) struct Client {
    pub(super) errors: ErrorForm,
    pub(super) request_id: String,
    /// A digest of the key.
    pub(super) owner: String,
    /// The request, if its client sends it again when its stream fails.
    repeated: Option<(Repeated, Arc<FailedStreams>)>,
}

/// A chat request that its client may repeat.
#[derive(Clone, Debug)]
enum Repeated {
    /// The whole request, which the relay holds anyway while it may retry.
    Chat(Bytes),
    /// Its digest.
    Key(u64),
}

impl Repeated {
    fn is_whole(&self) -> bool {
        matches!(self, Self::Chat(_))
    }

    fn digest_key(&self, owner: &str) -> Option<u64> {
        match self {
            Self::Chat(chat) => failed_streams::conversation_key(owner, chat),
            Self::Key(key) => Some(*key),
        }
    }
}

impl Client {
    pub(super) fn new(app: &App, api: Api, headers: &HeaderMap, request_id: &str) -> Self {
        let key = headers.get(header::AUTHORIZATION).map_or(&[][..], |key| key.as_bytes());
        Self {
            errors: app.error_form(api.wire(), program_of(headers)),
            request_id: request_id.to_owned(),
            owner: client_digest(key),
            repeated: None,
        }
    }

    /// Returns the client of a response that another process has begun.
    pub(super) fn new_absent(app: &App, owner: String, request_id: &str) -> Self {
        let errors = app.error_form(Wire::Responses, ClientProgram::Other);
        Self { errors, request_id: request_id.to_owned(), owner, repeated: None }
    }

    /// Adds the chat request, if the client may repeat it.
    pub(super) fn with_request(mut self, app: &App, chat: Bytes, stream: bool) -> Self {
        self.repeated = (stream && self.repeats_failed_streams())
            .then(|| (Repeated::Chat(chat), Arc::clone(&app.agent_apis.failed_streams)));
        self
    }

    /// Replaces the request by its digest: the stream has begun and may last for an hour.
    pub(super) fn release_request(&mut self) {
        if let Some((Repeated::Chat(chat), failed_streams)) = self.repeated.take_if(|(it, _)| it.is_whole()) {
            self.repeated = failed_streams::conversation_key(&self.owner, &chat)
                .map(|key| (Repeated::Key(key), failed_streams));
        }
    }

    /// Returns true for Claude Code, which repeats a request without `stream` when its stream has failed.
    fn repeats_failed_streams(&self) -> bool {
        self.errors.wire == Wire::Messages && self.errors.program == ClientProgram::ClaudeCode
    }

    /// Returns the error of the failed stream that this request repeats.
    pub(super) fn error_of_failed_stream(&self, app: &App, chat: &[u8], stream: bool) -> Option<ApiError> {
        if stream || !self.repeats_failed_streams() {
            return None;
        }
        app.agent_apis.failed_streams.take_failure(&self.owner, chat)
    }

    /// Sets the client's program from its request, if the headers do not name one.
    pub(super) fn with_program(mut self, program: ClientProgram) -> Self {
        self.errors.program = self.errors.program.or(program);
        self
    }

    /// Returns the error as an HTTP status.
    pub(super) fn refuse_request(&self, error: ApiError) -> Response {
        respond::error_as(self.errors, error, &self.request_id)
    }

    /// Returns the error of a request that could not be read. `body`: the part that arrived.
    pub(super) fn refuse_unread(&self, app: &App, error: ApiError, body: Option<&[u8]>) -> Response {
        if !self.errors.fails_as_stream(&error) || body.is_some_and(wants_no_stream) {
            return self.refuse_request(error);
        }
        let ids = Ids::new(rand::random(), HashSet::new());
        let events = ResponseEvents::new(
            Arc::default(),
            Arc::clone(&app.agent_apis.sealer),
            ids,
            clock::now_in_seconds(),
        );
        self.fail_stream(error, &mut Writer::Responses(events))
    }

    /// Returns the error of a request for a stream before any event has left: a status, or a failing stream
    /// where the client understands only that.
    pub(super) fn fail_stream(&self, error: ApiError, writer: &mut Writer) -> Response {
        if !self.errors.fails_as_stream(&error) {
            return self.refuse_request(error);
        }
        let mut out = Vec::new();
        writer.write_begin(&mut out);
        let error = self.end_stream(error, writer, &mut out);
        respond::failed_stream(Body::from(out), &error)
    }

    /// Writes the error as the end of a stream and returns the error that leaves.
    pub(super) fn end_stream(&self, error: ApiError, writer: &mut Writer, out: &mut Vec<u8>) -> ApiError {
        if let Some((repeated, failed_streams)) = self.repeated.as_ref().filter(|_| is_final(&error))
            && let Some(key) = repeated.digest_key(&self.owner)
        {
            failed_streams.note_failure(key, &error);
        }
        let (error, code) = self.errors.apply_at_end(error);
        writer.write_failure(&error, &code, out);
        error
    }
}

/// Returns true for a valid body that does not ask for a stream.
fn wants_no_stream(body: &[u8]) -> bool {
    let body = std::str::from_utf8(body).ok().and_then(|text| Object::parse(text).ok());
    body.is_some_and(|body| !body.means_true("stream"))
}

/// Answers a request that is refused before its body is read, in the form that its client needs.
pub(crate) fn refuse_unrouted(
    app: &App,
    parts: &request::Parts,
    error: ApiError,
    request_id: &str,
) -> Response {
    if parts.method == Method::POST
        && let Some(Call::Turn(api)) = Call::from_path(parts.uri.path())
    {
        return Client::new(app, api, &parts.headers, request_id).refuse_unread(app, error, None);
    }
    respond::error_as(error_form(app, parts.uri.path(), &parts.headers), error, request_id)
}

/// Returns the form of errors for a path and the sender of these headers.
pub(crate) fn error_form(app: &App, path: &str, headers: &HeaderMap) -> ErrorForm {
    match Call::from_path(path) {
        Some(Call::Turn(api)) => app.error_form(api.wire(), program_of(headers)),
        Some(Call::CountTokens) => app.error_form(Wire::Messages, program_of(headers)),
        None if speaks_anthropics(path, headers) => app.error_form(Wire::Messages, program_of(headers)),
        None => app.error_form(Wire::Chat, ClientProgram::Other),
    }
}

/// Returns true for Anthropic's API: its clients name its version, and `/messages` belongs to it alone.
fn speaks_anthropics(path: &str, headers: &HeaderMap) -> bool {
    headers.contains_key(VERSION) || path.strip_prefix("/v1").unwrap_or(path).starts_with("/messages/")
}
