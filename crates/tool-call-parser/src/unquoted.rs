//! Reads text without quotes, which do not show its type: the value of a tag, a bare value, a whole body
//! instead of an object.
//!
//! The schema decides the type; without one, JSON's own types count. Used by `settle`.

use serde_json::{Map, Value};

use super::coerce;
use super::lenient_json;
use super::schema::{self, Document, branches, is_type, properties, resolve_reference, type_names};

/// The deepest alternative that is read: a schema may refer to itself.
const MAX_DEPTH: usize = 8;

/// Reads the value of an argument. `declared` is its schema; an undeclared argument is text.
pub(crate) fn read_value(text: &str, declared: Option<&Value>, document: Document<'_>) -> Value {
    let as_text = || Value::String(text.to_owned());
    let Some(declared) = declared.map(|declared| resolve_reference(declared, document.root)) else {
        return as_text();
    };
    let mut kinds = Vec::new();
    let lists_values = collect_kinds(declared, document, &mut kinds, 0);
    if lists_values && schema::accepts(&as_text(), declared, document) {
        return as_text();
    }
    if kinds.is_empty() {
        return if lists_values { as_text() } else { read_untyped(text) };
    }
    // The narrower type first: `1` is an integer before it is a number.
    let order = ["null", "integer", "number", "boolean", "object", "array"];
    let read = order.iter().filter(|kind| kinds.contains(kind)).find_map(|kind| read_as_kind(text, kind));
    read.unwrap_or_else(as_text)
}

/// Collects the types that a schema allows. Returns true if it also lists values (`enum` or `const`).
fn collect_kinds<'a>(
    declared: &'a Value,
    document: Document<'a>,
    kinds: &mut Vec<&'a str>,
    depth: usize,
) -> bool {
    let mut lists_values = declared.get("enum").is_some() || declared.get("const").is_some();
    kinds.extend(type_names(declared));
    if declared.get("nullable") == Some(&Value::Bool(true)) {
        kinds.push("null");
    }
    if depth < MAX_DEPTH {
        for branch in branches(declared).take_while(|_| document.steps.take(1)) {
            lists_values |=
                collect_kinds(resolve_reference(branch, document.root), document, kinds, depth + 1);
        }
    }
    lists_values
}

fn read_as_kind(text: &str, kind: &str) -> Option<Value> {
    if kind == "null" {
        return matches!(text.trim(), "null" | "Null" | "NULL").then_some(Value::Null);
    }
    coerce::to_type(&Value::String(text.to_owned()), kind).filter(|value| is_type(value, kind))
}

/// Reads JSON's own types, and Python's words for them. `NaN` and `undefined` stay text, because JSON has no
/// such values.
fn read_untyped(text: &str) -> Value {
    let trimmed = text.trim();
    let json = serde_json::from_str(trimmed).ok().filter(|value| !Value::is_string(value));
    let literal =
        || lenient_json::parse_literal(trimmed).filter(|_| trimmed != "NaN" && trimmed != "undefined");
    json.or_else(literal).unwrap_or_else(|| Value::String(text.to_owned()))
}

/// Reads arguments written as `key=value` or `key: value`, one or several, if every key is declared.
pub(crate) fn read_keyed(text: &str, document: Document<'_>) -> Option<Map<String, Value>> {
    let declared = properties(resolve_reference(document.root, document.root))?;
    let mut fields = Map::new();
    for pair in split_pairs(text, declared) {
        let (key, value) = key_of(pair).filter(|(key, _)| declared.contains_key(*key))?;
        let value = strip_quotes(value.trim());
        fields.insert(key.to_owned(), self::read_value(value, declared.get(key), document));
    }
    Some(fields).filter(|fields| !fields.is_empty())
}

/// Splits the text before every declared key that follows a separator.
fn split_pairs<'a>(text: &'a str, declared: &Map<String, Value>) -> Vec<&'a str> {
    let mut pairs = Vec::new();
    let mut rest = text.trim();
    let begins_pair = |rest: &str| key_of(rest).is_some_and(|(key, _)| declared.contains_key(key));
    while !rest.is_empty() {
        let separator = rest.match_indices([',', ';', '&', '\n']).map(|(at, _)| at);
        let end = separator.into_iter().find(|at| begins_pair(rest[at + 1..].trim_start()));
        pairs.push(end.map_or(rest, |end| &rest[..end]));
        rest = end.map_or("", |end| rest[end + 1..].trim_start());
    }
    pairs
}

/// Splits off a name with `=` or `:` at the beginning of the text.
fn key_of(text: &str) -> Option<(&str, &str)> {
    let quoted = text.strip_prefix(['"', '\'']).unwrap_or(text);
    let end = quoted.find(|char: char| !(char.is_alphanumeric() || "_-".contains(char)))?;
    let after = quoted[end..].trim_start_matches(['"', '\'']).trim_start();
    let value = after.strip_prefix([':', '='])?;
    let is_name = end > 1 && quoted.starts_with(|char: char| char.is_alphabetic() || char == '_');
    let is_address = value.starts_with("//") || value.starts_with('=') || value.starts_with(':');
    (is_name && !is_address).then_some((&quoted[..end], value))
}

fn strip_quotes(text: &str) -> &str {
    let inside = |quote| text.strip_prefix(quote).and_then(|text| text.strip_suffix(quote));
    let inside = inside('"').or_else(|| inside('\''));
    inside.filter(|inside| !inside.contains(['"', '\''])).unwrap_or(text)
}

/// Returns true if a bare text can be the only argument of a tool: nothing in it looks like JSON or a key.
pub(crate) fn is_one_value(text: &str, rules: &Value) -> bool {
    let declared = properties(resolve_reference(rules, rules));
    let is_declared = |key: &str| declared.is_some_and(|declared| declared.contains_key(key));
    let named = |(at, _): (usize, &str)| {
        let before = text[..at].trim_end();
        let start = before.trim_end_matches(|char: char| char.is_alphanumeric() || char == '_').len();
        is_declared(&before[start..])
    };
    let has_key = text.lines().any(|line| key_of(line.trim_start()).is_some())
        || text.match_indices(['=', ':']).any(named);
    !text.trim_start().starts_with(['{', '[']) && !has_key
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::schema::Steps;

    fn with_document<T>(root: &Value, test: impl FnOnce(Document<'_>) -> T) -> T {
        test(Document { root, steps: &Steps::reply_budget() })
    }

    #[test]
    fn the_schema_decides_and_json_where_it_says_nothing() {
        for (text, rule, expected) in [
            ("null", json!({"anyOf": [{"type": "string"}, {"type": "null"}]}), json!(null)),
            ("None", json!({"anyOf": [{"type": "string"}, {"type": "null"}]}), json!("None")),
            ("null", json!({"type": "string"}), json!("null")),
            ("null", json!({}), json!(null)),
            ("True", json!({"description": "x"}), json!(true)),
            ("3", json!({}), json!(3)),
            ("[1, 2]", json!({}), json!([1, 2])),
            ("3 apples", json!({}), json!("3 apples")),
            ("3", json!({"type": "string"}), json!("3")),
            ("3.5", json!({"type": "float"}), json!(3.5)),
            ("3", json!({"type": ["string", "integer"]}), json!(3)),
            ("none", json!({"type": ["string", "null"], "enum": ["none", "x", null]}), json!("none")),
            (" a\n", json!({"type": "string"}), json!(" a\n")),
            ("{\"a\": 1}", json!({"type": "string"}), json!("{\"a\": 1}")),
            ("{\"a\": 1}", json!({"type": "object"}), json!({"a": 1})),
        ] {
            let read = with_document(&rule, |document| read_value(text, Some(&rule), document));
            assert_eq!(read, expected, "{text} {rule}");
        }
        assert_eq!(with_document(&json!({}), |document| read_value("3", None, document)), json!("3"));
    }

    #[test]
    fn pairs_are_read_where_every_key_is_declared() {
        let rules = json!({"properties": {"path": {"type": "string"}, "limit": {"type": "integer"}}});
        for (text, expected) in [
            ("path=/x", Some(json!({"path": "/x"}))),
            ("path: \"/x y\", limit: 3", Some(json!({"path": "/x y", "limit": 3}))),
            ("path=/a,b\nlimit=2", Some(json!({"path": "/a,b", "limit": 2}))),
            ("path=/x&limit=2", Some(json!({"path": "/x", "limit": 2}))),
            ("file=/x", None),
            ("/x", None),
            ("https://x", None),
        ] {
            let read = with_document(&rules, |document| read_keyed(text, document));
            assert_eq!(read.map(Value::Object), expected, "{text}");
        }
        for text in ["file=/x", "name: x\nargs: y", "see path = /x", "{\"a\""] {
            assert!(!is_one_value(text, &rules), "{text}");
        }
        for text in ["/x", "ls -R\n", "https://x?a=b", "C:\\x", "ls --color=auto", "12:30", "a::b"] {
            assert!(is_one_value(text, &rules), "{text}");
        }
    }
}
