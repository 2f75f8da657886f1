//! Requests with tools: asked whole, read, spooled out clean.

use serde_json::{Value, json};

use crate::support::accumulate::Rules;
use crate::support::client::{Request, exchange};
use crate::support::fake_vllm::FakeVllm;
use crate::support::replies;
pub(crate) use crate::support::requests::with_tools as request;
use crate::support::respool::{ONCE, Respool};
use crate::support::script::Script;

/// A request as OpenClaw sends it: `stream:true`, usage asked for, tools `read` and `exec`.
fn with(changes: &Value) -> Value {
    let mut body = request();
    for (key, value) in changes.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

const READ: (&str, &str) = ("read", r#"{"path": "/tmp/a.txt"}"#);

/// Sends both forms of a request, checks that they carry the same turn, and gives the streamed one.
async fn both_forms(reply: &Value, changes: Value, rules: &Rules) -> crate::support::accumulate::Accumulated {
    let fake = FakeVllm::start([Script::json(200, reply), Script::json(200, reply)]).await;
    let respool = Respool::with(&fake, ONCE).await;
    let mut changes = changes;
    let streamed = exchange(respool.address, &Request::chat(&with(&changes))).await.stream(rules);
    changes["stream"] = json!(false);
    changes["stream_options"] = Value::Null;
    let whole = exchange(respool.address, &Request::chat(&with(&changes))).await.completion(rules);
    let without_ids = |mut turn: crate::support::accumulate::Accumulated| {
        turn.choices.values_mut().flat_map(|choice| &mut choice.tool_calls).for_each(|call| call.id.clear());
        format!("{:?}", turn.choices)
    };
    assert_eq!(without_ids(streamed.clone()), without_ids(whole), "the same turn in both forms");
    for seen in fake.requests() {
        let body = seen.json();
        assert_eq!(
            (&body["stream"], body.get("stream_options").filter(|it| !it.is_null())),
            (&json!(false), None)
        );
    }
    streamed
}

#[tokio::test]
async fn native_calls_leave_with_clean_ids() {
    let reply = replies::calls(&[READ, ("exec", r#"{"command": "ls"}"#)]);
    let turn = both_forms(&reply, json!({}), &Rules { usage: Some(true), ..Rules::default() }).await;
    let choice = &turn.choices[&0];
    assert_eq!(choice.reasoning, "I need a tool.");
    assert_eq!(choice.finish_reason.as_deref(), Some("tool_calls"));
    let calls: Vec<_> = choice.tool_calls.iter().map(|call| (call.name.as_str(), call.json())).collect();
    assert_eq!(calls, [("read", json!({"path": "/tmp/a.txt"})), ("exec", json!({"command": "ls"}))]);
    assert!(
        choice.tool_calls.iter().all(|call| call.id.len() == 9),
        "vLLM's `chatcmpl-tool-…` does not survive OpenClaw"
    );
}

#[tokio::test]
async fn three_text_formats_become_calls() {
    for text in [
        "<tools>\n{\"name\": \"read\", \"arguments\": {\"path\": \"/tmp/a.txt\"}}\n</tools>",
        "<tools>\n{\n  \"name\": \"read\",\n  \"arguments\": {\n    \"path\": \"/tmp/a.txt\"\n  }\n}\n</tools>",
        "{\"name\": \"read\", \"arguments\": {\"path\": \"/tmp/a.txt\"}}",
        "{\"name\": \"read\", \"arguments\": {\"path\": \"/tmp/a.txt\"}}\n{\"name\": \"exec\", \"arguments\": {\"command\": \"ls\"}}",
    ] {
        let turn = both_forms(&replies::text(text), json!({}), &Rules::default()).await;
        let choice = &turn.choices[&0];
        assert_eq!(choice.tool_calls[0].json(), json!({"path": "/tmp/a.txt"}), "{text}");
        assert_eq!(choice.tool_calls.len(), if text.contains("exec") { 2 } else { 1 }, "{text}");
        assert_eq!(
            (choice.content.as_str(), choice.finish_reason.as_deref()),
            ("", Some("tool_calls")),
            "{text}"
        );
    }
}

#[tokio::test]
async fn ordinary_json_is_no_call() {
    for text in [r#"{"name": "Bob"}"#, r#"{"name": "no_such_tool", "arguments": {"a": 1}}"#, "plain text"] {
        let turn = both_forms(&replies::text(text), json!({}), &Rules::default()).await;
        let choice = &turn.choices[&0];
        assert_eq!((choice.content.as_str(), choice.tool_calls.len()), (text, 0));
        assert_eq!(choice.finish_reason.as_deref(), Some("stop"));
    }
}

#[tokio::test]
async fn calls_correct_the_finish_reason() {
    let mut reply = replies::calls(&[READ]);
    reply["choices"][0]["finish_reason"] = json!("stop");
    reply["choices"][0]["message"]["content"] = json!("I will read it.");
    let turn = both_forms(&reply, json!({}), &Rules::default()).await;
    assert_eq!(turn.choices[&0].finish_reason.as_deref(), Some("tool_calls"));
    assert_eq!(turn.choices[&0].content, "I will read it.");
}

#[tokio::test]
async fn foreign_finish_reasons_are_mapped() {
    for (theirs, ours) in [
        (json!("abort"), "stop"),
        (json!("eos"), "stop"),
        (json!("repetition"), "stop"),
        (Value::Null, "stop"),
        (json!("length"), "length"),
    ] {
        let mut reply = replies::text("hello");
        reply["choices"][0]["finish_reason"] = theirs;
        let turn = both_forms(&reply, json!({}), &Rules::default()).await;
        assert_eq!(turn.choices[&0].finish_reason.as_deref(), Some(ours));
    }
}

#[tokio::test]
async fn forbidden_calls_do_not_leave() {
    let reply = replies::calls(&[READ, ("exec", r#"{"command": "ls"}"#)]);
    let turn = both_forms(&reply, json!({"parallel_tool_calls": false}), &Rules::default()).await;
    assert_eq!(turn.choices[&0].tool_calls.len(), 1);
    let text = replies::text("{\"name\": \"read\", \"arguments\": {\"path\": \"/tmp/a.txt\"}}");
    let turn = both_forms(&text, json!({"tool_choice": "none"}), &Rules::default()).await;
    assert_eq!(turn.choices[&0].tool_calls.len(), 0);
}

#[tokio::test]
async fn every_choice_is_handled() {
    let mut reply = replies::calls(&[READ]);
    let mut second = replies::text("no tool needed")["choices"][0].clone();
    second["index"] = json!(1);
    reply["choices"].as_array_mut().unwrap().push(second);
    let turn = both_forms(&reply, json!({"n": 2}), &Rules { choices: 2, ..Rules::default() }).await;
    assert_eq!((turn.choices[&0].tool_calls.len(), turn.choices[&1].content.as_str()), (1, "no tool needed"));
}

#[tokio::test]
async fn logprobs_ride_along_without_vllms_fields() {
    let mut reply = replies::text("hi");
    reply["choices"][0]["logprobs"] = json!({"content": [{"token": "hi", "logprob": -0.5, "bytes": [104, 105], "top_logprobs": [], "token_id": 7}]});
    let turn = both_forms(&reply, json!({"logprobs": true}), &Rules::default()).await;
    assert_eq!(turn.choices[&0].logprobs.len(), 1);
}

#[tokio::test]
async fn usage_comes_when_requested() {
    let fake = FakeVllm::always(Script::json(200, &replies::text("hi"))).await;
    let respool = Respool::before(&fake).await;
    for asked in [true, false] {
        let body = with(&json!({"stream_options": {"include_usage": asked}}));
        let turn = exchange(respool.address, &Request::chat(&body))
            .await
            .stream(&Rules { usage: Some(asked), ..Rules::default() });
        assert_eq!(turn.usage.is_some(), asked);
    }
}

#[tokio::test]
async fn configured_fields_are_kept() {
    for (setting, name) in [("reasoning", Some("reasoning")), ("drop", None)] {
        let fake = FakeVllm::always(Script::json(200, &replies::calls(&[READ]))).await;
        let extra = format!("reasoning = \"{setting}\"\nkeep_fields = [\"stop_reason\", \"metrics\"]");
        let respool = Respool::with(&fake, &extra).await;
        let rules = Rules { reasoning: name, kept: vec!["stop_reason", "metrics"], ..Rules::default() };
        let reply = exchange(respool.address, &Request::chat(&request())).await;
        let turn = reply.stream(&rules);
        assert_eq!(turn.choices[&0].reasoning.is_empty(), name.is_none());
        assert!(reply.text().contains("\"stop_reason\"") && !reply.text().contains("token_ids"));
    }
}

#[tokio::test]
async fn cut_calls_are_never_sent() {
    let cut = |content: &str| {
        let mut reply = replies::text(content);
        reply["choices"][0]["finish_reason"] = json!("length");
        reply
    };
    let turn =
        both_forms(&cut("Let me look.\n<tools>\n{\"name\": \"read\", \"argu"), json!({}), &Rules::default())
            .await;
    let choice = &turn.choices[&0];
    assert_eq!((choice.content.trim_end(), choice.tool_calls.len()), ("Let me look.", 0));
    assert_eq!(choice.finish_reason.as_deref(), Some("length"));

    let fake = FakeVllm::always(Script::json(200, &cut("{\"name\": \"read\", \"arguments\": {\"pa"))).await;
    let respool = Respool::with(&fake, ONCE).await;
    let reply = exchange(respool.address, &Request::chat(&request())).await;
    assert_eq!((reply.status, &reply.error()["code"]), (422, &json!("truncated_tool_call")));
}

#[tokio::test]
async fn ids_are_unique_in_the_conversation() {
    let mut reply = replies::calls(&[READ]);
    reply["choices"][0]["message"]["tool_calls"][0]["id"] = json!("usedBefore1");
    let fake = FakeVllm::always(Script::json(200, &reply)).await;
    let respool = Respool::before(&fake).await;
    let fresh = exchange(respool.address, &Request::chat(&request())).await.stream(&Rules::default());
    assert_eq!(fresh.choices[&0].tool_calls[0].id, "usedBefore1", "a well-formed id is kept");
    let mut body = request();
    body["messages"].as_array_mut().unwrap().extend([
        json!({"role": "assistant", "content": null, "tool_calls": [{"id": "usedBefore1", "type": "function",
            "function": {"name": "read", "arguments": "{\"path\":\"b\"}"}}]}),
        json!({"role": "tool", "tool_call_id": "usedBefore1", "content": "x"}),
    ]);
    let again = exchange(respool.address, &Request::chat(&body)).await.stream(&Rules::default());
    assert_ne!(again.choices[&0].tool_calls[0].id, "usedBefore1");
}

#[tokio::test]
async fn openclaws_request_changes_in_two_keys() {
    let body = include_str!("../../fixtures/openclaw/request-2026.9.6-fulltools.json");
    let fake = FakeVllm::always(Script::json(200, &replies::calls(&[READ]))).await;
    let respool = Respool::before(&fake).await;
    let request = Request::post("/v1/chat/completions", body).header("content-type", "application/json");
    exchange(respool.address, &request).await.stream(&Rules::default());
    let (sent, mut asked): (Value, Value) = (fake.requests()[0].json(), serde_json::from_str(body).unwrap());
    asked["stream"] = json!(false);
    asked.as_object_mut().unwrap().shift_remove("stream_options");
    assert_eq!(sent, asked);
}

#[tokio::test]
async fn the_loop_guard_answers_in_form() {
    let fake = FakeVllm::start([]).await;
    let respool = Respool::before(&fake).await;
    let mut body = request();
    for round in 0..8 {
        body["messages"].as_array_mut().unwrap().extend([
            json!({"role": "assistant", "content": null, "tool_calls": [{"id": format!("call{round:05}"), "type": "function",
                "function": {"name": "read", "arguments": "{\"path\":\"b\"}"}}]}),
            json!({"role": "tool", "tool_call_id": format!("call{round:05}"), "content": "same"}),
            json!({"role": "user", "content": [{"type": "text", "text": "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nx"}]}),
        ]);
    }
    let turn = exchange(respool.address, &Request::chat(&body))
        .await
        .stream(&Rules { usage: Some(true), ..Rules::default() });
    assert!(turn.choices[&0].content.contains("8 times in a row"), "{turn:?}");
    body["stream"] = json!(false);
    let turn = exchange(respool.address, &Request::chat(&body)).await.completion(&Rules::default());
    assert_eq!(turn.choices[&0].finish_reason.as_deref(), Some("stop"));
}

#[tokio::test]
async fn found_tools_use_tool_call() {
    let mut body = request();
    body["tools"].as_array_mut().unwrap().push(json!({"type": "function", "function": {"name": "tool_call", "description": "",
        "parameters": {"type": "object", "properties": {"id": {"type": "string"}, "args": {"type": "object"}}, "required": ["id"]}}}));
    body["messages"].as_array_mut().unwrap().extend([
        json!({"role": "assistant", "content": null, "tool_calls": [{"id": "search0001", "type": "function",
            "function": {"name": "tool_search", "arguments": "{\"query\":\"web\"}"}}]}),
        json!({"role": "tool", "tool_call_id": "search0001",
            "content": json!([{"id": "openclaw:web_fetch", "source": "openclaw", "name": "web_fetch", "description": "x"}]).to_string()}),
    ]);
    let fake =
        FakeVllm::start([Script::json(200, &replies::calls(&[("web_fetch", r#"{"url": "http://x"}"#)]))])
            .await;
    let respool = Respool::before(&fake).await;
    let turn = exchange(respool.address, &Request::chat(&body)).await.stream(&Rules::default());
    let call = &turn.choices[&0].tool_calls[0];
    assert_eq!(
        (call.name.as_str(), call.json()),
        ("tool_call", json!({"id": "web_fetch", "args": {"url": "http://x"}}))
    );
}

#[tokio::test]
async fn kimi_ids_make_the_round_trip() {
    let mut reply = replies::calls(&[READ]);
    reply["choices"][0]["message"]["tool_calls"][0]["id"] = json!("functions.read:4");
    let fake = FakeVllm::start([Script::json(200, &reply), Script::json(200, &replies::text("done"))]).await;
    let respool = Respool::before(&fake).await;
    let first = exchange(respool.address, &Request::chat(&request())).await.stream(&Rules::default());
    let call = &first.choices[&0].tool_calls[0];
    let mut body = request();
    body["messages"].as_array_mut().unwrap().extend([
        json!({"role": "assistant", "content": null, "tool_calls": [{"id": call.id, "type": "function",
            "function": {"name": call.name, "arguments": call.arguments}}]}),
        json!({"role": "tool", "tool_call_id": call.id, "content": "x"}),
    ]);
    exchange(respool.address, &Request::chat(&body)).await.stream(&Rules::default());
    let sent = fake.requests()[1].json();
    assert_eq!(sent["messages"][2]["tool_calls"][0]["id"], "functions.read:4");
    assert_eq!(sent["messages"][3]["tool_call_id"], "functions.read:4");
}
