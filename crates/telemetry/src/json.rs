//! Log lines as JSON: one flat object each, written straight into the line.
//!
//! The library's own formatter uses a serializer, which costs several times as much for the line of each
//! request. respool has no `tracing` spans, so none are written. Called by `init`.

use std::error::Error;
use std::fmt;
use std::io::Write as _;
use std::time::UNIX_EPOCH;

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Formats an event as `{"timestamp":…,"level":…,"message":…,FIELDS,"target":…}`.
pub(super) struct JsonLines;

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = Line(Vec::with_capacity(512));
        // A time before 1970 cannot be written.
        let now = clock::system_time().max(UNIX_EPOCH);
        // Writing to a vector cannot fail.
        let _ = write!(line.0, "{{\"timestamp\":\"{}\"", humantime::format_rfc3339_micros(now));
        line.push_field("level", event.metadata().level().as_str());
        event.record(&mut line);
        line.push_field("target", event.metadata().target());
        line.0.extend_from_slice(b"}\n");
        writer.write_str(std::str::from_utf8(&line.0).map_err(|_| fmt::Error)?)
    }
}

struct Line(Vec<u8>);

impl Line {
    fn push_field(&mut self, name: &str, value: impl serde::Serialize) {
        self.0.extend_from_slice(b",\"");
        self.0.extend_from_slice(name.as_bytes());
        self.0.extend_from_slice(b"\":");
        // Neither a number nor a text can fail.
        let _ = serde_json::to_writer(&mut self.0, &value);
    }
}

impl Visit for Line {
    fn record_f64(&mut self, field: &Field, value: f64) {
        if value.is_finite() {
            self.push_field(field.name(), value);
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.push_field(field.name(), value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.push_field(field.name(), value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.push_field(field.name(), value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.push_field(field.name(), value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.push_field(field.name(), value.to_string());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.push_field(field.name(), format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_is_one_flat_object() {
        let written = Written::default();
        let to = written.clone();
        let subscriber =
            tracing_subscriber::fmt().event_format(JsonLines).with_writer(move || to.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            let nothing: Option<u64> = None;
            tracing::warn!(target: "t", text = "say \"hi\"\n", nothing, count = 3, half = 0.5, yes = true, "it {}", 1);
        });
        let line = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        assert!(line.ends_with("}\n"));
        let mut line: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert!(line["timestamp"].as_str().unwrap().ends_with('Z'));
        line.as_object_mut().unwrap().remove("timestamp");
        let expected = serde_json::json!({
            "level": "WARN", "message": "it 1", "text": "say \"hi\"\n", "count": 3, "half": 0.5, "yes": true, "target": "t"
        });
        assert_eq!(line, expected);
    }
}
