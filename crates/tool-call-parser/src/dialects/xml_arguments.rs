//! Reads complete arguments in XML tags: the body of a harmony message, or of a native call that a server did
//! not parse.
//!
//! A text that begins with a tag is either read to its last byte or refused. It never becomes the value of
//! one argument.

use serde_json::{Map, Value};

use super::tagged::{self, Tags};
use crate::calls::{Delimited, RawCall};
use crate::schema;
use crate::tools::Tool;

/// The forms of a parameter's tags. The values of Beam (Reflection) are on separate lines.
const FORMS: [Tags<'_>; 3] = [
    Tags::new("<rfl:parameter name=", "</rfl:parameter>", true),
    Tags::new("<parameter name=", "</parameter>", true),
    Tags::new("<parameter=", "</parameter>", true),
];

/// Returns true if a text begins with a tag. Tokens such as `<|message|>` are not tags.
pub(crate) fn begins_with_tag(text: &str) -> bool {
    let after = text.trim_start().strip_prefix('<');
    after
        .is_some_and(|after| after.starts_with(|first: char| first.is_alphabetic() || "!?/_".contains(first)))
}

/// Reads the tags as a call of `tool`; `None` if there is other text, or an argument that the tool does not
/// have.
pub(crate) fn read_call(tool: &Tool, text: &str) -> Option<RawCall> {
    let text = text.trim();
    let declared = schema::properties(tool.schema());
    for tags in FORMS {
        if text.starts_with(tags.open) && text.ends_with(tags.close) {
            return tagged::read_parameters(&tool.name, text, tags);
        }
    }
    let fields = read_elements(text, declared?)?;
    Some(RawCall::from_unquoted(&tool.name, fields, Delimited::Tags))
}

/// Reads `<KEY>VALUE</KEY>` elements, one after the other, each for a declared argument.
pub(super) fn read_elements(text: &str, declared: &Map<String, Value>) -> Option<Map<String, Value>> {
    let mut fields = Map::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (key, after) = opening_tag(rest, declared)?;
        let (value, next) = split_element(key, after, declared)?;
        let value = Value::String(without_own_lines(value).to_owned());
        if fields.insert(key.to_owned(), value).is_some() {
            return None;
        }
        rest = next;
    }
    Some(fields).filter(|fields| !fields.is_empty())
}

/// Returns the declared argument whose opening tag begins the text, and the text after the tag.
fn opening_tag<'a>(text: &'a str, declared: &Map<String, Value>) -> Option<(&'a str, &'a str)> {
    let (key, after) = text.strip_prefix('<')?.split_once('>')?;
    declared.contains_key(key).then_some((key, after))
}

/// Splits off the value: it ends at the first closing tag that another element or the end follows.
fn split_element<'a>(key: &str, text: &'a str, declared: &Map<String, Value>) -> Option<(&'a str, &'a str)> {
    let close = format!("</{key}>");
    text.match_indices(&close).find_map(|(at, _)| {
        let next = text[at + close.len()..].trim_start();
        (next.is_empty() || opening_tag(next, declared).is_some()).then(|| (&text[..at], next))
    })
}

/// Removes one line break at each end of a value on separate lines.
fn without_own_lines(value: &str) -> &str {
    let inside = value.strip_prefix('\n').map(|value| value.strip_suffix('\n').unwrap_or(value));
    inside.unwrap_or(value)
}
