//! The upstream that misbehaves: one server that plays every row of the table. A request says in its
//! `x-request-id` (`ROW~MARKER`) which row and whose conversation it is; the answer carries the
//! conversation's marker throughout.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

use super::table::{Who, find};
use crate::support::eventually;
use crate::support::fake_vllm::{After, play};

use crate::support::http1::{Framing, Head, Incoming};
use crate::support::replies;
use crate::support::request_rules;
use crate::support::script::{Script, Step};
use crate::support::turn::{Turn, pieces};

/// A request, as far as an answer depends on it.
#[derive(Clone, Debug)]
pub struct Ask {
    /// A stream is wanted.
    pub stream: bool,
    /// Tools were declared.
    pub tools: bool,
    /// The conversation's own word.
    pub marker: String,
    /// How often this conversation has asked, from 1.
    pub attempt: usize,
}

impl Ask {
    /// The name of the one finish reason.
    fn finish(&self) -> &'static str {
        if self.tools { "tool_calls" } else { "stop" }
    }

    /// The right answer, whole.
    pub fn completion(&self) -> Value {
        let turn = Turn::of(&self.marker, self.tools);
        let calls: Vec<Value> = turn
            .calls
            .iter()
            .map(|(name, arguments)| {
                json!({"id": format!("chatcmpl-tool-{}", self.marker), "type": "function",
                       "function": {"name": name, "arguments": arguments.to_string()}})
            })
            .collect();
        let mut message = json!({"role": "assistant", "content": turn.content, "reasoning": turn.reasoning});
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        replies::completion(&message, self.finish())
    }

    /// The right answer, frame by frame: role, reasoning, four of content, two of the call, finish, usage,
    /// `[DONE]`.
    pub fn frames(&self) -> Vec<String> {
        let delta = |delta: &Value| replies::frame(&replies::chunk(delta, None));
        let turn = Turn::of(&self.marker, self.tools);
        let mut frames = vec![replies::role_frame(), delta(&json!({"reasoning": turn.reasoning}))];
        frames.extend(pieces(&self.marker).iter().map(|piece| delta(&json!({"content": piece}))));
        for (index, (name, arguments)) in turn.calls.iter().enumerate() {
            let arguments = arguments.to_string();
            let (first, rest) = arguments.split_at(7);
            frames.push(delta(&json!({"tool_calls": [{"index": index, "type": "function",
                "id": format!("chatcmpl-tool-{}", self.marker), "function": {"name": name, "arguments": first}}]})));
            frames.push(delta(&json!({"tool_calls": [{"index": index, "function": {"arguments": rest}}]})));
        }
        frames.push(replies::frame(&replies::chunk(&json!({}), Some(self.finish()))));
        frames.extend([replies::usage_frame(), replies::DONE.to_owned()]);
        frames
    }

    /// The right answer in the form asked for, properly framed.
    pub fn script(&self) -> Script {
        if self.stream { Script::sse(self.frames()) } else { Script::json(200, &self.completion()) }
    }

    /// The bytes of the right answer, without HTTP's framing.
    pub fn payload(&self) -> Vec<u8> {
        if self.stream {
            self.frames().concat().into_bytes()
        } else {
            self.completion().to_string().into_bytes()
        }
    }

    /// The media type of the form asked for.
    pub fn media_type(&self) -> &'static str {
        if self.stream { "text/event-stream; charset=utf-8" } else { "application/json" }
    }

    /// A whole body with this payload and type of the form asked for.
    pub fn with(&self, payload: impl Into<Vec<u8>>) -> Script {
        Script::whole(200, self.media_type(), payload)
    }

    /// A head of status 200 with these further lines, each ended by CRLF.
    pub fn head(&self, lines: &str) -> Vec<u8> {
        format!("HTTP/1.1 200 OK\r\ncontent-type: {}\r\n{lines}\r\n", self.media_type()).into_bytes()
    }

    /// A head with these lines and then the payload, as they are.
    pub fn raw(&self, lines: &str) -> Script {
        Script::wire([Step::Send([self.head(lines), self.payload()].concat())])
    }
}

/// The state of a conversation upstream.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fate {
    /// How many requests came.
    pub asks: usize,
    /// How many of them are still being answered.
    pub active: usize,
}

#[derive(Default)]
struct Shared {
    fates: Mutex<HashMap<String, Fate>>,
    problems: Mutex<Vec<String>>,
    open: AtomicUsize,
}

impl Shared {
    fn fate<T>(&self, marker: &str, change: impl FnOnce(&mut Fate) -> T) -> T {
        change(self.fates.lock().unwrap().entry(marker.to_owned()).or_default())
    }

    fn problem(&self, problem: String) {
        self.problems.lock().unwrap().push(problem);
    }
}

/// The server. Stops when dropped.
pub struct Upstream {
    /// Where it listens.
    pub address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

impl Upstream {
    /// Listens on a free port.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Self { address, shared, accepting }
    }

    /// How many connections are open, idle ones counted.
    pub fn open(&self) -> usize {
        self.shared.open.load(Ordering::Relaxed)
    }

    /// The faults of requests.
    pub fn problems(&self) -> Vec<String> {
        self.shared.problems.lock().unwrap().clone()
    }

    /// Waits until no request of a conversation is being answered any more. Returns the number of its
    /// requests.
    pub async fn settled(&self, marker: &str, within: Duration) -> Result<usize, String> {
        let is_idle = || self.shared.fate(marker, |fate| fate.active == 0);
        if !testing::waiting::holds_within(within, is_idle).await {
            return Err(format!("the upstream is still answering after {within:?}"));
        }
        Ok(self.shared.fates.lock().unwrap().remove(marker).map_or(0, |fate| fate.asks))
    }

    /// Waits until `count` requests are being answered.
    pub async fn busy(&self, count: usize) {
        let active = || self.shared.fates.lock().unwrap().values().map(|fate| fate.active).sum::<usize>();
        eventually(|| (active() >= count).then_some(())).await;
    }

    /// Waits until a conversation has asked.
    pub async fn asked(&self, marker: &str) {
        eventually(|| (self.shared.fate(marker, |fate| fate.asks) > 0).then_some(())).await;
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((socket, _)) = listener.accept().await else { continue };
        shared.open.fetch_add(1, Ordering::Relaxed);
        connections.spawn(serve(socket, Arc::clone(&shared)));
        while connections.try_join_next().is_some() {}
    }
}

/// A request that is being answered.
struct InHand<'s> {
    shared: &'s Shared,
    marker: String,
}

impl<'s> InHand<'s> {
    fn begin(shared: &'s Shared, marker: &str) -> (Self, usize) {
        let attempt = shared.fate(marker, |fate| {
            fate.asks += 1;
            fate.active += 1;
            fate.asks
        });
        (Self { shared, marker: marker.to_owned() }, attempt)
    }
}

impl Drop for InHand<'_> {
    fn drop(&mut self) {
        self.shared.fate(&self.marker, |fate| fate.active -= 1);
    }
}

async fn serve(socket: TcpStream, shared: Arc<Shared>) {
    socket.set_nodelay(true).unwrap();
    let (read, mut outgoing) = socket.into_split();
    let mut incoming = Incoming::new(read);
    let mut after = After::KeepAlive;
    while after == After::KeepAlive {
        let Ok(Some(head)) = incoming.head().await else { break };
        after = exchange(&head, &mut incoming, &mut outgoing, &shared).await.unwrap_or_else(|problem| {
            shared.problem(format!("{}: {problem}", head.start));
            After::Close
        });
    }
    match after {
        After::Close => close(&mut incoming, &mut outgoing).await,
        After::Reset => reset(outgoing).await,
        After::KeepAlive | After::PeerGone => {}
    }
    shared.open.fetch_sub(1, Ordering::Relaxed);
}

/// FIN, then waits for the peer to close too.
async fn close(incoming: &mut Incoming<OwnedReadHalf>, outgoing: &mut OwnedWriteHalf) {
    if outgoing.shutdown().await.is_ok() {
        while matches!(incoming.fill().await, Ok(1..)) {}
    }
}

/// RST, once the peer had time to read what was sent before it.
async fn reset(outgoing: OwnedWriteHalf) {
    testing::waiting::delay(Duration::from_millis(250)).await;
    outgoing.as_ref().set_zero_linger().unwrap();
    outgoing.forget();
}

async fn exchange(
    head: &Head,
    incoming: &mut Incoming<OwnedReadHalf>,
    outgoing: &mut OwnedWriteHalf,
    shared: &Shared,
) -> Result<After, String> {
    let (method, target) = request_rules::request_line(&head.start)?;
    if target == "/version" {
        return Ok(play(outgoing, &Script::json(200, &json!({"version": "0.32.0"})), |_| ()).await);
    }
    if target == "/health" {
        // A failing upstream is probed.
        return Ok(play(outgoing, &Script::whole(200, "text/plain", ""), |_| ()).await);
    }
    if target == "/v1/models" {
        // A large request wants to know the window.
        return Ok(play(outgoing, &Script::json(200, &json!({"object": "list", "data": []})), |_| ()).await);
    }
    if (method.as_str(), target.as_str()) != ("POST", "/v1/chat/completions") {
        return Err("nobody should ask for this".to_owned());
    }
    let id = head.headers.get("x-request-id").unwrap_or_default();
    let [name, marker, tools] = id.split('~').collect::<Vec<_>>()[..] else {
        return Err(format!("the id {id:?} names no row"));
    };
    let row = find(name).ok_or_else(|| format!("no row is called {name:?}"))?;
    let (_in_hand, attempt) = InHand::begin(shared, marker);
    let stream = head.headers.get("accept") == Some("text/event-stream");
    let ask = Ask { stream, tools: tools == "t", marker: marker.to_owned(), attempt };
    let script = match &row.who {
        Who::HastyUpstream(script) => {
            let after = play(outgoing, &script(&ask), |_| ()).await;
            return Ok(if after == After::KeepAlive { After::Close } else { after });
        }
        Who::Upstream(script) | Who::Client(_, script) => script(&ask),
    };
    if !read_request(head, incoming, &ask, shared).await? {
        return Ok(After::PeerGone);
    }
    Ok(tokio::select! {
        biased;
        () = peer_gone(incoming) => After::PeerGone,
        after = play(outgoing, &script, |_| ()) => after,
    })
}

/// Reads and judges the body; false when the peer left before its end.
async fn read_request(
    head: &Head,
    incoming: &mut Incoming<OwnedReadHalf>,
    ask: &Ask,
    shared: &Shared,
) -> Result<bool, String> {
    let mut framing = head.framing(Framing::Done)?;
    let mut body = Vec::new();
    loop {
        match incoming.piece(&mut framing).await {
            Ok(Some(piece)) => body.extend(piece),
            Ok(None) => break,
            Err(_) => return Ok(false),
        }
    }
    if !incoming.ahead().is_empty() {
        return Err("bytes after the body".to_owned());
    }
    // These two are limits of the judge's own parser; JSON has neither.
    let fine =
        |problem: &String| ["number out of range", "hex escape"].iter().all(|limit| !problem.contains(limit));
    for problem in request_rules::chat_problems(&head.headers, &body).into_iter().filter(fine) {
        shared.problem(format!("{}: {problem}", ask.marker));
    }
    let text = String::from_utf8_lossy(&body);
    if !text.contains(&ask.marker) || !strange_markers(&text, &ask.marker).is_empty() {
        return Err(format!("{}: another conversation's request", ask.marker));
    }
    Ok(true)
}

async fn peer_gone(incoming: &mut Incoming<OwnedReadHalf>) {
    while let Ok(1..) = incoming.fill().await {}
}

/// A conversation's word: nothing else looks like it.
pub fn marker(number: usize) -> String {
    format!("mk{number:07}z")
}

/// The words of other conversations in a text.
pub fn strange_markers(text: &str, own: &str) -> Vec<String> {
    let bytes = text.as_bytes();
    let is_marker = |at: &usize| {
        let word = bytes.get(*at..*at + 10).unwrap_or_default();
        word.starts_with(b"mk") && word.ends_with(b"z") && word[2..9].iter().all(u8::is_ascii_digit)
    };
    let found = text.match_indices("mk").map(|(at, _)| at).filter(is_marker);
    found.map(|at| text[at..at + 10].to_owned()).filter(|word| word != own).collect()
}
