//! `/v1/runs`: the runs of agents, newest first; one run with its breakdown; ending one.

use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::response::Response;
use http::{HeaderValue, header};
use serde_json::{Value, json};

use super::app::App;
use super::metered_request::MeteredRequest;
use super::own_route::{begin_own_record, finish_response};
use super::respond::store_failed;
use agent::{client_digest, report};
use store::{RunFilter, Store};
use usage::Money;
use wire::{ApiError, ErrorCode};

/// How many runs are listed.
const MOST: usize = 100;

pub(super) async fn list_runs(State(app): State<App>, request: Request) -> Response {
    let record = begin_own_record(&app, &request, "GET /v1/runs", "runs");
    let (page, whose) = (app.access.foreign_page(request.headers()), visible_runs(&request));
    let listed = async {
        page.map_or(Ok(()), Err)?;
        let rows = require_store(&app)?.newest(whose, MOST).await.map_err(store_failed)?;
        let rows: Vec<Value> = rows.iter().map(report::summary).collect();
        Ok(json!({"object": "list", "data": rows}))
    };
    finish_response(listed.await, &record)
}

pub(super) async fn get_run(State(app): State<App>, Path(id): Path<String>, request: Request) -> Response {
    let record = begin_own_record(&app, &request, "GET /v1/runs/{id}", "runs");
    let (page, whose) = (app.access.foreign_page(request.headers()), visible_runs(&request));
    let found = async {
        page.map_or(Ok(()), Err)?;
        let run = require_store(&app)?.run(&id).await.map_err(store_failed)?;
        let run = run.filter(|run| whose.includes(&run.row.agent, run.client.as_deref()));
        let mut body = report::breakdown(&run.ok_or_else(|| unknown_run(&id))?);
        body["cost"] = app.usage.records().run_cost(&id).await.map(Money::units).into();
        Ok(body)
    };
    finish_response(found.await, &record)
}

pub(super) async fn cancel_run(State(app): State<App>, Path(id): Path<String>, request: Request) -> Response {
    let record = begin_own_record(&app, &request, "POST /v1/runs/{id}/cancel", "runs");
    if let Some(error) = app.access.foreign_page(request.headers()) {
        return finish_response(Err(error), &record);
    }
    let whose = visible_runs(&request);
    let cancelled = async {
        if app.agents.is_of(&id, &whose).await? && app.agents.cancel_run(&id).await? {
            return Ok(Ok(json!({"id": id, "cancelled": true})));
        }
        let what = format!("there is no run `{id}` that could be ended");
        Ok(Err(ApiError::new(404, ErrorCode::RunNotFound, what)))
    };
    finish_response(cancelled.await.unwrap_or_else(|error| Err(store_failed(error))), &record)
}

/// Returns the runs that a request may see and end: its client's own; an operator's: all but chats of the
/// terminal. Where clients have no keys and so are not distinguished: those of all clients.
fn visible_runs(request: &Request) -> RunFilter {
    match request.extensions().get::<Arc<MeteredRequest>>() {
        Some(metered) if metered.key.is_operator => RunFilter::Served,
        Some(_) => {
            let key = request.headers().get(header::AUTHORIZATION).map_or(&[][..], HeaderValue::as_bytes);
            RunFilter::Client(client_digest(key))
        }
        None => RunFilter::Clients,
    }
}

fn require_store(app: &App) -> Result<&Arc<Store>, ApiError> {
    let text =
        "No runs are stored: no agent is configured, or the state directory cannot be used (see the log)";
    app.agents.store().ok_or_else(|| ApiError::new(404, ErrorCode::NoStore, text))
}

fn unknown_run(id: &str) -> ApiError {
    ApiError::new(404, ErrorCode::RunNotFound, format!("there is no run `{id}`; GET /v1/runs lists them"))
}
