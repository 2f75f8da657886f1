//! The turns of a conversation: what counts within one, and how one ends and the next begins. Pure.

use serde_json::Value;

use super::state::{Phase, Run, TurnState};
use crate::correction;
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

    /// The outcome of the last turn becomes part of the transcript.
    fn close_turn(&mut self, phase: &Phase) {
        if std::mem::replace(&mut self.is_closed, true) {
            return;
        }
        self.settle_calls();
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
