//! Builds the agent of one run of an expert: its prompt, its tools and files, and which of its calls need
//! approval. Called by `experts` and `execution`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::error::ExpertError;
use super::experts::{Expert, Experts};
use super::isolated::IsolatedFunctions;
use super::model_access::AgentBase;
use super::notices::ConversationNotices;
use super::operations::Operations;
use super::tools::{self, ExpertTools, Role};
use super::workspace::Workspace;
use agent::{
    Agent, AgentConfig, MadeCall, Notices, OnDisconnect, RunFacts, RunSnapshot, SettledCall, Supervision,
};
use openexperts::{label::MODEL_PREFIX, prompt::system_prompt_with};

/// How long a model may think about one reply.
const MODEL_TIMEOUT: Duration = Duration::from_mins(5);
/// How long one call of an operation may take, unless `[tools.timeouts]` says otherwise.
const TOOL_TIMEOUT: Duration = Duration::from_mins(1);
/// How long a run may work if its process has no timeout.
pub(super) const RUN_TIMEOUT: Duration = Duration::from_hours(24);
/// How long a conversation may work on one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_mins(30);

/// How long an agent may think about a recommendation.
const ADVICE_TIME: Duration = Duration::from_mins(1);

/// The session name of runs that give a recommendation.
const ADVICE: &str = "advice";
/// Prefix of the session names of conversations.
const TALK: &str = "talk-";

/// The parts from which the run of an expert is built.
pub(super) struct RunPlan<'a> {
    /// Identifies the session, and therefore its files.
    pub(super) session: &'a str,
    /// The purpose of the run.
    pub(super) role: Role,
    /// Files that are preloaded.
    pub(super) context: Vec<String>,
    /// How long it may work.
    pub(super) timeout: Duration,
    /// The calls of earlier attempts that must not be repeated.
    pub(super) settled: Vec<SettledCall>,
    /// The calls that a resumed run has already made: it may write the files that it has read.
    pub(super) calls: Vec<MadeCall>,
    /// Nothing is changed outside.
    pub(super) is_dry: bool,
    /// The root of its files, if not the expert's own.
    pub(super) root: Option<PathBuf>,
}

/// Returns the digest of the package and the session of a run that is a conversation.
fn conversation_of(facts: &RunFacts) -> Option<(&str, &str)> {
    let RunSnapshot { digest, session } = &facts.snapshot;
    session.starts_with(TALK).then_some((digest.as_str(), session.as_str()))
}

/// Returns true if a run is a conversation, not work on an entry of the queue.
pub(super) fn is_conversation(facts: &RunFacts) -> bool {
    conversation_of(facts).is_some()
}

impl Experts {
    /// Returns the agent for a conversation with an expert.
    pub fn agent(&self, name: &str) -> Option<Arc<Agent>> {
        let expert = self.get(name)?;
        let session = format!("{TALK}{:016x}", rand::random::<u64>());
        self.keep_package(&expert);
        Some(self.conversation(&expert, &session, Vec::new()))
    }

    fn conversation(&self, expert: &Expert, session: &str, calls: Vec<MadeCall>) -> Arc<Agent> {
        let plan = RunPlan {
            session,
            role: Role::Conversation,
            context: Vec::new(),
            timeout: ANSWER_TIMEOUT,
            settled: Vec::new(),
            calls,
            is_dry: false,
            root: None,
        };
        self.agent_of(expert, plan).0
    }

    /// Returns the agent that continues a conversation's run, with the package and session that it began
    /// with; `None` for other runs, and while the expert is not installed.
    ///
    /// # Errors
    /// When that package is no longer kept.
    pub(super) fn resumed_agent(
        &self,
        name: &str,
        facts: RunFacts,
    ) -> Result<Option<Arc<Agent>>, ExpertError> {
        let Some(expert) = self.get(name) else { return Ok(None) };
        let Some((digest, session)) = conversation_of(&facts) else { return Ok(None) };
        let expert = self.with_snapshot(&expert, digest)?;
        let session = session.to_owned();
        Ok(Some(self.conversation(&expert, &session, facts.calls)))
    }

    /// Returns an agent for one run, and its files.
    pub(super) fn agent_of(&self, expert: &Expert, plan: RunPlan<'_>) -> (Arc<Agent>, Arc<Workspace>) {
        let package = Arc::clone(&expert.package);
        let RunPlan { session, role, context, timeout, settled, calls, is_dry, root } = plan;
        let root = root.unwrap_or_else(|| self.config.state_of(expert.name()));
        let files = Arc::new(Workspace::new(&root, Arc::clone(&package), session, &context));
        if let Err(error) = files.prepare() {
            tracing::error!(target: "respool::expert", expert = expert.name(), %error, "the state of an expert cannot be prepared");
        }
        files.restore_seen(&calls);
        let operations = Operations::new(&package, Arc::clone(&expert.bound), is_dry);
        let prompt = system_prompt_with(&package, &operations.tiers());
        let base = self.agent_base(expert.name(), timeout);
        let snapshot = RunSnapshot { digest: expert.digest.clone(), session: session.to_owned() };
        let is_private = files.may_quote_private();
        let functions = IsolatedFunctions {
            base: base.clone(),
            package: Arc::clone(&package),
            bound: Arc::clone(&expert.bound),
            root,
            requester: role.requester(),
            is_process: matches!(role, Role::Process { .. }),
            settled: settled.clone(),
            is_dry,
            snapshot: snapshot.clone(),
            is_private,
        };
        let expert_name = expert.name().to_owned();
        let notices = ConversationNotices { expert: expert_name, is_function: false };
        let supervision = Supervision {
            notices: (role == Role::Conversation).then(|| Arc::new(notices) as Arc<dyn Notices>),
            settled,
            snapshot,
            is_private,
            children: Some(Arc::new(functions)),
            ..tools::supervision_of(&package, &operations, &role, is_dry)
        };
        let own = ExpertTools::new(&package, operations, Arc::clone(&files), role);
        (Arc::new(base.agent(prompt, Arc::new(own), supervision)), files)
    }

    /// Returns the agent that answers one question about a process with plain text. It has no tools.
    pub(super) fn adviser_agent(&self, expert: &Expert, is_private: bool) -> Option<Arc<Agent>> {
        let tools = Arc::new(self.sources.select_now(&[]).ok()?);
        let operations = Operations::new(&expert.package, Arc::clone(&expert.bound), true);
        let prompt = system_prompt_with(&expert.package, &operations.tiers());
        let snapshot = RunSnapshot { digest: expert.digest.clone(), session: ADVICE.to_owned() };
        let supervision =
            Supervision { snapshot, is_private, ends_at_limits: true, ..Supervision::default() };
        let mut base = self.agent_base(expert.name(), ADVICE_TIME);
        base.config.max_iterations = 1;
        Some(Arc::new(base.agent(prompt, tools, supervision)))
    }

    fn agent_base(&self, name: &str, timeout: Duration) -> AgentBase {
        let config = self.config.settings_of(name);
        let access = self.model_access(name).clone();
        let config = AgentConfig {
            model: access.model_id.clone(),
            upstream: config.upstream,
            max_tokens: config.max_tokens.unwrap_or(self.config.max_tokens),
            max_iterations: config.max_iterations.unwrap_or(self.config.max_iterations),
            run_timeout: timeout,
            model_timeout: MODEL_TIMEOUT,
            tool_timeout: TOOL_TIMEOUT,
            on_disconnect: OnDisconnect::Detach,
            ..AgentConfig::default()
        };
        AgentBase { name: format!("{MODEL_PREFIX}{name}"), config, access }
    }
}
