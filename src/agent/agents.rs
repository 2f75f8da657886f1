//! The configured agents and the runs in progress: begins runs, takes up those that wait or were interrupted, lets several
//! clients look at one, and ends them. Called by `server` and `cli`.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use http::HeaderValue;
use tokio::sync::{broadcast, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::budget::Tokens;
use super::config::{AgentConfig, OnDisconnect, Progress};
use super::driver::{Driver, End, Stops, now};
use super::record::{Event, Setup, What};
use super::request::{AgentRequest, normalised};
use super::run::Run;
use super::telemetry::Telemetry;
use super::{progress, setup};
use crate::observe::ErrorReport;
use crate::relay::Relay;
use crate::store::{NewRun, Status, Store, StoreError, StoredRun};
use crate::tools::Tools;
use crate::wire::ApiError;

/// Progress lines that a slow client may be behind; older ones are lost to it, not the answer.
const BEHIND: usize = 256;
/// A repeated request takes up an interrupted run that is not older than this, in milliseconds.
const TAKEN_UP_WITHIN: u64 = 15 * 60_000;
/// Runs that are over, or wait for a client, are kept so long, in milliseconds.
pub(super) const KEPT: u64 = 30 * 24 * 3_600_000;
/// The pause between clearings.
const CLEAR_EVERY: Duration = Duration::from_hours(1);
/// Suspended runs that are held in memory because they could not be stored.
const MOST_PARKED: usize = 1_000;

/// One agent.
pub struct Agent {
    /// Its name: the model id that clients use.
    pub name: Arc<str>,
    /// Its settings.
    pub config: AgentConfig,
    /// Its system prompt.
    pub prompt: Option<String>,
    /// The way to its model.
    pub relay: Arc<Relay>,
    /// Its own tools.
    pub tools: Arc<dyn Tools>,
    /// The model's window, in tokens.
    pub window: u64,
    /// The name under which reasoning and progress leave; `None`: not at all.
    pub reasoning: Option<&'static str>,
}

/// What all agents share.
pub struct Agents {
    agents: BTreeMap<String, Arc<Agent>>,
    store: Option<Arc<Store>>,
    report: ErrorReport,
    log_content: bool,
    live: Mutex<HashMap<String, Arc<Live>>>,
    parked: Mutex<Vec<Parked>>,
    tasks: TaskTracker,
    shutdown: CancellationToken,
}

impl std::fmt::Debug for Agents {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Agents").field("names", &self.agents.keys()).finish_non_exhaustive()
    }
}

/// A run that is being worked on.
struct Live {
    progress: broadcast::Sender<String>,
    end: watch::Receiver<Option<Arc<Ended>>>,
    stops: Stops,
    watched: Weak<DropGuard>,
}

/// A suspended run that is not in the store.
struct Parked {
    id: String,
    run: Run,
}

/// How work on a run ended, for whoever waits for it.
#[derive(Clone, Debug)]
pub struct Ended {
    /// How.
    pub end: End,
    /// What it cost since the client was last answered.
    pub spent: Tokens,
}

/// A client's view of a run. When the last one of a run is dropped, its client is gone.
pub struct Watch {
    /// The run's id.
    pub run: String,
    progress: Option<broadcast::Receiver<String>>,
    end: watch::Receiver<Option<Arc<Ended>>>,
    /// `None`: the run does not notice that this is dropped.
    guard: Option<Arc<DropGuard>>,
}

/// What a [`Watch`] sees next.
#[derive(Clone, Debug)]
pub enum Seen {
    /// A piece of text on what is being done.
    Progress(String),
    /// The end of the work.
    End(Arc<Ended>),
}

impl Watch {
    /// Waits for what comes next. Safe to cancel.
    pub async fn next(&mut self) -> Seen {
        if let Some(progress) = &mut self.progress {
            loop {
                match progress.recv().await {
                    Ok(text) => return Seen::Progress(text),
                    Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => break,
                }
            }
            self.progress = None;
        }
        let ended = self.end.wait_for(Option::is_some).await.ok().and_then(|ended| ended.clone());
        Seen::End(ended.unwrap_or_else(|| Arc::new(Ended { end: End::Left, spent: Tokens::default() })))
    }

    fn finished(run: String, ended: Ended) -> Self {
        let (_, end) = watch::channel(Some(Arc::new(ended)));
        Self { run, progress: None, end, guard: None }
    }
}

/// A run to work on.
struct Work {
    id: String,
    run: Run,
    seq: u64,
    store: Option<Arc<Store>>,
    authorization: Option<HeaderValue>,
    /// What happens first.
    first: Option<What>,
    how: &'static str,
}

impl Agents {
    /// `store`: `None` where runs cannot be kept.
    pub fn new(
        agents: Vec<Agent>,
        store: Option<Arc<Store>>,
        report: ErrorReport,
        log_content: bool,
        shutdown: CancellationToken,
    ) -> Self {
        Self {
            agents: agents.into_iter().map(|agent| (agent.name.to_string(), Arc::new(agent))).collect(),
            store,
            report,
            log_content,
            live: Mutex::default(),
            parked: Mutex::default(),
            tasks: TaskTracker::new(),
            shutdown,
        }
    }

    /// The agent of this name.
    pub fn get(&self, name: &str) -> Option<&Arc<Agent>> {
        self.agents.get(name)
    }

    /// All agents.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Agent>> {
        self.agents.values()
    }

    /// The store, where there is one.
    pub fn store(&self) -> Option<&Arc<Store>> {
        self.store.as_ref()
    }

    /// Serves a request: takes up the run that it belongs to, or begins one.
    pub async fn serve(
        self: &Arc<Self>,
        agent: &Arc<Agent>,
        request: AgentRequest,
        authorization: Option<HeaderValue>,
    ) -> Watch {
        if !request.results.is_empty()
            && let Some(watch) = self.returned(agent, &request, authorization.clone()).await
        {
            return watch;
        }
        if let Some(watch) = self.unanswered(agent, &request, authorization.clone()).await {
            return watch;
        }
        self.begin(agent, request, authorization).await
    }

    async fn begin(
        self: &Arc<Self>,
        agent: &Arc<Agent>,
        request: AgentRequest,
        authorization: Option<HeaderValue>,
    ) -> Watch {
        let id = format!("run-{:032x}", rand::random::<u128>());
        let fingerprint = request.fingerprint.clone();
        let setup = setup::setup(agent, request, rand::random(), now());
        let run = NewRun {
            id: id.clone(),
            agent: agent.name.to_string(),
            at: setup.at,
            fingerprint,
            setup: serde_json::to_string(&setup).unwrap_or_default(),
        };
        let run_state = Run::new(setup);
        let store = match &self.store {
            Some(store) => match store.begin(run).await {
                Ok(()) => Some(Arc::clone(store)),
                Err(error) => {
                    self.telemetry(agent, &id).not_durable(&run_state, &error);
                    None
                }
            },
            None => None,
        };
        let work = Work { id, run: run_state, seq: 0, store, authorization, first: None, how: "begins" };
        self.work(agent, work)
    }

    /// The run that waits for the results that the client brings; also one that was interrupted after it got them.
    async fn returned(
        self: &Arc<Self>,
        agent: &Arc<Agent>,
        request: &AgentRequest,
        authorization: Option<HeaderValue>,
    ) -> Option<Watch> {
        let ids: Vec<String> = request.results.iter().map(|(id, _)| id.clone()).collect();
        if let Some(parked) = self.unpark(&ids) {
            let first = Some(came_back(&parked.run, request));
            let Parked { id, run } = parked;
            let work = Work { id, run, seq: 0, store: None, authorization, first, how: "client returned" };
            return Some(self.work(agent, work));
        }
        let store = self.store.clone()?;
        let id = told(store.by_call(ids).await)??;
        if let Some(watch) = self.watch(&id) {
            return Some(watch);
        }
        let stored = told(store.run(&id).await)??;
        if stored.row.agent != *agent.name {
            return None;
        }
        let (run, last) = restored(&stored)?;
        let seq = stored.events.len() as u64;
        let waits = run
            .awaited()
            .iter()
            .any(|call| request.results.iter().any(|(id, _)| *id == normalised(&call.id)));
        if waits {
            let first = Some(came_back(&run, request));
            let claimed = told(store.claim(&id, true).await)?;
            let work =
                Work { id, run, seq, store: Some(store), authorization, first, how: "client returned" };
            return claimed.then(|| self.work(agent, work));
        }
        // The same results once more: the client did not get what came of them.
        let same = matches!(&last, Some(What::ClientReturned { results, tail })
            if *tail == request.tail && results.iter().all(|(id, _)| request.results.iter().any(|(other, _)| other == id)));
        if !same {
            return None;
        }
        if let Some(end) = over(&run) {
            let spent = run.spent_since_answer();
            return Some(Watch::finished(id, Ended { end, spent }));
        }
        let claimed = told(store.claim(&id, true).await)?;
        let first = Some(What::Resumed);
        let work = Work { id, run, seq, store: Some(store), authorization, first, how: "resumed" };
        claimed.then(|| self.work(agent, work))
    }

    /// A run that the same request began and whose answer its client has not got: it asks again.
    async fn unanswered(
        self: &Arc<Self>,
        agent: &Arc<Agent>,
        request: &AgentRequest,
        authorization: Option<HeaderValue>,
    ) -> Option<Watch> {
        let store = self.store.as_ref()?;
        let since = now().saturating_sub(TAKEN_UP_WITHIN);
        let id = told(store.unanswered(&request.fingerprint, since).await)??;
        if self.is_live(&id) {
            // Somebody else may have asked the same; only a run that was left behind is shared.
            return self.watch(&id).filter(|watch| watch.guard.is_none());
        }
        let stored = told(store.run(&id).await)??;
        match restored(&stored).and_then(|(run, _)| Some((over(&run)?, run.spent_since_answer()))) {
            Some((end, spent)) => Some(Watch::finished(id, Ended { end, spent })),
            None => self.resume_with(agent, &id, authorization).await.ok(),
        }
    }

    fn is_live(&self, id: &str) -> bool {
        self.live.lock().unwrap_or_else(PoisonError::into_inner).contains_key(id)
    }

    /// The client of a run has got what there is of it.
    pub async fn answered(&self, id: &str) {
        if let Some(store) = &self.store {
            let _ = told(store.answered(id).await);
        }
    }

    /// Takes up an interrupted run.
    ///
    /// # Errors
    /// Why it cannot be taken up, for people.
    pub async fn resume(self: &Arc<Self>, id: &str) -> Result<Watch, String> {
        let store = self.store.as_ref().ok_or("there is no store of runs")?;
        let stored = store.run(id).await.map_err(|error| error.0)?;
        let stored = stored.ok_or_else(|| format!("there is no run {id}"))?;
        let agent = self.get(&stored.row.agent).cloned();
        let agent = agent.ok_or_else(|| format!("its agent `{}` is not configured", stored.row.agent))?;
        self.resume_with(&agent, id, None).await
    }

    async fn resume_with(
        self: &Arc<Self>,
        agent: &Arc<Agent>,
        id: &str,
        authorization: Option<HeaderValue>,
    ) -> Result<Watch, String> {
        let store = self.store.clone().ok_or("there is no store of runs")?;
        let stored = store.run(id).await.map_err(|error| error.0)?;
        let stored = stored.ok_or_else(|| format!("there is no run {id}"))?;
        let (run, _) = restored(&stored).ok_or("it was written by another version of respool")?;
        if !run.awaited().is_empty() {
            return Err("it waits for its client's tool results".into());
        }
        if !store.claim(id, false).await.map_err(|error| error.0)? {
            return Err(format!("it is {}", stored.row.status.as_str()));
        }
        let seq = stored.events.len() as u64;
        let (id, first) = (id.to_owned(), Some(What::Resumed));
        Ok(self.work(agent, Work { id, run, seq, store: Some(store), authorization, first, how: "resumed" }))
    }

    /// Looks at a run that is being worked on.
    fn watch(&self, id: &str) -> Option<Watch> {
        let live = self.live.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned()?;
        let progress = Some(live.progress.subscribe());
        Some(Watch { run: id.to_owned(), progress, end: live.end.clone(), guard: live.watched.upgrade() })
    }

    /// Ends a run. False when it is over or not known.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn cancel(&self, id: &str) -> Result<bool, StoreError> {
        let live = self.live.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned();
        if let Some(live) = live {
            live.stops.cancel.cancel();
            return Ok(true);
        }
        match &self.store {
            Some(store) => store.request_cancel(id).await,
            None => Ok(false),
        }
    }

    /// The ids of the runs that are being worked on.
    pub fn live(&self) -> Vec<String> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }

    /// Works on a run in a task of its own.
    fn work(self: &Arc<Self>, agent: &Arc<Agent>, work: Work) -> Watch {
        let (progress, subscribed) = broadcast::channel(BEHIND);
        let (ended, end) = watch::channel(None);
        let stops = Stops { shutdown: self.shutdown.clone(), ..Stops::default() };
        let guard = Arc::new(stops.gone.clone().drop_guard());
        let live = Live {
            progress: progress.clone(),
            end: end.clone(),
            stops: stops.clone(),
            watched: Arc::downgrade(&guard),
        };
        let id = work.id.clone();
        self.live.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone(), Arc::new(live));
        let (agents, agent) = (Arc::clone(self), Arc::clone(agent));
        self.tasks.spawn(async move {
            let done = agents.work_through(&agent, work, progress, stops).await;
            ended.send_replace(Some(Arc::new(done)));
        });
        Watch { run: id, progress: Some(subscribed), end, guard: Some(guard) }
    }

    async fn work_through(
        &self,
        agent: &Agent,
        work: Work,
        progress: broadcast::Sender<String>,
        stops: Stops,
    ) -> Ended {
        let Work { id, mut run, seq, store, authorization, first, how } = work;
        let telemetry = self.telemetry(agent, &id);
        telemetry.started(&run, how);
        let mut driver = Driver {
            id: id.clone(),
            model: agent.config.model.clone(),
            temperature: agent.config.temperature,
            relay: Arc::clone(&agent.relay),
            tools: Arc::clone(&agent.tools),
            store,
            seq,
            authorization,
            audience: Box::new(move |happening| {
                // Nobody may be looking.
                let _ = progress::text(happening).map(|text| progress.send(text));
            }),
            approver: None,
            streams: false,
            stops,
            telemetry: telemetry.clone(),
            backlog: Vec::new(),
            detached: agent.config.on_disconnect == OnDisconnect::Detach,
            log_content: self.log_content,
        };
        if let Some(first) = first {
            driver.happened(&mut run, first).await;
        }
        let end = driver.drive(&mut run).await;
        let kept = driver.store.is_some() && driver.backlog.is_empty();
        let why = if matches!(end, End::Left) { "left" } else { "over" };
        telemetry.left(why);
        let spent = run.spent_since_answer();
        self.live.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        if matches!(end, End::Suspended(_)) && !kept {
            self.park(Parked { id, run });
        }
        Ended { end, spent }
    }

    fn telemetry(&self, agent: &Agent, id: &str) -> Telemetry {
        Telemetry {
            run: id.to_owned(),
            agent: Arc::clone(&agent.name),
            report: self.report.clone(),
            content: self.log_content,
        }
    }

    fn park(&self, parked: Parked) {
        let mut all = self.parked.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOST_PARKED {
            all.remove(0);
        }
        all.push(parked);
    }

    fn unpark(&self, ids: &[String]) -> Option<Parked> {
        let mut all = self.parked.lock().unwrap_or_else(PoisonError::into_inner);
        let waits =
            |parked: &Parked| parked.run.awaited().iter().any(|call| ids.contains(&normalised(&call.id)));
        let place = all.iter().position(waits)?;
        Some(all.remove(place))
    }

    /// Takes up what a process before this one left, and clears what is old, until the process ends.
    pub async fn start(self: &Arc<Self>) {
        let Some(store) = self.store.clone() else { return };
        if let Some(orphans) = told(store.mark_orphans().await).filter(|count| *count > 0) {
            tracing::warn!(target: "respool::agent", runs = orphans, "runs were interrupted; `respool runs list` shows them");
        }
        self.resume_detached(&store).await;
        let shutdown = self.shutdown.clone();
        self.tasks.spawn(async move {
            loop {
                let _ = told(store.delete_before(now().saturating_sub(KEPT)).await);
                tokio::select! {
                    () = shutdown.cancelled() => return,
                    () = tokio::time::sleep(CLEAR_EVERY) => {}
                }
            }
        });
    }

    /// A detached run goes on by itself; the others wait for their clients or for `respool runs resume`.
    async fn resume_detached(self: &Arc<Self>, store: &Arc<Store>) {
        let rows = told(store.newest(MOST_PARKED).await).unwrap_or_default();
        for row in rows.into_iter().filter(|row| row.status == Status::Interrupted) {
            let detached =
                self.get(&row.agent).filter(|agent| agent.config.on_disconnect == OnDisconnect::Detach);
            if let Some(agent) = detached.cloned()
                && let Err(why) = self.resume_with(&agent, &row.id, None).await
            {
                tracing::warn!(target: "respool::agent", run_id = row.id, why, "the run cannot be resumed");
            }
        }
    }

    /// Waits until nothing is worked on any more. Call it after the shutdown token.
    pub async fn ended(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Agent {
    /// Whether the client sees what is being done.
    pub fn shows_progress(&self) -> bool {
        self.config.progress == Progress::Reasoning
    }
}

/// A store's answer; its error is logged, and the caller goes on without.
fn told<T>(answer: Result<T, StoreError>) -> Option<T> {
    answer
        .inspect_err(|error| tracing::error!(target: "respool::store", %error, "the store of runs failed"))
        .ok()
}

/// The event of the client's return: ids as the run has them.
fn came_back(run: &Run, request: &AgentRequest) -> What {
    let own = |id: &str| {
        let call = run.awaited().iter().find(|call| normalised(&call.id) == id);
        call.map_or_else(|| id.to_owned(), |call| call.id.clone())
    };
    let results = request.results.iter().map(|(id, text)| (own(id), text.clone())).collect();
    What::ClientReturned { results, tail: request.tail.clone() }
}

/// A run from the store, and the last time that its client brought something.
pub(super) fn restored(stored: &StoredRun) -> Option<(Run, Option<What>)> {
    let setup: Setup = serde_json::from_str(&stored.setup).ok()?;
    let event = |event: &crate::store::StoredEvent| {
        Some(Event { at: event.at, what: serde_json::from_str(&event.body).ok()? })
    };
    let events: Vec<Event> = stored.events.iter().map(event).collect::<Option<_>>()?;
    let returned = |event: &&Event| matches!(event.what, What::ClientReturned { .. });
    let last = events.iter().rfind(returned).map(|event| event.what.clone());
    Some((Run::restore(setup, events).ok()?, last))
}

fn over(run: &Run) -> Option<End> {
    match run.next() {
        super::run::Step::Finish(outcome) => Some(End::Finished(*outcome)),
        super::run::Step::Suspend(suspension) => Some(End::Suspended(suspension)),
        _ => None,
    }
}

impl Ended {
    /// The error of a run that has nothing to show.
    pub fn error(&self) -> Option<ApiError> {
        match &self.end {
            End::Finished(outcome) => {
                let failure = outcome.failure.as_ref().filter(|_| outcome.content.trim().is_empty())?;
                Some(ApiError::new(failure.status, &failure.code, failure.text.clone()))
            }
            End::Suspended(_) => None,
            End::Left => Some(ApiError::new(
                503,
                "shutting_down",
                "respool was stopped before the run was over; send the request again, and it goes on",
            )),
        }
    }
}
