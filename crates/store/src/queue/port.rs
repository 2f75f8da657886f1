//! The port of the queue: what is needed of a database, and nothing of its dialect. Leases and pauses are
//! durations from the store's own clock, which all its processes share. Times of crons are milliseconds since
//! 1970.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;

use super::plan::{DedupeKey, LaneKey};
use super::rows::{EntryRow, EntryState, OpenCount};
use crate::error::StoreError;

/// Work to queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewEntry {
    /// Its id, unique among all entries.
    pub id: String,
    /// Whose work it is (an expert's name): workers claim by it.
    pub queue: String,
    /// The lane in which it runs; `None`: it waits for no other entry.
    pub lane: Option<LaneKey>,
    /// How long it waits before it may run.
    pub delay: Duration,
    /// The work, as its owner wrote it.
    pub payload: String,
    /// The key that identifies equal entries, and how long it is remembered.
    pub dedupe: Option<(DedupeKey, Duration)>,
    /// The time of a clock that it is queued for.
    pub clock: Option<ClockTime>,
}

/// A clock that fires: whose it is, and at which times.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Clock {
    /// The queue into which it fires.
    pub queue: String,
    /// Its name.
    pub name: String,
    /// Its times. Another text is another clock, which has not fired yet.
    pub schedule: String,
}

/// One time of a clock. Of several processes, one queues an entry for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClockTime {
    /// The clock.
    pub clock: Clock,
    /// The time.
    pub time: u64,
}

/// The result of queueing an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// It is queued, and survives a power failure.
    Accepted,
    /// The same was queued before, under this id.
    Duplicate(String),
}

/// The right to work on an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryLease {
    /// The entry's id.
    pub entry: String,
    /// Grows with each claim.
    pub epoch: u64,
}

/// An entry that was claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// The right to work on it.
    pub lease: EntryLease,
    /// Whose work it is.
    pub queue: String,
    /// The work, as its owner wrote it.
    pub payload: String,
    /// Which attempt this is, the first one is 1.
    pub attempt: u32,
    /// The attempt goes on: its earlier holder died, or a person was awaited.
    pub is_continued: bool,
    /// The run that works on it, once it has begun.
    pub run: Option<String>,
    /// When it was accepted.
    pub accepted: u64,
}

/// How work on an entry ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryEnd {
    /// It was done.
    Done,
    /// A person has to decide how it goes on.
    Escalated,
    /// It failed, and no person has to look after it.
    Failed,
    /// It failed, and is kept until a person replays or drops it.
    DeadLetter,
}

/// Clocks that are gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GoneClocks {
    /// All but these, by queue and name.
    AllBut(BTreeSet<(String, String)>),
    /// Those of this queue.
    OfQueue(String),
}

/// Which entries may be claimed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimRequest {
    /// Of these queues; the others are not ready.
    pub queues: Vec<String>,
    /// At most this many.
    pub most: usize,
    /// The lease ends after this time, unless it is renewed.
    pub lease: Duration,
    /// Entries that the caller works on. It does not take them from itself where it was late to renew its
    /// leases.
    pub working: Vec<String>,
    /// Only this entry, and those of its lane that must end before it.
    pub towards: Option<String>,
}

/// A durable queue with lanes, leases and dedupe. A change answers false when the lease is lost: then nothing
/// was changed, and the caller must do nothing more.
#[async_trait]
pub trait Queue: Send + Sync {
    /// Queues work, all of it or nothing; dedupe keys are remembered in the same commit, which survives a
    /// power failure. Returns the result for each entry, in order.
    async fn enqueue_all(&self, entries: Vec<NewEntry>) -> Result<Vec<Enqueued>, StoreError>;

    /// Queues one piece of work.
    async fn enqueue(&self, entry: NewEntry) -> Result<Enqueued, StoreError> {
        Ok(self.enqueue_all(vec![entry]).await?.pop().unwrap_or(Enqueued::Accepted))
    }

    /// Notes the time of this process. When the system clock was set back since a process noted the time, due
    /// times are moved back by as much, and the result says by how much. Otherwise they would wait until the
    /// clock has caught up. A store with a clock of its own has nothing to correct.
    async fn correct_clock(&self, now: u64) -> Result<Option<u64>, StoreError>;

    /// Returns the last time for which a clock fired, in this process or another one. A clock that is seen
    /// for the first time has fired for `now`.
    async fn clock_mark(&self, clock: &Clock, now: u64) -> Result<u64, StoreError>;

    /// Notes that a clock does not fire for a time, nor for those before it.
    async fn skip_time(&self, time: &ClockTime) -> Result<(), StoreError>;

    /// Forgets the marks of clocks that are gone: one that comes back later is a new clock, which has missed
    /// nothing.
    async fn forget_clocks(&self, gone: GoneClocks) -> Result<(), StoreError>;

    /// Claims what is due and first in its lane, the longest due first. What a dead holder held is claimed
    /// again.
    async fn claim_entries(&self, request: ClaimRequest) -> Result<Vec<Claimed>, StoreError>;

    /// Renews a lease for a time from now. With no time at all it ends, and the entry can be claimed at once.
    async fn heartbeat(&self, lease: &EntryLease, length: Duration) -> Result<bool, StoreError>;

    /// Gives an entry back for a further attempt after a pause. Its lane is held.
    async fn retry_after(
        &self,
        lease: &EntryLease,
        pause: Duration,
        note: String,
    ) -> Result<bool, StoreError>;

    /// Gives an entry back until it is woken: a person is awaited. Its lane is held.
    async fn hold(&self, lease: &EntryLease, note: String) -> Result<bool, StoreError>;

    /// Lets the attempt of a held entry go on; false when it is not held.
    async fn wake(&self, entry: &str) -> Result<bool, StoreError>;

    /// Ends an entry, and lets the next one of its lane run.
    async fn complete(&self, lease: &EntryLease, end: EntryEnd, note: String) -> Result<bool, StoreError>;
}

/// The queue as people see it, and what they can do with an entry.
#[async_trait]
pub trait QueueEntries: Send + Sync {
    /// Waits until this process queues an entry, or has queued one since this was last waited for. For one
    /// worker alone.
    async fn wait_for_entry(&self);

    /// Returns the entries of a state, in the order in which they were accepted; `queue`: of this one alone.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn entries(
        &self,
        queue: Option<&str>,
        state: EntryState,
        most: usize,
    ) -> Result<Vec<EntryRow>, StoreError> {
        self.sorted_entries(queue, state, false, most).await
    }

    /// Returns the entries of a state that were accepted last, the newest first; `queue`: of this one alone.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn newest_entries(
        &self,
        queue: Option<&str>,
        state: EntryState,
        most: usize,
    ) -> Result<Vec<EntryRow>, StoreError> {
        self.sorted_entries(queue, state, true, most).await
    }

    /// Returns the entries of a state by when they were accepted; for [`Self::entries`] and
    /// [`Self::newest_entries`].
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn sorted_entries(
        &self,
        queue: Option<&str>,
        state: EntryState,
        newest_first: bool,
        most: usize,
    ) -> Result<Vec<EntryRow>, StoreError>;

    /// Returns how many entries that have not ended each queue has in each state.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn open_counts(&self) -> Result<Vec<OpenCount>, StoreError>;

    /// Returns the places of a queue's entries that have not ended, in order, behind one of them.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn open_places(&self, queue: &str, behind: u64) -> Result<Vec<u64>, StoreError>;

    /// Returns the entries at these places.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn entries_at(&self, places: Vec<u64>) -> Result<Vec<EntryRow>, StoreError>;

    /// Returns one entry.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn entry(&self, id: &str) -> Result<Option<EntryRow>, StoreError>;

    /// Returns when the oldest work of a queue, or of the agent that works on it, began that is still open;
    /// `None` when none is.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn oldest_open(&self, queue: &str, agent: &str) -> Result<Option<u64>, StoreError>;

    /// Returns the entry that a run works on.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn entry_of_run(&self, run: &str) -> Result<Option<EntryRow>, StoreError>;

    /// Returns the entry that a waiting one of the same lane waits for, where there is one.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn entry_before(&self, id: &str) -> Result<Option<EntryRow>, StoreError>;

    /// Returns how long it takes until the next entry of these queues is due or its lease ends; `None` when
    /// nothing waits.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn next_due(&self, queues: Vec<String>) -> Result<Option<Duration>, StoreError>;

    /// Queues an entry that failed or was escalated again, at the end of its lane, under a new id; false when
    /// it is not such an entry. Its dedupe key does not count.
    /// `payload`: what the new one has in place of its own.
    ///
    /// # Errors
    /// When the store cannot be written.
    async fn replay(&self, entry: &str, new_id: &str, payload: Option<String>) -> Result<bool, StoreError>;

    /// Drops a dead letter; false when it is not one.
    ///
    /// # Errors
    /// When the store cannot be written.
    async fn drop_dead_letter(&self, entry: &str) -> Result<bool, StoreError>;

    /// Returns a claimed entry to the queue, due after a pause, as if it had not been claimed: its attempt
    /// and its run stay as they are. False when the lease is lost.
    ///
    /// # Errors
    /// When the store cannot be written.
    async fn give_back_entry(
        &self,
        lease: &EntryLease,
        pause: Duration,
        note: &str,
    ) -> Result<bool, StoreError>;

    /// Ends an entry that waits or is held, so that nothing more is done for it; false when it is neither.
    ///
    /// # Errors
    /// When the store cannot be written.
    async fn give_up(&self, entry: &str, note: &str) -> Result<bool, StoreError>;
}
