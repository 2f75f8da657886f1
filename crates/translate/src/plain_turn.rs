//! The plain turn: turns chunks that need no tool-call engine into the steps of a turn.
//!
//! For other APIs than chat completions, whose chunks go through unchanged. Only the first choice counts:
//! these APIs have no other. Pure. Called by `reply_reader`.

use super::fault::{Fault, Salvage};
use super::live::join_logprobs;
use wire::turn::{ChoiceEvent, FinishReason, KeptFields, ToolCall, TurnEnd, TurnEvent, Usage};
use wire::{
    Malformed, Object, array_elements, content_text, decode_string, encode_string, parse_usage,
    pruned_logprobs,
};

/// vLLM's field of a choice: the stop sequence that the model wrote, or the number of a token.
pub const STOP_REASON: &str = "stop_reason";

/// The client's rules for a plain turn.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlainRules {
    /// True when reasoning leaves.
    pub shows_reasoning: bool,
    /// The tokens of earlier attempts, which the usage that leaves includes.
    pub spent: Usage,
}

/// Follows one reply.
#[derive(Debug, Default)]
pub struct PlainTurn {
    rules: PlainRules,
    /// The valid beginning of the last plain chunk, before its content.
    prefix: String,
    has_begun: bool,
    has_spoken: bool,
    has_reasoned: bool,
    /// The upstream's finish reason, and whether it is the token limit.
    finished: Option<(FinishReason, bool)>,
    stop_sequence: Option<String>,
    /// The log probabilities of tokens that do not form whole characters yet.
    logprobs: Vec<String>,
    usage: Option<Usage>,
    /// Native calls, whose arguments come in pieces, each with the server's index.
    calls: Vec<(Option<u64>, ToolCall)>,
}

impl PlainTurn {
    /// Begins a reply.
    pub fn new(rules: PlainRules) -> Self {
        Self { rules, ..Self::default() }
    }

    /// Takes one chunk; appends to `out` the steps that may leave.
    ///
    /// # Errors
    /// When the payload is not a JSON object.
    pub fn push(&mut self, payload: &str, out: &mut Vec<ChoiceEvent>) -> Result<(), Malformed> {
        match find_content(payload) {
            Some((prefix, text)) if prefix == self.prefix => {
                self.emit_step(TurnEvent::Content(text), out);
                Ok(())
            }
            piece => {
                self.parse_chunk(payload, out)?;
                if let Some((prefix, _)) = piece {
                    prefix.clone_into(&mut self.prefix);
                }
                Ok(())
            }
        }
    }

    fn parse_chunk(&mut self, payload: &str, out: &mut Vec<ChoiceEvent>) -> Result<(), Malformed> {
        let chunk = Object::parse(payload)?;
        self.usage = chunk.get("usage").and_then(parse_usage).or(self.usage);
        for choice in chunk.get("choices").and_then(array_elements).unwrap_or_default() {
            let choice = Object::parse(choice)?;
            if choice.number("index").unwrap_or_default() == 0 {
                self.read_choice(&choice, out);
            }
        }
        Ok(())
    }

    fn read_choice(&mut self, choice: &Object<'_>, out: &mut Vec<ChoiceEvent>) {
        if !std::mem::replace(&mut self.has_begun, true) {
            out.push(ChoiceEvent::new(0, TurnEvent::Begun));
        }
        if let Some(name) = choice.get("finish_reason").filter(|name| *name != "null") {
            let name = name.trim_matches('"');
            self.finished = Some((finish_reason_of(name), name == "length"));
        }
        self.stop_sequence = choice.string(STOP_REASON).or(self.stop_sequence.take());
        let Some(delta) = choice.get("delta").and_then(|delta| Object::parse(delta).ok()) else { return };
        let text = |key: &str| delta.get(key).and_then(content_text).unwrap_or_default();
        let reasoning = Some(text("reasoning_content")).filter(|text| !text.is_empty());
        let reasoning = reasoning.unwrap_or_else(|| text("reasoning"));
        let reasons_nothing = reasoning.is_empty();
        self.has_reasoned |= !reasoning.trim().is_empty();
        self.emit_step(TurnEvent::Reasoning(reasoning), out);
        let content = text("content");
        let is_content = reasons_nothing || !content.is_empty();
        if let Some(logprobs) = choice.get("logprobs").filter(|_| is_content) {
            self.logprobs.push(pruned_logprobs(logprobs).into_owned());
        }
        let said = out.len();
        self.emit_step(TurnEvent::Content(content), out);
        if let Some(content) = out.get_mut(said) {
            content.logprobs = join_logprobs(std::mem::take(&mut self.logprobs));
        }
        self.emit_step(TurnEvent::Refusal(text("refusal")), out);
        let calls = delta.get("tool_calls").and_then(array_elements).unwrap_or_default();
        calls.into_iter().for_each(|piece| self.add_call_piece(piece));
    }

    /// Adds a piece of a call. Without an index it belongs to the last call, unless it has a name.
    fn add_call_piece(&mut self, json: &str) {
        let Ok(piece) = Object::parse(json) else { return };
        let function = piece.get("function").and_then(|json| Object::parse(json).ok()).unwrap_or_default();
        let name = function.string("name").filter(|name| !name.is_empty());
        let index = piece.number("index");
        let known = match index {
            Some(_) => self.calls.iter().position(|(at, _)| *at == index),
            None if name.is_some() => None,
            None => self.calls.len().checked_sub(1),
        };
        let place = known.unwrap_or_else(|| {
            self.calls.push((index, ToolCall::default()));
            self.calls.len() - 1
        });
        self.has_spoken = true;
        let (_, call) = &mut self.calls[place];
        call.id = call.id.take().or_else(|| piece.string("id").filter(|id| !id.is_empty()));
        if call.name.is_empty() {
            call.name = name.unwrap_or_default();
        }
        if let Some(arguments) = function.get("arguments") {
            call.arguments.push_str(&decode_string(arguments).unwrap_or_else(|| arguments.to_owned()));
        }
    }

    fn emit_step(&mut self, event: TurnEvent, out: &mut Vec<ChoiceEvent>) {
        if event.text_len() == 0 {
            return;
        }
        self.has_spoken = true;
        if self.rules.shows_reasoning || !matches!(event, TurnEvent::Reasoning(_)) {
            out.push(ChoiceEvent::new(0, event));
        }
    }

    /// Returns the token counts, once the upstream has sent them.
    pub fn usage(&self) -> Option<Usage> {
        self.usage
    }

    /// Returns true once a chunk with the choice has come.
    pub fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Returns true once a chunk with content, reasoning or a call has come.
    pub fn has_spoken(&self) -> bool {
        self.has_spoken
    }

    /// Returns true once a chunk with reasoning has come.
    pub fn has_reasoned(&self) -> bool {
        self.has_reasoned
    }

    /// Returns true when the reply has its finish reason.
    pub fn is_finished(&self) -> bool {
        self.finished.is_some()
    }

    /// Finds the fault of a reply that has ended. `is_full`: whether a reply with this fault has filled the
    /// model's window; otherwise the client's own limit cut it.
    pub fn settle(&self, is_full: impl Fn(&Fault) -> bool) -> Option<(Fault, Salvage)> {
        match self.finished.filter(|_| !self.has_spoken)? {
            (_, false) => Some((Fault::Empty, Salvage::Blank)),
            (_, true) => Some((Fault::CutReasoning, Salvage::Answer)).filter(|(fault, _)| is_full(fault)),
        }
    }

    /// Ends the turn; `fills_window`: the reply has filled the model's window.
    pub fn close(&self, fills_window: bool, out: &mut Vec<ChoiceEvent>) {
        let mut reason = self.finished.map_or(FinishReason::Stop, |(reason, _)| reason);
        for event in self.calls.iter().filter_map(|(_, call)| whole_call(call)) {
            if matches!(event, TurnEvent::ToolCall(_)) {
                reason = FinishReason::ToolCalls;
            } else if reason == FinishReason::ToolCalls {
                reason = FinishReason::Stop;
            }
            out.push(ChoiceEvent::new(0, event));
        }
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

/// The JSON before and after the content of a chunk that has nothing else.
const BEFORE: &str = r#","choices":[{"index":0,"delta":{"content":"#;
const AFTER: [&str; 8] = [
    // From captures of vLLM. A longer text comes before its own ending.
    r#","reasoning_content":null},"logprobs":null,"finish_reason":null,"token_ids":null}]}"#,
    r#"},"logprobs":null,"finish_reason":null,"token_ids":null}]}"#,
    r#"},"logprobs":null,"finish_reason":null,"token_ids":null}],"usage":null}"#,
    r#"},"finish_reason":null}]}"#,
    r#"},"logprobs":null,"finish_reason":null}]}"#,
    r#"},"finish_reason":null,"stop_reason":null}]}"#,
    r#"},"logprobs":null,"finish_reason":null,"stop_reason":null}]}"#,
    r#"},"logprobs":null,"finish_reason":null}],"usage":null}"#,
];

/// Finds the content of such a chunk, and the text before it, without parsing. Nearly all chunks are of this
/// form. Quotes inside a string are escaped, so the match cannot be inside one.
fn find_content(payload: &str) -> Option<(&str, String)> {
    let begin = memchr::memmem::find(payload.as_bytes(), BEFORE.as_bytes())? + BEFORE.len();
    let (prefix, rest) = payload.split_at(begin);
    let after = AFTER.iter().find(|after| rest.ends_with(**after))?;
    let text = &rest[..rest.len() - after.len()];
    let text = is_one_string(text.as_bytes()).then(|| decode_string(text)).flatten()?;
    Some((prefix, text))
}

/// Returns true for a single JSON string.
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

fn finish_reason_of(name: &str) -> FinishReason {
    let calls = matches!(name, "tool_calls" | "function_call");
    FinishReason::from_upstream(Some(name), calls)
}

/// Completes a call whose pieces have all come. If its arguments are not a JSON object, it becomes text.
fn whole_call(call: &ToolCall) -> Option<TurnEvent> {
    let mut call = call.clone();
    if call.arguments.trim().is_empty() {
        "{}".clone_into(&mut call.arguments);
    }
    let is_call = !call.name.is_empty() && Object::parse(&call.arguments).is_ok();
    let text = || Some(format!("{}{}", call.name, call.arguments)).filter(|text| text != "{}");
    if is_call { Some(TurnEvent::ToolCall(call)) } else { text().map(TurnEvent::Content) }
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
                plain += usize::from(find_content(&payload).is_some());
                let events = |quickly: bool| {
                    let (mut turn, mut out) = (PlainTurn::default(), Vec::new());
                    // Only what was read once is taken for plain.
                    let first = turn.push(&payload, &mut out);
                    let second = if quickly {
                        turn.push(&payload, &mut out)
                    } else {
                        turn.parse_chunk(&payload, &mut out)
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
    fn other_json_is_not_a_plain_chunk() {
        let good = format!(r#"{{"id":"c"{BEFORE}"a"{}"#, AFTER[0]);
        let bad = good.replacen("\"id\"", "id", 1);
        let (mut turn, mut out) = (PlainTurn::default(), Vec::new());
        assert!(turn.push(&bad, &mut out).is_err());
        assert!(turn.push(&good, &mut out).is_ok());
        assert!(turn.push(&bad, &mut out).is_err(), "other bytes than before");
    }

    #[test]
    fn native_calls_in_pieces_leave_whole() {
        let events = |deltas: &[&str], finish: &str| {
            let (mut turn, mut out) = (PlainTurn::default(), Vec::new());
            for delta in deltas {
                let chunk = format!(
                    r#"{{"choices":[{{"index":0,"delta":{{"tool_calls":[{delta}]}},"finish_reason":null}}]}}"#
                );
                turn.push(&chunk, &mut out).unwrap();
            }
            turn.push(
                &format!(r#"{{"choices":[{{"index":0,"delta":{{}},"finish_reason":"{finish}"}}]}}"#),
                &mut out,
            )
            .unwrap();
            assert_eq!((turn.settle(|_| true), out.len()), (None, 1));
            turn.close(false, &mut out);
            let seen = out.into_iter().skip(1).map(|step| match step.event {
                TurnEvent::ToolCall(call) => format!("{:?} {} {}", call.id, call.name, call.arguments),
                TurnEvent::Finish(end) => format!("{:?}", end.reason),
                event => format!("{event:?}"),
            });
            seen.collect::<Vec<_>>()
        };
        let a = r#"{"index":0,"id":"1","function":{"name":"f","arguments":""}}"#;
        let rest = [
            r#"{"index":0,"function":{"arguments":"{\"a\":"}}"#,
            r#"{"index":1,"id":"2","function":{"name":"g"}}"#,
            r#"{"index":0,"function":{"arguments":"1}"}}"#,
        ];
        let both = [&[a], &rest[..]].concat();
        assert_eq!(events(&both, "stop"), ["Some(\"1\") f {\"a\":1}", "Some(\"2\") g {}", "ToolCalls"]);
        assert_eq!(events(&[a, rest[0]], "tool_calls"), ["Content(\"f{\\\"a\\\":\")", "Stop"]);
        let bare = [r#"{"function":{"name":"f","arguments":"{"}}"#, r#"{"function":{"arguments":"}"}}"#];
        assert_eq!(events(&bare, "tool_calls"), ["None f {}", "ToolCalls"]);
    }

    #[test]
    fn refusals_are_recognised_and_silence_is_a_fault() {
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
