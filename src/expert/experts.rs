//! The installed experts as they are served: each with its package, its bound tools and what keeps it from being ready; and the agent that is
//! made of one for each run. Installing, binding and updating is noticed within seconds; a package that does not load leaves the one before in
//! place. Called by `server`, `cli` and `execution`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use super::bindings::Bindings;
use super::bound::{self, BindingProblem, BoundTools};
use super::config::ExpertsConfig;
use super::delivery;
use super::execution::Worker;
use super::invocation::{Invocation, Origin};
use super::library::{Installed, Library, digest};
use super::package::Package;
use super::prompt::system_prompt;
use super::tools::{self, ExpertTools, Role};
use super::workspace::Workspace;
use serde_json::Value;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::agent::{Agent, AgentConfig, Agents, OnDisconnect, SettledCall, Supervision};
use crate::relay::Relay;
use crate::tools::{Sources, ToolSet};

/// What stands before an expert's name in a model's.
pub const MODEL_PREFIX: &str = "expert/";

/// How long a model may think about one reply.
const MODEL_TIMEOUT: Duration = Duration::from_mins(5);
/// How long one call of an operation may take, unless `[tools.timeouts]` says otherwise.
const TOOL_TIMEOUT: Duration = Duration::from_mins(1);
/// How long a run may work whose process names no timeout.
pub(super) const RUN_TIMEOUT: Duration = Duration::from_hours(24);
/// How long a conversation may work on one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_mins(30);

/// The ways of experts to their models.
#[derive(Clone)]
pub struct ModelAccesses {
    /// For experts without one of their own.
    pub default: ModelAccess,
    /// By the expert's name.
    pub by_name: BTreeMap<String, ModelAccess>,
}

/// The way of an expert to its model.
#[derive(Clone)]
pub struct ModelAccess {
    /// The relay.
    pub relay: Arc<Relay>,
    /// The model's name.
    pub model: String,
    /// The model as the upstreams know it.
    pub target: String,
    /// Its window in tokens, where that is configured.
    pub window: Option<u64>,
    /// The name under which reasoning and progress leave; `None`: not at all.
    pub reasoning: Option<&'static str>,
}

/// One expert.
pub struct Expert {
    /// The package.
    pub package: Arc<Package>,
    /// The digest of its files.
    pub digest: String,
    /// Whose messages start its channel triggers, and which tools stand for its own.
    pub bindings: Bindings,
    /// What keeps it from being ready until somebody changes something.
    problems: Vec<BindingProblem>,
    pub(super) bound: BoundTools,
    folder: String,
}

impl Expert {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.package.manifest.name.value
    }

    /// The tools and what they are bound to.
    pub fn bound_tools(&self) -> Vec<(&str, &str)> {
        self.bound.iter().filter_map(bound::BoundTool::target).collect()
    }

    /// Where the tool files and the servers do not agree. None of it keeps the expert from being ready.
    pub fn mismatches(&self) -> Vec<String> {
        self.bound.iter().flat_map(bound::BoundTool::mismatches).collect()
    }
}

type Marks = BTreeMap<String, Vec<Option<SystemTime>>>;

/// The experts that are served.
pub struct Experts {
    pub(super) config: ExpertsConfig,
    pub(super) agents: Arc<Agents>,
    pub(super) sources: Arc<Sources>,
    models: RwLock<ModelAccesses>,
    library: Library,
    by_name: Mutex<BTreeMap<String, Arc<Expert>>>,
    marks: Mutex<Marks>,
    /// The names of those that were ready when it was looked last.
    ready: Mutex<BTreeSet<String>>,
    /// The way to the main session; `None` where there is no gateway.
    pub(super) gateway: Option<ToolSet>,
    /// There is something to deliver.
    pub(super) delivery_stirred: Notify,
    tasks: TaskTracker,
}

impl fmt::Debug for Experts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Experts").field("names", &self.names()).finish_non_exhaustive()
    }
}

/// What a run of an expert is made of.
pub(super) struct RunPlan<'a> {
    /// The package that it uses.
    pub(super) package: Arc<Package>,
    /// Stands for the session, and so for its files.
    pub(super) session: &'a str,
    /// What it is for.
    pub(super) role: Role,
    /// Files that are preloaded.
    pub(super) context: Vec<String>,
    /// How long it may work.
    pub(super) timeout: Duration,
    /// What earlier attempts have done.
    pub(super) settled: Vec<SettledCall>,
    /// Nothing is changed outside.
    pub(super) is_dry: bool,
    /// The root of its files, where it is not the expert's own.
    pub(super) root: Option<PathBuf>,
}

impl Experts {
    /// Loads and binds what is installed.
    pub async fn open(
        config: ExpertsConfig,
        agents: Arc<Agents>,
        sources: Arc<Sources>,
        models: ModelAccesses,
    ) -> Arc<Self> {
        let library = Library::new(&config.dir);
        let gateway = sources.select(&["sessions_send".to_owned()]).await.ok();
        let experts = Arc::new(Self {
            config,
            agents,
            sources,
            models: RwLock::new(models),
            library,
            by_name: Mutex::default(),
            marks: Mutex::default(),
            ready: Mutex::default(),
            gateway,
            delivery_stirred: Notify::new(),
            tasks: TaskTracker::new(),
        });
        experts.refresh().await;
        experts.look_at_servers().await;
        experts
    }

    /// Drains the queue and delivers messages, until the process ends.
    pub fn start(self: &Arc<Self>, shutdown: &CancellationToken) {
        let Some(worker) = Worker::new(self, shutdown.clone(), None) else {
            tracing::error!(target: "respool::expert", "there is no store, so no process is executed");
            return;
        };
        self.tasks.spawn(worker.work());
        if let Some(store) = self.agents.store() {
            self.tasks.spawn(delivery::deliver(Arc::clone(self), Arc::clone(store), shutdown.clone()));
        }
    }

    /// Waits until nothing is worked on any more. Call it after the shutdown token.
    pub async fn ended(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Whether messages reach the main session.
    pub(super) fn has_gateway(&self) -> bool {
        self.gateway.is_some()
    }

    /// The queues of the experts that were ready when it was looked last; `only`: of this one alone.
    pub(super) fn ready_queues(&self, only: Option<&str>) -> Vec<String> {
        let ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        ready.iter().filter(|name| only.is_none_or(|only| only == name.as_str())).cloned().collect()
    }

    /// Looks which experts are ready. What changes is told.
    pub(super) async fn look_at_servers(&self) {
        let mut now = BTreeSet::new();
        for expert in self.iter() {
            let problems = self.problems(&expert).await;
            let was_ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner).contains(expert.name());
            if problems.is_empty() {
                now.insert(expert.name().to_owned());
            } else if was_ready {
                let why: Vec<String> =
                    problems.iter().map(|one| format!("{}: {}", one.tool, one.text)).collect();
                tracing::warn!(target: "respool::expert", expert = expert.name(), why = why.join("; "), "an expert is not ready; its events wait");
            }
        }
        *self.ready.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }

    /// Takes in what was installed, bound, updated or removed since the last time.
    pub async fn refresh(&self) {
        let marks = self.library.marks();
        if *self.marks.lock().unwrap_or_else(PoisonError::into_inner) == marks {
            return;
        }
        let library = self.library.clone();
        let listed = tokio::task::spawn_blocking(move || library.list()).await;
        let Ok(Ok(installed)) = listed else {
            tracing::warn!(target: "respool::expert", dir = %self.library.dir().display(), "the experts cannot be read; those that were loaded stay");
            return;
        };
        let mut now = BTreeMap::new();
        for one in installed {
            if let Some(expert) = self.taken_in(one).await {
                now.insert(expert.name().to_owned(), expert);
            }
        }
        *self.by_name.lock().unwrap_or_else(PoisonError::into_inner) = now;
        *self.marks.lock().unwrap_or_else(PoisonError::into_inner) = marks;
    }

    /// The expert that an installed package is; the one before where the package does not load.
    async fn taken_in(&self, installed: Installed) -> Option<Arc<Expert>> {
        let folder = installed.folder();
        let before = self.all().into_iter().find(|expert| expert.folder == folder);
        let Some(package) = installed.loaded.package else {
            tracing::error!(target: "respool::expert", expert = folder, still_served = before.is_some(),
                "the package does not load: `respool expert validate` says why");
            return before;
        };
        let digest = digest(&package.files);
        let (text, problem) = match self.library.bindings(&folder) {
            Ok((text, _)) => (text, None),
            Err(error) => (String::new(), Some(unreadable(&error))),
        };
        let (bindings, mut problems) = bound::read(&text);
        if before.as_ref().is_some_and(|before| {
            before.digest == digest && before.bindings == bindings && before.problems.is_empty()
        }) {
            return before;
        }
        problems.extend(problem);
        let (bound, unbound) = bound::bind(&package, &bindings, &self.sources).await;
        problems.extend(unbound);
        let (package, bound) = (Arc::new(package), Arc::new(bound));
        Some(Arc::new(Expert { package, digest, bindings, problems, bound, folder }))
    }

    fn all(&self) -> Vec<Arc<Expert>> {
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// The experts, by name.
    pub fn iter(&self) -> impl Iterator<Item = Arc<Expert>> {
        self.all().into_iter()
    }

    /// Their names.
    pub fn names(&self) -> Vec<String> {
        self.iter().map(|expert| expert.name().to_owned()).collect()
    }

    /// The expert of this name.
    pub fn get(&self, name: &str) -> Option<Arc<Expert>> {
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// Their names as models, each with the model that thinks for it.
    pub fn models(&self) -> Vec<(String, String)> {
        let model = |name: &String| (format!("{MODEL_PREFIX}{name}"), self.access(name).model);
        self.names().iter().map(model).collect()
    }

    /// From now on runs that begin go this way to their models.
    pub fn change_models(&self, models: ModelAccesses) {
        *self.models.write().unwrap_or_else(PoisonError::into_inner) = models;
    }

    fn access(&self, name: &str) -> ModelAccess {
        let models = self.models.read().unwrap_or_else(PoisonError::into_inner);
        models.by_name.get(name).unwrap_or(&models.default).clone()
    }

    /// True for the model's name of an expert.
    pub fn is_model(&self, name: &str) -> bool {
        name.strip_prefix(MODEL_PREFIX).is_some_and(|name| self.get(name).is_some())
    }

    /// What keeps an expert from being ready; its triggers are held as long as this is not empty.
    pub async fn problems(&self, expert: &Expert) -> Vec<BindingProblem> {
        let mut problems = expert.problems.clone();
        for tool in expert.bound.iter() {
            problems.extend(tool.problem(&self.sources).await);
        }
        problems
    }

    /// The invocation of a process that a person asks for.
    ///
    /// # Errors
    /// When there is no such expert or process, for people.
    pub fn invocation(&self, name: &str, process: &str, payload: Value) -> Result<Invocation, String> {
        let expert = self.get(name).ok_or_else(|| {
            format!("no expert {name:?} is installed; `respool expert list` shows those there are")
        })?;
        if expert.package.process(process).is_none() {
            let known = expert.package.processes.items.iter().map(|one| one.name.value.as_str());
            let known = known.collect::<Vec<_>>().join(", ");
            return Err(format!("{name} has no process {process:?}; it has: {known}"));
        }
        Ok(Invocation {
            id: format!("inv-{:032x}", rand::random::<u128>()),
            expert: name.to_owned(),
            digest: expert.digest.clone(),
            process: process.to_owned(),
            payload,
            mapped: serde_json::Map::new(),
            origin: Origin::Person,
            lane: None,
            dedupe: None,
            asked: self.now(),
            warnings: Vec::new(),
        })
    }

    /// Milliseconds since 1970.
    pub fn now(&self) -> u64 {
        super::execution::now()
    }

    /// Copies what an expert keeps, without what belongs to single sessions.
    ///
    /// # Errors
    /// When it cannot be read or written.
    pub fn copy_state(&self, name: &str, target: &Path) -> std::io::Result<()> {
        let root = self.config.state_of(name);
        for folder in ["state", "learnings"] {
            copy_files(&root.join(folder), &target.join(folder))?;
        }
        Ok(())
    }

    /// The agent for a conversation with an expert.
    pub fn agent(&self, name: &str) -> Option<Arc<Agent>> {
        let expert = self.get(name)?;
        let session = format!("talk-{:016x}", rand::random::<u64>());
        Some(self.conversation(&expert, Arc::clone(&expert.package), &session))
    }

    fn conversation(&self, expert: &Expert, package: Arc<Package>, session: &str) -> Arc<Agent> {
        let plan = RunPlan {
            package,
            session,
            role: Role::Conversation,
            context: Vec::new(),
            timeout: ANSWER_TIMEOUT,
            settled: Vec::new(),
            is_dry: false,
            root: None,
        };
        self.made(expert, plan).0
    }

    /// The agent that goes on with a run of a conversation, with the package and the session that it began with.
    pub(super) fn returning(&self, name: &str, snapshot: &str) -> Option<Arc<Agent>> {
        let expert = self.get(name)?;
        let (digest, session) = snapshot.split_once(' ').unwrap_or((snapshot, "talk"));
        let package = self.package_of(&expert, digest);
        Some(self.conversation(&expert, package, session))
    }

    /// The package that a run began with, as long as it is kept; else the installed one.
    pub(super) fn package_of(&self, expert: &Expert, digest: &str) -> Arc<Package> {
        if digest == expert.digest {
            return Arc::clone(&expert.package);
        }
        let kept = self.library.package_of(&expert.folder, digest).map(Arc::new);
        kept.unwrap_or_else(|| Arc::clone(&expert.package))
    }

    /// An agent for one run, and its files.
    pub(super) fn made(&self, expert: &Expert, plan: RunPlan<'_>) -> (Arc<Agent>, Arc<Workspace>) {
        let RunPlan { package, session, role, context, timeout, settled, is_dry, root } = plan;
        let root = root.unwrap_or_else(|| self.config.state_of(expert.name()));
        let files = Arc::new(Workspace::new(&root, Arc::clone(&package), session, &context));
        if let Err(error) = files.prepare() {
            tracing::error!(target: "respool::expert", expert = expert.name(), %error, "the state of an expert cannot be prepared");
        }
        let supervision = Supervision {
            settled,
            snapshot: format!("{} {session}", digest(&package.files)),
            ..tools::supervision(&package, &expert.bound, &role, is_dry)
        };
        let (bound, prompt) = (Arc::clone(&expert.bound), system_prompt(&package));
        let own = ExpertTools::new(&package, bound, Arc::clone(&files), role, is_dry);
        let access = self.access(expert.name());
        let agent = Agent {
            name: format!("{MODEL_PREFIX}{}", expert.name()).into(),
            config: self.agent_config(expert.name(), timeout),
            prompt: Some(prompt),
            relay: Arc::clone(&access.relay),
            tools: Arc::new(own),
            target: access.target.clone(),
            window: access.window,
            reasoning: access.reasoning,
            supervision,
        };
        (Arc::new(agent), files)
    }

    fn agent_config(&self, name: &str, timeout: Duration) -> AgentConfig {
        let config = self.config.of(name);
        AgentConfig {
            model: self.access(name).model,
            upstream: config.upstream,
            max_tokens: config.max_tokens.unwrap_or(self.config.max_tokens),
            max_iterations: config.max_iterations.unwrap_or(self.config.max_iterations),
            run_timeout: timeout,
            model_timeout: MODEL_TIMEOUT,
            tool_timeout: TOOL_TIMEOUT,
            on_disconnect: OnDisconnect::Detach,
            ..AgentConfig::default()
        }
    }
}

fn unreadable(error: &std::io::Error) -> BindingProblem {
    let text = format!("bindings.yaml cannot be read: {error}");
    BindingProblem { tool: String::new(), text, is_final: true }
}

/// Copies the regular files of a folder and of those below it.
fn copy_files(from: &Path, to: &Path) -> std::io::Result<()> {
    let entries = match std::fs::read_dir(from) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    std::fs::create_dir_all(to)?;
    for entry in entries {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            copy_files(&entry.path(), &to.join(entry.file_name()))?;
        } else if kind.is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}
