//! Requests for consent as rows: made and closed with the run's own events, decided from outside, listed for
//! people.
//!
//! What is in a request and in a decision is `agent`'s business: both are texts here. A decision that was
//! recorded once holds: a second one is refused.

use async_trait::async_trait;
use futures::future::BoxFuture;

use super::error::StoreError;
use super::status::Status;

/// A change of a request that is committed with an event of its run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApprovalChange {
    /// It is made.
    Requested {
        /// Its id.
        id: String,
        /// When it times out, in milliseconds since 1970.
        expires: Option<u64>,
        /// The request.
        body: String,
    },
    /// Its time was over, and people were reminded. It does not time out again.
    Escalated {
        /// Its id.
        id: String,
    },
    /// The run has taken the decision in.
    Applied {
        /// Its id.
        id: String,
    },
    /// The run no longer waits for it.
    Withdrawn {
        /// Its id.
        id: String,
    },
}

/// How far a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApprovalState {
    /// No one has decided.
    Waiting,
    /// It is decided, and the run does not know it yet.
    Decided,
    /// The run knows the decision.
    Applied,
    /// The run no longer waits for it.
    Withdrawn,
}

impl ApprovalState {
    /// Returns its name in the store and for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Decided => "decided",
            Self::Applied => "applied",
            Self::Withdrawn => "withdrawn",
        }
    }

    pub(crate) fn from_name(name: &str) -> Self {
        match name {
            "waiting" => Self::Waiting,
            "decided" => Self::Decided,
            "applied" => Self::Applied,
            _ => Self::Withdrawn,
        }
    }
}

/// A request with its decision. Times are milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApprovalRow {
    /// Its id.
    pub id: String,
    /// The run that waits for it.
    pub run: String,
    /// The agent of that run.
    pub agent: String,
    /// How far it is.
    pub state: ApprovalState,
    /// When it was made.
    pub requested: u64,
    /// When it times out.
    pub expires: Option<u64>,
    /// The request.
    pub body: String,
    /// When it was decided.
    pub decided: Option<u64>,
    /// The decision.
    pub decision: Option<String>,
}

/// A run that can go on, since a decision was made or the time for it is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WokenRun {
    /// Its id.
    pub id: String,
    /// Its agent.
    pub agent: String,
    /// How far it is.
    pub status: Status,
}

/// Whether a decision counts that comes after the time for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LateDecision {
    /// It counts.
    Counts,
    /// It is refused.
    Refused,
}

/// Requests for consent.
#[async_trait]
pub trait Approvals: Send + Sync {
    /// Records a decision, so that it survives a power failure; false when the request does not wait for one,
    /// or its time is over.
    ///
    /// # Errors
    /// When the store cannot be written.
    async fn decide(
        &self,
        id: &str,
        decision: String,
        at: u64,
        late: LateDecision,
    ) -> Result<bool, StoreError>;

    /// Returns one request.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn approval(&self, id: &str) -> Result<Option<ApprovalRow>, StoreError>;

    /// Returns the requests of a state, the oldest first.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn approvals(&self, state: ApprovalState, most: usize) -> Result<Vec<ApprovalRow>, StoreError>;

    /// Returns the runs that can go on: of a decided request, or of one whose time is over. Where a child run
    /// waits, the run that began the first of its line.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn woken_by_approvals(&self, now: u64) -> Result<Vec<WokenRun>, StoreError>;

    /// Waits until another process has made a decision or asked to cancel a run, as far as that is heard of.
    /// It counts from the call on, even before the first poll.
    fn wait_for_decision(&self) -> BoxFuture<'_, ()>;
}
