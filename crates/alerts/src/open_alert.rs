//! An alert that holds, as the page, the command line and its file show it.

use serde::{Deserialize, Serialize};

/// An alert that holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenAlert {
    /// The rule's name.
    pub rule: String,
    /// Its subject: an upstream, a run, a budget.
    pub subject: String,
    /// The event in words.
    pub what: String,
    /// When it began, in milliseconds since 1970.
    pub since: u64,
    /// True when it is not sent for now.
    pub is_silenced: bool,
    /// Until when, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silenced_until: Option<u64>,
}
