//! Runs as they are read back.

use async_trait::async_trait;

use super::attention::Attention;
use super::error::StoreError;
use super::status::Status;

/// One run without its events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunRow {
    /// Its id.
    pub id: String,
    /// Its agent.
    pub agent: String,
    /// How far it is.
    pub status: Status,
    /// When it began, in milliseconds since 1970.
    pub created: u64,
    /// When something happened to it last.
    pub updated: u64,
    /// Its size in the store, in bytes.
    pub bytes: u64,
    /// The run that began this one as its child.
    pub parent: Option<String>,
}

/// Selects runs by their client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunFilter {
    /// All runs, chats of the terminal too.
    All,
    /// The runs that any client began over HTTP.
    Clients,
    /// These, and the runs of experts' work, which no client began.
    Served,
    /// The runs that this client began. The name is the one of `NewRun::client`.
    Client(String),
}

impl RunFilter {
    /// Returns true if a run of this agent and client is selected.
    pub fn includes(&self, agent: &str, client: Option<&str>) -> bool {
        match self {
            Self::All => true,
            Self::Clients => client != Some(""),
            Self::Served => client != Some("") || agent.starts_with("expert/"),
            Self::Client(own) => client == Some(own) && !own.is_empty(),
        }
    }
}

/// An event as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEvent {
    /// When, in milliseconds since 1970.
    pub at: u64,
    /// Its text.
    pub body: String,
}

/// A run with its setup and its events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRun {
    /// The run.
    pub row: RunRow,
    /// Stands for its client; `None` for a run of an early respool, which did not keep this.
    pub client: Option<String>,
    /// Grows with each claim: a write with another epoch is refused.
    pub epoch: u64,
    /// Its setup.
    pub setup: String,
    /// Its events, in order.
    pub events: Vec<StoredEvent>,
}

/// The result of a clearing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cleared {
    /// Runs deleted because they were old.
    pub old: usize,
    /// Runs deleted because all together took too much.
    pub for_room: usize,
    /// Bytes in use afterwards.
    pub bytes: u64,
}

/// The size of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Its runs.
    pub runs: u64,
    /// Bytes of the database in use; its log is not counted.
    pub bytes: u64,
}

/// Runs as they are read back.
#[async_trait]
pub trait RunRows: Send + Sync {
    /// Returns a run with its events.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn run(&self, id: &str) -> Result<Option<StoredRun>, StoreError>;

    /// Returns the newest runs, newest first, without their events.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn newest(&self, filter: RunFilter, most: usize) -> Result<Vec<RunRow>, StoreError>;

    /// Returns what has failed after `since` (milliseconds since 1970) or waits for a person: at most `most`
    /// of each kind.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn attention(&self, since: u64, most: usize) -> Result<Attention, StoreError>;

    /// Returns true if there is such a run and the filter selects it.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn has_run(&self, id: &str, filter: RunFilter) -> Result<bool, StoreError>;

    /// Returns the run of this agent and client that waits, or waited, for one of these calls.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn run_of_calls(
        &self,
        ids: Vec<String>,
        agent: &str,
        client: &str,
    ) -> Result<Option<String>, StoreError>;

    /// Returns the newest run that the same request asked for, not before `since`, and whose client has not
    /// got its answer; not one that was ended.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn unanswered_run(&self, fingerprint: &str, since: u64) -> Result<Option<String>, StoreError>;

    /// Returns the runs that stand for the same work, whose answer no client got, the oldest first.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn runs_of_work(&self, fingerprint: &str) -> Result<Vec<String>, StoreError>;

    /// Returns those of these runs whose cancellation was requested, perhaps in another process.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn cancel_requested(&self, runs: Vec<String>) -> Result<Vec<String>, StoreError>;

    /// Returns the runs of a status, the oldest change first.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn runs_of_status(&self, status: Status) -> Result<Vec<RunRow>, StoreError>;

    /// Returns the snapshots of the runs that are not over, as their setups name them.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn snapshots_in_use(&self) -> Result<Vec<String>, StoreError>;

    /// Deletes what is older than `runs.keep`, then, while more than `runs.max_size` is in use, runs that
    /// ended and to which nothing has happened since `settled`, and returns the space to the disk. Others
    /// write in between. Times are milliseconds since 1970.
    ///
    /// # Errors
    /// When the store cannot be written.
    async fn clear(&self, now: u64, settled: u64) -> Result<Cleared, StoreError>;

    /// Deletes one run, and what the disk holds of it; false when it is not known, a process works on it, or
    /// its work may be executed again.
    ///
    /// # Errors
    /// When the store cannot be written.
    async fn delete(&self, run: &str) -> Result<bool, StoreError>;

    /// Returns the size of the store.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn usage(&self) -> Result<Usage, StoreError>;
}
