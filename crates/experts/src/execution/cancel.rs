//! Ends invocations that have not ended, because a person wants it. Called by `cli` and `server`.

use super::retry::drop_task;
use crate::error::ExpertError;
use openexperts::visible;
use store::{EntryRow, EntryState, Store};

/// Cancels an invocation that has not ended. False when a process works on its run: that process ends both.
///
/// # Errors
/// When there is no such invocation, or it has ended.
pub async fn cancel_invocation(store: &Store, id: &str) -> Result<bool, ExpertError> {
    let row = store.entry(id).await?;
    let row = row.ok_or_else(|| {
        format!("there is no invocation {id:?}; `respool expert queue` shows those that have not ended")
    })?;
    let is_requested = match (row.state, &row.run) {
        (EntryState::Claimed | EntryState::Waiting | EntryState::Held, Some(run)) => {
            store.request_cancel(run, clock::now()).await?
        }
        (EntryState::Claimed, None) => return Err(format!("{id} is about to begin; try again").into()),
        (EntryState::Waiting | EntryState::Held, None) => false,
        (state, _) => {
            let note = row.note.map(|note| format!(" ({})", visible(&note))).unwrap_or_default();
            return Err(format!("{id} has already ended: {}{note}", state.as_str()).into());
        }
    };
    // An entry that waits for its next attempt has a run that is over, or none.
    if !is_requested && !store.give_up(id, EntryRow::CANCELLED).await? {
        return Err(format!("{id} has changed in the meantime; try again").into());
    }
    let left = store.entry(id).await?;
    Ok(left.is_none_or(|row| row.state == EntryState::Failed))
}

/// Ends the invocation that a run works on, so that a call which was not approved needs no person any more.
/// False when the run works on none.
///
/// # Errors
/// When the store cannot be used.
pub async fn drop_rejected(store: &Store, run: &str) -> Result<bool, ExpertError> {
    let Some(row) = store.entry_of_run(run).await? else { return Ok(false) };
    let mut is_over = EntryState::REPLAYABLE.contains(&row.state);
    if !is_over && let Err(error) = cancel_invocation(store, &row.id).await {
        // A server may have been faster.
        let row = store.entry(&row.id).await?;
        is_over = row.is_some_and(|row| EntryState::REPLAYABLE.contains(&row.state));
        if !is_over {
            return Err(error);
        }
    }
    if is_over { Ok(drop_task(store, &row.id).await?) } else { Ok(true) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use store::{Append, ClaimRequest, EntryEnd, EntryLease, NewEntry, NewRun, Status, StoreConfig};

    /// An entry that is claimed and whose run waits for a person.
    async fn asking(store: &Store, id: &str) -> EntryLease {
        let entry =
            NewEntry { id: id.into(), queue: "desk".into(), payload: "{}".into(), ..NewEntry::default() };
        store.enqueue(entry).await.unwrap();
        let queues = vec!["desk".to_owned()];
        let request =
            ClaimRequest { queues, most: 1, lease: Duration::from_mins(1), ..ClaimRequest::default() };
        let lease = store.claim_entries(request).await.unwrap().remove(0).lease;
        let run = NewRun { id: format!("run of {id}"), agent: "desk".into(), ..NewRun::default() };
        assert!(store.begin_leased(run, &lease).await.unwrap());
        lease
    }

    async fn end_run(store: &Store, id: &str, status: Status) {
        let append = Append::status(&format!("run of {id}"), Store::FIRST_EPOCH, 11, status);
        assert!(!store.append(append).await.unwrap().lost);
    }

    async fn run_status(store: &Store, id: &str) -> Status {
        store.run(&format!("run of {id}")).await.unwrap().unwrap().row.status
    }

    /// The run of a woken invocation waited for ever, and its files were never deleted.
    #[tokio::test]
    async fn a_cancelled_invocation_takes_its_run_along() {
        let dir = tempfile::tempdir().unwrap();
        let config = StoreConfig { state_dir: dir.path().to_owned(), ..StoreConfig::default() };
        let store = Store::open(&config).unwrap();

        let lease = asking(&store, "woken").await;
        end_run(&store, "woken", Status::AwaitingApproval).await;
        assert!(store.hold(&lease, "a person is asked".into()).await.unwrap());
        assert!(store.wake("woken").await.unwrap());
        assert!(cancel_invocation(&store, "woken").await.unwrap());
        assert_eq!(run_status(&store, "woken").await, Status::Cancelled);
        assert!(
            cancel_invocation(&store, "woken").await.unwrap_err().to_string().contains("has already ended")
        );

        let lease = asking(&store, "failed once").await;
        end_run(&store, "failed once", Status::Failed).await;
        assert!(store.retry_after(&lease, Duration::from_secs(5), "it failed".into()).await.unwrap());
        assert!(cancel_invocation(&store, "failed once").await.unwrap());
        assert_eq!(run_status(&store, "failed once").await, Status::Failed);

        asking(&store, "worked on").await;
        assert!(!cancel_invocation(&store, "worked on").await.unwrap());
        assert_eq!(run_status(&store, "worked on").await, Status::Running);
    }

    /// A rejection left a failed task, which cost a second command.
    #[tokio::test]
    async fn a_rejected_task_can_be_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let config = StoreConfig { state_dir: dir.path().to_owned(), ..StoreConfig::default() };
        let store = Store::open(&config).unwrap();
        let lease = asking(&store, "asks").await;
        end_run(&store, "asks", Status::AwaitingApproval).await;
        assert!(store.hold(&lease, "a person is asked".into()).await.unwrap());
        assert!(drop_rejected(&store, "run of asks").await.unwrap());
        let row = store.entry("asks").await.unwrap().unwrap();
        assert!(row.is_ended_by_person(), "{row:?}");
        let lease = asking(&store, "over").await;
        end_run(&store, "over", Status::Failed).await;
        assert!(
            store.complete(&lease, EntryEnd::DeadLetter, "a call was not approved".into()).await.unwrap()
        );
        assert!(drop_rejected(&store, "run of over").await.unwrap());
        assert!(store.entry("over").await.unwrap().is_none());
        assert!(!drop_rejected(&store, "a run of a client").await.unwrap());
    }
}
