//! Executes what `decide` says for one request: makes attempts (`sending`), waits, looks up what the next decision depends on
//! (`changes`), and gives what leaves (`conclusion`). The same loop serves whole replies, streams (which come back here when they
//! break) and agents.

mod changes;
mod conclusion;
mod sending;

use std::sync::Arc;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::time::{Instant, sleep};

pub(super) use self::sending::finding_of;
use super::attempt::Attempt;
use super::candidates::{Candidates, no_upstream};
use super::decide::{
    Change, Decision, Known, LONGEST_UNCOUNTED_PAUSE, Lookup, NextAttempt, Place, When, decide,
};
use super::outcome::{AttemptOutcome, Finding, History, Refusal, Whole};
use super::reply_stream::ReplyStream;
use super::request::ClientRequest;
use super::{Opened, Relay};
use adapt::Rule;
use translate::{Fault, ReplyRules, Shows};
use upstream::{
    Failure, Health, Place as QueuePlace, RepeatPermit, Upstream, UpstreamError, UpstreamResponse,
};
use wire::turn::Usage;
use wire::{ApiError, Pieces};

/// One request's attempts.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) relay: Arc<Relay>,
    pub(super) request: Arc<ClientRequest>,
    pub(super) history: History,
    candidates: Candidates,
    /// `None` before the first attempt.
    current: Option<Current>,
    /// Something of a reply has reached the client.
    pub(super) has_spoken: bool,
    /// A stream was begun, so that only another stream can take its place.
    expects_stream: bool,
    /// The rule that would avoid the last refusal, and that the owner has not allowed.
    withheld_rule: Option<Rule>,
}

/// What belongs to one attempt. The next one replaces it, and takes over what it has in common with it.
#[derive(Debug)]
struct Current {
    attempt: Attempt,
    /// Bytes of its body, which may have been let go.
    size: usize,
    /// Its place at the upstream. It keeps it while it is refused in one form and sent in another.
    queue_place: Option<QueuePlace>,
}

/// A reply, as the loop hands it over.
pub(super) enum ExchangeReply {
    /// A stream begins.
    Stream(Box<UpstreamResponse>),
    /// A whole reply.
    Whole(Whole),
    /// The current stream's own reply, for want of a better one.
    Current(Shows),
}

impl Relay {
    /// Answers a request, whichever way it has to go.
    ///
    /// # Errors
    /// The error that the client gets.
    pub async fn answer(self: Arc<Self>, request: Arc<ClientRequest>) -> Result<Opened, ApiError> {
        let mut exchange = Box::new(Exchange::new(self, request));
        if let Err(full) = Self::refuse_full(&exchange.request) {
            return Err(exchange.fail_with(&full));
        }
        match exchange.run().await? {
            ExchangeReply::Stream(answer) => {
                Ok(Opened::Stream(Box::new(ReplyStream::new(*answer, exchange))))
            }
            ExchangeReply::Whole(Whole::Reply(reply)) => Ok(Opened::Reply(reply)),
            ExchangeReply::Whole(Whole::Body(body)) => Ok(Opened::Body(body)),
            ExchangeReply::Current(_) => Err(exchange.fail_with(&no_upstream())),
        }
    }
}

impl Exchange {
    fn new(relay: Arc<Relay>, request: Arc<ClientRequest>) -> Self {
        let candidates = Candidates::new(Arc::clone(&request.upstreams), Some(request.who));
        Self {
            relay,
            request,
            history: History::default(),
            candidates,
            current: None,
            has_spoken: false,
            expects_stream: false,
            withheld_rule: None,
        }
    }

    /// Attempts until there is a reply.
    ///
    /// # Errors
    /// The error that the client gets.
    pub(super) async fn run(&mut self) -> Result<ExchangeReply, ApiError> {
        loop {
            match self.decision().await {
                Decision::Deliver(place) => return Ok(self.deliver(place)),
                Decision::Fail | Decision::LookUp(_) => return Err(self.fail()),
                Decision::Attempt(next) => {
                    self.record_retry(&next);
                    if let Some(current) = self.current.as_mut().filter(|_| next.place != Place::Same) {
                        // Nobody's place is held by one that waits.
                        current.queue_place = None;
                    }
                    if next.when != When::Now && !Box::pin(self.wait(next.when)).await {
                        continue;
                    }
                    self.begin_round(&next);
                    if let Some(stream) = self.attempt(next).await {
                        return Ok(ExchangeReply::Stream(stream));
                    }
                }
            }
        }
    }

    /// The stream of the last attempt did not turn out as it was to: asks again, if that may help.
    ///
    /// # Errors
    /// The error that the client gets.
    pub(super) async fn reconsider(
        &mut self,
        finding: Finding,
        usage: Option<Usage>,
        error: Option<UpstreamError>,
    ) -> Result<ExchangeReply, ApiError> {
        self.expects_stream = true;
        // Of earlier streams nothing was kept.
        for past in &mut self.history.attempts {
            if let Finding::Mistake(_, shows) = &mut past.finding {
                *shows = Shows::Nothing;
            }
        }
        if let Some(last) = self.history.attempts.last_mut() {
            (last.finding, last.usage, last.error) = (finding, usage, error);
        }
        self.run().await
    }

    async fn decision(&mut self) -> Decision {
        let mut known = Known {
            has_spoken: self.has_spoken,
            another_upstream: self.history.last().is_some() && self.candidates.has_another(),
            has_recent_success: self
                .history
                .last()
                .is_some_and(|last| last.upstream.state.has_recent_success()),
            steps: self.request.steps,
            ..Known::default()
        };
        loop {
            let limits = &self.request.settings.recovery;
            match decide(&self.history, &known, limits, self.request.received.elapsed()) {
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
            Lookup::Adaptation => known.adaptation = Some(self.next_adaptation()),
        }
    }

    /// Waits before an attempt; false when the upstream did not come back.
    async fn wait(&mut self, when: When) -> bool {
        let began = Instant::now();
        let is_up = match when {
            When::Now => return true,
            When::After(pause)
                if pause <= LONGEST_UNCOUNTED_PAUSE && self.last_failure() != Some(Failure::Limited) =>
            {
                sleep(pause).await;
                return true;
            }
            When::After(pause) => {
                let _waiting = self.request.progress.begin_waiting();
                sleep(pause).await;
                true
            }
            When::Up(longest) => {
                let _waiting = self.request.progress.begin_waiting();
                let until = began + longest;
                let down = self.down_upstreams().await;
                for upstream in &down {
                    tracing::info!(
                        target: "respool::upstream",
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
            began.elapsed().max(self.request.settings.recovery.wait_for_upstream)
        };
        self.history.waited += waited;
        self.request.record.waited(began.elapsed());
        is_up
    }

    /// The upstreams that a request waits for: that of the last attempt, and the others that are down as well.
    async fn down_upstreams(&self) -> Vec<Arc<Upstream>> {
        let mut down: Vec<Arc<Upstream>> = Vec::new();
        for past in self.history.attempts.iter().rev().filter(|past| past.round == self.history.round) {
            let is_down = match past.finding {
                _ if down.is_empty() => true,
                Finding::Failed(Failure::Absent, _) => true,
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

    fn last_failure(&self) -> Option<Failure> {
        match self.history.last()?.finding {
            Finding::Failed(failure, _) => Some(failure),
            _ => None,
        }
    }

    fn record_retry(&self, next: &NextAttempt) {
        let Some(last) = self.history.last() else { return };
        match (&next.change, next.place) {
            (Change::Remedy(changed), _) => {
                if let Finding::Mistake(fault, _) = &last.finding {
                    let cost = last.usage.unwrap_or_default();
                    self.request.record.asks_again(fault.name(), changed.remedy.name(), cost);
                }
            }
            (Change::Smaller(_), _) => self.request.record.repeats("context"),
            (Change::Adapt(rule), _) => self.request.record.repeats(rule.label()),
            (Change::Nothing, Place::Next) => {
                last.upstream.state.count_failover();
                self.request.record.repeats("failover");
            }
            (Change::Nothing, _) => self.request.record.repeats("transient"),
        }
    }

    /// Lets all upstreams be asked again where the next attempt begins a round.
    fn begin_round(&mut self, next: &NextAttempt) {
        if next.place != Place::NewRound {
            return;
        }
        self.candidates.begin_round();
        let Some(last) = self.history.last() else { return };
        if matches!(last.finding, Finding::Failed(Failure::Broken, _)) {
            self.candidates.pass_over(&last.upstream);
        }
        self.history.round += u32::from(next.change == Change::Nothing);
    }

    /// What a reply with this fault means for the attempt.
    pub(super) fn finding_of_fault(
        &self,
        fault: Fault,
        shows: Shows,
        usage: Option<Usage>,
    ) -> (Finding, Option<UpstreamError>) {
        match self.filled_window(&fault, usage) {
            Some(error) => (Finding::Refused(Refusal::TooLarge), Some(error)),
            None => (Finding::Mistake(fault, shows), None),
        }
    }

    /// The error of a useless reply whose prompt has filled the window.
    pub(super) fn filled_window(&self, fault: &Fault, usage: Option<Usage>) -> Option<UpstreamError> {
        let upstream = &self.current.as_ref()?.attempt.upstream;
        self.request.filled_window(upstream, fault, usage)
    }

    /// True when a reply that was cut after so many tokens has filled the window.
    pub(super) fn fills_window(&self, usage: Option<Usage>) -> bool {
        let of_current = self.current.as_ref().zip(usage);
        of_current.is_some_and(|(Current { attempt, .. }, usage)| self.request.fills_window(attempt, usage))
    }

    /// Learns from a reply's usage how many bytes of a request make a token.
    pub(super) fn learn_usage(&self, usage: Option<Usage>) {
        let Some((Current { attempt, size, .. }, usage)) = self.current.as_ref().zip(usage) else { return };
        if !attempt.fit.is_trimmed() {
            attempt.upstream.learn_usage(&self.request.target_model, *size, usage.prompt);
        }
    }

    /// A reply has reached the client, so nothing is sent again: the request's bytes are let go. A stream may last for an hour,
    /// and holds the buffers that they came in.
    pub(super) fn release_bytes(&mut self) {
        if let Some(current) = &mut self.current {
            current.attempt.upstream.state.count_useful_reply();
            (current.attempt.body, current.attempt.changed) = (Pieces::default(), None);
        }
        // Nobody else has it, except for a moment.
        if let Some(request) = Arc::get_mut(&mut self.request) {
            request.release_bytes();
        }
    }

    /// Notes what the current attempt came to; the caller adds what else is known of it to the returned outcome.
    fn conclude(&mut self, upstream: Arc<Upstream>, finding: Finding) -> &mut AttemptOutcome {
        let is_changed = self.current.as_ref().is_some_and(|current| current.attempt.is_changed());
        let History { attempts, round, .. } = &mut self.history;
        let (round, place) = (*round, attempts.len());
        let (error, usage, reply) = (None, None, None);
        // Most requests have one attempt.
        attempts.reserve_exact(1);
        attempts.push(AttemptOutcome { upstream, finding, round, is_changed, error, usage, reply });
        &mut attempts[place]
    }

    /// What the request says about the reply of the current attempt.
    pub(super) fn reply_rules(&self) -> ReplyRules {
        ReplyRules { token_limit: self.token_limit(), ..self.request.rules.clone() }
    }

    /// The limit on the reply of the current attempt, in tokens.
    pub(super) fn token_limit(&self) -> Option<u64> {
        self.current.as_ref().and_then(|current| current.attempt.token_limit)
    }

    /// The tokens of earlier attempts that a live reply's own are added to.
    pub(super) fn spent(&self) -> Usage {
        let spent = self.history.spent_before_last();
        let reads_context = self.request.facts.program.reads_prompt_as_context();
        if reads_context { Usage { prompt: 0, ..spent } } else { spent }
    }
}
