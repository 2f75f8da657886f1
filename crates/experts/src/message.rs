//! Messages to people: their kinds, and their form in the store and as JSON. `execution` and `notices` post
//! them, `delivery` brings them to the main session.

use serde_json::{Value, json};

use agent::RequestedCall;
use store::{MessageRow, NewMessage};

wire::string_enum! {
    /// The kind of a message.
    MessageKind {
        /// The result of a process.
        #[default]
        Result = "result",
        /// Inputs for a person to act on.
        Draft = "draft",
        /// A call that waits for consent.
        Approval = "approval",
        /// A decision, or a failure, for a person.
        Escalation = "escalation",
        /// A trigger for the main agent.
        Task = "task",
        /// A fact that a person should know, and need not act on.
        Warning = "warning",
    }
}

/// A message of an invocation or of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Message {
    pub(super) id: String,
    pub(super) expert: String,
    /// The entry of the queue; `None` in a conversation.
    pub(super) entry: Option<String>,
    /// The process; `None` in a conversation.
    pub(super) process: Option<String>,
    /// The run that it is about.
    pub(super) run: Option<String>,
    pub(super) kind: MessageKind,
    pub(super) body: Value,
}

impl Message {
    /// Returns the message as a row of the store.
    pub(super) fn into_row(self) -> NewMessage {
        let mut body = json!({"expert": self.expert, "process": self.process, "run": self.run});
        body[self.kind.as_str()] = self.body;
        NewMessage {
            id: self.id,
            expert: self.expert,
            entry: self.entry,
            kind: self.kind.as_str().to_owned(),
            body,
        }
    }
}

/// Returns a call of an operation in the form in which people read it.
pub(super) fn operation_json(call: &RequestedCall) -> Value {
    json!({"operation": operation_title(&call.name), "inputs": call.parsed_arguments()})
}

/// Turns the function name that the model calls into `tool.operation`, the form in policies and lists.
pub(super) fn operation_title(function: &str) -> String {
    function.replacen("__", ".", 1)
}

/// Returns a message as JSON, for people and programs. Times are UTC, as RFC 3339 writes them.
pub fn message_json(row: &MessageRow) -> Value {
    let body = &row.message.body;
    // Of a message that is done, the note says why.
    let (problem, note) =
        if row.delivered.is_some() { (None, row.note.as_deref()) } else { (row.note.as_deref(), None) };
    json!({
        "id": row.message.id, "object": "expert.message", "kind": row.message.kind, "expert": row.message.expert,
        "invocation": row.message.entry, "run": body["run"], "process": body["process"], "body": body[row.message.kind.as_str()],
        "created": clock::format_time(row.created), "delivered": row.delivered.map(clock::format_time),
        "attempts": row.attempts, "problem": problem, "note": note,
        "next_attempt": (row.delivered.is_none() && row.attempts > 0).then(|| clock::format_time(row.due)),
    })
}
