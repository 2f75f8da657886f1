//! Makes arguments fit the tool's JSON Schema if that loses nothing, and reports the changes.
//!
//! A value that fits is never changed. Other values are read in the way that the model clearly meant: `"10"`
//! as 10, a JSON text as its object, one item as a list of one. A value that still does not fit stays
//! unchanged: `schema` lists the problems and the caller decides. Used by `settle`.

use serde_json::{Map, Number, Value};

use super::aliases;
use super::lenient_json;
use super::repairs::{Repair, Repairs};
use super::schema::{
    Document, accepts, branches, is_type, properties, required_names, resolve, same, types, weight,
};

/// Keys that models wrap the arguments in.
const WRAPPERS: [&str; 6] = ["parameters", "arguments", "args", "input", "params", "kwargs"];
/// Deeper values stay unchanged.
const MAX_DEPTH: usize = 32;

/// Coerces a call's arguments; `repairs` gets the names of the changes.
pub(crate) fn arguments(value: Value, document: Document<'_>, repairs: &mut Repairs) -> Value {
    let value = unwrap(value, document.root, repairs);
    Coercion { document, repairs }.value(value, document.root, 0)
}

/// Returns true if nothing needs a change.
pub(crate) fn fits(value: &Value, document: Document<'_>) -> bool {
    accepts(value, document.root, document) && unwrappable(value, document.root).is_none()
}

/// Finds the arguments in `{"parameters": {…}}`, if the tool has no such property.
fn unwrappable<'a>(value: &Value, schema: &'a Value) -> Option<&'a Map<String, Value>> {
    let declared = properties(resolve(schema, schema))?;
    let object = value.as_object().filter(|object| object.len() == 1)?;
    let (key, inner) = object.iter().next()?;
    let wraps = WRAPPERS.contains(&key.as_str()) && !declared.contains_key(key) && !declared.is_empty();
    (wraps && (inner.is_object() || inner.is_string())).then_some(declared)
}

fn unwrap(value: Value, schema: &Value, repairs: &mut Repairs) -> Value {
    let Some(declared) = unwrappable(&value, schema) else { return value };
    let inner = match value.as_object().and_then(|object| object.values().next()) {
        Some(Value::String(text)) => lenient_json::read(text).ok().map(|read| read.value),
        other => other.cloned(),
    };
    let fits = |inner: &Value| {
        inner.as_object().is_some_and(|inner| inner.keys().any(|key| declared.contains_key(key)))
    };
    match inner {
        Some(inner) if fits(&inner) => {
            repairs.insert(Repair::Unwrapped);
            inner
        }
        _ => value,
    }
}

/// Returns the property that a bare value must mean: the only required one, if it is a string.
pub(crate) fn sole_string(schema: &Value) -> Option<&str> {
    let schema = resolve(schema, schema);
    let mut names = required_names(schema);
    let name = names.next().filter(|_| names.next().is_none())?;
    let rule = resolve(properties(schema)?.get(name)?, schema);
    types(rule).contains(&"string").then_some(name)
}

struct Coercion<'a> {
    document: Document<'a>,
    repairs: &'a mut Repairs,
}

impl Coercion<'_> {
    fn value(&mut self, value: Value, schema: &Value, depth: usize) -> Value {
        let schema = resolve(schema, self.document.root);
        if depth > MAX_DEPTH || accepts(&value, schema, self.document) {
            return value;
        }
        if let Some(choice) = self.choice(&value, schema) {
            self.repairs.insert(Repair::Enum);
            return choice;
        }
        let value = self.by_branch(value, schema, depth);
        let value = self.by_type(value, schema, depth);
        match value {
            Value::Object(object) => Value::Object(self.object(object, schema, depth)),
            Value::Array(items) => Value::Array(self.items(items, schema, depth)),
            other => other,
        }
    }

    /// Coerces a value to the first branch of `anyOf`/`oneOf` that it can fit.
    fn by_branch(&mut self, value: Value, schema: &Value, depth: usize) -> Value {
        for branch in branches(schema) {
            if !self.document.steps.take(weight(&value)) {
                break;
            }
            let mut repairs = Repairs::new();
            let mut attempt = Coercion { document: self.document, repairs: &mut repairs };
            let candidate = attempt.value(value.clone(), branch, depth + 1);
            if accepts(&candidate, branch, self.document) {
                self.repairs.append(&mut repairs);
                return candidate;
            }
        }
        value
    }

    fn by_type(&mut self, value: Value, schema: &Value, depth: usize) -> Value {
        let types = types(schema);
        let fits = types.is_empty() || types.iter().any(|name| is_type(&value, name));
        if fits || !self.document.steps.take(types.len().saturating_mul(weight(&value))) {
            return value;
        }
        let single = || types.contains(&"array").then(|| self.list_of_one(&value, schema, depth)).flatten();
        match types.iter().find_map(|name| to_type(&value, name)).or_else(single) {
            Some(coerced) => {
                self.repairs.insert(Repair::Coerced);
                coerced
            }
            None => value,
        }
    }

    /// Makes a list of a single item, if the item fits and is certainly only one.
    fn list_of_one(&self, value: &Value, schema: &Value, depth: usize) -> Option<Value> {
        let is_one = match value {
            Value::Null | Value::Array(_) => false,
            Value::String(text) => !may_hold_more(text),
            _ => true,
        };
        let rule = schema.get("items").unwrap_or(&Value::Null);
        let mut repairs = Repairs::new();
        let mut attempt = Coercion { document: self.document, repairs: &mut repairs };
        let item = is_one.then(|| attempt.value(value.clone(), rule, depth + 1))?;
        accepts(&item, rule, self.document).then(|| Value::Array(vec![item]))
    }

    fn object(&mut self, object: Map<String, Value>, schema: &Value, depth: usize) -> Map<String, Value> {
        let Some(declared) = properties(schema) else { return object };
        let mut fitted = Map::new();
        let must: Vec<&str> = required_names(schema).collect();
        for (name, value) in self.renamed(object, declared, &must) {
            let rule = declared.get(&name).or_else(|| schema.get("additionalProperties"));
            let value = match rule {
                Some(rule) => self.value(value, rule, depth + 1),
                None => value,
            };
            let refused_null =
                value.is_null() && rule.is_some_and(|rule| !accepts(&value, rule, self.document));
            if refused_null && !must.contains(&name.as_str()) {
                self.repairs.insert(Repair::NullDropped);
            } else {
                fitted.insert(name, value);
            }
        }
        fitted
    }

    /// Renames members to the declared names that they mean.
    fn renamed(
        &mut self,
        object: Map<String, Value>,
        declared: &Map<String, Value>,
        must: &[&str],
    ) -> Map<String, Value> {
        let is_declared = object.keys().all(|name| declared.contains_key(name));
        if is_declared || !self.document.steps.take(cost_of_names(&object, declared)) {
            return object;
        }
        let names: Vec<&str> = object.keys().map(String::as_str).collect();
        let alike: Vec<String> = names.iter().map(|name| self.key(name, &names, declared)).collect();
        let object: Map<String, Value> =
            alike.into_iter().zip(object.into_iter().map(|(_, value)| value)).collect();
        let missing: Vec<&str> = must
            .iter()
            .copied()
            .filter(|name| !object.contains_key(*name) && declared.contains_key(*name))
            .collect();
        if missing.is_empty() {
            return object;
        }
        let fits = |value: &Value, name: &str| {
            declared.get(name).is_some_and(|rule| accepts(value, rule, self.document))
        };
        let meant: Vec<(String, String)> = aliases::meant(&object, declared, &missing, fits)
            .into_iter()
            .map(|(name, wanted)| (name.to_owned(), wanted.to_owned()))
            .collect();
        if meant.is_empty() {
            return object;
        }
        self.repairs.insert(Repair::Alias);
        let wanted = |name: String| {
            meant.iter().find(|(written, _)| *written == name).map_or(name, |(_, wanted)| wanted.clone())
        };
        object.into_iter().map(|(name, value)| (wanted(name), value)).collect()
    }

    /// Returns the declared key that differs only in case, `-` and `_`, if the object lacks it.
    fn key(&mut self, name: &str, present: &[&str], declared: &Map<String, Value>) -> String {
        if declared.contains_key(name) {
            return name.to_owned();
        }
        let plain = super::tools::plain(name);
        let mut alike = declared
            .keys()
            .filter(|key| super::tools::plain(key) == plain && !present.contains(&key.as_str()));
        match (alike.next(), alike.next()) {
            (Some(key), None)
                if present.iter().filter(|other| super::tools::plain(other) == plain).count() == 1 =>
            {
                self.repairs.insert(Repair::Key);
                key.clone()
            }
            _ => name.to_owned(),
        }
    }

    /// Finds the listed value that differs only in case, surrounding space or type (`"1"` for 1).
    fn choice(&self, value: &Value, schema: &Value) -> Option<Value> {
        let listed = schema.get("enum").and_then(Value::as_array).map(Vec::as_slice);
        let constant = schema.get("const").map(std::slice::from_ref);
        let choices = listed.or(constant)?;
        let cost = weight(value).saturating_mul(choices.len());
        if !self.document.steps.take(cost) {
            return None;
        }
        let text = match value {
            Value::String(text) => text.trim().to_owned(),
            other => other.to_string(),
        };
        let mut alike = choices.iter().filter(|choice| match choice {
            Value::String(choice) => choice.eq_ignore_ascii_case(&text),
            Value::Array(_) | Value::Object(_) => same(choice, value),
            other => other.to_string() == text || same(other, value),
        });
        alike.next().filter(|_| alike.next().is_none()).cloned()
    }

    fn items(&mut self, items: Vec<Value>, schema: &Value, depth: usize) -> Vec<Value> {
        match schema.get("items") {
            Some(rule) => items.into_iter().map(|item| self.value(item, rule, depth + 1)).collect(),
            None => items,
        }
    }
}

/// Returns the steps of comparing an object's names with each other and with the declared ones.
fn cost_of_names(object: &Map<String, Value>, declared: &Map<String, Value>) -> usize {
    let lengths: usize = object.keys().chain(declared.keys()).map(|name| 1 + name.len() / 8).sum();
    lengths.saturating_mul(object.len())
}

/// Returns true if a text may contain several items, or is unreadable JSON.
fn may_hold_more(text: &str) -> bool {
    let trimmed = text.trim();
    trimmed.is_empty()
        || trimmed.starts_with(['[', '{', '"'])
        || trimmed.contains([',', ';', '\n'])
        || lenient_json::literal(trimmed).is_some_and(|value| value.is_null())
}

/// Converts `value` to a type, if that loses nothing.
pub(crate) fn to_type(value: &Value, name: &str) -> Option<Value> {
    match (name, value) {
        ("string", Value::Number(_) | Value::Bool(_) | Value::Object(_) | Value::Array(_)) => {
            Some(Value::String(value.to_string()))
        }
        ("integer", Value::String(text)) => integer(text.trim()).map(Value::Number),
        ("number", Value::String(text)) => serde_json::from_str(text.trim()).ok().map(Value::Number),
        ("boolean", Value::String(text)) => boolean(text.trim()),
        ("boolean", Value::Number(number)) => match number.as_u64() {
            Some(flag @ (0 | 1)) => Some(Value::Bool(flag == 1)),
            _ => None,
        },
        ("null", Value::String(text)) => lenient_json::literal(text.trim()).filter(Value::is_null),
        ("object", Value::String(text)) => read_structured(text).filter(Value::is_object),
        ("array", Value::String(text)) => read_structured(text).filter(Value::is_array),
        _ => None,
    }
}

/// Reads an integer written as text. `10.0` counts, `1e2` and `10.5` do not.
fn integer(text: &str) -> Option<Number> {
    let digits = text.strip_suffix(".0").unwrap_or(text);
    let number: Number = serde_json::from_str(digits).ok()?;
    (number.is_i64() || number.is_u64()).then_some(number)
}

fn boolean(text: &str) -> Option<Value> {
    if text.eq_ignore_ascii_case("true") {
        Some(Value::Bool(true))
    } else if text.eq_ignore_ascii_case("false") {
        Some(Value::Bool(false))
    } else {
        None
    }
}

/// Reads a string that contains only an object or array: as JSON, as a Python literal, or as JSON with its
/// quotes escaped twice.
fn read_structured(text: &str) -> Option<Value> {
    let escaped = || serde_json::from_str::<String>(&format!("\"{}\"", text.trim())).ok();
    whole(text).or_else(|| whole(&escaped().filter(|_| text.contains("\\\""))?))
}

fn whole(text: &str) -> Option<Value> {
    let text = text.trim();
    let opens = text.starts_with(['{', '[']);
    let read = opens.then(|| lenient_json::read(text).ok()).flatten()?;
    (read.end == text.len() && !read.repairs.contains(&Repair::Unclosed)).then_some(read.value)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::schema::Steps;

    fn coerced(value: Value, schema: &Value, repairs: &mut Repairs) -> Value {
        let steps = Steps::of_reply();
        let document = Document { root: schema, steps: &steps };
        if fits(&value, document) { value } else { arguments(value, document, repairs) }
    }

    fn check(property: &Value, given: &Value, expected: &Value) {
        let schema = json!({"type": "object", "properties": {"x": property}});
        let mut repairs = Repairs::new();
        let coerced = coerced(json!({"x": given}), &schema, &mut repairs);
        assert_eq!(coerced, json!({"x": expected}), "{property} {given}");
        assert_eq!(repairs.is_empty(), given == expected, "{property} {given} {repairs:?}");
    }

    #[test]
    fn types_are_coerced_where_nothing_is_lost() {
        check(&json!({"type": "integer"}), &json!("10"), &json!(10));
        check(&json!({"type": "integer"}), &json!("10.5"), &json!("10.5"));
        check(&json!({"type": "number"}), &json!(" 1.5 "), &json!(1.5));
        check(&json!({"type": "boolean"}), &json!("True"), &json!(true));
        check(&json!({"type": "string"}), &json!(10), &json!("10"));
        check(&json!({"type": "string"}), &json!("10"), &json!("10"));
        check(&json!({"type": "array", "items": {"type": "integer"}}), &json!("[1, 2]"), &json!([1, 2]));
        check(&json!({"type": "array", "items": {"type": "integer"}}), &json!("3"), &json!([3]));
        check(&json!({"type": "array", "items": {"type": "string"}}), &json!("a b"), &json!(["a b"]));
        for one in [json!("null"), json!("[{\"id\": "), json!("a, b"), json!("")] {
            check(&json!({"type": "array"}), &one, &one);
        }
        check(&json!({"type": "array", "items": {"type": "object"}}), &json!("x"), &json!("x"));
        check(&json!({"type": "array"}), &json!(r#"[{\"id\": \"C:\\\\x\"}]"#), &json!([{"id": "C:\\x"}]));
        check(&json!({"type": "float"}), &json!("3.75"), &json!(3.75));
        check(&json!({"type": "object"}), &json!("{'a': True}"), &json!({"a": true}));
        check(&json!({"type": "object"}), &json!("a: b"), &json!("a: b"));
        check(&json!({"anyOf": [{"type": "null"}, {"type": "integer"}]}), &json!("7"), &json!(7));
        check(&json!({"enum": ["Celsius", "Fahrenheit"]}), &json!("celsius"), &json!("Celsius"));
        check(
            &json!({"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}}),
            &json!([{"n": "1"}]),
            &json!([{"n": 1}]),
        );
    }

    #[test]
    fn wrappers_keys_and_nulls_are_put_right() {
        let schema = json!({"type": "object", "required": ["file_path"], "additionalProperties": false,
            "properties": {"file_path": {"type": "string"}, "limit": {"type": "integer"}}});
        for given in [
            json!({"parameters": {"file_path": "a"}}),
            json!({"args": "{\"file_path\": \"a\"}"}),
            json!({"filePath": "a"}),
            json!({"file-path": "a", "limit": null}),
        ] {
            let mut repairs = Repairs::new();
            assert_eq!(coerced(given.clone(), &schema, &mut repairs), json!({"file_path": "a"}), "{given}");
            assert!(!repairs.is_empty());
        }
        assert_eq!(sole_string(&schema), Some("file_path"));
    }
}
