//! How fast a shared queue is: `cargo test -p store --release speed -- --ignored --nocapture`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Bed;
use crate::{ClaimRequest, EntryEnd, LaneKey, NewEntry, Queue as _, Store};

const ENTRIES: usize = 2_000;
const WORKERS: usize = 8;

fn entry(number: usize, lane: usize) -> NewEntry {
    let lane = Some(LaneKey::per_key("contact", &lane.to_string()));
    NewEntry {
        id: number.to_string(),
        queue: "desk".into(),
        lane,
        payload: "x".repeat(500),
        ..NewEntry::default()
    }
}

/// Claims and completes what there is. Returns the times of the claims.
async fn drain(store: Arc<Store>) -> Vec<Duration> {
    let mut times = Vec::new();
    loop {
        let (queues, lease) = (vec!["desk".into()], Duration::from_mins(1));
        let request = ClaimRequest { queues, most: 1, lease, ..ClaimRequest::default() };
        let began = Instant::now();
        let claimed = store.claim_entries(request).await.unwrap();
        let Some(one) = claimed.into_iter().next() else { return times };
        times.push(began.elapsed());
        assert!(store.complete(&one.lease, EntryEnd::Done, String::new()).await.unwrap());
    }
}

async fn measure(bed: &Bed, name: &str) {
    let stores: Vec<Arc<Store>> = (0..2).map(|_| Arc::new(bed.open())).collect();
    let entries = (0..ENTRIES).map(|number| entry(number, number % 200)).collect();
    stores[0].enqueue_all(entries).await.unwrap();
    let began = Instant::now();
    let workers = (0..WORKERS).map(|number| tokio::spawn(drain(Arc::clone(&stores[number % 2]))));
    let mut times: Vec<Duration> =
        futures::future::join_all(workers).await.into_iter().flat_map(Result::unwrap).collect();
    times.sort_unstable();
    let (all, p95) = (began.elapsed(), times[times.len() * 95 / 100]);
    let rate = f64::from(u32::try_from(times.len()).unwrap()) / all.as_secs_f64();
    println!("{name}: {} entries claimed and completed, {rate:.0}/s, p95 of a claim {p95:?}", times.len());

    // Entries that it has heard of already must not wake it.
    while tokio::time::timeout(Duration::from_millis(300), stores[1].wait_for_entry()).await.is_ok() {}
    let (mut waits, mut commits) = (Vec::new(), Vec::new());
    for number in ENTRIES..ENTRIES + 100 {
        let waiting = tokio::spawn({
            let store = Arc::clone(&stores[1]);
            async move {
                store.wait_for_entry().await;
                Instant::now()
            }
        });
        tokio::task::yield_now().await;
        let began = Instant::now();
        stores[0].enqueue(entry(number, number)).await.unwrap();
        commits.push(began.elapsed());
        let woken = tokio::time::timeout(Duration::from_secs(2), waiting).await;
        waits.push(woken.map_or(Duration::from_secs(2), |woken| woken.unwrap() - began));
    }
    waits.sort_unstable();
    commits.sort_unstable();
    println!(
        "{name}: another process wakes within {:?} (p95), a commit takes {:?} (p95)",
        waits[95], commits[95]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures; run it alone"]
async fn speed() {
    if let Some(bed) = Bed::new_postgres() {
        measure(&bed, "PostgreSQL").await;
        let stores = bed.open();
        for batch in 0..20 {
            let behind = (0..500).map(|number| entry(1_000_000 + 500 * batch + number, 7)).collect();
            stores.enqueue_all(behind).await.unwrap();
        }
        drop(stores);
        println!("with 10,000 entries in one lane:");
        let store = Arc::new(bed.open());
        let more = (0..1_000).map(|number| entry(2_000_000 + number, 100 + number % 200)).collect();
        store.enqueue_all(more).await.unwrap();
        let mut times = Vec::new();
        for _ in 0..500 {
            let (queues, lease) = (vec!["desk".into()], Duration::from_mins(1));
            let request = ClaimRequest { queues, most: 1, lease, ..ClaimRequest::default() };
            let began = Instant::now();
            let claimed = store.claim_entries(request).await.unwrap();
            times.push(began.elapsed());
            store.complete(&claimed[0].lease, EntryEnd::Done, String::new()).await.unwrap();
        }
        times.sort_unstable();
        println!("PostgreSQL: p95 of a claim {:?}", times[times.len() * 95 / 100]);
    }
}
