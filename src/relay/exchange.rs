//! Executes what `decide` says for one request: makes attempts, sends them, judges what comes back, waits, looks up what the
//! next decision depends on. The same loop serves whole replies, streams (which come back here when they break) and agents.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, header};
use tokio::time::{Instant, sleep, timeout_at};

use super::attempt::{Attempt, Changed};
use super::candidates::{Candidates, Seat, more_telling, no_upstream};
use super::completion;
use super::decide::{Change, Decision, Known, Limits, Lookup, Place, When, decide};
use super::fit::Fit;
use super::outcome::{AttemptOutcome, Finding, History, Refusal, Whole, with_efforts};
use super::record::{Record, Sent};
use super::reply_stream::ReplyStream;
use super::request::{ClientRequest, Route};
use super::{Opened, Relay};
use crate::observe::{SharedLine, TRACEPARENT};
use crate::translate::{Fault, Remedy, Reply, ReplyRules, Shows, Situation, learn_refusals, read_overflow};
use crate::turn::{FinishReason, Turn, Usage};
use crate::upstream::{
    Answer, Call, Failure, Health, Place as QueuePlace, Tier, Trial, Upstream, UpstreamError,
};
use crate::wire::{ApiError, ChatRequest, Pieces};

/// One request's attempts.
#[derive(Debug)]
pub(super) struct Exchange {
    relay: Arc<Relay>,
    pub(super) request: Arc<ClientRequest>,
    pub(super) record: Record,
    pub(super) history: History,
    candidates: Candidates,
    /// The request as a remedy changed it.
    changed: Option<Changed>,
    /// What the next attempt is to change, once it was looked up.
    planned: Planned,
    /// `None` before the first attempt.
    current: Option<Current>,
    /// Upstreams that refused a parameter of this request.
    learnt: Vec<Arc<Upstream>>,
    /// Something of a reply has reached the client.
    pub(super) has_spoken: bool,
    /// A stream was begun, so that only another stream can take its place.
    expects_stream: bool,
}

/// What belongs to one attempt. The next one replaces it, and takes over what it has in common with it.
#[derive(Debug)]
struct Current {
    attempt: Attempt,
    /// How it is made to fit the model's window.
    fit: Fit,
    /// Bytes of its body, which may have been let go.
    size: usize,
    /// Its place at the upstream. It keeps it while it is refused in one form and sent in another.
    queue_place: Option<QueuePlace>,
}

/// Changes that were looked up.
#[derive(Debug, Default)]
struct Planned {
    remedy: Option<Changed>,
    smaller: Option<Fit>,
}

/// A reply, as the loop hands it over.
pub(super) enum Got {
    /// A stream begins.
    Stream(Box<Answer>),
    /// A whole reply.
    Whole(Whole),
    /// The current stream's own reply, for want of a better one.
    Current(Shows),
}

/// An answer of one attempt, before it is known whether it is of any use.
enum Read {
    Stream(Box<Answer>),
    Whole(Whole, Option<Usage>, Option<(Fault, Shows)>),
}

impl Relay {
    /// Answers a request, whichever way it has to go.
    ///
    /// # Errors
    /// What the client is to be told.
    pub async fn answer(
        self: Arc<Self>,
        request: Arc<ClientRequest>,
        line: SharedLine,
    ) -> Result<Opened, ApiError> {
        let mut exchange = Box::new(Exchange::new(self, request, Record::new(line)));
        if let Err(full) = Self::refuse_full(&exchange.request) {
            return Err(exchange.fail_with(&full));
        }
        match exchange.run().await? {
            Got::Stream(answer) => Ok(Opened::Stream(Box::new(ReplyStream::new(*answer, exchange)))),
            Got::Whole(Whole::Reply(reply)) => Ok(Opened::Reply(reply)),
            Got::Whole(Whole::Body(body)) => Ok(Opened::Body(body)),
            Got::Current(_) => Err(exchange.fail_with(&no_upstream())),
        }
    }
}

impl Exchange {
    fn new(relay: Arc<Relay>, request: Arc<ClientRequest>, record: Record) -> Self {
        let candidates = Candidates::new(Arc::clone(&request.upstreams), Some(request.who));
        Self {
            relay,
            request,
            record,
            history: History::default(),
            candidates,
            changed: None,
            planned: Planned::default(),
            current: None,
            learnt: Vec::new(),
            has_spoken: false,
            expects_stream: false,
        }
    }

    fn limits(&self) -> Limits {
        let recovery = &self.request.settings.recovery;
        Limits {
            second_attempts: recovery.attempts,
            within: recovery.within,
            wait: recovery.wait_for_upstream,
        }
    }

    /// Attempts until there is a reply.
    ///
    /// # Errors
    /// What the client is to be told.
    pub(super) async fn run(&mut self) -> Result<Got, ApiError> {
        loop {
            match self.decision().await {
                Decision::Deliver(place) => return Ok(self.deliver(place)),
                Decision::Fail | Decision::LookUp(_) => return Err(self.fail()),
                Decision::Retry(change, place, when) => {
                    self.note_retry(change, place);
                    if when != When::Now && !Box::pin(self.wait(when)).await {
                        continue;
                    }
                    self.prepare(change, place);
                    if let Some(stream) = self.attempt(place).await {
                        return Ok(Got::Stream(stream));
                    }
                }
            }
        }
    }

    /// The stream of the last attempt did not turn out as it was to: asks again, if that may help.
    ///
    /// # Errors
    /// What the client is to be told.
    pub(super) async fn reconsider(
        &mut self,
        finding: Finding,
        usage: Option<Usage>,
        error: Option<UpstreamError>,
    ) -> Result<Got, ApiError> {
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
            ..Known::default()
        };
        let limits = self.limits();
        loop {
            match decide(&self.history, known, &limits, self.request.elapsed()) {
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
                known.budget = Some(upstream.is_some_and(|upstream| upstream.standing.may_repeat()));
            }
            Lookup::Health => {
                let since = Instant::now();
                known.health = Some(match upstream {
                    Some(upstream) => upstream.health_since(since).await,
                    None => Health::Down,
                });
            }
            Lookup::Remedy => {
                self.planned.remedy = self.remedy();
                known.remedy = Some(self.planned.remedy.is_some());
            }
            Lookup::Smaller => {
                self.planned.smaller = Box::pin(self.next_smaller()).await;
                known.smaller = Some(self.planned.smaller.is_some());
            }
            Lookup::Leaner => known.leaner = Some(self.learn_refused_parameters()),
        }
    }

    /// Waits before an attempt; false when the upstream did not come back.
    async fn wait(&mut self, when: When) -> bool {
        let began = Instant::now();
        let is_up = match when {
            When::Now => return true,
            // The pauses between repeats are short; only one that an upstream asked for counts as waiting.
            When::After(pause) if self.last_failure() != Some(Failure::Limited) => {
                sleep(pause).await;
                return true;
            }
            When::After(pause) => {
                let _waiting = self.request.waiting.begin();
                sleep(pause).await;
                true
            }
            When::Up(longest) => match self.history.last().map(|last| Arc::clone(&last.upstream)) {
                Some(upstream) => {
                    tracing::info!(
                        target: "respool::upstream",
                        upstream = upstream.name,
                        "the upstream is down: this request waits for it (`recovery.wait_for_upstream`)"
                    );
                    let _waiting = self.request.waiting.begin();
                    upstream.wait_until_up(began + longest).await
                }
                None => false,
            },
        };
        let waited = if is_up { began.elapsed() } else { began.elapsed().max(self.limits().wait) };
        self.history.waited += waited;
        self.record.waited(began.elapsed());
        is_up
    }

    fn last_failure(&self) -> Option<Failure> {
        match self.history.last()?.finding {
            Finding::Failed(failure, _) => Some(failure),
            _ => None,
        }
    }

    fn note_retry(&self, change: Change, place: Place) {
        let Some(last) = self.history.last() else { return };
        let remedy = self.planned.remedy.as_ref().map(|planned| planned.remedy.name());
        match (change, place) {
            (Change::Remedy, _) => self.record.asks_again(last, remedy.unwrap_or_default()),
            (Change::Smaller, _) => self.record.repeats("context"),
            (Change::Leaner, _) => self.record.repeats("refused_parameter"),
            (Change::Nothing, Place::Next) => {
                last.upstream.standing.count_failover();
                self.record.repeats("failover");
            }
            (Change::Nothing, _) => self.record.repeats("transient"),
        }
    }

    /// Makes ready what the next attempt is made from.
    fn prepare(&mut self, change: Change, place: Place) {
        let planned = std::mem::take(&mut self.planned);
        match change {
            Change::Remedy => self.changed = planned.remedy.or(self.changed.take()),
            Change::Smaller => {
                if let Some((current, smaller)) = self.current.as_mut().zip(planned.smaller) {
                    current.fit = smaller;
                }
            }
            Change::Nothing | Change::Leaner => {}
        }
        if place == Place::Anew {
            if !self.history.attempts.is_empty() && change == Change::Nothing {
                self.history.round += 1;
            }
            self.candidates.begin_round();
            if let Some(last) = self.history.last()
                && matches!(last.finding, Finding::Failed(Failure::Broken, _))
            {
                self.candidates.pass_over(&Arc::clone(&last.upstream));
            }
        }
        if let Some(current) = self.current.as_mut().filter(|_| place != Place::Same) {
            current.queue_place = None;
        }
    }

    /// Makes one attempt and notes what it came to; gives the stream, when it is one.
    async fn attempt(&mut self, place: Place) -> Option<Box<Answer>> {
        let (upstream, trial) = match self.choose(place).await {
            Ok(chosen) => chosen,
            Err((upstream, error)) => {
                self.conclude(upstream, Finding::Refused(Refusal::NotHere)).error = Some(error);
                return None;
            }
        };
        let read = self.read_in_time().await;
        // An attempt that was given up says nothing about its upstream.
        if let Some(read) = &read {
            self.relay.note(read.as_ref().err(), trial);
        }
        match read {
            None => {
                self.conclude(upstream, Finding::OutOfTime);
            }
            Some(Ok(Read::Stream(answer))) => {
                self.conclude(upstream, Finding::Useful);
                return Some(answer);
            }
            Some(Ok(Read::Whole(whole, usage, fault))) => {
                let (finding, error) = match fault {
                    None => (Finding::Useful, None),
                    Some((fault, shows)) => self.finding_of_fault(fault, shows, usage),
                };
                let outcome = self.conclude(upstream, finding);
                (outcome.reply, outcome.usage, outcome.error) = (Some(whole), usage, error);
            }
            Some(Err(error)) => {
                let finding = finding_of(&error, self.token_limit());
                self.conclude(upstream, finding).error = Some(error);
            }
        }
        None
    }

    /// The upstream of the next attempt; the attempt for it is the current one then.
    async fn choose(
        &mut self,
        place: Place,
    ) -> Result<(Arc<Upstream>, Trial), (Arc<Upstream>, UpstreamError)> {
        if let (Place::Same, Some(current)) = (place, &mut self.current) {
            let upstream = Arc::clone(&current.attempt.upstream);
            if self.learnt.iter().any(|learnt| Arc::ptr_eq(learnt, &upstream)) {
                current.attempt = Attempt::new(&self.request, self.changed.as_ref(), &upstream);
                current.size = current.attempt.body.len();
            }
            let trial = upstream.begin();
            return Ok((upstream, trial));
        }
        let Seat { upstream, place: queue_place, trial, queued } = match self.candidates.next().await {
            Some(seat) => seat?,
            None => return Err((Arc::clone(&self.request.first.upstream), no_upstream())),
        };
        self.record.asks(&upstream.name, self.candidates.tried(), queued);
        if self.history.attempts.is_empty() {
            upstream.standing.count_request();
        }
        let is_first = Arc::ptr_eq(&upstream, &self.request.first.upstream) && self.changed.is_none();
        let attempt = if is_first && self.learnt.is_empty() {
            self.request.first.clone()
        } else {
            // Boxed as it is rare: every request pays for the size of its future.
            Box::pin(upstream.probe_version()).await;
            Attempt::new(&self.request, self.changed.as_ref(), &upstream)
        };
        let size = attempt.body.len();
        self.current = Some(Current { attempt, fit: Fit::default(), size, queue_place });
        Ok((upstream, trial))
    }

    /// Sends the attempt; one that follows a mistake ends when `recovery.within` is over (`None`).
    async fn read_in_time(&mut self) -> Option<Result<Read, UpstreamError>> {
        let deadline = self.request.received + self.limits().within.min(Duration::from_hours(24));
        let has_deadline = self.history.mistakes() > 0;
        let work = Box::pin(self.send_and_read());
        if has_deadline { timeout_at(deadline, work).await.ok() } else { Some(work.await) }
    }

    async fn send_and_read(&mut self) -> Result<Read, UpstreamError> {
        let Some(current) = &mut self.current else { return Err(no_upstream()) };
        let sent = current.send(&self.request, &self.record).await;
        let attempt = &mut current.attempt;
        let model = &self.request.facts.model;
        if sent.is_ok() && !self.request.facts.model_is_known && attempt.upstream.knows_model(model) {
            self.record.serves(model);
        }
        attempt.token_limit = current.fit.lowered_limit(attempt.token_limit);
        let answer = sent.map_err(|error| Relay::as_overflow(attempt, error))?;
        let answer = answer.holding(current.queue_place.take());
        let upstream = Arc::clone(&attempt.upstream);
        self.read(answer, &upstream.name).await
    }

    async fn read(&self, answer: Answer, name: &str) -> Result<Read, UpstreamError> {
        let request = &self.request;
        let whole = match request.facts.route {
            Route::Plain => {
                let body = self.relay.json_body(answer, name).await?;
                let (body, usage) = completion::forwarded(body, name, &request.facts)?;
                self.learn_usage(usage);
                let fault = completion::fault_of_text(&body, request);
                // Its bytes are what the client asked for, blank or not.
                let fault = fault.map(|fault| (fault, Shows::Answer));
                return Ok(Read::Whole(Whole::Body(body), usage, fault));
            }
            Route::Tools => answer,
            Route::Live | Route::Stream => match answer.media_type().as_str() {
                "text/event-stream" => return Ok(Read::Stream(Box::new(answer))),
                "application/json" if !self.expects_stream => answer,
                other => return Err(Relay::not_a_stream(answer, other).await),
            },
        };
        let body = self.relay.json_body(whole, name).await?;
        self.record.content("upstream reply", &body);
        Ok(self.interpret(completion::parse(&body, name, &request.facts.keep)?))
    }

    fn interpret(&self, read: crate::wire::Completion) -> Read {
        self.learn_usage(read.usage);
        if let (Some((_, fingerprint)), Some(current)) =
            (read.tags.iter().find(|(key, _)| *key == "system_fingerprint"), &self.current)
        {
            current.attempt.upstream.learn_fingerprint(fingerprint);
        }
        let limit = self.token_limit();
        let reply = completion::read(read, &self.request, limit);
        let usage = reply.usage;
        let fault = Fault::of_reply(&reply).map(|fault| {
            let shows = fault.shows(&turns(&reply), &self.request.rules.tools);
            (fault, shows)
        });
        Read::Whole(Whole::Reply(Box::new(reply)), usage, fault)
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
        of_current.is_some_and(|(Current { attempt, fit, .. }, usage)| {
            self.request.fills_window(&attempt.upstream, *fit, usage)
        })
    }

    /// Learns from a reply's usage how many bytes of a request make a token.
    pub(super) fn learn_usage(&self, usage: Option<Usage>) {
        let Some((Current { attempt, fit, size, .. }, usage)) = self.current.as_ref().zip(usage) else {
            return;
        };
        if !fit.is_trimmed() {
            attempt.upstream.learn_usage(&self.request.target_model, *size, usage.prompt);
        }
    }

    /// A reply has reached the client, so nothing is sent again: the request's bytes are let go. A stream may last for an hour,
    /// and holds the buffers that they came in.
    pub(super) fn release_bytes(&mut self) {
        if let Some(current) = &mut self.current {
            current.attempt.body = Pieces::default();
        }
        self.changed = None;
        // Nobody else has it, except for a moment.
        if let Some(request) = Arc::get_mut(&mut self.request) {
            request.release_bytes();
        }
    }

    /// Notes what the current attempt came to; what else is known of it is added to what is given back.
    fn conclude(&mut self, upstream: Arc<Upstream>, finding: Finding) -> &mut AttemptOutcome {
        let is_changed = self.current.as_ref().is_some_and(|current| current.attempt.is_changed);
        self.history.conclude(upstream, finding, is_changed)
    }

    /// The change that may keep the model from its last mistake.
    fn remedy(&self) -> Option<Changed> {
        let (request, attempt) = (&self.request, &self.current.as_ref()?.attempt);
        let last = self.history.last()?;
        let Finding::Mistake(fault, _) = &last.finding else { return None };
        if !may_be_asked_again(fault, request) {
            return None;
        }
        let tools = &request.rules.tools;
        let situation = Situation {
            tools,
            is_free: request.is_free,
            is_raw: request.wants_raw,
            is_harmony: attempt.upstream.model_facts(&request.target_model).is_harmony,
            limit: request.rules.token_limit,
            room: last.usage.and_then(|usage| request.room(&attempt.upstream, usage.prompt)),
        };
        let remedy = Remedy::plan(fault, self.history.mistakes().saturating_sub(1), &situation)?;
        let version = attempt.upstream.target().version;
        let apply = |remedy: Remedy| {
            let body = remedy.apply(&request.body, rand::random(), version, tools)?;
            Some(Changed { remedy, body: body.into() })
        };
        apply(remedy).or_else(|| apply(Remedy::Repeat))
    }

    async fn next_smaller(&self) -> Option<Fit> {
        let Current { attempt, fit, .. } = self.current.as_ref()?;
        let error = self.history.last()?.error.as_ref()?;
        let sent = fit.apply(&attempt.body).body;
        let smaller = Relay::fit_again(*fit, &self.request, attempt, &sent.joined(), error).await?;
        (smaller.apply(&attempt.body).body != sent).then_some(smaller)
    }

    /// Remembers the parameters that the last error names, if they can be left out; tells whether that changes the request.
    fn learn_refused_parameters(&mut self) -> bool {
        let (Some(Current { attempt, .. }), Some(last)) = (&self.current, self.history.last()) else {
            return false;
        };
        let upstream = Arc::clone(&attempt.upstream);
        let Some(error) = last.error.as_ref().filter(|error| error.status == Some(400)) else { return false };
        if self.learnt.iter().any(|learnt| Arc::ptr_eq(learnt, &upstream)) {
            return false;
        }
        learn(&upstream, &self.request, error);
        self.learnt.push(Arc::clone(&upstream));
        // Another request may have learnt it meanwhile; what counts is that the request can be sent otherwise.
        Attempt::new(&self.request, self.changed.as_ref(), &upstream).body != attempt.body
    }

    fn deliver(&mut self, place: usize) -> Got {
        let is_useful = self.history.attempts.get(place).is_some_and(|past| past.finding == Finding::Useful);
        Record::rescue(self.history.last_fault(), is_useful);
        let shows = match self.history.attempts.get(place).map(|past| &past.finding) {
            Some(Finding::Mistake(_, shows)) => *shows,
            _ => Shows::Answer,
        };
        let usage = self.total_usage(self.history.last().and_then(|last| last.usage));
        match self.history.attempts.get_mut(place).and_then(|past| past.reply.take()) {
            None => Got::Current(shows),
            Some(Whole::Reply(mut reply)) => {
                if shows == Shows::CorrectableCall {
                    completion::add_correctable_calls(&mut reply, &self.request);
                }
                self.record.usage(reply.usage);
                let fills_window = self.fills_window(reply.usage);
                reply.usage = usage.or(reply.usage);
                for choice in &mut reply.choices {
                    choice.fills_window = fills_window && choice.turn.finish == Some(FinishReason::Length);
                    self.record.turn(&choice.turn);
                    self.request.remember(&choice.turn);
                }
                Got::Whole(Whole::Reply(reply))
            }
            Some(Whole::Body(body)) => {
                let last = self.history.attempts.get(place).and_then(|past| past.usage);
                self.record.usage(last);
                let changed = usage.and_then(|usage| completion::with_usage(&body, &usage));
                Got::Whole(Whole::Body(changed.map_or(body, Bytes::from)))
            }
        }
    }

    /// The token counts that the client is told when there was more than one attempt: those of all, except that clients
    /// which read `prompt_tokens` as the size of the conversation get the last prompt's.
    fn total_usage(&self, last: Option<Usage>) -> Option<Usage> {
        let spent = self.history.spent_before_last();
        if spent == Usage::default() {
            return None;
        }
        let sum = spent.plus(last.unwrap_or_default());
        let reads_context = self.request.facts.program.reads_prompt_as_context();
        Some(if reads_context { Usage { prompt: self.history.last_prompt(), ..sum } } else { sum })
    }

    /// What the request says about the reply of the current attempt.
    pub(super) fn reply_rules(&self) -> ReplyRules {
        ReplyRules { token_limit: self.token_limit(), ..self.request.rules.clone() }
    }

    /// The limit on the reply of the current attempt, in tokens.
    pub(super) fn token_limit(&self) -> Option<u64> {
        self.current.as_ref().and_then(|current| current.attempt.token_limit)
    }

    /// The largest reply, in bytes.
    pub(super) fn largest_reply(&self) -> usize {
        self.relay.max_body
    }

    /// The tokens of earlier attempts that a live reply's own are added to.
    pub(super) fn spent(&self) -> Usage {
        let spent = self.history.spent_before_last();
        let reads_context = self.request.facts.program.reads_prompt_as_context();
        if reads_context { Usage { prompt: 0, ..spent } } else { spent }
    }

    /// The error that leaves.
    fn fail(&self) -> ApiError {
        Record::rescue(self.history.last_fault(), false);
        let last = self.history.last();
        let of_mistake = last.is_none_or(|last| match last.finding {
            Finding::Mistake(..) | Finding::OutOfTime => true,
            Finding::Refused(_) => last.is_changed && last.error.is_some(),
            _ => false,
        });
        let Some(fault) = self.history.last_fault().filter(|_| of_mistake) else {
            return self.fail_with(&self.telling_error());
        };
        let glitch = last.and_then(|last| last.error.clone()).filter(|_| self.history.mistakes() < 2);
        let error = glitch.map_or_else(
            || fault.error(self.history.asked()),
            |glitch| ApiError { cause: glitch.cause(String::new()), ..glitch.error },
        );
        self.record.fails(&error, None);
        ApiError { is_final: error.status >= 500, ..error }
    }

    /// The error of which an upstream is the cause.
    pub(super) fn fail_with(&self, cause: &UpstreamError) -> ApiError {
        let error = with_efforts(cause, self.history.asked(), self.history.waited);
        self.record.fails(&error, Some(cause));
        error
    }

    /// Of the last round's errors the one that tells the client most.
    fn telling_error(&self) -> UpstreamError {
        let round = self.history.round;
        let last_round = self.history.attempts.iter().filter(|past| past.round == round);
        let errors = last_round.filter_map(|past| past.error.clone());
        errors.reduce(more_telling).unwrap_or_else(no_upstream)
    }
}

impl Current {
    /// Sends the attempt; its answer's head is a success and its body has begun when this returns.
    async fn send(&mut self, request: &ClientRequest, record: &Record) -> Result<Answer, UpstreamError> {
        let attempt = &self.attempt;
        let counted = if self.fit == Fit::default() {
            let (fit, counted) = Relay::fit_ahead(request, attempt).await;
            self.fit = fit;
            counted
        } else {
            None
        };
        let fitted = self.fit.apply(&attempt.body);
        record.sends(
            &Sent { edits: [&attempt.edits, &fitted.edits], counted, trimmed: fitted.trimmed.as_deref() },
            &fitted.body,
        );
        let mut headers = request.headers.clone();
        if let Some(part_of) = record.traceparent() {
            headers.insert(TRACEPARENT, part_of);
        }
        let call = Call {
            method: Method::POST,
            path_and_query: request.path_and_query.clone(),
            headers,
            body: fitted.body.into(),
            verbatim: false,
        };
        Relay::learn_models(request, attempt);
        let mut answer = attempt.upstream.send(call).await?;
        let status = answer.status();
        record.status(status.as_u16());
        if status.is_success() {
            // Nothing has left yet: an upstream that breaks off before the first byte can be replaced.
            answer.begun().await?;
            return Ok(answer);
        }
        let retry_after = retry_after(&answer);
        let text = Box::pin(answer.excerpt()).await;
        record.content("upstream error", text.as_bytes());
        let mut error = UpstreamError::from_answer(&attempt.upstream.name, status.as_u16(), &text);
        error.error.retry_after = retry_after;
        Err(error)
    }
}

/// What an upstream's error means for the attempt. `limit`: the one on the reply that was sent, in tokens.
pub(super) fn finding_of(error: &UpstreamError, limit: Option<u64>) -> Finding {
    if error.tier == Tier::Glitch {
        return Finding::Mistake(Fault::Glitch, Shows::Nothing);
    }
    if let Some(failure) = error.failure() {
        return Finding::Failed(failure, error.error.retry_after.map(Duration::from_secs));
    }
    Finding::Refused(match (error.tier, error.error.status) {
        (Tier::ContextOverflow, _) => Refusal::TooLarge,
        (_, 404 | 429) => Refusal::NotHere,
        (_, 400) if read_overflow(&error.said, limit).is_some() => Refusal::TooLarge,
        (_, 400) => Refusal::Form,
        _ => Refusal::Final,
    })
}

fn turns(reply: &Reply) -> Vec<&Turn> {
    reply.choices.iter().map(|choice| &choice.turn).collect()
}

/// A stop sequence may end a reply before it begins; and without tools, a limit that the client set is the client's business.
fn may_be_asked_again(fault: &Fault, request: &ClientRequest) -> bool {
    match fault {
        Fault::Empty | Fault::OnlyReasoning => !request.has_stop,
        Fault::CutReasoning => request.has_tools,
        _ => true,
    }
}

fn learn(upstream: &Upstream, request: &ClientRequest, error: &UpstreamError) {
    let Ok(parsed) = ChatRequest::parse(&request.body) else { return };
    let learnt =
        upstream.learn(|target| learn_refusals(&error.said, error.param.as_deref(), &parsed, target));
    if !learnt.is_empty() {
        tracing::warn!(
            target: "respool::upstream",
            upstream = upstream.name,
            parameters = learnt.join(","),
            "this upstream refuses these parameters; they are left out from now on"
        );
    }
}

/// The seconds of a `Retry-After` header; a date is not read.
fn retry_after(answer: &Answer) -> Option<u64> {
    answer.headers().get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()
}
