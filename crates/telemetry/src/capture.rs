//! The exchange of one request: what its client sent, what was sent to model servers, what they replied, and
//! what the client got. A record collects it where `[capture]` names the key of the request, or where
//! `[log] content` logs streams; [`Captures`] keeps it.

use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::captures::Captures;
use super::request_start::RequestStart;

/// The form of a kept exchange; a later version of respool reads all earlier forms.
const FORM: u32 = 1;
/// The room for the reply of a stream that is collected only for the log, in bytes.
const ROOM_FOR_LOG: usize = 1 << 20;

/// The exchange of one request, as it is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Exchange {
    /// The form of this object.
    pub form: u32,
    /// The version of respool that kept it.
    pub respool: String,
    /// The id of the request.
    pub id: String,
    /// When it arrived, in milliseconds since 1970.
    pub at: u64,
    /// The name of the client's key.
    pub key: String,
    /// Its method and path.
    pub request: String,
    /// Identifies its conversation; empty if the request was refused before it was read.
    pub conversation: String,
    /// Parts are missing, because the exchange was larger than `capture.max_exchange`.
    pub is_cut: bool,
    /// The body of the client's request.
    pub client_request: String,
    /// The attempts at model servers, in order.
    pub attempts: Vec<Attempt>,
    /// The reply that the client got.
    pub client_reply: Reply,
}

/// One attempt at a model server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Attempt {
    /// The name of the upstream.
    pub upstream: String,
    /// The body that it was sent.
    pub sent: String,
    /// Its reply; the status is 0 without one.
    pub reply: Reply,
}

/// A reply, byte for byte; invalid UTF-8 is replaced.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// The content type.
    pub content_type: String,
    /// The body.
    pub body: String,
}

impl Reply {
    /// Returns true for a reply that streams.
    pub fn is_stream(&self) -> bool {
        self.content_type.starts_with("text/event-stream")
    }
}

/// The parts of a reply as they arrive.
#[derive(Debug, Default)]
struct PartialReply {
    status: u16,
    content_type: String,
    body: Vec<u8>,
}

#[derive(Debug)]
struct PartialAttempt {
    upstream: String,
    sent: Vec<u8>,
    reply: PartialReply,
    is_streamed: bool,
}

/// An exchange that is under way.
#[derive(Debug)]
struct Parts {
    room: usize,
    is_cut: bool,
    conversation: Option<u64>,
    client_request: Vec<u8>,
    attempts: Vec<PartialAttempt>,
    client_reply: PartialReply,
}

/// Collects the exchange of one request. When it is dropped, the exchange is kept, or its streams are logged.
#[derive(Debug)]
pub struct Collector {
    start: Arc<RequestStart>,
    at: u64,
    /// Where the exchange is kept.
    captures: Option<Arc<Captures>>,
    /// Streamed replies are logged.
    logs_streams: bool,
    parts: Mutex<Parts>,
}

impl Collector {
    /// Collects the exchange of this request for `captures`, the log, or both.
    pub(super) fn new(
        start: &Arc<RequestStart>,
        captures: Option<Arc<Captures>>,
        logs_streams: bool,
    ) -> Arc<Self> {
        let parts = Parts {
            room: captures.as_ref().map_or(ROOM_FOR_LOG, |captures| captures.max_exchange()),
            is_cut: false,
            conversation: None,
            client_request: Vec::new(),
            attempts: Vec::new(),
            client_reply: PartialReply::default(),
        };
        let (start, at) = (Arc::clone(start), clock::now());
        Arc::new(Self { start, at, captures, logs_streams, parts: Mutex::new(parts) })
    }

    /// Returns true if the exchange is kept.
    pub(super) fn is_kept(&self) -> bool {
        self.captures.is_some()
    }

    fn change(&self, change: impl FnOnce(&mut Parts)) {
        change(&mut self.parts.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Notes the conversation of the request.
    pub(super) fn set_conversation(&self, conversation: u64) {
        self.change(|parts| parts.conversation = Some(conversation));
    }

    /// Takes the body of the client's request.
    pub(super) fn take_client_request(&self, body: &[u8]) {
        if self.is_kept() {
            self.change(|parts| parts.client_request = parts.take(body).to_vec());
        }
    }

    /// Begins an attempt at this upstream.
    pub(super) fn begin_attempt(&self, upstream: &str, body: impl FnOnce() -> Vec<u8>) {
        let body = if self.is_kept() { body() } else { Vec::new() };
        self.change(|parts| {
            let sent = parts.take(&body).to_vec();
            let (upstream, reply) = (upstream.to_owned(), PartialReply::default());
            parts.attempts.push(PartialAttempt { upstream, sent, reply, is_streamed: false });
        });
    }

    /// Notes the head of the reply to the current attempt.
    pub(super) fn take_reply_head(&self, status: u16, content_type: &str) {
        self.change(|parts| {
            if let Some(attempt) = parts.attempts.last_mut() {
                attempt.reply.status = status;
                content_type.clone_into(&mut attempt.reply.content_type);
            }
        });
    }

    /// Takes the whole reply to the current attempt.
    pub(super) fn take_reply(&self, body: &[u8]) {
        if self.is_kept() {
            self.take_piece(body, false);
        }
    }

    /// Takes a piece of the streamed reply to the current attempt.
    pub(super) fn take_reply_piece(&self, piece: &[u8]) {
        self.take_piece(piece, true);
    }

    fn take_piece(&self, piece: &[u8], is_streamed: bool) {
        self.change(|parts| {
            let piece = parts.take(piece);
            if let Some(attempt) = parts.attempts.last_mut() {
                attempt.is_streamed |= is_streamed;
                attempt.reply.body.extend(piece);
            }
        });
    }

    /// Notes the head of the reply that the client gets.
    pub fn take_client_head(&self, status: u16, content_type: &str) {
        self.change(|parts| {
            parts.client_reply.status = status;
            content_type.clone_into(&mut parts.client_reply.content_type);
        });
    }

    /// Takes a piece of the reply that the client gets.
    pub fn take_client_piece(&self, piece: &[u8]) {
        self.change(|parts| {
            let piece = parts.take(piece);
            parts.client_reply.body.extend(piece);
        });
    }
}

impl Parts {
    /// Returns the bytes, as far as there is room for them.
    fn take<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let fits = bytes.len().min(self.room);
        self.is_cut |= fits < bytes.len();
        self.room -= fits;
        &bytes[..fits]
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let parts = self.parts.get_mut().unwrap_or_else(PoisonError::into_inner);
        if self.logs_streams {
            let streams = parts.attempts.iter().filter(|attempt| attempt.is_streamed);
            streams.for_each(|attempt| {
                log_content(&self.start.id, "upstream reply", &attempt.reply.body);
            });
        }
        let Some(captures) = &self.captures else { return };
        // No model server was asked for a turn.
        if parts.attempts.is_empty() {
            return;
        }
        captures.keep(Exchange {
            form: FORM,
            respool: env!("CARGO_PKG_VERSION").to_owned(),
            id: self.start.id.clone(),
            at: self.at,
            key: self.start.key_name().unwrap_or_default().to_owned(),
            request: self.start.request.clone().into_owned(),
            conversation: parts.conversation.map(|digest| format!("{digest:016x}")).unwrap_or_default(),
            is_cut: parts.is_cut,
            client_request: lossy_text(&parts.client_request),
            attempts: parts.attempts.iter().map(PartialAttempt::to_attempt).collect(),
            client_reply: parts.client_reply.to_reply(),
        });
    }
}

impl PartialAttempt {
    fn to_attempt(&self) -> Attempt {
        let (upstream, sent) = (self.upstream.clone(), lossy_text(&self.sent));
        Attempt { upstream, sent, reply: self.reply.to_reply() }
    }
}

impl PartialReply {
    fn to_reply(&self) -> Reply {
        let (status, content_type) = (self.status, self.content_type.clone());
        Reply { status, content_type, body: lossy_text(&self.body) }
    }
}

fn lossy_text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Writes message text to the log.
pub(super) fn log_content(id: &str, what: &'static str, text: &[u8]) {
    let text = String::from_utf8_lossy(text);
    tracing::info!(target: "respool::content", request_id = id, what, text = text.as_ref(), "content");
}
