//! A streaming upstream: takes what it has sent, and gives out the frames that may leave.
//!
//! On the passthrough each chunk is forwarded, changed where it must be; on the live route the tool-call engine reads them
//! and new ones are written. No frame waits for a later one, except for text that may still become a call; what has arrived
//! together leaves in one piece. The stream always has an end that says whether it was whole.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};

use crate::observe::SharedLine;
use crate::sse::{DONE, Frame, Frames, write_data};
use crate::translate::{Head, LiveTurn, Passed, StreamState};
use crate::turn::Usage;
use crate::upstream::{Answer, UpstreamError};
use crate::wire::{ApiError, Malformed, escape_controls};

/// At most so many bytes are taken in, or leave, in one piece: a fast upstream cannot fill the memory, nor keep others waiting.
const LARGEST_BATCH: usize = 64 << 10;

/// One open stream.
#[derive(Debug)]
pub struct Feed {
    answer: Option<Answer>,
    frames: Frames,
    reader: Reader,
    upstream: String,
    line: SharedLine,
    out: BytesMut,
    sent: bool,
    end: Option<Result<(), ApiError>>,
}

/// Who judges the chunks.
#[derive(Debug)]
pub(super) enum Reader {
    /// They go through.
    Passthrough(Box<StreamState>),
    /// They are read for calls.
    Live(Box<LiveTurn>),
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
        reader: Reader,
        upstream: String,
        line: SharedLine,
    ) -> Self {
        Self {
            answer: Some(answer),
            frames,
            reader,
            upstream,
            line,
            out: BytesMut::new(),
            sent: false,
            end: None,
        }
    }

    /// respool itself has sent this head; the upstream's chunks are made to fit.
    pub fn head_was_sent(&mut self, head: &Head) {
        match &mut self.reader {
            Reader::Passthrough(state) => state.head_was_sent(&head.id, head.created, &head.model),
            Reader::Live(turn) => turn.head_was_sent(head),
        }
    }

    /// A chunk that carries nothing; `None` before the stream has an id.
    pub fn heartbeat(&self) -> Option<String> {
        match &self.reader {
            Reader::Passthrough(state) => state.heartbeat(),
            Reader::Live(turn) => turn.heartbeat(),
        }
    }

    /// Token counts, once they are known.
    pub fn usage(&self) -> Option<Usage> {
        match &self.reader {
            Reader::Passthrough(state) => state.usage(),
            Reader::Live(turn) => turn.usage(),
        }
    }

    fn has_begun(&self) -> bool {
        match &self.reader {
            Reader::Passthrough(state) => state.has_begun(),
            Reader::Live(turn) => turn.has_begun(),
        }
    }

    fn is_finished(&self) -> bool {
        match &self.reader {
            Reader::Passthrough(state) => state.is_finished(),
            Reader::Live(turn) => turn.is_finished(),
        }
    }

    /// Waits for the next frames. Safe to cancel: what has been read is kept.
    pub async fn batch(&mut self) -> Batch {
        let mut fruitless = false;
        loop {
            self.drain();
            self.take_ready();
            if !self.out.is_empty() {
                self.sent = true;
                return Batch::Bytes(self.out.split().freeze());
            }
            if let Some(end) = self.end.clone() {
                self.answer = None;
                return match end {
                    Ok(()) => Batch::End,
                    Err(error) => Batch::Failed(error),
                };
            }
            if fruitless {
                // What comes is not to leave (comments, say). However much of it: others, and the clocks, have their turn.
                tokio::task::yield_now().await;
            }
            fruitless = true;
            let Some(answer) = &mut self.answer else { return Batch::End };
            let piece = answer.piece().await;
            self.arrived(piece);
        }
    }

    /// Takes in what has arrived already, without waiting.
    fn take_ready(&mut self) {
        let mut taken = 0;
        while self.end.is_none() && self.out.len().max(taken) < LARGEST_BATCH {
            let Some(piece) = self.answer.as_mut().and_then(Answer::ready_piece) else { return };
            taken += piece.as_ref().ok().and_then(Option::as_ref).map_or(0, Bytes::len);
            self.arrived(piece);
            self.drain();
        }
    }

    fn arrived(&mut self, piece: Result<Option<Bytes>, UpstreamError>) {
        match piece {
            Ok(Some(bytes)) => self.frames.push(bytes),
            Ok(None) => self.upstream_ended(),
            Err(error) if self.is_finished() => {
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
        match frame.data() {
            Err(_) => self.fail(self.broken("upstream_invalid_event", "sent an event that is not UTF-8")),
            // Comments feed no watchdog; respool sends heartbeats of its own.
            Ok(None) => {}
            Ok(Some(data)) if data.trim() == DONE => self.upstream_said_done(),
            // Some proxies keep a connection awake with events that say nothing.
            Ok(Some(data)) if data.trim().is_empty() => {}
            Ok(Some(data)) => self.chunk(frame, &data),
        }
    }

    fn chunk(&mut self, frame: &Frame, data: &str) {
        if let Some(error) = self.error_event(data) {
            return self.fail(error);
        }
        let valid = escape_controls(data);
        let fault = match &mut self.reader {
            Reader::Passthrough(state) => {
                let original =
                    Some(frame).filter(|frame| frame.is_plain() && matches!(valid, Cow::Borrowed(_)));
                pass(state, original, &valid, &mut self.out)
            }
            Reader::Live(turn) => turn.push(&valid, &mut self.out).err(),
        };
        if let Some(fault) = fault {
            let what = format!("sent an event that is not valid JSON ({fault})");
            self.fail(self.broken("upstream_invalid_event", &what));
        }
    }

    fn error_event(&self, data: &str) -> Option<UpstreamError> {
        // Looked for only where it can be: this is done for each chunk.
        let suspicious = !data.contains("\"choices\"") || data.contains("\"error\"");
        let error = suspicious.then(|| UpstreamError::from_success(&self.upstream, data)).flatten();
        let gives_up =
            || data.contains(r#""finish_reason":"error""#) || data.contains(r#""finish_reason": "error""#);
        error.or_else(|| {
            (suspicious && gives_up()).then(|| self.broken("upstream_error", "ended the reply with an error"))
        })
    }

    fn upstream_said_done(&mut self) {
        if self.has_begun() {
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
        match (self.is_finished(), self.has_begun()) {
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
        match &mut self.reader {
            Reader::Passthrough(state) => {
                state.missing_end().iter().for_each(|chunk| write_data(&mut self.out, chunk));
                self.out.extend_from_slice(b"data: [DONE]\n\n");
                self.end = Some(Ok(()));
            }
            Reader::Live(turn) => {
                let ended = turn.finish(&mut self.out);
                if ended.is_err() && !self.sent {
                    // Nothing has left, so the failure can still be a true status.
                    self.out.clear();
                }
                self.end = Some(
                    ended.map(|turns| turns.iter().for_each(|turn| self.line.with(|line| line.turn(turn)))),
                );
            }
        }
    }

    fn fail(&mut self, error: UpstreamError) {
        if let Reader::Live(turn) = &mut self.reader
            && self.sent
        {
            turn.give_up(&mut self.out);
        }
        self.end = Some(Err(error.logged(&self.line)));
    }

    fn broken(&self, code: &str, what: &str) -> UpstreamError {
        UpstreamError::broken(&self.upstream, 502, code, what, "")
    }
}

/// Forwards a chunk of the passthrough, changed or as it is: in the original frame, where that is one any client reads.
fn pass(
    state: &mut StreamState,
    original: Option<&Frame>,
    data: &str,
    out: &mut BytesMut,
) -> Option<Malformed> {
    match state.pass(data) {
        Ok(Passed::Untouched) => match original {
            Some(frame) => out.extend_from_slice(&frame.bytes),
            None => write_line(out, data),
        },
        Ok(Passed::Changed) => write_line(out, state.text()),
        Ok(Passed::Withheld) => {}
        Err(fault) => return Some(fault),
    }
    None
}

/// Writes one frame. A line end outside of its strings means nothing to JSON, and would end the frame.
fn write_line(out: &mut BytesMut, json: &str) {
    out.reserve(json.len() + 8);
    if json.contains('\n') {
        write_data(out, &json.replace('\n', " "));
    } else {
        write_data(out, json);
    }
}
