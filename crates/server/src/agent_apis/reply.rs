//! Writes a reply in the client's own events. The head leaves, and heartbeats keep a silent stream alive, as
//! on the chat route.
//!
//! The relay is always asked for a stream, so that a reply without tools leaves as it arrives; without
//! `stream` it is collected.

use std::sync::Arc;

use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;

use super::errors::Client;
use super::source::{Piece, Source};
use super::writer::Writer;
use crate::agent::RUN_ID;
use crate::announced_progress::AnnouncedProgress;
use crate::app::App;
use crate::body::BodyReservation;
use crate::stream_head::{StreamHead, run_until_stopped};
use crate::{heartbeat, respond};
use relay::RequestProgress;
use telemetry::RequestRecord;
use wire::turn::{ChoiceEvent, FinishReason, TurnEnd, TurnEvent, Usage};
use wire::{ApiError, ErrorCode};

/// A reply in the making.
pub(super) struct ReplyWriter {
    pub(super) app: App,
    pub(super) writer: Writer,
    pub(super) client: Client,
    pub(super) record: RequestRecord,
    progress: Arc<RequestProgress>,
    /// The announcements to a stream's client, until the reply begins.
    announced: Option<AnnouncedProgress>,
    /// The bytes of text that were written.
    written: usize,
    /// The end of the turn, which is written once its stream has ended and the reply is kept.
    end: Option<TurnEnd>,
    /// The reservation for the kept part of the request.
    _held: Option<BodyReservation>,
}

impl ReplyWriter {
    /// Answers with a stream or a whole reply, as the client asked, and with the run's id if an agent
    /// answers.
    pub(super) async fn answer_client(self, source: Source, stream: bool) -> Response {
        let run = source.run_id();
        let mut response =
            if stream { self.answer_streamed(source).await } else { self.answer_whole(source).await };
        response.headers_mut().extend(run.map(|id| (RUN_ID, id)));
        response
    }

    pub(super) fn new(
        app: App,
        writer: Writer,
        client: Client,
        record: RequestRecord,
        progress: Arc<RequestProgress>,
    ) -> Self {
        Self { app, writer, client, record, progress, announced: None, written: 0, end: None, _held: None }
    }

    /// Holds this reservation until the reply has ended.
    pub(super) fn with_reservation(self, room: BodyReservation) -> Self {
        Self { _held: Some(room), ..self }
    }

    /// Answers with the whole object.
    async fn answer_whole(mut self, source: Source) -> Response {
        if let Err(error) = self.collect_turn(source).await {
            return self.client.refuse_request(error);
        }
        self.keep_reply().await;
        match self.writer.whole_object() {
            Some(whole) => respond::json_response(StatusCode::OK, whole.to_owned()),
            None => self.client.refuse_request(respond::wrong_form()),
        }
    }

    /// Collects the whole turn.
    ///
    /// # Errors
    /// The turn's failure.
    pub(super) async fn collect_turn(&mut self, mut source: Source) -> Result<(), ApiError> {
        let mut out = Vec::new();
        loop {
            out.clear();
            match self.next_piece(&mut source).await {
                Piece::Failed(error) => return Err(error),
                piece => {
                    if self.write_piece(piece, &mut out) {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Keeps the reply if its client wants that, before the last event leaves: the client may continue with
    /// it at once.
    async fn keep_reply(&mut self) {
        if let Some(response) = self.writer.take_kept() {
            self.app.agent_apis.responses.keep_response(&self.client.owner, response).await;
        }
    }

    /// Answers with a stream: until `commit_after` a failure has a true status.
    async fn answer_streamed(mut self, mut source: Source) -> Response {
        let head = StreamHead::new(&self.app, &self.record);
        self.announced = source.take_announced();
        loop {
            let Some(piece) = head.wait_for(self.next_piece(&mut source)).await else {
                return self.commit_head(source, None).await;
            };
            match piece.unwrap_or_else(Piece::Failed) {
                Piece::Opened => {}
                Piece::Failed(error) => return self.client.fail_stream(error, &mut self.writer),
                piece => return self.commit_head(source, Some(piece)).await,
            }
        }
    }

    /// Sends the head and the first events now; the rest follows as it arrives.
    async fn commit_head(mut self, source: Source, first: Option<Piece>) -> Response {
        let (record, every) = (self.record.clone(), self.app.limits.heartbeat);
        let mut out = Vec::new();
        self.name_model();
        self.writer.write_begin(&mut out);
        let ended = first.is_some_and(|piece| self.write_piece(piece, &mut out));
        if ended {
            self.keep_reply().await;
        }
        heartbeat::stream_response(
            ReplyEvents { reply: self, source, ended, last: None },
            out.into(),
            every,
            &record,
        )
    }

    /// Waits for the next piece, or respool's end. Safe to cancel. The reply is held until its end, so its
    /// size is bounded like that of a whole one.
    async fn next_piece(&self, source: &mut Source) -> Piece {
        if self.written > self.app.limits.max_body.to_usize() {
            return Piece::Failed(too_long(&self.app));
        }
        run_until_stopped(&self.app.abort, source.next_piece()).await.unwrap_or_else(Piece::Failed)
    }

    /// Writes a piece; returns true at the end.
    fn write_piece(&mut self, piece: Piece, out: &mut Vec<u8>) -> bool {
        self.announced.take_if(|_| !matches!(piece, Piece::Opened));
        match piece {
            Piece::Opened => return false,
            Piece::Steps(steps) => {
                self.client.release_request();
                self.write_steps(steps, out);
                return false;
            }
            Piece::Event(event) => {
                self.writer.write_event(&event, out);
                return false;
            }
            Piece::Whole(reply) => {
                self.record.mark_whole();
                let usage = reply.usage;
                self.write_steps(reply.keep_first_choice().into_events(), out);
                self.write_end(usage, out);
            }
            Piece::End(usage) => {
                self.record.set_usage(usage);
                self.record.mark_whole();
                self.write_end(usage, out);
            }
            Piece::Failed(error) => {
                let error = self.client.end_stream(error, &mut self.writer, out);
                respond::record_failure(&error, &self.record);
            }
        }
        true
    }
}

impl ReplyWriter {
    /// Writes the events of the first choice, the only one in these APIs. Its end is held back.
    fn write_steps(&mut self, steps: Vec<ChoiceEvent>, out: &mut Vec<u8>) {
        let mut events = Vec::with_capacity(steps.len());
        for step in steps.into_iter().filter(|step| step.choice == 0) {
            self.written += step.event.text_len();
            step.logprobs.iter().for_each(|logprobs| self.writer.add_logprobs(logprobs));
            match step.event {
                TurnEvent::Finish(end) => self.end = Some(end),
                event => events.push(event),
            }
        }
        self.writer.write_all(events, out);
    }

    /// Names the model that answers, if another one was asked.
    fn name_model(&mut self) {
        self.progress.answering_model().into_iter().for_each(|model| self.writer.set_model(model));
    }

    fn write_end(&mut self, usage: Option<Usage>, out: &mut Vec<u8>) {
        self.name_model();
        let end = self.end.take().unwrap_or_else(|| TurnEnd::new(FinishReason::Stop, usage));
        self.writer.write_event(&TurnEvent::Finish(end), out);
    }
}

fn too_long(app: &App) -> ApiError {
    let what = format!(
        "the model's reply has more than {} (`limits.max_body` in respool.toml)",
        app.limits.max_body
    );
    let error = ApiError::new(502, ErrorCode::UpstreamReplyTooLong, what);
    ApiError { is_final: true, ..error }
}

/// The source of the stream that a reply leaves in.
struct ReplyEvents {
    reply: ReplyWriter,
    source: Source,
    ended: bool,
    /// The last events, which leave once the reply is kept.
    last: Option<Bytes>,
}

impl heartbeat::Source for ReplyEvents {
    async fn next(&mut self) -> Option<Bytes> {
        if self.ended {
            self.last.as_ref()?;
            self.reply.keep_reply().await;
            return self.last.take();
        }
        let piece = self.reply.next_piece(&mut self.source).await;
        let mut out = Vec::new();
        self.ended = self.reply.write_piece(piece, &mut out);
        if !self.ended {
            return Some(out.into());
        }
        self.last = Some(out.into());
        self.reply.keep_reply().await;
        self.last.take()
    }

    fn heartbeat(&mut self) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        let mut out = Vec::new();
        match self.reply.announced.as_mut().and_then(AnnouncedProgress::next_words) {
            Some(words) => self.reply.writer.write_event(&words, &mut out),
            None => self.reply.writer.write_heartbeat(&mut out),
        }
        Some(out.into())
    }
}
