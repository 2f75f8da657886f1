//! Acts on the end of an attempt: posts results, drafts and questions, and retries or ends the entry. Doing
//! it again has the same effect: messages have fixed ids, and an entry ends once.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::advice::{FinalFailure, Recommendation};
use super::attempt::{Attempt, AttemptEnd};
use super::lateness::{LATE, late_body, late_kind};
use super::scratchpad::Scratchpads;
use super::verdict::{self, Next, Verdict};
use super::worker::Worker;
use crate::experts::Experts;
use crate::invocation::{Invocation, Origin};
use crate::message::{Message, MessageKind, operation_json};
use crate::trigger::event_facts;
use crate::workspace::Workspace;
use agent::{ApprovalRequest, CallOutcome, MadeCall, ModelFailure, Outcome};
use store::{Claimed, EntryEnd, EntryRow, StoreError};

/// Replaces the reason of a failure that may quote private knowledge, for lists. The escalation has the whole
/// reason; it is kept even if it reaches no person.
fn withhold_private(outcome: &Outcome) -> String {
    let what = match &outcome.failure {
        Some(failure) => format!("the attempt failed ({})", failure.code),
        None => "the attempt failed".to_owned(),
    };
    format!("{what}; the reason is withheld from lists, because it may quote private knowledge")
}

/// An attempt that failed.
struct Failed<'a> {
    /// Why, for the person it is escalated to.
    reason: String,
    /// The same, for lists.
    noted: String,
    may_retry: bool,
    /// The calls of all attempts.
    calls: &'a [MadeCall],
}

/// Adds what an escalation says about the event that the invocation is for. What the message says already
/// stays.
fn add_event(body: &mut Value, invocation: &Invocation) {
    let Some(body) = body.as_object_mut() else { return };
    for (name, value) in event_facts(invocation) {
        body.entry(name).or_insert(value);
    }
}

/// Names the calls whose outcome is unknown, and those that failed, in a message to people.
fn add_doubts(body: &mut Value, calls: &[MadeCall]) {
    let doubts = [
        ("unknown_outcomes", verdict::unknown_outcomes(calls)),
        ("failed_calls", verdict::failed_calls(calls)),
    ];
    for (name, found) in doubts.into_iter().filter(|(_, found)| !found.is_empty()) {
        if let Some(body) = body.as_object_mut() {
            body.insert(name.to_owned(), found.into());
        }
    }
}

impl Worker {
    /// Acts on the end of an attempt. Doing it again has the same effect.
    pub(super) async fn conclude_attempt(
        &self,
        attempt: &Attempt<'_>,
        AttemptEnd { outcome, calls }: &AttemptEnd,
    ) -> Result<(), StoreError> {
        let drafts = self.post_drafts(attempt, calls).await?;
        match verdict::judge_end(outcome, &attempt.process.outputs.items) {
            Verdict::Done(results) => {
                let mut body =
                    verdict::delivery_body(&results, &attempt.process.outputs.items, &attempt.delivery);
                if !drafts.is_empty() {
                    body["drafts"] = drafts.into();
                }
                add_doubts(&mut body, calls);
                self.post_result(attempt, body).await?;
                attempt.clear_scratch(&self.experts);
                self.end_entry(attempt.claimed, EntryEnd::Done, "done".to_owned()).await
            }
            Verdict::Escalated(mut what) => {
                let reason = what["reason"].as_str().filter(|_| !attempt.is_private());
                let noted = reason.unwrap_or("escalated to a person").to_owned();
                if let Some((late, what)) = self.report_if_late(attempt).await?.zip(what.as_object_mut()) {
                    what.insert("late".to_owned(), late);
                }
                add_event(&mut what, attempt.invocation);
                add_doubts(&mut what, calls);
                attempt.add_retry(&mut what);
                self.outbox.post(attempt.new_message(MessageKind::Escalation, "escalated", what)).await?;
                self.end_entry(attempt.claimed, EntryEnd::Escalated, noted).await
            }
            Verdict::Cancelled => {
                self.end_entry(attempt.claimed, EntryEnd::Failed, EntryRow::CANCELLED.to_owned()).await
            }
            Verdict::Failed { reason, may_retry } => {
                let noted = if attempt.is_private() { withhold_private(outcome) } else { reason.clone() };
                self.conclude_failure(attempt, outcome, Failed { reason, noted, may_retry, calls }).await
            }
        }
    }

    async fn post_result(&self, attempt: &Attempt<'_>, mut body: Value) -> Result<(), StoreError> {
        if let Some(late) = self.report_if_late(attempt).await? {
            body["late"] = late;
        }
        self.outbox.post(attempt.new_message(MessageKind::Result, "result", body)).await
    }

    /// Returns how late an invocation ends; a message about it is posted once.
    async fn report_if_late(&self, attempt: &Attempt<'_>) -> Result<Option<Value>, StoreError> {
        let took = clock::now().saturating_sub(attempt.invocation.asked);
        let Some((late, breach)) = verdict::measure_lateness(&attempt.delivery, took) else {
            return Ok(None);
        };
        let body = late_body(&late, "It has ended now.", attempt.invocation);
        self.outbox.post(attempt.new_message(late_kind(breach), LATE, body)).await?;
        Ok(Some(late))
    }

    async fn conclude_failure(
        &self,
        attempt: &Attempt<'_>,
        outcome: &Outcome,
        failed: Failed<'_>,
    ) -> Result<(), StoreError> {
        let Failed { reason, mut noted, may_retry, calls } = failed;
        if outcome.failure.as_ref().is_some_and(ModelFailure::is_refusal) {
            noted.insert_str(0, EntryRow::NOT_APPROVED);
        }
        let number = attempt.claimed.attempt;
        let run_id = attempt.run.as_deref();
        match verdict::judge_failure(&attempt.execution, number, may_retry) {
            Next::Retry(pause) => {
                let note = format!("attempt {number} failed: {noted}");
                tracing::warn!(target: "respool::expert", expert = attempt.expert.name(), entry = attempt.claimed.lease.entry,
                    process = attempt.process.name.value, attempt = number, run_id, reason = noted, pause_ms = pause, "an attempt failed");
                let pause = Duration::from_millis(pause);
                self.store.retry_after(&attempt.claimed.lease, pause, note).await.map(drop)
            }
            Next::End { end, escalates } => {
                tracing::error!(target: "respool::expert", expert = attempt.expert.name(), entry = attempt.claimed.lease.entry,
                    process = attempt.process.name.value, attempts = number, run_id, reason = noted, on_failure = attempt.execution.on_failure.as_str(), "a process failed");
                let late = self.report_if_late(attempt).await?;
                let is_private = attempt.is_private();
                if escalates || is_private {
                    // A message that is only kept is not worth a question.
                    let advised = if escalates {
                        self.recommend(attempt, FinalFailure { outcome, reason: &reason, calls }).await
                    } else {
                        Recommendation::from_respool()
                    };
                    let mut what = json!({"reason": reason, "context": attempt.inputs, "attempts": number,
                        "recommendation": advised.text, "recommended_by": advised.by});
                    add_event(&mut what, attempt.invocation);
                    if let Some(late) = late {
                        what["late"] = late;
                    }
                    add_doubts(&mut what, calls);
                    let done = verdict::done_operations(calls);
                    if !done.is_empty() {
                        what["done"] = done.into();
                    }
                    attempt.add_retry(&mut what);
                    let message = attempt.new_message(MessageKind::Escalation, "failed", what);
                    if is_private {
                        let _ = write!(noted, ": `respool expert outbox show {}` shows it", message.id);
                    }
                    if escalates {
                        self.outbox.post(message).await?;
                    } else {
                        // It is not delivered, only kept for whoever looks.
                        self.outbox.keep(message).await?;
                    }
                }
                self.end_entry(attempt.claimed, end, noted).await
            }
        }
    }

    /// Posts the drafts that were already handed over, and returns them.
    pub(super) async fn post_drafts(
        &self,
        attempt: &Attempt<'_>,
        calls: &[MadeCall],
    ) -> Result<Vec<Value>, StoreError> {
        let mut posted = Vec::new();
        for made in calls.iter().filter(|made| made.outcome == CallOutcome::HandedOver) {
            let body = operation_json(&made.call);
            if posted.contains(&body) {
                continue;
            }
            // A replay has another entry but is the same work, whose draft was handed over before.
            let id = format!("{}:draft-{}", attempt.invocation.id, posted.len() + 1);
            let message = Message { id, ..attempt.new_message(MessageKind::Draft, "draft", body.clone()) };
            if attempt.package.manifest.policy.on_manual_ready {
                self.outbox.post(message).await?;
            } else {
                self.outbox.keep(message).await?;
            }
            posted.push(body);
        }
        Ok(posted)
    }

    pub(super) async fn end_entry(
        &self,
        claimed: &Claimed,
        end: EntryEnd,
        note: String,
    ) -> Result<(), StoreError> {
        self.store.complete(&claimed.lease, end, note).await.map(drop)
    }

    /// Ends an attempt that cannot continue because the package it began with is gone; a replay begins with
    /// the new one. Approved calls are not made, and a person is notified.
    pub(super) async fn abandon_entry(
        &self,
        claimed: &Claimed,
        invocation: &Invocation,
        why: &str,
    ) -> Result<(), StoreError> {
        let (entry, process) = (&claimed.lease.entry, &invocation.process);
        tracing::error!(target: "respool::expert", expert = invocation.expert, entry, process, why, "an attempt cannot go on; it is a dead letter now");
        let message = Message {
            id: format!("{entry}:lost"),
            expert: invocation.expert.clone(),
            entry: Some(entry.clone()),
            process: Some(process.clone()),
            run: claimed.run.clone(),
            kind: MessageKind::Escalation,
            body: json!({"reason": format!("The attempt cannot go on: {why}."), "context": invocation.payload,
                "recommendation": format!("Start it again with the installed version: respool expert retry {entry}")}),
        };
        self.outbox.post(message).await?;
        self.end_entry(claimed, EntryEnd::DeadLetter, why.to_owned()).await?;
        // Last, because it would end the entry as cancelled.
        if let Some(run) = &claimed.run {
            self.experts.agents.cancel_run(run).await?;
        }
        Ok(())
    }

    /// Hands a trigger with `session: main` to the main agent's session, if it can be reached; that agent
    /// delegates back to the expert.
    pub(super) async fn hand_to_main_session(
        &self,
        claimed: &Claimed,
        invocation: &Invocation,
    ) -> Result<bool, StoreError> {
        let Origin::Trigger { name, .. } = &invocation.origin else { return Ok(false) };
        if !invocation.origin.is_main_session() || self.experts.gateway.is_none() {
            return Ok(false);
        }
        let message = Message {
            id: format!("{}:task", invocation.id),
            expert: invocation.expert.clone(),
            entry: Some(claimed.lease.entry.clone()),
            process: Some(invocation.process.clone()),
            run: None,
            kind: MessageKind::Task,
            body: json!({"trigger": name, "payload": invocation.payload, "inputs": invocation.mapped}),
        };
        self.outbox.post(message).await?;
        self.end_entry(claimed, EntryEnd::Done, "handed to the main session".to_owned()).await?;
        Ok(true)
    }
}

impl Attempt<'_> {
    fn new_message(&self, kind: MessageKind, what: &str, body: Value) -> Message {
        Message {
            id: format!("{}:{what}", self.claimed.lease.entry),
            expert: self.expert.name().to_owned(),
            entry: Some(self.claimed.lease.entry.clone()),
            process: Some(self.process.name.value.clone()),
            run: self.run.clone(),
            kind,
            body,
        }
    }

    /// Says in a message how a person has the task tried again, and whether it may quote private knowledge.
    fn add_retry(&self, body: &mut Value) {
        if let Some(body) = body.as_object_mut() {
            let command = format!("respool expert retry {}", self.claimed.lease.entry);
            body.insert("try_again".to_owned(), command.into());
            body.insert("is_private".to_owned(), self.is_private().into());
        }
    }

    /// Returns the message that asks for approval. After the timeout it is a different one, because the
    /// person is asked again.
    pub(super) fn approval_message(&self, request: &ApprovalRequest) -> Message {
        let is_late = request.expires.is_some_and(|expires| expires <= clock::now());
        let mut body = agent::report::approval(request);
        body["is_escalated"] = is_late.into();
        let what = format!("approval-{}{}", request.id, if is_late { "-again" } else { "" });
        self.new_message(MessageKind::Approval, &what, body)
    }

    /// Deletes the process's working data, which is no longer needed.
    fn clear_scratch(&self, experts: &Experts) {
        let root = experts.config.state_of(self.expert.name());
        let files = Workspace::new(&root, Arc::clone(&self.package), self.session(), &[]);
        if let Some(path) = &self.scratchpad {
            let _ = Scratchpads::new(&root).clear(&files, path, &self.invocation.id);
        }
        if !self.invocation.origin.is_main_session() {
            files.end_session();
        }
    }
}
