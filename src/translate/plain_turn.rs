//! The plain turn: chunks of an upstream that no engine need read, as the steps of the turn.
//!
//! For wires other than chat, whose own chunks go through as they are. Only the first choice counts: those wires know no other.
//! Pure. Called by `reply_reader`.

use super::fault::{Fault, Shows};
use crate::turn::{ChoiceEvent, FinishReason, KeptFields, ToolCall, TurnEnd, TurnEvent, Usage};
use crate::wire::{Malformed, Object, array, decode_string, encode_string, text_of, usage_from};

/// vLLM's field of a choice: the stop sequence that the model wrote, or the number of a token.
pub const STOP_REASON: &str = "stop_reason";

/// What the client is to see of a plain turn.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlainRules {
    /// Reasoning leaves.
    pub shows_reasoning: bool,
    /// What earlier attempts cost; the usage that leaves includes it.
    pub spent: Usage,
}

/// Follows one reply.
#[derive(Debug, Default)]
pub struct PlainTurn {
    rules: PlainRules,
    /// What stood before the content of the last plain chunk: it is valid.
    prefix: String,
    has_begun: bool,
    has_spoken: bool,
    /// The upstream's reason for the end, and whether it is the token limit.
    finished: Option<(FinishReason, bool)>,
    stop_sequence: Option<String>,
    usage: Option<Usage>,
}

impl PlainTurn {
    /// A reply from its beginning.
    pub fn new(rules: PlainRules) -> Self {
        Self { rules, ..Self::default() }
    }

    /// Takes one chunk; appends to `out` the steps that may leave.
    ///
    /// # Errors
    /// When the payload is not a JSON object.
    pub fn push(&mut self, payload: &str, out: &mut Vec<ChoiceEvent>) -> Result<(), Malformed> {
        match piece_of_content(payload) {
            Some((prefix, text)) if prefix == self.prefix => {
                self.say(TurnEvent::Content(text), out);
                Ok(())
            }
            piece => {
                self.push_any(payload, out)?;
                if let Some((prefix, _)) = piece {
                    prefix.clone_into(&mut self.prefix);
                }
                Ok(())
            }
        }
    }

    fn push_any(&mut self, payload: &str, out: &mut Vec<ChoiceEvent>) -> Result<(), Malformed> {
        let chunk = Object::parse(payload)?;
        self.usage = chunk.get("usage").and_then(usage_from).or(self.usage);
        for choice in chunk.get("choices").and_then(array).unwrap_or_default() {
            let choice = Object::parse(choice)?;
            if choice.number("index").unwrap_or_default() == 0 {
                self.choice(&choice, out);
            }
        }
        Ok(())
    }

    fn choice(&mut self, choice: &Object<'_>, out: &mut Vec<ChoiceEvent>) {
        if !std::mem::replace(&mut self.has_begun, true) {
            out.push(ChoiceEvent::new(0, TurnEvent::Begun));
        }
        if let Some(name) = choice.get("finish_reason").filter(|name| *name != "null") {
            let name = name.trim_matches('"');
            self.finished = Some((reason_of(name), name == "length"));
        }
        self.stop_sequence = choice.string(STOP_REASON).or(self.stop_sequence.take());
        let Some(delta) = choice.get("delta").and_then(|delta| Object::parse(delta).ok()) else { return };
        let text = |key: &str| delta.get(key).and_then(text_of).unwrap_or_default();
        let reasoning = Some(text("reasoning_content")).filter(|text| !text.is_empty());
        self.say(TurnEvent::Reasoning(reasoning.unwrap_or_else(|| text("reasoning"))), out);
        self.say(TurnEvent::Content(text("content")), out);
        self.say(TurnEvent::Refusal(text("refusal")), out);
        let calls = delta.get("tool_calls").and_then(array).unwrap_or_default();
        calls.into_iter().filter_map(call_of).for_each(|call| self.say(TurnEvent::ToolCall(call), out));
    }

    fn say(&mut self, event: TurnEvent, out: &mut Vec<ChoiceEvent>) {
        if event.text_len() == 0 {
            return;
        }
        self.has_spoken = true;
        if self.rules.shows_reasoning || !matches!(event, TurnEvent::Reasoning(_)) {
            out.push(ChoiceEvent::new(0, event));
        }
    }

    /// Token counts, once the upstream has sent them.
    pub fn usage(&self) -> Option<Usage> {
        self.usage
    }

    /// True once a chunk with the choice has come.
    pub fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// True once a chunk with content, reasoning or a call has come.
    pub fn has_spoken(&self) -> bool {
        self.has_spoken
    }

    /// True when the reply has its finish reason.
    pub fn is_finished(&self) -> bool {
        self.finished.is_some()
    }

    /// What is wrong with a reply that has ended. `is_full`: a reply with this fault has filled the model's window; else the limit that
    /// cut it is the client's business.
    pub fn settle(&self, is_full: impl Fn(&Fault) -> bool) -> Option<(Fault, Shows)> {
        match self.finished.filter(|_| !self.has_spoken)? {
            (_, false) => Some((Fault::Empty, Shows::Blank)),
            (_, true) => Some((Fault::CutReasoning, Shows::Answer)).filter(|(fault, _)| is_full(fault)),
        }
    }

    /// Ends the turn; `fills_window`: the reply has filled the model's window.
    pub fn close(&self, fills_window: bool, out: &mut Vec<ChoiceEvent>) {
        let reason = self.finished.map_or(FinishReason::Stop, |(reason, _)| reason);
        let stopped_by = self.stop_sequence.as_deref();
        let choice =
            stopped_by.map(|text| (STOP_REASON.to_owned(), encode_string(text))).into_iter().collect();
        let end = TurnEnd {
            reason,
            usage: self.usage.map(|usage| usage.plus(self.rules.spent)),
            fills_window: fills_window && reason == FinishReason::Length,
            kept: KeptFields { choice, ..KeptFields::default() },
        };
        out.push(ChoiceEvent::new(0, TurnEvent::Finish(end)));
    }
}

/// What stands before and after a piece of content in a chunk that says nothing else.
const BEFORE: &str = r#","choices":[{"index":0,"delta":{"content":"#;
const AFTER: [&str; 8] = [
    // From captures of vLLM. The longer one comes first: the other is its end.
    r#","reasoning_content":null},"logprobs":null,"finish_reason":null,"token_ids":null}]}"#,
    r#"},"logprobs":null,"finish_reason":null,"token_ids":null}]}"#,
    r#"},"logprobs":null,"finish_reason":null,"token_ids":null}],"usage":null}"#,
    r#"},"finish_reason":null}]}"#,
    r#"},"logprobs":null,"finish_reason":null}]}"#,
    r#"},"finish_reason":null,"stop_reason":null}]}"#,
    r#"},"logprobs":null,"finish_reason":null,"stop_reason":null}]}"#,
    r#"},"logprobs":null,"finish_reason":null}],"usage":null}"#,
];

/// The content of such a chunk, as nearly all are, and what stands before it: it is found without reading the rest. Within a string
/// quotes are escaped, so what looks like a name is one.
fn piece_of_content(payload: &str) -> Option<(&str, String)> {
    let begin = memchr::memmem::find(payload.as_bytes(), BEFORE.as_bytes())? + BEFORE.len();
    let (prefix, rest) = payload.split_at(begin);
    let after = AFTER.iter().find(|after| rest.ends_with(**after))?;
    let text = &rest[..rest.len() - after.len()];
    let text = is_one_string(text.as_bytes()).then(|| decode_string(text)).flatten()?;
    Some((prefix, text))
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
                let events = |quickly: bool| {
                    let (mut turn, mut out) = (PlainTurn::default(), Vec::new());
                    // Only what was read once is taken for plain.
                    let first = turn.push(&payload, &mut out);
                    let second = if quickly {
                        turn.push(&payload, &mut out)
                    } else {
                        turn.push_any(&payload, &mut out)
                    };
                    turn.close(false, &mut out);
                    (first, second, out)
                };
                assert_eq!(events(true), events(false), "{payload}");
            }
        }
        assert_eq!(plain, 2 * AFTER.len());
    }

    #[test]
    fn what_is_no_chunk_is_not_taken_for_a_plain_one() {
        let good = format!(r#"{{"id":"c"{BEFORE}"a"{}"#, AFTER[0]);
        let bad = good.replacen("\"id\"", "id", 1);
        let (mut turn, mut out) = (PlainTurn::default(), Vec::new());
        assert!(turn.push(&bad, &mut out).is_err());
        assert!(turn.push(&good, &mut out).is_ok());
        assert!(turn.push(&bad, &mut out).is_err(), "other bytes than before");
    }

    #[test]
    fn a_refusal_is_recognised_and_a_silent_end_is_a_fault() {
        let chunk = |delta: &str, finish: &str| {
            format!(
                r#"{{"choices":[{{"index":0,"delta":{delta},"finish_reason":{finish},"stop_reason":"END"}}]}}"#
            )
        };
        let settled = |chunks: &[String], is_full: bool| {
            let (mut turn, mut out) = (PlainTurn::default(), Vec::new());
            chunks.iter().for_each(|chunk| turn.push(chunk, &mut out).unwrap());
            (turn.settle(|_| is_full).map(|(fault, _)| fault), out.len())
        };
        let role = chunk(r#"{"role":"assistant"}"#, "null");
        assert_eq!(settled(&[role.clone(), chunk("{}", "\"stop\"")], true), (Some(Fault::Empty), 1));
        assert_eq!(settled(&[role.clone(), chunk("{}", "\"length\"")], true), (Some(Fault::CutReasoning), 1));
        assert_eq!(settled(&[role.clone(), chunk("{}", "\"length\"")], false), (None, 1));
        assert_eq!(settled(&[chunk(r#"{"reasoning":"r"}"#, "\"stop\"")], true), (None, 1));
        assert_eq!(settled(&[role, chunk(r#"{"refusal":"no"}"#, "\"stop\"")], true), (None, 2));
    }
}
