//! The present state of an upstream: its circuit, its places, the models it serves. `relay` asks for all this
//! before it sends a request, and says how the request went.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use super::balance::Load;
use super::circuit::Circuit;
use super::config::UpstreamConfig;
use super::gate::Gate;
use super::listed_model::{ListedModel, NoModelList};
use super::retry_budget::{RepeatPermit, RetryBudget};
use telemetry::metrics::UpstreamSeries;

/// The state that changes from request to request.
#[derive(Debug)]
pub struct UpstreamState {
    weight: u32,
    circuit: Mutex<Circuit>,
    pub(super) gate: Arc<Gate>,
    retries: RetryBudget,
    /// `models` of the configuration.
    configured: bool,
    /// The models it serves; `None`: not known.
    models: RwLock<Option<Vec<String>>>,
    /// It refused to list its models without a key.
    requires_key_to_list_models: AtomicBool,
    /// The reason why it lists no models, as it was when it was last asked.
    problem: RwLock<Option<NoModelList>>,
    /// When it answered a probe again after it had not.
    back_since: Mutex<Option<std::time::Instant>>,
    pub(super) series: Arc<UpstreamSeries>,
    /// `max_concurrency` and `max_queue`.
    bounds: (Option<usize>, usize),
}

impl UpstreamState {
    pub(super) fn new(config: &UpstreamConfig) -> Self {
        let series = Arc::new(UpstreamSeries::new(&config.name));
        Self {
            weight: config.weight,
            circuit: Mutex::default(),
            gate: Arc::new(Gate::new(config.max_concurrency, config.max_queue, Arc::clone(&series))),
            retries: RetryBudget::default(),
            configured: config.models.is_some(),
            models: RwLock::new(config.models.clone()),
            requires_key_to_list_models: AtomicBool::new(false),
            problem: RwLock::default(),
            back_since: Mutex::default(),
            series,
            bounds: (config.max_concurrency, config.max_queue),
        }
    }

    /// Returns the state after a change of the configuration: the requests that are at work there still take
    /// their places. The gate is shared, and its bounds change with [`UpstreamState::take_effect`].
    pub(super) fn succeeding(before: &Self, config: &UpstreamConfig) -> Self {
        Self { gate: Arc::clone(&before.gate), series: Arc::clone(&before.series), ..Self::new(config) }
    }

    /// Puts the configuration that this belongs to into effect.
    pub(super) fn take_effect(&self) {
        let (max_concurrency, max_queue) = self.bounds;
        self.gate.change_places(max_concurrency, max_queue);
        self.series.open.set(if self.lock_circuit().as_str() == "closed" { 0.0 } else { 1.0 });
    }

    /// Returns its share among upstreams that serve the same model.
    pub fn weight(&self) -> u32 {
        self.weight
    }

    /// Divides `max_concurrency` equally among this number of processes.
    pub fn share_places(&self, processes: usize) {
        self.gate.share_places(processes);
    }

    /// Returns true when the number of its requests is bounded.
    pub fn is_bounded(&self) -> bool {
        self.gate.is_bounded()
    }

    /// Returns true when the configuration names its models, so that it is not asked for them.
    pub fn names_its_models(&self) -> bool {
        self.configured
    }

    /// Returns the models that are configured, or that it lists for respool itself; `None`: not known.
    pub fn models(&self) -> Option<Vec<String>> {
        self.models.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns whether it serves this model; `None`: not known.
    pub fn serves_model(&self, model: &str) -> Option<bool> {
        let known = self.models.read().unwrap_or_else(PoisonError::into_inner);
        known.as_ref().map(|known| known.iter().any(|served| served == model))
    }

    /// Notes its answer to the question which models it serves. True when they are news. Those that the
    /// configuration names stay.
    pub(super) fn note_list(&self, answer: Result<&[ListedModel], &NoModelList>) -> bool {
        let mut problem = self.problem.write().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *problem, answer.err().cloned()).is_some() && problem.is_none() {
            *self.back_since.lock().unwrap_or_else(PoisonError::into_inner) = Some(runtime_time());
        }
        drop(problem);
        let Some(list) = answer.ok().filter(|_| !self.configured) else { return false };
        let models: Vec<String> = list.iter().map(|model| model.id.clone()).collect();
        if self.models().as_ref() == Some(&models) {
            return false;
        }
        *self.models.write().unwrap_or_else(PoisonError::into_inner) = Some(models);
        true
    }

    /// Returns true if it was away and has come back after a request began: how that request fails says
    /// nothing about it as it is now.
    pub(super) fn is_back_since(&self, began: std::time::Instant) -> bool {
        let back_since = *self.back_since.lock().unwrap_or_else(PoisonError::into_inner);
        back_since.is_some_and(|back| began < back)
    }

    /// Returns why it answers no request until its owner corrects the key or the certificate, as it was when
    /// it was last asked.
    pub fn refusal(&self) -> Option<NoModelList> {
        let problem = self.problem.read().unwrap_or_else(PoisonError::into_inner);
        problem.clone().filter(NoModelList::is_refusal)
    }

    /// Notes that it refused to list its models. Returns true if that is news.
    pub(super) fn note_refused_list(&self) -> bool {
        !self.requires_key_to_list_models.swap(true, Ordering::Relaxed)
    }

    /// Returns true when it may yet list its models.
    pub(super) fn may_list_models(&self) -> bool {
        self.models().is_none() && !self.requires_key_to_list_models.load(Ordering::Relaxed)
    }

    /// Returns the circuit (`closed`, `open` or `half_open`), the requests in progress, and those that wait.
    pub fn circuit_report(&self) -> (&'static str, usize, usize) {
        let (taken, waiting) = self.gate.load();
        (self.lock_circuit().as_str(), taken, waiting)
    }

    /// Notes that it has answered a request, if only with an error.
    pub fn note_answer(&self) {
        self.gate.note_answer();
    }

    /// Returns for how long it has sent nothing of a reply while it had requests; `None` without requests.
    pub fn silence(&self) -> Option<Duration> {
        self.gate.silence()
    }

    /// Returns how long its recent requests took; `None` before one has ended.
    pub fn mean_latency(&self) -> Option<Duration> {
        self.gate.mean_latency()
    }

    /// Returns the facts by which one of several upstreams is chosen.
    pub fn load(&self, asked: bool) -> Load {
        Load { admits: self.admits(), asked, wait: self.gate.expected_wait() }
    }

    /// Says why requests are not simply sent there: its circuit is not closed. `None`: it is.
    pub fn circuit_problem(&self) -> Option<&'static str> {
        self.lock_circuit().describe_problem(runtime_time())
    }

    /// Returns true when its circuit lets a request through, and it did not refuse the key or the certificate
    /// when it was last asked.
    pub fn admits(&self) -> bool {
        let problem = self.problem.read().unwrap_or_else(PoisonError::into_inner);
        !problem.as_ref().is_some_and(NoModelList::bars_requests)
            && self.lock_circuit().admits(runtime_time())
    }

    /// Counts a request that is not a repeat of one that the upstream failed.
    pub fn count_request(&self) {
        self.retries.deposit();
    }

    /// Counts a useful reply.
    pub fn count_useful_reply(&self) {
        self.retries.earn();
    }

    /// Returns true when it gave a useful reply a moment ago.
    pub fn has_recent_success(&self) -> bool {
        self.retries.has_recent_success()
    }

    /// Returns whether a request that the upstream failed may be sent to it again; that draws on the budget.
    /// While the upstream keeps failing, it may not, unless a useful reply is recent: then it waits for the
    /// circuit's next trial.
    pub fn withdraw_repeat(&self) -> RepeatPermit {
        let next_trial = self.lock_circuit().next_trial(runtime_time());
        self.retries.withdraw(next_trial)
    }

    /// Counts a request that left it for another upstream.
    pub fn count_failover(&self) {
        self.series.failovers.increment(1);
    }

    pub(super) fn lock_circuit(&self) -> MutexGuard<'_, Circuit> {
        self.circuit.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the runtime's time, which tests can stop.
pub(super) fn runtime_time() -> std::time::Instant {
    tokio::time::Instant::now().into_std()
}
