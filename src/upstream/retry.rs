//! When to try an upstream again before anything was sent to the client: a pure policy.
//!
//! Retries are brief on purpose: they end before the head of a stream is committed, so that the status the client sees is
//! true, and OpenClaw repeats a 5xx on its own for 90 seconds.

use std::time::Duration;

/// Retries of one request.
#[derive(Clone, Copy, Debug)]
pub struct RetryPolicy {
    /// All retries together take no longer than this.
    pub within: Duration,
}

const FIRST: Duration = Duration::from_millis(100);

impl RetryPolicy {
    /// At most 1.5 s, and always before `commit_after`.
    pub fn before(commit_after: Duration) -> Self {
        Self { within: Duration::from_millis(1500).min(commit_after.mul_f32(0.75)) }
    }

    /// How long to wait before retry number `retry` (from 0); `None`: give up. `elapsed`: since the first attempt began.
    /// `retry_after`: what the upstream asked for.
    pub fn wait(&self, retry: u32, elapsed: Duration, retry_after: Option<Duration>) -> Option<Duration> {
        let wait = FIRST.saturating_mul(1 << retry.min(8)).max(retry_after.unwrap_or_default());
        (elapsed + wait < self.within).then_some(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_end_before_the_head_is_committed() {
        let policy = RetryPolicy::before(Duration::from_secs(2));
        let mut elapsed = Duration::ZERO;
        let mut retries = 0;
        while let Some(wait) = policy.wait(retries, elapsed, None) {
            elapsed += wait;
            retries += 1;
        }
        assert_eq!((retries, elapsed), (3, Duration::from_millis(700)));
        assert_eq!(policy.wait(0, Duration::from_millis(1450), None), None);
        assert_eq!(
            policy.wait(0, Duration::ZERO, Some(Duration::from_secs(5))),
            None,
            "asked to stay away for longer"
        );
        assert!(
            RetryPolicy::before(Duration::from_millis(200))
                .wait(0, Duration::from_millis(60), None)
                .is_none()
        );
    }
}
