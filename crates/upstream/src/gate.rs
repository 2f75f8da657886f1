//! The places at one upstream: at most `max_concurrency` requests at a time, at most `max_queue` more that
//! wait.
//!
//! A place is held until its [`UpstreamPlace`] is dropped, that is until the reply's body has ended or the
//! client has gone. A request that is dropped while it waits leaves the queue at once. Called through
//! `state`.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::priority::Priority;
use super::queue::{FairQueue, QueueClient};
use super::silence::Silence;
use telemetry::metrics::UpstreamSeries;

/// How long a request is taken to need before one has ended.
const FIRST_GUESS: Duration = Duration::from_secs(5);

/// How much the last request counts in the mean.
const NEWEST: f64 = 0.2;

/// The entrance to one upstream.
#[derive(Debug)]
pub(super) struct Gate {
    /// How many requests at a time; `usize::MAX`: any number.
    places: AtomicUsize,
    /// How many processes have equal parts of the places.
    processes: AtomicUsize,
    max_queue: AtomicUsize,
    state: Mutex<GateState>,
    /// Wakes one that would give up its place for a more urgent request.
    contended: Notify,
    /// A piece of a reply has come since the last look at the silence.
    heard: AtomicBool,
    series: Arc<UpstreamSeries>,
}

#[derive(Debug)]
struct GateState {
    taken: usize,
    /// Counts the requests that have lined up.
    arrivals: u64,
    waiting: FairQueue<oneshot::Sender<()>>,
    /// The mean time for which recent places were held.
    held: Duration,
    /// The same without the guess; `None` before a place was returned.
    measured: Option<Duration>,
    silence: Silence,
}

/// A place at an upstream; dropping it makes room for the next request.
#[derive(Debug)]
pub struct UpstreamPlace {
    gate: Arc<Gate>,
    since: Instant,
}

/// No place, and no room to wait for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueFull {
    /// Requests at work.
    pub taken: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// When a place is to be expected.
    pub wait: Duration,
}

impl Gate {
    /// `places`: how many requests at a time, `None`: any number. `max_queue`: how many may wait.
    pub(super) fn new(places: Option<usize>, max_queue: usize, series: Arc<UpstreamSeries>) -> Self {
        let state = GateState {
            taken: 0,
            arrivals: 0,
            waiting: FairQueue::default(),
            held: FIRST_GUESS,
            measured: None,
            silence: Silence::default(),
        };
        Self {
            places: AtomicUsize::new(places.unwrap_or(usize::MAX)),
            processes: AtomicUsize::new(1),
            max_queue: AtomicUsize::new(max_queue),
            state: Mutex::new(state),
            contended: Notify::new(),
            heard: AtomicBool::new(false),
            series,
        }
    }

    /// Changes the number of places. Requests that hold one keep it; those that wait get the new ones.
    pub(super) fn change_places(&self, places: Option<usize>, max_queue: usize) {
        let state = self.state();
        self.places.store(places.unwrap_or(usize::MAX), Ordering::Relaxed);
        self.max_queue.store(max_queue, Ordering::Relaxed);
        self.fill_places(state);
    }

    /// Keeps an equal part of the places, rounded up, and leaves the others to as many processes less one.
    pub(super) fn share_places(&self, processes: usize) {
        if self.processes.swap(processes.max(1), Ordering::Relaxed) != processes {
            self.fill_places(self.state());
        }
    }

    fn fill_places(&self, mut state: MutexGuard<'_, GateState>) {
        let places = self.places();
        while state.taken < places && state.waiting.len() > 0 {
            state.taken += 1;
            Self::hand_over(&mut state, places);
        }
    }

    /// The places of this process; `usize::MAX`: any number.
    fn places(&self) -> usize {
        match self.places.load(Ordering::Relaxed) {
            usize::MAX => usize::MAX,
            places => places.div_ceil(self.processes.load(Ordering::Relaxed)),
        }
    }

    fn max_queue(&self) -> usize {
        self.max_queue.load(Ordering::Relaxed)
    }

    /// True when the number of requests is bounded.
    pub(super) fn is_bounded(&self) -> bool {
        self.places() != usize::MAX
    }

    /// How many are at work, and how many wait.
    pub(super) fn load(&self) -> (usize, usize) {
        let state = self.state();
        (state.taken, state.waiting.len())
    }

    /// Notes that something has come.
    pub(super) fn note_answer(&self) {
        // Of many pieces, only the first one since a look writes.
        if !self.heard.load(Ordering::Relaxed) {
            self.heard.store(true, Ordering::Relaxed);
        }
    }

    /// For how long the requests at work have got nothing; `None` without any.
    pub(super) fn silence(&self) -> Option<Duration> {
        let heard = self.heard.swap(false, Ordering::Relaxed);
        self.state().silence.look(heard, Instant::now())
    }

    /// How long recent requests took, from their place to their end; `None` before one has ended.
    pub(super) fn mean_latency(&self) -> Option<Duration> {
        self.state().measured
    }

    /// How long a request that comes now is to wait; [`Duration::MAX`] when it may not.
    pub(super) fn expected_wait(&self) -> Duration {
        let places = self.places();
        if places == usize::MAX {
            return Duration::ZERO;
        }
        let state = self.state();
        match (state.taken < places, state.waiting.len() < self.max_queue()) {
            (true, _) => Duration::ZERO,
            (false, true) => state.expected_wait(places),
            (false, false) => Duration::MAX,
        }
    }

    /// Takes a place, or waits for one; says how long it waited. Dropping the future leaves the queue.
    ///
    /// # Errors
    /// When as many wait as may.
    pub(super) async fn enter(
        self: &Arc<Self>,
        who: QueueClient,
    ) -> Result<(UpstreamPlace, Duration), QueueFull> {
        match self.place_or_ticket(who)? {
            Ok(place) => Ok((place, Duration::ZERO)),
            Err(waiting) => {
                let began = Instant::now();
                Ok((waiting.wait_for_call().await, began.elapsed()))
            }
        }
    }

    fn place_or_ticket(
        self: &Arc<Self>,
        who: QueueClient,
    ) -> Result<Result<UpstreamPlace, QueuedRequest>, QueueFull> {
        let mut state = self.state();
        let places = self.places();
        if state.taken < places {
            if state.taken == 0 {
                state.silence.begin(self.heard.swap(false, Ordering::Relaxed), Instant::now());
            }
            state.taken += 1;
            if self.is_bounded() {
                state.waiting.serve(who);
            }
            return Ok(Ok(self.new_place()));
        }
        let waiting = state.waiting.len();
        if waiting >= self.max_queue() {
            return Err(QueueFull { taken: state.taken, waiting, wait: state.expected_wait(places) });
        }
        let (call, called) = oneshot::channel();
        let ticket = state.waiting.push(who, call);
        state.arrivals += 1;
        self.contended.notify_one();
        self.series.queued.increment(1.0);
        Ok(Err(QueuedRequest { gate: Arc::clone(self), ticket, called, placed: false }))
    }

    /// Waits until a request that is more urgent than `priority` lines up from now on.
    pub(super) async fn wait_for_more_urgent(&self, priority: Priority) {
        let before = self.state().arrivals;
        loop {
            self.contended.notified().await;
            let state = self.state();
            if state.arrivals > before && state.waiting.has_more_urgent(priority) {
                return;
            }
        }
    }

    fn new_place(self: &Arc<Self>) -> UpstreamPlace {
        self.series.in_flight.increment(1.0);
        UpstreamPlace { gate: Arc::clone(self), since: Instant::now() }
    }

    /// Gives a place to the next client, or takes it back when no client waits or there are fewer places than
    /// before.
    fn hand_over(state: &mut GateState, places: usize) {
        while state.taken <= places
            && let Some(call) = state.waiting.pop()
        {
            if call.send(()).is_ok() {
                return;
            }
        }
        state.taken -= 1;
        if state.taken == 0 {
            state.silence.pause(Instant::now());
        }
    }

    fn state(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GateState {
    /// Counts the time for which a place was held.
    fn note_duration(&mut self, held: Duration) {
        self.held = self.held.mul_f64(1.0 - NEWEST) + held.mul_f64(NEWEST);
        let before = self.measured.unwrap_or(held);
        self.measured = Some(before.mul_f64(1.0 - NEWEST) + held.mul_f64(NEWEST));
    }

    /// When the next one in the queue may be called up, if requests go on to take as long as they did.
    fn expected_wait(&self, places: usize) -> Duration {
        let before = u32::try_from(self.waiting.len() + 1).unwrap_or(u32::MAX);
        self.held.saturating_mul(before) / u32::try_from(places).unwrap_or(u32::MAX)
    }
}

impl UpstreamPlace {
    /// Notes that a piece of its reply has come.
    pub fn note_piece(&self) {
        self.gate.note_answer();
    }
}

impl Drop for UpstreamPlace {
    fn drop(&mut self) {
        let held = self.since.elapsed();
        let mut state = self.gate.state();
        state.note_duration(held);
        Gate::hand_over(&mut state, self.gate.places());
        self.gate.series.in_flight.decrement(1.0);
    }
}

/// A request in the queue.
struct QueuedRequest {
    gate: Arc<Gate>,
    ticket: u64,
    called: oneshot::Receiver<()>,
    placed: bool,
}

impl QueuedRequest {
    async fn wait_for_call(mut self) -> UpstreamPlace {
        // The other end stays in the queue until it calls, and the queue lives as long as `gate`.
        let _ = (&mut self.called).await;
        self.placed = true;
        self.gate.new_place()
    }
}

impl Drop for QueuedRequest {
    fn drop(&mut self) {
        self.gate.series.queued.decrement(1.0);
        if self.placed {
            return;
        }
        let mut state = self.gate.state();
        // Called up in the very moment in which it was dropped: the place is another one's.
        if !state.waiting.leave(self.ticket) {
            Gate::hand_over(&mut state, self.gate.places());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    fn gate(places: usize, max_queue: usize) -> Arc<Gate> {
        Arc::new(Gate::new(Some(places), max_queue, Arc::new(UpstreamSeries::new("test"))))
    }

    /// Enters, and drops the time that it took.
    async fn enter(gate: &Arc<Gate>, client: u64) -> UpstreamPlace {
        gate.enter(who(client)).await.unwrap().0
    }

    fn who(client: u64) -> QueueClient {
        QueueClient { client, conversation: client, ..QueueClient::default() }
    }

    #[tokio::test]
    async fn places_are_handed_on_in_fair_order() {
        let gate = gate(1, 9);
        let first = enter(&gate, 1).await;
        let mut line: Vec<_> = [1, 1, 2].map(|client| Box::pin(enter(&gate, client))).into();
        line.iter_mut().for_each(|waiting| assert!(waiting.as_mut().now_or_never().is_none()));
        assert_eq!(gate.load(), (1, 3));
        drop(first);
        let other_client = line.remove(2).now_or_never().expect("client 1 had a place last");
        assert!(line.iter_mut().all(|waiting| waiting.as_mut().now_or_never().is_none()));
        drop(other_client);
        drop(line.remove(0).now_or_never().unwrap());
        assert_eq!(gate.load(), (1, 0));
        drop(line.remove(0).now_or_never().unwrap());
        assert_eq!(gate.load(), (0, 0));
    }

    #[tokio::test]
    async fn background_work_learns_of_a_person_who_comes() {
        let gate = gate(1, 9);
        let background = QueueClient { priority: Priority::Background, ..who(1) };
        let _place = gate.enter(background).await.unwrap();
        let mut other = Box::pin(gate.enter(background));
        assert!(other.as_mut().now_or_never().is_none());
        let mut contended = Box::pin(gate.wait_for_more_urgent(Priority::Background));
        assert!(contended.as_mut().now_or_never().is_none(), "the other is as urgent");
        let mut person = Box::pin(gate.enter(who(2)));
        assert!(person.as_mut().now_or_never().is_none());
        assert!(contended.now_or_never().is_some());
        let mut later = Box::pin(gate.wait_for_more_urgent(Priority::Background));
        assert!(later.as_mut().now_or_never().is_none(), "the person came before");
    }

    #[tokio::test]
    async fn who_gives_up_leaves_at_once() {
        let gate = gate(1, 9);
        let first = enter(&gate, 1).await;
        let mut gives_up = Box::pin(enter(&gate, 2));
        let mut called_up = Box::pin(enter(&gate, 3));
        let mut last = Box::pin(enter(&gate, 4));
        for waiting in [&mut gives_up, &mut called_up, &mut last] {
            assert!(waiting.as_mut().now_or_never().is_none());
        }
        drop(gives_up);
        assert_eq!(gate.load(), (1, 2));
        drop(first);
        drop(called_up);
        let place = last.now_or_never().expect("the place that was not taken");
        assert_eq!(gate.load(), (1, 0));
        drop(place);
        assert_eq!(gate.load(), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_piece_ends_the_silence() {
        let gate = gate(2, 0);
        let minutes = |count| tokio::time::advance(Duration::from_mins(count));
        let (first, second) = (enter(&gate, 1).await, enter(&gate, 2).await);
        minutes(7).await;
        drop(second);
        assert_eq!(gate.silence(), Some(Duration::from_mins(7)));
        first.note_piece();
        assert_eq!(gate.silence(), Some(Duration::ZERO));
        minutes(1).await;
        assert_eq!(gate.silence(), Some(Duration::from_mins(1)));
        drop(first);
        assert_eq!(gate.silence(), None);
    }

    #[tokio::test]
    async fn over_the_bound_it_says_when_to_come_back() {
        let gate = gate(2, 1);
        let (one, two) = (enter(&gate, 1).await, enter(&gate, 1).await);
        assert_eq!(gate.expected_wait(), FIRST_GUESS / 2);
        let mut waiting = Box::pin(enter(&gate, 1));
        assert!(waiting.as_mut().now_or_never().is_none());
        assert_eq!(gate.expected_wait(), Duration::MAX);
        assert_eq!(
            gate.enter(who(2)).await.unwrap_err(),
            QueueFull { taken: 2, waiting: 1, wait: FIRST_GUESS }
        );
        drop((one, two, waiting));
        assert_eq!((gate.load(), gate.expected_wait()), ((0, 0), Duration::ZERO));
    }

    #[tokio::test]
    async fn what_is_expected_follows_what_was() {
        let gate = gate(2, 1);
        let _both = (enter(&gate, 1).await, enter(&gate, 1).await);
        assert_eq!(gate.mean_latency(), None, "a guess is not shown");
        gate.state().note_duration(Duration::from_secs(30));
        assert_eq!(
            gate.expected_wait(),
            Duration::from_secs(5),
            "10 s a request: 5 s, and 30 s that count a fifth"
        );
        assert_eq!(gate.mean_latency(), Some(Duration::from_secs(30)));
        (0..50).for_each(|_| gate.state().note_duration(Duration::from_millis(200)));
        assert!(
            gate.expected_wait().abs_diff(Duration::from_millis(100)) < Duration::from_millis(5),
            "{:?}",
            gate.expected_wait()
        );
    }

    #[tokio::test]
    async fn places_come_and_go() {
        let gate = gate(1, 9);
        let first = enter(&gate, 1).await;
        let mut line: Vec<_> = (2..6).map(|client| Box::pin(enter(&gate, client))).collect();
        line.iter_mut().for_each(|waiting| assert!(waiting.as_mut().now_or_never().is_none()));
        gate.change_places(Some(3), 9);
        let (second, third) =
            (line.remove(0).now_or_never().unwrap(), line.remove(0).now_or_never().unwrap());
        assert_eq!(gate.load(), (3, 2), "two more work, two wait");
        gate.change_places(Some(2), 2);
        drop(first);
        assert!(line.iter_mut().all(|waiting| waiting.as_mut().now_or_never().is_none()), "one place fewer");
        assert_eq!(gate.load(), (2, 2));
        assert_eq!(gate.enter(who(9)).await.unwrap_err().waiting, 2, "the queue is shorter");
        drop(second);
        let fourth = line.remove(0).now_or_never().expect("a place was free again");
        gate.change_places(None, 0);
        let fifth = line.remove(0).now_or_never().expect("no bound");
        drop((third, fourth, fifth));
        assert_eq!((gate.load(), gate.is_bounded()), ((0, 0), false));
    }

    #[tokio::test]
    async fn processes_have_equal_parts_of_the_places() {
        let gate = gate(5, 9);
        gate.share_places(2);
        let _three = (enter(&gate, 1).await, enter(&gate, 2).await, enter(&gate, 3).await);
        let mut fourth = Box::pin(enter(&gate, 4));
        assert!(fourth.as_mut().now_or_never().is_none(), "half of five, rounded up, are taken");
        gate.change_places(Some(6), 9);
        assert!(fourth.as_mut().now_or_never().is_none(), "a change of the configuration keeps the parts");
        gate.share_places(1);
        assert!(fourth.now_or_never().is_some(), "the other process has gone");
    }

    #[tokio::test]
    async fn no_bound_is_no_bound() {
        let gate = Arc::new(Gate::new(None, 0, Arc::new(UpstreamSeries::new("test"))));
        let places: Vec<_> = (0..1000).map(|_| enter(&gate, 1).now_or_never().unwrap()).collect();
        assert_eq!((gate.load(), gate.expected_wait()), ((1000, 0), Duration::ZERO));
        drop(places);
        assert_eq!(gate.load(), (0, 0));
    }

    proptest::proptest! {
        /// However requests come, are called up, give up and end: no place is lost, none is assigned twice,
        /// and none is free while somebody waits.
        #[test]
        fn no_place_is_lost(steps in proptest::collection::vec((0..4_u8, 0..8_usize), 0..200), places in 1..4_usize) {
            let gate = gate(places, 6);
            let (mut waiting, mut held) = (Vec::new(), Vec::new());
            for (step, which) in steps {
                match step {
                    0 => {
                        let gate = Arc::clone(&gate);
                        let mut coming = Box::pin(async move { gate.enter(who(which as u64)).await });
                        match coming.as_mut().now_or_never() {
                            Some(Ok((place, _))) => held.push(place),
                            Some(Err(full)) => assert_eq!((full.taken, full.waiting), (places, 6)),
                            None => waiting.push(coming),
                        }
                    }
                    1 if which < waiting.len() => drop(waiting.remove(which)),
                    2 if which < held.len() => drop(held.remove(which)),
                    3 if which < waiting.len() => {
                        if let Some(placed) = waiting[which].as_mut().now_or_never() {
                            drop(waiting.remove(which));
                            held.push(placed.unwrap().0);
                        }
                    }
                    _ => {}
                }
                let (taken, queued) = gate.load();
                // Those that were called up, and do not know it yet, hold a place.
                assert_eq!(taken + queued, held.len() + waiting.len());
                assert!(taken <= places && (queued == 0 || taken == places), "{taken} taken, {queued} waiting");
            }
            drop((waiting, held));
            assert_eq!(gate.load(), (0, 0));
        }
    }
}
