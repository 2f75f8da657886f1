//! Why a command failed.

use std::fmt;

use agent::OperatorError;
use client_settings::{EditError, FileError};
use experts::ExpertError;
use http_client::TlsError;
use service_manager::ServiceError;
use settings::{Loaded, Problems};
use store::StoreError;
use wire::units::{InvalidValue, UnusableSetting};

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// A message for people.
    #[error("{0}")]
    Failed(String),
    /// The message has been printed already.
    #[error("")]
    Reported,
    /// The person stopped it.
    #[cfg(feature = "chat")]
    #[error("stopped")]
    Interrupted,
    /// The configuration is unusable: restarting does not help before it is corrected.
    #[error(transparent)]
    Misconfigured(#[from] Problems),
}

/// Makes failures of errors, by their messages.
macro_rules! failures_from {
    ($($error:ty),+) => {
        $(impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Self::Failed(error.to_string())
            }
        })+
    };
}

failures_from!(
    String,
    &str,
    ExpertError,
    StoreError,
    OperatorError,
    ServiceError,
    EditError,
    FileError,
    TlsError,
    InvalidValue
);

/// Fails with these problems, one in each line, if there are any.
pub(super) fn fail_with(problems: &[String]) -> Result<(), Failure> {
    if problems.is_empty() { Ok(()) } else { Err(problems.join("\n").into()) }
}

/// Reports a log that cannot be written as an unusable setting.
pub(super) fn log_problem(loaded: &Loaded, why: impl fmt::Display) -> Failure {
    match loaded.settings.log.file {
        Some(_) => loaded.problems(vec![UnusableSetting::new(&["log", "file"], why)]).into(),
        None => Failure::Failed(why.to_string()),
    }
}
