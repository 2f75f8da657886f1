//! What every turn must satisfy, for the property tests and the fuzz targets alike. Compiled only for them.
//!
//! A violation panics: both kinds of test want that.
#![allow(clippy::missing_panics_doc, reason = "to panic is what an oracle is for")]

use std::sync::Arc;

use serde_json::Value;

use super::json_span::{JsonSpan, Span, Style};
use super::{End, Engine, Field, Options, Tools, lenient_json, schema};
use crate::turn::{Note, Turn};

/// The tools that the generated texts speak of.
pub const TOOLS: &str = r#"[{"type":"function","function":{"name":"read","parameters":{"type":"object","required":["path"],
    "properties":{"path":{"type":"string"},"limit":{"type":"integer"}}}}},
    {"type":"function","function":{"name":"exec","parameters":{"type":"object"}}}]"#;

/// Runs the engine over `pieces`.
pub fn run(tools: &Arc<Tools>, options: Options, pieces: &[&str], cut: bool, reasoning: bool) -> Turn {
    let mut engine = Engine::new(Arc::clone(tools), options);
    let field = if reasoning { Field::Reasoning } else { Field::Content };
    let mut out = Vec::new();
    pieces.iter().for_each(|piece| engine.push(field, piece, &mut out));
    engine.finish(End { cut }, &mut out);
    out.into_iter().collect()
}

/// Checks every invariant on one text: the same turn whole, char by char and split at `cuts`; nothing lost; calls valid.
pub fn check(tools: &Arc<Tools>, options: Options, text: &str, cuts: &[usize], cut: bool, reasoning: bool) {
    let whole = run(tools, options, &[text], cut, reasoning);
    let chars: Vec<&str> = text.char_indices().map(|(at, char)| &text[at..at + char.len_utf8()]).collect();
    assert_eq!(run(tools, options, &chars, cut, reasoning), whole, "char by char: {text:?}");
    let pieces = split(text, cuts);
    assert_eq!(run(tools, options, &pieces, cut, reasoning), whole, "as {pieces:?}");
    nothing_is_lost(text, &whole);
    calls_are_valid(tools, options, &whole);
}

fn split<'a>(text: &'a str, cuts: &[usize]) -> Vec<&'a str> {
    let mut cuts: Vec<usize> = cuts.iter().copied().filter(|&cut| text.is_char_boundary(cut)).collect();
    cuts.extend([0, text.len()]);
    cuts.sort_unstable();
    cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect()
}

/// A turn in which nothing was read as anything has all of the text; one with less has a call or a note that tells why, or
/// took away marks only.
fn nothing_is_lost(text: &str, turn: &Turn) {
    let kept = turn.content.len() + turn.reasoning.len();
    let explained =
        !turn.calls.is_empty() || turn.notes.iter().any(|note| matches!(note, Note::Dropped { .. }));
    let marks = text.contains('<')
        || text.contains("[T")
        || text.contains("assistant")
        || text.contains("commentary");
    let glued = text.contains("analysis") || text.contains('◁');
    assert!(kept >= text.len() || explained || marks || glued, "lost: {text:?} became {turn:?}");
}

fn calls_are_valid(tools: &Tools, options: Options, turn: &Turn) {
    assert!(options.calls_wanted || turn.calls.is_empty());
    assert!(options.parallel || turn.calls.len() <= 1);
    for call in &turn.calls {
        let tool = tools.get(&call.name);
        let arguments: Value = serde_json::from_str(&call.arguments).unwrap_or(Value::Null);
        assert!(tool.is_some() && arguments.is_object(), "{call:?}");
        if let Some(tool) = tool {
            let valid = schema::accepts(&arguments, tool.schema(), tool.schema());
            assert_eq!(valid, call.problems.is_empty(), "{call:?}");
        }
    }
}

/// Checks lenient JSON on one text: strict JSON is read as it is, anything else ends where the span says or is refused.
pub fn check_json(text: &str) {
    let read = lenient_json::read(text);
    if let Ok(strict) = serde_json::from_str::<Value>(text) {
        let read = read.as_ref().ok();
        assert_eq!(read.map(|read| &read.value), Some(&strict), "{text:?}");
        assert!(read.is_some_and(|read| read.repairs.is_empty()), "{text:?}");
        span_agrees(text, &strict);
    }
    if let Ok(read) = read {
        assert!(read.end <= text.len() && text.is_char_boundary(read.end), "{text:?}");
        let again = lenient_json::read(&read.value.to_string());
        assert_eq!(again.ok().map(|again| again.value), Some(read.value), "{text:?}");
    }
}

/// A valid object or array ends exactly where its scan says, in one piece and in many.
fn span_agrees(text: &str, value: &Value) {
    let start = text.len() - text.trim_start().len();
    if !(value.is_object() || value.is_array()) {
        return;
    }
    let end = text.trim_end().len();
    assert_eq!(JsonSpan::new(start, Style::Json).advance(text, true), Span::Complete(end), "{text:?}");
    let mut span = JsonSpan::new(start, Style::Json);
    let pieces = text.char_indices().skip(1).map(|(at, _)| at);
    let found = pieces.map(|at| span.advance(&text[..at], false)).find(|found| *found != Span::More);
    let found = found.unwrap_or_else(|| span.advance(text, true));
    assert_eq!(found, Span::Complete(end), "{text:?}");
}
