//! Executes what `decide` says for one request: makes attempts (`sending`), waits, looks up what the next
//! decision depends on (`changes`), and gives what leaves (`conclusion`). The same loop serves whole replies,
//! streams (which come back here when they break) and agents.

mod changes;
mod conclusion;
mod sending;
mod standing_in;
mod state;

use std::sync::Arc;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::time::{Instant, sleep};

pub(super) use self::sending::finding_of;
pub(super) use self::state::{Exchange, ExchangeReply};
use super::client::WaitEnd;
use super::decide::{
    Change, Decision, Known, LONGEST_UNCOUNTED_PAUSE, Lookup, NextAttempt, RetryTarget, RetryTime, decide,
};
use super::outcome::Finding;
use translate::Salvage;
use upstream::{Failure, Health, RepeatPermit, Upstream, UpstreamError};
use wire::ApiError;
use wire::turn::Usage;

impl Exchange {
    /// Attempts until there is a reply.
    ///
    /// # Errors
    /// The error that the client gets.
    pub(super) async fn run(&mut self) -> Result<ExchangeReply, ApiError> {
        loop {
            let decision = self.decide_next().await;
            if let Some(reason) = self.fallback_reason(&decision)
                && Box::pin(self.fall_back(reason)).await
            {
                continue;
            }
            match decision {
                Decision::Deliver(place) => return Ok(self.deliver_reply(place)),
                Decision::Fail | Decision::LookUp(_) => {
                    if let Some(upstream) = self.history.upstream_without_model() {
                        // The error names those that it has.
                        Box::pin(upstream.learn_models(&self.request.outgoing.headers)).await;
                    }
                    return Err(self.final_error());
                }
                Decision::Attempt(next) => {
                    self.record_retry(&next);
                    if let Some(current) = self.current.as_mut().filter(|_| next.place != RetryTarget::Same) {
                        // A request that waits does not hold a place at an upstream.
                        current.queue_place = None;
                    }
                    if next.when != RetryTime::Now && !Box::pin(self.wait_for_attempt(next.when)).await {
                        continue;
                    }
                    self.begin_round(&next);
                    if let Some(stream) = self.make_attempt(next).await {
                        return Ok(ExchangeReply::Stream(stream));
                    }
                }
            }
        }
    }

    /// Asks again, if that may help, after a stream that turned out to be useless.
    ///
    /// # Errors
    /// The error that the client gets.
    pub(super) async fn reconsider(
        &mut self,
        finding: Finding,
        usage: Option<Usage>,
        error: Option<Box<UpstreamError>>,
    ) -> Result<ExchangeReply, ApiError> {
        self.expects_stream = true;
        // Of earlier streams nothing was kept.
        for past in &mut self.history.attempts {
            if let Finding::Mistake(_, salvage) = &mut past.finding {
                *salvage = Salvage::Nothing;
            }
        }
        if let Some(last) = self.history.attempts.last_mut() {
            (last.finding, last.usage, last.error) = (finding, usage, error);
        }
        self.run().await
    }

    async fn decide_next(&mut self) -> Decision {
        let mut known = Known {
            has_spoken: self.has_spoken,
            another_upstream: self.history.last().is_some() && self.candidates.has_another(),
            has_recent_success: self
                .history
                .last()
                .is_some_and(|last| last.upstream.state.has_recent_success()),
            steps: self.request.history.steps,
            ..Known::default()
        };
        loop {
            let limits = self.recovery_limits();
            match decide(&self.history, &known, &limits, self.request.received.elapsed()) {
                // Boxed as it is rare: every request pays for the size of its future.
                Decision::LookUp(lookup) => Box::pin(self.look_up(lookup, &mut known)).await,
                decision => return decision,
            }
        }
    }

    async fn look_up(&mut self, lookup: Lookup, known: &mut Known) {
        let upstream = self.history.last().map(|last| Arc::clone(&last.upstream));
        match lookup {
            Lookup::Budget => {
                known.budget =
                    Some(upstream.map_or(RepeatPermit::Denied, |upstream| upstream.state.withdraw_repeat()));
            }
            Lookup::Health => {
                let since = Instant::now();
                known.health = Some(match upstream {
                    Some(upstream) => upstream.health_since(since).await,
                    None => Health::Down,
                });
            }
            Lookup::Remedy => known.remedy = Some(self.remedy().unwrap_or(Change::Nothing)),
            Lookup::Smaller => {
                known.smaller = Some(Box::pin(self.next_smaller()).await.unwrap_or(Change::Nothing));
            }
            Lookup::Adaptation => known.adaptation = Some(self.next_adaptation().await),
        }
    }

    /// Waits before an attempt; false when the upstream did not come back.
    async fn wait_for_attempt(&mut self, when: RetryTime) -> bool {
        let began = Instant::now();
        let is_up = match when {
            RetryTime::Now => return true,
            RetryTime::After(pause)
                if pause <= LONGEST_UNCOUNTED_PAUSE
                    && self.history.last_failure() != Some(Failure::Limited) =>
            {
                sleep(pause).await;
                return true;
            }
            RetryTime::After(pause) => {
                let _recorded =
                    self.request.record.begin_wait("the server failed: waiting to ask it again", pause);
                let _waiting = self
                    .request
                    .progress
                    .begin_waiting(self.history.reason_to_wait(WaitEnd::At(began + pause)));
                sleep(pause).await;
                true
            }
            RetryTime::Up(longest) => {
                let until = began + longest;
                let _recorded = self.request.record.begin_wait("the server is down: waiting for it", longest);
                let _waiting =
                    self.request.progress.begin_waiting(self.history.reason_to_wait(WaitEnd::Before(until)));
                let down = self.down_upstreams().await;
                for upstream in &down {
                    tracing::info!(
                        target: "respool::upstream",
                        request_id = self.request.record.start().id,
                        upstream = upstream.name,
                        "the upstream is down: this request waits for it (`recovery.wait_for_upstream`)"
                    );
                }
                let mut recoveries: FuturesUnordered<_> =
                    down.iter().map(|upstream| upstream.wait_until_up(until)).collect();
                loop {
                    match recoveries.next().await {
                        Some(true) => break true,
                        Some(false) => {}
                        None => break false,
                    }
                }
            }
        };
        let waited = if is_up {
            began.elapsed()
        } else {
            began.elapsed().max(self.recovery_limits().wait_for_upstream)
        };
        self.history.waited += waited;
        is_up
    }

    /// The upstreams that a request waits for: that of the last attempt, and the others that are down as
    /// well.
    async fn down_upstreams(&self) -> Vec<Arc<Upstream>> {
        let mut down: Vec<Arc<Upstream>> = Vec::new();
        for past in self.history.attempts.iter().rev().filter(|past| past.round == self.history.round) {
            let is_down = match past.finding {
                _ if down.is_empty() => true,
                Finding::Failed(Failure::Unreachable, _) => true,
                Finding::Failed(Failure::Unavailable | Failure::GatewayTimeout, _) => {
                    past.upstream.health_since(Instant::now()).await == Health::Down
                }
                _ => false,
            };
            if is_down && !down.iter().any(|known| Arc::ptr_eq(known, &past.upstream)) {
                down.push(Arc::clone(&past.upstream));
            }
        }
        down
    }

    fn record_retry(&self, next: &NextAttempt) {
        let Some(last) = self.history.last() else { return };
        let error = || self.history.last_error();
        match (&next.change, next.place) {
            (Change::Remedy(changed), _) => {
                if let Finding::Mistake(fault, _) = &last.finding {
                    let cost = last.usage.unwrap_or_default();
                    self.request.record.record_second_attempt(fault.name(), changed.remedy.name(), cost);
                }
            }
            (Change::Smaller(_), _) => self.request.record.record_repeat("context", error()),
            (Change::Adapt(rule), _) => self.request.record.record_repeat(rule.label(), error()),
            (Change::Nothing, RetryTarget::Next) => {
                last.upstream.state.count_failover();
                self.request.record.record_repeat("failover", error());
            }
            (Change::Nothing, _) => self.request.record.record_repeat("transient", error()),
        }
    }

    /// Lets all upstreams be asked again where the next attempt begins a round.
    fn begin_round(&mut self, next: &NextAttempt) {
        if next.place != RetryTarget::NewRound {
            return;
        }
        self.candidates.begin_round();
        let Some(last) = self.history.last() else { return };
        if matches!(last.finding, Finding::Failed(Failure::Broken, _)) {
            self.candidates.pass_over(&last.upstream);
        }
        self.history.round += u32::from(next.change == Change::Nothing);
    }
}
