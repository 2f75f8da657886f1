//! A run's approvals, as the driver sees them: whether a request is decided, and what the store keeps. Used
//! by `driver`.

use std::time::Duration;

use serde_json::Map;

use super::Driver;
use crate::approval::{ApprovalRequest, Decision, OnTimeout};
use crate::event::EventKind;
use crate::run::Run;
use crate::stored::ok_or_log;
use store::{ApprovalChange, ApprovalState, LateDecision};
use tools::{Approver, Consent, Question, QuestionKind, Target};

/// How long a look at what a call would do may take.
const LONGEST_LOOK: Duration = Duration::from_secs(5);

impl Driver {
    /// Adds to a request what its calls would do now.
    pub(super) async fn with_effects(&self, run: &Run, mut request: ApprovalRequest) -> ApprovalRequest {
        for call in &request.calls {
            let invocation = self.invocation(run, call, LONGEST_LOOK);
            if let Some(effect) = self.tools.effect(&invocation).await {
                request.effects.insert(call.id.clone(), effect);
            }
        }
        request
    }

    /// Writes the calls that a decision rejects into the audit log; they never come to the tools.
    pub(super) async fn note_rejections(&self, run: &Run, request: &ApprovalRequest, kind: &EventKind) {
        let EventKind::ApprovalDecided(decision) = kind else { return };
        for call in request.calls.iter().filter(|call| !decision.approves(call)) {
            let invocation = self.invocation(run, call, Duration::ZERO);
            self.tools.note_refusal(&invocation, &decision.by).await;
        }
    }

    /// Returns the decision about the request that a run waits for; `None` while there is no decision.
    pub(super) async fn find_decision(&self, run: &Run, request: &ApprovalRequest) -> Option<EventKind> {
        if let Some(decision) = self.recorded_decision(request).await {
            return Some(EventKind::ApprovalDecided(decision));
        }
        let is_due = request.expires.is_some_and(|expires| expires <= clock::now()) && !run.is_escalated();
        if is_due && run.setup().approvals.on_timeout == OnTimeout::Escalate {
            return Some(EventKind::ApprovalEscalated);
        }
        if is_due {
            return self.keep_decision(Decision::from_timeout(request)).await;
        }
        match &self.approver {
            Some(approver) => {
                let decision = asked_in_person(approver.as_ref(), request);
                let decision = self.stops.cancel.run_until_cancelled(decision).await;
                Some(decision.map_or(EventKind::Cancelled, EventKind::ApprovalDecided))
            }
            // A request that is not recorded could never be decided.
            None if !self.journal.is_complete() => {
                let why = "no one can be asked: the store of runs cannot be used";
                Some(EventKind::ApprovalDecided(own_rejection(request, why)))
            }
            None => None,
        }
    }

    async fn recorded_decision(&self, request: &ApprovalRequest) -> Option<Decision> {
        let row = ok_or_log(self.journal.store()?.approval(&request.id).await)??;
        if row.state != ApprovalState::Decided {
            return None;
        }
        let decision = row.decision.as_deref().and_then(|text| serde_json::from_str(text).ok());
        // What cannot be read is no consent.
        Some(decision.unwrap_or_else(|| own_rejection(request, "the recorded decision cannot be read")))
    }

    /// Records a decision of respool's own. A person may have decided at the same moment: then that decision
    /// holds.
    async fn keep_decision(&self, decision: Decision) -> Option<EventKind> {
        let text = serde_json::to_string(&decision).unwrap_or_default();
        let Some(store) = self.journal.store() else { return Some(EventKind::ApprovalDecided(decision)) };
        match store.decide(&decision.request, text, clock::now(), LateDecision::Counts).await {
            Ok(true) => Some(EventKind::ApprovalDecided(decision)),
            Ok(false) => {
                let request = ApprovalRequest { id: decision.request, ..ApprovalRequest::default() };
                self.recorded_decision(&request).await.map(EventKind::ApprovalDecided)
            }
            Err(error) => {
                ok_or_log::<()>(Err(error));
                None
            }
        }
    }
}

async fn asked_in_person(approver: &dyn Approver, request: &ApprovalRequest) -> Decision {
    let mut decision = Decision { request: request.id.clone(), by: "terminal".into(), ..Decision::default() };
    for call in &request.calls {
        let arguments: Map<String, serde_json::Value> =
            serde_json::from_str(&call.arguments).unwrap_or_default();
        let question = Question {
            kind: QuestionKind::Call,
            tool: &call.name,
            arguments: &arguments,
            target: &Target::Other,
            preview: None,
            is_by_default: false,
        };
        match approver.approve(question).await {
            Consent::Given => decision.approved.push(call.id.clone()),
            Consent::Refused(reason) => decision.comment = Some(reason.into_owned()),
        }
    }
    decision
}

/// Rejects all calls where no person can.
fn own_rejection(request: &ApprovalRequest, why: &str) -> Decision {
    let comment = Some(why.to_owned());
    Decision { request: request.id.clone(), by: "respool".into(), comment, ..Decision::default() }
}

/// Returns the change of an approval that comes with an event. `awaited`: the request that the run waited for
/// before it.
pub(super) fn approval_change(
    kind: &EventKind,
    awaited: Option<String>,
    run: &Run,
) -> Option<ApprovalChange> {
    match kind {
        EventKind::ApprovalRequested(request) => Some(ApprovalChange::Requested {
            id: request.id.clone(),
            expires: request.expires,
            body: serde_json::to_string(request).unwrap_or_default(),
        }),
        EventKind::ApprovalEscalated => awaited.map(|id| ApprovalChange::Escalated { id }),
        EventKind::ApprovalDecided(_) => awaited.map(|id| ApprovalChange::Applied { id }),
        _ if run.awaited_approval().is_none() => awaited.map(|id| ApprovalChange::Withdrawn { id }),
        _ => None,
    }
}
