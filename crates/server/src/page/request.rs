//! One request: its attempts with their times and upstreams, what was repaired and how, its tokens and cost,
//! what to do when it failed, and what was sent and received if `[capture]` kept it.

use std::time::Duration;

use axum::extract::{Path, State};
use axum::response::Response;
use http::{StatusCode, Uri};
use maud::{Markup, html};

use super::nodes::node_notice;
use super::query::PageQuery;
use super::response::page_response;
use super::session::Viewer;
use super::waterfall::{Bar, waterfall};
use super::{exchange, format, layout, remedy, requests, words};
use crate::app::App;
use wire::UsageRow;
use wire::turn::describe_repair;

pub(super) async fn show_request(
    State(app): State<App>,
    Path(id): Path<String>,
    uri: Uri,
    viewer: Viewer,
) -> Response {
    let at = PageQuery::parse(&uri).get("at").parse().ok();
    let (status, main) = match app.usage.records().find_request(&id, at).await {
        Ok(Some(row)) => {
            let exchange = if viewer.name.is_empty() && app.access.has_operators() {
                exchange::login_note()
            } else {
                exchange::exchange_section(exchange::read_kept_exchange(&app, &row).await.as_ref())
            };
            (StatusCode::OK, request_markup(&app, &row, &exchange))
        }
        Ok(None) => {
            let main = html! { h1 { "Request" } p { "There is no recorded request " code { (id) } ": it is still running, or its record was deleted (" code { "[usage] keep" } ")." } (node_notice(&app)) };
            (StatusCode::NOT_FOUND, main)
        }
        Err(error) => (StatusCode::OK, html! { h1 { "Request" } p class="problem" { (error) } }),
    };
    page_response(status, layout::page_layout(&viewer, "/ui/requests", "Request", &main))
}

fn request_markup(app: &App, row: &UsageRow, exchange: &Markup) -> Markup {
    html! {
        h1 { "Request to " (words::asked_model(row)) @if !row.details.fallback.is_empty() { ", answered by " (row.model) } }
        p { (requests::outcome_badge(row)) " " (format::format_time(row.at)) ", " (format::format_duration(row.duration)) }
        (failure_note(app, row))
        (fact_list(app, row))
        (attempt_section(row))
        (repair_section(row))
        (exchange)
    }
}

fn failure_note(app: &App, row: &UsageRow) -> Markup {
    html! {
        @if !row.error.is_empty() || !row.error_code.is_empty() {
            section class="notice bad" {
                @if !row.error.is_empty() { p { (format::with_code(&row.error)) } }
                p { (format::with_code(&remedy::advice(app, &row.error_code, &row.key, &row.model))) }
            }
        }
    }
}

fn fact_list(app: &App, row: &UsageRow) -> Markup {
    html! {
        dl class="facts" {
            dt { "Request" } dd { code { (row.id) } }
            @if !row.details.refused.is_empty() { dt { "Refused" } dd { code { (row.details.refused) } @if !row.details.client.is_empty() { " from " (row.details.client) } } }
            @if !row.details.passed.is_empty() { dt { "Passed on" } dd { code { (row.details.passed) } } }
            @if !row.upstream.is_empty() { dt { "Upstream" } dd { a href=(PageQuery::default().link("/ui/requests", &[("upstream", &row.upstream)])) { (row.upstream) } } }
            @if !row.details.fallback.is_empty() { dt { "In place of" } dd { (words::describe_fallback(row)) } }
            @if !row.node.is_empty() { dt { "Node" } dd { (row.node) } }
            @if !row.key.is_empty() { dt { "Key" } dd { (row.key) } }
            @if !row.agent.is_empty() { dt { "Agent" } dd { (row.agent) } }
            @if !row.run.is_empty() { dt { "Run" } dd { a href={ "/ui/runs/" (row.run) } { "Show the run" } } }
            dt { "Route" } dd { (row.route.replace('_', " ")) (if row.stream { ", streamed" } else { "" }) }
            @if row.status != 0 { dt { "Status" } dd { (row.status) @if row.status == 200 && row.outcome == "error" { "; the error came in the stream" } } }
            @if let Some(usage) = row.usage {
                dt { "Tokens in" } dd { (format::format_count(usage.prompt)) @if let Some(cached) = usage.cached { ", " (format::format_count(cached)) " of them cached" } }
                dt { "Tokens out" } dd { (format::format_count(usage.completion)) @if let Some(reasoning) = usage.reasoning { ", " (format::format_count(reasoning)) " of them reasoning" } }
            } @else { dt { "Tokens" } dd { "not stated by the model server" } }
            @if let Some(cost) = app.usage.records().cost_of(row) { dt { "Cost" } dd { (cost.with_currency(&app.usage.currency())) } }
            @if let Some(first) = row.first_byte { dt { "First byte" } dd { "after " (format::format_duration(first)) } }
            @if !row.waited.is_zero() { dt { "Waited" } dd { (format::format_duration(row.waited)) " " (words::describe_wait(row)) } }
        }
    }
}

/// The shortest wait that has a bar of its own.
const NOTABLE_WAIT: Duration = Duration::from_secs(1);

/// Shows the attempts as bars on one time line.
fn attempt_section(row: &UsageRow) -> Markup {
    if row.upstream.is_empty() {
        return html! { section { h2 { "Attempts" } (layout::empty_note("No model server was asked.")) } };
    }
    html! {
        section {
            h2 { "Attempts" }
            (waterfall("Attempts", &attempt_bars(row), row.duration))
        }
    }
}

fn attempt_bars(row: &UsageRow) -> Vec<Bar> {
    let earlier = &row.details.earlier_attempts;
    let mut began = Duration::ZERO;
    let mut bars = Vec::new();
    if earlier.is_empty() && row.waited >= NOTABLE_WAIT {
        began = row.waited.min(row.duration);
        bars.push(Bar {
            label: "Waited".into(),
            text: words::describe_wait(row),
            span: (Duration::ZERO, began),
            kind: "middling",
        });
    }
    for (index, attempt) in earlier.iter().enumerate() {
        let ended = Duration::from_millis(attempt.ended);
        let change = if attempt.remedy.is_empty() {
            String::new()
        } else {
            format!("; then {}", words::remedy(&attempt.remedy))
        };
        let error = if attempt.error.is_empty() { String::new() } else { format!(" ({})", attempt.error) };
        bars.push(Bar {
            label: format!("{}. {}", index + 1, attempt.upstream),
            text: format!("{}{error}{change}", words::reason(&attempt.why)),
            span: (began, ended),
            kind: "bad",
        });
        began = ended;
    }
    let (text, kind) = match &*row.outcome {
        "ok" => ("answered", "good"),
        "client_gone" => ("the client left", "middling"),
        _ => ("did not end well", "bad"),
    };
    bars.push(Bar {
        label: format!("{}. {}", earlier.len() + 1, row.upstream),
        text: text.to_owned(),
        span: (began, row.duration),
        kind,
    });
    bars
}

/// Says in words how a reply was read and repaired, with an example of each repair.
fn repair_section(row: &UsageRow) -> Markup {
    let names = |text: &str| -> Vec<String> {
        text.split(',').filter(|name| !name.is_empty() && *name != "native").map(str::to_owned).collect()
    };
    let (dialects, repairs, dropped) =
        (names(&row.dialects), names(&row.repairs), names(&row.details.dropped));
    let details = &row.details;
    let is_empty = dialects.is_empty()
        && repairs.is_empty()
        && dropped.is_empty()
        && row.loop_stopped.is_empty()
        && details.trimmed.is_empty()
        && details.prefix_lost.is_empty()
        && details.reasoning_unknown == 0;
    if is_empty {
        return html! {};
    }
    html! {
        section {
            h2 { "What respool did" }
            ul class="notes" {
                @for name in &dialects { li { "A tool call came as text in the form " code { (name) } " and was read." } }
                @for name in &repairs { li { (repair_note(name)) } }
                @for name in &dropped { li { "A call was not passed on: " (name.replace('_', " ")) "." } }
                @if !row.loop_stopped.is_empty() { li { "The model repeated its " (row.loop_stopped) ", so respool answered in its place." } }
                @if !details.trimmed.is_empty() { li { "The conversation did not fit the model's window. Left out: " (details.trimmed) "." } }
                @if !details.prefix_lost.is_empty() { li { "The prompt differs from that of the conversation's last request, so the server reads it again: " (details.prefix_lost) "." } }
                @if details.reasoning_unknown > 0 { li { "The reasoning of turns that another process made was missing, so the server may have read the prompt again: " (details.reasoning_unknown) "." } }
            }
        }
    }
}

fn repair_note(name: &str) -> Markup {
    html! {
        code { (name) } @if let Some(change) = describe_repair(name) { ": " (format::with_code(change)) }
        @if let Some([before, after]) = words::repair_example(name) { " Example: " code { (before) } " → " code { (after) } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::{EarlierAttempt, RequestDetails};

    #[test]
    fn attempts_follow_each_other() {
        let earlier = EarlierAttempt {
            upstream: "one".into(),
            ended: 700,
            why: "cut_call".into(),
            remedy: "more_tokens".into(),
            error: "HTTP 500".into(),
            code: "upstream_error".into(),
        };
        let row = UsageRow {
            upstream: "two".into(),
            outcome: "ok".into(),
            duration: Duration::from_secs(2),
            details: RequestDetails { earlier_attempts: vec![earlier], ..RequestDetails::default() },
            ..UsageRow::default()
        };
        let bars = attempt_bars(&row);
        assert_eq!((&*bars[0].label, bars[0].span.1), ("1. one", Duration::from_millis(700)));
        assert_eq!(bars[0].text, "the reply ended within a call (HTTP 500); then it was given more tokens");
        assert_eq!((&*bars[1].label, bars[1].span), ("2. two", (Duration::from_millis(700), row.duration)));
    }

    #[test]
    fn a_wait_is_not_the_time_of_the_model() {
        let row = UsageRow {
            upstream: "two".into(),
            outcome: "ok".into(),
            waited: Duration::from_secs(25),
            duration: Duration::from_secs(38),
            ..UsageRow::default()
        };
        let bars = attempt_bars(&row);
        let spans: Vec<_> = bars.iter().map(|bar| (&*bar.label, bar.span.0.as_secs())).collect();
        assert_eq!(spans, [("Waited", 0), ("1. two", 25)]);
    }

    #[test]
    fn repairs_have_words_and_examples() {
        let row =
            UsageRow { dialects: "hermes".into(), repairs: "unclosed,no_such".into(), ..UsageRow::default() };
        let shown = repair_section(&row).into_string();
        assert!(shown.contains("<code>hermes</code>") && shown.contains("→ <code>"), "{shown}");
        assert!(shown.contains("<code>no_such</code>"), "a repair of another version is named: {shown}");
        assert_eq!(repair_section(&UsageRow::default()).into_string(), "");
    }
}
