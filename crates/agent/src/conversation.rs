//! A conversation with a person: one run of many turns, on the same loop and in the same store as the agents'
//! runs.
//!
//! While it is open it counts as running, so that no other process takes it up; closed, it waits in the store
//! for the next time. Knows nothing of terminals. Called by `chat`.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::activity::{Activity, Observer};
use super::budget::Tokens;
use super::call::RequestedCall;
use super::cleanup;
use super::definition::Agent;
use super::driver::{Driver, StopSignals, WorkEnd};
use super::event::EventKind;
use super::journal::{Committed, Journal};
use super::new_setup::new_setup;
use super::outcome::Outcome;
use super::report;
use super::request::AgentRequest;
use super::resume_error::ResumeError;
use super::run::Run;
use super::setup::ModelSizes;
use super::stored::{new_run_id, restore, whole_transcript};
use super::telemetry::Telemetry;
use super::transcript::{Entry, Iteration};
use store::{ClaimScope, NewRun, Status, Store, StoredRun};
use telemetry::ErrorReport;
use tools::Approver;

/// A conversation of an agent with a person, and its place in the store.
pub struct Conversation {
    agent: Agent,
    store: Option<Arc<Store>>,
    report: ErrorReport,
    log_content: bool,
    /// Identifies the place of the conversation: the next one looks it up in the store.
    place: String,
    held: Option<Held>,
    /// The model of the last turn; `None`: another process knows.
    asked: Option<String>,
}

/// A conversation that can be resumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastConversation {
    /// Its id.
    pub id: String,
    /// The first words that the person wrote.
    pub title: String,
    /// When something happened to it last, in milliseconds since 1970.
    pub updated: u64,
}

/// The cost of replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Tokens, as far as servers reported them.
    pub tokens: Tokens,
    /// Replies that came to their end.
    pub calls: usize,
    /// Of these, those whose server reported none.
    pub uncounted: usize,
}

impl Spent {
    /// Returns the difference to an earlier sum.
    #[must_use]
    pub fn less(&self, before: &Self) -> Self {
        Self {
            tokens: self.tokens.less(before.tokens),
            calls: self.calls.saturating_sub(before.calls),
            uncounted: self.uncounted.saturating_sub(before.uncounted),
        }
    }
}

/// A conversation that has begun.
struct Held {
    run: Run,
    journal: Journal,
}

impl Conversation {
    /// Returns a conversation that begins with the next turn. `store`: `None` where it cannot be kept.
    pub fn new(
        agent: Agent,
        store: Option<Arc<Store>>,
        report: ErrorReport,
        log_content: bool,
        place: String,
    ) -> Self {
        Self { agent, store, report, log_content, place, held: None, asked: None }
    }

    /// Resumes the latest conversation of its own place and of `others`; false if the store has none.
    ///
    /// # Errors
    /// The reason why it cannot be resumed.
    pub async fn resume_last(&mut self, others: &[String]) -> Result<bool, ResumeError> {
        let store = self.store.clone().ok_or(ResumeError::NotStored)?;
        store.mark_orphans().await?;
        let mut latest: Option<StoredRun> = None;
        for place in others.iter().chain([&self.place]) {
            let Some(id) = store.unanswered_run(place, 0).await? else { continue };
            let found = store.run(&id).await?;
            latest = latest.into_iter().chain(found).max_by_key(|stored| stored.row.updated);
        }
        let Some(stored) = latest else { return Ok(false) };
        self.resume_stored(store, &stored).await?;
        Ok(true)
    }

    /// Returns the latest conversations of its own place, the latest first.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn list_past(&self, most: usize) -> Result<Vec<PastConversation>, ResumeError> {
        let store = self.store.clone().ok_or(ResumeError::NotStored)?;
        store.mark_orphans().await?;
        let mut past = Vec::new();
        for id in store.runs_of_work(&self.place).await?.iter().rev().take(most) {
            let Some(stored) = store.run(id).await? else { continue };
            let title = report::title(&stored).unwrap_or_default();
            past.push(PastConversation { id: id.clone(), title, updated: stored.row.updated });
        }
        past.sort_by_key(|conversation| std::cmp::Reverse(conversation.updated));
        Ok(past)
    }

    /// Resumes the conversation of this id.
    ///
    /// # Errors
    /// The reason why it cannot be resumed.
    pub async fn resume(&mut self, id: &str) -> Result<(), ResumeError> {
        let store = self.store.clone().ok_or(ResumeError::NotStored)?;
        let stored = store.run(id).await?.ok_or(ResumeError::OtherVersion)?;
        self.resume_stored(store, &stored).await
    }

    async fn resume_stored(&mut self, store: Arc<Store>, stored: &StoredRun) -> Result<(), ResumeError> {
        let id = &stored.row.id;
        let (run, _) = restore(stored).ok_or(ResumeError::OtherVersion)?;
        let epoch = store.claim(id, ClaimScope::IdleOrOver).await?;
        let epoch = epoch.ok_or(ResumeError::OpenElsewhere)?;
        let journal = Journal::new(id, epoch, Some(store), stored.events.len() as u64);
        self.held = Some(Held { run, journal });
        self.asked = self.last_model().map(str::to_owned);
        Ok(())
    }

    /// Clears what is too old or too much from the store, while the conversation begins. An error shows again
    /// when something must be kept.
    pub fn clear_old(&self) {
        if let Some(store) = self.store.clone() {
            tokio::spawn(async move { cleanup::clear_once(&store).await });
        }
    }

    /// Returns the agent. A change takes effect with the next turn, except for the prompt and the tools.
    pub fn agent_mut(&mut self) -> &mut Agent {
        &mut self.agent
    }

    /// Returns the transcript.
    pub fn entries(&self) -> &[Entry] {
        self.held.as_ref().map_or(&[], |held| held.run.entries())
    }

    /// Returns the transcript with the entries that summaries stand for, as far as the store has them.
    pub async fn whole_transcript(&self) -> Vec<Entry> {
        let entries = self.entries();
        let is_summary = |entry: &Entry| matches!(entry, Entry::Summary(_));
        let stored = async {
            let (store, held) = (self.store.as_ref()?, self.held.as_ref()?);
            whole_transcript(&store.run(held.journal.run_id()).await.ok()??)
        };
        let whole = if entries.iter().any(is_summary) { stored.await } else { None };
        // The newest entries may be unwritten, as on a full disk.
        whole.filter(|whole| whole.last() == entries.last()).unwrap_or_else(|| entries.to_vec())
    }

    /// Returns how the last turn ended, as long as its answer is not in the transcript; `None` also before
    /// the first turn.
    pub fn open_outcome(&self) -> Option<&Outcome> {
        self.held.as_ref().and_then(|held| held.run.open_outcome())
    }

    /// Returns true for one whose last turn did not come to its end.
    pub fn is_interrupted(&self) -> bool {
        self.held.as_ref().is_some_and(|held| held.run.outcome().is_none())
    }

    /// Returns the call that was in progress when the process ended.
    pub fn interrupted_call(&self) -> Option<&RequestedCall> {
        self.held.as_ref().and_then(|held| held.run.started_call())
    }

    /// Returns the model that gave the last reply; `None` if it is not known.
    pub fn last_model(&self) -> Option<&str> {
        let last = self.held.as_ref()?.run.iterations().last()?;
        Some(last.model.as_str()).filter(|model| !model.is_empty())
    }

    /// Adds a note on something that happened since the last turn; the model gets it with the next one.
    pub async fn add_note(&mut self, text: String) {
        let Some(Held { mut run, journal }) = self.held.take() else { return };
        let mut driver =
            self.new_driver(journal, Arc::new(|_: Activity<'_>| {}), None, CancellationToken::new());
        driver.record_event(&mut run, EventKind::NoteAdded(text)).await;
        self.hold_run(run, driver).await;
    }

    /// Returns the cost up to now.
    pub fn total_cost(&self) -> Spent {
        let Some(Held { run, .. }) = &self.held else { return Spent::default() };
        let is_uncounted = |call: &&Iteration| call.tokens.total() == 0;
        Spent {
            tokens: run.spent_tokens(),
            calls: run.iterations().len(),
            uncounted: run.iterations().iter().filter(is_uncounted).count(),
        }
    }

    /// Returns the tokens up to now by the model that was asked; the model of the next turn stands for those
    /// that are not known.
    pub fn tokens_by_model(&self) -> Vec<(String, Tokens)> {
        let iterations = self.held.as_ref().map_or(&[][..], |held| held.run.iterations());
        sum_by_model(iterations, &self.agent.config.model)
    }

    /// Runs one turn: the person's message, and the model's work on it. `pictures`: parts of the message.
    pub async fn run_turn(
        &mut self,
        text: &str,
        pictures: Vec<Value>,
        observer: Arc<Observer>,
        approver: Option<Arc<dyn Approver>>,
        stop: CancellationToken,
    ) -> Outcome {
        let content = if pictures.is_empty() {
            Value::from(text)
        } else {
            [json!({"type": "text", "text": text})].into_iter().chain(pictures).collect()
        };
        let message = json!({"role": "user", "content": content});
        let (Held { mut run, journal }, first) = match self.held.take() {
            Some(held) => (held, Some(EventKind::TurnStarted(message))),
            None => (self.begin_run(message).await, None),
        };
        if first.is_none() && self.store.is_some() && !journal.is_complete() {
            observer(Activity::NotStored);
        }
        let mut driver = self.new_driver(journal, observer, approver, stop);
        driver.telemetry.log_start(&run, if first.is_some() { "next turn" } else { "begins" });
        if let Some(first) = first {
            self.go_on(&mut driver, &mut run, first).await;
        }
        self.asked = Some(self.agent.config.model.clone());
        let (began, before) = (Instant::now(), run.iterations().len());
        let end = driver.drive_run(&mut run).await;
        let overhead = began.elapsed().saturating_sub(driver.waited);
        driver.telemetry.log_stop("over", overhead, run.iterations().len() - before);
        self.hold_run(run, driver).await;
        match end {
            WorkEnd::Finished(outcome) => outcome,
            // Nothing of this set-up suspends a run or leaves it.
            WorkEnd::Suspended(_) | WorkEnd::AwaitingApproval(_) | WorkEnd::Left => {
                Outcome::from_cancel(String::new())
            }
        }
    }

    /// Records the event with which the conversation goes on, and first a change of the model.
    async fn go_on(&mut self, driver: &mut Driver, run: &mut Run, first: EventKind) {
        driver.journal.forget_cancel().await;
        let sizes = self.agent.learn_sizes(None).await;
        if is_move(self.asked.as_deref(), &self.agent.config.model, run.configured_sizes(), sizes) {
            driver.record_event(run, EventKind::ModelChanged(sizes)).await;
        }
        driver.record_event(run, first).await;
        self.asked = Some(self.agent.config.model.clone());
    }

    /// Has the model summarise the conversation up to now; the summary stands in its place from then on.
    /// Returns about how many tokens the next prompt had before and has now.
    ///
    /// # Errors
    /// The reason why the conversation stays as it is, for people.
    pub async fn compact(
        &mut self,
        observer: Arc<Observer>,
        stop: CancellationToken,
    ) -> Result<(u64, u64), String> {
        let is_open = |run: &Run| run.open_outcome().is_some_and(Outcome::has_answer);
        let is_ready = |run: &Run| run.outcome().is_some() && run.compactable().is_some();
        let held = self.held.take_if(|held| is_open(&held.run) || is_ready(&held.run));
        let Held { mut run, journal } = held.ok_or("there is nothing to summarise")?;
        let why = Arc::new(Mutex::new(None));
        let failure_of_call = Arc::clone(&why);
        let watch = move |activity: Activity<'_>| {
            if let Activity::ModelFailed { failure, .. } = activity {
                *failure_of_call.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure.text.clone());
            }
            observer(activity);
        };
        let mut driver = self.new_driver(journal, Arc::new(watch), None, stop.clone());
        let before = run.likely_prompt();
        self.go_on(&mut driver, &mut run, EventKind::CompactionStarted).await;
        driver.drive_run(&mut run).await;
        let after = run.likely_prompt();
        let is_done = matches!(run.entries().last(), Some(Entry::Summary(_)));
        self.hold_run(run, driver).await;
        let why = why.lock().unwrap_or_else(PoisonError::into_inner).take();
        match why {
            _ if is_done => Ok((before, after)),
            _ if stop.is_cancelled() => Err("stopped".to_owned()),
            Some(why) => Err(why),
            None => Err("the model gave no summary".to_owned()),
        }
    }

    /// Returns about how many tokens the conversation has, and those of the model's window.
    pub fn context_size(&self) -> Option<(u64, u64)> {
        let run = &self.held.as_ref()?.run;
        Some((run.clone().likely_prompt(), run.configured_sizes().window))
    }

    /// Holds the conversation between two turns. One with gaps in the store is no longer written there.
    async fn hold_run(&mut self, run: Run, driver: Driver) {
        let mut journal = driver.journal;
        if !journal.is_complete() {
            journal.give_up();
        }
        self.held = Some(Held { run, journal });
        self.mark_status(Status::Running).await;
    }

    async fn begin_run(&self, message: Value) -> Held {
        let id = new_run_id();
        let sizes = self.agent.learn_sizes(None).await;
        let request = AgentRequest::from_person(message);
        let setup = new_setup(&self.agent, request, sizes, rand::random(), clock::now());
        let new = NewRun {
            id: id.clone(),
            agent: self.agent.name.to_string(),
            at: setup.at,
            fingerprint: self.place.clone(),
            client: String::new(),
            setup: serde_json::to_string(&setup).unwrap_or_default(),
        };
        let run = Run::new(setup);
        let mut journal = Journal::new(&id, Store::FIRST_EPOCH, self.store.clone(), 0);
        if let Some(store) = &self.store
            && let Err(error) = store.begin(new).await
        {
            self.new_telemetry(&id).not_durable(&run, &error);
            journal.give_up();
        }
        Held { run, journal }
    }

    fn new_driver(
        &self,
        journal: Journal,
        observer: Arc<Observer>,
        approver: Option<Arc<dyn Approver>>,
        stop: CancellationToken,
    ) -> Driver {
        let telemetry = self.new_telemetry(journal.run_id());
        let stops = StopSignals { cancel: stop, ..StopSignals::default() };
        let mut driver = Driver::new(&self.agent, journal, telemetry, stops, observer);
        driver.approver = approver;
        driver.model.streams = true;
        driver
    }

    fn new_telemetry(&self, id: &str) -> Telemetry {
        Telemetry {
            run: id.to_owned(),
            agent: Arc::clone(&self.agent.name),
            report: self.report.clone(),
            content: self.log_content,
            spans: None,
        }
    }

    /// Closes the conversation: the next turn begins another one, and this one can be resumed.
    pub async fn close(&mut self) {
        self.leave_as(Status::Suspended).await;
    }

    /// Closes a conversation whose question is answered. It can be resumed, too.
    pub async fn finish(&mut self) {
        self.leave_as(Status::Done).await;
    }

    async fn leave_as(&mut self, status: Status) {
        self.mark_status(status).await;
        self.held = None;
    }

    async fn mark_status(&mut self, status: Status) {
        let Some(mut held) = self.held.take() else { return };
        if let Committed::Failed(error) = held.journal.commit_status(status).await {
            self.new_telemetry(held.journal.run_id()).not_durable(&held.run, &error);
            held.journal.give_up();
        }
        self.held = Some(held);
    }
}

/// Sums tokens by model. `unnamed` stands for a model that is not known.
fn sum_by_model(iterations: &[Iteration], unnamed: &str) -> Vec<(String, Tokens)> {
    let mut sums: Vec<(String, Tokens)> = Vec::new();
    for Iteration { model, tokens, .. } in iterations {
        let model = if model.is_empty() { unnamed } else { model };
        match sums.iter_mut().find(|(known, _)| known == model) {
            Some((_, sum)) => *sum += *tokens,
            None => sums.push((model.to_owned(), *tokens)),
        }
    }
    sums
}

/// Returns true when the next turn goes to a model of another size, or to another one of the same size: it
/// counts tokens otherwise. `asked`: the model of the last turn, unless another process asked it.
fn is_move(asked: Option<&str>, model: &str, known: ModelSizes, sizes: ModelSizes) -> bool {
    sizes != known || asked.is_some_and(|asked| asked != model)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_model_has_its_tokens() {
        let of = |model: &str, prompt| Iteration {
            model: model.into(),
            tokens: Tokens { prompt, ..Tokens::default() },
            ..Iteration::default()
        };
        let sums = sum_by_model(&[of("", 1), of("b", 2), of("a", 4), of("b", 8)], "a");
        let sums: Vec<(&str, u64)> = sums.iter().map(|(model, sum)| (model.as_str(), sum.prompt)).collect();
        assert_eq!(sums, [("a", 5), ("b", 10)]);
    }

    #[test]
    fn a_model_of_equal_window_is_a_move() {
        let of = |window| ModelSizes { window, ..ModelSizes::default() };
        for (asked, model, sizes, expected) in [
            (Some("a"), "a", of(1), false),
            (Some("a"), "b", of(1), true),
            (Some("a"), "a", of(2), true),
            (None, "a", of(1), false),
            (None, "a", of(2), true),
        ] {
            assert_eq!(is_move(asked, model, of(1), sizes), expected, "{asked:?} {model}");
        }
    }
}
