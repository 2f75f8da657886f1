//! Requests for consent, as the rest of respool asks the store for them: read, decided, and the runs that a decision wakes.

use super::approvals::{self, ApprovalRow, ApprovalState, LateDecision, WokenRun};
use super::write::Job;
use super::{Store, StoreError};

impl Store {
    /// Records a decision, so that it survives a power failure; false when the request does not wait for one, or its
    /// time is over.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn decide(
        &self,
        id: &str,
        decision: String,
        at: u64,
        late: LateDecision,
    ) -> Result<bool, StoreError> {
        let id = id.to_owned();
        self.ask(|answer| Job::Decide { id, decision, at, late, answer }).await
    }

    /// One request.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn approval(&self, id: &str) -> Result<Option<ApprovalRow>, StoreError> {
        let id = id.to_owned();
        self.read(move |connection| approvals::one(connection, &id)).await
    }

    /// The requests of a state, the oldest first.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn approvals(&self, state: ApprovalState, most: usize) -> Result<Vec<ApprovalRow>, StoreError> {
        self.read(move |connection| approvals::of_state(connection, state, most)).await
    }

    /// The runs that can go on: of a decided request, or of one whose time is over. Where a child run waits, the run that began
    /// the first of its line.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn woken_by_approvals(&self, now: u64) -> Result<Vec<WokenRun>, StoreError> {
        self.read(move |connection| approvals::woken(connection, now)).await
    }
}
