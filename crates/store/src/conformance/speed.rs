//! Measures a queue that several processes share, on a database and in files, compared with bare commits:
//! `just bench-nodes`. docs/scaling.md has the figures.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use wire::UsageRow;

use super::Bed;
use crate::{ClaimRequest, Claimed, EntryEnd, LaneKey, NewEntry, NewRun, Store, UncopiedUsage};

const ENTRIES: usize = 2_000;
const WORKERS: usize = 8;
const LANES: usize = 200;

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

/// The smallest time that is not exceeded by this share of all, in percent.
fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    times[(times.len() * percent / 100).min(times.len() - 1)]
}

/// Times a row of an entry's size that is committed alone.
async fn bare_commits(bed: &Bed) -> Vec<Duration> {
    const TABLE: &str = "CREATE TABLE bare (payload TEXT)";
    const ROW: &str = "INSERT INTO bare (payload) VALUES ($1)";
    let (url, dir) = (bed.config.store.url.clone(), bed.config.state_dir.clone());
    let time = move || {
        let payload = "x".repeat(500);
        let mut commit: Box<dyn FnMut()> = if let Some(url) = url {
            let mut client = postgres::Client::connect(url.expose_secret(), postgres::NoTls).unwrap();
            client.batch_execute(TABLE).unwrap();
            let statement = client.prepare(ROW).unwrap();
            Box::new(move || assert_eq!(client.execute(&statement, &[&payload]).unwrap(), 1))
        } else {
            let file = rusqlite::Connection::open(dir.join("bare.db")).unwrap();
            file.pragma_update(None, "journal_mode", "wal").unwrap();
            file.pragma_update(None, "synchronous", "full").unwrap();
            file.execute_batch(TABLE).unwrap();
            Box::new(move || assert_eq!(file.execute(ROW, [&payload]).unwrap(), 1))
        };
        let times = (0..300).map(|_| {
            let began = Instant::now();
            commit();
            began.elapsed()
        });
        times.collect()
    };
    tokio::task::spawn_blocking(time).await.unwrap()
}

async fn claim(store: &Store) -> Option<Claimed> {
    let (queues, lease) = (vec!["desk".into()], Duration::from_mins(1));
    let request = ClaimRequest { queues, most: 1, lease, ..ClaimRequest::default() };
    store.claim_entries(request).await.unwrap().into_iter().next()
}

/// Claims and completes what there is, `most` at the most. Returns the times of the claims.
async fn drain(store: Arc<Store>, most: usize) -> Vec<Duration> {
    let mut times = Vec::new();
    while times.len() < most {
        let began = Instant::now();
        let Some(one) = claim(&store).await else { break };
        times.push(began.elapsed());
        assert!(store.complete(&one.lease, EntryEnd::Done, String::new()).await.unwrap());
    }
    times
}

/// Claims by eight workers of two processes.
async fn time_claims(bed: &Bed) {
    let stores: Vec<Arc<Store>> = (0..2).map(|_| Arc::new(bed.open())).collect();
    stores[0].enqueue_all((0..ENTRIES).map(|number| entry(number, number % LANES)).collect()).await.unwrap();
    let began = Instant::now();
    let workers = (0..WORKERS).map(|number| tokio::spawn(drain(Arc::clone(&stores[number % 2]), usize::MAX)));
    let mut times: Vec<Duration> = join_all(workers).await.into_iter().flat_map(Result::unwrap).collect();
    let rate = f64::from(u32::try_from(times.len()).unwrap()) / began.elapsed().as_secs_f64();
    println!(
        "  claimed and completed: {rate:.0}/s; 95 % of the claims within {:?}",
        percentile(&mut times, 95)
    );
}

/// The time from the begin of a commit to another process that is woken by it.
async fn time_wakes(bed: &Bed) {
    let (store, other) = (bed.open(), Arc::new(bed.open()));
    // Entries that it has heard of already must not wake it.
    while tokio::time::timeout(Duration::from_millis(300), other.wait_for_entry()).await.is_ok() {}
    let (mut wakes, mut commits) = (Vec::new(), Vec::new());
    for number in ENTRIES..ENTRIES + 100 {
        let other = Arc::clone(&other);
        let waiting = tokio::spawn(async move {
            other.wait_for_entry().await;
            Instant::now()
        });
        tokio::task::yield_now().await;
        let began = Instant::now();
        store.enqueue(entry(number, number)).await.unwrap();
        commits.push(began.elapsed());
        let woken = tokio::time::timeout(Duration::from_secs(2), waiting).await;
        wakes.push(woken.map_or(Duration::from_secs(2), |woken| woken.unwrap() - began));
    }
    let (wake, commit) = (percentile(&mut wakes, 95), percentile(&mut commits, 95));
    println!("  another process wakes: 95 % within {wake:?}; the commit alone {commit:?}");
    drain(other, usize::MAX).await;
}

/// The time from an event to its begun run, after which the model is asked.
async fn time_events(bed: &Bed, bare: Duration) {
    let store = bed.open();
    let mut times = Vec::new();
    for number in 10_000..10_200 {
        let began = Instant::now();
        store.enqueue(entry(number, number)).await.unwrap();
        let claimed = claim(&store).await.unwrap();
        let new = NewRun { id: format!("run-{number}"), agent: "desk".into(), ..NewRun::default() };
        assert!(store.begin_leased(new, &claimed.lease).await.unwrap());
        times.push(began.elapsed());
        assert!(store.complete(&claimed.lease, EntryEnd::Done, String::new()).await.unwrap());
    }
    let median = percentile(&mut times, 50);
    println!(
        "  event to begun run: {median:?}, {:.1} × a bare commit",
        median.as_secs_f64() / bare.as_secs_f64()
    );
}

/// Whether one lane's backlog slows down the claims of others: by turns with a store that has none.
async fn time_claims_beside_a_backlog(bed: &Bed, without: &Bed) {
    let stores = [without, bed].map(|bed| Arc::new(bed.open()));
    for batch in (0..10_000).collect::<Vec<usize>>().chunks(500) {
        let behind = batch.iter().map(|number| entry(1_000_000 + number, LANES)).collect();
        stores[1].enqueue_all(behind).await.unwrap();
    }
    let mut times = [Vec::new(), Vec::new()];
    for round in 1..=10 {
        for (store, times) in stores.iter().zip(&mut times) {
            let others = (0..120)
                .map(|number| entry(2_000_000 + round * 1_000 + number, number % (LANES - 1)))
                .collect();
            store.enqueue_all(others).await.unwrap();
            times.extend(drain(Arc::clone(store), 110).await);
        }
    }
    let [free, full] = times.map(|mut times| percentile(&mut times, 95));
    let ratio = full.as_secs_f64() / free.as_secs_f64();
    println!("  a claim: 95 % within {free:?}, with 10,000 entries in one lane within {full:?}: {ratio:.2}");
}

/// Rows of usage as twenty processes with 100 requests a second send them, but as fast as they are taken.
async fn time_usage_rows(bed: &Bed) {
    let store = Arc::new(bed.open());
    let began = Instant::now();
    let send = async |node: usize| {
        for batch in 0..10 {
            let numbers = batch * 100..(batch + 1) * 100;
            let rows = numbers.map(|number| (number, UsageRow { at: clock::now(), ..UsageRow::default() }));
            let rows = UncopiedUsage { origin: format!("node-{node}"), rows: rows.collect() };
            store.shared_usage().unwrap().add_rows(rows).await.unwrap();
        }
    };
    join_all((0..20).map(send)).await;
    println!("  usage rows of 20 processes: {:.0}/s", 20_000.0 / began.elapsed().as_secs_f64());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures; run it alone"]
async fn speed() {
    let Some(database) = Bed::new_postgres() else { return };
    let Some(other) = Bed::new_postgres() else { return };
    let files = [Bed::new_sqlite(), Bed::new_sqlite()];
    for (name, [bed, other]) in [("PostgreSQL", [database, other]), ("files", files)] {
        let bare = percentile(&mut bare_commits(&bed).await, 50);
        println!("{name}: a bare commit takes {bare:?}");
        time_claims(&bed).await;
        time_events(&bed, bare).await;
        time_claims_beside_a_backlog(&bed, &other).await;
        // Processes on files look for work each second.
        if bed.config.store.url.is_some() {
            time_wakes(&bed).await;
            time_usage_rows(&bed).await;
        }
    }
}
