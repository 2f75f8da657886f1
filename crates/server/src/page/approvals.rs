//! Calls that wait for consent, with the exact inputs that will run, and dead letters of experts.

use std::time::Duration;

use axum::extract::{Path, Request, State};
use axum::response::Response;
use http::{HeaderMap, StatusCode};
use maud::{Markup, html};

use super::guard::{authorize_post, require_viewer};
use super::response::{page_response, redirect_response};
use super::session::Viewer;
use super::waterfall::Bar;
use super::{format, layout, runs};
use crate::app::App;
use agent::{ApprovalRequest, Decision, RequestedCall, report};
use experts::event_of_run;
use serde_json::Value;
use store::{ApprovalRow, EntryRow, EntryState, MessageRow};
use wire::visible::make_visible;

/// The most of each that are listed.
const MOST: usize = 200;
/// How many earlier steps are shown with a request.
const STEPS: usize = 6;
/// How many failed tasks are shown.
const FAILED_TASKS: usize = 20;

pub(super) async fn show_approvals(State(app): State<App>, headers: HeaderMap) -> Response {
    let viewer = match require_viewer(&app, &headers) {
        Ok(viewer) => viewer,
        Err(response) => return *response,
    };
    if !may_decide(&viewer) {
        let main = html! { h1 { "Approvals" } (how_to_decide(app.access.has_operators())) };
        return page_response(
            StatusCode::OK,
            layout::page_layout(&viewer, "/ui/approvals", "Approvals", &main),
        );
    }
    let approvals = app.agents.waiting_approvals(MOST).await.unwrap_or_default();
    let letters = match app.agents.store() {
        Some(store) => store.entries(None, EntryState::DeadLetter, MOST).await.unwrap_or_default(),
        None => Vec::new(),
    };
    let failed = failed_tasks(&app).await;
    let mut items = Vec::new();
    for (row, asked) in &approvals {
        let event = match app.agents.store() {
            Some(store) => event_of_run(store, &row.run).await.ok().flatten(),
            None => None,
        };
        let steps = earlier_steps(&app, &row.run).await;
        items.push(approval_item(&viewer, row, asked, &Evidence { event, steps }));
    }
    let main = html! {
        h1 { "Approvals" }
        @if approvals.is_empty() { (layout::empty_note("No call is waiting for approval.")) }
        @for item in &items { (item) }
        section { h2 { "Dead letters" }
            @if letters.is_empty() { (layout::empty_note("No task of an expert waits to be tried again or dropped.")) }
            @for letter in &letters { (dead_letter_item(&viewer, letter)) } }
        @if !failed.is_empty() { section { h2 { "Tasks that failed" } @for (task, message) in &failed { (failed_task_item(task, message.as_ref())) } } }
    };
    page_response(StatusCode::OK, layout::page_layout(&viewer, "/ui/approvals", "Approvals", &main))
}

/// Returns true if the viewer may decide. Approvals need an operator's key here as on the API. Where clients
/// have no keys, there are no operators.
fn may_decide(viewer: &Viewer) -> bool {
    !viewer.name.is_empty()
}

fn how_to_decide(has_operators: bool) -> Markup {
    if has_operators {
        return html! {
            p class="notice" {
                "To see the calls that wait for approval and the dead letters, and to decide about them, " a href="/ui/login" { "log in with an operator key" } "."
            }
        };
    }
    html! {
        p class="notice" {
            "To see the calls that wait for approval and the dead letters, and to decide about them, you need an operator key. Name an environment variable that holds one in " code { "operator_keys_env" }
            " of " code { "respool.toml" } ", restart respool, and log in here with that key."
        }
    }
}

/// Returns the last steps of a run before it asked.
async fn earlier_steps(app: &App, run: &str) -> Vec<Bar> {
    let stored = match app.agents.store() {
        Some(store) => store.run(run).await.ok().flatten(),
        None => None,
    };
    let bars = stored.map(|stored| runs::step_bars(&report::breakdown(&stored))).unwrap_or_default();
    bars[bars.len().saturating_sub(STEPS)..].to_vec()
}

/// The facts that a person needs about a run that asks.
struct Evidence {
    /// The event that it is for.
    event: Option<Value>,
    /// Its last steps.
    steps: Vec<Bar>,
}

/// Shows the event that a run is for.
fn event_part(event: &Value) -> Markup {
    let text = |name: &str| make_visible(event[name].as_str().unwrap_or_default());
    let has_inputs = event["mapped_inputs"].as_object().is_some_and(|inputs| !inputs.is_empty());
    html! {
        h3 { "What it is for" }
        p { "Process " code { (text("process")) } ", invocation " code { (text("invocation")) }
            @if event["trigger"].is_string() { ", started by " code { (text("trigger")) } } }
        @if has_inputs { pre { (make_visible(&format!("{:#}", event["mapped_inputs"]))) } }
        details open[!has_inputs] { summary { "The whole event" } pre { (make_visible(&format!("{:#}", event["payload"]))) } }
    }
}

/// Shows a request and the run's last steps. The person who decides must see what will run: these
/// inputs are shown whatever `[log] content` is.
fn approval_item(viewer: &Viewer, row: &ApprovalRow, asked: &ApprovalRequest, evidence: &Evidence) -> Markup {
    let Evidence { event, steps } = evidence;
    let about = format!("the calls of {}", row.agent);
    html! {
        section class="card decision" {
            form method="post" action={ "/ui/approvals/" (row.id) } {
                h2 { (row.agent) @if let Some(requester) = &asked.requester { " (" (make_visible(&requester.to_string())) ")" } " asks " (format::format_age(row.requested, clock::now())) }
                (layout::csrf_field(viewer))
                @for call in &asked.calls { (call_item(call, asked.calls.len() > 1)) }
                label { "Comment for the model (optional)" textarea name="comment" rows="2" maxlength="2000" {} }
                button type="submit" name="approve" value="yes" aria-label={ "Approve " (about) } { (if asked.calls.len() > 1 { "Approve the marked calls" } else { "Approve" }) }
                " "
                button class="refuse" type="submit" name="approve" value="no" aria-label={ "Reject " (about) } { "Reject" }
            }
            div class="evidence" {
                @if let Some(event) = event { (event_part(event)) }
                h3 { "Why it asks" }
                @if asked.reason.is_empty() { p class="dim" { "The model gave no reason." } } @else { p { (make_visible(&asked.reason)) } }
                @if let Some(expires) = row.expires { p { "It times out in " (format::format_duration(Duration::from_millis(expires.saturating_sub(clock::now())))) "." } }
                h3 { "Its last steps" }
                @if steps.is_empty() { p class="dim" { "None: this is its first step." } }
                ol { @for step in steps { li { (step.label) ": " (step.text) } } }
                p { a href={ "/ui/runs/" (row.run) } { "Show the run" } }
            }
        }
    }
}

/// Shows a call with its inputs. Where there are others, each can be left out.
fn call_item(call: &RequestedCall, has_others: bool) -> Markup {
    html! {
        p {
            @if has_others { label class="choice" { input type="checkbox" name="call" value=(call.id) checked; " " code { (make_visible(&call.name)) } } }
            @else { input type="hidden" name="call" value=(call.id); code { (make_visible(&call.name)) } }
        }
        pre { (make_visible(&call.arguments)) }
    }
}

/// Returns the last tasks that failed and are not kept for another attempt, each with its message, if it has
/// one. Tasks whose message is delivered, or marked as done, are left out.
async fn failed_tasks(app: &App) -> Vec<(EntryRow, Option<MessageRow>)> {
    let Some(store) = app.agents.store() else { return Vec::new() };
    let mut failed = Vec::new();
    for row in store.newest_entries(EntryState::Failed, FAILED_TASKS).await.unwrap_or_default() {
        let message = store.message(&format!("{}:failed", row.id)).await.ok().flatten();
        let is_done = message.as_ref().is_some_and(|message| message.delivered.is_some());
        if !row.is_ended_by_person() && !is_done {
            failed.push((row, message));
        }
    }
    failed
}

fn failed_task_item(task: &EntryRow, message: Option<&MessageRow>) -> Markup {
    html! {
        section class="card" {
            h3 { (task.queue) }
            p { code { (task.id) } @if let Some(ended) = task.ended { ", " (format::format_age(ended, clock::now())) } }
            p { (make_visible(task.note.as_deref().unwrap_or_default())) }
            @if let Some(run) = &task.run { p { a href={ "/ui/runs/" (run) } { "Show the run" } } }
            @if let Some(message) = message {
                p class="dim" {
                    "Its message says what was done before: " code { "respool expert outbox show " (message.message.id) }
                    "; " code { "respool expert outbox done " (message.message.id) } " removes it here."
                }
            }
        }
    }
}

fn dead_letter_item(viewer: &Viewer, letter: &EntryRow) -> Markup {
    let (action, about) = (format!("/ui/letters/{}", letter.id), format!("the letter {}", letter.id));
    html! {
        section class="card" {
            h3 { (letter.queue) }
            p { code { (letter.id) } " " (letter.note.as_deref().unwrap_or("")) }
            (layout::button_form(viewer, &action, "Try again", &about, &[("what", "again")]))
            (layout::button_form(viewer, &action, "Drop", &about, &[("what", "drop")]))
        }
    }
}

fn decide_error(has_operators: bool) -> Response {
    let main =
        html! { section class="narrow" { h1 { "Operator key needed" } (how_to_decide(has_operators)) } };
    page_response(StatusCode::FORBIDDEN, layout::plain_document("Operator key needed", &html! {}, &main))
}

pub(super) async fn decide_approval(
    State(app): State<App>,
    Path(id): Path<String>,
    request: Request,
) -> Response {
    let (viewer, form) = match authorize_post(&app, request).await {
        Ok(pressed) => pressed,
        Err(response) => return *response,
    };
    if !may_decide(&viewer) {
        return decide_error(app.access.has_operators());
    }
    let all = app.agents.waiting_approvals(MOST).await.unwrap_or_default();
    let asked = all.into_iter().find(|(row, _)| row.id == id).map(|(_, asked)| asked);
    let decided = match asked {
        Some(asked) => {
            let is_approved = |call: &RequestedCall| {
                form.get("approve") == "yes" && form.all("call").any(|chosen| chosen == call.id)
            };
            let approved = asked.calls.iter().filter(|call| is_approved(call)).map(|call| call.id.clone());
            let comment = Some(form.get("comment").trim().to_owned()).filter(|comment| !comment.is_empty());
            let decision = Decision {
                request: asked.id.clone(),
                approved: approved.collect(),
                by: viewer.name,
                comment,
            };
            app.agents.decide_approval(&decision).await.is_ok()
        }
        None => false,
    };
    if decided {
        return redirect_response("/ui/approvals");
    }
    page_response(
        StatusCode::CONFLICT,
        layout::message_page(
            "Already decided",
            "This request is no longer waiting: it was decided elsewhere, or its time ran out.",
        ),
    )
}

pub(super) async fn settle_dead_letter(
    State(app): State<App>,
    Path(id): Path<String>,
    request: Request,
) -> Response {
    let (viewer, form) = match authorize_post(&app, request).await {
        Ok(pressed) => pressed,
        Err(response) => return *response,
    };
    if !may_decide(&viewer) {
        return decide_error(app.access.has_operators());
    }
    let Some(store) = app.agents.store() else { return redirect_response("/ui/approvals") };
    let done = match form.get("what") {
        "again" => store.replay(&id, &format!("{:032x}", rand::random::<u128>())).await,
        "drop" => store.drop_dead_letter(&id).await,
        _ => Ok(false),
    };
    if done.unwrap_or(false) {
        let what = form.get("what");
        tracing::info!(target: "respool::server", entry = id, what, by = viewer.name, "a dead letter was tried again or dropped on the page");
    }
    redirect_response("/ui/approvals")
}
