//! Turns a written call into one that may leave, with a declared name and a JSON object as its arguments that
//! fits the schema.
//!
//! Otherwise it returns the reason. The text around the call does not matter here. Used by the engine for
//! native and text calls.

use serde_json::{Map, Value, json};

use super::calls::{Args, Delimited, RawCall, json_text};
use super::digits;
use super::lenient_json::{self, Unreadable};
use super::repairs::{Repair, Repairs};
use super::schema::{Document, Steps};
use super::tools::{Resolved, Tools};
use super::unquoted;
use super::{coerce, dialects, schema};
use crate::event::{Dropped, ToolCall};

/// The decision whether a call may leave.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Settled {
    /// The call may leave.
    Call(Box<Ready>),
    /// The call may not leave.
    Refused(Dropped),
}

/// A call that may leave.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ready {
    pub(crate) call: ToolCall,
    /// The repairs.
    pub(crate) repairs: Repairs,
    /// The meaning of its arguments, by which calls are compared: their value, or their text if a number
    /// would be rounded.
    pub(crate) meaning: Value,
}

/// Settles one call. `steps`: those of its reply.
pub(crate) fn settle_call(call: &RawCall, tools: &Tools, steps: &Steps) -> Settled {
    let Some(resolved) = tools.resolve(&call.name) else { return Settled::Refused(Dropped::Undeclared) };
    let mut repairs = call.repairs.clone();
    if resolved.repaired {
        repairs.insert(Repair::Name);
    }
    steps.add(call.arguments.estimated_size());
    let document = Document { root: resolved.tool.schema(), steps };
    let (value, verbatim) = match read_arguments(call, document, &mut repairs) {
        Ok(read) => read,
        Err(why) => return Settled::Refused(why),
    };
    let Fitted { value: fitted, verbatim, problems } = fit_to_schema(value, verbatim, document, &mut repairs);
    if fitted.as_object().is_none_or(|fitted| lacks_required(fitted, document)) {
        return Settled::Refused(Dropped::MissingRequired);
    }
    let text = verbatim.unwrap_or_else(|| match &call.arguments {
        Args::Text(written) => {
            digits::restore_digits(&json_text(&fitted), &mut digits::find_big_integers(written))
        }
        Args::Value(_) => json_text(&fitted),
    });
    if steps.are_spent() {
        repairs.insert(Repair::Unchecked);
    }
    let meaning =
        if digits::find_big_integers(&text).is_empty() { fitted } else { Value::String(text.clone()) };
    let name = resolved.tool.name.clone();
    let call = ToolCall { id: call.id.clone(), name, arguments: text, problems };
    Settled::Call(Box::new(wrap_hidden(Ready { call, repairs, meaning }, &resolved)))
}

fn lacks_required(object: &Map<String, Value>, document: Document<'_>) -> bool {
    let is_affordable = document.steps.take(schema::required_names(document.root).count());
    is_affordable && schema::required_names(document.root).any(|name| !object.contains_key(name))
}

/// Arguments after the changes for the schema.
struct Fitted {
    value: Value,
    /// Their original text, if nothing was changed.
    verbatim: Option<String>,
    /// The rules that they still violate.
    problems: Vec<String>,
}

/// Fits a value to the schema. A value that needs too many steps stays unchanged.
fn fit_to_schema(
    value: Value,
    verbatim: Option<String>,
    document: Document<'_>,
    repairs: &mut Repairs,
) -> Fitted {
    if coerce::fits_schema(&value, document) {
        return Fitted { value, verbatim, problems: Vec::new() };
    }
    let mut made = Repairs::new();
    let fitted = coerce::coerce_arguments(value.clone(), document, &mut made);
    if document.steps.are_spent() {
        return Fitted { value, verbatim, problems: Vec::new() };
    }
    repairs.append(&mut made);
    let verbatim = verbatim.filter(|_| fitted == value);
    let problems = schema::find_problems(&fitted, document.root, document);
    Fitted { value: fitted, verbatim, problems }
}

/// Wraps the call of a hidden tool in OpenClaw's `tool_call`.
fn wrap_hidden(mut ready: Ready, resolved: &Resolved<'_>) -> Ready {
    if resolved.hidden {
        let id = json!(ready.call.name);
        ready.call.arguments = format!("{{\"id\":{id},\"args\":{}}}", ready.call.arguments);
        ready.meaning = json!({ "id": id, "args": ready.meaning });
        "tool_call".clone_into(&mut ready.call.name);
    }
    ready
}

/// Reads the arguments as an object, with their original text if that was valid.
fn read_arguments(
    call: &RawCall,
    document: Document<'_>,
    repairs: &mut Repairs,
) -> Result<(Value, Option<String>), Dropped> {
    let (value, text) = match &call.arguments {
        Args::Value(value) => (with_types(value.clone(), call, document)?, None),
        Args::Text(text) => from_text(text, document, repairs)?,
    };
    match value {
        Value::Object(_) => Ok((value, text)),
        Value::Array(items) if items.len() == 1 && items[0].is_object() => {
            repairs.insert(Repair::Unwrapped);
            Ok((items[0].clone(), None))
        }
        Value::Null => {
            repairs.insert(Repair::EmptyArguments);
            Ok((Value::Object(Map::new()), None))
        }
        other => wrap_bare_value(other, document.root, repairs).map(|value| (value, None)),
    }
}

/// Gives texts without quotes the type that the schema requires.
fn with_types(mut value: Value, call: &RawCall, document: Document<'_>) -> Result<Value, Dropped> {
    let Value::Object(fields) = &mut value else { return Ok(value) };
    let declared = schema::properties(schema::resolve_reference(document.root, document.root));
    for (key, delimited) in &call.unquoted {
        let Some(Value::String(text)) = fields.get(key) else { continue };
        if *delimited == Delimited::Nothing && dialects::holds_mark(text) {
            return Err(Dropped::Unreadable);
        }
        let rule = declared.and_then(|declared| declared.get(key));
        let read = unquoted::read_value(text, rule, document);
        fields.insert(key.clone(), read);
    }
    Ok(value)
}

fn from_text(
    text: &str,
    document: Document<'_>,
    repairs: &mut Repairs,
) -> Result<(Value, Option<String>), Dropped> {
    let trimmed = text.trim();
    if trimmed.is_empty() {
        repairs.insert(Repair::EmptyArguments);
        return Ok((Value::Object(Map::new()), None));
    }
    match serde_json::from_str(trimmed) {
        Ok(Value::String(inner)) => from_inner(inner, document, repairs),
        Ok(value) => Ok((value, Some(trimmed.to_owned()))),
        Err(_) => read_repaired(text, document, repairs),
    }
}

/// Reads a JSON string in place of an object: double-encoded JSON, or a bare value.
fn from_inner(
    inner: String,
    document: Document<'_>,
    repairs: &mut Repairs,
) -> Result<(Value, Option<String>), Dropped> {
    if inner.trim_start().starts_with(['{', '[', '"']) {
        repairs.insert(Repair::DoubleEncoded);
        return from_text(&inner, document, repairs);
    }
    Ok((Value::String(inner), None))
}

fn read_repaired(
    text: &str,
    document: Document<'_>,
    repairs: &mut Repairs,
) -> Result<(Value, Option<String>), Dropped> {
    let trimmed = text.trim();
    let body = without_fence(trimmed);
    if body.len() != trimmed.len() {
        repairs.insert(Repair::Fence);
    }
    match lenient_json::read(body) {
        Ok(read) if read.value.is_object() || read.end == body.len() => {
            repairs.extend(&read.repairs);
            if read.end < body.len() {
                repairs.insert(Repair::Junk);
            }
            Ok((read.value, None))
        }
        Err(Unreadable::Truncated) => Err(Dropped::Truncated),
        _ if body.starts_with(['{', '[']) => Err(Dropped::Unreadable),
        _ => match unquoted::read_keyed(body, document) {
            Some(fields) => {
                repairs.insert(Repair::KeyedText);
                Ok((Value::Object(fields), None))
            }
            None if unquoted::is_one_value(text, document.root) && !dialects::holds_mark(text) => {
                Ok((Value::String(text.to_owned()), None))
            }
            None => Err(Dropped::Unreadable),
        },
    }
}

/// Returns the inside of a Markdown fence around the whole text, or else the text itself.
pub(crate) fn without_fence(text: &str) -> &str {
    let inside = text.strip_prefix("```").and_then(|rest| rest.split_once('\n')).map(|(_, body)| body);
    inside.map_or(text, |body| body.trim_end().trim_end_matches('`').trim())
}

/// Makes a bare value the one required string argument, if there is exactly one.
fn wrap_bare_value(value: Value, rules: &Value, repairs: &mut Repairs) -> Result<Value, Dropped> {
    let Some(name) = coerce::sole_string(rules) else { return Err(Dropped::Unreadable) };
    let text = match value {
        Value::String(text) => text,
        scalar @ (Value::Number(_) | Value::Bool(_)) => scalar.to_string(),
        _ => return Err(Dropped::Unreadable),
    };
    repairs.insert(Repair::Wrapped);
    Ok(json!({ name: text }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools() -> Tools {
        Tools::from_json(
            r#"[{"type":"function","function":{"name":"read","parameters":{"type":"object","required":["path"],
                "properties":{"path":{"type":"string"},"limit":{"type":"integer"}}}}},
               {"type":"function","function":{"name":"now"}},
               {"type":"function","function":{"name":"add","parameters":{"type":"object","required":["a","b"],
                "properties":{"a":{"type":"number"},"b":{"type":"number","maximum":9}}}}}]"#,
        ).unwrap()
    }

    fn check(name: &str, arguments: &str, expected: &str, repair: &str) {
        match settle_call(&RawCall::from_text(name, arguments), &tools(), &Steps::reply_budget()) {
            Settled::Call(ready) => {
                let Ready { call, repairs, .. } = *ready;
                assert_eq!(call.arguments, expected, "{arguments}");
                assert!(
                    repair.is_empty() == repairs.is_empty()
                        && (repair.is_empty() || repairs.iter().any(|made| made.name() == repair)),
                    "{arguments}: {repairs:?}"
                );
            }
            Settled::Refused(why) => panic!("{arguments}: {why:?}"),
        }
    }

    fn refused(name: &str, arguments: &str, why: Dropped) {
        let settled = settle_call(&RawCall::from_text(name, arguments), &tools(), &Steps::reply_budget());
        assert_eq!(settled, Settled::Refused(why), "{arguments}");
    }

    #[test]
    fn arguments_leave_as_one_object() {
        check("read", r#"{ "path" : "a" }"#, r#"{ "path" : "a" }"#, "");
        check("read", r#"{"path":"a","limit":"10"}"#, r#"{"path":"a","limit":10}"#, "coerced");
        check("read", r#""{\"path\":\"a\"}""#, r#"{"path":"a"}"#, "double_encoded");
        check("read", "```json\n{\"path\":\"a\"}\n```", r#"{"path":"a"}"#, "fence");
        check("read", r#"{"path":"a"}} trailing"#, r#"{"path":"a"}"#, "junk");
        check("read", r#""notes.txt""#, r#"{"path":"notes.txt"}"#, "wrapped");
        check("read", "notes.txt", r#"{"path":"notes.txt"}"#, "wrapped");
        check("read", "path=/x", r#"{"path":"/x"}"#, "keyed_text");
        check("read", "path: /x, limit: 3", r#"{"path":"/x","limit":3}"#, "keyed_text");
        check("read", r#""ls -R\n""#, r#"{"path":"ls -R\n"}"#, "wrapped");
        check("read", " a b\n", r#"{"path":" a b\n"}"#, "wrapped");
        check("read", r#"{"file_path":"a"}"#, r#"{"path":"a"}"#, "alias");
        check("read", r#"{"path":"a""#, r#"{"path":"a"}"#, "unclosed");
        check(
            "read",
            r#"{"path":"a","limit":["12345678901234567890123"],"id":12345678901234567890123}"#,
            r#"{"path":"a","limit":["12345678901234567890123"],"id":12345678901234567890123}"#,
            "",
        );
        check(
            "read",
            r#"{"path":12345678901234567890123,"id":-12345678901234567890124,}"#,
            r#"{"path":"12345678901234567890123","id":-12345678901234567890124}"#,
            "coerced",
        );
        check("functions.now", "", "{}", "empty_arguments");
        check("now", "null", "{}", "empty_arguments");
    }

    #[test]
    fn what_cannot_be_repaired_is_refused() {
        refused("write", "{}", Dropped::Undeclared);
        refused("read", "{}", Dropped::MissingRequired);
        for open in [r#"{"path":"a"#, r#"{"path":"a","limit":1"#, r#"{"path":"#, "{", r#"{"path":"a","#] {
            refused("read", open, Dropped::Truncated);
        }
        refused("read", "file=/x", Dropped::Unreadable);
        refused("read", "[\"a\"]", Dropped::Unreadable);
        refused("read", "<tool_call>x</tool_call>", Dropped::Unreadable);
        refused("read", "{not json}", Dropped::Unreadable);
        refused("add", "1", Dropped::Unreadable);
        refused("now", "\"< \"", Dropped::Unreadable);
    }

    #[test]
    fn what_stays_wrong_is_marked() {
        let call = RawCall::from_text("add", r#"{"a":1,"b":10}"#);
        let Settled::Call(ready) = settle_call(&call, &tools(), &Steps::reply_budget()) else {
            panic!("not a call")
        };
        assert_eq!(ready.call.problems, ["b: 10 is above 9"]);
    }

    #[test]
    fn a_check_without_end_leaves_arguments_as_written() {
        let items = vec![json!({"type": "integer", "maximum": 0}); 3_000];
        let schema = json!({"properties": {"list": {"items": {"anyOf": items}}}});
        let tools = Tools::from_parts([("sum".to_owned(), Some(schema.to_string().as_str()))]);
        let arguments = format!("{{\"list\":[{}\"1\"]}}", "\"1\",".repeat(999));
        let steps = Steps::reply_budget();
        let Settled::Call(ready) = settle_call(&RawCall::from_text("sum", &arguments), &tools, &steps) else {
            panic!("not a call")
        };
        assert_eq!(ready.call.arguments, arguments);
        assert_eq!(ready.repairs, Repairs::from([Repair::Unchecked]));
    }
}
