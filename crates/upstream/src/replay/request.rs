//! Judges a chat request as vLLM 0.32 does, and takes from it what choosing a recording needs. Pure.
//!
//! The first errors carry vLLM's own words (captured). Stricter than vLLM, with words of its own: a tool
//! message must answer an earlier call, and the arguments of a call in the history must be JSON; some of
//! vLLM's chat templates fail on these, and a client that sends them is wrong.

use http::{HeaderMap, StatusCode, header};
use serde_json::{Map, Value};

const INTERNAL_BEGIN: &str = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>";
const INTERNAL_END: &str = "<<<END_OPENCLAW_INTERNAL_CONTEXT>>>";

/// Why a request is refused, in vLLM's terms.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    pub(super) message: String,
    pub(super) kind: &'static str,
    pub(super) param: Option<String>,
}

impl Refusal {
    /// Returns the refusal of a request that is one more than the recorded replies.
    pub(super) fn nothing_left() -> Self {
        Self::bad_request("no further reply to this request was kept", None)
    }

    /// Returns a mistake that vLLM's handlers find.
    fn bad_request(message: impl Into<String>, param: Option<&str>) -> Self {
        let (message, param) = (message.into(), param.map(str::to_owned));
        Self { status: StatusCode::BAD_REQUEST, message, kind: "BadRequestError", param }
    }

    /// Returns a mistake in the body's shape, at `loc`.
    fn invalid(kind: &str, loc: &str, text: &str, input: &str) -> Self {
        let message = format!(
            "1 validation error:\n  {{'type': '{kind}', 'loc': '{loc}', 'msg': '{text}', 'input': '{input}'}}"
        );
        Self { kind: "Bad Request", ..Self::bad_request(message, Some(loc)) }
    }

    fn media_type() -> Self {
        let message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed";
        Self { kind: "Bad Request", ..Self::bad_request(message, None) }
    }

    fn not_json(error: &serde_json::Error, body: &[u8]) -> Self {
        let loc = format!("body.{}", offset_of(error, body));
        let message = format!(
            "1 validation error:\n  {{'type': 'json_invalid', 'loc': '{loc}', 'msg': 'JSON decode error', \
             'input': '<dict of 0 items>', 'ctx': {{'error': '{error}'}}}}"
        );
        Self { kind: "Bad Request", ..Self::bad_request(message, Some(&loc)) }
    }

    /// Returns the error of a model without a recording.
    pub(super) fn unknown_model<'n>(model: &str, known: impl Iterator<Item = &'n str>) -> Self {
        let known: Vec<&str> = known.collect();
        let message = format!("The model `{model}` does not exist. Valid aliases: {}.", known.join(", "));
        Self {
            status: StatusCode::NOT_FOUND,
            kind: "NotFoundError",
            ..Self::bad_request(message, Some("model"))
        }
    }

    /// Returns the error of a model that was recorded, but not in this form.
    pub(super) fn not_recorded(asked: &CheckedRequest) -> Self {
        let model = asked.model.as_deref().unwrap_or("the first model");
        let turn = if asked.ends_in_tool_result { "the turn after a tool result" } else { "this turn" };
        let message = format!(
            "The recording of `{model}` has no reply to {turn} with stream={}: ask with the other value, or record it. \
             (parameter=stream)",
            asked.stream
        );
        Self::bad_request(message, Some("stream"))
    }
}

/// Returns how many bytes of `body` the JSON parser accepted.
fn offset_of(error: &serde_json::Error, body: &[u8]) -> usize {
    let before: usize =
        body.split_inclusive(|&byte| byte == b'\n').take(error.line() - 1).map(<[u8]>::len).sum();
    (before + error.column()).min(body.len())
}

/// A chat request of the right shape.
#[derive(Debug, Default)]
pub(super) struct CheckedRequest {
    /// vLLM takes its own model when none is named.
    pub(super) model: Option<String>,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    /// Messages that the client itself appends (`is_internal`) do not count.
    pub(super) ends_in_tool_result: bool,
    messages: Vec<Value>,
}

impl CheckedRequest {
    /// Checks what vLLM checks before it looks at the model.
    pub(super) fn read(headers: &HeaderMap, body: &[u8]) -> Result<Self, Refusal> {
        check_content_type(headers)?;
        let body: Value = serde_json::from_slice(body).map_err(|error| Refusal::not_json(&error, body))?;
        let Value::Object(mut body) = body else {
            let text = "Input should be a valid dictionary or object to extract fields from";
            return Err(Refusal::invalid("model_attributes_type", "body", text, kind_of(&body)));
        };
        let messages = take_messages(&mut body)?;
        let stream = optional_bool(&body, "stream")?;
        check_options(&body, stream)?;
        Ok(Self {
            model: body.get("model").and_then(Value::as_str).map(str::to_owned),
            stream,
            include_usage: body.get("stream_options").is_some_and(|options| options["include_usage"] == true),
            ends_in_tool_result: ends_in_tool_result(&messages),
            messages,
        })
    }

    /// Checks what vLLM finds, or should find, when it renders the conversation.
    pub(super) fn check_history(&self) -> Result<(), Refusal> {
        if self.messages.is_empty() {
            let message =
                "Cannot apply chat template to an empty conversation. Provide at least one message.";
            return Err(Refusal::bad_request(message, None));
        }
        let mut known: Vec<&str> = Vec::new();
        for (index, message) in self.messages.iter().enumerate() {
            for call in message["tool_calls"].as_array().into_iter().flatten() {
                check_call(call, index)?;
                known.extend(call["id"].as_str());
            }
            if message["role"] == "tool"
                && !message["tool_call_id"].as_str().is_some_and(|id| known.contains(&id))
            {
                let text = format!(
                    "messages[{index}]: tool_call_id {} answers no earlier call",
                    message["tool_call_id"]
                );
                return Err(Refusal::bad_request(text, Some("messages")));
            }
        }
        Ok(())
    }
}

fn check_content_type(headers: &HeaderMap) -> Result<(), Refusal> {
    let content_type =
        headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media_type = content_type.split(';').next().unwrap_or_default().trim();
    if media_type.eq_ignore_ascii_case("application/json") { Ok(()) } else { Err(Refusal::media_type()) }
}

fn take_messages(body: &mut Map<String, Value>) -> Result<Vec<Value>, Refusal> {
    match body.remove("messages") {
        Some(Value::Array(messages)) => Ok(messages),
        Some(other) => Err(Refusal::invalid(
            "list_type",
            "body.messages",
            "Input should be a valid list",
            kind_of(&other),
        )),
        None => {
            let input = format!("<dict of {} items>", body.len());
            Err(Refusal::invalid("missing", "body.messages", "Field required", &input))
        }
    }
}

fn optional_bool(body: &Map<String, Value>, key: &str) -> Result<bool, Refusal> {
    match body.get(key) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(value)) => Ok(*value),
        Some(other) => {
            let loc = format!("body.{key}");
            Err(Refusal::invalid("bool_type", &loc, "Input should be a valid boolean", kind_of(other)))
        }
    }
}

fn check_options(body: &Map<String, Value>, stream: bool) -> Result<(), Refusal> {
    if !stream && body.get("stream_options").is_some_and(|options| !options.is_null()) {
        let message = "Stream options can only be defined when `stream=True`. (parameter=stream_options)";
        return Err(Refusal::bad_request(message, Some("stream_options")));
    }
    if body.get("tools").and_then(Value::as_array).is_some_and(Vec::is_empty) {
        let message = "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely. \
                       (parameter=tools)";
        return Err(Refusal::bad_request(message, Some("tools")));
    }
    Ok(())
}

fn check_call(call: &Value, index: usize) -> Result<(), Refusal> {
    let arguments = &call["function"]["arguments"];
    if arguments.as_str().is_some_and(|text| serde_json::from_str::<Value>(text).is_ok()) {
        return Ok(());
    }
    let text = format!(
        "messages[{index}]: the arguments of tool call {} are not a string that holds JSON",
        call["id"]
    );
    Err(Refusal::bad_request(text, Some("messages")))
}

fn ends_in_tool_result(messages: &[Value]) -> bool {
    messages.iter().rfind(|message| !is_internal(message)).is_some_and(|message| message["role"] == "tool")
}

/// Returns true for the message that `openclaw` 2026.9.6 appends after tool results: nothing but internal
/// context.
fn is_internal(message: &Value) -> bool {
    let text = match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        _ => return false,
    };
    let text = text.trim();
    message["role"] == "user" && text.starts_with(INTERNAL_BEGIN) && text.ends_with(INTERNAL_END)
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "<None>",
        Value::Bool(_) => "<bool>",
        Value::Number(_) => "<number>",
        Value::String(_) => "<str>",
        Value::Array(_) => "<list>",
        Value::Object(_) => "<dict>",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn read(body: &str) -> Result<CheckedRequest, Refusal> {
        let headers =
            HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
        CheckedRequest::read(&headers, body.as_bytes())
    }

    fn check_refused(body: &str, words: &str, param: Option<&str>) {
        let refusal = read(body).and_then(|asked| asked.check_history()).unwrap_err();
        assert!(refusal.message.contains(words), "{body}: {}", refusal.message);
        assert_eq!((refusal.status.as_u16(), refusal.param.as_deref()), (400, param), "{body}");
    }

    #[test]
    fn shapes_are_refused_in_vllms_words() {
        check_refused(
            "{\"model\": \"tiny\", ",
            "'loc': 'body.18', 'msg': 'JSON decode error'",
            Some("body.18"),
        );
        check_refused("{\n\"a\": x}", "'loc': 'body.8'", Some("body.8"));
        check_refused("", "'loc': 'body.0'", Some("body.0"));
        check_refused("[1]", "Input should be a valid dictionary", Some("body"));
        check_refused(
            r#"{"model":"tiny"}"#,
            "'Field required', 'input': '<dict of 1 items>'",
            Some("body.messages"),
        );
        check_refused(r#"{"messages":"hi"}"#, "Input should be a valid list", Some("body.messages"));
        check_refused(r#"{"messages":[{}],"stream":"yes"}"#, "valid boolean", Some("body.stream"));
        check_refused(r#"{"messages":[]}"#, "Cannot apply chat template to an empty conversation", None);
        check_refused(r#"{"messages":[{}],"tools":[]}"#, "`tools` must not be an empty array", Some("tools"));
        let options = r#"{"messages":[{}],"stream":false,"stream_options":{}}"#;
        check_refused(options, "Stream options can only be defined when", Some("stream_options"));
    }

    #[test]
    fn only_json_is_taken() {
        for content_type in ["text/plain", "", "application/jsonp"] {
            let headers =
                HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static(content_type))]);
            assert_eq!(
                CheckedRequest::read(&headers, b"{}").unwrap_err(),
                Refusal::media_type(),
                "{content_type}"
            );
        }
        assert_eq!(CheckedRequest::read(&HeaderMap::new(), b"{}").unwrap_err(), Refusal::media_type());
        let with_charset = HeaderMap::from_iter([(
            header::CONTENT_TYPE,
            HeaderValue::from_static("Application/JSON; charset=utf-8"),
        )]);
        assert!(CheckedRequest::read(&with_charset, br#"{"messages":[]}"#).is_ok());
    }

    #[test]
    fn tool_results_must_answer_an_earlier_call() {
        let call =
            r#"{"role":"assistant","tool_calls":[{"id":"c1","function":{"name":"read","arguments":"{}"}}]}"#;
        let result = r#"{"role":"tool","tool_call_id":"c1","content":"x"}"#;
        let body = |messages: &[&str]| format!(r#"{{"messages":[{}]}}"#, messages.join(","));
        assert_eq!(read(&body(&[call, result])).unwrap().check_history(), Ok(()));
        check_refused(
            &body(&[result, call]),
            "messages[0]: tool_call_id \"c1\" answers no earlier call",
            Some("messages"),
        );
        check_refused(
            &body(&[call, r#"{"role":"tool"}"#]),
            "messages[1]: tool_call_id null",
            Some("messages"),
        );
    }

    #[test]
    fn arguments_in_the_history_must_be_json() {
        for arguments in [r#""{not json""#, r#""""#, r#"{"path":"a"}"#, "null"] {
            let call = format!(r#"{{"id":"c1","function":{{"arguments":{arguments}}}}}"#);
            let body = format!(r#"{{"messages":[{{"role":"assistant","tool_calls":[{call}]}}]}}"#);
            check_refused(&body, "messages[0]: the arguments of tool call \"c1\"", Some("messages"));
        }
    }

    #[test]
    fn openclaws_own_message_does_not_hide_a_tool_result() {
        let ends = |name: &str| {
            let path = format!("{}/../../fixtures/openclaw/{name}", env!("CARGO_MANIFEST_DIR"));
            let body = std::fs::read_to_string(path).unwrap();
            read(&body).unwrap().ends_in_tool_result
        };
        assert!(ends("turn-exec-2-after-tool.json") && ends("turn-parallel-2-after-tools.json"));
        assert!(!ends("turn-exec-1.json") && !ends("request-2026.2.26-default.json"));
    }

    #[test]
    fn a_question_after_a_result_begins_a_turn() {
        let text = format!("{INTERNAL_BEGIN} x {INTERNAL_END} and what now?");
        let question = serde_json::json!({"role": "user", "content": text});
        assert!(!ends_in_tool_result(&[serde_json::json!({"role": "tool"}), question]));
    }
}
