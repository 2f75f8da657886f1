//! `[TOOL:name|arg=value|arg=value]` markers, which prompts of home-made executors request.
//!
//! Spaces anywhere and pipes and brackets in values are accepted. A marker without arguments is text.

use serde_json::{Map, Value};

use super::{Dialect, Found, Opens, Step, View, Wait, named_json};
use crate::calls::{Delimited, RawCall};

/// The longest marker.
const LIMIT: usize = 32 << 10;

pub(super) static DIALECT: Dialect = Dialect {
    name: "marker",
    models: "Any model whose system prompt asks for `[TOOL:…]` markers.",
    families: &[],
    grammar: "`[TOOL:NAME|KEY=VALUE|…]` with at least one argument. A `|` begins an argument only where `KEY=` follows; \
              the marker ends at the first `]` outside inner brackets that space, punctuation or the end follows.",
    example: "[TOOL:read|path=a.txt]",
    opens: Opens::Anywhere(&["[TOOL:", "[tool:", "[Tool:", "[TOOL_CALL:"]),
    read: read_call,
};

fn read_call(view: &View<'_>) -> Step {
    let body = view.body();
    let Some(length) = body.find(['|', ']', '\n', '[']) else {
        return match body.len() {
            length if length > 128 => Step::Not(view.mark + 128),
            _ if view.cut => truncated_call(view, body.trim()),
            _ => view.wait_or_reject(Wait::Any),
        };
    };
    let name = body[..length].trim();
    if length > 128 || !body[length..].starts_with('|') || view.tools.resolve(name).is_none() {
        return Step::Not(view.mark + length.min(128));
    }
    match find_end(view, view.mark + length) {
        Some(end) if end > LIMIT => Step::Not(LIMIT),
        Some(end) => read_arguments(view, name, view.mark + length + 1, end),
        None if view.text.len() > LIMIT => Step::Not(LIMIT),
        None if view.cut => truncated_call(view, name),
        None => view.wait_or_reject(Wait::Mark(view.text.len().saturating_sub(1), &["]"])),
    }
}

fn truncated_call(view: &View<'_>, name: &str) -> Step {
    if view.tools.resolve(name).is_some() {
        named_json::truncated_call(view, name)
    } else {
        Step::Not(view.text.len())
    }
}

fn find_end(view: &View<'_>, from: usize) -> Option<usize> {
    let text = view.text;
    let mut depth = 0_usize;
    for (offset, char) in text[from..].match_indices(['[', ']']) {
        let after = from + offset + 1;
        if char == "[" {
            depth += 1;
        } else if depth > 0 {
            depth -= 1;
        } else {
            match text[after..].chars().next() {
                None => return view.eof.then_some(after),
                Some(next) if next.is_whitespace() || "[.,;:!?)*`".contains(next) => return Some(after),
                Some(_) => {}
            }
        }
    }
    None
}

fn read_arguments(view: &View<'_>, name: &str, from: usize, end: usize) -> Step {
    let mut fields: Map<String, Value> = Map::new();
    let mut last: Option<String> = None;
    for part in view.text[from..end - 1].split('|') {
        match (split_key(part), &last) {
            (Some((key, value)), _) => {
                fields.insert(key.to_owned(), Value::String(value.to_owned()));
                last = Some(key.to_owned());
            }
            (None, Some(key)) => {
                if let Some(Value::String(value)) = fields.get_mut(key) {
                    value.push('|');
                    value.push_str(part);
                }
            }
            (None, None) => return single_value_call(view, name, &view.text[from..end - 1], end),
        }
    }
    fields.values_mut().for_each(unquote_value);
    Step::Read(
        Found::Calls {
            calls: vec![RawCall::from_unquoted(name, fields, Delimited::Nothing)],
            firm: view.line_start || !view.is_quoted(),
        },
        end,
    )
}

/// Reads one value without a key, for a tool with one required string argument.
fn single_value_call(view: &View<'_>, name: &str, value: &str, end: usize) -> Step {
    let value = value.trim();
    if value.is_empty() {
        Step::Not(end)
    } else {
        named_json::single_call(view, RawCall::from_text(name, value), end)
    }
}

fn split_key(part: &str) -> Option<(&str, &str)> {
    let (key, value) = part.split_once('=')?;
    let key = key.trim();
    let name = !key.is_empty() && key.chars().all(|char| char.is_alphanumeric() || "_-".contains(char));
    name.then_some((key, value))
}

/// Removes space and quotes around the whole value.
fn unquote_value(value: &mut Value) {
    let Value::String(text) = value else { return };
    *text = text.trim().to_owned();
    for quote in ['"', '\''] {
        let inner = text.strip_prefix(quote).and_then(|text| text.strip_suffix(quote));
        if let Some(inner) = inner.filter(|inner| !inner.contains(quote)) {
            *text = inner.to_owned();
            return;
        }
    }
}
