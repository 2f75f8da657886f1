//! Agents' runs with their steps, and the way to end one.

use axum::extract::{Path, Request, State};
use axum::response::Response;
use http::{HeaderMap, StatusCode};
use maud::{Markup, html};
use serde_json::Value;

use super::guard::{authorize_post, require_viewer};
use super::response::{page_response, redirect_response};
use super::session::Viewer;
use super::{format, layout, remedy, requests};
use crate::app::App;
use ::agent::report;
use store::{RunFilter, RunRow, Status};

/// How many runs are listed.
const MOST: usize = 200;

pub(super) async fn show_runs(State(app): State<App>, headers: HeaderMap) -> Response {
    let viewer = match require_viewer(&app, &headers) {
        Ok(viewer) => viewer,
        Err(response) => return *response,
    };
    let rows = match app.agents.store() {
        Some(store) => store.newest(visible_runs(&viewer), MOST).await.unwrap_or_default(),
        None => Vec::new(),
    };
    let main = html! {
        h1 { "Runs of agents" }
        @if rows.is_empty() { (layout::empty_note("No runs yet. A request to an agent starts one.")) }
        @else {
            @let heads = [("Run", false), ("Agent", false), ("Status", false), ("Started", false), ("Last step", false), ("", false)];
            (layout::scrolling_table("Runs", &heads, &html! { @for row in &rows { (run_row(&viewer, row)) } }))
        }
    };
    page_response(StatusCode::OK, layout::page_layout(&viewer, "/ui/runs", "Runs", &main))
}

/// Returns the runs that a viewer may see and end. The runs of experts' work need an operator's key, as their
/// approvals do.
fn visible_runs(viewer: &Viewer) -> RunFilter {
    if viewer.name.is_empty() { RunFilter::Clients } else { RunFilter::Served }
}

fn run_row(viewer: &Viewer, row: &RunRow) -> Markup {
    html! {
        tr {
            th scope="row" { a href={ "/ui/runs/" (row.id) } { (row.id) } }
            td { (row.agent) }
            td { (status_badge(row.status)) }
            td class="time" { (format::format_time(row.created)) }
            td class="time" { (format::format_time(row.updated)) }
            td { @if can_end(row.status) { (end_button(viewer, &row.id)) } }
        }
    }
}

fn status_badge(status: Status) -> Markup {
    let kind = match status {
        Status::Done => "good",
        Status::Failed => "bad",
        Status::Running => "busy",
        _ => "middling",
    };
    layout::colour_badge(kind, &status.as_str().replace('_', " "))
}

fn can_end(status: Status) -> bool {
    matches!(status, Status::Running | Status::Suspended | Status::AwaitingApproval | Status::Interrupted)
}

fn end_button(viewer: &Viewer, run: &str) -> Markup {
    layout::button_form(viewer, &format!("/ui/runs/{run}/end"), "End", &format!("the run {run}"), &[])
}

pub(super) async fn show_run(State(app): State<App>, Path(id): Path<String>, headers: HeaderMap) -> Response {
    let viewer = match require_viewer(&app, &headers) {
        Ok(viewer) => viewer,
        Err(response) => return *response,
    };
    let stored = match app.agents.store() {
        Some(store) => store.run(&id).await.ok().flatten(),
        None => None,
    };
    let Some(stored) =
        stored.filter(|run| visible_runs(&viewer).includes(&run.row.agent, run.client.as_deref()))
    else {
        let main = html! { h1 { "Run" } p { "There is no run " code { (id) } "." } };
        return page_response(StatusCode::NOT_FOUND, layout::page_layout(&viewer, "/ui/runs", "Run", &main));
    };
    let cost = app.usage.run_cost(&id).await;
    let requests = app.usage.requests_of_run(&id, MOST).await.unwrap_or_default();
    let body = report::breakdown(&stored);
    let main = html! {
        h1 { "Run of " (stored.row.agent) }
        div class="facts-line" { (status_badge(stored.row.status)) " started " (format::format_time(stored.row.created)) ", last step " (format::format_time(stored.row.updated))
            @if can_end(stored.row.status) { " " (end_button(&viewer, &id)) } }
        dl class="facts" {
            dt { "Run" } dd { code { (id) } }
            dt { "Tokens" } dd { (format_number(&body["usage"]["prompt_tokens"])) " in, " (format_number(&body["usage"]["completion_tokens"])) " out" }
            @if let Some(cost) = cost { dt { "Cost" } dd { (cost) } }
            dt { "Working time" } dd { (format::format_duration(std::time::Duration::from_millis(body["duration_ms"].as_u64().unwrap_or_default()))) }
            @if let Some(limit) = body["limit"].as_str() { dt { "Ended at limit" } dd { (limit) } }
            @if let Some(code) = body["failure"]["code"].as_str() { dt { "Failed" } dd { @if !code.is_empty() { code { (code) } " " } (format::with_code(remedy::remedy(code))) } }
        }
        (step_list(&body))
        (requests::table_of_run(&requests))
        @if !app.recording.content { p class="dim" { "Message text is shown only with " code { "[log] content = true" } "." } }
        @else if let Some(answer) = body["answer"].as_str() { h2 { "Answer" } pre { (answer) } }
    };
    page_response(StatusCode::OK, layout::page_layout(&viewer, "/ui/runs", "Run", &main))
}

fn format_number(value: &Value) -> String {
    format::format_count(value.as_u64().unwrap_or_default())
}

/// Says why there are no steps.
fn no_steps(body: &Value) -> &'static str {
    if body["failure"].is_null() {
        "No model call has finished yet."
    } else {
        "No model call succeeded. The requests below show why."
    }
}

/// The steps: each model call, and the tools that it called.
fn step_list(body: &Value) -> Markup {
    let iterations = body["iterations"].as_array().cloned().unwrap_or_default();
    html! {
        h2 { "Steps" }
        @if iterations.is_empty() { (layout::empty_note(no_steps(body))) }
        ol class="steps" {
            @for iteration in &iterations {
                li {
                    p { strong { "Model call" } ", " (iteration["why"].as_str().unwrap_or_default()) ": "
                        (format_number(&iteration["prompt_tokens"])) " tokens in, " (format_number(&iteration["completion_tokens"])) " out, "
                        (format::format_duration(std::time::Duration::from_millis(iteration["model_ms"].as_u64().unwrap_or_default()))) }
                    @for tool in iteration["tools"].as_array().into_iter().flatten() {
                        p class="tool" { "Tool " code { (tool["tool"].as_str().unwrap_or_default()) } ": " (tool["outcome"].as_str().unwrap_or_default().replace('_', " ")) ", " (format::format_duration(std::time::Duration::from_millis(tool["took_ms"].as_u64().unwrap_or_default()))) }
                                            }
                }
            }
        }
    }
}

pub(super) async fn end_run(State(app): State<App>, Path(id): Path<String>, request: Request) -> Response {
    let (viewer, _) = match authorize_post(&app, request).await {
        Ok(pressed) => pressed,
        Err(response) => return *response,
    };
    let may_end = app.agents.is_of(&id, &visible_runs(&viewer)).await.unwrap_or(false);
    if may_end && app.agents.cancel_run(&id).await.unwrap_or(false) {
        tracing::info!(target: "respool::server", run_id = id, by = viewer.name, "a run was ended on the page");
    }
    redirect_response(&format!("/ui/runs/{id}"))
}
