//! What a run does, told while it does it. Plain data; made by `driver`, shown by `progress` (agents) and by the chat.

use super::record::{Asked, Ended, ModelFailure, Said};
use super::step::Why;

/// Something that happens in a run.
#[derive(Clone, Copy, Debug)]
pub enum Happening<'a> {
    /// The model is asked. What it says to a summary is not told.
    Asks(Why),
    /// A piece of reasoning, of a run that streams.
    Reasoning(&'a str),
    /// A piece of content, of a run that streams.
    Content(&'a str),
    /// The reply is whole.
    Replied(&'a Said),
    /// A model call failed.
    ModelFailed {
        /// Why.
        failure: &'a ModelFailure,
        /// The run goes on, mostly by making it again.
        again: bool,
        /// Nothing was done before it.
        is_first: bool,
    },
    /// A tool call begins.
    Begins {
        /// The call.
        call: &'a Asked,
        /// It is its second attempt.
        again: bool,
    },
    /// It ended.
    Ended {
        /// The call.
        call: &'a Asked,
        /// How.
        ended: &'a Ended,
        /// What a person would like to see of it (a diff).
        display: Option<&'a str>,
    },
    /// What happened cannot be kept on disk.
    NotKept,
}

/// Somebody who is told.
pub type Audience = dyn Fn(Happening<'_>) + Send + Sync;
