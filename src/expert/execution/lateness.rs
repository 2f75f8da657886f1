//! Lateness: what has not been delivered within the `sla` of its process is told of while it is still open, whatever keeps it: the queue, a
//! server, a pause, or a person.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::verdict;
use super::{Worker, now};
use crate::expert::delivery::{Message, MessageKind};
use crate::expert::experts::Expert;
use crate::expert::invocation::Invocation;
use crate::expert::settings::{Delivery, SlaBreach};
use crate::store::{EntryRow, EntryState, StoreError};

/// So many entries of an expert are looked at together.
const MOST: usize = 256;

/// What is known of the deadlines of open entries.
#[derive(Default)]
pub(super) struct Deadlines {
    /// By the expert's name and digest: the place in the queue up to which entries are known.
    seen: BTreeMap<(String, String), u64>,
    /// Entries whose deadline is to come, each with it.
    open: Vec<(u64, String)>,
}

impl Worker {
    /// Tells of the open invocations that have become late since it was looked last.
    pub(super) async fn tell_late(&self, deadlines: &mut Deadlines) -> Result<(), StoreError> {
        for expert in self.experts.iter().filter(|expert| self.works_for(expert.name())) {
            if !has_sla(&expert) {
                continue;
            }
            let seen = deadlines.seen.entry((expert.name().to_owned(), expert.digest.clone())).or_default();
            loop {
                let rows = self.store.open_entries(expert.name(), *seen, MOST).await?;
                let is_last = rows.len() < MOST;
                for (place, row) in rows {
                    *seen = place;
                    deadlines.open.extend(deadline(&expert, &row).map(|deadline| (deadline, row.id)));
                }
                if is_last {
                    break;
                }
            }
        }
        let (past, open) = std::mem::take(&mut deadlines.open).into_iter().partition(|(at, _)| *at < now());
        deadlines.open = open;
        let past: Vec<(u64, String)> = past;
        for (_, entry) in past {
            if let Some(row) = self.store.entry(&entry).await?.filter(is_open) {
                self.tell_of_late(&row).await?;
            }
        }
        Ok(())
    }

    fn works_for(&self, expert: &str) -> bool {
        self.only.as_deref().is_none_or(|only| only == expert)
    }

    async fn tell_of_late(&self, row: &EntryRow) -> Result<(), StoreError> {
        let Some((expert, invocation)) =
            self.experts.get(&row.queue).zip(Invocation::read(&row.payload).ok())
        else {
            return Ok(());
        };
        let Some(delivery) = delivery(&expert, &invocation) else { return Ok(()) };
        let took = now().saturating_sub(invocation.asked);
        let Some((late, breach)) = verdict::lateness(&delivery, took) else { return Ok(()) };
        tracing::warn!(target: "respool::expert", expert = row.queue, entry = row.id, process = invocation.process,
            state = row.state.as_str(), sla = late["sla"].as_str().unwrap_or_default(), "an invocation is late");
        if breach == SlaBreach::Warn {
            return Ok(());
        }
        let message = Message {
            id: late_id(&row.id),
            expert: row.queue.clone(),
            entry: row.id.clone(),
            process: invocation.process.clone(),
            kind: MessageKind::Escalation,
            body: escalation(&late, row, &invocation),
        };
        self.post(message).await
    }
}

/// The id of the message that says that an entry is late: it is posted once, whoever notices it.
pub(super) fn late_id(entry: &str) -> String {
    format!("{entry}:late")
}

fn is_open(row: &EntryRow) -> bool {
    matches!(row.state, EntryState::Waiting | EntryState::Claimed | EntryState::Held)
}

fn delivery(expert: &Expert, invocation: &Invocation) -> Option<Delivery> {
    let process = expert.package.process(&invocation.process)?;
    Some(Delivery::resolve(&expert.package.manifest.delivery, &process.delivery))
}

/// When an entry becomes late; `None` for a process without a limit.
fn deadline(expert: &Expert, row: &EntryRow) -> Option<u64> {
    let invocation = Invocation::read(&row.payload).ok()?;
    let sla = millis(delivery(expert, &invocation)?.sla.as_ref()?);
    Some(invocation.asked.saturating_add(sla))
}

fn has_sla(expert: &Expert) -> bool {
    expert.package.processes.items.iter().any(|process| process.delivery.sla.is_some())
}

fn millis(length: &crate::expert::Length) -> u64 {
    u64::try_from(length.length().as_millis()).unwrap_or(u64::MAX)
}

fn escalation(late: &Value, row: &EntryRow, invocation: &Invocation) -> Value {
    let (recommendation, waits) = match row.state {
        EntryState::Held => ("Decide about the approval that it waits for.", "a person is awaited"),
        EntryState::Claimed => ("Look at its run, or wait for it.", "it is being worked on"),
        _ => ("Look at what it waits for: `respool expert queue`.", "it waits in the queue"),
    };
    json!({
        "reason": format!("The process has delivered nothing within its limit of {}: {waits}.", late["sla"].as_str().unwrap_or_default()),
        "context": {"inputs": invocation.mapped, "attempts": row.attempt, "note": row.note},
        "recommendation": recommendation,
        "sla": late["sla"], "took_ms": late["took_ms"],
    })
}
