//! Checks the outputs of a process against its declaration: types and permitted values. Pure.

use serde_json::{Map, Value, json};

use super::component::{Parameter, TYPES};

/// Checked outputs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Checked {
    /// The outputs that match their declaration.
    pub outputs: Map<String, Value>,
    /// The problems of the others, for the model and for people.
    pub problems: Vec<String>,
}

/// Checks the outputs that a model returned.
pub fn check_outputs(declared: &[Parameter], outputs: Option<&Value>) -> Checked {
    let mut checked = Checked::default();
    let empty = Map::new();
    let outputs = outputs.and_then(Value::as_object).unwrap_or(&empty);
    for parameter in declared {
        let name = &parameter.name;
        match outputs.get(name).filter(|value| !value.is_null()) {
            None => checked.problems.push(format!("`{name}` is missing")),
            Some(value) => match find_fault(parameter, value) {
                Some(fault) => checked.problems.push(fault),
                None => drop(checked.outputs.insert(name.clone(), value.clone())),
            },
        }
    }
    let is_known = |name: &str| declared.iter().any(|parameter| parameter.name == name);
    for name in outputs.keys().filter(|name| !is_known(name)) {
        checked.problems.push(format!("`{name}` is not a declared output"));
    }
    checked
}

/// Lists the inputs that are not of their declared type, for people. One that is absent or null has no type.
pub fn check_inputs(declared: &[Parameter], inputs: &Value) -> Vec<String> {
    let given = declared.iter().map(|parameter| (parameter, &inputs[&parameter.name]));
    let faults = given.filter(|(_, value)| !value.is_null()).filter_map(|(parameter, value)| {
        let fault = find_fault(parameter, value)?;
        Some(format!("{fault}, but it is {value}"))
    });
    faults.collect()
}

/// Lists the inputs that are not of their declared type, as [`check_inputs`] does, for a log: without values.
pub fn describe_misfits(declared: &[Parameter], inputs: &Value) -> Vec<String> {
    let given = declared.iter().map(|parameter| (parameter, &inputs[&parameter.name]));
    let misfits = given.filter(|(_, value)| !value.is_null()).filter_map(|(parameter, value)| {
        let name = &parameter.name;
        if !has_type(parameter, value) {
            let (kind, given) = (&parameter.kind, type_name(value));
            return Some(format!("the input `{name}` must be of type {kind}, but the payload has {given}"));
        }
        let options = || parameter.options.join(", ");
        (!is_listed(parameter, value))
            .then(|| format!("the input `{name}` must be one of {}, but the payload has another", options()))
    });
    misfits.collect()
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

fn find_fault(parameter: &Parameter, value: &Value) -> Option<String> {
    let (name, kind) = (&parameter.name, parameter.kind.as_str());
    if !has_type(parameter, value) {
        return Some(format!("`{name}` must be of type {kind}"));
    }
    let written = written_value(value);
    (!is_listed(parameter, value))
        .then(|| format!("`{name}` is {written:?}, but it must be one of {}", parameter.options.join(", ")))
}

fn has_type(parameter: &Parameter, value: &Value) -> bool {
    match parameter.kind.as_str() {
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.is_i64() || value.is_u64(),
        "boolean" => value.is_boolean(),
        "object" => value.is_object(),
        "array" => value.is_array(),
        _ => true,
    }
}

fn is_listed(parameter: &Parameter, value: &Value) -> bool {
    parameter.options.is_empty() || parameter.options.contains(&written_value(value))
}

fn written_value(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Returns the JSON Schema of declared values, all optional.
pub fn schema_of(declared: &[Parameter]) -> Value {
    let properties: Map<String, Value> =
        declared.iter().map(|parameter| (parameter.name.clone(), property_schema(parameter))).collect();
    json!({"type": "object", "properties": properties})
}

/// Returns the JSON Schema of outputs: all are required, and no others are allowed. A call that violates it
/// is not refused because of the schema: `check` sends it back once.
pub fn strict_schema(declared: &[Parameter]) -> Value {
    let mut schema = schema_of(declared);
    schema["required"] = declared.iter().map(|parameter| parameter.name.as_str()).collect();
    schema["additionalProperties"] = false.into();
    schema
}

fn property_schema(parameter: &Parameter) -> Value {
    let mut property = Map::new();
    if TYPES.contains(&parameter.kind.as_str()) {
        property.insert("type".to_owned(), parameter.kind.as_str().into());
    }
    if let Some(description) = &parameter.description {
        property.insert("description".to_owned(), description.as_str().into());
    }
    if !parameter.options.is_empty() {
        let option = |option: &String| match parameter.kind.as_str() {
            "number" | "integer" | "boolean" => {
                serde_json::from_str(option).unwrap_or_else(|_| option.as_str().into())
            }
            _ => Value::from(option.as_str()),
        };
        property.insert("enum".to_owned(), parameter.options.iter().map(option).collect());
    }
    Value::Object(property)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_have_their_types() {
        let input = |name: &str, kind: &str| Parameter {
            name: name.into(),
            kind: kind.into(),
            ..Parameter::default()
        };
        let declared = [input("title", "string"), input("copies", "integer"), input("note", "text")];
        let faults = |inputs: Value| check_inputs(&declared, &inputs);
        assert_eq!(
            faults(json!({"title": "Momo", "copies": 2, "note": 3})),
            [""; 0],
            "an unknown type takes all"
        );
        assert_eq!(faults(json!({"copies": null})), [""; 0]);
        let expected = [
            "`title` must be of type string, but it is 1",
            "`copies` must be of type integer, but it is 1.5",
        ];
        assert_eq!(faults(json!({"title": 1, "copies": 1.5})), expected);
        let [misfit] = &describe_misfits(&declared, &json!({"title": ["secret"], "copies": 2}))[..] else {
            panic!("one")
        };
        assert_eq!(misfit, "the input `title` must be of type string, but the payload has an array");
        let level = Parameter { options: vec!["high".into()], ..declared[0].clone() };
        let [misfit] = &describe_misfits(&[level], &json!({"title": "secret"}))[..] else { panic!("one") };
        assert_eq!(misfit, "the input `title` must be one of high, but the payload has another");
    }

    fn declared() -> Vec<Parameter> {
        let one = |name: &str, kind: &str, options: &[&str]| Parameter {
            name: name.into(),
            kind: kind.into(),
            options: options.iter().map(|option| (*option).to_owned()).collect(),
            ..Parameter::default()
        };
        vec![
            one("urgency", "string", &["high", "low"]),
            one("score", "integer", &[]),
            one("ok", "boolean", &[]),
        ]
    }

    fn problems(outputs: &Value, expected: &[&str]) {
        assert_eq!(check_outputs(&declared(), Some(outputs)).problems, expected, "{outputs}");
    }

    #[test]
    fn outputs_have_their_types_and_values() {
        problems(&json!({"urgency": "high", "score": 3, "ok": true}), &[]);
        problems(
            &json!({"urgency": "HIGH", "score": 3.5, "extra": 1}),
            &[
                "`urgency` is \"HIGH\", but it must be one of high, low",
                "`score` must be of type integer",
                "`ok` is missing",
                "`extra` is not a declared output",
            ],
        );
        problems(&json!("text"), &["`urgency` is missing", "`score` is missing", "`ok` is missing"]);
        assert_eq!(
            check_outputs(&declared(), Some(&json!({"score": 3, "ok": 1}))).outputs,
            *json!({"score": 3}).as_object().unwrap()
        );
    }

    #[test]
    fn the_schema_tells_types_and_values() {
        let schema = strict_schema(&declared());
        assert_eq!(schema["properties"]["urgency"], json!({"type": "string", "enum": ["high", "low"]}));
        assert_eq!(schema["properties"]["score"], json!({"type": "integer"}));
        assert_eq!(schema["required"], json!(["urgency", "score", "ok"]));
        let level = Parameter { options: vec!["1".into(), "2".into()], ..declared()[1].clone() };
        assert_eq!(strict_schema(&[level])["properties"]["score"]["enum"], json!([1, 2]));
    }
}
