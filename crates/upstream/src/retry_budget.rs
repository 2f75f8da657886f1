//! How often an upstream's own failures may be repeated, by all requests together: a ratio of recent requests
//! and a small floor, as linkerd and Envoy have it, and more at an upstream that works in between: each
//! useful reply earns a few repeats.
//!
//! The model's mistakes do not draw on it: they are bounded per request. Called through `state`.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tower::retry::budget::{Budget as _, TpsBudget};

/// The time over which requests are counted.
const WINDOW: Duration = Duration::from_secs(10);
/// The floor: repeats per second that are always permitted.
const FLOOR: u32 = 1;
/// Repeats for each request beyond that.
const RATIO: f32 = 0.2;

/// An upstream whose last useful reply is no older than this works.
const RECENT: Duration = Duration::from_mins(1);
/// Repeats that each useful reply earns: enough where two of three requests fail.
const EARNED: f32 = 2.0;

/// The budget of one upstream.
#[derive(Debug)]
pub(super) struct RetryBudget {
    shared: TpsBudget,
    earned: TpsBudget,
    last_useful: Mutex<Option<Instant>>,
}

/// Whether a request that an upstream failed may be sent to it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepeatPermit {
    /// It may not.
    Denied,
    /// It may, but no sooner than this.
    GrantedAfter(Duration),
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self {
            shared: TpsBudget::new(WINDOW, FLOOR, RATIO),
            earned: TpsBudget::new(RECENT, 0, EARNED),
            last_useful: Mutex::default(),
        }
    }
}

impl RetryBudget {
    /// Counts a request that is not a repeat.
    pub(super) fn deposit(&self) {
        self.shared.deposit();
    }

    /// Counts a useful reply.
    pub(super) fn earn(&self) {
        self.earned.deposit();
        *self.last_useful() = Some(Instant::now());
    }

    /// Returns true when the last useful reply is recent.
    pub(super) fn has_recent_success(&self) -> bool {
        self.last_useful().is_some_and(|last| last.elapsed() < RECENT)
    }

    /// Takes a repeat out of the budget. `next_trial`: when the circuit lets a request through, zero when it
    /// is closed. While it is open, only an upstream that worked a moment ago is tried again, and what its
    /// replies have earned does not count.
    pub(super) fn withdraw(&self, next_trial: Duration) -> RepeatPermit {
        let is_granted = if next_trial.is_zero() {
            self.earned.withdraw() || self.shared.withdraw()
        } else {
            self.has_recent_success() && self.shared.withdraw()
        };
        if is_granted { RepeatPermit::GrantedAfter(next_trial) } else { RepeatPermit::Denied }
    }

    fn last_useful(&self) -> MutexGuard<'_, Option<Instant>> {
        self.last_useful.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn withdrawn(budget: &RetryBudget, next_trial: Duration) -> usize {
        (0..1000)
            .take_while(|_| budget.withdraw(next_trial) == RepeatPermit::GrantedAfter(next_trial))
            .count()
    }

    #[tokio::test(start_paused = true)]
    async fn repeats_are_a_share_of_requests_and_a_floor() {
        let budget = RetryBudget::default();
        assert_eq!(withdrawn(&budget, Duration::ZERO), 10, "the floor of ten seconds");
        (0..500).for_each(|_| budget.deposit());
        assert_eq!(withdrawn(&budget, Duration::ZERO), 100, "a fifth of the requests");
    }

    #[tokio::test(start_paused = true)]
    async fn useful_replies_earn_repeats_for_a_minute() {
        let budget = RetryBudget::default();
        (0..20).for_each(|_| budget.earn());
        assert_eq!(withdrawn(&budget, Duration::ZERO), 50, "two for each reply, and the floor");
        (0..20).for_each(|_| budget.earn());
        tokio::time::advance(RECENT * 2).await;
        assert!(!budget.has_recent_success());
        assert_eq!(withdrawn(&budget, Duration::ZERO), 10, "the floor");
    }

    #[tokio::test(start_paused = true)]
    async fn an_open_circuit_permits_few_repeats() {
        let (budget, second) = (RetryBudget::default(), Duration::from_secs(1));
        assert_eq!(withdrawn(&budget, second), 0, "it has not worked yet");
        (0..20).for_each(|_| budget.earn());
        assert_eq!(withdrawn(&budget, second), 10, "the floor, and nothing that was earned");
    }
}
