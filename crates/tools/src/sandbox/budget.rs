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
        self.left = self.left.saturating_sub(steps);
        self.has_time() && !self.is_spent()
    }

    /// Returns true until the time has passed. From then on, no steps are left either.
    pub(super) fn has_time(&mut self) -> bool {
        let has_time = Instant::now() <= self.end;
        self.left *= usize::from(has_time);
        has_time
    }

    pub(super) fn is_spent(&self) -> bool {
        self.left == 0
    }
}
