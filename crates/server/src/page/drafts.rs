//! Messages of experts below the approvals: the drafts on which a person still has to act, and the latest
//! results. For operators alone.

use axum::extract::{Path, State};
use axum::response::Response;
use maud::{Markup, html};

use super::guard::{Pressed, may_decide};
use super::response::redirect_response;
use super::session::Viewer;
use super::{approvals, format, layout};
use crate::app::App;
use experts::{MARKED_DONE, MessageKind, event_of_run, message_json};
use openexperts::KnowledgeKind;
use serde_json::Value;
use store::{MessageFilter, MessageRow, Store};
use wire::visible::make_visible;

/// The most drafts that are read.
const MOST: usize = 200;
/// How many results are listed.
const RESULTS: usize = 10;

/// Returns the drafts that are not done, the newest first; `expert`: of this one alone.
pub(super) async fn open_drafts(store: &Store, expert: Option<&str>) -> Vec<MessageRow> {
    let expert = expert.map(str::to_owned);
    let filter = MessageFilter { is_open: true, expert, ..kind_filter(MessageKind::Draft) };
    store.messages(filter, MOST).await.unwrap_or_default()
}

fn kind_filter(kind: MessageKind) -> MessageFilter {
    MessageFilter { kind: Some(kind.as_str().to_owned()), ..MessageFilter::default() }
}

/// Writes the sections of drafts and results.
pub(super) async fn outbox_sections(app: &App, viewer: &Viewer) -> Markup {
    let Some(store) = app.agents.store() else { return html! {} };
    let mut drafts = Vec::new();
    for row in open_drafts(store, None).await {
        drafts.push(draft_item(app, viewer, store, &row).await);
    }
    let results = store.messages(kind_filter(MessageKind::Result), RESULTS).await.unwrap_or_default();
    html! {
        section { h2 id="drafts" { "Drafts" }
            @if drafts.is_empty() { (layout::empty_note("No draft of an expert waits for you.")) }
            @for draft in &drafts { (draft) } }
        section { h2 { "Latest results" }
            @if results.is_empty() { (layout::empty_note("No expert has handed in a result yet.")) }
            @for row in &results { section class="card" { (message_head(row)) (message_text(app, row, "outputs")) } } }
    }
}

/// Shows a draft, ready to be copied, with the event that it answers.
async fn draft_item(app: &App, viewer: &Viewer, store: &Store, row: &MessageRow) -> Markup {
    let message = message_json(row);
    let event = event_of_run(store, message["run"].as_str().unwrap_or_default()).await.ok().flatten();
    let inputs = message["body"]["inputs"].as_object();
    let inputs = inputs.filter(|_| !may_quote_private(app, &row.message.expert));
    html! {
        section class="card decision" {
            div {
                (message_head(row))
                @if let Some(inputs) = inputs { (approvals::inputs_list(inputs)) } @else { (message_text(app, row, "inputs")) }
                p class="dim" { "It is yours to send or to throw away. Press Done when it needs you no longer." }
                (layout::button_form(viewer, &format!("/ui/drafts/{}", row.message.id), "Done", &format!("the draft {}", row.message.id), &[]))
            }
            @if let Some(event) = &event { div class="evidence" { (approvals::event_part(event)) } }
        }
    }
}

/// Writes what a message is about.
fn message_head(row: &MessageRow) -> Markup {
    let message = message_json(row);
    let text = |name: &str| message[name].as_str().map(make_visible).unwrap_or_default();
    html! {
        h3 { (row.message.expert) @if let Some(operation) = message["body"]["operation"].as_str() { " " code { (make_visible(operation)) } } }
        p { @if message["process"].is_string() { "Process " code { (text("process")) } ", " }
            (format::format_age(row.created, clock::now()))
            @if message["run"].is_string() { ", " a href={ "/ui/runs/" (text("run")) } { "its run" } } }
    }
}

/// Writes a message's summary and values. Text that may quote private knowledge is not on the page.
fn message_text(app: &App, row: &MessageRow, values: &str) -> Markup {
    if may_quote_private(app, &row.message.expert) {
        return html! { p { "To read it: " code { "respool expert outbox show " (row.message.id) } } };
    }
    let body = message_json(row)["body"].take();
    let problems = body["problems"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let unknown = body["unknown_outcomes"].as_array().filter(|unknown| !unknown.is_empty());
    html! {
        @if let Some(summary) = body["summary"].as_str() { p { (make_visible(summary)) } }
        @if body[values] != Value::Null { pre { (make_visible(&format!("{:#}", body[values]))) } }
        @for problem in problems { p class="notice" { (format::with_code(&make_visible(problem))) } }
        @if let Some(unknown) = unknown { p { "Not known whether it took effect: " (operations_in(unknown)) } }
        (failed_calls(&body))
    }
}

/// Lists the calls that a message says to have failed.
pub(super) fn failed_calls(body: &Value) -> Markup {
    let error = |call: &Value| make_visible(call["error"].as_str().unwrap_or_default());
    html! {
        @for call in body["failed_calls"].as_array().into_iter().flatten() {
            p class="notice" { "Failed, and was not done: " (operations_in(std::slice::from_ref(call))) ": " (format::with_code(&error(call))) }
        }
    }
}

/// Returns true for an expert with private knowledge, and for one that is not installed.
fn may_quote_private(app: &App, name: &str) -> bool {
    let expert = app.experts.as_ref().and_then(|experts| experts.get(name));
    expert.is_none_or(|expert| {
        expert.package.knowledge.items.iter().any(|knowledge| knowledge.kind == KnowledgeKind::Private)
    })
}

pub(super) async fn end_draft(
    State(app): State<App>,
    Path(id): Path<String>,
    Pressed { viewer, .. }: Pressed,
) -> Response {
    if !may_decide(&viewer) {
        return approvals::decide_error(app.access.has_operators());
    }
    if let Some(store) = app.agents.store()
        && store.end_message(&id, clock::now(), Some(MARKED_DONE)).await.unwrap_or(false)
    {
        tracing::info!(target: "respool::server", message = id, by = viewer.name, "a draft was marked as done on the page");
    }
    redirect_response("/ui/approvals")
}

/// Names operations with their inputs, as a message lists them.
pub(super) fn operations_in(operations: &[Value]) -> Markup {
    let named = operations.iter().map(|one| {
        let operation = one["operation"].as_str().unwrap_or_default();
        make_visible(&format!("{operation} {}", one["inputs"]))
    });
    html! { @for (index, text) in named.enumerate() { @if index > 0 { ", " } code { (text) } } }
}
