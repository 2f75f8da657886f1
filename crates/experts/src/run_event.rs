//! The invocation and the event of a run, for the person who decides about its calls.

use serde_json::{Value, json};

use super::invocation::Invocation;
use super::trigger::event_facts;
use agent::{entry_of_work, report::request_text};
use store::{Store, StoreError};

/// Returns the event that a run of an invocation, or a child run of it, is for, with the invocation's id, its
/// process and trigger; of another run, the message that it answers, as `asked`.
///
/// # Errors
/// When the store cannot be read.
pub async fn event_of_run(store: &Store, run: &str) -> Result<Option<Value>, StoreError> {
    let Some(entry) = entry_of_work(store, run).await? else { return asked_by_person(store, run).await };
    let Ok(invocation) = Invocation::read(&entry.payload) else { return Ok(None) };
    let mut event = json!({"invocation": entry.id, "process": invocation.process, "trigger": invocation.origin.trigger_name()});
    if let Some(event) = event.as_object_mut() {
        event.extend(event_facts(&invocation));
    }
    Ok(Some(event))
}

/// Returns the message that a conversation answers. A child run is for that of its parent.
async fn asked_by_person(store: &Store, run: &str) -> Result<Option<Value>, StoreError> {
    let mut id = run.to_owned();
    while let Some(stored) = store.run(&id).await? {
        match &stored.row.parent {
            Some(parent) => id.clone_from(parent),
            None => return Ok(request_text(&stored).map(|text| json!({"asked": text}))),
        }
    }
    Ok(None)
}
