//! Slow and silent upstreams: when the head leaves, and what keeps the stream alive.

use std::time::Duration;

use serde_json::json;

use crate::passthrough;
use crate::support::accumulate::Rules;
use crate::support::client::{Client, Request, exchange};
use crate::support::fake_vllm::FakeVllm;
use crate::support::idle_time::IdleTime;
use crate::support::replies;
use crate::support::respool::{ONCE, Respool};
use crate::support::script::Script;
use crate::support::wait_until;
use crate::tools_route;

const LIMITS: &str = "[limits]\ncommit_after = \"3s\"\nheartbeat = \"2s\"";
const SILENCE: Duration = Duration::from_secs(12);
/// The upstream must learn within this time that a request has ended.
const ABORT_WITHIN: Duration = Duration::from_millis(250);

#[tokio::test]
async fn heartbeats_bridge_a_silent_tool_turn() {
    let _time = IdleTime::begin();
    let fake =
        FakeVllm::start([Script::json(200, &replies::calls(&[("read", r#"{"path": "a"}"#)])).delay(SILENCE)])
            .await;
    let respool = Respool::with(&fake, LIMITS).await;
    let turn = exchange(respool.address, &Request::chat(&tools_route::request()))
        .await
        .stream(&Rules { usage: Some(true), ..Rules::default() });
    assert_eq!(turn.heartbeats, 4, "9 s of silence, a heartbeat every 2 s");
    assert_eq!(turn.choices[&0].tool_calls.len(), 1);
}

#[tokio::test]
async fn heartbeats_bridge_a_late_start() {
    let _time = IdleTime::begin();
    let frames = || replies::text_stream(&["late"], true);
    let no_head = Script::sse(frames()).delay(SILENCE);
    let head_only = Script::sse(frames()).pause(0, SILENCE);
    for script in [no_head, head_only] {
        let fake = FakeVllm::start([script]).await;
        let respool = Respool::with(&fake, LIMITS).await;
        let turn = exchange(respool.address, &Request::chat(&passthrough::request()))
            .await
            .stream(&Rules { usage: Some(false), ..Rules::default() });
        assert_eq!(turn.heartbeats, 4);
        assert_eq!((turn.choices[&0].content.as_str(), turn.model.as_str()), ("late", "gpt-oss-20b"));
    }
}

/// A server that loads its model holds the request back. The reasoning says so once, where that is wanted.
#[tokio::test]
async fn waiting_for_a_model_is_announced() {
    let _time = IdleTime::begin();
    let messages = json!([{"role": "user", "content": "hi"}]);
    let thinking = json!({"type": "enabled", "budget_tokens": 1_024});
    let turn = json!({"model": "m", "stream": true, "max_tokens": 2_000, "messages": messages, "thinking": thinking});
    let requests = [
        Request::chat(&passthrough::request()),
        Request::post("/v1/responses", json!({"model": "m", "stream": true, "input": "hi"}).to_string()),
        Request::post("/v1/messages", turn.to_string()),
    ];
    for (setting, announced) in [("announce_waiting = true", true), ("", false)] {
        let late = || Script::sse(replies::text_stream(&["late"], true)).delay(SILENCE);
        let fake = FakeVllm::start([late(), late(), late()]).await;
        fake.pose_as("library", json!({"models": []}));
        let respool = Respool::with(&fake, &format!("[recovery]\n{setting}\n{LIMITS}")).await;
        for request in &requests {
            let text = exchange(respool.address, request).await.text();
            let deltas = text.lines().filter(|line| line.contains("delta") && line.contains("waits for it"));
            assert_eq!(deltas.count(), usize::from(announced), "{text}");
            assert!(text.contains(r#""late""#), "{text}");
        }
    }
}

/// llama.cpp reports on its prompt in chunks, which go no further. Other servers are not asked for them.
#[tokio::test]
async fn prompt_progress_is_announced() {
    let _time = IdleTime::begin();
    let reports = [0, 5_000].map(|processed| {
        let mut chunk = replies::chunk(&json!({"role": "assistant", "content": null}), None);
        chunk["prompt_progress"] = json!({"total": 13_000, "cache": 0, "processed": processed, "time_ms": 1});
        replies::frame(&chunk)
    });
    let text = |text: &str| replies::text_stream(&[text], true);
    let reporting = reports.into_iter().chain(text("read")).collect();
    for (owner, chunks, announced) in [("llamacpp", reporting, 1), ("sglang", text("read"), 0)] {
        let late = Script::sse(chunks).pause(2, SILENCE);
        let fake = FakeVllm::start([Script::sse(text("first")), late]).await;
        fake.pose_as(owner, json!({}));
        let config = format!("[recovery]\nannounce_waiting = true\n{LIMITS}");
        let respool = Respool::with(&fake, &config).await;
        exchange(respool.address, &Request::chat(&passthrough::request())).await;
        wait_until("the server is known", async || fake.probes().len() > 1).await;
        let reply = exchange(respool.address, &Request::chat(&passthrough::request())).await;
        let said = reply.text().matches("38 % of the prompt has been read").count();
        assert_eq!((said, reply.text().contains("prompt_progress")), (announced, false), "{}", reply.text());
        assert_eq!(fake.requests()[1].json().get("return_progress").is_some(), announced == 1, "{owner}");
        assert_eq!(
            reply.stream(&Rules { usage: Some(false), ..Rules::default() }).choices[&0].content,
            "read"
        );
    }
}

#[tokio::test]
async fn heartbeats_bridge_pauses() {
    let _time = IdleTime::begin();
    let fake =
        FakeVllm::start([Script::sse(replies::text_stream(&["a", "b"], false)).pause(2, SILENCE)]).await;
    let respool = Respool::with(&fake, LIMITS).await;
    let turn =
        exchange(respool.address, &Request::chat(&passthrough::request())).await.stream(&Rules::default());
    assert!((4..=6).contains(&turn.heartbeats) && turn.choices[&0].content == "ab", "{turn:?}");
}

#[tokio::test]
async fn failures_become_statuses_or_events() {
    let _time = IdleTime::begin();
    let failing =
        || Script::json(500, &replies::error(500, "EngineCore encountered an issue.", "InternalServerError"));
    for body in [tools_route::request(), passthrough::request()] {
        let fake = FakeVllm::start([failing(), failing().delay(SILENCE)]).await;
        let respool = Respool::with(&fake, &format!("{ONCE}{LIMITS}")).await;
        let early = exchange(respool.address, &Request::chat(&body)).await;
        assert_eq!(early.status, 500);
        assert!(early.error()["message"].as_str().unwrap().contains("EngineCore"));
        let late = exchange(respool.address, &Request::chat(&body)).await.stream(&Rules::default());
        let error = late.error.expect("an error event");
        assert_eq!((&error["code"], &error["type"]), (&json!(500), &json!("server_error")));
    }
}

#[tokio::test]
async fn early_error_events_are_statuses() {
    let error = replies::frame(&replies::error(
        400,
        "This model's maximum context length is 10 tokens.",
        "BadRequestError",
    ));
    let fake = FakeVllm::start([Script::sse([error, replies::DONE.to_owned()])]).await;
    let respool = Respool::before(&fake).await;
    let reply = exchange(respool.address, &Request::chat(&passthrough::request())).await;
    assert_eq!((reply.status, &reply.error()["code"]), (400, &json!("context_length_exceeded")));
}

#[tokio::test]
async fn json_clients_get_the_true_status() {
    let _time = IdleTime::begin();
    let fake = FakeVllm::start([Script::json(200, &replies::text("late")).delay(SILENCE)]).await;
    let respool = Respool::with(&fake, LIMITS).await;
    let mut body = tools_route::request();
    body["stream"] = json!(false);
    body["stream_options"] = serde_json::Value::Null;
    let turn = exchange(respool.address, &Request::chat(&body)).await.completion(&Rules::default());
    assert_eq!(turn.choices[&0].content, "late");
}

/// The client hangs up in one phase; the upstream must be let go of at once.
async fn hangs_up(time: &IdleTime, body: &serde_json::Value, script: Script, wait: Duration, extra: &str) {
    let fake = FakeVllm::start([script]).await;
    let respool = Respool::with(&fake, extra).await;
    let client = Client::sending(respool.address, &Request::chat(body)).await;
    fake.wait_for_requests(1).await;
    time.pass(wait).await;
    let left = tokio::time::Instant::now();
    drop(client);
    let closed = fake.wait_until_closed(0).await;
    assert!(closed - left < ABORT_WITHIN, "the upstream request went on for {:?}", closed - left);
}

#[tokio::test]
async fn disconnects_end_upstream_requests() {
    let time = IdleTime::begin();
    let mut whole = tools_route::request();
    whole["stream"] = json!(false);
    whole["stream_options"] = serde_json::Value::Null;
    let streaming = || Script::sse(replies::text_stream(&["a"; 3], false)).pause(2, Duration::from_mins(1));
    let short = Duration::from_millis(500);
    hangs_up(&time, &tools_route::request(), Script::silence(), short, "").await;
    hangs_up(&time, &tools_route::request(), Script::silence(), Duration::from_secs(6), LIMITS).await;
    hangs_up(&time, &whole, Script::silence(), short, "").await;
    hangs_up(&time, &passthrough::request(), Script::silence(), short, "").await;
    hangs_up(&time, &passthrough::request(), Script::silence(), Duration::from_secs(6), LIMITS).await;
    hangs_up(&time, &passthrough::request(), streaming(), Duration::from_secs(1), "").await;
}

#[tokio::test]
async fn disconnects_end_retries() {
    let time = IdleTime::begin();
    let fake = FakeVllm::always(Script::json(503, &json!({}))).await;
    let respool = Respool::before(&fake).await;
    let client = Client::sending(respool.address, &Request::chat(&tools_route::request())).await;
    fake.wait_for_requests(1).await;
    drop(client);
    time.pass(Duration::from_secs(30)).await;
    assert!(fake.requests().len() <= 2, "{} requests after the client had left", fake.requests().len());
}
