//! The passthrough stream: takes what the upstream has sent, and gives out the frames that may leave.
//!
//! No frame waits for a later one; what has arrived together leaves in one piece. The stream always has an end that says
//! whether it was whole.

use bytes::{Bytes, BytesMut};

use crate::observe::SharedLine;
use crate::sse::{DONE, Frame, Frames};
use crate::translate::{Passed, StreamState};
use crate::turn::Usage;
use crate::upstream::{Answer, UpstreamError};
use crate::wire::ApiError;

/// At most so many bytes leave in one piece, so that a fast upstream cannot fill the memory.
const LARGEST_BATCH: usize = 64 << 10;

/// One open stream.
#[derive(Debug)]
pub struct Feed {
    answer: Option<Answer>,
    frames: Frames,
    state: StreamState,
    upstream: String,
    line: SharedLine,
    out: BytesMut,
    end: Option<Result<(), ApiError>>,
}

/// What there is to send.
#[derive(Debug)]
pub enum Batch {
    /// Whole frames.
    Bytes(Bytes),
    /// The stream failed; nothing follows.
    Failed(ApiError),
    /// The stream is complete; `[DONE]` has left.
    End,
}

impl Feed {
    pub(super) fn new(
        answer: Answer,
        frames: Frames,
        state: StreamState,
        upstream: String,
        line: SharedLine,
    ) -> Self {
        Self { answer: Some(answer), frames, state, upstream, line, out: BytesMut::new(), end: None }
    }

    /// respool itself has sent this head; the upstream's chunks are made to fit.
    pub fn head_was_sent(&mut self, id: &str, created: u64, model: &str) {
        self.state.head_was_sent(id, created, model);
    }

    /// A chunk that carries nothing; `None` before the stream has an id.
    pub fn heartbeat(&self) -> Option<String> {
        self.state.heartbeat()
    }

    /// Token counts, once they are known.
    pub fn usage(&self) -> Option<Usage> {
        self.state.usage()
    }

    /// Waits for the next frames. Safe to cancel: what has been read is kept.
    pub async fn batch(&mut self) -> Batch {
        loop {
            self.drain();
            self.take_ready();
            if !self.out.is_empty() {
                return Batch::Bytes(self.out.split().freeze());
            }
            if let Some(end) = self.end.clone() {
                self.answer = None;
                return match end {
                    Ok(()) => Batch::End,
                    Err(error) => Batch::Failed(error),
                };
            }
            let Some(answer) = &mut self.answer else { return Batch::End };
            let piece = answer.piece().await;
            self.arrived(piece);
        }
    }

    /// Takes in what has arrived already, without waiting.
    fn take_ready(&mut self) {
        while self.end.is_none() && self.out.len() < LARGEST_BATCH {
            let Some(piece) = self.answer.as_mut().and_then(Answer::ready_piece) else { return };
            self.arrived(piece);
            self.drain();
        }
    }

    fn arrived(&mut self, piece: Result<Option<Bytes>, UpstreamError>) {
        match piece {
            Ok(Some(bytes)) => self.frames.push(bytes),
            Ok(None) => self.upstream_ended(),
            Err(error) if self.state.is_finished() => {
                // Everything had been said; only the way it closed was rude.
                self.line.with(|line| line.error = Some(error.internal));
                self.done();
            }
            Err(error) => self.fail(error),
        }
    }

    fn drain(&mut self) {
        while self.end.is_none() {
            match self.frames.next_frame() {
                Ok(Some(frame)) => self.frame(&frame),
                Ok(None) => return,
                Err(_) => self.fail(self.broken("upstream_frame_too_long", "sent an event without end")),
            }
        }
    }

    fn frame(&mut self, frame: &Frame) {
        if !frame.is_text() {
            return self.fail(self.broken("upstream_invalid_event", "sent an event that is not UTF-8"));
        }
        match frame.data() {
            // Comments feed no watchdog; respool sends heartbeats of its own.
            None => {}
            Some(data) if data.trim() == DONE => self.upstream_said_done(),
            Some(data) => self.chunk(frame, &data),
        }
    }

    fn chunk(&mut self, frame: &Frame, data: &str) {
        match self.state.pass(data) {
            Ok(Passed::Untouched) => {
                self.out.extend_from_slice(&frame.bytes);
                if !frame.is_closed() {
                    self.out.extend_from_slice(b"\n\n");
                }
            }
            Ok(Passed::Changed) => {
                let text = self.state.text();
                self.out.reserve(text.len() + 8);
                self.out.extend_from_slice(b"data: ");
                self.out.extend_from_slice(text.as_bytes());
                self.out.extend_from_slice(b"\n\n");
            }
            Ok(Passed::Withheld) => {}
            Ok(Passed::Error) => {
                let error = UpstreamError::from_success(&self.upstream, data);
                self.fail(error.unwrap_or_else(|| self.broken("upstream_error", "sent an error event")));
            }
            Err(fault) => {
                let what = format!("sent an event that is not valid JSON ({fault})");
                self.fail(self.broken("upstream_invalid_event", &what));
            }
        }
    }

    fn upstream_said_done(&mut self) {
        if self.state.has_begun() {
            self.done();
        } else {
            self.fail(self.broken("upstream_empty_stream", "ended the stream without a single chunk"));
        }
    }

    fn upstream_ended(&mut self) {
        if let Some(rest) = self.frames.finish() {
            self.frame(&rest);
        }
        if self.end.is_some() {
            return;
        }
        match (self.state.is_finished(), self.state.has_begun()) {
            (true, _) => self.done(),
            (false, true) => {
                self.fail(self.broken("upstream_broke_off", "ended the stream in the middle of the reply"));
            }
            (false, false) => {
                self.fail(self.broken("upstream_empty_stream", "ended the stream without a single chunk"));
            }
        }
    }

    fn done(&mut self) {
        self.out.extend_from_slice(b"data: [DONE]\n\n");
        self.end = Some(Ok(()));
    }

    fn fail(&mut self, error: UpstreamError) {
        self.end = Some(Err(error.logged(&self.line)));
    }

    fn broken(&self, code: &str, what: &str) -> UpstreamError {
        UpstreamError::broken(&self.upstream, 502, code, what, "")
    }
}
