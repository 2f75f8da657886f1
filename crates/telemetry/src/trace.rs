//! The spans of a request: its steps, with their times and parents. Plain data and the W3C's `traceparent`;
//! `otlp` sends the spans. They contain message text only if `[log] content` allows it.

use std::fmt::{self, Debug};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// The longest text of an attribute.
const LONGEST: usize = 32 << 10;

/// The identity of a span and its trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace.
    pub trace: u128,
    /// The span.
    pub span: u64,
    /// False when the sender who began the trace does not want it recorded.
    pub sampled: bool,
}

impl TraceContext {
    /// Begins a new trace.
    pub fn begin_trace() -> Self {
        Self { trace: rand::random::<u128>() | 1, span: rand::random::<u64>() | 1, sampled: true }
    }

    /// Makes a child of this span.
    #[must_use]
    pub fn new_child(self) -> Self {
        Self { span: rand::random::<u64>() | 1, ..self }
    }

    /// Reads a `traceparent` header (W3C Trace Context, level 1, and the same fields of later versions).
    pub fn parse_header(header: &str) -> Option<Self> {
        let mut parts = header.trim().split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let is_hex = |text: &str, length: usize| {
            text.len() == length && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        let is_right = is_hex(version, 2) && is_hex(trace, 32) && is_hex(span, 16) && is_hex(flags, 2);
        if !is_right || version == "ff" || (version == "00" && parts.next().is_some()) {
            return None;
        }
        let (trace, span) = (u128::from_str_radix(trace, 16).ok()?, u64::from_str_radix(span, 16).ok()?);
        let sampled = u8::from_str_radix(flags, 16).ok()? & 1 == 1;
        (trace != 0 && span != 0).then_some(Self { trace, span, sampled })
    }
}

/// Writes the value of a `traceparent` header.
impl fmt::Display for TraceContext {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "00-{:032x}-{:016x}-{:02x}", self.trace, self.span, u8::from(self.sampled))
    }
}

/// The side of a call that a span describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// respool was asked.
    Server,
    /// respool asks.
    Client,
    /// A step within respool.
    Internal,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum SpanValue {
    /// A text.
    Text(String),
    /// A number.
    Number(i64),
}

impl From<&str> for SpanValue {
    fn from(text: &str) -> Self {
        Self::Text(text.chars().take(LONGEST).collect())
    }
}

impl From<u64> for SpanValue {
    fn from(number: u64) -> Self {
        Self::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

/// The attributes of a span, named after OpenTelemetry's semantic conventions where possible.
pub type Attributes = Vec<(&'static str, SpanValue)>;

/// A step of a request's handling.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// Its identity.
    pub context: TraceContext,
    /// The span that it is part of.
    pub parent: Option<u64>,
    /// The parent belongs to another process.
    pub parent_is_remote: bool,
    /// The side of a call that it describes.
    pub kind: SpanKind,
    /// Its name.
    pub name: String,
    /// The time at which it began.
    pub start: SystemTime,
    /// The time at which it ended.
    pub end: SystemTime,
    /// Its attributes.
    pub attributes: Attributes,
    /// The reason for its failure, in one word.
    pub error: Option<String>,
}

/// Takes spans. Requests call it, so it must not wait for anything.
pub trait SpanSink: Debug + Send + Sync {
    /// Takes a finished span.
    fn record_span(&self, span: Span);
    /// Makes an agent's run part of this span.
    fn begin_run(&self, run: &str, parent: TraceContext);
    /// Returns the context of a run's spans, and the span that the run is part of.
    fn run_context(&self, run: &str) -> (TraceContext, Option<u64>);
}

/// The spans of one request.
#[derive(Debug)]
pub(super) struct RequestTrace {
    sink: Arc<dyn SpanSink>,
    pub(super) context: TraceContext,
    parent: Option<u64>,
    parent_is_remote: bool,
    arrived: (Instant, SystemTime),
    attempt: Option<Attempt>,
}

#[derive(Debug)]
struct Attempt {
    context: TraceContext,
    start: SystemTime,
    attributes: Attributes,
}

/// The facts about an attempt at its end.
pub(super) struct AttemptEnd<'a> {
    pub(super) model: &'a str,
    pub(super) upstream: &'a str,
    pub(super) status: Option<u16>,
    pub(super) usage: Option<wire::turn::Usage>,
    pub(super) error: Option<&'a str>,
}

impl RequestTrace {
    /// Begins the spans of a request: below its own `parent`, or below its `run`, or as a new trace.
    pub(super) fn new(
        sink: &Arc<dyn SpanSink>,
        parent: Option<TraceContext>,
        run: &str,
        arrived: Instant,
    ) -> Self {
        let of_run = (!run.is_empty()).then(|| sink.run_context(run).0);
        let above = parent.or(of_run);
        Self {
            sink: Arc::clone(sink),
            context: above.map_or_else(TraceContext::begin_trace, TraceContext::new_child),
            parent: above.map(|above| above.span),
            parent_is_remote: parent.is_some(),
            arrived: (arrived, clock::system_time() - arrived.elapsed()),
            attempt: None,
        }
    }

    /// Returns the time on a clock that all spans of the request share, so that no span begins before its
    /// parent.
    fn wall_time(&self) -> SystemTime {
        self.arrived.1 + self.arrived.0.elapsed()
    }

    /// Records a wait in the queue of an upstream, which ends now.
    pub(super) fn record_queueing(&self, upstream: &str, waited: Duration) {
        let end = self.wall_time();
        self.record_span(Span {
            context: self.context.new_child(),
            parent: Some(self.context.span),
            parent_is_remote: false,
            kind: SpanKind::Internal,
            name: "queue".to_owned(),
            start: end - waited,
            end,
            attributes: vec![("respool.upstream", upstream.into())],
            error: None,
        });
    }

    /// Begins an attempt: a model is asked now.
    pub(super) fn begin_attempt(&mut self) {
        let (context, start) = (self.context.new_child(), self.wall_time());
        self.attempt = Some(Attempt { context, start, attributes: Vec::new() });
    }

    /// Adds message text to the attempt; the caller checks that this is allowed.
    pub(super) fn add_content(&mut self, what: &'static str, text: &[u8]) {
        if let Some(attempt) = &mut self.attempt {
            attempt.attributes.push((what, String::from_utf8_lossy(text).as_ref().into()));
        }
    }

    /// Returns the header for the upstream, whose spans become part of the attempt.
    pub(super) fn traceparent(&self) -> String {
        self.attempt.as_ref().map_or(self.context, |attempt| attempt.context).to_string()
    }

    /// Ends an attempt.
    pub(super) fn end_attempt(&mut self, end: &AttemptEnd<'_>) {
        let Some(Attempt { context, start, mut attributes }) = self.attempt.take() else { return };
        attributes.extend([
            ("gen_ai.operation.name", "chat".into()),
            ("gen_ai.provider.name", "vllm".into()),
            ("gen_ai.request.model", end.model.into()),
            ("respool.upstream", end.upstream.into()),
        ]);
        if let Some(usage) = end.usage {
            attributes.push(("gen_ai.usage.input_tokens", usage.prompt.into()));
            attributes.push(("gen_ai.usage.output_tokens", usage.completion.into()));
        }
        attributes.extend(end.status.map(|status| ("http.response.status_code", u64::from(status).into())));
        self.record_span(Span {
            context,
            parent: Some(self.context.span),
            parent_is_remote: false,
            kind: SpanKind::Client,
            name: format!("chat {}", end.model),
            start,
            end: self.wall_time(),
            attributes,
            error: end.error.map(str::to_owned),
        });
    }

    /// Ends the span of the request.
    pub(super) fn end_request(&self, name: String, attributes: Attributes, error: Option<&str>) {
        let kind = if self.parent.is_some() && !self.parent_is_remote {
            SpanKind::Internal
        } else {
            SpanKind::Server
        };
        self.record_span(Span {
            context: self.context,
            parent: self.parent,
            parent_is_remote: self.parent_is_remote,
            kind,
            name,
            start: self.arrived.1,
            end: self.wall_time(),
            attributes,
            error: error.map(str::to_owned),
        });
    }

    fn record_span(&self, mut span: Span) {
        if !self.context.sampled {
            return;
        }
        if let Some(error) = &span.error {
            span.attributes.push(("error.type", error.as_str().into()));
        }
        self.sink.record_span(span);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceparent_is_read_as_the_specification_says() {
        let check = |text: &str, expected: Option<(u128, u64, bool)>| {
            let read = TraceContext::parse_header(text).map(|it| (it.trace, it.span, it.sampled));
            assert_eq!(read, expected, "{text}");
        };
        let (trace, span) = (0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736, 0x00f0_67aa_0ba9_02b7);
        let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        check(text, Some((trace, span, true)));
        check("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00", Some((trace, span, false)));
        check("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-09-later", Some((trace, span, true)));
        check("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-later", None);
        check("ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", None);
        check("00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01", None);
        check("00-00000000000000000000000000000000-00f067aa0ba902b7-01", None);
        check("00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01", None);
        check("00-4bf9-00f067aa0ba902b7-01", None);
        check("", None);
        assert_eq!(TraceContext::parse_header(text).unwrap().to_string(), text);
    }
}
