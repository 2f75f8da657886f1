//! Beyond the conformance tests: the queue on files ends the claims of dead processes at the start, and it
//! follows a system clock that is set back.

use std::path::Path;
use std::time::Duration;

use super::changes;
use crate::queue::{ClaimRequest, Claimed, Clock, NewEntry, Queue as _, QueueEntries as _};
use crate::sqlite::outbox;
use crate::sqlite::store::SqliteStore;
use crate::{NewMessage, Outbox as _, StoreConfig};

fn open(dir: &Path) -> SqliteStore {
    SqliteStore::open(&StoreConfig { state_dir: dir.to_owned(), ..StoreConfig::default() }).unwrap()
}

fn entry(id: &str, delay: u64) -> NewEntry {
    let delay = Duration::from_millis(delay);
    NewEntry { id: id.into(), queue: "desk".into(), delay, ..NewEntry::default() }
}

async fn claim_at(store: &SqliteStore, most: usize, now: u64) -> Vec<Claimed> {
    let lease = Duration::from_secs(1);
    let request = ClaimRequest { queues: vec!["desk".into()], most, lease, ..ClaimRequest::default() };
    store.write(move |change| changes::claim(change, &request, now)).await.unwrap()
}

/// No other process can hold a claim that a process finds when it is alone on the store.
#[tokio::test]
async fn a_process_that_starts_alone_ends_old_claims() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.write(|change| changes::enqueue(change, &entry("a", 0), 10)).await.unwrap();
    assert_eq!(claim_at(&store, 1, 10).await.len(), 1);
    let other = open(dir.path());
    assert_eq!(claim_at(&other, 1, 11).await, [], "its owner is alive");
    drop((store, other));
    let alone = open(dir.path());
    assert_eq!(claim_at(&alone, 1, 11).await.len(), 1);
}

/// A machine that shares its clock with another operating system starts hours ahead, until the network
/// corrects it.
#[tokio::test]
async fn work_does_not_wait_for_a_clock_set_back() {
    const HOUR: u64 = 3_600_000;
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let (now, ahead) = (100 * HOUR, 109 * HOUR);
    assert_eq!(store.correct_clock(ahead).await, Ok(None), "nobody has said the time before");
    for one in [entry("held by a dead process", 0), entry("to be retried", 0), entry("for later", HOUR)] {
        store.write(move |change| changes::enqueue(change, &one, ahead)).await.unwrap();
    }
    let lease = claim_at(&store, 2, ahead).await.remove(1).lease;
    let retried =
        move |change: &rusqlite::Transaction<'_>| changes::retry(change, &lease, ahead + 30_000, "");
    assert!(store.write(retried).await.unwrap());
    let clock = Clock { queue: "desk".into(), name: "hourly".into(), schedule: "0 * * * * UTC".into() };
    assert_eq!(store.clock_mark(&clock, ahead).await, Ok(ahead));
    let message = NewMessage { id: "m".into(), ..NewMessage::default() };
    store.post(message, ahead).await.unwrap();

    // While another process uses the store, a claim ends only with its time.
    let _other = open(dir.path());
    drop(store);
    let store = open(dir.path());
    assert_eq!(claim_at(&store, 10, now).await, [], "all of it is hours away");
    assert_eq!(store.correct_clock(now).await, Ok(Some(9 * HOUR)));
    assert_eq!(store.clock_mark(&clock, now).await, Ok(now));
    let messages = store.write(move |change| outbox::claim(change, now, now + 1_000, 10)).await.unwrap();
    assert_eq!(messages.len(), 1);
    assert_eq!(store.entry("to be retried").await.unwrap().unwrap().due, now + 30_000);
    assert_eq!(store.entry("for later").await.unwrap().unwrap().accepted, now);
    // The lease of the dead process was for one second.
    let ids = async |now: u64| {
        claim_at(&store, 10, now).await.into_iter().map(|it| it.lease.entry).collect::<Vec<_>>()
    };
    assert_eq!(ids(now + 999).await, [] as [&str; 0]);
    assert_eq!(ids(now + 1_000).await, ["held by a dead process"]);
    assert_eq!(ids(now + HOUR).await, ["held by a dead process", "to be retried", "for later"]);

    assert_eq!(store.correct_clock(now - 60_000).await, Ok(None), "so little is let be");
    assert_eq!(store.correct_clock(now - 2 * HOUR).await, Ok(Some(2 * HOUR - 60_000)));
    assert_eq!(store.clock_mark(&clock, now).await, Ok(now), "it does not fire for the same times again");
}
