//! The store in `SQLite` files of a state directory: what serves one machine.
//!
//! One thread writes. Everything that waits when it comes round is one transaction (group commit), so two
//! hundred runs share a commit instead of queueing for two hundred. A caller is answered when its rows are
//! committed.

mod approvals;
mod backup;
mod check;
mod clearing;
mod damaged;
#[cfg(debug_assertions)]
mod failpoint;
mod fresh_rows;
mod key_usage;
mod lease;
mod open;
mod operators;
mod outbox;
mod presence;
mod queue;
mod requests;
mod responses;
mod run_rows;
mod runs;
mod sharing;
mod source;
mod space;
mod statements;
mod store;
mod usage;
mod writer;

pub use backup::copy_databases;
pub use damaged::{find_damaged, find_set_aside};
pub(crate) use source::Source;
pub(crate) use store::SqliteStore;
pub use usage::UsageStore;

#[cfg(test)]
mod tests;
