//! Rules for requests to vLLM. Pure: the fake vLLM applies it to every request, the self-tests to bad ones.

use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use super::http1::Headers;
use super::script::Authorization;

/// Headers that belong to one connection: a proxy must not pass them on.
const HOP_BY_HOP: [&str; 8] = [
    "keep-alive",
    "proxy-connection",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "upgrade",
    "expect",
];

/// Returns the method and the target of a request line, or its fault.
pub fn request_line(line: &str) -> Result<(String, String), String> {
    let parts: Vec<&str> = line.split(' ').collect();
    match parts.as_slice() {
        [method, target, "HTTP/1.1"]
            if !method.is_empty()
                && method.bytes().all(|byte| byte.is_ascii_uppercase())
                && target.starts_with('/') =>
        {
            Ok(((*method).to_owned(), (*target).to_owned()))
        }
        _ => Err(format!("no HTTP/1.1 request line: {line:?}")),
    }
}

/// Returns the faults in the headers of a request to the server `authority`.
pub fn header_problems(headers: &Headers, authority: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let hosts: Vec<&str> = headers.all("host").collect();
    if hosts != [authority] {
        problems.push(format!("host is {hosts:?}, not {authority:?}"));
    }
    let passed_on = HOP_BY_HOP.iter().filter(|name| headers.get(name).is_some());
    problems.extend(passed_on.map(|name| format!("hop-by-hop header passed on: {name}")));
    let named = headers.tokens("connection");
    let named: Vec<&String> =
        named.iter().filter(|token| *token != "close" && *token != "keep-alive").collect();
    if !named.is_empty() {
        problems.push(format!("the client's connection header passed on: {named:?}"));
    }
    problems
}

/// Returns the fault of `authorization`.
pub fn authorization_problem(headers: &Headers, expected: &Authorization) -> Option<String> {
    let found: Vec<&str> = headers.all("authorization").collect();
    let fine = match expected {
        Authorization::Any => true,
        Authorization::Absent => found.is_empty(),
        Authorization::Is(value) => found == [value.as_str()],
    };
    (!fine).then(|| format!("authorization is {found:?}, expected {expected:?}"))
}

/// Returns the faults of a `POST /v1/chat/completions`.
pub fn chat_problems(headers: &Headers, body: &[u8]) -> Vec<String> {
    let mut problems = Vec::new();
    let content_type = headers.get("content-type").unwrap_or_default();
    if content_type.split(';').next().map(str::trim) != Some("application/json") {
        problems.push(format!("content-type is {content_type:?}"));
    }
    match (serde_json::from_slice::<Value>(body), repeated_keys(body)) {
        (Ok(request @ Value::Object(_)), Ok(repeated)) => {
            problems.extend(repeated.into_iter().map(|key| format!("the key {key:?} comes twice")));
            problems.extend(option_problems(&request));
            problems.extend(message_problems(&request));
        }
        (Ok(_), _) => problems.push("the body is no JSON object".to_owned()),
        (Err(error), _) => problems.push(format!("the body is no JSON: {error}")),
    }
    problems
}

fn option_problems(request: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    let stream = &request["stream"];
    if !stream.is_null() && !stream.is_boolean() {
        problems.push(format!("stream is {stream}"));
    }
    if *stream != true && !request["stream_options"].is_null() {
        problems.push("stream_options without stream:true".to_owned());
    }
    match &request["tools"] {
        Value::Null => {}
        Value::Array(tools) if tools.is_empty() => problems.push("tools is an empty array".to_owned()),
        Value::Array(tools) => {
            let nameless =
                tools.iter().filter(|tool| tool["function"]["name"].as_str().is_none_or(str::is_empty));
            problems.extend(nameless.map(|tool| format!("a tool without a name: {tool}")));
        }
        other => problems.push(format!("tools is {other}")),
    }
    problems
}

fn message_problems(request: &Value) -> Vec<String> {
    let Some(messages) = request["messages"].as_array().filter(|messages| !messages.is_empty()) else {
        return vec!["messages is no filled array".to_owned()];
    };
    let mut problems = Vec::new();
    let mut known: HashSet<&str> = HashSet::new();
    for (index, message) in messages.iter().enumerate() {
        if !message["role"].is_string() {
            problems.push(format!("messages[{index}] has no role"));
        }
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            problems.extend(call_problem(call).map(|problem| format!("messages[{index}]: {problem}")));
            known.extend(call["id"].as_str());
        }
        let answered = message["tool_call_id"].as_str();
        if message["role"] == "tool" && !answered.is_some_and(|id| known.contains(id)) {
            problems.push(format!("messages[{index}] answers no earlier call: {answered:?}"));
        }
    }
    problems
}

fn call_problem(call: &Value) -> Option<String> {
    let arguments = &call["function"]["arguments"];
    if call["id"].as_str().is_none_or(str::is_empty)
        || call["function"]["name"].as_str().is_none_or(str::is_empty)
    {
        return Some(format!("a call without id or name: {call}"));
    }
    let object = arguments.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
    let fine = object.is_some_and(|value| value.is_object());
    (!fine).then(|| format!("arguments are no string holding a JSON object: {arguments}"))
}

/// The keys that come more than once in the outermost object: serde would silently keep the last.
fn repeated_keys(body: &[u8]) -> serde_json::Result<Vec<String>> {
    struct Keys;
    impl<'de> Visitor<'de> for Keys {
        type Value = Vec<String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let (mut seen, mut repeated) = (HashSet::new(), Vec::new());
            while let Some((key, _)) = map.next_entry::<String, IgnoredAny>()? {
                if !seen.insert(key.clone()) {
                    repeated.push(key);
                }
            }
            Ok(repeated)
        }
    }
    serde_json::Deserializer::from_slice(body).deserialize_map(Keys)
}
