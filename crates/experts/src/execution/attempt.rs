//! Executes one claimed entry of the queue: begins or resumes an attempt, waits for its end, and acts on the
//! result.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::task::{self, ContextFile, History, PreviousEnd, Task};
use super::verdict::{self, Verdict};
use super::worker::Worker;
use crate::assembly::{RUN_TIMEOUT, RunPlan};
use crate::experts::{Expert, Experts};
use crate::invocation::Invocation;
use crate::message::MessageKind;
use crate::tools::Role;
use crate::workspace::Workspace;
use agent::{AgentRequest, FactsError, MadeCall, Outcome, RunFacts, RunOptions, Watch, WorkEnd};
use openexperts::{Delivery, Execution, Package, Process};
use store::{Claimed, EntryEnd, MessageFilter, StoreError};

/// The session that the triggers of the main session share.
pub(super) const MAIN_SESSION: &str = "main";
/// The most results of the main session that an invocation gets.
const SESSION_RESULTS: usize = 10;
/// The pause, in milliseconds, before an entry whose expert was not ready is tried again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// The most results that are searched for them.
const MOST_RESULTS: usize = 100;

/// Returns the tag that marks the runs of an invocation.
pub(super) fn invocation_tag(invocation: &Invocation) -> String {
    format!("invocation:{}", invocation.id)
}

/// An attempt to execute an entry, with all that it needs.
pub(super) struct Attempt<'a> {
    /// The earlier runs of the invocation, the oldest first.
    pub(super) earlier: Vec<RunFacts>,
    /// Its own run, once it has begun.
    pub(super) run: Option<String>,
    pub(super) claimed: &'a Claimed,
    pub(super) invocation: &'a Invocation,
    pub(super) expert: Arc<Expert>,
    pub(super) package: Arc<Package>,
    pub(super) process: Process,
    pub(super) execution: Execution,
    pub(super) delivery: Delivery,
    pub(super) inputs: Value,
    pub(super) scratchpad: Option<String>,
}

/// How an attempt ended.
pub(super) struct AttemptEnd {
    pub(super) outcome: Outcome,
    /// The calls that all attempts of the invocation have made.
    pub(super) calls: Vec<MadeCall>,
}

impl Worker {
    /// Executes a claimed entry until it has ended, is returned to the queue, or waits for a person.
    pub(super) async fn execute_entry(&self, claimed: &Claimed) -> Result<(), StoreError> {
        let invocation = match Invocation::read(&claimed.payload) {
            Ok(invocation) => invocation,
            Err(error) => {
                let why = format!("the entry cannot be read: {error}");
                return self.end_entry(claimed, EntryEnd::DeadLetter, why).await;
            }
        };
        take_changes(&self.experts, &invocation.expert).await;
        let is_in_place = |expert: &Arc<Expert>| self.experts.catalog.is_in_place(&expert.folder);
        let Some(expert) = self.experts.get(&invocation.expert).filter(is_in_place) else {
            // The expert was removed a moment ago; its entries wait in case it comes back.
            return self
                .store
                .give_back_entry(&claimed.lease, LOOK_AGAIN, "the expert is not installed")
                .await
                .map(drop);
        };
        // Calls of a server that has just gone away would fail, and what a person approved would be used up.
        if let Some(why) = self.experts.confirm_ready(&expert).await {
            let note = format!("{} is not ready: {why}", expert.name());
            return self.store.give_back_entry(&claimed.lease, LOOK_AGAIN, &note).await.map(drop);
        }
        // An attempt that began here continues here, even if a gateway was configured meanwhile. A replayed
        // dead letter began here, too.
        let is_replay = invocation.id != claimed.lease.entry;
        let is_begun = is_replay || claimed.run.is_some() || claimed.attempt > 1;
        if !is_begun {
            let is_own = invocation.digest == expert.digest;
            if !is_own && self.store.is_package_elsewhere(&invocation.digest) {
                return self.leave_to_its_package(claimed).await;
            }
            if self.hand_to_main_session(claimed, &invocation).await? {
                return Ok(());
            }
        }
        // An entry that has not begun has no history.
        let history = async {
            if is_begun { self.read_history(claimed, &invocation).await } else { Ok((Vec::new(), None)) }
        };
        let (earlier, continued) = match history.await {
            Ok(history) => history,
            Err(FactsError::Store(error)) => return Err(error),
            Err(error @ FactsError::Unreadable(_)) => {
                return self.abandon_entry(claimed, &invocation, &error.to_string()).await;
            }
        };
        // A resumed attempt uses the package that it began with.
        let digest = continued.as_ref().map(|facts| facts.snapshot.digest.as_str());
        let expert = match digest {
            None => expert,
            Some(digest) => match self.experts.with_snapshot(&expert, digest) {
                Ok(expert) => expert,
                Err(_) if self.store.is_package_elsewhere(digest) => {
                    return self.leave_to_its_package(claimed).await;
                }
                Err(error) => return self.abandon_entry(claimed, &invocation, &error.to_string()).await,
            },
        };
        let package = Arc::clone(&expert.package);
        let Some(process) = package.process(&invocation.process).cloned() else {
            let why = format!("{} has no process {} any more", invocation.expert, invocation.process);
            return self.abandon_entry(claimed, &invocation, &why).await;
        };
        let mut attempt = Attempt::new(claimed, &invocation, expert, package, process);
        attempt.earlier = earlier;
        attempt.scratchpad = self.claimed_scratchpad(&attempt).await?;
        match self.await_end(&mut attempt, continued).await? {
            Some(end) => self.conclude_attempt(&attempt, &end).await,
            None => Ok(()),
        }
    }

    /// Gives an entry back for a process that has the package which it needs.
    async fn leave_to_its_package(&self, claimed: &Claimed) -> Result<(), StoreError> {
        let note = "another process has the version of the package that it needs";
        self.store.give_back_entry(&claimed.lease, LOOK_AGAIN, note).await.map(drop)
    }

    /// Reads the earlier runs of the invocation, and the run that this attempt continues, if there is one.
    async fn read_history(
        &self,
        claimed: &Claimed,
        invocation: &Invocation,
    ) -> Result<(Vec<RunFacts>, Option<RunFacts>), FactsError> {
        let mut all = self.experts.agents.facts_of(&invocation_tag(invocation)).await?;
        let continued = claimed.run.as_ref().filter(|_| claimed.is_continued);
        let place = continued.and_then(|run| all.iter().position(|facts| facts.id == *run));
        let continued = place.map(|place| all.remove(place));
        Ok((all, continued))
    }

    /// Works until the attempt ends. `None` if it waits for a person or was left to another process.
    /// `continued`: the run that it continues.
    async fn await_end(
        &self,
        attempt: &mut Attempt<'_>,
        continued: Option<RunFacts>,
    ) -> Result<Option<AttemptEnd>, StoreError> {
        let options =
            RunOptions { is_detached: true, is_durable: true, lease: Some(attempt.claimed.lease.clone()) };
        let mut watch = match continued {
            // The process ended after the run but before acting on its result.
            Some(facts) if facts.outcome.is_some() => return Ok(attempt.end_with(facts)),
            Some(RunFacts { id, calls, .. }) => {
                let plan = RunPlan { calls, ..attempt.run_plan(Vec::new()) };
                let (agent, _) = self.experts.agent_of(&attempt.expert, plan);
                match self.experts.agents.resume_as(&agent, &id, options).await {
                    Ok(watch) => watch,
                    Err(why) => {
                        tracing::warn!(target: "respool::expert", run_id = id, %why, "the attempt cannot go on here");
                        return Ok(self.read_run(&id).await?.and_then(|facts| attempt.end_with(facts)));
                    }
                }
            }
            None => self.begin_attempt(attempt, options).await?,
        };
        let run = watch.run.clone();
        attempt.run = Some(run.clone());
        let ended = watch.wait_for_end().await;
        let read_calls = async || {
            let facts = self.read_run(&run).await?;
            Ok::<_, StoreError>(attempt.all_calls(facts.as_ref()))
        };
        match &ended.end {
            WorkEnd::Finished(outcome) => {
                Ok(Some(AttemptEnd { outcome: outcome.clone(), calls: read_calls().await? }))
            }
            WorkEnd::AwaitingApproval(request) => {
                self.post_drafts(attempt, &read_calls().await?).await?;
                self.outbox.post(attempt.approval_message(request)).await?;
                let note = format!("waits for the approval {}", request.id);
                self.store.hold(&attempt.claimed.lease, note).await?;
                Ok(None)
            }
            WorkEnd::Suspended(_) | WorkEnd::Left => Ok(None),
        }
    }

    async fn read_run(&self, run: &str) -> Result<Option<RunFacts>, StoreError> {
        self.experts.agents.read_facts(run).await.map_err(|error| StoreError(error.to_string()))
    }

    /// Begins an attempt as a new run.
    async fn begin_attempt(&self, attempt: &Attempt<'_>, options: RunOptions) -> Result<Watch, StoreError> {
        let stands_for = invocation_tag(attempt.invocation);
        let calls = attempt.all_calls(None);
        let settled = verdict::settled_calls(&calls);
        let (agent, files) = self.experts.agent_of(&attempt.expert, attempt.run_plan(settled));
        let before = attempt.earlier.last().and_then(|facts| facts.outcome.as_ref());
        let before = before.map(|outcome| previous_end(outcome, attempt));
        let comment = attempt.invocation.comment.as_deref();
        let log: &[MadeCall] = if attempt.execution.resume { &calls } else { &[] };
        let lasting = verdict::lasting_calls(&calls);
        let history = History { log, lasting, before, comment, session: self.session_so_far(attempt).await? };
        let text = attempt.task_text(&files, history);
        self.experts.keep_package(&attempt.expert);
        self.experts.agents.start_run(&agent, AgentRequest::from_work(&text, &stands_for), options).await
    }

    /// Returns the results that the expert has delivered in the main session, newest first. Other invocations
    /// get none.
    async fn session_so_far(&self, attempt: &Attempt<'_>) -> Result<Vec<Value>, StoreError> {
        if !attempt.invocation.origin.is_main_session() {
            return Ok(Vec::new());
        }
        let filter = MessageFilter {
            expert: Some(attempt.expert.name().to_owned()),
            kind: Some(MessageKind::Result.as_str().to_owned()),
            ..MessageFilter::default()
        };
        let mut results = Vec::new();
        for row in self.store.messages(filter, MOST_RESULTS).await? {
            let Some(entry) = row.message.entry.as_deref() else { continue };
            let entry = self.store.entry(entry).await?;
            let invocation = entry.and_then(|entry| Invocation::read(&entry.payload).ok());
            if invocation.is_some_and(|invocation| invocation.origin.is_main_session()) {
                let body = &row.message.body;
                results.push(json!({"process": body["process"], "result": body[row.message.kind.as_str()]}));
            }
            if results.len() == SESSION_RESULTS {
                break;
            }
        }
        Ok(results)
    }
}

/// Takes in changes of an expert's folder: `update` and `bind` say that they are in force.
async fn take_changes(experts: &Arc<Experts>, name: &str) {
    let Some(expert) = experts.get(name) else { return };
    let experts = Arc::clone(experts);
    let look = move || {
        experts.catalog.look_at_folder(&expert.folder);
        experts.follow_catalog();
    };
    let _ = tokio::task::spawn_blocking(look).await;
}

/// Returns how an attempt ended, for the next one.
fn previous_end(outcome: &Outcome, attempt: &Attempt<'_>) -> PreviousEnd {
    match verdict::judge_end(outcome, &attempt.process.outputs.items) {
        Verdict::Failed { reason, .. } => PreviousEnd::Failed(reason),
        Verdict::Escalated(what) => {
            PreviousEnd::Escalated(what["reason"].as_str().unwrap_or_default().to_owned())
        }
        Verdict::Done(_) | Verdict::Cancelled => PreviousEnd::Failed(String::new()),
    }
}

impl<'a> Attempt<'a> {
    pub(super) fn new(
        claimed: &'a Claimed,
        invocation: &'a Invocation,
        expert: Arc<Expert>,
        package: Arc<Package>,
        process: Process,
    ) -> Self {
        let (inputs, _) = invocation.inputs(&process.inputs.items);
        let scratchpad = process.scratchpad.as_ref().and_then(|pattern| {
            let path = task::scratchpad_path(&pattern.value, &inputs);
            if path.is_none() {
                tracing::error!(target: "respool::expert", entry = claimed.lease.entry, scratchpad = pattern.value,
                    "the scratchpad would not be below scratch/, so the process has none");
            }
            path
        });
        Self {
            earlier: Vec::new(),
            run: None,
            execution: Execution::resolve(&package.manifest.settings.execution, &process.settings.execution),
            delivery: Delivery::resolve(&package.manifest.settings.delivery, &process.settings.delivery),
            claimed,
            invocation,
            expert,
            package,
            process,
            inputs,
            scratchpad,
        }
    }

    /// Returns the calls that all attempts of the invocation have made. `own`: the facts of its own run.
    fn all_calls(&self, own: Option<&RunFacts>) -> Vec<MadeCall> {
        self.earlier.iter().chain(own).flat_map(RunFacts::all_calls).collect()
    }

    /// Returns how the attempt ended, if its run has.
    fn end_with(&mut self, own: RunFacts) -> Option<AttemptEnd> {
        let calls = self.all_calls(Some(&own));
        self.run = Some(own.id);
        Some(AttemptEnd { outcome: own.outcome?, calls })
    }

    fn context(&self) -> Vec<String> {
        self.process.context.items.iter().map(|path| path.value.clone()).collect()
    }

    /// Returns the session, which determines the files with `scope: session`: without a gateway, the triggers
    /// of the main session share one per expert.
    pub(super) fn session(&self) -> &str {
        if self.invocation.origin.is_main_session() { MAIN_SESSION } else { &self.invocation.id }
    }

    pub(super) fn run_plan(&self, settled: Vec<agent::SettledCall>) -> RunPlan<'_> {
        RunPlan {
            session: self.session(),
            role: Role::Process {
                name: self.process.name.value.clone(),
                outputs: self.process.outputs.items.clone(),
            },
            context: self.context(),
            timeout: self.execution.timeout.as_ref().map_or(RUN_TIMEOUT, openexperts::Length::length),
            settled,
            calls: Vec::new(),
            is_dry: false,
            root: None,
        }
    }

    /// Returns true if its runs may quote private knowledge.
    pub(super) fn is_private(&self) -> bool {
        Workspace::new(Path::new(""), Arc::clone(&self.package), "", &self.context()).may_quote_private()
    }

    pub(super) fn task_text(&self, files: &Workspace, history: History<'_>) -> String {
        let read = |path: String| {
            let text = files.read(&path).unwrap_or_else(|why| format!("[{why}]"));
            ContextFile { text, is_of_package: files.is_of_package(&path), path }
        };
        let scratchpad = self.scratchpad.clone().map(|path| {
            let is_there = files.exists(&path);
            (path, is_there)
        });
        let context = self.context().into_iter().map(read).collect();
        let attempt = self.claimed.attempt;
        let tools = self.package.manifest.tools.items.iter().map(|name| name.value.clone()).collect();
        let (name, body, inputs) = (&self.process.name.value, &self.process.body, &self.inputs);
        Task { name, body, tools, inputs, context, scratchpad, attempt, history }.text()
    }
}
