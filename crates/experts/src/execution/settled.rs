//! The calls of an invocation that no later attempt makes again, for people.

use super::attempt::invocation_tag;
use super::verdict::settled_calls;
use crate::invocation::Invocation;
use crate::message::operation_title;
use crate::tools::LEARN;
use agent::{CallOutcome, FactsError, RunFacts, facts_of_work};
use store::Store;

/// Lists the operations that a replay of an invocation does not call again, each once: those that succeeded
/// or were handed over as drafts, and as `Unknown` those that may or may not have taken effect.
///
/// # Errors
/// When the runs of the invocation cannot be read.
pub async fn settled_operations(
    store: &Store,
    invocation: &Invocation,
) -> Result<Vec<(String, CallOutcome)>, FactsError> {
    let runs = facts_of_work(store, &invocation_tag(invocation)).await?;
    let calls: Vec<_> = runs.iter().flat_map(RunFacts::all_calls).collect();
    let mut found = Vec::new();
    for call in settled_calls(&calls).into_iter().filter(|call| call.name != LEARN) {
        let outcome = match call.outcome {
            outcome @ (CallOutcome::Ok | CallOutcome::HandedOver) => outcome,
            _ => CallOutcome::Unknown,
        };
        let one = (operation_title(&call.name), outcome);
        if !found.contains(&one) {
            found.push(one);
        }
    }
    Ok(found)
}
