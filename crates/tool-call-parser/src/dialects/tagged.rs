//! Parameters as tags: the common part of Qwen3-Coder's `<function=…>`, Anthropic's `<invoke …>` and others.
//!
//! A value may contain anything, even text that looks like tags: a closing tag ends it only if another
//! parameter or the end of the call follows.

use serde_json::{Map, Value};

use super::{Step, View, Wait, named_json};
use crate::calls::{Args, Delimited, RawCall};
use crate::marks::find_earliest;

/// The tags of one dialect.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tags<'a> {
    /// The beginning of a parameter, up to its name.
    pub(super) open: &'a str,
    /// The end of a parameter.
    pub(super) close: &'a str,
    /// The end of the call; the first one is the call's own.
    pub(super) ends: &'a [&'a str],
    /// Parts of the ends: reading resumes when one of them has arrived.
    pub(super) wakes: &'static [&'static str],
    /// True when the template puts each value on separate lines, so that one line break at each end does not
    /// belong to it.
    pub(super) own_lines: bool,
}

impl<'a> Tags<'a> {
    /// Makes tags of parameters without a call around them.
    pub(super) const fn new(open: &'a str, close: &'a str, own_lines: bool) -> Self {
        Self { open, close, ends: &[], wakes: &[], own_lines }
    }

    /// Adds the marks that may end the call around the parameters.
    pub(super) const fn with_ends(self, ends: &'static [&'static str]) -> Self {
        Self { ends, wakes: ends, ..self }
    }
}

/// The most closing tags that may belong to values. A text with more is not a call.
const FALSE_ENDS: usize = 512;

/// Reads the parameters from `from` to the end of the call.
pub(super) fn read_tagged(
    view: &View<'_>,
    name: &str,
    from: usize,
    tags: Tags<'_>,
    closers: &[&str],
) -> Step {
    let body = match body_end(view, from, tags) {
        Ok(end) => end,
        Err(Some(step)) => return step,
        Err(None) => return named_json::truncated_call(view, name),
    };
    let Some(call) = read_fields(name, &view.text[from..body.0], tags) else { return Step::Not(body.1) };
    match view.find_closer(body.1, closers) {
        Ok(end) => named_json::single_call(view, call, end),
        Err(step) => step,
    }
}

/// Returns the end of the parameters and that of the call; `Err(None)` if it was cut off.
fn body_end(view: &View<'_>, from: usize, tags: Tags<'_>) -> Result<(usize, usize), Option<Step>> {
    let text = view.text;
    let first_open = text[from..].find(tags.open).map_or(text.len(), |at| from + at);
    let closed = |end: usize| first_open >= end || text[from..end].trim_end().ends_with(tags.close);
    let mut at = from;
    let mut data_from = from;
    for _ in 0..FALSE_ENDS {
        let rest = &text[at..];
        let Some((found, length)) = find_earliest(rest, tags.ends) else {
            let whole = view.eof && !view.cut && closed(text.len());
            let wait = (!view.eof).then_some(Step::More(Wait::Mark(at, tags.wakes)));
            return if whole { Ok((text.len(), text.len())) } else { Err(wait) };
        };
        let end = at + found;
        match character_data_over(text, &mut data_from, end, tags) {
            Covered::Until(beyond) => {
                at = beyond;
                continue;
            }
            Covered::Open if view.eof => return Err(None),
            Covered::Open => return Err(Some(Step::More(Wait::Mark(end, &[DATA_END])))),
            Covered::No => {}
        }
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

/// Reads a text that has nothing but parameters.
pub(super) fn read_parameters(name: &str, text: &str, tags: Tags<'_>) -> Option<RawCall> {
    read_fields(name, text, tags).filter(|call| call.arguments != Args::default())
}

fn read_fields(name: &str, body: &str, tags: Tags<'_>) -> Option<RawCall> {
    let mut fields = Map::new();
    let mut typed = Vec::new();
    let mut rest = body.trim_start();
    while let Some(after) = rest.strip_prefix(tags.open) {
        let (head, value) = after.split_once('>')?;
        let (key, kind) = read_attributes(head);
        let (value, next) = split_value(value, tags);
        let value = Written::new(value, kind);
        if fields.insert(key.to_owned(), value.value).is_some() || key.is_empty() {
            return None;
        }
        typed.extend(value.typed.then(|| key.to_owned()));
        rest = next.trim_start();
    }
    let mut call = RawCall::from_unquoted(name, fields, Delimited::Tags);
    call.unquoted.retain(|key, _| !typed.contains(key));
    let is_empty = matches!(&call.arguments, Args::Value(Value::Object(fields)) if fields.is_empty());
    (rest.is_empty() || !is_empty).then_some(call)
}

/// The type of a value in its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Unknown,
    Text,
    Json,
}

/// Reads the name, quoted or not, and the type in `string="…"`.
fn read_attributes(head: &str) -> (&str, Kind) {
    let name = head.trim().trim_start_matches(['"', '\'']);
    let end = name.find(['"', '\'', ' ']).unwrap_or(name.len());
    let kind = match head {
        _ if head.contains("string=\"true\"") => Kind::Text,
        _ if head.contains("string=\"false\"") => Kind::Json,
        _ => Kind::Unknown,
    };
    (&name[..end], kind)
}

/// A value; the flag is true if its type is known.
struct Written {
    value: Value,
    typed: bool,
}

impl Written {
    fn new(text: &str, kind: Kind) -> Self {
        let text_value = || Value::String(text.to_owned());
        if let Some(inside) = character_data(text) {
            return Self { value: Value::String(inside), typed: true };
        }
        match kind {
            Kind::Text => Self { value: text_value(), typed: true },
            Kind::Json => match serde_json::from_str(text.trim()) {
                Ok(value) => Self { value, typed: true },
                Err(_) => Self { value: text_value(), typed: false },
            },
            Kind::Unknown => Self { value: text_value(), typed: false },
        }
    }
}

const DATA: &str = "<![CDATA[";
const DATA_END: &str = "]]>";

/// Returns the end of the sections of character data at the beginning of a value, in bytes; zero without any,
/// `None` if the last one has no end.
fn character_data_end(value: &str) -> Option<usize> {
    let mut end = 0;
    while value[end..].trim_start().starts_with(DATA) {
        end += value[end..].find(DATA_END)? + DATA_END.len();
    }
    Some(end)
}

/// The relation of a place to character data.
enum Covered {
    No,
    Until(usize),
    /// The end of the data is missing.
    Open,
}

/// Looks for character data that covers the place `end`. `from`: the place before which no parameter matters
/// any more.
fn character_data_over(text: &str, from: &mut usize, end: usize, tags: Tags<'_>) -> Covered {
    while let Some(open) = text.get(*from..end).and_then(|text| text.find(tags.open)) {
        let head = *from + open + tags.open.len();
        let Some(length) = text[head..end].find('>') else { break };
        let value = head + length + 1;
        let Some(length) = character_data_end(&text[value..]) else { return Covered::Open };
        *from = value + length;
        if length > 0 && *from > end {
            return Covered::Until(*from);
        }
    }
    Covered::No
}

/// Returns the text in XML's sections of character data, if the value has nothing else.
fn character_data(text: &str) -> Option<String> {
    let mut inside = String::new();
    let mut rest = text.trim();
    while let Some(after) = rest.strip_prefix(DATA) {
        let (data, next) = after.split_once(DATA_END)?;
        inside.push_str(data);
        rest = next;
    }
    (rest.is_empty() && text.trim_start().starts_with(DATA)).then_some(inside)
}

/// Splits off the value.
fn split_value<'a>(text: &'a str, tags: Tags<'_>) -> (&'a str, &'a str) {
    let begin = character_data_end(text).unwrap_or_default();
    let mut at = begin;
    while let Some(found) = text[at..].find(tags.close) {
        let end = at + found;
        let after = text[end + tags.close.len()..].trim_start();
        if after.is_empty() || after.starts_with(tags.open) {
            // The first closing tag counts. If another parameter begins before it, this parameter's own is
            // missing.
            if at == begin
                && let Some(next) = text[begin..end].find(&format!("\n{}", tags.open))
            {
                let next = begin + next;
                return (trim_own_lines(&text[..next], tags), &text[next + 1..]);
            }
            return (trim_own_lines(&text[..end], tags), after);
        }
        at = end + tags.close.len();
    }
    match text[begin..].find(&format!("\n{}", tags.open)).map(|next| begin + next) {
        Some(next) => (trim_own_lines(&text[..next], tags), &text[next + 1..]),
        None => (trim_own_lines(text, tags), ""),
    }
}

/// Removes the line breaks that the template put around the value.
fn trim_own_lines<'a>(value: &'a str, tags: Tags<'_>) -> &'a str {
    match value.strip_prefix('\n').filter(|_| tags.own_lines) {
        Some(inside) => inside.strip_suffix('\n').unwrap_or(inside),
        None => value,
    }
}
