//! The parts of the first page that are kept live: the day in numbers, the running requests, the upstreams,
//! the alerts and the last problems.

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
use tokio::time::{Instant, sleep};

use super::live_parts::LivePart;
use super::overview;
use super::response::with_policy;
use super::session::Viewer;
use crate::app::App;

/// The time between two looks at what changed.
const EVERY: Duration = Duration::from_secs(1);
/// The time between two reports on the day, each of which reads the database.
const REPORT_EVERY: Duration = Duration::from_secs(5);
/// How long one stream lasts; the browser then asks again. Otherwise a server that stops would wait for every
/// open page.
const LASTS: Duration = Duration::from_secs(15);

/// Sends each part that changed as HTML, until the session ends.
pub(super) async fn stream_live_parts(
    State(app): State<App>,
    viewer: Viewer,
    headers: HeaderMap,
) -> Response {
    let events = stream! {
        let (mut sent, began) = (BTreeMap::new(), Instant::now());
        let (mut today, mut reported) = (overview::report_today(&app).await, Instant::now());
        yield Ok::<_, Infallible>(Bytes::from_static(b"retry: 500\n\n"));
        while began.elapsed() < LASTS {
            if reported.elapsed() >= REPORT_EVERY {
                (today, reported) = (overview::report_today(&app).await, Instant::now());
            }
            let parts = overview::live_parts(&app, &viewer, today.as_ref(), clock::now());
            let changed = changed_events(&mut sent, parts);
            yield Ok(if changed.is_empty() { Bytes::from_static(b": nothing new\n\n") } else { Bytes::from(changed) });
            tokio::select! { () = sleep(EVERY) => {}, () = app.abort.cancelled() => break }
            if app.access.page_viewer(&headers).is_err() {
                break;
            }
        }
    };
    let mut response = Response::new(Body::from_stream(events));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    with_policy(response)
}

/// Writes an event for each part that differs from the one that was sent last.
fn changed_events(sent: &mut BTreeMap<&'static str, String>, parts: [LivePart; 5]) -> String {
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
