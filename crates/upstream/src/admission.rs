//! Admits a request to an upstream, and reports its outcome to the circuit. Called by `relay` and `server`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::circuit::CircuitChange;
use super::client::Upstream;
use super::failure::{Tier, UpstreamError};
use super::gate::UpstreamPlace;
use super::priority::Priority;
use super::queue::QueueClient;
use super::response::UpstreamResult;
use super::state::runtime_time;
use wire::ErrorCode;

impl Upstream {
    /// Waits for a place, and returns the time that took.
    ///
    /// # Errors
    /// 429 when the queue is full.
    pub async fn wait_for_place(&self, who: QueueClient) -> UpstreamResult<(UpstreamPlace, Duration)> {
        let gate = &self.state.gate;
        let (place, waited) =
            gate.enter(who).await.map_err(|full| self.full_error(full.taken, full.waiting, full.wait))?;
        if gate.is_bounded() {
            self.state.series.queue.record(waited.as_secs_f64());
        }
        Ok((place, waited))
    }

    /// Waits until a request that is more urgent than `priority` lines up for a place here.
    pub async fn wait_for_more_urgent(&self, priority: Priority) {
        self.state.gate.wait_for_more_urgent(priority).await;
    }

    /// The error of a request that has waited for a place for as long as it may.
    pub fn stayed_busy(&self, waited: Duration) -> UpstreamError {
        let what = format!("had no free place within {} s (`fallback_after`)", waited.as_secs_f64());
        let mut busy = UpstreamError::new_broken(&self.name, 429, ErrorCode::QueueFull, &what, "");
        busy.tier = Tier::Rejected;
        busy
    }

    fn full_error(&self, taken: usize, waiting: usize, wait: Duration) -> UpstreamError {
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        let seconds = seconds.max(1);
        let what = format!(
            "is full: {taken} in progress and {waiting} waiting (`max_concurrency`, `max_queue`); \
             try again in {seconds} s"
        );
        let mut full = UpstreamError::new_broken(&self.name, 429, ErrorCode::QueueFull, &what, "");
        full.tier = Tier::Rejected;
        full.error.retry_after = Some(seconds);
        full
    }

    /// Notes that a request is sent. The returned report expects its outcome.
    pub fn begin_request(self: &Arc<Self>) -> OutcomeReport {
        let began = runtime_time();
        let probe = self.state.lock_circuit().begin_request(began);
        OutcomeReport { upstream: Arc::clone(self), probe, began }
    }

    fn report_change(&self, change: CircuitChange, why: &str) {
        let series = &self.state.series;
        match change {
            CircuitChange::Opened => {
                series.open.set(1.0);
                series.ejections.increment(1);
                tracing::warn!(
                    target: "respool::upstream",
                    upstream = self.name,
                    last = why,
                    "this upstream fails: until it works again, requests go to others that serve their model, or wait, or fail"
                );
            }
            CircuitChange::Closed => {
                series.open.set(0.0);
                tracing::info!(target: "respool::upstream", upstream = self.name, "this upstream works again");
            }
        }
    }
}

/// Reports the outcome of one request to the circuit. Dropped without an outcome it counts for nothing.
#[derive(Debug)]
pub struct OutcomeReport {
    upstream: Arc<Upstream>,
    probe: bool,
    began: Instant,
}

impl OutcomeReport {
    /// Returns true for an error that says that the upstream takes no request of respool.
    pub fn is_own_key_refused(&self, error: &UpstreamError) -> bool {
        self.upstream.is_own_key_refused(error)
    }

    /// Reports an answer, which may be a refusal. Returns true if the upstream had failed before.
    pub fn report_success(mut self) -> bool {
        self.probe = false;
        let change = self.upstream.state.lock_circuit().record_success();
        change.inspect(|change| self.upstream.report_change(*change, "")).is_some()
    }

    /// Reports a failure of the upstream, with a reason for the log. One of before the upstream came back
    /// counts for nothing: a request that hangs fails long after that.
    pub fn report_failure(mut self, why: &str) {
        if self.upstream.state.is_back_since(self.began) {
            return;
        }
        let change = self.upstream.state.lock_circuit().record_failure(runtime_time(), self.probe);
        self.probe = false;
        if let Some(change) = change {
            self.upstream.report_change(change, why);
        }
    }
}

impl Drop for OutcomeReport {
    fn drop(&mut self) {
        if self.probe {
            self.upstream.state.lock_circuit().abandon_trial(runtime_time());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::UpstreamConfig;
    use crate::listed_model::NoModelList;
    use bytes::Bytes;
    use http::StatusCode;

    /// A key without the right to list models may still use them.
    #[tokio::test]
    async fn a_refused_key_gets_no_new_requests() {
        let upstream = Upstream::new(&UpstreamConfig::default()).unwrap();
        for (status, expected) in [(StatusCode::UNAUTHORIZED, false), (StatusCode::FORBIDDEN, true)] {
            upstream.state.note_list(Err(&NoModelList::KeyRefused(status, Bytes::new())));
            assert_eq!(upstream.state.admits(), expected, "{status}");
        }
    }

    /// Requests that had hung failed after their server was back, and opened its circuit then.
    #[tokio::test]
    async fn failures_of_before_an_outages_end_do_not_count() {
        let upstream = Arc::new(Upstream::new(&UpstreamConfig::default()).unwrap());
        let begin = || (0..20).map(|_| upstream.begin_request()).collect::<Vec<_>>();
        let circuit = || upstream.state.lock_circuit().as_str();
        let hanging = begin();
        upstream.state.note_list(Err(&NoModelList::Silent(Duration::from_secs(5))));
        upstream.state.note_list(Ok(&[]));
        hanging.into_iter().for_each(|report| report.report_failure("it did not answer"));
        assert_eq!(circuit(), "closed");
        begin().into_iter().for_each(|report| report.report_failure("HTTP 500"));
        assert_eq!(circuit(), "open");
    }
}
