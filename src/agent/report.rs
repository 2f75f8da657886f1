//! What people and programs are told of a run: the row of a list, and the breakdown. Called by `server` and `cli`.

use serde_json::{Value, json};

use super::record::Iteration;
use super::run::Run;
use super::taking_up::restored;
use crate::store::{RunRow, StoredRun};

/// A run in a list. Times are seconds since 1970.
pub fn summary(row: &RunRow) -> Value {
    json!({
        "id": row.id, "object": "run", "agent": row.agent, "status": row.status.as_str(),
        "created": row.created / 1_000, "updated": row.updated / 1_000, "bytes": row.bytes,
    })
}

/// A run with its iterations, tokens, limit, and the answer once there is one.
pub fn breakdown(stored: &StoredRun) -> Value {
    let mut body = summary(&stored.row);
    let Some((run, _)) = restored(stored) else {
        body["error"] = "this run was written by another version of respool and cannot be read".into();
        return body;
    };
    let spent = run.spent();
    body["usage"] = json!({
        "prompt_tokens": spent.prompt, "completion_tokens": spent.completion, "total_tokens": spent.total(),
        "reasoning_tokens": spent.reasoning, "cached_tokens": spent.cached,
    });
    body["duration_ms"] = run.worked().into();
    body["iterations"] = run.iterations().iter().map(iteration).collect();
    body["waits_for"] = run.awaited().iter().map(|call| call.name.as_str()).collect();
    outcome(&run, &mut body);
    body
}

fn outcome(run: &Run, body: &mut Value) {
    let Some(outcome) = run.outcome() else { return };
    body["answer"] = outcome.text().into();
    body["limit"] = outcome.limit.as_ref().map(super::outcome::Limit::name).into();
    if let Some(failure) = &outcome.failure {
        body["failure"] = json!({"code": failure.code, "message": failure.text});
    }
}

fn iteration(iteration: &Iteration) -> Value {
    let tokens = iteration.tokens;
    let tools: Vec<Value> =
        iteration.tools.iter().filter_map(|tool| serde_json::to_value(tool).ok()).collect();
    let injected: usize = iteration.tools.iter().map(|tool| tool.injected_bytes).sum();
    json!({
        "why": iteration.why, "parser": iteration.parser, "model_ms": iteration.model_ms,
        "prompt_tokens": tokens.prompt, "completion_tokens": tokens.completion, "reasoning_tokens": tokens.reasoning,
        "injected_bytes": injected, "tools": tools,
    })
}
