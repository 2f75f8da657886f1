//! A tool as its caller sees it: its description for the model, one call of it, and how that can end.
//!
//! Implemented by the sets of tools in this folder; used by the agent and by the chat. Nothing here does
//! anything.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::{Map, Value};

pub use super::audit::Caller;

/// A tool as the model sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolSpec {
    /// The name the model calls, unique in its set.
    pub name: String,
    /// Its description for the model.
    pub description: String,
    /// The JSON Schema of its arguments, an object.
    pub parameters: Value,
    /// Whether a call whose outcome is unknown may simply be made again (reads, searches).
    pub is_repeatable: bool,
    /// How long one call may take, when the tool's own settings say so.
    pub timeout: Option<Duration>,
    /// How many bytes of a result the model gets, when the tool's own settings say so.
    pub result_limit: Option<usize>,
}

/// One call of a tool. Dropping the future that runs it cancels it: processes are killed, requests are
/// dropped.
#[derive(Clone, Debug, PartialEq)]
pub struct Invocation {
    /// The tool, by its [`ToolSpec::name`].
    pub name: String,
    /// Its arguments.
    pub arguments: Map<String, Value>,
    /// Stands for this call alone, also when it is made again: an idempotency key where a server knows one.
    pub key: String,
    /// How long it may take.
    pub timeout: Duration,
    /// Who makes it.
    pub caller: Caller,
}

/// The output of a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolOutput {
    /// The text for the model, whole: cutting it to a limit is the caller's.
    pub text: String,
    /// A view for people instead (a diff of an edit); never for the model.
    pub display: Option<String>,
}

/// Why a call has no output. The texts are for the model (and the log): what happened, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolError {
    /// The tool ran and says no, or was called wrongly: not found, bad arguments, a page that is a 404.
    Failed(String),
    /// The policy, or the person asked, said no. It did not run.
    Denied(String),
    /// Its server stumbled or could not be reached; the same call may work in a moment.
    Transient(String),
    /// Its server is not there or takes no calls, so the call did not begin; it may work in a moment.
    Unreachable(String),
    /// Its server answered, but not as the protocol wants, or with an error of the protocol: whether it ran
    /// is not known.
    Protocol(String),
    /// It took longer than [`Invocation::timeout`] and was stopped. Its effects may have happened in part.
    TimedOut(String),
}

impl ToolError {
    /// The text for the model.
    pub fn text(&self) -> &str {
        match self {
            Self::Failed(text)
            | Self::Denied(text)
            | Self::Transient(text)
            | Self::Unreachable(text)
            | Self::Protocol(text)
            | Self::TimedOut(text) => text,
        }
    }
}

/// The target of a call, resolved from its arguments once. Questions, views and memories use it instead of
/// the arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Target {
    /// A command, whole, and the directory it runs in.
    Command {
        /// As the shell gets it.
        line: String,
        /// Relative to the workspace, without symlinks; `.` is the workspace itself.
        directory: PathBuf,
    },
    /// A file of the workspace.
    File {
        /// The workspace, without symlinks.
        root: PathBuf,
        /// Relative to it and without symlinks, as far as it exists.
        real: PathBuf,
        /// As it was written, without `..`.
        written: PathBuf,
    },
    /// The target of a foreign tool.
    #[default]
    Other,
}

impl Target {
    /// The file's whole path.
    pub fn file_path(&self) -> Option<PathBuf> {
        match self {
            Self::File { root, real, .. } => Some(root.join(real)),
            _ => None,
        }
    }

    /// The file's path in the workspace.
    pub fn real_path(&self) -> Option<&Path> {
        match self {
            Self::File { real, .. } => Some(real),
            _ => None,
        }
    }
}

/// The subject of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuestionKind {
    /// Whether a call may run.
    Call,
    /// Whether a command that its sandbox seems to have stopped may run once more without it. No general
    /// consent answers this.
    OutsideSandbox,
}

/// A question to a person before a call runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Question<'a> {
    /// Its subject.
    pub kind: QuestionKind,
    /// The tool.
    pub tool: &'a str,
    /// Its arguments.
    pub arguments: &'a Map<String, Value>,
    /// The target of the call.
    pub target: &'a Target,
    /// The change, where it is known beforehand (a diff). The output of a command that the sandbox may have
    /// stopped.
    pub preview: Option<String>,
    /// No rule of the policy speaks of the call: it is its default that asks.
    pub is_by_default: bool,
}

/// The person who can be asked when the policy says `ask`, and who watches what runs.
pub trait Approver: Send + Sync {
    /// False when no person would see a question.
    fn is_present(&self) -> bool {
        true
    }

    /// Who has consented to the call already, for the record.
    fn prior_consent(&self) -> Option<&str> {
        None
    }

    /// True when a person agrees or agreed to this call, and not a rule made beforehand.
    fn is_person(&self) -> bool {
        true
    }

    /// Why a call did not run to which it did not agree.
    fn refusal_reason(&self) -> &'static str {
        "the person who was asked said no"
    }

    /// True when the call may run.
    fn approve<'a>(&'a self, question: Question<'a>) -> BoxFuture<'a, bool>;

    /// The call may run, by the policy or by [`Approver::approve`], and does when this is done.
    fn note_permission<'a>(&'a self, _: &'a Target) -> BoxFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// A set of tools. There is no other way to run one, and every implementation asks the policy first.
pub trait Tools: Send + Sync {
    /// The tools of the set, now: servers may change theirs.
    fn specs(&self) -> Vec<ToolSpec>;

    /// Runs one call; `approver` is asked when the policy says so, and without one that is a denial.
    fn call<'a>(
        &'a self,
        invocation: &'a Invocation,
        approver: Option<&'a dyn Approver>,
    ) -> BoxFuture<'a, Result<ToolOutput, ToolError>>;

    /// Records that a person refused a call before it came here.
    fn note_refusal<'a>(&'a self, _: &'a Invocation, _by: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Writes down that respool ended while a call ran, so that its outcome is unknown.
    fn note_unknown<'a>(&'a self, _: &'a Invocation) -> BoxFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }
}
