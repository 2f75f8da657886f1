//! The agent's loop as a state machine: [`Run::next`] says what to do, [`Run::apply`] takes in what happened.
//!
//! No clock, no I/O, no randomness: time comes in with events, and the ids of calls follow from the setup's seed. So a run
//! is its setup and its events, and restoring it means applying them again. Executed by `driver`.

mod window;

use serde_json::Value;

use super::budget::Tokens;
use super::context;
use super::harmless::harmless;
use super::outcome::{Limit, Outcome};
use super::reading::{self, Reading};
use super::record::{
    Asked, Ended, Entry, Event, Exchange, FailureKind, How, Iteration, ModelFailure, Offered, Runs, Said,
    Setup, Sizes, ToolRecord, ToolResult, What,
};
use super::step::{Misfit, ModelCall, Step, Suspension, ToolCall, Why};
use super::weights::Weights;
use super::{correction, prompt};
use crate::translate::Ids;
use window::SQUEEZES;

/// A model call is tried so often.
const ATTEMPTS: u32 = 3;
/// The pause before the second attempt; twice as long before each further one.
const BACKOFF: u64 = 500;
/// A server cannot ask for a longer pause.
const LONGEST_BACKOFF: u64 = 30_000;
#[derive(Clone, Debug, PartialEq)]
enum Phase {
    Model,
    Summary(std::ops::Range<usize>),
    Pause(u64),
    Tools(Tools),
    Client(Vec<Asked>),
    Done(Box<Outcome>),
}

/// The calls of one reply that are still to be run.
#[derive(Clone, Debug, PartialEq)]
struct Tools {
    /// respool's, the next one first.
    own: Vec<Asked>,
    /// The client's.
    client: Vec<Asked>,
    /// The first of `own` runs.
    begun: bool,
    /// The first of `own` has failed once.
    again: bool,
}

/// One run.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    setup: Setup,
    entries: Vec<Entry>,
    phase: Phase,
    limit: Option<Limit>,
    iterations: Vec<Iteration>,
    rounds: u32,
    spent: Tokens,
    weights: Weights,
    /// Of the model that is asked now.
    sizes: Sizes,
    /// The same, as it was told; a refusal may have taught better since.
    given: Sizes,
    /// Of these, what the client was told of when it was answered last.
    told: Tokens,
    attempts: u32,
    squeezes: u32,
    summaries: u32,
    corrected: bool,
    /// The outcome of the last turn is in the transcript already.
    is_closed: bool,
    worked: u64,
    now: u64,
}

impl Run {
    /// A run that begins.
    pub fn new(setup: Setup) -> Self {
        let entries = setup.messages.iter().cloned().map(Entry::Given).collect();
        let mut run = Self {
            entries,
            phase: Phase::Model,
            limit: None,
            iterations: Vec::new(),
            rounds: 0,
            spent: Tokens::default(),
            told: Tokens::default(),
            weights: Weights::default(),
            sizes: setup.limits.sizes(),
            given: setup.limits.sizes(),
            attempts: 0,
            squeezes: 0,
            summaries: 0,
            corrected: false,
            is_closed: false,
            worked: 0,
            now: setup.at,
            setup,
        };
        run.ask();
        run
    }

    /// A run from what was kept of it.
    ///
    /// # Errors
    /// When the events do not belong to this setup.
    pub fn restore(setup: Setup, events: impl IntoIterator<Item = Event>) -> Result<Self, Misfit> {
        let mut run = Self::new(setup);
        events.into_iter().try_for_each(|event| run.apply(event))?;
        Ok(run)
    }

    /// Its setup.
    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// What it was told of the model that is asked now.
    pub(super) fn given_sizes(&self) -> Sizes {
        self.given
    }

    /// The iterations so far.
    pub fn iterations(&self) -> &[Iteration] {
        &self.iterations
    }

    /// The tokens of all calls so far.
    pub fn spent(&self) -> Tokens {
        self.spent
    }

    /// The same, since the client was last answered.
    pub fn spent_since_answer(&self) -> Tokens {
        self.spent.less(self.told)
    }

    /// The transcript.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// How long it has worked, in milliseconds; waiting for the client does not count.
    pub fn worked(&self) -> u64 {
        self.worked
    }

    /// The calls whose results the client owes.
    pub fn awaited(&self) -> &[Asked] {
        match &self.phase {
            Phase::Client(calls) => calls,
            _ => &[],
        }
    }

    /// How it ended, once it has.
    pub fn outcome(&self) -> Option<&Outcome> {
        match &self.phase {
            Phase::Done(outcome) => Some(outcome),
            _ => None,
        }
    }

    /// How the last turn of a conversation ended, as long as that is not in the transcript.
    pub fn open_outcome(&self) -> Option<&Outcome> {
        self.outcome().filter(|_| !self.is_closed)
    }

    /// The tool call that is next, or under way.
    pub fn next_tool(&self) -> Option<ToolCall> {
        match &self.phase {
            Phase::Tools(tools) => Some(self.tool_call(tools)),
            _ => None,
        }
    }

    /// What to do now.
    pub fn next(&self) -> Step {
        match &self.phase {
            Phase::Model => Step::CallModel(self.model_call()),
            Phase::Summary(range) => Step::CallModel(self.summary_call(&self.entries[range.clone()])),
            Phase::Pause(wait) => Step::Pause(*wait),
            Phase::Tools(tools) => Step::CallTool(self.tool_call(tools)),
            Phase::Client(calls) => Step::Suspend(self.suspension(calls)),
            Phase::Done(outcome) => Step::Finish(outcome.clone()),
        }
    }

    /// Takes in what happened.
    ///
    /// # Errors
    /// When it cannot happen in this state.
    pub fn apply(&mut self, event: Event) -> Result<(), Misfit> {
        self.pass_time(event.at, &event.what);
        let what = event.what.name();
        match (std::mem::replace(&mut self.phase, Phase::Model), event.what) {
            (phase @ Phase::Done(_), What::Resumed | What::Cancelled) => self.phase = phase,
            (phase, What::Resumed) => self.resumed(phase),
            (phase, What::WentOn(message)) => self.went_on(&phase, message),
            (phase, What::Moved(sizes)) => {
                (self.sizes, self.given) = (sizes, sizes);
                // Another model counts otherwise.
                self.weights = Weights::default();
                self.phase = phase;
            }
            (phase @ Phase::Done(_), What::Told(text)) => {
                self.close_turn(&phase);
                self.entries.push(Entry::Note(text));
                self.phase = phase;
            }
            (_, What::Cancelled) => self.end(Outcome::cancelled(self.achieved())),
            (Phase::Model, What::Replied(said)) => self.replied(said),
            (Phase::Model, What::ModelFailed(failure)) => self.model_failed(failure),
            (Phase::Model, What::Looping) => self.stop_at(Limit::Loop),
            (Phase::Summary(range), What::Summarised(said)) => self.summarised(range, Some(said)),
            (Phase::Summary(range), What::ModelFailed(_) | What::Looping) => self.summarised(range, None),
            (Phase::Pause(_), What::Paused) => self.resume_asking(),
            (Phase::Tools(tools), What::Began) => self.phase = Phase::Tools(Tools { begun: true, ..tools }),
            (Phase::Tools(tools), What::Returned(ended)) => self.returned(tools, &ended)?,
            (Phase::Client(calls), What::ClientReturned { results, tail }) => {
                self.client_returned(&calls, &results, tail);
            }
            (phase, _) => {
                self.phase = phase;
                return Err(Misfit(format!("the event `{what}` does not fit the state of the run")));
            }
        }
        Ok(())
    }

    /// Only work counts: not the time for which the client kept the run waiting, nor that in which nobody worked on it.
    fn pass_time(&mut self, at: u64, what: &What) {
        let idle = matches!(
            what,
            What::Resumed | What::ClientReturned { .. } | What::WentOn(_) | What::Told(_) | What::Moved(_)
        );
        if !idle {
            self.worked += at.saturating_sub(self.now);
        }
        self.now = self.now.max(at);
    }

    /// Work ends here, so that there is time for a last answer.
    fn soft_deadline(&self) -> u64 {
        let limits = &self.setup.limits;
        limits.time - limits.model_time.min(limits.time / 5)
    }

    fn model_call(&self) -> ModelCall {
        let last = self.limit.is_some();
        let deadline = if last { self.setup.limits.time } else { self.soft_deadline() };
        let mut messages = prompt::messages(&self.setup, &self.entries, !last);
        if let Some(limit) = &self.limit {
            messages.push(correction::last_words(limit));
        }
        ModelCall {
            why: if last { Why::Last } else { Why::Iteration },
            messages,
            tools: if last { Vec::new() } else { prompt::tools(&self.setup) },
            format: prompt::format(&self.setup).filter(|_| !last),
            max_tokens: self.sizes.max_tokens,
            within: self.setup.limits.model_time.min(deadline.saturating_sub(self.worked)).max(1),
        }
    }

    /// The next model call, or what has to come before it, or the end.
    fn ask(&mut self) {
        self.phase = Phase::Model;
        if self.limit.is_none() {
            self.limit = self.limit_reached();
        }
        self.make_fit();
    }

    fn limit_reached(&mut self) -> Option<Limit> {
        let limits = &self.setup.limits;
        if self.rounds >= limits.iterations {
            return Some(Limit::Iterations(limits.iterations));
        }
        if self.worked >= self.soft_deadline() {
            return Some(Limit::Time(limits.time));
        }
        // There must be enough left for the call and for a last one.
        let budget = limits.tokens.filter(|_| self.rounds > 0)?;
        let needed = (self.weigh() + self.sizes.max_tokens).saturating_mul(2);
        (self.spent.total() + needed > budget).then_some(Limit::Tokens(budget))
    }

    fn resume_asking(&mut self) {
        self.phase = Phase::Model;
        if self.limit.is_none() {
            self.limit = self.limit_reached();
        }
    }

    fn record(&mut self, why: Why, said: &Said, parser: Option<String>) {
        self.spent += said.tokens;
        self.iterations.push(Iteration {
            why: why.as_str().into(),
            tokens: said.tokens,
            model_ms: said.took,
            parser,
            tools: Vec::new(),
        });
    }

    fn replied(&mut self, said: Said) {
        self.weights.learn(said.tokens.prompt);
        self.attempts = 0;
        self.squeezes = 0;
        self.summaries = 0;
        if self.limit.is_some() {
            self.record(Why::Last, &said, None);
            return self.answer(said.content, said.reasoning, said.cut);
        }
        self.rounds += 1;
        let mut ids = Ids::new(self.setup.seed ^ (u64::from(self.rounds) << 32), self.taken());
        let mut reading = reading::read(&said, &self.setup, &mut ids);
        self.without_echoes(&mut reading);
        self.for_the_client(&mut reading, &mut ids);
        self.record(Why::Iteration, &said, reading.parser.clone());
        if reading.calls.is_empty() {
            return self.without_calls(said, reading);
        }
        self.entries.push(Entry::Exchange(Exchange {
            content: said.content,
            reasoning: said.reasoning,
            calls: reading.calls.clone(),
            results: Vec::new(),
        }));
        self.note_refused(&reading);
        self.begin_tools(reading.calls);
    }

    fn taken(&self) -> std::collections::HashSet<String> {
        let calls = self.entries.iter().filter_map(|entry| match entry {
            Entry::Exchange(exchange) => Some(&exchange.calls),
            _ => None,
        });
        calls.flatten().map(|call| call.id.clone()).collect()
    }

    /// A sentence of natural language that announces what has been done already announces nothing.
    fn without_echoes(&self, reading: &mut Reading) {
        if reading.parser.as_deref() != Some("fuzzy") {
            return;
        }
        let done = |call: &Asked| {
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

    /// Ids that leave must be unique among all runs, and a server's own need not be. Kimi's must stay as they are.
    fn for_the_client(&self, reading: &mut Reading, ids: &mut Ids) {
        for call in &mut reading.calls {
            let leaves = self.offered(&call.name).is_some_and(|tool| tool.runs == Runs::There);
            if leaves && !call.id.starts_with("kimi") {
                call.id = ids.choose(None);
            }
        }
    }

    fn offered(&self, name: &str) -> Option<&Offered> {
        self.setup.tools.iter().find(|tool| tool.name == name)
    }

    /// No call: the answer, unless a call was meant.
    fn without_calls(&mut self, said: Said, reading: Reading) {
        let answer = reading.answer.unwrap_or(said.content);
        let only_refused = reading.refused.iter().any(|(name, _)| {
            answer.trim().is_empty() || (!name.is_empty() && answer.trim_start().starts_with(name.as_str()))
        });
        let blank = answer.trim().is_empty();
        let meant = !self.setup.tools.is_empty()
            && (!reading.refused.is_empty() || reading::looks_like_a_call(&answer));
        let again = only_refused || ((meant || blank) && !self.corrected);
        if !again && blank {
            return self.stop_at(Limit::Corrections);
        }
        if !again {
            return self.answer(answer, said.reasoning, said.cut);
        }
        self.corrected |= !only_refused;
        let text = correction::of(&reading.refused, said.cut, blank, &self.setup);
        let content = if blank { correction::NOTHING.to_owned() } else { answer };
        self.entries.push(Entry::Exchange(Exchange {
            content,
            reasoning: said.reasoning,
            ..Exchange::default()
        }));
        self.entries.push(Entry::Note(text));
        self.pause_and_ask();
    }

    fn note_refused(&mut self, reading: &Reading) {
        if !reading.refused.is_empty() {
            // It is said after the results: a template wants them right behind their calls.
            let text = correction::of(&reading.refused, false, false, &self.setup);
            self.entries.push(Entry::Note(text));
        }
    }

    fn answer(&mut self, content: String, reasoning: String, cut: bool) {
        let content = if content.trim().is_empty() { self.achieved() } else { content };
        self.end(Outcome {
            content,
            reasoning,
            cut,
            limit: self.limit.clone(),
            failure: None,
            cancelled: false,
        });
    }

    fn end(&mut self, outcome: Outcome) {
        self.phase = Phase::Done(Box::new(outcome));
    }

    /// What there is to show when the model gives no answer.
    fn achieved(&self) -> String {
        correction::achieved(&self.entries)
    }

    fn begin_tools(&mut self, calls: Vec<Asked>) {
        self.corrected = false;
        let here = |call: &Asked| !self.offered(&call.name).is_some_and(|tool| tool.runs == Runs::There);
        let (own, client) = calls.into_iter().partition(here);
        self.go_on(Tools { own, client, begun: false, again: false });
    }

    /// The next of the calls that can be run; those that cannot are answered at once.
    fn go_on(&mut self, mut tools: Tools) {
        while let Some(call) = tools.own.first() {
            let Some(refusal) = self.refusal(call) else {
                self.phase = Phase::Tools(tools);
                return;
            };
            let call = tools.own.remove(0);
            self.keep(&call, &Ended { how: refusal.0, text: refusal.1, took: 0 });
        }
        if tools.client.is_empty() {
            return self.pause_and_ask();
        }
        self.phase = Phase::Client(tools.client);
    }

    /// Why a call is not run.
    fn refusal(&self, call: &Asked) -> Option<(How, String)> {
        if self.worked >= self.soft_deadline() {
            return Some((How::NotRun, "not run: the time of this run is over".into()));
        }
        let tool = self.offered(&call.name);
        match tool {
            None => Some((How::Failed, correction::unknown(&call.name, &self.setup))),
            Some(tool) if !call.problems.is_empty() => {
                Some((How::Failed, correction::wanted(tool, &call.problems)))
            }
            Some(_) => None,
        }
    }

    fn tool_call(&self, tools: &Tools) -> ToolCall {
        let call = tools.own.first().cloned().unwrap_or_default();
        let (timeout, repeatable) = match self.offered(&call.name).map(|tool| tool.runs) {
            Some(Runs::Here { timeout, repeatable }) => (timeout, repeatable),
            _ => (1, false),
        };
        let within = timeout.min(self.soft_deadline().saturating_sub(self.worked)).max(1);
        ToolCall { call, within, repeatable, again: tools.again }
    }

    fn returned(&mut self, mut tools: Tools, ended: &Ended) -> Result<(), Misfit> {
        if tools.own.is_empty() {
            return Err(Misfit("a result came and no call was out".into()));
        }
        // It may have had its effect before its server stumbled.
        if ended.how == How::Transient && !tools.again && self.tool_call(&tools).repeatable {
            self.phase = Phase::Tools(Tools { begun: false, again: true, ..tools });
            return Ok(());
        }
        let call = tools.own.remove(0);
        self.keep(&call, ended);
        self.go_on(Tools { begun: false, again: false, ..tools });
        Ok(())
    }

    /// Puts a result into the transcript.
    fn keep(&mut self, call: &Asked, ended: &Ended) {
        let limit = self.offered(&call.name).map_or(usize::MAX, |tool| tool.result_limit);
        let text = harmless(&context::head_and_tail(&ended.text, limit).0);
        let text = if text.trim().is_empty() { "(no output)".to_owned() } else { text };
        if let Some(iteration) = self.iterations.last_mut() {
            iteration.tools.push(ToolRecord {
                tool: call.name.clone(),
                outcome: ended.how.as_str().into(),
                took_ms: ended.took,
                result_bytes: ended.text.len(),
                injected_bytes: text.len(),
            });
        }
        self.put(ToolResult { id: call.id.clone(), ok: ended.how == How::Ok, text });
    }

    fn put(&mut self, result: ToolResult) {
        let exchange = self.entries.iter_mut().rev().find_map(|entry| match entry {
            Entry::Exchange(exchange) => Some(exchange),
            _ => None,
        });
        if let Some(exchange) = exchange {
            exchange.results.push(result);
        }
    }

    fn suspension(&self, calls: &[Asked]) -> Suspension {
        let exchange = self.entries.iter().rev().find_map(|entry| match entry {
            Entry::Exchange(exchange) => Some(exchange),
            _ => None,
        });
        let (content, reasoning) =
            exchange.map(|it| (it.content.clone(), it.reasoning.clone())).unwrap_or_default();
        Suspension { calls: calls.to_vec(), content, reasoning }
    }

    fn client_returned(&mut self, calls: &[Asked], results: &[(String, String)], tail: Vec<Value>) {
        for call in calls {
            let result = results.iter().find(|(id, _)| *id == call.id);
            let (how, text) = match result {
                Some((_, text)) => (How::Ok, text.clone()),
                None => (How::NotRun, "the client gave no result for this call".to_owned()),
            };
            self.keep(call, &Ended { how, text, took: 0 });
        }
        self.entries.extend(tail.into_iter().map(Entry::Given));
        self.told = self.spent;
        self.pause_and_ask();
    }

    fn pause_and_ask(&mut self) {
        self.ask();
        let pause = self.setup.limits.pause;
        if pause > 0 && self.phase == Phase::Model && self.limit.is_none() {
            self.phase = Phase::Pause(pause);
        }
    }

    fn model_failed(&mut self, failure: ModelFailure) {
        let late = self.worked >= self.soft_deadline();
        match failure.kind {
            FailureKind::TimedOut | FailureKind::Transient if late && self.limit.is_none() => {
                self.stop_at(Limit::Time(self.setup.limits.time));
            }
            FailureKind::TimedOut | FailureKind::Transient => self.try_again(failure),
            FailureKind::Overflow if self.squeezes < SQUEEZES => self.squeeze(&failure.text),
            FailureKind::Unreadable if !self.corrected && self.limit.is_none() => {
                self.corrected = true;
                self.rounds += 1;
                let refused = correction::named(&failure.text, &self.setup);
                let text =
                    correction::of(&refused, failure.code.starts_with("truncated"), false, &self.setup);
                let content = correction::NOTHING.to_owned();
                self.entries.push(Entry::Exchange(Exchange { content, ..Exchange::default() }));
                self.entries.push(Entry::Note(text));
                self.pause_and_ask();
            }
            // There may be an answer in what it has got.
            FailureKind::Unreadable if self.limit.is_none() => self.stop_at(Limit::Corrections),
            _ => self.abort(failure),
        }
    }

    fn try_again(&mut self, failure: ModelFailure) {
        self.attempts += 1;
        let wait = failure.wait.unwrap_or(BACKOFF << (self.attempts - 1)).min(LONGEST_BACKOFF);
        let deadline = self.setup.limits.time;
        if self.attempts >= ATTEMPTS || self.worked + wait >= deadline {
            return self.abort(failure);
        }
        self.phase = Phase::Pause(wait);
    }

    fn stop_at(&mut self, limit: Limit) {
        self.limit = Some(limit);
        self.ask();
    }

    fn abort(&mut self, failure: ModelFailure) {
        let content = self.achieved();
        let (limit, reasoning) = (self.limit.clone(), String::new());
        self.end(Outcome { content, reasoning, cut: false, limit, failure: Some(failure), cancelled: false });
    }

    /// The next turn of a conversation: the limits count anew.
    fn went_on(&mut self, phase: &Phase, message: Value) {
        self.close_turn(phase);
        self.entries.push(Entry::Turn(message));
        self.is_closed = false;
        (self.limit, self.corrected, self.told) = (None, false, self.spent);
        (self.rounds, self.attempts, self.squeezes, self.summaries, self.worked) = (0, 0, 0, 0, 0);
        self.ask();
    }

    /// What came of the last turn becomes part of the transcript.
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

    /// Calls that were left without a result get one: the first of them may have been under way.
    fn settle_calls(&mut self) {
        let last = self.entries.iter().rev().find_map(|entry| match entry {
            Entry::Exchange(exchange) => Some(exchange),
            _ => None,
        });
        let has_result =
            |exchange: &Exchange, call: &Asked| exchange.results.iter().any(|it| it.id == call.id);
        let open = last.map(|it| it.calls.iter().filter(|call| !has_result(it, call)).collect::<Vec<_>>());
        let ids: Vec<String> = open.into_iter().flatten().map(|call| call.id.clone()).collect();
        for (place, id) in ids.into_iter().enumerate() {
            let text = if place == 0 { correction::STOPPED_CALL } else { correction::NOT_BEGUN };
            self.put(ToolResult { id, ok: false, text: text.to_owned() });
        }
    }

    /// A call that ran when the process ended is made again only if that is safe.
    fn resumed(&mut self, phase: Phase) {
        match phase {
            Phase::Tools(tools) if tools.begun => {
                if self.tool_call(&tools).repeatable {
                    self.phase = Phase::Tools(Tools { begun: false, ..tools });
                    return;
                }
                let ended = Ended { how: How::Unknown, text: correction::OUTCOME_UNKNOWN.into(), took: 0 };
                let mut tools = tools;
                let call = tools.own.remove(0);
                self.keep(&call, &ended);
                self.go_on(Tools { begun: false, again: false, ..tools });
            }
            phase => self.phase = phase,
        }
    }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
