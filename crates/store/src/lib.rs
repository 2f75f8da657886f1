//! Durable state: runs as their setup and their events, and responses that clients keep, in one `SQLite` file. The only module that knows SQL.
//!
//! One thread writes. Whatever waits when it comes round is one transaction (group commit), so two hundred runs share a
//! commit instead of queueing for two hundred. A caller is answered when its rows are committed. What the rows mean is
//! `agent`'s business: setups and events are texts here.

mod approvals;
mod clearing;
pub mod config;
mod decisions;
#[cfg(debug_assertions)]
mod failpoint;
mod kept;
mod key_usage;
mod lease;
mod numbers;
mod open;
mod operators;
mod outbox;
mod posting;
mod presence;
mod queue;
mod queueing;
mod read;
mod responses;
mod usage;
mod write;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};

pub use approvals::{ApprovalChange, ApprovalRow, ApprovalState, LateDecision, WokenRun};
pub use clearing::{Cleared, Usage};
pub use config::{ResponsesConfig, RunsConfig, StoreConfig};
pub use key_usage::KeyUsage;
use lease::Lease;
pub use operators::OperatorKey;
pub use outbox::{MessageFilter, MessageRow, NewMessage};
use presence::DatabaseFile;
pub use queue::{
    Backoff, BackoffKind, ClaimRequest, Claimed, Clock, ClockTime, DedupeKey, Enqueued, EntryEnd, EntryLease,
    EntryRow, EntryState, GoneClocks, LaneKey, NewEntry, Queue,
};
pub use read::{RunRow, StoredEvent, StoredRun, Whose};
pub use responses::{ItemsNamed, ItemsOf, KeptResponse, UnfinishedResponse};
use tokio::sync::{Notify, oneshot};
pub use usage::{Dimension, StoredUsage, UsageQuery, UsageStore, UsageSum};
pub use write::{Ack, Append, ClaimScope, NewRun};
use write::{CommitCounts, Job};

/// What became of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// A process works on it.
    Running,
    /// It waits for its client's results.
    Suspended,
    /// It waits for a person's consent.
    AwaitingApproval,
    /// Its process ended, or its client went away, before it was over.
    Interrupted,
    /// It ended with an answer.
    Done,
    /// It ended with an answer at a limit.
    Limited,
    /// It ended with a failure.
    Failed,
    /// Somebody ended it.
    Cancelled,
}

impl Status {
    const ALL: [Self; 8] = [
        Self::Running,
        Self::Suspended,
        Self::AwaitingApproval,
        Self::Interrupted,
        Self::Done,
        Self::Limited,
        Self::Failed,
        Self::Cancelled,
    ];

    /// Its name in the store and for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Suspended => "suspended",
            Self::AwaitingApproval => "awaiting_approval",
            Self::Interrupted => "interrupted",
            Self::Done => "done",
            Self::Limited => "limited",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether the run goes no further by itself.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Done | Self::Limited | Self::Failed | Self::Cancelled)
    }

    /// The status of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == name)
    }
}

/// Why the store could not do what it was asked, for people: what, where, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreError(pub String);

impl fmt::Display for StoreError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// The store of one state directory. Dropping the last of it ends the writing thread once it has written what waits.
#[derive(Debug)]
pub struct Store {
    jobs: mpsc::Sender<Job>,
    reader: Arc<Mutex<rusqlite::Connection>>,
    file: DatabaseFile,
    lease: Lease,
    runs: RunsConfig,
    responses: ResponsesConfig,
    /// An entry was queued by this process.
    queued: Notify,
    counts: Arc<CommitCounts>,
    /// What was set aside because it could not be read.
    pub set_aside: Option<PathBuf>,
}

impl Store {
    /// The epoch of a run that was begun and not claimed since.
    pub const FIRST_EPOCH: u64 = write::FIRST_EPOCH;

    /// Opens or makes the store in a directory, and brings its schema up to date.
    ///
    /// # Errors
    /// When the directory or the file cannot be used. A file that is damaged is set aside and a new one begun, unless another
    /// process uses it.
    pub fn open(config: &StoreConfig) -> Result<Self, StoreError> {
        let dir = &config.state_dir;
        open::make_directory(dir)?;
        let lease = Lease::take(dir).map_err(|error| open::unusable(dir, &error.to_string()))?;
        let opened = open::open(dir, lease.is_alone().unwrap_or(false))?;
        open::check_later(&opened.path);
        let (jobs, queue) = mpsc::channel();
        let connection = opened.writer;
        let (file, counts) = (DatabaseFile::opened(&opened.path), Arc::new(CommitCounts::default()));
        let (written, counted) = (file.clone(), Arc::clone(&counts));
        std::thread::Builder::new()
            .name("store".into())
            .spawn(move || write::work(connection, &queue, &written, &counted))
            .map_err(|error| StoreError(format!("the store's thread cannot be started: {error}")))?;
        Ok(Self {
            jobs,
            reader: Arc::new(Mutex::new(opened.reader)),
            file,
            lease,
            runs: config.runs.clone(),
            responses: config.responses.clone(),
            queued: Notify::new(),
            counts,
            set_aside: opened.set_aside,
        })
    }

    /// True when there is a store in the directory already.
    pub fn is_present(config: &StoreConfig) -> bool {
        open::is_present(&config.state_dir)
    }

    /// How often this process has committed, and how many of these commits waited for the disk.
    pub fn commits(&self) -> (u64, u64) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (count(&self.counts.all), count(&self.counts.synchronised))
    }

    /// The database's path.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Checks that the database's file is still the one that was opened. If it is not, writes fail.
    ///
    /// # Errors
    /// When the file was removed or replaced.
    pub fn check_file(&self) -> Result<(), StoreError> {
        self.file.check()
    }

    /// Commits a new run. The epoch of this process is [`Store::FIRST_EPOCH`].
    ///
    /// # Errors
    /// When it cannot be committed; the run then is not in the store.
    pub async fn begin(&self, run: NewRun) -> Result<(), StoreError> {
        let owner = self.lease.owner().to_owned();
        self.ask(|answer| Job::Begin { run, owner, answer }).await
    }

    /// Commits what happened to a run.
    ///
    /// # Errors
    /// When it cannot be committed; nothing of it then is in the store.
    pub async fn append(&self, append: Append) -> Result<Ack, StoreError> {
        let owner = self.lease.owner().to_owned();
        self.ask(|answer| Job::Append { append, owner, answer }).await
    }

    /// Makes this process the one that works on a run. Returns the epoch in which it does; `None` when that cannot be: another
    /// one works on it, or it is over.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn claim(&self, run: &str, scope: ClaimScope) -> Result<Option<u64>, StoreError> {
        let (run, owner) = (run.to_owned(), self.lease.owner().to_owned());
        self.ask(|answer| Job::Claim { run, owner, scope, answer }).await
    }

    /// Asks the process that works on a run to end it; where nobody does, it is ended here, at `at` (milliseconds since 1970), and with it the queue's
    /// entry that it worked on. False when it is over or not known.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn request_cancel(&self, run: &str, at: u64) -> Result<bool, StoreError> {
        let run = run.to_owned();
        self.ask(|answer| Job::Cancel { run, at, answer }).await
    }

    /// Marks the runs whose process is gone as interrupted.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn mark_orphans(&self) -> Result<usize, StoreError> {
        let owners = self.read(read::owners_of_running).await?;
        let gone: Vec<String> = owners.into_iter().filter(|owner| self.lease.is_gone(owner)).collect();
        if gone.is_empty() {
            return Ok(0);
        }
        self.ask(|answer| Job::Orphan { owners: gone, answer }).await
    }

    /// Deletes what is older than `runs.keep`, then, as long as more than `runs.max_size` is in use, what ended and had
    /// nothing happen to it since `settled`, and gives the space back to the disk. In small bites: others write in between.
    /// Times are milliseconds since 1970.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn clear(&self, now: u64, settled: u64) -> Result<Cleared, StoreError> {
        let keep = clock::millis(self.runs.keep);
        let (before, most) = (now.saturating_sub(keep), self.runs.max_size.0);
        let old = self.bites(|answer| Job::Expire { before, answer }).await?;
        self.bites(|answer| Job::Forget { before, now, answer }).await?;
        self.clear_responses(now).await?;
        let for_room = self.bites(|answer| Job::Shrink { most, before: settled, answer }).await?;
        self.give_back().await?;
        Ok(Cleared { old, for_room, bytes: self.usage().await?.bytes })
    }

    /// Deletes one run, and what the disk holds of it; false when it is not known, a process works on it, or its work may be executed again.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn delete(&self, run: &str) -> Result<bool, StoreError> {
        let run = run.to_owned();
        let deleted = self.ask(|answer| Job::Remove { run, answer }).await?;
        if deleted {
            self.give_back().await?;
        }
        Ok(deleted)
    }

    /// Deletes bite by bite until nothing more is deleted. Returns how many runs. What a bite frees is returned to the disk before the next one:
    /// the longer the list of free pages, the slower.
    async fn bites(
        &self,
        job: impl Fn(oneshot::Sender<Result<usize, StoreError>>) -> Job,
    ) -> Result<usize, StoreError> {
        let mut all = 0;
        loop {
            match self.ask(&job).await? {
                0 => return Ok(all),
                deleted => all += deleted,
            }
            self.give_pages_back().await?;
        }
    }

    async fn give_pages_back(&self) -> Result<(), StoreError> {
        while self.ask(|answer| Job::GiveBack { answer }).await? > 0 {}
        Ok(())
    }

    /// Gives all that was freed back to the disk.
    async fn give_back(&self) -> Result<(), StoreError> {
        self.give_pages_back().await?;
        self.read(clearing::cut_log).await
    }

    /// What the store holds.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn usage(&self) -> Result<Usage, StoreError> {
        self.read(clearing::usage).await
    }

    /// What of it is kept.
    pub fn limits(&self) -> &RunsConfig {
        &self.runs
    }

    /// A run with its events.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn run(&self, id: &str) -> Result<Option<StoredRun>, StoreError> {
        let id = id.to_owned();
        self.read(move |connection| read::run(connection, &id)).await
    }

    /// The newest runs, newest first, without their events.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn newest(&self, whose: Whose, most: usize) -> Result<Vec<RunRow>, StoreError> {
        self.read(move |connection| read::newest(connection, &whose, most)).await
    }

    /// The runs that a client began and that failed after `since` (milliseconds since 1970), the latest first.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn failed_since(&self, since: u64, most: usize) -> Result<Vec<RunRow>, StoreError> {
        self.read(move |connection| read::failed_since(connection, since, most)).await
    }

    /// True when there is such a run, and it is one of these.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn is_of(&self, run: &str, whose: Whose) -> Result<bool, StoreError> {
        let run = run.to_owned();
        self.read(move |connection| read::is_of(connection, &run, &whose)).await
    }

    /// Adds to what keys have used.
    ///
    /// # Errors
    /// When the store cannot be written; nothing of it then is in the store.
    pub async fn used(&self, rows: Vec<KeyUsage>) -> Result<(), StoreError> {
        self.ask(|answer| Job::Used { rows, answer }).await.map(drop)
    }

    /// What keys have used on one UTC day, counted from 1970-01-01.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn used_on(&self, day: u64) -> Result<Vec<KeyUsage>, StoreError> {
        self.read(move |connection| key_usage::of_day(connection, day)).await
    }

    /// From now on these keys, and no others, are operators' on the command line.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn set_operators(&self, keys: Vec<OperatorKey>) -> Result<(), StoreError> {
        self.ask(|answer| Job::Operators { keys, answer }).await.map(drop)
    }

    /// The name of the operator's key with this SHA-256 in hexadecimal, if it is one.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn operator(&self, digest: &str) -> Result<Option<String>, StoreError> {
        let digest = digest.to_owned();
        self.read(move |connection| operators::name(connection, &digest)).await
    }

    /// Whether any operator is known.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn has_operators(&self) -> Result<bool, StoreError> {
        self.read(operators::any).await
    }

    /// Forgets what keys used before a day.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn forget_usage(&self, before: u64) -> Result<(), StoreError> {
        self.ask(|answer| Job::ForgetUsage { before, answer }).await.map(drop)
    }

    /// The run of this agent and client that waits, or waited, for one of these calls.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn by_call(
        &self,
        ids: Vec<String>,
        agent: &str,
        client: &str,
    ) -> Result<Option<String>, StoreError> {
        let (agent, client) = (agent.to_owned(), client.to_owned());
        self.read(move |connection| read::by_call(connection, &ids, &agent, &client)).await
    }

    /// The newest run that the same request asked for, not before `since`, and whose client has not got its answer; not one
    /// that was ended.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn unanswered(&self, fingerprint: &str, since: u64) -> Result<Option<String>, StoreError> {
        let fingerprint = fingerprint.to_owned();
        self.read(move |connection| read::unanswered(connection, &fingerprint, since)).await
    }

    /// The runs that stand for the same work, which no client asked for, the oldest first.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn runs_of(&self, fingerprint: &str) -> Result<Vec<String>, StoreError> {
        let fingerprint = fingerprint.to_owned();
        self.read(move |connection| read::runs_of(connection, &fingerprint)).await
    }

    /// Those of these runs that somebody asked to cancel, perhaps from another process.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn cancel_requested(&self, runs: Vec<String>) -> Result<Vec<String>, StoreError> {
        self.read(move |connection| read::cancel_requested(connection, &runs)).await
    }

    /// The runs of a status, those first to which nothing has happened for longest.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn runs_of_status(&self, status: Status) -> Result<Vec<RunRow>, StoreError> {
        self.read(move |connection| read::of_status(connection, status.as_str())).await
    }

    /// What the runs were made of that are not over, as their setups say.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn snapshots_in_use(&self) -> Result<Vec<String>, StoreError> {
        self.read(read::snapshots_in_use).await
    }

    /// Drops a request to end the run: it was meant for the turn before, and the holder of the run's lease begins another one. False
    /// when that lease is another process's.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn forget_cancel(&self, run: &str, epoch: u64) -> Result<bool, StoreError> {
        let run = run.to_owned();
        self.ask(|answer| Job::ForgetCancel { run, epoch, answer }).await
    }

    /// The client has got what there is of a run.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn answered(&self, run: &str) -> Result<bool, StoreError> {
        let run = run.to_owned();
        self.ask(|answer| Job::Answered { run, answer }).await
    }

    async fn ask<T>(
        &self,
        job: impl FnOnce(oneshot::Sender<Result<T, StoreError>>) -> Job,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        let ended = || StoreError("the store's thread has ended; restart respool".to_owned());
        self.jobs.send(job(answer)).map_err(|_| ended())?;
        answered.await.unwrap_or_else(|_| Err(ended()))
    }

    async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&rusqlite::Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reader, path) = (Arc::clone(&self.reader), self.path().to_owned());
        let work = move || {
            let connection = reader.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            work(&connection).map_err(|error| open::failed("read", &path, &error))
        };
        let done = tokio::task::spawn_blocking(work).await;
        done.unwrap_or_else(|error| Err(StoreError(format!("the store cannot be read: {error}"))))
    }
}

#[cfg(test)]
mod tests;
