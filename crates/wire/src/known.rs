//! Remembers parts of requests that come again: a client sends the whole conversation and all tools with each
//! turn. The findings about a part are kept with its text; where the next request has the same text, they are
//! used without another scan.
//!
//! This module stores nothing: `relay` keeps the known parts as long as it likes. Called by `request`.

use std::sync::{Arc, OnceLock};

use super::object::{FieldPlaces, Object, array_elements, decode_string};
use crate::turn::ToolCall;

/// Longer messages are not kept, in bytes.
const LONGEST: usize = 1 << 20;

/// The parts of a request that may be known before it is read.
#[derive(Clone, Copy, Debug, Default)]
pub struct KnownParts<'k> {
    /// The messages that it may begin with.
    pub messages: &'k [Arc<KnownMessage>],
    /// The tools that it may have.
    pub tools: Option<&'k KnownTools>,
}

/// A message that was read before.
#[derive(Debug)]
pub struct KnownMessage {
    pub(super) text: Box<str>,
    pub(super) fields: FieldPlaces,
    pub(super) cache: Arc<MessageCache>,
}

/// A `tools` array that was read before.
#[derive(Debug)]
pub struct KnownTools {
    pub(super) text: Box<str>,
    /// Its functions: where name and parameters stand, and whether there is a description.
    pub(super) functions: Vec<(OptionalRange, OptionalRange, bool)>,
}

/// Beginning and end in a text, in bytes.
pub(super) type OptionalRange = Option<(usize, usize)>;

impl KnownMessage {
    /// Keeps a message; `None` when it is too long.
    pub(super) fn new(text: &str, object: &Object<'_>, facts: &Arc<MessageCache>) -> Option<Arc<Self>> {
        let fields = object.field_places(text);
        let known = || Self { text: text.into(), fields, cache: Arc::clone(facts) };
        (text.len() <= LONGEST).then(|| Arc::new(known()))
    }

    /// Returns its text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the bytes of its text.
    pub fn text_len(&self) -> usize {
        self.text.len()
    }
}

impl KnownTools {
    /// Returns its text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the bytes of its text.
    pub fn text_len(&self) -> usize {
        self.text.len()
    }
}

/// Answers about one message that several readers need, each computed once.
#[derive(Debug, Default)]
pub(super) struct MessageCache {
    calls: OnceLock<Vec<ToolCall>>,
    ids: OnceLock<Vec<String>>,
    has_sound_arguments: OnceLock<bool>,
}

impl MessageCache {
    /// Returns those of the message's `tool_calls` that have an id and a name.
    pub(super) fn tool_calls(&self, tool_calls: Option<&str>) -> &[ToolCall] {
        self.calls.get_or_init(|| {
            let calls = tool_calls.and_then(array_elements).unwrap_or_default();
            calls.into_iter().filter_map(read_call).collect()
        })
    }

    /// Returns the ids of all its calls.
    pub(super) fn call_ids(&self, tool_calls: Option<&str>) -> &[String] {
        self.ids.get_or_init(|| {
            let calls = tool_calls.and_then(array_elements).unwrap_or_default();
            calls.into_iter().filter_map(|call| Object::parse(call).ok()?.string("id")).collect()
        })
    }

    pub(super) fn has_sound_arguments(&self, is_sound: impl FnOnce() -> bool) -> bool {
        *self.has_sound_arguments.get_or_init(is_sound)
    }
}

fn read_call(text: &str) -> Option<ToolCall> {
    let call = Object::parse(text).ok()?;
    let function = Object::parse(call.get("function")?).ok()?;
    let raw = function.get("arguments").unwrap_or_default();
    let arguments = decode_string(raw).unwrap_or_else(|| raw.to_owned());
    let (id, name) = (Some(call.string("id")?), function.string("name")?);
    Some(ToolCall { id, name, arguments, problems: vec![] })
}

#[cfg(test)]
mod tests {
    use crate::{ChatRequest, KnownParts};

    const TOOLS: &str = r#"[{"type":"function","function":{"name":"read","description":"d","parameters":{"type":"object"}}},{"type":"x"}]"#;

    fn body(messages: &[&str], tools: &str) -> String {
        format!(r#"{{"model":"m","messages":[{}], "tools": {tools} ,"stream":true}}"#, messages.join(", "))
    }

    /// Reads `second` knowing `first`, and as if nothing were known: both must find the same. Returns how
    /// many messages were known.
    fn check(first: &str, second: &str) -> usize {
        let before = ChatRequest::parse(first.as_bytes()).unwrap();
        let (messages, tools) = (before.known_messages(&[]), before.known_tools());
        let known = KnownParts { messages: &messages, tools: tools.as_ref() };
        let read = ChatRequest::parse_known(second.as_bytes(), known);
        let plain = ChatRequest::parse(second.as_bytes());
        match (read, plain) {
            (Ok(read), Ok(plain)) => {
                assert_eq!(format!("{:?}", read.object), format!("{:?}", plain.object));
                let parts = |request: &ChatRequest<'_>| {
                    let fields = |message: &crate::Message<'_>| {
                        let object: Vec<_> = message
                            .object
                            .iter()
                            .map(|(key, value)| (key.to_owned(), value.to_owned()))
                            .collect();
                        (message.to_json().into_owned(), object, message.tool_calls().to_vec())
                    };
                    (
                        request.messages.iter().map(fields).collect::<Vec<_>>(),
                        format!("{:?}", request.functions),
                    )
                };
                assert_eq!(parts(&read), parts(&plain));
                let reused = read.known_messages(&messages);
                reused.iter().zip(&messages).filter(|(a, b)| std::sync::Arc::ptr_eq(a, b)).count()
            }
            (read, plain) => {
                assert_eq!(read.err(), plain.err(), "{second}");
                0
            }
        }
    }

    #[test]
    fn what_is_known_is_found_again() {
        let (system, user) =
            (r#"{"role":"system", "content":"s"}"#, r#"{"role":"user","content":[{"type":"text"}]}"#);
        let call =
            r#"{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"f","arguments":"{}"}}]}"#;
        let first = body(&[system, user, call], TOOLS);
        assert_eq!(check(&first, &first), 3);
        assert_eq!(check(&first, &body(&[system, user, call, user], TOOLS)), 3);
        assert_eq!(check(&first, &body(&[system, user], TOOLS)), 2);
        assert_eq!(check(&first, &body(&[system, system, call], "[]")), 1);
        assert_eq!(check(&first, &body(&[], TOOLS)), 0);
        assert_eq!(check(&first, &first.replace("\"s\"", "\"t\"")), 0);
    }

    #[test]
    fn what_follows_a_known_part_is_still_judged() {
        let message = r#"{"role":"user","content":"x"}"#;
        let first = body(&[message], TOOLS);
        for broken in [
            first.replace("}],", "}},"),
            first.replace(r#""x"}]"#, r#""x"}{]"#),
            first.replace(r#"{"type":"x"}]"#, r#"{"type":"x"}]]"#),
            first.replace("true}", "true"),
            first.replace("[{\"role\"", "{\"role\""),
        ] {
            assert_eq!(check(&first, &broken), 0, "{broken}");
        }
    }
}
