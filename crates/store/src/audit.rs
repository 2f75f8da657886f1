//! The port of the audit log of several processes. Each keeps its lines in a file of its own first, which
//! stays the truth; what a line means is the business of `tools`. Written by `audit_copy`, read by
//! `cli::audit`.

use async_trait::async_trait;

use super::error::StoreError;

/// A line of an audit log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditLogLine {
    /// When it was written, in milliseconds since 1970.
    pub at: u64,
    /// Where it begins in its file, which orders the lines of one millisecond.
    pub offset: u64,
    /// The line, without its end.
    pub text: String,
}

/// Complete lines that follow one another in a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditLogPart {
    /// Stands for the file among all files.
    pub file: String,
    /// Where the last line ends in it.
    pub end: u64,
    /// The lines.
    pub lines: Vec<AuditLogLine>,
}

/// The audit log of all processes that share a database.
#[async_trait]
pub trait SharedAuditLog: Send + Sync {
    /// Adds lines of this process's file. Those that are there already stay, also if they came from a copy of
    /// the file, so that lines may be sent again.
    ///
    /// # Errors
    /// When the database cannot be written; it may have the lines all the same.
    async fn add_lines(&self, part: AuditLogPart) -> Result<(), StoreError>;

    /// Returns up to where the lines of a file were added.
    ///
    /// # Errors
    /// When the database cannot be read.
    async fn added_until(&self, file: &str) -> Result<u64, StoreError>;

    /// Returns the newest lines from a time on, the oldest first, each with the name of its process.
    ///
    /// # Errors
    /// When the database cannot be read.
    async fn newest_lines(&self, since: u64, most: usize) -> Result<Vec<(String, AuditLogLine)>, StoreError>;
}
