//! Lateness: reports what was not delivered within its process's `sla` while it is still open, whether the
//! queue, a server, a pause or a person delays it.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Value, json};

use super::verdict;
use super::worker::Worker;
use crate::experts::Expert;
use crate::invocation::Invocation;
use crate::message::{Message, MessageKind};
use crate::trigger::event_facts;
use openexperts::{Delivery, SlaBreach};
use store::{EntryRow, EntryState, StoreError};

/// The most entries of an expert that are read at a time.
const MOST: usize = 1_000;

/// The known deadlines of open entries.
#[derive(Default)]
pub(super) struct Deadlines {
    /// By the expert's name and digest.
    queues: BTreeMap<(String, String), Entries>,
    /// Entries with a future deadline, each with that deadline.
    open: Vec<(u64, String)>,
}

/// The known entries of a queue, by their positions.
#[derive(Default)]
struct Entries {
    /// Positions up to here are known.
    seen: u64,
    /// Positions of entries not read yet.
    unread: VecDeque<u64>,
}

impl Worker {
    /// Reports the open invocations that have become late since the last check.
    pub(super) async fn report_late(&self, deadlines: &mut Deadlines) -> Result<(), StoreError> {
        for expert in self.experts.iter().filter(|expert| self.works_for(expert.name())) {
            if !has_sla(&expert) {
                continue;
            }
            let queue =
                deadlines.queues.entry((expert.name().to_owned(), expert.digest.clone())).or_default();
            let new = self.store.open_places(expert.name(), queue.seen).await?;
            queue.seen = new.last().copied().unwrap_or(queue.seen);
            queue.unread.extend(new);
            let next: Vec<u64> = queue.unread.iter().take(MOST).copied().collect();
            let count = next.len();
            for row in self.store.entries_at(next).await? {
                deadlines.open.extend(deadline_of(&expert, &row).map(|deadline| (deadline, row.id)));
            }
            queue.unread.drain(..count);
        }
        // Each is forgotten only once it was reported, so a failing store is retried.
        while let Some(index) = deadlines.open.iter().position(|(at, _)| *at < clock::now()) {
            let row = self.store.entry(&deadlines.open[index].1).await?;
            if let Some(row) = row.filter(is_open) {
                self.report_late_entry(&row).await?;
            }
            deadlines.open.swap_remove(index);
        }
        Ok(())
    }

    fn works_for(&self, expert: &str) -> bool {
        self.goal.as_ref().is_none_or(|goal| goal.expert == expert)
    }

    async fn report_late_entry(&self, row: &EntryRow) -> Result<(), StoreError> {
        let Some((expert, invocation)) =
            self.experts.get(&row.queue).zip(Invocation::read(&row.payload).ok())
        else {
            return Ok(());
        };
        let Some(delivery) = delivery_settings(&expert, &invocation) else { return Ok(()) };
        let took = clock::now().saturating_sub(invocation.asked);
        let Some((late, breach)) = verdict::measure_lateness(&delivery, took) else { return Ok(()) };
        tracing::warn!(target: "respool::expert", expert = row.queue, entry = row.id, process = invocation.process,
            state = row.state.as_str(), sla = late["sla"].as_str().unwrap_or_default(), "an invocation is late");
        let message = Message {
            id: format!("{}:{LATE}", row.id),
            expert: row.queue.clone(),
            entry: Some(row.id.clone()),
            process: Some(invocation.process.clone()),
            run: row.run.clone(),
            kind: late_kind(breach),
            body: open_body(&late, row, &invocation),
        };
        self.outbox.post(message).await
    }
}

/// The end of the id of the message about a late entry, so that it is posted once whichever process notices.
pub(super) const LATE: &str = "late";

/// Returns how a person learns that an entry is late.
pub(super) fn late_kind(breach: SlaBreach) -> MessageKind {
    match breach {
        SlaBreach::Warn => MessageKind::Warning,
        SlaBreach::Escalate => MessageKind::Escalation,
    }
}

/// Returns the message about a late entry. `state`: a sentence about how far it is.
pub(super) fn late_body(late: &Value, state: &str, invocation: &Invocation) -> Value {
    let sla = late["sla"].as_str().unwrap_or_default();
    let mut body = json!({
        "reason": format!("The process has delivered nothing within its limit of {sla}. {state}"),
        "sla": late["sla"], "took_ms": late["took_ms"],
    });
    if let Some(body) = body.as_object_mut() {
        body.extend(event_facts(invocation));
    }
    body
}

fn is_open(row: &EntryRow) -> bool {
    matches!(row.state, EntryState::Waiting | EntryState::Claimed | EntryState::Held)
}

fn delivery_settings(expert: &Expert, invocation: &Invocation) -> Option<Delivery> {
    let process = expert.package.process(&invocation.process)?;
    Some(Delivery::resolve(&expert.package.manifest.settings.delivery, &process.settings.delivery))
}

/// Returns when an entry becomes late; `None` if its process has no limit.
fn deadline_of(expert: &Expert, row: &EntryRow) -> Option<u64> {
    let invocation = Invocation::read(&row.payload).ok()?;
    let sla = clock::to_millis(delivery_settings(expert, &invocation)?.sla.as_ref()?.length());
    Some(invocation.asked.saturating_add(sla))
}

fn has_sla(expert: &Expert) -> bool {
    expert.package.processes.items.iter().any(|process| process.settings.delivery.sla.is_some())
}

/// Returns the message about an entry that is still open.
fn open_body(late: &Value, row: &EntryRow, invocation: &Invocation) -> Value {
    let (recommendation, state) = match row.state {
        EntryState::Held => ("Decide about the approval that it waits for.", "It waits for a person."),
        EntryState::Claimed => ("Look at its run, or wait for it.", "It is being worked on."),
        _ => ("Look at what it waits for: `respool expert queue`.", "It waits in the queue."),
    };
    let mut body = late_body(late, state, invocation);
    body["context"] = json!({"inputs": invocation.mapped, "attempts": row.attempt, "note": row.note});
    body["recommendation"] = recommendation.into();
    body
}
