//! The canonical line: one per request, written when the last `RequestRecord` of the request is dropped,
//! which also happens when the client hangs up. Only `record` changes it.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::metrics;
use super::request_start::RequestStart;
use super::trace::{AttemptEnd, Attributes, RequestTrace};
use super::usage::{EndedRequest, LiveRequest, RowFacts, UsageSink};
use wire::turn::{Note, Turn, Usage};
use wire::{EarlierAttempt, RequestDetails, UsageRow, is_request_fault};

/// Longer errors of earlier attempts are cut, in bytes.
const LONGEST_EARLIER_ERROR: usize = 200;

/// How a request ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Outcome {
    /// No end was recorded: the client disconnected.
    #[default]
    ClientGone,
    /// The reply left whole.
    Ok,
    /// An error left, before or after the head.
    Error,
    /// The loop guard answered in place of the model.
    LoopGuard,
    /// respool was stopped before the reply was whole.
    Shutdown,
}

impl Outcome {
    /// Returns a stable name for logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClientGone => "client_gone",
            Self::Ok => "ok",
            Self::Error => "error",
            Self::LoopGuard => "loop_guard",
            Self::Shutdown => "shutdown",
        }
    }
}

/// The error that an attempt ended in; empty without one.
#[derive(Clone, Debug, Default)]
pub struct AttemptError {
    /// Its code.
    pub code: Option<&'static str>,
    /// Its text for the log.
    pub text: String,
}

/// A wait for an upstream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    /// Its purpose, in a few words.
    pub(super) what: &'static str,
    pub(super) since: Instant,
    pub(super) longest: Duration,
}

/// The facts about one request; dropping them writes the line and records the metrics.
#[derive(Debug)]
pub(super) struct RequestLine {
    /// The facts from its arrival.
    pub(super) start: Arc<RequestStart>,
    /// The route's name, one of a few.
    pub(super) route: &'static str,
    /// The model the client asked for.
    pub(super) model: String,
    /// The model for metric labels: empty unless an upstream is known to serve it, so that a client cannot
    /// invent labels.
    pub(super) known_model: String,
    /// Whether the client asked for a stream.
    pub(super) stream: bool,
    /// The name of the upstream that was asked last.
    pub(super) upstream: String,
    /// The number of upstreams that were asked.
    pub(super) upstreams_tried: u32,
    /// The time that it waited for a place at an upstream.
    pub(super) queued: Duration,
    /// Whether it has had a place at an upstream.
    has_place: bool,
    /// The time that it waited for an upstream to return.
    pub(super) waited: Duration,
    /// The wait for an upstream that is under way.
    pub(super) wait: Option<Wait>,
    /// The status of the upstream's answer, if there was one.
    pub(super) upstream_status: Option<u16>,
    /// The status of the reply.
    pub(super) status: u16,
    /// Names of the edits made to the request.
    pub(super) edits: Vec<&'static str>,
    /// The kind of loop that the model was warned of.
    pub(super) loop_warned: Option<&'static str>,
    /// The kind of loop that was ended.
    pub(super) loop_stopped: Option<&'static str>,
    /// The way in which the prompt's tokens were counted before it was sent.
    pub(super) counted: Option<&'static str>,
    /// The parts of the conversation that were cut to make it fit.
    pub(super) trimmed: Option<String>,
    /// Where the prompt first differs from that of the conversation's last request, and the bytes that the
    /// server reads again.
    pub(super) prefix_lost: Option<String>,
    /// Turns with calls that came without reasoning, which this process does not have either.
    pub(super) reasoning_unknown: usize,
    /// The models that others answered for, each with the reason.
    fallbacks: Vec<String>,
    /// Attempts beyond the first.
    pub(super) retries: u32,
    /// How often a more urgent request took its place.
    put_back: u32,
    /// Heartbeats sent.
    pub(super) heartbeats: u32,
    /// The dialects that calls were read in.
    pub(super) dialects: Vec<&'static str>,
    /// The number of calls that were read in each dialect.
    calls_by_dialect: Vec<(&'static str, usize)>,
    /// Repairs made to calls.
    pub(super) repairs: Vec<&'static str>,
    /// Calls that did not leave, by reason.
    pub(super) dropped: Vec<&'static str>,
    /// Calls that left.
    pub(super) calls: usize,
    /// The faults of replies that were requested again, each with its remedy.
    pub(super) recovery: Vec<&'static str>,
    /// The attempts that another one followed.
    earlier_attempts: Vec<EarlierAttempt>,
    /// Token counts of the reply that left.
    pub(super) usage: Option<Usage>,
    /// Token counts of replies that were requested again.
    pub(super) discarded: Usage,
    /// How it ended.
    pub(super) outcome: Outcome,
    /// The address of a client that was refused.
    pub(super) client: Option<IpAddr>,
    /// The error's text for people.
    pub(super) error: Option<String>,
    /// The error's code.
    pub(super) error_code: Option<&'static str>,
    /// Facts of its row that the line lacks.
    pub(super) row: RowFacts,
    pub(super) sink: Option<Arc<dyn UsageSink>>,
    /// Its spans; `None` without a collector.
    pub(super) trace: Option<Box<RequestTrace>>,
    first_byte: Option<Duration>,
}

impl RequestLine {
    /// Begins the line of a request that has just arrived.
    pub(super) fn begin(start: Arc<RequestStart>) -> Self {
        metrics::count_arrival();
        Self {
            route: start.route,
            start,
            model: String::new(),
            known_model: String::new(),
            stream: false,
            upstream: String::new(),
            upstreams_tried: 0,
            queued: Duration::ZERO,
            has_place: false,
            waited: Duration::ZERO,
            wait: None,
            upstream_status: None,
            status: 0,
            edits: vec![],
            loop_warned: None,
            loop_stopped: None,
            counted: None,
            trimmed: None,
            prefix_lost: None,
            reasoning_unknown: 0,
            fallbacks: vec![],
            retries: 0,
            put_back: 0,
            heartbeats: 0,
            dialects: vec![],
            calls_by_dialect: vec![],
            repairs: vec![],
            dropped: vec![],
            calls: 0,
            recovery: vec![],
            earlier_attempts: vec![],
            usage: None,
            discarded: Usage::default(),
            outcome: Outcome::default(),
            client: None,
            error: None,
            error_code: None,
            row: RowFacts::default(),
            sink: None,
            trace: None,
            first_byte: None,
        }
    }

    /// Ends a wait for a place at an upstream.
    pub(super) fn end_queueing(&mut self, queued: Duration) {
        self.queued += queued;
        self.has_place = true;
        if let Some(trace) = self.trace.as_ref().filter(|_| !queued.is_zero()) {
            trace.record_queueing(&self.upstream, queued);
        }
    }

    /// Begins an attempt: a model is asked now.
    pub(super) fn begin_attempt(&mut self) {
        self.end_attempt(None, None);
        if let Some(trace) = &mut self.trace {
            trace.begin_attempt();
        }
    }

    fn end_attempt(&mut self, usage: Option<Usage>, error: Option<&str>) {
        let Some(trace) = &mut self.trace else { return };
        let (model, upstream, status) = (&*self.model, &*self.upstream, self.upstream_status);
        trace.end_attempt(&AttemptEnd { model, upstream, status, usage, error });
    }

    /// Ends the spans of the request.
    fn end_trace(&mut self, usage: Option<Usage>) {
        if self.trace.is_none() {
            return;
        }
        let failed = (self.outcome == Outcome::Error).then(|| self.error_code.unwrap_or("error"));
        self.end_attempt(self.usage, failed);
        let attributes = self.span_attributes(usage);
        if let Some(trace) = self.trace.take() {
            trace.end_request(self.start.request.clone().into_owned(), attributes, failed);
        }
    }

    fn span_attributes(&self, usage: Option<Usage>) -> Attributes {
        let (method, path) =
            self.start.request.split_once(' ').filter(|(_, path)| path.starts_with('/')).unwrap_or_default();
        let mut all: Attributes = vec![
            ("http.request.method", method.into()),
            ("url.path", path.into()),
            ("http.response.status_code", u64::from(self.status).into()),
            ("respool.request_id", (&*self.start.id).into()),
            ("respool.route", self.route.into()),
            ("respool.outcome", self.outcome.as_str().into()),
            ("respool.attempts", u64::from(self.attempt_count()).into()),
            ("gen_ai.request.model", (&*self.model).into()),
            ("gen_ai.agent.name", (&*self.row.agent).into()),
            ("respool.run", (&*self.row.run).into()),
            ("respool.dialects", (&*each_once(&self.dialects)).into()),
            ("respool.repairs", (&*each_once(&self.repairs)).into()),
            ("respool.recovery", (&*self.recovery.join(",")).into()),
        ];
        if let Some(usage) = usage {
            all.push(("gen_ai.usage.input_tokens", usage.prompt.into()));
            all.push(("gen_ai.usage.output_tokens", usage.completion.into()));
        }
        all.retain(|(_, value)| !matches!(value, super::trace::SpanValue::Text(text) if text.is_empty()));
        all
    }

    /// Returns the time since the request arrived.
    pub(super) fn time_since_arrival(&self) -> Duration {
        self.start.time_since_arrival()
    }

    /// Notes that the first byte of the reply leaves now.
    pub(super) fn note_first_byte(&mut self) {
        self.first_byte.get_or_insert_with(|| self.start.time_since_arrival());
    }

    /// Counts the calls and notes of a turn.
    pub(super) fn count_turn(&mut self, turn: &Turn) {
        self.calls += turn.calls.len();
        self.calls_by_dialect.extend(calls_by_dialect(turn));
        for note in &turn.notes {
            match note {
                Note::Dialect(name) => self.dialects.push(name),
                Note::Repaired(name) => self.repairs.push(name),
                Note::Dropped { why, .. } => self.dropped.push(why.as_str()),
                Note::LeftAsText { .. } => {}
            }
        }
    }

    /// Adds the name of an edit to the request.
    pub(super) fn add_edit(&mut self, name: &'static str) {
        if !self.edits.contains(&name) {
            self.edits.push(name);
        }
    }

    /// Counts another attempt.
    pub(super) fn count_retry(&mut self, reason: &'static str, error: AttemptError) {
        self.retries += 1;
        self.note_earlier_attempt(reason, error, "");
        self.end_attempt(None, Some(reason));
        ::metrics::counter!(metrics::RETRIES, "reason" => reason).increment(1);
    }

    /// Notes that the request gives its place to a more urgent one and lines up again. The server has not
    /// failed, so this is no attempt beyond the first.
    pub(super) fn put_back(&mut self) {
        self.put_back += 1;
        (self.has_place, self.upstream_status) = (false, None);
        self.note_earlier_attempt(EarlierAttempt::PUT_BACK, AttemptError::default(), "");
        self.end_attempt(None, Some(EarlierAttempt::PUT_BACK));
    }

    /// Notes that another model answers: its name is the one in the log, the metrics and the row.
    /// `spent`: the tokens of all replies of the model that was asked.
    pub(super) fn fall_back(
        &mut self,
        asked: &str,
        why: &'static str,
        answers: &str,
        error: AttemptError,
        spent: Usage,
    ) {
        // A request may go to another model before any was asked.
        if !self.upstream.is_empty() {
            self.count_retry("fallback", error);
        }
        self.record_spent(spent);
        (self.has_place, self.upstream_status) = (false, None);
        self.fallbacks.push(format!("{asked}:{why}"));
        answers.clone_into(&mut self.model);
        self.known_model.clear();
    }

    /// Records the tokens of a model before another one answers, in a row of their own: its price is another
    /// one.
    fn record_spent(&mut self, spent: Usage) {
        (self.usage, self.discarded) = (None, Usage::default());
        let Some(sink) = self.sink.as_ref().filter(|_| spent != Usage::default()) else { return };
        metrics::count_tokens(spent, &self.known_model, &self.upstream);
        let RowFacts { agent, run, key, .. } = self.row.clone();
        let row = UsageRow {
            at: clock::time_ago(self.time_since_arrival()),
            id: self.start.id.clone(),
            route: UsageRow::ATTEMPT.into(),
            key: key.or_else(|| self.start.key_name().map(str::to_owned)).unwrap_or_default(),
            model: self.model.clone(),
            upstream: self.upstream.clone(),
            agent,
            run,
            usage: Some(spent),
            attempts: 1,
            outcome: Outcome::Error.as_str().into(),
            ..UsageRow::default()
        };
        let known_model = self.known_model.clone();
        sink.record_request(EndedRequest {
            row,
            known_model,
            counted: Some(spent),
            ..EndedRequest::default()
        });
    }

    /// Counts a second attempt, with the fault of the useless reply, the remedy, and the reply's tokens.
    pub(super) fn count_second_attempt(&mut self, fault: &'static str, remedy: &'static str, cost: Usage) {
        self.note_earlier_attempt(fault, AttemptError::default(), remedy);
        self.end_attempt(Some(cost), Some(fault));
        self.recovery.extend([fault, remedy]);
        self.discarded = self.discarded.plus(cost);
        // It belonged to the discarded reply.
        self.usage = None;
        ::metrics::counter!(metrics::SECOND_ATTEMPTS, "fault" => fault, "remedy" => remedy).increment(1);
    }

    fn note_earlier_attempt(&mut self, why: &str, error: AttemptError, remedy: &str) {
        let AttemptError { code, mut text } = error;
        text.truncate(text.floor_char_boundary(LONGEST_EARLIER_ERROR));
        self.earlier_attempts.push(EarlierAttempt {
            upstream: self.upstream.clone(),
            ended: clock::to_millis(self.time_since_arrival()),
            why: why.to_owned(),
            error: text,
            code: code.unwrap_or_default().to_owned(),
            remedy: remedy.to_owned(),
        });
    }

    /// Returns the token counts of all attempts.
    pub(super) fn all_usage(&self) -> Option<Usage> {
        let discarded = (self.discarded != Usage::default()).then_some(self.discarded);
        match (self.usage, discarded) {
            (Some(usage), Some(discarded)) => Some(usage.plus(discarded)),
            (usage, discarded) => usage.or(discarded),
        }
    }

    /// Returns the number of attempts at upstreams.
    fn attempt_count(&self) -> u32 {
        let again = u32::try_from(self.recovery.len() / 2).unwrap_or(u32::MAX);
        u32::from(!self.upstream.is_empty()) + self.retries + again
    }

    /// Returns what happens to the request now, in a few words.
    fn phase(&self) -> Cow<'static, str> {
        if let Some(Wait { what, since, longest }) = self.wait {
            return format!("{what} ({} of {} s)", since.elapsed().as_secs(), longest.as_secs()).into();
        }
        let phase = match (self.first_byte, self.upstream_status) {
            (Some(_), Some(_)) => "replying",
            (None, Some(_)) => "reading the reply",
            (_, None) if self.upstream.is_empty() => "arrived",
            (_, None) if !self.has_place => "waiting for a slot",
            (_, None) => "waiting for the model",
        };
        phase.into()
    }

    /// Returns the errors of earlier attempts.
    fn earlier_errors(&self) -> Option<String> {
        let errors = self.earlier_attempts.iter().map(|attempt| &*attempt.error);
        let errors: Vec<_> = errors.filter(|error| !error.is_empty()).collect();
        (!errors.is_empty()).then(|| errors.join("; "))
    }

    /// Counts as waiting what a request spent that never got a place, because its client left.
    fn end_wait_of_gone_client(&mut self, total: Duration) {
        if self.outcome == Outcome::ClientGone && !self.has_place && !self.upstream.is_empty() {
            self.queued += total.saturating_sub(self.waited);
        }
    }

    /// Returns the request's present state.
    pub(super) fn live_state(&self) -> LiveRequest {
        let RowFacts { agent, run, .. } = self.row.clone();
        LiveRequest {
            id: self.start.id.clone(),
            route: self.route,
            key: self.start.key_name().unwrap_or_default().to_owned(),
            model: self.model.clone(),
            // Until the fallback has a place, the last upstream is that of the model before it.
            upstream: if self.has_place || self.fallbacks.is_empty() {
                self.upstream.clone()
            } else {
                String::new()
            },
            agent,
            run,
            phase: self.phase(),
            elapsed: self.time_since_arrival(),
            attempts: self.attempt_count(),
            tokens: self.all_usage().map(|usage| usage.total_tokens()),
        }
    }

    /// Returns method and path of a request that this route took; empty for others.
    fn request_on(&self, route: &str) -> String {
        if self.route == route { self.start.request.clone().into_owned() } else { String::new() }
    }

    /// Makes the row of this request. It moves the fields out, because the line is written already.
    fn take_row(&mut self, duration: Duration, usage: Option<Usage>) -> UsageRow {
        let RowFacts { agent, run, key, usage: own } = std::mem::take(&mut self.row);
        let of_account = || self.start.key_name().map(str::to_owned);
        let waited = self.queued + self.waited;
        UsageRow {
            at: clock::time_ago(duration),
            id: self.start.id.clone(),
            route: self.route.into(),
            key: key.or_else(of_account).unwrap_or_default(),
            model: std::mem::take(&mut self.model),
            attempts: self.attempt_count(),
            upstream: std::mem::take(&mut self.upstream),
            agent,
            run,
            node: String::new(),
            stream: self.stream,
            status: self.status,
            usage: own.or(usage),
            first_byte: self.first_byte,
            duration,
            waited,
            dialects: each_once(&self.dialects),
            repairs: each_once(&self.repairs),
            recovery: self.recovery.join(","),
            loop_stopped: self.loop_stopped.unwrap_or_default().to_owned(),
            outcome: self.outcome.as_str().into(),
            error_code: self.error_code.unwrap_or_default().to_owned(),
            error: self.error.take().unwrap_or_default(),
            details: RequestDetails {
                refused: self.request_on("refused"),
                passed: self.request_on("transparent"),
                client: self.client.map(|client| client.to_string()).unwrap_or_default(),
                earlier_attempts: std::mem::take(&mut self.earlier_attempts),
                queued: (!waited.is_zero()).then(|| clock::to_millis(self.queued)),
                fallback: self.fallbacks.join(","),
                dropped: each_once(&self.dropped),
                trimmed: self.trimmed.take().unwrap_or_default(),
                prefix_lost: self.prefix_lost.take().unwrap_or_default(),
                reasoning_unknown: self.reasoning_unknown as u64,
            },
        }
    }

    /// Counts a heartbeat.
    pub(super) fn count_heartbeat(&mut self) {
        self.heartbeats += 1;
        ::metrics::counter!(metrics::HEARTBEATS).increment(1);
    }

    /// Returns true for a failure that is not the client's mistake.
    fn is_servers_failure(&self) -> bool {
        // Some clients get another status than that of the upstream.
        let status = self.status.max(self.upstream_status.unwrap_or_default());
        self.outcome == Outcome::Error && !is_request_fault(self.error_code.unwrap_or_default(), status)
    }

    /// Writes the line; a failure of a server is a warning.
    fn write_line(&self, total: Duration, usage: Option<Usage>) {
        macro_rules! write_line {
            ($level:ident) => {
                tracing::$level!(
                    target: "respool::request",
                    request_id = self.start.id,
                    request = &*self.start.request,
                    route = self.route,
                    key = self.start.key_name(),
                    client = self.client.map(|client| client.to_string()),
                    model = self.model,
                    stream = self.stream,
                    upstream = self.upstream,
                    upstreams_tried = (self.upstreams_tried > 1).then_some(self.upstreams_tried),
                    queued_ms = non_default(self.queued).map(to_millis),
                    waited_ms = non_default(self.waited).map(to_millis),
                    upstream_status = self.upstream_status,
                    status = self.status,
                    outcome = self.outcome.as_str(),
                    error_code = self.error_code,
                    error = self.error,
                    edits = join_names(&self.edits),
                    loop_warned = self.loop_warned,
                    loop_stopped = self.loop_stopped,
                    counted = self.counted,
                    trimmed = self.trimmed,
                    prefix_lost = self.prefix_lost,
                    reasoning_unknown = non_default(self.reasoning_unknown),
                    fallback = (!self.fallbacks.is_empty()).then(|| self.fallbacks.join(",")),
                    retries = non_default(self.retries),
                    put_back = non_default(self.put_back),
                    earlier_errors = self.earlier_errors(),
                    heartbeats = non_default(self.heartbeats),
                    calls = non_default(self.calls),
                    dialect = non_default(each_once(&self.dialects)),
                    repairs = non_default(each_once(&self.repairs)),
                    dropped = non_default(each_once(&self.dropped)),
                    recovery = join_names(&self.recovery),
                    prompt_tokens = usage.map(|usage| usage.prompt),
                    completion_tokens = usage.map(|usage| usage.completion),
                    first_byte_ms = self.first_byte.map(to_millis),
                    total_ms = to_millis(total),
                    "request"
                )
            };
        }
        if self.is_servers_failure() {
            write_line!(warn);
        } else {
            write_line!(info);
        }
    }

    fn record_metrics(&self, total: Duration) {
        let labels = metrics::RequestLabels {
            route: self.route,
            outcome: self.outcome.as_str(),
            model: Cow::Borrowed(&self.known_model),
            upstream: Cow::Borrowed(&self.upstream),
            error_code: self.error_code.unwrap_or_default(),
        };
        metrics::record_request(&labels, total, self.first_byte);
        // The model calls of a run count their own.
        if let Some(usage) = self.all_usage().filter(|_| self.route != "agent") {
            metrics::count_tokens(usage, &self.known_model, &self.upstream);
        }
        let loops = [(metrics::LOOPS_WARNED, self.loop_warned), (metrics::LOOPS_STOPPED, self.loop_stopped)];
        for (metric, kind) in loops {
            kind.iter().for_each(|kind| ::metrics::counter!(metric, "kind" => *kind).increment(1));
        }
        for (dialect, count) in &self.calls_by_dialect {
            ::metrics::counter!(metrics::CALLS, "dialect" => *dialect).increment(*count as u64);
        }
        let counts = [(metrics::REPAIRS, "kind", &self.repairs), (metrics::DROPPED, "reason", &self.dropped)];
        for (metric, label, names) in counts {
            names.iter().for_each(|name| ::metrics::counter!(metric, label => *name).increment(1));
        }
    }
}

/// Counts the calls of a turn by the dialect that they were read in. A note about a dialect means that the
/// calls come from text: a server that reads calls itself leaves none there. Of several dialects, each read
/// one call, and the last one read the rest.
fn calls_by_dialect(turn: &Turn) -> Vec<(&'static str, usize)> {
    let dialects = turn.notes.iter().filter_map(|note| match note {
        Note::Dialect(name) => Some(*name),
        _ => None,
    });
    let mut counts: Vec<_> = dialects.take(turn.calls.len()).map(|dialect| (dialect, 1)).collect();
    let rest = turn.calls.len() - counts.len();
    match counts.last_mut() {
        Some((_, count)) => *count += rest,
        None if rest > 0 => counts.push(("native", rest)),
        None => {}
    }
    counts
}

fn join_names(names: &[&'static str]) -> Option<String> {
    (!names.is_empty()).then(|| names.join(","))
}

/// Lists each name once: a reply may have thousands of calls with the same note. The metrics count them all.
fn each_once(names: &[&'static str]) -> String {
    let mut seen: Vec<&str> = Vec::new();
    for name in names {
        if !seen.contains(name) {
            seen.push(name);
        }
    }
    seen.join(",")
}

/// Returns `None` for a zero or empty value, which the line leaves out.
fn non_default<T: Default + PartialEq>(count: T) -> Option<T> {
    (count != T::default()).then_some(count)
}

fn to_millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 10_000.0).round() / 10.0
}

impl Drop for RequestLine {
    fn drop(&mut self) {
        let total = self.time_since_arrival();
        self.end_wait_of_gone_client(total);
        self.record_metrics(total);
        let usage = self.all_usage();
        self.write_line(total, usage);
        self.end_trace(usage);
        if let Some(sink) = self.sink.take() {
            let prefix_lost = self.prefix_lost.clone();
            let row = self.take_row(total, usage);
            let counted = row
                .usage
                .or_else(|| self.start.account.as_ref().and_then(|account| account.estimate_usage()));
            sink.record_request(EndedRequest {
                row,
                known_model: std::mem::take(&mut self.known_model),
                counted,
                queued: self.queued,
                prefix_lost,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::turn::ToolCall;

    fn check(dialects: &[&'static str], calls: usize, expected: &[(&'static str, usize)]) {
        let notes = dialects.iter().map(|name| Note::Dialect(name)).collect();
        let turn = Turn { calls: vec![ToolCall::default(); calls], notes, ..Turn::default() };
        assert_eq!(calls_by_dialect(&turn), expected);
    }

    #[test]
    fn a_note_of_many_calls_is_listed_once() {
        let names = ["duplicate", "unreadable"].repeat(10_000);
        assert_eq!(each_once(&names), "duplicate,unreadable");
        let mut line = RequestLine::begin(Arc::new(RequestStart::new("r".into(), "POST /", "other")));
        line.repairs = names;
        assert_eq!(line.take_row(Duration::ZERO, None).repairs, "duplicate,unreadable");
    }

    #[test]
    fn failures_of_servers_are_warnings() {
        let mut line = RequestLine::begin(Arc::new(RequestStart::new("r".into(), "POST /", "other")));
        let mut check = |outcome, status, upstream_status, expected| {
            (line.outcome, line.status, line.upstream_status) = (outcome, status, upstream_status);
            assert_eq!(line.is_servers_failure(), expected, "{status} {upstream_status:?}");
        };
        check(Outcome::Error, 503, None, true);
        check(Outcome::Error, 422, Some(500), true);
        check(Outcome::Error, 200, Some(200), true);
        check(Outcome::Error, 400, Some(400), false);
        check(Outcome::Error, 401, None, false);
        check(Outcome::ClientGone, 503, None, false);
        (line.outcome, line.status, line.error_code) = (Outcome::Error, 422, Some("upstream_unreachable"));
        assert!(line.is_servers_failure(), "OpenClaw gets another status");
    }

    #[test]
    fn the_row_names_the_model_that_answered() {
        let mut line = RequestLine::begin(Arc::new(RequestStart::new("r".into(), "POST /", "other")));
        line.fall_back("big", "overflow", "small", AttemptError::default(), Usage::default());
        assert_eq!(line.fallbacks, ["big:overflow"]);
        assert_eq!(line.take_row(Duration::ZERO, None).model, "small");
    }

    #[test]
    fn the_row_lists_earlier_attempts() {
        let mut line = RequestLine::begin(Arc::new(RequestStart::new("r".into(), "POST /", "other")));
        line.upstream = "one".into();
        let text = "upstream `one` answered HTTP 500".to_owned();
        line.count_retry("failover", AttemptError { code: Some("upstream_error"), text });
        line.upstream = "two".into();
        line.count_second_attempt("empty_reply", "repeat", Usage::default());
        assert_eq!(line.earlier_errors().as_deref(), Some("upstream `one` answered HTTP 500"));
        let details = line.take_row(Duration::ZERO, None).details;
        let found: Vec<_> = details
            .earlier_attempts
            .iter()
            .map(|it| [&*it.upstream, &it.why, &it.error, &it.remedy])
            .collect();
        let first = ["one", "failover", "upstream `one` answered HTTP 500", ""];
        assert_eq!(found, [first, ["two", "empty_reply", "", "repeat"]]);
        assert_eq!(details.earlier_attempts[0].code, "upstream_error");
    }

    /// Regression: the row that waited longest said that it had not waited.
    #[test]
    fn a_client_that_leaves_the_queue_has_waited() {
        let gone = |has_place: bool| {
            let mut line = RequestLine::begin(Arc::new(RequestStart::new("r".into(), "POST /", "other")));
            (line.upstream, line.has_place) = ("one".into(), has_place);
            line.end_wait_of_gone_client(Duration::from_secs(40));
            line.take_row(Duration::from_secs(40), None).waited
        };
        assert_eq!((gone(false), gone(true)), (Duration::from_secs(40), Duration::ZERO));
    }

    #[test]
    fn a_wait_for_a_server_has_its_own_phase() {
        let mut line = RequestLine::begin(Arc::new(RequestStart::new("r".into(), "POST /", "other")));
        (line.upstream, line.has_place) = ("one".into(), true);
        line.note_first_byte();
        assert_eq!(line.phase(), "waiting for the model");
        let (what, longest) = ("the server is down: waiting for it", Duration::from_mins(1));
        line.wait = Some(Wait { what, since: Instant::now(), longest });
        assert_eq!(line.phase(), "the server is down: waiting for it (0 of 60 s)");
        (line.wait, line.upstream_status) = (None, Some(500));
        line.fall_back("big", "failed", "small", AttemptError::default(), Usage::default());
        let live = line.live_state();
        assert_eq!((&*live.phase, &*live.upstream, &*live.model), ("waiting for a slot", "", "small"));
    }

    /// Three Hermes calls of one reply were counted as one of Hermes and two native ones.
    #[test]
    fn calls_are_counted_by_their_dialect() {
        check(&["hermes"], 3, &[("hermes", 3)]);
        check(&["hermes", "mistral"], 3, &[("hermes", 1), ("mistral", 2)]);
        check(&[], 2, &[("native", 2)]);
        check(&["hermes"], 0, &[]);
        check(&[], 0, &[]);
    }
}
