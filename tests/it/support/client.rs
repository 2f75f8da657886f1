//! A raw HTTP/1.1 client: sends exactly the given bytes, reads strictly, notes when each piece arrived. Every
//! wait ends after [`DEADLINE`] with a panic, so a hanging server fails its test.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::Instant;

use super::accumulate::{self, Accumulated, Rules};
use super::http1::{Framing, Headers, Incoming};
use super::openai_fields;

/// How long any single wait may take.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// A request to be sent.
#[derive(Clone, Debug)]
pub struct Request {
    method: String,
    target: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Request {
    /// Any request; `content-length` is added when it has a body.
    pub fn new(method: &str, target: &str, body: impl Into<Vec<u8>>) -> Self {
        let headers = vec![("host".to_owned(), "respool".to_owned())];
        Self { method: method.to_owned(), target: target.to_owned(), headers, body: body.into() }
    }

    /// `GET target`.
    pub fn get(target: &str) -> Self {
        Self::new("GET", target, "")
    }

    /// `POST target` with a JSON body.
    pub fn post(target: &str, body: impl Into<Vec<u8>>) -> Self {
        Self::new("POST", target, body).header("content-type", "application/json")
    }

    /// `POST /v1/chat/completions`, with the key that OpenAI's clients must have.
    pub fn chat(body: &Value) -> Self {
        Self::post("/v1/chat/completions", body.to_string()).header("authorization", "Bearer client-key")
    }

    /// Adds a header, in place of one of the same name.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self = self.without(name);
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sends no header of this name.
    pub fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self
    }

    /// The bytes on the wire.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.target);
        for (name, value) in &self.headers {
            head.extend([name, ": ", value, "\r\n"]);
        }
        let framed =
            self.headers.iter().any(|(name, _)| name == "content-length" || name == "transfer-encoding");
        if !framed && (!self.body.is_empty() || self.method == "POST") {
            head.extend(["content-length: ", &self.body.len().to_string(), "\r\n"]);
        }
        [head.as_bytes(), b"\r\n", &self.body].concat()
    }
}

/// A piece of a body and when it had arrived.
#[derive(Clone, Debug)]
pub struct Arrived {
    /// When.
    pub at: Instant,
    /// The bytes: one HTTP chunk, or what one read gave.
    pub bytes: Vec<u8>,
}

/// A connection to the server under test. Dropping it hangs up.
#[derive(Debug)]
pub struct Client {
    incoming: Incoming<OwnedReadHalf>,
    outgoing: OwnedWriteHalf,
    framing: Framing,
    bodiless: bool,
}

impl Client {
    /// Connects.
    pub async fn connect(address: SocketAddr) -> Self {
        let socket = within("connecting", TcpStream::connect(address)).await.unwrap();
        socket.set_nodelay(true).unwrap();
        let (read, outgoing) = socket.into_split();
        Self { incoming: Incoming::new(read), outgoing, framing: Framing::Done, bodiless: false }
    }

    /// Connects and sends.
    pub async fn sending(address: SocketAddr, request: &Request) -> Self {
        let mut client = Self::connect(address).await;
        client.send(request).await;
        client
    }

    /// Sends a request.
    pub async fn send(&mut self, request: &Request) {
        self.bodiless = request.method == "HEAD";
        self.send_raw(&request.to_bytes()).await;
    }

    /// Sends these bytes.
    pub async fn send_raw(&mut self, bytes: &[u8]) {
        within("sending", self.outgoing.write_all(bytes)).await.unwrap();
    }

    /// Waits for `100 Continue`, and panics when anything else comes.
    pub async fn interim(&mut self) {
        let head = within("100 Continue", self.incoming.head()).await.unwrap().expect("a head");
        assert_eq!(status_of(&head.start), 100);
    }

    /// Sends these bytes, as far as the server takes them.
    pub async fn offer(&mut self, bytes: &[u8]) {
        let _ = within("sending", self.outgoing.write_all(bytes)).await;
    }

    /// Reads the head of a reply. Its body is still empty.
    pub async fn head(&mut self) -> Reply {
        self.try_head().await.expect("a reply")
    }

    /// Like [`Client::head`]; none when the connection ended before the first byte of a reply.
    pub async fn try_head(&mut self) -> Option<Reply> {
        loop {
            let head =
                within("the head of a reply", self.incoming.head()).await.expect("an HTTP/1.1 reply")?;
            let status = status_of(&head.start);
            if status == 100 {
                continue;
            }
            let empty = self.bodiless || status == 204 || status == 304;
            self.framing = head.framing(Framing::UntilClose).expect("one framing");
            self.framing = if empty { Framing::Done } else { self.framing };
            let headers = head.headers;
            return Some(Reply { status, headers, at: Instant::now(), chunks: Vec::new(), broken: None });
        }
    }

    /// The next piece of the body; none at its end. Panics when it breaks off.
    pub async fn chunk(&mut self) -> Option<Arrived> {
        self.try_chunk().await.expect("a whole body")
    }

    /// Like [`Client::chunk`]; says how the body broke off.
    pub async fn try_chunk(&mut self) -> Result<Option<Arrived>, String> {
        let piece = within("the next piece of the body", self.incoming.piece(&mut self.framing)).await?;
        Ok(piece.map(|bytes| Arrived { at: Instant::now(), bytes }))
    }

    /// Reads a whole reply, or as much of it as comes (see [`Reply::broken`]).
    pub async fn reply(&mut self) -> Reply {
        self.try_reply().await.expect("a reply")
    }

    /// Like [`Client::reply`]; none when the connection ended before the first byte of a reply.
    pub async fn try_reply(&mut self) -> Option<Reply> {
        let mut reply = self.try_head().await?;
        loop {
            match self.try_chunk().await {
                Ok(Some(chunk)) => reply.chunks.push(chunk),
                Ok(None) => return Some(reply),
                Err(problem) => {
                    reply.broken = Some(problem);
                    return Some(reply);
                }
            }
        }
    }

    /// Everything that still comes until the server closes the connection.
    pub async fn rest(&mut self) -> Vec<u8> {
        while matches!(within("the server to close the connection", self.incoming.fill()).await, Ok(1..)) {}
        self.incoming.ahead().to_vec()
    }

    /// Waits until the server closes the connection. Panics when it sends anything instead.
    pub async fn closed(mut self) {
        let read = within("the server to close the connection", self.incoming.fill()).await;
        assert!(matches!(read, Ok(0) | Err(_)) && self.incoming.ahead().is_empty(), "more bytes came");
    }

    /// Sends FIN and goes on reading.
    pub async fn half_close(&mut self) {
        within("closing one half", self.outgoing.shutdown()).await.unwrap();
    }

    /// Hangs up with RST, as a killed process does.
    pub fn reset(self) {
        self.outgoing.as_ref().set_zero_linger().unwrap();
        self.outgoing.forget();
    }
}

/// One request on its own connection, and its reply.
pub async fn exchange(address: SocketAddr, request: &Request) -> Reply {
    Client::sending(address, request).await.reply().await
}

fn status_of(line: &str) -> u16 {
    let rest = line.strip_prefix("HTTP/1.1 ").or_else(|| line.strip_prefix("HTTP/1.0 "));
    let status = rest.and_then(|rest| rest.get(..3)).and_then(|code| code.parse().ok());
    status.unwrap_or_else(|| panic!("no HTTP/1.1 status line: {line:?}"))
}

async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    let result = tokio::time::timeout(DEADLINE, future).await;
    result.unwrap_or_else(|_| panic!("waited {DEADLINE:?} for {what}"))
}

/// A reply.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The status code.
    pub status: u16,
    /// The headers.
    pub headers: Headers,
    /// When the head had arrived.
    pub at: Instant,
    /// The body, piece by piece.
    pub chunks: Vec<Arrived>,
    /// How the body broke off, when it did.
    pub broken: Option<String>,
}

impl Reply {
    /// The body.
    pub fn body(&self) -> Vec<u8> {
        self.chunks.iter().flat_map(|chunk| chunk.bytes.iter().copied()).collect()
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8(self.body()).expect("the body is UTF-8")
    }

    /// The body as JSON.
    pub fn json(&self) -> Value {
        let text = self.text();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text:?}"))
    }

    /// The turn that a stream carries. Panics when the reply is no whole, flawless SSE stream of a chat
    /// completion; an error event is no such flaw, it is in [`Accumulated::error`].
    pub fn stream(&self, rules: &Rules) -> Accumulated {
        let text = String::from_utf8_lossy(&self.body()).into_owned();
        assert_eq!((self.status, &self.broken), (200, &None), "{text}");
        let content_type = self.headers.get("content-type").unwrap_or_default();
        assert!(content_type.starts_with("text/event-stream"), "content-type {content_type:?}: {text}");
        assert_eq!(self.headers.get("cache-control"), Some("no-cache"));
        assert_eq!(self.headers.get("x-accel-buffering"), Some("no"));
        accumulate::stream(&self.body(), rules)
            .unwrap_or_else(|flaws| panic!("{}\nin\n{text}", flaws.join("\n")))
    }

    /// The turn that a JSON reply carries. Panics when it is no flawless chat completion.
    pub fn completion(&self, rules: &Rules) -> Accumulated {
        assert_eq!((self.status, &self.broken), (200, &None), "{}", String::from_utf8_lossy(&self.body()));
        assert_eq!(self.headers.get("content-type"), Some("application/json"));
        let body = self.json();
        accumulate::completion(&body, rules)
            .unwrap_or_else(|flaws| panic!("{}\nin\n{body}", flaws.join("\n")))
    }

    /// The `error` object of a failed request. Panics when the reply has not OpenAI's error shape.
    pub fn error(&self) -> Value {
        let body = self.json();
        assert!(self.status >= 400 && self.broken.is_none(), "{} {:?} {body}", self.status, self.broken);
        let flaws = openai_fields::foreign_fields(&body, &openai_fields::ERROR, &[]);
        assert_eq!(flaws, [""; 0], "{body}");
        assert_eq!(self.headers.get("content-type"), Some("application/json"));
        assert!(body["error"]["message"].as_str().is_some_and(|message| !message.is_empty()), "{body}");
        assert!(body["error"]["type"].is_string(), "{body}");
        body["error"].clone()
    }
}
