//! `POST /v1/responses` and `/v1/messages`: the routes of Codex, Claude Code and the newer SDKs.
//!
//! A request is read into the chat request that asks the same, which the relay answers like any other; the turn leaves in the
//! client's own form. What the readers and writers do is in `translate`; when a head leaves is in `reply`.

mod background;
mod errors;
mod failed_streams;
mod kept;
mod reply;
pub(super) mod stored;
mod writer;

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use hyper::body::Incoming;
use tokio::time::Instant;

pub(super) use self::background::resume;
pub(super) use self::errors::{error_form, refused_at_the_door};
pub use self::failed_streams::FailedStreams;
pub use self::kept::KeptResponses;
use self::reply::{ReplyWriter, Source};
use self::writer::Writer;
use super::body::Taken;
use super::{App, agent, chat, permission, respond, transparent};
use relay::{Origin, RequestProgress, Wire};
use telemetry::{RequestRecord, RequestStart};
use translate::messages::{self, MessageEvents, read_message};
use translate::responses::{ReadResponse, ResponseEvents, read_response, wanted_items};
use translate::{ClientProgram, Ids, PassedBy};
use upstream::{CHAT_PATH, OwnWire};
use wire::{ApiError, Object};

/// Says how tokens were counted: by the server (`tokenize`, exactly), here for gpt-oss (`o200k_harmony`), or as an `estimate`.
const TOKEN_COUNT: HeaderName = HeaderName::from_static("x-respool-token-count");

/// Which of the two APIs a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Api {
    /// OpenAI's Responses.
    Responses,
    /// Anthropic's Messages.
    Messages,
}

/// A request in either API, read.
struct ReadRequest {
    /// The chat request that asks the same.
    chat: String,
    writer: Writer,
    model: String,
    stream: bool,
    /// Set when it is to be made in the background.
    background: Option<Continued>,
}

/// The response that a request continues, if it continues one.
struct Continued(Option<String>);

impl Api {
    /// By the path, with or without its `/v1`.
    pub(super) fn of(path: &str) -> Option<Self> {
        match path.strip_prefix("/v1").unwrap_or(path) {
            "/responses" => Some(Self::Responses),
            "/messages" => Some(Self::Messages),
            _ => None,
        }
    }

    fn wire(self) -> Wire {
        match self {
            Self::Responses => Wire::Responses,
            Self::Messages => Wire::Messages,
        }
    }

    fn own_wire(self) -> OwnWire {
        match self {
            Self::Responses => OwnWire::Responses,
            Self::Messages => OwnWire::Messages,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Responses => "responses",
            Self::Messages => "messages",
        }
    }
}

/// What a path asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// A turn.
    Turn(Api),
    /// How many tokens a request of the Messages API has.
    CountTokens,
}

impl Call {
    /// By the path, with or without its `/v1`.
    pub(super) fn of(path: &str) -> Option<Self> {
        if path.strip_prefix("/v1").unwrap_or(path) == "/messages/count_tokens" {
            return Some(Self::CountTokens);
        }
        Api::of(path).map(Self::Turn)
    }
}

pub(super) async fn answer(
    call: Call,
    app: App,
    request: http::Request<Incoming>,
    peer: Option<IpAddr>,
) -> Response {
    let (parts, body) = request.into_parts();
    match call {
        Call::Turn(Api::Responses) => turn(Api::Responses, app, parts, body, peer).await,
        Call::Turn(Api::Messages) => with_request_id(turn(Api::Messages, app, parts, body, peer).await),
        Call::CountTokens => with_request_id(count_tokens(app, parts, body, peer).await),
    }
}

/// The reply with the request's id also where Anthropic's clients read it.
pub(super) fn with_request_id(mut response: Response) -> Response {
    let headers = response.headers_mut();
    if let Some(id) = headers.get(&respond::REQUEST_ID).cloned() {
        headers.entry("request-id").or_insert(id);
    }
    response
}

async fn turn(api: Api, app: App, parts: Parts, body: Incoming, peer: Option<IpAddr>) -> Response {
    let received = Instant::now();
    let record = record(&app, api.name(), &parts);
    let progress = Arc::default();
    let response = served(api, app, parts, body, (peer, received), Arc::clone(&progress), &record).await;
    respond::with_trimmed(respond::leaves(response, &record), &progress)
}

async fn served(
    api: Api,
    app: App,
    mut parts: Parts,
    body: Incoming,
    (peer, received): (Option<IpAddr>, Instant),
    progress: Arc<RequestProgress>,
    record: &RequestRecord,
) -> Response {
    let own_headers = parts.headers.clone();
    parts.headers = upstream_headers(parts.headers);
    let client = errors::Client::new(&app, api, &parts.headers, &record.start().id);
    let (body, mut room) = match begun(&app, &parts, body, record).await {
        Ok(begun) => begun,
        Err(error) => return client.refused_unread(&app, error, None),
    };
    if leaves_to_server(&app, api, &body) {
        parts.headers = own_headers;
        return passed_on(app, parts, room.keep(body), record).await;
    }
    let ReadRequest { chat, mut writer, model, stream, background } =
        match read(api, &app, &body, &client).await {
            Ok(asked) => asked,
            Err(error) => return client.refused_unread(&app, error, Some(&body)),
        };
    let origin = Origin { progress, ..origin_of(api, parts.headers, record, peer, received) };
    let origin = writer.asking(origin);
    let chat = streaming(chat);
    let kept = writer.bytes_to_keep();
    // The room of the body is that of the chat request now, and of what is kept of the body.
    let body = background.is_some().then_some(body);
    if let Err(error) = room.resize(chat.len() + kept) {
        return if stream { client.failed(error, &mut writer) } else { client.refused(error) };
    }
    let held = room.split(kept);
    let chat = room.keep(chat.into());
    if let Some(error) = client.error_of_failed_stream(&app, &chat, stream) {
        return client.refused(error);
    }
    let source = source(&app, chat.clone(), origin, &model).await;
    let program =
        source.as_ref().map_or_else(|_| ClientProgram::of_chat_body(&chat), |(_, program)| *program);
    let client = client.of_program(program).asking(&app, chat, stream);
    record.stream(stream);
    match (source.map(|(source, _)| source), background) {
        (Ok(source), None) => {
            source.answer(ReplyWriter::new(app, writer, client, record.clone()).holding(held), stream).await
        }
        (Ok(source), Some(Continued(previous))) => {
            let reply_writer = ReplyWriter::new(app, writer, client, record.clone()).holding(held);
            background::begin(reply_writer, source, &body.unwrap_or_default(), previous).await
        }
        (Err(error), _) if stream => client.failed(error, &mut writer),
        (Err(error), _) => client.refused(error),
    }
}

/// Where the turn comes from that a chat request asks for: the relay, or an agent's run; and the program that asks.
///
/// # Errors
/// When it cannot be asked for.
async fn source(
    app: &App,
    chat: Bytes,
    origin: Origin,
    model: &str,
) -> Result<(Source, ClientProgram), ApiError> {
    let record = origin.record.clone();
    let agent = agent::asked_for(app, &chat);
    let name = agent.as_ref().map_or("", |(agent, _)| &*agent.name);
    permission::within_budget(app, record.start().key(), name)
        .inspect_err(|_| permission::record_refused(&record, name, &chat))?;
    if let Some(agent) = agent {
        let program = agent.1;
        let answer = agent::begin(app.clone(), agent, &chat, &origin.headers, &record).await?;
        return Ok((Source::Agent(Box::new(answer)), program));
    }
    let (pending, program) = chat::begin(app, chat, origin).await?;
    record.model(model);
    Ok((Source::Opening(pending), program))
}

/// The body of a request that may begin, and its room.
async fn begun(
    app: &App,
    parts: &Parts,
    body: Incoming,
    record: &RequestRecord,
) -> Result<(Bytes, Taken), ApiError> {
    let (body, room) = chat::read(app, parts, body).await?;
    record.content("client request", &body);
    permission::begin_chat(app, parts, &body)
        .inspect_err(|_| permission::record_refused(record, "", &body))?;
    Ok((body, room))
}

fn origin_of(
    api: Api,
    headers: HeaderMap,
    record: &RequestRecord,
    peer: Option<IpAddr>,
    received: Instant,
) -> Origin {
    Origin {
        wire: api.wire(),
        path_and_query: CHAT_PATH.into(),
        request_id: respond::upstream_id(&headers, &record.start().id),
        headers,
        peer,
        received,
        is_agent: false,
        may_trim: false,
        free_text: Arc::default(),
        record: record.clone(),
        progress: Arc::default(),
    }
}

/// True when the servers of the request's model answer this API themselves. An agent is nobody's but respool's.
fn leaves_to_server(app: &App, api: Api, body: &Bytes) -> bool {
    if !app.relay.leaves_wires() {
        return false;
    }
    let model = std::str::from_utf8(body).ok().and_then(|text| Object::parse(text).ok()?.string("model"));
    let model = model.unwrap_or_default();
    !app.is_agent(&model) && app.relay.leaves_to_server(&model, api.own_wire())
}

/// Passes a request on as it came, with the client's own headers.
async fn passed_on(app: App, mut parts: Parts, body: Bytes, record: &RequestRecord) -> Response {
    if record.start().account.is_some() {
        // What a reply says of its cost must be readable here.
        parts.headers.remove(header::ACCEPT_ENCODING);
    }
    transparent::pass_on(app, parts, Body::from(body), record).await
}

/// The chat request as the relay gets it: a stream can be collected into a whole reply, and not the other way round.
fn streaming(mut chat: String) -> String {
    chat.pop();
    chat.push_str(r#","stream":true,"stream_options":{"include_usage":true}}"#);
    chat
}

/// The client's headers as the chat route has them: a key in Anthropic's header becomes a bearer's, and what only its API knows
/// stays here.
fn upstream_headers(mut headers: HeaderMap) -> HeaderMap {
    let key = headers.remove("x-api-key").and_then(|key| key.to_str().map(str::to_owned).ok());
    let bearer = key.and_then(|key| HeaderValue::try_from(format!("Bearer {key}")).ok());
    if let Some(mut bearer) = bearer.filter(|_| !headers.contains_key(header::AUTHORIZATION)) {
        bearer.set_sensitive(true);
        headers.insert(header::AUTHORIZATION, bearer);
    }
    let foreign: Vec<_> =
        headers.keys().filter(|name| name.as_str().starts_with("anthropic-")).cloned().collect();
    foreign.iter().for_each(|name| {
        headers.remove(name);
    });
    headers
}

/// `POST /v1/messages/count_tokens`.
async fn count_tokens(app: App, parts: Parts, body: Incoming, peer: Option<IpAddr>) -> Response {
    let record = record(&app, "count_tokens", &parts);
    let response = counted(app, parts, body, peer, &record).await;
    respond::leaves(response, &record)
}

async fn counted(
    app: App,
    mut parts: Parts,
    body: Incoming,
    peer: Option<IpAddr>,
    record: &RequestRecord,
) -> Response {
    let received = Instant::now();
    let own_headers = parts.headers.clone();
    parts.headers = upstream_headers(parts.headers);
    let client = errors::Client::new(&app, Api::Messages, &parts.headers, &record.start().id);
    let read = async {
        let (body, room) = chat::read(&app, &parts, body).await?;
        record.content("client request", &body);
        permission::begin_free(&app, &parts, &body)
            .inspect_err(|_| permission::record_refused(record, "", &body))?;
        Ok::<Bytes, ApiError>(room.keep(body))
    };
    let body = match read.await {
        Ok(body) => body,
        Err(error) => return client.refused(error),
    };
    if leaves_to_server(&app, Api::Messages, &body) {
        parts.headers = own_headers;
        return passed_on(app, parts, body, record).await;
    }
    let origin = origin_of(Api::Messages, parts.headers, record, peer, received);
    match tokens_of(&app, &body, origin).await {
        Ok((tokens, by)) => {
            record.counted(by);
            let mut response = respond::json(StatusCode::OK, messages::token_count_json(tokens));
            response.headers_mut().insert(TOKEN_COUNT, HeaderValue::from_static(by));
            response
        }
        Err(error) => client.refused(error),
    }
}

/// The tokens of a request of the Messages API, and how they were counted. An agent adds to its prompt what only its runs know.
async fn tokens_of(app: &App, body: &Bytes, origin: Origin) -> Result<(u64, &'static str), ApiError> {
    let read = read_message(body, &app.sealer)?;
    note_passed_by(&read.passed_by, &origin.record.start().id);
    origin.record.model(&read.asked.model);
    let chat = Bytes::from(read.chat);
    if agent::asked_for(app, &chat).is_some() {
        return Ok((estimated_tokens(chat.len()), "estimate"));
    }
    app.relay.count_prompt(chat, origin).await
}

/// Four bytes of JSON for a token: what prompts of agents were measured at, with room to spare.
fn estimated_tokens(bytes: usize) -> u64 {
    bytes.div_ceil(4) as u64
}

fn record(app: &App, route: &'static str, parts: &Parts) -> RequestRecord {
    let id = respond::request_id(&parts.headers);
    let start = RequestStart::new(id, format!("{} {}", parts.method, parts.uri.path()), route);
    let start = start.of_account(permission::account(&parts.extensions)).continuing_trace(&parts.headers);
    RequestRecord::begin(start, &app.recording)
}

async fn read(api: Api, app: &App, body: &Bytes, client: &errors::Client) -> Result<ReadRequest, ApiError> {
    let ids = Ids::new(rand::random(), HashSet::new());
    let sealer = Arc::clone(&app.sealer);
    match api {
        Api::Responses => {
            let read = read_response_of(app, body, client).await?;
            let (model, stream) = (read.asked.model.clone(), read.asked.stream);
            background::check(read.asked.background, stream, read.asked.store)?;
            let background = read.asked.background.then(|| Continued(read.asked.previous.clone()));
            let events = ResponseEvents::new(Arc::new(read.asked), sealer, ids, clock::now_in_seconds());
            let writer = Writer::Responses(events);
            Ok(ReadRequest { chat: read.chat, writer, model, stream, background })
        }
        Api::Messages => {
            let read = read_message(body, &sealer)?;
            note_passed_by(&read.passed_by, &client.request_id);
            let (model, stream) = (read.asked.model.clone(), read.asked.stream);
            let events = MessageEvents::new(read.asked, sealer, ids, estimated_tokens(read.chat.len()));
            let writer = Writer::Messages(events, client.request_id.clone());
            Ok(ReadRequest { chat: read.chat, writer, model, stream, background: None })
        }
    }
}

/// A request of the Responses API with what its client keeps of what it names.
async fn read_response_of(
    app: &App,
    body: &Bytes,
    client: &errors::Client,
) -> Result<ReadResponse, ApiError> {
    let size = (body.len(), app.limits.max_body);
    let recalled = app.responses.recall(&client.owner, wanted_items(body)?, size).await?;
    let mut read = read_response(body, &recalled, &app.sealer)?;
    // The reply says whether it is kept.
    read.asked.store = read.asked.store && app.responses.store().await.is_some();
    note_passed_by(&read.passed_by, &client.request_id);
    Ok(read)
}

/// One line for all that the model does not get.
fn note_passed_by(passed_by: &[PassedBy], request_id: &str) {
    if passed_by.is_empty() {
        return;
    }
    let fields: Vec<&str> = passed_by.iter().map(|note| note.field.as_str()).collect();
    tracing::info!(target: "respool::server", request_id, fields = fields.join(", "), why = passed_by[0].why, "parts of a request were passed by");
}
