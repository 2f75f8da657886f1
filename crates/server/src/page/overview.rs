//! The first page: what runs now, the upstreams, the day in numbers, and the last problems with what to do
//! about each.

use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use maud::{Markup, html};

use super::live_parts::{LivePart, running_requests};
use super::nodes::{node_notice, node_section};
use super::query::PageQuery;
use super::response::page_response;
use super::session::Viewer;
use super::{alerts, drafts, format, layout, remedy, requests, words};
use crate::app::App;
use ::alerts::Rule;
use ::usage::{Problem, Report, ReportLine};
use store::{Dimension, UsageQuery};
use wire::is_request_fault;

/// A server may hang that has had requests for this time and sent nothing.
const LONG_SILENCE: Duration = Duration::from_mins(2);
/// How many problems are shown.
const PROBLEMS: usize = 8;

pub(super) async fn show_overview(State(app): State<App>, viewer: Viewer) -> Response {
    let now = clock::now();
    let waiting = app.agents.waiting_approvals(1_000).await.map(|all| all.len()).unwrap_or_default();
    let (nodes, drafts) = match app.agents.store() {
        Some(store) => {
            (store.nodes().await.unwrap_or_default(), drafts::open_drafts(store, None).await.len())
        }
        None => (Vec::new(), 0),
    };
    let [tiles, running, upstreams, open_alerts, problems] =
        live_parts(&app, &viewer, report_today(&app).await.as_ref(), now).map(|part| part.element());
    let main = html! {
        h1 class="unseen" { "Now" }
        (node_notice(&app))
        (notice_list(&app, waiting, drafts))
        (tiles)
        section aria-labelledby="now" { h2 id="now" { "Running now" } (running) }
        section aria-labelledby="upstreams" { h2 id="upstreams" { "Upstreams" } (upstreams) }
        (node_section(&nodes, now))
        section aria-labelledby="alerts" { h2 id="alerts" { "Alerts" } (open_alerts) }
        section aria-labelledby="problems" { h2 id="problems" { "Last problems" } (problems) }
    };
    page_response(StatusCode::OK, overview_markup(&viewer, &main))
}

/// The usage of this UTC day.
pub(super) struct Today {
    report: Report,
    repaired: u64,
}

/// Reports the usage of this UTC day; `None` while it cannot be recorded, because it is not known then.
pub(super) async fn report_today(app: &App) -> Option<Today> {
    if app.usage.fault().is_some() {
        return None;
    }
    let now = clock::now();
    let since = now - now % 86_400_000;
    let query = UsageQuery { since, until: u64::MAX, by: vec![Dimension::Error], only: Vec::new() };
    let records = app.usage.records();
    let repaired = records.count_repaired(since).await.ok()?;
    Some(Today { report: records.report(query).await.ok()?, repaired })
}

impl Today {
    /// Returns how many requests failed, and how many of them through a fault of their own.
    fn failures(&self) -> (u64, u64) {
        let Report { lines, total, .. } = &self.report;
        let is_fault = |line: &&ReportLine| line.names.iter().any(|code| is_request_fault(code, 0));
        (total.totals.failed, lines.iter().filter(is_fault).map(|line| line.totals.failed).sum())
    }
}

/// Writes the parts that are kept live.
pub(super) fn live_parts(app: &App, viewer: &Viewer, today: Option<&Today>, now: u64) -> [LivePart; 5] {
    [
        LivePart { name: "tiles", markup: usage_tiles(app, today) },
        LivePart { name: "now", markup: running_requests(app) },
        LivePart { name: "upstreams", markup: upstream_table(app) },
        LivePart { name: "alerts", markup: alerts::alert_list(viewer, &app.alerts.open(), now) },
        LivePart { name: "problems", markup: problem_list(app, now) },
    ]
}

fn overview_markup(viewer: &Viewer, main: &Markup) -> Markup {
    layout::page_layout(viewer, "/", "Now", main)
}

/// Lists what needs the owner now.
/// Conditions with an open alert are listed there alone.
fn notice_list(app: &App, waiting: usize, drafts: usize) -> Markup {
    let open = app.alerts.open();
    let is_alert = |rule: Rule| open.iter().any(|alert| alert.rule == rule.as_str());
    let budgets = app.usage.reached_budgets();
    let reloaded = app.alerts.reload_result();
    html! {
        @if let Some(problem) = reloaded.problem.as_ref().filter(|_| !is_alert(Rule::ReloadFailed)) {
            p class="notice bad" role="status" { "The changed configuration is wrong, so the old one stays in use: " (format::with_code(problem)) }
        }
        @if !reloaded.waiting.is_empty() {
            p class="notice" role="status" { "The configuration was changed. These changes take effect after a restart: " (reloaded.waiting.join(", ")) "." }
        }
        @for reached in budgets.iter().filter(|_| !is_alert(Rule::BudgetReached) && !is_alert(Rule::BudgetSpent)) {
            p class="notice" role="status" { (format::with_code(&reached.describe())) }
        }
        @if let Some(why) = app.usage.fault().filter(|_| [Rule::StateNotWritable, Rule::StateRemoved, Rule::DatabaseAway].iter().all(|rule| !is_alert(*rule))) {
            p class="notice bad" role="status" { "Usage records cannot be written; requests are still answered: " (why) "." }
        }
        @if waiting > 0 && !is_alert(Rule::ApprovalWaiting) {
            p class="notice" role="status" { a href="/ui/approvals" { (waiting) @if waiting == 1 { " request from an agent waits for your approval" } @else { " requests from agents wait for your approval" } } }
        }
        @if drafts > 0 {
            p class="notice" role="status" { a href="/ui/approvals#drafts" { (drafts) @if drafts == 1 { " draft of an expert waits for you" } @else { " drafts of experts wait for you" } } }
        }
    }
}

fn usage_tiles(app: &App, today: Option<&Today>) -> Markup {
    let of_today = |say: &dyn Fn(&ReportLine) -> String| {
        today.map_or_else(|| "–".to_owned(), |today| say(&today.report.total))
    };
    let repaired = today.map_or_else(|| "–".to_owned(), |today| format::format_count(today.repaired));
    let (failed, refused) = today.map(Today::failures).unwrap_or_default();
    let refused_too =
        if refused > 0 { format!(", and {} refused", format::format_count(refused)) } else { String::new() };
    let tile = |value: String, name: &str, link: &str| {
        html! { div class="tile" { dd { (value) } dt { @if link.is_empty() { (name) } @else { a href=(link) { (name) } } } } }
    };
    html! {
        dl class="tiles" aria-label="Today" {
            (tile(format::format_count(app.usage.in_flight.requests().len() as u64), "running now", ""))
            (tile(format::format_count(app.alerts.open().len() as u64), "open alerts", "#alerts"))
            (tile(of_today(&|it| format::format_count(it.totals.requests)), "requests today", "/ui/requests"))
            (tile(of_today(&|_| format::format_count(failed - refused)), &format!("failed today{refused_too}"), "/ui/requests?outcome=error&period=24h"))
            (tile(repaired, "repaired today", "/ui/requests?repaired=yes&period=24h"))
            (tile(of_today(&|it| format::format_short_count(it.totals.usage.total_tokens())), "tokens today", "/ui/usage?period=24h"))
            (tile(of_today(&|it| it.cost.with_currency(&app.usage.currency())), "cost today", "/ui/usage?period=24h"))
        }
    }
}

fn upstream_table(app: &App) -> Markup {
    let rows = html! {
        @for upstream in app.relay.upstreams() {
            @let (circuit, at_work, waiting) = upstream.load_report();
            @let probed = app.alerts.probed_upstream(&upstream.name).unwrap_or_default();
            tr {
                th scope="row" { a href=(PageQuery::default().link("/ui/requests", &[("upstream", &upstream.name)])) { (upstream.name) } }
                td class="words" {
                    @match circuit {
                        _ if let Some((_, problem)) = &probed.problem => { (layout::colour_badge("bad", "cannot be used")) " " (format::with_code(problem)) }
                        "closed" if probed.asks_for_key => { (layout::colour_badge("middling", "asks for a key")) " Set " code { "api_key" } ", unless clients send theirs." }
                        _ if let Some(problem) = upstream.state.circuit_problem() => { (layout::colour_badge("bad", "failing")) " " (problem) }
                        _ => (work_state(app, &upstream.name, at_work, upstream.state.silence())),
                    }
                }
                td class="number" { (at_work) }
                td class="number" { (waiting) }
                td class="number wide" { @if let Some(mean) = upstream.state.mean_latency().filter(|mean| !mean.is_zero()) { (format::format_duration(mean)) } @else { "–" } }
                td class="wide" { @if let Some(models) = upstream.known_models() { (models.join(", ")) } @else { "not known" } }
            }
        }
    };
    let heads = [
        ("Upstream", ""),
        ("State", ""),
        ("In progress", "number"),
        ("Waiting", "number"),
        ("Mean time of requests", "number wide"),
        ("Models", "wide"),
    ];
    html! { (layout::scrolling_table("Upstreams", &heads, &rows)) (adaptations(app)) }
}

/// Says of an upstream that can be used whether it answers: one that hangs accepts requests, too.
fn work_state(app: &App, upstream: &str, at_work: usize, silence: Option<Duration>) -> Markup {
    let Some(silence) = silence.filter(|silence| *silence >= LONG_SILENCE) else {
        return layout::colour_badge("good", "works");
    };
    let oldest = app.usage.in_flight.oldest_at(upstream).unwrap_or(silence);
    html! {
        (layout::colour_badge("middling", "silent"))
        " " (at_work) @if at_work == 1 { " waits" } @else { " wait, the oldest" }
        " for " (format::format_duration(oldest)) "; nothing has come for " (format::format_duration(silence)) "."
    }
}

/// Lists how requests are adapted to what the upstreams take, and what that costs.
fn adaptations(app: &App) -> Markup {
    html! {
        @for upstream in app.relay.upstreams() {
            @for model in upstream.rules.to_kept().models {
                details {
                    summary { "Requests for " (model.model) " are adapted to what " (upstream.name) " takes" }
                    ul { @for rule in &model.rules { li {
                        code { (rule) }
                        @match upstream.rules.changed_tools(&model.model, rule) { 0 => {}, 1 => ", in 1 tool", tools => { ", in " (tools) " tools" } }
                        ": " (format::with_code(&adapt::describe_rule(rule)))
                    } } }
                }
            }
        }
    }
}

fn problem_list(app: &App, now: u64) -> Markup {
    let problems = app.usage.problems();
    if problems.is_empty() && app.usage.fault().is_some() {
        return layout::empty_note("No failed request is known, because usage is not recorded.");
    }
    if problems.is_empty() {
        return layout::empty_note("No request has failed in the last days.");
    }
    let groups = group_problems(&problems);
    html! { div class="lines" { @for group in groups.iter().take(PROBLEMS) { (problem_group(app, group, now)) } } }
}

/// The same problem, as often as it happened; the newest first.
struct ProblemGroup<'a> {
    newest: &'a Problem,
    count: usize,
}

/// Puts problems with the same code, model and upstream together. `problems`: the newest first.
fn group_problems(problems: &[Problem]) -> Vec<ProblemGroup<'_>> {
    let mut groups: Vec<ProblemGroup<'_>> = Vec::new();
    let kind = |problem: &Problem| {
        let key = key_alone(problem).to_owned();
        [
            problem.code.clone(),
            problem.model.clone(),
            problem.upstream.clone(),
            key,
            problem.request_line.clone(),
        ]
    };
    for problem in problems {
        match groups.iter_mut().find(|group| kind(group.newest) == kind(problem)) {
            Some(group) => group.count += 1,
            None => groups.push(ProblemGroup { newest: problem, count: 1 }),
        }
    }
    groups
}

/// Returns the key of a request that was refused before any server was asked: the refusal is about the key.
fn key_alone(problem: &Problem) -> &str {
    if problem.upstream.is_empty() { &problem.key } else { "" }
}

fn problem_group(app: &App, group: &ProblemGroup<'_>, now: u64) -> Markup {
    let problem = group.newest;
    let code = if problem.code.is_empty() { "error" } else { &problem.code };
    let todo = remedy::advice(app, &problem.code, &problem.key, &problem.model);
    let all = [
        ("outcome", "error"),
        ("text", &*problem.code),
        ("model", &problem.model),
        ("upstream", &problem.upstream),
    ];
    html! {
        details {
            summary {
                (layout::colour_badge("bad", &words::outcome(code)))
                span class="what" {
                    @if !problem.model.is_empty() { strong { (problem.model) } @if !problem.upstream.is_empty() { " at " (problem.upstream) } }
                    @else if !problem.upstream.is_empty() { (problem.upstream) }
                    @if !problem.request_line.is_empty() { " " code { (problem.request_line) } }
                    @if !key_alone(problem).is_empty() { ", key " (problem.key) }
                    @if group.count > 1 { " × " (group.count) }
                }
                time class="dim" datetime=(clock::format_time(problem.at)) { (format::format_age(problem.at, now)) }
            }
            p class="cause" { (format::with_code(&problem.cause)) }
            p { (format::with_code(&todo)) }
            p { a href=(requests::request_link(&problem.request, problem.at)) { "Show the last of these requests" }
                @if group.count > 1 { ", " a href=(PageQuery::default().link("/ui/requests", &all)) { "or all of them" } } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a client's wrong key looked like a failure of the server.
    #[test]
    fn refused_requests_are_counted_apart() {
        let line = |code: &str, failed| ReportLine {
            names: vec![code.into()],
            totals: store::UsageTotals { failed, ..store::UsageTotals::default() },
            ..ReportLine::default()
        };
        let lines = vec![line("", 0), line("invalid_api_key", 5), line("upstream_error", 6)];
        let report = Report { total: line("", 11), lines, span: (0, 1), by: vec![], notes: vec![] };
        assert_eq!(Today { report, repaired: 0 }.failures(), (11, 5));
    }

    #[test]
    fn the_same_problems_are_one() {
        let problem = |at, code: &str, model: &str| Problem {
            at,
            request_line: String::new(),
            request: "r".into(),
            key: String::new(),
            model: model.into(),
            upstream: "box".into(),
            code: code.into(),
            cause: String::new(),
        };
        let problems =
            [problem(3, "upstream_dns", "m"), problem(2, "not_found", "m"), problem(1, "upstream_dns", "m")];
        let found: Vec<_> =
            group_problems(&problems).iter().map(|group| (group.newest.at, group.count)).collect();
        assert_eq!(found, [(3, 2), (2, 1)]);
        let refused = |at, key: &str| Problem {
            key: key.into(),
            upstream: String::new(),
            ..problem(at, "budget_spent", "m")
        };
        assert_eq!(group_problems(&[refused(2, "alice"), refused(1, "bob")]).len(), 2);
        let path = |at, line: &str| Problem { request_line: line.into(), ..problem(at, "not_found", "") };
        assert_eq!(group_problems(&[path(2, "GET /a"), path(1, "GET /b")]).len(), 2);
    }
}
