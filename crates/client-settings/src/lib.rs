//! The settings files of agent clients, edited so that they use respool: what a person wrote stays, and the
//! change can be undone. All but `file` and `installed` is pure.

mod clients;
mod file;
mod installed;
pub mod openclaw;

pub use clients::{Client, SettingsFolders, Target};
pub use file::{FileError, Restoration, SettingsFile};
pub use installed::{OpenClaw, Verdict};

/// Why settings cannot be edited.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    /// The present text has another form; the message completes "FILE cannot be edited: ".
    #[error("{0}")]
    Unusable(String),
    /// The model server has several models and the person named none, or it lacks the one they named.
    #[error("there is no model to write")]
    NoModel,
}

impl From<String> for EditError {
    fn from(why: String) -> Self {
        Self::Unusable(why)
    }
}

impl From<&str> for EditError {
    fn from(why: &str) -> Self {
        Self::Unusable(why.to_owned())
    }
}
