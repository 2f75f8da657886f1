//! A run within its model's window: what the next prompt will cost, and what makes room for it. Pure.

use super::Phase;
use super::Run;
use crate::agent::budget::{RESERVE, estimate};
use crate::agent::context::{self, Fit};
use crate::agent::record::{Entry, FailureKind, ModelFailure, Said};
use crate::agent::step::{ModelCall, Why};
use crate::agent::{correction, prompt};

/// A prompt that was too large for the server is made smaller so often before a reply.
pub(super) const SQUEEZES: u32 = 2;
/// Compactions between two iterations.
const SUMMARIES: u32 = 3;

impl Run {
    pub(super) fn prompt_estimate(&self) -> u64 {
        self.scale.apply(self.raw_estimate())
    }

    pub(super) fn raw_estimate(&self) -> u64 {
        let messages = prompt::messages(&self.setup, &self.entries, self.limit.is_none());
        let tools = if self.limit.is_none() { prompt::tools(&self.setup) } else { Vec::new() };
        messages.iter().chain(&tools).map(|value| estimate(&value.to_string())).sum()
    }

    /// What the window holds beside the reply and the reserve; of a tiny window they take no more than half.
    pub(super) fn room(&self) -> u64 {
        let window = self.setup.limits.window;
        window.saturating_sub(RESERVE.max(self.setup.limits.max_tokens).min(window / 2))
    }

    pub(super) fn make_fit(&mut self) {
        loop {
            self.estimated = self.raw_estimate();
            let prompt = self.scale.apply(self.estimated);
            match context::judge(prompt, self.setup.limits.window, self.room()) {
                Fit::Shrink => {
                    if !context::shrink_one(&mut self.entries) {
                        return;
                    }
                }
                Fit::Compact | Fit::TooLarge if context::shrink_one(&mut self.entries) => {}
                Fit::Compact | Fit::TooLarge if self.may_compact() => return self.compact(),
                Fit::Fits | Fit::Compact => return,
                Fit::TooLarge if context::halve_last(&mut self.entries) => {}
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
        let window = self.setup.limits.window;
        let text = format!(
            "This model's maximum context length is {window} tokens, of which {} are kept for the reply. However, the \
             messages have about {} tokens; please reduce the length of the input messages.",
            window - self.room(),
            self.prompt_estimate()
        );
        self.abort(ModelFailure {
            kind: FailureKind::Overflow,
            status: 400,
            code: "context_length_exceeded".into(),
            text,
            wait: None,
        });
    }

    pub(super) fn summary_call(&self, entries: &[Entry]) -> ModelCall {
        ModelCall {
            why: Why::Summary,
            messages: prompt::summary(&self.setup, entries),
            tools: Vec::new(),
            format: None,
            max_tokens: self.setup.limits.max_tokens.min(RESERVE),
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
        let full = self.setup.limits.window + 1;
        self.scale.learn(self.estimated, full.max(self.prompt_estimate()));
        self.ask();
    }
}
