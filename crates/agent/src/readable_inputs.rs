//! Writes the inputs of a call for the person who decides about it: a text of several lines as these lines.
//! A line of such a text cannot look like another input, because it begins with a bar.

use std::fmt::Write as _;

use serde_json::Value;

/// Returns inputs as people read them: as they are, unless one of their texts has several lines.
pub fn readable_inputs(arguments: &str) -> String {
    let Ok(inputs) = serde_json::from_str::<Value>(arguments) else { return arguments.to_owned() };
    if !inputs.is_object() || !has_lines(&inputs) {
        return arguments.to_owned();
    }
    let mut out = String::new();
    write_members(&mut out, &inputs, "");
    out.trim_start_matches('\n').to_owned()
}

fn has_lines(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains('\n'),
        Value::Array(items) => items.iter().any(has_lines),
        Value::Object(members) => members.values().any(has_lines),
        _ => false,
    }
}

/// Writes the members of an object or list, each on its own line.
fn write_members(out: &mut String, value: &Value, indent: &str) {
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                let is_word = name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c));
                let name = if is_word { name.clone() } else { Value::from(name.as_str()).to_string() };
                write_member(out, &format!("{name}:"), value, indent);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| write_member(out, "-", item, indent)),
        _ => {}
    }
}

fn write_member(out: &mut String, name: &str, value: &Value, indent: &str) {
    let _ = write!(out, "\n{indent}{name}");
    match value {
        Value::String(text) if text.contains('\n') => {
            text.split('\n').for_each(|line| _ = write!(out, "\n{indent}  | {line}"));
        }
        value if has_lines(value) => write_members(out, value, &format!("{indent}  ")),
        value => _ = write!(out, " {value}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(inputs: &str, expected: &str) {
        assert_eq!(readable_inputs(inputs), expected, "{inputs}");
    }

    #[test]
    fn texts_keep_their_lines() {
        check(r#"{"path": "a.md", "n": 1}"#, r#"{"path": "a.md", "n": 1}"#);
        check("no JSON\\n", "no JSON\\n");
        check(
            r#"{"path": "a.md", "content": "- Momo\npath: x\n", "n": [1]}"#,
            "path: \"a.md\"\ncontent:\n  | - Momo\n  | path: x\n  | \nn: [1]",
        );
        check(
            r#"{"mails": [{"a\nb": "c", "text": "d\ne"}, 7]}"#,
            "mails:\n  -\n    \"a\\nb\": \"c\"\n    text:\n      | d\n      | e\n  - 7",
        );
    }
}
