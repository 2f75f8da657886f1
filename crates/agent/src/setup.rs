//! The setup of a run: everything that its course depends on, fixed when it begins. Plain data that the store
//! keeps.
//!
//! Stored fields and variants keep their names for ever (`#[serde(rename)]` where the code calls them
//! otherwise): the test in `stored` reads a store of an older version. Nothing here decides anything: `run`
//! does. Times are milliseconds since 1970; spans are milliseconds.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::approval::{ApprovalRules, Tier};
use super::call::CallOutcome;
use super::run_snapshot::RunSnapshot;
use tool_call_parser::PreferredDialects;

/// Everything that a run's course depends on, fixed when it begins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// The agent's name.
    pub agent: String,
    /// The name of the key of the client that began it. Runs of older versions do not say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Call ids for the client are derived from it.
    pub seed: u64,
    /// When it began.
    pub at: u64,
    /// The system prompt of the agent.
    pub system: Option<String>,
    /// The client's messages.
    pub messages: Vec<Value>,
    /// The tools that may be called, respool's own first.
    pub tools: Vec<OfferedTool>,
    /// How calls are written and found.
    pub style: CallStyle,
    /// Where the run ends.
    pub limits: Limits,
    /// How it deals with calls that need consent.
    #[serde(default)]
    pub approvals: ApprovalRules,
    /// Calls whose result is known from earlier runs of the same work: they are answered with it and not made
    /// again.
    #[serde(default)]
    pub settled: Vec<SettledCall>,
    /// A call that changes something is made once: the same one again is answered with what is recorded of
    /// it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub calls_once: bool,
    /// Identifies what the agent was made from; empty if that does not change.
    #[serde(default)]
    pub snapshot: RunSnapshot,
    /// Its texts are in no log and in no answer about it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_private: bool,
    /// A limit ends it at once, and all of its time is for work: a last answer would not be read.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ends_at_limits: bool,
    /// After a call that the token limit cut, the next reply may be four times as long.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub grows_cut_replies: bool,
    /// A call that may be repeated, and whose server fails, is made again before it ends the run,
    /// whatever the failure is. Runs of older versions repeat it only after a broken connection.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub repeats_after_faults: bool,
}

/// A call that was made, and is not made again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SettledCall {
    /// The tool.
    pub name: String,
    /// Its arguments.
    pub arguments: Value,
    /// How it ended.
    pub outcome: CallOutcome,
    /// The text for the model.
    pub text: String,
}

/// When a call of a tool ends its run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndsRun {
    /// Never: the model gets the result.
    #[default]
    Never,
    /// When its server fails: then the run has failed.
    OnFault,
    /// When it succeeds: its text is the answer.
    OnSuccess,
}

/// A tool as it is offered to the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OfferedTool {
    /// Its name.
    pub name: String,
    /// Its description.
    pub description: String,
    /// The JSON Schema of its arguments.
    pub parameters: Value,
    /// Who runs it.
    #[serde(rename = "runs")]
    pub executor: Executor,
    /// The longest result that the model gets, in bytes.
    pub result_limit: usize,
    /// The consent that a call needs.
    #[serde(default)]
    pub tier: Tier,
    /// Whether a call ends the run.
    #[serde(default)]
    pub ends_run: EndsRun,
    /// The tool itself says what is wrong with its arguments: its schema refuses no call.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub judges_arguments: bool,
}

/// Who runs a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Executor {
    /// respool itself.
    #[serde(rename = "Here")]
    Respool {
        /// How long one call may take, in milliseconds.
        timeout: u64,
        /// Whether a call of unknown outcome may be made again.
        repeatable: bool,
    },
    /// The client.
    #[serde(rename = "There")]
    Client,
    /// A child run, whose answer is the result.
    Child,
}

/// How calls are asked for and found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallStyle {
    /// How the model is asked to write calls.
    pub form: CallForm,
    /// The names of the parsers, in order, as the configuration writes them.
    pub parsers: Vec<String>,
    /// Calls are looked for in the reasoning before the content.
    pub reasoning_first: bool,
}

/// How the model is asked to write calls, and how it gets results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CallForm {
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
    /// The dialects that the model writes, by which the marks of its template are known. Runs of older
    /// versions do not say so.
    #[serde(default, with = "dialect_names")]
    pub dialects: PreferredDialects,
    /// Milliseconds between iterations.
    pub pause: u64,
}

impl Limits {
    /// Returns the limits that depend on the model.
    pub(super) fn sizes(&self) -> ModelSizes {
        let Self { window, max_tokens, is_harmony, dialects, .. } = *self;
        ModelSizes { window, max_tokens, is_harmony, dialects }
    }
}

/// The sizes of a model, and the dialects that it writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelSizes {
    /// Its window, in tokens.
    pub window: u64,
    /// The most tokens of one reply.
    pub max_tokens: u64,
    /// It is a gpt-oss.
    pub is_harmony: bool,
    /// The dialects that it writes.
    #[serde(default, with = "dialect_names")]
    pub dialects: PreferredDialects,
}

/// Dialects are kept by their names: their order changes.
mod dialect_names {
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    use tool_call_parser::PreferredDialects;

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    pub(super) fn serialize<S: Serializer>(dialects: &PreferredDialects, out: S) -> Result<S::Ok, S::Error> {
        dialects.names().collect::<Vec<_>>().serialize(out)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(names: D) -> Result<PreferredDialects, D::Error> {
        let names = Vec::<String>::deserialize(names)?;
        Ok(PreferredDialects::from_dialect_names(names.iter().map(String::as_str)))
    }
}
