//! The live route (`tools_mode = "live"`): the same turns as the buffered one, sent as they come.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::captures::{Told, Version, sets};
use crate::support::accumulate::Rules;
use crate::support::client::{Client, Request, exchange};
use crate::support::fake_vllm::FakeVllm;
use crate::support::idle_time::IdleTime;
use crate::support::replies;
use crate::support::respool::{ONCE, Respool};
use crate::support::script::Script;
use crate::tools_route;

pub(crate) const LIVE: &str = "tools_mode = \"live\"";

/// The frames of a stream with these deltas.
fn stream(deltas: &[Value], finish: &str) -> Vec<String> {
    let mut frames = vec![replies::role_frame()];
    frames.extend(deltas.iter().map(|delta| replies::frame(&replies::chunk(delta, None))));
    frames.extend([
        replies::frame(&replies::chunk(&json!({}), Some(finish))),
        replies::usage_frame(),
        replies::DONE.to_owned(),
    ]);
    frames
}

fn native(pieces: &[&str]) -> Vec<Value> {
    let call = |arguments: &str| json!({"tool_calls": [{"index": 0, "function": {"arguments": arguments}}]});
    let first = json!({"tool_calls": [{"index": 0, "id": "chatcmpl-tool-1", "type": "function", "function": {"name": "read"}}]});
    std::iter::once(first).chain(pieces.iter().map(|piece| call(piece))).collect()
}

#[tokio::test]
async fn text_streams_and_calls_come_whole() {
    let mut deltas = vec![json!({"reasoning": "Let me"}), json!({"reasoning": " look."})];
    deltas.extend(native(&["{\"pa", "th\": \"a", ".txt\"}"]));
    let fake =
        FakeVllm::start([Script::sse(stream(&deltas, "tool_calls")).pause(3, Duration::from_secs(3))]).await;
    let respool = Respool::with(&fake, LIVE).await;
    let mut client = Client::sending(respool.address, &Request::chat(&tools_route::request())).await;
    client.head().await;
    let began = std::time::Instant::now();
    let first = String::from_utf8(client.chunk().await.unwrap().bytes).unwrap();
    assert!(first.contains("Let me") && began.elapsed() < Duration::from_millis(2500), "{first}");
    let mut text = first;
    while let Some(chunk) = client.chunk().await {
        text.push_str(&String::from_utf8(chunk.bytes).unwrap());
    }
    let turn =
        crate::support::accumulate::stream(text.as_bytes(), &Rules { usage: Some(true), ..Rules::default() })
            .unwrap();
    let choice = &turn.choices[&0];
    assert_eq!(
        (choice.reasoning.as_str(), choice.tool_calls[0].json()),
        ("Let me look.", json!({"path": "a.txt"}))
    );
    assert_eq!(choice.finish_reason.as_deref(), Some("tool_calls"));
    let sent = fake.requests()[0].json();
    assert_eq!((&sent["stream"], &sent["stream_options"]["include_usage"]), (&json!(true), &json!(true)));
}

/// Where the chat template writes the opening mark, only the closing one arrives. The name says so, and both
/// routes read it alike.
#[tokio::test]
async fn replies_that_begin_in_reasoning() {
    let text = "I see.\n</think>\n\nHello.";
    let deltas: Vec<Value> = text.chars().map(|letter| json!({"content": letter.to_string()})).collect();
    let completion = replies::text(text);
    for (config, script) in
        [("", Script::json(200, &completion)), (LIVE, Script::sse(stream(&deltas, "stop")))]
    {
        let thinks = "Qwen3-4B-Thinking-2507";
        let fake = FakeVllm::always(script).await;
        fake.serve_models(&[thinks, "other"]);
        let respool = Respool::with(&fake, config).await;
        let ask = async |model: &str, more: Value| {
            let mut request = tools_route::request();
            request["model"] = model.into();
            request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let turn = exchange(respool.address, &Request::chat(&request)).await.stream(&Rules::default());
            (turn.choices[&0].reasoning.clone(), turn.choices[&0].content.clone())
        };
        assert_eq!(ask(thinks, json!({})).await, ("I see.\n".to_owned(), "Hello.".to_owned()), "{config}");
        let off = json!({"chat_template_kwargs": {"enable_thinking": false}});
        for (model, more) in [("other", json!({})), (thinks, off)] {
            let (reasoning, content) = ask(model, more).await;
            assert_eq!((&*reasoning, content.starts_with("I see.")), ("", true), "{config} {content}");
        }
    }
}

#[tokio::test]
async fn calls_in_text_are_read() {
    let text = "I will look.\n<tools>\n{\"name\": \"read\", \"arguments\": {\"path\": \"a.txt\"}}\n</tools>";
    let deltas: Vec<Value> = text.chars().map(|letter| json!({"content": letter.to_string()})).collect();
    let fake = FakeVllm::start([Script::sse(stream(&deltas, "stop"))]).await;
    let respool = Respool::with(&fake, LIVE).await;
    let turn =
        exchange(respool.address, &Request::chat(&tools_route::request())).await.stream(&Rules::default());
    let choice = &turn.choices[&0];
    assert_eq!(
        (choice.content.trim_end(), choice.tool_calls[0].json()),
        ("I will look.", json!({"path": "a.txt"}))
    );
    assert_eq!(choice.finish_reason.as_deref(), Some("tool_calls"));
}

#[tokio::test]
async fn calls_stay_apart_without_an_index() {
    let call = |index: Value, id: &str, path: &str| {
        json!({"tool_calls": [{"index": index, "id": id, "type": "function",
            "function": {"name": "read", "arguments": format!("{{\"path\": \"{path}\"}}")}}]})
    };
    for (index, ids) in [(json!(0), ["first00001", "second0001"]), (Value::Null, ["", ""])] {
        let deltas = [call(index.clone(), ids[0], "a"), call(index, ids[1], "b")];
        let fake = FakeVllm::start([Script::sse(stream(&deltas, "tool_calls"))]).await;
        let respool = Respool::with(&fake, LIVE).await;
        let turn = exchange(respool.address, &Request::chat(&tools_route::request()))
            .await
            .stream(&Rules::default());
        let paths: Vec<Value> =
            turn.choices[&0].tool_calls.iter().map(|call| call.json()["path"].clone()).collect();
        assert_eq!(paths, ["a", "b"], "{ids:?}");
    }
}

#[tokio::test]
async fn cut_calls_are_not_sent() {
    let deltas = native(&["{\"path\": \"a"]);
    let fake = FakeVllm::start([Script::sse(stream(&deltas, "length"))]).await;
    let respool = Respool::with(&fake, &format!("{LIVE}\n{ONCE}")).await;
    let reply = exchange(respool.address, &Request::chat(&tools_route::request())).await;
    assert_eq!((reply.status, &reply.error()["code"]), (422, &json!("truncated_tool_call")));
}

#[tokio::test]
async fn heartbeats_and_failures_equal_the_relay() {
    let _time = IdleTime::begin();
    let quick = "tools_mode = \"live\"\n[recovery]\nattempts = 0\n[limits]\ncommit_after = \"2s\"\nheartbeat = \"2s\"";
    let silence = Duration::from_secs(11);
    let deltas = native(&["{\"path\": \"a\"}"]);
    for script in [
        Script::sse(stream(&deltas, "tool_calls")).delay(silence),
        Script::sse(stream(&deltas, "tool_calls")).pause(1, silence),
    ] {
        let fake = FakeVllm::start([script]).await;
        let respool = Respool::with(&fake, quick).await;
        let turn = exchange(respool.address, &Request::chat(&tools_route::request()))
            .await
            .stream(&Rules::default());
        assert!((4..=5).contains(&turn.heartbeats) && turn.choices[&0].tool_calls.len() == 1, "{turn:?}");
    }
    let cut = stream(&[json!({"content": "Hello"})], "stop")[..2].to_vec();
    let fake = FakeVllm::start([Script::sse(cut)]).await;
    let respool = Respool::with(&fake, &format!("{LIVE}\n{ONCE}")).await;
    let turn =
        exchange(respool.address, &Request::chat(&tools_route::request())).await.stream(&Rules::default());
    assert_eq!(turn.error.unwrap()["code"], 502);
}

#[tokio::test]
async fn broken_streams_release_held_text() {
    let frames = stream(&[json!({"content": "Look: "}), json!({"content": "a <to"})], "stop")[..3].to_vec();
    let fake = FakeVllm::start([Script::sse(frames).pause(2, Duration::from_millis(100))]).await;
    let respool = Respool::with(&fake, LIVE).await;
    let turn =
        exchange(respool.address, &Request::chat(&tools_route::request())).await.stream(&Rules::default());
    assert_eq!(
        (turn.choices[&0].content.as_str(), &turn.error.unwrap()["code"]),
        ("Look: a <to", &json!(502))
    );
}

#[tokio::test]
async fn raw_parsing_asks_for_unparsed_text() {
    let text =
        replies::text("<tool_call>\n{\"name\": \"read\", \"arguments\": {\"path\": \"a\"}}\n</tool_call>");
    for (model, raw) in [("qwen3", true), ("openai/gpt-oss-20b", false)] {
        let fake = FakeVllm::start([Script::json(200, &text)]).await;
        let respool = Respool::with(&fake, "tool_parsing = \"raw\"").await;
        let mut body = tools_route::request();
        body["model"] = json!(model);
        let turn = exchange(respool.address, &Request::chat(&body)).await.stream(&Rules::default());
        assert_eq!(turn.choices[&0].tool_calls.len(), 1);
        let sent = fake.requests()[0].json();
        assert_eq!(
            (sent["tool_choice"] == "none", sent["skip_special_tokens"] == false),
            (raw, raw),
            "{model}"
        );
    }
}

/// Reasoning, content, calls and finish reason of each choice, as the server itself sent them.
pub(crate) type Direct = BTreeMap<u64, (String, String, BTreeMap<u64, (String, String)>, String)>;

pub(crate) fn direct(body: &[u8]) -> Direct {
    let text = String::from_utf8_lossy(body);
    let events: Vec<Value> = if text.trim_start().starts_with('{') {
        vec![serde_json::from_str(&text).unwrap_or_default()]
    } else {
        text.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect()
    };
    let mut choices = Direct::new();
    for choice in events.iter().flat_map(|event| event["choices"].as_array().cloned().unwrap_or_default()) {
        let told = choices.entry(choice["index"].as_u64().unwrap_or(0)).or_default();
        let delta = if choice["delta"].is_object() { &choice["delta"] } else { &choice["message"] };
        let reasoning = delta["reasoning"].as_str().or(delta["reasoning_content"].as_str());
        told.0.push_str(reasoning.unwrap_or_default());
        told.1.push_str(delta["content"].as_str().unwrap_or_default());
        for (place, call) in delta["tool_calls"].as_array().into_iter().flatten().enumerate() {
            let known = told.2.entry(call["index"].as_u64().unwrap_or(place as u64)).or_default();
            known.0.push_str(call["function"]["name"].as_str().unwrap_or_default());
            known.1.push_str(call["function"]["arguments"].as_str().unwrap_or_default());
        }
        told.3.push_str(choice["finish_reason"].as_str().unwrap_or_default());
    }
    choices.values_mut().flat_map(|told| told.2.values_mut()).for_each(|call| call.1 = anew(&call.1));
    choices
}

/// vLLM's whole form rewrites arguments, with spaces; its stream sends the model's own text.
pub(crate) fn anew(arguments: &str) -> String {
    serde_json::from_str::<Value>(arguments).map_or_else(|_| arguments.to_owned(), |value| value.to_string())
}

fn rewritten(mut told: Told) -> Told {
    let calls = told.iter_mut().flatten().flat_map(|choice| &mut choice.tool_calls);
    calls.for_each(|call| call.arguments = anew(&call.arguments));
    told
}

fn has_empty_call(told: &Told) -> bool {
    let calls = told.iter().flatten().flat_map(|choice| &choice.tool_calls);
    calls.into_iter().any(|call| call.arguments == "{}")
}

#[tokio::test]
async fn live_turns_equal_buffered_ones() {
    let (mut compared, mut differ) = (0, Vec::new());
    for set in sets() {
        let buffered = Version::start(set.clone(), "").await;
        let live = Version::start(set, LIVE).await;
        let models: Vec<String> = live.replay.models().map(str::to_owned).collect();
        for model in models {
            let (Some(whole), Some(stream)) = (buffered.request(&model, false), live.request(&model, true))
            else {
                continue;
            };
            if whole["tools"].as_array().is_none_or(Vec::is_empty) {
                continue;
            }
            let (Ok(whole), Ok(stream)) = (buffered.ask(&whole).await, live.ask(&stream).await) else {
                continue;
            };
            let told =
                [&buffered, &live].map(|version| direct(&version.replay.last_posted().unwrap().answer_body));
            if told[0].is_empty() || told[0] != told[1] {
                continue;
            }
            let (whole, stream) = (rewritten(whole), rewritten(stream));
            if whole == Err(502) && told[0].values().all(|told| told.1.trim().is_empty()) {
                // Lost by the server: seen only in the usage, which these streams were recorded without.
                continue;
            }
            if whole == Err(422) && (stream == Err(502) || has_empty_call(&stream)) {
                // Cut in a call: seen only in the usage too.
                continue;
            }
            compared += 1;
            if whole != stream {
                differ.push(format!("{}/{model}: {whole:#?}\nlive: {stream:#?}", live.set.display()));
            }
        }
    }
    assert!(compared > 100, "only {compared} captures tell the same in both forms");
    assert!(differ.is_empty(), "{} of {compared} differ:\n{}", differ.len(), differ.join("\n"));
}
