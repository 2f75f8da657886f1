//! The store of a state directory: how it is opened, and how everything else here reads and writes.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use rusqlite::{Connection, Transaction};
use tokio::sync::{Notify, oneshot};

use super::lease::Lease;
use super::open;
use super::presence::DatabaseFile;
use super::space;
use super::writer::{CommitCounts, Durability, Job, Writer};
use crate::config::{ResponsesConfig, RunsConfig, StoreConfig};
use crate::error::StoreError;
use crate::port::StorePort;

/// The store of one state directory. Dropping the last of it ends the writing thread once it has written what
/// waits.
#[derive(Debug)]
pub(crate) struct SqliteStore {
    jobs: mpsc::Sender<Job>,
    reader: Arc<Mutex<Connection>>,
    file: DatabaseFile,
    pub(super) lease: Lease,
    pub(super) runs: RunsConfig,
    pub(super) responses: ResponsesConfig,
    /// An entry was queued by this process.
    pub(super) queued: Notify,
    counts: Arc<CommitCounts>,
}

impl SqliteStore {
    /// Opens or makes the store in a directory, and brings its schema up to date.
    ///
    /// # Errors
    /// When the directory or the file cannot be used. A file that is damaged is set aside and a new one
    /// begun, unless another process uses it.
    pub(crate) fn open(config: &StoreConfig) -> Result<Self, StoreError> {
        Self::open_where(config, true)
    }

    /// Opens or makes the store for a command, which leaves a damaged file where it is.
    ///
    /// # Errors
    /// When the directory or the file cannot be used.
    pub(crate) fn open_in_place(config: &StoreConfig) -> Result<Self, StoreError> {
        Self::open_where(config, false)
    }

    fn open_where(config: &StoreConfig, may_move: bool) -> Result<Self, StoreError> {
        let dir = &config.state_dir;
        open::make_directory(dir)?;
        let lease = Lease::take(dir).map_err(|error| open::unusable(dir, &error.to_string()))?;
        let opened = open::open(dir, may_move && lease.is_alone().unwrap_or(false))?;
        open::check_later(&opened.path);
        Self::start(config, lease, opened)
    }

    /// Starts the writing thread of an open database.
    pub(super) fn start(
        config: &StoreConfig,
        lease: Lease,
        opened: open::Opened,
    ) -> Result<Self, StoreError> {
        let (jobs, queue) = mpsc::channel();
        let (file, counts) = (DatabaseFile::opened(&opened.path), Arc::new(CommitCounts::default()));
        let writer = Writer::new(opened.writer, file.clone(), Arc::clone(&counts));
        std::thread::Builder::new()
            .name("store".into())
            .spawn(move || writer.run(&queue))
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
        })
    }

    /// Returns true when there is a store in the directory already.
    pub(crate) fn is_present(config: &StoreConfig) -> bool {
        open::is_present(&config.state_dir)
    }

    /// Returns the database's path.
    pub(super) fn path(&self) -> &Path {
        self.file.path()
    }

    /// Writes in the next commit, together with whatever else waits then. Returns once it is committed. The
    /// work runs again when another write made that commit fail.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        work: impl Fn(&Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.write_with(Durability::Process, work).await
    }

    /// Writes as [`SqliteStore::write`] does, in a commit that survives a power failure.
    pub(super) async fn write_to_disk<T: Send + 'static>(
        &self,
        work: impl Fn(&Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.write_with(Durability::PowerFailure, work).await
    }

    pub(super) async fn write_with<T: Send + 'static>(
        &self,
        durability: Durability,
        work: impl Fn(&Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (caller, answer) = oneshot::channel();
        let ended = || StoreError("the store's thread has ended; restart respool".to_owned());
        self.jobs.send(Job::new(durability, work, caller)).map_err(|_| ended())?;
        answer.await.unwrap_or_else(|_| Err(ended()))
    }

    /// Reads on the reading connection, away from the runtime's threads.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reader, path) = (Arc::clone(&self.reader), self.path().to_owned());
        let work = move || {
            let connection = reader.lock().unwrap_or_else(PoisonError::into_inner);
            work(&connection).map_err(|error| open::failed("read", &path, &error))
        };
        let done = tokio::task::spawn_blocking(work).await;
        done.unwrap_or_else(|error| Err(StoreError(format!("the store cannot be read: {error}"))))
    }

    /// Deletes in small batches, between which others write, until nothing more is deleted. Returns how much
    /// was deleted. The pages that a batch frees go back to the disk before the next one: the longer the list
    /// of free pages, the slower.
    pub(super) async fn delete_in_batches(
        &self,
        delete_some: impl Fn(&Transaction<'_>) -> rusqlite::Result<usize> + Clone + Send + 'static,
    ) -> Result<usize, StoreError> {
        let mut all = 0;
        loop {
            match self.write(delete_some.clone()).await? {
                0 => return Ok(all),
                deleted => all += deleted,
            }
            self.return_pages().await?;
        }
    }

    async fn return_pages(&self) -> Result<(), StoreError> {
        while self.write(space::return_pages).await? > 0 {}
        Ok(())
    }

    /// Returns all that was freed to the disk.
    pub(super) async fn return_space(&self) -> Result<(), StoreError> {
        self.return_pages().await?;
        self.read(space::cut_log).await
    }
}

impl StorePort for SqliteStore {
    fn place(&self) -> String {
        self.path().display().to_string()
    }

    fn check_file(&self) -> Result<(), StoreError> {
        self.file.check()
    }

    fn commits(&self) -> (u64, u64) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (count(&self.counts.all), count(&self.counts.synchronised))
    }
}
