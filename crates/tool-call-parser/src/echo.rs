//! Drops copies of native arguments from the reasoning: vLLM 0.10 leaves them there when it extracts a call.
//!
//! Passes everything through untouched while no native call has come. Used by the engine for the reasoning field.

use serde_json::Value;

use super::Field;
use super::json_span::{JsonSpan, Span, Style};
use super::ledger::Ledger;
use crate::event::Dropped;

/// Longer objects are passed on.
const MAX_HELD: usize = 1 << 20;

/// The reasoning's filter.
#[derive(Debug, Default)]
pub(crate) struct Echo {
    /// Begins with a brace, when not empty.
    held: String,
    span: Option<JsonSpan>,
}

impl Echo {
    /// Takes the next piece.
    pub(crate) fn push(&mut self, delta: &str, ledger: &mut Ledger) {
        if ledger.native().is_empty() && self.held.is_empty() {
            return ledger.text(Field::Reasoning, delta);
        }
        let mut rest = delta;
        if self.held.is_empty() {
            let Some(at) = rest.find('{') else { return ledger.text(Field::Reasoning, rest) };
            ledger.text(Field::Reasoning, &rest[..at]);
            rest = &rest[at..];
        }
        self.held.push_str(rest);
        self.settle(false, ledger);
    }

    /// Settles what is held.
    pub(crate) fn finish(&mut self, ledger: &mut Ledger) {
        self.settle(true, ledger);
        ledger.text(Field::Reasoning, &std::mem::take(&mut self.held));
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
            if object.is_some_and(|object| ledger.native().contains(&object)) {
                ledger.dropped("", Dropped::Duplicate);
            } else {
                ledger.text(Field::Reasoning, &self.held[..end]);
            }
            let next = self.held[end..].find('{').map_or(self.held.len(), |at| end + at);
            ledger.text(Field::Reasoning, &self.held[end..next]);
            self.held.drain(..next);
        }
    }
}
