//! A client's request to an agent, as far as a run depends on it. Pure. Used by `agents`.

use serde_json::Value;

use super::approval::Tier;
use super::prompt::plain_content;
use super::setup::{EndsRun, Executor, OfferedTool};
use telemetry::TraceContext;
use wire::digest::{hex, sha256};
use wire::{ApiError, ChatRequest, ErrorCode};

/// A client's request to an agent.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentRequest {
    /// The conversation.
    pub messages: Vec<Value>,
    /// The client's own tools.
    pub tools: Vec<OfferedTool>,
    /// A stream is wanted.
    pub stream: bool,
    /// Usage is wanted in the stream.
    pub usage: bool,
    /// Stands for this request: another one with the same agent, messages and tools has the same.
    pub fingerprint: String,
    /// Stands for the client's key, which it does not reveal.
    pub client: String,
    /// The name of the client's key, where keys have names.
    pub key: Option<String>,
    /// The span that it is part of.
    pub part_of: Option<TraceContext>,
    /// Results that the client brings for calls of the last assistant message, by id.
    pub results: Vec<(String, String)>,
    /// The client's messages after them.
    pub tail: Vec<Value>,
}

impl AgentRequest {
    /// Reads a request body.
    ///
    /// # Errors
    /// 400 when it is no chat completion request, or asks for what an agent does not do.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let request = ChatRequest::parse(body).map_err(|fault| ApiError::from(&fault))?;
        let (stream, usage) = (request.wants_stream(), request.wants_usage());
        refuse_unsupported(&request)?;
        let body: Value = serde_json::from_slice(body).map_err(|error| {
            ApiError::bad_request(ErrorCode::InvalidJson, format!("the request body: {error}"))
        })?;
        let messages = body["messages"].as_array().cloned().unwrap_or_default();
        if messages.is_empty() {
            let text = "`messages` is empty: send at least one message";
            return Err(
                ApiError::bad_request(ErrorCode::MissingRequiredParameter, text).with_param("messages")
            );
        }
        let tools = if body["tool_choice"] == "none" { Vec::new() } else { client_tools(&body["tools"]) };
        let fingerprint = fingerprint(&[&body["model"], &body["messages"], &body["tools"]]);
        let (results, tail) = brought_results(&messages);
        Ok(Self {
            messages,
            tools,
            stream,
            usage,
            fingerprint,
            client: String::new(),
            key: None,
            part_of: None,
            results,
            tail,
        })
    }

    /// Adds the client's key: the same request of a client with another key is another one.
    #[must_use]
    pub fn with_client_key(mut self, key: &[u8]) -> Self {
        self.client = client_digest(key);
        self.fingerprint = fingerprint(&[&self.fingerprint.into(), &self.client.as_str().into()]);
        self
    }

    /// Returns the same request with the name of its client's key, for the audit log.
    #[must_use]
    pub fn with_key(self, name: Option<String>) -> Self {
        Self { key: name, ..self }
    }

    /// Keeps the messages alone, for an agent that is another person's expert. The client's own instructions,
    /// its tools and their calls are left out.
    #[must_use]
    pub fn as_conversation(mut self) -> Self {
        let said = |message: &Value| {
            let role = message["role"].as_str().filter(|role| matches!(*role, "user" | "assistant"))?;
            let content = Some(&message["content"]).filter(|content| !content.is_null())?;
            Some(serde_json::json!({"role": role, "content": content}))
        };
        self.messages = self.messages.iter().filter_map(said).collect();
        self.tools.clear();
        self.results.clear();
        self.tail.clear();
        self
    }

    /// Returns a task that respool itself gives to an agent. `stands_for`: the work that it belongs to.
    pub fn from_work(text: &str, stands_for: &str) -> Self {
        Self { fingerprint: stands_for.to_owned(), ..Self::from_task(text) }
    }

    /// Returns a task that respool itself gives to an agent.
    pub fn from_task(text: &str) -> Self {
        Self::from_person(serde_json::json!({"role": "user", "content": text}))
    }

    /// Returns the first message of a person.
    pub(super) fn from_person(message: Value) -> Self {
        Self {
            messages: vec![message],
            tools: Vec::new(),
            stream: true,
            usage: true,
            fingerprint: String::new(),
            client: String::new(),
            key: None,
            part_of: None,
            results: Vec::new(),
            tail: Vec::new(),
        }
    }
}

fn refuse_unsupported(request: &ChatRequest<'_>) -> Result<(), ApiError> {
    let refuse = |param: &str, text: &str| {
        Err(ApiError::bad_request(ErrorCode::UnsupportedValue, text).with_param(param))
    };
    if request.choice_count() > 1 {
        return refuse("n", "an agent gives one answer: leave `n` out");
    }
    if request.wants_json() {
        return refuse("response_format", "an agent answers in text: leave `response_format` out");
    }
    Ok(())
}

fn client_tools(tools: &Value) -> Vec<OfferedTool> {
    let tool = |tool: &Value| {
        let function = &tool["function"];
        let schema = &function["parameters"];
        Some(OfferedTool {
            name: function["name"].as_str().filter(|name| !name.is_empty())?.to_owned(),
            description: function["description"].as_str().unwrap_or_default().to_owned(),
            parameters: if schema.is_object() {
                schema.clone()
            } else {
                serde_json::json!({"type": "object"})
            },
            executor: Executor::Client,
            result_limit: usize::MAX,
            tier: Tier::Auto,
            ends_run: EndsRun::Never,
            judges_arguments: false,
        })
    };
    tools.as_array().into_iter().flatten().filter_map(tool).collect()
}

/// Stands for a client in the store, which must not hold its key: a digest of its `authorization` header.
pub fn client_digest(key: &[u8]) -> String {
    hex(&sha256(&[b"respool client\n", key].concat())[..16])
}

/// Computes FNV-1a: equal requests must be recognised, also by another build; a collision gains an attacker
/// nothing.
fn fingerprint(parts: &[&Value]) -> String {
    let hash = |offset: u64| {
        parts
            .iter()
            .flat_map(|part| part.to_string().into_bytes())
            .fold(offset, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    };
    format!("{:016x}{:016x}", hash(0xcbf2_9ce4_8422_2325), hash(0x9e37_79b9_7f4a_7c15))
}

/// Returns the results for the calls of the last assistant message, and what follows them.
fn brought_results(messages: &[Value]) -> (Vec<(String, String)>, Vec<Value>) {
    let last = messages.iter().rposition(|message| message["role"] == "assistant");
    let Some(after) =
        last.filter(|last| messages[*last]["tool_calls"].is_array()).map(|last| &messages[last + 1..])
    else {
        return (Vec::new(), Vec::new());
    };
    let (results, tail): (Vec<&Value>, Vec<&Value>) =
        after.iter().partition(|message| message["role"] == "tool");
    let result = |message: &&Value| {
        let id = normalize_id(message["tool_call_id"].as_str().unwrap_or_default());
        (id, plain_content(&message["content"]))
    };
    (results.iter().map(result).collect(), tail.into_iter().cloned().collect())
}

/// Returns a call id as it survives every client: OpenClaw 2026.9.6 strips what is not alphanumeric and cuts
/// at 40.
pub(super) fn normalize_id(id: &str) -> String {
    id.chars().filter(char::is_ascii_alphanumeric).take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(body: &Value) -> AgentRequest {
        AgentRequest::parse(body.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn results_are_those_of_the_last_calls() {
        let call = json!({"role": "assistant", "content": null, "tool_calls": [{"id": "call_1-a"}]});
        let result =
            json!({"role": "tool", "tool_call_id": "call_1-a", "content": [{"type": "text", "text": "r"}]});
        let user = json!({"role": "user", "content": "go on"});
        let request = parse(&json!({"model": "a", "messages": [user, call, result, user]}));
        assert_eq!(request.results, [("call1a".to_owned(), "r".to_owned())]);
        assert_eq!(request.tail, std::slice::from_ref(&user));
        let answered = json!({"role": "assistant", "content": "done"});
        let later = parse(&json!({"messages": [user, call, result, answered, user]}));
        assert_eq!((later.results.len(), later.tail.len()), (0, 0), "these were answered");
    }

    #[test]
    fn equal_requests_have_one_fingerprint() {
        let body = |text: &str, stream: bool| {
            parse(&json!({"model": "a", "messages": [{"role": "user", "content": text}], "stream": stream}))
                .fingerprint
        };
        assert_eq!(body("x", true), body("x", false));
        assert_ne!(body("x", true), body("y", true));
    }

    #[test]
    fn a_client_digest_hides_its_key() {
        let of =
            |key: &[u8]| parse(&json!({"messages": [{"role": "user", "content": "x"}]})).with_client_key(key);
        let (one, same, other) = (of(b"Bearer one"), of(b"Bearer one"), of(b"Bearer two"));
        assert_eq!((&one.client, &one.fingerprint), (&same.client, &same.fingerprint));
        assert!(one.client != other.client && one.fingerprint != other.fingerprint);
        assert!(one.client.len() == 32 && !one.client.contains("one"));
    }

    #[test]
    fn what_an_agent_does_not_do_is_refused() {
        for (field, value) in
            [("n", json!(2)), ("response_format", json!({"type": "json_object"})), ("messages", json!([]))]
        {
            let mut body = json!({"messages": [{"role": "user", "content": "x"}]});
            body[field] = value;
            let error = AgentRequest::parse(body.to_string().as_bytes()).unwrap_err();
            assert_eq!((error.status, error.param.as_deref()), (400, Some(field)));
        }
    }
}
