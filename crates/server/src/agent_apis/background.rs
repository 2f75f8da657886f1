//! `background: true`: the reply comes at once, and the response is made in the background, whether or not
//! its client waits.
//!
//! The store keeps the request until its response has ended. Another process repeats what one that has ended
//! left unfinished: a model call can be repeated. Called by `agent_apis` and `run`.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, StatusCode};

use super::api::as_stream;
use super::errors::Client;
use super::reading::{read_kept_response, refusal};
use super::reply::ReplyWriter;
use super::source::Source;
use super::writer::Writer;
use crate::app::App;
use crate::current::CurrentApp;
use crate::respond;
use relay::{Origin, Wire};
use store::{KeptResponse, UnfinishedResponse};
use telemetry::{Accounts as _, RequestRecord, RequestStart};
use translate::Ids;
use translate::responses::{ResponseEvents, with_failure};
use wire::{ErrorCode, Object};

/// How often a process asks whether the responses that it makes are still wanted.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// After this number of looks it asks for the responses of processes that have ended.
const LOOKS_PER_CLAIM: u32 = 5;
/// The error of a response whose process has ended, where the model server needs the client's own key.
const KEY_IS_GONE: &str = "respool ended before this response was made, the model server wants a key, and respool stores none of its \
     clients' keys: send the request again, or set api_key for this upstream in respool.toml";

/// Stores the request, answers, and begins to work.
pub(super) async fn begin_response(
    mut reply_writer: ReplyWriter,
    source: Source,
    request: &Bytes,
    previous: Option<String>,
) -> Response {
    let client = reply_writer.client.clone();
    let Writer::Responses(events) = &mut reply_writer.writer else {
        return client.refuse_request(refusal("only responses can be made in the background"));
    };
    let (id, reply) = (events.id().to_owned(), events.pending_response(true));
    let kept = KeptResponse {
        id: id.clone(),
        client: client.owner.clone(),
        previous,
        status: "in_progress".to_owned(),
        input: events.stored_input(),
        body: events.pending_response(false),
        request: Some(String::from_utf8_lossy(request).into_owned()),
    };
    if let Err(error) = reply_writer.app.agent_apis.responses.begin_response(kept).await {
        return client.refuse_request(error);
    }
    tokio::spawn(make_response(reply_writer, source, id, false));
    respond::recorded_in_body(respond::json_response(StatusCode::OK, reply))
}

/// Makes the response. One that respool's own end interrupts stays in the store. `is_resumed`: another
/// process began it.
async fn make_response(mut reply_writer: ReplyWriter, source: Source, id: String, is_resumed: bool) {
    let responses = Arc::clone(&reply_writer.app.agent_apis.responses);
    let cancelled = responses.work_begins(&id);
    let Some(made) = cancelled.run_until_cancelled(reply_writer.collect_turn(source)).await else { return };
    match made {
        Err(error) if error.code == Some(ErrorCode::ShuttingDown) => {}
        made => {
            if let Err(mut error) = made {
                if is_resumed && error.code == Some(ErrorCode::UpstreamCredentialsRefused) {
                    KEY_IS_GONE.clone_into(&mut error.message);
                }
                let error = reply_writer.client.end_stream(error, &mut reply_writer.writer, &mut Vec::new());
                respond::record_failure(&error, &reply_writer.record);
            }
            if let Writer::Responses(events) = &mut reply_writer.writer
                && let Some(finished) = events.to_stored()
            {
                responses.finish_response(finished).await;
            }
        }
    }
    responses.work_ends(&id);
}

/// Continues the responses of processes that have ended, and stops the work on those that another process has
/// cancelled. Ends when it is dropped.
pub(crate) async fn watch_responses(current: CurrentApp) {
    loop {
        resume_unfinished(current.app()).await;
        for _ in 0..LOOKS_PER_CLAIM {
            tokio::time::sleep(LOOK_EVERY).await;
            current.app().agent_apis.responses.stop_unwanted_work().await;
        }
    }
}

async fn resume_unfinished(app: App) {
    for unfinished in app.agent_apis.responses.claim_unfinished().await {
        let id = unfinished.id.clone();
        tracing::info!(target: "respool::server", response = id, "a response in the background is asked for again");
        Box::pin(resume_one(app.clone(), unfinished)).await;
    }
}

async fn resume_one(app: App, unfinished: UnfinishedResponse) {
    let UnfinishedResponse { id, client: owner, request, body } = unfinished;
    let id_of_request = respond::request_id(&HeaderMap::new());
    let start = RequestStart::new(id_of_request, "POST /v1/responses", "responses");
    let record = RequestRecord::begin(start.with_account(app.access.find_account(&owner)), &app.recording);
    let client = Client::new_absent(&app, owner, &record.start().id);
    let read = read_kept_response(&app, &Bytes::from(request), &client).await;
    let ids = Ids::new(rand::random(), HashSet::new());
    let created = Object::parse(&body).ok().and_then(|body| body.number("created_at")).unwrap_or_default();
    let read = match read {
        // An agent's run is durable itself, and its tools may have had effects: it is not started again.
        Ok(read) if !app.is_agent(&read.asked.model) => read,
        Ok(_) => {
            let why = "respool ended while an agent worked on this response, and does not begin a run twice";
            return app.agent_apis.responses.fail_response(id, with_failure(&body, why)).await;
        }
        // The request was valid once: this is another version of respool, or the response that it continues
        // has gone.
        Err(error) => {
            respond::record_failure(&error, &record);
            return app.agent_apis.responses.fail_response(id, with_failure(&body, &error.message)).await;
        }
    };
    let chat = read.chat;
    let mut events =
        ResponseEvents::new(Arc::new(read.asked), Arc::clone(&app.agent_apis.sealer), ids, created);
    events.continue_as(id.clone());
    let writer = Writer::Responses(events);
    let origin = Origin::internal(HeaderMap::new(), record.clone());
    let origin = Origin { wire: Wire::Responses, wishes: writer.wishes(), ..origin };
    let progress = Arc::clone(&origin.progress);
    let source = Source::begin(&app, Bytes::from(as_stream(chat)), origin).await;
    let source = source.map_or_else(Source::from_error, |(source, _)| source);
    tokio::spawn(make_response(ReplyWriter::new(app, writer, client, record, progress), source, id, true));
}
