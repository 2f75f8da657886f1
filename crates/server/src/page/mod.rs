//! The page at `/`, for owners and their teams: what runs, what was repaired, what it cost, what went wrong and what to do.
//!
//! Pages are written on the server and work without scripts; one small script keeps the list of running requests live. Nothing is
//! loaded from elsewhere. Content of messages is shown only with `[log] content`. Where clients have keys, an operator's key opens the
//! page (`session`); elsewhere the checks of `pages` hold. Every button carries a mark of the session (`Viewer::csrf`).

mod alerts;
mod approvals;
mod chart;
mod format;
mod layout;
mod live;
mod login;
mod overview;
mod remedy;
mod requests;
mod runs;
pub(super) mod session;
mod usage;

use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::response::Response;
use axum::routing::{get, post};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use maud::Markup;
use url::form_urlencoded;

use super::App;
use session::{Denied, Viewer};

/// Nothing but what respool itself serves, and nothing in a frame.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; form-action 'self'; \
                      base-uri 'none'; frame-ancestors 'none'";
/// The largest form.
const LARGEST_FORM: usize = 16 << 10;
/// So long a browser may take to send one.
const FORM_WITHIN: Duration = Duration::from_secs(30);

/// The routes of the page.
pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/", get(overview::overview))
        .route("/ui/live", get(live::live))
        .route("/ui/requests", get(requests::requests))
        .route("/ui/runs", get(runs::list))
        .route("/ui/runs/{id}", get(runs::one))
        .route("/ui/runs/{id}/end", post(runs::end))
        .route("/ui/usage", get(usage::usage))
        .route("/ui/approvals", get(approvals::list))
        .route("/ui/approvals/{id}", post(approvals::decide))
        .route("/ui/letters/{id}", post(approvals::letter))
        .route("/ui/login", get(login::form).post(login::login))
        .route("/ui/logout", post(login::logout))
        .route("/ui/alerts", post(alerts::silence))
        .route("/ui/", get(nothing))
        .route("/ui/{*rest}", get(nothing).fallback(nothing))
        .route("/ui/style.css", get(|| async { asset(include_str!("style.css"), "text/css; charset=utf-8") }))
        .route("/ui/icon.svg", get(|| async { asset(include_str!("icon.svg"), "image/svg+xml") }))
        .route(
            "/ui/page.js",
            get(|| async { asset(include_str!("page.js"), "text/javascript; charset=utf-8") }),
        )
}

/// Nothing below the page's path goes to an upstream: nobody was asked for a key there.
async fn nothing() -> Response {
    page(StatusCode::NOT_FOUND, layout::message("Not found", "This page does not exist."))
}

/// True for the paths of the page, which ask for a session of their own and not for a client's key.
pub(super) fn is_path(path: &str) -> bool {
    path == "/" || path.starts_with("/ui/")
}

/// Who looks, or the answer for somebody who may not.
fn viewer(app: &App, headers: &HeaderMap) -> Result<Viewer, Box<Response>> {
    app.access.viewer(headers).map_err(|denied| Box::new(refused(&denied)))
}

/// Who presses a button, with the form that came, or the answer for somebody who may not.
async fn presser(app: &App, request: axum::extract::Request) -> Result<(Viewer, Form), Box<Response>> {
    let (parts, body) = request.into_parts();
    let viewer = viewer(app, &parts.headers)?;
    let form = read_form(body).await?;
    let is_own = app.access.is_own_origin(&parts.headers) && viewer.knows(form.get("csrf"));
    if is_own { Ok((viewer, form)) } else { Err(Box::new(refused(&Denied::Forged))) }
}

/// The fields of a form.
#[derive(Debug, Default)]
struct Form(Vec<(String, String)>);

impl Form {
    fn get(&self, name: &str) -> &str {
        self.0.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }
}

async fn read_form(body: Body) -> Result<Form, Box<Response>> {
    let read = tokio::time::timeout(FORM_WITHIN, axum::body::to_bytes(body, LARGEST_FORM)).await;
    let body: Bytes = read.ok().and_then(Result::ok).ok_or_else(|| {
        let text = "The form could not be read. Go back and submit it again.";
        Box::new(page(StatusCode::BAD_REQUEST, layout::message("Form not read", text)))
    })?;
    Ok(Form(form_urlencoded::parse(&body).into_owned().collect()))
}

fn refused(denied: &Denied) -> Response {
    match denied {
        Denied::NoSession => redirect("/ui/login"),
        Denied::Foreign(why) => {
            page(StatusCode::FORBIDDEN, layout::message("Request from another site", why))
        }
        Denied::Forged => {
            let text = "This button was not pressed on respool's own page, or respool has restarted since the page was loaded. Load the page again.";
            page(StatusCode::FORBIDDEN, layout::message("Not accepted", text))
        }
    }
}

/// A page with the headers that all pages have.
fn page(status: StatusCode, markup: Markup) -> Response {
    let mut response = Response::new(Body::from(markup.into_string()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    guarded(response)
}

fn guarded(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // `same-origin` and not `no-referrer`: with that the browser would send no origin with a form.
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    headers.insert("cross-origin-opener-policy", HeaderValue::from_static("same-origin"));
    response
}

fn asset(text: &'static str, kind: &'static str) -> Response {
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    guarded(response)
}

fn redirect(to: &str) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SEE_OTHER;
    if let Ok(to) = HeaderValue::from_str(to) {
        response.headers_mut().insert(header::LOCATION, to);
    }
    guarded(response)
}
