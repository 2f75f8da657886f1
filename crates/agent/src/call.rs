//! A tool call as a run knows it: what the model asked for, and how it ended. Plain data that the store
//! keeps.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A call that the model asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestedCall {
    /// Its id in the transcript.
    pub id: String,
    /// A tool that was offered.
    pub name: String,
    /// The text of a JSON object.
    pub arguments: String,
    /// How the arguments break the tool's schema.
    pub problems: Vec<String>,
}

impl RequestedCall {
    /// Returns its arguments; null if they are not JSON.
    pub fn parsed_arguments(&self) -> Value {
        serde_json::from_str(&self.arguments).unwrap_or_default()
    }
}

/// How a tool call ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolEnd {
    /// How it ended.
    #[serde(rename = "how")]
    pub outcome: CallOutcome,
    /// The text for the model, whole.
    pub text: String,
    /// How long it took.
    pub took: u64,
    /// The exit code of the command that it ran; `None` for other tools, and if a signal ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
}

impl ToolEnd {
    /// Returns the end of a call that ran no command.
    pub fn new(outcome: CallOutcome, text: impl Into<String>, took: u64) -> Self {
        Self { outcome, text: text.into(), took, exit_code: None }
    }
}

/// How a tool call can end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CallOutcome {
    /// With a result.
    Ok,
    /// The tool refused, or was called wrongly.
    Failed,
    /// The policy said no.
    Denied,
    /// Its server failed for a moment.
    Transient,
    /// Its server was down, so the call did not begin.
    Unreachable,
    /// Its server answered with an error of the protocol, not of the tool.
    ProtocolError,
    /// It took too long and was stopped.
    TimedOut,
    /// respool ended while it ran.
    Unknown,
    /// It was never run.
    NotRun,
    /// A person got it as a draft.
    HandedOver,
}

impl CallOutcome {
    /// Returns true if the same call may work in a moment.
    pub(super) fn may_pass(self) -> bool {
        matches!(self, Self::Transient | Self::Unreachable)
    }

    /// Returns true if the server failed, and not the tool.
    pub fn is_fault(self) -> bool {
        self.may_pass() || matches!(self, Self::ProtocolError | Self::TimedOut)
    }

    /// Returns true if it is unknown whether the call took effect.
    pub fn is_unknown(self) -> bool {
        matches!(self, Self::Unknown | Self::TimedOut | Self::Transient | Self::ProtocolError)
    }

    /// Returns a stable name for logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "failed",
            Self::Denied => "denied",
            Self::Transient => "transient",
            Self::Unreachable => "unreachable",
            Self::ProtocolError => "protocol_error",
            Self::TimedOut => "timed_out",
            Self::Unknown => "unknown",
            Self::NotRun => "not_run",
            Self::HandedOver => "handed_over",
        }
    }
}
