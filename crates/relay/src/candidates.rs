//! The upstreams that may answer one request: chooses the next one, and waits for a place there. Called by
//! `exchange` and `forward`, which send.

use std::sync::Arc;
use std::time::Duration;

use upstream::{Load, OutcomeReport, QueueClient, Upstream, UpstreamError, UpstreamPlace, choose_upstream};
use wire::{ApiError, ErrorCode};

/// The upstreams of one request, and which of them were asked.
#[derive(Debug)]
pub(super) struct Candidates {
    /// The conversation's own upstream first.
    order: Arc<[Arc<Upstream>]>,
    /// `None`: the request takes no place.
    who: Option<QueueClient>,
    /// The progress with each of them.
    progress: Vec<CandidateProgress>,
    /// Is asked after all others, because it broke off in the middle of its reply.
    passed_over: Option<usize>,
}

/// The progress with one upstream.
#[derive(Clone, Copy, Debug, Default)]
struct CandidateProgress {
    /// Asked in this round.
    asked: bool,
    /// Sent a request in any round.
    tried: bool,
}

/// An upstream that admits the request, and the place there.
#[derive(Debug)]
pub(super) struct AdmittedUpstream {
    pub(super) upstream: Arc<Upstream>,
    pub(super) place: Option<UpstreamPlace>,
    pub(super) report: OutcomeReport,
    /// How long it waited for the place.
    pub(super) queued: Duration,
}

impl Candidates {
    /// Returns the candidates. `order`: the upstreams that may be asked, the conversation's own one first.
    /// `who`: the client on whose behalf a place is taken.
    pub(super) fn new(order: Arc<[Arc<Upstream>]>, who: Option<QueueClient>) -> Self {
        let progress = vec![CandidateProgress::default(); order.len()];
        Self { order, who, progress, passed_over: None }
    }

    /// Passes over an upstream that broke off in the middle of its reply: the others are asked before it.
    pub(super) fn pass_over(&mut self, broken: &Arc<Upstream>) {
        self.passed_over = self.order.iter().position(|upstream| Arc::ptr_eq(upstream, broken));
        if let Some(at) = self.passed_over {
            self.progress[at].asked = true;
        }
    }

    /// Returns the client on whose behalf places are taken.
    pub(super) fn who(&self) -> Option<QueueClient> {
        self.who
    }

    /// Returns true when an upstream is left that was not asked in this round.
    pub(super) fn has_another(&self) -> bool {
        self.passed_over.is_some() || self.choose_next().is_some()
    }

    /// Returns the next upstream; `None` when all were asked.
    ///
    /// # Errors
    /// When the upstream is full, and so is its queue; also its name.
    pub(super) async fn next(
        &mut self,
    ) -> Option<Result<AdmittedUpstream, (Arc<Upstream>, Box<UpstreamError>)>> {
        while let Some(at) = self.choose_next().or_else(|| self.come_back()) {
            self.progress[at].asked = true;
            let upstream = Arc::clone(&self.order[at]);
            let (place, queued) = match self.who {
                None => (None, Duration::ZERO),
                Some(who) => match upstream.wait_for_place(who).await {
                    Ok((place, queued)) => (Some(place), queued),
                    Err(full) => return Some(Err((upstream, full))),
                },
            };
            // It failed while this request was in its queue, and another one works.
            if !upstream.state.admits() && self.loads().iter().any(|load| load.admits && !load.asked) {
                continue;
            }
            self.progress[at].tried = true;
            let report = upstream.begin_request();
            return Some(Ok(AdmittedUpstream { upstream, place, report, queued }));
        }
        None
    }

    /// Returns how many different upstreams were sent a request.
    pub(super) fn tried_count(&self) -> u32 {
        u32::try_from(self.progress.iter().filter(|past| past.tried).count()).unwrap_or(u32::MAX)
    }

    /// Begins a round, in which all may be asked again.
    pub(super) fn begin_round(&mut self) {
        self.progress.iter_mut().for_each(|past| past.asked = false);
        self.passed_over = None;
    }

    fn come_back(&mut self) -> Option<usize> {
        let at = self.passed_over.take()?;
        self.progress[at].asked = false;
        self.choose_next()
    }

    fn choose_next(&self) -> Option<usize> {
        if let [only] = self.progress[..] {
            return (!only.asked).then_some(0);
        }
        choose_upstream(&self.loads())
    }

    fn loads(&self) -> Vec<Load> {
        let load = |(upstream, past): (&Arc<Upstream>, &CandidateProgress)| {
            let load = upstream.state.load(past.asked);
            if self.who.is_some() { load } else { Load { wait: Duration::ZERO, ..load } }
        };
        self.order.iter().zip(&self.progress).map(load).collect()
    }
}

/// Returns the error of a request that no upstream could be asked for.
pub(super) fn no_upstream() -> Box<UpstreamError> {
    Box::new(UpstreamError::new_broken("", 503, ErrorCode::NoUpstream, "is not there", ""))
}

/// Returns the more informative of two failures: a full queue, for it says when to come back (the one that
/// clears first); anything but an unknown model, for the other upstream knew it; else the later one.
pub(super) fn more_informative(earlier: Box<UpstreamError>, later: Box<UpstreamError>) -> Box<UpstreamError> {
    let (before, after) = (&earlier.error, &later.error);
    let soon = |error: &ApiError| error.retry_after.unwrap_or(u64::MAX);
    let keep = match (before.status, after.status) {
        (429, 429) => soon(before) <= soon(after),
        (status, other) => status == 429 || (other == 404 && status != 404),
    };
    if keep { earlier } else { later }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;
    use upstream::UpstreamConfig;

    fn check(earlier: (u16, Option<u64>), later: (u16, Option<u64>), expected: (u16, Option<u64>)) {
        let error = |(status, retry_after)| {
            let mut error = UpstreamError::from_answer("box", status, "");
            error.error.retry_after = retry_after;
            Box::new(error)
        };
        let error = more_informative(error(earlier), error(later)).error;
        assert_eq!((error.status, error.retry_after), expected);
    }

    #[test]
    fn the_more_informative_failure() {
        check((429, Some(7)), (429, Some(3)), (429, Some(3)));
        check((429, Some(3)), (429, Some(7)), (429, Some(3)));
        check((429, None), (429, Some(7)), (429, Some(7)));
        check((429, Some(3)), (503, None), (429, Some(3)));
        check((503, None), (429, Some(3)), (429, Some(3)));
        check((503, None), (404, None), (503, None));
        check((404, None), (503, None), (503, None));
        check((503, None), (500, None), (500, None));
    }

    /// An upstream with a single place; nothing is sent to it.
    fn upstream(name: &str) -> Arc<Upstream> {
        let config =
            UpstreamConfig { name: name.into(), max_concurrency: Some(1), ..UpstreamConfig::default() };
        Arc::new(Upstream::new(&config).unwrap())
    }

    #[tokio::test]
    async fn a_broken_upstream_is_asked_last() {
        let order: Arc<[_]> = [upstream("a"), upstream("b")].into();
        let mut candidates = Candidates::new(Arc::clone(&order), Some(QueueClient::default()));
        candidates.pass_over(&order[0]);
        for expected in ["b", "a"] {
            assert!(candidates.has_another());
            let admitted = candidates.next().await.unwrap().unwrap();
            assert_eq!(admitted.upstream.name, expected);
        }
        assert!(!candidates.has_another());
        assert!(candidates.next().await.is_none(), "each is asked once");
    }

    #[tokio::test]
    async fn a_request_leaves_a_failing_queue() {
        let order: Arc<[_]> = [upstream("a"), upstream("b")].into();
        let who = QueueClient { client: 1, conversation: 1, ..QueueClient::default() };
        let [at_a, at_b] =
            [order[0].wait_for_place(who).await.unwrap(), order[1].wait_for_place(who).await.unwrap()];
        let mut longer_at_b = Box::pin(order[1].wait_for_place(who));
        assert!(longer_at_b.as_mut().now_or_never().is_none());
        let mut candidates = Candidates::new(Arc::clone(&order), Some(who));
        let mut next = Box::pin(candidates.next());
        assert!(next.as_mut().now_or_never().is_none());
        assert_eq!(order[0].state.circuit_report().2, 1, "it waits at its own upstream");
        (0..3).for_each(|_| order[0].begin_request().report_failure("refused"));
        drop((at_b, longer_at_b, at_a));
        let admitted = next.await.unwrap().unwrap();
        assert_eq!((admitted.upstream.name.as_str(), order[0].state.circuit_report().1), ("b", 0));
        assert!(candidates.next().await.is_none(), "the one that fails is not asked");
    }
}
