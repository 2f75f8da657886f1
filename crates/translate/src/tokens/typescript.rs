//! Writes tools in the form that gpt-oss reads: the TypeScript namespace of openai-harmony 0.0.8, with its
//! odd spaces.

use std::fmt::Write as _;

use serde_json::Value;

/// Writes the developer message that declares these functions.
pub(super) fn write_namespace(functions: &[&Value]) -> String {
    let mut out = "# Tools\n\n## functions\n\nnamespace functions {\n\n".to_owned();
    for function in functions {
        for line in function["description"].as_str().unwrap_or_default().lines() {
            let _ = writeln!(out, "// {line}");
        }
        let name = function["name"].as_str().unwrap_or_default();
        let argument = match &function["parameters"] {
            Value::Null => String::new(),
            schema => format!("_: {}", schema_type(schema, "")),
        };
        let _ = writeln!(out, "type {name} = ({argument}) => any;\n");
    }
    out + "} // namespace functions"
}

fn schema_type(schema: &Value, indent: &str) -> String {
    match &schema["type"] {
        Value::Array(names) => {
            names.iter().filter_map(Value::as_str).map(plain_type).collect::<Vec<_>>().join(" | ")
        }
        Value::String(name) => match name.as_str() {
            "object" => object_type(schema, indent),
            "array" if !schema["items"].is_null() => format!("{}[]", schema_type(&schema["items"], indent)),
            "array" => "Array<any>".to_owned(),
            "string" => enum_type(schema).unwrap_or_else(|| name.clone()),
            name => plain_type(name).to_owned(),
        },
        _ => "any".to_owned(),
    }
}

fn plain_type(name: &str) -> &str {
    match name {
        "integer" => "number",
        "string" | "number" | "boolean" | "null" | "object" | "array" => name,
        _ => "any",
    }
}

fn enum_type(schema: &Value) -> Option<String> {
    let words = schema["enum"].as_array()?.iter().filter_map(Value::as_str);
    Some(words.map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(" | "))
}

fn object_type(schema: &Value, indent: &str) -> String {
    let mut out = String::new();
    if let Some(description) = schema["description"].as_str() {
        let _ = writeln!(out, "{indent}// {description}");
    }
    out.push_str("{\n");
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (key, value) in schema["properties"].as_object().into_iter().flatten() {
        write_property(&mut out, key, value, required.contains(&key.as_str()), indent);
    }
    out + indent + "}"
}

fn write_property(out: &mut String, key: &str, schema: &Value, is_required: bool, indent: &str) {
    if let Some(title) = schema["title"].as_str() {
        let _ = write!(out, "{indent}// {title}\n{indent}//\n");
    }
    if let Some(description) = schema["description"].as_str() {
        let _ = writeln!(out, "{indent}// {description}");
    }
    if let Some(examples) = schema["examples"].as_array().filter(|examples| !examples.is_empty()) {
        let _ = writeln!(out, "{indent}// Examples:");
        examples.iter().for_each(|example| {
            let _ = writeln!(out, "{indent}// - {example}");
        });
    }
    let mark = if is_required { "" } else { "?" };
    let inner = format!("{indent}    ");
    let _ = write!(out, "{indent}{key}{mark}:");
    let _ = match schema["oneOf"].as_array() {
        Some(variants) => {
            for variant in variants {
                let _ =
                    write!(out, "\n{indent} | {}{}", schema_type(variant, &inner), default_comment(variant));
            }
            writeln!(out, "\n{indent},")
        }
        None => writeln!(out, " {},{}", schema_type(schema, &inner), default_comment(schema)),
    };
}

fn default_comment(schema: &Value) -> String {
    match &schema["default"] {
        Value::Null => String::new(),
        Value::String(word) if schema["enum"].is_array() => format!(" // default: {word}"),
        value => format!(" // default: {value}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Written by openai-harmony 0.0.8.
    #[test]
    fn the_same_text_as_the_library() {
        let parameters = json!({"type": "object", "description": "top", "required": ["a"], "properties": {
            "a": {"type": "string", "description": "line 1\nline 2", "default": "x"},
            "b": {"type": ["string", "null"]},
            "c": {"anyOf": [{"type": "string"}]},
            "d": {"oneOf": [{"type": "string", "description": "s"}, {"type": "number", "default": 3}], "description": "one"},
            "e": {"type": "array", "items": {"type": "object", "required": ["x"], "properties": {
                "x": {"type": "integer", "description": "ix"}}}},
            "f": {"type": "object", "description": "nested", "properties": {"y": {"type": "boolean", "default": true}}},
            "g": {"type": "string", "enum": ["p", "q"], "default": "p"},
            "i": {"type": "array"},
            "k": {"type": "string", "title": "K", "examples": ["e1"]},
        }});
        let tools = [
            json!({"name": "t", "description": "D", "parameters": parameters}),
            json!({"name": "u", "description": ""}),
        ];
        assert_eq!(
            write_namespace(&tools.each_ref()),
            include_str!("../../../../fixtures/harmony-tools.txt")
        );
    }
}
