//! Applies the rules about single parameters.

use serde_json::{Number, Value, json};
use wire::{Object, is_empty_array};

use crate::declared::EFFORT;
use crate::reasoning::is_gpt_oss;
use crate::rule::Parameter;

/// Changes one parameter. Returns false when the request does not have it, or has an allowed value.
pub(crate) fn change_parameter(object: &mut Object<'_>, parameter: &Parameter) -> bool {
    match parameter {
        Parameter::Drop(name) => object.remove(name),
        Parameter::DropDefault(name) => is_default(object, name) && object.remove(name),
        Parameter::Rename(from, to) => rename(object, from, to),
        Parameter::AtMost(name, limit) => limit_number(object, name, limit),
        Parameter::LimitEffort => limit_effort(object),
    }
}

/// Returns true when a parameter has the value that it has without being named.
pub(crate) fn is_default(object: &Object<'_>, name: &str) -> bool {
    let Some(value) = object.get_raw(name).and_then(|text| serde_json::from_str::<Value>(text).ok()) else {
        return false;
    };
    value.is_null()
        || match name {
            "tool_choice" | "function_call" => value == "auto",
            "response_format" => value == json!({"type": "text"}),
            "modalities" => value == json!(["text"]),
            "n" => value == 1,
            "logit_bias" => value == json!({}),
            "stop" => value == json!([]),
            "logprobs" => value == false,
            "top_logprobs" => value == 0,
            _ => false,
        }
}

/// Asks the server to leave calls in the text, where respool reads them. Returns false when the client does
/// not let the model choose, and for gpt-oss, whose calls are no text.
pub(crate) fn leave_calls_unparsed(object: &mut Object<'_>) -> bool {
    let is_free = object.get("tool_choice").is_none() || object.is_string("tool_choice", "auto");
    let has_tools = object.get("tools").is_some_and(|tools| !is_empty_array(tools));
    let is_harmony = || object.string("model").is_some_and(|model| is_gpt_oss(&model));
    if !is_free || !has_tools || is_harmony() {
        return false;
    }
    object.set("tool_choice", "\"none\"");
    object.set("skip_special_tokens", "false");
    true
}

/// Renames a parameter. Only the few names that servers exchange for one another are renamed: a rule from the
/// store names no other.
fn rename(object: &mut Object<'_>, from: &str, to: &str) -> bool {
    let to = match to {
        "max_tokens" => "max_tokens",
        "max_completion_tokens" => "max_completion_tokens",
        _ => return false,
    };
    let Some(value) = object.get(from).map(str::to_owned) else { return false };
    if object.get(to).is_none() {
        object.set(to, value);
    }
    object.remove(from)
}

fn limit_number(object: &mut Object<'_>, name: &str, limit: &str) -> bool {
    let number = |text: &str| text.parse::<f64>().ok();
    let is_above =
        object.get(name).and_then(number).zip(number(limit)).is_some_and(|(value, limit)| value > limit);
    let known =
        ["temperature", "top_p", "top_k", "n", "top_logprobs", "presence_penalty", "frequency_penalty"];
    let Some(name) = known.into_iter().find(|known| *known == name).filter(|_| is_above) else {
        return false;
    };
    let is_number = serde_json::from_str::<Number>(limit).is_ok();
    if is_number {
        object.set(name, limit.to_owned());
    }
    is_number
}

fn limit_effort(object: &mut Object<'_>) -> bool {
    let Some(effort) = object.string(EFFORT) else { return false };
    match effort.as_str() {
        "low" | "medium" | "high" => return false,
        "none" | "minimal" => object.set(EFFORT, "\"low\""),
        "xhigh" | "max" => object.set(EFFORT, "\"high\""),
        _ => return object.remove(EFFORT),
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(parameter: &Parameter, body: &str, expected: &str) {
        let mut object = Object::parse(body).unwrap();
        let changed = change_parameter(&mut object, parameter);
        assert_eq!(object.to_json(), expected);
        assert_eq!(changed, body != expected);
    }

    #[test]
    fn parameters_are_changed_one_by_one() {
        let drop = Parameter::Drop("store".to_owned());
        check(&drop, r#"{"store":false,"model":"m"}"#, r#"{"model":"m"}"#);
        check(&drop, r#"{"model":"m"}"#, r#"{"model":"m"}"#);
        let rename = Parameter::Rename("max_completion_tokens".to_owned(), "max_tokens".to_owned());
        check(&rename, r#"{"max_completion_tokens":5}"#, r#"{"max_tokens":5}"#);
        check(&rename, r#"{"max_tokens":3,"max_completion_tokens":5}"#, r#"{"max_tokens":3}"#);
        let limit = Parameter::AtMost("temperature".to_owned(), "1".to_owned());
        check(&limit, r#"{"temperature":1.5}"#, r#"{"temperature":1}"#);
        check(&limit, r#"{"temperature":0.5}"#, r#"{"temperature":0.5}"#);
        check(&Parameter::LimitEffort, r#"{"reasoning_effort":"xhigh"}"#, r#"{"reasoning_effort":"high"}"#);
        check(&Parameter::LimitEffort, r#"{"reasoning_effort":"odd"}"#, "{}");
    }
}
