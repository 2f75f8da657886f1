//! Parameters as tags: what Qwen3-Coder's `<function=…>` and Anthropic's `<invoke …>` have in common.
//!
//! A value may hold anything, also text that looks like tags: a closing tag ends it only where another parameter or the
//! end of the call follows.

use serde_json::{Map, Value};

use super::{Step, View, Wait, earliest, named_json};
use crate::tool_parser::calls::RawCall;

/// The tags of one dialect.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tags {
    /// What opens a parameter, up to its name.
    pub(super) open: &'static str,
    /// What closes one.
    pub(super) close: &'static str,
    /// What closes the call; the first is the call's own.
    pub(super) ends: &'static [&'static str],
}

/// After so many closing tags that turned out to belong to a value it is no call.
const FALSE_ENDS: usize = 512;

/// Reads the parameters from `from` to the end of the call.
pub(super) fn read(view: &View<'_>, name: &str, from: usize, tags: Tags, closers: &[&str]) -> Step {
    let body = match body_end(view, from, tags) {
        Ok(end) => end,
        Err(Some(step)) => return step,
        Err(None) => return named_json::truncated(view, name),
    };
    let Some(fields) = fields(&view.text[from..body.0], tags) else { return Step::Not(body.1) };
    match view.closing(body.1, closers) {
        Ok(end) => named_json::call(view, RawCall::fields(name, fields), end),
        Err(step) => step,
    }
}

/// Where the parameters end and where the call does. `Err(None)`: it was cut off.
fn body_end(view: &View<'_>, from: usize, tags: Tags) -> Result<(usize, usize), Option<Step>> {
    let text = view.text;
    let first_open = text[from..].find(tags.open).map_or(text.len(), |at| from + at);
    let closed = |end: usize| first_open >= end || text[from..end].trim_end().ends_with(tags.close);
    let mut at = from;
    for _ in 0..FALSE_ENDS {
        let rest = &text[at..];
        let Some((found, length)) = earliest(rest, tags.ends) else {
            let whole = view.eof && !view.cut && closed(text.len());
            let wait = (!view.eof).then_some(Step::More(Wait::Mark(at, tags.ends)));
            return if whole { Ok((text.len(), text.len())) } else { Err(wait) };
        };
        let end = at + found;
        let after = text[end + length..].trim_start();
        if !closed(end) && after.is_empty() && !view.eof {
            return Err(Some(Step::More(Wait::Any)));
        }
        if closed(end) || after.is_empty() || after.starts_with("</") {
            return Ok((end, end + length));
        }
        at = end + length;
    }
    Err(Some(Step::Not(at)))
}

fn fields(body: &str, tags: Tags) -> Option<Map<String, Value>> {
    let mut fields = Map::new();
    let mut rest = body.trim_start();
    while let Some(after) = rest.strip_prefix(tags.open) {
        let (head, value) = after.split_once('>')?;
        let (name, typed) = attributes(head);
        let (value, next) = split_value(value, tags);
        fields.insert(name.to_owned(), parse(value, typed));
        rest = next.trim_start();
    }
    (rest.is_empty() || !fields.is_empty()).then_some(fields)
}

/// The name, quoted or not, and whether `string="false"` says that the value is JSON.
fn attributes(head: &str) -> (&str, bool) {
    let name = head.trim().trim_start_matches(['"', '\'']);
    let end = name.find(['"', '\'', ' ']).unwrap_or(name.len());
    (&name[..end], head.contains("string=\"false\""))
}

fn parse(value: &str, typed: bool) -> Value {
    let json = typed.then(|| serde_json::from_str(value.trim()).ok()).flatten();
    json.unwrap_or_else(|| Value::String(value.to_owned()))
}

/// The value and what follows it.
fn split_value(text: &str, tags: Tags) -> (&str, &str) {
    let mut at = 0;
    while let Some(found) = text[at..].find(tags.close) {
        let end = at + found;
        let after = text[end + tags.close.len()..].trim_start();
        if after.is_empty() || after.starts_with(tags.open) {
            // The first closing tag there is: if another parameter begins before it, this one's is missing.
            if at == 0
                && let Some(next) = text[..end].find(&format!("\n{}", tags.open))
            {
                return (trimmed(&text[..next]), &text[next + 1..]);
            }
            return (trimmed(&text[..end]), after);
        }
        at = end + tags.close.len();
    }
    match text.find(&format!("\n{}", tags.open)) {
        Some(next) => (trimmed(&text[..next]), &text[next + 1..]),
        None => (trimmed(text), ""),
    }
}

/// The template puts each value on lines of its own.
fn trimmed(value: &str) -> &str {
    let value = value.strip_prefix('\n').unwrap_or(value);
    value.strip_suffix('\n').unwrap_or(value)
}
