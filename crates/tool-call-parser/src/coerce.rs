//! Makes arguments fit the tool's JSON Schema if that loses nothing, and reports the changes.
//!
//! A value that fits is never changed. Other values are read in the way that the model clearly meant: `"10"`
//! as 10, a JSON text as its object, one item as a list of one. A value that still does not fit stays
//! unchanged: `schema` lists the problems and the caller decides. Used by `settle`.

use serde_json::{Map, Number, Value};

use super::aliases;
use super::command_words;
use super::lenient_json;
use super::repairs::{Repair, Repairs};
use super::schema::{
    Document, accepts, branches, is_same, is_type, item_rule, properties, required_names, resolve_reference,
    type_names, weight,
};

/// Keys that models wrap the arguments in.
const WRAPPERS: [&str; 6] = ["parameters", "arguments", "args", "input", "params", "kwargs"];
/// Deeper values stay unchanged.
const MAX_DEPTH: usize = 32;

/// Coerces a call's arguments; `repairs` gets the names of the changes.
pub(crate) fn coerce_arguments(value: Value, document: Document<'_>, repairs: &mut Repairs) -> Value {
    let value = unwrap_arguments(value, document.root, repairs);
    Coercion { document, repairs }.coerce_value(value, document.root, 0)
}

/// Returns true if nothing needs a change.
pub(crate) fn fits_schema(value: &Value, document: Document<'_>) -> bool {
    accepts(value, document.root, document) && wrapping_properties(value, document.root).is_none()
}

/// Returns the declared properties if the value wraps the arguments, as in `{"parameters": {…}}`, and the
/// tool has no such property.
fn wrapping_properties<'a>(value: &Value, schema: &'a Value) -> Option<&'a Map<String, Value>> {
    let declared = properties(resolve_reference(schema, schema))?;
    let object = value.as_object().filter(|object| object.len() == 1)?;
    let (key, inner) = object.iter().next()?;
    let wraps = WRAPPERS.contains(&key.as_str()) && !declared.contains_key(key) && !declared.is_empty();
    (wraps && (inner.is_object() || inner.is_string())).then_some(declared)
}

fn unwrap_arguments(value: Value, schema: &Value, repairs: &mut Repairs) -> Value {
    let Some(declared) = wrapping_properties(&value, schema) else { return value };
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
    let schema = resolve_reference(schema, schema);
    let mut names = required_names(schema);
    let name = names.next().filter(|_| names.next().is_none())?;
    let rule = resolve_reference(properties(schema)?.get(name)?, schema);
    type_names(rule).contains(&"string").then_some(name)
}

struct Coercion<'a> {
    document: Document<'a>,
    repairs: &'a mut Repairs,
}

impl Coercion<'_> {
    fn coerce_value(&mut self, value: Value, schema: &Value, depth: usize) -> Value {
        let schema = resolve_reference(schema, self.document.root);
        if depth > MAX_DEPTH || accepts(&value, schema, self.document) {
            return value;
        }
        if let Some(choice) = self.matching_choice(&value, schema) {
            self.repairs.insert(Repair::Enum);
            return choice;
        }
        let value = self.coerce_to_branch(value, schema, depth);
        let value = self.coerce_to_type(value, schema, depth);
        match value {
            Value::Object(object) => Value::Object(self.coerce_object(object, schema, depth)),
            Value::Array(items) => Value::Array(self.coerce_items(items, schema, depth)),
            other => other,
        }
    }

    /// Coerces a value to the first branch of `anyOf`/`oneOf` that it can fit.
    fn coerce_to_branch(&mut self, value: Value, schema: &Value, depth: usize) -> Value {
        for branch in branches(schema) {
            if !self.document.steps.take(weight(&value)) {
                break;
            }
            let mut repairs = Repairs::new();
            let mut attempt = Coercion { document: self.document, repairs: &mut repairs };
            let candidate = attempt.coerce_value(value.clone(), branch, depth + 1);
            if accepts(&candidate, branch, self.document) {
                self.repairs.append(&mut repairs);
                return candidate;
            }
        }
        value
    }

    fn coerce_to_type(&mut self, value: Value, schema: &Value, depth: usize) -> Value {
        let types = type_names(schema);
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
        let rule = item_rule(schema, 0).unwrap_or(&Value::Null);
        let mut repairs = Repairs::new();
        let mut attempt = Coercion { document: self.document, repairs: &mut repairs };
        let item = is_one.then(|| attempt.coerce_value(value.clone(), rule, depth + 1))?;
        accepts(&item, rule, self.document).then(|| Value::Array(vec![item]))
    }

    fn coerce_object(
        &mut self,
        object: Map<String, Value>,
        schema: &Value,
        depth: usize,
    ) -> Map<String, Value> {
        let Some(declared) = properties(schema) else { return object };
        let mut fitted = Map::new();
        let must: Vec<&str> = required_names(schema).collect();
        for (name, value) in self.rename_members(object, declared, &must) {
            let rule = declared.get(&name).or_else(|| rule_of_others(schema));
            let value = match rule {
                Some(rule) => {
                    let value = self.line_of_words(&name, rule, &value).unwrap_or(value);
                    self.coerce_value(value, rule, depth + 1)
                }
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

    /// Makes one line of the words of a command, where the tool takes a line.
    fn line_of_words(&mut self, name: &str, rule: &Value, value: &Value) -> Option<Value> {
        let line = self.words_for(name, rule, value)?;
        self.repairs.insert(Repair::Coerced);
        Some(Value::String(line))
    }

    fn words_for(&self, name: &str, rule: &Value, value: &Value) -> Option<String> {
        let rule = resolve_reference(rule, self.document.root);
        let takes_line = value.is_array()
            && command_words::is_command_name(name)
            && type_names(rule).contains(&"string")
            && !accepts(value, rule, self.document)
            && self.document.steps.take(weight(value));
        takes_line.then(|| command_words::join_words(value)).flatten()
    }

    /// Renames members to the declared names that they mean.
    fn rename_members(
        &mut self,
        object: Map<String, Value>,
        declared: &Map<String, Value>,
        must: &[&str],
    ) -> Map<String, Value> {
        let is_declared = object.keys().all(|name| declared.contains_key(name));
        if is_declared || !self.document.steps.take(name_cost(&object, declared)) {
            return object;
        }
        let names: Vec<&str> = object.keys().map(String::as_str).collect();
        let alike: Vec<String> = names.iter().map(|name| self.declared_key(name, &names, declared)).collect();
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
            declared.get(name).is_some_and(|rule| {
                accepts(value, rule, self.document) || self.words_for(name, rule, value).is_some()
            })
        };
        let meant: Vec<(String, String)> = aliases::match_missing(&object, declared, &missing, fits)
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
    fn declared_key(&mut self, name: &str, present: &[&str], declared: &Map<String, Value>) -> String {
        if declared.contains_key(name) {
            return name.to_owned();
        }
        let plain = super::tools::normalise_name(name);
        let mut alike = declared
            .keys()
            .filter(|key| super::tools::normalise_name(key) == plain && !present.contains(&key.as_str()));
        match (alike.next(), alike.next()) {
            (Some(key), None)
                if present.iter().filter(|other| super::tools::normalise_name(other) == plain).count()
                    == 1 =>
            {
                self.repairs.insert(Repair::Key);
                key.clone()
            }
            _ => name.to_owned(),
        }
    }

    /// Finds the listed value that differs only in case, surrounding space or type (`"1"` for 1).
    fn matching_choice(&self, value: &Value, schema: &Value) -> Option<Value> {
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
            Value::Array(_) | Value::Object(_) => is_same(choice, value),
            other => other.to_string() == text || is_same(other, value),
        });
        alike.next().filter(|_| alike.next().is_none()).cloned()
    }

    fn coerce_items(&mut self, items: Vec<Value>, schema: &Value, depth: usize) -> Vec<Value> {
        let coerce = |(place, item)| match item_rule(schema, place) {
            Some(rule) => self.coerce_value(item, rule, depth + 1),
            None => item,
        };
        items.into_iter().enumerate().map(coerce).collect()
    }
}

/// The rule of members that are not declared; `None` where it depends on their names.
fn rule_of_others(schema: &Value) -> Option<&Value> {
    schema.get("additionalProperties").filter(|_| schema.get("patternProperties").is_none())
}

/// Returns the steps of comparing an object's names with each other and with the declared ones.
fn name_cost(object: &Map<String, Value>, declared: &Map<String, Value>) -> usize {
    let lengths: usize = object.keys().chain(declared.keys()).map(|name| 1 + name.len() / 8).sum();
    lengths.saturating_mul(object.len())
}

/// Returns true if a text may contain several items, or is unreadable JSON.
fn may_hold_more(text: &str) -> bool {
    let trimmed = text.trim();
    trimmed.is_empty()
        || trimmed.starts_with(['[', '{', '"'])
        || trimmed.contains([',', ';', '\n'])
        || lenient_json::parse_literal(trimmed).is_some_and(|value| value.is_null())
}

/// Converts `value` to a type, if that loses nothing.
pub(crate) fn to_type(value: &Value, name: &str) -> Option<Value> {
    match (name, value) {
        ("string", Value::Number(_) | Value::Bool(_) | Value::Object(_) | Value::Array(_)) => {
            Some(Value::String(value.to_string()))
        }
        ("integer", Value::String(text)) => parse_integer(text.trim()).map(Value::Number),
        ("number", Value::String(text)) => serde_json::from_str(text.trim()).ok().map(Value::Number),
        ("boolean", Value::String(text)) => parse_boolean(text.trim()),
        ("boolean", Value::Number(number)) => match number.as_u64() {
            Some(flag @ (0 | 1)) => Some(Value::Bool(flag == 1)),
            _ => None,
        },
        ("null", Value::String(text)) => lenient_json::parse_literal(text.trim()).filter(Value::is_null),
        ("object", Value::String(text)) => read_structured(text).filter(Value::is_object),
        ("array", Value::String(text)) => read_structured(text).filter(Value::is_array),
        _ => None,
    }
}

/// Reads an integer written as text. `10.0` counts, `1e2` and `10.5` do not.
fn parse_integer(text: &str) -> Option<Number> {
    let digits = text.strip_suffix(".0").unwrap_or(text);
    let number: Number = serde_json::from_str(digits).ok()?;
    (number.is_i64() || number.is_u64()).then_some(number)
}

fn parse_boolean(text: &str) -> Option<Value> {
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
    read_whole(text).or_else(|| read_whole(&escaped().filter(|_| text.contains("\\\""))?))
}

fn read_whole(text: &str) -> Option<Value> {
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
        let steps = Steps::reply_budget();
        let document = Document { root: schema, steps: &steps };
        if fits_schema(&value, document) { value } else { coerce_arguments(value, document, repairs) }
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

    #[test]
    fn a_command_in_words_becomes_a_line() {
        let schema = json!({"type": "object", "required": ["command"],
            "properties": {"command": {"type": "string"}, "note": {"type": "string"}}});
        for (given, expected) in [
            (json!({"command": ["bash", "-lc", "ls | head"]}), json!({"command": "ls | head"})),
            (json!({"cmd": ["ls", "a b"]}), json!({"command": "ls 'a b'"})),
            (json!({"command": "ls", "note": ["ls"]}), json!({"command": "ls", "note": "[\"ls\"]"})),
        ] {
            assert_eq!(coerced(given.clone(), &schema, &mut Repairs::new()), expected, "{given}");
        }
        let both = json!({"properties": {"command": {"type": ["string", "array"]}}});
        let list = json!({"command": ["ls", "-l"]});
        assert_eq!(coerced(list.clone(), &both, &mut Repairs::new()), list);
    }

    #[test]
    fn each_member_has_its_own_rule() {
        let pair = json!({"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}]});
        check(&pair, &json!([5, "5"]), &json!(["5", 5]));
        let named = json!({"type": "object", "patternProperties": {"^x-": {"type": "string"}},
            "properties": {"n": {"type": "integer"}}, "additionalProperties": {"type": "integer"}});
        check(&named, &json!({"x-a": "5", "n": "5"}), &json!({"x-a": "5", "n": 5}));
    }
}
