//! Why a command failed.

use crate::config::{Loaded, Problems};
use crate::units::UnusableSetting;

/// Why a command failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// A message for people.
    Failed(String),
    /// The message has been printed already.
    Reported,
    /// The configuration is unusable: restarting does not help before it is corrected.
    Misconfigured(Problems),
}

impl From<String> for Failure {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

impl From<Problems> for Failure {
    fn from(problems: Problems) -> Self {
        Self::Misconfigured(problems)
    }
}

/// A log that cannot be written is an unusable setting.
pub(super) fn log_problem(loaded: &Loaded, why: String) -> Failure {
    match loaded.settings.log.file {
        Some(_) => loaded.problems(vec![UnusableSetting::new(&["log", "file"], why)]).into(),
        None => why.into(),
    }
}
