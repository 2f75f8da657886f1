//! The fields that OpenAI's API has on chat replies, written down from the types of its Python SDK 3.52.0:
//! what is not here is foreign. The texts of the model (`content`, `arguments`, …) are values, so nothing
//! inside them is looked at.

use serde_json::Value;

/// The allowed content of a value.
#[derive(Debug)]
pub enum Shape {
    /// Anything: its inside is not judged.
    Leaf,
    /// These members, or null.
    Object(&'static [(&'static str, Shape)]),
    /// A list of these, or null.
    List(&'static Shape),
    /// The same as another shape.
    Same(&'static Shape),
}

use Shape::{Leaf, List, Object, Same};

/// `chat.completion.chunk`.
pub const CHUNK: Shape = Object(&[
    ("id", Leaf),
    ("object", Leaf),
    ("created", Leaf),
    ("model", Leaf),
    ("service_tier", Leaf),
    ("system_fingerprint", Leaf),
    ("obfuscation", Leaf),
    ("moderation", Leaf),
    ("usage", USAGE),
    (
        "choices",
        List(&Object(&[("index", Leaf), ("finish_reason", Leaf), ("logprobs", LOGPROBS), ("delta", DELTA)])),
    ),
]);

/// `chat.completion`.
pub const COMPLETION: Shape = Object(&[
    ("id", Leaf),
    ("object", Leaf),
    ("created", Leaf),
    ("model", Leaf),
    ("service_tier", Leaf),
    ("system_fingerprint", Leaf),
    ("metadata", Leaf),
    ("moderation", Leaf),
    ("usage", USAGE),
    (
        "choices",
        List(&Object(&[
            ("index", Leaf),
            ("finish_reason", Leaf),
            ("logprobs", LOGPROBS),
            ("message", MESSAGE),
        ])),
    ),
]);

/// The body of an error, and the event of an error in a stream.
pub const ERROR: Shape =
    Object(&[("error", Object(&[("message", Leaf), ("type", Leaf), ("param", Leaf), ("code", Leaf)]))]);

const DELTA: Shape = Object(&[
    ("role", Leaf),
    ("content", Leaf),
    ("refusal", Leaf),
    ("function_call", FUNCTION),
    ("audio", AUDIO),
    ("tool_calls", List(&Object(&[("index", Leaf), ("id", Leaf), ("type", Leaf), ("function", FUNCTION)]))),
]);

const MESSAGE: Shape = Object(&[
    ("role", Leaf),
    ("content", Leaf),
    ("refusal", Leaf),
    ("function_call", FUNCTION),
    (
        "tool_calls",
        List(&Object(&[
            ("id", Leaf),
            ("type", Leaf),
            ("function", FUNCTION),
            ("custom", Object(&[("name", Leaf), ("input", Leaf)])),
        ])),
    ),
    ("audio", AUDIO),
    (
        "annotations",
        List(&Object(&[
            ("type", Leaf),
            (
                "url_citation",
                Object(&[("start_index", Leaf), ("end_index", Leaf), ("title", Leaf), ("url", Leaf)]),
            ),
        ])),
    ),
]);

const AUDIO: Shape = Object(&[("id", Leaf), ("data", Leaf), ("expires_at", Leaf), ("transcript", Leaf)]);

const FUNCTION: Shape = Object(&[("name", Leaf), ("arguments", Leaf)]);

const TOKEN: Shape = Object(&[("token", Leaf), ("logprob", Leaf), ("bytes", Leaf)]);

const TOKENS: Shape = List(&Object(&[
    ("token", Leaf),
    ("logprob", Leaf),
    ("bytes", Leaf),
    ("top_logprobs", List(&Same(&TOKEN))),
]));

const LOGPROBS: Shape = Object(&[("content", TOKENS), ("refusal", TOKENS)]);

const USAGE: Shape = Object(&[
    ("prompt_tokens", Leaf),
    ("completion_tokens", Leaf),
    ("total_tokens", Leaf),
    (
        "prompt_tokens_details",
        Object(&[
            ("cached_tokens", Leaf),
            ("cache_write_tokens", Leaf),
            ("audio_tokens", Leaf),
            ("image_tokens", Leaf),
            ("text_tokens", Leaf),
        ]),
    ),
    (
        "completion_tokens_details",
        Object(&[
            ("reasoning_tokens", Leaf),
            ("audio_tokens", Leaf),
            ("text_tokens", Leaf),
            ("accepted_prediction_tokens", Leaf),
            ("rejected_prediction_tokens", Leaf),
        ]),
    ),
]);

/// The paths of members that the shape does not name, and of values of another kind. Names in `kept` pass
/// everywhere.
pub fn foreign_fields(value: &Value, shape: &Shape, kept: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    collect(value, shape, kept, "", &mut found);
    found
}

fn collect(value: &Value, shape: &Shape, kept: &[&str], path: &str, found: &mut Vec<String>) {
    match (shape, value) {
        (Leaf, _) | (Object(_) | List(_), Value::Null) => {}
        (Same(other), _) => collect(value, other, kept, path, found),
        (Object(members), Value::Object(object)) => {
            for (key, value) in object {
                let path = format!("{path}.{key}");
                match members.iter().find(|(name, _)| name == key) {
                    Some((_, shape)) => collect(value, shape, kept, &path, found),
                    None if kept.contains(&key.as_str()) => {}
                    None => found.push(path),
                }
            }
        }
        (List(member), Value::Array(list)) => {
            for (index, value) in list.iter().enumerate() {
                collect(value, member, kept, &format!("{path}[{index}]"), found);
            }
        }
        _ => found.push(format!("{path} is {value}")),
    }
}
