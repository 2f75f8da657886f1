//! The state of a run as plain data. The other files here change it.

use std::collections::{BTreeMap, VecDeque};

use crate::approval::{ApprovalRequest, Decision};
use crate::budget::Tokens;
use crate::call::RequestedCall;
use crate::outcome::{Limit, Outcome};
use crate::setup::{ModelSizes, SettledCall, Setup};
use crate::transcript::{Entry, Iteration};
use crate::weights::Weights;
use tools::Effect;

/// One run.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    pub(super) setup: Setup,
    pub(super) entries: Vec<Entry>,
    pub(super) phase: Phase,
    pub(super) turn: TurnState,
    pub(super) iterations: Vec<Iteration>,
    /// Calls that are not made again.
    pub(super) made: Vec<SettledCall>,
    /// The number of requests for consent.
    pub(super) approvals: usize,
    /// See [`Run::answers_late`].
    pub(super) answers_late: bool,
    pub(super) spent: SpentTokens,
    pub(super) model: AskedModel,
    /// The outcome of the last turn is in the transcript already.
    pub(super) is_closed: bool,
    pub(super) now: u64,
}

/// The tokens of all calls.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct SpentTokens {
    pub(super) total: Tokens,
    /// The total when the client was answered last.
    pub(super) at_answer: Tokens,
}

/// The model that is asked now.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AskedModel {
    /// Its sizes, as far as its server's refusals taught them.
    pub(super) sizes: ModelSizes,
    /// The same, as they were configured or announced.
    pub(super) configured: ModelSizes,
    /// How it counts tokens.
    pub(super) weights: Weights,
}

impl AskedModel {
    /// Makes the state of a model that was not asked yet.
    pub(super) fn new(sizes: ModelSizes) -> Self {
        Self { sizes, configured: sizes, weights: Weights::default() }
    }
}

/// The state of a run: what it does or waits for.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Phase {
    Model,
    Summary(std::ops::Range<usize>),
    /// Between two turns, a summary is awaited; the outcome is that of the last turn.
    Compaction(std::ops::Range<usize>, Box<Outcome>),
    Pause(u64),
    Calls(CallQueue),
    Approval(ApprovalWait),
    Child(ChildWait),
    Client(Vec<RequestedCall>),
    Done(Box<Outcome>),
}

impl Phase {
    /// Whether a call is under way, which may have taken effect if nothing more is heard of it.
    pub(super) fn is_in_call(&self) -> bool {
        matches!(self, Self::Calls(CallQueue { has_started: true, .. }) | Self::Child(_))
    }

    /// A name for messages.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Model => "waits for the model",
            Self::Summary(_) | Self::Compaction(..) => "waits for a summary",
            Self::Pause(_) => "pauses",
            Self::Calls(_) => "runs tools",
            Self::Approval(_) => "waits for approval",
            Self::Child(_) => "waits for a child run",
            Self::Client(_) => "waits for its client",
            Self::Done(_) => "is over",
        }
    }
}

/// The calls of one reply that are still to be made.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CallQueue {
    /// The call that is made now.
    pub(super) current: RequestedCall,
    /// Its consequence.
    pub(super) later: LaterCalls,
    /// The current call runs.
    pub(super) has_started: bool,
    /// The current call has failed once.
    pub(super) is_retry: bool,
}

/// The calls behind the current one.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct LaterCalls {
    /// respool's own.
    pub(super) own: VecDeque<RequestedCall>,
    /// The client's.
    pub(super) client: Vec<RequestedCall>,
    /// The decisions about calls that need consent.
    pub(super) verdicts: BTreeMap<String, Verdict>,
    /// A rejection that ends the run as soon as the approved calls have been made.
    pub(super) rejection: Option<Box<Rejection>>,
}

/// The decision about a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It runs, with the effect that the person was shown.
    Approved(Decision, Option<Effect>),
    /// It does not, and why.
    Rejected(String),
}

impl CallQueue {
    /// Whether the current call runs.
    pub(super) fn has_started(&self) -> bool {
        self.has_started
    }
}

/// The counters of one turn. Each turn begins with new ones.
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
    /// The token limit cut the last reply inside a call.
    pub(super) was_call_cut: bool,
    /// The turn was stopped while a call was under way.
    pub(super) stopped_in_call: bool,
    /// Milliseconds of work.
    pub(super) worked: u64,
}

/// A request that waits for a decision.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ApprovalWait {
    pub(super) request: ApprovalRequest,
    /// The time is over, and the person was reminded.
    pub(super) is_escalated: bool,
    /// The calls that follow the decision, those of the request among them.
    pub(super) calls: LaterCalls,
}

/// A decision that rejects calls, in a run that ends with it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rejection {
    pub(super) request: ApprovalRequest,
    pub(super) decision: Decision,
}

/// A child run that is worked on.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ChildWait {
    pub(super) child: String,
    pub(super) call: RequestedCall,
    pub(super) later: LaterCalls,
}
