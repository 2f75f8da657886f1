//! A run within its model's window: what the next prompt will cost, and what makes room for it. Pure.

use std::ops::Range;

use super::state::{Phase, Run};
use crate::budget::RESERVE;
use crate::context::{self, Fit};
use crate::event::ModelReply;
use crate::failure::{FailureKind, ModelFailure};
use crate::step::{CallPurpose, ModelStep};
use crate::transcript::Entry;
use crate::{correction, prompt};
use translate::read_overflow;

/// A prompt that was too large for the server is made smaller so often before a reply.
pub(super) const SQUEEZES: u32 = 2;
/// Compactions between two iterations.
const SUMMARIES: u32 = 3;

impl Run {
    /// The tokens of the next prompt.
    pub(crate) fn weigh_prompt(&mut self) -> u64 {
        let (has_tools, neutral) = (self.turn.limit.is_none(), self.mark_escaper());
        let messages = prompt::messages(&self.setup, &self.entries, has_tools, neutral);
        let tools = if has_tools { prompt::tools(&self.setup, neutral) } else { Vec::new() };
        self.model.weights.weigh(&messages, &tools, self.model.sizes.is_harmony)
    }

    /// Returns the tokens of the next prompt without a margin, as the server has counted earlier ones.
    pub(crate) fn likely_prompt(&mut self) -> u64 {
        self.weigh_prompt();
        self.model.weights.lower_bound()
    }

    /// The part of the window that is left after the reply and the reserve. Of a tiny window they take no
    /// more than half.
    pub(super) fn room(&self) -> u64 {
        let sizes = &self.model.sizes;
        sizes.window.saturating_sub(RESERVE.max(sizes.max_tokens).min(sizes.window / 2))
    }

    /// The most tokens of the next reply: after a call that the limit cut, four times as many, if this run
    /// may have them and the window has room.
    pub(super) fn reply_tokens(&self) -> u64 {
        let sizes = &self.model.sizes;
        if !(self.setup.grows_cut_replies && self.turn.was_call_cut) {
            return sizes.max_tokens;
        }
        // With a margin, as the prompt is not counted yet.
        let left = sizes.window.saturating_sub(self.model.weights.lower_bound() * 5 / 4);
        sizes.max_tokens.saturating_mul(4).min(left).max(sizes.max_tokens)
    }

    pub(super) fn make_fit(&mut self) {
        loop {
            let prompt = self.weigh_prompt();
            match context::judge_fit(prompt, self.model.sizes.window, self.room()) {
                Fit::Shrink => {
                    if !context::shrink_one(&mut self.entries) {
                        return;
                    }
                }
                Fit::Compact | Fit::TooLarge if context::shrink_one(&mut self.entries) => {}
                // Only the margin says so: the server judges.
                Fit::TooLarge if self.model.weights.lower_bound() <= self.room() => return,
                Fit::Compact | Fit::TooLarge if self.may_compact() => return self.compact(),
                Fit::Fits | Fit::Compact => return,
                Fit::TooLarge if context::halve_last(&mut self.entries) => {}
                Fit::TooLarge if self.summarise(context::earlier_turns(&self.entries)) => return,
                Fit::TooLarge => return self.does_not_fit(),
            }
        }
    }

    pub(super) fn may_compact(&self) -> bool {
        self.turn.summaries < SUMMARIES
            && self.turn.limit.is_none()
            && context::oldest_exchanges(&self.entries).is_some()
    }

    pub(super) fn compact(&mut self) {
        self.summarise(context::oldest_exchanges(&self.entries));
    }

    /// Has the model summarise these entries, if there are any and that was not done too often.
    fn summarise(&mut self, entries: Option<Range<usize>>) -> bool {
        let Some(range) = entries.filter(|_| self.turn.summaries < SUMMARIES) else { return false };
        self.turn.summaries += 1;
        self.phase = Phase::Summary(range);
        true
    }

    /// Returns true for a summary that takes the last exchange, too.
    pub(super) fn is_last_resort(&self, range: &Range<usize>) -> bool {
        let all = context::earlier_turns(&self.entries);
        all.as_ref() == Some(range) && context::oldest_exchanges(&self.entries).is_none()
    }

    pub(super) fn does_not_fit(&mut self) {
        let (window, room, prompt) = (self.model.sizes.window, self.room(), self.weigh_prompt());
        let text = format!(
            "This model's maximum context length is {window} tokens, of which {} are kept for the reply. However, the \
             messages have about {prompt} tokens; please reduce the length of the input messages.",
            window - room
        );
        self.abort(ModelFailure {
            kind: FailureKind::Overflow,
            status: 400,
            code: "context_length_exceeded".into(),
            text,
            wait: None,
        });
    }

    pub(super) fn summary_step(&self, entries: &[Entry]) -> ModelStep {
        ModelStep {
            purpose: CallPurpose::Summary,
            // Two bytes are a token at the least in most texts.
            messages: prompt::summary_messages(
                &self.setup,
                entries,
                usize::try_from(self.room()).unwrap_or(usize::MAX / 2) * 2,
                self.mark_escaper(),
            ),
            tools: Vec::new(),
            format: None,
            max_tokens: self.model.sizes.max_tokens.min(RESERVE),
            within: self.setup.limits.model_time.min(self.time_left()).max(1),
        }
    }

    pub(super) fn apply_summary(&mut self, range: Range<usize>, reply: Option<ModelReply>) {
        let text = match reply {
            Some(reply) => {
                self.record_call(CallPurpose::Summary, &reply, None);
                reply.content
            }
            None => String::new(),
        };
        let text =
            if text.trim().is_empty() { correction::tally_calls(&self.entries[range.clone()]) } else { text };
        self.entries.splice(range, [Entry::Summary(text)]);
        self.ask_model();
    }

    /// The server counts more than was estimated, or has a smaller window than was known: learn from what it
    /// says, and make the prompt smaller.
    pub(super) fn squeeze(&mut self, reply: &str) {
        self.turn.squeezes += 1;
        let overflow = read_overflow(reply, Some(self.model.sizes.max_tokens));
        self.model.sizes.window = overflow
            .and_then(|overflow| overflow.window)
            .unwrap_or(self.model.sizes.window)
            .min(self.model.sizes.window);
        let counted =
            overflow.and_then(|overflow| overflow.prompt).unwrap_or(0).max(self.model.sizes.window + 1);
        let weighed = self.weigh_prompt();
        self.model.weights.learn(counted.max(weighed));
        self.ask_model();
    }
}
