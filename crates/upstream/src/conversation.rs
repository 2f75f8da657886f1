//! The client and the conversation that a request belongs to. They keep a conversation at the upstream that
//! has its prefix cached, and make a queue fair. Pure.
//!
//! OpenClaw names its session in two headers with `compat.sendSessionAffinityHeaders`, or in the body with
//! `supportsPromptCacheKey`. By default it does not, and the beginning of the conversation identifies it.
//! Clients' texts are only hashed, never logged.

use std::fmt::Display;

use http::{HeaderMap, HeaderValue, header};

use super::priority::{Priority, read_priority};
use super::{QueueClient, digest};
use wire::{ChatRequest, Object, decode_string};

/// Headers that name the conversation.
const SESSION: [&str; 6] = [
    "session_id",
    "x-session-affinity",
    "x-claude-code-session-id",
    "x-session-id",
    "x-qwen-code-session-id",
    // From routers in front, and clients of theirs.
    "x-smg-routing-key",
];

/// The bytes of each message that count: enough to distinguish conversations, however long a system prompt
/// is.
const BEGINNING: usize = 8 << 10;

/// Identifies the client and conversation of a chat request. [`from`] mixes in the network address, if it is
/// known.
pub fn identify_chat(headers: &HeaderMap, request: &ChatRequest<'_>) -> QueueClient {
    let conversation =
        named_conversation(headers, &request.object).unwrap_or_else(|| beginning_digest(request));
    QueueClient { client: client_digest(headers), conversation, priority: read_priority(headers, request) }
}

/// Identifies the client and conversation of any other request.
pub fn identify_other(headers: &HeaderMap, body: Option<&Object<'_>>, text: &[u8]) -> QueueClient {
    let named = body
        .and_then(|object| named_conversation(headers, object))
        .or_else(|| conversation_in_header(headers));
    QueueClient {
        client: client_digest(headers),
        conversation: named.unwrap_or_else(|| digest(&text[..text.len().min(BEGINNING)])),
        priority: Priority::default(),
    }
}

/// Identifies the conversation of a chat request by its name, or by the first words of the user: a prompt
/// whose beginning changes stays in its conversation.
pub fn identify_by_words(headers: &HeaderMap, request: &ChatRequest<'_>) -> u64 {
    named_conversation(headers, &request.object).unwrap_or_else(|| {
        let first = request.messages.iter().find(|message| message.has_role("user"));
        digest(first.map(wire::Message::to_json).unwrap_or_default().as_bytes())
    })
}

/// Clients that share a key, or have none, are distinguished by their network address.
pub fn from(who: QueueClient, address: Option<impl Display>) -> QueueClient {
    let address = address.map(|address| digest(address.to_string().as_bytes())).unwrap_or_default();
    QueueClient { client: who.client ^ address, ..who }
}

fn client_digest(headers: &HeaderMap) -> u64 {
    digest(headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default())
}

fn named_conversation(headers: &HeaderMap, object: &Object<'_>) -> Option<u64> {
    conversation_in_header(headers).or_else(|| {
        let key = object.get("prompt_cache_key").and_then(decode_string)?;
        (!key.is_empty()).then(|| digest(key.as_bytes()))
    })
}

fn conversation_in_header(headers: &HeaderMap) -> Option<u64> {
    let named = SESSION.iter().filter_map(|name| headers.get(*name)).find(|value| !value.is_empty());
    named.map(|value| digest(value.as_bytes()))
}

/// Hashes the part that all requests of a conversation share: everything up to the first words of the user.
fn beginning_digest(request: &ChatRequest<'_>) -> u64 {
    let mut bytes = Vec::new();
    for message in &request.messages {
        let text = message.to_json();
        bytes.extend_from_slice(&text.as_bytes()[..text.len().min(BEGINNING)]);
        if message.has_role("user") || bytes.len() > 4 * BEGINNING {
            break;
        }
    }
    digest(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn conversation(headers: &[(&'static str, &'static str)], body: &Value) -> u64 {
        let headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        let body = body.to_string();
        identify_chat(&headers.collect(), &ChatRequest::parse(body.as_bytes()).unwrap()).conversation
    }

    fn body(system: &str, first: &str, later: &str) -> Value {
        json!({"messages": [{"role": "system", "content": system}, {"role": "user", "content": first},
            {"role": "assistant", "content": later}, {"role": "user", "content": later}]})
    }

    #[test]
    fn a_conversation_has_a_name_or_a_beginning() {
        let same = |one: u64, other: u64| assert_eq!(one, other);
        let other = |one: u64, other: u64| assert_ne!(one, other);
        let plain = conversation(&[], &body("s", "hi", "x"));
        same(plain, conversation(&[], &body("s", "hi", "y")));
        other(plain, conversation(&[], &body("s", "hello", "x")));
        other(plain, conversation(&[], &body("t", "hi", "x")));
        let named = conversation(&[("session_id", "a:0")], &body("s", "hi", "x"));
        other(plain, named);
        for header in SESSION {
            same(named, conversation(&[(header, "a:0")], &body("t", "bye", "y")));
        }
        same(
            named,
            conversation(&[("session_id", "a:0"), ("x-session-affinity", "b:0")], &body("s", "hi", "x")),
        );
        let mut in_body = body("s", "hi", "x");
        in_body["prompt_cache_key"] = json!("a:0");
        same(named, conversation(&[], &in_body));
        in_body["prompt_cache_key"] = json!("");
        other(named, conversation(&[], &in_body));
    }

    #[test]
    fn long_prompts_count_with_their_beginning() {
        let long = "x".repeat(100_000);
        assert_eq!(
            conversation(&[], &body(&format!("{long}1"), "hi", "")),
            conversation(&[], &body(&format!("{long}2"), "hi", ""))
        );
        assert_ne!(conversation(&[], &body(&long, "hi", "")), conversation(&[], &body(&long, "hello", "")));
    }

    #[test]
    fn clients_are_distinguished_by_key_and_address() {
        let who = |key: &'static str, address: &str| {
            let headers = [(header::AUTHORIZATION, key.parse().unwrap())].into_iter().collect();
            from(identify_other(&headers, None, b"x"), Some(address))
        };
        assert_eq!(who("a", "::1"), who("a", "::1"));
        assert_ne!(who("a", "::1").client, who("b", "::1").client);
        assert_ne!(who("a", "::1").client, who("a", "::2").client);
    }
}
