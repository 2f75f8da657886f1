//! The work that may be done for one command: directories that are searched, and places that are looked up.

use std::path::Path;
use std::time::{Duration, Instant};

use super::handles::{MOST_TEXT, read_small};

/// The most directories that are searched and places that are looked up before or after one command, and the
/// longest time for that. A workspace that needs more is read-only as a whole.
const MOST_STEPS: usize = 400_000;
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

    /// Reads a small text. No more steps are left after a larger one, which may say anything.
    pub(super) fn read(&mut self, file: &Path) -> Option<String> {
        if file.metadata().is_ok_and(|data| data.is_file() && data.len() > MOST_TEXT as u64) {
            self.left = 0;
        }
        let text = self.take(1).then(|| read_small(file)).flatten()?;
        self.take(text.len() / 64).then_some(text)
    }
}
