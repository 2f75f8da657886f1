//! A tool as its caller sees it: its description for the model, one call of it, and the possible results.
//!
//! Implemented by the sets of tools in this folder; used by the agent and by the chat. These are only types
//! and traits.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
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
    /// The time limit of one call, if the tool's own settings have one.
    pub timeout: Option<Duration>,
    /// The bytes of a result that the model gets, if the tool's own settings limit them.
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
    /// Identifies this call, also when it is repeated: an idempotency key for servers that support it.
    pub key: String,
    /// Its time limit.
    pub timeout: Duration,
    /// Who makes it.
    pub caller: Caller,
}

/// The output of a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolOutput {
    /// The whole text for the model: the caller cuts it to a limit.
    pub text: String,
    /// A view for people instead (a diff of an edit); never for the model.
    pub display: Option<String>,
    /// The exit code of the command that it ran; `None` for other tools, and if a signal ended it.
    pub exit_code: Option<i32>,
}

/// The reason why a call has no output. The texts tell the model (and the log) what happened and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolError {
    /// The tool ran and failed, or was called wrongly: not found, bad arguments, a page that is a 404.
    Failed(String),
    /// The policy or the person refused it. It did not run.
    Denied(String),
    /// Its server failed for a moment or could not be reached; the same call may work soon.
    Transient(String),
    /// Its server is down or accepts no calls, so the call did not begin; it may work soon.
    Unreachable(String),
    /// Its server broke the protocol, or answered with a protocol error: it may have run or not.
    Protocol(String),
    /// It took longer than [`Invocation::timeout`] and was stopped. Its effects may have happened in part.
    TimedOut(String),
}

impl ToolError {
    /// Returns the text for the model.
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
    /// A whole command and the directory it runs in.
    Command {
        /// The line as the shell gets it.
        line: String,
        /// Relative to the workspace, without symlinks; `.` is the workspace itself.
        directory: PathBuf,
    },
    /// A file of the workspace.
    File {
        /// The workspace, without symlinks.
        root: PathBuf,
        /// The path relative to it; the part that exists has no symlinks.
        real: PathBuf,
        /// The path as it was written, without `..`.
        written: PathBuf,
        /// Commands never write it, because other programs act on it: settings, and hooks of git.
        is_kept: bool,
    },
    /// That of a server's tool, which is known by a digest of its name, description and schema.
    Server {
        /// The digest.
        definition: String,
    },
    /// The target of another foreign tool.
    #[default]
    Other,
}

impl Target {
    /// Returns the file's absolute path.
    pub fn file_path(&self) -> Option<PathBuf> {
        match self {
            Self::File { root, real, .. } => Some(root.join(real)),
            _ => None,
        }
    }

    /// Returns the file's path in the workspace.
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
    /// The change, where it is known beforehand (a diff). For a command, what it reaches besides its sandbox,
    /// in a sentence. The output of a command that the sandbox may have stopped.
    pub preview: Option<String>,
    /// Whether no rule of the policy matches the call, so that the default asks.
    pub is_by_default: bool,
}

/// The effect of a call as a person is asked about it long before it runs. Their consent covers no other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effect {
    /// The tool by its name in the configuration (`mcp:books/remind`, `write`).
    pub tool: String,
    /// The change of a file, as a unified diff, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<String>,
    /// The state of the file that is replaced whole: the SHA-256 of its bytes; of a large one, its size and
    /// time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<String>,
}

/// The effect of a call, as far as it is known beforehand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Preview {
    /// It changes a file.
    Change {
        /// The change as a unified diff; `None` where it is too large, or not of text.
        diff: Option<String>,
        /// See [`Effect::replaces`].
        replaces: Option<String>,
    },
    /// A sentence about the reach of a command.
    Reach(String),
}

/// The answer to a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Consent {
    /// The call may run.
    Given,
    /// It may not, for this reason, which the model reads.
    Refused(Cow<'static, str>),
}

impl Consent {
    /// The answer of a person who gives no reason.
    pub const DECLINED: Self = Self::Refused(Cow::Borrowed("the person who was asked said no"));
    /// The answer when there is no person to ask.
    pub const UNASKED: Self = Self::Refused(Cow::Borrowed("no person could be asked"));

    /// Gives consent if `agrees`.
    pub fn from_answer(agrees: bool) -> Self {
        if agrees { Self::Given } else { Self::DECLINED }
    }
}

/// Receives pieces of what a command writes, as they come.
pub type OutputWatcher = Arc<dyn Fn(&[u8]) + Send + Sync>;

/// The person who can be asked when the policy says `ask`, and who watches the calls.
#[async_trait]
pub trait Approver: Send + Sync {
    /// Returns false if no person would see a question.
    fn is_present(&self) -> bool {
        true
    }

    /// Returns the name of the person who has consented to the call already, for the record.
    fn prior_consent(&self) -> Option<&str> {
        None
    }

    /// Returns the effect of the call that the person has consented to; `None` where they were not shown one.
    fn agreed_effect(&self) -> Option<&Effect> {
        None
    }

    /// Returns true while only calls that look may run, whatever the policy permits.
    fn only_looks(&self) -> bool {
        false
    }

    /// Returns true if a person agrees to this call, and not a rule made beforehand.
    fn is_person(&self) -> bool {
        true
    }

    /// Asks whether the call may run.
    async fn approve(&self, question: Question<'_>) -> Consent;

    /// Returns the receiver of what a command writes while it runs; `None` if it is not shown.
    fn output_watcher(&self) -> Option<OutputWatcher> {
        None
    }

    /// Learns that the call is permitted, by the policy or by [`Approver::approve`]. It runs once this
    /// returns.
    async fn note_permission(&self, _: &Target) {}
}

/// A set of tools. There is no other way to run one, and every implementation asks the policy first.
#[async_trait]
pub trait Tools: Send + Sync {
    /// Returns the current tools of the set: servers may change theirs.
    fn specs(&self) -> Vec<ToolSpec>;

    /// Runs one call. `approver` is asked when the policy says `ask`; without an approver the call is
    /// denied.
    async fn call(
        &self,
        invocation: &Invocation,
        approver: Option<&dyn Approver>,
    ) -> Result<ToolOutput, ToolError>;

    /// Returns the effect that a call would have now, for a person who decides later; `None` where a later
    /// one cannot differ from it.
    async fn effect(&self, _: &Invocation) -> Option<Effect> {
        None
    }

    /// Records that a person refused a call before it came here.
    async fn note_refusal(&self, _: &Invocation, _by: &str) {}

    /// Records that respool ended while a call ran, so that its outcome is unknown.
    async fn note_unknown(&self, _: &Invocation) {}
}
