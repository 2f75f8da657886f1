//! The port of the queue: what is needed of a database, and nothing of its dialect. Times are milliseconds
//! since 1970.

use std::collections::BTreeSet;

use futures::future::BoxFuture;

use super::plan::{DedupeKey, LaneKey};
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
    /// When it may run.
    pub due: u64,
    /// The work, as its owner wrote it.
    pub payload: String,
    /// The key that identifies equal entries, and the time until which it is remembered.
    pub dedupe: Option<(DedupeKey, u64)>,
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
    /// The time now.
    pub now: u64,
    /// The lease ends then, unless it is renewed.
    pub until: u64,
    /// Entries that the caller works on. It does not take them from itself where it was late to renew its
    /// leases.
    pub working: Vec<String>,
    /// Only this entry, and those of its lane that must end before it.
    pub towards: Option<String>,
}

/// A durable queue with lanes, leases and dedupe. A change answers false when the lease is lost: then nothing
/// was changed, and the caller must do nothing more.
pub trait Queue: Send + Sync {
    /// Queues work, all of it or nothing; dedupe keys are remembered in the same commit, which survives a
    /// power failure. Returns the result for each entry, in order.
    fn enqueue_all(
        &self,
        entries: Vec<NewEntry>,
        now: u64,
    ) -> BoxFuture<'_, Result<Vec<Enqueued>, StoreError>>;

    /// Queues one piece of work.
    fn enqueue(&self, entry: NewEntry, now: u64) -> BoxFuture<'_, Result<Enqueued, StoreError>> {
        let queued = self.enqueue_all(vec![entry], now);
        Box::pin(async move { Ok(queued.await?.pop().unwrap_or(Enqueued::Accepted)) })
    }

    /// Notes the time of this process. When the system clock was set back since a process noted the time, due
    /// times are moved back by as much, and the result says by how much. Otherwise they would wait until the
    /// clock has caught up.
    fn correct_clock(&self, now: u64) -> BoxFuture<'_, Result<Option<u64>, StoreError>>;

    /// The last time for which a clock fired, in this process or another one. A clock that is seen for the
    /// first time has fired for `now`.
    fn clock_mark(&self, clock: &Clock, now: u64) -> BoxFuture<'_, Result<u64, StoreError>>;

    /// Forgets the marks of clocks that are gone: one that comes back later is a new clock, which has missed
    /// nothing.
    fn forget_clocks(&self, gone: GoneClocks) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Claims what is due and first in its lane, the longest due first. What a dead holder held is claimed
    /// again.
    fn claim_entries(&self, request: ClaimRequest) -> BoxFuture<'_, Result<Vec<Claimed>, StoreError>>;

    /// Renews a lease.
    fn heartbeat(&self, lease: &EntryLease, until: u64) -> BoxFuture<'_, Result<bool, StoreError>>;

    /// Gives an entry back for a further attempt at a time. Its lane is held.
    fn retry_at(&self, lease: &EntryLease, at: u64, note: String) -> BoxFuture<'_, Result<bool, StoreError>>;

    /// Gives an entry back until it is woken: a person is awaited. Its lane is held.
    fn hold(&self, lease: &EntryLease, note: String) -> BoxFuture<'_, Result<bool, StoreError>>;

    /// Lets the attempt of a held entry go on; false when it is not held.
    fn wake(&self, entry: &str, now: u64) -> BoxFuture<'_, Result<bool, StoreError>>;

    /// Ends an entry, and lets the next one of its lane run.
    fn complete(
        &self,
        lease: &EntryLease,
        end: EntryEnd,
        note: String,
        now: u64,
    ) -> BoxFuture<'_, Result<bool, StoreError>>;
}
