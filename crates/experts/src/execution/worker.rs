//! The worker on one queue, whose state the parts of the execution share.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::experts::Experts;
use crate::outbox::Outbox;
use store::{Store, StoreError};

/// Works on the queue of the installed experts.
pub struct Worker {
    pub(super) experts: Arc<Experts>,
    pub(super) store: Arc<Store>,
    pub(super) outbox: Outbox,
    pub(super) shutdown: CancellationToken,
    pub(super) free: Arc<Semaphore>,
    /// Signals that something may have become due.
    pub(super) stirred: Arc<Notify>,
    pub(super) tasks: TaskTracker,
    /// If set, only this is worked on.
    pub(super) goal: Option<WorkerScope>,
    pub(super) is_failure_logged: AtomicBool,
    /// The entries that this process works on.
    pub(super) working: Mutex<BTreeSet<String>>,
}

/// One entry of an expert's queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerScope {
    /// The expert's name.
    pub expert: String,
    /// The entry's id.
    pub entry: String,
}

impl Worker {
    /// Returns a worker on the experts' store; `None` if there is no store. `goal`: for this entry, and those
    /// of its lane that must end before it.
    pub fn new(
        experts: &Arc<Experts>,
        shutdown: CancellationToken,
        goal: Option<WorkerScope>,
    ) -> Option<Arc<Self>> {
        let store = Arc::clone(experts.agents.store()?);
        let most = usize::try_from(experts.config.runs_at_once).unwrap_or(1);
        Some(Arc::new(Self {
            experts: Arc::clone(experts),
            outbox: Outbox::new(&store, &experts.delivery_stirred),
            store,
            shutdown,
            free: Arc::new(Semaphore::new(most)),
            stirred: Arc::default(),
            tasks: TaskTracker::new(),
            goal,
            is_failure_logged: AtomicBool::new(false),
            working: Mutex::default(),
        }))
    }

    /// Logs a failing store once, until it works again.
    pub(super) fn log_failure(&self, error: &StoreError) {
        if !self.is_failure_logged.swap(true, Ordering::Relaxed) {
            tracing::error!(target: "respool::expert", %error, "the queue cannot be used; it is tried again");
        }
    }
}
