//! The bodies of all requests together: the real program, many large bodies that do not end, and its memory.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::lifecycle::Served;
use crate::passthrough;
use crate::support::client::{Client, Request, exchange};
use crate::support::fake_vllm::FakeVllm;
use crate::support::process::{forget_peak, measure};
use crate::support::replies;
use crate::support::respool::Respool;
use crate::support::script::Script;

const BODY: usize = 30 << 20;

/// Sends all of a body but its end, and waits for what is answered; `None` when that does not come.
async fn unfinished(address: std::net::SocketAddr) -> Option<String> {
    let mut socket = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {BODY}\r\n\r\n"
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    let (mut answers, mut body) = socket.split();
    let spaces = vec![b' '; 1 << 20];
    let send = async {
        for _ in 0..BODY / spaces.len() - 1 {
            // Who was answered is not listened to for ever.
            if body.write_all(&spaces).await.is_err() {
                break;
            }
        }
        std::future::pending::<()>().await;
    };
    let mut answer = vec![0; 4096];
    let read = tokio::time::timeout(Duration::from_secs(12), answers.read(&mut answer));
    let read = tokio::select! { read = read => read, () = send => unreachable!() };
    let length = read.ok()?.ok()?;
    Some(String::from_utf8_lossy(&answer[..length]).into_owned())
}

/// 40 unfinished bodies of 30 MiB took 1.25 GiB.
#[tokio::test]
async fn unfinished_bodies_stay_within_budget() {
    let fake = FakeVllm::always(Script::json(200, &replies::text("Paris"))).await;
    let toml = format!(
        "[limits]\nmax_bodies = \"64MiB\"\nclient_timeout = \"40s\"\n[[upstream]]\nname = \"box\"\nurl = \"{}\"\n",
        fake.url()
    );
    let served = Served::with_file(&toml, &[]);
    let before = measure(served.child.id());
    forget_peak(served.child.id());
    let mut clients: JoinSet<_> = (0..12).map(|_| unfinished(served.address)).collect();
    let mut answers = Vec::new();
    while let Some(answer) = clients.join_next().await {
        answers.push(answer.unwrap());
    }
    let refused = answers.iter().flatten().collect::<Vec<_>>();
    assert_eq!(refused.len(), 10, "two bodies have room: {refused:?}");
    for answer in refused {
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("bodies_full"), "{answer}");
        assert!(answer.to_lowercase().contains("retry-after: 5"), "{answer}");
    }
    let grown = (measure(served.child.id()).peak - before.resident) >> 10;
    assert!(grown < 64 + 48, "{grown} MiB more for 64 MiB of bodies");
    // The clients have gone, and there is room again.
    let reply = exchange(served.address, &Request::chat(&passthrough::request())).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
}

/// A stream that has spoken is never asked for again: its request's body makes room for others, however long
/// it goes on.
#[tokio::test]
async fn speaking_streams_release_their_request() {
    let stream = replies::text_stream(&["Par", "is"], false);
    let begins: Vec<_> = stream[..2].to_vec();
    let fake = FakeVllm::always(Script::sse(begins).then_stall()).await;
    let respool = Respool::with(&fake, "[limits]\nmax_body = \"1MiB\"\nmax_bodies = \"1MiB\"").await;
    let mut body = passthrough::request();
    body["messages"][0]["content"] = "x".repeat(700 << 10).into();
    let mut streams = Vec::new();
    // Claude Code sends a request again whose stream has failed: it is known again by a digest.
    let mut message = body.clone();
    message["max_tokens"] = 9.into();
    let claude =
        Request::post("/v1/messages", message.to_string()).header("user-agent", "claude-cli/2.1.330");
    for request in [Request::chat(&body), Request::chat(&body), claude.clone(), claude, Request::chat(&body)]
    {
        let mut client = Client::sending(respool.address, &request).await;
        assert_eq!(client.head().await.status, 200);
        let mut seen = String::new();
        while !seen.contains("Par") {
            seen += &String::from_utf8_lossy(&client.chunk().await.unwrap().bytes);
        }
        streams.push(client);
    }
    drop(streams);
}

/// The chat request that another API's request became counts like the request itself, as long as the model
/// server is silent.
#[tokio::test]
async fn waiting_bodies_of_other_apis_count() {
    let long = "x".repeat(700 << 10);
    let response = json!({"model": "gpt-oss-20b", "input": long, "stream": true, "store": false});
    let background = json!({"model": "gpt-oss-20b", "input": long, "background": true});
    let message = json!({"model": "gpt-oss-20b", "max_tokens": 9, "messages": [{"role": "user", "content": long}], "stream": true});
    let checks = [
        ("/v1/responses", response, 900),
        ("/v1/responses", background, 1700),
        ("/v1/messages", message, 900),
    ];
    futures::future::join_all(checks.map(|(path, body, room)| only_one_waits(path, body, room))).await;
}

/// `room`: in KiB, for one request and no second.
async fn only_one_waits(path: &str, body: Value, room: usize) {
    let silent = Script::json(200, &replies::text("Paris")).delay(Duration::from_mins(1));
    let fake = FakeVllm::always(silent).await;
    let state = tempfile::tempdir().unwrap();
    let toml = format!(
        "state_dir = \"{}\"\n[limits]\ncommit_after = \"50ms\"\nmax_body = \"1MiB\"\nmax_bodies = \"{room}KiB\"",
        state.path().display()
    );
    let respool = Respool::with(&fake, &toml).await;
    let request = Request::post(path, body.to_string());
    let mut first = Client::sending(respool.address, &request).await;
    assert_eq!(first.head().await.status, 200, "{path}");
    let second = exchange(respool.address, &request).await;
    assert_eq!(second.status, 503, "{path} {}", second.text());
    assert!(second.text().contains("limits.max_bodies"), "{path} {}", second.text());
}
