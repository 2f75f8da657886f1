//! Runs, approvals and the usage of keys.

use std::time::Duration;

use super::Bed;
use super::refusals::run_sql;
use crate::{
    Append, ApprovalChange, ApprovalState, Attention, ClaimRequest, ClaimScope, EntryEnd, EntryRow, KeyUsage,
    LateDecision, NewEntry, NewMessage, NewRun, RunFilter, RunsConfig, Status, Store,
};

fn new(id: &str, fingerprint: &str, at: u64) -> NewRun {
    NewRun {
        id: id.into(),
        agent: "helper".into(),
        at,
        fingerprint: fingerprint.into(),
        client: "me".into(),
        setup: "{}".into(),
    }
}

fn event(run: &str, seq: u64, status: Status) -> Append {
    let event = Some((seq, "replied", format!("event {seq}")));
    Append { event, ..Append::status(run, Store::FIRST_EPOCH, 100 + seq, status) }
}

pub(super) async fn commits_outlive_the_process(bed: &Bed) {
    let store = bed.open();
    store.begin(new("a", "f", 1)).await.unwrap();
    store.begin(new("b", "g", 2)).await.unwrap();
    for seq in 0..3 {
        store.append(Append { synchronous: seq == 1, ..event("a", seq, Status::Running) }).await.unwrap();
    }
    let waits = Append { client_calls: vec!["call1".into()], ..event("b", 0, Status::Suspended) };
    store.append(waits).await.unwrap();
    drop(store);

    let store = bed.open();
    let run = store.run("a").await.unwrap().unwrap();
    let events: Vec<&str> = run.events.iter().map(|event| event.body.as_str()).collect();
    assert_eq!(
        (events, run.row.status, run.setup.as_str()),
        (vec!["event 0", "event 1", "event 2"], Status::Running, "{}")
    );
    let newest: Vec<String> =
        store.newest(RunFilter::All, 10).await.unwrap().into_iter().map(|row| row.id).collect();
    assert_eq!(newest, ["b", "a"]);
    let by_call = async |agent, client| {
        store.run_of_calls(vec!["none".into(), "call1".into()], agent, client).await.unwrap()
    };
    assert_eq!(by_call("helper", "me").await.as_deref(), Some("b"));
    assert_eq!((by_call("helper", "somebody else").await, by_call("another", "me").await), (None, None));
    assert_eq!(store.run("c").await.unwrap(), None);
}

pub(super) async fn a_run_belongs_to_one_process_at_a_time(bed: &Bed) {
    let (first, second) = (bed.open(), bed.open());
    first.begin(new("a", "f", 1)).await.unwrap();
    assert_eq!(second.mark_orphans().await.unwrap(), 0, "its process lives");
    assert_eq!(second.claim("a", ClaimScope::IdleOrCancelled).await.unwrap(), None);
    drop(first);
    assert_eq!(second.mark_orphans().await.unwrap(), 1);
    assert_eq!(second.unanswered_run("f", 0).await.unwrap().as_deref(), Some("a"));
    assert_eq!(second.claim("a", ClaimScope::Idle).await.unwrap(), Some(Store::FIRST_EPOCH + 1));
    assert_eq!(second.claim("a", ClaimScope::Idle).await.unwrap(), None, "it is running now");
    let over = Append { epoch: Store::FIRST_EPOCH + 1, ..event("a", 0, Status::Done) };
    second.append(over).await.unwrap();
    assert_eq!(second.claim("a", ClaimScope::IdleOrCancelled).await.unwrap(), None, "it is over");
    assert_eq!(second.claim("a", ClaimScope::IdleOrOver).await.unwrap(), Some(Store::FIRST_EPOCH + 2));
}

/// A conversation goes on after one of its turns was cancelled.
pub(super) async fn only_the_holder_forgets_a_cancel(bed: &Bed) {
    let store = bed.open();
    store.begin(new("a", "f", 1)).await.unwrap();
    assert!(store.request_cancel("a", 1).await.unwrap());
    assert!(store.append(event("a", 0, Status::Running)).await.unwrap().cancel);
    assert!(!store.forget_cancel("a", Store::FIRST_EPOCH + 1).await.unwrap(), "somebody else");
    assert!(store.append(event("a", 1, Status::Running)).await.unwrap().cancel);
    assert!(store.forget_cancel("a", Store::FIRST_EPOCH).await.unwrap());
    assert!(!store.append(event("a", 2, Status::Running)).await.unwrap().cancel);
}

/// A process that was only asleep must not go on where another one works by now.
pub(super) async fn what_an_earlier_owner_writes_is_refused(bed: &Bed) {
    let store = bed.open();
    store.begin(new("a", "f", 1)).await.unwrap();
    store.append(event("a", 0, Status::Suspended)).await.unwrap();
    let epoch = store.claim("a", ClaimScope::Idle).await.unwrap().unwrap();
    let late = store.append(event("a", 1, Status::Done)).await.unwrap();
    assert!(late.lost);
    let run = store.run("a").await.unwrap().unwrap();
    assert_eq!((run.events.len(), run.row.status), (1, Status::Running), "nothing of it was written");
    assert!(!store.append(Append { epoch, ..event("a", 1, Status::Done) }).await.unwrap().lost);
}

/// A request to cancel that is seen only when the run begins to wait was never met: nothing could claim the
/// run, and nothing ended it.
pub(super) async fn a_cancelled_run_waits_for_nobody(bed: &Bed) {
    let store = bed.open();
    for status in [Status::Suspended, Status::AwaitingApproval, Status::Interrupted] {
        let (run, child) = (format!("{status:?}"), format!("child of {status:?}"));
        store.begin(new(&run, "f", 1)).await.unwrap();
        let begins = Append { child: Some(new(&child, "", 2)), ..event(&run, 0, Status::Running) };
        store.append(begins).await.unwrap();
        assert!(store.request_cancel(&run, 3).await.unwrap());
        let learns = store.append(event(&child, 0, Status::Running)).await.unwrap();
        assert!(learns.cancel, "a child learns of it");
        let approval = Some(request_of(&run, None));
        assert!(store.append(Append { approval, ..event(&run, 1, status) }).await.unwrap().cancel);
        for id in [run, child] {
            assert_eq!(store.run(&id).await.unwrap().unwrap().row.status, Status::Cancelled, "{id}");
        }
        assert_eq!(store.approvals(ApprovalState::Waiting, 10).await.unwrap(), []);
    }
}

/// A run that began long ago and failed just now stood behind all that began after it.
pub(super) async fn the_last_failures_are_found(bed: &Bed) {
    let store = bed.open();
    for id in ["old", "new", "newest"] {
        store.begin(new(id, "f", 1)).await.unwrap();
    }
    store.append(event("new", 0, Status::Failed)).await.unwrap();
    store.append(Append { at: 109, ..event("old", 0, Status::Failed) }).await.unwrap();
    let failed = async |since: u64, most: usize| {
        let found = store.attention(since, most).await.unwrap();
        found.failed_runs.into_iter().map(|(id, _)| id).collect::<Vec<_>>()
    };
    assert_eq!(
        (failed(0, 9).await, failed(0, 1).await),
        (vec!["old".to_owned(), "new".into()], vec!["old".to_owned()])
    );
    assert_eq!(failed(100, 9).await, ["old"]);
}

pub(super) async fn what_needs_a_person_is_found_together(bed: &Bed) {
    let store = bed.open();
    assert_eq!(store.attention(0, 9).await.unwrap(), Attention::default());
    for (id, end, note) in [
        ("lost", EntryEnd::Failed, "it broke"),
        ("cancelled", EntryEnd::Failed, EntryRow::CANCELLED),
        ("dead", EntryEnd::DeadLetter, "it broke"),
        ("done", EntryEnd::Done, ""),
        ("doubtful", EntryEnd::Escalated, ""),
        ("answered", EntryEnd::Escalated, ""),
    ] {
        store.enqueue(NewEntry { id: id.into(), queue: "desk".into(), ..NewEntry::default() }).await.unwrap();
        let (queues, lease) = (vec!["desk".into()], Duration::from_mins(1));
        let request = ClaimRequest { queues, most: 1, lease, ..ClaimRequest::default() };
        let claimed = store.claim_entries(request).await.unwrap().remove(0);
        assert!(store.complete(&claimed.lease, end, note.into()).await.unwrap());
    }
    for id in ["doubtful:escalated", "answered:escalated"] {
        let message = NewMessage { id: id.into(), ..NewMessage::default() };
        assert!(store.post(message, 1).await.unwrap());
    }
    assert!(store.message_delivered("answered:escalated", 2).await.unwrap());
    store.begin(new("broken", "f", 1)).await.unwrap();
    store.append(event("broken", 0, Status::Failed)).await.unwrap();
    store.begin(new("asking", "g", 1)).await.unwrap();
    let approval = Some(request_of("one", None));
    store.append(Append { approval, ..event("asking", 0, Status::AwaitingApproval) }).await.unwrap();
    let of = |id: &str, whose: &str| vec![(id.to_owned(), whose.to_owned())];
    let expected = Attention {
        failed_runs: of("broken", "helper"),
        failed_tasks: of("lost", "desk"),
        dead_letters: of("dead", "desk"),
        escalated_tasks: of("doubtful", "desk"),
        approvals: of("one", "helper"),
    };
    assert_eq!(store.attention(0, 9).await.unwrap(), expected);
    let later = store.attention(clock::now() + 60_000, 9).await.unwrap();
    assert_eq!((later.failed_runs, later.failed_tasks), (Vec::new(), Vec::new()));
    let message = NewMessage { id: "lost:failed".into(), ..NewMessage::default() };
    assert!(store.post(message, 1).await.unwrap());
    let much_later = async || store.attention(clock::now() + 60_000, 9).await.unwrap().failed_tasks;
    assert_eq!(much_later().await, of("lost", "desk"), "it waits for a person");
    assert!(store.end_message("lost:failed", 2, None).await.unwrap());
    assert_eq!(much_later().await, []);
    assert_eq!(store.attention(0, 9).await.unwrap().failed_tasks, of("lost", "desk"), "it failed lately");
    let message = NewMessage { id: "lost:failed".into(), ..NewMessage::default() };
    store.forget_messages(u64::MAX).await.unwrap();
    assert!(store.post(message, 1).await.unwrap());
    assert!(store.end_message("lost:failed", 2, Some("done: dropped")).await.unwrap());
    assert_eq!(store.attention(0, 9).await.unwrap().failed_tasks, [], "a person dropped it");
}

async fn woken(store: &Store, now: u64) -> Vec<String> {
    let runs = store.woken_by_approvals(now).await.unwrap();
    assert!(runs.iter().all(|run| run.agent == "helper" && run.status == Status::AwaitingApproval));
    runs.into_iter().map(|run| run.id).collect()
}

fn request_of(id: &str, expires: Option<u64>) -> ApprovalChange {
    ApprovalChange::Requested { id: id.into(), expires, body: format!("request {id}") }
}

pub(super) async fn an_approval_is_decided_once(bed: &Bed) {
    let store = bed.open();
    store.begin(new("parent", "f", 1)).await.unwrap();
    let child = Some(new("child", "", 2));
    store.append(Append { child, ..event("parent", 0, Status::AwaitingApproval) }).await.unwrap();
    let approval = Some(request_of("one", None));
    store.append(Append { approval, ..event("child", 0, Status::AwaitingApproval) }).await.unwrap();
    store.begin(new("other", "g", 1)).await.unwrap();
    let approval = Some(request_of("two", Some(500)));
    store.append(Append { approval, ..event("other", 0, Status::AwaitingApproval) }).await.unwrap();
    assert_eq!(store.run("child").await.unwrap().unwrap().row.parent.as_deref(), Some("parent"));

    let waiting = store.approvals(ApprovalState::Waiting, 10).await.unwrap();
    let ids: Vec<&str> = waiting.iter().map(|row| row.id.as_str()).collect();
    assert_eq!(
        (ids, waiting[0].run.as_str(), waiting[0].body.as_str()),
        (vec!["one", "two"], "child", "request one")
    );
    assert_eq!(woken(&store, 499).await, Vec::<String>::new());
    assert_eq!(woken(&store, 500).await, ["other"]);
    assert!(store.decide("one", "yes".into(), 300, LateDecision::Refused).await.unwrap());
    assert!(
        !store.decide("one", "no".into(), 301, LateDecision::Refused).await.unwrap(),
        "the first decision holds"
    );
    assert!(!store.decide("unknown", "yes".into(), 301, LateDecision::Refused).await.unwrap());
    assert_eq!(woken(&store, 400).await, ["parent"]);
    let late = store.decide("two", "yes".into(), 500, LateDecision::Refused).await.unwrap();
    assert!(!late, "the time is over");
    let row = store.approval("one").await.unwrap().unwrap();
    assert_eq!(
        (row.state, row.decision.as_deref(), row.decided),
        (ApprovalState::Decided, Some("yes"), Some(300))
    );

    let applied = Some(ApprovalChange::Applied { id: "one".into() });
    store.append(Append { approval: applied, ..event("child", 1, Status::Done) }).await.unwrap();
    let escalated = Some(ApprovalChange::Escalated { id: "two".into() });
    store
        .append(Append { approval: escalated, ..event("other", 1, Status::AwaitingApproval) })
        .await
        .unwrap();
    assert_eq!(woken(&store, 9_999).await, Vec::<String>::new(), "no second timeout");
    let withdrawn = Some(ApprovalChange::Withdrawn { id: "two".into() });
    store.append(Append { approval: withdrawn, ..event("other", 2, Status::Cancelled) }).await.unwrap();
    assert!(!store.decide("two", "yes".into(), 600, LateDecision::Counts).await.unwrap());
}

pub(super) async fn runs_awaiting_approval_are_not_deleted(bed: &Bed) {
    let runs = RunsConfig { keep: Duration::from_secs(1), ..RunsConfig::default() };
    let store = bed.open_with(|config| config.runs = runs);
    store.begin(new("waits", "f", 1)).await.unwrap();
    store.append(event("waits", 0, Status::AwaitingApproval)).await.unwrap();
    store.begin(new("parent", "g", 1)).await.unwrap();
    let child = Some(new("child", "", 2));
    store.append(Append { child, ..event("parent", 0, Status::AwaitingApproval) }).await.unwrap();
    store.append(event("child", 0, Status::Done)).await.unwrap();
    assert_eq!(store.clear(100_000, 100_000).await.unwrap().old, 0);
    store.append(event("parent", 1, Status::Done)).await.unwrap();
    assert_eq!(store.clear(100_000, 100_000).await.unwrap().old, 1);
    assert_eq!(run_ids(&store).await, ["waits"]);
}

pub(super) async fn a_cancel_reaches_the_process_at_work(bed: &Bed) {
    let store = bed.open();
    store.begin(new("a", "f", 1)).await.unwrap();
    assert!(!store.append(event("a", 0, Status::Running)).await.unwrap().cancel);
    assert!(store.request_cancel("a", 5).await.unwrap());
    assert!(store.append(event("a", 1, Status::Done)).await.unwrap().cancel);
    assert_eq!(store.unanswered_run("f", 0).await.unwrap().as_deref(), Some("a"));
    assert_eq!(store.unanswered_run("f", 1_000).await.unwrap(), None, "it is too old");
    assert!(store.mark_answered("a").await.unwrap());
    assert_eq!(store.unanswered_run("f", 0).await.unwrap(), None);
    assert!(!store.request_cancel("a", 5).await.unwrap(), "it is over");
    store.begin(new("b", "g", 1)).await.unwrap();
    store.append(event("b", 0, Status::Suspended)).await.unwrap();
    assert!(store.request_cancel("b", 5).await.unwrap());
    assert_eq!(store.run("b").await.unwrap().unwrap().row.status, Status::Cancelled);
}

pub(super) async fn one_bad_row_does_not_take_others_with_it(bed: &Bed) {
    let store = bed.open();
    let ids: Vec<String> = (0..40).map(|number| number.to_string()).collect();
    for id in ids.iter().filter(|id| *id != "20") {
        store.begin(new(id, "f", 1)).await.unwrap();
    }
    let done =
        futures::future::join_all(ids.iter().map(|id| store.append(event(id, 0, Status::Running)))).await;
    let is_written = |id: usize| done[id].as_ref().is_ok_and(|ack| !ack.lost);
    assert_eq!((0..40).filter(|id| !is_written(*id)).collect::<Vec<_>>(), [20]);
    for id in ids.iter().filter(|id| *id != "20") {
        assert_eq!(store.run(id).await.unwrap().unwrap().events.len(), 1);
    }
}

/// A commit whose answer was lost is made again.
pub(super) async fn a_repeated_commit_adds_nothing(bed: &Bed) {
    let store = bed.open();
    store.begin(new("a", "f", 1)).await.unwrap();
    let begins = Append { client_calls: vec!["call".into()], ..event("a", 0, Status::Running) };
    for _ in 0..2 {
        assert!(!store.append(begins.clone()).await.unwrap().lost);
    }
    assert_eq!(store.run("a").await.unwrap().unwrap().events.len(), 1);
}

/// A standby that took over, or a database that was restored, lacks what was written last. What follows would
/// leave a gap; any process goes on with what is there.
#[tokio::test]
async fn a_restored_database_gets_no_gaps() {
    let Some(bed) = Bed::new_postgres() else { return };
    let store = bed.open();
    for id in ["a", "b"] {
        store.begin(new(id, "f", 1)).await.unwrap();
        for seq in 0..3 {
            store.append(event(id, seq, Status::Running)).await.unwrap();
        }
    }
    run_sql(&bed, "DELETE FROM respool.events WHERE seq > 0; DELETE FROM respool.runs WHERE id = 'b'");
    for id in ["a", "b"] {
        assert!(store.append(event(id, 3, Status::Running)).await.unwrap().lost);
    }
    assert_eq!(store.run("a").await.unwrap().unwrap().events.len(), 1);
    assert_eq!(store.claim("a", ClaimScope::Idle).await.unwrap(), Some(Store::FIRST_EPOCH + 1));
    let child = Some(new("child", "", 2));
    let begins = Append { child, epoch: Store::FIRST_EPOCH + 1, ..event("a", 1, Status::Running) };
    for _ in 0..2 {
        assert!(!store.append(begins.clone()).await.unwrap().lost, "its answer may be lost");
    }
}

pub(super) async fn old_runs_are_deleted_with_their_events(bed: &Bed) {
    let runs = RunsConfig { keep: Duration::from_millis(50), ..RunsConfig::default() };
    let store = bed.open_with(|config| config.runs = runs);
    for (id, status) in [("done", Status::Done), ("running", Status::Running), ("waiting", Status::Suspended)]
    {
        store.begin(new(id, "f", 1)).await.unwrap();
        store.append(Append { client_calls: vec![id.into()], ..event(id, 0, status) }).await.unwrap();
    }
    assert_eq!(store.clear(150, 0).await.unwrap().old, 0, "they are 50 ms old");
    assert_eq!(store.clear(151, 0).await.unwrap().old, 2);
    assert_eq!(
        (run_ids(&store).await, store.run_of_calls(vec!["done".into()], "helper", "me").await.unwrap()),
        (vec!["running".to_owned()], None)
    );
}

async fn run_ids(store: &Store) -> Vec<String> {
    store.newest(RunFilter::All, 1_000).await.unwrap().into_iter().map(|row| row.id).collect()
}

pub(super) async fn runs_are_filtered_by_client(bed: &Bed) {
    let store = bed.open();
    let runs =
        [("mine", "me", "a"), ("yours", "you", "a"), ("chat", "", "chat"), ("work", "", "expert/desk")];
    for (id, client, agent) in runs {
        let agent = agent.to_owned();
        store.begin(NewRun { client: client.into(), agent, ..new(id, "f", 1) }).await.unwrap();
    }
    let me = || RunFilter::Client("me".into());
    let check = async |whose: RunFilter, expected: &[&str]| {
        let rows = store.newest(whose.clone(), 10).await.unwrap();
        let ids: Vec<&str> = rows.iter().rev().map(|row| row.id.as_str()).collect();
        assert_eq!(ids, expected, "{whose:?}");
        for (id, client, agent) in runs {
            assert_eq!(whose.includes(agent, Some(client)), expected.contains(&id), "{whose:?} {id}");
        }
        for id in ["mine", "yours", "chat", "work", "none"] {
            assert_eq!(
                store.has_run(id, whose.clone()).await.unwrap(),
                expected.contains(&id),
                "{whose:?} {id}"
            );
        }
    };
    check(RunFilter::All, &["mine", "yours", "chat", "work"]).await;
    check(RunFilter::Clients, &["mine", "yours"]).await;
    check(RunFilter::Served, &["mine", "yours", "work"]).await;
    check(me(), &["mine"]).await;
    check(RunFilter::Client(String::new()), &[]).await;
}

pub(super) async fn key_usage_outlives_the_process(bed: &Bed) {
    let row = |day, key: &str, model: &str, prompt| KeyUsage {
        day,
        key: key.into(),
        model: model.into(),
        requests: 1,
        prompt,
        cached: 1,
        completion: 2,
    };
    let store = bed.open();
    store.add_key_usage(vec![row(7, "a", "m", 10), row(7, "b", "m", 5), row(8, "a", "m", 1)]).await.unwrap();
    store.add_key_usage(vec![row(7, "a", "m", 10), row(7, "a", "n", 3)]).await.unwrap();
    drop(store);
    let store = bed.open();
    let twice = KeyUsage { requests: 2, prompt: 20, cached: 2, completion: 4, ..row(7, "a", "m", 0) };
    assert_eq!(store.key_usage_on(7).await.unwrap(), [twice, row(7, "a", "n", 3), row(7, "b", "m", 5)]);
    store.forget_key_usage(8).await.unwrap();
    assert_eq!(store.key_usage_on(7).await.unwrap(), []);
    assert_eq!(store.key_usage_on(8).await.unwrap().len(), 1);
}
