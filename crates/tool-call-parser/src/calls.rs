//! Reduces the forms in which models write calls as JSON to a name and arguments.
//!
//! The place of the JSON does not matter here. A tool's *definition*, a call's result and ordinary JSON data
//! are distinguished from calls. Used by the dialects; `settle` turns the result into calls that may leave.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::digits;
use super::lenient_json::{self, Unreadable};
use super::repairs::{Repair, Repairs};
use super::schema::weight;
use super::tools::Tools;

/// A call as the model wrote it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RawCall {
    /// The upstream's id.
    pub(crate) id: Option<String>,
    /// The name, possibly polluted.
    pub(crate) name: String,
    /// The arguments.
    pub(crate) arguments: Args,
    /// Arguments whose text had no quotes: their schema decides its type.
    pub(crate) unquoted: BTreeMap<String, Delimited>,
    /// The repairs made while reading it.
    pub(crate) repairs: Repairs,
}

/// How a text was delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delimited {
    /// By its own tags: all text between them belongs to the value.
    Tags,
    /// By the following text: another family's marks in it show that it was misread.
    Nothing,
}

/// Arguments as the model wrote them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Args {
    /// A text that should be one JSON object.
    Text(String),
    /// A value that is already parsed.
    Value(Value),
}

impl Args {
    /// Estimates the bytes of the arguments.
    pub(crate) fn estimated_size(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Value(value) => weight(value).saturating_mul(8),
        }
    }
}

impl Default for Args {
    fn default() -> Self {
        Self::Value(Value::Object(Map::new()))
    }
}

impl RawCall {
    /// Makes a call whose arguments are still text.
    pub(crate) fn from_text(name: &str, arguments: &str) -> Self {
        Self { name: name.to_owned(), arguments: Args::Text(arguments.to_owned()), ..Self::default() }
    }

    /// Makes a call whose arguments were written one by one without quotes.
    pub(crate) fn from_unquoted(name: &str, fields: Map<String, Value>, delimited: Delimited) -> Self {
        let texts = fields.iter().filter(|(_, value)| value.is_string());
        let unquoted = texts.map(|(key, _)| (key.clone(), delimited)).collect();
        Self { unquoted, ..Self::from_fields(name, fields) }
    }

    /// Makes a call whose arguments were written one by one with their types.
    pub(crate) fn from_fields(name: &str, fields: Map<String, Value>) -> Self {
        Self { name: name.to_owned(), arguments: Args::Value(Value::Object(fields)), ..Self::default() }
    }
}

/// Writes a value as JSON. The value's own `to_string` uses a formatter and takes several times as long.
pub(crate) fn json_text(value: &Value) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// The evidence from the surroundings that JSON is a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// The JSON is inside a dialect's own marks.
    Marked,
    /// The JSON has no marks, so it must have exactly a call's form.
    Bare,
}

/// The keys of the name, each with the possible keys of the arguments.
const SHAPES: [(&str, &[&str]); 7] = [
    ("name", &["arguments", "parameters", "args", "params", "input", "tool_input"]),
    ("function", &["arguments", "parameters", "args", "params", "input"]),
    ("tool", &["arguments", "parameters", "args", "params", "input", "tool_input"]),
    ("tool_name", &["arguments", "parameters", "args", "tool_args", "params", "input", "tool_input"]),
    ("function_name", &["arguments", "parameters", "args", "function_args", "params"]),
    ("recipient_name", &["parameters", "arguments"]),
    ("action", &["action_input"]),
];

/// Keys that a bare call may have in addition to its name and arguments.
const COMPANIONS: [&str; 9] =
    ["id", "type", "call_id", "tool_call_id", "index", "thought", "thoughts", "reasoning", "explanation"];

/// Reads calls from a text that is one JSON value. The list is empty for JSON that is not a call.
pub(crate) fn read_calls(text: &str, trust: Trust, tools: &Tools) -> Result<Vec<RawCall>, Unreadable> {
    if trust == Trust::Marked && text.starts_with("{{") {
        return read_single(&text.replace("{{", "{").replace("}}", "}"), trust, tools);
    }
    read_single(text, trust, tools)
}

/// Reads a text after doubled braces were made single. A model doubles them when its prompt was an
/// unformatted Python format string.
fn read_single(text: &str, trust: Trust, tools: &Tools) -> Result<Vec<RawCall>, Unreadable> {
    let read = lenient_json::read(text)?;
    let mut calls = Vec::new();
    if !collect_calls(read.value, trust, tools, &mut calls) {
        calls.clear();
    }
    for call in &mut calls {
        call.repairs.extend(&read.repairs);
    }
    let bare_name =
        |call: &RawCall| matches!(&call.arguments, Args::Value(Value::Object(fields)) if fields.is_empty());
    if read.repairs.contains(&Repair::Unclosed) && calls.iter().any(bare_name) {
        return Err(Unreadable::Truncated);
    }
    keep_digits(&text[..read.end], &mut calls);
    Ok(calls)
}

/// Keeps arguments as text if they have integers that would be rounded.
fn keep_digits(text: &str, calls: &mut [RawCall]) {
    let mut integers = digits::find_big_integers(text);
    for call in calls {
        if let (Args::Value(value), false) = (&call.arguments, integers.is_empty()) {
            call.arguments = Args::Text(digits::restore_digits(&json_text(value), &mut integers));
        }
    }
}

/// Adds the calls in `value`; false if it has anything else.
fn collect_calls(value: Value, trust: Trust, tools: &Tools, calls: &mut Vec<RawCall>) -> bool {
    match value {
        Value::Array(items) if !items.is_empty() => {
            let found: Vec<bool> =
                items.into_iter().map(|item| collect_calls(item, trust, tools, calls)).collect();
            found.iter().all(|call| *call) || (trust == Trust::Marked && found.contains(&true))
        }
        Value::Object(object) => from_object(object, trust, tools, calls),
        Value::String(text) if trust == Trust::Marked && text.trim_start().starts_with('{') => {
            lenient_json::read(&text).is_ok_and(|read| collect_calls(read.value, trust, tools, calls))
        }
        _ => false,
    }
}

fn from_object(
    mut object: Map<String, Value>,
    trust: Trust,
    tools: &Tools,
    calls: &mut Vec<RawCall>,
) -> bool {
    if let Some(list @ Value::Array(_)) = object.get_mut("tool_calls") {
        return collect_calls(list.take(), trust, tools, calls);
    }
    let id = object.get("id").and_then(Value::as_str).map(str::to_owned);
    for key in ["function", "function_call", "tool_call"] {
        if let Some(inner @ Value::Object(_)) = object.get_mut(key) {
            let before = calls.len();
            let found = collect_calls(inner.take(), trust, tools, calls);
            calls[before..].iter_mut().for_each(|call| call.id.clone_from(&id));
            return found;
        }
    }
    match read_named(object, trust, tools) {
        Some(call) => calls.push(RawCall { id, ..call }),
        None => return false,
    }
    true
}

fn read_named(mut object: Map<String, Value>, trust: Trust, tools: &Tools) -> Option<RawCall> {
    for (name_key, argument_keys) in SHAPES {
        let Some(Value::String(name)) = object.get(name_key) else { continue };
        let name = name.clone();
        if is_definition(&object, &name, tools) {
            return None;
        }
        if let Some(key) = argument_keys.iter().find(|key| object.contains_key(**key)) {
            let value = object.shift_remove(*key)?;
            return (trust == Trust::Marked || is_bare_call(&object, name_key, &value))
                .then(|| call_with_value(&name, value));
        }
        if trust == Trust::Marked && name_key != "action" {
            object.shift_remove(name_key);
            return read_flat(&name, object, tools);
        }
    }
    read_keyed(object, trust, tools)
}

fn call_with_value(name: &str, arguments: Value) -> RawCall {
    let arguments = match arguments {
        Value::String(text) => Args::Text(text),
        Value::Null => Args::default(),
        value => Args::Value(value),
    };
    RawCall { name: name.to_owned(), arguments, ..RawCall::default() }
}

/// Returns true for a name and arguments that are an object (or the text of one), without keys that a call
/// does not have.
fn is_bare_call(rest: &Map<String, Value>, name_key: &str, arguments: &Value) -> bool {
    let object = match arguments {
        Value::Object(_) | Value::Null => true,
        Value::String(text) => text.trim_start().starts_with('{'),
        _ => false,
    };
    object && rest.keys().all(|key| key == name_key || COMPANIONS.contains(&key.as_str()))
}

/// Returns true for a tool's definition, which has the same keys as a call, but a schema as its parameters.
fn is_definition(object: &Map<String, Value>, name: &str, tools: &Tools) -> bool {
    let parameters = object.get("parameters").and_then(Value::as_object);
    let is_schema = parameters.is_some_and(|parameters| {
        parameters.get("properties").is_some_and(Value::is_object)
            && parameters.get("type").is_some_and(Value::is_string)
    });
    let takes_schema = || {
        let tool = tools.resolve(name)?;
        super::schema::properties(tool.tool.schema())?.get("properties")
    };
    is_schema && takes_schema().is_none()
}

/// Reads `{"name": "read", "path": "a"}`, in which the other keys are the arguments.
fn read_flat(name: &str, mut rest: Map<String, Value>, tools: &Tools) -> Option<RawCall> {
    let tool = tools.resolve(name)?.tool;
    let declared = super::schema::properties(tool.schema());
    rest.retain(|key, _| {
        let known = declared.is_some_and(|declared| declared.contains_key(key));
        known || !(COMPANIONS.contains(&key.as_str()) || matches!(key.as_str(), "description" | "parameters"))
    });
    Some(RawCall::from_fields(name, rest))
}

/// Reads `{"read": {"path": "a"}}`, in which the name is the key.
fn read_keyed(object: Map<String, Value>, trust: Trust, tools: &Tools) -> Option<RawCall> {
    let (name, value) = object.into_iter().next().filter(|_| trust == Trust::Marked)?;
    let object = matches!(value, Value::Object(_)) && tools.resolve(&name).is_some();
    object.then(|| call_with_value(&name, value))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(text: &str, trust: Trust, expected: &[(&str, Value)]) {
        let tools: Tools = [("read".to_owned(), None), ("exec".to_owned(), None)].into_iter().collect();
        let calls = read_calls(text, trust, &tools).unwrap_or_else(|why| panic!("{text}: {why:?}"));
        let found: Vec<(&str, Value)> = calls
            .iter()
            .map(|call| match &call.arguments {
                Args::Text(text) => (call.name.as_str(), serde_json::from_str(text).unwrap_or(Value::Null)),
                Args::Value(value) => (call.name.as_str(), value.clone()),
            })
            .collect();
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn every_shape_of_a_call_is_read() {
        let one = [("read", json!({"path": "a"}))];
        for text in [
            r#"{"name": "read", "arguments": {"path": "a"}}"#,
            r#"{"arguments": {"path": "a"}, "name": "read", "id": "call_1", "type": "function"}"#,
            r#"{"name": "read", "parameters": "{\"path\": \"a\"}"}"#,
            r#"{"function": "read", "arguments": {"path": "a"}}"#,
            r#"{"type": "function", "function": {"name": "read", "arguments": {"path": "a"}}}"#,
            r#"{"tool_calls": [{"name": "read", "arguments": {"path": "a"}}]}"#,
            r#"{"action": "read", "action_input": {"path": "a"}}"#,
            r#"{"tool": "read", "args": {"path": "a"}}"#,
        ] {
            check(text, Trust::Bare, &one);
            check(text, Trust::Marked, &one);
        }
        check(r#"{"read": {"path": "a"}}"#, Trust::Marked, &one);
        check(r#"{"name": "read", "path": "a"}"#, Trust::Marked, &one);
        check(r#"{"tool_name": "read"}"#, Trust::Marked, &[("read", json!({}))]);
    }

    #[test]
    fn what_only_resembles_a_call_is_not_one() {
        for text in [
            r#"{"name": "read"}"#,
            r#"{"name": "John", "age": 30}"#,
            r#"{"name": "read", "arguments": ["a"]}"#,
            r#"{"name": "read", "arguments": {}, "result": "x"}"#,
            r#"{"arguments": {"x": 1}}"#,
            r#"{"read": {"path": "a"}}"#,
            r#"{"name": "read", "description": "d", "parameters": {"type": "object", "properties": {}}}"#,
            r#"[{"name": "read", "arguments": {}}, 1]"#,
            "[]",
            "3",
        ] {
            check(text, Trust::Bare, &[]);
        }
        let definition = r#"{"type":"function","function":{"name":"read","parameters":{"type":"object","properties":{}}}}"#;
        check(definition, Trust::Marked, &[]);
    }
}
