//! GLM's `<tool_call>` with the name as text and `<arg_key>`/`<arg_value>` pairs.

use serde_json::{Map, Value};

use super::{Dialect, Opens, Step, View, Wait, named_json};
use crate::calls::{Delimited, RawCall};
use crate::marks::find_earliest;
use crate::repairs::Repair;
use crate::schema::properties;

pub(super) static DIALECT: Dialect = Dialect {
    name: "glm",
    models: "GLM-4.5, 4.6, 4.7, 5; Poolside, Ling 3, Spark 3, HyperCLOVA X SEED Think.",
    families: &["glm4", "glm5", "poolside", "ling3", "spark", "hyperclovax"],
    grammar: "`<tool_call>`, the name, then `<arg_key>…</arg_key>` and `<arg_value>…</arg_value>` pairs, \
              `</tool_call>`. A declared name alone calls the tool without arguments.",
    example: "<tool_call>read\n<arg_key>path</arg_key>\n<arg_value>a.txt</arg_value>\n</tool_call>",
    opens: Opens::Anywhere(&["<tool_call>"]),
    read: read_call,
};

fn read_call(view: &View<'_>) -> Step {
    let start = view.skip_space(view.mark);
    let rest = &view.text[start..];
    if rest.starts_with(|char: char| !(char.is_alphanumeric() || char == '_')) {
        return Step::Not(start + 1);
    }
    let Some(length) = rest.find(['<', '\n']) else {
        return match rest.len() {
            length if length > 128 => Step::Not(start + 128),
            0 if !view.eof => Step::More(Wait::Any),
            _ if view.eof && !view.cut && view.tools.get(rest.trim()).is_some() => {
                named_json::single_call(view, RawCall::from_fields(rest.trim(), Map::new()), view.text.len())
            }
            _ => view.wait_or_reject(Wait::Any),
        };
    };
    let name = rest[..length].trim();
    if length > 128 || name.contains([' ', '(', '{', '"']) || view.tools.resolve(name).is_none() {
        return Step::Not(start + length.min(128));
    }
    read_pairs(view, name, start + length)
}

/// Marks that may follow the name or a pair. Stray closing tags are skipped.
const NEXT: [&str; 4] = ["<arg_key>", "</tool_call>", "</arg_value>", "</arg_key>"];

/// Reads the pairs from `from` on, and the end of the call.
pub(super) fn read_pairs(view: &View<'_>, name: &str, from: usize) -> Step {
    let mut fields = Map::new();
    let mut broken = false;
    let mut at = from;
    loop {
        at = view.skip_space(at);
        let rest = &view.text[at..];
        if rest.starts_with("<arg_key>") {
            match read_pair(view, at) {
                Ok(Pair { key, value, end, whole }) => {
                    at = end;
                    if whole || has_argument(view, name, &key) {
                        fields.insert(key, Value::String(value));
                    } else {
                        broken = true;
                    }
                }
                Err(step) => return step.unwrap_or_else(|| named_json::truncated_call(view, name)),
            }
            continue;
        }
        let closes = NEXT[1..].iter().find(|mark| rest.starts_with(**mark));
        let call = |fields| {
            let mut call = RawCall::from_unquoted(name, fields, Delimited::Tags);
            call.repairs.extend(broken.then_some(Repair::BrokenPair));
            call
        };
        return match closes {
            Some(&"</tool_call>") => named_json::single_call(view, call(fields), at + "</tool_call>".len()),
            Some(mark) => {
                at += mark.len();
                continue;
            }
            None if !view.eof && NEXT.iter().any(|mark| mark.starts_with(rest)) => Step::More(Wait::Any),
            None if rest.is_empty() && view.eof && (view.cut || !has_all(view, name, &fields)) => {
                named_json::truncated_call(view, name)
            }
            None if fields.is_empty() && !rest.is_empty() => Step::Not(at),
            None => named_json::single_call(view, call(fields), at),
        };
    }
}

/// Returns true if every declared argument is present, so that a call without its end is still complete.
fn has_all(view: &View<'_>, name: &str, fields: &Map<String, Value>) -> bool {
    let declared = view.tools.resolve(name).and_then(|found| properties(found.tool.schema()));
    declared.is_none_or(|declared| declared.keys().all(|key| fields.contains_key(key)))
}

fn has_argument(view: &View<'_>, name: &str, key: &str) -> bool {
    let declared = view.tools.resolve(name).and_then(|found| properties(found.tool.schema()));
    declared.is_some_and(|declared| declared.contains_key(key))
}

struct Pair {
    key: String,
    value: String,
    end: usize,
    /// False when the key's closing tag is missing.
    whole: bool,
}

/// Reads one pair at `at`; `Err(None)` if it is cut off.
fn read_pair(view: &View<'_>, at: usize) -> Result<Pair, Option<Step>> {
    let missing = |wait| if view.eof { None } else { Some(Step::More(wait)) };
    let text = view.text;
    let key_from = at + "<arg_key>".len();
    let (length, mark) =
        find_earliest(&text[key_from..], KEY_ENDS).ok_or_else(|| missing(Wait::Mark(key_from, KEY_ENDS)))?;
    let key = text[key_from..key_from + length].trim().to_owned();
    let whole = mark == "</arg_key>".len();
    let value_tag = if whole { view.skip_space(key_from + length + mark) } else { key_from + length };
    if !text[value_tag..].starts_with("<arg_value>") {
        let partial = "<arg_value>".starts_with(&text[value_tag..]);
        return Err(if partial { missing(Wait::Any) } else { Some(Step::Not(value_tag)) });
    }
    let from = value_tag + "<arg_value>".len();
    let end = value_end(view, from).map_err(missing)?;
    Ok(Pair { key, value: text[from..end].to_owned(), end: end + "</arg_value>".len(), whole })
}

/// Marks that end a key: its own tag, or the value's tag if that is missing.
const KEY_ENDS: &[&str] = &["<arg_value>", "</arg_key>"];
/// The most closing tags inside a value. The next one ends it.
const FALSE_ENDS: usize = 512;

/// Finds the closing tag that another key or the end of the call follows. Others belong to the value.
fn value_end(view: &View<'_>, from: usize) -> Result<usize, Wait> {
    let mut at = from;
    for _ in 0..FALSE_ENDS {
        let found = view.text[at..].find("</arg_value>").ok_or(Wait::Mark(at, &["</arg_value>"]))?;
        let end = at + found;
        let after = view.text[end + "</arg_value>".len()..].trim_start();
        if after.is_empty() && !view.eof {
            return Err(Wait::Any);
        }
        if after.is_empty() || after.starts_with("<arg_key>") || after.starts_with("</tool_call>") {
            return Ok(end);
        }
        if !view.eof && ["<arg_key>", "</tool_call>"].iter().any(|mark| mark.starts_with(after)) {
            return Err(Wait::Any);
        }
        if !after.starts_with("</") && !view.text[end..].contains("</tool_call>") && view.eof {
            return Ok(end);
        }
        at = end + 1;
    }
    Ok(at - 1)
}

/// Reads a whole call that a server put into the name of a native call.
pub(crate) fn read_call_in_name(name: &str) -> Option<(String, Map<String, Value>)> {
    let (tool, mut rest) = name.split_once("<arg_key>")?;
    let mut fields = Map::new();
    loop {
        let (key, after) = rest.split_once("</arg_key>")?;
        let value = after.trim_start().strip_prefix("<arg_value>")?;
        let (value, after) = value.split_once("</arg_value>").unwrap_or((value, ""));
        fields.insert(key.trim().to_owned(), Value::String(value.to_owned()));
        match after.trim_start().strip_prefix("<arg_key>") {
            Some(next) => rest = next,
            None => return Some((tool.trim().to_owned(), fields)),
        }
    }
}
