//! The turns of a conversation: what counts within one, and how one ends and the next begins. Pure.

use std::ops::Range;

use serde_json::Value;

use super::state::{Phase, Run, TurnState};
use crate::correction;
use crate::event::EventKind;
use crate::outcome::Outcome;
use crate::step::CallPurpose;
use crate::transcript::{Entry, Exchange};

impl Run {
    /// The next turn of a conversation.
    pub(super) fn start_turn(&mut self, phase: &Phase, message: Value) {
        self.close_turn(phase);
        self.entries.push(Entry::UserTurn(message));
        self.is_closed = false;
        self.turn = TurnState::default();
        self.spent.at_answer = self.spent.total;
        self.ask_model();
    }

    /// The events between two turns.
    pub(super) fn add_note(&mut self, phase: Phase, text: String) {
        self.close_turn(&phase);
        self.entries.push(Entry::Note(text));
        self.phase = phase;
    }

    /// Returns the entries that a summary would stand for between two turns: all behind the first messages.
    /// `None` if none of them is a reply.
    pub(crate) fn compactable(&self) -> Option<Range<usize>> {
        let start = self.entries.iter().take_while(|it| matches!(it, Entry::ClientMessage(_))).count();
        let has_replies = self.entries[start..].iter().any(|it| matches!(it, Entry::Exchange(_)));
        has_replies.then_some(start..self.entries.len())
    }

    pub(super) fn start_compaction(&mut self, phase: Phase) {
        self.close_turn(&phase);
        self.phase = match (phase, self.compactable()) {
            (Phase::Done(outcome), Some(range)) => Phase::Compaction(range, outcome),
            (phase, _) => phase,
        };
    }

    /// Without a summary the conversation stays as it is.
    pub(super) fn end_compaction(&mut self, range: Range<usize>, outcome: Box<Outcome>, kind: EventKind) {
        if let EventKind::Summarised(reply) = kind
            && !reply.content.trim().is_empty()
        {
            self.record_call(CallPurpose::Summary, &reply, None);
            self.entries.splice(range, [Entry::Summary(reply.content)]);
        }
        self.phase = Phase::Done(outcome);
    }

    /// The outcome of the last turn becomes part of the transcript.
    fn close_turn(&mut self, phase: &Phase) {
        if std::mem::replace(&mut self.is_closed, true) {
            return;
        }
        self.settle_calls(phase);
        match phase {
            Phase::Done(outcome) if outcome.has_answer() => {
                let content = outcome.content.clone();
                self.entries.push(Entry::Exchange(Exchange { content, ..Exchange::default() }));
            }
            // Otherwise the model would answer this question together with the next one.
            Phase::Done(outcome) if outcome.failure.is_some() && self.is_question_last() => {
                self.entries.pop();
            }
            // With a reply of its own, the stopped question is not asked again together with the next one.
            Phase::Done(outcome) if outcome.cancelled && self.is_question_last() => {
                let content = correction::STOPPED_REPLY.to_owned();
                self.entries.push(Entry::Exchange(Exchange { content, ..Exchange::default() }));
                self.entries.push(Entry::Note(correction::STOPPED_TURN.to_owned()));
            }
            Phase::Done(outcome) if outcome.cancelled => {
                self.entries.push(Entry::Note(correction::STOPPED_TURN.to_owned()));
            }
            _ => self.entries.push(Entry::Note(correction::STOPPED.to_owned())),
        }
    }

    fn is_question_last(&self) -> bool {
        matches!(self.entries.last(), Some(Entry::ClientMessage(_) | Entry::UserTurn(_)))
    }
}
