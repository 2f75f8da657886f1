//! Child runs: begins one with the parent's own event, resumes one that has begun, and brings its outcome
//! back. Used by `driver`.

use std::sync::Arc;

use super::{ActionEnd, Driver, WorkEnd};
use crate::call::{CallOutcome, RequestedCall, ToolEnd};
use crate::definition::Agent;
use crate::event::{ChildEnd, EventKind};
use crate::failure::{FailureKind, ModelFailure};
use crate::journal::{Committed, Journal};
use crate::outcome::Outcome;
use crate::run::Run;
use crate::step::ChildStep;
use crate::stored::{new_run_id, ok_or_log, restore};
use crate::telemetry::Telemetry;
use store::{ClaimScope, NewRun, Status, Store};
use wire::ErrorCode;

/// A child run that this process works on.
struct Child {
    agent: Arc<Agent>,
    run: Run,
    journal: Journal,
    /// It has begun before, and is resumed.
    is_resumed: bool,
}

impl Driver {
    /// Works on a child run until it is over, or waits for consent.
    pub(super) async fn run_child(&mut self, run: &mut Run, step: ChildStep) -> ActionEnd {
        let child = match &step.child {
            None => match self.begin_child(run, &step).await {
                Ok(child) => child,
                Err(text) => {
                    let ended = ToolEnd::new(CallOutcome::Failed, text, 0);
                    return ActionEnd::Event(EventKind::ToolFinished(ended));
                }
            },
            Some(id) => match self.resume_child(id, &step).await {
                Ok(child) => child,
                Err(text) => return ActionEnd::Event(EventKind::ChildFinished(lost_child(id, text))),
            },
        };
        if self.is_lost || run.outcome().is_some() {
            return ActionEnd::Nothing;
        }
        self.drive_child(child, &step.call).await
    }

    async fn begin_child(&mut self, run: &mut Run, step: &ChildStep) -> Result<Child, String> {
        let children = self.children.clone().ok_or("this agent has no child runs")?;
        let (agent, mut setup) = children.child_run(&step.call, rand::random(), clock::now())?;
        setup.key.clone_from(&run.setup().key);
        setup.settled.extend(run.settled_calls().iter().cloned());
        setup.limits.time = setup.limits.time.min(step.within);
        let id = new_run_id();
        let new = NewRun {
            id: id.clone(),
            agent: agent.name.to_string(),
            at: setup.at,
            fingerprint: String::new(),
            client: String::new(),
            setup: serde_json::to_string(&setup).unwrap_or_default(),
        };
        self.record_with(run, EventKind::ChildStarted { child: id.clone() }, Some(new)).await;
        // A child whose beginning could not be kept is not kept at all.
        let store = self.journal.store().filter(|_| self.journal.is_complete()).cloned();
        let journal = Journal::new(&id, Store::FIRST_EPOCH, store, 0);
        Ok(Child { agent, run: Run::new(setup), journal, is_resumed: false })
    }

    async fn resume_child(&self, id: &str, step: &ChildStep) -> Result<Child, String> {
        let children = self.children.clone().ok_or("this agent has no child runs any more")?;
        let (agent, _) = children.child_run(&step.call, 0, clock::now())?;
        let store = self.journal.store().ok_or("the child run was not kept")?;
        // Claimed before it is read: the process that worked on it until now can write nothing more. One that
        // is over needs no claim.
        let claimed = ok_or_log(store.claim(id, ClaimScope::Any).await).flatten();
        let stored = ok_or_log(store.run(id).await).flatten().ok_or("the child run was not kept")?;
        let (run, _) = restore(&stored).ok_or("the child run was written by another version of respool")?;
        let over = run.outcome().map(|_| stored.epoch);
        let epoch = claimed.or(over).ok_or("the child run cannot be resumed")?;
        let journal = Journal::new(id, epoch, Some(Arc::clone(store)), stored.events.len() as u64);
        Ok(Child { agent, run, journal, is_resumed: true })
    }

    async fn drive_child(&mut self, child: Child, call: &RequestedCall) -> ActionEnd {
        let Child { agent, mut run, mut journal, is_resumed } = child;
        journal.unkept = self.journal.unkept;
        let id = journal.run_id().to_owned();
        let content = self.telemetry.content && !run.setup().is_private;
        let telemetry =
            Telemetry { run: id.clone(), agent: Arc::clone(&agent.name), content, ..self.telemetry.clone() };
        telemetry.log_start(&run, if is_resumed { "resumed as a child" } else { "begins as a child" });
        let mut driver = Self {
            approver: self.approver.clone(),
            is_detached: self.is_detached,
            ..Self::new(&agent, journal, telemetry, self.stops.clone(), Arc::clone(&self.observer))
        };
        driver.model.authorization.clone_from(&self.model.authorization);
        driver.model.account.clone_from(&self.model.account);
        driver.model.recording = self.model.recording.clone().without_content(run.setup().is_private);
        if is_resumed && run.outcome().is_none() {
            driver.record_event(&mut run, EventKind::Resumed).await;
        }
        let end = Box::pin(driver.drive_run(&mut run)).await;
        driver.telemetry.log_stop("child", std::time::Duration::ZERO, run.iterations().len());
        self.waited += driver.waited;
        self.child_end(id, call, &run, end).await
    }

    async fn child_end(&mut self, child: String, call: &RequestedCall, run: &Run, end: WorkEnd) -> ActionEnd {
        match end {
            WorkEnd::Finished(outcome) => {
                let outcome = match &self.children {
                    Some(children) => children.child_result(call, outcome),
                    None => outcome,
                };
                let (tokens, worked) = (run.spent_tokens(), run.working_time());
                let made = run.settled_calls().to_vec();
                let end = ChildEnd { child, outcome, tokens, worked, made };
                ActionEnd::Event(EventKind::ChildFinished(end))
            }
            WorkEnd::AwaitingApproval(request) => {
                match self.journal.commit_status(Status::AwaitingApproval).await {
                    Committed::Lost => self.is_lost = true,
                    // The child's request was withdrawn with it.
                    Committed::CancelWanted => return ActionEnd::Event(EventKind::Cancelled),
                    Committed::Done | Committed::Failed(_) => {}
                }
                ActionEnd::Stop(WorkEnd::AwaitingApproval(request))
            }
            WorkEnd::Suspended(_) => {
                let text = "a child run cannot call tools of the client".to_owned();
                ActionEnd::Event(EventKind::ChildFinished(lost_child(&child, text)))
            }
            WorkEnd::Left => ActionEnd::Stop(WorkEnd::Left),
        }
    }
}

/// Returns the end of a child that cannot be worked on.
fn lost_child(child: &str, text: String) -> ChildEnd {
    let failure = ModelFailure {
        kind: FailureKind::Final,
        status: 500,
        code: ErrorCode::ChildRun.to_string(),
        text,
        wait: None,
    };
    ChildEnd {
        child: child.to_owned(),
        outcome: Outcome { failure: Some(failure), ..Outcome::default() },
        tokens: crate::budget::Tokens::default(),
        worked: 0,
        made: Vec::new(),
    }
}
