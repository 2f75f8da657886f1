//! A streaming upstream: takes what it has sent, and gives out what may leave: frames on the passthrough,
//! else the steps of its turns, which the client's sink writes.
//!
//! What is read and how is `translate`'s `ReplyReader`. No frame waits for a later one, except for text that
//! may still become a call; what has arrived together leaves in one piece. The stream always has an end that
//! says whether it was whole. One that fails before it has said anything goes back to its exchange, which may
//! ask again.

use std::borrow::Cow;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, timeout_at};

use super::client::Wire;
use super::exchange::{Exchange, ExchangeReply, finding_of};
use super::outcome::Finding;
use super::request::Route;
use telemetry::RequestRecord;
use translate::{
    ChunkRules, Head, Ids, LiveRules, LiveTurn, PlainRules, PlainTurn, ReplyPart, ReplyReader, Salvage,
    StreamState,
};
use upstream::{UpstreamError, UpstreamResponse, UpstreamResult, may_hold_error};
use wire::sse::{DONE, Frame, Frames};
use wire::turn::{ChoiceEvent, Turn, Usage};
use wire::{ApiError, ErrorCode, Object, escape_controls};

/// The most bytes that arrive or leave in one piece. A fast upstream can neither fill the memory nor keep
/// others waiting.
const LARGEST_BATCH: usize = 64 << 10;

/// How long a server may take from the last finish reason to the end of its stream: usage comes at once, and
/// one that neither says `[DONE]` nor closes would keep OpenClaw waiting for ever.
const END_WITHIN: Duration = Duration::from_secs(2);

/// One open stream.
#[derive(Debug)]
pub struct ReplyStream {
    answer: Option<Box<UpstreamResponse>>,
    frames: Frames,
    reader: ReplyReader,
    upstream: String,
    record: RequestRecord,
    /// `None` while it is making another attempt.
    exchange: Option<Box<Exchange>>,
    reconsidering: Option<Reconsidering>,
    largest: usize,
    /// Its client gets nothing before the whole reply.
    is_unseen: bool,
    out: ReplyPart,
    /// The head that respool itself has sent.
    head: Option<Head>,
    progress: StreamProgress,
}

/// How far a stream has come.
#[derive(Debug, Default)]
struct StreamProgress {
    /// Bytes of the reply's chunks that have arrived.
    received: usize,
    /// Something of it has left.
    is_sent: bool,
    /// The bytes that another attempt would need were released.
    is_released: bool,
    /// The reply is whole, and of no use: nothing of it leaves with an error.
    is_useless: bool,
    /// When to end it, once the reply is complete.
    end_at: Option<Instant>,
    end: Option<Result<(), ApiError>>,
}

/// The exchange at work on another attempt.
struct Reconsidering(Pin<Box<dyn Future<Output = Reconsidered> + Send>>);

/// The exchange, and its result.
type Reconsidered = (Box<Exchange>, Result<ExchangeReply, ApiError>);

impl fmt::Debug for Reconsidering {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Reconsidering")
    }
}

/// The next part of a stream.
#[derive(Debug)]
pub enum StreamPart {
    /// Whole frames of a chat stream that goes through, the last of which is `[DONE]`.
    Frames(Bytes),
    /// Steps of its turns.
    Steps(Vec<ChoiceEvent>),
    /// The stream failed; nothing follows.
    Failed(ApiError),
    /// The stream is complete.
    End,
}

impl ReplyStream {
    pub(super) fn new(mut answer: Box<UpstreamResponse>, exchange: Box<Exchange>) -> Self {
        let (largest, is_unseen) = (exchange.relay.max_body, exchange.request.profile.is_unseen);
        answer.release_headers();
        Self {
            upstream: answer.upstream().to_owned(),
            answer: Some(answer),
            frames: Frames::new(largest),
            reader: new_reader(&exchange),
            record: exchange.request.record.clone(),
            exchange: Some(exchange),
            reconsidering: None,
            largest,
            is_unseen,
            out: ReplyPart::default(),
            head: None,
            progress: StreamProgress::default(),
        }
    }

    /// Notes the head that respool itself has sent; the upstream's chunks are made to fit. They name the
    /// model that answers.
    pub fn head_was_sent(&mut self, head: &Head) {
        let mut head = head.clone();
        let answers = self.exchange.as_ref().and_then(|exchange| exchange.request.progress.answering_model());
        head.model = answers.unwrap_or(head.model);
        self.reader.set_sent_head(&head);
        self.head = Some(head);
    }

    /// Returns true when frames go through as they came; else the turns come as steps.
    pub fn passes_frames(&self) -> bool {
        matches!(self.reader, ReplyReader::Passthrough(_))
    }

    /// Returns the head of a reply that comes as steps; `None` before the upstream has begun.
    pub fn upstream_head(&self) -> Option<&Head> {
        self.reader.head()
    }

    /// Returns a chunk that carries nothing, for a stream that goes through; `None` before it has an id.
    pub fn heartbeat(&self) -> Option<String> {
        self.reader.heartbeat()
    }

    /// Returns the token counts, once they are known.
    pub fn usage(&self) -> Option<Usage> {
        self.reader.usage()
    }

    /// Returns the prompt tokens of earlier attempts, which `usage` leaves out where its client reads it as
    /// the size of the conversation.
    pub fn earlier_prompts(&self) -> u64 {
        self.exchange.as_ref().map_or(0, |exchange| exchange.history.spent_before_last().prompt)
    }

    /// Returns the part of the first choice's turn that has arrived; `None` where no engine reads it.
    pub fn turn(&self) -> Option<Turn> {
        self.reader.turns().into_iter().next()
    }

    /// Waits for what may leave next. Safe to cancel: what has been read is kept, and so is another attempt
    /// under way.
    pub async fn next(&mut self) -> StreamPart {
        let mut fruitless = false;
        loop {
            if let Some(reconsidering) = &mut self.reconsidering {
                let (exchange, got) = reconsidering.0.as_mut().await;
                self.reconsidering = None;
                self.take_result(exchange, got);
            }
            self.drain();
            self.take_ready();
            if self.is_held_back() {
                self.join_held_steps();
            } else if !self.out.is_empty() && self.reconsidering.is_none() {
                self.progress.is_sent = true;
                self.release_request();
                return self.take_part();
            }
            if let Some(end) = self.progress.end.clone() {
                self.answer = None;
                return match end {
                    Ok(()) => StreamPart::End,
                    Err(error) => StreamPart::Failed(error),
                };
            }
            if self.reconsidering.is_some() {
                continue;
            }
            if fruitless {
                // What comes is not to leave (comments, say). However much of it: others, and the clocks,
                // have their turn.
                tokio::task::yield_now().await;
            }
            fruitless = true;
            if self.reader.is_finished() {
                self.progress.end_at.get_or_insert_with(|| Instant::now() + END_WITHIN);
            }
            let Some(answer) = &mut self.answer else { return StreamPart::End };
            let piece = match self.progress.end_at {
                None => answer.next_piece().await,
                Some(at) => timeout_at(at, answer.next_piece()).await.unwrap_or(Ok(None)),
            };
            self.take_piece(piece);
        }
    }

    /// Returns true while nothing leaves, because the client sees nothing before the whole reply: until then
    /// another attempt can take its place.
    fn is_held_back(&self) -> bool {
        self.is_unseen && self.progress.end.is_none()
    }

    /// Joins the steps that are held back: most have a few letters.
    fn join_held_steps(&mut self) {
        let mut joined: Vec<ChoiceEvent> = Vec::new();
        for step in std::mem::take(&mut self.out.steps) {
            match joined.last_mut() {
                Some(last)
                    if last.choice == step.choice && last.logprobs.is_none() && step.logprobs.is_none() =>
                {
                    let other = last.event.append_same_kind(step.event);
                    joined.extend(other.map(|event| ChoiceEvent::new(step.choice, event)));
                }
                _ => joined.push(step),
            }
        }
        self.out.steps = joined;
        let held: usize = self.out.steps.iter().map(|step| step.event.text_len()).sum();
        if held > self.largest {
            self.end_too_long();
        }
    }

    /// Takes what waits to leave: the frames of a reply or its steps, never both.
    fn take_part(&mut self) -> StreamPart {
        if self.out.steps.is_empty() {
            StreamPart::Frames(self.out.frames.split().freeze())
        } else {
            StreamPart::Steps(std::mem::take(&mut self.out.steps))
        }
    }

    /// Releases the request: once something has been said, nothing is asked again.
    fn release_request(&mut self) {
        if !self.progress.is_released
            && self.reader.has_spoken()
            && let Some(exchange) = &mut self.exchange
        {
            self.progress.is_released = true;
            exchange.release_bytes();
        }
    }

    /// Lets the exchange decide what follows from this finding. What has left already is never asked again.
    fn reconsider(&mut self, finding: Finding, error: Option<Box<UpstreamError>>) {
        let Some(mut exchange) = self.exchange.take() else { return };
        self.answer = None;
        exchange.has_spoken = self.progress.is_sent && self.reader.has_spoken();
        let usage = self.usage();
        self.reconsidering = Some(Reconsidering(Box::pin(async move {
            let got = exchange.reconsider(finding, usage, error).await;
            (exchange, got)
        })));
    }

    fn take_result(&mut self, exchange: Box<Exchange>, got: Result<ExchangeReply, ApiError>) {
        match got {
            Ok(ExchangeReply::Stream(answer)) => self.begin_again(answer, exchange),
            Ok(ExchangeReply::Current(salvage)) => {
                self.exchange = Some(exchange);
                self.deliver_current(salvage);
            }
            // A stream is only ever followed by a stream.
            Ok(ExchangeReply::Whole(_)) => self.exchange = Some(exchange),
            Err(error) => {
                self.exchange = Some(exchange);
                self.end_with_error(error);
            }
        }
    }

    /// Reads another attempt, so that its chunks fit what has been sent; what is held of the useless reply is
    /// dropped.
    fn begin_again(&mut self, mut answer: Box<UpstreamResponse>, exchange: Box<Exchange>) {
        answer.release_headers();
        self.out.clear();
        self.progress.end_at = None;
        self.progress.is_useless = false;
        self.progress.received = 0;
        self.frames = self.frames.with_same_limit();
        answer.upstream().clone_into(&mut self.upstream);
        let fallback = exchange.request.progress.answering_model();
        if let (Some(head), Some(model)) = (&mut self.head, &fallback) {
            head.model.clone_from(model);
        }
        let continued = Some(&self.reader)
            .filter(|_| self.progress.is_sent)
            .and_then(|it| it.replacement(exchange.earlier_usage(), fallback.as_deref()));
        self.reader = continued.unwrap_or_else(|| {
            let mut reader = new_reader(&exchange);
            self.head.iter().for_each(|head| reader.set_sent_head(head));
            reader
        });
        self.answer = Some(answer);
        self.exchange = Some(exchange);
    }

    /// Takes in what has arrived already, without waiting.
    fn take_ready(&mut self) {
        let mut taken = 0;
        while self.is_reading() && self.out.frames.len().max(taken) < LARGEST_BATCH {
            let Some(piece) = self.answer.as_mut().and_then(|answer| answer.ready_piece()) else { return };
            taken += piece.as_ref().ok().and_then(Option::as_ref).map_or(0, Bytes::len);
            self.take_piece(piece);
            self.drain();
        }
    }

    fn is_reading(&self) -> bool {
        self.progress.end.is_none() && self.reconsidering.is_none()
    }

    fn take_piece(&mut self, piece: UpstreamResult<Option<Bytes>>) {
        match piece {
            Ok(Some(bytes)) => {
                self.record.content().take_reply_piece(&bytes);
                self.frames.push(bytes);
            }
            Ok(None) => self.upstream_closed(),
            Err(error) if self.reader.is_finished() => {
                // The reply was complete; only its connection did not close cleanly.
                self.record.record_unclean_end(&error.internal);
                self.finish_stream();
            }
            Err(error) => self.handle_break(*error),
        }
    }

    fn drain(&mut self) {
        while self.is_reading() {
            match self.frames.next_frame() {
                Ok(Some(frame)) => self.read_frame(&frame),
                Ok(None) => return,
                Err(_) => self.broke_off(ErrorCode::UpstreamFrameTooLong, "sent an event without end"),
            }
        }
    }

    fn read_frame(&mut self, frame: &Frame) {
        match frame.data() {
            Err(_) => self.broke_off(ErrorCode::UpstreamInvalidEvent, "sent an event that is not UTF-8"),
            // Comments feed no watchdog; respool sends heartbeats of its own.
            Ok(None) => {}
            Ok(Some(data)) => match data.trim() {
                DONE => self.upstream_ended(true),
                // Some proxies keep a connection awake with events that say nothing.
                "" => {}
                _ => self.read_chunk(frame, &data),
            },
        }
    }

    fn read_chunk(&mut self, frame: &Frame, data: &str) {
        if let Some(error) = self.error_event(data) {
            return self.handle_break(error);
        }
        if self.is_progress(data) {
            return;
        }
        // A live reply is kept until its end, and is bounded like a whole one.
        self.progress.received = self.progress.received.saturating_add(data.len());
        if self.progress.received > self.largest && self.reader.keeps_all() {
            return self.end_too_long();
        }
        let valid = escape_controls(data);
        let original = Some(frame).filter(|frame| frame.is_plain(data) && matches!(valid, Cow::Borrowed(_)));
        let fault = self.reader.push(original, &valid, &mut self.out).err();
        if let Some(fault) = fault {
            let what = format!("sent an event that is not valid JSON ({fault})");
            self.broke_off(ErrorCode::UpstreamInvalidEvent, &what);
        }
    }

    /// Returns true for a report of llama.cpp on the part of the prompt that it has read, and notes it.
    fn is_progress(&self, data: &str) -> bool {
        let Some(exchange) = self.exchange.as_ref().filter(|_| !self.reader.has_begun()) else {
            return false;
        };
        let percent =
            exchange.request.settings.recovery.announce_waiting.then(|| read_progress(data)).flatten();
        percent.into_iter().for_each(|percent| exchange.request.progress.note_prompt_read(percent));
        percent.is_some()
    }

    fn error_event(&self, data: &str) -> Option<UpstreamError> {
        if !may_hold_error(data) {
            return None;
        }
        let gives_up =
            || data.contains(r#""finish_reason":"error""#) || data.contains(r#""finish_reason": "error""#);
        let error = UpstreamError::from_success(&self.upstream, data);
        error.or_else(|| {
            gives_up().then(|| self.stream_error(ErrorCode::UpstreamError, "ended the reply with an error"))
        })
    }

    fn upstream_closed(&mut self) {
        if let Some(rest) = self.frames.take_rest() {
            self.read_frame(&rest);
        }
        if self.is_reading() {
            self.upstream_ended(self.reader.is_finished());
        }
    }

    fn upstream_ended(&mut self, is_complete: bool) {
        match (self.reader.has_begun(), is_complete) {
            (true, true) => self.finish_stream(),
            (true, false) => {
                self.broke_off(ErrorCode::UpstreamBrokeOff, "ended the stream in the middle of the reply");
            }
            (false, _) => {
                self.broke_off(ErrorCode::UpstreamEmptyStream, "ended the stream without a single chunk");
            }
        }
    }

    /// Ends the stream of an upstream's reply that is there as a whole.
    fn finish_stream(&mut self) {
        let usage = self.usage();
        if let Some(exchange) = &mut self.exchange {
            exchange.learn_usage(usage);
            exchange.keep_rules();
        }
        let exchange = self.exchange.as_ref();
        let is_full =
            |fault: &_| exchange.is_some_and(|exchange| exchange.filled_window(fault, usage).is_some());
        let fault = self.reader.settle(is_full, &mut self.out);
        if let Some((fault, salvage)) = fault {
            self.progress.is_useless = true;
            let (finding, error) = match &self.exchange {
                Some(exchange) => exchange.finding_of_fault(fault, salvage, usage),
                None => (Finding::Mistake(fault, salvage), None),
            };
            self.reconsider(finding, error);
            return;
        }
        if let Some(exchange) = &self.exchange {
            exchange.count_rescue(true);
        }
        self.deliver_current(Salvage::Answer);
    }

    /// Delivers the end of the current reply.
    fn deliver_current(&mut self, salvage: Salvage) {
        let usage = self.usage();
        let fills_window = self.exchange.as_ref().is_some_and(|exchange| exchange.fills_window(usage));
        self.reader.close(salvage, fills_window, &mut self.out);
        self.reader.turns().iter().for_each(|turn| self.record_turn(turn));
        if let Some(exchange) = self.exchange.as_ref().filter(|_| self.reader.has_reasoned()) {
            exchange.report_reasoning();
        }
        self.progress.end = Some(Ok(()));
    }

    /// Records a turn that has left as a whole.
    fn record_turn(&self, turn: &Turn) {
        match &self.exchange {
            Some(exchange) => exchange.request.complete_turn(turn),
            None => self.record.record_turn(turn),
        }
    }

    /// Handles a stream that broke.
    fn handle_break(&mut self, error: UpstreamError) {
        let limit = self.exchange.as_ref().and_then(|exchange| exchange.token_limit());
        self.reconsider(finding_of(&error, limit), Some(Box::new(error)));
    }

    /// Ends a stream that is of no use from here on.
    fn broke_off(&mut self, code: ErrorCode, what: &str) {
        self.handle_break(self.stream_error(code, what));
    }

    fn end_too_long(&mut self) {
        let what = format!("sent a reply of more than {} bytes (`limits.max_body`)", self.largest);
        self.broke_off(ErrorCode::UpstreamReplyTooLong, &what);
    }

    /// Ends the stream with an error: no attempt gave anything better.
    fn end_with_error(&mut self, error: ApiError) {
        if self.progress.is_sent {
            self.reader.give_up(&mut self.out);
        } else if self.progress.is_useless {
            // Nothing has left, so the failure can still be a true status.
            self.out.clear();
        }
        self.reader.turns().iter().for_each(|turn| self.record.record_turn(turn));
        self.progress.end = Some(Err(error));
    }

    fn stream_error(&self, code: ErrorCode, what: &str) -> UpstreamError {
        UpstreamError::new_broken(&self.upstream, 502, code, what, "")
    }
}

/// Reads the part of the prompt that has been read, in percent.
fn read_progress(data: &str) -> Option<u64> {
    let chunk = Object::parse(data).ok()?;
    let progress = Object::parse(chunk.get("prompt_progress")?).ok()?;
    let (total, processed) = (progress.number("total")?, progress.number("processed")?);
    (processed.min(total) * 100).checked_div(total)
}

/// Returns the reader of this exchange's stream. The chunks of chat completions go through to a client of
/// those.
fn new_reader(exchange: &Exchange) -> ReplyReader {
    let profile = &exchange.request.profile;
    let (form, keep, spent) = (&profile.reply, profile.reply.keep.clone(), exchange.earlier_usage());
    match (profile.route, profile.wire) {
        (Route::Live, _) => {
            let rules = LiveRules {
                reply: exchange.reply_rules(),
                shows_reasoning: form.reasoning.is_some(),
                keep,
                spent,
                free_text: Arc::clone(&profile.free_text),
            };
            let ids = Ids::new(rand::random(), exchange.request.traits.taken_ids.clone());
            ReplyReader::Live(Box::new(LiveTurn::new(rules, ids, profile.created, profile.model.clone())))
        }
        (_, Wire::Chat) => {
            let rules = ChunkRules { reasoning: form.reasoning, usage: form.usage, keep, spent };
            ReplyReader::passthrough(StreamState::new(rules))
        }
        (_, Wire::Responses | Wire::Messages) => {
            let rules = PlainRules { shows_reasoning: form.reasoning.is_some(), spent };
            ReplyReader::Plain(Box::new(PlainTurn::new(rules)))
        }
    }
}
