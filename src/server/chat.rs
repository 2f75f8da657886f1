//! `POST /v1/chat/completions`: decides when the head of a reply leaves, and tells the reply as it comes.
//!
//! Up to `commit_after` a failure is a true HTTP status. Then the head and the role chunk leave, and heartbeats, until the
//! upstream speaks. The client's going away drops everything here, and with it the upstream request.

use std::borrow::Cow;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use hyper::body::Incoming;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::heartbeat::{self, Source, frame};
use super::{App, agent, body, permission, respond};
use crate::observe::{Outcome, RequestLine, SharedLine};
use crate::relay::{Batch, ClientRequest, ErrorForm, Facts, Opened, Origin, ReplyStream, Wire, reply_json};
use crate::translate::{ChatSink, ClientProgram, Head, Ids, Reply};
use crate::wire::{ApiError, ErrorCode};

pub(super) type Pending<T> = Pin<Box<dyn Future<Output = Result<T, ApiError>> + Send>>;

pub(super) async fn chat(app: App, request: http::Request<Incoming>, peer: Option<IpAddr>) -> Response {
    let received = Instant::now();
    let (parts, body) = request.into_parts();
    let id = respond::request_id(&parts.headers);
    let mut line = RequestLine::start(id.clone(), "POST /v1/chat/completions".to_owned());
    line.route = "chat";
    line.continue_trace(&parts.headers);
    let line = SharedLine::new(line, &app.recording);
    let body = match read(&app, &parts.headers, body, &line).await {
        Ok((body, room)) => room.keep(body),
        Err(error) => return respond::error(&error, &line),
    };
    let agent = agent::asked_for(&app, &body);
    let name = agent.as_ref().map_or("", |(agent, _)| &*agent.name);
    let permitted = permission::begin_chat(&app, &parts, &body, &line)
        .and_then(|()| permission::within_budget(&app, &line, name, &body));
    if let Err(error) = permitted {
        let form = app.error_form(Wire::Chat, ClientProgram::of_chat_body(&body));
        return respond::error_as(form, error, &line);
    }
    if let Some(agent) = agent {
        // Boxed as it is another path: every request pays for the size of this future.
        return Box::pin(agent::answer(app, agent, &body, &parts.headers, line)).await;
    }
    let origin = Origin {
        wire: Wire::Chat,
        path_and_query: upstream_path(&parts.uri).into_owned(),
        request_id: respond::upstream_id(&parts.headers, &id),
        headers: parts.headers,
        peer,
        received,
        is_agent: false,
        may_trim: false,
        free_text: Arc::default(),
        waiting: Arc::default(),
    };
    match read_request(&app, body, origin, &line).await {
        Ok(request) => answer(app, request, line).await,
        Err(error) => respond::error(&error, &line),
    }
}

/// Path and query as the upstream has them: below `/v1`, whether or not the client wrote that.
fn upstream_path(uri: &http::Uri) -> Cow<'_, str> {
    match uri.path_and_query().map_or("/v1/chat/completions", |path| path.as_str()) {
        path if path.starts_with("/v1/") => Cow::Borrowed(path),
        path => Cow::Owned(format!("/v1{path}")),
    }
}

/// The body, and the room that it takes.
pub(super) async fn read(
    app: &App,
    headers: &HeaderMap,
    body: Incoming,
    line: &SharedLine,
) -> Result<(Bytes, body::Taken), ApiError> {
    if headers.get(http::header::CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
        let message = "the request body is compressed; send it with `content-encoding: identity`";
        return Err(ApiError::new(415, ErrorCode::UnsupportedContentEncoding, message));
    }
    let (body, room) = body::read_counted(body, &app.limits, &app.bodies).await?;
    line.content("client request", &body);
    Ok((body, room))
}

async fn read_request(
    app: &App,
    body: Bytes,
    origin: Origin,
    line: &SharedLine,
) -> Result<Arc<ClientRequest>, ApiError> {
    let request = app.relay.read(body, origin).await?;
    line.with(|line| {
        line.model.clone_from(&request.facts.model);
        if request.facts.model_is_known {
            line.known_model.clone_from(&request.facts.model);
        }
        line.stream = request.facts.stream;
        line.route = request.facts.route.as_str();
        request.likely_upstream().clone_into(&mut line.upstream);
        line.edits = request.edits().to_vec();
        line.loop_warned = request.added.warning.as_ref().map(|found| found.kind.as_str());
    });
    Ok(request)
}

/// Begins to answer a chat request that another API's request became; with the program that asks.
///
/// # Errors
/// When it is none, or nobody serves its model.
pub(super) async fn begin(
    app: &App,
    body: Bytes,
    origin: Origin,
    line: &SharedLine,
) -> Result<(Pending<Opened>, ClientProgram), ApiError> {
    let route = line.with(|line| line.route);
    let request = read_request(app, body, origin, line).await?;
    let program = request.facts.program;
    line.with(|line| line.route = route);
    if let Some(found) = &request.loop_found {
        line.with(|line| (line.outcome, line.loop_stopped) = (Outcome::LoopGuard, Some(found.kind.as_str())));
        let reply = Reply::canned(own_head(&request.facts), &found.answer());
        return Ok((Box::pin(std::future::ready(Ok(Opened::Reply(Box::new(reply))))), program));
    }
    let (relay, line) = (Arc::clone(&app.relay), line.clone());
    Ok((Box::pin(async move { relay.answer(request, line).await }), program))
}

async fn answer(app: App, request: Arc<ClientRequest>, line: SharedLine) -> Response {
    let facts = Arc::clone(&request.facts);
    if let Some(found) = &request.loop_found {
        line.with(|line| (line.outcome, line.loop_stopped) = (Outcome::LoopGuard, Some(found.kind.as_str())));
        return spooled(Reply::canned(own_head(&facts), &found.answer()), &facts, &line);
    }
    let relay = Arc::clone(&app.relay);
    let errors = app.error_form(Wire::Chat, facts.program);
    if facts.stream {
        let work = relay.answer(request, line.clone());
        return Committer { app, facts, errors, line }.answer(Box::pin(work)).await;
    }
    match until_abort(&app, relay.answer(request, line.clone())).await {
        Ok(opened) => whole(opened, &facts, line),
        Err(error) => respond::error_as(errors, error, &line),
    }
}

/// An answer that needs no stream.
fn whole(opened: Opened, facts: &Facts, line: SharedLine) -> Response {
    match opened {
        Opened::Reply(reply) => spooled(*reply, facts, &finished(line)),
        Opened::Body(body) => respond::json(StatusCode::OK, body, &finished(line)),
        Opened::Stream(_) => respond::error(&not_a_stream(), &line),
    }
}

/// A whole reply in the form the client asked for.
fn spooled(reply: Reply, facts: &Facts, line: &SharedLine) -> Response {
    if facts.stream {
        let mut out = Vec::with_capacity(1024);
        ChatSink::new(facts.reasoning, facts.usage).tell_reply(reply, &mut out);
        return respond::stream(Body::from(out), line);
    }
    respond::json(StatusCode::OK, reply_json(&reply, facts), line)
}

fn finished(line: SharedLine) -> SharedLine {
    line.with(|line| line.outcome = Outcome::Ok);
    line
}

async fn until_abort<T>(app: &App, work: impl Future<Output = Result<T, ApiError>>) -> Result<T, ApiError> {
    tokio::select! {
        biased;
        result = work => result,
        () = app.abort.cancelled() => Err(stopped()),
    }
}

pub(super) fn stopped() -> ApiError {
    ApiError::new(
        503,
        ErrorCode::ShuttingDown,
        "respool was stopped before the reply was complete; send the request again",
    )
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
    line: SharedLine,
}

impl Committer {
    /// A failure is a true status as long as no head has left.
    async fn answer(self, mut work: Pending<Opened>) -> Response {
        let left = self.app.limits.commit_after.saturating_sub(self.line.with(|line| line.elapsed()));
        let deadline = sleep(left);
        tokio::pin!(deadline);
        let opened = tokio::select! {
            biased;
            opened = &mut work => opened,
            () = self.app.abort.cancelled() => Err(stopped()),
            () = &mut deadline => return self.committed(|head| Stage::Opening(work, head)),
        };
        let mut stream = match opened {
            Ok(Opened::Stream(stream)) => stream,
            Ok(opened) => return whole(opened, &self.facts, self.line),
            Err(error) => return self.failed(error),
        };
        let first = tokio::select! {
            biased;
            first = stream.batch() => first,
            () = self.app.abort.cancelled() => Batch::Failed(stopped()),
            () = &mut deadline => return self.committed(|head| {
                stream.head_was_sent(&head);
                Stage::Open(stream)
            }),
        };
        match first {
            Batch::Failed(error) => self.failed(error),
            // The upstream spoke in time: its own head and chunks go through.
            first => {
                let mut told = self.told(Stage::Open(stream));
                let first = told.frames(first).unwrap_or_default();
                told.streamed(first)
            }
        }
    }

    fn failed(self, error: ApiError) -> Response {
        respond::error_as(self.errors, error, &self.line)
    }

    /// The upstream did not speak in time: respool sends the head, and the upstream's chunks are made to fit it.
    fn committed(self, stage: impl FnOnce(Head) -> Stage) -> Response {
        let (head, choices) = (own_head(&self.facts), self.facts.choices);
        let mut told = self.told(Stage::Over);
        let mut first = Vec::new();
        told.sink.begin(&head);
        told.sink.roles(choices, &mut first);
        told.stage = stage(head);
        told.streamed(first.into())
    }

    fn told(self, stage: Stage) -> Told {
        let Self { app, facts, errors, line } = self;
        let sink = ChatSink::new(facts.reasoning, facts.usage);
        Told { abort: app.abort, every: app.limits.heartbeat, sink, errors, line, stage }
    }
}

/// A reply as it is told: the source of a stream.
struct Told {
    abort: CancellationToken,
    every: Duration,
    /// Writes what does not go through as it is.
    sink: ChatSink,
    errors: ErrorForm,
    line: SharedLine,
    stage: Stage,
}

/// How far the upstream is.
enum Stage {
    /// It has not answered; the role chunk of this head has left.
    Opening(Pending<Opened>, Head),
    Open(Box<ReplyStream>),
    Over,
}

impl Told {
    fn streamed(self, first: Bytes) -> Response {
        let (every, line) = (self.every, self.line.clone());
        heartbeat::streamed(self, first, every, &line)
    }

    /// The frames of a batch; `None` at the end.
    fn frames(&mut self, batch: Batch) -> Option<Bytes> {
        match batch {
            Batch::Frames(frames) => Some(frames),
            Batch::Steps(steps) => {
                let mut out = Vec::new();
                self.begin();
                steps.iter().for_each(|step| self.sink.tell(step, &mut out));
                Some(out.into())
            }
            Batch::Failed(error) => Some(self.failed(error)),
            Batch::End => {
                let Stage::Open(stream) = std::mem::replace(&mut self.stage, Stage::Over) else {
                    return None;
                };
                self.line.with(|line| (line.outcome, line.usage) = (Outcome::Ok, stream.usage()));
                let mut out = Vec::new();
                if !stream.passes_frames() {
                    self.sink.end(&mut out);
                }
                Some(out.into())
            }
        }
    }

    /// What is told as steps has the upstream's head, unless respool's own has left.
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
                self.line.with(|line| line.outcome = Outcome::Ok);
                let mut out = Vec::new();
                self.sink.tell_reply(*reply, &mut out);
                out.into()
            }
            (_, Ok(_)) => self.failed(not_a_stream()),
            (_, Err(error)) => self.failed(error),
        }
    }

    fn failed(&mut self, error: ApiError) -> Bytes {
        self.stage = Stage::Over;
        respond::failed_tail(&self.errors.apply(error), &self.line)
    }
}

impl Source for Told {
    async fn next(&mut self) -> Option<Bytes> {
        match &mut self.stage {
            Stage::Opening(work, ..) => {
                let opened = tokio::select! {
                    biased;
                    opened = work => opened,
                    () = self.abort.cancelled() => Err(stopped()),
                };
                Some(self.opened(opened))
            }
            Stage::Open(stream) => {
                let batch = tokio::select! {
                    biased;
                    batch = stream.batch() => batch,
                    () = self.abort.cancelled() => Batch::Failed(stopped()),
                };
                self.frames(batch)
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
