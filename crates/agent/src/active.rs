//! The runs that this process works on: each in a task of its own, watched by any number of clients, and
//! ended from outside.
//!
//! It does not know requests: `agents` and `resume` decide which run is worked on, and call it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use http::HeaderValue;
use tokio::sync::{broadcast, watch};
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::call::RequestedCall;
use super::config::OnDisconnect;
use super::definition::Agent;
use super::driver::{Driver, StopSignals, WorkEnd};
use super::event::EventKind;
use super::journal::{Journal, Unkept};
use super::progress;
use super::run::Run;
use super::stored::{ok_or_log, restore};
use super::telemetry::Telemetry;
use super::watch::{ActiveRun, Watch, WorkReport};
use store::{Append, ClaimScope, EntryLease, NewRun, RunFilter, Status, Store, StoreError};
use telemetry::{Accounts, ErrorReport, Recording};

/// Progress lines that a slow client may be behind; it loses older ones, but not the answer.
const PROGRESS_BUFFER: usize = 256;
/// The pause before what the store could not write is tried again.
const WRITE_AGAIN: Duration = Duration::from_secs(2);
/// Suspended runs that are held in memory because they could not be stored.
pub(super) const MOST_PARKED: usize = 1_000;

/// The runs that this process works on, and what they share.
pub(super) struct ActiveRuns {
    pub(super) store: Option<Arc<Store>>,
    report: ErrorReport,
    log_content: bool,
    pub(super) accounts: OnceLock<Arc<dyn Accounts>>,
    /// Where model calls are recorded: the log, the usage rows.
    pub(super) recording: OnceLock<Recording>,
    runs: Mutex<HashMap<String, Arc<ActiveRun>>>,
    parked: Mutex<Vec<ParkedRun>>,
    /// The ends of runs that were refused.
    refused: Mutex<VecDeque<Append>>,
    /// Held while the run that a request belongs to is looked up and resumed, so that two equal requests
    /// resume it once.
    pub(super) resuming: tokio::sync::Mutex<()>,
    tasks: TaskTracker,
    pub(super) shutdown: CancellationToken,
    /// Calls in flight are cut off too.
    cut: CancellationToken,
}

/// A suspended run that is not in the store.
pub(super) struct ParkedRun {
    pub(super) id: String,
    pub(super) client: Option<String>,
    pub(super) run: Run,
}

/// A run to work on.
pub(super) struct Work {
    pub(super) id: String,
    /// The digest of the client that owns the run; `None` for any client.
    pub(super) client: Option<String>,
    pub(super) run: Run,
    /// The store of the run.
    pub(super) store: Option<Arc<Store>>,
    /// The epoch of this process.
    pub(super) epoch: u64,
    /// The number of events in the store.
    pub(super) seq: u64,
    pub(super) authorization: Option<HeaderValue>,
    /// The first step.
    pub(super) first: Option<EventKind>,
    /// The reason for the work, for the log.
    pub(super) origin: &'static str,
    pub(super) options: RunOptions,
}

/// The options of a run that no client waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunOptions {
    /// Whether it continues when its client has gone.
    pub is_detached: bool,
    /// Whether it must stop if it cannot be stored.
    pub is_durable: bool,
    /// The entry of the queue that it works on: it begins, and is claimed, only while this lease holds.
    pub lease: Option<EntryLease>,
}

impl ActiveRuns {
    pub(super) fn new(
        store: Option<Arc<Store>>,
        report: ErrorReport,
        log_content: bool,
        shutdown: CancellationToken,
    ) -> Self {
        Self {
            store,
            report,
            log_content,
            accounts: OnceLock::new(),
            recording: OnceLock::new(),
            runs: Mutex::default(),
            parked: Mutex::default(),
            refused: Mutex::default(),
            resuming: tokio::sync::Mutex::default(),
            tasks: TaskTracker::new(),
            shutdown,
            cut: CancellationToken::new(),
        }
    }

    fn lock_runs(&self) -> MutexGuard<'_, HashMap<String, Arc<ActiveRun>>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_active(&self, id: &str) -> bool {
        self.lock_runs().contains_key(id)
    }

    /// Returns whether a run is one of these; `None` when this process does not work on it.
    pub(super) fn is_of(&self, id: &str, whose: &RunFilter) -> Option<bool> {
        self.lock_runs().get(id).map(|active| whose.includes(&active.agent, active.client.as_deref()))
    }

    /// Returns the ids of the runs.
    pub(super) fn run_ids(&self) -> Vec<String> {
        self.lock_runs().keys().cloned().collect()
    }

    /// Returns a view of a run.
    pub(super) fn watch_run(&self, id: &str) -> Option<Watch> {
        let active = self.lock_runs().get(id).cloned()?;
        let progress = Some(active.progress.subscribe());
        Some(Watch { run: id.to_owned(), progress, end: active.end.clone(), guard: active.watched.upgrade() })
    }

    /// Ends a run; false when this process does not work on it.
    pub(super) fn cancel_run(&self, id: &str) -> bool {
        let active = self.lock_runs().get(id).cloned();
        active.inspect(|active| active.stops.cancel.cancel()).is_some()
    }

    /// Stores a new run and works on it. Where no other process shares the store, it does so even if the run
    /// cannot be stored.
    ///
    /// # Errors
    /// When it cannot be stored where others could not find it: then it does not begin.
    pub(super) async fn begin_run(
        self: &Arc<Self>,
        agent: &Arc<Agent>,
        new: NewRun,
        work: Work,
    ) -> Result<Watch, StoreError> {
        let (active, agent, mut work) = (Arc::clone(self), Arc::clone(agent), work);
        self.run_detached(async move {
            if let Some(store) = work.store.take() {
                match store.begin(new).await {
                    Ok(()) => work.store = Some(store),
                    Err(error) if store.is_shared() => {
                        active.cancel_refused(store, &work.id);
                        return Err(error);
                    }
                    Err(error) => active.telemetry(&agent, &work.id).not_durable(&work.run, &error),
                }
            }
            Ok(active.work_on(&agent, work))
        })
        .await
    }

    fn lock_refused(&self) -> MutexGuard<'_, VecDeque<Append>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cancels a run that was refused, once the store can be written: whether it was stored is not known.
    fn cancel_refused(self: &Arc<Self>, store: Arc<Store>, run: &str) {
        let mut refused = self.lock_refused();
        let is_at_work = !refused.is_empty();
        if refused.len() < MOST_PARKED {
            refused.push_back(Append::status(run, Store::FIRST_EPOCH, clock::now(), Status::Cancelled));
        }
        drop(refused);
        if is_at_work {
            return;
        }
        let active = Arc::clone(self);
        self.tasks.spawn(async move {
            loop {
                let next = active.lock_refused().front().cloned();
                let Some(next) = next else { return };
                if store.append(next.clone()).await.is_ok() {
                    // Another task of this kind may have begun meanwhile.
                    active.lock_refused().retain(|refused| refused.run != next.run);
                } else if active.shutdown.run_until_cancelled(tokio::time::sleep(WRITE_AGAIN)).await.is_none()
                {
                    return;
                }
            }
        });
    }

    /// Keeps a new run, and works on it.
    ///
    /// # Errors
    /// When it cannot be kept: then it does not begin.
    pub(super) async fn begin_durable(
        self: &Arc<Self>,
        agent: &Arc<Agent>,
        new: NewRun,
        work: Work,
    ) -> Result<Watch, StoreError> {
        let (active, agent) = (Arc::clone(self), Arc::clone(agent));
        let no_store = || {
            StoreError("the run cannot be kept: the store of runs is not open; the log says why".to_owned())
        };
        let store = work.store.clone().ok_or_else(no_store)?;
        let taken = || StoreError("another process is working on this queue entry now".to_owned());
        self.run_detached(async move {
            match &work.options.lease {
                None => store.begin(new).await?,
                Some(lease) => store.begin_leased(new, lease).await?.then_some(()).ok_or_else(taken)?,
            }
            Ok(active.work_on(&agent, work))
        })
        .await
    }

    /// Makes this process the one that works on a stored run, and works on it; `None` when another one does,
    /// or it is over. `is_returned`: its client is back. Then it may be one whose client went away; and a
    /// store in files that cannot be written does not stop it: to begin another one would do its work again.
    pub(super) async fn claim_run(
        self: &Arc<Self>,
        agent: &Arc<Agent>,
        store: Arc<Store>,
        is_returned: bool,
        work: Work,
    ) -> Result<Option<Watch>, StoreError> {
        let (active, agent) = (Arc::clone(self), Arc::clone(agent));
        let scope = if is_returned { ClaimScope::IdleOrCancelled } else { ClaimScope::Idle };
        self.run_detached(async move {
            let claimed = match &work.options.lease {
                None => store.claim(&work.id, scope).await,
                Some(lease) => store.claim_leased(&work.id, lease).await,
            };
            let epoch = match claimed {
                Err(error) if is_returned && !store.is_shared() => {
                    ok_or_log::<()>(Err(error));
                    Some(work.epoch)
                }
                claimed => claimed?,
            };
            let Some(epoch) = epoch else { return Ok(None) };
            let work = Box::pin(reload_work(&store, work)).await?;
            Ok(Some(active.work_on(&agent, Work { store: Some(store), epoch, ..work })))
        })
        .await
    }

    /// Runs the work to its end, although the client may go away at any moment. A run that the store marks
    /// as active is worked on, and then ends or continues as one whose client went away.
    async fn run_detached<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        match self.tasks.spawn(work).await.map_err(JoinError::try_into_panic) {
            Ok(done) => done,
            Err(Ok(panic)) => std::panic::resume_unwind(panic),
            // The runtime ends, and this task with it.
            Err(Err(_)) => std::future::pending().await,
        }
    }

    /// Works on a run in a task of its own.
    pub(super) fn work_on(self: &Arc<Self>, agent: &Arc<Agent>, work: Work) -> Watch {
        let (progress, subscribed) = broadcast::channel(PROGRESS_BUFFER);
        let (ended, end) = watch::channel(None);
        let stops =
            StopSignals { shutdown: self.shutdown.clone(), cut: self.cut.clone(), ..StopSignals::default() };
        let guard = Arc::new(stops.gone.clone().drop_guard());
        let run = ActiveRun {
            agent: Arc::clone(&agent.name),
            client: work.client.clone(),
            progress: progress.clone(),
            end: end.clone(),
            stops: stops.clone(),
            watched: Arc::downgrade(&guard),
        };
        let id = work.id.clone();
        self.lock_runs().insert(id.clone(), Arc::new(run));
        let (active, agent) = (Arc::clone(self), Arc::clone(agent));
        self.tasks.spawn(async move {
            let report = Box::pin(active.work_through(&agent, work, progress, stops)).await;
            ended.send_replace(Some(Arc::new(report)));
        });
        Watch { run: id, progress: Some(subscribed), end, guard: Some(guard) }
    }

    async fn work_through(
        &self,
        agent: &Agent,
        work: Work,
        progress: broadcast::Sender<String>,
        stops: StopSignals,
    ) -> WorkReport {
        let Work { id, client, mut run, authorization, first, origin, .. } = work;
        let mut telemetry = self.telemetry(agent, &id);
        telemetry.content &= !run.setup().is_private;
        telemetry.log_start(&run, origin);
        let (began, before, cancel) = (Instant::now(), run.iterations().len(), stops.cancel.clone());
        let mut journal = Journal::new(&id, work.epoch, work.store, work.seq);
        journal.unkept = match &self.store {
            _ if work.options.is_durable => Unkept::Stops,
            Some(store) if store.is_shared() => Unkept::Waits,
            _ => Unkept::GoesOn,
        };
        let observer = Arc::new(move |activity: super::activity::Activity<'_>| {
            // There may be no observer.
            let _ = progress::activity_text(activity).map(|text| progress.send(text));
        });
        let mut driver = Driver::new(agent, journal, telemetry, stops, observer);
        driver.model.authorization = authorization;
        let accounts = self.accounts.get().zip(client.as_ref());
        driver.model.account = accounts.and_then(|(accounts, client)| accounts.find_account(client));
        if let Some(recording) = self.recording.get() {
            driver.model.recording = recording.clone().without_content(run.setup().is_private);
        }
        driver.is_detached = work.options.is_detached || agent.config.on_disconnect == OnDisconnect::Detach;
        if let Some(first) = first {
            driver.record_event(&mut run, first).await;
        }
        let end = driver.drive_run(&mut run).await;
        let why = if matches!(end, WorkEnd::Left) { "left" } else { "over" };
        let overhead = began.elapsed().saturating_sub(driver.waited);
        driver.telemetry.log_stop(why, overhead, run.iterations().len() - before);
        let spent = run.spent_since_answer();
        let is_kept = driver.journal.is_complete();
        if let Some((store, backlog)) = driver.journal.into_backlog() {
            self.write_later(store, backlog);
        }
        self.lock_runs().remove(&id);
        let waits = matches!(end, WorkEnd::Suspended(_) | WorkEnd::AwaitingApproval(_));
        if waits
            && cancel.is_cancelled()
            && let Some(store) = &self.store
        {
            // The request to cancel came after the last look at it.
            ok_or_log(store.request_cancel(&id, clock::now()).await);
        }
        let is_shared = self.store.as_ref().is_some_and(|store| store.is_shared());
        if matches!(end, WorkEnd::Suspended(_)) && !is_kept && !is_shared {
            self.park_run(ParkedRun { id, client, run });
        }
        WorkReport { end, spent, overhead }
    }

    /// Commits the events that could not be committed, once the store can be written again: it must contain
    /// everything that was done.
    fn write_later(&self, store: Arc<Store>, backlog: Vec<Append>) {
        if self.tasks.len() >= MOST_PARKED {
            return;
        }
        let shutdown = self.shutdown.clone();
        self.tasks.spawn(async move {
            let mut left = VecDeque::from(backlog);
            while let Some(next) = left.front() {
                if store.append(next.clone()).await.is_ok() {
                    left.pop_front();
                } else if shutdown.is_cancelled() {
                    return;
                } else {
                    tokio::select! { () = shutdown.cancelled() => {}, () = tokio::time::sleep(WRITE_AGAIN) => {} }
                }
            }
        });
    }

    fn telemetry(&self, agent: &Agent, id: &str) -> Telemetry {
        Telemetry {
            run: id.to_owned(),
            agent: Arc::clone(&agent.name),
            report: self.report.clone(),
            content: self.log_content,
            spans: self.recording.get().and_then(|recording| recording.spans.clone()),
        }
    }

    fn park_run(&self, parked: ParkedRun) {
        let mut all = self.parked.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOST_PARKED {
            all.remove(0);
        }
        all.push(parked);
    }

    /// Takes out a parked run of this agent and client that waits for a call.
    pub(super) fn take_parked_run(
        &self,
        agent: &str,
        client: &str,
        waits_for: impl Fn(&RequestedCall) -> bool,
    ) -> Option<ParkedRun> {
        let mut all = self.parked.lock().unwrap_or_else(PoisonError::into_inner);
        let is_theirs = |parked: &ParkedRun| {
            parked.run.setup().agent == agent && parked.client.as_deref().is_none_or(|own| own == client)
        };
        let place = all
            .iter()
            .position(|parked| is_theirs(parked) && parked.run.awaited_calls().iter().any(&waits_for))?;
        Some(all.remove(place))
    }

    /// Runs something until the process ends.
    pub(super) fn spawn_task(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(work);
    }

    /// Waits for all work to end, and cuts off calls that are still in flight after this time. Call it after
    /// the shutdown token.
    pub(super) async fn wait_for_end(&self, within: Duration) {
        self.tasks.close();
        let (runs, at_most_s) = (self.run_ids().join(","), within.as_secs());
        if !runs.is_empty() {
            tracing::info!(target: "respool::agent", runs, at_most_s, "waiting for calls of these runs to end");
        }
        if tokio::time::timeout(within, self.tasks.wait()).await.is_err() {
            let runs = self.run_ids().join(",");
            tracing::warn!(target: "respool::agent", runs, "calls of these runs have not ended in time and are cut off; their outcome is unknown");
            self.cut.cancel();
            self.tasks.wait().await;
        }
    }
}

/// Returns the work with all that was written until its run was claimed: its earlier holder may have gone on
/// after it was read.
async fn reload_work(store: &Store, work: Work) -> Result<Work, StoreError> {
    // The next commit reports a store that cannot be read.
    let Some(stored) = ok_or_log(store.run(&work.id).await).flatten() else { return Ok(work) };
    let seq = stored.events.len() as u64;
    if seq == work.seq {
        return Ok(work);
    }
    let (run, _) =
        restore(&stored).ok_or_else(|| StoreError("the run cannot be read any more".to_owned()))?;
    Ok(Work { run, seq, first: Some(EventKind::Resumed), ..work })
}
