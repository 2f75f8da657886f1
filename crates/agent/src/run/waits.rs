//! The waits of a run between two calls of a reply: for a person's consent, and for a child run. Pure.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::state::{ApprovalWait, CallQueue, ChildWait, LaterCalls, Phase, Rejection, Run, Verdict};
use crate::approval::{ApprovalRequest, Decision, OnRejection, request_id};
use crate::call::{CallOutcome, RequestedCall, ToolEnd};
use crate::event::ChildEnd;
use crate::failure::{FailureKind, ModelFailure};
use crate::outcome::Outcome;
use crate::setup::EndsRun;
use crate::step::{Action, ChildStep};
use crate::transcript::Exchange;
use wire::ErrorCode;

/// The most characters that are quoted of a call's inputs, of its result, or of the model's reasoning.
const LONGEST_NAMED: usize = 500;

impl Run {
    /// One request for all calls of the reply that need consent.
    pub(super) fn approval_request(&self, queue: &CallQueue) -> ApprovalRequest {
        let all = std::iter::once(&queue.current).chain(&queue.later.own);
        let calls = self.asked_about(all, &queue.later);
        let rules = &self.setup.approvals;
        let on_rejection =
            if rules.is_all_proposals(&calls) { OnRejection::TellModel } else { rules.on_rejection };
        ApprovalRequest {
            id: request_id(self.setup.seed, self.approvals),
            calls,
            reason: self.last_exchange().map(reason_of).unwrap_or_default(),
            content: self.last_exchange().map(|last| last.content.trim().to_owned()).unwrap_or_default(),
            expires: rules.timeout.map(|timeout| self.now.saturating_add(timeout)),
            on_timeout: rules.on_timeout,
            on_rejection,
            requester: rules.requester.clone(),
            effects: BTreeMap::new(),
        }
    }

    /// The calls that need consent. One that is not made twice is asked about once.
    fn asked_about<'a>(
        &self,
        calls: impl Iterator<Item = &'a RequestedCall>,
        later: &LaterCalls,
    ) -> Vec<RequestedCall> {
        let mut asked: Vec<RequestedCall> = Vec::new();
        for call in calls.filter(|call| self.needs_approval(call, later)) {
            if !asked.iter().any(|other| self.is_made_once(call, other)) {
                asked.push(call.clone());
            }
        }
        asked
    }

    pub(super) fn approval_requested(&mut self, queue: CallQueue, request: ApprovalRequest) {
        self.approvals += 1;
        self.answers_late = true;
        let CallQueue { current, mut later, .. } = queue;
        later.own.push_front(current);
        self.phase = Phase::Approval(ApprovalWait { request, is_escalated: false, calls: later });
    }

    /// Whether the person was reminded of the request, because its time was over.
    pub fn is_escalated(&self) -> bool {
        matches!(&self.phase, Phase::Approval(wait) if wait.is_escalated)
    }

    /// Exactly the recorded inputs run, or those of the person, whatever the reply would be read as today.
    pub(super) fn apply_decision(&mut self, wait: ApprovalWait, decision: &Decision) {
        let ApprovalWait { request, mut calls, .. } = wait;
        for call in &request.calls {
            let verdict = if decision.approves(call) {
                Verdict::Approved(decision.clone(), request.effects.get(&call.id).cloned())
            } else {
                Verdict::Rejected(decision.rejection_text())
            };
            calls.verdicts.insert(call.id.clone(), verdict);
            if let Some(own) = calls.own.iter_mut().find(|own| own.id == call.id) {
                own.clone_from(call);
                if let Some(inputs) = decision.changed.get(&call.id) {
                    own.arguments.clone_from(inputs);
                }
            }
        }
        let rules = &self.setup.approvals;
        let rejected = request.calls.iter().filter(|call| !decision.approves(call));
        if !rules.is_all_proposals(rejected) && rules.on_rejection == OnRejection::EndRun {
            // Nothing but what the person approved is made before the run ends.
            calls.own.retain(|call| decision.approves(call));
            calls.rejection = Some(Box::new(Rejection { request, decision: decision.clone() }));
        }
        self.next_call(calls);
    }

    /// How a run fails that ends with a rejection: names the rejected calls, and how the approved ones ended.
    pub(super) fn rejection_failure(&self, rejection: &Rejection) -> ModelFailure {
        let Rejection { request, decision } = rejection;
        let (approved, rejected): (Vec<_>, Vec<_>) =
            request.calls.iter().partition(|call| decision.approves(call));
        let named: Vec<String> = rejected.into_iter().map(describe_call).collect();
        let mut text = format!("{}: {}", named.join(", "), decision.rejection_text());
        let results = self.last_exchange().map(|exchange| exchange.results.as_slice()).unwrap_or_default();
        for call in approved {
            let result = results.iter().find(|result| result.id == call.id);
            let end = match result {
                Some(result) if result.ok => "made, because it was approved".to_owned(),
                Some(result) => format!("approved, but it did not succeed: {}", shorten_text(&result.text)),
                None => "approved, but not made".to_owned(),
            };
            let _ = write!(text, "; {}: {end}", describe_call(call));
        }
        let is_timeout = decision.by == Decision::TIMEOUT;
        let code = if is_timeout { ErrorCode::ApprovalTimeout } else { ErrorCode::ApprovalRejected };
        ModelFailure { kind: FailureKind::Final, status: 403, code: code.to_string(), text, wait: None }
    }

    pub(super) fn child_started(&mut self, queue: CallQueue, child: String) {
        self.phase = Phase::Child(ChildWait { child, call: queue.current, later: queue.later });
    }

    pub(super) fn child_action(&self, wait: &ChildWait) -> Action {
        let (call, child) = (wait.call.clone(), Some(wait.child.clone()));
        Action::RunChild(ChildStep { call, child, within: self.time_left().max(1) })
    }

    /// A child that ended by a tool which would end this run too has ended both; and so has one that failed,
    /// where a failing server would.
    pub(super) fn child_finished(&mut self, wait: ChildWait, end: &ChildEnd) {
        self.spent.total += end.tokens;
        self.made.extend(end.made.iter().cloned());
        let outcome = if end.outcome.has_answer() { CallOutcome::Ok } else { CallOutcome::Failed };
        let ended = ToolEnd::new(outcome, end.outcome.text(), end.worked);
        let ends_run = |name: &str| self.find_offered(name).map(|tool| tool.ends_run);
        let is_end = |by: &&RequestedCall| ends_run(&by.name) == Some(EndsRun::OnSuccess);
        if let Some(by) = end.outcome.ended_by.as_ref().filter(is_end) {
            self.keep_result(&wait.call, &ended);
            let (content, ended_by) = (end.outcome.content.clone(), Some(by.clone()));
            return self.end(Outcome { content, ended_by, ..Outcome::default() });
        }
        match &end.outcome.failure {
            Some(failure) if ends_run(&wait.call.name) == Some(EndsRun::OnFault) => {
                self.keep_result(&wait.call, &ended);
                self.abort(failure.clone());
            }
            _ => self.finish_call(&wait.call, wait.later, &ended),
        }
    }
}

/// Why the model makes the calls of a reply: its text with them, else the end of its reasoning.
fn reason_of(exchange: &Exchange) -> String {
    let (content, reasoning) = (exchange.content.trim(), exchange.reasoning.trim());
    if !content.is_empty() {
        return exchange.content.clone();
    }
    if reasoning.is_empty() {
        return "none written".to_owned();
    }
    let from = reasoning.char_indices().rev().nth(LONGEST_NAMED - 1).map_or(0, |(index, _)| index);
    let cut = if from > 0 { "…" } else { "" };
    format!("none written; its reasoning: {cut}{}", &reasoning[from..])
}

/// A call with its inputs.
fn describe_call(call: &RequestedCall) -> String {
    format!("{} {}", call.name, shorten_text(&call.arguments))
}

fn shorten_text(text: &str) -> String {
    let short: String = text.chars().take(LONGEST_NAMED).collect();
    if short.len() < text.len() { short + "…" } else { short }
}

#[cfg(test)]
mod tests;
