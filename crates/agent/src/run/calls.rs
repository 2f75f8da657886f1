//! The calls of one reply: which is next, whether it may run, and how it ended. Pure.

use serde_json::Value;

use super::state::{CallQueue, LaterCalls, Phase, Run, Verdict};
use crate::approval::Tier;
use crate::call::{CallOutcome, RequestedCall, ToolEnd};
use crate::event::EventKind;
use crate::failure::{FailureKind, ModelFailure};
use crate::outcome::Outcome;
use crate::setup::{EndsRun, Executor, OfferedTool};
use crate::step::{Action, ChildStep, Suspension, ToolStep};
use crate::transcript::{Entry, Exchange, ToolRecord, ToolResult};
use crate::{context, correction};
use wire::ErrorCode;

impl Run {
    /// Begins with the calls of a reply.
    pub(super) fn begin_calls(&mut self, calls: Vec<RequestedCall>) {
        self.turn.corrected = false;
        let is_client = |call: &RequestedCall| {
            self.find_offered(&call.name).is_some_and(|tool| tool.executor == Executor::Client)
        };
        let (client, own): (Vec<_>, Vec<_>) = calls.into_iter().partition(is_client);
        self.next_call(LaterCalls { own: own.into(), client, ..LaterCalls::default() });
    }

    /// The next of the calls that can be made; those that cannot are answered at once.
    pub(super) fn next_call(&mut self, mut later: LaterCalls) {
        while let Some(call) = later.own.pop_front() {
            let Some((outcome, text)) = self.refusal(&call, &later) else {
                let (has_started, is_retry) = (false, false);
                self.phase = Phase::Calls(CallQueue { current: call, later, has_started, is_retry });
                return;
            };
            self.keep_result(&call, &ToolEnd::new(outcome, text, 0));
        }
        if let Some(rejection) = &later.rejection {
            return self.abort(self.rejection_failure(rejection));
        }
        if later.client.is_empty() {
            return self.pause_and_ask();
        }
        self.phase = Phase::Client(later.client);
    }

    /// Why a call is not made.
    fn refusal(&self, call: &RequestedCall, later: &LaterCalls) -> Option<(CallOutcome, String)> {
        if self.time_left() == 0 {
            return Some((CallOutcome::NotRun, "not run: the time of this run is over".into()));
        }
        if let Some(Verdict::Rejected(rejection)) = later.verdicts.get(&call.id) {
            return Some((CallOutcome::Denied, rejection.clone()));
        }
        if let Some(settled) = self.find_settled(call) {
            return Some((settled.outcome, settled.text.clone()));
        }
        let tool = self.find_offered(&call.name);
        match tool {
            None => Some((CallOutcome::Failed, correction::describe_unknown_tool(&call.name, &self.setup))),
            Some(tool) if !call.problems.is_empty() && !tool.judges_arguments => {
                Some((CallOutcome::Failed, correction::describe_mistake(tool, &call.problems)))
            }
            Some(_) => None,
        }
    }

    pub(crate) fn find_offered(&self, name: &str) -> Option<&OfferedTool> {
        self.setup.tools.iter().find(|tool| tool.name == name)
    }

    /// Whether a call still has to be approved.
    pub(super) fn needs_approval(&self, call: &RequestedCall, later: &LaterCalls) -> bool {
        let tier = self.find_offered(&call.name).map_or(Tier::Auto, |tool| tool.tier);
        tier == Tier::Confirm
            && call.problems.is_empty()
            && !later.verdicts.contains_key(&call.id)
            && self.find_settled(call).is_none()
    }

    /// The next step for the current call.
    pub(super) fn call_action(&self, queue: &CallQueue) -> Action {
        let call = queue.current.clone();
        if self.needs_approval(&call, &queue.later) {
            return Action::RequestApproval(self.approval_request(queue));
        }
        let tool = self.find_offered(&call.name);
        if tool.is_some_and(|tool| tool.tier == Tier::Manual) {
            return Action::HandOver(call);
        }
        match tool.map(|tool| tool.executor) {
            Some(Executor::Child) => {
                Action::RunChild(ChildStep { call, child: None, within: self.time_left().max(1) })
            }
            _ => Action::CallTool(self.tool_step(queue)),
        }
    }

    /// Whether this can happen to the current call: what needs consent does not start without it.
    pub(super) fn expects_of_call(&self, queue: &CallQueue, kind: &EventKind) -> bool {
        match self.call_action(queue) {
            Action::RequestApproval(_) => matches!(kind, EventKind::ApprovalRequested(_)),
            Action::HandOver(_) => matches!(kind, EventKind::HandedOver(_)),
            // One that cannot begin has a result at once.
            Action::RunChild(_) => {
                matches!(kind, EventKind::ChildStarted { .. } | EventKind::ToolFinished(_))
            }
            _ if queue.has_started => matches!(kind, EventKind::ToolStarted | EventKind::ToolFinished(_)),
            _ => matches!(kind, EventKind::ToolStarted),
        }
    }

    fn tool_step(&self, queue: &CallQueue) -> ToolStep {
        let call = queue.current.clone();
        let (timeout, repeatable) = match self.find_offered(&call.name).map(|tool| tool.executor) {
            Some(Executor::Respool { timeout, repeatable }) => (timeout, repeatable),
            _ => (1, false),
        };
        let (approved_by, effect) = match queue.later.verdicts.get(&call.id) {
            Some(Verdict::Approved(decision, effect)) => (Some(decision.by.clone()), effect.clone()),
            _ => (None, None),
        };
        let within = timeout.min(self.time_left()).max(1);
        ToolStep { call, within, repeatable, is_retry: queue.is_retry, approved_by, effect }
    }

    /// Something that happened to the current call.
    pub(super) fn call_event(&mut self, queue: CallQueue, kind: EventKind) {
        match kind {
            EventKind::ToolStarted => self.phase = Phase::Calls(CallQueue { has_started: true, ..queue }),
            EventKind::ToolFinished(ended) => self.tool_finished(queue, &ended),
            EventKind::ApprovalRequested(request) => self.approval_requested(queue, request),
            EventKind::HandedOver(call) => {
                let text = correction::HANDED_OVER.to_owned();
                self.finish_call(&call, queue.later, &ToolEnd::new(CallOutcome::HandedOver, text, 0));
            }
            EventKind::ChildStarted { child } => self.child_started(queue, child),
            _ => self.phase = Phase::Calls(queue),
        }
    }

    fn tool_finished(&mut self, queue: CallQueue, ended: &ToolEnd) {
        if self.is_repeated(&self.tool_step(&queue), ended.outcome) {
            self.phase = Phase::Calls(CallQueue { has_started: false, is_retry: true, ..queue });
            return;
        }
        self.finish_call(&queue.current, queue.later, ended);
    }

    /// Whether a call that ended like this is made again. One that may not be repeated may have had its
    /// effect.
    pub(crate) fn is_repeated(&self, step: &ToolStep, outcome: CallOutcome) -> bool {
        let ends_run = self.find_offered(&step.call.name).map(|tool| tool.ends_run);
        let would_end_run = self.setup.repeats_after_faults && ends_run == Some(EndsRun::OnFault);
        let is_worth_it = outcome.may_pass() || (would_end_run && outcome.is_fault());
        is_worth_it && step.repeatable && !step.is_retry
    }

    /// A call has its result, and the next one is made, unless this one ends the run.
    pub(super) fn finish_call(&mut self, call: &RequestedCall, later: LaterCalls, ended: &ToolEnd) {
        match later.verdicts.get(&call.id) {
            // A rejection ends the run, so that the model reads nothing more.
            Some(Verdict::Approved(decision, _)) if later.rejection.is_none() => {
                let text = decision.add_comment(call, &ended.text);
                self.keep_result(call, &ToolEnd { text, ..ended.clone() });
            }
            _ => self.keep_result(call, ended),
        }
        self.note_made(call, ended);
        match self.find_offered(&call.name).map(|tool| tool.ends_run) {
            Some(EndsRun::OnSuccess) if ended.outcome == CallOutcome::Ok => {
                let (content, ended_by) = (ended.text.clone(), Some(call.clone()));
                self.end(Outcome { content, ended_by, ..Outcome::default() });
            }
            // After a rejection the run ends anyway, but only once the other approved calls have been made.
            Some(EndsRun::OnFault) if ended.outcome.is_fault() && later.rejection.is_none() => {
                self.abort(tool_failure(call, ended, self.is_once(&call.name)));
            }
            _ => self.next_call(later),
        }
    }

    /// Puts a result into the transcript.
    pub(super) fn keep_result(&mut self, call: &RequestedCall, ended: &ToolEnd) {
        let limit = self.find_offered(&call.name).map_or(usize::MAX, |tool| tool.result_limit);
        let text = context::head_and_tail(&ended.text, limit).0;
        let text = if text.trim().is_empty() { "(no output)".to_owned() } else { text };
        let injected_bytes = self.mark_escaper().break_marks(&text).0.len();
        if let Some(iteration) = self.iterations.last_mut() {
            iteration.tools.push(ToolRecord {
                tool: call.name.clone(),
                outcome: ended.outcome.as_str().into(),
                took_ms: ended.took,
                result_bytes: ended.text.len(),
                injected_bytes,
            });
        }
        let ok = matches!(ended.outcome, CallOutcome::Ok | CallOutcome::HandedOver);
        self.put_result(ToolResult { id: call.id.clone(), ok, text });
    }

    fn put_result(&mut self, result: ToolResult) {
        let exchange = self.entries.iter_mut().rev().find_map(|entry| match entry {
            Entry::Exchange(exchange) => Some(exchange),
            _ => None,
        });
        if let Some(exchange) = exchange {
            exchange.results.push(result);
        }
    }

    /// The reply whose calls are being made.
    pub(super) fn last_exchange(&self) -> Option<&Exchange> {
        self.entries.iter().rev().find_map(|entry| match entry {
            Entry::Exchange(exchange) => Some(exchange),
            _ => None,
        })
    }

    pub(super) fn suspension(&self, calls: &[RequestedCall]) -> Suspension {
        let (content, reasoning) =
            self.last_exchange().map(|it| (it.content.clone(), it.reasoning.clone())).unwrap_or_default();
        Suspension { calls: calls.to_vec(), content, reasoning }
    }

    pub(super) fn client_returned(
        &mut self,
        calls: &[RequestedCall],
        results: &[(String, String)],
        tail: Vec<Value>,
    ) {
        for call in calls {
            let result = results.iter().find(|(id, _)| *id == call.id);
            let (outcome, text) = match result {
                Some((_, text)) => (CallOutcome::Ok, text.clone()),
                None => (CallOutcome::NotRun, "the client gave no result for this call".to_owned()),
            };
            self.keep_result(call, &ToolEnd::new(outcome, text, 0));
        }
        self.entries.extend(tail.into_iter().map(Entry::ClientMessage));
        self.spent.at_answer = self.spent.total;
        self.pause_and_ask();
    }

    /// A call that ran when the process ended is made again only if that is safe.
    pub(super) fn resume_phase(&mut self, phase: Phase) {
        self.answers_late = true;
        match phase {
            Phase::Calls(queue) if queue.has_started && self.tool_step(&queue).repeatable => {
                self.phase = Phase::Calls(CallQueue { has_started: false, ..queue });
            }
            Phase::Calls(queue) if queue.has_started => {
                let text = correction::OUTCOME_UNKNOWN.to_owned();
                let ended = ToolEnd::new(CallOutcome::Unknown, text, 0);
                self.finish_call(&queue.current, queue.later, &ended);
            }
            phase => self.phase = phase,
        }
    }

    /// Calls that were left without a result get one.
    pub(super) fn settle_calls(&mut self, phase: &Phase) {
        let has_result =
            |exchange: &Exchange, call: &RequestedCall| exchange.results.iter().any(|it| it.id == call.id);
        let last = self.last_exchange();
        let open = last.map(|it| it.calls.iter().filter(|call| !has_result(it, call)).collect::<Vec<_>>());
        let ids: Vec<String> = open.into_iter().flatten().map(|call| call.id.clone()).collect();
        for (place, id) in ids.into_iter().enumerate() {
            let has_begun = place == 0 && (phase.is_in_call() || self.turn.stopped_in_call);
            let text = if has_begun { correction::STOPPED_CALL } else { correction::NOT_BEGUN };
            self.put_result(ToolResult { id, ok: false, text: text.to_owned() });
        }
    }
}

/// The failure of a run whose tool's server failed. `is_once`: the call may have changed something, and is
/// not made again.
fn tool_failure(call: &RequestedCall, ended: &ToolEnd, is_once: bool) -> ModelFailure {
    let (name, why) = (&call.name, &ended.text);
    let text = if ended.outcome == CallOutcome::Unreachable {
        format!("`{name}` could not be called: {why}")
    } else if is_once {
        format!(
            "`{name}` was called, and it is not known whether it took effect, so it is not called again: {why}"
        )
    } else {
        format!("`{name}` failed: {why}")
    };
    ModelFailure {
        kind: FailureKind::Final,
        status: 502,
        code: ErrorCode::ToolUnavailable.to_string(),
        text,
        wait: None,
    }
}
