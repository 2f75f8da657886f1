//! The client of the tour: a generic HTTP client and SSE parser that joins the chunks of a stream and knows
//! nothing about respool.

use std::time::{Duration, Instant};

use eventsource_stream::Eventsource as _;
use futures::StreamExt as _;
use serde_json::Value;

use crate::scenes::{Conversation, Scene, scene_request};

/// The content of a stream, when it has ended.
#[derive(Debug, Default)]
pub struct DemoReply {
    pub(crate) text: String,
    pub(crate) calls: Vec<Call>,
    pub(crate) error: Option<String>,
    /// When the first event arrived.
    pub(crate) first: Duration,
    /// Events that said nothing new.
    pub(crate) heartbeats: usize,
}

/// A tool call, joined from its parts.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) arguments: String,
}

/// Plays a scene with the model server at this URL.
///
/// # Errors
/// When the server does not answer.
pub async fn play_directly(server: &str, scene: &Scene) -> Result<DemoReply, reqwest::Error> {
    send_conversation(server, scene.model, scene.conversation).await
}

/// Plays a scene through the relay at this URL.
///
/// # Errors
/// When the relay does not answer.
pub async fn play_through(relay: &str, scene: &Scene) -> Result<DemoReply, reqwest::Error> {
    send_conversation(relay, scene.agent.unwrap_or(scene.model), scene.conversation).await
}

/// Sends this conversation to the server at `url`.
async fn send_conversation(
    url: &str,
    model: &str,
    conversation: Conversation,
) -> Result<DemoReply, reqwest::Error> {
    // It speaks plain HTTP: a machine without certificates, as an empty container, is no obstacle.
    let client = reqwest::Client::builder().no_proxy().tls_certs_only([]).build()?;
    let body = scene_request(model, conversation).to_string();
    let began = Instant::now();
    let request =
        client.post(format!("{url}/v1/chat/completions")).header("content-type", "application/json");
    let reply = request.body(body).send().await?;
    let status = reply.status();
    let mut got = DemoReply::default();
    if !status.is_success() {
        let body = reply.text().await?;
        got.error = Some(format!("HTTP {status}: {}", error_in(&body).unwrap_or(body)));
        return Ok(got);
    }
    let mut events = reply.bytes_stream().eventsource();
    while let Some(Ok(event)) = events.next().await {
        if got.first.is_zero() {
            got.first = began.elapsed();
        }
        got.take_event(&event.data);
    }
    Ok(got)
}

fn error_in(body: &str) -> Option<String> {
    let body: Value = serde_json::from_str(body).ok()?;
    Some(body["error"]["message"].as_str()?.to_owned())
}

impl DemoReply {
    /// Takes a whole reply's message.
    pub(crate) fn take_message(&mut self, message: &Value) {
        self.text.push_str(message["content"].as_str().unwrap_or_default());
        for (index, call) in message["tool_calls"].as_array().into_iter().flatten().enumerate() {
            let mut piece = call.clone();
            piece["index"] = index.into();
            self.join_piece(&piece);
        }
    }

    /// Takes one event of a stream.
    pub(crate) fn take_event(&mut self, data: &str) {
        let Ok(chunk) = serde_json::from_str::<Value>(data) else { return };
        if let Some(message) = chunk["error"]["message"].as_str() {
            self.error = Some(message.to_owned());
            return;
        }
        let choice = &chunk["choices"][0];
        let delta = &choice["delta"];
        let said = delta["content"].as_str().unwrap_or_default();
        let reasoned = ["reasoning", "reasoning_content"].iter().any(|key| is_some_text(&delta[*key]));
        let calls = delta["tool_calls"].as_array();
        self.text.push_str(said);
        calls.into_iter().flatten().for_each(|piece| self.join_piece(piece));
        let is_empty = said.is_empty() && !reasoned && calls.is_none();
        if is_empty && choice["finish_reason"].is_null() && delta.is_object() {
            self.heartbeats += 1;
        }
    }

    fn join_piece(&mut self, piece: &Value) {
        let index = piece["index"].as_u64().and_then(|index| usize::try_from(index).ok()).unwrap_or_default();
        while self.calls.len() <= index.min(64) {
            self.calls.push(Call::default());
        }
        let Some(call) = self.calls.get_mut(index) else { return };
        for (field, text) in [
            (&mut call.id, &piece["id"]),
            (&mut call.name, &piece["function"]["name"]),
            (&mut call.arguments, &piece["function"]["arguments"]),
        ] {
            field.push_str(text.as_str().unwrap_or_default());
        }
    }
}

fn is_some_text(value: &Value) -> bool {
    value.as_str().is_some_and(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pieces_of_a_stream_are_joined() {
        let mut got = DemoReply::default();
        for data in [
            r#"{"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#,
            r#"{"choices":[{"delta":{"content":"He"}}]}"#,
            r#"{"choices":[{"delta":{"content":"y"}}]}"#,
            r#"{"choices":[{"delta":{"reasoning":"x"}}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c1","function":{"name":"read","arguments":"{"}}]}}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"}"}}]}}]}"#,
            r#"{"choices":[{"delta":{},"finish_reason":"tool_calls"}]}"#,
            "[DONE]",
        ] {
            got.take_event(data);
        }
        let call = Call { id: "c1".into(), name: "read".into(), arguments: "{}".into() };
        assert_eq!((got.text.as_str(), got.calls, got.heartbeats), ("Hey", vec![call], 1));
        let mut failed = DemoReply::default();
        failed.take_event(r#"{"error":{"message":"no"}}"#);
        assert_eq!(failed.error.as_deref(), Some("no"));
    }
}
