//! Messages to people about a conversation with an expert: drafts, approval requests, and the answer if it
//! came too late for the caller. Each is posted to the outbox in the same commit as the event it reports.
//! `execution` posts the messages of processes.

use serde_json::{Value, json};

use super::message::{Message, MessageKind, operation_json};
use agent::{ApprovalRequest, Notice, Notices, Outcome, report};
use store::NewMessage;

/// The messages of one conversation, or of an isolated function that it called.
pub(super) struct ConversationNotices {
    /// The expert's name.
    pub(super) expert: String,
    /// It is an isolated function, whose result goes to the calling run.
    pub(super) is_function: bool,
}

impl ConversationNotices {
    fn new_message(&self, run: &str, what: &str, kind: MessageKind, body: Value) -> NewMessage {
        let (id, expert, run) = (format!("{run}:{what}"), self.expert.clone(), Some(run.to_owned()));
        Message { id, expert, entry: None, process: None, run, kind, body }.into_row()
    }

    fn approval_message(&self, run: &str, request: &ApprovalRequest, is_again: bool) -> NewMessage {
        let mut body = report::approval(request);
        body["is_escalated"] = is_again.into();
        let what = format!("approval-{}{}", request.id, if is_again { "-again" } else { "" });
        self.new_message(run, &what, MessageKind::Approval, body)
    }

    /// Returns a conversation that cannot continue: calls that a person may have approved are not made.
    pub(super) fn lost_notice(&self, run: &str, why: &str) -> NewMessage {
        let body = json!({"reason": format!("The conversation cannot go on: {why}."), "recommendation": "Ask again."});
        self.new_message(run, "lost", MessageKind::Escalation, body)
    }

    /// Returns a conversation that was interrupted too long ago to go on unasked.
    pub(super) fn interrupted_notice(&self, run: &str) -> NewMessage {
        let body = json!({
            "reason": "The conversation was interrupted more than an hour ago, and does not go on by itself.",
            "recommendation": format!("Continue it with `respool runs resume {run}`, or end it with `respool runs cancel {run}`."),
        });
        self.new_message(run, "interrupted", MessageKind::Escalation, body)
    }

    fn answer(&self, run: &str, outcome: &Outcome) -> Option<NewMessage> {
        if self.is_function || outcome.cancelled {
            return None;
        }
        Some(if outcome.failure.is_some() {
            let body =
                json!({"reason": outcome.text(), "recommendation": "Look at what failed, and ask again."});
            self.new_message(run, "failed", MessageKind::Escalation, body)
        } else {
            self.new_message(run, "answer", MessageKind::Result, json!({"summary": outcome.text()}))
        })
    }
}

impl Notices for ConversationNotices {
    fn notice_message(&self, run: &str, notice: Notice<'_>) -> Option<NewMessage> {
        match notice {
            Notice::HandedOver(call) => {
                let what = format!("draft-{}", call.id);
                Some(self.new_message(run, &what, MessageKind::Draft, operation_json(call)))
            }
            Notice::Asked(request) => Some(self.approval_message(run, request, false)),
            Notice::AskedAgain(request) => Some(self.approval_message(run, request, true)),
            Notice::LateAnswer(outcome) => self.answer(run, outcome),
        }
    }
}
