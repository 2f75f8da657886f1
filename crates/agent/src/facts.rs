//! The facts that the committed events give about a stored run: its snapshot, its calls with their ends, and
//! its outcome. Called by code that repeats work of an earlier run.

use super::approval::Decision;
use super::call::{CallOutcome, RequestedCall, ToolEnd};
use super::event::{ChildEnd, Event, EventKind};
use super::outcome::Outcome;
use super::run::Run;
use super::run_snapshot::RunSnapshot;
use super::setup::{EndsRun, Setup};
use super::step::{Action, ChildStep, Step};
use store::{StoreError, StoredRun};

/// A stored run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunFacts {
    /// Its id.
    pub id: String,
    /// Identifies the package that the agent was made from.
    pub snapshot: RunSnapshot,
    /// The calls that were made, in order, but for those that were repeated at once.
    pub calls: Vec<MadeCall>,
    /// Its child runs.
    pub children: Vec<ChildFacts>,
    /// Its texts are private.
    pub is_private: bool,
    /// Whether a person has approved a call of it.
    pub has_consent: bool,
    /// How it ended, once it has.
    pub outcome: Option<Outcome>,
}

/// A child run of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct ChildFacts {
    /// Its id.
    pub id: String,
    /// The number of calls that the run had made before it began.
    pub before: usize,
    /// Its own calls, once they are read.
    pub calls: Vec<MadeCall>,
    /// The call that it was, once it has ended.
    pub made: Option<MadeCall>,
}

/// A call that a run made.
#[derive(Clone, Debug, PartialEq)]
pub struct MadeCall {
    /// The call.
    pub call: RequestedCall,
    /// How it ended.
    pub outcome: CallOutcome,
    /// How it ended.
    pub text: String,
    /// Whether it may simply be made again.
    pub is_repeatable: bool,
    /// Whether a call of this tool ends the run.
    pub ends_run: EndsRun,
}

/// Why what a run did is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FactsError {
    /// The store cannot be read.
    #[error(transparent)]
    Store(StoreError),
    /// This run cannot be read.
    #[error(
        "the run {0} is damaged or was written by another version of respool, so it is not known which calls it made; find \
                     out, delete the run (respool runs remove {0}), and then start the work again"
    )]
    Unreadable(String),
}

impl RunFacts {
    /// Reads a stored run; `None` for one of another version.
    pub fn from_stored(stored: &StoredRun) -> Option<Self> {
        let setup: Setup = serde_json::from_str(&stored.setup).ok()?;
        let mut reader = Reader {
            run: Run::new(setup),
            has_started: false,
            has_consent: false,
            calls: Vec::new(),
            children: Vec::new(),
        };
        for event in &stored.events {
            let kind: EventKind = serde_json::from_str(&event.body).ok()?;
            reader.note_event(&kind);
            reader.run.apply(Event { at: event.at, kind }).ok()?;
        }
        reader.note_open();
        let Reader { run, calls, children, has_consent, .. } = reader;
        let (snapshot, is_private) = (run.setup().snapshot.clone(), run.setup().is_private);
        let outcome = run.outcome().cloned();
        let id = stored.row.id.clone();
        Some(Self { id, snapshot, calls, children, is_private, has_consent, outcome })
    }

    /// Returns its calls, with those of each child run where it began.
    pub fn all_calls(&self) -> Vec<MadeCall> {
        let mut all = self.calls.clone();
        // The last first: what is put in moves what follows.
        for child in self.children.iter().rev() {
            let before = child.before.min(all.len());
            all.splice(before..before, child.calls.iter().cloned());
        }
        all
    }
}

struct Reader {
    run: Run,
    /// A call is under way.
    has_started: bool,
    has_consent: bool,
    calls: Vec<MadeCall>,
    children: Vec<ChildFacts>,
}

impl Reader {
    /// Notes the state of the current call, before the run applies the event.
    fn note_event(&mut self, kind: &EventKind) {
        match kind {
            EventKind::ToolStarted => self.has_started = true,
            EventKind::ToolFinished(ended) => self.note_tool_end(ended),
            EventKind::HandedOver(call) => {
                self.push_call(call.clone(), CallOutcome::HandedOver, String::new(), false);
            }
            EventKind::ApprovalDecided(decision) => {
                self.has_consent |= !decision.approved_calls().is_empty();
                self.note_rejected(decision);
            }
            EventKind::ChildStarted { child } => {
                let (id, before) = (child.clone(), self.calls.len());
                self.children.push(ChildFacts { id, before, calls: Vec::new(), made: None });
            }
            EventKind::ChildFinished(end) => self.note_child_end(end),
            EventKind::Resumed | EventKind::Cancelled | EventKind::Aborted(_) => self.note_open(),
            _ => {}
        }
    }

    fn note_rejected(&mut self, decision: &Decision) {
        let asked = self.run.awaited_approval().map(|request| request.calls.clone()).unwrap_or_default();
        for call in asked.into_iter().filter(|call| !decision.approves(call)) {
            self.push_call(call, CallOutcome::Denied, decision.rejection_text(), false);
        }
    }

    fn note_child_end(&mut self, end: &ChildEnd) {
        let Step::Act(Action::RunChild(ChildStep { call, .. })) = self.run.next() else { return };
        let outcome = if end.outcome.has_answer() { CallOutcome::Ok } else { CallOutcome::Failed };
        let text = end.outcome.text();
        let ends_run = EndsRun::Never;
        if let Some(child) = self.children.last_mut() {
            child.made = Some(MadeCall { call, outcome, text, is_repeatable: true, ends_run });
        }
    }

    fn note_tool_end(&mut self, ended: &ToolEnd) {
        self.has_started = false;
        if let Step::Act(Action::CallTool(step)) = self.run.next()
            && !self.run.is_repeated(&step, ended.outcome)
        {
            self.push_call(step.call, ended.outcome, ended.text.clone(), step.repeatable);
        }
    }

    /// A call that was under way when work on the run ended. One that may be repeated is made again when it
    /// goes on.
    fn note_open(&mut self) {
        if !std::mem::take(&mut self.has_started) {
            return;
        }
        if let Some(step) = self.run.next_tool().filter(|step| !step.repeatable) {
            self.push_call(step.call, CallOutcome::Unknown, String::new(), false);
        }
    }

    fn push_call(&mut self, call: RequestedCall, outcome: CallOutcome, text: String, is_repeatable: bool) {
        let ends_run = self.run.find_offered(&call.name).map_or(EndsRun::Never, |tool| tool.ends_run);
        self.calls.push(MadeCall { call, outcome, text, is_repeatable, ends_run });
    }
}
