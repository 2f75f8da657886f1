//! The agent's loop as a state machine: [`Run::next`] says what to do, [`Run::apply`] takes in what happened.
//!
//! No clock, no I/O, no randomness: time comes in with events, and the ids of calls follow from the setup's
//! seed. So a run is its setup and its events, and restoring it means applying them again. Executed by
//! `driver`.

mod calls;
mod idempotence;
mod replies;
mod state;
mod turns;
mod waits;
mod window;

use super::approval::ApprovalRequest;
use super::budget::Tokens;
use super::call::RequestedCall;
use super::event::{Event, EventKind};
use super::neutralize::MarkEscaper;
use super::outcome::{Limit, Outcome};
use super::setup::{ModelSizes, Setup};
use super::step::{Action, CallPurpose, ModelStep, Step, ToolStep, UnexpectedEvent};
use super::transcript::{Entry, Iteration};
use super::{correction, prompt};
pub use state::Run;
use state::{ApprovalWait, AskedModel, Phase, SpentTokens, TurnState};

impl Run {
    /// A run that begins.
    pub fn new(setup: Setup) -> Self {
        let entries = setup.messages.iter().cloned().map(Entry::ClientMessage).collect();
        let mut run = Self {
            entries,
            phase: Phase::Model,
            turn: TurnState::default(),
            iterations: Vec::new(),
            made: Vec::new(),
            approvals: 0,
            answers_late: false,
            spent: SpentTokens::default(),
            model: AskedModel::new(setup.limits.sizes()),
            is_closed: false,
            now: setup.at,
            setup,
        };
        run.ask_model();
        run
    }

    /// A run from what the store has of it.
    ///
    /// # Errors
    /// When the events do not belong to this setup.
    pub fn restore(setup: Setup, events: impl IntoIterator<Item = Event>) -> Result<Self, UnexpectedEvent> {
        let mut run = Self::new(setup);
        events.into_iter().try_for_each(|event| run.apply(event))?;
        Ok(run)
    }

    /// Its setup.
    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// The sizes of the model that is asked now, as they were configured or announced.
    pub(super) fn configured_sizes(&self) -> ModelSizes {
        self.model.configured
    }

    /// The number of iterations.
    pub fn iterations(&self) -> &[Iteration] {
        &self.iterations
    }

    /// The tokens of all calls.
    pub fn spent_tokens(&self) -> Tokens {
        self.spent.total
    }

    /// The same, since the client was last answered.
    pub fn spent_since_answer(&self) -> Tokens {
        self.spent.total.less(self.spent.at_answer)
    }

    /// The transcript.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// How long this turn has worked, in milliseconds; waiting for the client or for consent does not count.
    pub fn working_time(&self) -> u64 {
        self.turn.worked
    }

    /// The calls whose results the client owes.
    pub fn awaited_calls(&self) -> &[RequestedCall] {
        match &self.phase {
            Phase::Client(calls) => calls,
            _ => &[],
        }
    }

    /// The request that waits for a decision.
    pub fn awaited_approval(&self) -> Option<&ApprovalRequest> {
        match &self.phase {
            Phase::Approval(wait) => Some(&wait.request),
            _ => None,
        }
    }

    /// Whether those who asked may wait for its answer no longer: it has waited for consent, or was resumed.
    pub fn answers_late(&self) -> bool {
        self.answers_late
    }

    /// The child run that it waits for.
    pub fn awaited_child(&self) -> Option<&str> {
        match &self.phase {
            Phase::Child(wait) => Some(&wait.child),
            _ => None,
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
    pub fn next_tool(&self) -> Option<ToolStep> {
        match self.next() {
            Step::Act(Action::CallTool(step)) => Some(step),
            _ => None,
        }
    }

    /// The tool call that is under way, as far as the run knows.
    pub(super) fn started_call(&self) -> Option<&RequestedCall> {
        match &self.phase {
            Phase::Calls(queue) if queue.has_started() => Some(&queue.current),
            _ => None,
        }
    }

    /// Returns the next step.
    pub fn next(&self) -> Step {
        match &self.phase {
            Phase::Model => Step::Act(Action::CallModel(self.model_step())),
            Phase::Summary(range) | Phase::Compaction(range, _) => {
                Step::Act(Action::CallModel(self.summary_step(&self.entries[range.clone()])))
            }
            Phase::Pause(wait) => Step::Act(Action::Pause(*wait)),
            Phase::Calls(queue) => Step::Act(self.call_action(queue)),
            Phase::Child(wait) => Step::Act(self.child_action(wait)),
            Phase::Approval(wait) => Step::AwaitApproval(wait.request.clone()),
            Phase::Client(calls) => Step::AwaitClient(self.suspension(calls)),
            Phase::Done(outcome) => Step::Finish(outcome.clone()),
        }
    }

    /// Takes in what happened.
    ///
    /// # Errors
    /// When it cannot happen in this state. The run then is as it was.
    pub fn apply(&mut self, event: Event) -> Result<(), UnexpectedEvent> {
        let Event { at, kind } = event;
        if !self.expects(&kind) {
            return Err(UnexpectedEvent(format!(
                "the event `{}` cannot happen to a run that {}",
                kind.name(),
                self.phase.name()
            )));
        }
        self.pass_time(at, &kind);
        self.take_in(kind);
        Ok(())
    }

    /// Whether this can happen now.
    fn expects(&self, kind: &EventKind) -> bool {
        match kind {
            EventKind::Resumed
            | EventKind::Cancelled
            | EventKind::Aborted(_)
            | EventKind::TurnStarted(_)
            | EventKind::ModelChanged(_) => true,
            EventKind::NoteAdded(_) | EventKind::CompactionStarted => {
                matches!(self.phase, Phase::Done(_) | Phase::Summary(_))
            }
            EventKind::ModelReplied(_) => self.phase == Phase::Model,
            EventKind::ModelFailed(_) | EventKind::LoopDetected => {
                matches!(self.phase, Phase::Model | Phase::Summary(_) | Phase::Compaction(..))
            }
            EventKind::Summarised(_) => matches!(self.phase, Phase::Summary(_) | Phase::Compaction(..)),
            EventKind::PauseEnded => matches!(self.phase, Phase::Pause(_)),
            EventKind::ToolStarted
            | EventKind::ToolFinished(_)
            | EventKind::ApprovalRequested(_)
            | EventKind::HandedOver(_)
            | EventKind::ChildStarted { .. } => {
                matches!(&self.phase, Phase::Calls(queue) if self.expects_of_call(queue, kind))
            }
            EventKind::ApprovalEscalated => matches!(self.phase, Phase::Approval(_)),
            EventKind::ApprovalDecided(decision) => {
                self.awaited_approval().is_some_and(|request| request.id == decision.request)
            }
            EventKind::ChildFinished(end) => self.awaited_child() == Some(&end.child),
            EventKind::ClientReturned { .. } => matches!(self.phase, Phase::Client(_)),
        }
    }

    fn take_in(&mut self, kind: EventKind) {
        // Versions before this one ended a turn without summarising the last exchange.
        let ends_turn = match (&self.phase, &kind) {
            (Phase::Summary(_), EventKind::NoteAdded(_) | EventKind::CompactionStarted) => true,
            (Phase::Summary(range), EventKind::TurnStarted(_)) => self.is_last_resort(range),
            _ => false,
        };
        if ends_turn {
            self.does_not_fit();
        }
        self.turn.stopped_in_call |=
            self.phase.is_in_call() && matches!(kind, EventKind::Cancelled | EventKind::Aborted(_));
        match (std::mem::replace(&mut self.phase, Phase::Model), kind) {
            (phase @ Phase::Done(_), EventKind::Resumed | EventKind::Cancelled | EventKind::Aborted(_)) => {
                self.phase = phase;
            }
            (phase @ Phase::Done(_), EventKind::CompactionStarted) => self.start_compaction(phase),
            (
                Phase::Compaction(range, outcome),
                kind @ (EventKind::Summarised(_)
                | EventKind::ModelFailed(_)
                | EventKind::LoopDetected
                | EventKind::Cancelled
                | EventKind::Aborted(_)),
            ) => self.end_compaction(range, outcome, kind),
            (_, EventKind::Cancelled) => self.end(Outcome::from_cancel(self.partial_answer())),
            (_, EventKind::Aborted(failure)) => self.abort(failure),
            (phase, EventKind::Resumed) => self.resume_phase(phase),
            (phase, EventKind::TurnStarted(message)) => self.start_turn(&phase, message),
            (phase, EventKind::ModelChanged(sizes)) => {
                self.model = AskedModel::new(sizes);
                self.phase = phase;
            }
            (phase, EventKind::NoteAdded(text)) => self.add_note(phase, text),
            (Phase::Summary(range), EventKind::Summarised(reply)) => self.apply_summary(range, Some(reply)),
            (Phase::Summary(range), EventKind::ModelFailed(_) | EventKind::LoopDetected) => {
                self.apply_summary(range, None);
            }
            (Phase::Model, EventKind::ModelReplied(reply)) => self.take_reply(reply),
            (Phase::Model, EventKind::ModelFailed(failure)) => self.model_failed(failure),
            (Phase::Model, EventKind::LoopDetected) => self.stop_at(Limit::Loop),
            (Phase::Pause(_), EventKind::PauseEnded) => self.resume_asking(),
            (Phase::Calls(queue), kind) => self.call_event(queue, kind),
            (Phase::Approval(wait), EventKind::ApprovalDecided(decision)) => {
                self.apply_decision(wait, &decision);
            }
            (Phase::Approval(wait), _) => {
                self.phase = Phase::Approval(ApprovalWait { is_escalated: true, ..wait });
            }
            (Phase::Child(wait), EventKind::ChildFinished(end)) => self.child_finished(wait, &end),
            (Phase::Client(calls), EventKind::ClientReturned { results, tail }) => {
                self.client_returned(&calls, &results, tail);
            }
            // `expects` has refused everything else.
            (phase, _) => self.phase = phase,
        }
    }

    /// Only work counts: not the time for which the client or a person kept the run waiting, nor that in
    /// which no process worked on it. A child reports its own.
    fn pass_time(&mut self, at: u64, kind: &EventKind) {
        let worked = match kind {
            EventKind::Resumed
            | EventKind::ClientReturned { .. }
            | EventKind::TurnStarted(_)
            | EventKind::NoteAdded(_)
            | EventKind::ModelChanged(_)
            | EventKind::CompactionStarted
            | EventKind::ApprovalEscalated
            | EventKind::ApprovalDecided(_) => 0,
            EventKind::ChildFinished(end) => end.worked,
            EventKind::Cancelled | EventKind::Aborted(_)
                if matches!(self.phase, Phase::Approval(_) | Phase::Client(_) | Phase::Child(_)) =>
            {
                0
            }
            _ => at.saturating_sub(self.now),
        };
        self.turn.worked += worked;
        self.now = self.now.max(at);
    }

    /// Work ends here, so that there is time for a last answer.
    fn soft_deadline(&self) -> u64 {
        let limits = &self.setup.limits;
        let reserve = if self.setup.ends_at_limits { 0 } else { limits.model_time.min(limits.time / 5) };
        limits.time - reserve
    }

    /// The time that is left before [`Run::soft_deadline`].
    fn time_left(&self) -> u64 {
        self.soft_deadline().saturating_sub(self.turn.worked)
    }

    fn model_step(&self) -> ModelStep {
        let is_last = self.turn.limit.is_some();
        let deadline = if is_last { self.setup.limits.time } else { self.soft_deadline() };
        let mut messages = prompt::messages(&self.setup, &self.entries, !is_last, self.mark_escaper());
        if let Some(limit) = &self.turn.limit {
            messages.push(correction::last_words(limit));
        }
        ModelStep {
            purpose: if is_last { CallPurpose::Last } else { CallPurpose::Iteration },
            messages,
            tools: if is_last { Vec::new() } else { prompt::tools(&self.setup, self.mark_escaper()) },
            format: prompt::response_format(&self.setup).filter(|_| !is_last),
            max_tokens: self.reply_tokens(),
            within: self.setup.limits.model_time.min(deadline.saturating_sub(self.turn.worked)).max(1),
        }
    }

    /// Breaks the template marks of the model that is asked now.
    fn mark_escaper(&self) -> MarkEscaper {
        MarkEscaper(self.model.sizes.dialects)
    }

    /// The next model call, or what has to come before it, or the end.
    fn ask_model(&mut self) {
        self.phase = Phase::Model;
        if !self.ends_at_a_limit() {
            self.make_fit();
        }
    }

    /// Notes the limit that is reached. True when the run has ended with it.
    fn ends_at_a_limit(&mut self) -> bool {
        if self.turn.limit.is_none() {
            self.turn.limit = self.limit_reached();
        }
        let ends = self.setup.ends_at_limits && self.turn.limit.is_some();
        if ends {
            let (content, limit) = (self.partial_answer(), self.turn.limit.clone());
            self.end(Outcome { content, limit, ..Outcome::default() });
        }
        ends
    }

    fn limit_reached(&mut self) -> Option<Limit> {
        let limits = &self.setup.limits;
        if self.turn.iterations >= limits.iterations {
            return Some(Limit::Iterations(limits.iterations));
        }
        if self.turn.worked >= self.soft_deadline() {
            return Some(Limit::Time(limits.time));
        }
        // There must be enough left for the call and for a last one.
        let budget = limits.tokens.filter(|_| self.turn.iterations > 0)?;
        let needed = (self.weigh_prompt() + self.model.sizes.max_tokens).saturating_mul(2);
        (self.spent.total.total() + needed > budget).then_some(Limit::Tokens(budget))
    }

    fn resume_asking(&mut self) {
        self.phase = Phase::Model;
        self.ends_at_a_limit();
    }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
