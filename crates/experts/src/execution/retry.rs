//! The tasks that failed or were escalated and wait for a person, who may have one tried again. What earlier
//! attempts did is kept: the new entry is the same invocation.

use super::settled::settled_operations;
use crate::invocation::Invocation;
use agent::{CallOutcome, FactsError};
use store::{EntryRow, EntryState, MessageRow, Store, StoreError};

/// The ends of the ids of messages about an invocation that waits for a person.
const ANSWERED: [&str; 3] = ["failed", "escalated", "lost"];
/// Why such a message needs no delivery any more.
const RETRIED: &str = "done: a person has the task tried again";
const DROPPED: &str = "done: a person has dropped the task";

/// How long a task without a message counts as waiting for a person, in milliseconds.
const SHOWN_FOR: u64 = 24 * 3_600_000;

/// A task that waits for a person, with its message, if it has one.
#[derive(Debug)]
pub struct OpenTask {
    /// The task.
    pub row: EntryRow,
    /// The message that says why.
    pub message: Option<MessageRow>,
}

/// Returns the tasks that failed for good or were escalated, the newest of each state first. Those that a
/// person ended are left out, and those whose message was delivered or marked as done. `queue`: of this one
/// alone.
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
        for row in store.newest_entries(state, most).await? {
            if queue.is_some_and(|queue| row.queue != queue) || row.is_ended_by_person() {
                continue;
            }
            let message = find_message(store, &row.id).await?;
            let is_open = match &message {
                _ if state == EntryState::DeadLetter => true,
                Some(message) => message.delivered.is_none(),
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
async fn find_message(store: &Store, task: &str) -> Result<Option<MessageRow>, StoreError> {
    for end in ANSWERED {
        if let Some(message) = store.message(&format!("{task}:{end}")).await? {
            return Ok(Some(message));
        }
    }
    Ok(None)
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
    let unknown = || RetryError::Unknown(id.to_owned());
    let row = store.entry(id).await?.ok_or_else(unknown)?;
    let mut invocation = read_ended(&row)?;
    let settled = settled_operations(store, &invocation).await;
    invocation.comment = comment.map(str::trim).filter(|comment| !comment.is_empty()).map(str::to_owned);
    let payload =
        serde_json::to_string(&invocation).map_err(|error| RetryError::Unreadable(id.to_owned(), error))?;
    let new = format!("inv-{:032x}", rand::random::<u128>());
    if !store.replay(id, &new, Some(payload)).await? {
        return Err(unknown());
    }
    end_messages(store, id, RETRIED).await?;
    Ok(Retried { id: new, settled })
}

/// Drops a task that failed or was escalated: it waits for a person no longer. False when it did not.
///
/// # Errors
/// When the store cannot be written.
pub async fn drop_task(store: &Store, id: &str) -> Result<bool, StoreError> {
    let has_message = end_messages(store, id, DROPPED).await?;
    Ok(store.drop_dead_letter(id).await? || has_message)
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
