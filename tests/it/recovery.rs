//! Second attempts: what a patient client would have asked again is asked again here, while nothing of it was
//! sent.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::live::LIVE;
use crate::passthrough;
use crate::support::accumulate::{Accumulated, Rules};
use crate::support::client::{Client, Request, exchange};
use crate::support::fake_vllm::FakeVllm;
use crate::support::idle_time::IdleTime;
use crate::support::replies;
use crate::support::respool::Respool;
use crate::support::script::Script;
use crate::tools_route;

fn message(message: &Value, finish: &str) -> Script {
    Script::json(200, &replies::completion(message, finish))
}

fn good() -> Script {
    Script::json(200, &replies::calls(&[("read", r#"{"path": "/tmp/a.txt"}"#)]))
}

/// A stream of these deltas, as vLLM sends it.
fn sse(deltas: &[Value], finish: &str) -> Script {
    let mut frames = vec![replies::role_frame()];
    frames.extend(deltas.iter().map(|delta| replies::frame(&replies::chunk(delta, None))));
    frames.push(replies::frame(&replies::chunk(&json!({}), Some(finish))));
    frames.extend([replies::usage_frame(), replies::DONE.to_owned()]);
    Script::sse(frames)
}

fn good_live() -> Script {
    sse(
        &[json!({"tool_calls": [{"index": 0, "id": "chatcmpl-tool-1", "type": "function",
            "function": {"name": "read", "arguments": "{\"path\": \"/tmp/a.txt\"}"}}]})],
        "tool_calls",
    )
}

fn asking(model: &str, stream: bool) -> Value {
    let mut body = tools_route::request();
    body["model"] = json!(model);
    body["stream"] = json!(stream);
    if !stream {
        body.as_object_mut().unwrap().remove("stream_options");
    }
    body
}

fn last_message(request: &Value) -> String {
    request["messages"].as_array().unwrap().last().unwrap()["content"].to_string()
}

/// The turn that the client got, in either form.
async fn ask(respool: &Respool, body: &Value) -> Accumulated {
    let reply = exchange(respool.address, &Request::chat(body)).await;
    let rules = Rules { usage: None, ..Rules::default() };
    if body["stream"] == true { reply.stream(&rules) } else { reply.completion(&rules) }
}

fn glitch() -> Value {
    let text = "unexpected tokens remaining in message header: Some(\"to=functions.read\")";
    replies::error(500, text, "InternalServerError")
}

fn native(name: &str, arguments: &str) -> Value {
    json!({"role": "assistant", "content": null, "reasoning": "I need a tool.", "tool_calls": [
        {"id": "chatcmpl-tool-1", "type": "function", "function": {"name": name, "arguments": arguments}}]})
}

/// One useless reply, then a good one: the client sees only the good one. `check` looks at the second
/// request.
async fn rescued(model: &str, useless: Script, check: impl Fn(&Value)) {
    for stream in [true, false] {
        let fake = FakeVllm::start([useless.clone(), good()]).await;
        let respool = Respool::before(&fake).await;
        let turn = ask(&respool, &asking(model, stream)).await;
        let choice = &turn.choices[&0];
        assert_eq!(choice.finish_reason.as_deref(), Some("tool_calls"), "{turn:?}");
        assert_eq!((choice.tool_calls.len(), choice.content.as_str()), (1, ""));
        let seen = fake.requests();
        assert_eq!(seen.len(), 2);
        let (first, second) = (seen[0].json(), seen[1].json());
        assert!(first.get("seed").is_none());
        assert_eq!(first["tools"], second["tools"]);
        check(&second);
        fake.finish();
    }
}

#[tokio::test]
async fn unreadable_replies_are_repeated() {
    for status in [500, 400, 200] {
        rescued("gpt-oss-20b", Script::json(status, &glitch()), |second| {
            assert_eq!(last_message(second), "\"What does a.txt say?\"", "the same request");
            assert!(second["seed"].is_u64(), "but for the seed: {second}");
        })
        .await;
    }
}

#[tokio::test]
async fn broken_replies_are_repeated() {
    rescued("gpt-oss-20b", good().reset_after(100), |_| {}).await;
    rescued("gpt-oss-20b", Script::whole(200, "application/json", "{\"choices\": [{"), |_| {}).await;
    rescued("gpt-oss-20b", Script::json(500, &replies::error(500, "EngineCore", "x")), |_| {}).await;
}

#[tokio::test]
async fn an_empty_reply_is_asked_again() {
    let mut nothing = replies::completion(&json!({"role": "assistant", "content": ""}), "stop");
    nothing["usage"] = json!({"prompt_tokens": 131, "completion_tokens": 1, "total_tokens": 132});
    rescued("gpt-oss-20b", Script::json(200, &nothing), |second| {
        assert_eq!(last_message(second), "\"What does a.txt say?\"");
    })
    .await;
}

#[tokio::test]
async fn pure_reasoning_gets_a_reminder() {
    let thinking = message(&json!({"role": "assistant", "content": null, "reasoning": "Hm."}), "stop");
    rescued("gpt-oss-20b", thinking, |second| {
        let last = last_message(second);
        assert!(last.starts_with("\"What does a.txt say?\\n\\n[Automatic note"), "{last}");
        assert!(last.contains("without an answer"), "{last}");
    })
    .await;
}

#[tokio::test]
async fn lost_calls_are_asked_for_unparsed() {
    let lost = message(&json!({"role": "assistant", "content": null}), "tool_calls");
    rescued("qwen3-coder", lost.clone(), |second| {
        assert_eq!((&second["tool_choice"], &second["skip_special_tokens"]), (&json!("none"), &json!(false)));
    })
    .await;
    // qwen3_coder's parser gives `read({})` for a value that it lost.
    rescued("qwen3-coder", message(&native("read", "{}"), "tool_calls"), |second| {
        assert_eq!((&second["tool_choice"], &second["skip_special_tokens"]), (&json!("none"), &json!(false)));
    })
    .await;
    rescued("gpt-oss-20b", lost, |second| {
        assert_eq!(second["tool_choice"], "auto", "gpt-oss has no unparsed text");
    })
    .await;
}

#[tokio::test]
async fn bad_calls_get_a_correction() {
    rescued("gpt-oss-20b", message(&native("read", "{\"file\": 1}"), "tool_calls"), |second| {
        let last = last_message(second);
        assert!(last.contains("`read`") && last.contains("It requires: path."), "{last}");
    })
    .await;
}

#[tokio::test]
async fn unknown_tools_get_the_list() {
    rescued("gpt-oss-20b", message(&native("open_file", "{\"path\": \"a\"}"), "tool_calls"), |second| {
        let last = last_message(second);
        assert!(last.contains("no tool `open_file`") && last.contains("read, exec"), "{last}");
    })
    .await;
}

#[tokio::test]
async fn cut_calls_get_more_room() {
    let cut = message(
        &json!({"role": "assistant", "content": "{\"name\": \"read\", \"arguments\": {\"pa"}),
        "length",
    );
    rescued("gpt-oss-20b", cut, |second| assert_eq!(second["max_completion_tokens"], 16384)).await;
    let thinking = message(&json!({"role": "assistant", "content": null, "reasoning": "Hm"}), "length");
    rescued("gpt-oss-20b", thinking, |second| assert_eq!(second["max_completion_tokens"], 16384)).await;
}

#[tokio::test]
async fn the_second_remedy_is_stronger() {
    let bad = message(&native("read", "{}"), "tool_calls");
    let answer =
        json!({"role": "assistant", "content": "{\"name\": \"read\", \"arguments\": {\"path\": \"a\"}}"});
    let fake = FakeVllm::start([bad.clone(), bad, message(&answer, "stop")]).await;
    let respool = Respool::before(&fake).await;
    let turn = ask(&respool, &asking("qwen3-coder", true)).await;
    assert_eq!(turn.choices[&0].tool_calls[0].json(), json!({"path": "a"}));
    let third = fake.requests()[2].json();
    let schema = &third["structured_outputs"]["json"];
    assert_eq!(schema["properties"]["name"]["enum"], json!(["read"]), "vLLM 0.32 told its version: {third}");
    assert_eq!(schema["properties"]["arguments"]["required"], json!(["path"]));
    assert_eq!(third["tool_choice"], "none");

    let unknown = message(&native("open_file", "{}"), "tool_calls");
    let fake = FakeVllm::start([unknown.clone(), unknown, good()]).await;
    let respool = Respool::before(&fake).await;
    ask(&respool, &asking("qwen3-coder", true)).await;
    assert_eq!(fake.requests()[2].json()["tool_choice"], "required");
}

#[tokio::test]
async fn hopeless_replies_end_honestly() {
    let thinking = json!({"role": "assistant", "content": null, "reasoning": "Hm."});
    for (useless, code) in [
        (Script::json(500, &glitch()), "model_glitch"),
        (message(&thinking, "stop"), "no_answer"),
        (message(&native("read", "{\"path\": \"/tm"), "tool_calls"), "unusable_tool_call"),
    ] {
        for stream in [true, false] {
            let fake = FakeVllm::always(useless.clone()).await;
            let respool = Respool::before(&fake).await;
            let reply = exchange(respool.address, &Request::chat(&asking("gpt-oss-20b", stream))).await;
            let error = reply.error();
            // OpenClaw repeats a 5xx eight times; what was asked three times already is not to be.
            assert_eq!((reply.status, &error["code"]), (422, &json!(code)), "{error}");
            assert!(error["message"].as_str().unwrap().contains("asked 3 times"), "{error}");
            assert_eq!(fake.requests().len(), 3);
        }
    }
}

#[tokio::test]
async fn the_least_useless_reply_leaves() {
    let mut talking = native("open_file", "{}");
    talking["content"] = json!("I would open the file.");
    let thinking = json!({"role": "assistant", "content": null, "reasoning": "Hm."});
    let fake = FakeVllm::start([
        message(&talking, "tool_calls"),
        message(&thinking, "stop"),
        Script::json(500, &glitch()),
    ])
    .await;
    let respool = Respool::before(&fake).await;
    let turn = ask(&respool, &asking("gpt-oss-20b", true)).await;
    assert_eq!(turn.choices[&0].content, "I would open the file.");
    assert_eq!(fake.requests().len(), 3);
}

#[tokio::test]
async fn usage_is_that_of_all_attempts() {
    let thinking = json!({"role": "assistant", "content": null, "reasoning": "Hm."});
    for (system, prompt) in [("You are helpful.", 262), ("<!-- openclaw:attempt:STABLE -->\nYou", 131)] {
        let fake = FakeVllm::start([message(&thinking, "stop"), good()]).await;
        let respool = Respool::before(&fake).await;
        let mut body = asking("gpt-oss-20b", false);
        body["messages"][0]["content"] = json!(system);
        let usage = ask(&respool, &body).await.usage.unwrap();
        // OpenClaw takes the prompt's tokens for the size of the conversation, and compacts it.
        assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(prompt), &json!(62)));
    }
}

#[tokio::test]
async fn live_replies_repeat_only_unsent_parts() {
    let bad = json!({"tool_calls": [{"index": 0, "id": "chatcmpl-tool-1", "type": "function",
        "function": {"name": "read", "arguments": "{}"}}]});
    let error = Script::sse([replies::role_frame(), replies::frame(&glitch()), replies::DONE.to_owned()]);
    for useless in [
        Script::json(500, &glitch()),
        sse(&[], "stop"),
        sse(std::slice::from_ref(&bad), "tool_calls"),
        error,
        Script::sse([replies::DONE]),
    ] {
        let fake = FakeVllm::start([useless, good_live()]).await;
        let respool = Respool::with(&fake, LIVE).await;
        let turn = ask(&respool, &asking("gpt-oss-20b", true)).await;
        assert_eq!(turn.choices[&0].tool_calls[0].json(), json!({"path": "/tmp/a.txt"}), "{turn:?}");
        fake.finish();
    }
    let fake = FakeVllm::start([
        sse(&[json!({"reasoning": "Hm."}), bad], "tool_calls").pause(2, Duration::from_millis(200))
    ])
    .await;
    let respool = Respool::with(&fake, LIVE).await;
    let turn = ask(&respool, &asking("gpt-oss-20b", true)).await;
    assert_eq!(turn.choices[&0].reasoning, "Hm.");
    assert_eq!(turn.choices[&0].tool_calls[0].json(), json!({}), "the client says what it lacks");
    fake.finish();
}

#[tokio::test]
async fn silent_streams_are_repeated() {
    let _time = IdleTime::begin();
    let answer = || sse(&[json!({"content": "Hello"})], "stop");
    let late = Duration::from_secs(6);
    for useless in [
        Script::json(500, &glitch()),
        sse(&[], "stop"),
        Script::sse([replies::role_frame(), replies::frame(&glitch())]),
        // The role chunk has left when the rest fails.
        Script::sse([replies::role_frame(), replies::frame(&glitch())]).pause(1, late),
        Script::sse([replies::role_frame(), replies::frame(&glitch())]).delay(late),
        sse(&[], "stop").pause(1, late),
    ] {
        let fake = FakeVllm::start([useless, answer()]).await;
        let respool = Respool::with(&fake, "[limits]\ncommit_after = \"2s\"\nheartbeat = \"2s\"").await;
        let turn = ask(&respool, &passthrough::request()).await;
        assert_eq!(turn.choices[&0].content, "Hello", "{turn:?}");
        assert_eq!(fake.requests().len(), 2);
    }
    let spoken = Script::sse([
        replies::role_frame(),
        replies::frame(&replies::chunk(&json!({"content": "He"}), None)),
    ])
    .reset();
    let fake = FakeVllm::start([spoken]).await;
    let respool = Respool::before(&fake).await;
    let turn = ask(&respool, &passthrough::request()).await;
    assert!(turn.error.is_some() && turn.choices[&0].content == "He", "what was sent is not sent twice");
    fake.finish();
}

#[tokio::test]
async fn plain_completions_are_repeated() {
    let mut body = passthrough::request();
    body["stream"] = json!(false);
    let fake = FakeVllm::start([
        message(&json!({"role": "assistant", "content": null}), "stop"),
        Script::json(200, &replies::text("Hello")),
    ])
    .await;
    let respool = Respool::before(&fake).await;
    let turn = ask(&respool, &body).await;
    assert_eq!(
        (turn.choices[&0].content.as_str(), &turn.usage.unwrap()["completion_tokens"]),
        ("Hello", &json!(62))
    );
    // It streams or not: a client must not take nothing for an answer.
    let fake = FakeVllm::always(Script::json(200, &replies::text(""))).await;
    let respool = Respool::before(&fake).await;
    let reply = exchange(respool.address, &Request::chat(&body)).await;
    assert_eq!((reply.status, &reply.error()["code"]), (422, &json!("lost_reply")), "{}", reply.error());
    // A limit that the client set without tools is the client's business.
    let cut = message(&json!({"role": "assistant", "content": null, "reasoning": "Hm"}), "length");
    let fake = FakeVllm::start([cut]).await;
    let respool = Respool::before(&fake).await;
    assert_eq!(ask(&respool, &body).await.choices[&0].finish_reason.as_deref(), Some("length"));
    fake.finish();
}

#[tokio::test]
async fn requested_outcomes_are_not_repeated() {
    let thinking = message(&json!({"role": "assistant", "content": null, "reasoning": "Hm."}), "stop");
    let cut = message(&json!({"role": "assistant", "content": null, "reasoning": "Hm."}), "length");
    for (key, value, reply) in
        [("stop", json!(["\n"]), thinking.clone()), ("max_completion_tokens", json!(1), cut)]
    {
        let fake = FakeVllm::start([reply]).await;
        let respool = Respool::before(&fake).await;
        let mut body = asking("gpt-oss-20b", false);
        body[key] = value;
        assert_eq!(ask(&respool, &body).await.choices[&0].reasoning, "Hm.");
        fake.finish();
    }
    let fake = FakeVllm::start([thinking]).await;
    let respool = Respool::with(&fake, "[recovery]\nattempts = 0").await;
    assert_eq!(ask(&respool, &asking("gpt-oss-20b", false)).await.choices[&0].reasoning, "Hm.");
    fake.finish();
}

#[tokio::test]
async fn second_attempts_end_in_time() {
    let _time = IdleTime::begin();
    let mut talking = native("open_file", "{}");
    talking["content"] = json!("I would open the file.");
    let fake =
        FakeVllm::start([message(&talking, "tool_calls"), good().delay(Duration::from_secs(25))]).await;
    let respool = Respool::with(&fake, "[recovery]\nwithin = \"5s\"").await;
    let began = Instant::now();
    let turn = ask(&respool, &asking("gpt-oss-20b", false)).await;
    assert_eq!(turn.choices[&0].content, "I would open the file.");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

#[tokio::test]
async fn disconnects_end_the_second_attempt() {
    let _time = IdleTime::begin();
    for (settings, useless) in [("", Script::json(500, &glitch())), (LIVE, sse(&[], "stop"))] {
        let fake = FakeVllm::start([useless, Script::silence()]).await;
        let respool = Respool::with(&fake, settings).await;
        let client = Client::sending(respool.address, &Request::chat(&asking("gpt-oss-20b", true))).await;
        fake.wait_for_requests(2).await;
        let left = Instant::now();
        client.reset();
        let closed = fake.wait_until_closed(1).await;
        assert!(closed.duration_since(left) < Duration::from_secs(5));
    }
}

#[tokio::test]
async fn second_attempts_keep_the_request() {
    let fake = FakeVllm::start([good(), Script::json(500, &glitch()), good()]).await;
    let respool = Respool::before(&fake).await;
    let mut body = asking("gpt-oss-20b", false);
    let call = ask(&respool, &body).await.choices[&0].tool_calls[0].clone();
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": null, "tool_calls": [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}]}));
    messages.push(json!({"role": "tool", "tool_call_id": call.id, "content": "hello"}));
    ask(&respool, &body).await;
    for seen in &fake.requests()[1..] {
        assert_eq!(seen.json()["messages"][2]["reasoning"], "I need a tool.", "remembered, and put back");
    }
}

#[tokio::test]
async fn second_streams_have_their_own_timeout() {
    let _time = IdleTime::begin();
    let useless = sse(&[], "stop").pause(2, Duration::from_millis(100));
    let slow = sse(&[json!({"content": "Hel"}), json!({"content": "lo"})], "stop")
        .pause(2, Duration::from_millis(2500));
    let fake = FakeVllm::start([useless, slow]).await;
    let respool = Respool::before(&fake).await;
    let turn = ask(&respool, &passthrough::request()).await;
    assert_eq!((turn.choices[&0].content.as_str(), turn.error), ("Hello", None));
}

#[tokio::test]
async fn useful_replies_survive_later_failures() {
    let mut talking = native("open_file", "{}");
    talking["content"] = json!("I would open the file.");
    for gone in [Script::json(503, &json!({})), Script::json(429, &replies::error(429, "slow down", "x"))] {
        let fake = FakeVllm::start([message(&talking, "tool_calls")]).await;
        fake.otherwise(gone);
        let respool = Respool::before(&fake).await;
        let turn = ask(&respool, &asking("gpt-oss-20b", false)).await;
        assert_eq!(turn.choices[&0].content, "I would open the file.");
        assert_eq!(turn.usage.unwrap()["prompt_tokens"], 131, "told once");
    }
}

#[tokio::test]
async fn full_servers_are_not_model_faults() {
    let thinking = message(&json!({"role": "assistant", "content": null, "reasoning": "Hm."}), "stop");
    let fake = FakeVllm::start([thinking]).await;
    fake.otherwise(Script::json(429, &replies::error(429, "slow down", "x")).header("retry-after", "7"));
    let respool = Respool::before(&fake).await;
    let reply = exchange(respool.address, &Request::chat(&asking("gpt-oss-20b", false))).await;
    assert_eq!((reply.status, reply.headers.get("retry-after")), (429, Some("7")));
    assert_eq!(fake.requests().len(), 2);
}
