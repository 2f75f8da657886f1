//! Requests for approval among the messages to people: one that waits for no decision any more is done.
//! Called by `delivery`, `server` and `cli`.

use super::message::MessageKind;
use agent::report::describe_end;
use store::{ApprovalState, MessageFilter, MessageRow, NewMessage, Store, StoreError};

/// The note of a message that a person or a program has marked as done.
pub const MARKED_DONE: &str = "done: marked as done";

/// Returns messages, the newest first. Requests that do not wait any more are marked as done.
///
/// # Errors
/// When the store cannot be read or written.
pub async fn read_outbox(
    store: &Store,
    filter: MessageFilter,
    most: usize,
) -> Result<Vec<MessageRow>, StoreError> {
    let mut rows = store.messages(filter, most).await?;
    for row in &mut rows {
        end_decided(store, row).await?;
    }
    Ok(rows)
}

/// Returns one message, as [`read_outbox`] does.
///
/// # Errors
/// When the store cannot be read or written.
pub async fn read_message(store: &Store, id: &str) -> Result<Option<MessageRow>, StoreError> {
    let mut found = store.message(id).await?;
    if let Some(row) = &mut found {
        end_decided(store, row).await?;
    }
    Ok(found)
}

async fn end_decided(store: &Store, row: &mut MessageRow) -> Result<(), StoreError> {
    if row.delivered.is_some() {
        return Ok(());
    }
    if let Some(how) = end_of_request(store, &row.message).await {
        let (now, note) = (clock::now(), format!("done: {how}"));
        store.end_message(&row.message.id, now, Some(&note)).await?;
        (row.delivered, row.note) = (Some(now), Some(note));
    }
    Ok(())
}

/// Says how the request of a message ended; `None` while it waits, and for other messages.
pub(super) async fn end_of_request(store: &Store, message: &NewMessage) -> Option<String> {
    if message.kind != MessageKind::Approval.as_str() {
        return None;
    }
    let id = message.body[MessageKind::Approval.as_str()]["id"].as_str()?;
    let row = store.approval(id).await.ok()??;
    (row.state != ApprovalState::Waiting).then(|| describe_end(&row))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::message::Message;
    use store::{Append, ApprovalChange, LateDecision, NewRun, Status, StoreConfig};

    /// A program that reads the outbox asked people about requests that were decided.
    #[tokio::test]
    async fn decided_requests_are_done() {
        let dir = tempfile::tempdir().unwrap();
        let store =
            Store::open(&StoreConfig { state_dir: dir.path().to_owned(), ..StoreConfig::default() }).unwrap();
        store.begin(NewRun { id: "run".into(), ..NewRun::default() }).await.unwrap();
        let body = json!({"id": "approval-1"});
        let requested =
            ApprovalChange::Requested { id: "approval-1".into(), expires: None, body: body.to_string() };
        let waits = Append::status("run", Store::FIRST_EPOCH, 5, Status::AwaitingApproval);
        store.append(Append { approval: Some(requested), ..waits }).await.unwrap();
        for (id, kind) in [("asks", MessageKind::Approval), ("drafts", MessageKind::Draft)] {
            let (id, expert) = (id.into(), "sales".into());
            let (entry, process) = (Some("e1".into()), Some("triage".into()));
            let message = Message { id, expert, entry, process, run: None, kind, body: body.clone() };
            store.post(message.into_row(), 5).await.unwrap();
        }
        let done = async || {
            let rows = read_outbox(&store, MessageFilter::default(), 10).await.unwrap();
            rows.iter().map(|row| (row.message.id.clone(), row.note.clone())).collect::<Vec<_>>()
        };
        assert_eq!(done().await, [("drafts".into(), None), ("asks".into(), None)]);
        assert!(read_message(&store, "asks").await.unwrap().unwrap().delivered.is_none());
        let decision = json!({"request": "approval-1", "approved": [], "by": "anna"}).to_string();
        assert!(store.decide("approval-1", decision, 6, LateDecision::Counts).await.unwrap());
        let why = "done: it was rejected by anna at 1970-01-01T00:00:00Z";
        assert_eq!(done().await, [("drafts".into(), None), ("asks".into(), Some(why.to_owned()))]);
        let shown = crate::message_json(&store.message("asks").await.unwrap().unwrap());
        assert_eq!((&shown["problem"], &shown["note"]), (&Value::Null, &json!(why)), "it is no problem");
    }
}
