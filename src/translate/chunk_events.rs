//! The chunks of a clean chat stream, read back as the events of a turn.
//!
//! The other wires tell a turn that the relay gives as chunks of its own form: each call whole in one chunk, `finish_reason` one
//! that OpenAI defines, usage last. Only the first choice counts: those wires know no other. Called by `server`.

use crate::turn::{FinishReason, ToolCall, TurnEvent, Usage};
use crate::wire::{Object, array, decode_string, text_of, usage_from};

/// vLLM's field of a choice: the stop sequence that the model wrote, or the number of a token.
pub const STOP_REASON: &str = "stop_reason";

/// Reads one stream.
#[derive(Debug, Default)]
pub struct ChunkEvents {
    reason: Option<FinishReason>,
    stop_sequence: Option<String>,
    refused: bool,
    usage: Option<Usage>,
}

impl ChunkEvents {
    /// The events of one chunk. A payload that is no chunk has none.
    pub fn read(&mut self, payload: &str) -> Vec<TurnEvent> {
        match piece_of_content(payload) {
            Some(text) if text.is_empty() => vec![],
            Some(text) => vec![TurnEvent::Content(text)],
            None => self.read_any(payload),
        }
    }

    fn read_any(&mut self, payload: &str) -> Vec<TurnEvent> {
        let Ok(chunk) = Object::parse(payload) else { return vec![] };
        self.usage = chunk.get("usage").and_then(usage_from).or(self.usage);
        let choices = chunk.get("choices").and_then(array).unwrap_or_default();
        let first = choices.into_iter().filter_map(|choice| Object::parse(choice).ok());
        let first = first.filter(|choice| choice.number("index").unwrap_or_default() == 0);
        first.flat_map(|choice| self.choice(&choice)).collect()
    }

    fn choice(&mut self, choice: &Object<'_>) -> Vec<TurnEvent> {
        let reason = choice.string("finish_reason");
        self.reason = reason.as_deref().map(reason_of).or(self.reason);
        self.stop_sequence = choice.string(STOP_REASON).or(self.stop_sequence.take());
        let Some(delta) = choice.get("delta").and_then(|delta| Object::parse(delta).ok()) else {
            return vec![];
        };
        let text = |key: &str| delta.get(key).and_then(text_of).filter(|text| !text.is_empty());
        let reasoning = text("reasoning_content").or_else(|| text("reasoning"));
        let refusal = text("refusal");
        self.refused |= refusal.is_some();
        let content = text("content").or(refusal);
        let calls = delta.get("tool_calls").and_then(array).unwrap_or_default();
        let texts = reasoning.map(TurnEvent::Reasoning).into_iter();
        texts
            .chain(content.map(TurnEvent::Content))
            .chain(calls.into_iter().filter_map(call_of).map(TurnEvent::ToolCall))
            .collect()
    }

    /// The stop sequence that the model wrote, where the server says so.
    pub fn stop_sequence(&self) -> Option<&str> {
        self.stop_sequence.as_deref()
    }

    /// True when the model has refused to answer.
    pub fn has_refused(&self) -> bool {
        self.refused
    }

    /// The end of the turn, when the stream has ended whole.
    pub fn finish(&self) -> TurnEvent {
        TurnEvent::Finish { reason: self.reason.unwrap_or(FinishReason::Stop), usage: self.usage }
    }
}

/// What stands before and after a piece of content in a chunk that says nothing else.
const BEFORE: &str = r#","choices":[{"index":0,"delta":{"content":"#;
const AFTER: [&str; 5] = [
    r#"},"finish_reason":null}]}"#,
    r#"},"logprobs":null,"finish_reason":null}]}"#,
    r#"},"finish_reason":null,"stop_reason":null}]}"#,
    r#"},"logprobs":null,"finish_reason":null,"stop_reason":null}]}"#,
    r#"},"logprobs":null,"finish_reason":null}],"usage":null}"#,
];

/// The content of such a chunk, as nearly all are: it is found without reading the rest. Within a string quotes are escaped, so
/// what looks like a name is one.
fn piece_of_content(payload: &str) -> Option<String> {
    let begin = memchr::memmem::find(payload.as_bytes(), BEFORE.as_bytes())? + BEFORE.len();
    let rest = &payload[begin..];
    let after = AFTER.iter().find(|after| rest.ends_with(**after))?;
    let text = &rest[..rest.len() - after.len()];
    is_one_string(text.as_bytes()).then(|| decode_string(text)).flatten()
}

/// True for one JSON string and nothing else.
fn is_one_string(json: &[u8]) -> bool {
    let Some(mut at) = json.first().filter(|first| **first == b'"').map(|_| 1) else { return false };
    while let Some(found) = json.get(at..).and_then(|rest| memchr::memchr2(b'"', b'\\', rest)) {
        at += found;
        if json[at] == b'"' {
            return at + 1 == json.len();
        }
        at += 2;
    }
    false
}

fn reason_of(name: &str) -> FinishReason {
    let calls = matches!(name, "tool_calls" | "function_call");
    FinishReason::resolve(Some(name), calls)
}

fn call_of(json: &str) -> Option<ToolCall> {
    let call = Object::parse(json).ok()?;
    let function = Object::parse(call.get("function")?).ok()?;
    Some(ToolCall {
        id: call.string("id"),
        name: function.string("name")?,
        arguments: function.string("arguments").unwrap_or_else(|| "{}".to_owned()),
        problems: vec![],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A chunk is read alike, whether it is taken for a plain one or not.
    #[test]
    fn a_plain_chunk_is_read_as_any_other() {
        let text = r#""a \"},\"finish_reason\":null}]} \u00e9\\ 🙂""#;
        let chunk = |delta: &str, end: &str| {
            format!(r#"{{"id":"c","model":"\"choices\"","choices":[{{"index":0,"delta":{delta}{end}"#)
        };
        let mut plain = 0;
        for content in [text, "\"\"", "\"\\\"", "null", "7", r#""a","tool_calls":"b""#, "[\"a\"]", "\"a"] {
            let delta = format!(r#"{{"content":{content}"#);
            for end in AFTER.iter().chain(&[
                r#"},"finish_reason":"stop"}]}"#,
                r#","reasoning":"r"},"finish_reason":null}]}"#,
                r#"},"finish_reason":null},{"index":1,"delta":{"content":"x"},"finish_reason":null}]}"#,
                r#"},"finish_reason":null}],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#,
            ]) {
                let payload = chunk(&delta, end);
                plain += usize::from(piece_of_content(&payload).is_some());
                let (mut quick, mut slow) = (ChunkEvents::default(), ChunkEvents::default());
                assert_eq!(quick.read(&payload), slow.read_any(&payload), "{payload}");
                assert_eq!(quick.finish(), slow.finish(), "{payload}");
            }
        }
        assert_eq!(plain, 2 * AFTER.len());
    }
}
