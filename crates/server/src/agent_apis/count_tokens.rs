//! `POST /v1/messages/count_tokens`: counts the tokens of a request of the Messages API.

use axum::response::Response;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};
use hyper::body::Incoming;

use super::api::{Api, estimated_tokens, upstream_headers};
use super::errors::Client;
use super::native::pass_to_server;
use super::reading::log_ignored_fields;
use crate::app::App;
use crate::front::{Arrival, Cost, is_left_to_server, named_agent};
use crate::respond;
use relay::Origin;
use translate::messages::{read_message, token_count_json};
use upstream::CHAT_PATH;
use wire::ApiError;

/// The header that names the method of counting: by the server (`tokenize`, exact), by respool for gpt-oss
/// (`o200k_harmony`), or an `estimate`.
const TOKEN_COUNT: HeaderName = HeaderName::from_static("x-respool-token-count");

pub(super) async fn count_tokens(mut arrival: Arrival, body: Incoming) -> Response {
    let response = answer_count(&mut arrival, body).await;
    respond::finish_response(response, &arrival.record)
}

async fn answer_count(arrival: &mut Arrival, body: Incoming) -> Response {
    let api = Api::Messages;
    let own_headers = arrival.parts.headers.clone();
    arrival.parts.headers = upstream_headers(std::mem::take(&mut arrival.parts.headers));
    let (app, record) = (arrival.app.clone(), arrival.record.clone());
    let client = Client::new(&app, api, &arrival.parts.headers, &record.start().id);
    let read = arrival.read_body(body).await;
    let permitted = read.and_then(|(body, room)| {
        arrival.check_permission(&body, Cost::Nothing).map(|()| room.attach_to(body))
    });
    let body = match permitted {
        Ok(body) => body,
        Err(error) => return client.refuse_request(error),
    };
    if is_left_to_server(&app, api.own_wire(), &body) {
        arrival.parts.headers = own_headers;
        return pass_to_server(arrival, body).await;
    }
    let origin = arrival.take_origin(api.wire(), CHAT_PATH.into());
    match tokens_of(&app, &body, origin).await {
        Ok((tokens, by)) => {
            record.set_token_counter(by);
            let mut response = respond::json_response(StatusCode::OK, token_count_json(tokens));
            response.headers_mut().insert(TOKEN_COUNT, HeaderValue::from_static(by));
            response
        }
        Err(error) => client.refuse_request(error),
    }
}

/// Returns the tokens of a request of the Messages API and the method of counting. It does not count what an
/// agent's run adds to the prompt.
async fn tokens_of(app: &App, body: &Bytes, origin: Origin) -> Result<(u64, &'static str), ApiError> {
    let read = read_message(body, &app.agent_apis.sealer)?;
    log_ignored_fields(&read.ignored_fields, &origin.record.start().id);
    origin.record.set_model(&read.asked.model);
    let chat = Bytes::from(read.chat);
    if named_agent(app, &chat).is_some() {
        return Ok((estimated_tokens(chat.len()), "estimate"));
    }
    app.relay.count_prompt(chat, origin).await
}
