//! The memory that a request costs: allocations and bytes, counted by the allocator: its reading, the whole
//! way from socket to socket, and a stream that is open. A test binary of its own, because the counting
//! allocator takes the place of the usual one in it. `cargo bench --bench relay` shows the reading with its
//! time.
//!
//! The limits are a fifth above what was measured. A change that goes beyond them either copies something
//! that it need not, or says why in its commit and raises them.

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "tests fail by panicking, and say what they counted"
)]

use std::sync::Arc;
use std::time::Duration;

use allocation_counter::measure;
use bytes::Bytes;
use futures::executor::block_on;
use http::HeaderMap;
use relay::{Origin, Relay, RelayConfig, RelayLimits};
use telemetry::{Recording, RequestRecord, RequestStart};
use translate::GuardLimits;
use upstream::{Fleet, Upstream, UpstreamConfig};

fn relay() -> Arc<Relay> {
    let upstream = Arc::new(Upstream::new(&UpstreamConfig::default()).unwrap());
    let fleet = Arc::new(Fleet::new(vec![upstream], Duration::from_mins(1)));
    let guard = GuardLimits { max_tool_results: 500, max_repeats: 8 };
    Arc::new(Relay::new(RelayConfig::default(), fleet, RelayLimits { max_body: 32 << 20, guard }))
}

/// The second reading of `body` counts: by then everything is set up, and an earlier turn was seen.
fn counted(before: &str, body: &str) -> (u64, u64) {
    let read = |relay: &Arc<Relay>, body: &str| {
        block_on(relay.read(Bytes::copy_from_slice(body.as_bytes()), origin())).unwrap();
    };
    // What is built once in a process, such as a regular expression, is not the request's.
    read(&crate::relay(), body);
    let relay = relay();
    read(&relay, before);
    let bytes = Bytes::copy_from_slice(body.as_bytes());
    let origin = origin();
    // Its line is written outside of what is counted.
    let _record = origin.record.clone();
    let counted = measure(|| {
        let request = block_on(relay.read(bytes, origin)).unwrap();
        drop(request);
    });
    (counted.count_total, counted.bytes_total)
}

fn origin() -> Origin {
    let start = RequestStart::new("r".into(), "POST /", "other");
    Origin::internal(HeaderMap::new(), RequestRecord::begin(start, &Recording::default()))
}

fn check(what: &str, counted: (u64, u64), (allocations, bytes): (u64, u64)) {
    println!("{what}: {} allocations of {} bytes", counted.0, counted.1);
    assert!(
        counted.0 <= allocations && counted.1 <= bytes,
        "{what}: {} allocations of {} bytes; the limits are {allocations} and {bytes}",
        counted.0,
        counted.1
    );
}

#[test]
fn reading_a_request_stays_cheap() {
    let short = r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":64}"#;
    check("a short request", counted(short, short), (14, 3 << 10));
    let openclaw = std::fs::read_to_string("fixtures/openclaw/request-2026.9.6-fulltools.json").unwrap();
    let size = openclaw.len() as u64;
    check(
        "OpenClaw's request after another client's",
        counted(short, &openclaw),
        (500, 2 * size + (12 << 10)),
    );
    // No copy: `stream` leaves with another value, and the rest as it came.
    check("OpenClaw's request again", counted(&openclaw, &openclaw), (52, 12 << 10));
    let turn = |name: &str| std::fs::read_to_string(format!("fixtures/openclaw/{name}.json")).unwrap();
    let (first, next) = (turn("turn-exec-1"), turn("turn-exec-2-after-tool"));
    check("the next turn of a conversation", counted(&first, &next), (114, 19 << 10));
}

/// Replies of an upstream, ready to be sent.
const SHORT_REPLY: &str = r#"{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"How can I help you today?","reasoning":null,"tool_calls":[]},"logprobs":null,"finish_reason":"stop","stop_reason":null,"token_ids":null}],"service_tier":null,"system_fingerprint":"vllm-0.32.0-d13fe2ed","usage":{"prompt_tokens":9,"total_tokens":16,"completion_tokens":7,"prompt_tokens_details":null},"prompt_logprobs":null}"#;

/// The cost of a whole request from the client's socket to the client's socket: the server, the relay and the
/// upstream's client. Both peers read and write without allocating.
mod whole {
    use std::net::SocketAddr;

    use server::{Stop, build_routes, run_server};
    use settings::{FileText, Flags, resolve};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    /// Answers every request on every connection with these bytes.
    /// `longest`: the longest request, in bytes.
    pub(super) async fn upstream(reply: &str, longest: usize) -> SocketAddr {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let reply = reply.to_owned();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let reply = reply.clone();
                tokio::spawn(async move {
                    let mut peer = Peer::new(socket, longest);
                    while peer.message().await {
                        peer.socket.write_all(reply.as_bytes()).await.unwrap();
                    }
                });
            }
        });
        address
    }

    /// A respool in front of it, with default settings but for what it keeps on disk.
    pub(super) async fn respool(upstream: SocketAddr) -> SocketAddr {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let state = std::env::temp_dir().join(format!("respool-allocations-{}", std::process::id()));
        let text = format!(
            "state_dir = \"{}\"\n[usage]\nkeep = \"0s\"\n[[upstream]]\nurl = \"http://{upstream}\"\n",
            state.display()
        );
        let file = FileText { path: "test.toml".as_ref(), text: &text };
        let settings =
            resolve(Some(file), &std::collections::BTreeMap::new(), &Flags::default()).unwrap().settings;
        let stop = Stop::default();
        let app = respool::cli::app(&settings, &stop.abort).await.unwrap();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(run_server(listener, build_routes(app), stop));
        address
    }

    /// One end of a connection, with a buffer of its own.
    pub(super) struct Peer {
        pub(super) socket: TcpStream,
        buffer: Box<[u8]>,
        filled: usize,
    }

    impl Peer {
        pub(super) fn new(socket: TcpStream, longest: usize) -> Self {
            Self { socket, buffer: vec![0; longest].into(), filled: 0 }
        }

        /// Reads one message with a `content-length`, or a stream up to its end; false at the end of the
        /// connection.
        pub(super) async fn message(&mut self) -> bool {
            self.filled = 0;
            loop {
                let length = self.socket.read(&mut self.buffer[self.filled..]).await.unwrap();
                if length == 0 {
                    return false;
                }
                self.filled += length;
                if is_whole(&self.buffer[..self.filled]) {
                    return true;
                }
            }
        }

        pub(super) fn text(&self) -> &str {
            std::str::from_utf8(&self.buffer[..self.filled]).unwrap()
        }
    }

    fn is_whole(message: &[u8]) -> bool {
        let text = std::str::from_utf8(message).unwrap_or_default();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
        let length =
            head.lines().find_map(|line| line.strip_prefix("content-length: ")?.trim().parse::<usize>().ok());
        length.map_or_else(|| body.ends_with("0\r\n\r\n"), |length| body.len() >= length)
    }
}

/// Allocations and bytes of each of many requests over one connection.
fn of_whole(body: &str, reply: &str, expected: &str) -> (u64, u64) {
    const MANY: u64 = 50;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let head = |first: &str, length: usize| {
        format!("{first}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n")
    };
    let reply = format!("{}\r\n{reply}", head("HTTP/1.1 200 OK", reply.len()));
    let request = format!(
        "{}host: x\r\nauthorization: Bearer sk-x\r\naccept: */*\r\n\r\n{body}",
        head("POST /v1/chat/completions HTTP/1.1", body.len())
    );
    let mut client = runtime.block_on(async {
        let address = whole::respool(whole::upstream(&reply, 1 << 20).await).await;
        whole::Peer::new(tokio::net::TcpStream::connect(address).await.unwrap(), 1 << 20)
    });
    let mut ask = |times: u64| {
        use tokio::io::AsyncWriteExt as _;
        runtime.block_on(async {
            for _ in 0..times {
                client.socket.write_all(request.as_bytes()).await.unwrap();
                assert!(client.message().await);
            }
        });
        assert!(
            client.text().starts_with("HTTP/1.1 200") && client.text().contains(expected),
            "{}",
            client.text()
        );
    };
    // Connections, caches and metrics are there then.
    ask(5);
    let counted = measure(|| ask(MANY));
    (counted.count_total / MANY, counted.bytes_total / MANY)
}

#[test]
fn a_whole_request_stays_cheap() {
    let short = r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":64}"#;
    let text = "How can I help you today?";
    check("a short reply", of_whole(short, SHORT_REPLY, text), (48, 40 << 10));
    let openclaw = std::fs::read_to_string("fixtures/openclaw/request-2026.9.6-fulltools.json").unwrap();
    // Twice its size is hyper's buffer, which doubles; once more is there for a machine that delivers it in
    // several pieces.
    let size = openclaw.len() as u64;
    check("OpenClaw's request", of_whole(&openclaw, SHORT_REPLY, text), (148, 3 * size + (64 << 10)));
}

/// The head of a stream and its first chunks; its rest never comes.
const BEGUN_STREAM: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

fn chunk(delta: &str) -> String {
    let event = format!(
        "data: {{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{{\"index\":0,\
         \"delta\":{delta},\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null}}]}}\n\n"
    );
    format!("{:x}\r\n{event}\r\n", event.len())
}

/// Bytes that the heap holds for each of many streams that have begun and wait for their next chunk,
/// respool's and hyper's together.
fn of_open_stream() -> u64 {
    const MANY: usize = 50;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let chunks: String = std::iter::once(r#"{"role":"assistant","content":""}"#)
        .chain([r#"{"content":"word "}"#; 20])
        .map(chunk)
        .collect();
    let body = r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true,"stream_options":{"include_usage":true}}"#;
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let reply = format!("{BEGUN_STREAM}{chunks}");
    let address = runtime.block_on(async { whole::respool(whole::upstream(&reply, 1 << 10).await).await });
    let open = || {
        runtime.block_on(async {
            use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
            let mut socket = tokio::net::TcpStream::connect(address).await.unwrap();
            socket.write_all(request.as_bytes()).await.unwrap();
            let (mut buffer, mut words) = (vec![0; 64 << 10], 0);
            while words < 20 {
                let length = socket.read(&mut buffer).await.unwrap();
                words += String::from_utf8_lossy(&buffer[..length]).matches("word ").count();
            }
            socket
        })
    };
    let mut streams: Vec<_> = std::iter::repeat_with(open).take(5).collect();
    streams.reserve(MANY);
    let held = measure(|| streams.extend(std::iter::repeat_with(open).take(MANY)));
    u64::try_from(held.bytes_current).unwrap() / MANY as u64
}

#[test]
fn an_open_stream_holds_little() {
    // 32 KiB are the buffers of hyper's two connections.
    let bytes = of_open_stream();
    println!("an open stream holds {bytes} bytes");
    assert!(bytes <= 78_000, "an open stream holds {bytes} bytes");
}
