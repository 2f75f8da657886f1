//! Writes the response object, which the first and the last event of a stream contain, and which is the whole
//! reply without a stream.
//!
//! Called by `request` (for the fields that it repeats) and `events`.

use std::borrow::Cow;

use serde::de::IgnoredAny;

use wire::turn::Usage;
use wire::{Object, encode_string, mend_strings};

/// The status of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status<'a> {
    /// It waits in the background.
    Queued,
    /// It is in progress.
    InProgress,
    /// The model has ended its turn.
    Completed,
    /// It was cut: `max_output_tokens` or `content_filter`.
    Incomplete(&'static str),
    /// Code and message.
    Failed(&'a str, &'a str),
}

/// The fields of the request that every response repeats, as JSON with a comma before each.
#[derive(Clone, Debug)]
pub(super) struct EchoedFields {
    fields: String,
    tools: String,
}

/// The repeated fields, with OpenAI's defaults.
const ECHOED: [(&str, &str); 22] = [
    ("background", "false"),
    ("frequency_penalty", "0.0"),
    ("instructions", "null"),
    ("max_output_tokens", "null"),
    ("max_tool_calls", "null"),
    ("metadata", "{}"),
    ("parallel_tool_calls", "true"),
    ("presence_penalty", "0.0"),
    ("previous_response_id", "null"),
    ("prompt_cache_key", "null"),
    ("prompt_cache_options", "null"),
    ("prompt_cache_retention", "null"),
    ("reasoning", r#"{"effort":null,"summary":null}"#),
    ("safety_identifier", "null"),
    ("service_tier", "\"default\""),
    ("temperature", "1.0"),
    ("text", r#"{"format":{"type":"text"}}"#),
    ("tool_choice", "\"auto\""),
    ("top_logprobs", "0"),
    ("top_p", "1.0"),
    ("truncation", "\"disabled\""),
    ("user", "null"),
];

impl Default for EchoedFields {
    fn default() -> Self {
        Self::from_request(&Object::default())
    }
}

impl EchoedFields {
    pub(super) fn from_request(request: &Object<'_>) -> Self {
        let mut fields = String::new();
        for (key, default) in ECHOED {
            let value = strict_json(request.get(key).unwrap_or(default), default);
            fields.extend([",\"", key, "\":", &value]);
        }
        let tools = strict_json(request.get("tools").unwrap_or("[]"), "[]").into_owned();
        Self { fields, tools }
    }
}

/// Makes a JSON text readable for every client: removes line breaks, which would end an event's data, and
/// mends strings that strict decoders refuse. `default`: for a text that cannot be mended.
pub(super) fn strict_json<'j>(json: &'j str, default: &str) -> Cow<'j, str> {
    let is_plain = !json.bytes().any(|byte| byte < b' ') && !json.contains("\\ud") && !json.contains("\\uD");
    if is_plain && serde_json::from_str::<IgnoredAny>(json).is_ok() {
        return Cow::Borrowed(json);
    }
    let mended = serde_json::from_str::<serde_json::Value>(&mend_strings(json));
    Cow::Owned(mended.map_or_else(|_| default.to_owned(), |value| value.to_string()))
}

/// The fields of a response that do not change.
#[derive(Clone, Debug)]
pub(super) struct Head {
    pub(super) id: String,
    pub(super) created: u64,
    /// The time of the turn's end; meaningless before.
    pub(super) completed: u64,
    pub(super) model: String,
    /// True when the response is stored.
    pub(super) store: bool,
}

/// Writes the object. `output`: the finished items. A heartbeat omits the tools, which may be 40 KB.
pub(super) fn response_json(
    head: &Head,
    echo: &EchoedFields,
    with_tools: bool,
    status: Status<'_>,
    output: &[String],
    usage: Option<&Usage>,
) -> String {
    let (name, error, incomplete) = match status {
        Status::Queued => ("queued", None, None),
        Status::InProgress => ("in_progress", None, None),
        Status::Completed => ("completed", None, None),
        Status::Incomplete(reason) => ("incomplete", None, Some(format!(r#"{{"reason":"{reason}"}}"#))),
        Status::Failed(code, message) => {
            let error = format!(r#"{{"code":{},"message":{}}}"#, encode_string(code), encode_string(message));
            ("failed", Some(error), None)
        }
    };
    let or_null = |value: Option<String>| value.unwrap_or_else(|| "null".to_owned());
    let completed = (status == Status::Completed).then(|| head.completed.to_string());
    format!(
        r#"{{"id":"{}","object":"response","created_at":{},"completed_at":{},"status":"{name}","error":{},"incomplete_details":{},"model":{},"output":[{}],"tools":{}{},"store":{},"usage":{}}}"#,
        head.id,
        head.created,
        or_null(completed),
        or_null(error),
        or_null(incomplete),
        encode_string(&head.model),
        output.join(","),
        if with_tools { &echo.tools } else { "[]" },
        echo.fields,
        head.store,
        or_null(usage.map(usage_json)),
    )
}

fn usage_json(usage: &Usage) -> String {
    format!(
        r#"{{"input_tokens":{},"input_tokens_details":{{"cached_tokens":{},"cache_write_tokens":{}}},"output_tokens":{},"output_tokens_details":{{"reasoning_tokens":{}}},"total_tokens":{}}}"#,
        usage.prompt,
        usage.cached.unwrap_or_default(),
        usage.cache_written.unwrap_or_default(),
        usage.completion,
        usage.reasoning.unwrap_or_default(),
        usage.total_tokens(),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn what_is_repeated_is_strict_json() {
        for (json, expected) in [
            (r#"{"a": 1.50}"#, r#"{"a": 1.50}"#),
            ("{\n\"a\":\t1}", r#"{"a":1}"#),
            ("{\"na\tme\0\": \"n\"}", r#"{"na\tme\u0000":"n"}"#),
            (r#"["a\ud83d", "\uD83D\ude00\n"]"#, "[\"a\u{fffd}\",\"\u{1f600}\\n\"]"),
            (r#"{"a": "\q"}"#, "null"),
            ("[01]", "null"),
        ] {
            assert_eq!(strict_json(json, "null"), expected, "{json}");
        }
    }

    #[test]
    fn the_request_is_repeated_on_one_line() {
        let request =
            "{\"metadata\": {\n \"a\": \"b\"},\n \"store\": false, \"tools\": [\n], \"instructions\": \"x\"}";
        let echo = EchoedFields::from_request(&Object::parse(request).unwrap());
        let head = Head { id: "resp_1".into(), created: 7, completed: 9, model: "m\"".into(), store: false };
        let usage =
            Usage { prompt: 5, completion: 2, cached: Some(3), cache_written: Some(1), reasoning: None };
        let json =
            response_json(&head, &echo, true, Status::Incomplete("max_output_tokens"), &[], Some(&usage));
        assert!(!json.contains('\n'));
        let value: Value = serde_json::from_str(&json).unwrap();
        assert_eq!((&value["metadata"]["a"], &value["store"]), (&json!("b"), &json!(false)));
        assert_eq!((&value["instructions"], &value["model"]), (&json!("x"), &json!("m\"")));
        assert_eq!(value["incomplete_details"]["reason"], "max_output_tokens");
        assert_eq!(
            (&value["usage"]["total_tokens"], &value["usage"]["input_tokens_details"]["cached_tokens"]),
            (&json!(7), &json!(3))
        );
        assert_eq!(value["usage"]["input_tokens_details"]["cache_write_tokens"], 1);
        let failed = response_json(&head, &echo, false, Status::Failed("server_error", "gone"), &[], None);
        let failed: Value = serde_json::from_str(&failed).unwrap();
        let completed = response_json(&head, &echo, false, Status::Completed, &[], None);
        let completed: Value = serde_json::from_str(&completed).unwrap();
        assert_eq!((&completed["completed_at"], &failed["completed_at"]), (&json!(9), &Value::Null));
        assert_eq!((&completed["top_logprobs"], &completed["presence_penalty"]), (&json!(0), &json!(0.0)));
        assert_eq!((&failed["error"]["code"], &failed["status"]), (&json!("server_error"), &json!("failed")));
    }
}
