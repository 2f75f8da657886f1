//! Checks a value against a tool's JSON Schema: the keywords that tool declarations use, nothing more.
//!
//! The `jsonschema` crate does all of JSON Schema and brings two dozen crates (two regex engines, big
//! numbers, URI and IDN tables) into a binary that needs "does this fit, and what is missing". Unknown
//! keywords are passed over: a value is never called wrong for a rule that is not understood. `pattern` and
//! `format` are not checked. Used by `coerce`.

use serde_json::{Map, Value};

/// How deep `$ref` chains and nested schemas are followed.
const MAX_DEPTH: usize = 48;
/// More problems than this are not listed.
const MAX_PROBLEMS: usize = 8;

/// Follows `$ref` into the same document (`#/$defs/X`); a reference that leads nowhere is no rule at all.
pub(crate) fn resolve<'a>(schema: &'a Value, root: &'a Value) -> &'a Value {
    let mut schema = schema;
    for _ in 0..MAX_DEPTH {
        let Some(reference) = schema.get("$ref").and_then(Value::as_str) else { return schema };
        let target = reference.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
        schema = target.unwrap_or(&Value::Null);
    }
    &Value::Null
}

/// The type names a schema allows; empty when it does not say.
pub(crate) fn types(schema: &Value) -> Vec<&str> {
    match schema.get("type") {
        Some(Value::String(name)) => vec![standard(name)],
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).map(standard).collect(),
        _ => Vec::new(),
    }
}

/// JSON Schema's own word for a type that tools also call by Python's or another language's name.
fn standard(name: &str) -> &str {
    match name {
        "float" | "double" => "number",
        "int" | "long" => "integer",
        "bool" => "boolean",
        "str" => "string",
        "list" | "tuple" => "array",
        "dict" | "map" => "object",
        "none" => "null",
        other => other,
    }
}

/// The declared properties of an object schema.
pub(crate) fn properties(schema: &Value) -> Option<&Map<String, Value>> {
    schema.get("properties").and_then(Value::as_object)
}

/// The names in `required`.
pub(crate) fn required_names(schema: &Value) -> impl Iterator<Item = &str> {
    schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

/// The schemas of `anyOf` and `oneOf`.
pub(crate) fn branches(schema: &Value) -> impl Iterator<Item = &Value> {
    ["anyOf", "oneOf"].into_iter().filter_map(|key| schema.get(key)?.as_array()).flatten()
}

/// True when `value` is of that JSON Schema type.
pub(crate) fn is_type(value: &Value, name: &str) -> bool {
    match name {
        "string" => value.is_string(),
        "integer" => {
            value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0)
        }
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "null" => value.is_null(),
        _ => true,
    }
}

/// True when `value` breaks no rule that is understood.
pub(crate) fn accepts(value: &Value, schema: &Value, root: &Value) -> bool {
    problems(value, schema, root).is_empty()
}

/// Returns the violations of `value`, each with the place it is at.
pub(crate) fn problems(value: &Value, schema: &Value, root: &Value) -> Vec<String> {
    let mut check = Check { root, problems: Vec::new() };
    check.value(value, schema, "", 0);
    check.problems
}

struct Check<'a> {
    root: &'a Value,
    problems: Vec<String>,
}

impl Check<'_> {
    fn add(&mut self, path: &str, what: impl std::fmt::Display) {
        if self.problems.len() < MAX_PROBLEMS {
            let path = if path.is_empty() { "arguments" } else { path };
            self.problems.push(format!("{path}: {what}"));
        }
    }

    fn value(&mut self, value: &Value, schema: &Value, path: &str, depth: usize) {
        if depth > MAX_DEPTH || self.problems.len() >= MAX_PROBLEMS {
            return;
        }
        let schema = resolve(schema, self.root);
        if schema == &Value::Bool(false) {
            self.add(path, "not allowed");
        }
        self.kind(value, schema, path);
        self.choices(value, schema, path, depth);
        match value {
            Value::Object(object) => self.object(object, schema, path, depth),
            Value::Array(items) => self.array(items, schema, path, depth),
            Value::String(text) => self.text(text, schema, path),
            Value::Number(number) => self.number(number.as_f64().unwrap_or_default(), schema, path),
            Value::Null | Value::Bool(_) => {}
        }
    }

    fn kind(&mut self, value: &Value, schema: &Value, path: &str) {
        let types = types(schema);
        let nullable = value.is_null() && schema.get("nullable") == Some(&Value::Bool(true));
        if !types.is_empty() && !nullable && !types.iter().any(|name| is_type(value, name)) {
            self.add(path, format_args!("must be {}", types.join(" or ")));
        }
        if let Some(Value::Array(choices)) = schema.get("enum")
            && !nullable
            && !choices.iter().any(|choice| same(choice, value))
        {
            self.add(path, "must be one of the listed values");
        }
        if schema.get("const").is_some_and(|constant| !same(constant, value)) {
            self.add(path, "must be the constant");
        }
    }

    fn choices(&mut self, value: &Value, schema: &Value, path: &str, depth: usize) {
        for part in schema.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            self.value(value, part, path, depth + 1);
        }
        let mut branches = branches(schema).peekable();
        if branches.peek().is_none() {
            return;
        }
        let fits = branches.any(|branch| {
            let mut check = Check { root: self.root, problems: Vec::new() };
            check.value(value, branch, path, depth + 1);
            check.problems.is_empty()
        });
        if !fits {
            self.add(path, "fits none of the allowed forms");
        }
    }

    fn object(&mut self, object: &Map<String, Value>, schema: &Value, path: &str, depth: usize) {
        for name in required_names(schema).filter(|name| !object.contains_key(*name)) {
            self.add(path, format_args!("`{name}` is missing"));
        }
        let declared = properties(schema);
        let open = schema.get("patternProperties").is_some();
        for (name, value) in object {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            match (declared.and_then(|declared| declared.get(name)), schema.get("additionalProperties")) {
                (Some(rule), _) => self.value(value, rule, &path, depth + 1),
                (None, Some(Value::Bool(false))) if !open => self.add(&path, "unknown property"),
                (None, Some(rule @ Value::Object(_))) if !open => self.value(value, rule, &path, depth + 1),
                _ => {}
            }
        }
    }

    fn array(&mut self, items: &[Value], schema: &Value, path: &str, depth: usize) {
        self.range(count(items.len()), schema, ["minItems", "maxItems"], path);
        if let Some(rule @ Value::Object(_)) = schema.get("items") {
            for (index, item) in items.iter().enumerate() {
                self.value(item, rule, &format!("{path}[{index}]"), depth + 1);
            }
        }
    }

    fn number(&mut self, number: f64, schema: &Value, path: &str) {
        self.range(number, schema, ["minimum", "maximum"], path);
        let bound = |key| schema.get(key).and_then(Value::as_f64);
        if bound("exclusiveMinimum").is_some_and(|low| number <= low)
            || bound("exclusiveMaximum").is_some_and(|high| number >= high)
        {
            self.add(path, "out of range");
        }
    }

    /// Counting is not free, and most texts have no bounds.
    fn text(&mut self, text: &str, schema: &Value, path: &str) {
        let bounds = ["minLength", "maxLength"];
        if bounds.iter().any(|bound| schema.get(bound).is_some()) {
            self.range(length(text), schema, bounds, path);
        }
    }

    fn range(&mut self, measured: f64, schema: &Value, [low, high]: [&str; 2], path: &str) {
        let bound = |key| schema.get(key).and_then(Value::as_f64);
        if let Some(low) = bound(low).filter(|low| measured < *low) {
            self.add(path, format_args!("{measured} is below {low}"));
        }
        if let Some(high) = bound(high).filter(|high| measured > *high) {
            self.add(path, format_args!("{measured} is above {high}"));
        }
    }
}

fn length(text: &str) -> f64 {
    count(text.chars().count())
}

fn count(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

/// Equal as JSON Schema means it: `1` and `1.0` are the same number.
pub(crate) fn same(one: &Value, other: &Value) -> bool {
    one == other || (one.is_number() && one.as_f64() == other.as_f64())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(schema: &Value, good: &[Value], bad: &[Value]) {
        for value in good {
            assert_eq!(problems(value, schema, schema), Vec::<String>::new(), "{schema} {value}");
        }
        for value in bad {
            assert!(!accepts(value, schema, schema), "{schema} {value}");
        }
    }

    #[test]
    fn keywords_that_tools_use_are_checked() {
        check(
            &json!({"type": "integer", "minimum": 1}),
            &[json!(1), json!(2.0)],
            &[json!(0), json!(1.5), json!("1")],
        );
        check(
            &json!({"type": ["string", "null"], "maxLength": 2}),
            &[json!("ab"), json!(null)],
            &[json!("abc"), json!(1)],
        );
        check(&json!({"enum": ["a", 1]}), &[json!("a"), json!(1.0)], &[json!("A")]);
        check(
            &json!({"anyOf": [{"type": "string"}, {"const": null}]}),
            &[json!("x"), json!(null)],
            &[json!(1)],
        );
        check(
            &json!({"type": "array", "items": {"type": "string"}, "minItems": 1}),
            &[json!(["a"])],
            &[json!([]), json!([1])],
        );
        check(
            &json!({"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#/$defs/A"}},
                    "additionalProperties": false, "$defs": {"A": {"type": "boolean"}}}),
            &[json!({"a": true})],
            &[json!({}), json!({"a": 1}), json!({"a": true, "b": 1})],
        );
    }

    #[test]
    fn a_schema_that_refers_to_itself_ends() {
        let schema = json!({"$ref": "#"});
        assert!(accepts(&json!(1), &schema, &schema));
        let tree = json!({"type": "object", "properties": {"next": {"$ref": "#"}}});
        assert!(!accepts(&json!({"next": {"next": 1}}), &tree, &tree));
    }
}
