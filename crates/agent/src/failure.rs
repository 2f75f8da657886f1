//! Why a model call failed, or a whole run, and what may be done about it. Plain data that the store keeps.

use serde::{Deserialize, Serialize};

use wire::ErrorCode;

/// Why a model call failed, or the whole run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelFailure {
    /// How the run may react.
    pub kind: FailureKind,
    /// The HTTP status that a client would get.
    pub status: u16,
    /// A stable code.
    pub code: String,
    /// For people.
    pub text: String,
    /// Milliseconds that the server asked to wait.
    pub wait: Option<u64>,
}

impl ModelFailure {
    /// Returns true if no model failed: a person rejected a call, or did not decide in time.
    pub fn is_refusal(&self) -> bool {
        let code = ErrorCode::from_name(&self.code);
        matches!(code, Some(ErrorCode::ApprovalRejected | ErrorCode::ApprovalTimeout))
    }
}

/// How a run may react to a failed model call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureKind {
    /// Ask again: it took too long.
    TimedOut,
    /// Ask again: the server stumbled.
    Transient,
    /// The prompt does not fit.
    Overflow,
    /// The reply was a call that could not be read.
    Unreadable,
    /// Nothing can be done.
    Final,
}
