//! When the head of a reply leaves, and how a silent stream stays alive: as on the chat route, with the client's own events.
//!
//! The relay is always asked for a stream, so that a reply without tools is told as it comes; without `stream` it is collected.

use std::pin::pin;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;
use tokio::time::{Instant, sleep_until};

use super::errors::Client;
use super::writer::{Chunks, Writer};
use crate::observe::{Outcome, SharedLine};
use crate::relay::{Batch, Opened, ReplyStream};
use crate::server::chat::{self, Pending};
use crate::server::{App, heartbeat, respond};
use crate::translate::Reply;
use crate::turn::Usage;
use crate::wire::ApiError;

/// A reply in the making.
pub(super) struct Telling {
    pub(super) app: App,
    pub(super) writer: Writer,
    pub(super) client: Client,
    pub(super) line: SharedLine,
    chunks: Chunks,
}

/// Where the turn comes from.
enum Source {
    Opening(Pending<Opened>),
    Open(Box<ReplyStream>),
    /// Something that is known already.
    Known(Option<Piece>),
}

/// The next thing that a source gives.
enum Piece {
    /// The source is open now.
    Opened,
    Chunks(Bytes),
    Whole(Box<Reply>),
    End(Option<Usage>),
    Failed(ApiError),
}

impl Telling {
    pub(super) fn new(app: App, writer: Writer, client: Client, line: SharedLine) -> Self {
        let chunks = Chunks::new(app.limits.max_body.bytes());
        Self { app, writer, client, line, chunks }
    }

    /// The whole object.
    pub(super) async fn collected(mut self, work: Pending<Opened>) -> Response {
        let mut source = Source::Opening(work);
        let mut out = Vec::new();
        let error = loop {
            out.clear();
            let piece = self.piece(&mut source).await;
            if let Piece::Failed(error) = piece {
                break error;
            }
            if self.tell(piece, &mut out) {
                match self.writer.whole() {
                    Some(whole) => return respond::json(StatusCode::OK, whole.to_owned(), &self.line),
                    None => break chat::not_a_stream(),
                }
            }
        };
        self.client.refused(&error, &self.line)
    }

    /// A stream: up to `commit_after` a failure is a true status.
    pub(super) async fn streamed(mut self, work: Pending<Opened>) -> Response {
        let left = self.app.limits.commit_after.saturating_sub(self.line.with(|line| line.elapsed()));
        let mut deadline = pin!(sleep_until(Instant::now() + left));
        let mut source = Source::Opening(work);
        loop {
            let piece = tokio::select! {
                biased;
                piece = self.piece(&mut source) => piece,
                () = &mut deadline => return self.told(source, None),
            };
            match piece {
                Piece::Opened => {}
                Piece::Failed(error) => return self.client.failed(&error, &mut self.writer, &self.line),
                piece => return self.told(source, Some(piece)),
            }
        }
    }

    /// The head and the first events leave now; the rest follows as it comes.
    fn told(mut self, source: Source, first: Option<Piece>) -> Response {
        let (line, every) = (self.line.clone(), self.app.limits.heartbeat);
        let mut out = Vec::new();
        self.writer.begin(&mut out);
        let ended = first.is_some_and(|piece| self.tell(piece, &mut out));
        heartbeat::streamed(Told { telling: self, source, ended }, out.into(), every, &line)
    }

    /// The next piece, or respool's end. Safe to cancel.
    async fn piece(&self, source: &mut Source) -> Piece {
        tokio::select! {
            biased;
            piece = source.next() => piece,
            () = self.app.abort.cancelled() => Piece::Failed(chat::stopped()),
        }
    }

    /// Writes what a piece says; true at the end.
    fn tell(&mut self, piece: Piece, out: &mut Vec<u8>) -> bool {
        match piece {
            Piece::Opened => return false,
            Piece::Chunks(bytes) => {
                self.chunks.tell(bytes, &mut self.writer, out);
                return false;
            }
            Piece::Whole(reply) => {
                self.line.with(|line| line.outcome = Outcome::Ok);
                self.writer.tell_reply(&reply, out);
            }
            Piece::End(usage) => {
                self.line.with(|line| (line.outcome, line.usage) = (Outcome::Ok, usage));
                self.chunks.finish(&mut self.writer, out);
            }
            Piece::Failed(error) => {
                respond::failed(&error, &self.line);
                self.writer.fail(&error, out);
            }
        }
        self.app.responses.keep(self.client.owner, self.writer.to_keep());
        true
    }
}

/// A reply as it is told: the source of a stream.
struct Told {
    telling: Telling,
    source: Source,
    ended: bool,
}

impl heartbeat::Source for Told {
    async fn next(&mut self) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        let piece = self.telling.piece(&mut self.source).await;
        let mut out = Vec::new();
        self.ended = self.telling.tell(piece, &mut out);
        Some(out.into())
    }

    fn heartbeat(&mut self) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        let mut out = Vec::new();
        self.telling.writer.heartbeat(&mut out);
        Some(out.into())
    }
}

impl Source {
    async fn next(&mut self) -> Piece {
        match self {
            Self::Opening(work) => {
                *self = work.await.map_or_else(|error| Self::Known(Some(Piece::Failed(error))), Self::from);
                Piece::Opened
            }
            Self::Open(stream) => match stream.batch().await {
                Batch::Bytes(bytes) => Piece::Chunks(bytes),
                Batch::Failed(error) => Piece::Failed(error),
                Batch::End => Piece::End(stream.usage()),
            },
            Self::Known(piece) => piece.take().unwrap_or_else(|| Piece::Failed(chat::not_a_stream())),
        }
    }
}

impl From<Opened> for Source {
    fn from(opened: Opened) -> Self {
        match opened {
            Opened::Stream(stream) => Self::Open(stream),
            Opened::Reply(reply) => Self::Known(Some(Piece::Whole(reply))),
            Opened::Body(_) => Self::Known(None),
        }
    }
}

/// A stream that begins and fails at once.
pub(super) fn failed_stream(error: &ApiError, writer: &mut Writer, line: &SharedLine) -> Response {
    let mut out = Vec::new();
    writer.begin(&mut out);
    writer.fail(error, &mut out);
    respond::failed(error, line);
    respond::stream(Body::from(out), line)
}
