//! The installed experts in service: each with its package, its bound tools, and what keeps it from being
//! ready. The catalog supplies packages and bindings and notices changes; this module binds them. Called by
//! `server`, `cli` and `execution`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::bound::{self, BindingProblem, BoundTools, CheckedBindings};
use super::catalog::{Catalog, Snapshot};
use super::config::ExpertsConfig;
use super::error::ExpertError;
use super::invocation::{Invocation, Origin};
use super::model_access::{ModelAccess, ModelAccesses};
use super::operations::Operations;
use super::readiness::{Checked, Readiness};
use super::trigger::{lane_of_person, why_off};
use ::tools::{Sources, ToolSet};
use agent::Agents;
use openexperts::{
    Bindings, Package, Process, Tiers, Trigger, TriggerKind, label::MODEL_PREFIX, outputs, suggest_nearest,
};

/// How often the gateway is checked for reachability.
const GATEWAY_EVERY: Duration = Duration::from_secs(5);
/// How often unneeded packages are looked for, and their minimum age: a run may be about to begin with one.
const PRUNE_EVERY: Duration = Duration::from_hours(1);

/// One expert.
pub struct Expert {
    /// The package.
    pub package: Arc<Package>,
    /// The digest of its files.
    pub digest: String,
    /// Whose messages start its channel triggers, and which tools implement its abstract tools.
    pub bindings: Bindings,
    /// The problems that keep it from being ready until a person changes something.
    problems: Vec<BindingProblem>,
    pub(super) bound: BoundTools,
    pub(super) folder: String,
}

/// Returns why a trigger never fires, whatever arrives: it has an unknown preset, or no channels.
pub fn describe_off(trigger: &Trigger, bindings: &Bindings) -> Option<String> {
    let is_channel = trigger.kind == Some(TriggerKind::Channel);
    why_off(trigger).or_else(|| bindings.why_channel_off(&trigger.name.value).filter(|_| is_channel))
}

impl Expert {
    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.package.manifest.name.value
    }

    /// Returns the name of the folder of its package.
    pub fn folder(&self) -> &str {
        &self.folder
    }

    /// Returns its operations by the tier that applies to them: the package's, or what the owner's rules make
    /// of it.
    pub fn tiers(&self) -> Tiers {
        Operations::new(&self.package, Arc::clone(&self.bound), false).tiers()
    }

    /// Returns when a clock starts it next after a time, in milliseconds since 1970, and the trigger.
    pub fn next_start(&self, after: u64) -> Option<(u64, &str)> {
        let next = |trigger: &'_ Trigger| trigger.clock.schedule()?.ok()?.next_after(after);
        let triggers = self.package.manifest.triggers.items.iter();
        triggers.filter_map(|trigger| Some((next(trigger)?, trigger.name.value.as_str()))).min()
    }

    /// Returns the tools and what they are bound to.
    pub fn bound_tools(&self) -> Vec<(&str, &str)> {
        self.bound.iter().filter_map(bound::BoundTool::target).collect()
    }
}

/// The experts that are served.
pub struct Experts {
    pub(super) config: ExpertsConfig,
    pub(super) agents: Arc<Agents>,
    pub(super) sources: Arc<Sources>,
    models: RwLock<ModelAccesses>,
    pub(super) catalog: Arc<Catalog>,
    by_name: Mutex<BTreeMap<String, Arc<Expert>>>,
    /// The catalog generation that was taken in last.
    generation: Mutex<Option<u64>>,
    /// Which of them are ready.
    pub readiness: Readiness,
    /// How the main session is reached; `None` if there is no gateway.
    pub(super) gateway: Option<Arc<ToolSet>>,
    /// Signals that there is something to deliver.
    pub(super) delivery_stirred: Arc<Notify>,
    pub(super) tasks: TaskTracker,
}

impl fmt::Debug for Experts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Experts").field("names", &self.names()).finish_non_exhaustive()
    }
}

impl Experts {
    /// Binds what is installed. Servers are started without waiting for them.
    pub fn open(
        config: ExpertsConfig,
        agents: Arc<Agents>,
        sources: Arc<Sources>,
        models: ModelAccesses,
        catalog: Arc<Catalog>,
    ) -> Arc<Self> {
        let gateway = sources.select_now(&["sessions_send".to_owned()]).ok().map(Arc::new);
        let experts = Arc::new(Self {
            config,
            agents,
            sources,
            models: RwLock::new(models),
            catalog,
            by_name: Mutex::default(),
            generation: Mutex::default(),
            readiness: Readiness::default(),
            gateway,
            delivery_stirred: Arc::default(),
            tasks: TaskTracker::new(),
        });
        experts.follow_catalog();
        experts.look_at_servers();
        experts
    }

    /// Waits until all work has ended. Call it after the shutdown token.
    pub async fn wait_for_end(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Checks which experts are ready, and reports changes.
    pub(super) fn look_at_servers(&self) {
        let mut checked = Checked::default();
        for expert in self.iter() {
            let problems = self.problems(&expert);
            if problems.is_empty() {
                checked.ready.insert(expert.name().to_owned());
            } else if !self.is_starting(expert.name()) {
                if problems.len() == 1
                    && self.model_access(expert.name()).shortage_of(expert.name()).is_some()
                {
                    checked.short_of_budget.insert(expert.name().to_owned());
                }
                checked.not_ready.insert(expert.name().to_owned(), describe_problems(&problems));
            }
        }
        self.readiness.update(checked);
    }

    /// Binds what the catalog has put into service since the last check.
    pub fn follow_catalog(&self) {
        // Held while it binds: what is older never takes the place of what is newer.
        let mut generation = self.generation.lock().unwrap_or_else(PoisonError::into_inner);
        let current = self.catalog.current();
        if *generation == Some(current.generation) {
            return;
        }
        let mut now = BTreeMap::new();
        for snapshot in current.experts.values() {
            let expert = self.bind_snapshot(snapshot);
            now.insert(expert.name().to_owned(), expert);
        }
        *self.by_name.lock().unwrap_or_else(PoisonError::into_inner) = now;
        *generation = Some(current.generation);
    }

    /// Returns the expert of a package, reused if nothing has changed and it had no problems.
    fn bind_snapshot(&self, snapshot: &Snapshot) -> Arc<Expert> {
        let CheckedBindings { bindings, problems, warnings } = &snapshot.bindings;
        let before = self.get(snapshot.name()).filter(|before| {
            before.digest == snapshot.digest && before.bindings == *bindings && before.problems.is_empty()
        });
        if let Some(before) = before.filter(|_| problems.is_empty()) {
            return before;
        }
        let package = Arc::clone(&snapshot.package);
        let (bound, unbound) = bound::bind_tools(&package, bindings, &self.sources);
        // Of a file with an error nothing is used, so that all tools seem to lack a binding.
        let problems = if problems.is_empty() { unbound } else { problems.clone() };
        for warning in warnings {
            tracing::warn!(target: "respool::expert", expert = snapshot.name(), "{warning}");
        }
        let (digest, folder) = (snapshot.digest.clone(), snapshot.folder());
        let bindings = bindings.clone();
        Arc::new(Expert { package, digest, bindings, problems, bound: Arc::new(bound), folder })
    }

    /// Returns true while a server of an expert is starting for the first time, so that what it offers is not
    /// known yet.
    pub fn is_starting(&self, name: &str) -> bool {
        self.get(name).is_some_and(|expert| expert.bound.iter().any(|tool| tool.is_starting(&self.sources)))
    }

    /// Returns why an expert cannot be asked until a person changes something, for people.
    pub fn describe_hold(&self, name: &str) -> Option<String> {
        let problems = self.problems(&*self.get(name)?);
        problems.iter().any(|problem| problem.is_final).then(|| {
            format!(
                "{name} is not ready: {}; `respool expert validate {name}` says what to do",
                describe_problems(&problems)
            )
        })
    }

    /// Waits, at most this long, until the servers of an expert have started or failed, and takes in the
    /// result.
    pub async fn await_servers(&self, name: &str, limit: Duration) {
        let Some(expert) = self.get(name).filter(|_| self.is_starting(name)) else { return };
        bound::await_sources(&expert.bound, &self.sources, limit).await;
        self.look_at_servers();
    }

    /// Returns why work on an expert would fail now, for people, after its MCP servers were asked; `None` if
    /// it can begin.
    pub(super) async fn confirm_ready(&self, expert: &Expert) -> Option<String> {
        self.sources.confirm_servers(expert.bound.iter().filter_map(bound::BoundTool::server_problem)).await;
        let problems = self.problems(expert);
        if problems.is_empty() {
            return None;
        }
        self.look_at_servers();
        Some(describe_problems(&problems))
    }

    /// Keeps checking whether OpenClaw's gateway can be reached, if a tool is bound to it.
    pub(super) async fn watch_gateway(&self) {
        loop {
            if self.iter().any(|expert| expert.bound.iter().any(bound::BoundTool::is_at_gateway)) {
                self.sources.look_at_gateway().await;
            }
            tokio::time::sleep(GATEWAY_EVERY).await;
        }
    }

    /// Returns the experts, by name.
    pub fn iter(&self) -> impl Iterator<Item = Arc<Expert>> {
        let all: Vec<Arc<Expert>> =
            self.by_name.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        all.into_iter()
    }

    /// Returns their names.
    pub fn names(&self) -> Vec<String> {
        self.iter().map(|expert| expert.name().to_owned()).collect()
    }

    /// Returns the expert of this name.
    pub fn get(&self, name: &str) -> Option<Arc<Expert>> {
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// Returns why packages do not load, by folder. A version before them may be in service.
    pub fn load_problems(&self) -> BTreeMap<String, String> {
        self.catalog.current().load_problems.clone()
    }

    /// Returns the error about a name that no expert has.
    pub fn unknown_expert(&self, name: &str) -> ExpertError {
        let names = self.names();
        let near = suggest_nearest(name, names.iter().map(String::as_str));
        let list = "`respool expert list` shows the installed experts";
        format!("no expert {name:?} is installed: {near}{list}").into()
    }

    /// Returns their names as models, each with the model that it uses.
    pub fn model_names(&self) -> Vec<(String, String)> {
        let model = |name: &String| (format!("{MODEL_PREFIX}{name}"), self.model_access(name).model_id);
        self.names().iter().map(model).collect()
    }

    /// Sets how runs that begin from now on reach their models.
    pub fn change_models(&self, models: ModelAccesses) {
        *self.models.write().unwrap_or_else(PoisonError::into_inner) = models;
    }

    /// Returns how an expert reaches its model.
    pub fn model_access(&self, name: &str) -> ModelAccess {
        let models = self.models.read().unwrap_or_else(PoisonError::into_inner);
        models.by_name.get(name).unwrap_or(&models.default).clone()
    }

    /// Returns true for the model name of an expert.
    pub fn is_model(&self, name: &str) -> bool {
        name.strip_prefix(MODEL_PREFIX).is_some_and(|name| self.get(name).is_some())
    }

    /// Lists the problems that keep an expert from being ready; while there is one, its triggers are held.
    pub fn problems(&self, expert: &Expert) -> Vec<BindingProblem> {
        let unavailable = expert.bound.iter().filter_map(|tool| tool.describe_problem(&self.sources));
        let clashes = bound::find_clashes(&expert.bound);
        let shortage = self
            .model_access(expert.name())
            .shortage_of(expert.name())
            .map(|text| BindingProblem { tool: String::new(), text, is_final: false });
        expert.problems.iter().cloned().chain(unavailable).chain(clashes).chain(shortage).collect()
    }

    /// Returns why nothing can be done for an expert at the moment, for people; `None` if it is ready.
    pub(super) fn not_ready(&self, name: &str) -> Option<String> {
        let Some(expert) = self.get(name) else { return Some("it is not installed".to_owned()) };
        let problems = self.problems(&expert);
        (!problems.is_empty()).then(|| describe_problems(&problems))
    }

    /// Returns the invocation of a process that a person asks for.
    ///
    /// # Errors
    /// When there is no such expert or process, or the payload does not hold its inputs, for people.
    pub fn new_invocation(
        &self,
        name: &str,
        process: &str,
        payload: Value,
    ) -> Result<Invocation, ExpertError> {
        let expert = self.get(name).ok_or_else(|| self.unknown_expert(name))?;
        let Some(found) = expert.package.process(process) else {
            let known = expert.package.processes.items.iter().map(|one| one.name.value.as_str());
            let known = known.collect::<Vec<_>>().join(", ");
            return Err(format!("{name} has no process {process:?}; it has: {known}").into());
        };
        check_payload(found, &payload)?;
        let lane = lane_of_person(&expert.package.manifest, process, &payload);
        Ok(Invocation {
            id: format!("inv-{:032x}", rand::random::<u128>()),
            expert: name.to_owned(),
            digest: expert.digest.clone(),
            process: process.to_owned(),
            payload,
            mapped: serde_json::Map::new(),
            origin: Origin::Person,
            lane,
            dedupe: None,
            asked: clock::now(),
            warnings: Vec::new(),
            comment: None,
        })
    }

    /// Returns the expert as it was when a run began: the package with this digest, bound as the user binds
    /// it now.
    ///
    /// # Errors
    /// When that package is no longer kept. Work that began with it must not continue with another one.
    pub(super) fn with_snapshot(
        &self,
        expert: &Arc<Expert>,
        digest: &str,
    ) -> Result<Arc<Expert>, ExpertError> {
        if digest == expert.digest {
            return Ok(Arc::clone(expert));
        }
        let Some(package) = self.catalog.package_of(&expert.folder, digest).map(Arc::new) else {
            return Err(format!(
                "the version of {} with which it began is not kept any more (digest {:.12}; {} is installed)",
                expert.name(),
                digest,
                expert.package.manifest.version.value
            )
            .into());
        };
        let bindings = expert.bindings.clone();
        let (bound, problems) = bound::bind_tools(&package, &bindings, &self.sources);
        let (digest, folder) = (digest.to_owned(), expert.folder.clone());
        Ok(Arc::new(Expert { package, digest, bindings, problems, bound: Arc::new(bound), folder }))
    }

    /// Stores an expert's package for the run that begins with it. The run does not wait for that.
    pub(super) fn keep_package(&self, expert: &Arc<Expert>) {
        let (catalog, expert) = (Arc::clone(&self.catalog), Arc::clone(expert));
        drop(self.tasks.spawn_blocking(move || {
            if let Err(error) = catalog.keep_snapshot(&expert.folder, &expert.package, &expert.digest) {
                tracing::warn!(target: "respool::expert", expert = expert.name(), %error,
                    "the package cannot be kept, so work that waits for a person cannot go on once the package changes");
            }
        }));
    }

    /// Periodically deletes packages that neither an unfinished run nor a rollback needs.
    pub(super) async fn prune_packages(self: Arc<Self>, shutdown: CancellationToken) {
        let pruning = async {
            loop {
                if let Some(mut in_use) = self.agents.snapshots_in_use().await {
                    in_use.extend(self.iter().map(|expert| expert.digest.clone()));
                    for expert in self.iter() {
                        if let Err(error) = self.catalog.prune_snapshots(&expert.folder, &in_use, PRUNE_EVERY)
                        {
                            tracing::warn!(target: "respool::expert", expert = expert.name(), %error, "old snapshots cannot be deleted");
                        }
                    }
                }
                tokio::time::sleep(PRUNE_EVERY).await;
            }
        };
        let _: Option<()> = shutdown.run_until_cancelled(pruning).await;
    }
}

/// Checks that a payload that a person wrote holds the inputs of a process. One that has no value is written
/// as null.
fn check_payload(process: &Process, payload: &Value) -> Result<(), ExpertError> {
    let declared = &process.inputs.items;
    let name = &process.name.value;
    let missing = declared.iter().filter(|input| payload.get(&input.name).is_none());
    let missing: Vec<String> = missing.map(|input| format!("`{}` ({})", input.name, input.kind)).collect();
    let mut faults = outputs::check_inputs(declared, payload);
    if !missing.is_empty() {
        let fields = payload.as_object().into_iter().flat_map(|fields| fields.keys());
        let is_other = |field: &&String| declared.iter().all(|input| input.name != **field);
        let others: Vec<String> = fields.filter(is_other).map(|field| format!("`{field}`")).collect();
        let others = if others.is_empty() {
            String::new()
        } else {
            format!("; it has no input {}", others.join(", "))
        };
        faults.push(format!("missing: {} (write null where there is no value){others}", missing.join(", ")));
    }
    if faults.is_empty() {
        return Ok(());
    }
    Err(format!("the payload does not fit the inputs of the process {name}: {}", faults.join("; ")).into())
}

fn describe_problems(problems: &[BindingProblem]) -> String {
    problems.iter().map(BindingProblem::to_string).collect::<Vec<_>>().join("; ")
}
