//! Emits the events of a turn, and keeps a call from leaving twice or unwanted.
//!
//! The scanners find the meaning of text; the ledger decides which part of it leaves. Events come in the
//! order in which they become certain. Used by the scanners and the engine.

use std::collections::HashMap;

use serde_json::Value;

use super::calls::{Args, RawCall, json_text};
use super::objects::Objects;
use super::repairs::Repair;
use super::settle::{Ready, Settled};
use super::space::is_space;
use super::{Field, Options};
use crate::event::{Dropped, Event, Note, ToolCall};

/// The most reasoning that is kept for the search after a turn without an answer, in bytes.
const KEPT_REASONING: usize = 1 << 20;

/// The events of one turn.
#[derive(Debug)]
pub(crate) struct Ledger {
    options: Options,
    /// Events that the caller has not taken yet.
    events: Vec<Event>,
    /// Arguments of native calls, to recognise copies.
    native: Objects,
    sent: SentCalls,
    /// A call that repeats the previous one. It was a loop if the reply is cut, and intended if anything else
    /// follows.
    repeat: Option<Box<Ready>>,
    last_text_call: Option<usize>,
    /// Calls read from text that may turn out to be reasoning: if a template wrote its opening mark, only the
    /// closing mark shows it.
    deferred: Vec<Deferred>,
    /// Whether reasoning has come, so that the next text is the answer.
    has_reasoned: bool,
    /// Whether the text has ended.
    closing: bool,
    kept: KeptTexts,
    has_content: bool,
}

/// Texts that count if the turn would have no answer without them.
#[derive(Debug, Default)]
struct KeptTexts {
    /// The text of calls that did not leave, shown if the turn would be blank without it.
    refused: String,
    reasoning: String,
    /// The content, kept only for the fuzzy dialect.
    spoken: String,
}

/// An event that waits until it is certain whether the text is reasoning.
#[derive(Debug)]
enum Deferred {
    Call(Box<Ready>),
    Text,
}

/// A call's name and the meaning of its arguments.
type Content = (String, Value);

/// The calls that have left.
#[derive(Debug, Default)]
struct SentCalls {
    count: usize,
    by_content: HashMap<Content, SentCall>,
}

#[derive(Clone, Copy, Debug, Default)]
struct SentCall {
    /// The number of the last such call.
    last: usize,
    /// The number of such calls that were read from text and match no native call.
    unmatched: usize,
}

impl SentCalls {
    /// Adds a call and returns its number.
    fn add_call(&mut self, content: Content, from_text: bool) -> usize {
        let number = self.count;
        self.count += 1;
        let sent = self.by_content.entry(content).or_default();
        sent.last = number;
        sent.unmatched += usize::from(from_text);
        number
    }

    /// Returns true if a copy of a native call came before the call itself. Each copy counts once.
    fn match_copy(&mut self, native: &Content) -> bool {
        let copy = self.by_content.get_mut(native).filter(|sent| sent.unmatched > 0);
        copy.map(|sent| sent.unmatched -= 1).is_some()
    }
}

impl Ledger {
    pub(crate) fn new(options: Options) -> Self {
        Self {
            options,
            events: Vec::new(),
            native: Objects::default(),
            sent: SentCalls::default(),
            repeat: None,
            last_text_call: None,
            deferred: Vec::new(),
            has_reasoned: false,
            closing: false,
            kept: KeptTexts::default(),
            has_content: false,
        }
    }

    /// Moves the certain events to `out`.
    pub(crate) fn drain<E: From<Event>>(&mut self, out: &mut Vec<E>) {
        out.extend(self.events.drain(..).map(E::from));
    }

    /// Returns true when the turn has neither text nor a call.
    pub(crate) fn is_blank(&self) -> bool {
        !self.has_content && self.is_without_calls()
    }

    /// Returns true when no call has left or is about to.
    pub(crate) fn is_without_calls(&self) -> bool {
        self.has_sent_none() && !self.deferred.iter().any(|deferred| matches!(deferred, Deferred::Call(..)))
    }

    fn has_sent_none(&self) -> bool {
        self.sent.count == 0 && self.repeat.is_none()
    }

    /// Returns the arguments of the native calls that have come.
    pub(crate) fn native_arguments(&self) -> &Objects {
        &self.native
    }

    /// Takes the reasoning that has come, or its tail.
    pub(crate) fn take_reasoning(&mut self) -> String {
        std::mem::take(&mut self.kept.reasoning)
    }

    /// Takes the content that has come, if it is kept.
    pub(crate) fn take_spoken(&mut self) -> String {
        std::mem::take(&mut self.kept.spoken)
    }

    /// Emits text.
    pub(crate) fn emit_text(&mut self, field: Field, text: &str) {
        if text.is_empty() {
            return;
        }
        if field == Field::Reasoning {
            self.has_reasoned |= !is_space(text);
            self.keep_reasoning(text);
        } else if !is_space(text) {
            self.settle_repeat(false);
            self.has_content = true;
            if matches!(self.deferred.last(), Some(Deferred::Call(..))) {
                self.deferred.push(Deferred::Text);
            }
        }
        if self.options.fuzzy && field == Field::Content && self.kept.spoken.len() < KEPT_REASONING {
            self.kept.spoken.push_str(text);
        }
        match (self.events.last_mut(), field) {
            (Some(Event::Content(last)), Field::Content)
            | (Some(Event::Reasoning(last)), Field::Reasoning) => last.push_str(text),
            (_, Field::Content) => self.events.push(Event::Content(text.to_owned())),
            (_, Field::Reasoning) => self.events.push(Event::Reasoning(text.to_owned())),
        }
    }

    fn keep_reasoning(&mut self, text: &str) {
        if !self.is_blank() && !self.options.fuzzy {
            self.kept.reasoning = String::new();
            return;
        }
        self.kept.reasoning.push_str(text);
        if self.kept.reasoning.len() > 2 * KEPT_REASONING {
            let cut = self.kept.reasoning.ceil_char_boundary(self.kept.reasoning.len() - KEPT_REASONING);
            self.kept.reasoning.drain(..cut);
        }
    }

    /// Returns true when text has come that is certainly reasoning.
    pub(crate) fn has_reasoned(&self) -> bool {
        self.has_reasoned
    }

    /// Ends reasoning that the model closed: calls in it were only considered, unless the request wants them.
    pub(crate) fn close_reasoning(&mut self) {
        if !self.options.read_reasoning {
            self.kept.reasoning.clear();
        }
    }

    /// Turns all earlier text into reasoning, because its closing mark has come: calls in it were only
    /// considered.
    pub(crate) fn reclassify_as_reasoning(&mut self) {
        self.has_reasoned = true;
        for deferred in std::mem::take(&mut self.deferred) {
            if let Deferred::Call(ready) = deferred {
                self.note_withheld(ready.call, Dropped::InReasoning);
            }
        }
    }

    /// Notes a repair that belongs to no call.
    pub(crate) fn note_repair(&mut self, repair: Repair) {
        self.add_note(Note::Repaired(repair.name()));
    }

    pub(crate) fn add_note(&mut self, note: Note) {
        self.events.push(Event::Note(note));
    }

    /// Notes a call whose arguments are not whole, or were not read.
    pub(crate) fn note_dropped(&mut self, name: &str, why: Dropped) {
        self.add_note(Note::Dropped { name: name.to_owned(), why, arguments: None });
    }

    /// Notes a call that could leave, but must not.
    fn note_withheld(&mut self, call: ToolCall, why: Dropped) {
        self.add_note(Note::Dropped { name: call.name, why, arguments: Some(call.arguments) });
    }

    /// Notes a call that was read but cannot leave, with its arguments.
    fn note_refused(&mut self, raw: &RawCall, why: Dropped) {
        self.add_note(Note::Dropped {
            name: raw.name.clone(),
            why,
            arguments: Some(written_text(&raw.arguments)),
        });
    }

    /// Recognises copies of a native call's arguments in the text from now on.
    pub(crate) fn expect_copies(&mut self, raw: &RawCall, settled: &Settled) {
        let mut sent = "";
        if let Settled::Call(ready) = settled {
            sent = &ready.call.arguments;
            self.native.add(serde_json::from_str(sent).unwrap_or_default());
        }
        if let Args::Text(text) = &raw.arguments
            && text != sent
            && let Ok(value @ Value::Object(_)) = serde_json::from_str(text)
        {
            self.native.add(value);
        }
    }

    /// Takes a native call, which wins over every copy of it.
    pub(crate) fn take_native_call(&mut self, raw: &RawCall, settled: Settled) {
        match settled {
            Settled::Call(ready) => self.send_call(ready, false),
            Settled::Refused(why) => {
                self.note_refused(raw, why);
                if why == Dropped::Undeclared && !super::tools::is_noise(&raw.name) {
                    self.keep_refused(&format!("{} {}", raw.name, written_text(&raw.arguments)));
                }
            }
        }
    }

    /// Takes a call read from text; `source` is that text.
    pub(crate) fn take_text_call(&mut self, raw: &RawCall, settled: Settled, source: &str) {
        match settled {
            Settled::Refused(why) => self.note_refused(raw, why),
            Settled::Call(ready) if !self.options.calls_wanted => {
                self.note_withheld(ready.call, Dropped::NotWanted);
                self.keep_refused(source);
            }
            Settled::Call(ready) if self.is_answer() => self.send_call(ready, true),
            Settled::Call(ready) => self.deferred.push(Deferred::Call(ready)),
        }
    }

    /// Returns true when the text is certainly not reasoning.
    fn is_answer(&self) -> bool {
        let may_be_reasoning = self.options.may_begin_in_reasoning && !self.has_reasoned;
        self.closing || !may_be_reasoning && self.deferred.is_empty()
    }

    fn send_deferred(&mut self) {
        for deferred in std::mem::take(&mut self.deferred) {
            match deferred {
                Deferred::Call(ready) => self.send_call(ready, true),
                Deferred::Text => self.settle_repeat(false),
            }
        }
    }

    pub(crate) fn keep_refused(&mut self, text: &str) {
        if !self.kept.refused.is_empty() {
            self.kept.refused.push('\n');
        }
        self.kept.refused.push_str(text);
    }

    fn send_call(&mut self, mut ready: Box<Ready>, from_text: bool) {
        let content = (ready.call.name.clone(), std::mem::take(&mut ready.meaning));
        let same = self.sent.by_content.get(&content).map(|sent| sent.last);
        let repeats = same.is_some() && same == self.last_text_call;
        match same {
            _ if !self.options.calls_wanted => return self.note_withheld(ready.call, Dropped::NotWanted),
            Some(_) if from_text && !repeats => {
                // What follows this copy no longer repeats the call before it.
                self.last_text_call = None;
                return self.note_withheld(ready.call, Dropped::Duplicate);
            }
            _ if !from_text && self.sent.match_copy(&content) => {
                return self.note_withheld(ready.call, Dropped::Duplicate);
            }
            _ if !self.options.parallel && !self.has_sent_none() => {
                return self.note_withheld(ready.call, Dropped::NotParallel);
            }
            _ => {}
        }
        self.settle_repeat(false);
        if from_text && repeats {
            self.repeat = Some(ready);
            return;
        }
        let number = self.sent.add_call(content, from_text);
        self.last_text_call = from_text.then_some(number);
        self.emit_call(*ready);
    }

    fn emit_call(&mut self, Ready { call, repairs, .. }: Ready) {
        repairs.into_iter().for_each(|repair| self.add_note(Note::Repaired(repair.name())));
        self.events.push(Event::ToolCall(call));
    }

    /// Settles a repeated call: it leaves again, unless the reply was cut in that loop.
    fn settle_repeat(&mut self, cut: bool) {
        match self.repeat.take() {
            Some(ready) if cut => self.note_withheld(ready.call, Dropped::Duplicate),
            Some(ready) => self.emit_call(*ready),
            None => {}
        }
    }

    /// Ends the turn. If it would be blank, it shows the text of refused calls.
    pub(crate) fn close_turn(&mut self, cut: bool) {
        self.closing = true;
        self.send_deferred();
        self.settle_repeat(cut);
        if self.is_blank() && !self.kept.refused.is_empty() {
            let refused = std::mem::take(&mut self.kept.refused);
            self.emit_text(Field::Content, &refused);
        }
    }
}

fn written_text(arguments: &Args) -> String {
    match arguments {
        Args::Text(text) => text.clone(),
        Args::Value(value) => json_text(value),
    }
}
