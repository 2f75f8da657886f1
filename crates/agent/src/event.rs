//! The events of a run: what happened to it, in order. A run is its setup and its events. Plain data that the
//! store keeps.
//!
//! Stored fields and variants keep their names for ever (`#[serde(rename)]` where the code calls them
//! otherwise): the test in `stored` reads a store of an older version. Nothing here decides anything: `run`
//! does. Times are milliseconds since 1970; spans are milliseconds.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::approval::{ApprovalRequest, Decision};
use super::budget::Tokens;
use super::call::{RequestedCall, ToolEnd};
use super::failure::ModelFailure;
use super::outcome::Outcome;
use super::setup::{ModelSizes, SettledCall};

/// One thing that happened to a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// When it happened.
    pub at: u64,
    /// The event.
    pub kind: EventKind,
}

/// One event of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum EventKind {
    /// The model replied.
    #[serde(rename = "Replied")]
    ModelReplied(ModelReply),
    /// The model gave the summary that it was asked for.
    Summarised(ModelReply),
    /// The model call failed.
    ModelFailed(ModelFailure),
    /// A pause is over.
    #[serde(rename = "Paused")]
    PauseEnded,
    /// A tool call is about to run.
    #[serde(rename = "Began")]
    ToolStarted,
    /// The tool call ended.
    #[serde(rename = "Returned")]
    ToolFinished(ToolEnd),
    /// The client came back.
    ClientReturned {
        /// Results by call id.
        results: Vec<(String, String)>,
        /// The client's messages after them.
        tail: Vec<Value>,
    },
    /// Consent to calls was requested; the run waits for it.
    ApprovalRequested(ApprovalRequest),
    /// No one decided in time, and the person was reminded.
    ApprovalEscalated,
    /// A decision was made.
    ApprovalDecided(Decision),
    /// A call was handed over to a person as a draft.
    HandedOver(RequestedCall),
    /// A child run began.
    ChildStarted {
        /// Its id.
        child: String,
    },
    /// A child run ended.
    ChildFinished(ChildEnd),
    /// The loop guard found that the conversation repeats itself.
    #[serde(rename = "Looping")]
    LoopDetected,
    /// The run goes on after the process ended, or after its client went away.
    Resumed,
    /// A person or the client ended the run.
    Cancelled,
    /// respool ended the run, because it cannot go on.
    Aborted(ModelFailure),
    /// The person says something more: the next turn of a conversation begins.
    #[serde(rename = "WentOn")]
    TurnStarted(Value),
    /// Something happened between two turns of a conversation that the model has to know.
    #[serde(rename = "Told")]
    NoteAdded(String),
    /// The next turn of a conversation goes to another model, or what is known of its model changed.
    #[serde(rename = "Moved")]
    ModelChanged(ModelSizes),
    /// The person wants a summary in place of the conversation up to now.
    #[serde(rename = "Compacts")]
    CompactionStarted,
}

impl EventKind {
    /// Returns a stable name for the store.
    pub fn name(&self) -> &'static str {
        match self {
            Self::ModelReplied(_) => "replied",
            Self::Summarised(_) => "summarised",
            Self::ModelFailed(_) => "model_failed",
            Self::PauseEnded => "paused",
            Self::ToolStarted => "began",
            Self::ToolFinished(_) => "returned",
            Self::ClientReturned { .. } => "client_returned",
            Self::ApprovalRequested(_) => "approval_requested",
            Self::ApprovalEscalated => "approval_escalated",
            Self::ApprovalDecided(_) => "approval_decided",
            Self::HandedOver(_) => "handed_over",
            Self::ChildStarted { .. } => "child_started",
            Self::ChildFinished(_) => "child_finished",
            Self::LoopDetected => "looping",
            Self::Resumed => "resumed",
            Self::Cancelled => "cancelled",
            Self::Aborted(_) => "aborted",
            Self::TurnStarted(_) => "went_on",
            Self::NoteAdded(_) => "told",
            Self::ModelChanged(_) => "moved",
            Self::CompactionStarted => "compacts",
        }
    }
}

/// One reply of the model, as the relay read it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelReply {
    /// Its content.
    pub content: String,
    /// Its reasoning.
    pub reasoning: String,
    /// The calls that the relay read.
    pub calls: Vec<RequestedCall>,
    /// Calls that the relay read and held back: the name as written, and why.
    pub refused: Vec<(String, String)>,
    /// The dialects in which text was read as calls.
    pub dialects: Vec<String>,
    /// The model that was asked. Replies of older versions do not say so.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub model: String,
    /// The token limit cut it.
    pub cut: bool,
    /// Its cost.
    pub tokens: Tokens,
    /// The prompts of attempts before it, whose replies were of no use: `tokens` has the last prompt alone,
    /// as the size of the conversation.
    #[serde(default)]
    pub earlier_prompts: u64,
    /// How long it took.
    pub took: u64,
}

/// How a child run ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChildEnd {
    /// Its id.
    pub child: String,
    /// Its outcome.
    pub outcome: Outcome,
    /// Its cost.
    pub tokens: Tokens,
    /// How long it worked.
    pub worked: u64,
    /// Calls that it made and that are not made again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub made: Vec<SettledCall>,
}
