//! A run within its model's window: what the next prompt will cost, and what makes room for it. Pure.

use super::Phase;
use super::Run;
use crate::agent::budget::RESERVE;
use crate::agent::context::{self, Fit};
use crate::agent::record::{Entry, FailureKind, ModelFailure, Said};
use crate::agent::step::{ModelCall, Why};
use crate::agent::{correction, prompt};

/// A prompt that was too large for the server is made smaller so often before a reply.
pub(super) const SQUEEZES: u32 = 2;
/// Compactions between two iterations.
const SUMMARIES: u32 = 3;

impl Run {
    /// The tokens of the next prompt.
    pub(super) fn weigh(&mut self) -> u64 {
        let messages = prompt::messages(&self.setup, &self.entries, self.limit.is_none());
        let tools = if self.limit.is_none() { prompt::tools(&self.setup) } else { Vec::new() };
        self.weights.weigh(&messages, &tools, self.sizes.is_harmony)
    }

    /// What the window holds beside the reply and the reserve.
    pub(super) fn room(&self) -> u64 {
        self.sizes.window.saturating_sub(RESERVE.max(self.sizes.max_tokens))
    }

    pub(super) fn make_fit(&mut self) {
        loop {
            let prompt = self.weigh();
            match context::judge(prompt, self.sizes.window, self.room()) {
                Fit::Shrink => {
                    if !context::shrink_one(&mut self.entries) {
                        return;
                    }
                }
                Fit::Compact | Fit::TooLarge if context::shrink_one(&mut self.entries) => {}
                Fit::Compact | Fit::TooLarge if self.may_compact() => return self.compact(),
                Fit::Fits | Fit::Compact => return,
                Fit::TooLarge if context::halve_last(&mut self.entries) => {}
                // Only the margin says so: the server judges.
                Fit::TooLarge if self.weights.at_least() <= self.room() => return,
                Fit::TooLarge => return self.does_not_fit(),
            }
        }
    }

    pub(super) fn may_compact(&self) -> bool {
        self.summaries < SUMMARIES && self.limit.is_none() && context::oldest(&self.entries).is_some()
    }

    pub(super) fn compact(&mut self) {
        if let Some(range) = context::oldest(&self.entries) {
            self.summaries += 1;
            self.phase = Phase::Summary(range);
        }
    }

    pub(super) fn does_not_fit(&mut self) {
        let text = "This model's maximum context length is exceeded by the messages; please reduce the length of the \
                    input messages.";
        self.abort(ModelFailure {
            kind: FailureKind::Overflow,
            status: 400,
            code: "context_length_exceeded".into(),
            text: text.into(),
            wait: None,
        });
    }

    pub(super) fn summary_call(&self, entries: &[Entry]) -> ModelCall {
        ModelCall {
            why: Why::Summary,
            messages: prompt::summary(&self.setup, entries),
            tools: Vec::new(),
            format: None,
            max_tokens: self.sizes.max_tokens.min(RESERVE),
            within: self.setup.limits.model_time.min(self.soft_deadline().saturating_sub(self.worked)).max(1),
        }
    }

    pub(super) fn summarised(&mut self, range: std::ops::Range<usize>, said: Option<Said>) {
        let text = match said {
            Some(said) => {
                self.record(Why::Summary, &said, None);
                said.content
            }
            None => String::new(),
        };
        let text =
            if text.trim().is_empty() { correction::tally(&self.entries[range.clone()]) } else { text };
        self.entries.splice(range, [Entry::Summary(text)]);
        self.ask();
    }

    /// The server counts more than was estimated: learn from it, and make the prompt smaller.
    pub(super) fn squeeze(&mut self) {
        self.squeezes += 1;
        let full = self.sizes.window + 1;
        let weighed = self.weigh();
        self.weights.learn(full.max(weighed));
        self.ask();
    }
}
