//! The last usage rows that were appended, kept until a database takes its copy of them: to read them back
//! from the file would cost more than to write them. What is not here is read from the file. Called by
//! `usage`.

use wire::UsageRow;

/// The most rows that are kept: those of a second at full load.
const MOST: usize = 20_000;

/// The last appended rows, with their numbers.
#[derive(Debug, Default)]
pub(super) struct FreshRows {
    rows: Vec<(u64, UsageRow)>,
    /// A database takes copies.
    are_wanted: bool,
}

impl FreshRows {
    /// Adds rows that were written. `last`: the number of the last one.
    pub(super) fn add(&mut self, last: u64, rows: Vec<UsageRow>) {
        if self.rows.len() + rows.len() > MOST {
            // No database has asked for a while.
            *self = Self::default();
        }
        if self.are_wanted {
            let first = (last + 1).saturating_sub(rows.len() as u64);
            self.rows.extend((first..).zip(rows));
        }
    }

    /// Takes at most this many rows behind a number. `None` if some of them are only in the file.
    pub(super) fn take_after(&mut self, place: u64, most: usize) -> Option<Vec<(u64, UsageRow)>> {
        self.are_wanted = true;
        if self.rows.first().is_none_or(|(first, _)| *first != place + 1) {
            self.forget_all();
            return None;
        }
        let rest = self.rows.split_off(most.min(self.rows.len()));
        Some(std::mem::replace(&mut self.rows, rest))
    }

    /// Forgets all rows.
    pub(super) fn forget_all(&mut self) {
        self.rows.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(fresh: &mut FreshRows, last: u64, count: usize) {
        fresh.add(last, vec![UsageRow::default(); count]);
    }

    fn taken(fresh: &mut FreshRows, place: u64, most: usize) -> Option<Vec<u64>> {
        fresh.take_after(place, most).map(|rows| rows.iter().map(|(place, _)| *place).collect())
    }

    #[test]
    fn rows_are_taken_once_and_in_order() {
        let mut fresh = FreshRows::default();
        add(&mut fresh, 2, 2);
        assert_eq!(taken(&mut fresh, 0, 9), None, "nothing wanted them");
        add(&mut fresh, 4, 2);
        add(&mut fresh, 5, 1);
        assert_eq!(taken(&mut fresh, 2, 2), Some(vec![3, 4]));
        assert_eq!(taken(&mut fresh, 4, 2), Some(vec![5]));
        assert_eq!(taken(&mut fresh, 5, 2), None);
    }

    #[test]
    fn rows_behind_a_gap_are_read_from_the_file() {
        let mut fresh = FreshRows::default();
        assert_eq!(taken(&mut fresh, 0, 9), None);
        add(&mut fresh, 4, 2);
        assert_eq!(taken(&mut fresh, 1, 9), None);
        assert_eq!(taken(&mut fresh, 2, 9), None, "they were read from the file");
        add(&mut fresh, 5, 1);
        fresh.forget_all();
        assert_eq!(taken(&mut fresh, 4, 9), None);
    }

    #[test]
    fn rows_that_nothing_takes_are_bounded() {
        let mut fresh = FreshRows::default();
        assert_eq!(taken(&mut fresh, 0, 9), None);
        add(&mut fresh, MOST as u64, MOST);
        add(&mut fresh, MOST as u64 + 1, 1);
        assert!(fresh.rows.is_empty());
        assert_eq!(taken(&mut fresh, 0, 9), None);
    }
}
