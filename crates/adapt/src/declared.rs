//! Changes that the owner declares for a model: parameters that are set, given a default, or left out.

use serde_json::{Map, Value};
use wire::Object;

/// The parameters that the owner declares for one model, as paths of the chat request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Declared {
    /// Values that replace those of the client. Objects are merged field by field.
    pub set: Map<String, Value>,
    /// Values for fields that the client leaves out. Objects are merged field by field.
    pub default: Map<String, Value>,
    /// Fields that are left out, with dots between the names of nested fields: `metadata`, `extra.user`.
    pub strip: Vec<String>,
}

impl Declared {
    /// True when nothing is declared.
    pub fn is_empty(&self) -> bool {
        self.set.is_empty() && self.default.is_empty() && self.strip.is_empty()
    }

    /// Applies the declared changes to a request's fields: first `strip`, then `default`, then `set`. Returns
    /// false when nothing changes.
    pub fn apply<'a>(&'a self, object: &mut Object<'a>) -> bool {
        let stripped = self.strip.iter().filter(|path| strip(object, path)).count() > 0;
        let defaulted =
            self.default.iter().filter(|(key, value)| merge(object, key, value, false)).count() > 0;
        let set = self.set.iter().filter(|(key, value)| merge(object, key, value, true)).count() > 0;
        stripped || defaulted || set
    }
}

/// Merges a declared value into a field; `wins`: the declared value replaces the client's.
pub(crate) fn merge<'a>(object: &mut Object<'a>, key: &'a str, declared: &Value, wins: bool) -> bool {
    let known: Option<Value> = object.get(key).and_then(|text| serde_json::from_str(text).ok());
    let merged = match known.clone() {
        None => declared.clone(),
        Some(mut known) => {
            merge_values(&mut known, declared, wins);
            known
        }
    };
    if known.as_ref() == Some(&merged) {
        return false;
    }
    object.set(key, merged.to_string());
    true
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
    fn check(declared: Value, body: &str, expected: &str) {
        let map = |key: &str| declared.get(key).and_then(Value::as_object).cloned().unwrap_or_default();
        let strip = declared.get("strip").and_then(Value::as_array).cloned().unwrap_or_default();
        let strip = strip.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        let declared = Declared { set: map("set"), default: map("default"), strip };
        let mut object = Object::parse(body).unwrap();
        let changed = declared.apply(&mut object);
        assert_eq!(object.to_json(), expected);
        assert_eq!(changed, body != expected);
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
}
