//! The record of one run in the store: every event is committed before its effect is relied on.
//!
//! What cannot be committed now is tried again with every further event, in order; [`Unkept`] says what the
//! run does meanwhile. A run that another process has claimed is lost: nothing more is written. Called by
//! `driver`.

use std::sync::Arc;

use store::{Append, Status, Store, StoreError};

/// The record of one run.
pub(super) struct Journal {
    run: String,
    epoch: u64,
    /// `None`: the run is not kept.
    store: Option<Arc<Store>>,
    /// The number of events in the store.
    seq: u64,
    /// Events that are not committed yet.
    backlog: Vec<Append>,
    pub(super) unkept: Unkept,
}

/// A run whose events cannot be committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Unkept {
    /// It goes on.
    #[default]
    GoesOn,
    /// It waits until they are, unless it is over. Other processes may take it over meanwhile.
    Waits,
    /// It stops, and begins again with what is kept.
    Stops,
}

/// The result of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Committed {
    /// It is kept, or nothing is kept of this run at all.
    Done,
    /// It is kept, and a cancellation of the run was requested.
    CancelWanted,
    /// It is not kept.
    Failed(StoreError),
    /// Another process works on the run by now.
    Lost,
}

impl Journal {
    pub(super) fn new(run: &str, epoch: u64, store: Option<Arc<Store>>, seq: u64) -> Self {
        Self { run: run.to_owned(), epoch, store, seq, backlog: Vec::new(), unkept: Unkept::default() }
    }

    /// Returns the run's id.
    pub(super) fn run_id(&self) -> &str {
        &self.run
    }

    /// Returns the epoch in which this process works on the run.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the store, where the run is kept.
    pub(super) fn store(&self) -> Option<&Arc<Store>> {
        self.store.as_ref()
    }

    /// Returns true if all events are in the store.
    pub(super) fn is_complete(&self) -> bool {
        self.store.is_some() && self.backlog.is_empty()
    }

    /// Returns true if the failure of the last commit is the first in a row.
    pub(super) fn has_just_failed(&self) -> bool {
        self.backlog.len() == 1
    }

    /// Stops keeping the run.
    pub(super) fn give_up(&mut self) {
        self.store = None;
        self.backlog.clear();
    }

    /// Returns the events that were not committed.
    pub(super) fn into_backlog(self) -> Option<(Arc<Store>, Vec<Append>)> {
        self.store.filter(|_| !self.backlog.is_empty()).map(|store| (store, self.backlog))
    }

    /// Commits an event. `append` holds what goes with it.
    pub(super) async fn commit_event(
        &mut self,
        kind: &'static str,
        body: String,
        append: Append,
    ) -> Committed {
        let event = Some((self.seq, kind, body));
        self.seq += 1;
        self.commit_append(Append { event, ..append }).await
    }

    /// Forgets a request to end the run, which was for an earlier turn.
    pub(super) async fn forget_cancel(&self) {
        if let Some(store) = &self.store {
            // An error shows again with the next commit.
            let _ = store.forget_cancel(&self.run, self.epoch).await;
        }
    }

    /// Commits a status alone.
    pub(super) async fn commit_status(&mut self, status: Status) -> Committed {
        self.commit_append(self.status_append(status, clock::now())).await
    }

    /// Returns a change of the status at this time, to which an event may be added.
    pub(super) fn status_append(&self, status: Status, at: u64) -> Append {
        Append::status(&self.run, self.epoch, at, status)
    }

    async fn commit_append(&mut self, append: Append) -> Committed {
        if self.store.is_some() {
            self.backlog.push(append);
        }
        self.commit_backlog().await
    }

    /// Commits what could not be committed before.
    pub(super) async fn commit_backlog(&mut self) -> Committed {
        let Some(store) = self.store.clone() else { return Committed::Done };
        let mut is_cancel_wanted = false;
        while let Some(first) = self.backlog.first() {
            match store.append(first.clone()).await {
                Ok(ack) if ack.lost => {
                    self.backlog.clear();
                    return Committed::Lost;
                }
                Ok(ack) => is_cancel_wanted |= ack.cancel,
                Err(error) => return Committed::Failed(error),
            }
            self.backlog.remove(0);
        }
        if is_cancel_wanted { Committed::CancelWanted } else { Committed::Done }
    }
}
