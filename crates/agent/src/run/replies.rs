//! Applies a reply of the model, or its failure, to a run. Pure.

use super::state::{Phase, Run};
use super::window::SQUEEZES;
use crate::budget::Tokens;
use crate::call::RequestedCall;
use crate::correction;
use crate::event::ModelReply;
use crate::failure::{FailureKind, ModelFailure};
use crate::outcome::{Limit, Outcome};
use crate::reading::{self, Reading};
use crate::setup::Executor;
use crate::step::CallPurpose;
use crate::transcript::{Entry, Exchange, Iteration};
use translate::Ids;
use wire::ErrorCode;
use wire::turn::Dropped;

/// A model call is tried so often.
const ATTEMPTS: u32 = 3;
/// The pause before the second attempt, in milliseconds; twice as long before each further one.
const BACKOFF: u64 = 500;
/// A server cannot ask for a longer pause.
pub(super) const LONGEST_BACKOFF: u64 = 30_000;

impl Run {
    pub(super) fn take_reply(&mut self, reply: ModelReply) {
        self.model.weights.learn(reply.tokens.prompt);
        (self.turn.attempts, self.turn.squeezes, self.turn.summaries) = (0, 0, 0);
        if self.turn.limit.is_some() {
            self.record_call(CallPurpose::Last, &reply, None);
            return self.end_with_answer(reply.content, reply.reasoning, reply.cut);
        }
        self.turn.iterations += 1;
        let mut ids = Ids::new(self.setup.seed ^ (u64::from(self.turn.iterations) << 32), self.taken_ids());
        let mut reading = reading::read_reply(&reply, &self.setup, &mut ids);
        self.remove_echoes(&mut reading);
        self.make_ids_unique(&mut reading, &mut ids);
        self.record_call(CallPurpose::Iteration, &reply, reading.parser.clone());
        let is_truncated = |(_, why): &(String, String)| why == Dropped::Truncated.as_str();
        self.turn.was_call_cut = reply.cut && reading.refused.iter().any(is_truncated);
        if reading.calls.is_empty() {
            return self.finish_without_calls(reply, reading);
        }
        self.entries.push(Entry::Exchange(Exchange {
            content: reply.content,
            reasoning: reply.reasoning,
            calls: reading.calls.clone(),
            results: Vec::new(),
        }));
        self.note_refused(&reading);
        self.begin_calls(reading.calls);
    }

    pub(super) fn taken_ids(&self) -> std::collections::HashSet<String> {
        let calls = self.entries.iter().filter_map(|entry| match entry {
            Entry::Exchange(exchange) => Some(&exchange.calls),
            _ => None,
        });
        calls.flatten().map(|call| call.id.clone()).collect()
    }

    /// Removes calls that were read from a sentence (`fuzzy`) and were made before: "I will read a.txt" after
    /// reading it.
    pub(super) fn remove_echoes(&self, reading: &mut Reading) {
        if reading.parser.as_deref() != Some("fuzzy") {
            return;
        }
        let done = |call: &RequestedCall| {
            self.entries.iter().any(|entry| match entry {
                Entry::Exchange(exchange) => exchange
                    .calls
                    .iter()
                    .any(|made| made.name == call.name && made.arguments == call.arguments),
                _ => false,
            })
        };
        reading.calls.retain(|call| !done(call));
    }

    /// Gives calls that the client executes ids that are unique among all runs, which a server's own need not
    /// be. Those that carry an id of Kimi stay.
    pub(super) fn make_ids_unique(&self, reading: &mut Reading, ids: &mut Ids) {
        for call in &mut reading.calls {
            let leaves = self.find_offered(&call.name).is_some_and(|tool| tool.executor == Executor::Client);
            if leaves && !call.id.starts_with("kimi") {
                call.id = ids.choose_id(None);
            }
        }
    }

    /// Ends the turn with the answer, or asks the model to correct a call that it seems to have meant.
    pub(super) fn finish_without_calls(&mut self, reply: ModelReply, reading: Reading) {
        let answer = reading.answer.unwrap_or(reply.content);
        let only_refused = reading.refused.iter().any(|(name, _)| {
            answer.trim().is_empty() || (!name.is_empty() && answer.trim_start().starts_with(name.as_str()))
        });
        let blank = answer.trim().is_empty();
        let meant = !self.setup.tools.is_empty()
            && (!reading.refused.is_empty() || reading::looks_like_a_call(&answer));
        let must_correct = only_refused || ((meant || blank) && !self.turn.corrected);
        if !must_correct && blank {
            return self.stop_at(Limit::Corrections);
        }
        if !must_correct {
            return self.end_with_answer(answer, reply.reasoning, reply.cut);
        }
        self.turn.corrected |= !only_refused;
        let text = correction::correct_reply(&reading.refused, reply.cut, blank, &self.setup);
        let content = if blank { correction::NOTHING.to_owned() } else { answer };
        self.entries.push(Entry::Exchange(Exchange {
            content,
            reasoning: reply.reasoning,
            ..Exchange::default()
        }));
        self.entries.push(Entry::Note(text));
        self.pause_and_ask();
    }

    pub(super) fn note_refused(&mut self, reading: &Reading) {
        if !reading.refused.is_empty() {
            // It is said after the results: a template wants them right behind their calls.
            let text = correction::correct_reply(&reading.refused, false, false, &self.setup);
            self.entries.push(Entry::Note(text));
        }
    }

    pub(super) fn end_with_answer(&mut self, content: String, reasoning: String, cut: bool) {
        let content = if content.trim().is_empty() { self.partial_answer() } else { content };
        self.end(Outcome { content, reasoning, cut, limit: self.turn.limit.clone(), ..Outcome::default() });
    }

    pub(super) fn model_failed(&mut self, failure: ModelFailure) {
        let late = self.turn.worked >= self.soft_deadline();
        match failure.kind {
            FailureKind::TimedOut | FailureKind::Transient if late && self.turn.limit.is_none() => {
                self.stop_at(Limit::Time(self.setup.limits.time));
            }
            FailureKind::TimedOut | FailureKind::Transient => self.try_again(failure),
            FailureKind::Overflow if self.turn.squeezes < SQUEEZES => self.squeeze(&failure.text),
            FailureKind::Unreadable if !self.turn.corrected && self.turn.limit.is_none() => {
                self.turn.corrected = true;
                self.turn.iterations += 1;
                let code = ErrorCode::from_name(&failure.code);
                let (is_cut, is_blank) =
                    (code == Some(ErrorCode::TruncatedToolCall), code == Some(ErrorCode::NoAnswer));
                self.turn.was_call_cut = is_cut;
                let refused = correction::refused_call_in(&failure.text, code, &self.setup);
                let text = correction::correct_reply(&refused, is_cut, is_blank, &self.setup);
                let content = correction::NOTHING.to_owned();
                self.entries.push(Entry::Exchange(Exchange { content, ..Exchange::default() }));
                self.entries.push(Entry::Note(text));
                self.pause_and_ask();
            }
            // There may be an answer in what it has got.
            FailureKind::Unreadable if self.turn.limit.is_none() => self.stop_at(Limit::Corrections),
            _ => self.abort(failure),
        }
    }

    pub(super) fn try_again(&mut self, failure: ModelFailure) {
        self.turn.attempts += 1;
        let wait = failure.wait.unwrap_or(BACKOFF << (self.turn.attempts - 1)).min(LONGEST_BACKOFF);
        let deadline = self.setup.limits.time;
        if self.turn.attempts >= ATTEMPTS || self.turn.worked + wait >= deadline {
            return self.abort(failure);
        }
        self.phase = Phase::Pause(wait);
    }

    pub(super) fn stop_at(&mut self, limit: Limit) {
        self.turn.limit = Some(limit);
        self.ask_model();
    }

    pub(super) fn abort(&mut self, failure: ModelFailure) {
        let content = self.partial_answer();
        let limit = self.turn.limit.clone();
        self.end(Outcome { content, limit, failure: Some(failure), ..Outcome::default() });
    }

    pub(super) fn pause_and_ask(&mut self) {
        self.ask_model();
        let pause = self.setup.limits.pause;
        if pause > 0 && self.phase == Phase::Model && self.turn.limit.is_none() {
            self.phase = Phase::Pause(pause);
        }
    }

    pub(super) fn record_call(&mut self, purpose: CallPurpose, reply: &ModelReply, parser: Option<String>) {
        let prompt = reply.tokens.prompt.saturating_add(reply.earlier_prompts);
        let tokens = Tokens { prompt, ..reply.tokens };
        self.spent.total += tokens;
        self.iterations.push(Iteration {
            purpose: purpose.as_str().into(),
            model: reply.model.clone(),
            tokens,
            model_ms: reply.took,
            parser,
            tools: Vec::new(),
        });
    }

    /// The content that is shown when the model gives no answer.
    pub(super) fn partial_answer(&self) -> String {
        correction::describe_achievements(&self.entries)
    }

    pub(super) fn end(&mut self, outcome: Outcome) {
        self.phase = Phase::Done(Box::new(outcome));
    }
}
