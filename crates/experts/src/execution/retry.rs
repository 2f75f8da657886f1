//! The tasks that failed or were escalated and wait for a person, who may have one tried again. What earlier
//! attempts did is kept: the new entry is the same invocation.

use std::collections::HashMap;

use super::settled::settled_operations;
use crate::invocation::Invocation;
use crate::message::{Message, MessageKind};
use agent::{CallOutcome, FactsError};
use serde_json::json;
use store::{EntryRow, EntryState, MessageRow, Store, StoreError};

/// The ends of the ids of messages about an invocation that waits for a person.
const ANSWERED: [&str; 3] = ["failed", "escalated", "lost"];
/// Why such a message needs no delivery any more.
const RETRIED: &str = "done: tried again as ";
const DROPPED: &str = "done: dropped by a person";
/// The most tasks of each state among which the one is looked for that another was tried again as.
const MOST: usize = 1_000;
/// All states in which that task may be.
const STATES: [EntryState; 7] = [
    EntryState::Waiting,
    EntryState::Claimed,
    EntryState::Held,
    EntryState::Done,
    EntryState::Escalated,
    EntryState::Failed,
    EntryState::DeadLetter,
];

/// How long a task without a message counts as waiting for a person, in milliseconds.
const SHOWN_FOR: u64 = 24 * 3_600_000;
/// The same for a task whose message was delivered: a model may have read it, and no person.
const SHOWN_AFTER_DELIVERY: u64 = 7 * SHOWN_FOR;

/// A task that waits for a person, with its message, if it has one.
#[derive(Debug)]
pub struct OpenTask {
    /// The task.
    pub row: EntryRow,
    /// The message that says why.
    pub message: Option<MessageRow>,
}

impl OpenTask {
    /// Returns when its message was delivered to OpenClaw.
    pub fn delivery_time(&self) -> Option<u64> {
        self.message.as_ref().filter(|message| message.attempts > 0)?.delivered
    }
}

/// Returns the tasks that failed for good or were escalated, the newest of each state first. Those whose
/// message was marked as done, or delivered long ago, are left out, and those that a person ended without a
/// message.
/// `queue`: of this one alone.
///
/// # Errors
/// When the store cannot be read.
pub async fn open_tasks(
    store: &Store,
    queue: Option<&str>,
    most: usize,
) -> Result<Vec<OpenTask>, StoreError> {
    let mut found = Vec::new();
    for state in EntryState::REPLAYABLE {
        let rows = store.newest_entries(queue, state, most).await?;
        let mut messages = find_messages(store, rows.iter().map(|row| row.id.as_str())).await?;
        for row in rows {
            let message = messages.remove(&row.id);
            let is_open = match &message {
                _ if state == EntryState::DeadLetter => true,
                // One that was only kept was never tried.
                Some(MessageRow { delivered: Some(at), note, attempts, .. }) => {
                    *attempts > 0 && note.is_none() && at.saturating_add(SHOWN_AFTER_DELIVERY) > clock::now()
                }
                Some(_) => true,
                None if row.is_ended_by_person() => false,
                None => row.ended.is_some_and(|ended| ended.saturating_add(SHOWN_FOR) > clock::now()),
            };
            if is_open {
                found.push(OpenTask { row, message });
            }
        }
    }
    Ok(found)
}

/// Returns the message that says why a task waits for a person.
pub(crate) async fn find_message(store: &Store, task: &str) -> Result<Option<MessageRow>, StoreError> {
    Ok(find_messages(store, [task]).await?.remove(task))
}

/// Returns these messages of several tasks, by the task.
async fn find_messages(
    store: &Store,
    tasks: impl IntoIterator<Item = &str>,
) -> Result<HashMap<String, MessageRow>, StoreError> {
    let ids = tasks.into_iter().flat_map(|task| ANSWERED.map(|end| format!("{task}:{end}")));
    let rows = store.messages_by_id(ids.collect()).await?;
    let of_task = |row: MessageRow| Some((row.message.id.rsplit_once(':')?.0.to_owned(), row));
    Ok(rows.into_iter().filter_map(of_task).collect())
}

/// A task that is queued again.
#[derive(Debug)]
pub struct Retried {
    /// The id of its new entry.
    pub id: String,
    /// The operations that are not called again; an error if they cannot be read here. The worker reads the
    /// same runs, and says more when it ends the invocation.
    pub settled: Result<Vec<(String, CallOutcome)>, FactsError>,
}

/// Why a task cannot be tried again.
#[derive(Debug, thiserror::Error)]
pub enum RetryError {
    /// There is no such task.
    #[error(
        "there is no task {0:?}; `respool expert queue` lists the tasks that wait, are at work, or need you"
    )]
    Unknown(String),
    /// It was tried again, as this task, which is this far.
    #[error("{0} was tried again as {1}, which is {2}")]
    Again(String, String, &'static str),
    /// It was tried again or dropped, as the note of its message says.
    #[error("{0} waits no longer: {1}")]
    Settled(String, String),
    /// It has not ended.
    #[error("{0} has not ended: it is {1}. `respool expert cancel {0}` ends it")]
    Open(String, &'static str),
    /// It was done.
    #[error(
        "{0} is done. To do it again, fire its trigger: `respool expert fire EXPERT TRIGGER --payload …`"
    )]
    Done(String),
    /// It cannot be read.
    #[error("{0} cannot be read, so it cannot be tried again: {1}")]
    Unreadable(String, serde_json::Error),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Queues a task again that failed or was escalated. `id`: the task, or a message about it. `comment`: for
/// the agent.
///
/// # Errors
/// When there is no such task, it has not ended, or it was done.
pub async fn retry_task(store: &Store, id: &str, comment: Option<&str>) -> Result<Retried, RetryError> {
    let id = id.split_once(':').map_or(id, |(task, _)| task);
    let Some(row) = store.entry(id).await? else { return Err(why_gone(store, id).await?) };
    let mut invocation = read_ended(&row)?;
    let settled = settled_operations(store, &invocation).await;
    invocation.comment = comment.map(str::trim).filter(|comment| !comment.is_empty()).map(str::to_owned);
    let payload =
        serde_json::to_string(&invocation).map_err(|error| RetryError::Unreadable(id.to_owned(), error))?;
    let new = format!("inv-{:032x}", rand::random::<u128>());
    if !store.replay(id, &new, Some(payload)).await? {
        return Err(why_gone(store, id).await?);
    }
    end_messages(store, id, &format!("{RETRIED}{new}")).await?;
    Ok(Retried { id: new, settled })
}

/// Returns why a task cannot be found: it was tried again, it was dropped, or the id is wrong.
async fn why_gone(store: &Store, id: &str) -> Result<RetryError, StoreError> {
    for state in STATES {
        let rows = store.newest_entries(None, state, MOST).await?;
        let is_same =
            |row: &EntryRow| Invocation::read(&row.payload).is_ok_and(|invocation| invocation.id == id);
        if let Some(row) = rows.into_iter().find(is_same) {
            return Ok(RetryError::Again(id.to_owned(), row.id, state.as_str()));
        }
    }
    let note = find_message(store, id).await?.and_then(|message| message.note);
    Ok(match note {
        Some(note) => RetryError::Settled(id.to_owned(), note),
        None => RetryError::Unknown(id.to_owned()),
    })
}

/// Drops a task that failed or was escalated: it waits for a person no longer. False when it did not.
///
/// # Errors
/// When the store cannot be written.
pub async fn drop_task(store: &Store, id: &str) -> Result<bool, StoreError> {
    let has_message = end_messages(store, id, DROPPED).await?;
    Ok(store.drop_dead_letter(id).await? || has_message || drop_unannounced(store, id).await?)
}

/// Drops a failed task that no message is about, by keeping one. False when it is about none.
async fn drop_unannounced(store: &Store, id: &str) -> Result<bool, StoreError> {
    let row = store.entry(id).await?;
    let failed = row.filter(|row| row.state == EntryState::Failed && !row.is_ended_by_person());
    let Some(row) = failed else { return Ok(false) };
    let message = Message {
        id: format!("{id}:failed"),
        expert: row.queue,
        entry: Some(row.id),
        process: Some(Invocation::read(&row.payload).map(|it| it.process).unwrap_or_default()),
        run: row.run,
        kind: MessageKind::Escalation,
        body: json!({"reason": row.note}),
    };
    let (message, now) = (message.into_row(), clock::now());
    let id = message.id.clone();
    Ok(store.keep_message(message, now).await? && store.end_message(&id, now, Some(DROPPED)).await?)
}

/// Ends the delivery of what waits for a person about a task. False when nothing did.
async fn end_messages(store: &Store, id: &str, why: &str) -> Result<bool, StoreError> {
    let mut has_ended = false;
    for end in ANSWERED {
        has_ended |= store.end_message(&format!("{id}:{end}"), clock::now(), Some(why)).await?;
    }
    Ok(has_ended)
}

/// Reads the invocation of a task that may be tried again.
fn read_ended(row: &EntryRow) -> Result<Invocation, RetryError> {
    match row.state {
        state if EntryState::REPLAYABLE.contains(&state) => {}
        EntryState::Done => return Err(RetryError::Done(row.id.clone())),
        state => return Err(RetryError::Open(row.id.clone(), state.as_str())),
    }
    Invocation::read(&row.payload).map_err(|error| RetryError::Unreadable(row.id.clone(), error))
}
