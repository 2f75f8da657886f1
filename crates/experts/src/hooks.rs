//! Webhooks: who may fire a trigger, and what is queued when it fires. The sender is answered only when
//! everything that the request brought is committed. Called by the server's route.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::catalog::{Catalog, Snapshot};
use super::config::{DEDUPE_WINDOW, ExpertsConfig};
use super::error::ExpertError;
use super::hook_secrets::HookSecrets;
use super::invocation::Invocation;
use super::trigger::{Event, PayloadError, Proof, Refusal, events_of, invocation, is_proven, why_off};
use openexperts::{ChannelBinding, Trigger, TriggerKind, outputs, suggest_nearest};
use store::{Enqueued, NewEntry, Store, StoreError};
use wire::units::Secret;

/// How long a signed request may be repeated; its id is remembered at least as long.
const REMEMBERED_AT_LEAST: Duration = Duration::from_mins(15);

/// The hooks of all experts.
pub struct Hooks {
    catalog: Arc<Catalog>,
    store: Arc<Store>,
    secrets: HookSecrets,
    config: ExpertsConfig,
    /// The secret to compare with if there is no such hook, so that the answer takes equally long.
    decoy: Secret,
}

impl std::fmt::Debug for Hooks {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Hooks").finish_non_exhaustive()
    }
}

/// One hook, as a request addressed it. Only a sender that knows its secret learns whether it exists.
pub struct Hook {
    /// The package and its trigger, if both exist.
    found: Option<(Arc<Snapshot>, String)>,
    secret: Secret,
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookError {
    /// The sender does not know the secret, or there is no such hook.
    Refused,
    /// Its signature is right, but its time is not.
    Stale,
    /// The trigger is off.
    Off(String),
    /// Its payload is not what the trigger accepts.
    BadPayload(PayloadError),
    /// The hook's secret is not available.
    NoSecret(String),
    /// It could not be committed.
    Store(StoreError),
}

/// The entry that was queued for an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The id of the entry.
    pub id: String,
    /// It was accepted before, as this entry.
    pub is_duplicate: bool,
    /// The faults of its payload, for people.
    pub warnings: Vec<String>,
}

impl Hooks {
    /// Returns the hooks of these experts; events go to the queue.
    pub fn new(
        catalog: Arc<Catalog>,
        store: Arc<Store>,
        secrets: HookSecrets,
        config: ExpertsConfig,
    ) -> Self {
        let decoy = Secret::new(format!("{:032x}", rand::random::<u128>()));
        Self { catalog, store, secrets, config, decoy }
    }

    /// Finds the hook of a webhook trigger. For an unknown trigger it returns a hook whose secret is random,
    /// so that both answer alike.
    ///
    /// # Errors
    /// When the secret cannot be read.
    pub fn find(&self, expert: &str, trigger: &str) -> Result<Hook, HookError> {
        let is_hook = |snapshot: &Arc<Snapshot>| {
            let kind = snapshot.trigger(trigger).and_then(|trigger| trigger.kind);
            matches!(kind, Some(TriggerKind::Webhook | TriggerKind::Channel))
        };
        let is_there = |snapshot: &Arc<Snapshot>| self.catalog.is_in_place(&snapshot.folder());
        let Some(snapshot) = self.catalog.get(expert).filter(is_hook).filter(is_there) else {
            return Ok(Hook { found: None, secret: self.decoy.clone() });
        };
        let secret = self.secrets.read_or_make(expert, trigger);
        let secret = secret.map_err(|error| HookError::NoSecret(error.to_string()))?;
        Ok(Hook { found: Some((snapshot, trigger.to_owned())), secret })
    }

    /// Queues what a request brings. `now`: milliseconds since 1970.
    ///
    /// # Errors
    /// Why it is refused; nothing is lost, because the sender learns of it.
    pub async fn receive(
        &self,
        hook: &Hook,
        proof: &Proof<'_>,
        body: &[u8],
        now: u64,
    ) -> Result<Vec<Accepted>, HookError> {
        hook.check_proof(proof, body, now)?;
        let (snapshot, trigger) = hook.trigger().ok_or(HookError::Refused)?;
        if let Some(why) = why_off(trigger) {
            return Err(HookError::Off(why));
        }
        let payload: Value = serde_json::from_slice(body)
            .map_err(|error| HookError::BadPayload(PayloadError::not_json(body, &error)))?;
        let mut events = events_of(trigger, payload).map_err(HookError::BadPayload)?;
        if trigger.kind == Some(TriggerKind::Channel) {
            let binding = Self::channel_binding(snapshot, &trigger.name.value)?;
            events.iter().try_for_each(check_message).map_err(HookError::BadPayload)?;
            events.retain(|message| binding.admits(message));
        }
        let signed = match proof {
            Proof::Signed(signature) => Some(signature.id),
            _ => None,
        };
        let remembered = self.key_lifetime(snapshot.name());
        let invocations = events.into_iter().enumerate().map(|(index, payload)| {
            let delivery = signed.map(|id| format!("{id}#{index}"));
            let event = Event { id: new_id(), payload, delivery, at: now };
            let invocation = invocation(&snapshot.package, &snapshot.digest, trigger, event);
            for warning in &invocation.warnings {
                tracing::warn!(
                    target: "respool::expert", expert = snapshot.name(), trigger = trigger.name.value, entry = invocation.id, "{warning}"
                );
            }
            invocation
        });
        queue_all(&self.store, invocations, remembered).await.map_err(HookError::Store)
    }

    /// Returns the channels and senders whose messages start a channel trigger. It is off until the user
    /// names channels.
    fn channel_binding<'s>(snapshot: &'s Snapshot, trigger: &str) -> Result<&'s ChannelBinding, HookError> {
        let bindings = &snapshot.bindings.bindings;
        match (bindings.why_channel_off(trigger), bindings.triggers.get(trigger)) {
            (None, Some(binding)) => Ok(binding),
            (why, _) => Err(HookError::Off(why.unwrap_or_default())),
        }
    }

    /// Returns how long the keys of an expert's events are remembered.
    fn key_lifetime(&self, expert: &str) -> Duration {
        self.config.settings_of(expert).dedupe_window.unwrap_or(DEDUPE_WINDOW).max(REMEMBERED_AT_LEAST)
    }
}

impl Hook {
    fn trigger(&self) -> Option<(&Snapshot, &Trigger)> {
        let (snapshot, name) = self.found.as_ref()?;
        Some((snapshot, snapshot.trigger(name)?))
    }

    /// Returns true if there is such a hook. Its sender must not learn this without the secret.
    pub fn is_known(&self) -> bool {
        self.found.is_some()
    }

    /// Checks what can be checked before the body has arrived; a signature needs the body.
    ///
    /// # Errors
    /// When the request has no proof, or the wrong secret.
    pub fn check_head(&self, proof: &Proof<'_>) -> Result<(), HookError> {
        match proof {
            Proof::Signed(_) => Ok(()),
            _ => self.check_proof(proof, &[], 0),
        }
    }

    fn check_proof(&self, proof: &Proof<'_>, body: &[u8], now: u64) -> Result<(), HookError> {
        match is_proven(&self.secret, proof, body, now) {
            Ok(()) => Ok(()),
            Err(Refusal::Wrong) => Err(HookError::Refused),
            Err(Refusal::Stale) => Err(HookError::Stale),
        }
    }
}

/// The fields that a message of a channel has, all of them texts.
const MESSAGE: [&str; 3] = ["sender_id", "message_text", "channel_name"];

/// Checks the form of a message for a channel trigger.
///
/// # Errors
/// Names the missing field, for people.
fn check_message(message: &Value) -> Result<(), PayloadError> {
    let has_text = |field: &&str| message.get(*field).is_some_and(Value::is_string);
    match MESSAGE.iter().find(|field| !has_text(field)) {
        None => Ok(()),
        Some(field) => Err(PayloadError::NoText(field, MESSAGE)),
    }
}

/// Queues invocations in order, in one commit: when it fails nothing is queued, and the sender may send all
/// of it again.
async fn queue_all(
    store: &Store,
    invocations: impl IntoIterator<Item = Invocation>,
    remembered: Duration,
) -> Result<Vec<Accepted>, StoreError> {
    let (warnings, entries): (Vec<Vec<String>>, Vec<NewEntry>) = invocations
        .into_iter()
        .map(|invocation| (invocation.warnings.clone(), invocation.into_entry(remembered)))
        .unzip();
    if entries.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<String> = entries.iter().map(|entry| entry.id.clone()).collect();
    let queued = store.enqueue_all(entries).await?;
    let accepted = ids.into_iter().zip(queued).zip(warnings).map(|((id, what), warnings)| match what {
        Enqueued::Accepted => Accepted { id, is_duplicate: false, warnings },
        Enqueued::Duplicate(id) => Accepted { id, is_duplicate: true, warnings: Vec::new() },
    });
    Ok(accepted.collect())
}

/// Fires a trigger by hand and returns what was queued. An event that was handled before counts again,
/// because a person asked for it. Without a payload, it gets the payload of a clock that fires now.
///
/// # Errors
/// When it cannot fire, with the reason for people.
pub async fn fire_trigger(
    store: &Store,
    snapshot: &Snapshot,
    trigger: &str,
    payload: Option<Value>,
) -> Result<Vec<Invocation>, ExpertError> {
    let Some(found) = snapshot.trigger(trigger) else {
        let names =
            snapshot.package.manifest.triggers.items.iter().map(|trigger| trigger.name.value.as_str());
        let near = suggest_nearest(trigger, names.clone());
        let names = names.collect::<Vec<_>>().join(", ");
        let name = snapshot.name();
        return Err(format!("{name} has no trigger {trigger:?}: {near}its triggers are: {names}").into());
    };
    if let Some(why) = why_off(found) {
        return Err(format!("the trigger {trigger} is off, because {why}").into());
    }
    let now = clock::now();
    let payloads = match payload {
        Some(payload) => events_of(found, payload).map_err(|error| error.to_string())?,
        None if found.kind == Some(TriggerKind::Cron) => vec![clock_payload(found, now, now)?],
        None => return Err(format!("the trigger {trigger} needs a payload: give one with --payload").into()),
    };
    let invocations: Vec<Invocation> = payloads
        .into_iter()
        .map(|payload| {
            let event = Event { id: new_id(), payload, delivery: None, at: now };
            Invocation { dedupe: None, ..invocation(&snapshot.package, &snapshot.digest, found, event) }
        })
        .collect();
    if let Some(process) = snapshot.package.process(&found.process.value) {
        let declared = &process.inputs.items;
        for invocation in &invocations {
            let faults = outputs::check_inputs(declared, &invocation.inputs(declared).0);
            if !faults.is_empty() {
                let (process, faults) = (&process.name.value, faults.join("; "));
                return Err(format!(
                    "the payload does not fit the inputs of the process {process}: {faults}"
                )
                .into());
            }
        }
    }
    queue_all(store, invocations.clone(), Duration::ZERO).await?;
    Ok(invocations)
}

/// Returns the payload of a cron trigger that fires `now` for a scheduled time. Both are milliseconds since
/// 1970.
fn clock_payload(trigger: &Trigger, time: u64, now: u64) -> Result<Value, ExpertError> {
    let schedule = trigger
        .clock
        .schedule()
        .ok_or_else(|| "it has no `expr`".to_owned())?
        .map_err(|error| error.to_string())?;
    Ok(json!({"scheduled_at": schedule.format_time(time), "fired_at": schedule.format_time(now)}))
}

/// Returns the id of an entry.
pub(super) fn new_id() -> String {
    format!("inv-{:032x}", rand::random::<u128>())
}
