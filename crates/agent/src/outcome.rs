//! How a run ended: its answer, the limit that it met, the failure that stopped it. Plain data, written to
//! the store.

use serde::{Deserialize, Serialize};

use super::call::RequestedCall;
use super::failure::ModelFailure;

/// How a run ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// The answer, or what was achieved.
    pub content: String,
    /// The reasoning of the last reply.
    pub reasoning: String,
    /// The token limit of one reply cut the answer.
    pub cut: bool,
    /// The limit that ended the work.
    pub limit: Option<Limit>,
    /// The failure that ended it.
    pub failure: Option<ModelFailure>,
    /// A person or its client ended it.
    pub cancelled: bool,
    /// The call that ended it, where one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_by: Option<RequestedCall>,
}

/// A limit of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Limit {
    /// `max_iterations`.
    Iterations(u32),
    /// `run_timeout`, in milliseconds.
    Time(u64),
    /// `token_budget`.
    Tokens(u64),
    /// The same call again and again.
    Loop,
    /// Replies that could not be used, also after a correction.
    Corrections,
}

impl Limit {
    /// Returns the setting's name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Iterations(_) => "max_iterations",
            Self::Time(_) => "run_timeout",
            Self::Tokens(_) => "token_budget",
            Self::Loop => "max_repeats",
            Self::Corrections => "corrections",
        }
    }

    /// Returns its name for people and models.
    pub fn as_words(&self) -> String {
        match self {
            Self::Iterations(count) => format!("max_iterations ({count})"),
            Self::Time(millis) => format!("run_timeout ({} s)", millis.div_ceil(1_000)),
            Self::Tokens(tokens) => format!("token_budget ({tokens} tokens)"),
            Self::Loop => "max_repeats (the same call with the same result, again and again)".into(),
            Self::Corrections => "corrections (the model's replies could not be used)".into(),
        }
    }
}

impl Outcome {
    /// Returns the outcome of a run that was ended from outside.
    pub(super) fn from_cancel(content: String) -> Self {
        Self { content, cancelled: true, ..Self::default() }
    }

    /// Returns true when the content is the model's own answer, maybe at a limit.
    pub fn has_answer(&self) -> bool {
        !self.cancelled && self.failure.is_none() && !self.content.trim().is_empty()
    }

    /// Returns a stable name for the store, logs and metrics.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self { cancelled: true, .. } => "cancelled",
            Self { failure: Some(_), .. } => "failed",
            Self { limit: Some(_), .. } => "limited",
            _ => "done",
        }
    }

    /// Returns the text that the client gets: the answer, and why it is not more than that.
    pub fn text(&self) -> String {
        let because = match (&self.failure, &self.limit) {
            _ if self.cancelled => "the run was cancelled".to_owned(),
            (Some(failure), _) if failure.is_refusal() => {
                format!("the call was not approved: {}", failure.text)
            }
            (Some(failure), _) => format!("the model could not go on: {}", failure.text),
            (None, Some(limit)) => format!("the run met its limit {}", limit.as_words()),
            (None, None) => return self.content.clone(),
        };
        format!("{}\n\n[respool: {because}]", self.content.trim_end()).trim_start().to_owned()
    }
}
