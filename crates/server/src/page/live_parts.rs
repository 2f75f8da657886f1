//! The parts of the first page that are kept live, and the list of running requests among them.

use maud::{Markup, html};

use super::{format, layout};
use crate::app::App;

/// How many requests are shown.
const MOST: usize = 200;

/// A part of the first page, which the script replaces by its name.
pub(super) struct LivePart {
    pub(super) name: &'static str,
    pub(super) markup: Markup,
}

impl LivePart {
    /// Returns the element that the script fills.
    pub(super) fn element(&self) -> Markup {
        html! { div data-live=(self.name) { (self.markup) } }
    }
}

/// Returns the requests under way.
pub(super) fn running_requests(app: &App) -> Markup {
    let requests = app.usage.in_flight.requests();
    if requests.is_empty() {
        return layout::empty_note("Nothing is running. Requests appear here as they arrive.");
    }
    let rows = html! {
        @for request in requests.iter().take(MOST) {
            tr {
                td { (request.phase) }
                td class="cut" {
                    (request.model) @if !request.agent.is_empty() && request.agent != request.model { " for " (request.agent) }
                    (layout::phone_line(&[&request.key, &request.upstream]))
                }
                td class="wide" { @if request.run.is_empty() { (request.route.replace('_', " ")) } @else { a href={ "/ui/runs/" (request.run) } { "run" } } }
                td class="cut wide" { (request.upstream) }
                td class="cut wide" { (request.key) }
                td class="number" { (format::format_duration(request.elapsed)) }
                td class="number wide" { (request.attempts) }
                td class="number wide" { @if let Some(tokens) = request.tokens { (format::format_count(tokens)) } @else { "–" } }
            }
        }
    };
    let heads = [
        ("Phase", ""),
        ("Model", ""),
        ("Route", "wide"),
        ("Upstream", "wide"),
        ("Key", "wide"),
        ("Elapsed", "number"),
        ("Attempts", "number wide"),
        ("Tokens", "number wide"),
    ];
    html! {
        (layout::scrolling_table("Requests in progress", &heads, &rows))
        @if requests.len() > MOST { p { "and " (requests.len() - MOST) " more" } }
    }
}
