//! What a run is told and what it keeps: the setup it begins with, the events that happen to it, the entries of its
//! transcript and the breakdown of its iterations. Plain data that is written to the store and read back as it was.
//!
//! Nothing here decides anything: `run` does. Times are milliseconds since 1970; spans are milliseconds.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::budget::Tokens;

/// Everything that a run's course depends on, fixed when it begins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// The agent's name.
    pub agent: String,
    /// Call ids for the client are derived from it.
    pub seed: u64,
    /// When it began.
    pub at: u64,
    /// The system prompt of the agent.
    pub system: Option<String>,
    /// The client's messages.
    pub messages: Vec<Value>,
    /// What may be called, respool's own tools first.
    pub tools: Vec<Offered>,
    /// How calls are written and found.
    pub style: Style,
    /// Where the run ends.
    pub limits: Limits,
}

/// A tool as it is offered to the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Offered {
    /// Its name.
    pub name: String,
    /// What it does.
    pub description: String,
    /// The JSON Schema of its arguments.
    pub parameters: Value,
    /// Who runs it.
    pub runs: Runs,
    /// The longest result that the model gets, in bytes.
    pub result_limit: usize,
}

/// Who runs a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Runs {
    /// respool, for at most so long.
    Here {
        /// Milliseconds.
        timeout: u64,
        /// Whether a call of unknown outcome may be made again.
        repeatable: bool,
    },
    /// The client.
    There,
}

/// How calls are asked for and found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Style {
    /// How the model is asked to write calls.
    pub form: Form,
    /// The names of the parsers, in order, as the configuration writes them.
    pub parsers: Vec<String>,
    /// Calls are looked for in the reasoning before the content.
    pub reasoning_first: bool,
}

/// How the model is asked to write calls, and how it gets results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Form {
    /// The request declares tools; results have a role of their own.
    Native,
    /// JSON forced by the server's grammar; results are text.
    GuidedJson,
    /// `Action:` and `Action Input:`; results are text.
    React,
    /// `[TOOL:name|arg=value]`; results are text.
    Markers,
    /// The tools are described, and nothing is asked of the form; results are text.
    Plain,
}

/// Where a run ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Model calls that may have tools.
    pub iterations: u32,
    /// Milliseconds of work.
    pub time: u64,
    /// Milliseconds of one model call.
    pub model_time: u64,
    /// Tokens of all calls together.
    pub tokens: Option<u64>,
    /// Tokens of one reply.
    pub max_tokens: u64,
    /// The model's window, in tokens.
    pub window: u64,
    /// The model is a gpt-oss: its prompts are counted, not estimated. Runs of older versions do not say so.
    #[serde(default)]
    pub is_harmony: bool,
    /// Milliseconds between iterations.
    pub pause: u64,
}

impl Limits {
    /// What of these depends on the model.
    pub(super) fn sizes(&self) -> Sizes {
        Sizes { window: self.window, max_tokens: self.max_tokens, is_harmony: self.is_harmony }
    }
}

/// One thing that happened to a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// When.
    pub at: u64,
    /// What.
    pub what: What,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum What {
    /// The model replied.
    Replied(Said),
    /// It gave the summary that it was asked for.
    Summarised(Said),
    /// The model call failed.
    ModelFailed(ModelFailure),
    /// A pause is over.
    Paused,
    /// A tool call is about to run.
    Began,
    /// It ended.
    Returned(Ended),
    /// The client came back.
    ClientReturned {
        /// Results by call id.
        results: Vec<(String, String)>,
        /// What the client said after them.
        tail: Vec<Value>,
    },
    /// The conversation goes in circles, as respool's loop guard sees it.
    Looping,
    /// The run goes on after the process ended, or after its client went away.
    Resumed,
    /// Somebody ended it.
    Cancelled,
    /// The person says something more: the next turn of a conversation begins.
    WentOn(Value),
    /// Something happened between two turns of a conversation that the model has to know.
    Told(String),
    /// The next turn of a conversation goes to another model, or what is known of its model changed.
    Moved(Sizes),
}

/// What is known of a model's sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sizes {
    /// Its window, in tokens.
    pub window: u64,
    /// The most tokens of one reply.
    pub max_tokens: u64,
    /// It is a gpt-oss.
    pub is_harmony: bool,
}

impl What {
    /// A stable name for the store.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Replied(_) => "replied",
            Self::Summarised(_) => "summarised",
            Self::ModelFailed(_) => "model_failed",
            Self::Paused => "paused",
            Self::Began => "began",
            Self::Returned(_) => "returned",
            Self::ClientReturned { .. } => "client_returned",
            Self::Looping => "looping",
            Self::Resumed => "resumed",
            Self::Cancelled => "cancelled",
            Self::WentOn(_) => "went_on",
            Self::Told(_) => "told",
            Self::Moved(_) => "moved",
        }
    }
}

/// One reply of the model, as the relay read it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Said {
    /// Its content.
    pub content: String,
    /// Its reasoning.
    pub reasoning: String,
    /// The calls that the relay read.
    pub calls: Vec<Asked>,
    /// Calls that the relay read and held back: the name as written, and why.
    pub refused: Vec<(String, String)>,
    /// The dialects in which text was read as calls.
    pub dialects: Vec<String>,
    /// The token limit cut it.
    pub cut: bool,
    /// What it cost.
    pub tokens: Tokens,
    /// How long it took.
    pub took: u64,
}

/// A call that the model asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// Its id in the transcript.
    pub id: String,
    /// A tool that was offered.
    pub name: String,
    /// The text of a JSON object.
    pub arguments: String,
    /// What is wrong with the arguments by the tool's schema.
    pub problems: Vec<String>,
}

/// Why a model call brought nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelFailure {
    /// What may be done.
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

/// What may be done about a failed model call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureKind {
    /// Ask again: it took too long.
    TimedOut,
    /// Ask again: the server stumbled.
    Transient,
    /// The prompt does not fit.
    Overflow,
    /// The reply was a call that nobody could read.
    Unreadable,
    /// Nothing.
    Final,
}

/// How a tool call ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// How.
    pub how: How,
    /// The text for the model, whole.
    pub text: String,
    /// How long it took.
    pub took: u64,
}

/// How a tool call can end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum How {
    /// With a result.
    Ok,
    /// It said no, or was called wrongly.
    Failed,
    /// The policy said no.
    Denied,
    /// Its server stumbled.
    Transient,
    /// It took too long and was stopped.
    TimedOut,
    /// respool ended while it ran.
    Unknown,
    /// It was never run.
    NotRun,
}

impl How {
    /// A stable name for logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "failed",
            Self::Denied => "denied",
            Self::Transient => "transient",
            Self::TimedOut => "timed_out",
            Self::Unknown => "unknown",
            Self::NotRun => "not_run",
        }
    }
}

/// One entry of the transcript.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Entry {
    /// A message of the client's.
    Given(Value),
    /// What the person said to begin a further turn of a conversation.
    Turn(Value),
    /// A reply of the model with its calls and their results.
    Exchange(Exchange),
    /// respool's own words to the model.
    Note(String),
    /// What stands for exchanges that were taken out.
    Summary(String),
}

/// A reply and what came of its calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Exchange {
    /// The content as the model wrote it.
    pub content: String,
    /// The reasoning.
    pub reasoning: String,
    /// The calls, in order.
    pub calls: Vec<Asked>,
    /// A result for each call that has ended, in any order.
    pub results: Vec<ToolResult>,
}

/// The result of one call as the model gets it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolResult {
    /// The call's id.
    pub id: String,
    /// Whether it is a result rather than an error.
    pub ok: bool,
    /// The text, cut and made harmless.
    pub text: String,
}

/// One iteration, for the log and for `/v1/runs/{id}`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Iteration {
    /// Why the model was called: `iteration`, `last`, `summary`.
    pub why: String,
    /// What the call cost.
    pub tokens: Tokens,
    /// How long it took.
    pub model_ms: u64,
    /// How its calls were found.
    pub parser: Option<String>,
    /// Its tool calls that ended.
    pub tools: Vec<ToolRecord>,
}

/// One tool call, for the log and for `/v1/runs/{id}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolRecord {
    /// The tool.
    pub tool: String,
    /// How it ended: [`How::as_str`], or `client`.
    pub outcome: String,
    /// How long it took.
    pub took_ms: u64,
    /// Bytes of its result.
    pub result_bytes: usize,
    /// Bytes of it that the model got.
    pub injected_bytes: usize,
}
