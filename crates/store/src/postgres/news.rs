//! Notifications between the processes of one database.

use tokio::sync::Notify;

/// The news that a notification brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// An entry was queued.
    Queued,
    /// A decision was made, or the cancel of a run was asked for.
    Decided,
}

/// Follows the sender in the payload of such news. Processes of earlier versions ignore it.
const DECIDED: &str = " decided";

impl News {
    /// Returns the payload of these news from a process.
    pub(super) fn from(self, owner: &str) -> String {
        match self {
            Self::Queued => owner.to_owned(),
            Self::Decided => format!("{owner}{DECIDED}"),
        }
    }

    /// Returns the sender of a payload, and its news.
    pub(super) fn read(payload: &str) -> (&str, Self) {
        match payload.strip_suffix(DECIDED) {
            Some(owner) => (owner, Self::Decided),
            None => (payload, Self::Queued),
        }
    }
}

/// Wakes what waits in this process.
#[derive(Debug, Default)]
pub(super) struct Signals {
    /// An entry was queued, here or elsewhere.
    pub(super) queued: Notify,
    /// Another process has made a decision, or asked to cancel a run.
    pub(super) decided: Notify,
}
