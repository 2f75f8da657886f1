//! For the person who decides about the calls of a run: its invocation and event, and what is in the way of
//! its calls.

use serde_json::{Value, json};

use super::execution::{find_message, report_calls, unknown_operations};
use super::invocation::Invocation;
use super::library::{Installed, Library, digest};
use super::message::message_json;
use super::trigger::event_facts;
use agent::{entry_of_work, read_facts, report::request_text, report::snapshot_of};
use openexperts::label::MODEL_PREFIX;
use store::{ApprovalRow, Store, StoreError, StoredRun};

/// The most calls before a request that are shown with it, and the characters of each result.
const MOST_CALLS: usize = 12;
const LONGEST_RESULT: usize = 4_000;

/// The reason why the calls of a request are not made, even if they are approved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// They wait until the expert is installed again.
    #[error("{0} is not installed: an approved call is made once it is installed again")]
    NotInstalled(String),
    /// They can never be made.
    #[error("its calls cannot be made any more: the version of {0} with which it began is not kept")]
    VersionGone(String),
}

/// Finds what is in the way of the calls of a waiting request.
///
/// # Errors
/// When the store cannot be read.
pub async fn find_obstacle(
    store: &Store,
    library: &Library,
    row: &ApprovalRow,
) -> Result<Option<Obstacle>, StoreError> {
    let Some(name) = row.agent.strip_prefix(MODEL_PREFIX) else { return Ok(None) };
    let name = name.split('/').next().unwrap_or(name);
    let began = first_run(store, &row.run).await?.map(|run| snapshot_of(&run).digest).unwrap_or_default();
    let installed = library.get(name).ok();
    let folder = installed.as_ref().map_or_else(|| name.to_owned(), Installed::folder);
    let package = installed.as_ref().and_then(|installed| installed.loaded.package.as_ref());
    let is_there = package.is_some_and(|package| digest(&package.files) == began);
    Ok(if !is_there && library.package_of(&folder, &began).is_none() {
        Some(Obstacle::VersionGone(name.to_owned()))
    } else {
        installed.is_none().then(|| Obstacle::NotInstalled(name.to_owned()))
    })
}

/// Returns the event that a run of an invocation, or a child run of it, is for, with the invocation's id, its
/// process, trigger and attempt. Of another run it returns the message that it answers, as `asked`. Both have
/// the last calls of the run with their results, cut, as `earlier_calls`.
///
/// # Errors
/// When the store cannot be read.
pub async fn event_of_run(store: &Store, run: &str) -> Result<Option<Value>, StoreError> {
    let Some(mut event) = event_alone(store, run).await? else { return Ok(None) };
    let calls = earlier_calls(store, run).await;
    if !calls.is_empty() {
        event["earlier_calls"] = calls.into();
    }
    Ok(Some(event))
}

/// Returns the last calls of a run; none of one that cannot be read.
async fn earlier_calls(store: &Store, run: &str) -> Vec<Value> {
    let Ok(Some(facts)) = read_facts(store, run).await else { return Vec::new() };
    let mut calls = report_calls(&facts, facts.is_private, |_| false);
    calls.drain(..calls.len().saturating_sub(MOST_CALLS));
    for call in &mut calls {
        let text = call["result"].as_str().unwrap_or_default();
        if let Some((end, _)) = text.char_indices().nth(LONGEST_RESULT) {
            call["result"] = format!("{} … ({} bytes)", &text[..end], text.len()).into();
        }
    }
    calls
}

async fn event_alone(store: &Store, run: &str) -> Result<Option<Value>, StoreError> {
    let Some(entry) = entry_of_work(store, run).await? else { return asked_by_person(store, run).await };
    let Ok(invocation) = Invocation::read(&entry.payload) else { return Ok(None) };
    let mut event = json!({"invocation": entry.id, "process": invocation.process, "attempt": entry.attempt,
        "trigger": invocation.origin.trigger_name()});
    // What cannot be read is said where the attempt goes on.
    let unknown = unknown_operations(store, &invocation).await.unwrap_or_default();
    if let Some(event) = event.as_object_mut() {
        event.extend(event_facts(&invocation));
        if !unknown.is_empty() {
            event.insert("unknown_outcomes".to_owned(), unknown.into());
        }
        if entry.id != invocation.id {
            event.insert("tried_again".to_owned(), earlier_try(store, &invocation).await?);
        }
    }
    Ok(Some(event))
}

/// Returns why the task ended before a person had it tried again, and what that person said.
async fn earlier_try(store: &Store, invocation: &Invocation) -> Result<Value, StoreError> {
    let message = find_message(store, &invocation.id).await?;
    let body = message.map(|row| message_json(&row)["body"].take()).unwrap_or_default();
    let reason = body["reason"].as_str().filter(|_| body["is_private"] != true);
    Ok(json!({"before": reason, "comment": invocation.comment}))
}

/// Returns the message that a conversation answers. A child run is for that of its parent.
async fn asked_by_person(store: &Store, run: &str) -> Result<Option<Value>, StoreError> {
    let text = first_run(store, run).await?.as_ref().and_then(request_text);
    Ok(text.map(|text| json!({"asked": text})))
}

/// Returns the run at the top of a run's parents.
async fn first_run(store: &Store, run: &str) -> Result<Option<StoredRun>, StoreError> {
    let mut id = run.to_owned();
    while let Some(stored) = store.run(&id).await? {
        match &stored.row.parent {
            Some(parent) => id.clone_from(parent),
            None => return Ok(Some(stored)),
        }
    }
    Ok(None)
}
