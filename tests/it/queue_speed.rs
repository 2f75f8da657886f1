//! The cost of the queue, compared with bare commits of the same size on the same disk. Measurements, so not
//! part of every run:
//!
//! `cargo test --release --test it queue_speed -- --ignored --nocapture --test-threads 1`

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use store::{Append, ClaimRequest, Claimed, EntryEnd, LaneKey, NewEntry, NewRun, Status, Store, StoreConfig};
use tokio::sync::{Mutex, Semaphore};

const EVENTS: usize = 10_000;
const LANES: usize = 500;
const AT_ONCE: usize = 50;
const PAYLOAD: usize = 500;

fn open(dir: &Path) -> Store {
    let config = StoreConfig { state_dir: dir.to_owned(), ..StoreConfig::default() };
    Store::open(&config).unwrap()
}

/// How many rows of the payload's size a second takes, each committed alone, as the store commits what need
/// not survive a power failure.
fn bare_commits(dir: &Path) -> f64 {
    let commit = one_commit(dir, "normal");
    let (began, count) = (Instant::now(), 2_000);
    (0..count).for_each(|_| commit());
    f64::from(count) / began.elapsed().as_secs_f64()
}

/// A row of the payload's size, committed alone and synchronised with the disk of this directory.
pub fn one_synchronised_commit(dir: &Path) -> impl Fn() + use<> {
    one_commit(dir, "full")
}

fn one_commit(dir: &Path, synchronous: &str) -> impl Fn() + use<> {
    let database = rusqlite::Connection::open(dir.join(format!("bare-{synchronous}.db"))).unwrap();
    database.pragma_update(None, "journal_mode", "wal").unwrap();
    database.pragma_update(None, "synchronous", synchronous).unwrap();
    database.execute_batch("CREATE TABLE rows (id INTEGER PRIMARY KEY, payload TEXT) STRICT").unwrap();
    let payload = "x".repeat(PAYLOAD);
    move || {
        let count = database.execute("INSERT INTO rows (payload) VALUES (?1)", [&payload]).unwrap();
        assert_eq!(count, 1);
    }
}

fn entry(number: usize) -> NewEntry {
    NewEntry {
        id: format!("event-{number:05}"),
        queue: "desk".into(),
        lane: Some(LaneKey::per_key("contact", &(number % LANES).to_string())),
        payload: "x".repeat(PAYLOAD),
        ..NewEntry::default()
    }
}

/// One run: begun with the lease, one event, ended, and the entry with it.
async fn work(store: &Store, claimed: Claimed) -> String {
    let id = format!("run-{}", claimed.lease.entry);
    let new = NewRun { id: id.clone(), agent: "desk".into(), at: 1, setup: "{}".into(), ..NewRun::default() };
    assert!(store.begin_leased(new, &claimed.lease).await.unwrap());
    let event = Some((0, "replied", claimed.payload));
    let append = Append { event, ..Append::status(&id, Store::FIRST_EPOCH, 2, Status::Done) };
    assert!(!store.append(append).await.unwrap().lost);
    assert!(store.complete(&claimed.lease, EntryEnd::Done, String::new()).await.unwrap());
    claimed.lease.entry
}

async fn drain(store: &Arc<Store>) -> Vec<String> {
    let (places, done) = (Arc::new(Semaphore::new(AT_ONCE)), Arc::new(Mutex::new(Vec::new())));
    let mut tasks = Vec::new();
    loop {
        let first = Arc::clone(&places).acquire_owned().await.unwrap();
        let most = places.available_permits() + 1;
        let request = ClaimRequest {
            queues: vec!["desk".into()],
            most,
            lease: Duration::from_secs(1_000),
            ..ClaimRequest::default()
        };
        let claimed = store.claim_entries(request).await.unwrap();
        let is_idle = claimed.is_empty() && places.available_permits() == AT_ONCE - 1;
        if is_idle && store.next_due(vec!["desk".into()]).await.unwrap().is_none() {
            join_all(tasks).await;
            return Arc::try_unwrap(done).unwrap().into_inner();
        }
        drop(first);
        if claimed.is_empty() {
            tokio::task::yield_now().await;
        }
        for claimed in claimed {
            let place = Arc::clone(&places).acquire_owned().await.unwrap();
            let (store, done) = (Arc::clone(store), Arc::clone(&done));
            tasks.push(tokio::spawn(async move {
                let entry = work(&store, claimed).await;
                done.lock().await.push(entry);
                drop(place);
            }));
        }
    }
}

/// The most memory that this process has had, in MiB.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1_024
}

/// The rates vary with the machine, so bare commits are timed before and after each of three rounds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: see the head of the file"]
async fn lanes_drain_in_order() {
    let mut ratios = Vec::new();
    for _ in 0..3 {
        let dir = tempfile::tempdir().unwrap();
        let bare_dirs = [dir.path().join("before"), dir.path().join("after")];
        bare_dirs.iter().for_each(|dir| std::fs::create_dir(dir).unwrap());
        let store = Arc::new(open(dir.path()));
        let began = Instant::now();
        for batch in (0..EVENTS).collect::<Vec<_>>().chunks(AT_ONCE) {
            join_all(batch.iter().map(|number| store.enqueue(entry(*number)))).await;
        }
        let queued = began.elapsed();
        let before = bare_commits(&bare_dirs[0]);
        let began = Instant::now();
        let done = drain(&store).await;
        let rate = f64::from(u32::try_from(EVENTS).unwrap()) / began.elapsed().as_secs_f64();
        let bare = f64::midpoint(before, bare_commits(&bare_dirs[1]));
        assert_drained_in_order(&done);
        ratios.push(rate / bare);
        println!(
            "queued in {queued:?}; drained {rate:.0} a second, {:.2} × {bare:.0} bare commits; peak {} MiB",
            rate / bare,
            peak_memory()
        );
    }
    ratios.sort_by(f64::total_cmp);
    assert!(ratios[1] >= 0.3 && peak_memory() <= 200, "{ratios:?}");
}

fn assert_drained_in_order(done: &[String]) {
    let mut lanes: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for id in done {
        let number: usize = id.rsplit('-').next().unwrap().parse().unwrap();
        lanes.entry(number % LANES).or_default().push(number);
    }
    assert_eq!((done.len(), lanes.len()), (EVENTS, LANES));
    assert!(lanes.values().all(|numbers| numbers.is_sorted()));
}

/// A store with this many ended runs of the queue, and waiting events.
fn fill(dir: &Path, finished: u32, waiting: u32) {
    drop(open(dir));
    let mut database = rusqlite::Connection::open(dir.join("respool.db")).unwrap();
    let change = database.transaction().unwrap();
    let (setup, payload) = ("x".repeat(1_000), "x".repeat(PAYLOAD));
    for number in 0..finished + waiting {
        let (state, ended) = if number < finished { ("done", Some(1)) } else { ("waiting", None) };
        change
            .prepare_cached(
                "INSERT INTO queue (id, queue, lane, state, due, accepted, blocked, payload, ended)
                 VALUES (?1, 'desk', ?2, ?3, 1, 1, ?4, ?5, ?6)",
            )
            .unwrap()
            .execute((
                format!("event-{number}"),
                format!("lane {}", number % 500),
                state,
                number >= finished + 500,
                &payload,
                ended,
            ))
            .unwrap();
        if number < finished {
            change
                .prepare_cached(
                    "INSERT INTO runs (id, agent, status, owner, created, updated, fingerprint, setup)
                     VALUES (?1, 'desk', 'done', 'gone', 1, 1, '', ?2)",
                )
                .unwrap()
                .execute((format!("run-{number}"), &setup))
                .unwrap();
        }
    }
    change.commit().unwrap();
}

#[tokio::test]
#[ignore = "a measurement: see the head of the file"]
async fn a_full_store_starts_quickly() {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path(), 100_000, 10_000);
    let size = std::fs::metadata(dir.path().join("respool.db")).unwrap().len() >> 20;
    let began = Instant::now();
    let store = open(dir.path());
    store.mark_orphans().await.unwrap();
    let request = ClaimRequest {
        queues: vec!["desk".into()],
        most: 50,
        lease: Duration::from_secs(1_000),
        ..ClaimRequest::default()
    };
    let claimed = store.claim_entries(request).await.unwrap();
    let took = began.elapsed();
    println!("{size} MiB: the first 50 events are claimed {took:?} after the start");
    assert_eq!(claimed.len(), 50);
    assert!(took <= Duration::from_millis(300), "{took:?}");
}

#[tokio::test]
#[ignore = "a measurement: see the head of the file"]
async fn events_are_accepted_fast() {
    let dir = tempfile::tempdir().unwrap();
    let commit = one_synchronised_commit(dir.path());
    let store = open(dir.path());
    let (mut times, mut bare) = (Vec::new(), Vec::new());
    for number in 0..200 {
        let began = Instant::now();
        commit();
        bare.push(began.elapsed().as_secs_f64());
        let began = Instant::now();
        store.enqueue(entry(number)).await.unwrap();
        let request = ClaimRequest {
            queues: vec!["desk".into()],
            most: 1,
            lease: Duration::from_secs(1_000),
            ..ClaimRequest::default()
        };
        let claimed = store.claim_entries(request).await.unwrap().remove(0);
        let new = NewRun { id: format!("run-{number}"), agent: "desk".into(), ..NewRun::default() };
        assert!(store.begin_leased(new, &claimed.lease).await.unwrap());
        times.push(began.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    bare.sort_by(f64::total_cmp);
    let (median, last, one_wait) = (times[100], times[198], bare[100]);
    println!(
        "from event to begun run: median {:.2} ms, 99 % {:.2} ms; {:.2} × one wait for the disk",
        median * 1e3,
        last * 1e3,
        median / one_wait
    );
    assert!(median <= 4.0 * one_wait);
}
