//! The state that a process shares with the thread that says that it lives. Called by `nodes` and `link`.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use super::poll::Polls;
use crate::error::StoreError;

/// See the head of the file.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) ends: AtomicBool,
    /// The schema is that of this version, and the process is known to the others.
    pub(super) has_joined: AtomicBool,
    /// Why it could not say so the last time.
    problem: Mutex<Option<StoreError>>,
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
        Self { has_joined, problem: Mutex::new(problem), ..Self::default() }
    }

    pub(super) fn set_configuration(&self, digest: String) {
        *self.configuration.lock().unwrap_or_else(PoisonError::into_inner) = digest;
        self.is_changed.store(true, Ordering::Relaxed);
    }

    pub(super) fn set_packages(&self, digests: Vec<String>) {
        let mut packages = self.packages.lock().unwrap_or_else(PoisonError::into_inner);
        if *packages != digests {
            *packages = digests;
            self.is_changed.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn set_problem(&self, error: Option<StoreError>) {
        *self.problem.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ends.load(Ordering::Relaxed)
    }

    /// Returns an error while the database cannot be used.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner).clone().map_or(Ok(()), Err)
    }

    /// Returns an error until the process has joined the others for the first time.
    pub(super) fn check_joined(&self) -> Result<(), StoreError> {
        if self.has_joined.load(Ordering::Acquire) { Ok(()) } else { self.check() }
    }
}
