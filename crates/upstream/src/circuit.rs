//! The circuit of one upstream: closed while it works; open after several failures in a row; then, one
//! request at a time tries whether it works again. Pure: time comes in as a value. `relay` decides what
//! counts as a failure.

use std::time::{Duration, Instant};

/// The number of failures in a row that open the circuit.
const FAILURES: u32 = 3;
/// The pause before the first trial. It doubles with each trial that fails.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause: OpenClaw repeats a failed request for 65 to 90 s, and must find a server that is back
/// within that time.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);
/// A request that waits for an open circuit waits at least this long.
const SHORTEST_PAUSE: Duration = Duration::from_millis(200);

/// Whether an upstream works, as far as its answers show.
#[derive(Debug, Default)]
pub(super) struct Circuit(CircuitState);

#[derive(Debug)]
enum CircuitState {
    Closed { failures: u32 },
    Open { until: Instant, pause: Duration },
    HalfOpen { pause: Duration },
}

impl Default for CircuitState {
    fn default() -> Self {
        Self::Closed { failures: 0 }
    }
}

/// A change that operators want to know of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CircuitChange {
    /// It failed too often in a row.
    Opened,
    /// It works again.
    Closed,
}

impl Circuit {
    /// Returns true if requests may be sent, or the time for a trial has come.
    pub(super) fn admits(&self, now: Instant) -> bool {
        match self.0 {
            CircuitState::Closed { .. } => true,
            CircuitState::Open { until, .. } => now >= until,
            CircuitState::HalfOpen { .. } => false,
        }
    }

    /// Returns the time until it lets a request through; zero if it is closed. During a trial another
    /// request waits again.
    pub(super) fn next_trial(&self, now: Instant) -> Duration {
        match self.0 {
            CircuitState::Closed { .. } => Duration::ZERO,
            CircuitState::Open { until, .. } => until.saturating_duration_since(now).max(SHORTEST_PAUSE),
            CircuitState::HalfOpen { pause } => pause,
        }
    }

    /// Notes that a request is sent. Returns true if it is the trial, during which no other may be sent.
    pub(super) fn begin_request(&mut self, now: Instant) -> bool {
        match self.0 {
            CircuitState::Open { until, pause } if now >= until => {
                self.0 = CircuitState::HalfOpen { pause };
                true
            }
            _ => false,
        }
    }

    /// Records an answer to any request.
    pub(super) fn record_success(&mut self) -> Option<CircuitChange> {
        let was_open = !matches!(self.0, CircuitState::Closed { .. });
        self.0 = CircuitState::default();
        was_open.then_some(CircuitChange::Closed)
    }

    /// Counts a failed request; `trial`: the answer of [`Circuit::begin`] for it.
    pub(super) fn record_failure(&mut self, now: Instant, trial: bool) -> Option<CircuitChange> {
        match &mut self.0 {
            CircuitState::Closed { failures } => {
                *failures += 1;
                let opens = *failures >= FAILURES;
                if opens {
                    self.0 = CircuitState::Open { until: now + FIRST_PAUSE, pause: FIRST_PAUSE };
                }
                opens.then_some(CircuitChange::Opened)
            }
            CircuitState::HalfOpen { pause } if trial => {
                let pause = (*pause * 2).min(LONGEST_PAUSE);
                self.0 = CircuitState::Open { until: now + pause, pause };
                None
            }
            // Sent before it opened, or because there was no other upstream.
            _ => None,
        }
    }

    /// Records that the trial was dropped without an outcome, as when its client went away: the next request
    /// is the trial.
    pub(super) fn abandon_trial(&mut self, now: Instant) {
        if let CircuitState::HalfOpen { pause } = self.0 {
            self.0 = CircuitState::Open { until: now, pause };
        }
    }

    /// Says why an upstream is not simply used; `None` where it is.
    pub(super) fn describe_problem(&self, now: Instant) -> Option<&'static str> {
        match self.0 {
            CircuitState::Closed { .. } => None,
            CircuitState::Open { until, .. } if now < until => {
                Some("its requests fail, so it is left out for a moment")
            }
            CircuitState::Open { .. } => Some("its last requests failed; the next one tries it again"),
            CircuitState::HalfOpen { .. } => Some("its last requests failed; one tries it again now"),
        }
    }

    /// Returns its state in one word.
    pub(super) fn as_str(&self) -> &'static str {
        match self.0 {
            CircuitState::Closed { .. } => "closed",
            CircuitState::Open { .. } => "open",
            CircuitState::HalfOpen { .. } => "half_open",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A circuit that has just opened, and when.
    fn opened() -> (Circuit, Instant) {
        let (mut circuit, now) = (Circuit::default(), Instant::now());
        let changes: Vec<_> = (0..3).map(|_| circuit.record_failure(now, false)).collect();
        assert_eq!(changes, [None, None, Some(CircuitChange::Opened)]);
        (circuit, now)
    }

    #[test]
    fn failures_in_a_row_open_it() {
        let (mut circuit, now) = (Circuit::default(), Instant::now());
        for _ in 0..9 {
            assert_eq!(
                [
                    circuit.record_failure(now, false),
                    circuit.record_failure(now, false),
                    circuit.record_success()
                ],
                [None; 3]
            );
        }
        assert!(circuit.admits(now));
        let (circuit, now) = opened();
        assert!(!circuit.admits(now) && circuit.as_str() == "open");
        assert_eq!(circuit.describe_problem(now), Some("its requests fail, so it is left out for a moment"));
        assert_eq!(Circuit::default().describe_problem(now), None);
    }

    #[test]
    fn single_trials_follow_growing_pauses() {
        let (mut circuit, mut now) = opened();
        for pause in [1, 2, 4, 8, 15, 15] {
            let pause = Duration::from_secs(pause);
            assert!(!circuit.admits(now + pause.mul_f32(0.99)), "too early for {pause:?}");
            assert_eq!(circuit.next_trial(now), pause);
            now += pause;
            assert!(circuit.describe_problem(now).is_some_and(|problem| problem.contains("the next one")));
            assert!(circuit.admits(now) && circuit.begin_request(now), "the trial");
            assert!(!circuit.admits(now) && !circuit.begin_request(now), "only one");
            assert!(circuit.describe_problem(now).is_some_and(|problem| problem.contains("one tries it")));
            assert_eq!(
                circuit.record_failure(now, false),
                None,
                "another request says nothing about the trial"
            );
            assert_eq!(circuit.as_str(), "half_open");
            assert_eq!(circuit.record_failure(now, true), None, "reported once");
        }
        now += LONGEST_PAUSE;
        assert!(circuit.begin_request(now));
        assert_eq!(circuit.record_success(), Some(CircuitChange::Closed));
        assert!(circuit.admits(now) && !circuit.begin_request(now));
        assert_eq!(circuit.record_failure(now, false), None, "it starts anew");
    }

    #[test]
    fn a_trial_without_outcome_does_not_lock_it() {
        let (mut circuit, now) = opened();
        let now = now + FIRST_PAUSE;
        assert!(circuit.begin_request(now));
        circuit.abandon_trial(now);
        assert!(circuit.admits(now) && circuit.begin_request(now));
    }

    #[test]
    fn a_late_answer_closes_it() {
        let (mut circuit, _) = opened();
        assert_eq!(circuit.record_success(), Some(CircuitChange::Closed));
    }
}
