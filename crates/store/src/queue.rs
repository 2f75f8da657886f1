//! The queue of durable work: what waits, which process holds it, and in which order it may run.
//!
//! An entry is claimed for a time and with an epoch; a process that shows an older epoch changes nothing.
//! Entries of one lane run one at a time, in the order in which they were accepted: the lane is held through
//! retries and while a person is awaited. Called by `experts`.

mod plan;
mod port;
mod rows;

pub use plan::{Backoff, BackoffKind, DedupeKey, LaneKey};
pub(crate) use port::Queue;
pub use port::{
    ClaimRequest, Claimed, Clock, ClockTime, Enqueued, EntryEnd, EntryLease, GoneClocks, NewEntry,
    QueueEntries,
};
pub use rows::{EntryRow, EntryState, OpenCount};
