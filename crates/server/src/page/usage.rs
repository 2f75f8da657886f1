//! Tokens and costs by day or hour, model, key, upstream and agent, and what the same tokens would have cost
//! elsewhere. Each row leads to the same page for that row alone.

use axum::extract::State;
use axum::response::Response;
use http::{StatusCode, Uri};
use maud::{Markup, html};

use super::chart::{Bar, bar_chart};
use super::query::PageQuery;
use super::response::page_response;
use super::session::Viewer;
use super::{format, layout, limits};
use crate::app::App;
use store::{Dimension, StoreError, UsageQuery};
use usage::{Comparison, Money, PriceSource, Report, ReportLine};

const PATH: &str = "/ui/usage";
/// An hour and a day, in milliseconds.
const HOUR: u64 = 3_600_000;
const DAY: u64 = 24 * HOUR;
/// The periods that can be chosen: their names in the address and on the page, and their days.
const PERIODS: [(&str, &str, u64); 4] =
    [("24h", "24 hours", 1), ("7d", "7 days", 7), ("30d", "30 days", 30), ("90d", "90 days", 90)];
/// The period when none is chosen.
const DEFAULT: usize = 2;
/// The most lines of a table.
const MOST: usize = 200;

/// The tables: their dimension, title, first column, and the name of a row without a value.
const TABLES: [(Dimension, &str, &str, &str); 4] = [
    (Dimension::Model, "By model", "Model", "none named"),
    (Dimension::Key, "By key", "Key", "no key"),
    (Dimension::Upstream, "By upstream", "Upstream", "none asked"),
    (Dimension::Agent, "By agent", "Agent", "no agent"),
];

pub(super) async fn show_usage(State(app): State<App>, uri: Uri, viewer: Viewer) -> Response {
    let main = match usage_markup(&app, &PageQuery::parse(&uri)).await {
        Ok(main) => main,
        Err(error) => html! { h1 { "Usage" } p class="problem" { (error) } },
    };
    page_response(StatusCode::OK, layout::page_layout(&viewer, PATH, "Usage", &main))
}

/// The shown period, in steps of a day or an hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Period {
    name: &'static str,
    since: u64,
    until: u64,
    by: Dimension,
}

impl Period {
    fn chosen(query: &PageQuery, now: u64) -> Self {
        let chosen = PERIODS.iter().find(|(name, _, _)| *name == query.get("period"));
        let (name, _, days) = *chosen.unwrap_or(&PERIODS[DEFAULT]);
        let (by, step) = if days == 1 { (Dimension::Hour, HOUR) } else { (Dimension::Day, DAY) };
        let until = (now / step + 1) * step;
        Self { name, since: until.saturating_sub(days * DAY), until, by }
    }

    fn step(&self) -> (u64, &'static str) {
        if self.by == Dimension::Hour { (HOUR, "hour") } else { (DAY, "day") }
    }

    /// Returns the name of a step in reports, and its label in a chart.
    fn step_names(&self, at: u64) -> (String, String) {
        let text = format::format_time(at);
        match self.by {
            Dimension::Hour => (format!("{}T{}", &text[..10], &text[11..13]), text[11..16].to_owned()),
            _ => (text[..10].to_owned(), text[5..10].to_owned()),
        }
    }
}

async fn usage_markup(app: &App, query: &PageQuery) -> Result<Markup, StoreError> {
    let period = Period::chosen(query, clock::now());
    let chosen = TABLES.iter().map(|(dimension, ..)| (*dimension, query.get(dimension.as_str()).to_owned()));
    let only: Vec<(Dimension, String)> = chosen.filter(|(_, value)| !value.is_empty()).collect();
    let report = async |by| {
        let query = UsageQuery { since: period.since, until: u64::MAX, by: vec![by], only: only.clone() };
        app.usage.records().report(query).await
    };
    let by_step = report(period.by).await?;
    let mut tables = Vec::new();
    for (dimension, title, name, unnamed) in TABLES {
        tables.push((dimension, title, [name, unnamed], report(dimension).await?));
    }
    let (_, step) = period.step();
    let currency = app.usage.currency();
    Ok(html! {
        h1 { "Usage" }
        (period_links(query, period))
        (chosen_filters(query, &only))
        @if only.is_empty() { (limits::limits_section(app)) }
        @if by_step.lines.is_empty() { (layout::empty_note("No requests in this period.")) }
        @else {
            (usage_charts(&by_step, period, &currency))
            (comparison_section(app, &by_step, step))
            @for (dimension, title, names, report) in &tables {
                section { h2 { (title) } (usage_table(query, *dimension, title, *names, &report.lines, &currency)) }
            }
            section { h2 { "By " (step) } (usage_table(query, period.by, step, [if step == "hour" { "Hour" } else { "Day" }, ""], &by_step.lines, &currency)) }
        }
    })
}

fn period_links(query: &PageQuery, period: Period) -> Markup {
    html! {
        ul class="chips" aria-label="Period" {
            @for (name, text, _) in PERIODS {
                li { a href=(query.link(PATH, &[("period", name)])) aria-current=[(name == period.name).then_some("true")] { (text) } }
            }
        }
    }
}

/// Names the filters, each with a link that removes it.
fn chosen_filters(query: &PageQuery, only: &[(Dimension, String)]) -> Markup {
    html! {
        @if !only.is_empty() {
            p {
                @for (dimension, value) in only {
                    "Only the " (dimension.as_str()) " " strong { (value) } " ("
                    a href=(query.link(PATH, &[(dimension.as_str(), "")])) { "show every " (dimension.as_str()) } "). "
                }
                a href=(query.link("/ui/requests", &[])) { "Show the requests" }
            }
        }
    }
}

/// Draws two charts; steps without requests have a place too.
fn usage_charts(report: &Report, period: Period, currency: &str) -> Markup {
    let (length, step) = period.step();
    let line = |at: u64| {
        let (name, label) = period.step_names(at);
        let found = report.lines.iter().find(|line| line.names.first() == Some(&name)).cloned();
        (label, found.unwrap_or_default())
    };
    let starts = (period.since..period.until).step_by(usize::try_from(length).unwrap_or(usize::MAX));
    let steps: Vec<(String, ReportLine)> = starts.map(line).collect();
    #[expect(clippy::cast_precision_loss, reason = "the height of a bar")]
    let tokens = |(label, line): &(String, ReportLine)| Bar {
        label: label.clone(),
        value: line.totals.usage.total_tokens() as f64,
    };
    let cost = |(label, line): &(String, ReportLine)| Bar { label: label.clone(), value: line.cost.units() };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it was a count of tokens")]
    let as_tokens = |value: f64| format::format_short_count(value as u64);
    let as_money = |value: f64| Money::from_units(value).to_string();
    let unit = if currency.is_empty() { String::new() } else { format!(" in {currency}") };
    html! {
        div class="charts" {
            (bar_chart(&format!("Tokens of each {step}"), &steps.iter().map(tokens).collect::<Vec<_>>(), &as_tokens))
            @if report.total.cost != Money::default() {
                (bar_chart(&format!("Cost of each {step}{unit}"), &steps.iter().map(cost).collect::<Vec<_>>(), &as_money))
            }
        }
    }
}

fn comparison_section(app: &App, report: &Report, step: &str) -> Markup {
    let known: Vec<&Comparison> = report.total.compared.iter().filter(|it| it.saved.is_some()).collect();
    let money = format::MoneyColumn::new(known.iter().flat_map(|it| [it.cost, it.saved]).flatten());
    let rows = html! {
        @for it in &report.total.compared {
            tr {
                th scope="row" { (it.model) }
                @if let (Some(cost), Some(saved)) = (it.cost, it.saved) {
                    td class="number" { (money.format(cost)) } td class="number" { (money.format(saved)) }
                    td class="wide" { (it.source.as_ref().map(PriceSource::describe).unwrap_or_default()) }
                } @else if let Some(cost) = it.cost {
                    td class="number" { (cost.with_currency(it.currency.as_deref().unwrap_or_default())) } td class="number" { "–" }
                    td class="wide" { (it.source.as_ref().map(PriceSource::describe).unwrap_or_default()) ", in another currency" }
                } @else { td {} td {} td class="wide" { "unknown: add it to " code { "[prices]" } } }
            }
        }
    };
    html! {
        section {
            h2 { "What it cost, and what it would have cost" }
            p { "It cost " strong { (report.total.cost.with_currency(&app.usage.currency())) } "." }
            (layout::scrolling_table("The same tokens elsewhere", &[("The same tokens at", ""), ("Cost", "number"), ("Difference", "number"), ("Price", "wide")], &rows))
            @if !known.is_empty() { (difference_table(report, &known, step)) }
            details { summary { "How these numbers are calculated" } ul { @for note in &report.notes { li { (format::with_code(note)) } } } }
        }
    }
}

/// Shows for each day or hour what the same tokens would have cost more elsewhere.
fn difference_table(report: &Report, known: &[&Comparison], step: &str) -> Markup {
    let heads: Vec<(&str, &str)> = [(step, ""), ("Cost", "number")]
        .into_iter()
        .chain(known.iter().map(|it| (&*it.model, "number")))
        .collect();
    let amounts = |line: &ReportLine| {
        let saved = line.compared.iter().filter_map(|it| it.saved).collect::<Vec<_>>();
        [vec![line.cost], saved].concat()
    };
    let money = format::MoneyColumn::new(report.lines.iter().flat_map(amounts));
    let rows = html! {
        @for line in report.lines.iter().take(MOST) {
            tr {
                th scope="row" { (step_name(line)) }
                @for amount in amounts(line) { td class="number" { (money.format(amount)) } }
            }
        }
    };
    html! {
        details { summary { "The difference by " (step) } (layout::scrolling_table("The difference", &heads, &rows)) }
    }
}

/// Returns the name of a day; of an hour, without its year.
fn step_name(line: &ReportLine) -> String {
    let name = line.names.first().map_or("", String::as_str);
    match name.split_once('T') {
        Some((day, hour)) => format!("{} {hour}:00", day.get(5..).unwrap_or_default()),
        None => name.to_owned(),
    }
}

/// A table whose rows lead to the same page for that row alone. `names`: of the first column, and of a row
/// without a value.
fn usage_table(
    query: &PageQuery,
    dimension: Dimension,
    title: &str,
    names: [&str; 2],
    lines: &[ReportLine],
    currency: &str,
) -> Markup {
    let cost = if currency.is_empty() { "Cost".to_owned() } else { format!("Cost in {currency}") };
    let heads = [
        (names[0], ""),
        ("Requests", "number"),
        ("Failed", "number wide"),
        ("Repeated", "number wide"),
        ("Tokens in", "number"),
        ("Cached", "number wide"),
        ("Tokens out", "number wide"),
        (&*cost, "number"),
    ];
    let money = format::MoneyColumn::new(lines.iter().map(|line| line.cost));
    let is_time = matches!(dimension, Dimension::Day | Dimension::Hour);
    let rows = html! {
        @for line in lines.iter().take(MOST) {
            tr {
                th scope="row" class=(if is_time { "time" } else { "cut" }) {
                    @match line.names.first().map_or("", String::as_str) {
                        "" => (names[1]),
                        _ if is_time => (step_name(line)),
                        name => a href=(query.link(PATH, &[(dimension.as_str(), name)])) { (name) },
                    }
                }
                td class="number" { (format::format_count(line.totals.requests)) }
                td class="number wide" { (format::format_count(line.totals.failed)) }
                td class="number wide" { (format::format_count(line.totals.repeats)) }
                td class="number" { (format::format_count(line.totals.usage.prompt)) }
                td class="number wide" { (format::format_count(line.totals.usage.cached.unwrap_or_default())) }
                td class="number wide" { (format::format_count(line.totals.usage.completion)) }
                td class="number" { (money.format(line.cost)) }
            }
        }
    };
    html! {
        (layout::scrolling_table(title, &heads, &rows))
        @if lines.len() > MOST { p class="dim" { "and " (lines.len() - MOST) " more; " code { "respool usage" } " shows all of them" } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_day_is_shown_by_the_hour() {
        let now = 100 * DAY + 5 * HOUR + 7;
        let chosen = |uri: &str| Period::chosen(&PageQuery::parse(&uri.parse().unwrap()), now);
        let day = chosen("/?period=24h");
        assert_eq!(
            (day.by, day.since, day.until),
            (Dimension::Hour, 99 * DAY + 6 * HOUR, 100 * DAY + 6 * HOUR)
        );
        assert_eq!(day.step_names(day.since), ("1970-04-10T06".to_owned(), "06:00".to_owned()));
        let month = chosen("/?period=no");
        assert_eq!((month.by, month.since, month.until), (Dimension::Day, 71 * DAY, 101 * DAY));
        assert_eq!(month.step_names(month.since), ("1970-03-13".to_owned(), "03-13".to_owned()));
    }

    #[test]
    fn rows_lead_to_themselves() {
        let query = PageQuery::parse(&"/?period=7d".parse().unwrap());
        let lines = [
            ReportLine { names: vec!["a/b".into()], ..ReportLine::default() },
            ReportLine { names: vec![String::new()], ..ReportLine::default() },
        ];
        let table = usage_table(&query, Dimension::Model, "By model", ["Model", "none named"], &lines, "EUR")
            .into_string();
        assert!(table.contains("/ui/usage?period=7d&amp;model=a%2Fb"), "{table}");
        assert!(table.contains("none named") && table.contains("Cost in EUR"), "{table}");
    }
}
