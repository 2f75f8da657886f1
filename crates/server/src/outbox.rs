//! `/v1/outbox`: the messages of experts to their owner: results, drafts, questions, escalations. For
//! operators alone: the messages quote mails and customers.

use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::response::Response;
use serde_json::{Value, json};
use url::form_urlencoded;

use super::app::App;
use super::approvals::operator_name;
use super::own_route::{begin_own_record, finish_response};
use super::respond::store_failed;
use experts::{MARKED_DONE, MessageKind, message_json, read_message, read_outbox};
use store::{MessageFilter, Store};
use wire::{ApiError, ErrorCode};

/// The most messages in the list.
const MOST: usize = 1_000;

/// Lists the messages, the newest first; `?expert=NAME`, `?kind=KIND` and `?invocation=ID` filter them.
pub(super) async fn list_messages(State(app): State<App>, request: Request) -> Response {
    let (record, requester) =
        (begin_own_record(&app, &request, "GET /v1/outbox", "outbox"), operator_name(&request));
    let query = request.uri().query().unwrap_or_default().to_owned();
    let listed = async {
        requester?;
        let filter = read_filter(&query)?;
        let rows = read_outbox(require_store(&app)?, filter, MOST).await.map_err(store_failed)?;
        let rows: Vec<Value> = rows.iter().map(message_json).collect();
        Ok(json!({"object": "list", "data": rows}))
    };
    finish_response(listed.await, &record)
}

pub(super) async fn get_message(
    State(app): State<App>,
    Path(id): Path<String>,
    request: Request,
) -> Response {
    let (record, requester) =
        (begin_own_record(&app, &request, "GET /v1/outbox/{id}", "outbox"), operator_name(&request));
    let found = async {
        requester?;
        let row = read_message(require_store(&app)?, &id).await.map_err(store_failed)?;
        row.as_ref().map(message_json).ok_or_else(|| unknown_message(&id))
    };
    finish_response(found.await, &record)
}

/// Marks a message as delivered.
pub(super) async fn mark_done(State(app): State<App>, Path(id): Path<String>, request: Request) -> Response {
    let (record, requester) =
        (begin_own_record(&app, &request, "POST /v1/outbox/{id}/done", "outbox"), operator_name(&request));
    let done = async {
        requester?;
        let store = require_store(&app)?;
        store.end_message(&id, clock::now(), Some(MARKED_DONE)).await.map_err(store_failed)?;
        let row = store.message(&id).await.map_err(store_failed)?;
        row.as_ref().map(message_json).ok_or_else(|| unknown_message(&id))
    };
    finish_response(done.await, &record)
}

fn read_filter(query: &str) -> Result<MessageFilter, ApiError> {
    let wrong = |name: &str, what: String| {
        Err(ApiError::bad_request(ErrorCode::UnsupportedValue, what).with_param(name))
    };
    let mut filter = MessageFilter::default();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        let value = value.into_owned();
        match &*name {
            "expert" => filter.expert = Some(value),
            "invocation" => filter.entry = Some(value),
            "kind" if MessageKind::NAMES.contains(&value.as_str()) => filter.kind = Some(value),
            "kind" => {
                let kinds = MessageKind::NAMES.join(", ");
                return wrong("kind", format!("`kind` is {value:?}; it can be: {kinds}"));
            }
            _ => {
                let what = format!("`{name}` chooses no messages; `expert`, `kind` and `invocation` do");
                return wrong(&name, what);
            }
        }
    }
    Ok(filter)
}

fn require_store(app: &App) -> Result<&Arc<Store>, ApiError> {
    let text = "there is no outbox, because the state directory cannot be used: the log says why";
    app.agents.store().ok_or_else(|| ApiError::new(404, ErrorCode::NoStore, text))
}

fn unknown_message(id: &str) -> ApiError {
    let what = format!("there is no message `{id}`; GET /v1/outbox lists all of them");
    ApiError::new(404, ErrorCode::NotFound, what)
}
