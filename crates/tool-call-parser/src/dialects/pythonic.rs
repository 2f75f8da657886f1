//! Calls in Python's syntax: `[f(a=1), g()]`, in a list, between tags, or with Llama's `.call`.
//!
//! Bare lists are calls only if every name is declared and nothing but calls follows. Positional arguments
//! are read only if the tool leaves no doubt. Strings follow Python's rules.

use serde_json::{Map, Value};

use super::{Dialect, Found, Opens, Step, View, Wait, envelope};
use crate::calls::{Args, RawCall};
use crate::json_span::{JsonSpan, Span, Style};
use crate::lenient_json::read_python;

pub(super) static BARE: Dialect = Dialect {
    name: "pythonic",
    models: "Llama 3.2 and 4, ToolACE, Olmo 3, Granite.",
    families: &["llama4", "llama32", "toolace", "olmo3"],
    grammar: "A Python list of calls with keyword arguments at the start of a line, all naming declared tools, with \
              nothing but calls after it.",
    example: "[read(path='a.txt')]",
    opens: Opens::Line(&["["]),
    read: read_bare,
};

pub(super) static MARKED: Dialect = Dialect {
    name: "pythonic_tags",
    models: "LFM2 and openPangu (`<|tool_call_start|>`), Olmo 3 (`<function_calls>`), fine-tunes that mix Python with Hermes' tags.",
    families: &["lfm2", "olmo3"],
    grammar: "Python calls, in a list or one per line (LFM2: or JSON calls), between `<|tool_call_start|>` and `<|tool_call_end|>`, \
              `<tool_call>` tags or `<function_calls>` tags.",
    example: "<|tool_call_start|>[read(path=\"a.txt\")]<|tool_call_end|>",
    opens: Opens::Anywhere(&["<|tool_call_start|>", "<tool_call>", "<function_calls>"]),
    read: |view| {
        let start = view.skip_space(view.mark);
        if view.text.starts_with("<|tool_call_start|>") {
            let inside = view.text[start..].strip_prefix('[').unwrap_or(&view.text[start..]).trim_start();
            match inside.as_bytes().first() {
                Some(b'{') => return envelope::read_json(view, start, &["<|tool_call_end|>"]),
                None => return view.wait_or_reject(Wait::Any),
                Some(_) => {}
            }
        }
        read_marked(view, start, &["<|tool_call_end|>", "</tool_call>", "</function_calls>"])
    },
};

fn read_bare(view: &View<'_>) -> Step {
    match peek_call(view, view.skip_space(1)) {
        Some(true) => {}
        Some(false) => return Step::Not(1),
        None => return view.wait_or_reject(Wait::Any),
    }
    let end = match JsonSpan::new(0, Style::Python).advance(view.text, view.eof) {
        Span::Complete(end) => end,
        Span::More if view.cut => return cut_call(view, view.skip_space(1)),
        _ => return view.wait_or_reject(Wait::Python(0)),
    };
    let calls = read_list(&view.text[1..end - 1]).unwrap_or_default();
    let declared = |call: &RawCall| view.tools.resolve(&call.name).is_some();
    if calls.is_empty() || !calls.iter().all(declared) || view.is_quoted() {
        return Step::Not(end);
    }
    Step::Read(Found::Calls { calls, firm: false }, end)
}

/// Reads calls between marks, from `start` on.
pub(super) fn read_marked(view: &View<'_>, start: usize, closers: &'static [&'static str]) -> Step {
    let in_list = view.text[start..].starts_with('[');
    match peek_call(view, if in_list { view.skip_space(start + 1) } else { start }) {
        Some(true) => {}
        Some(false) => return Step::Not(start + 1),
        None => return view.wait_or_reject(Wait::Any),
    }
    let mut calls = Vec::new();
    let mut at = start;
    loop {
        let end = match JsonSpan::new(at, Style::Python).advance(view.text, view.eof) {
            Span::Complete(end) => end,
            Span::More if view.cut => return cut_call(view, start),
            _ if !view.eof => return Step::More(Wait::Python(at)),
            _ => return Step::Not(view.text.len()),
        };
        let text = if in_list { &view.text[at + 1..end - 1] } else { &view.text[at..end] };
        let Some(mut found) = read_list(text) else { return Step::Not(end) };
        calls.append(&mut found);
        let next = view.skip_space(end);
        if !in_list && next - end <= 64 {
            match peek_call(view, next) {
                Some(true) => {
                    at = next;
                    continue;
                }
                None if !view.eof => return Step::More(Wait::Any),
                _ => {}
            }
        }
        return match view.find_closer(end, closers) {
            Ok(end) => Step::Read(Found::Calls { calls, firm: view.line_start || !view.is_quoted() }, end),
            Err(step) => step,
        };
    }
}

/// Handles a call that the end of the reply cut off.
pub(super) fn cut_call(view: &View<'_>, at: usize) -> Step {
    let name: &str = view.text[at..].trim_start_matches('[').split('(').next().unwrap_or_default();
    Step::Read(Found::Drop(name.trim().to_owned(), crate::event::Dropped::Truncated), view.text.len())
}

/// Returns true for a name and an opening parenthesis at `at`; `None` if the text is too short.
fn peek_call(view: &View<'_>, at: usize) -> Option<bool> {
    let rest = &view.text[at..];
    let end = name_length(rest);
    match rest.as_bytes().get(end) {
        None => (view.eof || end > 128).then_some(false),
        Some(byte) => Some(end > 0 && end <= 128 && *byte == b'('),
    }
}

fn name_length(text: &str) -> usize {
    text.find(|char: char| !(char.is_alphanumeric() || "_.-:".contains(char))).unwrap_or(text.len())
}

/// Reads calls separated by commas, semicolons or line ends; `None` if there is other text.
pub(super) fn read_list(text: &str) -> Option<Vec<RawCall>> {
    let mut calls = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (call, length) = read_call(rest)?;
        calls.push(call);
        rest = rest[length..].trim_start_matches(|char: char| char.is_whitespace() || ",;".contains(char));
    }
    Some(calls)
}

/// Reads one call at the start of `text`; the second part is its length.
pub(super) fn read_call(text: &str) -> Option<(RawCall, usize)> {
    let open = name_length(text);
    let name = &text[..open];
    if open == 0 || !text[open..].starts_with('(') {
        return None;
    }
    let mut at = open + 1;
    let mut fields = Map::new();
    let mut positional = None;
    loop {
        at += space_length(&text[at..]);
        let rest = &text[at..];
        match rest.as_bytes().first()? {
            b')' => break,
            b',' => at += 1,
            _ => match read_argument(rest)? {
                (Some(key), value, length) => {
                    fields.insert(key, value);
                    at += length;
                }
                (None, value, length) if positional.is_none() => {
                    positional = Some(value);
                    at += length;
                }
                _ => return None,
            },
        }
    }
    let name = name.strip_suffix(".call").unwrap_or(name);
    Some((
        RawCall {
            name: name.to_owned(),
            arguments: combine_arguments(fields, positional)?,
            ..RawCall::default()
        },
        at + 1,
    ))
}

fn combine_arguments(fields: Map<String, Value>, positional: Option<Value>) -> Option<Args> {
    match positional {
        None => Some(Args::Value(Value::Object(fields))),
        Some(value @ (Value::Object(_) | Value::String(_))) if fields.is_empty() => Some(Args::Value(value)),
        Some(_) => None,
    }
}

fn read_argument(text: &str) -> Option<(Option<String>, Value, usize)> {
    let end = text.find(|char: char| !(char.is_alphanumeric() || "_-".contains(char)))?;
    let after = end + space_length(&text[end..]);
    let keyed = end > 0 && matches!(text.as_bytes().get(after), Some(b'=' | b':'));
    let from = if keyed { after + 1 } else { 0 };
    let (value, length) = read_python(&text[from..]).ok()?;
    Some((keyed.then(|| text[..end].to_owned()), value, from + length))
}

fn space_length(text: &str) -> usize {
    text.len() - text.trim_start().len()
}
