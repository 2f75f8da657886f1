//! The reasons why a run cannot be resumed. Made by `agents`, `resume` and `conversation`.

use store::{Status, StoreError};

/// A run cannot be resumed.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// The store of runs is not open.
    #[error("the store of runs is not open; the log says why")]
    NoStore,
    /// The store cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store has no run with this id.
    #[error("there is no run {0}")]
    NoRun(String),
    /// The agent of this name is not configured.
    #[error("its agent `{0}` is not configured")]
    NoAgent(String),
    /// Another version of respool wrote the run.
    #[error("it was written by another version of respool")]
    OtherVersion,
    /// The run waits for the results of its client's tools.
    #[error("it waits for its client's tool results")]
    AwaitsClient,
    /// Conversations are not stored here.
    #[error("no earlier conversation is available: conversations are not kept here")]
    NotStored,
    /// The conversation is open in another terminal.
    #[error("it is open in another terminal; close it there, or begin a new one")]
    OpenElsewhere,
    /// The run has this status, so no process can claim it.
    #[error("it is {}", .0.as_str())]
    NotClaimed(Status),
}
