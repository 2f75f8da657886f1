//! Makes one attempt of an exchange: chooses its upstream, sends it, and classifies the answer.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use tokio::time::{sleep, timeout, timeout_at};

use super::state::{Current, Exchange};
use crate::attempt::{Attempt, Fit};
use crate::candidates::{AdmittedUpstream, no_upstream};
use crate::client::{Awaited, WaitEnd};
use crate::decide::{Change, NextAttempt, RetryTarget};
use crate::outcome::{Finding, Refusal, Whole};
use crate::request::{ClientRequest, Route};
use crate::{completion, fit};
use adapt::{Rule, RuleSet};
use telemetry::TRACEPARENT;
use telemetry::metrics::count_adaptation;
use translate::{Fault, Reply, Salvage, read_overflow};
use upstream::{
    Call, OutcomeReport, Priority, QueueClient, Tier, Upstream, UpstreamError, UpstreamResponse,
    UpstreamResult,
};
use wire::turn::{Turn, Usage};
use wire::{Completion, ErrorCode};

/// A reply from this size on, in bytes, is read on a thread of its own: other requests wait on this one.
const LARGE_REPLY: usize = 256 << 10;

/// The pause between two questions whether the server loads the model.
const LOADING_ASKED_EVERY: Duration = Duration::from_secs(2);

/// How often a request in the background gives its place to another one.
const MOST_YIELDS: u32 = 3;

/// The header that names a request in logs on both sides.
static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// How many headers a request gets on its way: its id, the span, the key, the count of hops, and two for a
/// router.
const ADDED_HEADERS: usize = 6;

/// The upstream that is asked now, and the report that expects the outcome.
type Chosen = (Arc<Upstream>, OutcomeReport);

/// The upstream that has no place for the request, and its error.
type Refused = (Arc<Upstream>, Box<UpstreamError>);

/// An answer of one attempt, before it is known whether it is of any use.
enum Read {
    Stream(Box<UpstreamResponse>),
    Whole(Whole, Option<Usage>, Option<(Fault, Salvage)>),
}

impl Exchange {
    /// Makes one attempt and notes what it came to; gives the stream, when it is one.
    pub(super) async fn make_attempt(&mut self, next: NextAttempt) -> Option<Box<UpstreamResponse>> {
        let chosen = match next.place {
            RetryTarget::Same => self.ask_same_upstream(&next.change).await,
            RetryTarget::Next | RetryTarget::NewRound => self.choose_upstream(next.change).await,
        };
        let (upstream, report) = match chosen {
            Ok(chosen) => chosen,
            Err((upstream, error)) => {
                self.conclude(upstream, Finding::Refused(Refusal::ModelNotServed)).error = Some(error);
                return None;
            }
        };
        let read = self.read_in_time().await;
        // An attempt that `recovery.within` ended says nothing about its upstream.
        if let Some(read) = &read {
            self.relay.report_outcome(read.as_ref().err().map(|error| &**error), report);
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
                self.keep_rules();
                let (finding, error) = match fault {
                    None => (Finding::Useful, None),
                    Some((fault, salvage)) => self.finding_of_fault(fault, salvage, usage),
                };
                if finding == Finding::Useful {
                    upstream.state.count_useful_reply();
                }
                let outcome = self.conclude(upstream, finding);
                (outcome.reply, outcome.usage, outcome.error) = (Some(whole), usage, error);
            }
            Some(Err(error)) => {
                let finding = if upstream.is_own_key_refused(&error) {
                    Finding::Refused(Refusal::OwnKey)
                } else {
                    finding_of(&error, self.token_limit())
                };
                self.conclude(upstream, finding).error = Some(error);
            }
        }
        None
    }

    /// Changes the current attempt for the upstream that has refused it.
    async fn ask_same_upstream(&mut self, change: &Change) -> Result<Chosen, Refused> {
        let (who, request) = (self.candidates.who(), &self.request);
        let Some(Current { attempt, size, queue_place }) = &mut self.current else {
            return Err((Arc::clone(&self.request.plan.first.upstream), no_upstream()));
        };
        let upstream = Arc::clone(&attempt.upstream);
        match change {
            Change::Smaller(fit) => attempt.fit = *fit,
            Change::Adapt(rule) => {
                let fit = attempt.fit;
                let mut on_trial = std::mem::take(&mut attempt.on_trial);
                on_trial.insert(Rule::clone(rule));
                *attempt =
                    Attempt { fit, ..request.build_attempt(attempt.changed.clone(), &upstream, on_trial) };
                *size = attempt.body.len();
            }
            Change::Nothing | Change::Remedy(_) => {}
        }
        if queue_place.is_none()
            && let Some(who) = who
        {
            // The place went with the useless reply.
            match upstream.wait_for_place(who).await {
                Ok((entered, _)) => *queue_place = Some(entered),
                Err(full) => return Err((upstream, full)),
            }
        }
        let report = upstream.begin_request();
        Ok((upstream, report))
    }

    /// Chooses the upstream of the next attempt; the attempt for it is the current one then.
    async fn choose_upstream(&mut self, change: Change) -> Result<Chosen, Refused> {
        let patience = self.patience();
        let admitted = match patience {
            None => self.candidates.next().await,
            // Boxed as it is rare: every request pays for the size of its future.
            Some(patience) => {
                timeout(patience, Box::pin(self.candidates.next())).await.unwrap_or_else(|_| {
                    let upstream = Arc::clone(&self.request.plan.first.upstream);
                    let error = Box::new(upstream.stayed_busy(patience));
                    Some(Err((upstream, error)))
                })
            }
        };
        let AdmittedUpstream { upstream, place: queue_place, report, queued } = match admitted {
            Some(admitted) => admitted?,
            None => return Err((Arc::clone(&self.request.plan.first.upstream), no_upstream())),
        };
        self.request.record.record_upstream(&upstream.name, self.candidates.tried_count(), queued);
        if self.history.attempts.is_empty() {
            upstream.state.count_request();
        }
        let last = self.current.take().map(|current| current.attempt);
        let (changed, on_trial) = match last {
            Some(last) if Arc::ptr_eq(&last.upstream, &upstream) => (last.changed, last.on_trial),
            Some(last) => (last.changed, RuleSet::new()),
            None => (None, RuleSet::new()),
        };
        let changed = match change {
            Change::Remedy(changed) => Some(changed),
            _ => changed,
        };
        let is_first = Arc::ptr_eq(&upstream, &self.request.plan.first.upstream) && changed.is_none();
        let attempt = if is_first && !self.history.has_refused_form() {
            self.request.plan.first.clone()
        } else {
            // Boxed as it is rare: every request pays for the size of its future.
            Box::pin(upstream.probe_version()).await;
            self.request.build_attempt(changed, &upstream, on_trial)
        };
        let size = attempt.body.len();
        self.current = Some(Current { attempt, size, queue_place });
        Ok((upstream, report))
    }

    /// Sends the attempt; one that follows a mistake ends when `recovery.within` is over (`None`).
    async fn read_in_time(&mut self) -> Option<UpstreamResult<Read>> {
        let deadline =
            self.request.received + self.request.settings.recovery.within.min(Duration::from_hours(24));
        let has_deadline = self.history.mistake_count() > 0;
        let work = Box::pin(self.send_and_read());
        if has_deadline { timeout_at(deadline, work).await.ok() } else { Some(work.await) }
    }

    async fn send_and_read(&mut self) -> UpstreamResult<Read> {
        let who = self.candidates.who();
        let Some(current) = &mut self.current else { return Err(no_upstream()) };
        let sent = match who {
            Some(who) if who.priority == Priority::Background => {
                Box::pin(current.send_yielding(&self.request, who)).await
            }
            _ if self.request.settings.recovery.announce_waiting => {
                Box::pin(current.send_noting_load(&self.request)).await
            }
            _ => current.send(&self.request).await,
        };
        let attempt = &mut current.attempt;
        let model = &self.request.profile.model;
        if sent.is_ok() && !self.request.profile.model_is_known && attempt.upstream.models.learn_served(model)
        {
            self.request.record.set_known_model(model);
        }
        attempt.token_limit = attempt.fit.lowered_limit(attempt.token_limit);
        let answer = sent.map_err(|error| fit::as_overflow(attempt, error))?;
        let answer = answer.with_place(current.queue_place.take());
        let name = Arc::clone(attempt.upstream.shared_name());
        self.read_answer(answer, &name).await
    }

    async fn read_answer(&self, answer: Box<UpstreamResponse>, name: &Arc<str>) -> UpstreamResult<Read> {
        let request = &self.request;
        let whole = match request.profile.route {
            Route::Plain => {
                let body = completion::json_body(answer, name, self.relay.max_body, &request.record).await?;
                let (size, request, upstream) = (body.len(), Arc::clone(request), Arc::clone(name));
                let read = move || {
                    let (body, pruned) = completion::prune_body(body, &upstream, &request.profile.reply)?;
                    let fault = Fault::find_in_unread(&body, &request.rules);
                    Ok((body, pruned, fault))
                };
                let (body, pruned, fault) = read_by_size(size, name, read).await?;
                let usage = pruned.usage;
                self.learn_usage(usage);
                if pruned.has_reasoning {
                    self.report_reasoning();
                }
                // Its bytes are what the client asked for, unless there is nothing in them.
                let salvage = |fault: &Fault| match fault {
                    Fault::Empty | Fault::Lost(_) => Salvage::Blank,
                    _ => Salvage::Answer,
                };
                let fault = fault.map(|fault| {
                    let part = salvage(&fault);
                    (fault, part)
                });
                return Ok(Read::Whole(Whole::Body(body), usage, fault));
            }
            Route::Tools => answer,
            Route::Live | Route::Stream => match &*answer.media_type() {
                "text/event-stream" => return Ok(Read::Stream(answer)),
                "application/json" if !self.expects_stream => answer,
                other => {
                    return Err(Box::new(completion::not_a_stream(answer, other, &request.record).await));
                }
            },
        };
        let body = completion::json_body(whole, name, self.relay.max_body, &request.record).await?;
        let (size, request, limit) = (body.len(), Arc::clone(&self.request), self.token_limit());
        let checks_calls = self.current.as_ref().is_some_and(|current| current.attempt.drops_checks);
        let upstream = Arc::clone(name);
        let read = move || {
            let completion = completion::parse_completion(&body, &upstream, &request.profile.reply.keep)?;
            let tag = completion.tags.iter().find(|(key, _)| *key == "system_fingerprint");
            let learned = (completion.usage, tag.map(|(_, fingerprint)| fingerprint.clone()));
            Ok((learned, interpret_completion(completion, &request, limit, checks_calls)))
        };
        let ((usage, fingerprint), read) = read_by_size(size, name, read).await?;
        self.learn_usage(usage);
        if let (Some(fingerprint), Some(current)) = (fingerprint, &self.current) {
            current.attempt.upstream.learn_fingerprint(&fingerprint);
        }
        Ok(read)
    }
}

/// Copies headers, with room for those that are added on the way: clones have none, and would grow.
fn copy_with_room(headers: &HeaderMap) -> HeaderMap {
    let mut copy = HeaderMap::with_capacity(headers.len() + ADDED_HEADERS);
    copy.extend(headers.iter().map(|(name, value)| (name.clone(), value.clone())));
    copy
}

/// Reads a reply of this size: a large one on a thread of its own.
async fn read_by_size<T: Send + 'static>(
    size: usize,
    name: &str,
    read: impl FnOnce() -> UpstreamResult<T> + Send + 'static,
) -> UpstreamResult<T> {
    if size < LARGE_REPLY {
        return read();
    }
    tokio::task::spawn_blocking(read).await.unwrap_or_else(|error| {
        let what = "sent a reply that respool failed to read";
        Err(Box::new(UpstreamError::new_broken(name, 502, ErrorCode::UpstreamError, what, error.to_string())))
    })
}

/// Reads a whole reply as turns, with what is wrong with it. `checks_calls`: also calls that break their
/// schemas count, because the server did not know all of them.
fn interpret_completion(
    completion: Completion,
    request: &ClientRequest,
    token_limit: Option<u64>,
    checks_calls: bool,
) -> Read {
    let reply = completion::read_reply(completion, request, token_limit);
    let usage = reply.usage;
    let invalid_call = || checks_calls.then(|| Fault::find_invalid_call(&reply)).flatten();
    let fault = Fault::find_in_reply(&reply).or_else(invalid_call).map(|fault| {
        let salvage = fault.usable_part(&reply_turns(&reply), &request.rules.tools);
        (fault, salvage)
    });
    Read::Whole(Whole::Reply(Box::new(reply)), usage, fault)
}

impl Current {
    /// Sends the attempt of a request for which no person waits. Until its answer has begun, it gives its
    /// place to a request that is more urgent, and lines up again.
    async fn send_yielding(
        &mut self,
        request: &ClientRequest,
        who: QueueClient,
    ) -> UpstreamResult<Box<UpstreamResponse>> {
        for _ in 0..MOST_YIELDS {
            let upstream = Arc::clone(&self.attempt.upstream);
            let sent = tokio::select! {
                biased;
                sent = self.send(request) => Some(sent),
                () = upstream.wait_for_more_urgent(who.priority) => None,
            };
            if let Some(sent) = sent {
                return sent;
            }
            self.queue_place = None;
            request.record.record_put_back();
            let (place, waited) = upstream.wait_for_place(who).await?;
            request.record.record_further_queueing(waited);
            self.queue_place = Some(place);
        }
        self.send(request).await
    }

    /// Sends the attempt. The time in which the server loads the model counts as waiting.
    async fn send_noting_load(&mut self, request: &ClientRequest) -> UpstreamResult<Box<UpstreamResponse>> {
        let upstream = Arc::clone(&self.attempt.upstream);
        tokio::select! {
            biased;
            sent = self.send(request) => sent,
            never = note_loading(&upstream, request) => match never {},
        }
    }

    /// Sends the attempt; its answer's head is a success and its body has begun when this returns.
    async fn send(&mut self, request: &ClientRequest) -> UpstreamResult<Box<UpstreamResponse>> {
        let record = &request.record;
        let attempt = &mut self.attempt;
        let counted = if attempt.fit == Fit::default() {
            let (fit, counted) = fit::fit_ahead(request, attempt).await;
            attempt.fit = fit;
            counted
        } else {
            None
        };
        let fitted = attempt.fit.apply(&attempt.body);
        request.progress.note_trimming(fitted.trimmed.as_deref());
        record.record_attempt(attempt.edits.iter().chain(&fitted.edits), counted, fitted.trimmed.as_deref());
        attempt.rules.iter().for_each(|(rule, _)| count_adaptation(rule, &attempt.upstream.name));
        record.content().take_upstream_request(&attempt.upstream.name, || fitted.body.to_bytes());
        let mut headers = copy_with_room(&request.outgoing.headers);
        let id = request.outgoing.request_id.as_deref().unwrap_or(&record.start().id);
        if let Ok(id) = HeaderValue::from_str(id) {
            headers.insert(&REQUEST_ID, id);
        }
        if let Some(part_of) = record.traceparent() {
            headers.insert(&TRACEPARENT, part_of);
        }
        attempt.upstream.add_router_headers(&mut headers, request.plan.who);
        let call = Call {
            method: Method::POST,
            path_and_query: request.outgoing.path_and_query.clone(),
            headers,
            body: fitted.body.into(),
            verbatim: false,
        };
        fit::learn_models(request, attempt);
        let mut answer = attempt.upstream.send(call).await?;
        let status = answer.status();
        record.set_upstream_status(status.as_u16());
        record.content().take_reply_head(status.as_u16(), &answer.media_type());
        if status.is_success() {
            // Nothing has left yet: an upstream that breaks off before the first byte can be replaced.
            answer.wait_for_body().await?;
            return Ok(answer);
        }
        attempt.upstream.state.note_answer();
        let retry_after = retry_after(&answer);
        let text = Box::pin(answer.read_excerpt()).await;
        record.content().take_upstream_error(&text);
        let mut error = UpstreamError::from_answer(&attempt.upstream.name, status.as_u16(), &text);
        error.error.retry_after = retry_after;
        Err(Box::new(error))
    }
}

/// Notes while the upstream loads the model of the request.
async fn note_loading(upstream: &Upstream, request: &ClientRequest) -> Infallible {
    let mut waiting = None;
    loop {
        sleep(LOADING_ASKED_EVERY).await;
        if upstream.is_loading(request.target_model(), &request.outgoing.headers).await {
            waiting.get_or_insert_with(|| {
                let cause = format!("upstream `{}` loads the model", upstream.name);
                request.progress.begin_waiting(Awaited { cause, end: WaitEnd::Unknown })
            });
        } else {
            waiting = None;
        }
    }
}

/// Classifies an upstream's error. `limit`: the one on the reply that was sent, in tokens.
pub(crate) fn finding_of(error: &UpstreamError, limit: Option<u64>) -> Finding {
    if error.tier == Tier::Glitch {
        return Finding::Mistake(Fault::Glitch, Salvage::Nothing);
    }
    // Some servers answer a request that they cannot take with a 500.
    if matches!(error.status, Some(500 | 501)) && adapt::is_known_refusal(&error.said) {
        return Finding::Refused(Refusal::Form);
    }
    if let Some(failure) = error.failure() {
        return Finding::Failed(failure, error.error.retry_after.map(Duration::from_secs));
    }
    Finding::Refused(match (error.tier, error.error.status) {
        (Tier::ContextOverflow, _) => Refusal::TooLarge,
        (_, 404 | 429) => Refusal::ModelNotServed,
        (_, 400) if read_overflow(&error.said, limit).is_some() => Refusal::TooLarge,
        (_, 400 | 422) => Refusal::Form,
        _ => Refusal::Final,
    })
}

fn reply_turns(reply: &Reply) -> Vec<&Turn> {
    reply.choices.iter().map(|choice| &choice.turn).collect()
}

/// The seconds of a `Retry-After` header; a date is not read.
fn retry_after(answer: &UpstreamResponse) -> Option<u64> {
    answer.headers().get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()
}
