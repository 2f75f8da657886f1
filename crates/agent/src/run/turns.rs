//! The turns of a conversation: what counts within one, and how one ends and the next begins. Pure.

use serde_json::Value;

use super::{Phase, Run};
use crate::correction;
use crate::outcome::Limit;
use crate::transcript::{Entry, Exchange};

/// What counts within one turn. The next turn begins with a new one.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct TurnState {
    /// The limit that was reached.
    pub(super) limit: Option<Limit>,
    /// Model calls that could have tools.
    pub(super) iterations: u32,
    /// Failed attempts at the current model call.
    pub(super) attempts: u32,
    /// How often the prompt was made smaller since the last reply, because the server found it too large.
    pub(super) squeezes: u32,
    /// Summaries since the last reply.
    pub(super) summaries: u32,
    /// The model was corrected since its last usable call.
    pub(super) corrected: bool,
    /// Milliseconds of work.
    pub(super) worked: u64,
}

impl Run {
    /// The next turn of a conversation.
    pub(super) fn start_turn(&mut self, phase: &Phase, message: Value) {
        self.close_turn(phase);
        self.entries.push(Entry::UserTurn(message));
        self.is_closed = false;
        self.turn = TurnState::default();
        self.spent_at_answer = self.spent;
        self.ask();
    }

    /// What happened between two turns.
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
            Phase::Done(outcome) if outcome.answered() => {
                let content = outcome.content.clone();
                self.entries.push(Entry::Exchange(Exchange { content, ..Exchange::default() }));
            }
            _ => self.entries.push(Entry::Note(correction::STOPPED.to_owned())),
        }
    }
}
