//! Executes a run's steps: calls the model and the tools, waits, and commits each event before it continues.
//!
//! `run` makes the decisions. An event that does not fit the run's state fails the run. The driver leaves a
//! run that another process has claimed: there is a commit before every effect, and the store refuses it.
//! Called by `active` and `conversation`.

mod approval;
mod approved_call;
mod child;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::activity::{Activity, Observer};
use super::approval::ApprovalRequest;
use super::call::{CallOutcome, RequestedCall, ToolEnd};
use super::definition::{Agent, ChildRuns, Notice, Notices};
use super::event::{Event, EventKind};
use super::failure::{FailureKind, ModelFailure};
use super::journal::{Committed, Journal, Unkept};
use super::model_client::ModelClient;
use super::outcome::Outcome;
use super::run::Run;
use super::step::{Action, CallPurpose, ModelStep, Step, Suspension, ToolStep, UnexpectedEvent};
use super::telemetry::Telemetry;
use approved_call::ApprovedCall;
use store::{NewMessage, NewRun, Status};
use telemetry::{Recording, RowFacts};
use tools::{Approver, Caller, Invocation, ToolError, ToolOutput, Tools};
use wire::ErrorCode;

/// A tool set ends a call that takes too long. It gets this much more time to do so.
const GRACE: Duration = Duration::from_secs(2);

/// The pause before what could not be committed is tried again.
const COMMIT_AGAIN: Duration = Duration::from_millis(500);

/// Executes the steps of one run.
pub(super) struct Driver {
    pub(super) model: ModelClient,
    pub(super) journal: Journal,
    pub(super) telemetry: Telemetry,
    /// The person who is asked when the policy says `ask`, and for consent.
    pub(super) approver: Option<Arc<dyn Approver>>,
    /// It goes on when its client is gone.
    pub(super) is_detached: bool,
    /// Time spent waiting for models, tools and pauses.
    pub(super) waited: Duration,
    tools: Arc<dyn Tools>,
    children: Option<Arc<dyn ChildRuns>>,
    notices: Option<Arc<dyn Notices>>,
    observer: Arc<Observer>,
    stops: StopSignals,
    /// Whether the run must stop here: another process has it, or it must be stored and cannot.
    is_lost: bool,
}

/// The signals that end a run from outside.
#[derive(Clone, Debug, Default)]
pub(super) struct StopSignals {
    /// A person or its client ended it for good.
    pub(super) cancel: CancellationToken,
    /// Its client went away.
    pub(super) gone: CancellationToken,
    /// The process ends: nothing new begins.
    pub(super) shutdown: CancellationToken,
    /// The process ends now: a call in flight is cut off too.
    pub(super) cut: CancellationToken,
}

/// How work on a run ended.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkEnd {
    /// The run is over.
    Finished(Outcome),
    /// It waits for the client.
    Suspended(Suspension),
    /// It, or a child of it, waits for a person's consent.
    AwaitingApproval(ApprovalRequest),
    /// It was left where it is: the client went away, the process ends, or another process works on it.
    Left,
}

/// How an action ended.
enum ActionEnd {
    /// An event.
    Event(EventKind),
    /// Nothing: the run has changed meanwhile.
    Nothing,
    /// The work ends here.
    Stop(WorkEnd),
}

impl Driver {
    pub(super) fn new(
        agent: &Agent,
        journal: Journal,
        telemetry: Telemetry,
        stops: StopSignals,
        observer: Arc<Observer>,
    ) -> Self {
        Self {
            model: ModelClient {
                model: Arc::clone(&agent.model),
                model_id: agent.config.model.clone(),
                temperature: agent.config.temperature,
                authorization: None,
                account: None,
                streams: false,
                recording: Recording::only_logged(telemetry.content),
                row: RowFacts {
                    agent: agent.name.to_string(),
                    run: journal.run_id().to_owned(),
                    ..RowFacts::default()
                },
            },
            journal,
            telemetry,
            approver: None,
            is_detached: false,
            waited: Duration::ZERO,
            tools: Arc::clone(&agent.tools),
            children: agent.supervision.children.clone(),
            notices: agent.supervision.notices.clone(),
            observer,
            stops,
            is_lost: false,
        }
    }

    /// Works on a run until it is over, waits for a person or its client, or is stopped.
    pub(super) async fn drive_run(&mut self, run: &mut Run) -> WorkEnd {
        loop {
            if self.is_lost {
                return WorkEnd::Left;
            }
            if self.stops.cancel.is_cancelled() && run.outcome().is_none() {
                self.record_event(run, EventKind::Cancelled).await;
                continue;
            }
            let action = match run.next() {
                Step::Finish(outcome) => {
                    self.telemetry.record_end(run, &outcome);
                    return WorkEnd::Finished(*outcome);
                }
                Step::AwaitClient(suspension) => return WorkEnd::Suspended(suspension),
                Step::AwaitApproval(request) => match self.find_decision(run, &request).await {
                    Some(kind) => {
                        self.note_rejections(run, &request, &kind).await;
                        self.record_event(run, kind).await;
                        continue;
                    }
                    None => return WorkEnd::AwaitingApproval(request),
                },
                Step::Act(action) => action,
            };
            let done = action.without_prompt();
            match self.execute_until_stopped(run, action).await {
                Some(ActionEnd::Event(kind)) => {
                    self.record_event(run, kind.clone()).await;
                    self.report_end(run, &done, &kind);
                }
                Some(ActionEnd::Nothing) => {}
                Some(ActionEnd::Stop(WorkEnd::Left)) if self.stops.shutdown.is_cancelled() => {
                    return self.leave_run(run).await;
                }
                Some(ActionEnd::Stop(end)) => return end,
                None => return self.leave_run(run).await,
            }
        }
    }

    /// Executes an action; `None` when the run is to be left where it is. When the process ends, a call that
    /// must not be made twice is awaited, because the next process could not find out whether it was made.
    async fn execute_until_stopped(&mut self, run: &mut Run, action: Action) -> Option<ActionEnd> {
        let (stops, is_detached) = (self.stops.clone(), self.is_detached);
        let may_finish = !stops.shutdown.is_cancelled() && is_effect(&action);
        let ends = if may_finish { &stops.cut } else { &stops.shutdown };
        tokio::select! {
            biased;
            () = stops.cancel.cancelled() => Some(ActionEnd::Event(EventKind::Cancelled)),
            () = stops.gone.cancelled(), if !is_detached => None,
            () = ends.cancelled() => None,
            end = self.execute_action(run, action) => Some(end),
        }
    }

    async fn execute_action(&mut self, run: &mut Run, action: Action) -> ActionEnd {
        match action {
            Action::CallModel(step) => ActionEnd::Event(self.call_model(run, step).await),
            Action::CallTool(step) => self.call_tool(run, step).await,
            Action::RequestApproval(request) => {
                let request = self.with_effects(run, request).await;
                ActionEnd::Event(EventKind::ApprovalRequested(request))
            }
            Action::HandOver(call) => ActionEnd::Event(EventKind::HandedOver(call)),
            Action::RunChild(step) => self.run_child(run, step).await,
            Action::Pause(millis) => {
                tokio::time::sleep(Duration::from_millis(millis)).await;
                self.waited += Duration::from_millis(millis);
                ActionEnd::Event(EventKind::PauseEnded)
            }
        }
    }

    /// Ends the work on a run whose client is gone. It can be resumed.
    async fn leave_run(&mut self, run: &Run) -> WorkEnd {
        let status = self.status_when_left();
        if let Committed::Failed(error) = self.journal.commit_status(status).await {
            self.telemetry.not_durable(run, &error);
        }
        WorkEnd::Left
    }

    fn status_when_left(&self) -> Status {
        if self.stops.shutdown.is_cancelled() { Status::Interrupted } else { Status::Cancelled }
    }

    /// Applies an event to the run and stores it.
    pub(super) async fn record_event(&mut self, run: &mut Run, kind: EventKind) {
        if kind == EventKind::Resumed
            && let Some(call) = run.started_call()
        {
            // The process that ran it has ended, so nothing else writes its end into the audit log.
            self.tools.note_unknown(&self.invocation(run, call, Duration::ZERO)).await;
        }
        self.record_with(run, kind, None).await;
    }

    /// Records an event together with the `child` run that it begins.
    async fn record_with(&mut self, run: &mut Run, kind: EventKind, child: Option<NewRun>) {
        let awaited = run.awaited_approval().map(|request| request.id.clone());
        // A call that must not be made twice is known to have begun, even after a power failure. So is what
        // people were asked.
        let synchronous = match &kind {
            EventKind::ToolStarted => run.next_tool().is_some_and(|step| !step.repeatable),
            EventKind::ApprovalRequested(_) | EventKind::HandedOver(_) => true,
            _ => false,
        };
        let (at, was_over) = (clock::now(), run.outcome().is_some());
        let kind = self.apply_event(run, kind, at);
        let body = serde_json::to_string(&kind).unwrap_or_default();
        let append = store::Append {
            client_calls: run.awaited_calls().iter().map(|call| call.id.clone()).collect(),
            message: self.notice_of(run, &kind, was_over).map(Box::new),
            approval: approval::approval_change(&kind, awaited, run),
            child,
            synchronous,
            ..self.journal.status_append(status_of(run), at)
        };
        let mut committed = self.journal.commit_event(kind.name(), body, append).await;
        if let Committed::Failed(error) = &committed
            && self.waits_for_store(run)
        {
            self.telemetry.waits_for_store(run, error);
            committed = self.await_commit().await;
            if matches!(committed, Committed::Failed(_)) {
                // Written later, after the rest. Then the run can be taken up.
                self.journal.commit_status(self.status_when_left()).await;
            }
        }
        self.note_commit(run, committed);
    }

    fn waits_for_store(&self, run: &Run) -> bool {
        self.journal.unkept == Unkept::Waits && run.outcome().is_none()
    }

    /// Waits until the run is kept, unless the process ends or the client goes away before.
    async fn await_commit(&mut self) -> Committed {
        let (stops, is_detached) = (self.stops.clone(), self.is_detached);
        loop {
            let is_stopped = tokio::select! {
                () = stops.shutdown.cancelled() => true,
                () = stops.gone.cancelled(), if !is_detached => true,
                () = tokio::time::sleep(COMMIT_AGAIN) => false,
            };
            let committed = self.journal.commit_backlog().await;
            if is_stopped || !matches!(committed, Committed::Failed(_)) {
                return committed;
            }
        }
    }

    /// Returns the notice that people get of an event that the run has taken in.
    fn notice_of(&self, run: &Run, kind: &EventKind, was_over: bool) -> Option<NewMessage> {
        let notice = match kind {
            EventKind::HandedOver(call) => Notice::HandedOver(call),
            EventKind::ApprovalRequested(request) => Notice::Asked(request),
            EventKind::ApprovalEscalated => Notice::AskedAgain(run.awaited_approval()?),
            _ if was_over || !run.answers_late() => return None,
            _ => Notice::LateAnswer(run.outcome()?),
        };
        self.notices.as_ref()?.notice_message(self.journal.run_id(), notice)
    }

    /// Applies an event. One that does not fit ends the run: the same step would bring it again.
    fn apply_event(&self, run: &mut Run, kind: EventKind, at: u64) -> EventKind {
        let Err(unexpected) = run.apply(Event { at, kind: kind.clone() }) else { return kind };
        let id = self.journal.run_id();
        tracing::error!(target: "respool::agent", run_id = id, error = unexpected.0, "the run is in a wrong state");
        let aborted = EventKind::Aborted(wrong_state(&unexpected));
        // This one fits every state.
        let _ = run.apply(Event { at, kind: aborted.clone() });
        aborted
    }

    fn note_commit(&mut self, run: &Run, committed: Committed) {
        match committed {
            Committed::Done => {}
            Committed::CancelWanted => self.stops.cancel.cancel(),
            Committed::Failed(error) => {
                let waited = self.waits_for_store(run);
                if self.journal.has_just_failed() && !waited {
                    self.telemetry.not_durable(run, &error);
                    (self.observer)(Activity::NotStored);
                }
                self.is_lost |= waited || self.journal.unkept == Unkept::Stops;
            }
            Committed::Lost => {
                let (id, epoch) = (self.journal.run_id(), self.journal.epoch());
                tracing::warn!(target: "respool::agent", run_id = id, epoch, "another process is working on this run now");
                self.is_lost = true;
            }
        }
    }

    async fn call_model(&mut self, run: &Run, step: ModelStep) -> EventKind {
        let began = Instant::now();
        (self.observer)(Activity::ModelAsked(step.purpose));
        let id = format!("{}-{}", self.journal.run_id(), run.iterations().len() + 1);
        let kind = self.model.call_model(step, id, &self.observer).await;
        self.waited += began.elapsed();
        kind
    }

    async fn call_tool(&mut self, run: &mut Run, step: ToolStep) -> ActionEnd {
        self.record_event(run, EventKind::ToolStarted).await;
        if self.is_lost || run.outcome().is_some() {
            return ActionEnd::Nothing;
        }
        (self.observer)(Activity::ToolStarted { call: &step.call, is_retry: step.is_retry });
        let invocation = self.invocation(run, &step.call, Duration::from_millis(step.within));
        let began = Instant::now();
        let called = self.call_in_time(&invocation, &step).await;
        self.waited += began.elapsed();
        let display = called.as_ref().ok().and_then(|output| output.display.clone());
        let took = clock::to_millis(began.elapsed());
        let ended = tool_end(called, took);
        let (call, display) = (&step.call, display.as_deref());
        (self.observer)(Activity::ToolFinished { call, ended: &ended, display });
        ActionEnd::Event(EventKind::ToolFinished(ended))
    }

    pub(super) fn invocation(&self, run: &Run, call: &RequestedCall, timeout: Duration) -> Invocation {
        Invocation {
            name: call.name.clone(),
            arguments: serde_json::from_str(&call.arguments).unwrap_or_default(),
            key: format!("{}:{}", self.journal.run_id(), call.id),
            timeout,
            caller: Caller {
                run: self.journal.run_id().to_string(),
                agent: self.telemetry.agent.to_string(),
                key: run.setup().key.clone(),
                epoch: self.journal.epoch(),
                is_private: run.setup().is_private,
            },
        }
    }

    /// Makes a call. Tool sets end calls that take too long; the limit here is for one that does not. A
    /// person may take any time to answer.
    async fn call_in_time(&self, invocation: &Invocation, step: &ToolStep) -> Result<ToolOutput, ToolError> {
        let (approved_by, effect) = (step.approved_by.as_deref(), step.effect.as_ref());
        if let Some(approver) = self.approver.as_deref().filter(|_| approved_by.is_none()) {
            return self.tools.call(invocation, Some(approver)).await;
        }
        let approved = approved_by.map(|by| ApprovedCall { invocation, by, effect });
        let approver = approved.as_ref().map(|approved| approved as &dyn Approver);
        let called = self.tools.call(invocation, approver);
        let called = tokio::time::timeout(invocation.timeout + GRACE, called).await;
        called.unwrap_or_else(|_| Err(ToolError::TimedOut(too_long(invocation.timeout))))
    }

    /// Reports the end of an action, once the run knows it.
    fn report_end(&self, run: &Run, action: &Action, kind: &EventKind) {
        match (action, kind) {
            (Action::CallModel(step), EventKind::ModelReplied(reply) | EventKind::Summarised(reply)) => {
                self.telemetry.record_iteration(run, step.purpose, reply);
                if step.purpose != CallPurpose::Summary {
                    (self.observer)(Activity::ModelReplied(reply));
                }
            }
            (Action::CallModel(_), EventKind::ModelFailed(failure)) => {
                let is_retried = run.outcome().is_none();
                self.telemetry.model_failed(run, failure, is_retried);
                let is_first = run.iterations().is_empty();
                (self.observer)(Activity::ModelFailed { failure, is_retried, is_first });
            }
            (Action::CallTool(step), EventKind::ToolFinished(ended)) => {
                let is_retried = run.is_repeated(step, ended.outcome);
                self.telemetry.record_tool_call(run, &step.call, ended, is_retried);
            }
            (Action::RequestApproval(request), EventKind::ApprovalRequested(_)) => {
                self.telemetry.approval_requested(request);
                (self.observer)(Activity::ApprovalRequested(request));
            }
            (Action::HandOver(call), EventKind::HandedOver(_)) => {
                (self.observer)(Activity::HandedOver(call));
            }
            _ => {}
        }
    }
}

fn too_long(limit: Duration) -> String {
    format!(
        "it took longer than {} s and was stopped; its effects may have happened in part",
        limit.as_secs_f32()
    )
}

/// Returns true if an action makes a call that must not be made twice, itself or in a child run.
fn is_effect(action: &Action) -> bool {
    match action {
        Action::CallTool(step) => !step.repeatable,
        Action::RunChild(_) => true,
        _ => false,
    }
}

/// Returns the run's status for the store.
fn status_of(run: &Run) -> Status {
    match run.outcome() {
        _ if !run.awaited_calls().is_empty() => Status::Suspended,
        _ if run.awaited_approval().is_some() => Status::AwaitingApproval,
        None => Status::Running,
        Some(outcome) => Status::named(outcome.as_str()).unwrap_or(Status::Failed),
    }
}

fn tool_end(called: Result<ToolOutput, ToolError>, took: u64) -> ToolEnd {
    match called {
        Ok(output) => {
            ToolEnd { exit_code: output.exit_code, ..ToolEnd::new(CallOutcome::Ok, output.text, took) }
        }
        Err(error) => {
            let outcome = match error {
                ToolError::Failed(_) => CallOutcome::Failed,
                ToolError::Denied(_) => CallOutcome::Denied,
                ToolError::Transient(_) => CallOutcome::Transient,
                ToolError::Unreachable(_) => CallOutcome::Unreachable,
                ToolError::Protocol(_) => CallOutcome::ProtocolError,
                ToolError::TimedOut(_) => CallOutcome::TimedOut,
            };
            ToolEnd::new(outcome, error.text(), took)
        }
    }
}

fn wrong_state(unexpected: &UnexpectedEvent) -> ModelFailure {
    ModelFailure {
        kind: FailureKind::Final,
        status: 500,
        code: ErrorCode::RunState.to_string(),
        text: format!("respool ended the run, because its state was invalid: {}", unexpected.0),
        wait: None,
    }
}

#[cfg(test)]
mod tests;
