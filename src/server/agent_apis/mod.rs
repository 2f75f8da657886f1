//! `POST /v1/responses` and `/v1/messages`: the routes of Codex, Claude Code and the newer SDKs.
//!
//! A request is read into the chat request that asks the same, which the relay answers like any other; the turn leaves in the
//! client's own form. What the readers and writers do is in `translate`; when a head leaves is in `reply`.

mod errors;
mod memory;
mod reply;
mod writer;

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::response::Response;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use hyper::body::Incoming;
use tokio::time::Instant;

pub(super) use self::errors::in_shape_of;
pub use self::memory::ResponseMemory;
use self::reply::Telling;
use self::writer::Writer;
use super::{App, chat, permission, respond};
use crate::observe::{Outcome, RequestLine, SharedLine};
use crate::relay::{Origin, Wire};
use crate::translate::messages::{self, MessageEvents, read_message};
use crate::translate::responses::{ResponseEvents, read_response, wanted_items};
use crate::translate::{ClientProgram, Ids, PassedBy};
use crate::wire::{ApiError, ErrorCode};

/// Which of the two APIs a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Api {
    /// OpenAI's Responses.
    Responses,
    /// Anthropic's Messages.
    Messages,
}

/// A request in either API, read.
struct Asked {
    /// The chat request that asks the same.
    chat: String,
    writer: Writer,
    model: String,
    stream: bool,
}

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
    let (mut parts, body) = request.into_parts();
    parts.headers = upstream_headers(parts.headers);
    match call {
        Call::Turn(api) => turn(api, app, parts, body, peer).await,
        Call::CountTokens => count_tokens(app, parts, body).await,
    }
}

async fn turn(api: Api, app: App, parts: Parts, body: Incoming, peer: Option<IpAddr>) -> Response {
    let received = Instant::now();
    let line = line(&app, api.name(), &parts);
    let client = errors::Client::new(api, &app, &parts.headers, &line);
    let asked = async {
        let body = chat::read(&app, &parts.headers, body, &line).await?;
        permission::begin_chat(&app, &parts, &body, &line)?;
        permission::within_budget(&app, &line, "", &body)?;
        read(api, &app, &body, &client, &line)
    };
    let Asked { chat, mut writer, model, stream } = match asked.await {
        Ok(asked) => asked,
        Err(error) => return client.refused(&error, &line),
    };
    let origin = Origin {
        wire: api.wire(),
        path_and_query: "/v1/chat/completions".to_owned(),
        request_id: respond::upstream_id(&parts.headers, &client.request_id),
        headers: parts.headers,
        peer,
        received,
        is_agent: false,
        waiting: Arc::default(),
    };
    let work = match chat::begin(&app, Bytes::from(streaming(chat)), origin, &line).await {
        Ok(work) => work,
        Err(error) if stream => return client.failed(&error, &mut writer, &line),
        Err(error) => return client.refused(&error, &line),
    };
    line.with(|line| (line.model, line.stream) = (model, stream));
    let telling = Telling::new(app, writer, client, line);
    if stream { telling.streamed(work).await } else { telling.collected(work).await }
}

/// The chat request as the relay is asked: what is told as it comes can be collected, and not the other way round.
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
async fn count_tokens(app: App, parts: Parts, body: Incoming) -> Response {
    let line = line(&app, "count_tokens", &parts);
    let client = errors::Client::new(Api::Messages, &app, &parts.headers, &line);
    let counted = async {
        let body = chat::read(&app, &parts.headers, body, &line).await?;
        permission::begin_free(&app, &parts, &body, &line)?;
        let read = read_message(&body, &app.sealer)?;
        note_passed_by(&read.passed_by, &line);
        Ok::<u64, ApiError>(estimated_tokens(&read.chat))
    };
    match counted.await {
        Ok(tokens) => {
            line.with(|line| line.outcome = Outcome::Ok);
            let mut response = respond::json(StatusCode::OK, messages::token_count_json(tokens), &line);
            response.headers_mut().insert("x-respool-token-count", HeaderValue::from_static("estimate"));
            response
        }
        Err(error) => client.refused(&error, &line),
    }
}

/// Four bytes of JSON for a token: what prompts of agents were measured at, with room to spare.
fn estimated_tokens(chat: &str) -> u64 {
    chat.len().div_ceil(4) as u64
}

fn line(app: &App, route: &'static str, parts: &Parts) -> SharedLine {
    let id = respond::request_id(&parts.headers);
    let mut line = RequestLine::start(id, format!("{} {}", parts.method, parts.uri.path()));
    line.route = route;
    SharedLine::new(line, &app.recording)
}

fn read(
    api: Api,
    app: &App,
    body: &Bytes,
    client: &errors::Client,
    line: &SharedLine,
) -> Result<Asked, ApiError> {
    let ids = Ids::new(rand::random(), HashSet::new());
    let sealer = Arc::clone(&app.sealer);
    match api {
        Api::Responses => {
            let recalled = app.responses.recall(client.owner, &wanted_items(body)?);
            let read = read_response(body, &recalled, &sealer)?;
            if read.asked.background {
                let message =
                    "`background` is not supported: leave it out, and the reply comes with this request";
                return Err(
                    ApiError::bad_request(ErrorCode::UnsupportedValue, message).with_param("background")
                );
            }
            note_passed_by(&read.passed_by, line);
            let (model, stream) = (read.asked.model.clone(), read.asked.stream);
            let events = ResponseEvents::new(Arc::new(read.asked), sealer, ids, now());
            Ok(Asked { chat: read.chat, writer: Writer::Responses(events, client.program), model, stream })
        }
        Api::Messages => {
            let read = read_message(body, &sealer)?;
            note_passed_by(&read.passed_by, line);
            let (model, stream) = (read.asked.model.clone(), read.asked.stream);
            let events = MessageEvents::new(read.asked, sealer, ids, estimated_tokens(&read.chat));
            Ok(Asked {
                chat: read.chat,
                writer: Writer::Messages(events, client.request_id.clone()),
                model,
                stream,
            })
        }
    }
}

/// One line for all that the model does not get.
fn note_passed_by(passed_by: &[PassedBy], line: &SharedLine) {
    if passed_by.is_empty() {
        return;
    }
    let fields: Vec<&str> = passed_by.iter().map(|note| note.field.as_str()).collect();
    let id = line.with(|line| line.id.clone());
    tracing::info!(target: "respool::server", request_id = id, fields = fields.join(", "), why = passed_by[0].why, "parts of a request were passed by");
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn program(headers: &HeaderMap) -> ClientProgram {
    let agent = headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok());
    ClientProgram::of_user_agent(agent.unwrap_or_default())
}
