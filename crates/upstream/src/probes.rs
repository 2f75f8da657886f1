//! The shared findings of the probes of one upstream. `health` makes the probes.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Mutex;
use tokio::time::Instant;

/// The result of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It answers, and does not say that it is not ready.
    Up,
    /// It cannot be reached, or answers with a 5xx.
    Down,
}

/// The shared findings of one upstream.
#[derive(Debug, Default)]
pub(super) struct Probes {
    /// When the last probe began and what it found. Locked while a probe is under way.
    pub(super) last: Mutex<Option<(Instant, Health)>>,
    pub(super) waiting: AtomicUsize,
}

/// Counts a request that waits, until it is dropped.
pub(super) struct Waiter<'a>(&'a AtomicUsize);

impl<'a> Waiter<'a> {
    pub(super) fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
