//! Streams and large requests on the Responses and Messages routes, compared with the chat route.
//!
//! `cargo bench --bench wires`: respool has one thread, the model server and the client another, all over
//! real sockets. The routes take turns in every round; the figures are medians, and what counts are their
//! ratios. `ROUNDS=9` is the default.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark fails by panicking, and prints")]
#![expect(clippy::cast_precision_loss, reason = "counts of a benchmark")]

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use server::{Stop, build_routes, run_server};
use settings::{FileText, Flags, resolve};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use translate::Sealer;
use translate::messages::read_message;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Chunks of one stream.
const CHUNKS: usize = 20_000;
/// Requests of one round.
const REQUESTS: usize = 100;
/// The size of a large request, in bytes.
const LARGE: usize = 150_000;

/// A route, and the bytes that end its streams.
const ROUTES: [(&str, &str); 3] = [
    ("/v1/chat/completions", "data: [DONE]"),
    ("/v1/responses", "event: response.completed"),
    ("/v1/messages", "event: message_stop"),
];

/// One chunk as vLLM 0.32 writes it.
fn chunk(delta: &Value, finish: &Value) -> String {
    let choice =
        json!({"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish, "token_ids": null});
    let chunk = json!({"id": "chatcmpl-b35202026ed099bb", "object": "chat.completion.chunk", "created": 1_795_223_126,
        "model": "gpt-oss-120b", "choices": [choice]});
    format!("data: {chunk}\n\n")
}

/// A stream of many small chunks, each an HTTP chunk of its own.
fn stream() -> Vec<u8> {
    let role = chunk(&json!({"role": "assistant", "content": ""}), &Value::Null);
    let content =
        (0..CHUNKS).map(|number| chunk(&json!({"content": format!(" word{}", number % 100)}), &Value::Null));
    let finish = chunk(&json!({}), &json!("stop"));
    let usage = json!({"id": "chatcmpl-b35202026ed099bb", "object": "chat.completion.chunk", "created": 1_795_223_126,
        "model": "gpt-oss-120b", "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": CHUNKS, "total_tokens": CHUNKS + 9}});
    let rest = [finish, format!("data: {usage}\n\n"), "data: [DONE]\n\n".to_owned()];
    let frames = std::iter::once(role).chain(content).chain(rest);
    let framed = frames.map(|frame| format!("{:x}\r\n{frame}\r\n", frame.len()));
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    format!("{head}{}0\r\n\r\n", framed.collect::<String>()).into_bytes()
}

/// A whole reply.
fn reply() -> Vec<u8> {
    let call = json!({"id": "call_1", "type": "function", "function": {"name": "Read", "arguments": "{\"file_path\": \"/a\"}"}});
    let body = json!({"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": null, "tool_calls": [call]}, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18}});
    let body = body.to_string();
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head, body].concat().into_bytes()
}

/// Reads one request; true when it asks for a stream. `None` at the end of the connection.
async fn request_read(socket: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<bool> {
    buffer.clear();
    loop {
        if socket.read_buf(buffer).await.unwrap_or_default() == 0 {
            return None;
        }
        let Some(end) = memchr::memmem::find(buffer, b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&buffer[..end]).to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.and_then(|length| length.parse().ok()).unwrap_or_default();
        if buffer.len() >= end + 4 + length {
            return Some(memchr::memmem::find(&buffer[end..], b"\"stream\":true").is_some());
        }
    }
}

async fn serve_model(mut socket: TcpStream, stream: Arc<Vec<u8>>, reply: Arc<Vec<u8>>) {
    let mut buffer = Vec::new();
    while let Some(is_stream) = request_read(&mut socket, &mut buffer).await {
        let said = if is_stream { &stream } else { &reply };
        if socket.write_all(said).await.is_err() {
            return;
        }
    }
}

async fn model() -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stream, reply) = (Arc::new(stream()), Arc::new(reply()));
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(serve_model(socket, Arc::clone(&stream), Arc::clone(&reply)));
        }
    });
    address
}

/// respool on a thread of its own: where it listens, and the file in which the kernel counts the thread's
/// time.
fn respool(upstream: SocketAddr, state: PathBuf) -> (SocketAddr, PathBuf) {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let thread = fs::read_link("/proc/thread-self").unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let toml = format!(
                "state_dir = \"{}\"\n[log]\nlevel = \"error\"\n[[upstream]]\nname = \"box\"\nurl = \"http://{upstream}\"\n",
                state.display()
            );
            let file = FileText { path: "bench.toml".as_ref(), text: &toml };
            let settings = resolve(Some(file), &BTreeMap::new(), &Flags::default()).unwrap().settings;
            let stop = Stop::default();
            let app = respool::cli::app(&settings, &stop.abort).await.unwrap();
            let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
            let counted = PathBuf::from("/proc").join(thread).join("schedstat");
            sender.send((listener.local_addr().unwrap(), counted)).unwrap();
            run_server(listener, build_routes(app), stop).await;
        });
    });
    receiver.recv().unwrap()
}

/// The processor time that a thread has used.
fn processor_time(counted: &PathBuf) -> Duration {
    let text = fs::read_to_string(counted).unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

/// Asks once, and reads the whole reply.
async fn ask(address: SocketAddr, path: &str, body: &str, end: &str) {
    let mut socket = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    socket.write_all(body.as_bytes()).await.unwrap();
    let mut said = Vec::with_capacity(1 << 20);
    socket.read_to_end(&mut said).await.unwrap();
    let tail = &said[said.len().saturating_sub(64 << 10)..];
    assert!(
        memchr::memmem::find(&said, end.as_bytes()).is_some(),
        "{path}: {}",
        String::from_utf8_lossy(tail)
    );
}

/// A request without tools for each route.
fn small_requests() -> [String; 3] {
    let messages = json!([{"role": "user", "content": "Write a long text."}]);
    [
        json!({"model": "m", "messages": messages, "stream": true, "stream_options": {"include_usage": true}}),
        json!({"model": "m", "input": messages, "stream": true, "store": false}),
        json!({"model": "m", "messages": messages, "stream": true, "max_tokens": 32_000}),
    ]
    .map(|request| request.to_string())
}

/// Claude Code's request with a long conversation, and the chat request that asks the same.
fn large_requests() -> [String; 2] {
    let recorded = fs::read_to_string("fixtures/clients/messages/claude-code-after-calls.json").unwrap();
    let mut request: Value = serde_json::from_str(&recorded).unwrap();
    let turn = request["messages"].as_array().unwrap().clone();
    let tool = request["tools"][0].clone();
    let text = "What a tool does, and when it is to be used, is told at length. ".repeat(30);
    for number in 0..20 {
        let mut tool = tool.clone();
        tool["name"] = format!("Tool{number}").into();
        tool["description"] = text.clone().into();
        request["tools"].as_array_mut().unwrap().push(tool);
    }
    while request.to_string().len() < LARGE {
        let mut turn = turn.clone();
        turn.push(json!({"role": "user", "content": [{"type": "text", "text": text.clone()}]}));
        request["messages"].as_array_mut().unwrap().extend(turn);
    }
    request["messages"]
        .as_array_mut()
        .unwrap()
        .push(json!({"role": "user", "content": [{"type": "text", "text": "MARK"}]}));
    request["model"] = "m".into();
    let body = request.to_string();
    let read = read_message(body.as_bytes(), &Sealer::new(b"a secret of this benchmark")).unwrap();
    let chat = read.chat.strip_suffix('}').unwrap().to_owned()
        + r#","stream":true,"stream_options":{"include_usage":true}}"#;
    [chat, body]
}

/// Median wall time and processor time of each, in rounds that take turns.
async fn measure(
    address: SocketAddr,
    counted: &PathBuf,
    asked: &[(usize, &str)],
    times: usize,
) -> Vec<(Duration, Duration)> {
    let rounds: usize = std::env::var("ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(9);
    let mut all = vec![Vec::new(); asked.len()];
    for round in 0..=rounds {
        for (place, (route, body)) in asked.iter().enumerate() {
            let (path, end) = ROUTES[*route];
            let (began, before) = (Instant::now(), processor_time(counted));
            for number in 0..times {
                let body = body.replace("MARK", &format!("What is step {number} of round {round}?"));
                ask(address, path, &body, end).await;
            }
            // The first round warms up.
            if round > 0 {
                all[place].push((began.elapsed(), processor_time(counted).saturating_sub(before)));
            }
        }
    }
    all.into_iter().map(|times| (median(&times, |it| it.0), median(&times, |it| it.1))).collect()
}

fn median(times: &[(Duration, Duration)], of: impl Fn(&(Duration, Duration)) -> Duration) -> Duration {
    let mut times: Vec<Duration> = times.iter().map(of).collect();
    times.sort_unstable();
    times[times.len() / 2]
}

fn main() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let state = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (address, counted) = respool(model().await, state.path().to_owned());
        let small = small_requests();
        let asked: Vec<(usize, &str)> = small.iter().map(String::as_str).enumerate().collect();
        let streams = measure(address, &counted, &asked, 1).await;
        for ((path, _), (wall, busy)) in ROUTES.iter().zip(&streams) {
            println!(
                "{path:<22} {:>9.0} chunks/s, {:.2} x chat; {:.2} us of processor time per chunk, {:.2} x chat",
                CHUNKS as f64 / wall.as_secs_f64(),
                streams[0].0.as_secs_f64() / wall.as_secs_f64(),
                busy.as_secs_f64() * 1e6 / CHUNKS as f64,
                busy.as_secs_f64() / streams[0].1.as_secs_f64(),
            );
        }
        let [chat, message] = large_requests();
        let large = measure(address, &counted, &[(0, chat.as_str()), (2, message.as_str())], REQUESTS).await;
        for (name, (wall, busy)) in ["chat", "messages"].iter().zip(&large) {
            println!(
                "request of {} KB, {name:<8} {:>6.0} us, {:.2} x chat; {:.0} us of processor time, {:.2} x chat",
                message.len() / 1000,
                wall.as_secs_f64() * 1e6 / REQUESTS as f64,
                wall.as_secs_f64() / large[0].0.as_secs_f64(),
                busy.as_secs_f64() * 1e6 / REQUESTS as f64,
                busy.as_secs_f64() / large[0].1.as_secs_f64(),
            );
        }
    });
}
