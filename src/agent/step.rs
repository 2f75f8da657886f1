//! What a run wants done: the steps that the state machine gives and the driver executes. Plain data.

use serde_json::Value;

use super::outcome::Outcome;
use super::record::Asked;

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Call the model.
    CallModel(ModelCall),
    /// Run a tool.
    CallTool(ToolCall),
    /// Wait so many milliseconds.
    Pause(u64),
    /// Wait for the client to bring the results of these calls.
    Suspend(Suspension),
    /// The run is over.
    Finish(Box<Outcome>),
}

/// A model call to make.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelCall {
    /// What it is for.
    pub why: Why,
    /// The messages.
    pub messages: Vec<Value>,
    /// The tools to declare; empty for none.
    pub tools: Vec<Value>,
    /// `response_format`.
    pub format: Option<Value>,
    /// The most tokens of the reply.
    pub max_tokens: u64,
    /// How long it may take, in milliseconds.
    pub within: u64,
}

/// What a model call is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The next step of the work.
    Iteration,
    /// The answer at a limit.
    Last,
    /// A summary of the oldest exchanges.
    Summary,
}

impl Why {
    /// A stable name for logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Iteration => "iteration",
            Self::Last => "last",
            Self::Summary => "summary",
        }
    }
}

/// A tool call to make.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCall {
    /// The call.
    pub call: Asked,
    /// How long it may take, in milliseconds.
    pub within: u64,
    /// Whether a call of unknown outcome may be made again.
    pub repeatable: bool,
    /// Whether this is its second attempt.
    pub again: bool,
}

/// What leaves for the client when its tools are called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspension {
    /// The calls.
    pub calls: Vec<Asked>,
    /// What the model wrote beside them.
    pub content: String,
    /// Its reasoning.
    pub reasoning: String,
}

/// An event that does not fit the state: the run was written by another version, or the store was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit(pub String);
