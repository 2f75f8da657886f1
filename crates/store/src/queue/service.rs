//! The queue in the store of this process.

use futures::future::BoxFuture;

use super::port::{
    ClaimRequest, Claimed, Clock, Enqueued, EntryEnd, EntryLease, GoneClocks, NewEntry, Queue,
};
use super::rows::{EntryRow, EntryState};
use super::{changes, clock_rollback, clocks, rows};
use crate::error::StoreError;
use crate::store::Store;

impl Queue for Store {
    fn enqueue_all(
        &self,
        entries: Vec<NewEntry>,
        now: u64,
    ) -> BoxFuture<'_, Result<Vec<Enqueued>, StoreError>> {
        Box::pin(async move {
            let work = move |change: &rusqlite::Transaction<'_>| {
                entries.iter().map(|entry| changes::enqueue(change, entry, now)).collect()
            };
            let enqueued: Vec<Enqueued> = self.write_to_disk(work).await?;
            if enqueued.contains(&Enqueued::Accepted) {
                self.queued.notify_one();
            }
            Ok(enqueued)
        })
    }

    fn correct_clock(&self, now: u64) -> BoxFuture<'_, Result<Option<u64>, StoreError>> {
        Box::pin(self.write(move |change| clock_rollback::correct_clock(change, now)))
    }

    fn clock_mark(&self, clock: &Clock, now: u64) -> BoxFuture<'_, Result<u64, StoreError>> {
        let clock = clock.clone();
        Box::pin(self.write(move |change| clocks::mark(change, &clock, now)))
    }

    fn forget_clocks(&self, gone: GoneClocks) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.write(move |change| clocks::forget(change, &gone)))
    }

    fn claim_entries(&self, request: ClaimRequest) -> BoxFuture<'_, Result<Vec<Claimed>, StoreError>> {
        Box::pin(self.write(move |change| changes::claim(change, &request)))
    }

    fn heartbeat(&self, lease: &EntryLease, until: u64) -> BoxFuture<'_, Result<bool, StoreError>> {
        let lease = lease.clone();
        Box::pin(self.write(move |change| changes::renew(change, &lease, until)))
    }

    fn retry_at(&self, lease: &EntryLease, at: u64, note: String) -> BoxFuture<'_, Result<bool, StoreError>> {
        let lease = lease.clone();
        Box::pin(self.write(move |change| changes::retry(change, &lease, at, &note)))
    }

    fn hold(&self, lease: &EntryLease, note: String) -> BoxFuture<'_, Result<bool, StoreError>> {
        let lease = lease.clone();
        Box::pin(self.write(move |change| changes::hold(change, &lease, &note)))
    }

    fn wake(&self, entry: &str, now: u64) -> BoxFuture<'_, Result<bool, StoreError>> {
        let entry = entry.to_owned();
        Box::pin(self.write(move |change| changes::wake(change, &entry, now)))
    }

    fn complete(
        &self,
        lease: &EntryLease,
        end: EntryEnd,
        note: String,
        now: u64,
    ) -> BoxFuture<'_, Result<bool, StoreError>> {
        let lease = lease.clone();
        Box::pin(self.write(move |change| changes::complete(change, &lease, end, &note, now)))
    }
}

impl Store {
    /// Waits until this process queues an entry, or has queued one since this was last waited for. For one
    /// worker alone.
    pub async fn wait_for_entry(&self) {
        self.queued.notified().await;
    }

    /// The entries of a state, in the order in which they were accepted; `queue`: of this one alone.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn entries(
        &self,
        queue: Option<&str>,
        state: EntryState,
        most: usize,
    ) -> Result<Vec<EntryRow>, StoreError> {
        let queue = queue.map(str::to_owned);
        self.read(move |connection| rows::entries(connection, queue.as_deref(), state, most)).await
    }

    /// The entries of a state that were accepted last, the newest first.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn newest_entries(&self, state: EntryState, most: usize) -> Result<Vec<EntryRow>, StoreError> {
        self.read(move |connection| rows::newest_entries(connection, state, most)).await
    }

    /// The places of a queue's entries that have not ended, in order, behind one of them.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn open_places(&self, queue: &str, behind: u64) -> Result<Vec<u64>, StoreError> {
        let queue = queue.to_owned();
        self.read(move |connection| rows::open_places(connection, &queue, behind)).await
    }

    /// The entries at these places.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn entries_at(&self, places: Vec<u64>) -> Result<Vec<EntryRow>, StoreError> {
        self.read(move |connection| rows::entries_at(connection, &places)).await
    }

    /// One entry.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn entry(&self, id: &str) -> Result<Option<EntryRow>, StoreError> {
        let id = id.to_owned();
        self.read(move |connection| rows::entry(connection, &id)).await
    }

    /// When the oldest work of a queue, or of the agent that works on it, began that is still open; `None`
    /// when none is.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn oldest_open(&self, queue: &str, agent: &str) -> Result<Option<u64>, StoreError> {
        let (queue, agent) = (queue.to_owned(), agent.to_owned());
        self.read(move |connection| rows::oldest_open(connection, &queue, &agent)).await
    }

    /// The entry that a run works on.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn entry_of_run(&self, run: &str) -> Result<Option<EntryRow>, StoreError> {
        let run = run.to_owned();
        self.read(move |connection| rows::entry_of_run(connection, &run)).await
    }

    /// The entry that a waiting one of the same lane waits for, where there is one.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn entry_before(&self, id: &str) -> Result<Option<EntryRow>, StoreError> {
        let id = id.to_owned();
        self.read(move |connection| rows::entry_before(connection, &id)).await
    }

    /// When the next entry of these queues is due or its lease ends; `None` when nothing waits.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn next_due(&self, queues: Vec<String>) -> Result<Option<u64>, StoreError> {
        self.read(move |connection| rows::next_due(connection, &queues)).await
    }

    /// Queues a dead letter again, at the end of its lane, under a new id; false when it is not one. Its
    /// dedupe key does not count.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn replay(&self, entry: &str, new_id: &str, now: u64) -> Result<bool, StoreError> {
        let (entry, new_id) = (entry.to_owned(), new_id.to_owned());
        self.write(move |change| changes::replay(change, &entry, &new_id, now)).await
    }

    /// Drops a dead letter; false when it is not one.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn drop_dead_letter(&self, entry: &str) -> Result<bool, StoreError> {
        let entry = entry.to_owned();
        self.write(move |change| changes::drop_dead_letter(change, &entry)).await
    }

    /// Returns a claimed entry to the queue, due at this time, as if it had not been claimed: its attempt and
    /// its run stay as they are. False when the lease is lost.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn give_back_entry(&self, lease: &EntryLease, at: u64, note: &str) -> Result<bool, StoreError> {
        let (lease, note) = (lease.clone(), note.to_owned());
        self.write(move |change| changes::give_back(change, &lease, at, &note)).await
    }

    /// Ends an entry that waits or is held, so that nothing more is done for it; false when it is neither.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn give_up(&self, entry: &str, note: &str, now: u64) -> Result<bool, StoreError> {
        let (entry, note) = (entry.to_owned(), note.to_owned());
        self.write(move |change| changes::give_up(change, &entry, &note, now)).await
    }
}

#[cfg(test)]
mod tests;
