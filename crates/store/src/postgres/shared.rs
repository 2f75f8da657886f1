//! The state that a process shares with the thread that says that it lives. Called by `nodes` and `link`.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::poll::Polls;
use crate::error::StoreError;

/// A process that has not been seen for this long is gone, and others take over what it worked on. Should it
/// come back, the epochs of its runs are those of others by then.
pub(super) const GONE_AFTER: Duration = Duration::from_secs(15);

/// For how long a process that did not end by itself is listed, unless one of its name starts.
pub(super) const LOST_FOR: Duration = Duration::from_hours(6);

/// See the head of the file.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) ends: AtomicBool,
    /// The schema is that of this version, and the process is known to the others.
    pub(super) has_joined: AtomicBool,
    /// It has not joined because one of its name was killed a moment ago.
    pub(super) waits_for_name: AtomicBool,
    /// Why it could not say so the last time.
    problem: Mutex<Option<StoreError>>,
    /// When the database last answered.
    answered: Mutex<Option<Instant>>,
    /// When it answered again after a pause.
    resumed: Mutex<Option<Instant>>,
    /// How many processes that serve live, this one among them.
    pub(super) live: AtomicU32,
    /// How many of these have this one's configuration, this one among them.
    pub(super) alike: AtomicU32,
    /// The digest of this process's configuration, and whether it changed since it was said.
    pub(super) configuration: Mutex<String>,
    pub(super) is_changed: AtomicBool,
    /// The digests of the packages that this process works with.
    pub(super) packages: Mutex<Vec<String>>,
    pub(super) polls: Polls,
}

impl Shared {
    /// Returns the state of a process that has joined the others, or could not yet because of a problem.
    pub(super) fn new(problem: Option<StoreError>) -> Self {
        let has_joined = AtomicBool::new(problem.is_none());
        let answered = Mutex::new(problem.is_none().then(Instant::now));
        Self { has_joined, problem: Mutex::new(problem), answered, ..Self::default() }
    }

    /// Notes that the database has heard that this process lives.
    pub(super) fn note_heard(&self) {
        self.set_problem(None);
        self.note_answer();
    }

    /// Notes that the database has answered on one of the connections.
    pub(super) fn note_answer(&self) {
        let now = Instant::now();
        let before = lock(&self.answered).replace(now);
        if before.is_some_and(|before| now.duration_since(before) > GONE_AFTER / 2) {
            *lock(&self.resumed) = Some(now);
        }
    }

    /// Returns false for a while after a pause of the database: others seem to be gone that find it again a
    /// little later than this process.
    pub(super) fn may_miss_others(&self) -> bool {
        lock(&self.resumed).is_none_or(|at| at.elapsed() >= GONE_AFTER)
    }

    /// Returns true while a database hangs that answered before. The others count this process as gone then.
    pub(super) fn is_silent(&self) -> bool {
        lock(&self.answered).is_some_and(|at| at.elapsed() > GONE_AFTER)
    }

    pub(super) fn set_configuration(&self, digest: String) {
        *lock(&self.configuration) = digest;
        self.is_changed.store(true, Ordering::Relaxed);
    }

    pub(super) fn set_packages(&self, digests: Vec<String>) {
        let mut packages = lock(&self.packages);
        if *packages != digests {
            *packages = digests;
            self.is_changed.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn set_problem(&self, error: Option<StoreError>) {
        *lock(&self.problem) = error;
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ends.load(Ordering::Relaxed)
    }

    /// Returns an error while the database cannot be used.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        let problem = lock(&self.problem).clone();
        match problem {
            Some(problem) => Err(problem),
            None if self.is_silent() => Err(StoreError(format!(
                "the database has not answered for {} s; look at its load and at the network",
                GONE_AFTER.as_secs()
            ))),
            None => Ok(()),
        }
    }

    /// Returns an error until the process has joined the others for the first time.
    pub(super) fn check_joined(&self) -> Result<(), StoreError> {
        if self.has_joined.load(Ordering::Acquire) { Ok(()) } else { self.check() }
    }
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Shared {
        /// As if the database had not answered for a while, and now does.
        pub(in super::super) fn feign_pause(&self) {
            *lock(&self.answered) = Instant::now().checked_sub(GONE_AFTER);
            self.note_answer();
        }
    }

    #[test]
    fn a_database_that_hangs_is_away() {
        let shared = Shared::new(None);
        assert!(shared.check().is_ok());
        *lock(&shared.answered) = Instant::now().checked_sub(2 * GONE_AFTER);
        assert!(shared.check().unwrap_err().0.contains("has not answered for 15 s"));
        // Regression: work of more than a second failed when only the connection for signs of life hung.
        shared.note_answer();
        assert!(shared.check().is_ok());
        shared.set_problem(Some(StoreError("refused".into())));
        shared.note_answer();
        assert!(shared.check().is_err(), "the others do not know that it lives");
        shared.note_heard();
        assert!(shared.check().is_ok());
        assert!(!Shared::new(Some(StoreError("away".into()))).is_silent(), "it has another problem");
    }

    /// Regression: the first process that a database answered after a pause took all others for lost.
    #[test]
    fn others_are_missed_after_a_while() {
        let shared = Shared::new(None);
        shared.note_answer();
        assert!(shared.may_miss_others());
        shared.feign_pause();
        assert!(!shared.may_miss_others());
        *lock(&shared.resumed) = Instant::now().checked_sub(GONE_AFTER);
        shared.note_answer();
        assert!(shared.may_miss_others());
    }
}
