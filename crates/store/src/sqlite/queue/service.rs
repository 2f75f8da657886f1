//! The queue in the `SQLite` store. Its clock is the system's.

use std::time::Duration;

use async_trait::async_trait;
use rusqlite::Connection;

use super::{changes, clock_rollback, clocks, rows};
use crate::error::StoreError;
use crate::queue::{
    ClaimRequest, Claimed, Clock, ClockTime, Enqueued, EntryEnd, EntryLease, EntryRow, EntryState,
    GoneClocks, NewEntry, OpenCount, Queue, QueueEntries,
};
use crate::sqlite::store::SqliteStore;

/// Returns the time at which a pause that begins now is over.
fn end_of(pause: Duration) -> u64 {
    clock::now().saturating_add(clock::to_millis(pause))
}

#[async_trait]
impl Queue for SqliteStore {
    async fn enqueue_all(&self, entries: Vec<NewEntry>) -> Result<Vec<Enqueued>, StoreError> {
        let now = clock::now();
        let work = move |change: &rusqlite::Transaction<'_>| {
            entries.iter().map(|entry| changes::enqueue(change, entry, now)).collect()
        };
        let enqueued: Vec<Enqueued> = self.write_to_disk(work).await?;
        if enqueued.contains(&Enqueued::Accepted) {
            self.queued.notify_one();
        }
        Ok(enqueued)
    }

    async fn correct_clock(&self, now: u64) -> Result<Option<u64>, StoreError> {
        self.write(move |change| clock_rollback::correct_clock(change, now)).await
    }

    async fn clock_mark(&self, clock: &Clock, now: u64) -> Result<u64, StoreError> {
        let clock = clock.clone();
        self.write(move |change| clocks::mark(change, &clock, now)).await
    }

    async fn skip_time(&self, time: &ClockTime) -> Result<(), StoreError> {
        let time = time.clone();
        self.write(move |change| clocks::skip(change, &time)).await
    }

    async fn forget_clocks(&self, gone: GoneClocks) -> Result<(), StoreError> {
        self.write(move |change| clocks::forget(change, &gone)).await
    }

    async fn claim_entries(&self, request: ClaimRequest) -> Result<Vec<Claimed>, StoreError> {
        let now = clock::now();
        self.write(move |change| changes::claim(change, &request, now)).await
    }

    async fn heartbeat(&self, lease: &EntryLease, length: Duration) -> Result<bool, StoreError> {
        let (lease, until) = (lease.clone(), end_of(length));
        self.write(move |change| changes::renew(change, &lease, until)).await
    }

    async fn retry_after(
        &self,
        lease: &EntryLease,
        pause: Duration,
        note: String,
    ) -> Result<bool, StoreError> {
        let (lease, at) = (lease.clone(), end_of(pause));
        self.write(move |change| changes::retry(change, &lease, at, &note)).await
    }

    async fn hold(&self, lease: &EntryLease, note: String) -> Result<bool, StoreError> {
        let lease = lease.clone();
        self.write(move |change| changes::hold(change, &lease, &note)).await
    }

    async fn wake(&self, entry: &str) -> Result<bool, StoreError> {
        let (entry, now) = (entry.to_owned(), clock::now());
        self.write(move |change| changes::wake(change, &entry, now)).await
    }

    async fn complete(&self, lease: &EntryLease, end: EntryEnd, note: String) -> Result<bool, StoreError> {
        let (lease, now) = (lease.clone(), clock::now());
        self.write(move |change| changes::complete(change, &lease, end, &note, now)).await
    }
}

#[async_trait]
impl QueueEntries for SqliteStore {
    async fn wait_for_entry(&self) {
        self.queued.notified().await;
    }

    async fn sorted_entries(
        &self,
        queue: Option<&str>,
        state: EntryState,
        newest_first: bool,
        most: usize,
    ) -> Result<Vec<EntryRow>, StoreError> {
        let queue = queue.map(str::to_owned);
        let work = move |connection: &Connection| {
            rows::entries(connection, queue.as_deref(), state, newest_first, most)
        };
        self.read(work).await
    }

    async fn open_counts(&self) -> Result<Vec<OpenCount>, StoreError> {
        self.read(rows::open_counts).await
    }

    async fn open_places(&self, queue: &str, behind: u64) -> Result<Vec<u64>, StoreError> {
        let queue = queue.to_owned();
        self.read(move |connection| rows::open_places(connection, &queue, behind)).await
    }

    async fn entries_at(&self, places: Vec<u64>) -> Result<Vec<EntryRow>, StoreError> {
        self.read(move |connection| rows::entries_at(connection, &places)).await
    }

    async fn entry(&self, id: &str) -> Result<Option<EntryRow>, StoreError> {
        let id = id.to_owned();
        self.read(move |connection| rows::entry(connection, &id)).await
    }

    async fn oldest_open(&self, queue: &str, agent: &str) -> Result<Option<u64>, StoreError> {
        let (queue, agent) = (queue.to_owned(), agent.to_owned());
        self.read(move |connection| rows::oldest_open(connection, &queue, &agent)).await
    }

    async fn entry_of_run(&self, run: &str) -> Result<Option<EntryRow>, StoreError> {
        let run = run.to_owned();
        self.read(move |connection| rows::entry_of_run(connection, &run)).await
    }

    async fn entry_before(&self, id: &str) -> Result<Option<EntryRow>, StoreError> {
        let id = id.to_owned();
        self.read(move |connection| rows::entry_before(connection, &id)).await
    }

    async fn next_due(&self, queues: Vec<String>) -> Result<Option<Duration>, StoreError> {
        let due = self.read(move |connection| rows::next_due(connection, &queues)).await?;
        Ok(due.map(|due| Duration::from_millis(due.saturating_sub(clock::now()))))
    }

    async fn replay(&self, entry: &str, new_id: &str, payload: Option<String>) -> Result<bool, StoreError> {
        let (entry, new_id, now) = (entry.to_owned(), new_id.to_owned(), clock::now());
        self.write(move |change| changes::replay(change, &entry, &new_id, payload.as_deref(), now)).await
    }

    async fn drop_dead_letter(&self, entry: &str) -> Result<bool, StoreError> {
        let entry = entry.to_owned();
        self.write(move |change| changes::drop_dead_letter(change, &entry)).await
    }

    async fn give_back_entry(
        &self,
        lease: &EntryLease,
        pause: Duration,
        note: &str,
    ) -> Result<bool, StoreError> {
        let (lease, note, at) = (lease.clone(), note.to_owned(), end_of(pause));
        self.write(move |change| changes::give_back(change, &lease, at, &note)).await
    }

    async fn give_up(&self, entry: &str, note: &str) -> Result<bool, StoreError> {
        let (entry, note, now) = (entry.to_owned(), note.to_owned(), clock::now());
        self.write(move |change| changes::give_up(change, &entry, &note, now)).await
    }
}
