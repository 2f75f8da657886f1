//! Log lines for a person at a terminal: one short line per request that fits the width, and other events as
//! a sentence with its values. A log file gets JSON, which [`LogLine`] reads. Called by `init` and by
//! `respool service logs`.

use std::borrow::Cow;
use std::error::Error;
use std::fmt::{self, Write as _};
use std::io;
use std::time::Duration;

use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::on_terminal::escape_lines;
use wire::visible::{char_width, cut_line, make_visible, one_line, wrap_text};

/// The target of the line that each request writes.
const REQUEST: &str = "respool::request";
/// The target of alerts, whose sentences say what their fields do.
const ALERTS: &str = "respool::alerts";
/// The assumed width of a terminal whose width is unknown.
const USUAL_WIDTH: usize = 100;
/// The least width for a request's line; on a narrower terminal it wraps.
const LEAST_WIDTH: usize = 40;

/// The margin of what continues a line: the width of `hh:mm:ss `.
const BELOW_TIME: &str = "         ";

const DIM: &str = "2";
const RED: &str = "31";
const GREEN: &str = "32";
const YELLOW: &str = "33";

/// Formats events for a terminal.
pub(super) struct TerminalLines {
    pub(super) has_colours: bool,
}

impl<S, N> FormatEvent<S, N> for TerminalLines
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
        let mut fields = Fields::default();
        event.record(&mut fields);
        let metadata = event.metadata();
        let time = clock::format_time(clock::now());
        writeln!(
            writer,
            "{}",
            self.line(&fields, &time, *metadata.level(), metadata.target(), terminal_width())
        )
    }
}

/// A line of a log in JSON.
#[derive(Debug)]
pub struct LogLine {
    fields: Fields,
    level: Level,
    target: String,
    time: String,
}

impl LogLine {
    /// Reads a line that `JsonLines` wrote.
    pub fn from_json(line: &str) -> Option<Self> {
        let Ok(Value::Object(object)) = serde_json::from_str(line) else { return None };
        let mut read = Self {
            fields: Fields::default(),
            level: Level::INFO,
            target: String::new(),
            time: String::new(),
        };
        for (name, value) in object {
            let value = match value {
                Value::String(text) => text,
                other => other.to_string(),
            };
            match name.as_str() {
                "timestamp" => read.time = value,
                "level" => read.level = value.parse().ok()?,
                "target" => read.target = value,
                "message" => read.fields.message = value,
                _ => read.fields.others.push((name.into(), value)),
            }
        }
        (!read.time.is_empty()).then_some(read)
    }

    /// Returns the day in UTC, as `2026-11-27`.
    pub fn day(&self) -> &str {
        self.time.get(..10).unwrap_or_default()
    }

    /// Writes the line as a terminal of this width shows it.
    pub fn render(&self, width: usize, has_colours: bool) -> String {
        let lines = TerminalLines { has_colours };
        escape_lines(&lines.line(&self.fields, &self.time, self.level, &self.target, width))
    }
}

impl TerminalLines {
    /// Writes an event. `time` is in the form of RFC 3339.
    fn line(&self, fields: &Fields, time: &str, level: Level, target: &str, width: usize) -> String {
        let line = if target == REQUEST {
            self.request_line(fields, width)
        } else {
            wrap_below_time(&self.event_line(fields, level, target), width)
        };
        format!("{} {line}", self.colour_text(DIM, time.get(11..19).unwrap_or_default()))
    }

    fn colour_text(&self, colour: &str, text: &str) -> String {
        if self.has_colours && !text.is_empty() {
            format!("\u{1b}[{colour}m{text}\u{1b}[0m")
        } else {
            text.to_owned()
        }
    }

    /// Writes the outcome, the model and the other facts of a request, in at most `width` columns with the
    /// time. An error that does not fit follows whole on a line of its own.
    fn request_line(&self, fields: &Fields, width: usize) -> String {
        let (word, colour) = match fields.get("outcome") {
            "ok" => ("ok", GREEN),
            "error" => ("error", RED),
            "client_gone" => ("client gone", YELLOW),
            "loop_guard" => ("loop ended", YELLOW),
            other => (other, YELLOW),
        };
        let room = width.saturating_sub("hh:mm:ss ".len() + 12);
        let word = self.colour_text(colour, &format!("{word:<12}"));
        let about = request_parts(fields, true).join("  ");
        let error = fields.get("error");
        if error.is_empty() || text_width(&about) <= room {
            return format!("{word}{}", cut_line(&about, room));
        }
        let about = cut_line(&request_parts(fields, false).join("  "), room);
        let error = wrap_below_time(&one_line(error, usize::MAX), width);
        format!("{word}{about}\n{BELOW_TIME}{error}")
    }

    fn event_line(&self, fields: &Fields, level: Level, target: &str) -> String {
        let mut line = match level {
            Level::ERROR => self.colour_text(RED, "error "),
            Level::WARN => self.colour_text(YELLOW, "warning "),
            _ => String::new(),
        };
        line.push_str(&make_visible(&fields.message));
        if let Some(todo) = fields.find("todo") {
            let _ = write!(line, " → {}", make_visible(todo));
        }
        let others = fields.others.iter().filter(|(name, _)| name != "todo" && target != ALERTS);
        let others: Vec<String> =
            others.map(|(name, value)| format!("{name}={}", one_line(value, usize::MAX))).collect();
        if !others.is_empty() {
            let _ = write!(line, "  {}", self.colour_text(DIM, &others.join(" ")));
        }
        line
    }
}

/// Wraps text between words, below the place after the time.
fn wrap_below_time(text: &str, width: usize) -> String {
    wrap_text(text, width.saturating_sub(BELOW_TIME.len())).replace('\n', &format!("\n{BELOW_TIME}"))
}

fn text_width(text: &str) -> usize {
    text.chars().map(char_width).sum()
}

/// Lists the facts that follow the outcome in a request's line, the most important first.
fn request_parts(fields: &Fields, with_error: bool) -> Vec<String> {
    let filled = |name: &str| fields.find(name).filter(|value| !value.is_empty());
    let text = |name: &str| filled(name).map(|value| one_line(value, usize::MAX));
    let model = text("model").or_else(|| text("request"));
    let model = model.map(|model| match filled("fallback").and_then(asked_model) {
        Some((asked, why)) => one_line(&format!("{model} instead of {asked} ({why})"), usize::MAX),
        None => model,
    });
    // What is passed on unread has many routes.
    let path = text("request").filter(|_| fields.get("route") == "transparent" && filled("model").is_some());
    let took = fields.number("total_ms").map(|millis| format_duration(millis / 1_000.0));
    let tokens = fields.find("prompt_tokens").zip(fields.find("completion_tokens"));
    let tokens = tokens.map(|(prompt, completion)| format!("{prompt} → {completion} tokens"));
    let calls = fields.find("calls").map(|count| match count {
        "1" => "1 call".to_owned(),
        count => format!("{count} calls"),
    });
    let repairs: Vec<&str> = ["dialect", "repairs"].into_iter().filter_map(filled).collect();
    let repairs =
        (!repairs.is_empty()).then(|| format!("repaired: {}", repairs.join(",").replace(',', ", ")));
    let named =
        |name: &str, words: &str| text(name).map(|value| format!("{words} {}", value.replace(',', ", ")));
    let is_failed = fields.get("outcome") == "error";
    let status = filled("status").filter(|_| is_failed);
    let status = status.and_then(|status| match status {
        // A request that is part of respool's own work has no status.
        "0" => None,
        "200" => Some("in its stream".to_owned()),
        _ => Some(format!("HTTP {status}")),
    });
    let status = status.filter(|status| !fields.get("error").contains(status.as_str()));
    let parts = [
        model,
        path,
        took,
        status,
        text("error").filter(|_| with_error),
        calls,
        tokens,
        fields.number("retries").map(|retries| format!("tried {} times", retries + 1.0)),
        fields.find("put_back").map(|count| match count {
            "1" => "put back once for urgent requests".to_owned(),
            count => format!("put back {count} times for urgent requests"),
        }),
        named("key", "key"),
        named("client", "from"),
        named("upstream", "at"),
        repairs,
        named("recovery", "asked again:"),
    ];
    parts.into_iter().flatten().collect()
}

/// Returns the model that the client asked for before others answered, and why it did not.
fn asked_model(fallbacks: &str) -> Option<(&str, &str)> {
    fallbacks.split(',').next()?.rsplit_once(':')
}

/// Writes seconds with two useful digits.
fn format_duration(seconds: f64) -> String {
    match seconds {
        0.0..1.0 => format!("{:.0} ms", seconds * 1_000.0),
        1.0..10.0 => format!("{seconds:.1} s"),
        _ => humantime::format_duration(Duration::from_secs_f64(seconds.round())).to_string(),
    }
}

fn terminal_width() -> usize {
    let found = rustix::termios::tcgetwinsize(io::stderr()).map_or(0, |size| usize::from(size.ws_col));
    if found == 0 { USUAL_WIDTH } else { found.max(LEAST_WIDTH) }
}

/// The values of an event as text.
#[derive(Debug, Default)]
struct Fields {
    message: String,
    others: Vec<(Cow<'static, str>, String)>,
}

impl Fields {
    fn find(&self, name: &str) -> Option<&str> {
        self.others.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    fn get(&self, name: &str) -> &str {
        self.find(name).unwrap_or_default()
    }

    fn number(&self, name: &str) -> Option<f64> {
        self.find(name)?.parse().ok()
    }

    fn add(&mut self, field: &Field, value: String) {
        match field.name() {
            "message" => self.message = value,
            name => self.others.push((name.into(), value)),
        }
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.to_owned());
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.add(field, value.to_string());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: TerminalLines = TerminalLines { has_colours: false };

    fn fields(pairs: &[(&'static str, &str)]) -> Fields {
        let others = pairs.iter().map(|&(name, value)| (name.into(), value.to_owned())).collect();
        Fields { message: "request".into(), others }
    }

    #[test]
    fn a_request_is_one_line_that_fits() {
        let request = fields(&[
            ("request", "POST /v1/chat/completions"),
            ("model", "gpt-oss-120b"),
            ("status", "200"),
            ("outcome", "ok"),
            ("calls", "2"),
            ("repairs", "renamed,closed"),
            ("prompt_tokens", "2341"),
            ("completion_tokens", "412"),
            ("total_ms", "1234.5"),
        ]);
        let line = PLAIN.request_line(&request, 200);
        assert_eq!(
            line,
            "ok          gpt-oss-120b  1.2 s  2 calls  2341 → 412 tokens  repaired: renamed, closed"
        );
        for width in 40..100 {
            let line = PLAIN.request_line(&request, width);
            assert!(line.chars().map(char_width).sum::<usize>() + 9 <= width, "{width}: {line}");
        }
        let failed = fields(&[
            ("request", "GET /v1/models"),
            ("model", ""),
            ("status", "502"),
            ("upstream", ""),
            ("outcome", "error"),
            ("error", "no\u{1b}[2J answer\nfrom it"),
            ("total_ms", "61000"),
        ]);
        let line = PLAIN.request_line(&failed, 200);
        assert_eq!(line, "error       GET /v1/models  1m 1s  HTTP 502  no\\u{1b}[2J answer from it");
        let narrow = PLAIN.request_line(&failed, 55);
        assert_eq!(
            narrow,
            "error       GET /v1/models  1m 1s  HTTP 502\n         no\\u{1b}[2J answer from it"
        );
        let refused = fields(&[("request", "GET /x"), ("client", "10.0.0.5"), ("outcome", "error")]);
        assert_eq!(PLAIN.request_line(&refused, 200), "error       GET /x  from 10.0.0.5");
        let twice =
            fields(&[("model", "m"), ("status", "404"), ("outcome", "error"), ("error", "no (HTTP 404)")]);
        assert_eq!(PLAIN.request_line(&twice, 200), "error       m  no (HTTP 404)");
        let read = fields(&[("model", "m"), ("outcome", "ok"), ("calls", "1"), ("dialect", "hermes")]);
        assert_eq!(PLAIN.request_line(&read, 200), "ok          m  1 call  repaired: hermes");
        let late = [("model", "m"), ("status", "200"), ("outcome", "error"), ("retries", "2")];
        assert_eq!(PLAIN.request_line(&fields(&late), 200), "error       m  in its stream  tried 3 times");
        let passed =
            [("model", "m"), ("request", "POST /v1/embeddings"), ("route", "transparent"), ("outcome", "ok")];
        assert_eq!(PLAIN.request_line(&fields(&passed), 200), "ok          m  POST /v1/embeddings");
        let other =
            fields(&[("model", "small"), ("outcome", "ok"), ("fallback", "org/big:overflow,mid:failed")]);
        assert_eq!(PLAIN.request_line(&other, 200), "ok          small instead of org/big (overflow)");
        let own = fields(&[("model", "m"), ("status", "0"), ("outcome", "error")]);
        assert_eq!(PLAIN.request_line(&own, 200), "error       m");
    }

    #[test]
    fn long_lines_continue_below_the_time() {
        assert_eq!(wrap_below_time("one two three four", 20), "one two\n         three four");
        assert_eq!(wrap_below_time("one two", 20), "one two");
    }

    #[test]
    fn other_events_keep_their_values() {
        let event =
            Fields { message: "it began".into(), ..fields(&[("listen", "a:1"), ("todo", "look\u{7}")]) };
        let line = |target| PLAIN.event_line(&event, Level::INFO, target);
        assert_eq!(line("respool::server"), "it began → look\\u{7}  listen=a:1");
        assert_eq!(line(ALERTS), "it began → look\\u{7}");
        let coloured = TerminalLines { has_colours: true };
        assert!(
            coloured.event_line(&event, Level::WARN, "x").starts_with("\u{1b}[33mwarning \u{1b}[0mit began")
        );
    }
    #[test]
    fn a_line_of_json_reads_as_on_a_terminal() {
        let line = r#"{"timestamp":"2026-11-27T01:02:03.000004Z","level":"WARN","message":"it asks for a key","todo":"set it","url":"http://a","target":"respool::server"}"#;
        let read = LogLine::from_json(line).unwrap();
        assert_eq!(read.day(), "2026-11-27");
        assert_eq!(read.render(200, false), "01:02:03 warning it asks for a key → set it  url=http://a");
        let request = r#"{"timestamp":"2026-11-27T01:02:03.000004Z","level":"INFO","message":"request","model":"m","outcome":"ok","calls":1,"total_ms":12.5,"target":"respool::request"}"#;
        assert_eq!(
            LogLine::from_json(request).unwrap().render(usize::MAX, false),
            "01:02:03 ok          m  12 ms  1 call"
        );
        for other in ["Started respool.", "{\"a\":1}", "[]", "{"] {
            assert!(LogLine::from_json(other).is_none(), "{other}");
        }
    }
}
