//! The clocks of cron triggers: queues what is due, once even if several processes share a store, and makes
//! up for times that were missed while none ran. The store has the time for which each clock last fired.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::catalog::{Catalog, Current, Snapshot};
use super::hooks::new_id;
use super::invocation::Invocation;
use super::trigger::{Event, invocation};
use openexperts::{Schedule, Trigger, TriggerKind, Watch};
use store::{Clock, ClockTime, Enqueued, EntryState, GoneClocks, NewEntry, Store, StoreError};

/// How often the clocks are checked, besides when one is due.
const EVERY: Duration = Duration::from_secs(1);
/// If two checks are further apart than this, in milliseconds, the machine was asleep: what came due in
/// between was missed.
const LONGEST_PAUSE: u64 = 60_000;
/// The most waiting entries among which a clock's last time is looked for.
const MOST_WAITING: usize = 1_000;

/// A clock's trigger.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct ClockName {
    expert: String,
    trigger: String,
}

/// The clocks of all experts.
pub struct Scheduler {
    catalog: Arc<Catalog>,
    queue: Arc<Store>,
    clocks: HashMap<ClockName, ScheduledClock>,
    /// The catalog generation that the clocks belong to.
    generation: Option<u64>,
    watch: Option<CheckTimes>,
    /// Whether an expert's triggers are held.
    is_held: Held,
}

/// Says whether an expert's triggers are held, so that its clocks do not fire.
pub type Held = Box<dyn Fn(&str) -> bool + Send + Sync>;

/// When the clocks were checked, in milliseconds since 1970.
#[derive(Clone, Copy, Debug)]
struct CheckTimes {
    since: u64,
    last: u64,
    /// When the time was last reported to the store.
    reported_at: u64,
}

/// One clock.
#[derive(Clone, Debug)]
struct ScheduledClock {
    clock: Clock,
    schedule: Schedule,
    mark: u64,
    next: Option<u64>,
    /// When it was last held. What came due until then was missed.
    held: Option<u64>,
}

impl ScheduledClock {
    /// Logs that times have passed for which the trigger does not fire.
    fn log_missed(&self, watch: Watch, fired: &[u64]) {
        let Some(first) = self.schedule.first_missed(watch, fired) else { return };
        let made_up_for = fired.first().map(|time| self.schedule.format_time(*time));
        tracing::warn!(
            target: "respool::expert", expert = self.clock.queue, trigger = self.clock.name, first = self.schedule.format_time(first), made_up_for,
            "a cron trigger has missed times while respool was not running or the expert's tools were not bound; `respool expert fire` makes up for them"
        );
    }
}

impl Scheduler {
    /// Returns the clocks of these experts; due events go to the queue.
    pub fn new(catalog: Arc<Catalog>, queue: Arc<Store>) -> Self {
        let is_held = Box::new(|_: &str| false);
        Self { catalog, queue, clocks: HashMap::new(), generation: None, watch: None, is_held }
    }

    /// Does not fire the clocks of experts whose triggers are held because their tools are not bound yet.
    /// Times missed meanwhile are treated as if respool had not been running.
    #[must_use]
    pub fn with_hold(self, is_held: Held) -> Self {
        Self { is_held, ..self }
    }

    /// Runs until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut is_failing = false;
        loop {
            let now = clock::now();
            match self.fire_due(now).await {
                Ok(_) => is_failing = false,
                Err(error) if !is_failing => {
                    is_failing = true;
                    tracing::error!(target: "respool::expert", %error, "cron triggers cannot fire; they are tried again every second");
                }
                Err(_) => {}
            }
            let pause = self.next_due().map_or(EVERY, |next| Duration::from_millis(next.saturating_sub(now)));
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause.clamp(Duration::from_millis(10), EVERY)) => {}
            }
        }
    }

    /// Returns when the next clock is due.
    fn next_due(&self) -> Option<u64> {
        let is_held = |armed: &&ScheduledClock| {
            armed.held.is_some() && armed.held == self.watch.map(|looks| looks.last)
        };
        self.clocks.values().filter(|armed| !is_held(armed)).filter_map(|armed| armed.next).min()
    }

    /// Fires what is due now, in milliseconds since 1970. Returns how many entries were queued.
    ///
    /// # Errors
    /// When the store cannot be used; what could not be queued is due at the next check.
    pub async fn fire_due(&mut self, now: u64) -> Result<usize, StoreError> {
        let reported_at = self.report_time(now).await?;
        let since = match self.watch {
            Some(looks) if now.saturating_sub(looks.last) <= LONGEST_PAUSE => looks.since,
            _ => now,
        };
        let current = self.catalog.current();
        if self.generation != Some(current.generation) {
            self.arm_clocks(&current, now).await?;
        }
        let mut fired = 0;
        let mut due: Vec<(u64, ClockName)> = Vec::new();
        for (key, armed) in &mut self.clocks {
            if (self.is_held)(&key.expert) {
                armed.held = Some(now);
            } else if armed.next.is_some_and(|next| next <= now) {
                let since = since.max(armed.held.unwrap_or_default());
                let watch = Watch { mark: armed.mark, since, now };
                let times = armed.schedule.due(watch);
                armed.log_missed(watch, &times);
                due.extend(times.into_iter().map(|time| (time, key.clone())));
            }
        }
        due.sort();
        for (time, key) in due {
            fired += usize::from(self.fire_clock(&current, &key, time, now).await?);
        }
        let is_past = |armed: &&mut ScheduledClock| {
            armed.held != Some(now) && armed.next.is_some_and(|next| next <= now)
        };
        for armed in self.clocks.values_mut().filter(is_past) {
            armed.next = armed.schedule.next_after(now);
        }
        self.watch = Some(CheckTimes { since, last: now, reported_at });
        Ok(fired)
    }

    /// Reports the time to the store once in a while, and at once when the system clock was set back. Returns
    /// when it last did.
    async fn report_time(&mut self, now: u64) -> Result<u64, StoreError> {
        if let Some(looks) = self.watch
            && now >= looks.last
            && now - looks.reported_at < LONGEST_PAUSE
        {
            return Ok(looks.reported_at);
        }
        let set_back = self.queue.correct_clock(now).await?;
        if let Some(by) = set_back {
            let minutes = by / 60_000;
            tracing::warn!(
                target: "respool::expert", minutes,
                "the system clock was set back: the times of waiting work and deliveries are moved back by as much"
            );
        }
        if set_back.is_some() || self.watch.is_some_and(|looks| now < looks.last) {
            // The marks may be other ones now, and no gap was watched.
            (self.clocks, self.generation, self.watch) = (HashMap::new(), None, None);
        }
        Ok(now)
    }

    /// Takes over the clocks of a changed catalog. A clock that did not change keeps its mark.
    async fn arm_clocks(&mut self, current: &Current, now: u64) -> Result<(), StoreError> {
        let mut clocks = HashMap::new();
        for (name, trigger) in current.experts.values().flat_map(|snapshot| cron_triggers(snapshot)) {
            let Some((clock, schedule)) = clock_of(&name, trigger) else { continue };
            let key = ClockName { expert: name, trigger: trigger.name.value.clone() };
            let before = self.clocks.remove(&key).filter(|armed| armed.clock == clock);
            let (mark, held) = match before {
                Some(armed) => (armed.mark, armed.held),
                None => (self.queue.clock_mark(&clock, now).await?, None),
            };
            let next = schedule.next_after(mark);
            clocks.insert(key, ScheduledClock { clock, schedule, mark, next, held });
        }
        // The clocks of a package that does not load now keep their marks.
        if !current.has_unloaded {
            let pair = |key: &ClockName| (key.expert.clone(), key.trigger.clone());
            let kept = clocks.keys().map(pair).collect();
            self.queue.forget_clocks(GoneClocks::AllBut(kept)).await?;
        }
        self.clocks = clocks;
        self.generation = Some(current.generation);
        Ok(())
    }

    /// Queues one time of a clock. False if another process did it first.
    async fn fire_clock(
        &mut self,
        current: &Current,
        key: &ClockName,
        time: u64,
        now: u64,
    ) -> Result<bool, StoreError> {
        let Some(armed) = self.clocks.get_mut(key) else { return Ok(false) };
        let found =
            current.experts.get(&key.expert).and_then(|found| Some((found, found.trigger(&key.trigger)?)));
        let Some((snapshot, trigger)) = found else { return Ok(false) };
        let payload = json!({"scheduled_at": armed.schedule.format_time(time), "fired_at": armed.schedule.format_time(now)});
        let event = Event { id: new_id(), payload, delivery: None, at: now };
        let invocation = invocation(&snapshot.package, &snapshot.digest, trigger, event);
        let of_clock = ClockTime { clock: armed.clock.clone(), time };
        if invocation.lane.is_some() && waits_already(&self.queue, key).await? {
            self.queue.skip_time(&of_clock).await?;
            armed.mark = time;
            tracing::info!(
                target: "respool::expert", expert = key.expert, trigger = key.trigger, scheduled_at = armed.schedule.format_time(time),
                "a cron trigger is skipped, because one of its times waits already for the run before"
            );
            return Ok(false);
        }
        let warnings = invocation.warnings.join("; ");
        let entry = NewEntry { clock: Some(of_clock), ..invocation.into_entry(Duration::ZERO) };
        let queued = self.queue.enqueue(entry).await?;
        armed.mark = time;
        let is_first = queued == Enqueued::Accepted;
        if is_first {
            tracing::info!(
                target: "respool::expert", expert = key.expert, trigger = key.trigger, scheduled_at = armed.schedule.format_time(time), "a cron trigger fires"
            );
            if !warnings.is_empty() {
                tracing::warn!(target: "respool::expert", expert = key.expert, trigger = key.trigger, "{warnings}");
            }
        }
        Ok(is_first)
    }
}

/// Returns true if a time of this clock waits that has not been tried yet.
async fn waits_already(queue: &Store, key: &ClockName) -> Result<bool, StoreError> {
    let rows = queue.entries(Some(&key.expert), EntryState::Waiting, MOST_WAITING).await?;
    Ok(rows.iter().filter(|row| row.attempt == 0).any(|row| {
        let trigger = Invocation::read(&row.payload)
            .ok()
            .and_then(|one| Some(one.origin.trigger_name()? == key.trigger));
        trigger == Some(true)
    }))
}

fn cron_triggers(snapshot: &Snapshot) -> impl Iterator<Item = (String, &Trigger)> {
    let triggers = snapshot.package.manifest.triggers.items.iter();
    let cron = triggers.filter(|trigger| trigger.kind == Some(TriggerKind::Cron));
    cron.map(|trigger| (snapshot.name().to_owned(), trigger))
}

fn clock_of(expert: &str, trigger: &Trigger) -> Option<(Clock, Schedule)> {
    let expr = trigger.clock.expr.as_ref()?.value.trim();
    let zone = trigger.clock.zone.as_ref().map(|zone| zone.value.as_str());
    let schedule = trigger.clock.schedule()?.ok()?;
    let clock = Clock {
        queue: expert.to_owned(),
        name: trigger.name.value.clone(),
        schedule: format!("{expr} {}", zone.unwrap_or("UTC")),
    };
    Some((clock, schedule))
}

#[cfg(test)]
mod tests;
