//! `POST /v1/chat/completions`: decides when the head of a reply leaves, and keeps a silent stream alive.
//!
//! Up to `commit_after` a failure is a true HTTP status. Then the head and the role chunk leave, and heartbeats, until the
//! upstream speaks. The client's going away drops everything here, and with it the upstream request.

use std::borrow::Cow;
use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use async_stream::stream;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use super::{App, agent, body, permission, respond};
use crate::observe::{Outcome, RequestLine, SharedLine};
use crate::relay::{Batch, ClientRequest, Facts, Opened, Origin, ReplyStream, Wire, reply_json};
use crate::sse::write_data;
use crate::translate::{Head, Ids, Reply, Spool};
use crate::wire::{ApiError, ErrorCode};

type Pending<T> = Pin<Box<dyn Future<Output = Result<T, ApiError>> + Send>>;

pub(super) async fn chat(app: App, request: http::Request<Incoming>, peer: Option<IpAddr>) -> Response {
    let received = Instant::now();
    let (parts, body) = request.into_parts();
    let id = respond::request_id(&parts.headers);
    let mut line = RequestLine::start(id.clone(), "POST /v1/chat/completions".to_owned());
    line.route = "chat";
    let line = SharedLine::new(line, &app.recording);
    let body = match read(&app, &parts.headers, body, &line).await {
        Ok(body) => body,
        Err(error) => return respond::error(&error, &line),
    };
    if let Err(error) = permission::begin_chat(&app, &parts, &body, &line) {
        return respond::error(&error, &line);
    }
    let agent = agent::asked_for(&app, &body);
    let name = agent.as_ref().map_or("", |agent| &*agent.name);
    let is_openclaw = || super::openclaw::is_openclaw(&parts.headers, &body);
    if let Err(error) = permission::within_budget(&app, &line, name, is_openclaw) {
        return respond::error(&error, &line);
    }
    if let Some(agent) = agent {
        return agent::answer(app, agent, &body, &parts.headers, line).await;
    }
    let origin = Origin {
        wire: Wire::Chat,
        path_and_query: upstream_path(&parts.uri).into_owned(),
        request_id: respond::upstream_id(&parts.headers, &id),
        headers: parts.headers,
        peer,
        received,
        is_agent: false,
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

async fn read(app: &App, headers: &HeaderMap, body: Incoming, line: &SharedLine) -> Result<Bytes, ApiError> {
    if headers.get(http::header::CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
        let message = "the request body is compressed; send it with `content-encoding: identity`";
        return Err(ApiError::new(415, ErrorCode::UnsupportedContentEncoding, message));
    }
    let body = body::read(body, &app.limits).await?;
    line.content("client request", &body);
    Ok(body)
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

async fn answer(app: App, request: Arc<ClientRequest>, line: SharedLine) -> Response {
    let facts = request.facts.clone();
    if let Some(found) = &request.loop_found {
        line.with(|line| (line.outcome, line.loop_stopped) = (Outcome::LoopGuard, Some(found.kind.as_str())));
        return spooled(&Reply::canned(own_head(&facts), &found.answer()), &facts, &line);
    }
    let relay = Arc::clone(&app.relay);
    if facts.stream {
        let work = relay.answer(request, line.clone());
        return Committer::new(app, facts, line).answer(Box::pin(work)).await;
    }
    match until_abort(&app, relay.answer(request, line.clone())).await {
        Ok(opened) => whole(opened, &facts, line),
        Err(error) => respond::error(&error, &line),
    }
}

/// An answer that needs no stream.
fn whole(opened: Opened, facts: &Facts, line: SharedLine) -> Response {
    match opened {
        Opened::Reply(reply) => spooled(&reply, facts, &finished(line)),
        Opened::Body(body) => respond::json(StatusCode::OK, body, &finished(line)),
        Opened::Stream(_) => respond::error(&not_a_stream(), &line),
    }
}

/// A whole reply in the form the client asked for.
fn spooled(reply: &Reply, facts: &Facts, line: &SharedLine) -> Response {
    if facts.stream {
        let spool = Spool::new(&reply.head, facts.reasoning);
        return respond::stream(Body::from(spool.rest(reply, false, facts.usage)), line);
    }
    respond::json(StatusCode::OK, reply_json(reply, facts), line)
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

fn stopped() -> ApiError {
    ApiError::new(
        503,
        ErrorCode::ShuttingDown,
        "respool was stopped before the reply was complete; send the request again",
    )
}

/// Never seen: what is answered follows from what was asked.
fn not_a_stream() -> ApiError {
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
    facts: Facts,
    line: SharedLine,
    deadline: Instant,
}

impl Committer {
    fn new(app: App, facts: Facts, line: SharedLine) -> Self {
        let left = app.limits.commit_after.saturating_sub(line.with(|line| line.elapsed()));
        Self { app, facts, line, deadline: Instant::now() + left }
    }

    async fn answer(self, mut work: Pending<Opened>) -> Response {
        let deadline = sleep_until(self.deadline);
        tokio::pin!(deadline);
        let opened = tokio::select! {
            biased;
            opened = &mut work => opened,
            () = self.app.abort.cancelled() => Err(stopped()),
            () = &mut deadline => return self.committed_feed(Source::Opening(work)),
        };
        let mut feed = match opened {
            Ok(Opened::Stream(feed)) => feed,
            Ok(opened) => return whole(opened, &self.facts, self.line),
            Err(error) => return respond::error(&error, &self.line),
        };
        let first = tokio::select! {
            biased;
            first = feed.batch() => first,
            () = self.app.abort.cancelled() => Batch::Failed(stopped()),
            () = &mut deadline => return self.committed_feed(Source::Open(feed)),
        };
        match first {
            Batch::Failed(error) => respond::error(&error, &self.line),
            first => self.flowing_feed(feed, first),
        }
    }

    /// The upstream spoke in time: its own head and chunks go through.
    fn flowing_feed(self, feed: Box<ReplyStream>, first: Batch) -> Response {
        let line = self.line.clone();
        streamed(self.rest_of(feed, Some(first)), &line)
    }

    /// It did not: respool sends the head, and makes the upstream's chunks fit it.
    fn committed_feed(self, source: Source) -> Response {
        let line = self.line.clone();
        let chunks = stream! {
            let head = own_head(&self.facts);
            let spool = Spool::new(&head, self.facts.reasoning);
            yield roles(&spool, &self.facts);
            let mut source = source;
            let mut pulse = self.pulse();
            while let Source::Opening(work) = &mut source {
                tokio::select! {
                    biased;
                    opened = work => source = Source::from(opened),
                    () = self.app.abort.cancelled() => source = Source::Failed(stopped()),
                    () = &mut pulse => {
                        self.beat(&mut pulse);
                        yield frame(&spool.heartbeat());
                    }
                }
            }
            match source {
                Source::Open(mut feed) => {
                    feed.head_was_sent(&head);
                    for await bytes in self.rest_of(feed, None) {
                        yield bytes;
                    }
                }
                Source::Whole(reply) => {
                    self.line.with(|line| line.outcome = Outcome::Ok);
                    yield spool.rest(&reply, true, self.facts.usage).into();
                }
                Source::Failed(error) => yield respond::failed_tail(&error, &self.line),
                Source::Opening(_) => {}
            }
        };
        streamed(chunks, &line)
    }

    fn rest_of(
        self,
        mut feed: Box<ReplyStream>,
        first: Option<Batch>,
    ) -> impl futures::Stream<Item = Bytes> + Send {
        stream! {
            let mut next = first;
            let mut pulse = self.pulse();
            loop {
                let batch = if let Some(batch) = next.take() { batch } else { tokio::select! {
                    biased;
                    batch = feed.batch() => batch,
                    () = self.app.abort.cancelled() => Batch::Failed(stopped()),
                    () = &mut pulse => {
                        if let Some(heartbeat) = feed.heartbeat() {
                            self.line.with(RequestLine::heartbeat);
                            yield frame(&heartbeat);
                        }
                        self.restart(&mut pulse);
                        continue;
                    }
                } };
                match batch {
                    Batch::Bytes(bytes) => {
                        self.restart(&mut pulse);
                        yield bytes;
                    }
                    Batch::Failed(error) => {
                        yield respond::failed_tail(&error, &self.line);
                        break;
                    }
                    Batch::End => {
                        self.line.with(|line| (line.outcome, line.usage) = (Outcome::Ok, feed.usage()));
                        break;
                    }
                }
            }
        }
    }

    fn pulse(&self) -> Pin<Box<Sleep>> {
        Box::pin(sleep(self.app.limits.heartbeat))
    }

    fn restart(&self, pulse: &mut Pin<Box<Sleep>>) {
        pulse.as_mut().reset(Instant::now() + self.app.limits.heartbeat);
    }

    fn beat(&self, pulse: &mut Pin<Box<Sleep>>) {
        self.line.with(RequestLine::heartbeat);
        self.restart(pulse);
    }
}

/// Where a committed stream's chunks come from.
enum Source {
    Opening(Pending<Opened>),
    Open(Box<ReplyStream>),
    Whole(Box<Reply>),
    Failed(ApiError),
}

impl From<Result<Opened, ApiError>> for Source {
    fn from(opened: Result<Opened, ApiError>) -> Self {
        match opened {
            Ok(Opened::Stream(feed)) => Self::Open(feed),
            Ok(Opened::Reply(reply)) => Self::Whole(reply),
            Ok(Opened::Body(_)) => Self::Failed(not_a_stream()),
            Err(error) => Self::Failed(error),
        }
    }
}

/// The role chunk of every choice.
fn roles(spool: &Spool, facts: &Facts) -> Bytes {
    let mut out = Vec::new();
    (0..facts.choices).for_each(|index| write_data(&mut out, &spool.role(index)));
    out.into()
}

pub(super) fn frame(payload: &str) -> Bytes {
    let mut out = Vec::new();
    write_data(&mut out, payload);
    out.into()
}

pub(super) fn streamed(
    chunks: impl futures::Stream<Item = Bytes> + Send + 'static,
    line: &SharedLine,
) -> Response {
    let chunks = futures::StreamExt::map(chunks, Ok::<_, Infallible>);
    respond::stream(Body::from_stream(chunks), line)
}
