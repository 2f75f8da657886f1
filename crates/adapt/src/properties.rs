//! Checks rules on random conversations, also of real clients (`fixtures`): a request that was adapted by
//! lossless rules says the same, and a conversation that goes on keeps its beginning.

use std::collections::HashMap;
use std::path::Path;
use std::sync::LazyLock;

use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Value, json};
use tool_call_parser::portable_name;
use translate::Sealer;
use translate::messages::read_message;
use translate::responses::{RecalledItems, read_response};

use crate::conversation::Conversation;
use crate::messages::change_messages;
use crate::{Loss, Rule, RuleSet, adapt, rows};

/// One step of a conversation: its messages.
fn step() -> impl Strategy<Value = Vec<Value>> {
    let word = || "[a-z]{1,6}";
    let text = |role: &'static str| word().prop_map(move |word| vec![json!({"role": role, "content": word})]);
    let parts = (word(), word()).prop_map(|(one, two)| {
        vec![json!({"role": "user", "content": [{"type": "text", "text": one}, {"type": "text", "text": two}]})]
    });
    let name = || "[a-z][a-z.]{0,5}";
    // Ids repeat across messages, as some servers repeat them, and some have nine characters.
    let call = (name(), word(), word(), "call_|chatcmpl-tool-|[a-zA-Z0-9]{8}");
    let calls = proptest::collection::vec(call, 1..4).prop_map(|calls| {
        let call = |(place, (name, argument, _, id)): (usize, &(String, String, String, String))| {
            let arguments = json!({"x": argument}).to_string();
            json!({"id": format!("{id}{place}"), "type": "function", "function": {"name": name, "arguments": arguments}})
        };
        let made: Vec<Value> = calls.iter().enumerate().map(call).collect();
        let mut messages = vec![json!({"role": "assistant", "content": null, "tool_calls": made})];
        messages.extend(calls.iter().enumerate().map(|(place, (_, _, result, id))| {
            json!({"role": "tool", "tool_call_id": format!("{id}{place}"), "content": result})
        }));
        messages
    });
    prop_oneof![text("user"), text("assistant"), text("system"), text("developer"), parts, calls]
}

fn conversation() -> impl Strategy<Value = Vec<Value>> {
    proptest::collection::vec(step(), 1..8).prop_map(|steps| steps.concat())
}

/// The chat requests of real clients, as respool sends them up.
static CLIENT_REQUESTS: LazyLock<Vec<Value>> = LazyLock::new(|| {
    let read = |api: &str, body: &[u8]| -> Option<Value> {
        let sealer = Sealer::new(b"secret");
        let chat = match api {
            "openclaw" | "clients/chat" => String::from_utf8(body.to_owned()).ok()?,
            "clients/messages" => read_message(body, &sealer).ok()?.chat,
            _ => read_response(body, &RecalledItems::default(), &sealer).ok()?.chat,
        };
        serde_json::from_str(&chat).ok()
    };
    let mut requests = Vec::new();
    for api in ["openclaw", "clients/chat", "clients/messages", "clients/responses"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(api);
        let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
        files.sort();
        requests.extend(files.iter().filter_map(|file| read(api, &std::fs::read(file).unwrap())));
    }
    assert!(requests.len() > 33, "only {} requests can be read", requests.len());
    requests.iter_mut().for_each(cut_contents);
    requests
});

/// Cuts long texts of messages, which say nothing about rules.
fn cut_contents(request: &mut Value) {
    let cut = |text: &mut Value| {
        if let Value::String(text) = text {
            text.truncate(text.floor_char_boundary(100));
        }
    };
    for message in request["messages"].as_array_mut().unwrap() {
        match &mut message["content"] {
            Value::Array(parts) => {
                parts.iter_mut().filter_map(|part| part.get_mut("text")).for_each(cut);
            }
            content => cut(content),
        }
    }
}

/// A real client's request with some of its tools, and steps that were put between its messages.
fn client_conversation() -> impl Strategy<Value = Value> {
    let tools = proptest::collection::vec(any::<Index>(), 0..4);
    let steps = proptest::collection::vec((any::<Index>(), step()), 0..6);
    (any::<Index>(), tools, steps).prop_map(|(client, tools, steps)| {
        let mut request = client.get(&CLIENT_REQUESTS).clone();
        if let Some(all) = request["tools"].as_array().filter(|all| !all.is_empty()) {
            request["tools"] = tools.iter().map(|tool| tool.get(all).clone()).collect();
        }
        let messages = request["messages"].as_array_mut().unwrap();
        for (place, step) in steps {
            let mut place = place.index(messages.len() + 1);
            // A call and its results stay together.
            while messages.get(place).is_some_and(|message| message["role"] == "tool") {
                place += 1;
            }
            messages.splice(place..place, step);
        }
        request
    })
}

/// A schema with one way to say a constant, and that an object has no properties.
fn normalise_schema(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            if let Some(constant) = fields.remove("const") {
                fields.insert("enum".to_owned(), json!([constant]));
            }
            if fields.get("properties") == Some(&json!({})) {
                fields.remove("properties");
            }
            fields.values_mut().for_each(normalise_schema);
        }
        Value::Array(items) => items.iter_mut().for_each(normalise_schema),
        _ => {}
    }
}

/// The declared tools.
fn declared_tools(request: &Value) -> Vec<(String, Value)> {
    let tools = request["tools"].as_array().into_iter().flatten();
    tools
        .map(|tool| {
            let mut function = tool["function"].clone();
            let name = portable_name(function["name"].as_str().unwrap()).into_owned();
            function["name"] = Value::Null;
            let is_empty = |schema: &Value| schema.is_null() || *schema == json!({"type": "object"});
            normalise_schema(&mut function);
            if is_empty(&function["parameters"]) {
                function["parameters"] = Value::Null;
            }
            (name, function)
        })
        .collect()
}

fn messages_after(messages: &[Value], rules: &RuleSet) -> Vec<Value> {
    let body = json!({"messages": messages}).to_string();
    let adapted: Value = serde_json::from_str(&adapt(&body, rules).body).unwrap();
    serde_json::from_value(adapted["messages"].clone()).unwrap()
}

/// The words of the system, the user, the assistant and the tools, the calls, each in order, and the words of
/// each call's result. Words that rules add are left out.
fn said(messages: &[Value]) -> [Vec<String>; 6] {
    let mut said: [Vec<String>; 6] = Default::default();
    let mut calls_by_id: HashMap<String, String> = HashMap::new();
    for message in messages {
        let place = match message["role"].as_str().unwrap() {
            "system" | "developer" => 0,
            "user" => 1,
            "assistant" => 2,
            _ => 3,
        };
        let text_of = |part: &Value| part["text"].as_str().map_or_else(|| part.to_string(), str::to_owned);
        let texts: Vec<String> = match &message["content"] {
            Value::String(text) => vec![text.clone()],
            Value::Array(parts) => parts.iter().map(text_of).collect(),
            _ => vec![],
        };
        let reasoning = ["reasoning", "reasoning_content"].iter().find_map(|key| message[key].as_str());
        said[place].extend(reasoning.iter().flat_map(|text| text.split_whitespace()).map(str::to_owned));
        let words = texts.iter().flat_map(|text| text.split_whitespace());
        let words: Vec<&str> =
            words.filter(|word| !["Continue.", "OK.", "(no", "result)"].contains(word)).collect();
        said[place].extend(words.iter().map(|word| (*word).to_owned()));
        let answered = message["tool_call_id"].as_str().and_then(|id| calls_by_id.get(id));
        said[5].extend(words.iter().filter_map(|word| Some(format!("{}: {word}", answered?))));
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            let function = &call["function"];
            let name = portable_name(function["name"].as_str().unwrap());
            let call_text = format!("{name} {}", function["arguments"]);
            calls_by_id.extend(call["id"].as_str().map(|id| (id.to_owned(), call_text.clone())));
            said[4].push(call_text);
        }
    }
    // Reasoning may take up content, and results may be put into the order of their calls.
    said[2].sort();
    said[3].sort();
    said[5].sort();
    said
}

/// Rules that keep every word: a minor loss is one of place or of manner.
fn rules_that_keep_words() -> impl Iterator<Item = Rule> {
    rows().filter(|row| matches!(row.loss, Loss::Lossless | Loss::Minor)).map(|row| row.rule.clone())
}

proptest! {
    #[test]
    fn lossless_rules_say_the_same(messages in conversation()) {
        for rule in rules_that_keep_words() {
            let after = messages_after(&messages, &RuleSet::from([rule.clone()]));
            prop_assert_eq!(said(&after), said(&messages), "{}", rule);
        }
        let all = messages_after(&messages, &rules_that_keep_words().filter(|rule| *rule != Rule::PartsContent).collect());
        prop_assert_eq!(said(&all), said(&messages));
    }

    /// The next rule relies on it.
    #[test]
    fn a_rule_that_reports_no_change_makes_none(messages in conversation()) {
        let text = Value::from(messages).to_string();
        for row in rows() {
            let mut conversation = Conversation::read(&text).unwrap();
            let changes = change_messages(&mut conversation, &row.rule);
            prop_assert!(changes || conversation.to_json() == text, "{}", row.rule);
        }
    }

    #[test]
    fn requests_of_clients_say_the_same(request in client_conversation()) {
        let body = request.to_string();
        let messages = |request: &Value| said(request["messages"].as_array().unwrap());
        for rule in rules_that_keep_words() {
            let after: Value = serde_json::from_str(&adapt(&body, &RuleSet::from([rule.clone()])).body).unwrap();
            prop_assert_eq!(messages(&after), messages(&request), "{}", rule);
            prop_assert_eq!(declared_tools(&after), declared_tools(&request), "{}", rule);
        }
    }

    /// The next turn begins with the bytes of the last one, so the server's prefix cache holds. Only one rule
    /// says that it costs that.
    #[test]
    fn a_conversation_keeps_its_beginning(messages in conversation(), more in conversation()) {
        let turn = [messages, vec![json!({"role": "user", "content": "x"})]].concat();
        let next = [turn.clone(), vec![json!({"role": "assistant", "content": "y"})], more].concat();
        for row in rows().filter(|row| row.rule != Rule::SystemFirst) {
            let rules = RuleSet::from([row.rule.clone()]);
            let [before, after] = [&turn, &next].map(|messages| Value::from(messages_after(messages, &rules)).to_string());
            prop_assert!(after.starts_with(before.strip_suffix(']').unwrap()), "{}: {before} {after}", row.rule);
        }
    }
}
