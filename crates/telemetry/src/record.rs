//! Records the events of a request for its log line, metrics, usage row and spans; the only adapter between
//! them.
//!
//! Outcomes go in as plain values and nothing comes out, so no decision can depend on a log line. The facts
//! from the request's arrival are an immutable value, [`RequestStart`].

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::HeaderValue;

use super::Account;
use super::capture::{Collector, log_content};
use super::request_line::{AttemptError, Outcome, RequestLine, Wait};
use super::request_start::RequestStart;
use super::trace::{RequestTrace, TraceContext};
use super::usage::{Recording, RowFacts};
use wire::turn::{Turn, Usage};

/// The facts that the body of a request adds.
#[derive(Clone, Copy, Debug)]
pub struct RequestFacts<'a> {
    /// The model as the client named it.
    pub model: &'a str,
    /// An upstream is known to serve it, so that its name may stand in metrics.
    pub model_is_known: bool,
    /// True when the client asked for a stream.
    pub stream: bool,
    /// The upstream that will probably be asked.
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
    /// True if texts may be logged.
    logs_content: bool,
    /// Collects the exchange, where something reads it.
    collector: Option<Arc<Collector>>,
}

impl RequestRecord {
    /// Begins the record of a request. `recording`: whether message text may be logged, and where the
    /// request's row goes.
    pub fn begin(start: RequestStart, recording: &Recording) -> Self {
        Self::begin_for_run(start, recording, RowFacts::default())
    }

    /// Begins the record of a model call that belongs to a run.
    pub fn begin_for_run(start: RequestStart, recording: &Recording, row: RowFacts) -> Self {
        let start = Arc::new(start);
        let mut line = RequestLine::begin(Arc::clone(&start));
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
        let captures = recording.captures.as_ref().filter(|captures| captures.wants(start.key_name()));
        let collector = (captures.is_some() || recording.content)
            .then(|| Collector::new(&start, captures.cloned(), recording.content));
        Self { line, start, trace, logs_content: recording.content, collector }
    }

    /// Returns the facts from the request's arrival.
    pub fn start(&self) -> &RequestStart {
        &self.start
    }

    /// Returns the span of this request, for work that is part of it.
    pub fn trace_context(&self) -> Option<TraceContext> {
        self.trace
    }

    /// Returns the part that takes the texts of the request.
    pub fn content(&self) -> RecordedContent<'_> {
        RecordedContent(self)
    }

    fn change_line<T>(&self, change: impl FnOnce(&mut RequestLine) -> T) -> T {
        change(&mut self.line.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Records the facts from the request's body.
    pub fn record_request(&self, facts: &RequestFacts<'_>) {
        self.change_line(|line| {
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

    /// Sets the route that serves the request, when its path does not show it.
    pub fn set_route(&self, route: &'static str) {
        self.change_line(|line| line.route = route);
    }

    /// Sets the address of a client that is refused.
    pub fn set_refused_client(&self, client: IpAddr) {
        self.change_line(|line| line.client = Some(client));
    }

    /// Sets the model that the client named.
    pub fn set_model(&self, model: &str) {
        self.change_line(|line| model.clone_into(&mut line.model));
    }

    /// Sets the model for metrics: an upstream is known to serve it.
    pub fn set_known_model(&self, model: &str) {
        self.change_line(|line| {
            if line.known_model.is_empty() {
                model.clone_into(&mut line.known_model);
            }
        });
    }

    /// Sets whether the client asked for a stream.
    pub fn set_stream(&self, stream: bool) {
        self.change_line(|line| line.stream = stream);
    }

    /// Sets the agent that the request is for.
    pub fn set_agent(&self, name: &str) {
        self.change_line(|line| name.clone_into(&mut line.row.agent));
    }

    /// Records that an agent's run serves the request. Its model calls have their own rows.
    pub fn set_serving_agent(&self, name: &str) {
        self.change_line(|line| {
            line.route = "agent";
            name.clone_into(&mut line.model);
            name.clone_into(&mut line.known_model);
            name.clone_into(&mut line.row.agent);
            line.row.usage = Some(Usage::default());
        });
    }

    /// Sets the run that serves the request.
    pub fn set_run(&self, id: &str) {
        self.change_line(|line| id.clone_into(&mut line.row.run));
    }

    /// Sets the way in which the tokens of the prompt were counted.
    pub fn set_token_counter(&self, by: &'static str) {
        self.change_line(|line| line.counted = Some(by));
    }

    /// Sets the upstream that will probably be asked.
    pub fn set_likely_upstream(&self, upstream: &str) {
        self.change_line(|line| upstream.clone_into(&mut line.upstream));
    }

    /// Records that an upstream is asked, the `tried`th one, after a wait in its queue.
    pub fn record_upstream(&self, upstream: &str, tried: u32, queued: Duration) {
        self.change_line(|line| {
            upstream.clone_into(&mut line.upstream);
            line.upstreams_tried = tried;
            line.end_queueing(queued);
        });
    }

    /// Records that a more urgent request takes the place of this one at the upstream, which lines up again.
    pub fn record_put_back(&self) {
        self.change_line(RequestLine::put_back);
    }

    /// Records a further wait for a place at the upstream.
    pub fn record_further_queueing(&self, queued: Duration) {
        self.change_line(|line| line.end_queueing(queued));
    }

    /// Records an attempt: the names of its edits, the way its tokens were counted, and the parts that were
    /// cut.
    pub fn record_attempt<'a>(
        &self,
        edits: impl Iterator<Item = &'a &'static str>,
        counted: Option<&'static str>,
        trimmed: Option<&str>,
    ) {
        self.change_line(|line| {
            line.begin_attempt();
            edits.for_each(|name| line.add_edit(name));
            line.counted = counted.or(line.counted);
            line.trimmed = trimmed.map(str::to_owned);
        });
    }

    /// Returns the header that makes the upstream's trace part of the current attempt; `None`: the client's
    /// own stays.
    pub fn traceparent(&self) -> Option<HeaderValue> {
        self.trace?;
        let header = self.change_line(|line| line.trace.as_ref().map(|trace| trace.traceparent()));
        header.and_then(|header| HeaderValue::try_from(header).ok())
    }

    /// Records the status of the upstream's answer.
    pub fn set_upstream_status(&self, status: u16) {
        self.change_line(|line| line.upstream_status = Some(status));
    }

    /// Records that the request is sent again for this reason, one word. `error`: the last attempt's.
    pub fn record_repeat(&self, why: &'static str, error: AttemptError) {
        self.change_line(|line| line.count_retry(why, error));
    }

    /// Records where the prompt first differs from that of the conversation's last request, and how many
    /// tokens the server reads again.
    pub fn record_prefix_loss(&self, loss: String) {
        self.change_line(|line| line.prefix_lost = Some(loss));
        super::metrics::count_lost_prefix();
    }

    /// Records how many turns with calls came without reasoning that this process does not have either.
    pub fn record_unknown_reasoning(&self, turns: usize) {
        self.change_line(|line| line.reasoning_unknown = turns);
    }

    /// Records that another model answers in the place of the one that was asked, and why, in one word.
    /// `error`: the last attempt's; `spent`: the tokens of all replies of the model that was asked.
    pub fn falls_back(
        &self,
        asked: &str,
        why: &'static str,
        answers: &str,
        error: AttemptError,
        spent: Usage,
    ) {
        self.change_line(|line| line.fall_back(asked, why, answers, error, spent));
    }

    /// Records that the model is asked again. `fault`: the mistake in its reply, which had this `cost`;
    /// `remedy`: the change of the request.
    pub fn record_second_attempt(&self, fault: &'static str, remedy: &'static str, cost: Usage) {
        self.change_line(|line| line.count_second_attempt(fault, remedy, cost));
    }

    /// Records that the request waits for an upstream, `longest` at most, until the drop of what it returns.
    pub fn begin_wait(&self, what: &'static str, longest: Duration) -> RecordedWait<'_> {
        let since = Instant::now();
        self.change_line(|line| line.wait = Some(Wait { what, since, longest }));
        RecordedWait(self)
    }

    /// Sets the tokens of the reply that leaves.
    pub fn set_usage(&self, usage: Option<Usage>) {
        self.change_line(|line| line.usage = usage);
    }

    /// Records a turn that leaves.
    pub fn record_turn(&self, turn: &Turn) {
        self.change_line(|line| line.count_turn(turn));
    }

    /// Records that no attempt got a reply: the status of the upstream at fault, and the error for the log.
    pub fn record_failed_attempts(&self, upstream_status: Option<u16>, error: String) {
        self.change_line(|line| {
            line.upstream_status = line.upstream_status.or(upstream_status);
            line.error = Some(error);
        });
    }

    /// Records that the connection of a whole reply did not end cleanly.
    pub fn record_unclean_end(&self, error: &str) {
        self.change_line(|line| line.error = Some(error.to_owned()));
    }

    /// Counts a heartbeat.
    pub fn count_heartbeat(&self) {
        self.change_line(RequestLine::count_heartbeat);
    }

    /// Records that the head of a reply with this status leaves.
    pub fn record_head(&self, status: u16) {
        self.change_line(|line| {
            line.status = status;
            line.note_first_byte();
        });
    }

    /// Records that the loop guard answers in place of the model.
    pub fn record_loop_stop(&self, kind: &'static str) {
        self.change_line(|line| (line.outcome, line.loop_stopped) = (Outcome::LoopGuard, Some(kind)));
    }

    /// Records that the whole reply has left. The outcome of the loop guard stays.
    pub fn mark_whole(&self) {
        self.change_line(|line| {
            if line.outcome != Outcome::LoopGuard {
                line.outcome = Outcome::Ok;
            }
        });
    }

    /// Records an error that leaves, before or after the head. A cause that was recorded before stays in the
    /// log.
    pub fn record_failure(&self, outcome: Outcome, message: &str, code: Option<&'static str>) {
        self.change_line(|line| {
            line.outcome = outcome;
            line.error.get_or_insert_with(|| message.to_owned());
            line.error_code = code;
        });
    }

    /// Records the end of a reply that was forwarded unread.
    pub fn record_forwarded_reply(&self, outcome: Outcome, usage: Option<Usage>, error: Option<String>) {
        self.change_line(|line| {
            line.outcome = outcome;
            line.usage = usage.or(line.usage);
            line.error = error.or(line.error.take());
        });
    }

    /// Records the end of a run's model call. Its row has its tokens; the row of the client's own request has
    /// none.
    pub fn record_model_call_end(
        &self,
        is_reply: bool,
        code: Option<&'static str>,
        account: Option<&dyn Account>,
    ) {
        self.change_line(|line| {
            line.outcome = if is_reply { Outcome::Ok } else { Outcome::Error };
            line.error_code = code;
            line.row.key = account.map(|account| account.key_name().to_owned());
            line.row.usage = line.all_usage();
            line.usage = None;
        });
    }
}

/// Counts the time until its drop as waiting, also when the client leaves meanwhile.
#[derive(Debug)]
pub struct RecordedWait<'a>(&'a RequestRecord);

impl Drop for RecordedWait<'_> {
    fn drop(&mut self) {
        self.0.change_line(|line| {
            line.waited += line.wait.take().map(|wait| wait.since.elapsed()).unwrap_or_default();
        });
    }
}

/// The part of a record that takes texts.
#[derive(Clone, Copy, Debug)]
pub struct RecordedContent<'a>(&'a RequestRecord);

impl<'a> RecordedContent<'a> {
    /// Returns the collector of an exchange that is kept.
    pub fn collector(self) -> Option<&'a Arc<Collector>> {
        self.0.collector.as_ref().filter(|collector| collector.is_kept())
    }

    /// Notes the conversation of the request, if its exchange is kept.
    pub fn note_conversation(self, conversation: impl FnOnce() -> u64) {
        if let Some(collector) = self.collector() {
            collector.set_conversation(conversation());
        }
    }

    /// Takes the body of the client's request, for the log and the kept exchange.
    pub fn take_client_request(self, body: &[u8]) {
        self.log("client request", || body);
        self.0.collector.iter().for_each(|collector| collector.take_client_request(body));
    }

    /// Takes the body that is sent to an upstream.
    pub fn take_upstream_request<T: AsRef<[u8]>>(self, upstream: &str, body: impl Fn() -> T) {
        self.log("upstream request", &body);
        if let Some(collector) = &self.0.collector {
            collector.begin_attempt(upstream, || body().as_ref().to_vec());
        }
    }

    /// Notes the head of an upstream's reply.
    pub fn take_reply_head(self, status: u16, content_type: &str) {
        self.0.collector.iter().for_each(|collector| collector.take_reply_head(status, content_type));
    }

    /// Takes an upstream's whole reply.
    pub fn take_reply(self, body: &[u8]) {
        self.log("upstream reply", || body);
        self.0.collector.iter().for_each(|collector| collector.take_reply(body));
    }

    /// Takes a piece of an upstream's streamed reply. It is logged as a whole when the request ends.
    pub fn take_reply_piece(self, piece: &[u8]) {
        self.0.collector.iter().for_each(|collector| collector.take_reply_piece(piece));
    }

    /// Takes an upstream's error.
    pub fn take_upstream_error(self, text: &str) {
        self.log("upstream error", || text);
        self.0.collector.iter().for_each(|collector| collector.take_reply(text.as_bytes()));
    }

    /// Logs message text, which is only composed if that is allowed.
    fn log<T: AsRef<[u8]>>(self, what: &'static str, text: impl FnOnce() -> T) {
        if self.0.logs_content {
            let text = text();
            self.0.change_line(|line| {
                if let Some(trace) = &mut line.trace {
                    trace.add_content(what, text.as_ref());
                }
            });
            log_content(&self.0.start().id, what, text.as_ref());
        }
    }
}
