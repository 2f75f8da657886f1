//! The soak: many streams at once, for long, with random faults among them, against the real program in a
//! process of its own. Every turn must be right to the last byte, or the error that its fault calls for;
//! memory and descriptors must stay flat; and SIGTERM in the middle must cost no turn. `just soak` runs it
//! for ten minutes, CI for ten seconds. `RESPOOL_SEED` repeats the faults of an earlier run.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use testing::seed::seed;
use tokio::task::JoinSet;

use super::bed::{Bed, Limits, descriptors_return};
use super::table::{CASES, Case, ROWS, Row, Want};
use super::upstream::Upstream;
use crate::support::api::Api;
use crate::support::process::{self, Measured};
use crate::support::served::Served;

/// Wide enough for a machine that has other things to do.
fn limits() -> Limits {
    let timeout = Duration::from_secs(setting("SOAK_TIMEOUT", 6));
    Limits {
        commit_after: Duration::from_secs(2),
        heartbeat: Duration::from_secs(2),
        timeout,
        client_timeout: timeout * 2 / 3,
        bound: timeout * 4,
        release: timeout,
    }
}

/// The share of turns with a fault.
const FAULTS: f64 = 0.15;

/// A number from the environment.
pub fn setting<T: FromStr>(name: &str, otherwise: T) -> T {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// A reply that takes its time, on a random route in a random form.
fn stream(random: &mut StdRng) -> Case {
    let (way, stream) = *CASES.choose(random).unwrap();
    Case { way, stream, ..unhurried() }
}

/// The case of a reply that takes its time.
fn unhurried() -> Case {
    let (way, stream) = CASES[0];
    Case { row: "unhurried", api: Api::Chat, way, stream, want: Want::Answer, slow: true }
}

/// A random case that suits large limits and an upstream that keeps failing.
fn fault(random: &mut StdRng) -> Case {
    let rows = ROWS.iter().filter(|row| !row.needs_repeat());
    let cases: Vec<Case> = rows.flat_map(Row::cases).filter(|case| !case.slow).collect();
    *cases.choose(random).unwrap()
}

#[derive(Default)]
struct Tally {
    streams: AtomicUsize,
    faults: AtomicUsize,
    flaws: AtomicUsize,
}

impl Tally {
    async fn turn(&self, bed: &Arc<Bed>, case: Case) {
        let count = if case.row == "unhurried" { &self.streams } else { &self.faults };
        count.fetch_add(1, Ordering::Relaxed);
        if let Err(flaw) = bed.play_alone(case).await {
            self.flaws.fetch_add(1, Ordering::Relaxed);
            tell(&format!("{case}: {flaw}\n"));
        }
    }
}

async fn soak(bed: &Arc<Bed>, tally: &Arc<Tally>, streams: usize, seed: u64, end: Instant) {
    let mut workers = JoinSet::new();
    for worker in 0..streams {
        let mut random = StdRng::seed_from_u64(seed.wrapping_add(worker as u64));
        let (bed, tally) = (Arc::clone(bed), Arc::clone(tally));
        workers.spawn(async move {
            while Instant::now() < end {
                let is_fault = random.random_bool(FAULTS);
                let case = if is_fault { fault(&mut random) } else { stream(&mut random) };
                tally.turn(&bed, case).await;
            }
        });
    }
    while let Some(ended) = workers.join_next().await {
        ended.unwrap();
    }
}

/// Sends SIGTERM in the middle of `streams` streams: each ends right, and so does the program.
async fn drain(bed: &Arc<Bed>, tally: &Arc<Tally>, served: &mut Served, streams: usize) -> i32 {
    let mut last = JoinSet::new();
    for index in 0..streams {
        let (way, stream) = CASES[index % CASES.len()];
        let case = Case { way, stream, ..unhurried() };
        let (bed, tally) = (Arc::clone(bed), Arc::clone(tally));
        last.spawn(async move { tally.turn(&bed, case).await });
    }
    bed.upstream.busy(streams).await;
    served.signal("TERM");
    while let Some(ended) = last.join_next().await {
        ended.unwrap();
    }
    served.exit(Duration::from_secs(10))
}

fn tell(text: &str) {
    std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes()).unwrap();
}

fn told(what: &str, measured: Measured) -> String {
    let Measured { descriptors, resident, peak } = measured;
    format!(
        "{what}: {} MiB resident, {} MiB at most, {descriptors} descriptors\n",
        resident >> 10,
        peak >> 10
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "just soak"]
async fn soak_ends_with_no_turn_lost() {
    let (streams, seconds) = (setting("SOAK_STREAMS", 100), setting("SOAK_SECONDS", 10_u64));
    let upstream = Upstream::start().await;
    let limits = limits();
    let mut served = Served::with_file(&limits.config(upstream.address), &[]);
    let (id, bed) = (served.child.id(), Bed::new(served.address, upstream, limits));
    let (tally, began) = (Arc::new(Tally::default()), Instant::now());
    let before = process::measure(id);
    let fifth = Duration::from_secs(seconds) / 5;
    let end = began + 5 * fifth;
    let watch = async {
        tokio::time::sleep(fifth).await;
        let early = process::measure(id);
        tokio::time::sleep(end.saturating_duration_since(Instant::now())).await;
        (early, process::measure(id))
    };
    let ((), (early, late)) = tokio::join!(soak(&bed, &tally, streams, seed(), end), watch);
    let left = descriptors_return(id, before, &bed).await;
    let afterwards = process::measure(id);
    let code = drain(&bed, &tally, &mut served, streams).await;
    let [turns, faults, flaws] =
        [&tally.streams, &tally.faults, &tally.flaws].map(|count| count.load(Ordering::Relaxed));
    let report = [
        format!("{streams} at once for {seconds} s: {turns} streams, {faults} faults, {flaws} flaws\n"),
        told("after a fifth of the time", early),
        told("when it ended", late),
        told("afterwards", afterwards),
    ];
    tell(&report.concat());
    assert_eq!((flaws, bed.upstream.problems()), (0, vec![]));
    assert_eq!((code, left), (0, None));
    assert!(late.resident < early.resident * 5 / 4 + (16 << 10), "memory grew: {early:?}, {late:?}");
}
