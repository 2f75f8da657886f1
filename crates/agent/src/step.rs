//! The steps that the state machine gives and the driver executes. Plain data.

use serde_json::Value;

use super::approval::ApprovalRequest;
use super::call::RequestedCall;
use super::outcome::Outcome;
use tools::Effect;

/// The next step of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Something for respool to do.
    Act(Action),
    /// Wait for the client to bring the results of its calls.
    AwaitClient(Suspension),
    /// Wait for a person's decision.
    AwaitApproval(ApprovalRequest),
    /// The run is over.
    Finish(Box<Outcome>),
}

/// A step that respool executes.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Call the model.
    CallModel(ModelStep),
    /// Run a tool.
    CallTool(ToolStep),
    /// Keep a request for consent, and notify people of it.
    RequestApproval(ApprovalRequest),
    /// Keep a call as a draft for a person. It does not run.
    HandOver(RequestedCall),
    /// Work on a child run.
    RunChild(ChildStep),
    /// Wait this many milliseconds.
    Pause(u64),
}

impl Action {
    /// Returns the same, without the conversation that a model call sends.
    pub(super) fn without_prompt(&self) -> Self {
        match self {
            Self::CallModel(ModelStep { purpose, max_tokens, within, .. }) => Self::CallModel(ModelStep {
                purpose: *purpose,
                messages: Vec::new(),
                tools: Vec::new(),
                format: None,
                max_tokens: *max_tokens,
                within: *within,
            }),
            other => other.clone(),
        }
    }
}

/// A model call to make.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelStep {
    /// Its purpose.
    pub purpose: CallPurpose,
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

/// The purpose of a model call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallPurpose {
    /// The next step of the work.
    Iteration,
    /// The answer at a limit.
    Last,
    /// A summary of the oldest exchanges.
    Summary,
}

impl CallPurpose {
    /// Returns a stable name for logs.
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
pub struct ToolStep {
    /// The call.
    pub call: RequestedCall,
    /// How long it may take, in milliseconds.
    pub within: u64,
    /// Whether a call of unknown outcome may be made again.
    pub repeatable: bool,
    /// Whether this is its second attempt.
    pub is_retry: bool,
    /// The person who approved exactly these inputs, where approval was needed.
    pub approved_by: Option<String>,
    /// The effect that this person was shown.
    pub effect: Option<Effect>,
}

/// A child run to work on: its answer is the result of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct ChildStep {
    /// The call.
    pub call: RequestedCall,
    /// The child's id, once it has begun.
    pub child: Option<String>,
    /// How long it may work, in milliseconds.
    pub within: u64,
}

/// The reply that leaves for the client when its tools are called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspension {
    /// The calls.
    pub calls: Vec<RequestedCall>,
    /// The text that the model wrote with them.
    pub content: String,
    /// Its reasoning.
    pub reasoning: String,
}

/// An event that does not fit the state: the run was written by another version, or the store was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnexpectedEvent(pub String);
