//! `POST /v1/chat/completions`: answers a chat request, and writes the reply as it arrives.
//!
//! Until `commit_after` a failure has a true HTTP status. Then the head, the role chunk and heartbeats leave
//! until the upstream answers. When the client goes away, everything here is dropped, and with it the
//! upstream request.

use std::borrow::Cow;
use std::convert::{Infallible, identity};
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;
use hyper::body::Incoming;
use tokio_util::sync::CancellationToken;

use super::announced_progress::AnnouncedProgress;
use super::app::App;
use super::final_error::ErrorForm;
use super::front::{Arrival, Cost, TurnAnswer, begin_turn};
use super::heartbeat::{self, Source, sse_frame};
use super::respond;
use super::stream_head::{Pending, StreamHead, run_until_stopped};
use relay::{Opened, ReadRequest, ReplyStream, RequestProfile, RequestProgress, StreamPart, Wire};
use telemetry::RequestRecord;
use translate::{ChatSink, Head, Reply, completion_json};
use upstream::CHAT_PATH;
use wire::ApiError;
use wire::turn::ChoiceEvent;

/// Answers a chat request.
pub(super) async fn handle_chat(
    app: App,
    request: http::Request<Incoming>,
    peer: Option<IpAddr>,
) -> Result<Response, Infallible> {
    let (parts, body) = request.into_parts();
    let mut arrival = Arrival::new(app, parts, peer, "POST /v1/chat/completions", "chat");
    let response = answer_chat(&mut arrival, body).await;
    Ok(arrival.finish_response(response))
}

async fn answer_chat(arrival: &mut Arrival, body: Incoming) -> Response {
    let body = match arrival.read_body(body).await {
        Ok((body, reservation)) => reservation.attach_to(body),
        Err(error) => return refuse_request(arrival, error, &Bytes::new()),
    };
    if let Err(error) = arrival.check_permission(&body, Cost::Tokens) {
        return refuse_request(arrival, error, &body);
    }
    let path = upstream_path(&arrival.parts.uri);
    let origin = arrival.take_origin(Wire::Chat, path);
    match begin_turn(&arrival.app, body.clone(), origin).await {
        Ok(TurnAnswer::Run(run)) => Box::pin(run.answer_chat()).await,
        Ok(TurnAnswer::Model(request)) => {
            drop(body);
            arrival.record.set_route(request.profile().route.as_str());
            answer_request(arrival.app.clone(), request).await
        }
        Err(error) => refuse_request(arrival, error, &body),
    }
}

/// Answers with an error in the form that the client needs.
fn refuse_request(arrival: &Arrival, error: ApiError, body: &[u8]) -> Response {
    let form = arrival.app.error_form(Wire::Chat, arrival.client_program(body));
    respond::error_as(form, error, &arrival.record.start().id)
}

/// Returns path and query as the upstream has them: below `/v1`, whether or not the client wrote that.
fn upstream_path(uri: &http::Uri) -> Cow<'static, str> {
    match uri.path_and_query().map_or(CHAT_PATH, |path| path.as_str()) {
        CHAT_PATH => Cow::Borrowed(CHAT_PATH),
        path if path.starts_with("/v1/") => Cow::Owned(path.to_owned()),
        path => Cow::Owned(format!("/v1{path}")),
    }
}

async fn answer_request(app: App, request: ReadRequest) -> Response {
    let (profile, record) = (Arc::clone(request.profile()), request.record().clone());
    let errors = app.error_form(Wire::Chat, profile.program);
    if profile.stream {
        let (progress, announced) = (Arc::clone(request.progress()), AnnouncedProgress::new(&request));
        return Committer { app, profile, errors, record, progress, announced }
            .commit_answer(Box::pin(request.answer()))
            .await;
    }
    match run_until_stopped(&app.abort, pin!(request.answer())).await.and_then(identity) {
        Ok(opened) => whole_answer(opened, &profile),
        Err(error) => respond::error_as(errors, error, &record.start().id),
    }
}

/// Answers without a stream.
fn whole_answer(opened: Opened, profile: &RequestProfile) -> Response {
    match opened {
        Opened::Reply(reply) => reply_response(*reply, profile),
        Opened::Body(body) => respond::json_response(StatusCode::OK, body),
        Opened::Stream(_) => respond::error_response(&respond::wrong_form()),
    }
}

/// Returns a whole reply in the form that the client asked for.
fn reply_response(reply: Reply, profile: &RequestProfile) -> Response {
    if profile.stream {
        let mut out = Vec::with_capacity(1024);
        ChatSink::new(profile.reply.reasoning, profile.reply.usage).write_reply(reply, &mut out);
        return respond::stream_response(Body::from(out));
    }
    respond::json_response(StatusCode::OK, completion_json(&reply, profile.reply.reasoning))
}

/// Waits for a reply, and commits the head of a stream when it takes too long.
struct Committer {
    app: App,
    profile: Arc<RequestProfile>,
    errors: ErrorForm,
    record: RequestRecord,
    progress: Arc<RequestProgress>,
    announced: Option<AnnouncedProgress>,
}

impl Committer {
    /// Answers when the work is done, or with a head before that. A failure has a true status until a head
    /// has left.
    async fn commit_answer(self, mut work: Pending<Opened>) -> Response {
        let head = StreamHead::new(&self.app, &self.record);
        let Some(opened) = head.wait_for(&mut work).await else {
            return self.commit_head(|head| Stage::Opening(work, head));
        };
        let mut stream = match opened.and_then(identity) {
            Ok(Opened::Stream(stream)) => stream,
            Ok(opened) => return whole_answer(opened, &self.profile),
            Err(error) => return self.refuse_request(error),
        };
        let Some(first) = head.wait_for(stream.next()).await else {
            return self.commit_head(|head| {
                stream.head_was_sent(&head);
                Stage::Open(stream)
            });
        };
        match first.unwrap_or_else(StreamPart::Failed) {
            StreamPart::Failed(error) => self.refuse_request(error),
            // The upstream answered in time: its own head and chunks go through.
            first => {
                let mut source = self.reply_source(Stage::Open(stream));
                let first = source.part_frames(first).unwrap_or_default();
                source.stream_reply(first)
            }
        }
    }

    fn refuse_request(self, error: ApiError) -> Response {
        respond::error_as(self.errors, error, &self.record.start().id)
    }

    /// Sends respool's own head, because the upstream did not answer in time; the upstream's chunks are made
    /// to fit it.
    fn commit_head(self, stage: impl FnOnce(Head) -> Stage) -> Response {
        let (head, choices) = (self.profile.own_head(), self.profile.reply.choices);
        let mut source = self.reply_source(Stage::Over);
        let mut first = Vec::new();
        source.sink.set_head(&head);
        source.sink.write_roles(choices, &mut first);
        source.stage = stage(head);
        source.stream_reply(first.into())
    }

    fn reply_source(self, stage: Stage) -> ReplySource {
        let Self { app, profile, errors, record, progress, announced } = self;
        let sink = ChatSink::new(profile.reply.reasoning, profile.reply.usage);
        let (abort, every) = (app.abort.clone(), app.limits.heartbeat);
        ReplySource { abort, every, sink, errors, record, stage, progress, announced }
    }
}

/// The source of the stream that a reply leaves in.
struct ReplySource {
    abort: CancellationToken,
    every: Duration,
    /// The writer of the chunks that do not go through unchanged.
    sink: ChatSink,
    errors: ErrorForm,
    record: RequestRecord,
    stage: Stage,
    progress: Arc<RequestProgress>,
    /// The announcements, until the reply begins.
    announced: Option<AnnouncedProgress>,
}

/// The stage of a reply.
enum Stage {
    /// The upstream has not answered; the role chunk of this head has left.
    Opening(Pending<Opened>, Head),
    Open(Box<ReplyStream>),
    Over,
}

impl ReplySource {
    fn stream_reply(self, first: Bytes) -> Response {
        let (every, record) = (self.every, self.record.clone());
        heartbeat::stream_response(self, first, every, &record)
    }

    /// Returns the frames of a part; `None` at the end.
    fn part_frames(&mut self, part: StreamPart) -> Option<Bytes> {
        self.announced = None;
        match part {
            StreamPart::Frames(frames) => Some(frames),
            StreamPart::Steps(steps) => {
                let mut out = Vec::new();
                self.begin_reply();
                steps.iter().for_each(|step| self.sink.write_step(step, &mut out));
                Some(out.into())
            }
            StreamPart::Failed(error) => Some(self.failure_frames(error)),
            StreamPart::End => {
                let Stage::Open(stream) = std::mem::replace(&mut self.stage, Stage::Over) else {
                    return None;
                };
                self.record.set_usage(stream.usage());
                self.record.mark_whole();
                let mut out = Vec::new();
                if !stream.passes_frames() {
                    self.sink.end_stream(&mut out);
                }
                Some(out.into())
            }
        }
    }

    /// Begins a reply that arrives as steps with the upstream's head, unless another one has left. A fallback
    /// is named from here on.
    fn begin_reply(&mut self) {
        let Stage::Open(stream) = &self.stage else { return };
        let Some(head) = stream.upstream_head() else { return };
        self.sink.set_head(head);
        if self.progress.answering_model().is_some() {
            self.sink.set_model(&head.model);
        }
    }

    fn take_opened(&mut self, opened: Result<Opened, ApiError>) -> Bytes {
        match (std::mem::replace(&mut self.stage, Stage::Over), opened) {
            (Stage::Opening(_, head), Ok(Opened::Stream(mut stream))) => {
                stream.head_was_sent(&head);
                self.stage = Stage::Open(stream);
                Bytes::new()
            }
            (Stage::Opening(..), Ok(Opened::Reply(reply))) => {
                self.record.mark_whole();
                if self.progress.answering_model().is_some() {
                    self.sink.set_model(&reply.head.model);
                }
                let mut out = Vec::new();
                self.sink.write_reply(*reply, &mut out);
                out.into()
            }
            (_, Ok(_)) => self.failure_frames(respond::wrong_form()),
            (_, Err(error)) => self.failure_frames(error),
        }
    }

    /// Says in the reasoning what is new about a request whose reply has not begun.
    fn announce_progress(&mut self) -> Option<Bytes> {
        let words = self.announced.as_mut()?.next_words()?;
        let mut out = Vec::new();
        self.sink.write_step(&ChoiceEvent::new(0, words), &mut out);
        Some(out.into())
    }

    fn failure_frames(&mut self, error: ApiError) -> Bytes {
        self.stage = Stage::Over;
        respond::failed_tail(&self.errors.apply_in_stream(error), &self.record)
    }
}

impl Source for ReplySource {
    async fn next(&mut self) -> Option<Bytes> {
        match &mut self.stage {
            Stage::Opening(work, ..) => {
                let opened = run_until_stopped(&self.abort, work).await;
                Some(self.take_opened(opened.and_then(identity)))
            }
            Stage::Open(stream) => {
                let part = run_until_stopped(&self.abort, stream.next()).await;
                self.part_frames(part.unwrap_or_else(StreamPart::Failed))
            }
            Stage::Over => None,
        }
    }

    fn heartbeat(&mut self) -> Option<Bytes> {
        if let Some(announced) = self.announce_progress() {
            return Some(announced);
        }
        self.begin_reply();
        let heartbeat = match &self.stage {
            Stage::Open(stream) if stream.passes_frames() => stream.heartbeat(),
            Stage::Opening(..) | Stage::Open(_) => self.sink.heartbeat(),
            Stage::Over => None,
        };
        heartbeat.map(|heartbeat| sse_frame(&heartbeat))
    }
}
