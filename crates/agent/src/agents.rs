//! The configured agents: begins their runs, resumes those that wait or were interrupted, records decisions,
//! and ends runs. Called by `server`, `cli` and `expert`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use http::HeaderValue;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::active::{ActiveRuns, MOST_PARKED, RunOptions, Work};
use super::approval::{ApprovalRequest, Decision, OnTimeout};
use super::cleanup;
use super::config::OnDisconnect;
use super::definition::Agent;
use super::facts::{FactsError, RunFacts};
use super::new_setup::new_setup;
use super::request::AgentRequest;
use super::resume;
use super::resume_error::ResumeError;
use super::run::Run;
use super::run_snapshot::RunSnapshot;
use super::stored::{REPEATABLE_FOR, new_run_id, ok_or_log};
use super::unanswered;
use super::watch::Watch;
use store::{
    ApprovalRow, ApprovalState, LateDecision, NewRun, RunFilter, Status, Store, StoreError, WokenRun,
};
use telemetry::{Accounts, ErrorReport, Recording};
use wire::digest::{hex, sha256};

/// The environment variable from which people at a terminal give their operator's key.
pub const OPERATOR_KEY: &str = "RESPOOL_OPERATOR_KEY";
/// The interval at which approvals are checked for a timeout, and for a decision of another process that was
/// not heard of.
const APPROVALS_EVERY: Duration = Duration::from_secs(1);

type ByName = BTreeMap<String, Arc<Agent>>;

/// The agents and the runs in progress.
pub struct Agents {
    by_name: RwLock<ByName>,
    active: Arc<ActiveRuns>,
}

impl std::fmt::Debug for Agents {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Agents").field("names", &self.lock_agents().keys()).finish_non_exhaustive()
    }
}

/// The reason why a decision is not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecideError {
    /// There is no such request.
    Unknown,
    /// It does not wait for a decision any more.
    NotWaiting(Box<ApprovalRow>),
    /// Its time has passed, which rejects the calls.
    TooLate,
    /// The decision names a call that is not in the request, which has these.
    UnknownCall(String, Vec<String>),
    /// The inputs of this call cannot be changed, and why.
    NotChangeable(String, &'static str),
    /// The store cannot be used.
    Store(StoreError),
}

impl DecideError {
    /// The error for a person who wanted to decide about this approval.
    pub fn describe_for(self, id: &str) -> String {
        match self {
            Self::Unknown => format!("there is no approval {id} any more"),
            Self::NotWaiting(row) => {
                format!("the approval {id} is over: {}", super::report::describe_end(&row))
            }
            Self::TooLate => format!(
                "the approval {id} came too late: its time has run out, and the package rejects its calls in that case"
            ),
            Self::UnknownCall(call, known) => {
                format!("the approval {id} has no call {call}. Its calls: {}", known.join(", "))
            }
            Self::NotChangeable(call, why) => {
                format!("the approval {id} was not decided: the inputs of {call} cannot be changed: {why}")
            }
            Self::Store(error) => error.0,
        }
    }
}

impl Agents {
    /// `store`: `None` where runs cannot be kept.
    pub fn new(
        agents: Vec<Agent>,
        store: Option<Arc<Store>>,
        report: ErrorReport,
        log_content: bool,
        shutdown: CancellationToken,
    ) -> Self {
        Self {
            by_name: RwLock::new(index_by_name(agents)),
            active: Arc::new(ActiveRuns::new(store, report, log_content, shutdown)),
        }
    }

    /// The agent of this name.
    pub fn get(&self, name: &str) -> Option<Arc<Agent>> {
        self.lock_agents().get(name).cloned()
    }

    /// All agents.
    pub fn all_agents(&self) -> Vec<Arc<Agent>> {
        self.lock_agents().values().cloned().collect()
    }

    /// Replaces the agents. Runs in progress keep the agent that they began with.
    pub fn replace_agents(&self, agents: Vec<Agent>) {
        *self.by_name.write().unwrap_or_else(PoisonError::into_inner) = index_by_name(agents);
    }

    fn lock_agents(&self) -> RwLockReadGuard<'_, ByName> {
        self.by_name.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store, where there is one.
    pub fn store(&self) -> Option<&Arc<Store>> {
        self.active.store.as_ref()
    }

    /// From now on the cost of a run's model calls is added to its client's account. The first call counts.
    pub fn use_accounts(&self, accounts: Arc<dyn Accounts>) {
        let _ = self.active.accounts.set(accounts);
    }

    /// From now on the rows of model calls go where this says. The first call counts.
    pub fn record_in(&self, recording: Recording) {
        let _ = self.active.recording.set(recording);
    }

    /// The ids of the runs that are being worked on.
    pub fn active_runs(&self) -> Vec<String> {
        self.active.run_ids()
    }

    /// Serves a request: resumes the run that it belongs to, or begins one.
    ///
    /// # Errors
    /// When a store that processes share cannot be read or written: the run could be found by no other one.
    pub async fn serve_request(
        &self,
        agent: &Arc<Agent>,
        request: AgentRequest,
        authorization: Option<HeaderValue>,
    ) -> Result<Watch, StoreError> {
        let has_results = !request.results.is_empty();
        {
            let _alone = self.active.resuming.lock().await;
            if has_results
                && let Some(watch) =
                    resume::resume_with_results(&self.active, agent, &request, authorization.clone()).await?
            {
                return Ok(watch);
            }
            if let Some(watch) =
                unanswered::resume_unanswered(&self.active, agent, &request, authorization.clone()).await?
            {
                return Ok(watch);
            }
        }
        // The run was deleted or belongs to another client or agent: only the client's own history is left.
        let origin = if has_results { "begins, because no run waits for these results" } else { "begins" };
        let (new, work) = self.new_run(agent, request, authorization, origin).await;
        self.active.begin_run(agent, new, work).await
    }

    /// Begins a run that no client's request asked for.
    ///
    /// # Errors
    /// When it cannot be kept, and must be durable or the store is that of several processes.
    pub async fn start_run(
        &self,
        agent: &Arc<Agent>,
        request: AgentRequest,
        options: RunOptions,
    ) -> Result<Watch, StoreError> {
        let (new, work) = self.new_run(agent, request, None, "begins").await;
        let is_durable = options.is_durable;
        let work = Work { options, ..work };
        if is_durable {
            self.active.begin_durable(agent, new, work).await
        } else {
            self.active.begin_run(agent, new, work).await
        }
    }

    async fn new_run(
        &self,
        agent: &Arc<Agent>,
        request: AgentRequest,
        authorization: Option<HeaderValue>,
        origin: &'static str,
    ) -> (NewRun, Work) {
        let id = new_run_id();
        let spans = self.active.recording.get().and_then(|recording| recording.spans.as_ref());
        if let Some((spans, part_of)) = spans.zip(request.part_of) {
            spans.begin_run(&id, part_of);
        }
        let (fingerprint, client) = (request.fingerprint.clone(), request.client.clone());
        let sizes = agent.learn_sizes(authorization.as_ref()).await;
        let setup = new_setup(agent, request, sizes, rand::random(), clock::now());
        let new = NewRun {
            id: id.clone(),
            agent: agent.name.to_string(),
            at: setup.at,
            fingerprint,
            client: client.clone(),
            setup: serde_json::to_string(&setup).unwrap_or_default(),
        };
        let work = Work {
            id,
            client: Some(client),
            run: Run::new(setup),
            store: self.active.store.clone(),
            epoch: Store::FIRST_EPOCH,
            seq: 0,
            authorization,
            first: None,
            origin,
            options: RunOptions::default(),
        };
        (new, work)
    }

    /// Resumes an interrupted run of a configured agent.
    ///
    /// # Errors
    /// The reason why it cannot be resumed.
    pub async fn resume_run(&self, id: &str) -> Result<Watch, ResumeError> {
        let stored = resume::load_run(self.store(), id).await?;
        let agent = self.get(&stored.row.agent);
        let agent = agent.ok_or_else(|| ResumeError::NoAgent(stored.row.agent.clone()))?;
        resume::stored_run(&self.active, &agent, &stored, None, RunOptions::default()).await
    }

    /// Resumes a run of an agent that is not among the configured ones.
    ///
    /// # Errors
    /// The reason why it cannot be resumed.
    pub async fn resume_as(
        &self,
        agent: &Arc<Agent>,
        id: &str,
        options: RunOptions,
    ) -> Result<Watch, ResumeError> {
        let stored = resume::load_run(self.store(), id).await?;
        resume::stored_run(&self.active, agent, &stored, None, options).await
    }

    /// The id of the run that this request began before, if its client has not got the answer and this
    /// process does not execute it.
    pub async fn find_repeated_run(&self, request: &AgentRequest) -> Option<String> {
        let since = clock::now().saturating_sub(REPEATABLE_FOR);
        let id = ok_or_log(self.store()?.unanswered_run(&request.fingerprint, since).await)??;
        (!self.active.is_active(&id)).then_some(id)
    }

    /// Returns the facts of a stored run, without the calls of its child runs; `None` when it is not there or
    /// cannot be read.
    pub async fn run_facts(&self, id: &str) -> Option<RunFacts> {
        read_own_facts(self.store()?, id).await.ok().flatten()
    }

    /// Returns the facts of a stored run and the calls of its child runs; `None` when it is not there.
    ///
    /// # Errors
    /// When the store or the run cannot be read, so that it is not known which calls the run made.
    pub async fn read_facts(&self, id: &str) -> Result<Option<RunFacts>, FactsError> {
        match self.store() {
            Some(store) => read_facts(store, id).await,
            None => Ok(None),
        }
    }

    /// The runs that a fingerprint stands for, the oldest first, as [`Agents::read_facts`] returns each.
    ///
    /// # Errors
    /// When the store or one of the runs cannot be read. The caller must not repeat the work then.
    pub async fn facts_of(&self, fingerprint: &str) -> Result<Vec<RunFacts>, FactsError> {
        match self.store() {
            Some(store) => facts_of_work(store, fingerprint).await,
            None => Ok(Vec::new()),
        }
    }

    /// Returns the snapshots of the runs that may go on; `None` when they are not known.
    pub async fn snapshots_in_use(&self) -> Option<BTreeSet<String>> {
        let snapshots = ok_or_log(self.store()?.snapshots_in_use().await)?;
        Some(snapshots.into_iter().map(|stored| RunSnapshot::from(stored).digest).collect())
    }

    /// True when this process works on a run.
    pub fn is_active(&self, id: &str) -> bool {
        self.active.is_active(id)
    }

    /// Notes that the client of a run has its answer.
    pub async fn mark_answered(&self, id: &str) {
        if let Some(store) = self.store() {
            let _ = ok_or_log(store.mark_answered(id).await);
        }
    }

    /// True when there is such a run, and it is one of these.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn is_of(&self, id: &str, whose: &RunFilter) -> Result<bool, StoreError> {
        match (self.active.is_of(id, whose), self.store()) {
            (Some(is_of), _) => Ok(is_of),
            (None, Some(store)) => store.has_run(id, whose.clone()).await,
            (None, None) => Ok(false),
        }
    }

    /// Ends a run. False when it is over or not known.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn cancel_run(&self, id: &str) -> Result<bool, StoreError> {
        match self.store() {
            _ if self.active.cancel_run(id) => Ok(true),
            Some(store) => store.request_cancel(id, clock::now()).await,
            None => Ok(false),
        }
    }

    /// The requests for consent that wait for a decision, the oldest first.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn waiting_approvals(
        &self,
        most: usize,
    ) -> Result<Vec<(ApprovalRow, ApprovalRequest)>, StoreError> {
        let Some(store) = self.store() else { return Ok(Vec::new()) };
        let rows = store.approvals(ApprovalState::Waiting, most).await?;
        let read = |row: ApprovalRow| Some((serde_json::from_str(&row.body).ok()?, row));
        Ok(rows.into_iter().filter_map(read).map(|(request, row)| (row, request)).collect())
    }

    /// Records a decision, which survives a power failure, and lets the run go on if its agent is a
    /// configured one.
    ///
    /// # Errors
    /// The reason why it is not accepted. The first decision about a request counts.
    pub async fn decide_approval(&self, decision: &Decision) -> Result<(), DecideError> {
        let store = self.store().ok_or(DecideError::Unknown)?;
        record_decision(store, decision).await?;
        self.wake_decided_runs(store).await;
        Ok(())
    }

    /// Resumes the runs whose approvals are decided or whose time is over.
    async fn wake_decided_runs(&self, store: &Arc<Store>) {
        let woken = ok_or_log(store.woken_by_approvals(clock::now()).await).unwrap_or_default();
        let waits =
            |run: &WokenRun| run.status == Status::AwaitingApproval && !self.active.is_active(&run.id);
        for WokenRun { id, agent, .. } in woken.into_iter().filter(waits) {
            // Others resume their own agents' runs.
            let Some(agent) = self.get(&agent) else { continue };
            let Ok(stored) = resume::load_run(Some(store), &id).await else { continue };
            let options = RunOptions { is_detached: true, ..RunOptions::default() };
            match resume::stored_run(&self.active, &agent, &stored, None, options).await {
                // Another process that heard of the decision was faster.
                Ok(_) | Err(ResumeError::NotClaimed(_)) => {}
                Err(why) => {
                    tracing::warn!(target: "respool::agent", run_id = id, %why, "the run cannot be resumed");
                }
            }
        }
    }

    /// Resumes what a process before this one left, and keeps the store small and approvals in time, until
    /// the process ends.
    pub async fn start_housekeeping(self: &Arc<Self>) {
        let Some(store) = self.store().cloned() else { return };
        if let Some(orphans) = ok_or_log(store.mark_orphans().await).filter(|count| *count > 0) {
            tracing::warn!(target: "respool::agent", runs = orphans, "runs were interrupted; `respool runs list` shows them");
        }
        self.resume_detached(&store).await;
        self.active.spawn_task(cleanup::keep_clear(Arc::clone(&store), self.active.shutdown.clone()));
        let (agents, shutdown) = (Arc::clone(self), self.active.shutdown.clone());
        self.active.spawn_task(async move {
            let waking = async {
                loop {
                    let decided = store.wait_for_decision();
                    Box::pin(agents.wake_decided_runs(&store)).await;
                    agents.heed_cancel_requests(&store).await;
                    tokio::select! {
                        () = decided => {}
                        () = tokio::time::sleep(APPROVALS_EVERY) => {}
                    }
                }
            };
            let _: Option<()> = Box::pin(shutdown.run_until_cancelled(waking)).await;
        });
    }

    /// Cancels the runs that another process asked to cancel. Without this they would learn of it with their
    /// next event, and a model may think for minutes.
    async fn heed_cancel_requests(&self, store: &Store) {
        let ids = self.active.run_ids();
        if ids.is_empty() {
            return;
        }
        for run in ok_or_log(store.cancel_requested(ids).await).unwrap_or_default() {
            self.active.cancel_run(&run);
        }
    }

    /// Resumes detached runs; the others wait for their clients or for `respool runs resume`.
    async fn resume_detached(&self, store: &Arc<Store>) {
        let rows = ok_or_log(store.newest(RunFilter::Clients, MOST_PARKED).await).unwrap_or_default();
        for row in rows.into_iter().filter(|row| row.status == Status::Interrupted && row.parent.is_none()) {
            let detached =
                self.get(&row.agent).filter(|agent| agent.config.on_disconnect == OnDisconnect::Detach);
            if detached.is_some()
                && let Err(why) = self.resume_run(&row.id).await
            {
                tracing::warn!(target: "respool::agent", run_id = row.id, %why, "the run cannot be resumed");
            }
        }
    }

    /// Waits until nothing is worked on any more. Call it after the shutdown token: no run begins anything
    /// new then, but calls that must not be made twice may end `within` this time.
    pub async fn wait_for_runs(&self, within: Duration) {
        self.active.wait_for_end(within).await;
    }
}

fn index_by_name(agents: Vec<Agent>) -> ByName {
    agents.into_iter().map(|agent| (agent.name.to_string(), Arc::new(agent))).collect()
}

/// The reason why a decision about an approval is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OperatorError {
    /// There is no key.
    #[error("a decision needs an operator's key: put one into the variable {OPERATOR_KEY}")]
    NoKey,
    /// The key is of none of the operators.
    #[error(
        "the key in {OPERATOR_KEY} is not one of the operators' keys that `respool serve` was started with"
    )]
    UnknownKey,
    /// No server has named its operators.
    #[error(
        "no operator is known: start `respool serve` with the same key in {OPERATOR_KEY}, or with the variable that `operator_keys_env` names"
    )]
    NoOperators,
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The name under which a decision made at `place` is recorded, for the operator with this key.
///
/// # Errors
/// When the key does not count.
pub async fn operator_name(store: &Store, key: Option<&str>, place: &str) -> Result<String, OperatorError> {
    let key = key.filter(|key| !key.is_empty()).ok_or(OperatorError::NoKey)?;
    match store.operator(&hex(&sha256(key.as_bytes()))).await? {
        Some(name) => Ok(format!("{name}, {place}")),
        None if store.has_operators().await? => Err(OperatorError::UnknownKey),
        None => Err(OperatorError::NoOperators),
    }
}

/// A request for consent, with the ends of its calls.
///
/// # Errors
/// When the store cannot be read.
pub async fn approval_details(store: &Store, row: &ApprovalRow) -> Result<Value, StoreError> {
    let run = store.run(&row.run).await?;
    Ok(super::report::approval_with_outcomes(row, run.as_ref()))
}

/// The facts of a stored run, as [`Agents::read_facts`] returns them.
///
/// # Errors
/// When the store or the run cannot be read.
pub async fn read_facts(store: &Store, id: &str) -> Result<Option<RunFacts>, FactsError> {
    let Some(mut facts) = read_own_facts(store, id).await? else { return Ok(None) };
    for child in &mut facts.children {
        child.calls = read_own_facts(store, &child.id).await?.map(|facts| facts.calls).unwrap_or_default();
    }
    Ok(Some(facts))
}

async fn read_own_facts(store: &Store, id: &str) -> Result<Option<RunFacts>, FactsError> {
    let Some(stored) = store.run(id).await.map_err(FactsError::Store)? else { return Ok(None) };
    RunFacts::from_stored(&stored).map(Some).ok_or_else(|| FactsError::Unreadable(id.to_owned()))
}

/// The runs that a fingerprint stands for, as [`Agents::facts_of`] returns them.
///
/// # Errors
/// When the store or one of the runs cannot be read.
pub async fn facts_of_work(store: &Store, fingerprint: &str) -> Result<Vec<RunFacts>, FactsError> {
    let mut all = Vec::new();
    for id in store.runs_of_work(fingerprint).await.map_err(FactsError::Store)? {
        all.extend(read_facts(store, &id).await?);
    }
    Ok(all)
}

/// Refuses inputs that are not a JSON object. Also refuses new inputs of a call if the person was shown the
/// file change that it makes: they would make another one.
fn refuse_changes(request: &ApprovalRequest, decision: &Decision) -> Result<(), DecideError> {
    for (id, inputs) in &decision.changed {
        if serde_json::from_str::<Map<String, Value>>(inputs).is_err() {
            return Err(DecideError::NotChangeable(id.clone(), "they must be a JSON object"));
        }
        if !request.can_change(id) {
            let why =
                "the request shows what the call changes, so reject it and say in the comment what to do";
            return Err(DecideError::NotChangeable(id.clone(), why));
        }
    }
    Ok(())
}

/// Records a decision about a request; a process that serves the run's agent lets it go on.
///
/// # Errors
/// The reason why it is not accepted.
pub async fn record_decision(store: &Store, decision: &Decision) -> Result<(), DecideError> {
    let row = store.approval(&decision.request).await.map_err(DecideError::Store)?;
    let row = row.ok_or(DecideError::Unknown)?;
    let request: ApprovalRequest = serde_json::from_str(&row.body).unwrap_or_default();
    let is_known = |id: &&str| request.calls.iter().any(|call| call.id == *id);
    if let Some(unknown) = decision.approved_calls().into_iter().find(|id| !is_known(id)) {
        let known = request.calls.iter().map(|call| format!("{} ({})", call.id, call.name)).collect();
        return Err(DecideError::UnknownCall(unknown.to_owned(), known));
    }
    refuse_changes(&request, decision)?;
    let text = serde_json::to_string(decision).unwrap_or_default();
    let late = match request.on_timeout {
        OnTimeout::Escalate => LateDecision::Counts,
        OnTimeout::Reject => LateDecision::Refused,
    };
    if store.decide(&decision.request, text, clock::now(), late).await.map_err(DecideError::Store)? {
        return Ok(());
    }
    // Another decision may have come first.
    let row = store.approval(&decision.request).await.map_err(DecideError::Store)?;
    Err(match row {
        None => DecideError::Unknown,
        // Respool rejects the calls as soon as it works on the run.
        Some(row) if row.state == ApprovalState::Waiting => DecideError::TooLate,
        Some(row) => DecideError::NotWaiting(Box::new(row)),
    })
}
