//! Reads a request in either API into the chat request that asks the same, and a writer for its reply.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;

use super::api::{Api, estimated_tokens};
use super::errors::Client;
use super::writer::Writer;
use crate::app::App;
use translate::messages::{MessageEvents, read_message};
use translate::responses::{ReadResponse, ResponseEvents, find_references, read_response};
use translate::{Ids, IgnoredField};
use wire::{ApiError, ErrorCode};

/// A request that was read, in either API.
pub(super) struct ReadRequest {
    /// The chat request that asks the same.
    pub(super) chat: String,
    pub(super) writer: Writer,
    pub(super) stream: bool,
    /// Set for a response in the background.
    pub(super) background: Option<Continued>,
}

/// The response that a request continues, if it continues one.
pub(super) struct Continued(pub(super) Option<String>);

pub(super) async fn read_request(
    api: Api,
    app: &App,
    body: &Bytes,
    client: &Client,
) -> Result<ReadRequest, ApiError> {
    let ids = Ids::new(rand::random(), HashSet::new());
    let sealer = Arc::clone(&app.agent_apis.sealer);
    match api {
        Api::Responses => {
            let read = read_kept_response(app, body, client).await?;
            let stream = read.asked.stream;
            check_background(read.asked.background, stream, read.asked.store)?;
            let background = read.asked.background.then(|| Continued(read.asked.previous.clone()));
            let events = ResponseEvents::new(Arc::new(read.asked), sealer, ids, clock::now_in_seconds());
            let writer = Writer::Responses(events);
            Ok(ReadRequest { chat: read.chat, writer, stream, background })
        }
        Api::Messages => {
            let read = read_message(body, &sealer)?;
            log_ignored_fields(&read.ignored_fields, &client.request_id);
            let stream = read.asked.stream;
            let events = MessageEvents::new(read.asked, sealer, ids, estimated_tokens(read.chat.len()));
            let writer = Writer::Messages(events, client.request_id.clone());
            Ok(ReadRequest { chat: read.chat, writer, stream, background: None })
        }
    }
}

/// Reads a request of the Responses API and adds the kept items that it names.
pub(super) async fn read_kept_response(
    app: &App,
    body: &Bytes,
    client: &Client,
) -> Result<ReadResponse, ApiError> {
    let wanted = find_references(body)?;
    let recalled =
        app.agent_apis.responses.recall_items(&client.owner, wanted, body.len(), app.limits.max_body).await?;
    let mut read = read_response(body, &recalled, &app.agent_apis.sealer)?;
    // The reply tells the client whether it is kept.
    read.asked.store = read.asked.store && app.agent_apis.responses.store().await.is_some();
    log_ignored_fields(&read.ignored_fields, &client.request_id);
    Ok(read)
}

/// Writes one line about all fields that the model does not get.
pub(super) fn log_ignored_fields(ignored_fields: &[IgnoredField], request_id: &str) {
    if ignored_fields.is_empty() {
        return;
    }
    let fields: Vec<&str> = ignored_fields.iter().map(|note| note.field.as_str()).collect();
    tracing::info!(target: "respool::server", request_id, fields = fields.join(", "), why = ignored_fields[0].why, "parts of a request were ignored");
}

/// Refuses a response that cannot be made in the background.
fn check_background(background: bool, stream: bool, store: bool) -> Result<(), ApiError> {
    if !background {
        return Ok(());
    }
    if stream {
        let what = "a response in the background is not streamed: leave `stream` out, and ask for GET /v1/responses/{id}";
        return Err(refusal(what).with_param("stream"));
    }
    if !store {
        let what = "a response in the background must be kept: leave `store` out, and set `responses.store = true` in respool.toml";
        return Err(refusal(what).with_param("background"));
    }
    Ok(())
}

pub(super) fn refusal(what: &str) -> ApiError {
    ApiError::bad_request(ErrorCode::UnsupportedValue, what)
}
