//! Tokens and costs by day, model, key and agent, and what the same tokens would have cost elsewhere.

use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, StatusCode, Uri};
use maud::{Markup, html};
use url::form_urlencoded;

use super::chart::{Bar, bar_chart};
use super::guard::require_viewer;
use super::response::page_response;
use super::{format, layout};
use crate::app::App;
use store::{Dimension, StoreError, UsageQuery};
use usage::{Comparison, Money, PriceSource, Report, ReportLine};

/// A day, in milliseconds.
const DAY: u64 = 86_400_000;
/// The times that can be chosen, in days.
const DAYS: [u64; 4] = [1, 7, 30, 90];
/// The most lines of a table.
const MOST: usize = 200;

pub(super) async fn show_usage(State(app): State<App>, uri: Uri, headers: HeaderMap) -> Response {
    let viewer = match require_viewer(&app, &headers) {
        Ok(viewer) => viewer,
        Err(response) => return *response,
    };
    let days = parse_query(uri.query().unwrap_or_default());
    let main = match usage_markup(&app, days).await {
        Ok(main) => main,
        Err(error) => html! { h1 { "Usage" } p class="problem" { (error) } },
    };
    page_response(StatusCode::OK, layout::page_layout(&viewer, "/ui/usage", "Usage", &main))
}

fn parse_query(query: &str) -> u64 {
    let named = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "days");
    named.and_then(|(_, value)| value.parse().ok()).unwrap_or(30).clamp(1, 366)
}

async fn usage_markup(app: &App, days: u64) -> Result<Markup, StoreError> {
    let today = clock::now() / DAY;
    let since = (today + 1).saturating_sub(days) * DAY;
    let report = async |by| {
        let query = UsageQuery { since, until: u64::MAX, by: vec![by], key: None };
        app.usage.report_usage(query).await
    };
    let by_day = report(Dimension::Day).await?;
    let tables = [
        ("By model", "Model", report(Dimension::Model).await?),
        ("By key", "Key", report(Dimension::Key).await?),
        ("By agent", "Agent", report(Dimension::Agent).await?),
        ("By day", "Day", by_day.clone()),
    ];
    Ok(html! {
        h1 { "Usage" }
        p class="dim" { "Since " (&format::format_time(since)[..10]) ". Show "
            @for choice in DAYS { a href={ "/ui/usage?days=" (choice) } aria-current=[(choice == days).then_some("true")] { (choice) " d" } " " } }
        @if by_day.lines.is_empty() { (layout::empty_note("No requests in this period.")) }
        @else {
            (usage_charts(&by_day, since / DAY, today))
            (comparison_section(&by_day))
            @for (title, name, report) in &tables {
                section { h2 { (title) } (usage_table(title, name, &report.lines)) }
            }
        }
    })
}

/// Two charts by day; days without requests have a place too.
fn usage_charts(report: &Report, first: u64, last: u64) -> Markup {
    let line = |day: u64| {
        let name = format::format_time(day * DAY)[..10].to_owned();
        let found = report.lines.iter().find(|line| line.names.first() == Some(&name)).cloned();
        (name[5..].to_owned(), found.unwrap_or_default())
    };
    let days: Vec<(String, ReportLine)> = (first..=last).map(line).collect();
    #[expect(clippy::cast_precision_loss, reason = "the height of a bar")]
    let tokens = |(label, line): &(String, ReportLine)| Bar {
        label: label.clone(),
        value: line.usage.total_tokens() as f64,
    };
    let cost =
        |(label, line): &(String, ReportLine)| Bar { label: label.clone(), value: line.cost.total().units() };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it was a count of tokens")]
    let as_tokens = |value: f64| format::format_short_count(value as u64);
    let as_money = |value: f64| Money::from_units(value).to_string();
    html! {
        div class="charts" {
            (bar_chart("Tokens by day", &days.iter().map(tokens).collect::<Vec<_>>(), &as_tokens))
            (bar_chart("Cost by day", &days.iter().map(cost).collect::<Vec<_>>(), &as_money))
        }
    }
}

fn comparison_section(report: &Report) -> Markup {
    let rows = html! {
        @for it in &report.total.compared {
            tr {
                th scope="row" { (it.model) }
                @if let (Some(cost), Some(saved)) = (it.cost, it.saved) {
                    td class="number" { (cost) } td class="number" { (saved) }
                    td { (it.source.as_ref().map(PriceSource::describe).unwrap_or_default()) }
                } @else { td class="number" colspan="3" { "price unknown" } }
            }
        }
    };
    let known: Vec<&Comparison> = report.total.compared.iter().filter(|it| it.saved.is_some()).collect();
    let heads: Vec<(&str, bool)> = [("Day", false), ("Cost", true)]
        .into_iter()
        .chain(known.iter().map(|it| (&*it.model, true)))
        .collect();
    let days = html! {
        @for line in report.lines.iter().take(MOST) {
            tr {
                th scope="row" { (line.names.first().map_or("", String::as_str)) }
                td class="number" { (line.cost.total()) }
                @for saved in line.compared.iter().filter_map(|it| it.saved) { td class="number" { (saved) } }
            }
        }
    };
    html! {
        section {
            h2 { "What it cost, and what it would have cost" }
            p { "It cost " strong { (report.total.cost.total()) } ": " (report.total.cost.paid) " paid by the token, " (report.total.cost.own) " for your own hardware." }
            (layout::scrolling_table("The same tokens elsewhere", &[("The same tokens at", false), ("Cost", true), ("Difference", true), ("Price", false)], &rows))
            @if !known.is_empty() {
                details { summary { "The difference by day" } (layout::scrolling_table("The difference by day", &heads, &days)) }
            }
            details { summary { "How these numbers are calculated" } ul { @for note in &report.notes { li { (note) } } } }
        }
    }
}

fn usage_table(title: &str, name: &str, lines: &[ReportLine]) -> Markup {
    let heads = [
        (name, false),
        ("Requests", true),
        ("Failed", true),
        ("Tokens in", true),
        ("Cached", true),
        ("Tokens out", true),
        ("Cost", true),
    ];
    let rows = html! {
        @for line in lines.iter().take(MOST) {
            tr {
                th scope="row" { @match line.names.first().map_or("", String::as_str) { "" => "–", name => (name) } }
                td class="number" { (format::format_count(line.requests)) }
                td class="number" { (format::format_count(line.failed)) }
                td class="number" { (format::format_count(line.usage.prompt)) }
                td class="number" { (format::format_count(line.usage.cached.unwrap_or_default())) }
                td class="number" { (format::format_count(line.usage.completion)) }
                td class="number" { (line.cost.total()) }
            }
        }
    };
    html! {
        (layout::scrolling_table(title, &heads, &rows))
        @if lines.len() > MOST { p class="dim" { "and " (lines.len() - MOST) " more; " code { "respool usage" } " shows all of them" } }
    }
}
