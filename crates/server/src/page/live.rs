//! The parts of the first page that are kept live: the day in numbers, the running requests, the upstreams
//! and the last problems.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::time::Duration;

use async_stream::stream;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};
use maud::{Markup, html};
use tokio::time::{Instant, sleep};

use super::{App, format, guarded, layout, overview, viewer};

/// The time between two looks at what changed.
const EVERY: Duration = Duration::from_secs(1);
/// The time between two reports on the day, each of which reads the database.
const REPORT_EVERY: Duration = Duration::from_secs(5);
/// How long one stream lasts; the browser then asks again. Otherwise a server that stops would wait for every
/// open page.
const LASTS: Duration = Duration::from_secs(15);
/// How many requests are shown.
const MOST: usize = 200;

/// Sends each part that changed as HTML, until the session ends.
pub(super) async fn live(State(app): State<App>, headers: HeaderMap) -> Response {
    if let Err(response) = viewer(&app, &headers) {
        return *response;
    }
    let events = stream! {
        let (mut sent, began) = (BTreeMap::new(), Instant::now());
        let (mut today, mut reported) = (overview::today(&app).await, Instant::now());
        yield Ok::<_, Infallible>(Bytes::from_static(b"retry: 500\n\n"));
        while began.elapsed() < LASTS {
            if reported.elapsed() >= REPORT_EVERY {
                (today, reported) = (overview::today(&app).await, Instant::now());
            }
            let parts = overview::live_parts(&app, &today, clock::now());
            let changed = changed_events(&mut sent, parts);
            yield Ok(if changed.is_empty() { Bytes::from_static(b": nothing new\n\n") } else { Bytes::from(changed) });
            tokio::select! { () = sleep(EVERY) => {}, () = app.abort.cancelled() => break }
            if app.access.viewer(&headers).is_err() {
                break;
            }
        }
    };
    let mut response = Response::new(Body::from_stream(events));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    guarded(response)
}

/// Writes an event for each part that differs from the one that was sent last.
fn changed_events(sent: &mut BTreeMap<&'static str, String>, parts: [LivePart; 4]) -> String {
    let mut events = String::new();
    for LivePart { name, markup } in parts {
        let html = markup.into_string().replace('\n', " ");
        if sent.get(name) != Some(&html) {
            let _ = write!(events, "event: {name}\ndata: {html}\n\n");
            sent.insert(name, html);
        }
    }
    events
}

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

/// The requests under way.
pub(super) fn table(app: &App) -> Markup {
    let requests = app.usage.in_flight.requests();
    if requests.is_empty() {
        return layout::empty("Nothing is running. Requests appear here as they arrive.");
    }
    let rows = html! {
        @for request in requests.iter().take(MOST) {
            tr {
                td { (request.phase) }
                td { (request.model) @if !request.agent.is_empty() && request.agent != request.model { " for " (request.agent) } }
                td { @if request.run.is_empty() { (request.route) } @else { a href={ "/ui/runs/" (request.run) } { "run" } } }
                td { (request.upstream) }
                td { (request.key) }
                td class="number" { (format::duration(request.elapsed)) }
                td class="number" { (request.attempts) }
                td class="number" { @if let Some(tokens) = request.tokens { (format::count(tokens)) } @else { "–" } }
            }
        }
    };
    let heads = [
        ("Phase", false),
        ("Model", false),
        ("Route", false),
        ("Upstream", false),
        ("Key", false),
        ("Elapsed", true),
        ("Attempts", true),
        ("Tokens", true),
    ];
    html! {
        (layout::table("Requests in progress", &heads, &rows))
        @if requests.len() > MOST { p { "and " (requests.len() - MOST) " more" } }
    }
}
