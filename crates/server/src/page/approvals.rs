//! Calls that wait for consent, with the exact inputs that will run, and tasks of experts that failed or were
//! escalated.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::response::Response;
use http::{StatusCode, Uri};
use maud::{Markup, html};

use super::guard::{Form, Pressed, may_decide};
use super::query::PageQuery;
use super::response::{page_response, redirect_response};
use super::session::Viewer;
use super::{drafts, format, layout};
use crate::app::App;
use agent::{ApprovalRequest, DecideError, Decision, OnRejection, RequestedCall};
use experts::{
    ExpertError, Invocation, OpenTask, drop_rejected, drop_task, event_of_run, message_json, open_tasks,
    retry_task,
};
use serde_json::{Map, Value};
use store::ApprovalRow;
use wire::visible::make_visible;

/// The most of each that are listed.
const MOST: usize = 200;
/// The longest inputs that a form can change, in bytes.
const LONGEST_CHANGEABLE: usize = 8 << 10;

/// Says what a decision on this page did, by the word in the address that follows it.
const SETTLED: [(&str, &str); 5] = [
    ("approved", "Approved: these calls are made now. Reload this page to see what it asks next."),
    ("rejected", "Rejected: these calls are not made."),
    ("dropped", "Rejected, and the task is dropped."),
    ("again", "The task is queued again. Reload this page to see what it asks."),
    ("ended", "The task is dropped: it needs you no longer."),
];

pub(super) async fn show_approvals(State(app): State<App>, uri: Uri, viewer: Viewer) -> Response {
    if !may_decide(&viewer) {
        let main = html! { h1 { "Approvals" } (how_to_decide(app.access.has_operators())) };
        return page_response(
            StatusCode::OK,
            layout::page_layout(&viewer, "/ui/approvals", "Approvals", &main),
        );
    }
    let query = PageQuery::parse(&uri);
    let approvals = app.agents.waiting_approvals(MOST).await.unwrap_or_default();
    let failed = match app.agents.store() {
        Some(store) => open_tasks(store, None, MOST).await.unwrap_or_default(),
        None => Vec::new(),
    };
    let mut items = Vec::new();
    for (row, asked) in &approvals {
        let event = match app.agents.store() {
            Some(store) => event_of_run(store, &row.run).await.ok().flatten(),
            None => None,
        };
        items.push(approval_item(&viewer, row, asked, event.as_ref()));
    }
    let main = html! {
        h1 { "Approvals" }
        @if let Some((_, done)) = SETTLED.iter().find(|(word, _)| *word == query.get("settled")) { p class="notice" role="status" { (done) } }
        @if approvals.is_empty() { (layout::empty_note("No call is waiting for approval.")) }
        @for item in &items { (item) }
        section { h2 { "Tasks that need you" }
            @if failed.is_empty() { (layout::empty_note("No failed or escalated task waits here.")) }
            @for task in &failed { (failed_task_item(&viewer, task)) } }
        (drafts::outbox_sections(&app, &viewer).await)
    };
    page_response(StatusCode::OK, layout::page_layout(&viewer, "/ui/approvals", "Approvals", &main))
}

fn how_to_decide(has_operators: bool) -> Markup {
    if has_operators {
        return html! {
            p class="notice" {
                "To see the calls that wait for approval and the failed tasks, and to decide about them, " a href="/ui/login" { "log in with an operator key" } "."
            }
        };
    }
    html! {
        p class="notice" {
            "To see the calls that wait for approval and the failed tasks, and to decide about them, you need an operator key. Name an environment variable that holds one in " code { "operator_keys_env" }
            " of " code { "respool.toml" } ", restart respool, and log in here with that key."
        }
    }
}

/// Shows the event that a run is for, or the message that it answers.
pub(super) fn event_part(event: &Value) -> Markup {
    let text = |name: &str| make_visible(event[name].as_str().unwrap_or_default());
    if event["asked"].is_string() {
        return html! { h3 { "What was asked" } pre { (text("asked")) } };
    }
    let has_inputs = event["mapped_inputs"].as_object().is_some_and(|inputs| !inputs.is_empty());
    html! {
        h3 { "What it is for" }
        p { "Process " code { (text("process")) } ", invocation " code { (text("invocation")) }
            @if event["trigger"].is_string() { ", started by " code { (text("trigger")) } }
            @if let Some(attempt) = event["attempt"].as_u64().filter(|attempt| *attempt > 1) { ", attempt " (attempt) } }
        @if event["tried_again"].is_object() {
            p class="notice" { "A person asked for another attempt"
                @if let Some(comment) = event["tried_again"]["comment"].as_str() { ", saying: " (make_visible(comment)) }
                "." @if let Some(before) = event["tried_again"]["before"].as_str() { " The attempt before ended with: " (format::with_code(&make_visible(before))) } }
        }
        @if let Some(unknown) = event["unknown_outcomes"].as_array() {
            p class="notice" { "Not known whether it took effect, and not done again: " (drafts::operations_in(unknown)) }
        }
        @for warning in event["warnings"].as_array().into_iter().flatten() {
            p class="notice" { (format::with_code(&make_visible(warning.as_str().unwrap_or_default()))) }
        }
        @if has_inputs { pre { (make_visible(&format!("{:#}", event["mapped_inputs"]))) } }
        details open[!has_inputs] { summary { "The whole event" } pre { (make_visible(&format!("{:#}", event["payload"]))) } }
    }
}

/// Shows a request and the calls before it. The person who decides must see what will run, and what the run
/// has read: these are shown whatever `[log] content` is.
fn approval_item(
    viewer: &Viewer,
    row: &ApprovalRow,
    asked: &ApprovalRequest,
    event: Option<&Value>,
) -> Markup {
    let about = format!("the calls of {}", row.agent);
    let is_task = event.is_some_and(|event| event["invocation"].is_string());
    html! {
        section class="card decision" {
            form method="post" action={ "/ui/approvals/" (row.id) } {
                h2 { (row.agent) @if let Some(requester) = &asked.requester { " (" (make_visible(&requester.to_string())) ")" } " asks " (format::format_age(row.requested, clock::now())) }
                (layout::csrf_field(viewer))
                @for call in &asked.calls { (call_item(asked, call)) }
                label { "Comment (optional); the model reads it with the results of approved calls" textarea name="comment" rows="2" maxlength="2000" {} }
                @if is_task { p class="dim" { (describe_rejection(asked.on_rejection)) } }
                button type="submit" name="approve" value="yes" aria-label={ "Approve " (about) } { (if asked.calls.len() > 1 { "Approve the marked calls" } else { "Approve" }) }
                " "
                button class="refuse" type="submit" name="approve" value="no" aria-label={ "Reject " (about) } { "Reject" }
                @if is_task {
                    " "
                    button class="quiet" type="submit" name="approve" value="drop" aria-label={ "Reject and drop the task: " (about) } { "Reject and drop the task" }
                }
            }
            div class="evidence" {
                @if let Some(event) = event { (event_part(event)) }
                h3 { "Why it asks" }
                @if asked.reason.is_empty() { p class="dim" { "The model gave no reason." } } @else { p { (make_visible(&asked.reason)) } }
                @if asked.is_overdue(clock::now()) { p class="notice" { "Its time ran out " (format::format_age(asked.expires.unwrap_or_default(), clock::now())) ", which was reported. It can still be decided." } }
                @else if let Some(expires) = row.expires { p { "It times out in " (format::format_duration(Duration::from_millis(expires.saturating_sub(clock::now())))) "." } }
                h3 { "What it has seen" }
                (earlier_calls(event))
                p { a href={ "/ui/runs/" (row.run) } { "Show the run" } }
            }
        }
    }
}

fn describe_rejection(on_rejection: OnRejection) -> &'static str {
    match on_rejection {
        OnRejection::EndRun => {
            "If a call is not approved, the task ends as failed. You can have it tried again with a comment."
        }
        OnRejection::TellModel => "If a call is not approved, the model reads your comment and goes on.",
    }
}

/// Shows the calls that the run has made, each with its result behind a click; the last one is open.
fn earlier_calls(event: Option<&Value>) -> Markup {
    let calls = event.and_then(|event| event["earlier_calls"].as_array()).map_or(&[][..], Vec::as_slice);
    let text = |value: &Value| make_visible(value.as_str().unwrap_or_default());
    html! {
        @if calls.is_empty() { p class="dim" { "Nothing: it has made no calls." } }
        @for (place, call) in calls.iter().enumerate() {
            details open[place + 1 == calls.len()] {
                summary {
                    code { (text(&call["call"])) } " " (make_visible(&call["inputs"].to_string()))
                    @if call["outcome"] != "ok" { ": " (text(&call["outcome"]).replace('_', " ")) }
                    @if call["by"].is_string() { span class="dim" { " in " (text(&call["by"])) } }
                }
                pre { (text(&call["result"])) }
            }
        }
    }
}

/// Shows a call with its inputs, and what it would change. Where there are others, each can be left out.
fn call_item(asked: &ApprovalRequest, call: &RequestedCall) -> Markup {
    let effect = asked.effects.get(&call.id);
    html! {
        p {
            @if asked.calls.len() > 1 { label class="choice" { input type="checkbox" name="call" value=(call.id) checked; " " code { (make_visible(&call.name)) } } }
            @else { input type="hidden" name="call" value=(call.id); code { (make_visible(&call.name)) } }
            @if let Some(effect) = effect { " is " code { (make_visible(&effect.tool)) } }
        }
        (inputs_of(call))
        @if let Some(inputs) = changeable_inputs(asked, call) {
            details {
                summary { "Change the inputs" }
                p class="dim" { "Approve makes the call with these." }
                @for (name, value) in &inputs {
                    // A browser drops the first line break in it.
                    label { (make_visible(name)) textarea name=(input_field(call, name)) rows=((value.lines().count() + value.len() / 60).clamp(1, 12)) { "\n" (value) } }
                }
            }
        }
        @if let Some(change) = effect.and_then(|effect| effect.change.as_ref()) { p { "It makes this change:" } pre { (make_visible(change)) } }
    }
}

/// Returns the texts of the inputs that a person may change here; `None` if none may be, or they are long.
fn changeable_inputs(asked: &ApprovalRequest, call: &RequestedCall) -> Option<Vec<(String, String)>> {
    let is_short = call.arguments.len() <= LONGEST_CHANGEABLE;
    let Value::Object(inputs) = call.parsed_arguments() else { return None };
    let texts = inputs.iter().map(|(name, value)| (name.clone(), input_text(value)));
    (is_short && asked.can_change(&call.id)).then(|| texts.collect())
}

/// Returns an input as it is shown: a text as it is, all else as JSON.
fn input_text(value: &Value) -> String {
    make_visible(&value.as_str().map_or_else(|| format!("{value:#}"), str::to_owned))
}

/// Returns the name of the field in which an input is changed.
fn input_field(call: &RequestedCall, input: &str) -> String {
    format!("input/{}/{input}", call.id)
}

/// Returns the inputs of a call as a form changes them, `None` if it does not.
fn inputs_in_form(call: &RequestedCall, form: &Form) -> Result<Option<String>, DecideError> {
    let Value::Object(mut inputs) = call.parsed_arguments() else { return Ok(None) };
    let mut is_changed = false;
    for (name, value) in &mut inputs {
        let Some(written) = form.all(&input_field(call, name)).next().map(|text| text.replace("\r\n", "\n"))
        else {
            continue;
        };
        if written == input_text(value).replace("\r\n", "\n") {
            continue;
        }
        is_changed = true;
        *value = match value {
            Value::String(_) => Value::String(written),
            _ => serde_json::from_str(&written).map_err(|_| {
                DecideError::NotChangeable(
                    call.name.clone(),
                    "the new value is not JSON, but the old one was a number, a list or the like",
                )
            })?,
        };
    }
    Ok(is_changed.then(|| Value::Object(inputs).to_string()))
}

/// Shows the inputs of a call: texts with their lines as they are, all else as JSON.
fn inputs_of(call: &RequestedCall) -> Markup {
    let Value::Object(inputs) = call.parsed_arguments() else {
        return html! { pre { (make_visible(&call.arguments)) } };
    };
    inputs_list(&inputs)
}

/// Shows inputs by their names.
pub(super) fn inputs_list(inputs: &Map<String, Value>) -> Markup {
    html! {
        dl { @for (name, value) in inputs {
            dt { (make_visible(name)) }
            dd { pre { (input_text(value)) } }
        } }
    }
}

/// Shows a task that failed or was escalated, with its message and what can be done.
fn failed_task_item(viewer: &Viewer, task: &OpenTask) -> Markup {
    let OpenTask { row, message } = task;
    let (action, about) = (format!("/ui/letters/{}", row.id), format!("the task {}", row.id));
    let body = message.as_ref().map(|message| message_json(message)["body"].take());
    // Text that may quote private knowledge is not on the page.
    let body = body.filter(|body| body["is_private"] == false).unwrap_or_default();
    let reason = body["reason"].as_str().or(row.note.as_deref()).unwrap_or_default();
    let invocation = Invocation::read(&row.payload).ok();
    // A task that may quote private knowledge has a message.
    let unsaid = invocation.as_ref().filter(|_| message.is_none()).map(|invocation| &invocation.payload);
    let event = Some(&body["payload"]).filter(|event| event.is_object()).or(unsaid);
    html! {
        section class="card" {
            h3 { (row.queue) " " span class="badge" { (row.state.as_str().replace('_', " ")) } }
            p { @if let Some(invocation) = &invocation { "Process " code { (make_visible(&invocation.process)) } ", invocation " }
                code { (row.id) } @if let Some(ended) = row.ended { ", " (format::format_age(ended, clock::now())) }
                @if let Some(run) = &row.run { ", " a href={ "/ui/runs/" (run) } { "its run" } }
                @if let Some(delivered) = task.delivery_time() { ", delivered to OpenClaw " (format::format_age(delivered, clock::now())) } }
            p { (format::with_code(&make_visible(reason))) }
            @if let Some(advice) = body["recommendation"].as_str() { p { @if body["recommended_by"] == "respool" { "What to do: " } @else { "It recommends: " } (format::with_code(&make_visible(advice))) } }
            @if let Some(done) = body["done"].as_array() { p { "Done before, and not done again: " (drafts::operations_in(done)) } }
            @if let Some(unknown) = body["unknown_outcomes"].as_array() { p { "Not known whether it took effect, and not done again: " (drafts::operations_in(unknown)) } }
            (drafts::failed_calls(&body))
            @if let Some(event) = event { details { summary { "The event" } pre { (make_visible(&format!("{event:#}"))) } } }
            form method="post" action=(action) {
                (layout::csrf_field(viewer))
                label { "Comment for the agent (optional)" textarea name="comment" rows="2" maxlength="2000" {} }
                button type="submit" name="what" value="again" aria-label={ "Try again " (about) } { "Try again" }
                " "
                button class="quiet" type="submit" name="what" value="drop" aria-label={ "Drop " (about) } { "Drop" }
            }
        }
    }
}

pub(super) fn decide_error(has_operators: bool) -> Response {
    let main =
        html! { section class="narrow" { h1 { "Operator key needed" } (how_to_decide(has_operators)) } };
    page_response(StatusCode::FORBIDDEN, layout::plain_document("Operator key needed", &html! {}, &main))
}

pub(super) async fn decide_approval(
    State(app): State<App>,
    Path(id): Path<String>,
    Pressed { viewer, form }: Pressed,
) -> Response {
    if !may_decide(&viewer) {
        return decide_error(app.access.has_operators());
    }
    if form.get("approve") == "yes" && form.all("call").next().is_none() {
        let why = "No call was marked. Mark those that you approve, or press Reject.";
        return refusal_page(&viewer, StatusCode::BAD_REQUEST, "Not decided", why);
    }
    match decide_by_form(&app, &id, &viewer, &form).await {
        Ok(None) => redirect_settled(match form.get("approve") {
            "yes" => "approved",
            "drop" => "dropped",
            _ => "rejected",
        }),
        Ok(Some(error)) => {
            let why = format!("The calls are rejected, but the task was not dropped: {error}.");
            refusal_page(&viewer, StatusCode::CONFLICT, "Not dropped", &why)
        }
        Err(error) => {
            let why = format!("Nothing has changed: {}.", error.describe_for(&id));
            refusal_page(&viewer, StatusCode::CONFLICT, "Not decided", &why)
        }
    }
}

/// Leads back to the page, which says what was done.
fn redirect_settled(word: &str) -> Response {
    redirect_response(&format!("/ui/approvals?settled={word}"))
}

fn refusal_page(viewer: &Viewer, status: StatusCode, title: &str, why: &str) -> Response {
    let main = html! {
        h1 { (title) }
        p { (make_visible(why)) }
        p { a href="/ui/approvals" { "Back to the approvals" } }
    };
    page_response(status, layout::page_layout(viewer, "/ui/approvals", title, &main))
}

/// Decides about a request as the form says, which names the approved calls. Returns why its task was not
/// dropped, if it should have been.
async fn decide_by_form(
    app: &App,
    id: &str,
    viewer: &Viewer,
    form: &Form,
) -> Result<Option<ExpertError>, DecideError> {
    let store = app.agents.store().ok_or(DecideError::Unknown)?;
    let row = store.approval(id).await.map_err(DecideError::Store)?;
    let run = row.as_ref().map(|row| row.run.clone()).unwrap_or_default();
    let asked = row.and_then(|row| serde_json::from_str::<ApprovalRequest>(&row.body).ok());
    let asked = asked.ok_or(DecideError::Unknown)?;
    let is_approved = |call: &RequestedCall| {
        form.get("approve") == "yes" && form.all("call").any(|chosen| chosen == call.id)
    };
    let (mut approved, mut changed) = (Vec::new(), BTreeMap::new());
    for call in asked.calls.iter().filter(|call| is_approved(call)) {
        let Some(inputs) = inputs_in_form(call, form)? else {
            approved.push(call.id.clone());
            continue;
        };
        changed.insert(call.id.clone(), inputs);
    }
    let comment = Some(form.get("comment").trim().to_owned()).filter(|comment| !comment.is_empty());
    let decision =
        Decision { request: asked.id.clone(), approved, changed, by: viewer.name.clone(), comment };
    app.agents.decide_approval(&decision).await?;
    let is_dropped = form.get("approve") == "drop";
    Ok(if is_dropped { drop_rejected(store, &run).await.err() } else { None })
}

pub(super) async fn settle_task(
    State(app): State<App>,
    Path(id): Path<String>,
    Pressed { viewer, form }: Pressed,
) -> Response {
    if !may_decide(&viewer) {
        return decide_error(app.access.has_operators());
    }
    let Some(store) = app.agents.store() else { return redirect_response("/ui/approvals") };
    let what = form.get("what");
    let is_done = match what {
        "again" => retry_task(store, &id, Some(form.get("comment"))).await.is_ok(),
        "drop" => drop_task(store, &id).await.unwrap_or(false),
        _ => false,
    };
    if !is_done {
        return redirect_response("/ui/approvals");
    }
    tracing::info!(target: "respool::server", entry = id, what, by = viewer.name, "a task was tried again or dropped on the page");
    redirect_settled(if what == "again" { "again" } else { "ended" })
}
