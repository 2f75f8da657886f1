//! `/v1/approvals`: lists and decides calls of runs that wait for a person's consent. For operators alone:
//! the list contains other clients' inputs, and a client that may decide could let an agent approve its own
//! calls.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use super::app::App;
use super::metered_request::MeteredRequest;
use super::own_route::{begin_own_record, finish_response};
use super::respond::store_failed;
use ::agent::{ApprovalRequest, DecideError, Decision, approval_details, report};
use wire::{ApiError, ErrorCode};

/// The most requests in the list.
const MOST: usize = 1_000;
/// A decision is a list of ids, a comment, and inputs.
const LARGEST_BODY: usize = 64 * 1024;

/// The body of a decision.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DecisionBody {
    approve: Approve,
    #[serde(default)]
    comment: Option<String>,
    /// Inputs in the place of those of approved calls, by the calls' ids.
    #[serde(default)]
    inputs: BTreeMap<String, Value>,
}

/// The calls that are approved.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "`approve` must be true, false or a list of the ids of calls")]
enum Approve {
    All(bool),
    Calls(Vec<String>),
}

pub(super) async fn list_approvals(State(app): State<App>, request: Request) -> Response {
    let (record, requester) =
        (begin_own_record(&app, &request, "GET /v1/approvals", "approvals"), operator_name(&request));
    let listed = async {
        requester?;
        let rows = app.agents.waiting_approvals(MOST).await.map_err(store_failed)?;
        let rows: Vec<Value> = rows.iter().map(|(row, _)| report::approval_row(row)).collect();
        Ok(json!({"object": "list", "data": rows}))
    };
    finish_response(listed.await, &record)
}

pub(super) async fn get_approval(
    State(app): State<App>,
    Path(id): Path<String>,
    request: Request,
) -> Response {
    let (record, requester) =
        (begin_own_record(&app, &request, "GET /v1/approvals/{id}", "approvals"), operator_name(&request));
    let found = async {
        requester?;
        let store = app.agents.store().ok_or_else(|| unknown_approval(&id))?;
        let row = store.approval(&id).await.map_err(store_failed)?.ok_or_else(|| unknown_approval(&id))?;
        let mut details = approval_details(store, &row).await.map_err(store_failed)?;
        if let Some(event) = experts::event_of_run(store, &row.run).await.map_err(store_failed)? {
            details["event"] = event;
        }
        Ok(details)
    };
    finish_response(found.await, &record)
}

pub(super) async fn decide_approval(
    State(app): State<App>,
    Path(id): Path<String>,
    request: Request,
) -> Response {
    let (record, requester) =
        (begin_own_record(&app, &request, "POST /v1/approvals/{id}", "approvals"), operator_name(&request));
    let decided = async {
        let by = requester?;
        let store = app.agents.store().ok_or_else(|| unknown_approval(&id))?;
        let row = store.approval(&id).await.map_err(store_failed)?.ok_or_else(|| unknown_approval(&id))?;
        let asked: ApprovalRequest = serde_json::from_str(&row.body).map_err(|_| unknown_approval(&id))?;
        let decision = read_decision(request, &asked, by).await?;
        app.agents.decide_approval(&decision).await.map_err(|error| decide_error(&id, error))?;
        Ok(json!({"id": id, "approved": decision.approved_calls(), "by": decision.by}))
    };
    finish_response(decided.await, &record)
}

/// Returns the name of the operator's key that a request carries.
pub(super) fn operator_name(request: &Request) -> Result<String, ApiError> {
    match request.extensions().get::<Arc<MeteredRequest>>() {
        Some(metered) if metered.key.is_operator => Ok(metered.key.name.clone()),
        _ => {
            let what = "approvals and deliveries of experts need an operator key: send one of `operator_keys_env` as `authorization: Bearer KEY`, or set \
                        `operator_keys_env` in respool.toml first";
            Err(ApiError::new(403, ErrorCode::OperatorsOnly, what))
        }
    }
}

async fn read_decision(request: Request, asked: &ApprovalRequest, by: String) -> Result<Decision, ApiError> {
    let bad = |what: String| ApiError::bad_request(ErrorCode::InvalidJson, what);
    let body = axum::body::to_bytes(request.into_body(), LARGEST_BODY).await;
    let body = body.map_err(|error| bad(format!("the request body cannot be read: {error}")))?;
    let body: DecisionBody = serde_json::from_slice(&body).map_err(|error| {
        bad(format!(
            "the request body is not a decision ({error}): send {{\"approve\": true}}, {{\"approve\": false, \"comment\": \"…\"}} or \
             {{\"approve\": [\"ID OF A CALL\"]}}"
        ))
    })?;
    let approved = match body.approve {
        Approve::All(true) => asked.calls.iter().map(|call| call.id.clone()).collect(),
        Approve::All(false) => Vec::new(),
        Approve::Calls(calls) => calls,
    };
    let mut decision =
        Decision { request: asked.id.clone(), approved, by, comment: body.comment, ..Decision::default() };
    if let Some(rejected) = body.inputs.keys().find(|id| !decision.approved.contains(id)) {
        return Err(bad(format!("`inputs` names the call `{rejected}`, which `approve` does not")));
    }
    decision.change_inputs(body.inputs.iter().map(|(id, inputs)| (id.clone(), inputs.to_string())).collect());
    Ok(decision)
}

fn decide_error(id: &str, error: DecideError) -> ApiError {
    match error {
        DecideError::Unknown => unknown_approval(id),
        DecideError::NotWaiting(row) => {
            let what = format!("the approval `{id}` is no longer waiting: {}", report::describe_end(&row));
            ApiError::new(409, ErrorCode::ApprovalNotWaiting, what)
        }
        DecideError::TooLate => {
            let what = format!(
                "the approval `{id}` came too late: its time has run out, and the package rejects its calls in that case"
            );
            ApiError::new(409, ErrorCode::ApprovalNotWaiting, what)
        }
        DecideError::UnknownCall(call, known) => {
            let what = format!("the approval `{id}` has no call `{call}`. Its calls: {}", known.join(", "));
            ApiError::bad_request(ErrorCode::UnsupportedValue, what).with_param("approve")
        }
        error @ DecideError::NotChangeable(..) => {
            ApiError::bad_request(ErrorCode::UnsupportedValue, error.describe_for(id)).with_param("inputs")
        }
        DecideError::Store(error) => store_failed(error),
    }
}

fn unknown_approval(id: &str) -> ApiError {
    let what = format!("there is no approval `{id}`; GET /v1/approvals lists those that wait");
    ApiError::new(404, ErrorCode::ApprovalNotFound, what)
}
