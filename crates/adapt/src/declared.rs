//! Changes that the owner declares for a model: parameters that are set, given a default, or left out.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use wire::Object;

/// The name of the parameter for the effort of reasoning.
pub(crate) const EFFORT: &str = "reasoning_effort";

/// Fields of a chat request by name, with their values.
pub type Fields = BTreeMap<String, Value>;

/// Fields that make the request what it is: they cannot be declared.
pub const UNDECLARABLE: [&str; 4] = ["model", "messages", "stream", "stream_options"];

/// Fields in which a client, or the owner, says whether the model reasons.
pub(crate) const REASONING_FIELDS: [&str; 5] = [EFFORT, "reasoning", "thinking", "enable_thinking", "think"];

/// The parameters that the owner declares for one model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Declared {
    /// Values that replace those of the client. Objects are merged field by field.
    pub set: Fields,
    /// Values for fields that the client leaves out. Objects are merged field by field.
    pub default: Fields,
    /// Fields that are left out, with dots between the names of nested fields: `metadata`, `extra.user`.
    pub strip: Vec<String>,
    /// The fields that switch reasoning off, where the table of families does not say it.
    pub reasoning_off: Fields,
}

impl Declared {
    /// Returns true when nothing is declared.
    pub fn is_empty(&self) -> bool {
        self.changes_nothing() && self.reasoning_off.is_empty()
    }

    /// Returns true when no field is set, given a default or left out.
    pub fn changes_nothing(&self) -> bool {
        self.set.is_empty() && self.default.is_empty() && self.strip.is_empty()
    }

    /// Lays these parameters over those of the model that this one is another name for.
    #[must_use]
    pub fn lay_over(mut self, below: &Self) -> Self {
        self.set = join_fields(&below.set, self.set);
        self.default = join_fields(&below.default, self.default);
        self.strip.extend(below.strip.iter().cloned());
        if self.reasoning_off.is_empty() {
            self.reasoning_off.clone_from(&below.reasoning_off);
        }
        self
    }

    /// Returns true when the owner has decided whether the model reasons, whatever the client says.
    pub(crate) fn decides_reasoning(&self) -> bool {
        REASONING_FIELDS.iter().chain(&["chat_template_kwargs"]).any(|field| self.set.contains_key(*field))
    }

    /// Applies the declared changes to a request's body. `None` when nothing changes.
    pub fn apply_to_body(&self, body: &str) -> Option<String> {
        let mut object = Object::parse(body).ok()?;
        self.apply(&mut object).then(|| object.to_json())
    }

    /// Applies the declared changes to a request's fields: first `strip`, then `default`, then `set`. Returns
    /// false when nothing changes.
    fn apply<'a>(&'a self, object: &mut Object<'a>) -> bool {
        let stripped = self.strip.iter().filter(|path| strip(object, path)).count() > 0;
        let defaulted =
            self.default.iter().filter(|(key, value)| merge(object, key, value, false)).count() > 0;
        let set = self.set.iter().filter(|(key, value)| merge(object, key, value, true)).count() > 0;
        stripped || defaulted || set
    }
}

/// Joins two tables of fields; the upper one's values win.
fn join_fields(below: &Fields, above: Fields) -> Fields {
    let mut joined = json!(below);
    merge_values(&mut joined, &json!(above), true);
    serde_json::from_value(joined).unwrap_or(above)
}

/// Merges a declared value into a field; `wins`: the declared value replaces the client's.
pub(crate) fn merge<'a>(object: &mut Object<'a>, key: &'a str, declared: &Value, wins: bool) -> bool {
    let known: Option<Value> = object.get(key).and_then(|text| serde_json::from_str(text).ok());
    let mut merged = known.clone().unwrap_or(Value::Null);
    match &known {
        None => merged = declared.clone(),
        Some(_) => merge_values(&mut merged, declared, wins),
    }
    let changes = known.as_ref() != Some(&merged);
    if changes {
        object.set(key, merged.to_string());
    }
    changes
}

fn merge_values(known: &mut Value, declared: &Value, wins: bool) {
    match (known, declared) {
        (Value::Object(known), Value::Object(declared)) => {
            for (key, value) in declared {
                match known.get_mut(key) {
                    Some(inner) => merge_values(inner, value, wins),
                    None => {
                        known.insert(key.clone(), value.clone());
                    }
                }
            }
        }
        (known, declared) if wins => *known = declared.clone(),
        _ => {}
    }
}

fn strip<'a>(object: &mut Object<'a>, path: &'a str) -> bool {
    let Some((first, rest)) = path.split_once('.') else { return object.remove(path) };
    let Some(mut value) = object.get(first).and_then(|text| serde_json::from_str::<Value>(text).ok()) else {
        return false;
    };
    let (parents, last) = rest.rsplit_once('.').map_or((None, rest), |(parents, last)| (Some(parents), last));
    let holder = parents
        .into_iter()
        .flat_map(|parents| parents.split('.'))
        .try_fold(&mut value, |holder, name| holder.get_mut(name));
    let removed =
        holder.and_then(Value::as_object_mut).is_some_and(|holder| holder.shift_remove(last).is_some());
    if removed {
        object.set(first, value.to_string());
    }
    removed
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "literals read better without a reference")]
    fn declared(fields: Value) -> Declared {
        let map = |key: &str| fields.get(key).cloned().map(serde_json::from_value).transpose().unwrap();
        let strip = fields.get("strip").cloned().map(serde_json::from_value).transpose().unwrap();
        Declared {
            set: map("set").unwrap_or_default(),
            default: map("default").unwrap_or_default(),
            strip: strip.unwrap_or_default(),
            reasoning_off: map("reasoning_off").unwrap_or_default(),
        }
    }

    fn check(fields: Value, body: &str, expected: &str) {
        let changed = declared(fields).apply_to_body(body);
        assert_eq!(changed.as_deref().unwrap_or(body), expected);
        assert_eq!(changed.is_some(), body != expected);
    }

    #[test]
    fn declared_parameters_reach_the_request() {
        check(
            json!({"set":{"chat_template_kwargs":{"enable_thinking":false}}}),
            r#"{"model":"m","chat_template_kwargs":{"x":1}}"#,
            r#"{"model":"m","chat_template_kwargs":{"x":1,"enable_thinking":false}}"#,
        );
        check(json!({"default":{"temperature":1.0}}), r#"{"temperature":0.2}"#, r#"{"temperature":0.2}"#);
        check(json!({"default":{"temperature":1.0}}), "{}", r#"{"temperature":1.0}"#);
        check(
            json!({"strip":["metadata","extra.user.id","none.such"]}),
            r#"{"metadata":{},"extra":{"user":{"id":1,"n":2}}}"#,
            r#"{"extra":{"user":{"n":2}}}"#,
        );
    }

    #[test]
    fn an_alias_declares_on_top_of_its_target() {
        let target = declared(json!({"set":{"k":{"a":1,"b":1}},"default":{"t":1},"strip":["x"]}));
        let alias = declared(json!({"set":{"k":{"b":2}},"strip":["y"]})).lay_over(&target);
        assert_eq!(alias, declared(json!({"set":{"k":{"a":1,"b":2}},"default":{"t":1},"strip":["y","x"]})));
    }
}
