//! The tokens that clients' keys use: today's sums, against which limits are checked, and the counts that are
//! not stored yet. Pure: the day is an argument. Used by `ledger`.

use std::collections::HashMap;

use store::KeyUsage;
use wire::turn::Usage;

/// The tokens of all keys.
#[derive(Debug, Default)]
pub(super) struct KeyTokens {
    /// The day of `today`, counted from 1970-01-01.
    day: u64,
    today: HashMap<String, u64>,
    /// The counts that are not stored yet, by day, key and model.
    unsaved: HashMap<(u64, String, String), KeyUsage>,
}

impl KeyTokens {
    /// Counts what a model took for a key. `requests`: none for an attempt before the one that answered.
    /// `model`: empty unless an upstream is known to serve it, so that clients cannot fill the store with
    /// names.
    pub(super) fn add_usage(&mut self, key: &str, model: &str, requests: u64, usage: Usage, day: u64) {
        self.begin_day(day);
        let row = KeyUsage {
            day,
            key: key.to_owned(),
            model: model.to_owned(),
            requests,
            prompt: usage.prompt,
            cached: usage.cached.unwrap_or_default(),
            completion: usage.completion,
        };
        let today = self.today.entry(key.to_owned()).or_default();
        *today = today.saturating_add(total_tokens(&row));
        self.add_unsaved(row);
    }

    /// Returns the tokens that a key has used on this day.
    pub(super) fn used_today(&mut self, key: &str, day: u64) -> u64 {
        self.begin_day(day);
        self.today.get(key).copied().unwrap_or_default()
    }

    /// Takes the counts that are not stored yet.
    pub(super) fn take_unsaved(&mut self) -> Vec<KeyUsage> {
        std::mem::take(&mut self.unsaved).into_values().collect()
    }

    /// Takes back counts that could not be stored.
    pub(super) fn take_back(&mut self, rows: Vec<KeyUsage>) {
        rows.into_iter().for_each(|row| self.add_unsaved(row));
    }

    /// Loads the counts of a day from the store, to which other processes add too.
    pub(super) fn load_day(&mut self, stored: &[KeyUsage], day: u64) {
        self.begin_day(day);
        if day != self.day {
            return;
        }
        let unsaved = self.unsaved.values().filter(|row| row.day == day);
        let mut sums: HashMap<&str, u64> = HashMap::new();
        for row in stored.iter().chain(unsaved) {
            let sum = sums.entry(&row.key).or_default();
            *sum = sum.saturating_add(total_tokens(row));
        }
        let sums = sums.into_iter().map(|(key, sum)| (key.to_owned(), sum));
        self.today = sums.collect();
    }

    fn add_unsaved(&mut self, row: KeyUsage) {
        let place = (row.day, row.key.clone(), row.model.clone());
        match self.unsaved.get_mut(&place) {
            None => drop(self.unsaved.insert(place, row)),
            Some(known) => {
                known.requests += row.requests;
                known.prompt = known.prompt.saturating_add(row.prompt);
                known.cached = known.cached.saturating_add(row.cached);
                known.completion = known.completion.saturating_add(row.completion);
            }
        }
    }

    /// Begins a day at zero. A clock that is set back does not end a day twice.
    fn begin_day(&mut self, day: u64) {
        if day > self.day {
            (self.day, self.today) = (day, HashMap::new());
        }
    }
}

fn total_tokens(row: &KeyUsage) -> u64 {
    row.prompt.saturating_add(row.completion)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(prompt: u64) -> Usage {
        Usage { prompt, completion: 1, ..Usage::default() }
    }

    #[test]
    fn each_day_begins_at_zero() {
        let mut keys = KeyTokens::default();
        keys.add_usage("alice", "m", 1, usage(9), 7);
        keys.add_usage("bob", "m", 1, usage(1), 7);
        assert_eq!((keys.used_today("alice", 7), keys.used_today("bob", 7)), (10, 2));
        assert_eq!(keys.used_today("alice", 8), 0);
        assert_eq!(keys.used_today("alice", 7), 0, "a clock that was put back does not begin a new day");
        keys.load_day(&[KeyUsage { day: 7, key: "alice".into(), prompt: 5, ..KeyUsage::default() }], 7);
        assert_eq!(keys.used_today("alice", 8), 0, "the counts of yesterday are over");
    }

    #[test]
    fn counts_that_cannot_be_stored_are_kept() {
        let mut keys = KeyTokens::default();
        keys.add_usage("alice", "m", 1, usage(10), 7);
        let rows = keys.take_unsaved();
        keys.add_usage("alice", "m", 0, usage(5), 7);
        keys.take_back(rows);
        let rows = keys.take_unsaved();
        assert_eq!((rows.len(), rows[0].requests, rows[0].prompt), (1, 1, 15));
    }

    #[test]
    fn stored_and_unsaved_counts_add_up() {
        let mut keys = KeyTokens::default();
        keys.add_usage("alice", "m", 1, usage(10), 7);
        keys.load_day(&[KeyUsage { day: 7, key: "alice".into(), prompt: 5, ..KeyUsage::default() }], 7);
        assert_eq!(keys.used_today("alice", 7), 16);
    }
}
