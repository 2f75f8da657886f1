//! Requests without tools: straight through, cleaned.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::accumulate::Rules;
use crate::support::client::{Client, Request, exchange};
use crate::support::fake_vllm::FakeVllm;
use crate::support::idle_time::IdleTime;
use crate::support::replies;
pub(crate) use crate::support::requests::without_tools as request;
use crate::support::respool::Respool;
use crate::support::script::Script;

fn asking_usage(asked: bool) -> Value {
    let mut body = request();
    body["stream_options"] = json!({"include_usage": asked});
    body
}

#[tokio::test]
async fn streams_pass_clean_and_with_usage() {
    for asked in [true, false] {
        let fake =
            FakeVllm::start([Script::sse(replies::text_stream(&["Hel", "lo ", "wörld 🙂"], true))]).await;
        let respool = Respool::before(&fake).await;
        let reply = exchange(respool.address, &Request::chat(&asking_usage(asked))).await;
        let turn = reply.stream(&Rules { usage: Some(asked), ..Rules::default() });
        assert_eq!(turn.choices[&0].content, "Hello wörld 🙂");
        let sent = fake.requests()[0].json();
        assert_eq!(
            (&sent["stream_options"]["include_usage"], &sent["vllm_xargs"]),
            (&json!(true), &json!({"a": 1}))
        );
    }
}

#[tokio::test]
async fn frames_do_not_wait() {
    let _time = IdleTime::begin();
    let script = Script::sse(replies::text_stream(&["a", "b"], false)).pause(2, Duration::from_secs(20));
    let fake = FakeVllm::start([script]).await;
    let respool = Respool::before(&fake).await;
    let mut client = Client::sending(respool.address, &Request::chat(&request())).await;
    client.head().await;
    let began = tokio::time::Instant::now();
    let mut text = String::new();
    while !text.contains("\"a\"") {
        text.push_str(&String::from_utf8_lossy(&client.chunk().await.unwrap().bytes));
    }
    assert!(began.elapsed() < Duration::from_secs(10), "the frame with `a` waited for the one with `b`");
    drop(client);
}

#[tokio::test]
async fn unchanged_frames_keep_their_bytes() {
    let odd = "data:  {\"id\":\"x\", \"object\":\"chat.completion.chunk\", \"created\":1, \"model\":\"m\", \"choices\":[ {\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\\u00e9\"},\"finish_reason\":null} ]}\n\n";
    let last = "data: {\"id\":\"x\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\r\n\r\n";
    let fake = FakeVllm::start([Script::sse([odd, last, "data: [DONE]\n\n"])]).await;
    let respool = Respool::before(&fake).await;
    let reply = exchange(respool.address, &Request::chat(&request())).await;
    assert_eq!(reply.text(), format!("{odd}{last}data: [DONE]\n\n"));
}

#[tokio::test]
async fn odd_streams_come_out_straight() {
    let role = replies::role_frame();
    let text = replies::frame(&replies::chunk(&json!({"content": "ok"}), Some("stop")));
    for frames in [
        format!("\u{feff}{role}{text}data: [DONE]\n\n"),
        format!(": keep-alive\n\n: again\n\n{role}: mid\n\n{text}data: [DONE]\n\n"),
        format!("{role}{text}data: [DONE]\n\n").replace('\n', "\r\n"),
        format!("{role}{text}").replace("data: ", "data:"),
        format!("{role}{}", text.trim_end()),
        format!("{role}{text}data: [DONE]\n\ndata: {{\"late\":1}}\n\n"),
    ] {
        for size in [1, 7, 100_000] {
            let pieces: Vec<Vec<u8>> = frames.as_bytes().chunks(size).map(<[u8]>::to_vec).collect();
            let fake = FakeVllm::start([Script::sse(pieces)]).await;
            let respool = Respool::before(&fake).await;
            let turn = exchange(respool.address, &Request::chat(&request())).await.stream(&Rules::default());
            assert_eq!(turn.choices[&0].content, "ok", "{frames:?} in pieces of {size}");
        }
    }
}

#[tokio::test]
async fn completions_lose_only_foreign_fields() {
    let fake = FakeVllm::start([Script::json(200, &replies::text("hello"))]).await;
    let respool = Respool::before(&fake).await;
    let body = json!({"messages": [{"role": "user", "content": "hi"}], "x": 1.50});
    let raw = Request::post("/v1/chat/completions?a=b", body.to_string())
        .header("content-type", "application/json");
    let turn = exchange(respool.address, &raw).await.completion(&Rules::default());
    assert_eq!((turn.choices[&0].content.as_str(), turn.usage.is_some()), ("hello", true));
    let seen = &fake.requests()[0];
    assert_eq!(
        (seen.body.as_slice(), seen.target.as_str()),
        (body.to_string().as_bytes(), "/v1/chat/completions?a=b")
    );
}

#[tokio::test]
async fn json_replies_become_streams() {
    let fake = FakeVllm::start([Script::json(200, &replies::text("whole"))]).await;
    let respool = Respool::before(&fake).await;
    let turn = exchange(respool.address, &Request::chat(&request())).await.stream(&Rules::default());
    assert_eq!(turn.choices[&0].content, "whole");
}

#[tokio::test]
async fn all_choices_of_streams_pass() {
    let chunk = |index: u64, delta: Value, finish: Value| {
        let mut chunk = replies::chunk(&delta, None);
        chunk["choices"][0]["index"] = json!(index);
        chunk["choices"][0]["finish_reason"] = finish;
        replies::frame(&chunk)
    };
    let role = json!({"role": "assistant", "content": ""});
    let frames = [
        chunk(0, role.clone(), Value::Null),
        chunk(1, role, Value::Null),
        chunk(0, json!({"content": "a"}), json!("stop")),
        chunk(1, json!({"content": "b"}), json!("abort")),
        replies::DONE.to_owned(),
    ];
    let fake = FakeVllm::start([Script::sse(frames)]).await;
    let respool = Respool::before(&fake).await;
    let mut body = request();
    body["n"] = json!(2);
    let turn = exchange(respool.address, &Request::chat(&body))
        .await
        .stream(&Rules { choices: 2, ..Rules::default() });
    assert_eq!((turn.choices[&0].content.as_str(), turn.choices[&1].content.as_str()), ("a", "b"));
    assert_eq!(turn.choices[&1].finish_reason.as_deref(), Some("stop"));
}

#[tokio::test]
async fn empty_tools_are_no_tools() {
    let fake = FakeVllm::start([Script::sse(replies::text_stream(&["x"], true))]).await;
    let respool = Respool::before(&fake).await;
    let mut body = request();
    body["tools"] = json!([]);
    body["tool_choice"] = json!("auto");
    exchange(respool.address, &Request::chat(&body)).await.stream(&Rules::default());
    let sent = fake.requests()[0].json();
    assert!(sent.get("tools").is_none() && sent.get("tool_choice").is_none());
}

#[tokio::test]
async fn other_routes_pass_as_they_are() {
    let embeddings = Script::whole(201, "application/octet-stream", vec![0, 255, 1])
        .on("POST", "/v1/embeddings")
        .header("x-own", "kept");
    let fake = FakeVllm::start([embeddings.unchecked()]).await;
    let respool = Respool::before(&fake).await;
    let request = Request::post("/v1/embeddings?q=1&q=2", vec![1, 0, 254])
        .header("content-type", "application/x-odd")
        .header("connection", "x-hop")
        .header("x-hop", "1");
    let reply = exchange(respool.address, &request).await;
    assert_eq!(
        (reply.status, reply.body(), reply.headers.get("x-own")),
        (201, vec![0, 255, 1], Some("kept"))
    );
    let seen = &fake.requests()[0];
    assert_eq!((seen.target.as_str(), seen.body.as_slice()), ("/v1/embeddings?q=1&q=2", &[1, 0, 254][..]));
    assert_eq!(
        (seen.headers.get("content-type"), seen.headers.get("x-hop")),
        (Some("application/x-odd"), None)
    );
    // Some servers refuse a chunked request.
    assert_eq!(
        (seen.headers.get("content-length"), seen.headers.get("transfer-encoding")),
        (Some("3"), None)
    );
    assert_eq!(seen.headers.get("x-request-id"), reply.headers.get("x-request-id"));
}

#[tokio::test]
async fn encoded_answers_stay_encoded() {
    let fake =
        FakeVllm::start([Script::json(200, &json!({"a": 1})).gzip().on("GET", "/openapi.json").unchecked()])
            .await;
    let respool = Respool::before(&fake).await;
    let reply =
        exchange(respool.address, &Request::get("/openapi.json").header("accept-encoding", "gzip")).await;
    assert_eq!(
        (reply.headers.get("content-encoding"), &reply.body()[..2]),
        (Some("gzip"), &[0x1f, 0x8b][..])
    );
}

#[tokio::test]
async fn models_are_listed_with_aliases() {
    let fake = FakeVllm::start([]).await;
    fake.serve_models(&["gpt-oss-20b", "org/other"]);
    let respool = Respool::with(&fake, "[models.\"fast\"]\ntarget = \"gpt-oss-20b\"").await;
    let list = exchange(respool.address, &Request::get("/v1/models")).await.json();
    let ids: Vec<&str> =
        list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["gpt-oss-20b", "org/other", "fast"]);
    for id in ["gpt-oss-20b", "org/other", "fast"] {
        let one = exchange(respool.address, &Request::get(&format!("/v1/models/{id}"))).await;
        assert_eq!((one.status, &one.json()["id"]), (200, &json!(id)));
    }
    let none = exchange(respool.address, &Request::get("/v1/models/none")).await;
    assert_eq!((none.status, &none.error()["code"]), (404, &json!("model_not_found")));
}

#[tokio::test]
async fn aliases_go_up_as_targets() {
    let fake = FakeVllm::start([Script::json(200, &replies::text("x"))]).await;
    let respool = Respool::with(&fake, "[models.\"fast\"]\ntarget = \"gpt-oss-20b\"").await;
    exchange(
        respool.address,
        &Request::chat(&json!({"model": "fast", "messages": [{"role": "user", "content": "hi"}]})),
    )
    .await
    .completion(&Rules::default());
    assert_eq!(fake.requests()[0].json()["model"], "gpt-oss-20b");
}

#[tokio::test]
async fn aliases_hold_on_every_route() {
    let answered = || Script::json(200, &json!({"data": []})).unchecked();
    let fake = FakeVllm::start([answered(), answered(), answered()]).await;
    let alias = "[models.\"fast\"]\ntarget = \"gpt-oss-20b\"";
    let respool = Respool::with(&fake, alias).await;
    for (route, size) in [("/v1/embeddings", 1), ("/v1/completions", 3 << 20), ("/pooling", 1)] {
        let body = json!({"input": "x".repeat(size), "model": "fast", "n": 1.0}).to_string();
        let reply = exchange(respool.address, &Request::post(route, body.clone())).await;
        let seen = fake.requests().pop().unwrap();
        assert_eq!((reply.status, seen.path()), (200, route));
        assert_eq!(String::from_utf8(seen.body).unwrap(), body.replace("\"fast\"", "\"gpt-oss-20b\""));
    }
}

#[tokio::test]
async fn respools_own_pages() {
    let fake = FakeVllm::start([]).await;
    let respool = Respool::before(&fake).await;
    assert_eq!(exchange(respool.address, &Request::get("/health")).await.json()["status"], "ok");
    assert_eq!(exchange(respool.address, &Request::get("/ready")).await.status, 200);
    exchange(respool.address, &Request::get("/v1/models")).await;
    let metrics = exchange(respool.address, &Request::get("/metrics")).await.text();
    assert!(metrics.contains("# TYPE respool_requests_total counter"), "{metrics}");
    drop(fake);
    let down = Respool::configured("[[upstream]]\nname = \"gone\"\nurl = \"http://127.0.0.1:1\"").await;
    let ready = exchange(down.address, &Request::get("/ready")).await;
    assert_eq!((ready.status, &ready.json()["upstreams"][0]["ready"]), (503, &json!(false)));
    assert_eq!(exchange(down.address, &Request::get("/health")).await.status, 200, "this process is up");
}

#[tokio::test]
async fn base_urls_need_no_v1() {
    let fake = FakeVllm::start([Script::json(200, &replies::text("x"))]).await;
    fake.serve_models(&["gpt-oss-20b"]);
    let respool = Respool::before(&fake).await;
    let body = json!({"messages": [{"role": "user", "content": "hi"}]}).to_string();
    let request = Request::post("/chat/completions?a=b", body).header("content-type", "application/json");
    exchange(respool.address, &request).await.completion(&Rules::default());
    assert_eq!(fake.requests()[0].target, "/v1/chat/completions?a=b");
    assert_eq!(
        exchange(respool.address, &Request::get("/models")).await.json()["data"][0]["id"],
        "gpt-oss-20b"
    );
}

#[tokio::test]
async fn missing_finish_reasons_are_added() {
    let text = replies::frame(&replies::chunk(&json!({"content": "Hello"}), None));
    let fake = FakeVllm::start([Script::sse([replies::role_frame(), text, replies::DONE.to_owned()])]).await;
    let respool = Respool::before(&fake).await;
    let turn = exchange(respool.address, &Request::chat(&request())).await.stream(&Rules::default());
    assert_eq!(
        (turn.choices[&0].content.as_str(), turn.choices[&0].finish_reason.as_deref()),
        ("Hello", Some("stop"))
    );
}

#[tokio::test]
async fn complete_streams_end_without_closing() {
    let mut frames = replies::text_stream(&["Hello"], true);
    frames.pop();
    for settings in ["", crate::live::LIVE] {
        let fake = FakeVllm::start([Script::sse(frames.clone()).then_stall()]).await;
        let respool = Respool::with(&fake, settings).await;
        let body = if settings.is_empty() { request() } else { crate::tools_route::request() };
        let turn = exchange(respool.address, &Request::chat(&body)).await.stream(&Rules::default());
        assert_eq!((turn.choices[&0].content.as_str(), turn.error), ("Hello", None));
    }
}

#[tokio::test]
async fn client_keys_open_the_model_list() {
    let list = Script::json(200, &json!({"object": "list", "data": [{"id": "m"}]})).on("GET", "/v1/models");
    let fake = FakeVllm::start([list.expect_authorization("Bearer client").unchecked()]).await;
    let respool = Respool::before(&fake).await;
    let request = Request::get("/v1/models").header("authorization", "Bearer client");
    assert_eq!(exchange(respool.address, &request).await.json()["data"][0]["id"], "m");
}

#[tokio::test]
async fn stop_sequences_cut_passed_text() {
    let endless =
        Script::endless(200, "application/octet-stream", vec![7; 100]).on("GET", "/openapi.json").unchecked();
    let fake = FakeVllm::start([endless]).await;
    let respool = Respool::before(&fake).await;
    let mut client = Client::sending(respool.address, &Request::get("/openapi.json")).await;
    client.head().await;
    respool.stop.drain.cancel();
    respool.stop.abort.cancel();
    let end = loop {
        match client.try_chunk().await {
            Ok(Some(_)) => {}
            end => break end.map(|_| ()),
        }
    };
    assert!(end.is_err(), "a body that was cut must not look whole");
}
