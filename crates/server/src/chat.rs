//! `POST /v1/chat/completions`: answers a chat request, and writes the reply as it comes.
//!
//! Up to `commit_after` a failure is a true HTTP status. Then the head and the role chunk leave, and heartbeats, until the
//! upstream speaks. The client's going away drops everything here, and with it the upstream request.

use std::borrow::Cow;
use std::convert::identity;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;
use http::request::Parts;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::final_error::ErrorForm;
use super::heartbeat::{self, Source, frame};
use super::stream_head::{StreamHead, until_stopped};
use super::{App, agent, body, permission, respond};
use relay::{ClientRequest, Facts, Opened, Origin, ReplyStream, RequestProgress, StreamPart, Wire};
use telemetry::{RequestRecord, RequestStart};
use translate::{ChatSink, ClientProgram, Head, Ids, Reply, completion_json};
use upstream::CHAT_PATH;
use wire::{ApiError, ErrorCode};

pub(super) type Pending<T> = Pin<Box<dyn Future<Output = Result<T, ApiError>> + Send>>;

pub(super) async fn chat(app: App, request: http::Request<Incoming>, peer: Option<IpAddr>) -> Response {
    let received = Instant::now();
    let (parts, body) = request.into_parts();
    let id = respond::request_id(&parts.headers);
    let start = RequestStart::new(id, "POST /v1/chat/completions", "chat");
    let start = start.of_account(permission::account(&parts.extensions)).continuing_trace(&parts.headers);
    let record = RequestRecord::begin(start, &app.recording);
    let progress = Arc::default();
    let served = served(app, parts, body, (peer, received), Arc::clone(&progress), &record);
    respond::with_trimmed(respond::leaves(served.await, &record), &progress)
}

async fn served(
    app: App,
    parts: Parts,
    body: Incoming,
    (peer, received): (Option<IpAddr>, Instant),
    progress: Arc<RequestProgress>,
    record: &RequestRecord,
) -> Response {
    let body = match read(&app, &parts, body).await {
        Ok((body, room)) => room.keep(body),
        Err(error) => return respond::error(&error),
    };
    record.content("client request", &body);
    let agent = agent::asked_for(&app, &body);
    let name = agent.as_ref().map_or("", |(agent, _)| &*agent.name);
    let permitted = permission::begin_chat(&app, &parts, &body)
        .and_then(|()| permission::within_budget(&app, record.start().key(), name));
    if let Err(error) = permitted {
        permission::record_refused(record, name, &body);
        let form = app.error_form(Wire::Chat, ClientProgram::of_chat_body(&body));
        return respond::error_as(form, error, &record.start().id);
    }
    if let Some(agent) = agent {
        // Boxed as it is another path: every request pays for the size of this future.
        return Box::pin(agent::answer(app, agent, &body, &parts.headers, record)).await;
    }
    let origin = Origin {
        wire: Wire::Chat,
        path_and_query: upstream_path(&parts.uri),
        request_id: respond::upstream_id(&parts.headers, &record.start().id),
        headers: parts.headers,
        peer,
        received,
        is_agent: false,
        may_trim: false,
        free_text: Arc::default(),
        record: record.clone(),
        progress,
    };
    match app.relay.read(body, origin).await {
        Ok(request) => {
            record.request(&request.recorded_facts());
            record.route(request.facts.route.as_str());
            answer(app, request).await
        }
        Err(error) => respond::error(&error),
    }
}

/// Path and query as the upstream has them: below `/v1`, whether or not the client wrote that.
fn upstream_path(uri: &http::Uri) -> Cow<'static, str> {
    match uri.path_and_query().map_or(CHAT_PATH, |path| path.as_str()) {
        CHAT_PATH => Cow::Borrowed(CHAT_PATH),
        path if path.starts_with("/v1/") => Cow::Owned(path.to_owned()),
        path => Cow::Owned(format!("/v1{path}")),
    }
}

/// The body, and the room that it takes.
pub(super) async fn read(app: &App, parts: &Parts, body: Incoming) -> Result<(Bytes, body::Taken), ApiError> {
    if parts.headers.get(http::header::CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
        let message = "the request body is compressed; send it with `content-encoding: identity`";
        return Err(ApiError::new(415, ErrorCode::UnsupportedContentEncoding, message));
    }
    let _reading = match permission::begin_reading(parts) {
        Ok(reading) => reading,
        Err(error) => return Err(body::refused(error, body.into_data_stream()).await),
    };
    body::read_counted(body, &app.limits, &app.bodies).await
}

/// Begins to answer a chat request that another API's request became; with the program that asks.
///
/// # Errors
/// When it is none, or nobody serves its model.
pub(super) async fn begin(
    app: &App,
    body: Bytes,
    origin: Origin,
) -> Result<(Pending<Opened>, ClientProgram), ApiError> {
    let request = app.relay.read(body, origin).await?;
    request.record.request(&request.recorded_facts());
    let program = request.facts.program;
    if let Some(found) = &request.loop_found {
        request.record.loop_stopped(found.kind.as_str());
        let reply = Reply::canned(own_head(&request.facts), &found.answer());
        return Ok((Box::pin(std::future::ready(Ok(Opened::Reply(Box::new(reply))))), program));
    }
    let relay = Arc::clone(&app.relay);
    let shows_reasoning = request.facts.reasoning.is_some();
    let opening = async move {
        let opened = relay.answer(request).await?;
        Ok(if shows_reasoning { opened } else { without_reasoning(opened) })
    };
    Ok((Box::pin(opening), program))
}

/// The answer where the owner lets no reasoning out (`reasoning = "drop"`). A stream leaves it out itself.
fn without_reasoning(mut opened: Opened) -> Opened {
    if let Opened::Reply(reply) = &mut opened {
        reply.choices.iter_mut().for_each(|choice| choice.turn.reasoning.clear());
    }
    opened
}

async fn answer(app: App, request: Arc<ClientRequest>) -> Response {
    let facts = Arc::clone(&request.facts);
    if let Some(found) = &request.loop_found {
        request.record.loop_stopped(found.kind.as_str());
        return spooled(Reply::canned(own_head(&facts), &found.answer()), &facts);
    }
    let record = request.record.clone();
    let work = Arc::clone(&app.relay).answer(request);
    let errors = app.error_form(Wire::Chat, facts.program);
    if facts.stream {
        return Committer { app, facts, errors, record }.answer(Box::pin(work)).await;
    }
    match until_stopped(&app.abort, work).await.and_then(identity) {
        Ok(opened) => whole(opened, &facts),
        Err(error) => respond::error_as(errors, error, &record.start().id),
    }
}

/// An answer that needs no stream.
fn whole(opened: Opened, facts: &Facts) -> Response {
    match opened {
        Opened::Reply(reply) => spooled(*reply, facts),
        Opened::Body(body) => respond::json(StatusCode::OK, body),
        Opened::Stream(_) => respond::error(&not_a_stream()),
    }
}

/// A whole reply in the form the client asked for.
fn spooled(reply: Reply, facts: &Facts) -> Response {
    if facts.stream {
        let mut out = Vec::with_capacity(1024);
        ChatSink::new(facts.reasoning, facts.usage).write_reply(reply, &mut out);
        return respond::stream(Body::from(out));
    }
    respond::json(StatusCode::OK, completion_json(&reply, facts.reasoning))
}

/// Never seen: what is answered follows from what was asked.
pub(super) fn not_a_stream() -> ApiError {
    ApiError::new(
        500,
        ErrorCode::WrongForm,
        "the reply has not the form that was asked for; please report this",
    )
}

fn own_head(facts: &Facts) -> Head {
    let id = Ids::new(rand::random(), std::collections::HashSet::new()).reply_id();
    Head { id, created: facts.created, model: facts.model.clone(), tags: vec![] }
}

/// Waits for a reply, and commits the head of a stream when it takes too long.
struct Committer {
    app: App,
    facts: Arc<Facts>,
    errors: ErrorForm,
    record: RequestRecord,
}

impl Committer {
    /// A failure is a true status as long as no head has left.
    async fn answer(self, mut work: Pending<Opened>) -> Response {
        let head = StreamHead::new(&self.app, &self.record);
        let Some(opened) = head.wait(&mut work).await else {
            return self.committed(|head| Stage::Opening(work, head));
        };
        let mut stream = match opened.and_then(identity) {
            Ok(Opened::Stream(stream)) => stream,
            Ok(opened) => return whole(opened, &self.facts),
            Err(error) => return self.failed(error),
        };
        let Some(first) = head.wait(stream.next()).await else {
            return self.committed(|head| {
                stream.head_was_sent(&head);
                Stage::Open(stream)
            });
        };
        match first.unwrap_or_else(StreamPart::Failed) {
            StreamPart::Failed(error) => self.failed(error),
            // The upstream spoke in time: its own head and chunks go through.
            first => {
                let mut source = self.source(Stage::Open(stream));
                let first = source.frames(first).unwrap_or_default();
                source.streamed(first)
            }
        }
    }

    fn failed(self, error: ApiError) -> Response {
        respond::error_as(self.errors, error, &self.record.start().id)
    }

    /// The upstream did not speak in time: respool sends the head, and the upstream's chunks are made to fit it.
    fn committed(self, stage: impl FnOnce(Head) -> Stage) -> Response {
        let (head, choices) = (own_head(&self.facts), self.facts.choices);
        let mut source = self.source(Stage::Over);
        let mut first = Vec::new();
        source.sink.begin(&head);
        source.sink.roles(choices, &mut first);
        source.stage = stage(head);
        source.streamed(first.into())
    }

    fn source(self, stage: Stage) -> ReplySource {
        let Self { app, facts, errors, record } = self;
        let sink = ChatSink::new(facts.reasoning, facts.usage);
        ReplySource { abort: app.abort, every: app.limits.heartbeat, sink, errors, record, stage }
    }
}

/// The source of the stream that a reply leaves in.
struct ReplySource {
    abort: CancellationToken,
    every: Duration,
    /// Writes what does not go through as it is.
    sink: ChatSink,
    errors: ErrorForm,
    record: RequestRecord,
    stage: Stage,
}

/// How far the upstream is.
enum Stage {
    /// It has not answered; the role chunk of this head has left.
    Opening(Pending<Opened>, Head),
    Open(Box<ReplyStream>),
    Over,
}

impl ReplySource {
    fn streamed(self, first: Bytes) -> Response {
        let (every, record) = (self.every, self.record.clone());
        heartbeat::streamed(self, first, every, &record)
    }

    /// The frames of a part; `None` at the end.
    fn frames(&mut self, part: StreamPart) -> Option<Bytes> {
        match part {
            StreamPart::Frames(frames) => Some(frames),
            StreamPart::Steps(steps) => {
                let mut out = Vec::new();
                self.begin();
                steps.iter().for_each(|step| self.sink.write(step, &mut out));
                Some(out.into())
            }
            StreamPart::Failed(error) => Some(self.failed(error)),
            StreamPart::End => {
                let Stage::Open(stream) = std::mem::replace(&mut self.stage, Stage::Over) else {
                    return None;
                };
                self.record.usage(stream.usage());
                self.record.is_whole();
                let mut out = Vec::new();
                if !stream.passes_frames() {
                    self.sink.end(&mut out);
                }
                Some(out.into())
            }
        }
    }

    /// What comes as steps has the upstream's head, unless respool's own has left.
    fn begin(&mut self) {
        if let Stage::Open(stream) = &self.stage {
            stream.upstream_head().into_iter().for_each(|head| self.sink.begin(head));
        }
    }

    fn opened(&mut self, opened: Result<Opened, ApiError>) -> Bytes {
        match (std::mem::replace(&mut self.stage, Stage::Over), opened) {
            (Stage::Opening(_, head), Ok(Opened::Stream(mut stream))) => {
                stream.head_was_sent(&head);
                self.stage = Stage::Open(stream);
                Bytes::new()
            }
            (Stage::Opening(..), Ok(Opened::Reply(reply))) => {
                self.record.is_whole();
                let mut out = Vec::new();
                self.sink.write_reply(*reply, &mut out);
                out.into()
            }
            (_, Ok(_)) => self.failed(not_a_stream()),
            (_, Err(error)) => self.failed(error),
        }
    }

    fn failed(&mut self, error: ApiError) -> Bytes {
        self.stage = Stage::Over;
        respond::failed_tail(&self.errors.in_stream(error), &self.record)
    }
}

impl Source for ReplySource {
    async fn next(&mut self) -> Option<Bytes> {
        match &mut self.stage {
            Stage::Opening(work, ..) => {
                let opened = until_stopped(&self.abort, work).await;
                Some(self.opened(opened.and_then(identity)))
            }
            Stage::Open(stream) => {
                let part = until_stopped(&self.abort, stream.next()).await;
                self.frames(part.unwrap_or_else(StreamPart::Failed))
            }
            Stage::Over => None,
        }
    }

    fn heartbeat(&mut self) -> Option<Bytes> {
        self.begin();
        let heartbeat = match &self.stage {
            Stage::Open(stream) if stream.passes_frames() => stream.heartbeat(),
            Stage::Opening(..) | Stage::Open(_) => self.sink.heartbeat(),
            Stage::Over => None,
        };
        heartbeat.map(|heartbeat| frame(&heartbeat))
    }
}
