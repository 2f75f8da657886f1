//! The writing thread: takes the writes that wait, commits them together, and answers each caller.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio::sync::oneshot;

use super::open::failed;
use super::presence::DatabaseFile;
use crate::error::StoreError;

/// At most this many writes are one transaction.
const LARGEST_GROUP: usize = 256;

/// The failures that a write survives once its caller has been answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Durability {
    /// The end of the process.
    Process,
    /// A power failure too: the commit waits for the disk.
    PowerFailure,
}

/// A write that waits for the next commit.
pub(super) struct Job {
    durability: Durability,
    write: Box<dyn PendingWrite>,
}

impl Job {
    /// Makes a job. `work` runs in the transaction of a commit, and again in one of its own when another
    /// write made that fail.
    pub(super) fn new<T: Send + 'static>(
        durability: Durability,
        work: impl Fn(&Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
        caller: oneshot::Sender<Result<T, StoreError>>,
    ) -> Self {
        Self { durability, write: Box::new(TypedWrite { work, value: None, caller }) }
    }

    fn answer(self, committed: Result<(), StoreError>) {
        self.write.answer(committed);
    }
}

/// A write whose type of value is its caller's business.
trait PendingWrite: Send {
    fn run(&mut self, transaction: &Transaction<'_>) -> rusqlite::Result<()>;

    fn answer(self: Box<Self>, committed: Result<(), StoreError>);
}

struct TypedWrite<T, F> {
    work: F,
    /// The value of the work in the last transaction.
    value: Option<T>,
    caller: oneshot::Sender<Result<T, StoreError>>,
}

impl<T: Send, F: Fn(&Transaction<'_>) -> rusqlite::Result<T> + Send> PendingWrite for TypedWrite<T, F> {
    fn run(&mut self, transaction: &Transaction<'_>) -> rusqlite::Result<()> {
        self.value = Some((self.work)(transaction)?);
        Ok(())
    }

    fn answer(self: Box<Self>, committed: Result<(), StoreError>) {
        let Self { value, caller, .. } = *self;
        let missing = || StoreError("the store committed a write without running it".to_owned());
        // The caller may be gone; the commit stands.
        drop(caller.send(committed.and_then(|()| value.ok_or_else(missing))));
    }
}

/// How often this process has committed.
#[derive(Debug, Default)]
pub(super) struct CommitCounts {
    pub(super) all: AtomicU64,
    /// Those that waited for the disk.
    pub(super) synchronised: AtomicU64,
}

/// The connection that writes.
pub(super) struct Writer {
    connection: Connection,
    file: DatabaseFile,
    counts: Arc<CommitCounts>,
    /// How the connection commits now.
    durability: Durability,
}

impl Writer {
    pub(super) fn new(connection: Connection, file: DatabaseFile, counts: Arc<CommitCounts>) -> Self {
        Self { connection, file, counts, durability: Durability::Process }
    }

    /// Works until no one can send writes any more.
    pub(super) fn run(mut self, queue: &mpsc::Receiver<Job>) {
        while let Ok(first) = queue.recv() {
            let mut group = vec![first];
            group.extend(queue.try_iter().take(LARGEST_GROUP - 1));
            let durability = durability_of(&group);
            self.counts.all.fetch_add(1, Ordering::Relaxed);
            let waits_for_disk = durability == Durability::PowerFailure;
            self.counts.synchronised.fetch_add(waits_for_disk.into(), Ordering::Relaxed);
            match self.file.check() {
                Ok(()) => self.commit(group, durability),
                Err(error) => group.into_iter().for_each(|job| job.answer(Err(error.clone()))),
            }
        }
    }

    /// Commits a group in one transaction. When that fails, each write is tried alone, so that one bad write
    /// fails by itself.
    fn commit(&mut self, mut group: Vec<Job>, durability: Durability) {
        let committed = self.set_durability(durability).and_then(|()| self.write_together(&mut group));
        let is_alone = group.len() == 1;
        match committed {
            Ok(()) => group.into_iter().for_each(|job| job.answer(Ok(()))),
            Err(error) if is_alone => group.into_iter().for_each(|job| job.answer(Err(self.failed(&error)))),
            Err(_) => {
                for mut job in group {
                    let committed = self.write_together(std::slice::from_mut(&mut job));
                    job.answer(committed.map_err(|error| self.failed(&error)));
                }
            }
        }
    }

    fn set_durability(&mut self, durability: Durability) -> rusqlite::Result<()> {
        if self.durability != durability {
            let synchronous = if durability == Durability::PowerFailure { "full" } else { "normal" };
            self.connection.pragma_update(None, "synchronous", synchronous)?;
            self.durability = durability;
        }
        Ok(())
    }

    fn write_together(&mut self, group: &mut [Job]) -> rusqlite::Result<()> {
        #[cfg(debug_assertions)]
        super::failpoint::before_commit();
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        group.iter_mut().try_for_each(|job| job.write.run(&transaction))?;
        transaction.commit()?;
        #[cfg(debug_assertions)]
        super::failpoint::after_commit();
        Ok(())
    }

    fn failed(&self, error: &rusqlite::Error) -> StoreError {
        failed("write", self.file.path(), error)
    }
}

/// Returns the durability of a group's commit: that of its most demanding write.
fn durability_of(group: &[Job]) -> Durability {
    if group.iter().any(|job| job.durability == Durability::PowerFailure) {
        Durability::PowerFailure
    } else {
        Durability::Process
    }
}
