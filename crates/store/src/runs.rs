//! Runs as their setup and their events: begun, appended to, claimed, cancelled.

use std::time::Duration;

use async_trait::async_trait;

use super::approvals::ApprovalChange;
use super::error::StoreError;
use super::outbox::NewMessage;
use super::queue::EntryLease;
use super::status::Status;

/// A run that begins.
#[derive(Clone, Debug, Default)]
pub struct NewRun {
    /// Its id.
    pub id: String,
    /// Its agent.
    pub agent: String,
    /// When it began, in milliseconds since 1970.
    pub at: u64,
    /// Stands for the request that asked for it.
    pub fingerprint: String,
    /// Stands for the client; a child has its parent's.
    pub client: String,
    /// Everything that its course depends on.
    pub setup: String,
}

/// An event of a run, and its consequences.
#[derive(Clone, Debug)]
pub struct Append {
    /// The run.
    pub run: String,
    /// The epoch in which the writer works on it. Nothing is written with an older one than the run's.
    pub epoch: u64,
    /// When, in milliseconds since 1970.
    pub at: u64,
    /// The event: its place, its kind, its text. `None`: only the status changes.
    pub event: Option<(u64, &'static str, String)>,
    /// The run's status from now on.
    pub status: Status,
    /// Ids of calls that leave for the client with this.
    pub client_calls: Vec<String>,
    /// The change of an approval that is committed with this.
    pub approval: Option<ApprovalChange>,
    /// A message that is posted with this.
    pub message: Option<Box<NewMessage>>,
    /// A child run that begins with this.
    pub child: Option<NewRun>,
    /// It stands before an effect that must not be repeated: it must survive a power failure too.
    pub synchronous: bool,
}

impl Append {
    /// Returns a change of the status alone.
    pub fn status(run: &str, epoch: u64, at: u64, status: Status) -> Self {
        Self {
            run: run.to_owned(),
            epoch,
            at,
            event: None,
            status,
            client_calls: Vec::new(),
            approval: None,
            message: None,
            child: None,
            synchronous: false,
        }
    }
}

/// Which runs can be claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimScope {
    /// Those that no process works on.
    Idle,
    /// Also those whose client went away.
    IdleOrCancelled,
    /// Also those that are over: a conversation goes on after its answer.
    IdleOrOver,
    /// Also those that a process works on: the claimant has the right to (the parent of a child run, the
    /// holder of a lease).
    Any,
}

/// The answer to a commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ack {
    /// A cancellation of the run was requested.
    pub cancel: bool,
    /// The store has the run otherwise: another process works on it by now, or the database was restored.
    /// Nothing was written.
    pub lost: bool,
}

/// The epoch of a run that was begun and not claimed since.
pub(crate) const FIRST_EPOCH: u64 = 1;

/// Runs that are worked on.
#[async_trait]
pub trait Runs: Send + Sync {
    /// Commits a new run. The epoch of this process is [`Store::FIRST_EPOCH`](crate::Store::FIRST_EPOCH).
    ///
    /// # Errors
    /// When it cannot be committed; the run then is not in the store.
    async fn begin(&self, run: NewRun) -> Result<(), StoreError>;

    /// Commits a new run that works on an entry; false when the lease is lost: then there is no run.
    ///
    /// # Errors
    /// When it cannot be committed.
    async fn begin_leased(&self, run: NewRun, lease: &EntryLease) -> Result<bool, StoreError>;

    /// Commits what happened to a run.
    ///
    /// # Errors
    /// When it cannot be committed; nothing of it then is in the store.
    async fn append(&self, append: Append) -> Result<Ack, StoreError>;

    /// Makes this process the one that works on a run. Returns the epoch in which it does; `None` when that
    /// cannot be: another one works on it, or it is over.
    ///
    /// # Errors
    /// When the store cannot be written.
    async fn claim(&self, run: &str, scope: ClaimScope) -> Result<Option<u64>, StoreError>;

    /// Makes this process the one that works on the run of an entry, even when another process does so now.
    /// Returns the epoch; `None` when the lease is lost or the run is over.
    ///
    /// # Errors
    /// When the store cannot be written.
    async fn claim_leased(&self, run: &str, lease: &EntryLease) -> Result<Option<u64>, StoreError>;

    /// Asks the process that works on a run to end it. A run that no process works on is ended here, at `at`
    /// (milliseconds since 1970), and with it the entry of the queue that it worked on. False when it is over
    /// or not known.
    ///
    /// # Errors
    /// When the store cannot be written.
    async fn request_cancel(&self, run: &str, at: u64) -> Result<bool, StoreError>;

    /// Drops a request to end the run: it was meant for the turn before, and the holder of the run's lease
    /// begins another one. False when that lease is another process's.
    ///
    /// # Errors
    /// When the store cannot be written.
    async fn forget_cancel(&self, run: &str, epoch: u64) -> Result<bool, StoreError>;

    /// Notes that the client has got what there is of a run.
    ///
    /// # Errors
    /// When the store cannot be written.
    async fn mark_answered(&self, run: &str) -> Result<bool, StoreError>;

    /// Marks the runs whose process is gone as interrupted. Returns how many.
    ///
    /// # Errors
    /// When the store cannot be written.
    async fn mark_orphans(&self) -> Result<usize, StoreError>;

    /// Returns for how long the other process that works on a run has not said that it lives. `None` if no
    /// other one does, and where the end of a process is noticed at once.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn silence_of_owner(&self, run: &str) -> Result<Option<Duration>, StoreError>;
}
