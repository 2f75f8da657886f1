//! The work that may be done for one command: directories that are searched, and places that are looked up.

use std::time::{Duration, Instant};

/// The most directories that are searched and places that are looked up before or after one command, and the
/// longest time for that. A workspace that needs more is read-only as a whole.
pub(super) const MOST_STEPS: usize = 400_000;
const LONGEST: Duration = Duration::from_secs(20);

/// How much may still be done for one command.
#[derive(Debug)]
pub(super) struct Budget {
    left: usize,
    end: Instant,
}

impl Budget {
    pub(super) fn new() -> Self {
        Self { left: MOST_STEPS, end: Instant::now() + LONGEST }
    }

    /// Returns false, from then on, if no more steps are left.
    pub(super) fn take(&mut self, steps: usize) -> bool {
        let is_late = Instant::now() > self.end;
        self.left = if is_late { 0 } else { self.left.saturating_sub(steps) };
        !self.is_spent()
    }

    pub(super) fn is_spent(&self) -> bool {
        self.left == 0
    }
}
