//! The queue on real files: attempts, dedupe, leases, and two processes.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};

use super::*;
use crate::{Append, ClockTime, DedupeKey, LaneKey, NewMessage, NewRun, Status, StoreConfig};
use rusqlite::Connection;

fn open(dir: &Path) -> Store {
    let config = StoreConfig { state_dir: dir.to_owned(), ..StoreConfig::default() };
    Store::open(&config).unwrap()
}

fn entry(id: &str, lane: Option<&str>) -> NewEntry {
    NewEntry {
        id: id.into(),
        queue: "desk".into(),
        lane: lane.map(LaneKey::serial),
        payload: format!("payload of {id}"),
        ..NewEntry::default()
    }
}

fn request(most: usize, now: u64) -> ClaimRequest {
    ClaimRequest { queues: vec!["desk".into()], most, now, until: now + 1_000, ..ClaimRequest::default() }
}

async fn claim_one(store: &Store, now: u64) -> Option<Claimed> {
    store.claim_entries(request(1, now)).await.unwrap().pop()
}

#[tokio::test]
async fn an_entry_holds_its_lane_through_attempts() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for id in ["a", "b"] {
        assert_eq!(store.enqueue(entry(id, Some("lane")), 5).await.unwrap(), Enqueued::Accepted);
    }
    assert!(store.entry("b").await.unwrap().unwrap().is_blocked);
    assert_eq!(store.entry_before("b").await.unwrap().unwrap().id, "a", "people see what it waits for");
    let first = claim_one(&store, 10).await.unwrap();
    assert_eq!((first.attempt, first.is_continued, first.payload.as_str()), (1, false, "payload of a"));
    assert!(store.retry_at(&first.lease, 500, "the server was gone".into()).await.unwrap());
    assert_eq!(store.next_due(vec!["desk".into()]).await.unwrap(), Some(500));
    assert_eq!(claim_one(&store, 499).await, None, "the lane is held through the pause");
    let second = claim_one(&store, 500).await.unwrap();
    assert_eq!((second.attempt, second.is_continued), (2, false));
    assert!(!store.complete(&first.lease, EntryEnd::Done, String::new(), 501).await.unwrap(), "an old lease");
    assert!(store.hold(&second.lease, "a person is asked".into()).await.unwrap());
    assert_eq!(claim_one(&store, 90_000).await, None, "the lane is held while a person is awaited");
    assert!(store.wake("a", 90_000).await.unwrap() && !store.wake("a", 90_000).await.unwrap());
    let third = claim_one(&store, 90_000).await.unwrap();
    assert_eq!((third.attempt, third.is_continued), (2, true), "the same attempt goes on");
    assert!(store.complete(&third.lease, EntryEnd::DeadLetter, "it gave up".into(), 90_001).await.unwrap());
    assert_eq!(claim_one(&store, 90_001).await.unwrap().lease.entry, "b");

    let dead = store.entries(Some("desk"), EntryState::DeadLetter, 10).await.unwrap();
    assert_eq!((dead.len(), dead[0].note.as_deref()), (1, Some("it gave up")));
    assert!(!store.drop_dead_letter("b").await.unwrap(), "only dead letters are dropped");
    assert!(
        store.replay("a", "a-2", 90_002).await.unwrap() && !store.replay("a", "a-3", 90_002).await.unwrap()
    );
    let again = store.entry("a-2").await.unwrap().unwrap();
    assert!(
        again.is_blocked && again.payload == "payload of a",
        "it waits at the end of its lane: {again:?}"
    );
}

#[tokio::test]
async fn the_same_event_is_queued_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let key = |value: &str, until| Some((DedupeKey::new("desk", "mail", value), until));
    let first = NewEntry { dedupe: key("m1", 100), ..entry("a", None) };
    assert_eq!(store.enqueue(first, 1).await.unwrap(), Enqueued::Accepted);
    let again = |id, now| store.enqueue(NewEntry { dedupe: key("m1", 200), ..entry(id, None) }, now);
    assert_eq!(again("b", 99).await.unwrap(), Enqueued::Duplicate("a".into()));
    assert_eq!(store.entry("b").await.unwrap(), None);
    assert_eq!(again("b", 100).await.unwrap(), Enqueued::Accepted, "the window is over");
    let same_id = NewEntry { dedupe: key("m2", 900), ..entry("a", None) };
    assert!(store.enqueue(same_id, 1).await.is_err());
    let other = NewEntry { dedupe: key("m2", 900), ..entry("c", None) };
    assert_eq!(store.enqueue(other, 2).await.unwrap(), Enqueued::Accepted, "the key went with the entry");
}

#[tokio::test]
async fn a_run_begins_only_with_a_valid_lease() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.enqueue(entry("a", None), 1).await.unwrap();
    let asleep = claim_one(&store, 1).await.unwrap();
    let new =
        |id: &str| NewRun { id: id.into(), agent: "desk".into(), setup: "{}".into(), ..NewRun::default() };
    assert!(store.begin_leased(new("run-1"), &asleep.lease).await.unwrap());
    let awake = claim_one(&store, 5_000).await.unwrap();
    assert_eq!(
        (awake.run.as_deref(), awake.is_continued),
        (Some("run-1"), true),
        "the other one finds the run"
    );
    assert_eq!(store.entry_of_run("run-1").await.unwrap().unwrap().id, "a");
    assert_eq!(store.claim_leased("run-1", &asleep.lease).await.unwrap(), None);
    assert!(!store.begin_leased(new("run-2"), &asleep.lease).await.unwrap());
    assert_eq!(store.run("run-2").await.unwrap(), None);
    let epoch = store.claim_leased("run-1", &awake.lease).await.unwrap().unwrap();
    let late = Append::status("run-1", Store::FIRST_EPOCH, 1, Status::Done);
    assert!(store.append(late).await.unwrap().lost, "what the sleeper writes is refused");
    assert!(!store.heartbeat(&asleep.lease, 9_000).await.unwrap());
    assert!(store.heartbeat(&awake.lease, 9_000).await.unwrap());
    assert_eq!(claim_one(&store, 8_999).await, None, "the lease was renewed");
    assert_eq!(epoch, Store::FIRST_EPOCH + 1);
}

/// Two processes on one store; one of them dies now and then, and what it held is taken over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_share_the_work() {
    let dir = tempfile::tempdir().unwrap();
    let stores = [Arc::new(open(dir.path())), Arc::new(open(dir.path()))];
    for number in 0..120 {
        let lane = format!("lane {}", number % 7);
        stores[number % 2].enqueue(entry(&format!("{number:03}"), Some(&lane)), 1).await.unwrap();
    }
    // What a process has claimed it notes before it completes it, so that the order of the notes is that of
    // the work.
    let began: Arc<Mutex<Vec<String>>> = Arc::default();
    let done: Arc<Mutex<Vec<String>>> = Arc::default();
    let clock = Arc::new(std::sync::atomic::AtomicU64::new(10));
    let work = async |store: Arc<Store>, dies: bool| {
        let mut claims = 0;
        while store.next_due(vec!["desk".into()]).await.unwrap().is_some() {
            let now = clock.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            for claimed in store.claim_entries(request(3, now)).await.unwrap() {
                claims += 1;
                // The other process may have it by now: a lease is made sure of before work on its entry
                // begins.
                if !store.heartbeat(&claimed.lease, now + 100).await.unwrap() {
                    continue;
                }
                began.lock().unwrap().push(claimed.lease.entry.clone());
                if dies && claims % 5 == 0 {
                    // It never comes back; another worker finds the lease over.
                    clock.fetch_add(1_000, std::sync::atomic::Ordering::Relaxed);
                    continue;
                }
                if store.complete(&claimed.lease, EntryEnd::Done, String::new(), now).await.unwrap() {
                    done.lock().unwrap().push(claimed.lease.entry);
                }
            }
        }
    };
    futures::join!(work(Arc::clone(&stores[0]), true), work(Arc::clone(&stores[1]), false));
    let (began, done) = (began.lock().unwrap().clone(), done.lock().unwrap().clone());
    assert_eq!(done.iter().collect::<BTreeSet<_>>().len(), 120);
    assert_eq!(done.len(), 120, "nothing was done twice");
    for lane in 0..7_usize {
        let of_lane = |id: &&String| id.parse::<usize>().unwrap() % 7 == lane;
        let order: Vec<&String> = began.iter().filter(of_lane).collect();
        assert!(order.is_sorted(), "what a dead process held comes again before anything else: {order:?}");
    }
}

#[tokio::test]
async fn dead_letters_outlive_ended_entries() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for (id, end) in [("a", EntryEnd::Done), ("b", EntryEnd::Failed), ("c", EntryEnd::DeadLetter)] {
        let dedupe = Some((DedupeKey::new("desk", "mail", id), 50));
        store.enqueue(NewEntry { dedupe, ..entry(id, None) }, 1).await.unwrap();
        let claimed = claim_one(&store, 10).await.unwrap();
        store.complete(&claimed.lease, end, String::new(), 20).await.unwrap();
    }
    store.enqueue(entry("d", None), 1).await.unwrap();
    let month = 31 * 24 * 3_600_000;
    store.clear(month, month).await.unwrap();
    let mut left = Vec::new();
    for id in ["a", "b", "c", "d"] {
        left.extend(store.entry(id).await.unwrap().map(|entry| entry.id));
    }
    assert_eq!(left, ["c", "d"]);
    let keys = Connection::open(dir.path().join("respool.db")).unwrap();
    let keys: u32 = keys.query_row("SELECT count(*) FROM dedupe", [], |row| row.get(0)).unwrap();
    assert_eq!(keys, 0);
}

#[tokio::test]
async fn a_worker_wakes_for_new_entries() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let keyed =
        |id: &str| NewEntry { dedupe: Some((DedupeKey::new("desk", "t", "k"), 9)), ..entry(id, None) };
    let is_woken = async || {
        let waited = tokio::time::timeout(std::time::Duration::from_millis(20), store.wait_for_entry());
        waited.await.is_ok()
    };
    assert!(!is_woken().await);
    store.enqueue(keyed("a"), 1).await.unwrap();
    assert!(is_woken().await && !is_woken().await);
    store.enqueue(keyed("b"), 1).await.unwrap();
    assert!(!is_woken().await, "it is the same event");
}

/// Two processes fire the same clock; one of them is a time behind.
#[tokio::test]
async fn a_clock_fires_once_for_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (open(dir.path()), open(dir.path()));
    let clock =
        |schedule: &str| Clock { queue: "desk".into(), name: "daily".into(), schedule: schedule.into() };
    let at = |id: &str, time| {
        let clock = Some(ClockTime { clock: clock("0 8 * * *"), time });
        NewEntry { clock, ..entry(id, None) }
    };
    assert_eq!(one.clock_mark(&clock("0 8 * * *"), 5).await, Ok(5));
    assert_eq!(two.clock_mark(&clock("0 8 * * *"), 9).await, Ok(5), "it was seen before");
    assert_eq!(one.enqueue(at("a", 10), 11).await, Ok(Enqueued::Accepted));
    assert_eq!(two.enqueue(at("b", 10), 11).await, Ok(Enqueued::Duplicate("a".into())));
    assert_eq!(two.enqueue(at("c", 8), 11).await, Ok(Enqueued::Duplicate("a".into())), "an older time");
    assert_eq!(two.clock_mark(&clock("0 8 * * *"), 12).await, Ok(10));
    assert_eq!(two.enqueue(at("d", 20), 21).await, Ok(Enqueued::Accepted));
    assert_eq!(one.clock_mark(&clock("0 9 * * *"), 30).await, Ok(30), "another schedule begins now");
    assert_eq!(
        one.enqueue(at("e", 40), 41).await,
        Ok(Enqueued::Duplicate(String::new())),
        "the old schedule is over"
    );
    assert_eq!(one.entries(None, EntryState::Waiting, 9).await.unwrap().len(), 2);
}

/// `expert remove` and `expert install` within one poll of a process that watches the clock; or another
/// process forgot it.
#[tokio::test]
async fn a_forgotten_clock_still_fires() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (open(dir.path()), open(dir.path()));
    let clock = Clock { queue: "desk".into(), name: "daily".into(), schedule: "s".into() };
    let at = |id: &str, time| {
        let clock = Some(ClockTime { clock: clock.clone(), time });
        NewEntry { clock, ..entry(id, None) }
    };
    one.clock_mark(&clock, 5).await.unwrap();
    two.forget_clocks(GoneClocks::OfQueue("desk".into())).await.unwrap();
    assert_eq!(one.enqueue(at("a", 10), 11).await, Ok(Enqueued::Accepted));
    assert_eq!(two.enqueue(at("b", 10), 11).await, Ok(Enqueued::Duplicate("a".into())));
    two.forget_clocks(GoneClocks::AllBut(std::collections::BTreeSet::new())).await.unwrap();
    assert_eq!(two.enqueue(at("c", 20), 21).await, Ok(Enqueued::Accepted));
    assert_eq!(one.clock_mark(&clock, 22).await, Ok(20));
}

/// An expert that is missing for a moment costs its entries no attempt, and no run that a person has decided
/// on.
#[tokio::test]
async fn a_returned_lease_keeps_its_attempt() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.enqueue(entry("a", None), 5).await.unwrap();
    let first = claim_one(&store, 10).await.unwrap();
    begun(&store, "run-1", &first).await;
    assert!(store.give_back_entry(&first.lease, 50, "the expert is not installed").await.unwrap());
    assert!(!store.give_back_entry(&first.lease, 50, "twice").await.unwrap(), "the lease is lost");
    assert_eq!(claim_one(&store, 49).await, None);
    let again = claim_one(&store, 50).await.unwrap();
    assert_eq!((again.attempt, again.is_continued, again.run.as_deref()), (1, true, Some("run-1")));
}

/// Where the key came before, the clock does not move; where the clock was there before, the key is not
/// remembered.
#[tokio::test]
async fn a_clock_and_a_key_are_one_commit() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let clock = Clock { queue: "desk".into(), name: "c".into(), schedule: "s".into() };
    store.clock_mark(&clock, 5).await.unwrap();
    let with = |id: &str, time, key: &str| {
        let clock = Some(ClockTime { clock: clock.clone(), time });
        NewEntry { clock, dedupe: Some((DedupeKey::new("desk", "t", key), 1_000)), ..entry(id, None) }
    };
    assert_eq!(store.enqueue(with("a", 10, "k"), 1).await, Ok(Enqueued::Accepted));
    assert_eq!(store.enqueue(with("b", 20, "k"), 1).await, Ok(Enqueued::Duplicate("a".into())));
    assert_eq!(store.clock_mark(&clock, 1).await, Ok(10));
    assert_eq!(store.enqueue(with("c", 10, "other"), 1).await, Ok(Enqueued::Duplicate("a".into())));
    assert_eq!(store.enqueue(with("d", 30, "other"), 1).await, Ok(Enqueued::Accepted));
}

/// A process that is late to renew its lease does not take the entry from itself; another process does.
#[tokio::test]
async fn nobody_takes_over_from_themselves() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.enqueue(entry("a", None), 1).await.unwrap();
    let own = claim_one(&store, 10).await.unwrap();
    let late = ClaimRequest { working: vec!["a".into()], ..request(1, 5_000) };
    assert_eq!(store.claim_entries(late).await.unwrap(), []);
    assert!(store.heartbeat(&own.lease, 6_000).await.unwrap(), "its lease still holds");
    let others = claim_one(&store, 7_000).await.unwrap();
    assert!(others.lease.epoch > own.lease.epoch && others.is_continued);
    assert!(!store.heartbeat(&own.lease, 9_000).await.unwrap());
}

/// The calls of earlier attempts are known while a further attempt may come, also by the replay of a dead
/// letter.
#[tokio::test]
async fn runs_of_repeatable_work_are_not_deleted() {
    use crate::RunsConfig;
    let dir = tempfile::tempdir().unwrap();
    let runs = RunsConfig { keep: std::time::Duration::from_millis(1), ..RunsConfig::default() };
    let config = StoreConfig { state_dir: dir.path().to_owned(), runs, ..StoreConfig::default() };
    let store = Store::open(&config).unwrap();
    store.enqueue(entry("a", None), 1).await.unwrap();
    let cleared = async || store.clear(1_000_000, 1_000_000).await.unwrap().old;
    let fails = async |run: &str, now| {
        let claimed = claim_one(&store, now).await.unwrap();
        let (id, fingerprint) = (run.to_owned(), "invocation:a".to_owned());
        let new = NewRun { id, fingerprint, setup: "{}".into(), ..NewRun::default() };
        assert!(store.begin_leased(new, &claimed.lease).await.unwrap());
        let failed = Append::status(run, Store::FIRST_EPOCH, now, Status::Failed);
        assert!(!store.append(failed).await.unwrap().lost);
        claimed.lease
    };
    let lease = fails("first", 10).await;
    store.retry_at(&lease, 500, String::new()).await.unwrap();
    assert_eq!(cleared().await, 0, "another attempt is due");
    let lease = fails("second", 500).await;
    store.complete(&lease, EntryEnd::DeadLetter, String::new(), 501).await.unwrap();
    assert_eq!(cleared().await, 0, "it may be replayed");
    assert!(store.replay("a", "a-2", 502).await.unwrap());
    assert_eq!(cleared().await, 0, "it is replayed");
    assert!(!store.delete("first").await.unwrap(), "its note would be made again");
    let lease = fails("third", 600).await;
    assert_eq!(lease.entry, "a-2");
    store.complete(&lease, EntryEnd::Done, String::new(), 601).await.unwrap();
    assert_eq!(cleared().await, 3, "nothing needs them any more");
}

/// A run that works on a claimed entry.
async fn begun(store: &Store, id: &str, claimed: &Claimed) {
    let run = NewRun { id: id.into(), agent: "desk".into(), fingerprint: "work".into(), ..NewRun::default() };
    assert!(store.begin_leased(run, &claimed.lease).await.unwrap());
}

async fn ended(store: &Store, run: &str, status: Status) {
    let append = Append::status(run, Store::FIRST_EPOCH, 6, status);
    assert!(!store.append(append).await.unwrap().lost);
}

/// A process that died between the claim and the run lost the attempt: the end of the run before counted for
/// it.
#[tokio::test]
async fn each_attempt_has_its_own_run() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.enqueue(entry("a", None), 5).await.unwrap();
    let first = claim_one(&store, 10).await.unwrap();
    begun(&store, "run-1", &first).await;
    ended(&store, "run-1", Status::Failed).await;
    store.retry_at(&first.lease, 20, "it failed".into()).await.unwrap();
    let second = claim_one(&store, 20).await.unwrap();
    assert_eq!((second.attempt, second.is_continued, second.run), (2, false, None));
    let again = claim_one(&store, 2_000).await.unwrap();
    assert_eq!((again.attempt, again.is_continued, &again.run), (2, true, &None));
    begun(&store, "run-2", &again).await;
    let third = claim_one(&store, 4_000).await.unwrap();
    assert_eq!((third.attempt, third.run.as_deref()), (2, Some("run-2")));
}

#[tokio::test]
async fn a_cancelled_run_frees_its_lane() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for id in ["a", "b", "c", "d"] {
        store.enqueue(entry(id, Some("lane")), 5).await.unwrap();
    }
    let held = claim_one(&store, 10).await.unwrap();
    begun(&store, "run-a", &held).await;
    ended(&store, "run-a", Status::AwaitingApproval).await;
    store.hold(&held.lease, "a person is asked".into()).await.unwrap();
    assert!(store.request_cancel("run-a", 11).await.unwrap());
    let row = store.entry("a").await.unwrap().unwrap();
    assert_eq!(
        (row.state, row.ended, row.note.as_deref()),
        (EntryState::Failed, Some(11), Some("its run was cancelled"))
    );

    // The process that worked on this one is gone.
    let left = claim_one(&store, 12).await.unwrap();
    begun(&store, "run-b", &left).await;
    ended(&store, "run-b", Status::Interrupted).await;
    assert!(store.request_cancel("run-b", 13).await.unwrap());
    assert!(!store.heartbeat(&left.lease, 5_000).await.unwrap(), "nobody goes on with it");

    assert!(store.give_up("c", "it was cancelled", 14).await.unwrap());
    assert!(!store.give_up("c", "it was cancelled", 15).await.unwrap(), "it has ended");
    assert_eq!(claim_one(&store, 16).await.unwrap().lease.entry, "d");

    // A process that ended, or left its run, before it saw the request.
    for (run, is_killed) in [("run-left", false), ("run-killed", true)] {
        let (id, other) = (format!("entry of {run}"), open(dir.path()));
        other.enqueue(entry(&id, Some("other lane")), 17).await.unwrap();
        let claimed = claim_one(&other, 17).await.unwrap();
        assert_eq!(claimed.lease.entry, id);
        begun(&other, run, &claimed).await;
        assert!(store.request_cancel(run, 18).await.unwrap());
        if is_killed {
            drop(other);
            store.mark_orphans().await.unwrap();
        } else {
            ended(&other, run, Status::Interrupted).await;
        }
        let row = store.entry(&id).await.unwrap().unwrap();
        assert_eq!(
            (row.state, row.note.as_deref()),
            (EntryState::Failed, Some("its run was cancelled")),
            "{run}"
        );
    }
}

/// `respool expert run --process` left others' invocations behind when it ended.
#[tokio::test]
async fn a_goal_limits_what_is_claimed() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for (id, lane) in
        [("a", Some("lane")), ("b", None), ("c", Some("other")), ("d", Some("lane")), ("e", Some("lane"))]
    {
        store.enqueue(entry(id, lane), 5).await.unwrap();
    }
    let towards = |goal: &str| ClaimRequest { towards: Some(goal.to_owned()), ..request(10, 10) };
    let mut order = Vec::new();
    for _ in 0..3 {
        for claimed in store.claim_entries(towards("d")).await.unwrap() {
            order.push(claimed.lease.entry.clone());
            store.complete(&claimed.lease, EntryEnd::Done, String::new(), 11).await.unwrap();
        }
    }
    assert_eq!(order, ["a", "d"]);
}

#[tokio::test]
async fn several_entries_are_queued_together_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let with_key = |id: &str, key: &str| NewEntry {
        dedupe: Some((DedupeKey::new("desk", "mail", key), 100)),
        ..entry(id, None)
    };
    let of_one_request = |last: &str| vec![with_key("a", "m1"), with_key("b", "m2"), with_key(last, "m3")];
    assert!(store.enqueue_all(of_one_request("a"), 5).await.is_err(), "there cannot be two of one id");
    assert_eq!(
        store.entries(None, EntryState::Waiting, 10).await.unwrap(),
        [],
        "so there is none of the others"
    );
    let queued = store.enqueue_all(of_one_request("c"), 6).await.unwrap();
    assert_eq!(
        queued,
        [Enqueued::Accepted, Enqueued::Accepted, Enqueued::Accepted],
        "nor are their keys known"
    );
    let again = vec![with_key("d", "m2"), with_key("e", "m4")];
    assert_eq!(
        store.enqueue_all(again, 7).await.unwrap(),
        [Enqueued::Duplicate("b".into()), Enqueued::Accepted]
    );
}

/// No other process can hold a claim that a process finds when it is alone on the store.
#[tokio::test]
async fn a_process_that_starts_alone_ends_old_claims() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.enqueue(entry("a", None), 10).await.unwrap();
    assert_eq!(store.claim_entries(request(1, 10)).await.unwrap().len(), 1);
    let other = open(dir.path());
    assert_eq!(other.claim_entries(request(1, 11)).await.unwrap(), [], "its owner is alive");
    drop((store, other));
    let alone = open(dir.path());
    assert_eq!(alone.claim_entries(request(1, 11)).await.unwrap().len(), 1);
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
    let due = |id: &str, due: u64| NewEntry { due, ..entry(id, None) };
    for one in
        [due("held by a dead process", ahead), due("to be retried", ahead), due("for later", ahead + HOUR)]
    {
        store.enqueue(one, ahead).await.unwrap();
    }
    let claimed = store.claim_entries(request(2, ahead)).await.unwrap();
    assert!(store.retry_at(&claimed[1].lease, ahead + 30_000, "it failed".into()).await.unwrap());
    let clock = Clock { queue: "desk".into(), name: "hourly".into(), schedule: "0 * * * * UTC".into() };
    assert_eq!(store.clock_mark(&clock, ahead).await, Ok(ahead));
    let message = NewMessage { id: "m".into(), ..NewMessage::default() };
    store.post(message, ahead).await.unwrap();

    // While another process uses the store, a claim ends only with its time.
    let _other = open(dir.path());
    drop(store);
    let store = open(dir.path());
    assert_eq!(store.claim_entries(request(10, now)).await.unwrap(), [], "all of it is hours away");
    assert_eq!(store.correct_clock(now).await, Ok(Some(9 * HOUR)));
    assert_eq!(store.clock_mark(&clock, now).await, Ok(now));
    assert_eq!(store.claim_messages(now, now + 1_000, 10).await.unwrap().len(), 1);
    assert_eq!(store.entry("to be retried").await.unwrap().unwrap().due, now + 30_000);
    assert_eq!(store.entry("for later").await.unwrap().unwrap().accepted, now);
    // The lease of the dead process was for one second.
    let ids = async |now: u64| {
        let claimed = store.claim_entries(request(10, now)).await.unwrap();
        claimed.into_iter().map(|it| it.lease.entry).collect::<Vec<_>>()
    };
    assert_eq!(ids(now + 999).await, [] as [&str; 0]);
    assert_eq!(ids(now + 1_000).await, ["held by a dead process"]);
    assert_eq!(ids(now + HOUR).await, ["held by a dead process", "to be retried", "for later"]);

    assert_eq!(store.correct_clock(now - 60_000).await, Ok(None), "so little is let be");
    assert_eq!(store.correct_clock(now - 2 * HOUR).await, Ok(Some(2 * HOUR - 60_000)));
    assert_eq!(store.clock_mark(&clock, now).await, Ok(now), "it does not fire for the same times again");
}
