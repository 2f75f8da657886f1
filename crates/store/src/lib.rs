//! Durable state: runs as their setup and their events, the queue, and responses that clients keep. The only
//! crate that knows SQL.
//!
//! The port is types and one trait for each subject, without SQL; `sqlite` and `postgres` are engines behind
//! it. What the rows mean is the business of `agent`: setups and events are texts here.

#![cfg_attr(
    not(feature = "postgres"),
    allow(dead_code, unused_imports, reason = "a part serves databases alone")
)]

mod approvals;
mod attention;
mod audit;
mod audit_copy;
mod check;
pub mod config;
mod disk;
mod error;
mod key_usage;
mod migrate;
mod nodes;
mod operators;
mod outbox;
mod port;
#[cfg_attr(not(feature = "postgres"), path = "without_postgres.rs")]
mod postgres;
mod queue;
mod responses;
mod run_rows;
mod runs;
mod sqlite;
mod status;
mod store;
mod tables;
mod usage;
mod usage_columns;

pub use approvals::{ApprovalChange, ApprovalRow, ApprovalState, Approvals, LateDecision, WokenRun};
pub use attention::Attention;
pub use audit::{AuditLogLine, AuditLogPart, SharedAuditLog};
pub use audit_copy::AuditCopy;
pub use check::{Checks, StoreCheck};
pub use config::{DatabaseConfig, NodeConfig, ResponsesConfig, RunsConfig, StoreConfig};
pub use disk::{try_directory, write_remedy};
pub use error::StoreError;
pub use key_usage::{KeyUsage, KeyUsages};
pub use migrate::{Copied, copy_to_database};
pub use nodes::{EndedSession, NodeRow, Nodes, SentAlert};
pub use operators::{OperatorKey, Operators};
pub use outbox::{MessageFilter, MessageRow, NewMessage, Outbox};
pub use port::StorePort;
pub use queue::{
    Backoff, BackoffKind, ClaimRequest, Claimed, Clock, ClockTime, DedupeKey, Enqueued, EntryEnd, EntryLease,
    EntryRow, EntryState, GoneClocks, LaneKey, NewEntry, OpenCount, QueueEntries,
};
pub use responses::{ItemsNamed, ItemsOf, KeptResponse, Responses, UnfinishedResponse};
pub use run_rows::{Cleared, RunFilter, RunRow, RunRows, StoredEvent, StoredRun, Usage};
pub use runs::{Ack, Append, ClaimScope, NewRun, Runs};
pub use sqlite::{UsageStore, copy_databases, find_damaged, find_set_aside};
pub use status::Status;
pub use store::Store;
pub use usage::{
    Dimension, RequestOrder, RequestQuery, ScopeCost, SharedUsage, UncopiedUsage, UsageQuery, UsageRows,
    UsageSum, UsageTotals,
};

#[cfg(test)]
mod conformance;
