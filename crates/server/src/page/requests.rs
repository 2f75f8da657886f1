//! The list of recorded requests: filters, order and pages. `request` shows one of them.

use axum::extract::State;
use axum::response::Response;
use http::{StatusCode, Uri};
use maud::{Markup, html};

use super::nodes::node_notice;
use super::query::PageQuery;
use super::response::page_response;
use super::session::Viewer;
use super::{format, layout, words};
use crate::app::App;
use store::{Dimension, RequestOrder, RequestQuery, StoreError};
use wire::UsageRow;

const PATH: &str = "/ui/requests";
/// How many requests a page of the list has.
const PAGE: usize = 100;
/// The columns that can be filtered, and how the form calls them.
const FILTERS: [(Dimension, &str); 8] = [
    (Dimension::Outcome, "Outcome"),
    (Dimension::Error, "Error"),
    (Dimension::Model, "Model"),
    (Dimension::Key, "Key"),
    (Dimension::Upstream, "Upstream"),
    (Dimension::Agent, "Agent"),
    (Dimension::Route, "Route"),
    (Dimension::Node, "Node"),
];

pub(super) async fn show_requests(State(app): State<App>, uri: Uri, viewer: Viewer) -> Response {
    let query = PageQuery::parse(&uri);
    let main = match requests_markup(&app, &query).await {
        Ok(main) => main,
        Err(error) => html! { h1 { "Requests" } p class="problem" { (error) } },
    };
    page_response(StatusCode::OK, layout::page_layout(&viewer, PATH, "Requests", &main))
}

async fn requests_markup(app: &App, query: &PageQuery) -> Result<Markup, StoreError> {
    let names_of = |model: &str| app.relay.config().names_of(model).map(str::to_owned).collect();
    let mut rows = app.usage.records().find_requests(request_query(query, names_of, clock::now())).await?;
    let has_more = rows.len() > PAGE;
    rows.truncate(PAGE);
    let values = app.usage.records().recent_values(FILTERS.map(|(dimension, _)| dimension)).await?;
    let is_filtered = !query.link("", &[("page", "")]).is_empty();
    // Older pages and other orders would move under the reader.
    let is_live = query.page() == 1 && query.get("order").is_empty();
    Ok(html! {
        h1 { "Requests" }
        (node_notice(app))
        (filter_form(query, &values))
        div id="list" data-refresh=[is_live.then_some("5")] {
            @if rows.is_empty() && is_filtered { (layout::empty_note("No recorded request fits these filters.")) }
            @else if rows.is_empty() {
                (layout::empty_note("No requests are recorded yet. Each request appears here shortly after it ends, unless `[usage] keep` is 0s."))
            } @else {
                (request_table(app, "Requests", &rows))
                (layout::page_links(query, PATH, PAGE, rows.len(), has_more))
            }
        }
    })
}

/// `names_of`: returns the names under which requests reach a model.
fn request_query(query: &PageQuery, names_of: impl Fn(&str) -> Vec<String>, now: u64) -> RequestQuery {
    let chosen = FILTERS.iter().map(|(dimension, _)| (*dimension, query.get(dimension.as_str())));
    let names = |(dimension, value): (Dimension, &str)| match dimension {
        Dimension::Model if !value.is_empty() => {
            names_of(value).into_iter().map(|name| (dimension, name)).collect()
        }
        _ => vec![(dimension, value.to_owned())],
    };
    let order = RequestOrder::ALL.into_iter().find(|order| order.as_str() == query.get("order"));
    RequestQuery {
        since: query.period_start("all", now),
        only: chosen.filter(|(_, value)| !value.is_empty()).flat_map(names).collect(),
        text: query.get("text").to_owned(),
        repaired: query.get("repaired") == "yes",
        order: order.unwrap_or_default(),
        skip: (query.page() - 1) * PAGE,
        most: PAGE + 1,
    }
}

fn filter_form(query: &PageQuery, values: &[(Dimension, Vec<String>)]) -> Markup {
    let known = |dimension: Dimension| {
        values.iter().find(|(known, _)| *known == dimension).map_or(&[][..], |(_, values)| values)
    };
    html! {
        details class="choices" open[!query.link("", &[("page", "")]).is_empty()] data-opens-when-wide { summary { "Filters" }
        form class="filters" method="get" action=(PATH) data-submits-itself {
            label { "Search" input type="search" name="text" value=(query.get("text")) placeholder="id, error, repair …"; }
            (layout::period_choice(query))
            @for (dimension, name) in FILTERS {
                @let chosen = query.get(dimension.as_str());
                @if known(dimension).len() > 1 || !chosen.is_empty() {
                    label { (name) select name=(dimension.as_str()) {
                        option value="" { "any" }
                        @if !chosen.is_empty() && !known(dimension).iter().any(|value| value == chosen) { option selected { (chosen) } }
                        @for value in known(dimension) {
                            option value=(value) selected[chosen == value] { (words::outcome(value)) }
                        }
                    } }
                }
            }
            label { "Repaired" select name="repaired" {
                option value="" { "any" }
                option value="yes" selected[query.get("repaired") == "yes"] { "only repaired ones" }
            } }
            label { "Order" select name="order" {
                @for order in RequestOrder::ALL {
                    @let value = if order == RequestOrder::Newest { "" } else { order.as_str() };
                    option value=(value) selected[query.get("order") == order.as_str()] { (order_name(order)) }
                }
            } }
            button type="submit" class="quiet" { "Show" }
            @if !query.link("", &[]).is_empty() { a href=(PATH) { "Show all" } }
        }
        }
    }
}

fn order_name(order: RequestOrder) -> &'static str {
    match order {
        RequestOrder::Newest => "newest first",
        RequestOrder::Oldest => "oldest first",
        RequestOrder::Longest => "longest first",
        RequestOrder::LatestFirstByte => "latest first byte",
        RequestOrder::MostTokens => "most tokens first",
    }
}

const HEADS: [(&str, &str); 10] = [
    ("Time (UTC)", ""),
    ("Outcome", ""),
    ("Model", ""),
    ("Key", "wide"),
    ("Upstream", "wide"),
    ("Repaired", "wide"),
    ("In", "number wide"),
    ("Out", "number wide"),
    ("Duration", "number"),
    ("Cost", "number wide"),
];

/// Shows requests as a table with one line for each.
pub(super) fn request_table(app: &App, caption: &str, rows: &[UsageRow]) -> Markup {
    let now = clock::now();
    let costs: Vec<_> = rows.iter().map(|row| app.usage.records().cost_of(row)).collect();
    let money = format::MoneyColumn::new(costs.iter().flatten().copied());
    let rows = html! {
        @for (row, cost) in rows.iter().zip(&costs) {
            (request_row(row, now, &cost.map_or_else(|| "–".to_owned(), |cost| money.format(cost))))
        }
    };
    layout::scrolling_table(caption, &HEADS, &rows)
}

fn request_row(row: &UsageRow, now: u64, cost: &str) -> Markup {
    let repairs = words::describe_repairs(row);
    html! {
        tr class="opens" {
            td class="time" { a href=(request_link(&row.id, row.at)) { time datetime=(clock::format_time(row.at)) { (format::format_short_time(row.at, now)) } } }
            td class="cut" { (outcome_badge(row)) }
            td class="cut" {
                @if row.model.is_empty() { (row.details.request_line()) } @else { (row.model) }
                @if words::asked_model(row) != row.model && !row.model.is_empty() { span class="dim" { " in place of " (words::asked_model(row)) } }
                @if row.model.is_empty() && row.details.request_line().is_empty() { span class="dim" { (row.route.replace('_', " ")) } }
                @if !row.agent.is_empty() && row.agent != row.model { " for " (row.agent) }
                // On a phone, what was repaired matters more than where.
                @if repairs.is_empty() { (layout::phone_line(&[&row.key, &row.upstream])) } @else { (layout::phone_line(&[&repairs])) }
            }
            td class="cut wide" { (row.key) }
            td class="cut wide" { (row.upstream) }
            td class="cut wide" { (repairs) }
            @if let Some(usage) = row.usage {
                td class="number wide" { (format::format_count(usage.prompt)) }
                td class="number wide" { (format::format_count(usage.completion)) }
            } @else { td class="number wide" { "–" } td class="number wide" { "–" } }
            td class="number" { (format::format_duration(row.duration)) }
            td class="number wide" { (cost) }
        }
    }
}

/// Returns the address of the page of a request.
pub(super) fn request_link(id: &str, at: u64) -> String {
    let id = percent_encoding::utf8_percent_encode(id, percent_encoding::NON_ALPHANUMERIC);
    format!("{PATH}/{id}?at={at}")
}

pub(super) fn outcome_badge(row: &UsageRow) -> Markup {
    let kind = match &*row.outcome {
        "ok" => "good",
        "error" => "bad",
        _ => "middling",
    };
    let text = if row.error_code.is_empty() { &row.outcome } else { row.error_code.as_str() };
    layout::colour_badge(kind, &words::outcome(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_selects_requests() {
        let uri = "/ui/requests?model=m&outcome=error&text=refused&order=longest&page=3&period=1h";
        let found = request_query(
            &PageQuery::parse(&uri.parse().unwrap()),
            |model| vec![model.to_owned(), "fast".into()],
            7_200_000,
        );
        let model = |name: &str| (Dimension::Model, name.to_owned());
        let only = vec![(Dimension::Outcome, "error".to_owned()), model("m"), model("fast")];
        assert_eq!((found.only, found.since, found.skip), (only, 3_600_000, 200));
        assert_eq!((found.order, &*found.text), (RequestOrder::Longest, "refused"));
    }

    #[test]
    fn addresses_of_requests_are_encoded() {
        assert_eq!(request_link("a/b?c", 7), "/ui/requests/a%2Fb%3Fc?at=7");
        let row = UsageRow { model: "<script>alert(1)</script>".into(), ..UsageRow::default() };
        assert!(!request_row(&row, 1, "–").into_string().contains("<script>"));
        let read = UsageRow { dialects: "hermes".into(), upstream: "box".into(), ..UsageRow::default() };
        let shown = request_row(&read, 1, "–").into_string();
        assert!(shown.contains("<span class=\"phone\">read from text (hermes)</span>"), "{shown}");
    }
}
