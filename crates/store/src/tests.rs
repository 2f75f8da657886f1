//! The store on real files: what is committed stays, and what a disk can do to it ends in clear words.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use std::path::Path;
use std::time::Duration;

use super::lease::Lease;
use super::*;
use wire::units::Size;

fn open(dir: &Path) -> Result<Store, StoreError> {
    keeping(dir, RunsConfig::default())
}

fn keeping(dir: &Path, runs: RunsConfig) -> Result<Store, StoreError> {
    Store::open(&StoreConfig { state_dir: dir.to_owned(), runs, ..StoreConfig::default() })
}

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

#[tokio::test]
async fn commits_outlive_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    store.begin(new("a", "f", 1)).await.unwrap();
    store.begin(new("b", "g", 2)).await.unwrap();
    for seq in 0..3 {
        store.append(Append { synchronous: seq == 1, ..event("a", seq, Status::Running) }).await.unwrap();
    }
    let waits = Append { client_calls: vec!["call1".into()], ..event("b", 0, Status::Suspended) };
    store.append(waits).await.unwrap();
    drop(store);

    let store = open(dir.path()).unwrap();
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

/// So that runs can be looked at on a full disk.
#[tokio::test]
async fn to_open_it_again_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    store.begin(new("a", "f", 1)).await.unwrap();
    let before = on_disk(dir.path());
    let other = open(dir.path()).unwrap();
    assert_eq!(other.mark_orphans().await.unwrap(), 0);
    assert_eq!((left(&other).await, on_disk(dir.path())), (vec!["a".to_owned()], before));
}

#[tokio::test]
async fn a_run_belongs_to_one_process_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (open(dir.path()).unwrap(), open(dir.path()).unwrap());
    first.begin(new("a", "f", 1)).await.unwrap();
    assert_eq!(second.mark_orphans().await.unwrap(), 0, "its process lives");
    assert_eq!(second.claim("a", ClaimScope::IdleOrCancelled).await.unwrap(), None);
    drop(first);
    assert_eq!(second.mark_orphans().await.unwrap(), 1);
    assert_eq!(second.unanswered_run("f", 0).await.unwrap().as_deref(), Some("a"));
    assert_eq!(second.claim("a", ClaimScope::Idle).await.unwrap(), Some(Store::FIRST_EPOCH + 1));
    assert_eq!(second.claim("a", ClaimScope::Idle).await.unwrap(), None, "it is running now");
}

/// A conversation goes on after one of its turns was cancelled.
#[tokio::test]
async fn only_the_holder_forgets_a_cancel() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    store.begin(new("a", "f", 1)).await.unwrap();
    assert!(store.request_cancel("a", 1).await.unwrap());
    assert!(store.append(event("a", 0, Status::Running)).await.unwrap().cancel);
    assert!(!store.forget_cancel("a", Store::FIRST_EPOCH + 1).await.unwrap(), "somebody else");
    assert!(store.append(event("a", 1, Status::Running)).await.unwrap().cancel);
    assert!(store.forget_cancel("a", Store::FIRST_EPOCH).await.unwrap());
    assert!(!store.append(event("a", 2, Status::Running)).await.unwrap().cancel);
}

/// A process that was only asleep must not go on where another one works by now.
#[tokio::test]
async fn what_an_earlier_owner_writes_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
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
#[tokio::test]
async fn a_cancelled_run_waits_for_nobody() {
    for status in [Status::Suspended, Status::AwaitingApproval, Status::Interrupted] {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path()).unwrap();
        store.begin(new("a", "f", 1)).await.unwrap();
        let child = Some(new("child", "", 2));
        store.append(Append { child, ..event("a", 0, Status::Running) }).await.unwrap();
        assert!(store.request_cancel("a", 3).await.unwrap());
        assert!(
            store.append(event("child", 0, Status::Running)).await.unwrap().cancel,
            "a child learns of it"
        );
        let approval = Some(requested("one", None));
        assert!(store.append(Append { approval, ..event("a", 1, status) }).await.unwrap().cancel);
        for run in ["a", "child"] {
            assert_eq!(
                store.run(run).await.unwrap().unwrap().row.status,
                Status::Cancelled,
                "{run} {status:?}"
            );
        }
        assert_eq!(store.approvals(ApprovalState::Waiting, 10).await.unwrap(), []);
    }
}

/// A run that began long ago and failed just now stood behind all that began after it.
#[tokio::test]
async fn the_last_failures_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    for id in ["old", "new", "newest"] {
        store.begin(new(id, "f", 1)).await.unwrap();
    }
    store.append(event("new", 0, Status::Failed)).await.unwrap();
    store.append(event("old", 9, Status::Failed)).await.unwrap();
    let failed = async |since: u64, most: usize| {
        let rows = store.failed_since(since, most).await.unwrap();
        rows.into_iter().map(|row| row.id).collect::<Vec<_>>()
    };
    assert_eq!(
        (failed(0, 9).await, failed(0, 1).await),
        (vec!["old".to_owned(), "new".into()], vec!["old".to_owned()])
    );
    assert_eq!(failed(100, 9).await, ["old"]);
}

async fn woken(store: &Store, now: u64) -> Vec<String> {
    let runs = store.woken_by_approvals(now).await.unwrap();
    assert!(runs.iter().all(|run| run.agent == "helper" && run.status == Status::AwaitingApproval));
    runs.into_iter().map(|run| run.id).collect()
}

fn requested(id: &str, expires: Option<u64>) -> ApprovalChange {
    ApprovalChange::Requested { id: id.into(), expires, body: format!("request {id}") }
}

#[tokio::test]
async fn an_approval_is_decided_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    store.begin(new("parent", "f", 1)).await.unwrap();
    let child = Some(new("child", "", 2));
    store.append(Append { child, ..event("parent", 0, Status::AwaitingApproval) }).await.unwrap();
    let approval = Some(requested("one", None));
    store.append(Append { approval, ..event("child", 0, Status::AwaitingApproval) }).await.unwrap();
    store.begin(new("other", "g", 1)).await.unwrap();
    let approval = Some(requested("two", Some(500)));
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
    assert!(!late, "the time is over, and nobody has rejected it yet");
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

#[tokio::test]
async fn runs_awaiting_approval_are_not_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let store =
        keeping(dir.path(), RunsConfig { keep: Duration::from_secs(1), ..RunsConfig::default() }).unwrap();
    store.begin(new("waits", "f", 1)).await.unwrap();
    store.append(event("waits", 0, Status::AwaitingApproval)).await.unwrap();
    store.begin(new("parent", "g", 1)).await.unwrap();
    let child = Some(new("child", "", 2));
    store.append(Append { child, ..event("parent", 0, Status::AwaitingApproval) }).await.unwrap();
    store.append(event("child", 0, Status::Done)).await.unwrap();
    assert_eq!(store.clear(100_000, 100_000).await.unwrap().old, 0);
    store.append(event("parent", 1, Status::Done)).await.unwrap();
    assert_eq!(store.clear(100_000, 100_000).await.unwrap().old, 1);
    assert_eq!(left(&store).await, ["waits"]);
}

#[tokio::test]
async fn a_cancel_reaches_the_process_at_work() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
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
    assert_eq!(store.run("b").await.unwrap().unwrap().row.status, Status::Cancelled, "nobody works on it");
}

#[tokio::test]
async fn one_bad_row_does_not_take_others_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    store.begin(new("a", "f", 1)).await.unwrap();
    let appends = (0..40).map(|seq| {
        let run = if seq == 20 { "no such run" } else { "a" };
        store.append(event(run, seq, Status::Running))
    });
    let done = futures::future::join_all(appends).await;
    assert_eq!(done.iter().filter(|done| done.is_err()).count(), 1);
    assert_eq!(store.run("a").await.unwrap().unwrap().events.len(), 39);
}

#[tokio::test]
async fn old_runs_are_deleted_with_their_events() {
    let dir = tempfile::tempdir().unwrap();
    let runs = RunsConfig { keep: Duration::from_millis(50), ..RunsConfig::default() };
    let store = keeping(dir.path(), runs).unwrap();
    for (id, status) in [("done", Status::Done), ("running", Status::Running), ("waiting", Status::Suspended)]
    {
        store.begin(new(id, "f", 1)).await.unwrap();
        store.append(Append { client_calls: vec![id.into()], ..event(id, 0, status) }).await.unwrap();
    }
    assert_eq!(store.clear(150, 0).await.unwrap().old, 0, "they are 50 ms old");
    assert_eq!(store.clear(151, 0).await.unwrap().old, 2);
    assert_eq!(
        (left(&store).await, store.run_of_calls(vec!["done".into()], "helper", "me").await.unwrap()),
        (vec!["running".to_owned()], None)
    );
}

async fn left(store: &Store) -> Vec<String> {
    store.newest(RunFilter::All, 1_000).await.unwrap().into_iter().map(|row| row.id).collect()
}

const MIB: u64 = 1 << 20;

/// A run with events of this many KiB in all.
async fn large(store: &Store, id: &str, at: u64, kib: usize, status: Status) {
    store.begin(new(id, "f", at)).await.unwrap();
    for seq in 0..4 {
        let body = "x".repeat(kib * 256);
        let large = Some((seq, "returned", body));
        store.append(Append { at, event: large, ..event(id, seq, status) }).await.unwrap();
    }
}

/// The files of the database together.
fn on_disk(dir: &Path) -> u64 {
    let length = |name: &str| fs::metadata(dir.join(name)).map_or(0, |file| file.len());
    length("respool.db") + length("respool.db-wal")
}

#[tokio::test]
async fn a_large_store_keeps_open_runs() {
    let dir = tempfile::tempdir().unwrap();
    let runs = RunsConfig { max_size: Size::mib(3), ..RunsConfig::default() };
    let store = keeping(dir.path(), runs).unwrap();
    for (at, status) in [(1, Status::Running), (2, Status::Suspended), (3, Status::Interrupted)] {
        large(&store, status.as_str(), at, 256, status).await;
    }
    for number in 0..40 {
        large(&store, &format!("done{number:02}"), 10 + number, 256, Status::Done).await;
    }
    assert!(on_disk(dir.path()) > 10 * MIB);
    let cleared = store.clear(1_000, 40).await.unwrap();
    assert_eq!((cleared.old, cleared.for_room), (0, 30), "what happened since 40 stays, too much or not");
    let cleared = store.clear(1_000, 1_000).await.unwrap();
    assert!(cleared.bytes <= 3 * MIB && cleared.bytes > 2 * MIB, "{cleared:?}");
    let newest: Vec<String> =
        (40 - (10 - cleared.for_room)..40).rev().map(|number| format!("done{number:02}")).collect();
    assert_eq!(
        left(&store).await,
        [newest, vec!["interrupted".into(), "suspended".into(), "running".into()]].concat()
    );
    assert!(on_disk(dir.path()) <= cleared.bytes + 64 * 1024, "{} bytes are left", on_disk(dir.path()));
    // Nothing more may go: it ends.
    let tight = keeping(dir.path(), RunsConfig { max_size: Size(1), ..RunsConfig::default() }).unwrap();
    assert!(tight.clear(1_000, 1_000).await.unwrap().bytes > MIB / 2);
    assert_eq!(left(&tight).await, ["interrupted", "suspended", "running"]);
}

#[tokio::test]
async fn a_step_waits_for_one_batch_only() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    for number in 0..40 {
        large(&store, &format!("done{number:02}"), number, 64, Status::Done).await;
    }
    let shrink = || store.write(|change| clearing::delete_for_room(change, 1, 1_000));
    let bites =
        [shrink().await.unwrap(), shrink().await.unwrap(), shrink().await.unwrap(), shrink().await.unwrap()];
    assert_eq!(bites, [16, 16, 8, 0]);
    for number in 0..4 {
        large(&store, &format!("large{number}"), number, 1_024, Status::Done).await;
    }
    assert_eq!((shrink().await.unwrap(), shrink().await.unwrap()), (1, 1), "they are large");
    let pages = store.write(space::return_pages).await.unwrap();
    assert!(pages > 0 && pages <= 256, "{pages}");
}

#[tokio::test]
async fn a_deleted_run_leaves_nothing_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    for (id, status) in [("a", Status::Done), ("b", Status::Running)] {
        store.begin(new(id, "f", 1)).await.unwrap();
        for seq in 0..8 {
            let text = Some((seq, "returned", format!("secret of {id} ").repeat(100)));
            store.append(Append { event: text, ..event(id, seq, status) }).await.unwrap();
        }
    }
    let holds = |text: &str| {
        let files = fs::read_dir(dir.path()).unwrap().filter_map(|file| fs::read(file.unwrap().path()).ok());
        files.into_iter().any(|bytes| String::from_utf8_lossy(&bytes).contains(text))
    };
    assert!(!store.delete("b").await.unwrap(), "a process works on it");
    assert!(store.delete("a").await.unwrap() && !store.delete("a").await.unwrap());
    assert!(holds("secret of b") && !holds("secret of a"));
    assert_eq!(store.usage().await.unwrap().runs, 1);
}

/// A database of a respool without clearing: free space stays in its file.
#[tokio::test]
async fn an_older_file_gives_space_back() {
    let dir = tempfile::tempdir().unwrap();
    let connection = rusqlite::Connection::open(dir.path().join("respool.db")).unwrap();
    connection.pragma_update(None, "journal_mode", "wal").unwrap();
    connection.execute_batch(include_str!("schema.sql")).unwrap();
    connection.pragma_update(None, "user_version", 1).unwrap();
    let insert = "INSERT INTO runs (id, agent, status, owner, created, updated, fingerprint, setup)
                  VALUES (?1, 'helper', 'done', '', 1, 1, 'f', ?2)";
    for number in 0..8 {
        connection.execute(insert, (format!("run-{number}"), "x".repeat(512 * 1024))).unwrap();
    }
    connection.execute("INSERT INTO client_calls (id, run) VALUES ('call', 'run-3')", []).unwrap();
    drop(connection);
    let mode = || -> u32 {
        let connection = rusqlite::Connection::open(dir.path().join("respool.db")).unwrap();
        connection.query_row("PRAGMA auto_vacuum", [], |row| row.get(0)).unwrap()
    };
    let other = Lease::take(dir.path()).unwrap();
    drop(open(dir.path()).unwrap());
    assert_eq!(mode(), 0, "another process uses it");
    drop(other);
    let store = keeping(dir.path(), RunsConfig { max_size: Size::mib(1), ..RunsConfig::default() }).unwrap();
    assert_eq!((mode(), left(&store).await.len()), (2, 8));
    let known = store.run_of_calls(vec!["call".into()], "helper", "anybody").await.unwrap();
    assert_eq!(known.as_deref(), Some("run-3"), "nobody knows any more whose it was");
    assert_eq!(store.clear(1_000, 1_000).await.unwrap().for_room, 7);
    assert!(on_disk(dir.path()) < MIB);
}

#[tokio::test]
async fn a_damaged_file_is_set_aside() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("respool.db"), "this is no database, but somebody's text ".repeat(200))
        .unwrap();
    let other = Lease::take(dir.path()).unwrap();
    let error = open(dir.path()).unwrap_err().0;
    assert!(
        error.contains("is damaged; end all processes"),
        "it is not moved from under another process: {error}"
    );
    drop(other);
    let store = open(dir.path()).unwrap();
    let aside = store.set_aside.clone().unwrap();
    assert!(fs::read_to_string(&aside).unwrap().starts_with("this is no database"), "{}", aside.display());
    store.begin(new("a", "f", 1)).await.unwrap();
    drop(store);
    assert_eq!(open(dir.path()).unwrap().set_aside, None);

    let path = dir.path().join("respool.db");
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.busy_timeout(std::time::Duration::from_secs(5)).unwrap();
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    drop(connection);
    let mut bytes = fs::read(&path).unwrap();
    bytes[4_096..].fill(0xa5);
    fs::write(&path, bytes).unwrap();
    assert!(open(dir.path()).unwrap().set_aside.is_some());
}

/// To read it whole would hold up the start.
#[tokio::test]
async fn a_large_damaged_file_is_set_aside_later() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let setup = "x".repeat(20 << 20);
    store.begin(NewRun { setup, ..new("large", "f", 1) }).await.unwrap();
    store.begin(new("later", "g", 1)).await.unwrap();
    store.read(space::cut_log).await.unwrap();
    drop(store);
    let path = dir.path().join("respool.db");
    let mut bytes = fs::read(&path).unwrap();
    // The pages of its overflow chain point at each other.
    for page in bytes[4 << 20..].chunks_mut(4_096).take(1_000) {
        page.fill(0xa5);
    }
    fs::write(&path, bytes).unwrap();
    let store = open(dir.path()).unwrap();
    assert_eq!(store.set_aside, None);
    let mark = dir.path().join("respool.db-damaged");
    for _ in 0..400 {
        if mark.exists() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    assert!(mark.exists(), "it is found");
    drop(store);
    let store = open(dir.path()).unwrap();
    assert!(store.set_aside.is_some() && !mark.exists());
    assert_eq!(left(&store).await, Vec::<String>::new());
}

#[test]
fn a_newer_schema_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()).unwrap());
    let connection = rusqlite::Connection::open(dir.path().join("respool.db")).unwrap();
    connection.pragma_update(None, "user_version", 99).unwrap();
    drop(connection);
    let error = open(dir.path()).unwrap_err().0;
    assert!(error.contains("written by a newer respool (schema 99"), "{error}");
}

#[tokio::test]
async fn a_full_disk_is_a_clear_error() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()).unwrap());
    let store = {
        let opened = super::open::open(dir.path(), true).unwrap();
        let pages: u32 = opened.writer.query_row("PRAGMA page_count", [], |row| row.get(0)).unwrap();
        opened.writer.pragma_update(None, "max_page_count", pages + 2).unwrap();
        let lease = Lease::take(dir.path()).unwrap();
        Store::start(&StoreConfig::default(), lease, opened).unwrap()
    };
    store.begin(new("a", "f", 1)).await.unwrap();
    let large =
        Append { event: Some((0, "returned", "x".repeat(100_000))), ..event("a", 0, Status::Running) };
    let error = store.append(large).await.unwrap_err().0;
    assert!(error.contains("full") && error.contains("make room"), "{error}");
    store.append(event("a", 0, Status::Running)).await.unwrap();
}

#[test]
fn a_directory_that_cannot_be_used_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let blocked = dir.path().join("file");
    fs::write(&blocked, "").unwrap();
    let error = open(&blocked.join("state")).unwrap_err().0;
    assert!(error.contains("file/state cannot be used") && error.contains("`state_dir`"), "{error}");
}

#[test]
fn the_store_is_private_to_its_owner() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let store = open(&state).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&state), mode(store.path())), (0o700, 0o600));
}

#[tokio::test]
async fn runs_are_filtered_by_client() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
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

#[tokio::test]
async fn key_usage_outlives_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let row = |day, key: &str, model: &str, prompt| KeyUsage {
        day,
        key: key.into(),
        model: model.into(),
        requests: 1,
        prompt,
        cached: 1,
        completion: 2,
    };
    let store = open(dir.path()).unwrap();
    store.add_key_usage(vec![row(7, "a", "m", 10), row(7, "b", "m", 5), row(8, "a", "m", 1)]).await.unwrap();
    store.add_key_usage(vec![row(7, "a", "m", 10), row(7, "a", "n", 3)]).await.unwrap();
    drop(store);
    let store = open(dir.path()).unwrap();
    let twice = KeyUsage { requests: 2, prompt: 20, cached: 2, completion: 4, ..row(7, "a", "m", 0) };
    assert_eq!(store.key_usage_on(7).await.unwrap(), [twice, row(7, "a", "n", 3), row(7, "b", "m", 5)]);
    store.forget_key_usage(8).await.unwrap();
    assert_eq!(store.key_usage_on(7).await.unwrap(), []);
    assert_eq!(store.key_usage_on(8).await.unwrap().len(), 1);
}
