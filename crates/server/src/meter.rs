//! The requests of each client: counters in memory that its limits are checked against. A meter belongs to a
//! name, and stays when the keys are read again. The tokens of clients are counted in `usage`. Called by
//! `access`.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::key_limits::{Counters, Exceeded, KeyLimits, Timestamps};
use super::wrong_keys::Neighbour;

/// The most neighbours that are remembered for a key.
const NEIGHBOURS: usize = 16;

/// Returns the time by both clocks.
pub(super) fn read_clocks() -> Timestamps {
    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
    // The first moment is not zero: zero stands for an event that never happened.
    Timestamps { steady: 1 + clock::to_millis(BEGAN.elapsed()), since_1970: clock::now() }
}

/// The requests of one client.
#[derive(Debug, Default)]
pub(super) struct Meter {
    state: Mutex<MeterState>,
}

#[derive(Debug, Default)]
struct MeterState {
    counters: Counters,
    /// The neighbours that used the key, the last one first.
    neighbours: VecDeque<Neighbour>,
}

impl Meter {
    fn lock_state(&self) -> MutexGuard<'_, MeterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request that begins, unless a limit is reached. `tokens`: those that its key has used today.
    /// `nodes`: the processes that share the limits.
    pub(super) fn begin_request(&self, limits: &KeyLimits, tokens: u64, nodes: u32) -> Result<(), Exceeded> {
        let part = limits.share_of(nodes);
        let begun = self.lock_state().counters.begin_request(&part, tokens, read_clocks());
        let is_divided = tokens < limits.tokens_per_day.unwrap_or(u64::MAX) && nodes > 1;
        begun.map_err(|mut exceeded| {
            if is_divided {
                exceeded.limit = format!("{} on each of {nodes} nodes", exceeded.limit);
            }
            exceeded
        })
    }

    /// Counts a body until the end of its reading, unless too many bodies are being read.
    pub(super) fn begin_reading(self: &Arc<Self>, limits: &KeyLimits) -> Result<Reading, Exceeded> {
        self.lock_state().counters.begin_reading(limits)?;
        Ok(Reading(Arc::clone(self)))
    }

    /// Ends a request that was counted.
    pub(super) fn end_request(&self, began: Instant) {
        self.lock_state().counters.end_request(clock::to_millis(began.elapsed()));
    }

    /// Remembers a neighbour that used the key.
    pub(super) fn used_from(&self, neighbour: Neighbour) {
        let mut state = self.lock_state();
        if state.neighbours.front() == Some(&neighbour) {
            return;
        }
        state.neighbours.retain(|known| *known != neighbour);
        state.neighbours.push_front(neighbour);
        state.neighbours.truncate(NEIGHBOURS);
    }

    /// Returns true if this neighbour used the key before.
    pub(super) fn knows_neighbour(&self, neighbour: Neighbour) -> bool {
        self.lock_state().neighbours.contains(&neighbour)
    }
}

/// A body that is being read.
#[derive(Debug)]
pub(super) struct Reading(Arc<Meter>);

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.lock_state().counters.end_reading();
    }
}

/// The meters of all names.
#[derive(Debug, Default)]
pub(super) struct Meters {
    by_name: Mutex<HashMap<String, Arc<Meter>>>,
}

impl Meters {
    /// Returns the meter of this name.
    pub(super) fn meter_for(&self, name: &str) -> Arc<Meter> {
        let mut by_name = self.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(by_name.entry(name.to_owned()).or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: with two nodes, the error named a number that is in no file.
    #[test]
    fn a_nodes_part_is_called_so() {
        let begin = |limits: KeyLimits, nodes| {
            let meter = Meter::default();
            meter.begin_request(&limits, 0, nodes).and_then(|()| meter.begin_request(&limits, 9, nodes))
        };

        let a_minute = || KeyLimits { requests_per_minute: Some(2), ..KeyLimits::default() };
        assert!(begin(a_minute(), 1).is_ok());
        assert_eq!(begin(a_minute(), 2).unwrap_err().limit, "1 requests a minute on each of 2 nodes");
        let at_a_time = KeyLimits { max_concurrency: Some(2), ..KeyLimits::default() };
        assert_eq!(begin(at_a_time, 2).unwrap_err().limit, "1 requests at a time on each of 2 nodes");
        let a_day = KeyLimits { tokens_per_day: Some(9), ..KeyLimits::default() };
        assert_eq!(begin(a_day, 2).unwrap_err().limit, "9 tokens a day");
    }

    #[test]
    fn neighbours_are_remembered_and_bounded() {
        let meter = Meters::default().meter_for("alice");
        let at = |last: u8| Neighbour::from(std::net::IpAddr::from([192, 0, 2, last]));
        (0..20).for_each(|last| meter.used_from(at(last)));
        meter.used_from(at(19));
        assert!(
            meter.knows_neighbour(at(19)) && meter.knows_neighbour(at(4)) && !meter.knows_neighbour(at(3))
        );
        assert_eq!(meter.lock_state().neighbours.len(), NEIGHBOURS);
    }
}
