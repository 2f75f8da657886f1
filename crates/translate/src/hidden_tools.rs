//! Finds the tools that OpenClaw's Tool Search hides. They are known only from the results of `tool_search`
//! and `tool_describe` in the conversation, and called through `tool_call{id, args}`.
//!
//! A result is JSON: one entry, a list, or lists grouped by query; an entry has `id`, `name`, `description`,
//! and, when it was described, `parameters` (read in the shipped client, 2026.9.6). Called by `relay`.

use std::collections::HashSet;

use serde_json::Value;
use serde_json::value::RawValue;

use wire::Object;
use wire::{Message, array_elements, decode_string};

/// Returns name and schema of each hidden tool, in the order in which they became known; a later description
/// replaces an earlier one.
pub(super) fn hidden_tools(messages: &[Message<'_>]) -> Vec<(String, Option<Box<RawValue>>)> {
    let mut asked = HashSet::new();
    let mut found = Vec::new();
    for message in messages {
        for call in message.tool_calls() {
            if matches!(call.name.as_str(), "tool_search" | "tool_describe") {
                asked.extend(call.id.as_deref());
            }
        }
        let answers = message.object.string("tool_call_id").is_some_and(|id| asked.contains(id.as_str()));
        if answers && message.has_role("tool") {
            collect_entries(&read_result(message), &mut found);
        }
    }
    found
}

/// Reads the JSON in a result's text, which may follow a line of explanation.
fn read_result(message: &Message<'_>) -> Value {
    let content = message.object.get("content").unwrap_or_default();
    let parts = array_elements(content).unwrap_or_default();
    let parts = parts.iter().filter_map(|part| Object::parse(part).ok()?.string("text"));
    let text = decode_string(content).unwrap_or_else(|| parts.collect());
    let start = text.find(['{', '[']).unwrap_or_default();
    serde_json::Deserializer::from_str(&text[start..])
        .into_iter()
        .next()
        .and_then(Result::ok)
        .unwrap_or_default()
}

fn collect_entries(value: &Value, found: &mut Vec<(String, Option<Box<RawValue>>)>) {
    match value {
        Value::Array(values) => values.iter().for_each(|value| collect_entries(value, found)),
        Value::Object(fields) => match (fields.get("id"), fields.get("name")) {
            (Some(Value::String(_)), Some(Value::String(name))) => {
                let schema =
                    fields.get("parameters").and_then(|schema| serde_json::value::to_raw_value(schema).ok());
                found.push((name.clone(), schema));
            }
            _ => fields.values().for_each(|value| collect_entries(value, found)),
        },
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::ChatRequest;

    #[test]
    fn results_of_searches_reveal_tools() {
        let search = r#"{"results":[{"query":"web","candidates":[{"id":"oc:web_fetch","name":"web_fetch","description":"x","input":"{url}"}]}]}"#;
        let describe = r#"Found:\n{"id":"m","name":"mail_send","description":"y","parameters":{"type":"object","required":["to"]}}"#;
        let body = format!(
            r#"{{"messages":[{{"role":"assistant","tool_calls":[
                {{"id":"a","function":{{"name":"tool_search","arguments":"{{}}"}}}},{{"id":"b","function":{{"name":"tool_describe","arguments":"{{}}"}}}},
                {{"id":"c","function":{{"name":"read","arguments":"{{}}"}}}}]}},
              {{"role":"tool","tool_call_id":"a","content":{}}},
              {{"role":"tool","tool_call_id":"b","content":[{{"type":"text","text":{}}}]}},
              {{"role":"tool","tool_call_id":"c","content":{}}}]}}"#,
            Value::from(search),
            Value::from(describe.replace("\\n", "\n")),
            Value::from(r#"{"id":"evil","name":"not_a_tool"}"#),
        );
        let request = ChatRequest::parse(body.as_bytes()).unwrap();
        let hidden = hidden_tools(&request.messages);
        let names: Vec<_> = hidden.iter().map(|(name, schema)| (name.as_str(), schema.is_some())).collect();
        assert_eq!(names, [("web_fetch", false), ("mail_send", true)]);
    }
}
