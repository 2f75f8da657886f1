//! A name, then keys and values between a family's own tags: the common form of Hunyuan's suffixed tags, K2
//! Horizon, `IQuest` and Solar.
//!
//! The call's end is searched first. A value ends at its closing tag if another key or the end of the call
//! follows, so it may contain anything else.

use serde_json::{Map, Value};

use super::{Found, Step, View, Wait, named_json};
use crate::calls::{Delimited, RawCall};
use crate::event::Dropped;
use crate::marks::find_earliest;

/// The longest name of a tool.
const NAME: usize = 128;

/// The tags of one family. An empty one is not written.
#[derive(Clone, Debug)]
pub(super) struct Tags {
    /// The beginning of a call. A call without its end ends at the beginning of the next.
    pub(super) call: String,
    /// The end of a call.
    pub(super) end: String,
    /// The mark that may stand between the name and the first key.
    pub(super) separator: String,
    /// The tags around a key.
    pub(super) key: (String, String),
    /// The tags around the type of a value.
    pub(super) kind: (String, String),
    /// The tags around a value.
    pub(super) value: (String, String),
}

impl Tags {
    /// Makes XML tags of the usual names with a prefix or a suffix in each.
    pub(super) fn with_affixes(prefix: &str, suffix: &str) -> Self {
        let open = |name: &str| format!("<{prefix}{name}{suffix}>");
        let close = |name: &str| format!("</{prefix}{name}{suffix}>");
        let pair = |name: &str| (open(name), close(name));
        Self {
            call: open("tool_call"),
            end: close("tool_call"),
            separator: open("tool_sep"),
            key: pair("arg_key"),
            kind: pair("arg_type"),
            value: pair("arg_value"),
        }
    }
}

/// Reads the call whose name begins at `from`. `ends`: the beginnings of the tags that may end it.
pub(super) fn read_call(view: &View<'_>, from: usize, tags: &Tags, ends: &'static [&'static str]) -> Step {
    let text = &view.text[from..];
    let head = text.find('<').map_or(text, |length| &text[..length]);
    let name = head.trim();
    let is_foreign = |char: char| char.is_whitespace() || "{}()\"`".contains(char);
    let name_from = from + head.len() - head.trim_start().len();
    match name.find(is_foreign) {
        Some(at) => return Step::Not(name_from + at.min(NAME)),
        None if name.len() > NAME => return Step::Not(name_from + NAME),
        None => {}
    }
    let Some((length, mark)) = find_earliest(text, &[tags.end.as_str(), tags.call.as_str()]) else {
        return match view.eof {
            false => Step::More(Wait::Mark(from, ends)),
            true if view.cut || view.tools.resolve(name).is_some() => named_json::truncated_call(view, name),
            true => Step::Not(view.text.len()),
        };
    };
    let closed = text[length..].starts_with(&tags.end);
    let end = from + length + if closed { mark } else { 0 };
    if view.tools.resolve(name).is_none() {
        return Step::Read(Found::Broken(name.to_owned(), Dropped::Undeclared), end);
    }
    match collect_pairs(name, text.get(head.len()..length).unwrap_or_default(), tags) {
        Some(call) => named_json::single_call(view, call, end),
        None => Step::Read(Found::Broken(name.to_owned(), Dropped::Unreadable), end),
    }
}

/// Reads the call, if its body has nothing but complete pairs.
fn collect_pairs(name: &str, body: &str, tags: &Tags) -> Option<RawCall> {
    let mut fields = Map::new();
    let mut typed = Vec::new();
    let body = body.trim_start();
    let mut rest = body.strip_prefix(&tags.separator).unwrap_or(body).trim_start();
    while let Some(after) = rest.strip_prefix(&tags.key.0) {
        let (key, after) = after.split_once(&tags.key.1)?;
        let (kind, after) = split_kind(after, tags)?;
        let (text, next) = split_value(after, tags)?;
        let key = key.trim();
        let (value, is_typed) = read_value(text, kind);
        if key.is_empty() || fields.insert(key.to_owned(), value).is_some() {
            return None;
        }
        typed.extend(is_typed.then(|| key.to_owned()));
        rest = next;
    }
    let mut call = RawCall::from_unquoted(name, fields, Delimited::Tags);
    call.unquoted.retain(|key, _| !typed.contains(key));
    rest.is_empty().then_some(call)
}

/// Returns the type in its tags, and the text after them.
fn split_kind<'a>(text: &'a str, tags: &Tags) -> Option<(Option<&'a str>, &'a str)> {
    let after = text.trim_start().strip_prefix(&tags.kind.0).filter(|_| !tags.kind.0.is_empty());
    match after {
        Some(after) => after.split_once(&tags.kind.1).map(|(kind, after)| (Some(kind.trim()), after)),
        None => Some((None, text)),
    }
}

/// Splits off the value's text.
fn split_value<'a>(text: &'a str, tags: &Tags) -> Option<(&'a str, &'a str)> {
    let (open, close) = (&tags.value.0, &tags.value.1);
    let text = if open.is_empty() { text } else { text.trim_start().strip_prefix(open)? };
    let mut at = 0;
    loop {
        let end = at + text[at..].find(close)?;
        let after = text[end + close.len()..].trim_start();
        if after.is_empty() || after.starts_with(&tags.key.0) {
            return Some((&text[..end], after));
        }
        at = end + close.len();
    }
}

/// Reads a value; the flag is true if its type is known. (K2 Horizon also writes `array[string]`.)
fn read_value(text: &str, kind: Option<&str>) -> (Value, bool) {
    let kind = kind.and_then(|kind| kind.split('[').next()).map(str::trim);
    let json = || serde_json::from_str(text.trim()).ok();
    match kind {
        Some("string") => (Value::String(text.to_owned()), true),
        Some(kind) if kind != "any" => {
            json().map_or_else(|| (Value::String(text.to_owned()), false), |value| (value, true))
        }
        _ => (Value::String(text.to_owned()), false),
    }
}
