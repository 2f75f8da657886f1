//! The invocation and the event of a run, for the person who decides about its calls.

use serde_json::{Value, json};

use super::invocation::Invocation;
use super::trigger::event_facts;
use agent::entry_of_work;
use store::{Store, StoreError};

/// Returns the event that a run of an invocation, or a child run of it, is for, with the invocation's id, its
/// process and trigger.
/// `None` for other runs.
///
/// # Errors
/// When the store cannot be read.
pub async fn event_of_run(store: &Store, run: &str) -> Result<Option<Value>, StoreError> {
    let Some(entry) = entry_of_work(store, run).await? else { return Ok(None) };
    let Ok(invocation) = Invocation::read(&entry.payload) else { return Ok(None) };
    let mut event = json!({"invocation": entry.id, "process": invocation.process, "trigger": invocation.origin.trigger_name()});
    if let Some(event) = event.as_object_mut() {
        event.extend(event_facts(&invocation));
    }
    Ok(Some(event))
}
