//! The ends of turns that once died: bodies without an end, calls that the client can correct, replies
//! without a choice, servers that start or are busy, and what is never sent twice. One test for each rule.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::Instant;

use crate::live::LIVE;
use crate::passthrough;
use crate::support::accumulate::{Accumulated, Rules};
use crate::support::client::{Request, exchange};
use crate::support::fake_vllm::FakeVllm;
use crate::support::http1::{Framing, Incoming};
use crate::support::idle_time::IdleTime;
use crate::support::replies;
use crate::support::respool::Respool;
use crate::support::script::Script;
use crate::{tools_route, upstreams};

fn whole(mut body: Value) -> Value {
    body["stream"] = json!(false);
    body["stream_options"] = Value::Null;
    body
}

async fn ask(respool: &Respool, body: &Value) -> Accumulated {
    let reply = exchange(respool.address, &Request::chat(body)).await;
    let rules = Rules { usage: None, ..Rules::default() };
    if body["stream"] == true { reply.stream(&rules) } else { reply.completion(&rules) }
}

fn says(text: &str) -> Script {
    Script::json(200, &replies::text(text))
}

fn call(name: &str, arguments: &str) -> Value {
    json!({"role": "assistant", "content": null, "tool_calls": [
        {"id": "chatcmpl-tool-1", "type": "function", "function": {"name": name, "arguments": arguments}}]})
}

/// Requests for a completion; probes apart.
fn asked(fake: &FakeVllm) -> usize {
    fake.requests().iter().filter(|seen| seen.path() == "/v1/chat/completions").count()
}

#[tokio::test]
async fn whole_replies_leave_before_the_end() {
    let _time = IdleTime::begin();
    let text = replies::text("ok").to_string();
    for body in [tools_route::request(), whole(tools_route::request()), whole(passthrough::request())] {
        let endless = Script::chunked(200, "application/json", [text.clone()]).then_stall();
        for script in [endless, Script::json(200, &replies::text("ok")).wrong_length(9)] {
            let fake = FakeVllm::start([script]).await;
            let respool = Respool::before(&fake).await;
            let began = Instant::now();
            assert_eq!(ask(&respool, &body).await.choices[&0].content, "ok");
            assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
            assert_eq!(asked(&fake), 1);
        }
    }
}

#[tokio::test]
async fn correctable_calls_leave_last() {
    for (name, arguments) in [("open_browser", r#"{"url": "x"}"#), ("read", "{}")] {
        let message = call(name, arguments);
        let live: Vec<String> = [
            replies::role_frame(),
            replies::frame(&replies::chunk(
                &json!({"tool_calls": [{"index": 0, "id": "chatcmpl-tool-1", "type": "function",
                    "function": {"name": name, "arguments": arguments}}]}),
                None,
            )),
            replies::frame(&replies::chunk(&json!({}), Some("tool_calls"))),
            replies::DONE.to_owned(),
        ]
        .into();
        let completion = Script::json(200, &replies::completion(&message, "tool_calls"));
        for (body, settings, script) in [
            (tools_route::request(), "", completion.clone()),
            (whole(tools_route::request()), "", completion),
            (tools_route::request(), LIVE, Script::sse(live)),
        ] {
            let fake = FakeVllm::always(script).await;
            let respool = Respool::with(&fake, settings).await;
            let turn = ask(&respool, &body).await;
            let choice = &turn.choices[&0];
            assert_eq!((choice.finish_reason.as_deref(), choice.tool_calls.len()), (Some("tool_calls"), 1));
            let sent = &choice.tool_calls[0];
            assert_eq!((sent.name.as_str(), sent.json()), (name, serde_json::from_str(arguments).unwrap()));
            assert_eq!(asked(&fake), 3, "{name}: two second attempts come first");
        }
    }
}

#[tokio::test]
async fn empty_replies_are_repeated_once() {
    let _time = IdleTime::begin();
    let mut empty = replies::text("");
    empty["choices"] = json!([]);
    for body in [tools_route::request(), whole(tools_route::request()), whole(passthrough::request())] {
        let fake = FakeVllm::start([Script::json(200, &empty), says("ok")]).await;
        let respool = Respool::before(&fake).await;
        assert_eq!(ask(&respool, &body).await.choices[&0].content, "ok");
        let fake = FakeVllm::always(Script::json(200, &empty)).await;
        let respool = Respool::before(&fake).await;
        let reply = exchange(respool.address, &Request::chat(&body)).await;
        assert_eq!((&reply.error()["code"], asked(&fake)), (&json!("no_answer"), 2), "{}", reply.text());
    }
}

/// Tests wait for no server unless they say so.
fn waits(bound: &str) -> String {
    format!("[recovery]\nwait_for_upstream = \"{bound}\"")
}

/// A server that is down for a number of probes and then answers.
async fn starting(probes: usize) -> FakeVllm {
    let down = || Script::json(503, &json!({})).unchecked();
    let fake = FakeVllm::start((0..probes).map(|_| down().on("GET", "/health"))).await;
    fake.then(down());
    fake.otherwise(says("ok"));
    fake
}

#[tokio::test]
async fn requests_wait_for_starting_servers() {
    let _time = IdleTime::begin();
    for body in [tools_route::request(), passthrough::request()] {
        let fake = starting(20).await;
        if body.get("tools").is_none() {
            fake.otherwise(Script::sse(replies::text_stream(&["ok"], true)));
        }
        let respool = Respool::with(&fake, &waits("1m")).await;
        let began = Instant::now();
        assert_eq!(ask(&respool, &body).await.choices[&0].content, "ok");
        assert_eq!(asked(&fake), 2, "it is asked when it is up, and probed before");
        assert!(began.elapsed() > Duration::from_secs(10), "{:?}", began.elapsed());
    }
}

/// Who asks for a whole reply sees no sign of life meanwhile.
#[tokio::test]
async fn whole_replies_wait_shortly() {
    let _time = IdleTime::begin();
    for path in ["/v1/chat/completions", "/v1/responses"] {
        let upstream = "[[upstream]]\nname = \"box\"\nurl = \"http://127.0.0.1:1\"\n";
        let respool = Respool::configured(&format!("{}\n{upstream}", waits("1m"))).await;
        let body =
            json!({"model": "gpt-oss-20b", "input": "hi", "messages": [{"role": "user", "content": "hi"}]});
        let began = Instant::now();
        let reply = exchange(respool.address, &Request::post(path, body.to_string())).await;
        assert_eq!(reply.status, 503, "{path}");
        assert!(reply.text().contains("waited 15 s"), "{}", reply.text());
        let seconds = began.elapsed().as_secs();
        assert!((14..20).contains(&seconds), "{path}: {seconds} s");
    }
}

/// A server of two that is up answers at once; while both are down, the one that comes back first does,
/// whichever was asked last.
#[tokio::test]
async fn other_servers_replace_starting_ones() {
    let _time = IdleTime::begin();
    let models = "models = [\"gpt-oss-20b\"]";
    let beside_one_that_is_gone = async |fake: &FakeVllm| {
        upstreams::before(&[("gone", "http://127.0.0.1:1", models), ("b", &fake.url(), models)], &waits("1m"))
            .await
    };
    let up = FakeVllm::always(says("ok")).await;
    let respool = beside_one_that_is_gone(&up).await;
    let began = Instant::now();
    for number in 0..6 {
        let body = upstreams::begins(&format!("conversation {number}"));
        assert_eq!(ask(&respool, &body).await.choices[&0].content, "ok");
    }
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());

    for number in 0..6 {
        let coming = starting(20).await;
        let respool = beside_one_that_is_gone(&coming).await;
        let began = Instant::now();
        let body = upstreams::begins(&format!("conversation {number}"));
        assert_eq!(ask(&respool, &body).await.choices[&0].content, "ok");
        assert!(began.elapsed() > Duration::from_secs(10) && began.elapsed() < Duration::from_secs(30));
        assert!(asked(&coming) <= 3, "{}", asked(&coming));
    }
}

#[tokio::test]
async fn startup_errors_name_the_wait() {
    let _time = IdleTime::begin();
    for (bound, expected) in [("12s", Some("respool waited 12 s for it")), ("0s", None)] {
        let down = Script::json(503, &json!({}));
        let fake = FakeVllm::start([down.clone()]).await;
        fake.otherwise(down.on("GET", "/health"));
        let respool = Respool::with(&fake, &waits(bound)).await;
        let reply = exchange(respool.address, &Request::chat(&whole(tools_route::request()))).await;
        let message = reply.error()["message"].as_str().unwrap().to_owned();
        assert_eq!((reply.status, asked(&fake)), (503, 1), "{message}");
        assert_eq!(message.contains("respool waited"), expected.is_some(), "{message}");
        assert!(expected.is_none_or(|waited| message.contains(waited)), "{message}");
    }
}

#[tokio::test]
async fn busy_servers_get_their_pause() {
    let _time = IdleTime::begin();
    let busy = |seconds: &str| {
        Script::json(429, &replies::error(429, "slow down", "x")).header("retry-after", seconds)
    };
    let fake = FakeVllm::start([busy("9"), says("ok")]).await;
    let respool = Respool::with(&fake, &waits("1m")).await;
    let began = Instant::now();
    assert_eq!(ask(&respool, &tools_route::request()).await.choices[&0].content, "ok");
    assert!(began.elapsed() >= Duration::from_secs(9), "{:?}", began.elapsed());
    let fake = FakeVllm::always(busy("90")).await;
    let respool = Respool::with(&fake, &waits("1m")).await;
    let reply = exchange(respool.address, &Request::chat(&whole(tools_route::request()))).await;
    assert_eq!((reply.status, asked(&fake)), (429, 1), "longer than `recovery.wait_for_upstream`");
}

#[tokio::test]
async fn live_replies_are_bounded() {
    let chunk = replies::frame(&replies::chunk(&json!({"content": "x".repeat(4_000)}), None));
    let fake = FakeVllm::always(Script::endless(200, "text/event-stream", chunk)).await;
    let settings = format!("{LIVE}\n[recovery]\nattempts = 0\n[limits]\nmax_body = \"256KiB\"");
    let respool = Respool::with(&fake, &settings).await;
    let turn = ask(&respool, &tools_route::request()).await;
    let message = turn.error.expect("an error")["message"].as_str().unwrap().to_owned();
    assert!(message.contains("limits.max_body"), "{message}");
    assert!(turn.choices[&0].content.len() <= 256 << 10);
}

/// Answers the first request of each connection and closes it, once it has read the second.
async fn answers_once_per_connection(listener: TcpListener) {
    while let Ok((socket, _)) = listener.accept().await {
        let (read, mut write) = socket.into_split();
        let mut incoming = Incoming::new(read);
        for is_second in [false, true] {
            let Ok(Some(head)) = incoming.head().await else { break };
            let mut framing = head.framing(Framing::Done).unwrap();
            while let Ok(Some(_)) = incoming.piece(&mut framing).await {}
            if !is_second {
                crate::support::fake_vllm::play(&mut write, &says("ok"), |_| ()).await;
            }
        }
    }
}

async fn status(address: SocketAddr, request: &Request) -> u16 {
    exchange(address, request).await.status
}

#[tokio::test]
async fn only_harmless_requests_are_resent() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = tokio::spawn(answers_once_per_connection(listener));
    let respool = Respool::configured(&format!("[[upstream]]\nname = \"box\"\nurl = \"{url}\"")).await;
    let post = Request::post("/v1/embeddings", r#"{"model": "m", "input": "x"}"#);
    assert_eq!(status(respool.address, &post).await, 200);
    assert_eq!(status(respool.address, &post).await, 502, "it may have been carried out");
    assert_eq!(status(respool.address, &post).await, 200);
    assert_eq!(status(respool.address, &Request::get("/load")).await, 200, "reading is repeated");
    server.abort();
}

#[tokio::test]
async fn metrics_name_model_and_upstream() {
    let fake = FakeVllm::always(says("ok")).await;
    fake.serve_models(&["named-in-metrics"]);
    let respool = Respool::before(&fake).await;
    // Its list of models is learnt first: names that no upstream serves would make series without end.
    exchange(respool.address, &Request::get("/v1/models")).await;
    let mut body = whole(tools_route::request());
    body["model"] = json!("named-in-metrics");
    for _ in 0..2 {
        ask(&respool, &body).await;
    }
    let metrics = exchange(respool.address, &Request::get("/metrics")).await.text();
    let has = |series: &str, labels: &[&str]| {
        let is_it = |line: &&str| line.starts_with(series) && labels.iter().all(|label| line.contains(label));
        assert!(metrics.lines().any(|line| is_it(&line)), "{series} {labels:?}\n{metrics}");
    };
    has("respool_requests_total{", &[r#"model="named-in-metrics""#, r#"route="tools""#]);
    has("respool_tokens_total{", &[r#"model="named-in-metrics""#, r#"upstream="box""#]);
}

/// A request that failed had no model in the metrics, though the server had answered for that model before.
#[tokio::test]
async fn metrics_name_the_model_of_failures() {
    let replies = [says("ok"), Script::json(400, &json!({"error": {"message": "no", "code": 400}}))];
    let fake = FakeVllm::start(replies).await;
    let respool = Respool::before(&fake).await;
    let mut body = whole(tools_route::request());
    body["model"] = json!("served-before");
    assert_eq!(status(respool.address, &Request::chat(&body)).await, 200);
    assert_eq!(status(respool.address, &Request::chat(&body)).await, 400);
    let metrics = exchange(respool.address, &Request::get("/metrics")).await.text();
    let is_failure =
        |line: &str| line.contains(r#"model="served-before""#) && line.contains(r#"outcome="error""#);
    let failure = metrics.lines().find(|line| is_failure(line)).unwrap_or_else(|| panic!("{metrics}"));
    assert!(failure.contains(r#"upstream="box""#) && failure.contains("error_code="), "{failure}");
}
