//! The place of clocks in a build without the feature `clocks`.

/// Why no expression can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CronError {
    /// This build has no clocks.
    #[error("this build of respool has no clocks: build it with the feature `clocks`")]
    NoClocks,
}

impl CronError {
    /// Returns the correction.
    pub(crate) fn help(&self) -> &'static str {
        "build respool with the feature `clocks`"
    }
}

/// Refuses every expression.
pub(crate) fn check_expression(_: &str) -> Result<(), CronError> {
    Err(CronError::NoClocks)
}

/// Accepts every zone, because its expression is refused.
pub(crate) fn is_zone(_: &str) -> bool {
    true
}

/// Knows no zone.
pub(crate) fn nearest_zone(_: &str) -> Option<&'static str> {
    None
}

pub(crate) mod schedule {
    //! The times of clocks.

    use super::CronError;
    use crate::watch::Watch;

    /// The times of a cron trigger. This build has none.
    #[derive(Clone, Debug)]
    pub enum Schedule {}

    impl Schedule {
        /// Refuses every expression.
        ///
        /// # Errors
        /// Always.
        pub fn new(_: &str, _: Option<&str>) -> Result<Self, CronError> {
            Err(CronError::NoClocks)
        }

        /// Returns the first time after this one.
        pub fn next_after(&self, _: u64) -> Option<u64> {
            match *self {}
        }

        /// Returns the times for which the trigger must fire now.
        pub fn due(&self, _: Watch) -> Vec<u64> {
            match *self {}
        }

        /// Returns the first time that came due and is not among those that are fired for.
        pub fn first_missed(&self, _: Watch, _: &[u64]) -> Option<u64> {
            match *self {}
        }

        /// Returns a time in the schedule's zone.
        pub fn format_time(&self, _: u64) -> String {
            match *self {}
        }
    }
}
