//! The activities of a run, reported as they happen. Plain data; made by `driver`, shown by `progress`
//! (agents) and by the chat.

use super::approval::ApprovalRequest;
use super::call::{RequestedCall, ToolEnd};
use super::event::ModelReply;
use super::failure::ModelFailure;
use super::step::CallPurpose;

/// Something that a run does.
#[derive(Clone, Copy, Debug)]
pub enum Activity<'a> {
    /// The model is asked. The text of a summary is not reported.
    ModelAsked(CallPurpose),
    /// The model's server is waited for, for this reason; `None`: no longer.
    ServerAwaited(Option<&'a str>),
    /// A piece of reasoning, of a run that streams.
    Reasoning(&'a str),
    /// A piece of content, of a run that streams.
    Content(&'a str),
    /// The model's reply is complete.
    ModelReplied(&'a ModelReply),
    /// A model call failed.
    ModelFailed {
        /// Why.
        failure: &'a ModelFailure,
        /// The run goes on, mostly by making the call again.
        is_retried: bool,
        /// Nothing was done before it.
        is_first: bool,
    },
    /// A tool call begins.
    ToolStarted {
        /// The call.
        call: &'a RequestedCall,
        /// Whether this is its second attempt.
        is_retry: bool,
    },
    /// A tool call ended.
    ToolFinished {
        /// The call.
        call: &'a RequestedCall,
        /// How it ended.
        ended: &'a ToolEnd,
        /// A view of it for people (a diff).
        display: Option<&'a str>,
    },
    /// A person is asked for consent.
    ApprovalRequested(&'a ApprovalRequest),
    /// A call was handed over to a person as a draft.
    HandedOver(&'a RequestedCall),
    /// An event cannot be kept on disk.
    NotStored,
}

/// Receives the activities of a run.
pub type Observer = dyn Fn(Activity<'_>) + Send + Sync;
