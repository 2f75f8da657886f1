//! The page at `/`, for owners and their teams: what runs, what was repaired, what it cost, what went wrong
//! and what to do.
//!
//! Pages are written on the server and work without scripts; one small script keeps them live. Nothing is
//! loaded from elsewhere. Content of messages is shown only with `[log] content` or `[capture]`.
//! Where clients have keys, an operator's key opens the page (`session`); elsewhere the checks of `pages`
//! hold. Every button carries a mark of the session (`Viewer::csrf`).

mod alerts;
mod approvals;
mod chart;
mod drafts;
mod exchange;
mod experts;
mod format;
mod guard;
mod layout;
mod limits;
mod live;
mod live_parts;
mod login;
mod nodes;
mod overview;
mod query;
mod remedy;
mod request;
mod requests;
mod response;
mod runs;
pub(super) mod session;
mod usage;
mod waterfall;
mod words;

pub use words::{
    describe_fallback, describe_repairs, describe_wait, reason as describe_reason, remedy as describe_remedy,
};

use axum::Router;
use axum::response::Response;
use axum::routing::{get, post};
use http::{Method, Request, StatusCode, header};
use maud::html;

use super::app::App;
use super::keys::key_in_headers;
use response::{asset_response, page_response, redirect_response};
use wire::{ApiError, ErrorCode};

/// The pages whose address is often tried without its `/ui`.
const TABS: [&str; 5] = ["/requests", "/runs", "/experts", "/usage", "/approvals"];

/// The routes of the page.
pub(super) fn page_routes() -> Router<App> {
    Router::new()
        .route("/", get(overview::show_overview))
        .route("/ui/live", get(live::stream_live_parts))
        .route("/ui/requests", get(requests::show_requests))
        .route("/ui/requests/{id}", get(request::show_request))
        .route("/ui/runs", get(runs::show_runs))
        .route("/ui/runs/{id}", get(runs::show_run))
        .route("/ui/runs/{id}/end", post(runs::end_run))
        .route("/ui/experts", get(experts::show_experts))
        .route("/ui/experts/{name}", get(experts::show_expert))
        .route("/ui/usage", get(usage::show_usage))
        .route("/ui/approvals", get(approvals::show_approvals))
        .route("/ui/approvals/{id}", post(approvals::decide_approval))
        .route("/favicon.ico", get(|| async { StatusCode::NO_CONTENT }))
        .route("/ui/letters/{id}", post(approvals::settle_task))
        .route("/ui/drafts/{id}", post(drafts::end_draft))
        .route("/ui/login", get(login::show_login).post(login::log_in))
        .route("/ui/logout", post(login::log_out))
        .route("/ui/alerts", post(alerts::silence_alert))
        .route("/ui/", get(answer_not_found))
        .route("/ui/{*rest}", get(answer_not_found).fallback(answer_not_found))
        .route(
            "/ui/style.css",
            get(|| async { asset_response(include_str!("style.css"), "text/css; charset=utf-8") }),
        )
        .route("/ui/icon.svg", get(|| async { asset_response(include_str!("icon.svg"), "image/svg+xml") }))
        .route(
            "/ui/page.js",
            get(|| async { asset_response(include_str!("page.js"), "text/javascript; charset=utf-8") }),
        )
}

/// Answers a person's browser that was refused an address outside the page; `None` for programs.
pub(super) fn answer_lost_visitor<B>(app: &App, request: &Request<B>, error: &ApiError) -> Option<Response> {
    let headers = request.headers();
    let accepts = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let is_browser = request.method() == Method::GET && accepts.starts_with("text/html");
    let refusals = [ErrorCode::InvalidApiKey, ErrorCode::AdministrativeRoute, ErrorCode::NotFound];
    let is_lost = error.code.is_some_and(|code| refusals.contains(&code));
    if !is_browser || !is_lost || key_in_headers(headers).is_some() {
        return None;
    }
    let path = request.uri().path();
    if TABS.contains(&path) {
        return Some(redirect_response(&format!("/ui{path}")));
    }
    let viewer = match guard::find_viewer(app, headers) {
        Ok(viewer) => viewer,
        Err(denied) => return Some(guard::refuse_visitor(&denied)),
    };
    let main = html! { h1 { "Not found" } p { "This page does not exist." } };
    Some(page_response(StatusCode::NOT_FOUND, layout::page_layout(&viewer, "", "Not found", &main)))
}

/// Answers the other paths below the page's. They never go to an upstream, because they need no key.
async fn answer_not_found() -> Response {
    page_response(StatusCode::NOT_FOUND, layout::message_page("Not found", "This page does not exist."))
}
