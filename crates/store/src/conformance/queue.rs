//! Attempts, dedupe, leases, and two processes on one queue.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::Bed;
use crate::{
    Append, ClaimRequest, Claimed, Clock, ClockTime, DedupeKey, Enqueued, EntryEnd, EntryState, GoneClocks,
    LaneKey, NewEntry, NewRun, OpenCount, RunsConfig, Status, Store,
};

fn entry(id: &str, lane: Option<&str>) -> NewEntry {
    NewEntry {
        id: id.into(),
        queue: "desk".into(),
        lane: lane.map(LaneKey::serial),
        payload: format!("payload of {id}"),
        ..NewEntry::default()
    }
}

/// Long enough for a test, so that only a holder that gives its claim up loses it.
const LONG: Duration = Duration::from_hours(1);

fn request(most: usize) -> ClaimRequest {
    ClaimRequest { queues: vec!["desk".into()], most, lease: LONG, ..ClaimRequest::default() }
}

async fn claim_one(store: &Store) -> Option<Claimed> {
    store.claim_entries(request(1)).await.unwrap().pop()
}

/// A claim of a process that dies: its lease is over at once.
async fn claim_and_die(store: &Store) -> Option<Claimed> {
    let request = ClaimRequest { lease: Duration::ZERO, ..request(1) };
    store.claim_entries(request).await.unwrap().pop()
}

pub(super) async fn an_entry_holds_its_lane_through_attempts(bed: &Bed) {
    let store = bed.open();
    for id in ["a", "b"] {
        assert_eq!(store.enqueue(entry(id, Some("lane"))).await.unwrap(), Enqueued::Accepted);
    }
    assert!(store.entry("b").await.unwrap().unwrap().is_blocked);
    assert_eq!(store.entry_before("b").await.unwrap().unwrap().id, "a", "people see what it waits for");
    let first = claim_one(&store).await.unwrap();
    assert_eq!((first.attempt, first.is_continued, first.payload.as_str()), (1, false, "payload of a"));
    assert!(store.retry_after(&first.lease, Duration::ZERO, "the server was gone".into()).await.unwrap());
    assert_eq!(store.next_due(vec!["desk".into()]).await.unwrap(), Some(Duration::ZERO));
    let second = claim_one(&store).await.unwrap();
    assert_eq!((second.attempt, second.is_continued), (2, false));
    assert!(!store.complete(&first.lease, EntryEnd::Done, String::new()).await.unwrap(), "an old lease");
    assert!(store.hold(&second.lease, "a person is asked".into()).await.unwrap());
    assert_eq!(claim_one(&store).await, None, "the lane is held while a person is awaited");
    assert!(store.wake("a").await.unwrap() && !store.wake("a").await.unwrap());
    let third = claim_one(&store).await.unwrap();
    assert_eq!((third.attempt, third.is_continued), (2, true), "the same attempt goes on");
    assert!(store.complete(&third.lease, EntryEnd::DeadLetter, "it gave up".into()).await.unwrap());
    assert_eq!(claim_one(&store).await.unwrap().lease.entry, "b");

    let dead = store.entries(Some("desk"), EntryState::DeadLetter, 10).await.unwrap();
    assert_eq!((dead.len(), dead[0].note.as_deref()), (1, Some("it gave up")));
    assert!(!store.drop_dead_letter("b").await.unwrap(), "only dead letters are dropped");
    let replay = async |id: &str| store.replay("a", id, None).await.unwrap();
    assert!(replay("a-2").await && !replay("a-3").await);
    let again = store.entry("a-2").await.unwrap().unwrap();
    assert!(
        again.is_blocked && again.payload == "payload of a",
        "it waits at the end of its lane: {again:?}"
    );
}

/// A pause of one entry holds its lane, and no other.
pub(super) async fn a_pause_holds_its_lane(bed: &Bed) {
    let store = bed.open();
    for (id, lane) in [("a", "lane"), ("b", "lane"), ("c", "other")] {
        store.enqueue(entry(id, Some(lane))).await.unwrap();
    }
    let first = claim_one(&store).await.unwrap();
    assert!(store.retry_after(&first.lease, LONG, "the server was gone".into()).await.unwrap());
    assert_eq!(claim_one(&store).await.unwrap().lease.entry, "c");
    assert_eq!(claim_one(&store).await, None);
    let next = store.next_due(vec!["desk".into()]).await.unwrap().unwrap();
    assert!(next > LONG / 2 && next <= LONG, "{next:?}");
}

pub(super) async fn the_same_event_is_queued_once(bed: &Bed) {
    let store = bed.open();
    let key = |value: &str, kept| Some((DedupeKey::new("desk", "mail", value), kept));
    let first = NewEntry { dedupe: key("m1", LONG), ..entry("a", None) };
    assert_eq!(store.enqueue(first).await.unwrap(), Enqueued::Accepted);
    let again = NewEntry { dedupe: key("m1", LONG), ..entry("b", None) };
    assert_eq!(store.enqueue(again).await.unwrap(), Enqueued::Duplicate("a".into()));
    assert_eq!(store.entry("b").await.unwrap(), None);
    for id in ["b", "b-2"] {
        let short = NewEntry { dedupe: key("short", Duration::ZERO), ..entry(id, None) };
        assert_eq!(store.enqueue(short).await.unwrap(), Enqueued::Accepted, "the window is over");
    }
    let same_id = NewEntry { dedupe: key("m2", LONG), ..entry("a", None) };
    assert!(store.enqueue(same_id).await.is_err());
    let other = NewEntry { dedupe: key("m2", LONG), ..entry("c", None) };
    assert_eq!(store.enqueue(other).await.unwrap(), Enqueued::Accepted, "the key went with the entry");
}

pub(super) async fn a_run_begins_only_with_a_valid_lease(bed: &Bed) {
    let store = bed.open();
    store.enqueue(entry("a", None)).await.unwrap();
    let asleep = claim_and_die(&store).await.unwrap();
    let new =
        |id: &str| NewRun { id: id.into(), agent: "desk".into(), setup: "{}".into(), ..NewRun::default() };
    assert!(store.begin_leased(new("run-1"), &asleep.lease).await.unwrap());
    let awake = claim_one(&store).await.unwrap();
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
    assert!(!store.heartbeat(&asleep.lease, LONG).await.unwrap());
    assert!(store.heartbeat(&awake.lease, LONG).await.unwrap());
    assert_eq!(claim_one(&store).await, None, "the lease was renewed");
    assert_eq!(epoch, Store::FIRST_EPOCH + 1);
}

/// Two processes on one store; one of them dies now and then, and what it held is taken over.
pub(super) async fn two_processes_share_the_work(bed: &Bed) {
    let stores = [Arc::new(bed.open()), Arc::new(bed.open())];
    for number in 0..120 {
        let lane = format!("lane {}", number % 7);
        stores[number % 2].enqueue(entry(&format!("{number:03}"), Some(&lane))).await.unwrap();
    }
    // What a process has claimed it notes before it completes it, so that the order of the notes is that of
    // the work.
    let began: Arc<Mutex<Vec<String>>> = Arc::default();
    let done: Arc<Mutex<Vec<String>>> = Arc::default();
    let work = async |store: Arc<Store>, dies: bool| {
        let mut claims = 0;
        while store.next_due(vec!["desk".into()]).await.unwrap().is_some() {
            let claims_now = store.claim_entries(request(3)).await.unwrap();
            for claimed in claims_now {
                claims += 1;
                began.lock().unwrap().push(claimed.lease.entry.clone());
                if dies && claims % 5 == 0 {
                    // It never comes back; another worker finds the lease over.
                    store.heartbeat(&claimed.lease, Duration::ZERO).await.unwrap();
                    continue;
                }
                if store.complete(&claimed.lease, EntryEnd::Done, String::new()).await.unwrap() {
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

pub(super) async fn dead_letters_outlive_ended_entries(bed: &Bed) {
    let store = bed.open();
    for (id, end) in [
        ("a", EntryEnd::Done),
        ("b", EntryEnd::Failed),
        ("c", EntryEnd::DeadLetter),
        ("e", EntryEnd::Escalated),
    ] {
        let dedupe = Some((DedupeKey::new("desk", "mail", id), Duration::ZERO));
        store.enqueue(NewEntry { dedupe, ..entry(id, None) }).await.unwrap();
        let claimed = claim_one(&store).await.unwrap();
        store.complete(&claimed.lease, end, String::new()).await.unwrap();
    }
    store.enqueue(entry("d", None)).await.unwrap();
    let waiting = OpenCount { queue: "desk".into(), state: EntryState::Waiting, count: 1 };
    assert_eq!(store.open_counts().await.unwrap(), [waiting]);
    for (queue, expected) in [(None, 1), (Some("desk"), 1), (Some("other"), 0)] {
        let newest = store.newest_entries(queue, EntryState::DeadLetter, 9).await.unwrap();
        assert_eq!(newest.len(), expected, "{queue:?}");
    }
    let later = clock::now() + 31 * 24 * 3_600_000;
    store.clear(later, later).await.unwrap();
    let mut left = Vec::new();
    for id in ["a", "b", "c", "d", "e"] {
        left.extend(store.entry(id).await.unwrap().map(|entry| entry.id));
    }
    assert_eq!(left, ["c", "d"]);
}

pub(super) async fn a_worker_wakes_for_new_entries(bed: &Bed) {
    let store = bed.open();
    let keyed =
        |id: &str| NewEntry { dedupe: Some((DedupeKey::new("desk", "t", "k"), LONG)), ..entry(id, None) };
    let is_woken = async || {
        let waited = tokio::time::timeout(Duration::from_millis(100), store.wait_for_entry());
        waited.await.is_ok()
    };
    assert!(!is_woken().await);
    store.enqueue(keyed("a")).await.unwrap();
    assert!(is_woken().await && !is_woken().await);
    store.enqueue(keyed("b")).await.unwrap();
    assert!(!is_woken().await, "it is the same event");
}

/// Two processes fire the same clock; one of them is a time behind.
pub(super) async fn a_clock_fires_once_for_a_time(bed: &Bed) {
    let (one, two) = (bed.open(), bed.open());
    let clock =
        |schedule: &str| Clock { queue: "desk".into(), name: "daily".into(), schedule: schedule.into() };
    let at = |id: &str, time| {
        let clock = Some(ClockTime { clock: clock("0 8 * * *"), time });
        NewEntry { clock, ..entry(id, None) }
    };
    assert_eq!(one.clock_mark(&clock("0 8 * * *"), 5).await, Ok(5));
    assert_eq!(two.clock_mark(&clock("0 8 * * *"), 9).await, Ok(5), "it was seen before");
    assert_eq!(one.enqueue(at("a", 10)).await, Ok(Enqueued::Accepted));
    assert_eq!(two.enqueue(at("b", 10)).await, Ok(Enqueued::Duplicate("a".into())));
    assert_eq!(two.enqueue(at("c", 8)).await, Ok(Enqueued::Duplicate("a".into())), "an older time");
    assert_eq!(two.clock_mark(&clock("0 8 * * *"), 12).await, Ok(10));
    assert_eq!(two.enqueue(at("d", 20)).await, Ok(Enqueued::Accepted));
    // A time that is skipped has passed for all processes, and no entry stands for it.
    for time in [24, 22] {
        one.skip_time(&ClockTime { clock: clock("0 8 * * *"), time }).await.unwrap();
    }
    one.skip_time(&ClockTime { clock: clock("another"), time: 28 }).await.unwrap();
    assert_eq!(two.clock_mark(&clock("0 8 * * *"), 25).await, Ok(24));
    assert_eq!(two.enqueue(at("f", 24)).await, Ok(Enqueued::Duplicate("d".into())));
    assert_eq!(one.clock_mark(&clock("0 9 * * *"), 30).await, Ok(30), "another schedule begins now");
    assert_eq!(
        one.enqueue(at("e", 40)).await,
        Ok(Enqueued::Duplicate(String::new())),
        "the old schedule is over"
    );
    assert_eq!(one.entries(None, EntryState::Waiting, 9).await.unwrap().len(), 2);
}

/// `expert remove` and `expert install` within one poll of a process that watches the clock; or another
/// process forgot it.
pub(super) async fn a_forgotten_clock_still_fires(bed: &Bed) {
    let (one, two) = (bed.open(), bed.open());
    let clock = Clock { queue: "desk".into(), name: "daily".into(), schedule: "s".into() };
    let at = |id: &str, time| {
        let clock = Some(ClockTime { clock: clock.clone(), time });
        NewEntry { clock, ..entry(id, None) }
    };
    one.clock_mark(&clock, 5).await.unwrap();
    two.forget_clocks(GoneClocks::OfQueue("desk".into())).await.unwrap();
    assert_eq!(one.enqueue(at("a", 10)).await, Ok(Enqueued::Accepted));
    assert_eq!(two.enqueue(at("b", 10)).await, Ok(Enqueued::Duplicate("a".into())));
    two.forget_clocks(GoneClocks::AllBut(std::collections::BTreeSet::new())).await.unwrap();
    assert_eq!(two.enqueue(at("c", 20)).await, Ok(Enqueued::Accepted));
    assert_eq!(one.clock_mark(&clock, 22).await, Ok(20));
}

/// An expert that is missing for a moment costs its entries no attempt, and no run that a person has decided
/// on.
pub(super) async fn a_returned_lease_keeps_its_attempt(bed: &Bed) {
    let store = bed.open();
    store.enqueue(entry("a", None)).await.unwrap();
    let first = claim_one(&store).await.unwrap();
    begin_run(&store, "run-1", &first).await;
    let back = Duration::ZERO;
    assert!(store.give_back_entry(&first.lease, back, "the expert is not installed").await.unwrap());
    assert!(!store.give_back_entry(&first.lease, back, "twice").await.unwrap(), "the lease is lost");
    let again = claim_one(&store).await.unwrap();
    assert_eq!((again.attempt, again.is_continued, again.run.as_deref()), (1, true, Some("run-1")));
}

/// Where the key came before, the clock does not move; where the clock was there before, the key is not
/// remembered.
pub(super) async fn a_clock_and_a_key_are_one_commit(bed: &Bed) {
    let store = bed.open();
    let clock = Clock { queue: "desk".into(), name: "c".into(), schedule: "s".into() };
    store.clock_mark(&clock, 5).await.unwrap();
    let with = |id: &str, time, key: &str| {
        let clock = Some(ClockTime { clock: clock.clone(), time });
        NewEntry { clock, dedupe: Some((DedupeKey::new("desk", "t", key), LONG)), ..entry(id, None) }
    };
    assert_eq!(store.enqueue(with("a", 10, "k")).await, Ok(Enqueued::Accepted));
    assert_eq!(store.enqueue(with("b", 20, "k")).await, Ok(Enqueued::Duplicate("a".into())));
    assert_eq!(store.clock_mark(&clock, 1).await, Ok(10));
    assert_eq!(store.enqueue(with("c", 10, "other")).await, Ok(Enqueued::Duplicate("a".into())));
    assert_eq!(store.enqueue(with("d", 30, "other")).await, Ok(Enqueued::Accepted));
}

/// A process that is late to renew its lease does not take the entry from itself; another process does.
pub(super) async fn nobody_takes_over_from_themselves(bed: &Bed) {
    let store = bed.open();
    store.enqueue(entry("a", None)).await.unwrap();
    let own = claim_and_die(&store).await.unwrap();
    let late = ClaimRequest { working: vec!["a".into()], ..request(1) };
    assert_eq!(store.claim_entries(late).await.unwrap(), []);
    assert!(store.heartbeat(&own.lease, Duration::ZERO).await.unwrap(), "its lease still holds");
    let others = claim_one(&store).await.unwrap();
    assert!(others.lease.epoch > own.lease.epoch && others.is_continued);
    assert!(!store.heartbeat(&own.lease, LONG).await.unwrap());
}

/// The calls of earlier attempts are known while a further attempt may come, also by the replay of a dead
/// letter.
pub(super) async fn runs_of_repeatable_work_are_not_deleted(bed: &Bed) {
    let runs = RunsConfig { keep: Duration::from_millis(1), ..RunsConfig::default() };
    let store = bed.open_with(|config| config.runs = runs);
    store.enqueue(entry("a", None)).await.unwrap();
    let cleared = async || store.clear(clock::now() + 1_000_000, clock::now() + 1_000_000).await.unwrap().old;
    let fails = async |run: &str, now| {
        let claimed = claim_one(&store).await.unwrap();
        let (id, fingerprint) = (run.to_owned(), "invocation:a".to_owned());
        let new = NewRun { id, fingerprint, setup: "{}".into(), ..NewRun::default() };
        assert!(store.begin_leased(new, &claimed.lease).await.unwrap());
        let failed = Append::status(run, Store::FIRST_EPOCH, now, Status::Failed);
        assert!(!store.append(failed).await.unwrap().lost);
        claimed.lease
    };
    let lease = fails("first", 10).await;
    store.retry_after(&lease, Duration::ZERO, String::new()).await.unwrap();
    assert_eq!(cleared().await, 0, "another attempt is due");
    let lease = fails("second", 500).await;
    store.complete(&lease, EntryEnd::DeadLetter, String::new()).await.unwrap();
    assert_eq!(cleared().await, 0, "it may be replayed");
    assert!(store.replay("a", "a-2", None).await.unwrap());
    assert_eq!(cleared().await, 0, "it is replayed");
    assert!(!store.delete("first").await.unwrap(), "its note would be made again");
    for (run, id, end) in [("third", "a-2", EntryEnd::Failed), ("fourth", "a-3", EntryEnd::Escalated)] {
        let lease = fails(run, 600).await;
        assert_eq!(lease.entry, id);
        store.complete(&lease, end, String::new()).await.unwrap();
        assert!(!store.delete("first").await.unwrap(), "a person may have it done again: {end:?}");
        let next = if id == "a-2" { "a-3" } else { "a-4" };
        assert!(store.replay(id, next, Some("with a comment".into())).await.unwrap());
    }
    let lease = fails("fifth", 600).await;
    assert_eq!(store.entry(&lease.entry).await.unwrap().unwrap().payload, "with a comment");
    store.complete(&lease, EntryEnd::Done, String::new()).await.unwrap();
    assert!(!store.replay("a-4", "a-5", None).await.unwrap(), "what is done is not done again");
    assert_eq!(cleared().await, 5, "nothing needs them any more");
}

/// A run that works on a claimed entry.
async fn begin_run(store: &Store, id: &str, claimed: &Claimed) {
    let run = NewRun { id: id.into(), agent: "desk".into(), fingerprint: "work".into(), ..NewRun::default() };
    assert!(store.begin_leased(run, &claimed.lease).await.unwrap());
}

async fn end_run(store: &Store, run: &str, status: Status) {
    let append = Append::status(run, Store::FIRST_EPOCH, 6, status);
    assert!(!store.append(append).await.unwrap().lost);
}

/// A process that died between the claim and the run lost the attempt: the end of the run before counted for
/// it.
pub(super) async fn each_attempt_has_its_own_run(bed: &Bed) {
    let store = bed.open();
    store.enqueue(entry("a", None)).await.unwrap();
    let first = claim_one(&store).await.unwrap();
    begin_run(&store, "run-1", &first).await;
    end_run(&store, "run-1", Status::Failed).await;
    store.retry_after(&first.lease, Duration::ZERO, "it failed".into()).await.unwrap();
    let second = claim_and_die(&store).await.unwrap();
    assert_eq!((second.attempt, second.is_continued, second.run), (2, false, None));
    let again = claim_and_die(&store).await.unwrap();
    assert_eq!((again.attempt, again.is_continued, &again.run), (2, true, &None));
    begin_run(&store, "run-2", &again).await;
    let third = claim_one(&store).await.unwrap();
    assert_eq!((third.attempt, third.run.as_deref()), (2, Some("run-2")));
}

pub(super) async fn a_cancelled_run_frees_its_lane(bed: &Bed) {
    let store = bed.open();
    for id in ["a", "b", "c", "d"] {
        store.enqueue(entry(id, Some("lane"))).await.unwrap();
    }
    let held = claim_one(&store).await.unwrap();
    begin_run(&store, "run-a", &held).await;
    end_run(&store, "run-a", Status::AwaitingApproval).await;
    store.hold(&held.lease, "a person is asked".into()).await.unwrap();
    assert!(store.request_cancel("run-a", 11).await.unwrap());
    let row = store.entry("a").await.unwrap().unwrap();
    assert_eq!((row.state, row.note.as_deref()), (EntryState::Failed, Some("its run was cancelled")));
    assert!(row.ended.is_some());

    // The process that worked on this one is gone.
    let left = claim_one(&store).await.unwrap();
    begin_run(&store, "run-b", &left).await;
    end_run(&store, "run-b", Status::Interrupted).await;
    assert!(store.request_cancel("run-b", 13).await.unwrap());
    assert!(!store.heartbeat(&left.lease, LONG).await.unwrap(), "the claim ended with the run");

    assert!(store.give_up("c", "it was cancelled").await.unwrap());
    assert!(!store.give_up("c", "it was cancelled").await.unwrap(), "it has ended");
    assert_eq!(claim_one(&store).await.unwrap().lease.entry, "d");

    // A process that ended, or left its run, before it saw the request.
    for (run, is_killed) in [("run-left", false), ("run-killed", true)] {
        let (id, other) = (format!("entry of {run}"), bed.open());
        other.enqueue(entry(&id, Some("other lane"))).await.unwrap();
        let claimed = claim_one(&other).await.unwrap();
        assert_eq!(claimed.lease.entry, id);
        begin_run(&other, run, &claimed).await;
        assert!(store.request_cancel(run, 18).await.unwrap());
        if is_killed {
            drop(other);
            store.mark_orphans().await.unwrap();
        } else {
            end_run(&other, run, Status::Interrupted).await;
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
pub(super) async fn a_goal_limits_what_is_claimed(bed: &Bed) {
    let store = bed.open();
    for (id, lane) in
        [("a", Some("lane")), ("b", None), ("c", Some("other")), ("d", Some("lane")), ("e", Some("lane"))]
    {
        store.enqueue(entry(id, lane)).await.unwrap();
    }
    let towards = |goal: &str| ClaimRequest { towards: Some(goal.to_owned()), ..request(10) };
    let mut order = Vec::new();
    for _ in 0..3 {
        for claimed in store.claim_entries(towards("d")).await.unwrap() {
            order.push(claimed.lease.entry.clone());
            store.complete(&claimed.lease, EntryEnd::Done, String::new()).await.unwrap();
        }
    }
    assert_eq!(order, ["a", "d"]);
}

pub(super) async fn several_entries_are_queued_together_or_not_at_all(bed: &Bed) {
    let store = bed.open();
    let with_key = |id: &str, key: &str| NewEntry {
        dedupe: Some((DedupeKey::new("desk", "mail", key), LONG)),
        ..entry(id, None)
    };
    let of_one_request = |last: &str| vec![with_key("a", "m1"), with_key("b", "m2"), with_key(last, "m3")];
    assert!(store.enqueue_all(of_one_request("a")).await.is_err(), "there cannot be two of one id");
    assert_eq!(
        store.entries(None, EntryState::Waiting, 10).await.unwrap(),
        [],
        "the others are not queued either"
    );
    let queued = store.enqueue_all(of_one_request("c")).await.unwrap();
    assert_eq!(
        queued,
        [Enqueued::Accepted, Enqueued::Accepted, Enqueued::Accepted],
        "nor are their keys known"
    );
    let again = vec![with_key("d", "m2"), with_key("e", "m4")];
    assert_eq!(
        store.enqueue_all(again).await.unwrap(),
        [Enqueued::Duplicate("b".into()), Enqueued::Accepted]
    );
}
