//! `POST /v1/responses` and `/v1/messages`: answers a turn.

use std::net::IpAddr;
use std::sync::Arc;

use axum::response::Response;
use http::request::Parts;
use hyper::body::Incoming;

use super::api::{Api, Call, as_stream, upstream_headers, with_request_id};
use super::background;
use super::count_tokens::count_tokens;
use super::errors::Client;
use super::native::pass_to_server;
use super::reading::{Continued, ReadRequest, read_request};
use super::reply::ReplyWriter;
use super::source::Source;
use crate::app::App;
use crate::front::{Arrival, Cost, is_left_to_server};
use relay::{Origin, ReplyWishes};
use translate::ClientProgram;
use upstream::CHAT_PATH;

/// Answers a request of one of the two APIs.
pub(crate) async fn answer_agent_api(
    call: Call,
    app: App,
    request: http::Request<Incoming>,
    peer: Option<IpAddr>,
) -> Response {
    let (parts, body) = request.into_parts();
    match call {
        Call::Turn(api @ Api::Responses) => {
            handle_turn(api, new_arrival(app, api.name(), parts, peer), body).await
        }
        Call::Turn(api @ Api::Messages) => {
            with_request_id(handle_turn(api, new_arrival(app, api.name(), parts, peer), body).await)
        }
        Call::CountTokens => {
            with_request_id(count_tokens(new_arrival(app, "count_tokens", parts, peer), body).await)
        }
    }
}

fn new_arrival(app: App, route: &'static str, parts: Parts, peer: Option<IpAddr>) -> Arrival {
    let name = format!("{} {}", parts.method, parts.uri.path());
    Arrival::new(app, parts, peer, name, route)
}

async fn handle_turn(api: Api, mut arrival: Arrival, body: Incoming) -> Response {
    let response = answer_turn(api, &mut arrival, body).await;
    arrival.finish_response(response)
}

async fn answer_turn(api: Api, arrival: &mut Arrival, body: Incoming) -> Response {
    let own_headers = arrival.parts.headers.clone();
    arrival.parts.headers = upstream_headers(std::mem::take(&mut arrival.parts.headers));
    let (app, record) = (arrival.app.clone(), arrival.record.clone());
    let client = Client::new(&app, api, &arrival.parts.headers, &record.start().id);
    let (body, mut room) = match arrival.read_body(body).await {
        Ok(read) => read,
        Err(error) => return client.refuse_unread(&app, error, None),
    };
    if let Err(error) = arrival.check_permission(&body, Cost::Tokens) {
        return client.refuse_unread(&app, error, None);
    }
    if is_left_to_server(&app, api.own_wire(), &body) {
        arrival.parts.headers = own_headers;
        return pass_to_server(arrival, room.attach_to(body)).await;
    }
    let ReadRequest { chat, mut writer, stream, background } =
        match read_request(api, &app, &body, &client).await {
            Ok(request) => request,
            Err(error) => return client.refuse_unread(&app, error, Some(&body)),
        };
    let wishes = ReplyWishes { is_unseen: !stream && background.is_none(), ..writer.wishes() };
    let origin = Origin { wishes, ..arrival.take_origin(api.wire(), CHAT_PATH.into()) };
    let chat = as_stream(chat);
    let kept = writer.bytes_to_keep();
    // The reservation of the body is now that of the chat request, and of the part of the body that is kept.
    let body = background.is_some().then_some(body);
    if let Err(error) = room.resize(chat.len() + kept) {
        return if stream { client.fail_stream(error, &mut writer) } else { client.refuse_request(error) };
    }
    let held = room.split(kept);
    let chat = room.attach_to(chat.into());
    if let Some(error) = client.error_of_failed_stream(&app, &chat, stream) {
        return client.refuse_request(error);
    }
    let progress = Arc::clone(&origin.progress);
    let source = Source::begin(&app, chat.clone(), origin).await;
    let program =
        source.as_ref().map_or_else(|_| ClientProgram::from_chat_body(&chat), |(_, program)| *program);
    let client = client.with_program(program).with_request(&app, chat, stream);
    record.set_stream(stream);
    match (source.map(|(source, _)| source), background) {
        (Ok(source), None) => {
            ReplyWriter::new(app, writer, client, record, progress)
                .with_reservation(held)
                .answer_client(source, stream)
                .await
        }
        (Ok(source), Some(Continued(previous))) => {
            let reply_writer = ReplyWriter::new(app, writer, client, record, progress).with_reservation(held);
            background::begin_response(reply_writer, source, &body.unwrap_or_default(), previous).await
        }
        (Err(error), _) if stream => client.fail_stream(error, &mut writer),
        (Err(error), _) => client.refuse_request(error),
    }
}
