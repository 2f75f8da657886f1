//! The port of the store: what respool needs of a database. Each engine behind it implements all of it.

use std::fmt::Debug;

use super::approvals::Approvals;
use super::audit::SharedAuditLog;
use super::check::Checks;
use super::error::StoreError;
use super::key_usage::KeyUsages;
use super::nodes::Nodes;
use super::operators::Operators;
use super::outbox::Outbox;
use super::queue::{Queue, QueueEntries};
use super::responses::Responses;
use super::run_rows::RunRows;
use super::runs::Runs;
use super::usage::SharedUsage;

/// All that is needed of a database. What a method of one of these traits promises holds for every engine
/// (`conformance.rs`).
pub trait StorePort:
    Approvals
    + Checks
    + KeyUsages
    + Nodes
    + Operators
    + Outbox
    + Queue
    + QueueEntries
    + Responses
    + RunRows
    + Runs
    + Debug
    + Send
    + Sync
{
    /// The place of the data, for people and without a password.
    fn place(&self) -> String;

    /// The name of this process among those that share the store; `None` for a store in files.
    fn node(&self) -> Option<String> {
        None
    }

    /// Whether other processes share it, on other machines perhaps.
    fn is_shared(&self) -> bool {
        self.node().is_some()
    }

    /// The usage of all processes; `None` for a store in files, where each process has its own.
    fn shared_usage(&self) -> Option<&dyn SharedUsage> {
        None
    }

    /// The audit log of all processes; `None` for a store in files.
    fn shared_audit_log(&self) -> Option<&dyn SharedAuditLog> {
        None
    }

    /// Checks that the data is still where it was when the store was opened. If it is not, writes fail.
    ///
    /// # Errors
    /// When its file was removed or replaced, or when its database cannot be used at present.
    fn check_file(&self) -> Result<(), StoreError>;

    /// Returns how often this process has committed, and how many of these commits waited for the disk.
    fn commits(&self) -> (u64, u64);
}
