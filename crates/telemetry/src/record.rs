//! The one adapter between what happens to a request and its log line, metrics, usage row and spans.
//!
//! Outcomes go in as plain values and nothing comes back out, so no decision can depend on a log line. The
//! facts from the request's arrival are an immutable value, [`RequestStart`].

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::{HeaderMap, HeaderValue};

use super::Account;
use super::request_line::{Outcome, RequestLine};
use super::trace::{RequestTrace, TraceContext};
use super::usage::{Recording, RowFacts};
use wire::turn::{Turn, Usage};

/// The header of W3C Trace Context.
pub const TRACEPARENT: &str = "traceparent";

/// The facts about a request when it arrives.
#[derive(Clone, Debug)]
pub struct RequestStart {
    /// The request id, as it goes upstream and back.
    pub id: String,
    /// `METHOD path`, without the query.
    pub request: Cow<'static, str>,
    /// The route's name, one of a few.
    pub route: &'static str,
    /// The account that it is counted for, where clients have keys.
    pub account: Option<Arc<dyn Account>>,
    /// The trace that the client's request belongs to.
    pub parent: Option<TraceContext>,
    arrived: Instant,
}

impl RequestStart {
    /// A request that arrives now.
    pub fn new(id: String, request: impl Into<Cow<'static, str>>, route: &'static str) -> Self {
        Self { id, request: request.into(), route, account: None, parent: None, arrived: Instant::now() }
    }

    /// The same request, counted for this account.
    #[must_use]
    pub fn of_account(self, account: Option<Arc<dyn Account>>) -> Self {
        Self { account, ..self }
    }

    /// The same request as a part of what its `traceparent` header says.
    #[must_use]
    pub fn continuing_trace(self, headers: &HeaderMap) -> Self {
        let header = headers.get(TRACEPARENT).and_then(|value| value.to_str().ok());
        Self { parent: header.and_then(TraceContext::parse), ..self }
    }

    /// The name of the client's key.
    pub fn key(&self) -> Option<&str> {
        self.account.as_ref().map(|account| account.name())
    }

    /// Time since the request arrived.
    pub fn elapsed(&self) -> Duration {
        self.arrived.elapsed()
    }
}

/// The facts that the body of a request adds.
#[derive(Clone, Copy, Debug)]
pub struct RequestFacts<'a> {
    /// The model as the client named it.
    pub model: &'a str,
    /// An upstream is known to serve it, so that its name may stand in metrics.
    pub model_is_known: bool,
    /// The client asked for a stream.
    pub stream: bool,
    /// The upstream that is likely to be asked.
    pub upstream: &'a str,
    /// Names of the edits made to the request.
    pub edits: &'a [&'static str],
    /// The kind of loop that the model is warned of.
    pub loop_warned: Option<&'static str>,
}

/// Records what happens to one request. Its line is written when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct RequestRecord {
    line: Arc<Mutex<RequestLine>>,
    start: Arc<RequestStart>,
    trace: Option<TraceContext>,
    content: bool,
}

impl RequestRecord {
    /// Begins the line of a request. `recording`: whether message text may be logged, and where the request's
    /// row goes.
    pub fn begin(start: RequestStart, recording: &Recording) -> Self {
        Self::of_run(start, recording, RowFacts::default())
    }

    /// Begins the line of a model call that belongs to a run.
    pub fn of_run(start: RequestStart, recording: &Recording, row: RowFacts) -> Self {
        let start = Arc::new(start);
        let mut line = RequestLine::of(Arc::clone(&start));
        line.sink.clone_from(&recording.sink);
        if let Some(sink) = &recording.spans {
            line.trace = Some(Box::new(RequestTrace::new(sink, start.parent, &row.run, start.arrived)));
        }
        line.row = row;
        let trace = line.trace.as_ref().map(|trace| trace.context);
        let line = Arc::new(Mutex::new(line));
        if let Some(in_flight) = &recording.in_flight {
            in_flight.add(&line);
        }
        Self { line, start, trace, content: recording.content }
    }

    /// The facts from the request's arrival.
    pub fn start(&self) -> &RequestStart {
        &self.start
    }

    /// The span of this request, for work that is part of it.
    pub fn trace_context(&self) -> Option<TraceContext> {
        self.trace
    }

    fn change<T>(&self, change: impl FnOnce(&mut RequestLine) -> T) -> T {
        change(&mut self.line.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The request was read.
    pub fn request(&self, facts: &RequestFacts<'_>) {
        self.change(|line| {
            facts.model.clone_into(&mut line.model);
            if facts.model_is_known {
                facts.model.clone_into(&mut line.known_model);
            }
            line.stream = facts.stream;
            facts.upstream.clone_into(&mut line.upstream);
            line.edits = facts.edits.to_vec();
            line.loop_warned = facts.loop_warned;
        });
    }

    /// The route by which the request is served, where its path alone does not say.
    pub fn route(&self, route: &'static str) {
        self.change(|line| line.route = route);
    }

    /// The model that the client named.
    pub fn model(&self, model: &str) {
        self.change(|line| model.clone_into(&mut line.model));
    }

    /// An upstream is known to serve this model, so its name may stand in metrics.
    pub fn known_model(&self, model: &str) {
        self.change(|line| {
            if line.known_model.is_empty() {
                model.clone_into(&mut line.known_model);
            }
        });
    }

    /// Whether the client asked for a stream.
    pub fn stream(&self, stream: bool) {
        self.change(|line| line.stream = stream);
    }

    /// The agent that the request is for.
    pub fn agent(&self, name: &str) {
        self.change(|line| name.clone_into(&mut line.row.agent));
    }

    /// The request is served by this agent's run, whose model calls have rows of their own.
    pub fn served_by_agent(&self, name: &str) {
        self.change(|line| {
            line.route = "agent";
            name.clone_into(&mut line.model);
            name.clone_into(&mut line.known_model);
            name.clone_into(&mut line.row.agent);
            line.row.usage = Some(Usage::default());
        });
    }

    /// The run that serves the request.
    pub fn run(&self, id: &str) {
        self.change(|line| id.clone_into(&mut line.row.run));
    }

    /// How the tokens of a prompt were counted.
    pub fn counted(&self, by: &'static str) {
        self.change(|line| line.counted = Some(by));
    }

    /// The upstream that is likely to be asked.
    pub fn likely_upstream(&self, upstream: &str) {
        self.change(|line| upstream.clone_into(&mut line.upstream));
    }

    /// An upstream is asked, the `tried`th one, after a wait in its queue.
    pub fn asks(&self, upstream: &str, tried: u32, queued: Duration) {
        self.change(|line| {
            upstream.clone_into(&mut line.upstream);
            line.upstreams_tried = tried;
            line.got_place(queued);
        });
    }

    /// An attempt is sent: the names of its edits, how its tokens were counted, and what was taken out of it.
    pub fn sends<'a>(
        &self,
        edits: impl Iterator<Item = &'a &'static str>,
        counted: Option<&'static str>,
        trimmed: Option<&str>,
    ) {
        self.change(|line| {
            line.begin_attempt();
            edits.for_each(|name| line.edit(name));
            line.counted = counted.or(line.counted);
            line.trimmed = trimmed.map(str::to_owned);
        });
    }

    /// The header that says to the upstream what the current attempt is part of; `None`: what the client
    /// sent.
    pub fn traceparent(&self) -> Option<HeaderValue> {
        self.trace?;
        let header = self.change(|line| line.trace.as_ref().map(|trace| trace.traceparent()));
        header.and_then(|header| HeaderValue::try_from(header).ok())
    }

    /// The upstream answered with this status.
    pub fn upstream_status(&self, status: u16) {
        self.change(|line| line.upstream_status = Some(status));
    }

    /// The request is sent again for this reason, one word.
    pub fn repeats(&self, why: &'static str) {
        self.change(|line| line.retry(why));
    }

    /// The model is asked again. `fault`: the mistake in its reply, which had this `cost`; `remedy`: the
    /// change of the request.
    pub fn asks_again(&self, fault: &'static str, remedy: &'static str, cost: Usage) {
        self.change(|line| line.second_attempt(fault, remedy, cost));
    }

    /// The time that the request waited for an upstream to come back.
    pub fn waited(&self, waited: Duration) {
        self.change(|line| line.waited += waited);
    }

    /// The tokens of the reply that leaves.
    pub fn usage(&self, usage: Option<Usage>) {
        self.change(|line| line.usage = usage);
    }

    /// A turn that leaves.
    pub fn turn(&self, turn: &Turn) {
        self.change(|line| line.turn(turn));
    }

    /// No attempt gave a reply: the status of the upstream that is the cause, and the error in the words of
    /// the log.
    pub fn attempts_failed(&self, upstream_status: Option<u16>, error: String) {
        self.change(|line| {
            line.upstream_status = line.upstream_status.or(upstream_status);
            line.error = Some(error);
        });
    }

    /// The reply was whole, but its connection did not end cleanly.
    pub fn unclean_end(&self, error: &str) {
        self.change(|line| line.error = Some(error.to_owned()));
    }

    /// Logs message text, when that is allowed.
    pub fn content(&self, what: &'static str, text: &[u8]) {
        self.content_of(what, || text);
    }

    /// Logs message text that is put together only when that is allowed.
    pub fn content_of<T: AsRef<[u8]>>(&self, what: &'static str, text: impl FnOnce() -> T) {
        if self.content {
            let text = text();
            self.change(|line| {
                if let Some(trace) = &mut line.trace {
                    trace.content(what, text.as_ref());
                }
            });
            let text = String::from_utf8_lossy(text.as_ref());
            tracing::info!(target: "respool::content", request_id = self.start.id, what, text = text.as_ref(), "content");
        }
    }

    /// A heartbeat leaves.
    pub fn heartbeat(&self) {
        self.change(RequestLine::heartbeat);
    }

    /// The head of a reply with this status leaves.
    pub fn head_leaves(&self, status: u16) {
        self.change(|line| {
            line.status = status;
            line.first_byte();
        });
    }

    /// The loop guard answers in the model's place.
    pub fn loop_stopped(&self, kind: &'static str) {
        self.change(|line| (line.outcome, line.loop_stopped) = (Outcome::LoopGuard, Some(kind)));
    }

    /// The reply leaves whole; it ends here, unless the loop guard gave it.
    pub fn is_whole(&self) {
        self.change(|line| {
            if line.outcome != Outcome::LoopGuard {
                line.outcome = Outcome::Ok;
            }
        });
    }

    /// An error leaves, before or after the head. A cause that was recorded before stays in the log.
    pub fn fails(&self, outcome: Outcome, message: &str, code: Option<&'static str>) {
        self.change(|line| {
            line.outcome = outcome;
            line.error.get_or_insert_with(|| message.to_owned());
            line.error_code = code;
        });
    }

    /// A reply that was passed on unread ended so.
    pub fn passed(&self, outcome: Outcome, usage: Option<Usage>, error: Option<String>) {
        self.change(|line| {
            line.outcome = outcome;
            line.usage = usage.or(line.usage);
            line.error = error.or(line.error.take());
        });
    }

    /// A model call of a run is over. Its row has its tokens; the row of the client's own request has none.
    pub fn model_call_ended(
        &self,
        is_reply: bool,
        code: Option<&'static str>,
        account: Option<&dyn Account>,
    ) {
        self.change(|line| {
            line.outcome = if is_reply { Outcome::Ok } else { Outcome::Error };
            line.error_code = code;
            line.row.key = account.map(|account| account.name().to_owned());
            line.row.usage = line.all_usage();
            line.usage = None;
        });
    }
}
