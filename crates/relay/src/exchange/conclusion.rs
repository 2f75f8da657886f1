//! Ends an exchange: the reply of one of its attempts leaves, or the most informative error.

use bytes::Bytes;

use super::state::{Exchange, ExchangeReply};
use crate::candidates::{more_informative, no_upstream};
use crate::completion;
use crate::outcome::{Finding, History, Whole};
use telemetry::metrics;
use translate::{Salvage, with_usage};
use upstream::UpstreamError;
use wire::turn::{FinishReason, Usage};
use wire::{ApiError, ErrorCode};

impl Exchange {
    pub(super) fn deliver_reply(&mut self, place: usize) -> ExchangeReply {
        let is_useful = self.history.attempts.get(place).is_some_and(|past| past.finding == Finding::Useful);
        self.count_rescue(is_useful);
        let salvage = match self.history.attempts.get(place).map(|past| &past.finding) {
            Some(Finding::Mistake(_, salvage)) => *salvage,
            _ => Salvage::Answer,
        };
        let usage = self.total_usage(self.history.last().and_then(|last| last.usage));
        match self.history.attempts.get_mut(place).and_then(|past| past.reply.take()) {
            None => ExchangeReply::Current(salvage),
            Some(Whole::Reply(mut reply)) => {
                if salvage == Salvage::CorrectableCall {
                    completion::add_correctable_calls(&mut reply, &self.request);
                }
                self.request.record.set_usage(reply.usage);
                let fills_window = self.fills_window(reply.usage);
                reply.usage = usage.or(reply.usage);
                reply.earlier_prompts = self.history.spent_before_last().prompt;
                for choice in &mut reply.choices {
                    choice.fills_window = fills_window && choice.turn.finish == Some(FinishReason::Length);
                    self.request.complete_turn(&choice.turn);
                }
                if reply.choices.iter().any(|choice| !choice.turn.reasoning.trim().is_empty()) {
                    self.report_reasoning();
                }
                ExchangeReply::Whole(Whole::Reply(reply))
            }
            Some(Whole::Body(body)) => {
                let last = self.history.attempts.get(place).and_then(|past| past.usage);
                self.request.record.set_usage(last);
                let changed = usage.and_then(|usage| with_usage(&body, &usage));
                ExchangeReply::Whole(Whole::Body(changed.map_or(body, Bytes::from)))
            }
        }
    }

    /// Counts how the second attempts ended, if there were any.
    pub(crate) fn count_rescue(&self, is_rescued: bool) {
        if let Some(fault) = self.history.last_fault() {
            metrics::count_rescue(fault.name(), is_rescued);
        }
    }

    /// Returns the token counts that the client gets when there was more than one attempt: those of all,
    /// except that clients which read `prompt_tokens` as the size of the conversation get the last prompt's.
    pub(super) fn total_usage(&self, last: Option<Usage>) -> Option<Usage> {
        let spent = self.history.spent_before_last();
        if spent == Usage::default() {
            return None;
        }
        let sum = spent.plus(last.unwrap_or_default());
        let reads_context = self.request.profile.program.reads_prompt_as_context();
        Some(if reads_context { Usage { prompt: self.history.last_prompt(), ..sum } } else { sum })
    }

    /// Returns the error that leaves.
    pub(super) fn final_error(&self) -> ApiError {
        self.count_rescue(false);
        let last = self.history.last();
        let of_mistake = last.is_none_or(|last| match last.finding {
            Finding::Mistake(..) | Finding::OutOfTime => true,
            Finding::Refused(_) => last.is_changed && last.error.is_some(),
            _ => false,
        });
        let Some(fault) = self.history.last_fault().filter(|_| of_mistake) else {
            return self.fail_with(&most_informative_error(&self.history));
        };
        let glitch = last.and_then(|last| last.error.clone()).filter(|_| self.history.mistake_count() < 2);
        let error = glitch.map_or_else(
            || fault.to_error(self.history.ask_count()),
            |glitch| ApiError { cause: glitch.cause(String::new()), ..glitch.error },
        );
        self.request.record.record_failed_attempts(None, error.message.clone());
        ApiError { is_final: error.status >= 500, ..error }
    }

    /// Returns the client's error for a failure of an upstream, and records it.
    pub(crate) fn fail_with(&self, cause: &UpstreamError) -> ApiError {
        let mut error = cause.with_efforts(self.history.ask_count(), self.history.waited);
        if let Some(rule) = &self.withheld_rule {
            // Only its name: a refusal may quote the request.
            let setting = rule.consent_setting();
            error.message =
                format!("{}. respool can adapt such requests if you allow it: {setting}", error.message);
        }
        if error.code == Some(ErrorCode::ModelNotFound) {
            let known = self.relay.describe_models(&self.request.profile.model, &self.request.record);
            error.message = error.message.trim_end_matches('.').to_owned() + &known;
            self.request.record.record_failed_attempts(cause.status, error.message.clone());
            return error;
        }
        self.request.record.record_failed_attempts(cause.status, cause.log_text());
        error
    }
}

/// Returns the most informative of the last round's errors.
fn most_informative_error(history: &History) -> Box<UpstreamError> {
    let last_round = history.attempts.iter().filter(|past| past.round == history.round);
    let errors = last_round.filter_map(|past| past.error.clone());
    errors.reduce(more_informative).unwrap_or_else(no_upstream)
}
