//! One claimed entry of the queue: begins an attempt or goes on with one, waits for its end, and does what follows from that.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};

use super::task::{self, Task};
use super::verdict::{self, Next, Verdict};
use super::{Worker, now};
use crate::agent::{
    AgentRequest, ApprovalRequest, CallOutcome, MadeCall, Outcome, RunFacts, RunOptions, Watch, WatchEvent,
    WorkEnd,
};
use crate::expert::component::Process;
use crate::expert::delivery::{Message, MessageKind};
use crate::expert::experts::{Expert, Experts, RUN_TIMEOUT, RunPlan};
use crate::expert::invocation::{Invocation, Origin};
use crate::expert::package::Package;
use crate::expert::settings::{Delivery, Execution, SlaBreach};
use crate::expert::tools::Role;
use crate::expert::workspace::Workspace;
use crate::store::{Claimed, EntryEnd, Queue as _, StoreError};

/// How the entry is to be known by its runs.
fn fingerprint(invocation: &Invocation) -> String {
    format!("invocation:{}", invocation.id)
}

/// What an attempt works with.
struct Attempt<'a> {
    claimed: &'a Claimed,
    invocation: &'a Invocation,
    expert: Arc<Expert>,
    package: Arc<Package>,
    process: Process,
    execution: Execution,
    delivery: Delivery,
    inputs: Value,
    scratchpad: Option<String>,
}

impl Worker {
    /// Executes a claimed entry until it has ended, is given back, or waits for a person.
    pub(super) async fn execute(&self, claimed: &Claimed) -> Result<(), StoreError> {
        let invocation = match Invocation::read(&claimed.payload) {
            Ok(invocation) => invocation,
            Err(why) => return self.end(claimed, EntryEnd::DeadLetter, why).await,
        };
        let Some(expert) = self.experts.get(&invocation.expert) else {
            // It was removed a moment ago; its entries wait in case it comes back.
            return self
                .store
                .retry_at(&claimed.lease, now() + 60_000, "the expert is not installed".to_owned())
                .await
                .map(drop);
        };
        if self.hand_to_main_session(claimed, &invocation).await? {
            return Ok(());
        }
        // An attempt that goes on uses the package that it began with.
        let facts = match claimed.run.as_ref().filter(|_| claimed.is_continued) {
            Some(run) => self.experts.agents.facts(run).await,
            None => None,
        };
        let snapshot = facts.as_ref().and_then(|facts| facts.snapshot.split(' ').next());
        let package = snapshot
            .map_or_else(|| Arc::clone(&expert.package), |digest| self.experts.package_of(&expert, digest));
        let Some(process) = package.process(&invocation.process).cloned() else {
            let why = format!("{} has no process {} any more", invocation.expert, invocation.process);
            return self.end(claimed, EntryEnd::DeadLetter, why).await;
        };
        let attempt = Attempt::new(claimed, &invocation, expert, package, process);
        match self.outcome(&attempt, facts).await? {
            Some(outcome) => self.conclude(&attempt, &outcome).await,
            None => Ok(()),
        }
    }

    /// How the attempt ended; `None` when it waits for a person, or is left to another process.
    async fn outcome(
        &self,
        attempt: &Attempt<'_>,
        facts: Option<RunFacts>,
    ) -> Result<Option<Outcome>, StoreError> {
        if let Some(outcome) = facts.as_ref().and_then(|facts| facts.outcome.clone()) {
            // The process ended between the end of the run and what follows from it.
            return Ok(Some(outcome));
        }
        let options =
            RunOptions { is_detached: true, is_durable: true, lease: Some(attempt.claimed.lease.clone()) };
        let watch = match attempt.claimed.run.as_ref().filter(|_| facts.is_some()) {
            Some(run) => {
                let (agent, _) = self.experts.made(&attempt.expert, attempt.plan(Vec::new()));
                match self.experts.agents.resume_as(&agent, run, options).await {
                    Ok(watch) => watch,
                    Err(why) => {
                        tracing::warn!(target: "respool::expert", run_id = run, why, "the attempt cannot go on here");
                        return Ok(self.experts.agents.facts(run).await.and_then(|facts| facts.outcome));
                    }
                }
            }
            None => self.begun(attempt, options).await?,
        };
        self.ended(attempt, watch).await
    }

    /// Begins an attempt as a new run.
    async fn begun(&self, attempt: &Attempt<'_>, options: RunOptions) -> Result<Watch, StoreError> {
        let stands_for = fingerprint(attempt.invocation);
        let earlier = self.experts.agents.facts_of(&stands_for).await;
        let calls: Vec<MadeCall> = earlier.iter().flat_map(|facts| facts.calls.clone()).collect();
        let settled = verdict::settled(&calls);
        let (agent, files) = self.experts.made(&attempt.expert, attempt.plan(settled));
        if earlier.is_empty()
            && let Some(path) = &attempt.scratchpad
            && let Err(error) = files.set_aside(path, now())
        {
            tracing::warn!(target: "respool::expert", path, %error, "a leftover scratchpad cannot be set aside");
        }
        let failure =
            earlier.last().and_then(|facts| facts.outcome.as_ref()).map(|outcome| reason(outcome, attempt));
        let log: &[MadeCall] = if attempt.execution.resume { &calls } else { &[] };
        let text = attempt.task(&files, log, failure.as_deref());
        self.experts.agents.start_run(&agent, AgentRequest::of_work(&text, &stands_for), options).await
    }

    async fn ended(&self, attempt: &Attempt<'_>, mut watch: Watch) -> Result<Option<Outcome>, StoreError> {
        let ended = loop {
            if let WatchEvent::End(ended) = watch.next().await {
                break ended;
            }
        };
        match &ended.end {
            WorkEnd::Finished(outcome) => Ok(Some(outcome.clone())),
            WorkEnd::AwaitingApproval(request) => {
                self.post_drafts(attempt).await?;
                self.post(attempt.asked(request)).await?;
                let note = format!("waits for the approval {}", request.id);
                self.store.hold(&attempt.claimed.lease, note).await?;
                Ok(None)
            }
            WorkEnd::Suspended(_) | WorkEnd::Left => Ok(None),
        }
    }

    /// Does what follows from the end of an attempt. Whoever does it again does the same again.
    async fn conclude(&self, attempt: &Attempt<'_>, outcome: &Outcome) -> Result<(), StoreError> {
        let drafts = self.post_drafts(attempt).await?;
        match verdict::verdict(outcome, &attempt.process.outputs.items) {
            Verdict::Done(results) => {
                let mut body =
                    verdict::delivered(&results, &attempt.process.outputs.items, &attempt.delivery);
                if !drafts.is_empty() {
                    body["drafts"] = drafts.into();
                }
                self.post_result(attempt, body).await?;
                attempt.clear_scratch(&self.experts);
                self.end(attempt.claimed, EntryEnd::Done, "done".to_owned()).await
            }
            Verdict::Escalated(what) => {
                self.post(attempt.message(MessageKind::Escalation, "escalated", what)).await?;
                self.end(attempt.claimed, EntryEnd::Done, "escalated to a person".to_owned()).await
            }
            Verdict::Failed { reason, may_retry } => self.failed(attempt, reason, may_retry).await,
        }
    }

    async fn post_result(&self, attempt: &Attempt<'_>, mut body: Value) -> Result<(), StoreError> {
        let took = now().saturating_sub(attempt.invocation.asked);
        let late = verdict::lateness(&attempt.delivery, took);
        if let Some((late, breach)) = late {
            body["late"] = late.clone();
            if breach == SlaBreach::Escalate {
                self.post(attempt.message(MessageKind::Escalation, "late", late)).await?;
            }
        }
        self.post(attempt.message(MessageKind::Result, "result", body)).await
    }

    async fn failed(&self, attempt: &Attempt<'_>, reason: String, may_retry: bool) -> Result<(), StoreError> {
        let number = attempt.claimed.attempt;
        match verdict::after_failure(&attempt.execution, number, may_retry) {
            Next::Retry(pause) => {
                let note = format!("attempt {number} failed: {reason}");
                tracing::warn!(target: "respool::expert", expert = attempt.expert.name(), entry = attempt.claimed.lease.entry,
                    process = attempt.process.name.value, attempt = number, pause_ms = pause, "an attempt failed");
                self.store.retry_at(&attempt.claimed.lease, now() + pause, note).await.map(drop)
            }
            Next::End { end, is_told } => {
                tracing::error!(target: "respool::expert", expert = attempt.expert.name(), entry = attempt.claimed.lease.entry,
                    process = attempt.process.name.value, attempts = number, on_failure = attempt.execution.on_failure.as_str(), "a process failed");
                if is_told {
                    let what = json!({"reason": reason, "context": attempt.inputs, "attempts": number,
                        "recommendation": "Look at what failed, and start the process again or do it by hand."});
                    self.post(attempt.message(MessageKind::Escalation, "failed", what)).await?;
                }
                self.end(attempt.claimed, end, reason).await
            }
        }
    }

    /// Posts the drafts that were handed over so far, and gives them.
    async fn post_drafts(&self, attempt: &Attempt<'_>) -> Result<Vec<Value>, StoreError> {
        let all = self.experts.agents.facts_of(&fingerprint(attempt.invocation)).await;
        let drafts =
            all.iter().flat_map(|facts| &facts.calls).filter(|made| made.outcome == CallOutcome::HandedOver);
        let mut told = Vec::new();
        for made in drafts {
            let inputs: Value = serde_json::from_str(&made.call.arguments).unwrap_or_default();
            let body = json!({"operation": made.call.name.replacen("__", ".", 1), "inputs": inputs});
            if told.contains(&body) {
                continue;
            }
            let message =
                attempt.message(MessageKind::Draft, &format!("draft-{}", told.len() + 1), body.clone());
            if attempt.package.manifest.policy.on_manual_ready {
                self.post(message).await?;
            }
            told.push(body);
        }
        Ok(told)
    }

    async fn post(&self, message: Message) -> Result<(), StoreError> {
        let is_new = self.store.post(message.into_row(), now()).await?;
        if is_new {
            self.experts.delivery_stirred.notify_one();
        }
        Ok(())
    }

    async fn end(&self, claimed: &Claimed, end: EntryEnd, note: String) -> Result<(), StoreError> {
        self.store.complete(&claimed.lease, end, note, now()).await.map(drop)
    }

    /// A trigger for the main agent's session is handed to it, where there is a way: it delegates back to the expert.
    async fn hand_to_main_session(
        &self,
        claimed: &Claimed,
        invocation: &Invocation,
    ) -> Result<bool, StoreError> {
        let Origin::Trigger { name, session } = &invocation.origin else { return Ok(false) };
        if session != "main" || !self.experts.has_gateway() {
            return Ok(false);
        }
        let message = Message {
            id: format!("{}:task", invocation.id),
            expert: invocation.expert.clone(),
            entry: claimed.lease.entry.clone(),
            process: invocation.process.clone(),
            kind: MessageKind::Task,
            body: json!({"trigger": name, "payload": invocation.payload, "inputs": invocation.mapped}),
        };
        self.post(message).await?;
        self.end(claimed, EntryEnd::Done, "handed to the main session".to_owned()).await?;
        Ok(true)
    }
}

/// Why an attempt failed, for the next one.
fn reason(outcome: &Outcome, attempt: &Attempt<'_>) -> String {
    match verdict::verdict(outcome, &attempt.process.outputs.items) {
        Verdict::Failed { reason, .. } => reason,
        _ => String::new(),
    }
}

impl<'a> Attempt<'a> {
    fn new(
        claimed: &'a Claimed,
        invocation: &'a Invocation,
        expert: Arc<Expert>,
        package: Arc<Package>,
        process: Process,
    ) -> Self {
        let (inputs, absent) = invocation.inputs(&process.inputs.items);
        for name in absent {
            tracing::warn!(target: "respool::expert", entry = claimed.lease.entry, process = process.name.value, input = name,
                "the payload has no value for an input of the process; it is null");
        }
        let scratchpad = process.scratchpad.as_ref().and_then(|pattern| {
            let path = task::scratchpad(&pattern.value, &inputs);
            path.inspect_err(|why| tracing::error!(target: "respool::expert", entry = claimed.lease.entry, why, "the process has no scratchpad")).ok()
        });
        Self {
            execution: Execution::resolve(&package.manifest.execution, &process.execution),
            delivery: Delivery::resolve(&package.manifest.delivery, &process.delivery),
            claimed,
            invocation,
            expert,
            package,
            process,
            inputs,
            scratchpad,
        }
    }

    fn context(&self) -> Vec<String> {
        self.process.context.items.iter().map(|path| path.value.clone()).collect()
    }

    fn plan(&self, settled: Vec<crate::agent::SettledCall>) -> RunPlan<'_> {
        RunPlan {
            package: Arc::clone(&self.package),
            session: &self.invocation.id,
            role: Role::Process(self.process.outputs.items.clone()),
            context: self.context(),
            timeout: self.execution.timeout.as_ref().map_or(RUN_TIMEOUT, crate::expert::Length::length),
            settled,
            is_dry: false,
            root: None,
        }
    }

    fn task(&self, files: &Workspace, log: &[MadeCall], failure: Option<&str>) -> String {
        let read = |path: String| {
            let text = files.read(&path).unwrap_or_else(|why| format!("[{why}]"));
            (path, text)
        };
        let scratchpad = self.scratchpad.clone().map(|path| {
            let is_there = files.exists(&path);
            (path, is_there)
        });
        let context = self.context().into_iter().map(read).collect();
        let attempt = self.claimed.attempt;
        Task { process: &self.process, inputs: &self.inputs, context, scratchpad, attempt, failure, log }
            .text()
    }

    fn message(&self, kind: MessageKind, what: &str, body: Value) -> Message {
        Message {
            id: format!("{}:{what}", self.claimed.lease.entry),
            expert: self.expert.name().to_owned(),
            entry: self.claimed.lease.entry.clone(),
            process: self.process.name.value.clone(),
            kind,
            body,
        }
    }

    /// The message that asks for consent. Once the time is over it is another one: the person is told once more.
    fn asked(&self, request: &ApprovalRequest) -> Message {
        let is_late = request.expires.is_some_and(|expires| expires <= now());
        let mut body = crate::agent::report::approval(request);
        body["is_escalated"] = is_late.into();
        let what = format!("approval-{}{}", request.id, if is_late { "-again" } else { "" });
        self.message(MessageKind::Approval, &what, body)
    }

    /// What the process worked with is not needed any more.
    fn clear_scratch(&self, experts: &Experts) {
        let root = experts.config.state_of(self.expert.name());
        let files = Workspace::new(&root, Arc::clone(&self.package), &self.invocation.id, &[]);
        if let Some(path) = &self.scratchpad {
            files.delete_scratch(path);
        }
        files.end_session();
    }
}

/// A process that is executed without changing anything outside, and without the queue.
#[derive(Clone, Debug)]
pub struct DryRun {
    /// The expert.
    pub expert: String,
    /// The process.
    pub process: String,
    /// The payload.
    pub payload: Value,
    /// A copy of the expert's state, which the run may change.
    pub state: PathBuf,
}

impl DryRun {
    /// Executes it and gives its report.
    ///
    /// # Errors
    /// Why it cannot run, for people.
    pub async fn run(self, experts: &Experts) -> Result<Value, String> {
        let expert =
            experts.get(&self.expert).ok_or_else(|| format!("no expert {:?} is installed", self.expert))?;
        let invocation = experts.invocation(&self.expert, &self.process, self.payload)?;
        let package = Arc::clone(&expert.package);
        let process = package.process(&invocation.process).cloned();
        let process = process
            .ok_or_else(|| format!("{} has no process {:?}", invocation.expert, invocation.process))?;
        let claimed = Claimed {
            lease: crate::store::EntryLease { entry: invocation.id.clone(), epoch: 0 },
            queue: invocation.expert.clone(),
            payload: String::new(),
            attempt: 1,
            is_continued: false,
            run: None,
            accepted: now(),
        };
        let attempt = Attempt::new(&claimed, &invocation, expert, package, process);
        let plan = RunPlan { is_dry: true, root: Some(self.state), ..attempt.plan(Vec::new()) };
        let (agent, files) = experts.made(&attempt.expert, plan);
        let request = AgentRequest::of_work(&attempt.task(&files, &[], None), &fingerprint(&invocation));
        let begun = experts
            .agents
            .start_run(&agent, request, RunOptions { is_detached: true, ..RunOptions::default() })
            .await;
        let mut watch = begun.map_err(|error| error.0)?;
        let run = watch.run.clone();
        let ended = loop {
            if let WatchEvent::End(ended) = watch.next().await {
                break ended;
            }
        };
        let WorkEnd::Finished(outcome) = &ended.end else { return Err("the run did not end".to_owned()) };
        let calls = experts.agents.facts(&run).await.map(|facts| facts.calls).unwrap_or_default();
        let calls: Vec<Value> = calls.iter().map(|made| json!({"call": made.call.name, "inputs": serde_json::from_str::<Value>(&made.call.arguments).unwrap_or_default(),
            "outcome": made.outcome.as_str(), "result": made.text})).collect();
        Ok(match verdict::verdict(outcome, &attempt.process.outputs.items) {
            Verdict::Done(results) => {
                json!({"end": "done", "results": verdict::delivered(&results, &attempt.process.outputs.items, &attempt.delivery), "calls": calls})
            }
            Verdict::Escalated(what) => json!({"end": "escalated", "escalation": what, "calls": calls}),
            Verdict::Failed { reason, .. } => json!({"end": "failed", "reason": reason, "calls": calls}),
        })
    }
}
