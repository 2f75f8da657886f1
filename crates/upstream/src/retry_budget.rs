//! How often an upstream's own failures may be repeated, by all requests together: a ratio of recent requests and a small
//! floor, as linkerd and Envoy have it, and nothing at all while the upstream keeps failing.
//!
//! The model's mistakes do not draw on it: they are bounded per request. Called through `state`.

use std::time::Duration;

use tower::retry::budget::{Budget as _, TpsBudget};

/// The time over which requests are counted.
const WINDOW: Duration = Duration::from_secs(10);
/// The floor: repeats per second that are always permitted.
const FLOOR: u32 = 1;
/// Repeats for each request beyond that.
const RATIO: f32 = 0.2;

/// The budget of one upstream.
#[derive(Debug)]
pub(super) struct RetryBudget(TpsBudget);

impl Default for RetryBudget {
    fn default() -> Self {
        Self(TpsBudget::new(WINDOW, FLOOR, RATIO))
    }
}

impl RetryBudget {
    /// Counts a request that is not a repeat.
    pub(super) fn deposit(&self) {
        self.0.deposit();
    }

    /// Takes a repeat out of the budget; false when there is none left.
    pub(super) fn withdraw(&self) -> bool {
        self.0.withdraw()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn repeats_are_a_share_of_requests_and_a_floor() {
        let budget = RetryBudget::default();
        let withdrawn = |budget: &RetryBudget| (0..1000).take_while(|_| budget.withdraw()).count();
        assert_eq!(withdrawn(&budget), 10, "the floor of ten seconds");
        (0..500).for_each(|_| budget.deposit());
        assert_eq!(withdrawn(&budget), 100, "a fifth of the requests");
    }
}
