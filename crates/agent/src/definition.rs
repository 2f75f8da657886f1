//! An agent as it is configured: its model, its prompt, its tools, and what has to be approved. Called where
//! runs begin.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::HeaderValue;

use super::approval::{ApprovalRequest, ApprovalRules, Tier};
use super::call::RequestedCall;
use super::chat_model::ChatModel;
use super::config::{AgentConfig, Progress};
use super::outcome::Outcome;
use super::run_snapshot::RunSnapshot;
use super::setup::{EndsRun, ModelSizes, OfferedTool, SettledCall, Setup};
use store::NewMessage;
use tool_call_parser::PreferredDialects;
use tools::Tools;

/// The context window that is assumed for a model whose window is unknown, in tokens.
const DEFAULT_WINDOW: u64 = 128 * 1024;

/// One agent.
pub struct Agent {
    /// Its name: the model id that clients use.
    pub name: Arc<str>,
    /// Its settings.
    pub config: AgentConfig,
    /// Its system prompt.
    pub prompt: Option<String>,
    /// The way to its model.
    pub model: Arc<dyn ChatModel>,
    /// Its own tools.
    pub tools: Arc<dyn Tools>,
    /// Its model as the upstreams know it.
    pub target: String,
    /// The model's window in tokens, where that is configured.
    pub window: Option<u64>,
    /// The name under which reasoning and progress leave; `None`: not at all.
    pub reasoning: Option<&'static str>,
    /// The decisions that people take on its work, and its child runs.
    pub supervision: Supervision,
}

/// The decisions that people take on an agent's work, the calls that end its runs, and its child runs.
#[derive(Clone, Default)]
pub struct Supervision {
    /// The tiers of tools by name; tools that are not named have `default_tier`.
    pub tiers: BTreeMap<String, Tier>,
    /// The tier of all other tools.
    pub default_tier: Tier,
    /// How its runs deal with approvals.
    pub rules: ApprovalRules,
    /// Tools of which a call ends the run.
    pub ends_run: BTreeMap<String, EndsRun>,
    /// Calls that earlier runs of the same work have made.
    pub settled: Vec<SettledCall>,
    /// Within this work a call that changes something is made once.
    pub calls_once: bool,
    /// Identifies the package that the agent was made from.
    pub snapshot: RunSnapshot,
    /// It may read private knowledge: its texts are in no log and in no answer about its runs.
    pub is_private: bool,
    /// Its runs end at their limits, without a last answer.
    pub ends_at_limits: bool,
    /// After a call that `max_tokens` cut, the next reply may be four times as long.
    pub grows_cut_replies: bool,
    /// Its child runs.
    pub children: Option<Arc<dyn ChildRuns>>,
    /// The notices that people get of its runs.
    pub notices: Option<Arc<dyn Notices>>,
}

/// A notice that people get of a run.
#[derive(Clone, Copy, Debug)]
pub enum Notice<'a> {
    /// A call was handed over as a draft.
    HandedOver(&'a RequestedCall),
    /// Consent is requested.
    Asked(&'a ApprovalRequest),
    /// No one decided in time, and the calls still wait.
    AskedAgain(&'a ApprovalRequest),
    /// The run has ended after it waited for a person or was interrupted, so those who asked may not wait any
    /// more.
    LateAnswer(&'a Outcome),
}

/// Writes the notices that people get of runs: a message is posted to the outbox in the commit of the event
/// that it reports.
pub trait Notices: Send + Sync {
    /// Returns the message, where there is one.
    fn notice_message(&self, run: &str, notice: Notice<'_>) -> Option<NewMessage>;
}

/// Where the child runs of an agent come from.
pub trait ChildRuns: Send + Sync {
    /// Returns the tools whose calls are child runs.
    fn child_tools(&self) -> Vec<OfferedTool>;

    /// Returns the agent and the setup of the child run for a call. `seed` and `at` belong into the setup. It
    /// is asked again for a child that has begun, and then only the agent counts.
    ///
    /// # Errors
    /// Why there can be none, for the model.
    fn child_run(&self, call: &RequestedCall, seed: u64, at: u64) -> Result<(Arc<Agent>, Setup), String>;

    /// Returns the part of a child's outcome that the parent gets: all of it, unless calls of this kind
    /// promise less.
    fn child_result(&self, _: &RequestedCall, outcome: Outcome) -> Outcome {
        outcome
    }
}

impl Supervision {
    /// Returns the tier of a tool.
    pub fn tier_of(&self, tool: &str) -> Tier {
        self.tiers.get(tool).copied().unwrap_or(self.default_tier)
    }
}

impl Agent {
    /// Returns the sizes of the model: the smallest window that a server of it announces, unless one is
    /// configured.
    pub(super) async fn learn_sizes(&self, key: Option<&HeaderValue>) -> ModelSizes {
        if self.window.is_none() {
            self.model.learn_models(key).await;
        }
        self.known_sizes()
    }

    /// Returns the sizes of the model as far as they are known without asking a server.
    pub(super) fn known_sizes(&self) -> ModelSizes {
        let facts = self.model.facts(&self.config.model, &self.target);
        // The configuration decides on dialects, else the model's names; where these say nothing, the servers
        // that may answer.
        let named = PreferredDialects::from_model_names([self.config.model.as_str(), self.target.as_str()]);
        ModelSizes {
            window: self.window.or(facts.window).unwrap_or(DEFAULT_WINDOW),
            max_tokens: u64::from(self.config.max_tokens),
            is_harmony: facts.is_harmony,
            dialects: facts.configured_dialects.or(named).or(facts.announced_dialects),
        }
    }

    /// Returns true if the client sees what is being done.
    pub fn shows_progress(&self) -> bool {
        self.config.progress == Progress::Reasoning
    }
}
