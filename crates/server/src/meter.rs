//! What each client uses: counters in memory that requests are held against, and what of them the store does not have yet. A meter
//! belongs to a name, and stays when the keys are read again. Called by `access`.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::key_limits::{Counters, Exceeded, KeyLimits, Moment};
use super::wrong_keys::Neighbour;
use store::{KeyUsage, Store, StoreError};
use telemetry::Account;
use wire::turn::Usage;

/// So many of the neighbours that used a key are remembered, the last ones.
const NEIGHBOURS: usize = 16;
/// How many days of what was used are kept.
const KEEP_DAYS: u64 = 400;

/// The time by both clocks.
pub(super) fn read_clocks() -> Moment {
    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
    // The first moment is not nought, so that nothing that was never looks as if it were now.
    Moment { steady: 1 + clock::millis(BEGAN.elapsed()), since_1970: clock::now() }
}

/// What one client uses.
#[derive(Debug)]
pub(super) struct Meter {
    name: String,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    counters: Counters,
    /// What the store does not have yet, by day and model.
    unsaved: HashMap<(u64, String), KeyUsage>,
    /// From where the key was used.
    neighbours: VecDeque<Neighbour>,
}

impl Meter {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request that begins, unless a limit is reached.
    pub(super) fn begin(&self, limits: &KeyLimits) -> Result<(), Exceeded> {
        self.state().counters.begin(limits, read_clocks())
    }

    /// Counts a body until the end of its reading, unless as many requests are at work as may be.
    pub(super) fn begin_reading(self: &Arc<Self>, limits: &KeyLimits) -> Result<Reading, Exceeded> {
        self.state().counters.begin_reading(limits)?;
        Ok(Reading(Arc::clone(self)))
    }

    /// A request that was counted has ended.
    pub(super) fn end(&self, began: Instant) {
        self.state().counters.end(clock::millis(began.elapsed()));
    }

    /// The key was used from there.
    pub(super) fn used_from(&self, neighbour: Neighbour) {
        let mut state = self.state();
        if state.neighbours.front() == Some(&neighbour) {
            return;
        }
        state.neighbours.retain(|known| *known != neighbour);
        state.neighbours.push_front(neighbour);
        state.neighbours.truncate(NEIGHBOURS);
    }

    /// True when the key was used from there before.
    pub(super) fn knows(&self, neighbour: Neighbour) -> bool {
        self.state().neighbours.contains(&neighbour)
    }
}

/// A body that is being read.
#[derive(Debug)]
pub(super) struct Reading(Arc<Meter>);

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.state().counters.end_reading();
    }
}

impl Account for Meter {
    fn name(&self) -> &str {
        &self.name
    }

    fn spent(&self, model: &str, usage: Usage) {
        let day = read_clocks().day();
        let mut state = self.state();
        state.counters.spend(usage.prompt.saturating_add(usage.completion), day);
        let row = state.unsaved.entry((day, model.to_owned())).or_insert_with(|| KeyUsage {
            day,
            key: self.name.clone(),
            model: model.to_owned(),
            ..KeyUsage::default()
        });
        row.requests += 1;
        row.prompt = row.prompt.saturating_add(usage.prompt);
        row.cached = row.cached.saturating_add(usage.cached.unwrap_or_default());
        row.completion = row.completion.saturating_add(usage.completion);
    }
}

/// The meters of all names.
#[derive(Debug, Default)]
pub(super) struct Meters {
    by_name: Mutex<HashMap<String, Arc<Meter>>>,
    /// The day before which nothing is left in the store, as far as is known.
    forgotten: AtomicU64,
}

impl Meters {
    fn by_name(&self) -> MutexGuard<'_, HashMap<String, Arc<Meter>>> {
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The meter of this name.
    pub(super) fn of(&self, name: &str) -> Arc<Meter> {
        let new = || Arc::new(Meter { name: name.to_owned(), state: Mutex::default() });
        Arc::clone(self.by_name().entry(name.to_owned()).or_insert_with(new))
    }

    fn all(&self) -> Vec<Arc<Meter>> {
        self.by_name().values().cloned().collect()
    }

    /// Writes what the store does not have yet, and takes over what others wrote: several processes may share a store.
    ///
    /// # Errors
    /// When the store cannot be used; what could not be written is written the next time.
    pub(super) async fn save(&self, store: &Store) -> Result<(), StoreError> {
        let rows: Vec<KeyUsage> = self
            .all()
            .iter()
            .flat_map(|meter| std::mem::take(&mut meter.state().unsaved).into_values())
            .collect();
        if rows.is_empty() {
            return Ok(());
        }
        if let Err(error) = store.add_key_usage(rows.clone()).await {
            rows.into_iter().for_each(|row| self.take_back(row));
            return Err(error);
        }
        self.load(store).await?;
        let day = read_clocks().day();
        if self.forgotten.swap(day, Ordering::Relaxed) != day {
            store.forget_key_usage(day.saturating_sub(KEEP_DAYS)).await?;
        }
        Ok(())
    }

    fn take_back(&self, row: KeyUsage) {
        let meter = self.of(&row.key);
        let mut state = meter.state();
        let place = (row.day, row.model.clone());
        match state.unsaved.get_mut(&place) {
            None => drop(state.unsaved.insert(place, row)),
            Some(later) => {
                later.requests += row.requests;
                later.prompt = later.prompt.saturating_add(row.prompt);
                later.cached = later.cached.saturating_add(row.cached);
                later.completion = later.completion.saturating_add(row.completion);
            }
        }
    }

    /// Takes over what the store says of today.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub(super) async fn load(&self, store: &Store) -> Result<(), StoreError> {
        let day = read_clocks().day();
        let mut stored: HashMap<String, u64> = HashMap::new();
        for row in store.key_usage_on(day).await? {
            let tokens = stored.entry(row.key).or_default();
            *tokens = tokens.saturating_add(row.prompt).saturating_add(row.completion);
        }
        for meter in self.all() {
            let Some(tokens) = stored.get(&meter.name) else { continue };
            let mut state = meter.state();
            let unsaved = state.unsaved.values().filter(|row| row.day == day);
            let unsaved: u64 = unsaved.map(|row| row.prompt.saturating_add(row.completion)).sum();
            state.counters.set_tokens(tokens.saturating_add(unsaved), day);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::StoreConfig;

    fn open(dir: &std::path::Path) -> Store {
        Store::open(&StoreConfig { state_dir: dir.to_owned(), ..StoreConfig::default() }).unwrap()
    }

    fn usage(prompt: u64) -> Usage {
        Usage { prompt, completion: 1, ..Usage::default() }
    }

    #[tokio::test]
    async fn what_was_used_holds_after_the_process_and_in_others() {
        let limits = KeyLimits { tokens_per_day: Some(100), ..KeyLimits::default() };
        let dir = tempfile::tempdir().unwrap();
        let (store, first, second) = (open(dir.path()), Meters::default(), Meters::default());
        let (one, other) = (first.of("alice"), second.of("alice"));
        one.spent("m", usage(49));
        first.save(&store).await.unwrap();
        one.begin(&limits).unwrap();
        other.spent("m", usage(49));
        second.save(&store).await.unwrap();
        other.begin(&limits).expect_err("what another process counted is counted");
        first.of("bob").spent("", usage(1));
        first.save(&store).await.unwrap();
        one.begin(&limits).expect_err("here too, after the next time");
        drop(store);
        let (store, third) = (open(dir.path()), Meters::default());
        let again = third.of("alice");
        again.begin(&limits).unwrap();
        third.load(&store).await.unwrap();
        again.begin(&limits).unwrap_err();
        third.of("bob").begin(&limits).unwrap();
    }

    #[test]
    fn what_could_not_be_written_is_kept() {
        let meters = Meters::default();
        let meter = meters.of("alice");
        meter.spent("m", usage(10));
        let rows: Vec<KeyUsage> = std::mem::take(&mut meter.state().unsaved).into_values().collect();
        meter.spent("m", usage(5));
        rows.into_iter().for_each(|row| meters.take_back(row));
        let left: Vec<_> = meter.state().unsaved.values().map(|row| (row.requests, row.prompt)).collect();
        assert_eq!(left, [(2, 15)]);
    }

    #[test]
    fn neighbours_are_remembered_and_bounded() {
        let meter = Meters::default().of("alice");
        let at = |last: u8| Neighbour::from(std::net::IpAddr::from([192, 0, 2, last]));
        (0..20).for_each(|last| meter.used_from(at(last)));
        meter.used_from(at(19));
        assert!(meter.knows(at(19)) && meter.knows(at(4)) && !meter.knows(at(3)));
        assert_eq!(meter.state().neighbours.len(), NEIGHBOURS);
    }
}
