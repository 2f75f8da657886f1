//! Agents' runs with their steps, and the way to end one.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::response::Response;
use http::{StatusCode, Uri};
use maud::{Markup, html};
use serde_json::Value;

use super::guard::Pressed;
use super::query::PageQuery;
use super::response::{page_response, redirect_response};
use super::session::Viewer;
use super::waterfall::{Bar, waterfall};
use super::{format, layout, remedy, requests};
use crate::app::App;
use ::agent::report;
use ::usage::Money;
use experts::{Invocation, event_of_run};
use openexperts::MODEL_PREFIX;
use store::{RunFilter, RunRow, Status};
use wire::ErrorCode;
use wire::visible::make_visible;

pub(super) const PATH: &str = "/ui/runs";
/// How many of the newest runs are looked at,
const MOST: usize = 2_000;
/// how many of them a page lists, and how many requests of a run it shows.
const PAGE: usize = 100;

pub(super) async fn show_runs(State(app): State<App>, uri: Uri, viewer: Viewer) -> Response {
    let query = PageQuery::parse(&uri);
    let newest = match app.agents.store() {
        Some(store) => store.newest(visible_runs(&viewer), MOST).await.unwrap_or_default(),
        None => Vec::new(),
    };
    let agents: BTreeSet<String> = newest.iter().map(|row| row.agent.clone()).collect();
    let since = query.period_start("all", clock::now());
    let is_chosen = |row: &RunRow| {
        let is = |name: &str, value: &str| query.get(name).is_empty() || query.get(name) == value;
        is("agent", &row.agent) && is("state", row.status.as_str()) && row.created >= since
    };
    let chosen = newest.into_iter().filter(is_chosen);
    let mut rows: Vec<RunRow> = chosen.skip((query.page() - 1) * PAGE).take(PAGE + 1).collect();
    let has_more = rows.len() > PAGE;
    rows.truncate(PAGE);
    let runs = listed_runs(&app, rows).await;
    let main = html! {
        h1 { "Runs of agents" }
        (filter_form(&query, &agents))
        div id="list" data-refresh=[(query.page() == 1).then_some("5")] {
            @if viewer.name.is_empty() && app.experts.is_some() { (operators_note(app.access.has_operators())) }
            @if runs.is_empty() && agents.is_empty() { (layout::empty_note("No runs yet. A request to an agent starts one.")) }
            @else if runs.is_empty() { (layout::empty_note("No run fits these filters.")) }
            @else {
                (run_table(&runs))
                (layout::page_links(&query, PATH, PAGE, runs.len(), has_more))
            }
        }
    };
    page_response(StatusCode::OK, layout::page_layout(&viewer, PATH, "Runs", &main))
}

/// Says who sees the runs of experts' work.
pub(super) fn operators_note(has_operators: bool) -> Markup {
    html! {
        p class="notice" {
            "The runs of experts' tasks are shown to operators: "
            @if has_operators { a href="/ui/login" { "log in with an operator key" } "." }
            @else { "name an environment variable that holds an operator key in " code { "operator_keys_env" } ", and log in here with it." }
        }
    }
}

fn filter_form(query: &PageQuery, agents: &BTreeSet<String>) -> Markup {
    html! {
        form class="filters" method="get" action=(PATH) data-submits-itself {
            label { "Agent" select name="agent" {
                option value="" { "any" }
                @for agent in agents { option value=(agent) selected[query.get("agent") == agent] { (agent) } }
            } }
            label { "State" select name="state" {
                option value="" { "any" }
                @for state in Status::ALL { option value=(state.as_str()) selected[query.get("state") == state.as_str()] { (state.as_str().replace('_', " ")) } }
            } }
            (layout::period_choice(query))
            button type="submit" class="quiet" { "Show" }
            @if !query.link("", &[]).is_empty() { a href=(PATH) { "Show all" } }
        }
    }
}

/// A run of the list with what its requests say.
pub(super) struct ListedRun {
    row: RunRow,
    title: Option<String>,
    /// The process of an expert that it works on.
    process: Option<String>,
    keys: String,
    tokens: u64,
    cost: Option<Money>,
}

pub(super) async fn listed_runs(app: &App, rows: Vec<RunRow>) -> Vec<ListedRun> {
    let ids = rows.iter().map(|row| row.id.clone()).collect();
    let mut sums = app.usage.records().usage_of_runs(ids).await;
    let mut runs = Vec::new();
    for row in rows {
        let used = sums.remove(&row.id).unwrap_or_default();
        let title = run_title(app, &row.id).await;
        let process = process_of_run(app, &row).await;
        runs.push(ListedRun {
            row,
            title,
            process,
            keys: used.keys.join(", "),
            tokens: used.tokens,
            cost: used.cost,
        });
    }
    runs
}

/// Returns the first words of a run, where text of messages may be shown.
async fn run_title(app: &App, id: &str) -> Option<String> {
    let store = app.agents.store().filter(|_| app.recording.content)?;
    report::title(&store.run(id).await.ok()??)
}

/// Returns the process of an expert that a run works on.
async fn process_of_run(app: &App, row: &RunRow) -> Option<String> {
    let store = app.agents.store().filter(|_| row.agent.starts_with(MODEL_PREFIX))?;
    let process = match store.entry_of_run(&row.id).await.ok()? {
        Some(entry) => Invocation::read(&entry.payload).ok()?.process,
        // One that failed before, and a dry run, belong to no entry.
        None => report::process(&store.run(&row.id).await.ok()??)?,
    };
    Some(make_visible(&process))
}

pub(super) fn run_table(runs: &[ListedRun]) -> Markup {
    let heads = [
        ("Started (UTC)", ""),
        ("Run", ""),
        ("Agent", "wide"),
        ("State", ""),
        ("Key", "wide"),
        ("Lasted", "number wide"),
        ("Tokens", "number"),
        ("Cost", "number wide"),
    ];
    let money = format::MoneyColumn::new(runs.iter().filter_map(|run| run.cost));
    let now = clock::now();
    layout::scrolling_table("Runs", &heads, &html! { @for run in runs { (run_row(run, money, now)) } })
}

/// Returns the runs that a viewer may see and end. The runs of experts' work need an operator's key, as their
/// approvals do.
pub(super) fn visible_runs(viewer: &Viewer) -> RunFilter {
    if viewer.name.is_empty() { RunFilter::Clients } else { RunFilter::Served }
}

fn run_row(run: &ListedRun, money: format::MoneyColumn, now: u64) -> Markup {
    let row = &run.row;
    let lasted = Duration::from_millis(row.updated.saturating_sub(row.created));
    html! {
        tr class="opens" {
            td class="time" { a href={ (PATH) "/" (row.id) } { (format::format_short_time(row.created, now)) } }
            td class="cut" { @if let Some(title) = &run.title { (title) } @else if let Some(process) = &run.process { (process) } @else { (row.agent) " " span class="dim" { (&row.id[..row.id.floor_char_boundary(8)]) } }
                (layout::phone_line(&[if run.title.is_some() || run.process.is_some() { &row.agent } else { "" }, &run.keys]))
            }
            td class="cut wide" { (row.agent) }
            td { (status_badge(row.status)) }
            td class="cut wide" { (run.keys) }
            td class="number wide" { (format::format_duration(lasted)) }
            td class="number" { (format::format_short_count(run.tokens)) }
            td class="number wide" { (run.cost.map_or_else(|| "–".to_owned(), |cost| money.format(cost))) }
        }
    }
}

pub(super) fn status_badge(status: Status) -> Markup {
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
    let button =
        layout::button_form(viewer, &format!("/ui/runs/{run}/end"), "End it", &format!("the run {run}"), &[]);
    // Two steps, because what ends does not go on.
    html! { details class="inline" { summary { "End the run …" } (button) } }
}

pub(super) async fn show_run(State(app): State<App>, Path(id): Path<String>, viewer: Viewer) -> Response {
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
    let event = match app.agents.store().filter(|_| !viewer.name.is_empty()) {
        Some(store) => event_of_run(store, &id).await.ok().flatten(),
        None => None,
    };
    let cost = app.usage.records().run_cost(&id).await;
    let requests = app.usage.records().requests_of_run(&id, PAGE).await.unwrap_or_default();
    let body = report::breakdown(&stored);
    let title = report::title(&stored).filter(|_| app.recording.content);
    let main = html! {
        h1 { "Run of " (stored.row.agent) @if let Some(title) = title { ": " (title) } }
        div class="state" { (status_badge(stored.row.status)) " started " (format::format_time(stored.row.created)) ", last step " (format::format_time(stored.row.updated)) " "
            @if stored.row.status == Status::AwaitingApproval { a href="/ui/approvals" { "Decide on its calls" } }
            @if can_end(stored.row.status) { (end_button(&viewer, &id)) } }
        div id="steps" data-refresh=[can_end(stored.row.status).then_some("5")] {
            (run_facts(&app, &viewer, &id, &body, cost))
            @if let Some(event) = &event { (event_facts(event)) }
            (step_list(&body))
            @if !requests.is_empty() { section { h2 { "Requests" } (requests::request_table(&app, "The requests of this run", &requests)) } }
        }
        @if !app.recording.content { p class="dim" { "Message text is shown only with " code { "[log] content = true" } "." } }
        @else if let Some(answer) = body["answer"].as_str() { h2 { "Answer" } pre { (answer) } }
    };
    page_response(StatusCode::OK, layout::page_layout(&viewer, "/ui/runs", "Run", &main))
}

fn run_facts(app: &App, viewer: &Viewer, id: &str, body: &Value, cost: Option<Money>) -> Markup {
    html! {
        dl class="facts" {
            dt { "Run" } dd { code { (id) } }
            dt { "Tokens" } dd { (format_number(&body["usage"]["prompt_tokens"])) " in, " (format_number(&body["usage"]["completion_tokens"])) " out" }
            @if let Some(cost) = cost { dt { "Cost" } dd { (cost.with_currency(&app.usage.currency())) } }
            dt { "Working time" } dd { (format::format_duration(as_millis(&body["duration_ms"]))) }
            @if let Some(limit) = body["limit"].as_str() { dt { "Ended at limit" } dd { (limit) } }
            @if let Some(code) = body["failure"]["code"].as_str() { dt { "Failed" } dd { @if !code.is_empty() { code { (code) } " " } (format::with_code(remedy::remedy(code))) } }
            @if let Some(refusal) = refusal_text(body).filter(|_| !viewer.name.is_empty()) { dt { "Decision" } dd { (make_visible(refusal)) } }
        }
    }
}

/// Returns the call that was rejected, or not decided in time, with the comment. Operators see the inputs of
/// such calls under Approvals too, whatever `[log] content` is.
fn refusal_text(body: &Value) -> Option<&str> {
    let code = ErrorCode::from_name(body["failure"]["code"].as_str()?)?;
    let is_refusal = matches!(code, ErrorCode::ApprovalRejected | ErrorCode::ApprovalTimeout);
    body["failure"]["message"].as_str().filter(|_| is_refusal)
}

/// Names the task of an expert that a run works on.
fn event_facts(event: &Value) -> Markup {
    let text = |name: &str| make_visible(event[name].as_str().unwrap_or_default());
    html! {
        dl class="facts" {
            dt { "Process" } dd { (text("process")) @if event["trigger"].is_string() { ", started by " code { (text("trigger")) } } }
            dt { "Invocation" } dd { code { (text("invocation")) } }
        }
    }
}

fn as_millis(value: &Value) -> Duration {
    Duration::from_millis(value.as_u64().unwrap_or_default())
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

/// Returns the steps on one time line: each model call, and the tools that it called.
fn step_list(body: &Value) -> Markup {
    let bars = step_bars(body);
    let total = bars.last().map_or(Duration::ZERO, |bar| bar.span.1);
    html! {
        section {
            h2 { "Steps" }
            @if bars.is_empty() { (layout::empty_note(no_steps(body))) }
            @else { (waterfall("Steps", &bars, total)) }
        }
    }
}

/// Makes the bars of the steps: each begins where the one before ended. The time in which a run waits is left
/// out.
pub(super) fn step_bars(body: &Value) -> Vec<Bar> {
    let mut bars: Vec<Bar> = Vec::new();
    let mut add = |label: String, text: String, took: Duration, kind: &'static str| {
        let began = bars.last().map_or(Duration::ZERO, |bar| bar.span.1);
        bars.push(Bar { label, text, span: (began, began + took), kind });
    };
    for iteration in body["iterations"].as_array().into_iter().flatten() {
        let purpose = iteration["why"].as_str().unwrap_or_default();
        let label =
            if purpose == "iteration" { "Model call".to_owned() } else { format!("Model call ({purpose})") };
        let tokens = format!(
            "{} in, {} out",
            format_number(&iteration["prompt_tokens"]),
            format_number(&iteration["completion_tokens"])
        );
        add(label, tokens, as_millis(&iteration["model_ms"]), "model");
        for tool in iteration["tools"].as_array().into_iter().flatten() {
            let outcome = tool["outcome"].as_str().unwrap_or_default();
            let kind = if outcome == "ok" { "good" } else { "middling" };
            let name = format!("Tool {}", tool["tool"].as_str().unwrap_or_default());
            add(name, outcome.replace('_', " "), as_millis(&tool["took_ms"]), kind);
        }
    }
    bars
}

pub(super) async fn end_run(
    State(app): State<App>,
    Path(id): Path<String>,
    Pressed { viewer, .. }: Pressed,
) -> Response {
    let may_end = app.agents.is_of(&id, &visible_runs(&viewer)).await.unwrap_or(false);
    if may_end && app.agents.cancel_run(&id).await.unwrap_or(false) {
        tracing::info!(target: "respool::server", run_id = id, by = viewer.name, "a run was ended on the page");
    }
    redirect_response(&format!("/ui/runs/{id}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_text_of_a_refusal_alone_is_shown() {
        let text = |code: &str| {
            let body = json!({"failure": {"code": code, "message": "crm.pay: anna rejected it"}});
            refusal_text(&body).map(str::to_owned)
        };
        assert_eq!(text("approval_rejected").as_deref(), Some("crm.pay: anna rejected it"));
        assert_eq!((text("upstream_error"), refusal_text(&json!({}))), (None, None));
    }

    #[test]
    fn steps_follow_each_other() {
        let body = json!({"iterations": [
            {"why": "iteration", "model_ms": 100, "prompt_tokens": 1, "completion_tokens": 2,
             "tools": [{"tool": "read", "outcome": "ok", "took_ms": 20}]},
            {"why": "summary", "model_ms": 30, "tools": []},
        ]});
        let bars = step_bars(&body);
        let found: Vec<_> =
            bars.iter().map(|bar| (&*bar.label, bar.span.0.as_millis(), bar.span.1.as_millis())).collect();
        assert_eq!(
            found,
            [("Model call", 0, 100), ("Tool read", 100, 120), ("Model call (summary)", 120, 150)]
        );
        assert_eq!(bars[0].text, "1 in, 2 out");
    }
}
