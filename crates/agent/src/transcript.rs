//! The transcript of a run, and the breakdown of its iterations. Plain data that `run` makes from events; it
//! is not stored.
//!
//! Spans are milliseconds.

use serde::Serialize;
use serde_json::Value;

use super::budget::Tokens;
use super::call::RequestedCall;

/// One entry of the transcript.
#[derive(Clone, Debug, PartialEq)]
pub enum Entry {
    /// A message of the client's.
    ClientMessage(Value),
    /// The person's message that began a further turn of a conversation.
    UserTurn(Value),
    /// A reply of the model with its calls and their results.
    Exchange(Exchange),
    /// respool's own words to the model.
    Note(String),
    /// Stands for exchanges that were taken out.
    Summary(String),
}

/// A reply and the results of its calls.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Exchange {
    /// The content as the model wrote it.
    pub content: String,
    /// The reasoning.
    pub reasoning: String,
    /// The calls, in order.
    pub calls: Vec<RequestedCall>,
    /// A result for each call that has ended, in any order.
    pub results: Vec<ToolResult>,
}

/// The result of one call as the model gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolResult {
    /// The call's id.
    pub id: String,
    /// Whether it is a result rather than an error.
    pub ok: bool,
    /// The text, cut. `neutralize` breaks its marks on the way to the model.
    pub text: String,
}

/// One iteration, for the log and for `/v1/runs/{id}`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Iteration {
    /// The purpose of the call: `iteration`, `last`, `summary`.
    pub purpose: String,
    /// The model that was asked; empty if it is not known.
    pub model: String,
    /// The cost of the call.
    pub tokens: Tokens,
    /// How long it took.
    pub model_ms: u64,
    /// How its calls were found.
    pub parser: Option<String>,
    /// Its tool calls that ended.
    pub tools: Vec<ToolRecord>,
}

/// One tool call, for the log and for `/v1/runs/{id}`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ToolRecord {
    /// The tool.
    pub tool: String,
    /// How it ended: `CallOutcome::as_str`, or `client`.
    pub outcome: String,
    /// How long it took.
    pub took_ms: u64,
    /// Bytes of its result.
    pub result_bytes: usize,
    /// Bytes of it that the model got.
    pub injected_bytes: usize,
}
