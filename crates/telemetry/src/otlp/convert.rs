//! Converts spans to the types of OpenTelemetry's exporter. Pure.

use opentelemetry::trace::{
    SpanContext, SpanId, SpanKind as TheirKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

use crate::{Span, SpanKind, SpanValue};

/// Converts a span.
pub(super) fn to_span_data(span: Span) -> SpanData {
    let Span { context, parent, parent_is_remote, kind, name, start, end, attributes, error } = span;
    SpanData {
        span_context: SpanContext::new(
            TraceId::from(context.trace),
            SpanId::from(context.span),
            TraceFlags::SAMPLED,
            false,
            TraceState::NONE,
        ),
        parent_span_id: parent.map_or(SpanId::INVALID, SpanId::from),
        parent_span_is_remote: parent_is_remote,
        span_kind: match kind {
            SpanKind::Server => TheirKind::Server,
            SpanKind::Client => TheirKind::Client,
            SpanKind::Internal => TheirKind::Internal,
        },
        name: name.into(),
        start_time: start,
        end_time: end,
        attributes: attributes.into_iter().map(|(name, value)| to_key_value(name, value)).collect(),
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: error.map_or(Status::Unset, |error| Status::Error { description: error.into() }),
        instrumentation_scope: InstrumentationScope::builder("respool").build(),
    }
}

fn to_key_value(name: &'static str, value: SpanValue) -> KeyValue {
    match value {
        SpanValue::Text(text) => KeyValue::new(name, text),
        SpanValue::Number(number) => KeyValue::new(name, number),
    }
}
