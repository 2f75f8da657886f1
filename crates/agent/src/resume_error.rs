//! The reasons why a run cannot be resumed. Made by `agents`, `resume` and `conversation`.

use std::error::Error;
use std::fmt;

use store::{Status, StoreError};

/// A run cannot be resumed.
#[derive(Debug)]
pub enum ResumeError {
    /// The store of runs is not open.
    NoStore,
    /// The store cannot be read or written.
    Store(StoreError),
    /// The store has no run with this id.
    NoRun(String),
    /// The agent of this name is not configured.
    NoAgent(String),
    /// Another version of respool wrote the run.
    OtherVersion,
    /// The run waits for the results of its client's tools.
    AwaitsClient,
    /// Conversations are not stored here.
    NotStored,
    /// The conversation is open in another terminal.
    OpenElsewhere,
    /// The run has this status, so no process can claim it.
    NotClaimed(Status),
}

impl fmt::Display for ResumeError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoStore => out.write_str("the store of runs is not open; the log says why"),
            Self::Store(error) => error.fmt(out),
            Self::NoRun(id) => write!(out, "there is no run {id}"),
            Self::NoAgent(name) => write!(out, "its agent `{name}` is not configured"),
            Self::OtherVersion => out.write_str("it was written by another version of respool"),
            Self::AwaitsClient => out.write_str("it waits for its client's tool results"),
            Self::NotStored => {
                out.write_str("no earlier conversation is available: conversations are not kept here")
            }
            Self::OpenElsewhere => {
                out.write_str("it is open in another terminal; close it there, or begin a new one")
            }
            Self::NotClaimed(status) => write!(out, "it is {}", status.as_str()),
        }
    }
}

impl Error for ResumeError {}

impl From<StoreError> for ResumeError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}
