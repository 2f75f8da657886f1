//! The calls of an invocation that no later attempt makes again, for people.

use super::attempt::invocation_tag;
use super::verdict::{settled_calls, unknown_outcomes};
use crate::invocation::Invocation;
use crate::message::operation_title;
use crate::tools::LEARN;
use agent::{CallOutcome, FactsError, MadeCall, RunFacts, facts_of_work};
use serde_json::Value;
use store::Store;

/// Lists the calls that a replay of an invocation does not make again, each once, as operation and inputs.
/// They succeeded or were handed over as drafts; `Unknown` ones may have taken effect.
///
/// # Errors
/// When the runs of the invocation cannot be read.
pub async fn settled_operations(
    store: &Store,
    invocation: &Invocation,
) -> Result<Vec<(String, CallOutcome)>, FactsError> {
    let calls = calls_of_work(store, invocation).await?;
    let mut found = Vec::new();
    for call in settled_calls(&calls).into_iter().filter(|call| call.name != LEARN) {
        let outcome = match call.outcome {
            outcome @ (CallOutcome::Ok | CallOutcome::HandedOver) => outcome,
            _ => CallOutcome::Unknown,
        };
        let one = (format!("{} {}", operation_title(&call.name), call.arguments), outcome);
        if !found.contains(&one) {
            found.push(one);
        }
    }
    Ok(found)
}

/// Lists the calls of an invocation that may or may not have taken effect, with their inputs.
///
/// # Errors
/// When the runs of the invocation cannot be read.
pub(crate) async fn unknown_operations(
    store: &Store,
    invocation: &Invocation,
) -> Result<Vec<Value>, FactsError> {
    Ok(unknown_outcomes(&calls_of_work(store, invocation).await?))
}

async fn calls_of_work(store: &Store, invocation: &Invocation) -> Result<Vec<MadeCall>, FactsError> {
    let runs = facts_of_work(store, &invocation_tag(invocation)).await?;
    Ok(runs.iter().flat_map(RunFacts::all_calls).collect())
}
