//! Looks up a path such as `messages[0].id` in a payload. Pure.

use serde_json::Value;

use super::path::{Step, payload_path};

/// Returns the value at a path. Null, and anything behind a path that cannot be read, counts as missing.
pub fn find_value<'v>(payload: &'v Value, path: &str) -> Option<&'v Value> {
    let steps = payload_path(path).ok()?;
    let found = steps.iter().try_fold(payload, |value, step| match (step, value) {
        (Step::Name(name), Value::Object(fields)) => fields.get(name),
        (Step::Name(name), Value::Array(list)) => list.get(name.parse::<usize>().ok()?),
        (Step::Index(index), Value::Array(list)) => list.get(*index),
        _ => None,
    });
    found.filter(|value| !value.is_null())
}

/// Returns a value as the text that identifies an event or chooses its lane. A blank text counts as missing:
/// otherwise all events without an id would be the same.
pub fn key_text(value: &Value) -> Option<String> {
    let text = match value {
        Value::Null => return None,
        Value::String(text) => text.trim().to_owned(),
        other => other.to_string(),
    };
    Some(text).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_and_indexes_are_followed() {
        let payload =
            json!({"messages": [{"id": "m1", "from": null}], "0": "zero", "a": {"0": {"b": 7}}, "on": false});
        let check = |path: &str, expected: Option<Value>| {
            assert_eq!(find_value(&payload, path), expected.as_ref(), "{path}");
        };
        check("messages[0].id", Some(json!("m1")));
        check("messages.0.id", Some(json!("m1")));
        check("a.0.b", Some(json!(7)));
        check("0", Some(json!("zero")));
        check("on", Some(json!(false)));
        for path in ["messages[1].id", "messages[0].from", "messages.id", "a[0]", "none", "on.x", "a..b", ""]
        {
            check(path, None);
        }
        assert_eq!(find_value(&json!([{"id": 1}]), "[0].id"), Some(&json!(1)));
    }

    #[test]
    fn keys_are_texts() {
        let check = |value: Value, expected: Option<&str>| {
            assert_eq!(key_text(&value).as_deref(), expected, "{value}");
        };
        check(json!(" m1 "), Some("m1"));
        check(json!(7), Some("7"));
        check(json!(true), Some("true"));
        check(json!({"a": 1}), Some(r#"{"a":1}"#));
        check(json!("  "), None);
        check(json!(null), None);
    }
}
