//! Durable state: runs as their setup and their events, and responses that clients keep, in one `SQLite`
//! file. The only crate that knows SQL.
//!
//! One thread writes. Everything that waits when it comes round is one transaction (group commit), so two
//! hundred runs share a commit instead of queueing for two hundred. A caller is answered when its rows are
//! committed. What the rows mean is the business of `agent`: setups and events are texts here.

mod approvals;
mod clearing;
pub mod config;
mod error;
#[cfg(debug_assertions)]
mod failpoint;
mod key_usage;
mod lease;
mod open;
mod operators;
mod outbox;
mod presence;
mod queue;
mod responses;
mod run_rows;
mod runs;
mod space;
mod statements;
mod status;
mod store;
mod usage;
mod writer;

pub use approvals::{ApprovalChange, ApprovalRow, ApprovalState, LateDecision, WokenRun};
pub use clearing::{Cleared, Usage};
pub use config::{ResponsesConfig, RunsConfig, StoreConfig};
pub use error::StoreError;
pub use key_usage::KeyUsage;
pub use operators::OperatorKey;
pub use outbox::{MessageFilter, MessageRow, NewMessage};
pub use queue::{
    Backoff, BackoffKind, ClaimRequest, Claimed, Clock, ClockTime, DedupeKey, Enqueued, EntryEnd, EntryLease,
    EntryRow, EntryState, GoneClocks, LaneKey, NewEntry, Queue,
};
pub use responses::{ItemsNamed, ItemsOf, KeptResponse, UnfinishedResponse};
pub use run_rows::{RunFilter, RunRow, StoredEvent, StoredRun};
pub use runs::{Ack, Append, ClaimScope, NewRun};
pub use status::Status;
pub use store::Store;
pub use usage::{Dimension, StoredUsage, UsageQuery, UsageStore, UsageSum};

#[cfg(test)]
mod tests;
