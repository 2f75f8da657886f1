//! The fake vLLM and the client against each other, over real sockets: each script does what it says.

use std::io::Read;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt;
use serde_json::json;
use tokio::time::Instant;

use crate::support::accumulate::Rules;
use crate::support::client::{Client, Reply, Request, exchange};
use crate::support::fake_vllm::FakeVllm;
use crate::support::replies;
use crate::support::script::{Fault, Script};

/// A request that the fake accepts.
fn asking(address: SocketAddr) -> Request {
    let body = json!({"model": "gpt-oss-20b", "messages": [{"role": "user", "content": "hi"}]});
    Request::chat(&body).header("host", &address.to_string())
}

async fn reply_to(script: Script) -> Reply {
    let fake = FakeVllm::start([script]).await;
    let reply = exchange(fake.address(), &asking(fake.address())).await;
    fake.finish();
    reply
}

/// The faults that make the fake fail its test.
async fn verdict(fake: FakeVllm, request: &[u8]) -> String {
    let mut client = Client::connect(fake.address()).await;
    client.send_raw(request).await;
    client.try_head().await;
    let problems = fake.take_problems().join("\n");
    fake.finish();
    problems
}

#[tokio::test]
async fn whole_replies_reuse_connections() {
    let fake = FakeVllm::start([
        Script::json(200, &replies::text("Hello")).expect_authorization("Bearer client-key"),
        Script::json(503, &replies::error(503, "busy", "ServiceUnavailableError")).header("retry-after", "1"),
    ])
    .await;
    let mut client = Client::sending(fake.address(), &asking(fake.address())).await;
    let reply = client.reply().await;
    assert_eq!((reply.status, reply.json()), (200, replies::text("Hello")));
    client.send(&asking(fake.address()).without("authorization")).await;
    let reply = client.reply().await;
    assert_eq!((reply.status, reply.headers.get("retry-after")), (503, Some("1")));
    assert_eq!(reply.error()["message"], "busy");
    let requests = fake.requests();
    assert_eq!((requests.len(), requests[1].connection, fake.connections()), (2, 0, 1));
    assert_eq!(requests[0].headers.get("authorization"), Some("Bearer client-key"));
    assert_eq!(requests[0].json()["messages"][0]["content"], "hi");
    assert!(requests[0].answered_at.is_some() && requests[0].closed_at.is_none());
    fake.finish();
}

#[tokio::test]
async fn streams_come_chunk_by_chunk() {
    let frames = replies::text_stream(&["a", "b"], true);
    let pause = Duration::from_millis(40);
    let fake = FakeVllm::always(Script::sse(frames.clone()).delay(pause).pause(0, pause).every(pause)).await;
    let begun = Instant::now();
    let reply = exchange(fake.address(), &asking(fake.address())).await;
    let got: Vec<Vec<u8>> = reply.chunks.iter().map(|chunk| chunk.bytes.clone()).collect();
    assert_eq!(got, frames.iter().map(|frame| frame.clone().into_bytes()).collect::<Vec<_>>());
    assert!(reply.at - begun >= pause && reply.chunks[0].at - reply.at >= pause / 2, "delay and pause");
    let spread = reply.chunks[frames.len() - 1].at - reply.chunks[0].at;
    assert!(spread >= pause * 3, "{spread:?}");
    fake.finish();
}

#[tokio::test]
async fn faults_are_played_as_told() {
    let frames = || Script::sse(replies::text_stream(&["a"], false));
    let broken = async |script: Script| {
        let reply = reply_to(script).await;
        (reply.chunks.len(), reply.broken.expect("it breaks off"))
    };
    let (chunks, how) = broken(frames().reset()).await;
    assert!(chunks == 4 && how.contains("cut within the body"), "{chunks} {how}");
    let (chunks, how) = broken(frames().close_early_after(100)).await;
    assert!(chunks == 0 && how.contains("closed within the body"), "{chunks} {how}");
    let (_, how) = broken(Script::json(200, &replies::text("x")).reset_after(10)).await;
    assert!(how.contains("cut within the body"), "{how}");
    let (_, how) = broken(Script::whole(200, "text/plain", "12345").wrong_length(3)).await;
    assert!(how.contains("closed within the body, 3 bytes before its end"), "{how}");
    let short = reply_to(Script::whole(200, "text/plain", "12345").wrong_length(-2)).await;
    assert_eq!(short.text(), "123");
}

#[tokio::test]
async fn connections_may_end_unanswered() {
    for fault in [Fault::Reset, Fault::Close] {
        let fake = FakeVllm::start([Script::no_reply(fault)]).await;
        let mut client = Client::sending(fake.address(), &asking(fake.address())).await;
        assert!(client.try_head().await.is_none(), "{fault:?}");
        fake.finish();
    }
}

#[tokio::test]
async fn disconnects_are_noticed() {
    let stalled = Script::sse(replies::text_stream(&["a"], false)).then_stall();
    let whole = Script::json(200, &replies::text("a"));
    for script in [Script::silence(), stalled, whole.clone(), whole.delay(Duration::from_mins(1))] {
        let fake = FakeVllm::start([script.clone()]).await;
        let client = Client::sending(fake.address(), &asking(fake.address())).await;
        assert!(fake.wait_for_requests(1).await[0].closed_at.is_none(), "{script:?}");
        let left = Instant::now();
        drop(client);
        let noticed = fake.wait_until_closed(0).await - left;
        assert!(noticed < Duration::from_millis(250), "{noticed:?} {script:?}");
        fake.finish();
    }
}

#[tokio::test]
async fn resets_are_noticed() {
    let fake = FakeVllm::start([Script::silence()]).await;
    let client = Client::sending(fake.address(), &asking(fake.address())).await;
    fake.wait_for_requests(1).await;
    client.reset();
    fake.wait_until_closed(0).await;
    assert!(fake.requests()[0].answered_at.is_none());
}

#[tokio::test]
async fn endless_bodies_last_until_disconnect() {
    let fake = FakeVllm::start([Script::endless(200, "application/json", "x".repeat(1000))]).await;
    let mut client = Client::sending(fake.address(), &asking(fake.address())).await;
    client.head().await;
    for _ in 0..100 {
        assert_eq!(client.chunk().await.unwrap().bytes.len(), 1000);
    }
    fake.wait_until_sent(0, 100_000).await;
    drop(client);
    fake.wait_until_closed(0).await;
    fake.finish();
}

#[tokio::test]
async fn bodies_can_be_compressed_and_unframed() {
    let reply = reply_to(Script::whole(200, "text/plain", "hello").gzip()).await;
    assert_eq!(reply.headers.get("content-encoding"), Some("gzip"));
    let mut text = String::new();
    flate2::read::GzDecoder::new(reply.body().as_slice()).read_to_string(&mut text).unwrap();
    assert_eq!(text, "hello");
    let reply = reply_to(Script::sse(["hel", "lo"]).brotli()).await;
    let mut plain = Vec::new();
    brotli::BrotliDecompress(&mut reply.body().as_slice(), &mut plain).unwrap();
    assert_eq!((reply.headers.get("content-encoding"), plain), (Some("br"), b"hello".to_vec()));
    let reply =
        reply_to(Script::until_close(502, "text/html", "<h1>Bad Gateway</h1>").status_line("502 No")).await;
    assert_eq!((reply.status, reply.text().as_str(), reply.broken), (502, "<h1>Bad Gateway</h1>", None));
}

#[tokio::test]
async fn captures_are_sent_byte_for_byte() {
    let reply = reply_to(Script::capture("v0.32.0-gptoss-harmony/ok-final.stream")).await;
    assert_eq!((reply.status, reply.chunks.len()), (200, 9));
    assert_eq!(reply.headers.get("vary"), Some("Origin"));
    let kept = vec!["token_ids", "stop_reason", "prompt_token_ids", "prompt_text"];
    let rules = Rules { reasoning: Some("reasoning"), kept, ..Rules::default() };
    let turn = crate::support::accumulate::stream(&reply.body(), &rules).unwrap();
    assert_eq!(
        (turn.choices[&0].reasoning.as_str(), turn.choices[&0].content.as_str()),
        ("User greets.", "Hello!")
    );
}

#[tokio::test]
async fn scripts_leave_probes_alone() {
    let fake = FakeVllm::start([
        Script::json(200, &json!({"data": []})).on("GET", "/v1/models"),
        Script::whole(200, "text/plain", "chat"),
    ])
    .await;
    fake.then(Script::whole(200, "text/plain", "metrics").on("GET", "/metrics"));
    fake.serve_models(&["m1", "m2"]);
    let get = |path: &str| Request::get(path).header("host", &fake.address().to_string());
    assert_eq!(exchange(fake.address(), &get("/metrics?a=b")).await.text(), "metrics");
    assert_eq!(exchange(fake.address(), &get("/v1/models")).await.json(), json!({"data": []}));
    assert_eq!(exchange(fake.address(), &get("/v1/models")).await.json()["data"][1]["id"], "m2");
    assert_eq!(exchange(fake.address(), &get("/health")).await.text(), "");
    assert_eq!(exchange(fake.address(), &asking(fake.address())).await.text(), "chat");
    assert_eq!(fake.requests().len(), 3, "probes that nobody scripted are not counted");
    fake.finish();
}

#[tokio::test]
async fn bad_requests_are_told() {
    let host = |fake: &FakeVllm| format!("host: {}\r\n", fake.address());
    let ok = || Script::json(200, &replies::text("x"));
    let fake = FakeVllm::start([ok()]).await;
    let request =
        format!("POST /v1/chat/completions HTTP/1.1\r\n{}content-length: 4\r\n\r\n{{}}{{}}", host(&fake));
    let told = verdict(fake, request.as_bytes()).await;
    assert!(told.contains("content-type is \"\"") && told.contains("the body is no JSON"), "{told}");

    let fake = FakeVllm::start([ok()]).await;
    let request = format!(
        "POST /v1/embeddings HTTP/1.1\r\n{}content-length: 1\r\nte: trailers\r\n\r\n{{}}",
        host(&fake)
    );
    let told = verdict(fake, request.as_bytes()).await;
    assert!(
        told.contains("hop-by-hop header passed on: te") && told.contains("bytes after the body"),
        "{told}"
    );

    let fake = FakeVllm::start([]).await;
    let request = format!("GET /nobody HTTP/1.1\r\n{}\r\n", host(&fake));
    assert!(verdict(fake, request.as_bytes()).await.contains("GET /nobody: no script takes this request"));

    let told = verdict(FakeVllm::start([]).await, b"GET / HTTP/1.0\r\n\r\n").await;
    assert!(told.contains("no HTTP/1.1 request line"), "{told}");
}

#[tokio::test]
async fn cut_requests_are_reported() {
    for allowed in [false, true] {
        let fake = FakeVllm::start([]).await;
        if allowed {
            fake.allow_cut_requests();
        }
        let mut client = Client::connect(fake.address()).await;
        client.send_raw(b"POST / HTTP/1.1\r\ncontent-length: 9\r\n\r\nhalf").await;
        drop(client);
        fake.wait_for_cut_requests(1).await;
        assert_eq!(fake.take_problems().is_empty(), allowed);
        fake.finish();
    }
}

#[tokio::test]
async fn dropping_the_fake_fails_the_test() {
    let failing = async |fake: FakeVllm, request: Option<Request>| {
        if let Some(request) = request {
            exchange(fake.address(), &request).await;
        }
        AssertUnwindSafe(async move { drop(fake) }).catch_unwind().await.is_err()
    };
    assert!(failing(FakeVllm::start([Script::silence()]).await, None).await, "a script was left over");
    let fake = FakeVllm::start([Script::json(200, &json!({})).expect_no_authorization()]).await;
    let request = asking(fake.address());
    assert!(failing(fake, Some(request)).await, "authorization came");
    let fake = FakeVllm::start([]).await;
    let request = Request::get("/health");
    assert!(failing(fake, Some(request)).await, "the host header was the client's");
}

#[tokio::test]
async fn clean_replies_pass() {
    let chunk = |delta: &str, reason: &str| {
        format!(
            "data: {{\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":\
             [{{\"index\":0,\"delta\":{delta},\"finish_reason\":{reason}}}]}}\n\n"
        )
    };
    let role = chunk(r#"{"role":"assistant","content":"Hello"}"#, "null");
    let frames = [role, chunk("{}", r#""stop""#), replies::DONE.to_owned()];
    let clean =
        || Script::sse(frames.clone()).header("cache-control", "no-cache").header("x-accel-buffering", "no");
    let turn = reply_to(clean()).await.stream(&Rules::default());
    assert_eq!(turn.choices[&0].content, "Hello");
    for flawed in [
        clean().without_header("x-accel-buffering"),
        clean().header("content-type", "application/json"),
        clean().header("cache-control", "max-age=1"),
        clean().status_line("201 Created"),
        clean().reset(),
        Script::sse(replies::text_stream(&["x"], false)),
    ] {
        let reply = reply_to(flawed.clone()).await;
        let judged = std::panic::catch_unwind(AssertUnwindSafe(|| reply.stream(&Rules::default())));
        assert!(judged.is_err(), "{flawed:?}");
    }
}

#[tokio::test]
async fn a_whole_reply_is_judged_too() {
    let mut clean = replies::text("Hello");
    for foreign in [
        "prompt_logprobs",
        "prompt_token_ids",
        "prompt_text",
        "kv_transfer_params",
        "ec_transfer_params",
        "metrics",
    ] {
        clean.as_object_mut().unwrap().remove(foreign);
    }
    for foreign in ["stop_reason", "token_ids", "routed_experts"] {
        clean["choices"][0].as_object_mut().unwrap().remove(foreign);
    }
    clean["choices"][0]["message"].as_object_mut().unwrap().remove("reasoning");
    let turn = reply_to(Script::json(200, &clean))
        .await
        .completion(&Rules { usage: Some(true), ..Rules::default() });
    assert_eq!(
        (turn.choices[&0].content.as_str(), turn.choices[&0].finish_reason.as_deref()),
        ("Hello", Some("stop"))
    );
    for flawed in [
        Script::json(200, &replies::calls(&[("read", "{}")])),
        Script::json(400, &clean),
        Script::chunked(200, "text/plain", [clean.to_string()]),
    ] {
        let reply = reply_to(flawed.clone()).await;
        let judged = std::panic::catch_unwind(AssertUnwindSafe(|| reply.completion(&Rules::default())));
        assert!(judged.is_err(), "{flawed:?}");
    }
}

#[tokio::test]
async fn scripts_may_skip_the_judge() {
    let fake = FakeVllm::start([Script::raw("HTTP/1.1 204 No Content\r\n\r\n").unchecked()]).await;
    assert_eq!(fake.url(), format!("http://{}", fake.address()));
    let request = Request::chat(&json!([])).header("host", &fake.address().to_string());
    let begun = Instant::now();
    let mut client = Client::sending(fake.address(), &request).await;
    assert_eq!((client.reply().await.status, fake.requests()[0].at >= begun), (204, true));
    client.closed().await;
    fake.finish();
}
