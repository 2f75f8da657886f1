//! Calls as JSON with nothing around them: one object, several, one per line, an array, guided
//! `{"tool_calls": […]}`.
//!
//! The value must have exactly a call's form and name declared tools. At the start of the answer it is always
//! a call; after text only if nothing but calls follows and the text does not announce an example.

use serde::de::IgnoredAny;

use super::{Dialect, Found, Opens, Step, View, Wait, envelope};
use crate::calls::{self, RawCall, Trust};
use crate::event::Dropped;
use crate::json_span::{JsonSpan, Span, Style};
use crate::repairs::Repair;

pub(super) static DIALECT: Dialect = Dialect {
    name: "bare_json",
    models: "Llama 3, Qwen2.5-Coder, xLAM, gpt-oss in its final channel, and any model under guided decoding.",
    families: &["llama3", "xlam"],
    grammar: "A JSON object with a name and arguments under any of the usual keys, or an array of them, or \
              `{\"tool_calls\": […]}`; several are separated by space, `;` or `,`. All must name declared tools.",
    example: "{\"name\": \"read\", \"arguments\": {\"path\": \"a.txt\"}}",
    opens: Opens::Anywhere(&["{", "["]),
    read: read_call,
};

/// Keys that the first key of a call may be.
const FIRST_KEYS: [&str; 22] = [
    "name",
    "function",
    "tool",
    "tool_name",
    "function_name",
    "recipient_name",
    "action",
    "arguments",
    "parameters",
    "args",
    "params",
    "input",
    "id",
    "type",
    "tool_calls",
    "function_call",
    "tool_call",
    "index",
    "thought",
    "thoughts",
    "reasoning",
    "action_input",
];

/// The most space that may stand around a separator, in bytes.
const SPACE: usize = 64;

fn read_call(view: &View<'_>) -> Step {
    if view.json_wanted {
        return Step::Not(1);
    }
    match peek_key(view) {
        Peek::No(at) => return Step::Not(at),
        Peek::More => return Step::More(Wait::Any),
        Peek::Maybe if !may_stand_here(view) => return Step::Not(1),
        Peek::Maybe => {}
    }
    let mut span = JsonSpan::new(0, Style::Json);
    let end = match span.advance(view.text, view.eof) {
        Span::Complete(end) => end,
        Span::Stopped(at) => return Step::Not(at),
        Span::More if !view.eof => return Step::More(Wait::Json(0)),
        Span::More => return read_unclosed(view),
    };
    read_complete(view, end)
}

/// Reads a value without its end. Without marks, only its own end shows that an object is a call, but a list
/// of complete ones may lack its bracket.
fn read_unclosed(view: &View<'_>) -> Step {
    let list = format!("{}]", view.text.trim_end());
    let whole = !view.cut && view.text.starts_with('[') && serde_json::from_str::<IgnoredAny>(&list).is_ok();
    if !whole {
        return cut_call(view);
    }
    let mut calls = calls::read_calls(&list, Trust::Bare, view.tools).unwrap_or_default();
    calls.iter_mut().for_each(|call| call.repairs.extend([Repair::Unclosed]));
    accept_calls(view, calls, view.text.len())
}

fn read_complete(view: &View<'_>, end: usize) -> Step {
    let calls = calls::read_calls(&view.text[..end], Trust::Bare, view.tools).unwrap_or_default();
    accept_calls(view, calls, end)
}

fn accept_calls(view: &View<'_>, calls: Vec<RawCall>, end: usize) -> Step {
    let declared = |call: &RawCall| view.tools.resolve(&call.name).is_some();
    if calls.is_empty() || !calls.iter().all(declared) {
        return Step::Not(end);
    }
    match skip_separator(view, end) {
        Some(end) => Step::Read(Found::Calls { calls, firm: view.first && !view.reasoning }, end),
        None => Step::More(Wait::Any),
    }
}

/// Returns true on its own line, or after the end of a sentence; not inside one, in a quotation or in an
/// example.
fn may_stand_here(view: &View<'_>) -> bool {
    let before = view.before.trim_end().chars().next_back();
    let after_sentence = before.is_none_or(|char| ".:!?)>…。：！？".contains(char));
    let spaced = view.before.is_empty()
        || view.before.ends_with(char::is_whitespace)
        || view.before.ends_with(['.', '>']);
    view.first || ((view.line_start || (after_sentence && spaced)) && !view.is_quoted())
}

enum Peek {
    No(usize),
    More,
    Maybe,
}

/// Checks the first key, and the name if it comes first: most JSON that is not a call is rejected here.
fn peek_key(view: &View<'_>) -> Peek {
    let text = view.text;
    let mut at = view.skip_space(1);
    if text.starts_with('[') {
        match text.as_bytes().get(at) {
            Some(b'{') => at = view.skip_space(at + 1),
            Some(_) => return Peek::No(at),
            None => return peek_at_end(view),
        }
    }
    let Some(&quote) = text.as_bytes().get(at) else { return peek_at_end(view) };
    let quoted = quote == b'"' || quote == b'\'';
    let key_from = at + usize::from(quoted);
    let rest = text.get(key_from..).unwrap_or_default();
    let Some(length) = rest.find(|char: char| !(char.is_ascii_alphanumeric() || char == '_')) else {
        let may = FIRST_KEYS.iter().any(|key| key.starts_with(rest));
        return if may { peek_at_end(view) } else { Peek::No(key_from + first_difference(rest)) };
    };
    let begins_a_key = |byte: &u8| FIRST_KEYS.iter().any(|known| known.as_bytes().first() == Some(byte));
    if length > 0 && !rest.as_bytes().first().is_some_and(begins_a_key) {
        return Peek::No(key_from + 1);
    }
    if !FIRST_KEYS.contains(&&rest[..length]) {
        return Peek::No(key_from + first_difference(&rest[..length]));
    }
    if rest.starts_with("name") { peek_name(view, key_from + length) } else { Peek::Maybe }
}

/// Returns the offset at which the text certainly stops being the beginning of a known key.
fn first_difference(key: &str) -> usize {
    let differs = |end: &usize| !FIRST_KEYS.iter().any(|known| known.starts_with(&key[..*end]));
    (1..=key.len()).find(differs).unwrap_or(key.len() + 1)
}

fn peek_name(view: &View<'_>, from: usize) -> Peek {
    let rest = view.text[from..].trim_start_matches(['"', '\'']).trim_start();
    let Some(rest) = rest.strip_prefix(':') else {
        return if rest.is_empty() { peek_at_end(view) } else { Peek::Maybe };
    };
    let rest = rest.trim_start();
    let Some(value) = rest.strip_prefix(['"', '\'']) else {
        return if rest.is_empty() { peek_at_end(view) } else { Peek::Maybe };
    };
    match value.find(['"', '\'']) {
        None if value.len() > 512 => Peek::No(view.text.len() - value.len() + 512),
        None => peek_at_end(view),
        Some(end) if end > 512 => Peek::No(view.text.len() - value.len() + 512),
        Some(end) if view.tools.resolve(&value[..end]).is_some() => Peek::Maybe,
        Some(end) => Peek::No(view.text.len() - value.len() + end + 1),
    }
}

fn peek_at_end(view: &View<'_>) -> Peek {
    if view.eof { Peek::No(view.text.len()) } else { Peek::More }
}

/// Handles a value that was cut off: a call that is not sent if it names a declared tool, text otherwise.
fn cut_call(view: &View<'_>) -> Step {
    match envelope::written_name(view.text).filter(|name| view.tools.resolve(name).is_some()) {
        _ if !view.cut => Step::Not(view.text.len()),
        Some(name) => Step::Read(Found::Drop(name.to_owned(), Dropped::Truncated), view.text.len()),
        None => Step::Not(view.text.len()),
    }
}

/// Returns the end, after a `;` or `,` that separates this call from the next.
fn skip_separator(view: &View<'_>, end: usize) -> Option<usize> {
    let next = view.skip_space(end);
    let Some(byte) = view.text.as_bytes().get(next) else {
        return (view.eof || next - end > SPACE).then_some(end);
    };
    if next - end > SPACE || !b";,".contains(byte) {
        return Some(end);
    }
    let after = view.skip_space(next + 1);
    match view.text.as_bytes().get(after) {
        None => (view.eof || after - next > SPACE).then_some(end),
        Some(b'{' | b'[') if after - next <= SPACE => Some(after),
        Some(_) => Some(end),
    }
}
