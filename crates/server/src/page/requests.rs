//! The last requests, and what was repaired in each.

use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, StatusCode, Uri};
use maud::{Markup, html};
use url::form_urlencoded;

use super::guard::require_viewer;
use super::response::page_response;
use super::{format, layout};
use crate::app::App;
use store::StoredUsage;

/// How many are shown by default,
const FEW: usize = 100;
/// and at most.
const MOST: usize = 10_000;

pub(super) async fn show_requests(State(app): State<App>, uri: Uri, headers: HeaderMap) -> Response {
    let viewer = match require_viewer(&app, &headers) {
        Ok(viewer) => viewer,
        Err(response) => return *response,
    };
    let most = parse_filter(uri.query().unwrap_or_default());
    let main = match app.usage.newest_requests(most).await {
        Ok(rows) => requests_markup(&rows, most),
        Err(error) => html! { h1 { "Requests" } p class="problem" { (error) } },
    };
    page_response(StatusCode::OK, layout::page_layout(&viewer, "/ui/requests", "Requests", &main))
}

fn parse_filter(query: &str) -> usize {
    let named = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "most");
    named.and_then(|(_, value)| value.parse().ok()).unwrap_or(FEW).clamp(1, MOST)
}

fn requests_markup(rows: &[StoredUsage], most: usize) -> Markup {
    html! {
        h1 { "Requests" }
        @if rows.is_empty() {
            (layout::empty_note("No requests are recorded yet. Each request appears here shortly after it ends, unless `[usage] keep` is 0s."))
        } @else {
            p class="dim" {
                "The last " (format::format_count(rows.len() as u64)) ", newest first. Show "
                @for choice in [100, 1_000, 10_000] {
                    a href={ "/ui/requests?most=" (choice) } aria-current=[(choice == most).then_some("true")] { (format::format_count(choice as u64)) } " "
                }
            }
            (layout::scrolling_table("The last requests", &HEADS, &html! { @for row in rows { (request_row(row)) } }))
        }
    }
}

const HEADS: [(&str, bool); 9] = [
    ("Time", false),
    ("Outcome", false),
    ("Model", false),
    ("Key", false),
    ("Repaired", false),
    ("Tokens in", true),
    ("Tokens out", true),
    ("First byte", true),
    ("Duration", true),
];

/// Shows the requests of one run.
pub(super) fn table_of_run(rows: &[StoredUsage]) -> Markup {
    html! {
        @if !rows.is_empty() {
            h2 { "Requests" }
            (layout::scrolling_table("The requests of this run", &HEADS, &html! { @for row in rows { (request_row(row)) } }))
        }
    }
}

fn request_row(row: &StoredUsage) -> Markup {
    let kind = match &*row.outcome {
        "ok" => "good",
        "error" => "bad",
        _ => "middling",
    };
    let outcome =
        if row.error_code.is_empty() { row.outcome.replace('_', " ") } else { row.error_code.clone() };
    html! {
        tr {
            td class="time" { (format::format_time(row.at)) }
            td { (layout::colour_badge(kind, &outcome)) @if !row.error.is_empty() { p class="cause" { (format::with_code(&row.error)) } } }
            td { (row.model) @if !row.agent.is_empty() && row.agent != row.model { " for " (row.agent) } }
            td { (row.key) }
            td { (describe_repairs(row)) @if !row.run.is_empty() { " " a href={ "/ui/runs/" (row.run) } { "run" } } }
            @if let Some(usage) = row.usage {
                td class="number" { (format::format_count(usage.prompt)) }
                td class="number" { (format::format_count(usage.completion)) }
            } @else { td class="number" { "–" } td class="number" { "–" } }
            td class="number" { @if let Some(first) = row.first_byte { (format::format_duration(first)) } @else { "–" } }
            td class="number" { (format::format_duration(row.duration)) }
        }
    }
}

/// Describes the repairs of a reply.
fn describe_repairs(row: &StoredUsage) -> String {
    let mut done = Vec::new();
    let native_only = |names: &str| names.split(',').all(|name| name.is_empty() || name == "native");
    if !native_only(&row.dialects) {
        done.push(format!("call read from text ({})", row.dialects.replace(',', ", ")));
    }
    if !row.repairs.is_empty() {
        done.push(format!("mended: {}", row.repairs.replace(',', ", ")));
    }
    if !row.recovery.is_empty() {
        done.push(format!("asked again: {}", row.recovery.replace(',', ", ")));
    } else if row.attempts > 1 {
        done.push(format!("sent {} times", row.attempts));
    }
    if !row.loop_stopped.is_empty() {
        done.push(format!("loop stopped ({})", row.loop_stopped));
    }
    done.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repairs_are_described() {
        let check = |row: StoredUsage, expected: &str| assert_eq!(describe_repairs(&row), expected);
        check(StoredUsage { attempts: 1, ..StoredUsage::default() }, "");
        check(
            StoredUsage {
                dialects: "hermes".into(),
                repairs: "renamed,closed".into(),
                ..StoredUsage::default()
            },
            "call read from text (hermes); mended: renamed, closed",
        );
        check(
            StoredUsage { recovery: "truncated,longer".into(), attempts: 2, ..StoredUsage::default() },
            "asked again: truncated, longer",
        );
        check(
            StoredUsage { attempts: 3, loop_stopped: "calls".into(), ..StoredUsage::default() },
            "sent 3 times; loop stopped (calls)",
        );
        assert_eq!(
            [parse_filter(""), parse_filter("most=7"), parse_filter("most=999999"), parse_filter("most=x")],
            [100, 7, 10_000, 100]
        );
    }

    /// The limit: 50 ms on the server, of which the database has the larger part. Here: 10,000 rows
    /// become a page at all, and what others wrote is text.
    #[test]
    fn ten_thousand_rows_are_one_page() {
        let row = StoredUsage { model: "<script>alert(1)</script>".into(), ..StoredUsage::default() };
        let page = requests_markup(&vec![row; 10_000], 10_000).into_string();
        assert_eq!(page.matches("<tr>").count(), 10_001);
        assert!(!page.contains("<script>"));
    }
}
