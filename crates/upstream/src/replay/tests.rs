//! The replay upstream over real sockets, one request per connection, read to its end.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::*;

fn fixture(dir: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(dir)
}

/// Three captures of one model.
fn demo() -> Replay {
    Replay::load(&fixture("demo")).unwrap()
}

/// A served replay; ends with the test.
struct Served {
    replay: Arc<Replay>,
    address: std::net::SocketAddr,
    shutdown: CancellationToken,
}

impl Served {
    async fn start(replay: Replay) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let served = Self {
            replay: Arc::new(replay),
            address: listener.local_addr().unwrap(),
            shutdown: CancellationToken::new(),
        };
        tokio::spawn(serve_replay(listener, Arc::clone(&served.replay), served.shutdown.clone()));
        served
    }

    /// Sends a request and returns the head and the body, chunked framing included.
    async fn exchange(&self, request_line: &str, headers: &str, body: &str) -> (String, String) {
        let mut socket = TcpStream::connect(self.address).await.unwrap();
        let length = body.len();
        let request = format!(
            "{request_line} HTTP/1.1\r\nHost: x\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
        );
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut reply = String::new();
        let read = socket.read_to_string(&mut reply);
        tokio::time::timeout(Duration::from_secs(10), read).await.expect("the reply ends").unwrap();
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    async fn chat(&self, body: &Value) -> (String, String) {
        let headers = "content-type: application/json\r\nX-Request-Id: r1\r\n";
        self.exchange("POST /v1/chat/completions", headers, &body.to_string()).await
    }

    async fn check(&self, request_line: &str, status: &str, expected: &str) {
        let (head, body) = self.exchange(request_line, "", "").await;
        assert!(head.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{request_line}: {head}");
        assert!(body.contains(expected), "{request_line}: {body}");
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

fn asking(model: &str, stream: bool) -> Value {
    json!({"model": model, "messages": [{"role": "user", "content": "hi"}], "stream": stream})
}

#[tokio::test]
async fn the_other_routes_answer_as_vllm_does() {
    let served = Served::start(demo()).await;
    served.check("GET /v1/models", "200 OK", r#""data":[{"id":"gpt-oss-20b","object":"model""#).await;
    served
        .check("GET /v1/models", "200 OK", r#""max_model_len":131072,"permission":[{"id":"modelperm-"#)
        .await;
    served.check("GET /health", "200 OK", "").await;
    served.check("GET /version", "200 OK", r#"{"version":"0.32.0"}"#).await;
    served.check("GET /v1/models/gpt-oss-20b", "404 Not Found", r#"{"detail":"Not Found"}"#).await;
    served.check("POST /tokenize", "404 Not Found", r#"{"detail":"Not Found"}"#).await;
    served.check("POST /health", "405 Method Not Allowed", r#"{"detail":"Method Not Allowed"}"#).await;
    let (head, _) = served.exchange("GET /v1/chat/completions", "", "").await;
    assert!(head.starts_with("HTTP/1.1 405 ") && head.contains("allow: POST"), "{head}");
}

#[tokio::test]
async fn the_demo_calls_a_tool_and_answers_after_it() {
    let served = Served::start(demo()).await;
    let request = std::fs::read_to_string(fixture("demo/with-tools.request.json")).unwrap();
    let mut request: Value = serde_json::from_str(&request).unwrap();
    request["stream"] = json!(false);
    request.as_object_mut().unwrap().remove("stream_options");
    let (head, body) = served.chat(&request).await;
    assert!(head.contains("content-type: application/json"), "{head}");
    let reply: Value = serde_json::from_str(&body).unwrap();
    let message = &reply["choices"][0]["message"];
    assert_eq!(message["tool_calls"][0]["function"]["name"], "read");
    assert!(reply.get("kv_transfer_params").is_some(), "the demo shows what only vLLM sends");

    let result = json!({"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "Hello!"});
    let internal = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nx\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>";
    let internal = json!({"role": "user", "content": [{"type": "text", "text": internal}]});
    request["messages"].as_array_mut().unwrap().extend([message.clone(), result, internal]);
    let (_, body) = served.chat(&request).await;
    let reply: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(reply["choices"][0]["message"]["content"], "Hello!");
}

#[tokio::test]
async fn a_stream_keeps_its_recorded_chunks() {
    let served = Served::start(demo()).await;
    let (head, body) = served.chat(&asking("gpt-oss-20b", true)).await;
    assert!(head.contains("content-type: text/event-stream; charset=utf-8"), "{head}");
    let recorded = std::fs::read_to_string(fixture("demo/gpt-oss-20b.stream.resp.http")).unwrap();
    let (_, framed) = recorded.split_once("\r\n\r\n").unwrap();
    assert_eq!(body.to_lowercase(), framed.to_lowercase());
}

#[tokio::test]
async fn usage_leaves_only_when_asked_for() {
    let served = Served::start(Replay::load(&fixture("vllm/v0.32.0-llama-hermes")).unwrap()).await;
    let mut request = asking("03-stream-include-usage", true);
    let (_, body) = served.chat(&request).await;
    assert!(!body.contains("\"usage\"") && body.ends_with("data: [DONE]\n\n\r\n0\r\n\r\n"), "{body}");
    request["stream_options"] = json!({"include_usage": true});
    let (_, body) = served.chat(&request).await;
    assert_eq!(body.matches("\"usage\"").count(), 1);
}

#[tokio::test]
async fn an_unrecorded_form_is_refused_except_for_errors() {
    let served = Served::start(Replay::load(&fixture("vllm/v0.32.0-llama-hermes")).unwrap()).await;
    let (head, body) = served.chat(&asking("01-nonstream-plain", true)).await;
    assert!(
        head.starts_with("HTTP/1.1 400 ") && body.contains("has no reply to this turn with stream=true"),
        "{body}"
    );
    for stream in [false, true] {
        let (head, body) = served.chat(&asking("24-err-context-overflow", stream)).await;
        assert!(
            head.starts_with("HTTP/1.1 400 ") && body.contains("maximum context length"),
            "{head} {body}"
        );
    }
}

#[tokio::test]
async fn refusals_have_vllms_shape() {
    let served = Served::start(demo()).await;
    let (head, body) = served.chat(&asking("nope", false)).await;
    assert!(head.starts_with("HTTP/1.1 404 "), "{head}");
    let message = "The model `nope` does not exist. Valid aliases: gpt-oss-20b.";
    let expected =
        json!({"error": {"message": message, "type": "NotFoundError", "param": "model", "code": 404}});
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap(), expected);
    let (head, _) =
        served.exchange("POST /v1/chat/completions", "content-type: text/plain\r\n", "hello").await;
    assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
    let (_, body) = served.chat(&json!({"messages": [{"role": "user", "content": "hi"}]})).await;
    assert!(body.contains("chat.completion"), "no model named means the first: {body}");
}

#[tokio::test]
async fn requests_can_be_looked_at() {
    let served = Served::start(demo()).await;
    served.chat(&asking("gpt-oss-20b", false)).await;
    let seen = served.replay.seen_requests();
    let [request] = seen.as_slice() else { panic!("one request came: {seen:?}") };
    assert_eq!((request.method.as_str(), request.target.as_str()), ("POST", "/v1/chat/completions"));
    assert!(request.headers.contains(&("x-request-id".to_owned(), "r1".to_owned())), "{:?}", request.headers);
    assert_eq!(request.body, asking("gpt-oss-20b", false).to_string());
    assert_eq!(request.answer_status, 200);
    assert!(request.answer_body.starts_with(b"{\"id\":\"chatcmpl-"));
    for _ in 0..REMEMBERED {
        served.check("GET /health", "200 OK", "").await;
    }
    let seen = served.replay.seen_requests();
    assert_eq!((seen.len(), seen[0].target.as_str()), (REMEMBERED, "/health"), "the oldest made room");
}

#[tokio::test]
async fn a_chunk_delay_spreads_the_stream() {
    let delay = Duration::from_millis(10);
    let served = Served::start(demo().with_chunk_delay(delay)).await;
    let begun = std::time::Instant::now();
    let (_, body) = served.chat(&asking("gpt-oss-20b", true)).await;
    let frames = u32::try_from(body.matches("data: ").count()).unwrap();
    assert!(begun.elapsed() >= delay * frames, "{frames} frames in {:?}", begun.elapsed());
}

#[tokio::test]
async fn shutdown_ends_the_server() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = CancellationToken::new();
    let server = tokio::spawn(serve_replay(listener, Arc::new(demo()), shutdown.clone()));
    let _idle = TcpStream::connect(address).await.unwrap();
    shutdown.cancel();
    tokio::time::timeout(Duration::from_secs(10), server).await.expect("it ends").unwrap();
    assert!(TcpStream::connect(address).await.is_err());
}

#[test]
fn every_capture_loads() {
    let mut models = BTreeSet::new();
    for set in std::fs::read_dir(fixture("vllm")).unwrap() {
        let set = set.unwrap().path();
        let replay = Replay::load(&set).unwrap_or_else(|error| panic!("{error}"));
        let captures = files_of(&set).unwrap().into_iter().filter(|file| Recording::is_named(file)).count();
        assert_eq!(replay.models.values().map(Vec::len).sum::<usize>(), captures, "{}", set.display());
        models.extend(replay.models().map(str::to_owned));
    }
    assert!(models.contains("ok-tool") && models.len() > 100, "{models:?}");
}

#[test]
fn a_directory_that_cannot_be_replayed_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let message = || Replay::load(dir.path()).unwrap_err().to_string();
    assert!(message().contains("holds no recordings: name them"), "{}", message());
    std::fs::write(dir.path().join("m.resp.http"), "HTTP/1.1 200 OK\r\n\r\n{}").unwrap();
    std::fs::write(dir.path().join("m.nonstream.body"), "{}").unwrap();
    assert!(
        message().contains("m.resp.http holds the same model's reply as m.nonstream.body"),
        "{}",
        message()
    );
    std::fs::write(dir.path().join("a.resp.http"), "hello").unwrap();
    assert!(message().contains("a.resp.http is not a captured HTTP reply: no blank line"), "{}", message());
    let missing = dir.path().join("missing");
    assert!(Replay::load(&missing).unwrap_err().to_string().starts_with("cannot read "));
}

#[tokio::test]
async fn several_recordings_of_one_reply_are_sent_in_turn() {
    let served = Served::start(Replay::tour().unwrap()).await;
    for expected in ["500 Internal Server Error", "200 OK", "500 Internal Server Error"] {
        let (head, _) = served.chat(&asking("failing-server", false)).await;
        assert!(head.starts_with(&format!("HTTP/1.1 {expected}")), "{head}");
    }
    // The other form has turns of its own.
    let (_, body) = served.chat(&asking("failing-server", true)).await;
    assert!(body.contains("unexpected tokens remaining"), "{body}");
}

#[tokio::test]
async fn a_slow_recording_is_silent_first() {
    let served = Served::start(Replay::tour().unwrap()).await;
    let began = std::time::Instant::now();
    let (_, body) = served.chat(&asking("slow-model", false)).await;
    assert!(body.contains("Hello!") && began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_sequence_ignores_what_is_asked() {
    let recording = |status, body: &'static str| {
        Recording::from_parts("m", status, "application/json", Bytes::from_static(body.as_bytes())).unwrap()
    };
    let asked = async |recordings| {
        let served = Served::start(Replay::answer_in_order(recordings)).await;
        let mut heads = Vec::new();
        for _ in 0..3 {
            let (head, body) = served.exchange("POST /v1/chat/completions", "", "not a request").await;
            heads.push(format!("{} {}", &head[9..12], &body[..body.len().min(3)]));
        }
        heads
    };
    assert_eq!(
        asked(vec![recording(500, "one"), recording(200, "two")]).await,
        ["500 one", "200 two", "400 {\"e"]
    );
    assert_eq!(
        asked(vec![recording(200, "one"), recording(503, "two")]).await,
        ["200 one", "503 two", "503 two"]
    );
}
