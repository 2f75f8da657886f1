//! What a run is for: its invocation and its event, for the person who decides about its calls.

use serde_json::{Value, json};

use super::invocation::Invocation;
use super::trigger::event_facts;
use store::{Queue as _, Store, StoreError};

/// Returns what a run of an invocation is for: the invocation's id, its process, its trigger and its event.
/// `None` for other runs.
///
/// # Errors
/// When the store cannot be read.
pub async fn event_of_run(store: &Store, run: &str) -> Result<Option<Value>, StoreError> {
    let Some(entry) = store.entry_of_run(run).await? else { return Ok(None) };
    let Ok(invocation) = Invocation::read(&entry.payload) else { return Ok(None) };
    let mut event = json!({"invocation": entry.id, "process": invocation.process, "trigger": invocation.origin.trigger_name()});
    if let Some(event) = event.as_object_mut() {
        event.extend(event_facts(&invocation));
    }
    Ok(Some(event))
}
