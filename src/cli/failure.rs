//! Why a command failed.

use std::fmt;

use crate::config::{Loaded, Problems};
use crate::expert::ExpertError;
use crate::store::StoreError;
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

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(why) => out.write_str(why),
            Self::Reported => Ok(()),
            Self::Misconfigured(problems) => problems.fmt(out),
        }
    }
}

impl std::error::Error for Failure {}

impl From<String> for Failure {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

impl From<&str> for Failure {
    fn from(why: &str) -> Self {
        Self::Failed(why.to_owned())
    }
}

impl From<ExpertError> for Failure {
    fn from(error: ExpertError) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Failed(error.0)
    }
}

impl From<Problems> for Failure {
    fn from(problems: Problems) -> Self {
        Self::Misconfigured(problems)
    }
}

/// Reports a log that cannot be written as an unusable setting.
pub(super) fn log_problem(loaded: &Loaded, why: String) -> Failure {
    match loaded.settings.log.file {
        Some(_) => loaded.problems(vec![UnusableSetting::new(&["log", "file"], why)]).into(),
        None => why.into(),
    }
}
