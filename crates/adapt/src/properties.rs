//! Checks rules on random conversations: a request that was adapted by lossless rules says the same, and a
//! conversation that goes on keeps its beginning.

use proptest::prelude::*;
use serde_json::{Value, json};
use tool_call_parser::portable_name;

use crate::{Loss, Rule, RuleSet, TABLE, adapt};

/// One step of a conversation: its messages.
fn step() -> impl Strategy<Value = Vec<Value>> {
    let word = || "[a-z]{1,6}";
    let text = |role: &'static str| word().prop_map(move |word| vec![json!({"role": role, "content": word})]);
    let parts = (word(), word()).prop_map(|(one, two)| {
        vec![json!({"role": "user", "content": [{"type": "text", "text": one}, {"type": "text", "text": two}]})]
    });
    let name = || "[a-z][a-z.]{0,5}";
    let calls = proptest::collection::vec((name(), word(), word()), 1..4).prop_map(|calls| {
        let call = |(place, (name, argument, _)): (usize, &(String, String, String))| {
            let arguments = json!({"x": argument}).to_string();
            json!({"id": format!("call_{place}"), "type": "function", "function": {"name": name, "arguments": arguments}})
        };
        let made: Vec<Value> = calls.iter().enumerate().map(call).collect();
        let mut messages = vec![json!({"role": "assistant", "content": null, "tool_calls": made})];
        messages.extend(calls.iter().enumerate().map(|(place, (_, _, result))| {
            json!({"role": "tool", "tool_call_id": format!("call_{place}"), "content": result})
        }));
        messages
    });
    prop_oneof![text("user"), text("assistant"), text("system"), text("developer"), parts, calls]
}

fn conversation() -> impl Strategy<Value = Vec<Value>> {
    proptest::collection::vec(step(), 1..8).prop_map(|steps| steps.concat())
}

fn messages_after(messages: &[Value], rules: &RuleSet) -> Vec<Value> {
    let body = json!({"messages": messages}).to_string();
    let adapted: Value = serde_json::from_str(&adapt(&body, rules).body).unwrap();
    serde_json::from_value(adapted["messages"].clone()).unwrap()
}

/// The words of the system, the user, the assistant and the tools, and the calls, each in order. Words that
/// rules add are left out.
fn said(messages: &[Value]) -> [Vec<String>; 5] {
    let mut said: [Vec<String>; 5] = Default::default();
    for message in messages {
        let place = match message["role"].as_str().unwrap() {
            "system" | "developer" => 0,
            "user" => 1,
            "assistant" => 2,
            _ => 3,
        };
        let texts: Vec<&str> = match &message["content"] {
            Value::String(text) => vec![text],
            Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
            _ => vec![],
        };
        let words = texts.iter().flat_map(|text| text.split_whitespace());
        said[place]
            .extend(words.filter(|word| !["Continue.", "(no", "result)"].contains(word)).map(str::to_owned));
        let calls = message["tool_calls"].as_array().into_iter().flatten();
        said[4].extend(calls.map(|call| {
            let function = &call["function"];
            let name = portable_name(function["name"].as_str().unwrap());
            format!("{name} {}", function["arguments"])
        }));
    }
    said
}

fn lossless_rules() -> impl Iterator<Item = Rule> {
    let of_messages = Rule::is_about_messages;
    TABLE.iter().filter(|row| row.loss == Loss::Lossless).map(|row| row.rule.clone()).filter(of_messages)
}

proptest! {
    #[test]
    fn lossless_rules_say_the_same(messages in conversation()) {
        for rule in lossless_rules() {
            let after = messages_after(&messages, &RuleSet::from([rule.clone()]));
            prop_assert_eq!(said(&after), said(&messages), "{}", rule);
        }
        let all = messages_after(&messages, &lossless_rules().filter(|rule| *rule != Rule::PartsContent).collect());
        prop_assert_eq!(said(&all), said(&messages));
    }

    /// These rules look at one message, or at one that is complete.
    #[test]
    fn a_conversation_keeps_its_beginning(messages in conversation(), more in conversation()) {
        let longer = [messages.clone(), vec![json!({"role": "user", "content": "x"})], more].concat();
        for rule in [Rule::ToolNames, Rule::DeveloperAsSystem, Rule::NullContent, Rule::TextContent, Rule::PartsContent, Rule::ResultName, Rule::ShortIds] {
            let rules = RuleSet::from([rule.clone()]);
            let (before, after) = (messages_after(&messages, &rules), messages_after(&longer, &rules));
            prop_assert_eq!(&after[..before.len()], &before[..], "{}", rule);
        }
    }
}
