//! How far a run is.

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// A process works on it.
    Running,
    /// It waits for its client's results.
    Suspended,
    /// It waits for a person's consent.
    AwaitingApproval,
    /// Its process ended, or its client went away, before it was over.
    Interrupted,
    /// It ended with an answer.
    Done,
    /// It ended with an answer at a limit.
    Limited,
    /// It ended with a failure.
    Failed,
    /// A person or its client ended it.
    Cancelled,
}

impl Status {
    /// All states.
    pub const ALL: [Self; 8] = [
        Self::Running,
        Self::Suspended,
        Self::AwaitingApproval,
        Self::Interrupted,
        Self::Done,
        Self::Limited,
        Self::Failed,
        Self::Cancelled,
    ];

    /// Returns its name in the store and for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Suspended => "suspended",
            Self::AwaitingApproval => "awaiting_approval",
            Self::Interrupted => "interrupted",
            Self::Done => "done",
            Self::Limited => "limited",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Returns true if the run goes no further by itself.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Done | Self::Limited | Self::Failed | Self::Cancelled)
    }

    /// Returns the status of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == name)
    }
}
