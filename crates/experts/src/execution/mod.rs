//! Execution: the worker that drains the queue. It claims due entries of experts that are ready, executes
//! each invocation as an agent run, renews its claims, resumes runs whose approvals are decided, and ends
//! invocations as `verdict` decides.
//!
//! Everything that must not be lost is in the store: an attempt is a run whose events are committed, and a
//! process that takes over an entry derives again what follows from its end. Messages have fixed ids, so they
//! are posted once.

mod advice;
mod attempt;
mod calls;
mod cancel;
mod cleanup;
mod conclusion;
mod dry_run;
mod lateness;
mod retry;
mod scratchpad;
mod settled;
mod task;
mod verdict;
mod worker;

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

pub(super) use calls::report_calls;
pub use cancel::{cancel_invocation, drop_rejected};
pub use dry_run::DryRun;
use lateness::Deadlines;
pub(super) use retry::find_message;
pub use retry::{OpenTask, Retried, RetryError, drop_task, open_tasks, retry_task};
pub use settled::settled_operations;
pub(super) use settled::unknown_operations;
pub use worker::{Worker, WorkerScope};

use super::resume::Interrupted;
use openexperts::label::MODEL_PREFIX;
use store::{ClaimRequest, Claimed, EntryState, Status, StoreError, WokenRun};

/// How often the queue is checked for due entries and entries of other processes.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How often approvals, changed experts and servers are checked.
const TEND_EVERY: Duration = Duration::from_secs(1);
/// How often conversations are looked for that were interrupted.
const RESUME_EVERY: Duration = Duration::from_secs(2);

impl Worker {
    /// Runs until the process ends; unfinished work is left to the next process that claims it.
    pub async fn run_worker(self: Arc<Self>) {
        let (draining, tending, cleaning) =
            (self.drain_queue(), self.tend_queue(), cleanup::keep_clean(&self.experts, &self.store));
        let all = Box::pin(async {
            tokio::join!(draining, tending, cleaning, self.experts.watch_gateway(), self.resume_interrupted())
        });
        let _: Option<((), (), (), (), ())> = self.shutdown.run_until_cancelled(all).await;
        self.tasks.close();
        self.tasks.wait().await;
    }

    async fn drain_queue(self: &Arc<Self>) {
        let mut has_new = false;
        loop {
            let claimed = self.claim_entries(has_new).await;
            let claimed = claimed.inspect_err(|error| self.log_failure(error)).unwrap_or_default();
            has_new = false;
            let has_more = !claimed.is_empty();
            for one in claimed {
                self.begin_entry(one);
            }
            if !has_more {
                tokio::select! {
                    () = self.stirred.notified() => {}
                    () = self.store.wait_for_entry() => has_new = true,
                    // Other processes add entries too.
                    () = tokio::time::sleep(LOOK_EVERY) => {}
                }
            }
        }
    }

    /// Claims entries that are due. `has_new`: this process has just queued something.
    async fn claim_entries(&self, has_new: bool) -> Result<Vec<Claimed>, StoreError> {
        let queues = self.experts.readiness.ready_queues(self.goal.as_ref().map(|goal| goal.expert.as_str()));
        let most = self.free.available_permits();
        if queues.is_empty() || most == 0 {
            return Ok(Vec::new());
        }
        // Looking is cheap; claiming is a commit.
        let is_due = has_new || self.store.next_due(queues.clone()).await? == Some(Duration::ZERO);
        self.is_failure_logged.store(false, Ordering::Relaxed);
        if !is_due {
            return Ok(Vec::new());
        }
        let lease = self.experts.config.lease;
        let working = self.working.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect();
        let towards = self.goal.as_ref().map(|goal| goal.entry.clone());
        self.store.claim_entries(ClaimRequest { queues, most, lease, working, towards }).await
    }

    fn begin_entry(self: &Arc<Self>, claimed: Claimed) {
        let worker = Arc::clone(self);
        let Ok(permit) = Arc::clone(&self.free).try_acquire_owned() else { return };
        self.working.lock().unwrap_or_else(PoisonError::into_inner).insert(claimed.lease.entry.clone());
        self.tasks.spawn(async move {
            let lease = claimed.lease.clone();
            let done = tokio::select! {
                done = worker.execute_entry(&claimed) => done,
                () = worker.renew_lease(&claimed) => Ok(()),
            };
            if let Err(error) = done {
                tracing::error!(target: "respool::expert", entry = lease.entry, %error, "an invocation is left until its claim is over");
            }
            if worker.shutdown.is_cancelled() {
                // Releases the entry so that another process need not wait for the claim to expire.
                let _ = worker.store.heartbeat(&lease, Duration::ZERO).await;
            }
            worker.working.lock().unwrap_or_else(PoisonError::into_inner).remove(&lease.entry);
            drop(permit);
            worker.stirred.notify_one();
        });
    }

    /// Renews a claim while that is possible.
    async fn renew_lease(&self, claimed: &Claimed) {
        loop {
            tokio::time::sleep(self.experts.config.lease / 3).await;
            match self.store.heartbeat(&claimed.lease, self.experts.config.lease).await {
                Ok(true) => {}
                Ok(false) => {
                    let entry = &claimed.lease.entry;
                    tracing::warn!(target: "respool::expert", entry, "another process is working on this invocation now");
                    return;
                }
                Err(error) => self.log_failure(&error),
            }
        }
    }

    async fn tend_queue(&self) {
        let mut deadlines = Deadlines::default();
        loop {
            let decided = self.store.wait_for_decision();
            self.experts.follow_catalog();
            self.store.note_packages(self.experts.iter().map(|expert| expert.digest.clone()).collect());
            self.experts.look_at_servers();
            for done in [self.wake_decided().await, self.report_late(&mut deadlines).await] {
                let _ = done.inspect_err(|error| self.log_failure(error));
            }
            let is_starting = self.experts.names().iter().any(|name| self.experts.is_starting(name));
            tokio::select! {
                () = decided => {}
                () = tokio::time::sleep(if is_starting { LOOK_EVERY } else { TEND_EVERY }) => {}
            }
        }
    }

    /// Resumes conversations that ended processes have left, also those that end while this one lives. A
    /// worker that ends with its expert's work would interrupt them again, so it leaves them alone.
    async fn resume_interrupted(&self) {
        if self.goal.is_some() {
            return;
        }
        let mut interrupted = Interrupted::default();
        loop {
            let done = self.experts.resume_interrupted(&self.store, &mut interrupted).await;
            let _ = done.inspect_err(|error| self.log_failure(error));
            tokio::time::sleep(RESUME_EVERY).await;
        }
    }

    /// Resumes the runs whose approvals are decided or have expired.
    async fn wake_decided(&self) -> Result<(), StoreError> {
        for WokenRun { id, agent, status } in self.store.woken_by_approvals(clock::now()).await? {
            let Some(name) = agent.strip_prefix(MODEL_PREFIX) else { continue };
            match self.store.entry_of_run(&id).await? {
                Some(entry) if entry.state == EntryState::Held => {
                    self.store.wake(&entry.id).await?;
                    self.stirred.notify_one();
                }
                None if status == Status::AwaitingApproval && self.goal.is_none() => {
                    self.resume_conversation(name, &id).await;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns true if another process that heard of a decision was faster.
    async fn is_worked_on(&self, run: &str) -> bool {
        let stored = self.store.run(run).await;
        stored.is_ok_and(|run| run.is_some_and(|run| run.row.status == Status::Running))
    }

    async fn resume_conversation(&self, name: &str, run: &str) {
        // An approved call of a server that is down would fail, and the consent would be used up. It is tried
        // again.
        let Some(expert) = self.experts.get(name).filter(|_| !self.experts.agents.is_active(run)) else {
            return;
        };
        if self.experts.confirm_ready(&expert).await.is_some() {
            return;
        }
        if let Err(why) = self.experts.resume_conversation(name, run).await
            && !self.is_worked_on(run).await
        {
            tracing::warn!(target: "respool::expert", run_id = run, %why, "the run cannot be resumed");
        }
    }
}
