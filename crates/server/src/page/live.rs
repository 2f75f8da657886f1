//! What runs now: the table, and the stream of events that keeps it live.

use std::convert::Infallible;
use std::time::Duration;

use async_stream::stream;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};
use maud::{Markup, html};
use tokio::time::{Instant, sleep};

use super::{App, format, guarded, layout, viewer};

/// So often the table is written anew, where it changed.
const EVERY: Duration = Duration::from_secs(1);
/// One stream lasts so long; the browser then asks again. A server that stops would else wait for every open page.
const LASTS: Duration = Duration::from_secs(15);
/// So many requests are shown.
const MOST: usize = 200;

/// Events with the table as HTML, until the session ends.
pub(super) async fn live(State(app): State<App>, headers: HeaderMap) -> Response {
    if let Err(response) = viewer(&app, &headers) {
        return *response;
    }
    let events = stream! {
        let (mut before, began) = (String::new(), Instant::now());
        yield Ok::<_, Infallible>(Bytes::from_static(b"retry: 500\n\n"));
        while began.elapsed() < LASTS {
            let table = table(&app).into_string();
            if table == before {
                yield Ok(Bytes::from_static(b": nothing new\n\n"));
            } else {
                yield Ok(Bytes::from(format!("event: now\ndata: {}\n\n", table.replace('\n', " "))));
                before = table;
            }
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

/// The requests under way.
pub(super) fn table(app: &App) -> Markup {
    let requests = app.usage.in_flight.now();
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
