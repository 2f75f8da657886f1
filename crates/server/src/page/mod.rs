//! The page at `/`, for owners and their teams: what runs, what was repaired, what it cost, what went wrong
//! and what to do.
//!
//! Pages are written on the server and work without scripts; one small script keeps the list of running
//! requests live. Nothing is loaded from elsewhere. Content of messages is shown only with `[log] content`.
//! Where clients have keys, an operator's key opens the page (`session`); elsewhere the checks of `pages`
//! hold. Every button carries a mark of the session (`Viewer::csrf`).

mod alerts;
mod approvals;
mod chart;
mod format;
mod guard;
mod layout;
mod live;
mod live_parts;
mod login;
mod overview;
mod remedy;
mod requests;
mod response;
mod runs;
pub(super) mod session;
mod usage;

use axum::Router;
use axum::response::Response;
use axum::routing::{get, post};
use http::StatusCode;

use super::app::App;
use response::{asset, page};

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

/// Answers the other paths below the page's. They never go to an upstream, because they need no key.
async fn nothing() -> Response {
    page(StatusCode::NOT_FOUND, layout::message("Not found", "This page does not exist."))
}
