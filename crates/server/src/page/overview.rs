//! The first page: what runs now, the upstreams, the day in numbers, and the last problems with what to do
//! about each.

use std::borrow::Cow;

use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, StatusCode};
use maud::{Markup, html};

use super::guard::require_viewer;
use super::live_parts::{LivePart, running_requests};
use super::response::page_response;
use super::session::Viewer;
use super::{alerts, format, layout, remedy};
use crate::app::App;
use ::usage::{Problem, Report};
use store::UsageQuery;
use wire::ErrorCode;

/// How many problems are shown.
const PROBLEMS: usize = 8;

pub(super) async fn show_overview(State(app): State<App>, headers: HeaderMap) -> Response {
    let viewer = match require_viewer(&app, &headers) {
        Ok(viewer) => viewer,
        Err(response) => return *response,
    };
    let now = clock::now();
    let waiting = app.agents.waiting_approvals(1_000).await.map(|all| all.len()).unwrap_or_default();
    let [tiles, running, upstreams, problems] =
        live_parts(&app, &report_today(&app).await, now).map(|part| part.element());
    let main = html! {
        h1 class="unseen" { "Now" }
        (alerts::alert_list(&viewer, &app.alerts.open(), now))
        (notice_list(&app, waiting))
        (tiles)
        section aria-labelledby="now" { h2 id="now" { "Running now" } (running) }
        section aria-labelledby="upstreams" { h2 id="upstreams" { "Upstreams" } (upstreams) }
        section aria-labelledby="problems" { h2 id="problems" { "Last problems" } (problems) }
    };
    page_response(StatusCode::OK, overview_markup(&viewer, &main))
}

/// Reports the usage of this UTC day.
pub(super) async fn report_today(app: &App) -> Report {
    let now = clock::now();
    let query = UsageQuery { since: now - now % 86_400_000, until: u64::MAX, by: Vec::new(), key: None };
    app.usage.report_usage(query).await.unwrap_or_default()
}

/// Writes the parts that are kept live.
pub(super) fn live_parts(app: &App, today: &Report, now: u64) -> [LivePart; 4] {
    [
        LivePart { name: "tiles", markup: usage_tiles(app, today) },
        LivePart { name: "now", markup: running_requests(app) },
        LivePart { name: "upstreams", markup: upstream_table(app) },
        LivePart { name: "problems", markup: problem_list(app, now) },
    ]
}

fn overview_markup(viewer: &Viewer, main: &Markup) -> Markup {
    layout::page_layout(viewer, "/", "Now", main)
}

/// Lists what needs the owner now.
fn notice_list(app: &App, waiting: usize) -> Markup {
    let budgets = app.usage.reached_budgets();
    let reloaded = app.alerts.reload_result();
    html! {
        @if let Some(problem) = &reloaded.problem {
            p class="notice bad" role="status" { "The changed configuration is wrong, so the old one stays in use: " (format::with_code(problem)) }
        }
        @if !reloaded.waiting.is_empty() {
            p class="notice" role="status" { "The configuration was changed. These changes take effect after a restart: " (reloaded.waiting.join(", ")) "." }
        }
        @for reached in &budgets {
            p class="notice" role="status" {
                "Budget: " (format::with_code(&reached.scope.describe())) " used " (reached.spent) " of " (reached.budget) " today. "
                @if reached.spent >= reached.budget { "It is used up: requests are refused until the next UTC day." }
                @else { "When it is used up, requests are refused until the next UTC day." }
            }
        }
        @if app.usage.is_broken() {
            p class="notice bad" role="status" { "Usage records cannot be written; requests are still answered. Look for " code { "respool::usage" } " in the log: the disk may be full." }
        }
        @if waiting > 0 {
            p class="notice" role="status" { a href="/ui/approvals" { (waiting) @if waiting == 1 { " request from an agent waits for your approval" } @else { " requests from agents wait for your approval" } } }
        }
    }
}

fn usage_tiles(app: &App, today: &Report) -> Markup {
    let total = &today.total;
    let (repeats, costs) = (total.repeats, total.cost.total());
    let tile = |value: String, name: &str| html! { div class="tile" { dd { (value) } dt { (name) } } };
    html! {
        dl class="tiles" aria-label="Today" {
            (tile(format::format_count(app.usage.in_flight.requests().len() as u64), "running now"))
            (tile(format::format_count(total.requests), "requests today"))
            (tile(format::format_count(total.failed), "failed today"))
            (tile(format::format_count(repeats), "repeated attempts today"))
            (tile(format::format_short_count(total.usage.total_tokens()), "tokens today"))
            (tile(costs.to_string(), "cost today"))
        }
    }
}

fn upstream_table(app: &App) -> Markup {
    let rows = html! {
        @for upstream in app.relay.upstreams() {
            @let (circuit, at_work, waiting) = upstream.state.circuit_report();
            tr {
                th scope="row" { (upstream.name) }
                td {
                    @match circuit {
                        _ if app.alerts.is_unreachable(&upstream.name) => (layout::colour_badge("bad", "does not answer")),
                        "closed" => (layout::colour_badge("good", "works")),
                        "half_open" => (layout::colour_badge("middling", "being tried again")),
                        _ => (layout::colour_badge("bad", "failing")),
                    }
                }
                td class="number" { (at_work) }
                td class="number" { (waiting) }
                td class="number" { @if let Some(mean) = upstream.state.mean_latency() { (format::format_duration(mean)) } @else { "–" } }
                td { @if let Some(models) = upstream.state.models() { (models.join(", ")) } @else { "not known yet" } }
            }
        }
    };
    let heads = [
        ("Upstream", false),
        ("State", false),
        ("In progress", true),
        ("Waiting", true),
        ("Mean time", true),
        ("Models", false),
    ];
    layout::scrolling_table("Upstreams", &heads, &rows)
}

fn problem_list(app: &App, now: u64) -> Markup {
    let problems = app.usage.problems();
    if problems.is_empty() {
        return layout::empty_note("No request has failed since respool started.");
    }
    html! { ul class="problems" { @for problem in problems.iter().take(PROBLEMS) { (problem_item(app, problem, now)) } } }
}

fn problem_item(app: &App, problem: &Problem, now: u64) -> Markup {
    let code = if problem.code.is_empty() { "error" } else { &problem.code };
    let todo = problem_advice(app, problem);
    html! {
        li {
            p { (layout::colour_badge("bad", code)) " "
                @if !problem.model.is_empty() { strong { (problem.model) } @if !problem.upstream.is_empty() { " at " (problem.upstream) } ", " }
                time datetime=(format::format_time(problem.at)) { (format::format_age(problem.at, now)) } }
            p class="cause" { (format::with_code(&problem.cause)) }
            p class="todo" { (format::with_code(&todo)) " " span class="dim" { "Request " code { (problem.request) } } }
        }
    }
}

/// Says what to do about a problem.
fn problem_advice(app: &App, problem: &Problem) -> Cow<'static, str> {
    let is_model_missing = ErrorCode::from_name(&problem.code) == Some(ErrorCode::ModelNotFound);
    if is_model_missing
        && app.access.is_refused_to(&problem.key, &problem.model, app.is_agent(&problem.model))
    {
        return format!(
            "The key `{}` may not use this model. If it should, add the model to `models` of the key, or the agent to its `agents`, in \
             `client_keys_file`; otherwise tell the client which models it may use.",
            problem.key
        )
        .into();
    }
    remedy::remedy(&problem.code).into()
}
