//! Drops copies of native arguments from the reasoning: vLLM 0.10 leaves them there when it extracts a call.
//!
//! Passes all text through until a native call has come. Used by the engine for the reasoning field.

use serde_json::Value;

use super::Field;
use super::json_span::{JsonSpan, Span, Style};
use super::ledger::Ledger;
use super::marks::{find_earliest, partial_suffix};
use crate::event::Dropped;

/// Longer objects are passed on.
const MAX_HELD: usize = 1 << 20;

/// Marks that begin calls and that reasoning never has by chance: the text after one may be a call at the end
/// of the reply.
const CALL_MARKS: &[&str] = &[
    "<|open|>tools<|sep|>",
    "<|open|>call tool=",
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<｜tool▁calls▁begin｜>",
];

/// The end of the reasoning, as long as it may be a call that a server left there.
#[derive(Debug, Default)]
pub(crate) struct ReasoningTail {
    text: String,
    begins_call: bool,
}

impl ReasoningTail {
    /// Takes the next piece, and returns the text that is certainly reasoning.
    pub(crate) fn push(&mut self, delta: &str) -> String {
        self.text.push_str(delta);
        if self.begins_call {
            return if self.text.len() > MAX_HELD { self.take_held() } else { String::new() };
        }
        let found = find_earliest(&self.text, CALL_MARKS).map(|(at, _)| at);
        self.begins_call = found.is_some();
        let end = found.unwrap_or_else(|| self.text.len() - partial_suffix(&self.text, CALL_MARKS));
        self.text.drain(..end).collect()
    }

    /// Takes the text that was held back.
    pub(crate) fn take_held(&mut self) -> String {
        self.begins_call = false;
        std::mem::take(&mut self.text)
    }
}

/// Marks that may follow the last call.
const END_MARKS: [&str; 9] = [
    "<|close|>call<|sep|>",
    "<|close|>tools<|sep|>",
    "<|close|>think<|sep|>",
    "<|close|>message<|sep|>",
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
    "<|im_end|>",
];

/// Returns true if the text after a call has nothing but marks.
pub(crate) fn is_call_end(text: &str) -> bool {
    let mut rest = text.trim();
    while let Some(next) = END_MARKS.iter().find_map(|mark| rest.strip_prefix(mark)) {
        rest = next.trim_start();
    }
    rest.is_empty()
}

/// Removes a mark that opens a group of calls from the end of a text.
pub(crate) fn without_call_mark(text: &str) -> &str {
    let end = text.trim_end();
    CALL_MARKS.iter().find_map(|mark| end.strip_suffix(mark)).unwrap_or(text)
}

/// The reasoning's filter.
#[derive(Debug, Default)]
pub(crate) struct EchoFilter {
    /// Begins with a brace, when not empty.
    held: String,
    span: Option<JsonSpan>,
}

impl EchoFilter {
    /// Takes the next piece.
    pub(crate) fn push(&mut self, delta: &str, ledger: &mut Ledger) {
        if ledger.native_arguments().is_empty() && self.held.is_empty() {
            return ledger.emit_text(Field::Reasoning, delta);
        }
        let mut rest = delta;
        if self.held.is_empty() {
            let Some(at) = rest.find('{') else { return ledger.emit_text(Field::Reasoning, rest) };
            ledger.emit_text(Field::Reasoning, &rest[..at]);
            rest = &rest[at..];
        }
        self.held.push_str(rest);
        self.settle(false, ledger);
    }

    /// Settles what is held.
    pub(crate) fn finish(&mut self, ledger: &mut Ledger) {
        self.settle(true, ledger);
        ledger.emit_text(Field::Reasoning, &std::mem::take(&mut self.held));
    }

    fn settle(&mut self, eof: bool, ledger: &mut Ledger) {
        while !self.held.is_empty() {
            let span = self.span.get_or_insert_with(|| JsonSpan::new(0, Style::Json));
            let end = match span.advance(&self.held, eof) {
                Span::More if self.held.len() <= MAX_HELD => return,
                Span::More => self.held.len(),
                Span::Complete(end) => end,
                Span::Stopped(at) => at,
            };
            self.span = None;
            let object = serde_json::from_str::<Value>(&self.held[..end]).ok();
            if object.is_some_and(|object| ledger.native_arguments().contains(&object)) {
                ledger.note_dropped("", Dropped::Duplicate);
            } else {
                ledger.emit_text(Field::Reasoning, &self.held[..end]);
            }
            let next = self.held[end..].find('{').map_or(self.held.len(), |at| end + at);
            ledger.emit_text(Field::Reasoning, &self.held[end..next]);
            self.held.drain(..next);
        }
    }
}
