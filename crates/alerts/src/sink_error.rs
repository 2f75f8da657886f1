//! Why a message was not delivered.

use std::io;
use std::process::ExitStatus;
use std::time::Duration;

/// How long one delivery may take.
pub(super) const WITHIN: Duration = Duration::from_secs(20);

/// The reason why a message was not delivered.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// A setting of the sink is missing.
    #[error("it has no `{0}`")]
    NoSetting(&'static str),
    /// No client can be made for the sink's address.
    #[error("{0}")]
    NoClient(String),
    /// A setting is not an e-mail address.
    #[error("`{0}` is not an e-mail address: {1}")]
    NotAnAddress(&'static str, String),
    /// No answer came.
    #[error("{0}")]
    NoAnswer(String),
    /// The answer's status is an error's.
    #[error("it answered HTTP {0}")]
    Status(u16),
    /// The delivery took too long.
    #[error("it took longer than {} s", WITHIN.as_secs())]
    TooSlow,
    /// OpenClaw's tool for messages failed.
    #[error("OpenClaw's `message` tool failed: {0}")]
    OpenClaw(String),
    /// The program is not started, for this reason.
    #[error("{0}")]
    NotSafe(String),
    /// The program could not be started or watched.
    #[error("{0} cannot be started: {1}")]
    NotStarted(String, io::Error),
    /// The program failed.
    #[error("{0} ended with {1}")]
    ProgramFailed(String, ExitStatus),
    /// The mail could not be written or sent.
    #[error("{0}")]
    Mail(String),
}
