//! Chat replies: the table of fields that OpenAI documents, and the reader of a whole completion.
//!
//! Sources: OpenAI's API reference (chat completion object, chat completion chunk object) for the table; vLLM
//! 0.10 to 0.33 for the other fields. The meaning of a text is decided by the tool-call parser, not here.

use std::borrow::Cow;

use super::object::{Object, array_elements, decode_string, is_key};
use super::prune::{Shape, Tag};
use super::scan::{Malformed, Scanner};
use crate::turn::Usage;

const ANY: Shape = Shape::Any;

const TOKEN: Shape = Shape::Fields(&[
    ("token", Tag::Plain, ANY),
    ("logprob", Tag::Plain, ANY),
    ("bytes", Tag::Plain, ANY),
    (
        "top_logprobs",
        Tag::Plain,
        Shape::Each(&Shape::Fields(&[
            ("token", Tag::Plain, ANY),
            ("logprob", Tag::Plain, ANY),
            ("bytes", Tag::Plain, ANY),
        ])),
    ),
]);

const LOGPROBS: Shape = Shape::Fields(&[
    ("content", Tag::Plain, Shape::Each(&TOKEN)),
    ("refusal", Tag::Plain, Shape::Each(&TOKEN)),
]);

const FUNCTION: Shape = Shape::Fields(&[("name", Tag::Plain, ANY), ("arguments", Tag::Plain, ANY)]);

const TOOL_CALLS: Shape = Shape::Each(&Shape::Fields(&[
    ("index", Tag::Plain, ANY),
    ("id", Tag::Plain, ANY),
    ("type", Tag::Plain, ANY),
    ("function", Tag::Plain, FUNCTION),
    ("custom", Tag::Plain, Shape::Fields(&[("name", Tag::Plain, ANY), ("input", Tag::Plain, ANY)])),
]));

const ANNOTATIONS: Shape = Shape::Each(&Shape::Fields(&[
    ("type", Tag::Plain, ANY),
    (
        "url_citation",
        Tag::Plain,
        Shape::Fields(&[
            ("start_index", Tag::Plain, ANY),
            ("end_index", Tag::Plain, ANY),
            ("url", Tag::Plain, ANY),
            ("title", Tag::Plain, ANY),
        ]),
    ),
]));

const AUDIO: Shape = Shape::Fields(&[
    ("id", Tag::Plain, ANY),
    ("data", Tag::Plain, ANY),
    ("expires_at", Tag::Plain, ANY),
    ("transcript", Tag::Plain, ANY),
]);

const USAGE: Shape = Shape::Fields(&[
    ("prompt_tokens", Tag::Plain, ANY),
    ("completion_tokens", Tag::Plain, ANY),
    ("total_tokens", Tag::Plain, ANY),
    (
        "prompt_tokens_details",
        Tag::Plain,
        Shape::Fields(&[("cached_tokens", Tag::Plain, ANY), ("audio_tokens", Tag::Plain, ANY)]),
    ),
    (
        "completion_tokens_details",
        Tag::Plain,
        Shape::Fields(&[
            ("reasoning_tokens", Tag::Plain, ANY),
            ("audio_tokens", Tag::Plain, ANY),
            ("accepted_prediction_tokens", Tag::Plain, ANY),
            ("rejected_prediction_tokens", Tag::Plain, ANY),
        ]),
    ),
]);

/// The fields of a message or a delta. OpenAI's API has no reasoning fields: the editor renames or drops
/// them.
const MESSAGE: Shape = Shape::Fields(&[
    ("content", Tag::Content, ANY),
    ("role", Tag::Role, ANY),
    ("reasoning_content", Tag::Reasoning, ANY),
    ("reasoning", Tag::Reasoning, ANY),
    ("tool_calls", Tag::ToolCalls, TOOL_CALLS),
    ("refusal", Tag::Extra, ANY),
    ("annotations", Tag::Extra, ANNOTATIONS),
    ("audio", Tag::Extra, AUDIO),
    ("function_call", Tag::Extra, FUNCTION),
]);

/// The fields of a chat reply: of a `chat.completion`, whose choices have a `message`, and of a
/// `chat.completion.chunk`, whose choices have a `delta`.
pub static REPLY: Shape = Shape::Fields(&[
    ("id", Tag::Id, ANY),
    ("object", Tag::Plain, ANY),
    ("created", Tag::Created, ANY),
    ("model", Tag::Model, ANY),
    (
        "choices",
        Tag::Plain,
        Shape::Each(&Shape::Fields(&[
            ("index", Tag::Index, ANY),
            ("delta", Tag::Plain, MESSAGE),
            ("message", Tag::Plain, MESSAGE),
            ("logprobs", Tag::Extra, LOGPROBS),
            ("finish_reason", Tag::FinishReason, ANY),
        ])),
    ),
    ("usage", Tag::Usage, USAGE),
    ("service_tier", Tag::Plain, ANY),
    ("system_fingerprint", Tag::Plain, ANY),
]);

/// A whole completion, read but not interpreted.
#[derive(Clone, Debug, Default)]
pub struct Completion {
    /// `id`, empty when missing.
    pub id: String,
    /// `created`, seconds since 1970; `None` when missing.
    pub created: Option<u64>,
    /// `model`, empty when missing.
    pub model: String,
    /// Token counts.
    pub usage: Option<Usage>,
    /// `system_fingerprint` and `service_tier`, as JSON texts, where they are not null.
    pub tags: Vec<(&'static str, String)>,
    /// The choices, in the order of the reply.
    pub choices: Vec<Choice>,
    /// Fields of the reply itself that the user asked to keep, as key and JSON text.
    pub kept: Vec<(String, String)>,
}

/// One choice of a completion.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// `index`; its place in the array when missing.
    pub index: u64,
    /// `finish_reason` as the server gave it.
    pub finish_reason: Option<String>,
    /// `message.content`; text parts are joined.
    pub content: String,
    /// `message.reasoning` or `message.reasoning_content`.
    pub reasoning: String,
    /// `message.refusal`.
    pub refusal: Option<String>,
    /// `message.annotations` and `message.audio`, as JSON texts, where they are not null.
    pub extras: Vec<(&'static str, String)>,
    /// `message.tool_calls`, and the old `message.function_call`.
    pub tool_calls: Vec<NativeToolCall>,
    /// `logprobs` as JSON text, not yet pruned.
    pub logprobs: Option<String>,
    /// Fields of the choice and of its message that the user asked to keep, as key and JSON text.
    pub kept: Vec<(String, String)>,
    /// The same for fields of the message.
    pub message_kept: Vec<(String, String)>,
}

/// A call as a server's own parser wrote it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NativeToolCall {
    /// `id`, if there is one.
    pub id: Option<String>,
    /// `function.name`.
    pub name: String,
    /// `function.arguments`: the decoded string, or the JSON text of any other value.
    pub arguments: String,
}

impl Completion {
    /// Reads a `chat.completion`. `keep` names fields to keep although OpenAI's API has no such field.
    ///
    /// # Errors
    /// When the text is not a JSON object, or `choices` is not an array of objects.
    pub fn parse(text: &str, keep: &[String]) -> Result<Self, Malformed> {
        let mut choices = Vec::new();
        let object = Object::parse_with(text, |key, scanner| {
            if !is_key(key, "choices") {
                return scanner.read_value();
            }
            choices.clear();
            scanner.read_array_span(|scanner| {
                choices.push(Choice::read_from(scanner, choices.len(), keep)?);
                Ok(())
            })
        })?;
        if choices.is_empty() {
            return Err(Malformed { at: 0, expected: "an array `choices` that holds one" });
        }
        Ok(Self {
            id: object.string("id").unwrap_or_default(),
            created: object.number("created"),
            model: object.string("model").unwrap_or_default(),
            usage: object.get("usage").and_then(parse_usage),
            tags: present_fields(&object, &["system_fingerprint", "service_tier"]),
            choices,
            kept: kept_fields(&object, keep),
        })
    }
}

impl Choice {
    /// Reads the choice at the scanner's position with its contents, in one pass.
    fn read_from(scanner: &mut Scanner<'_>, place: usize, keep: &[String]) -> Result<Self, Malformed> {
        let (mut message, mut delta) = (None, None);
        let object = Object::read_from(scanner, |key, scanner| {
            let found = match key {
                _ if is_key(key, "message") => &mut message,
                _ if is_key(key, "delta") => &mut delta,
                _ => return scanner.read_value(),
            };
            *found = None;
            match scanner.peek() {
                b'n' => scanner.read_value(),
                _ => scanner
                    .read_span(|scanner| ChoiceMessage::read_from(scanner).map(|read| *found = Some(read))),
            }
        })?;
        let ChoiceMessage { object: message, tool_calls } = message.or(delta).unwrap_or_default();
        let reasoning =
            ["reasoning", "reasoning_content"].iter().find_map(|key| message.get(key).and_then(content_text));
        Ok(Self {
            index: object.number("index").unwrap_or(place as u64),
            finish_reason: object.string("finish_reason"),
            content: message.get("content").and_then(content_text).unwrap_or_default(),
            reasoning: reasoning.unwrap_or_default(),
            refusal: message.string("refusal"),
            extras: present_fields(&message, &["annotations", "audio"]),
            tool_calls,
            logprobs: object.get("logprobs").map(str::to_owned),
            kept: kept_fields(&object, keep),
            message_kept: kept_fields(&message, keep),
        })
    }
}

/// A choice's message, with the calls in it.
#[derive(Default)]
struct ChoiceMessage<'a> {
    object: Object<'a>,
    tool_calls: Vec<NativeToolCall>,
}

impl<'a> ChoiceMessage<'a> {
    fn read_from(scanner: &mut Scanner<'a>) -> Result<Self, Malformed> {
        let mut tool_calls = Vec::new();
        let object = Object::read_from(scanner, |key, scanner| {
            if !is_key(key, "tool_calls") {
                return scanner.read_value();
            }
            tool_calls.clear();
            scanner.read_array_span(|scanner| {
                tool_calls.extend(NativeToolCall::read_from(scanner)?);
                Ok(())
            })
        })?;
        let old = object.get("function_call").and_then(|text| Object::parse(text).ok());
        tool_calls.extend(old.map(|function| NativeToolCall::from_function(&function, None)));
        Ok(Self { object, tool_calls })
    }
}

impl NativeToolCall {
    /// Reads the entry of `tool_calls` at the scanner's position; `None` unless it calls a function.
    fn read_from(scanner: &mut Scanner<'_>) -> Result<Option<Self>, Malformed> {
        if scanner.peek() != b'{' {
            return scanner.read_value().map(|_| None);
        }
        let mut function = None;
        let call = Object::read_from(scanner, |key, scanner| {
            if !is_key(key, "function") {
                return scanner.read_value();
            }
            function = None;
            if scanner.peek() != b'{' {
                return scanner.read_value();
            }
            scanner.read_span(|scanner| {
                function = Some(Object::read_from(scanner, |_, scanner| scanner.read_value())?);
                Ok(())
            })
        })?;
        let id = call.string("id").filter(|id| !id.is_empty());
        Ok(function.map(|function| Self::from_function(&function, id)))
    }

    fn from_function(function: &Object<'_>, id: Option<String>) -> Self {
        let arguments = function
            .get("arguments")
            .map_or_else(String::new, |raw| decode_string(raw).unwrap_or(raw.to_owned()));
        Self { id, name: function.string("name").unwrap_or_default(), arguments }
    }
}

/// Returns a content's text: a string, or the joined texts of its parts (`[{"type":"text","text":…}]`).
pub fn content_text(raw: &str) -> Option<String> {
    if let Some(parts) = array_elements(raw) {
        let texts = parts.iter().filter_map(|part| Object::parse(part).ok()?.string("text"));
        return Some(texts.collect());
    }
    decode_string(raw)
}

fn present_fields(object: &Object<'_>, keys: &[&'static str]) -> Vec<(&'static str, String)> {
    keys.iter().filter_map(|key| Some((*key, object.get(key)?.to_owned()))).collect()
}

fn kept_fields(object: &Object<'_>, keep: &[String]) -> Vec<(String, String)> {
    if keep.is_empty() {
        return Vec::new();
    }
    let wanted = object.iter().filter(|(key, _)| keep.iter().any(|name| name == key));
    wanted.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Reads a `usage` object; `None` when it holds no counts.
pub fn parse_usage(text: &str) -> Option<Usage> {
    let object = Object::parse(text).ok()?;
    let detail = |group: &str, key: &str| Object::parse(object.get(group)?).ok()?.number(key);
    let prompt = object.number("prompt_tokens");
    let completion = object.number("completion_tokens");
    if prompt.is_none() && completion.is_none() {
        return None;
    }
    Some(Usage {
        prompt: prompt.unwrap_or_default(),
        completion: completion.unwrap_or_default(),
        cached: detail("prompt_tokens_details", "cached_tokens"),
        cache_written: detail("prompt_tokens_details", "created_cache_tokens"),
        reasoning: detail("completion_tokens_details", "reasoning_tokens"),
    })
}

/// Reduces the JSON text of `logprobs` to the fields that OpenAI documents.
pub fn pruned_logprobs(text: &str) -> Cow<'_, str> {
    struct Plain;
    impl super::prune::Editor for Plain {
        fn edit_field(&mut self, _: Tag, _: &str) -> super::prune::Edit {
            super::prune::Edit::Keep
        }
        fn keeps_unknown(&self, _: &str) -> bool {
            false
        }
    }
    let mut out = String::new();
    match super::prune::prune_json(text, &LOGPROBS, &mut Plain, &mut out) {
        Ok(true) => Cow::Owned(out),
        _ => Cow::Borrowed(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_of_an_odd_server() {
        let text = r#"{"id":"x","choices":[{"message":{"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}],
            "reasoning":null,"reasoning_content":"why","tool_calls":[{"id":"","function":{"name":"f","arguments":{"a":1}}},
            {"function":{"name":"g"}},{"nonsense":1}],"stop":7},"stop_reason":5}],"usage":{"prompt_tokens":3,"completion_tokens":4,
            "completion_tokens_details":{"reasoning_tokens":2},"prompt_tokens_details":null}}"#;
        let reply = Completion::parse(text, &["stop_reason".into(), "stop".into()]).unwrap();
        let choice = &reply.choices[0];
        assert_eq!((choice.content.as_str(), choice.reasoning.as_str()), ("ab", "why"));
        let call = |name: &str, arguments: &str| NativeToolCall {
            id: None,
            name: name.into(),
            arguments: arguments.into(),
        };
        assert_eq!(choice.tool_calls, [call("f", r#"{"a":1}"#), call("g", "")]);
        assert_eq!(choice.kept, [("stop_reason".into(), "5".into())]);
        assert_eq!(choice.message_kept, [("stop".into(), "7".into())]);
        assert_eq!(
            reply.usage,
            Some(Usage { prompt: 3, completion: 4, reasoning: Some(2), ..Usage::default() })
        );
    }

    #[test]
    fn logprobs_lose_what_openai_has_not() {
        let text = r#"{"content":[{"token":"a","logprob":-1,"bytes":[1],"token_id":5,"top_logprobs":[]}],"text_offset":[0]}"#;
        assert_eq!(
            pruned_logprobs(text),
            r#"{"content":[{"token":"a","logprob":-1,"bytes":[1],"top_logprobs":[]}]}"#
        );
    }
}
