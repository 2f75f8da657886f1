//! Processes that share a store know each other, and have duties and secrets in common.

use std::time::{Duration, Instant};

use testing::postgres_server;

use super::Bed;
use super::refusals::run_sql;
use crate::{
    Append, ApprovalChange, AuditLogLine, AuditLogPart, ClaimRequest, EndedSession, EntryEnd, LateDecision,
    NewEntry, NewRun, NodeConfig, SentAlert, Status, Store,
};

fn open_server(bed: &Bed, name: &str) -> Store {
    let (name, commit) = (Some(name.to_owned()), Some("0123abcd"));
    bed.open_with(|config| config.node = NodeConfig { name, is_server: true, commit })
}

pub(super) async fn a_shared_secret_is_the_first_one(bed: &Bed) {
    let store = bed.open();
    assert_eq!(store.shared_secret("seal", [1; 32]).await.unwrap(), [1; 32]);
    drop(store);
    let shared = bed.open().shared_secret("seal", [2; 32]).await.unwrap();
    // Files hold no secret: the caller's own file does.
    assert_eq!(shared, if bed.config.store.url.is_some() { [1; 32] } else { [2; 32] });
}

pub(super) async fn a_duty_is_kept(bed: &Bed) {
    let store = bed.open();
    let hold =
        async || store.hold_duties(vec!["b".into(), "a".into()], Duration::from_mins(1)).await.unwrap();
    let sorted = |mut duties: Vec<String>| {
        duties.sort();
        duties
    };
    assert_eq!(sorted(hold().await), ["a", "b"]);
    assert_eq!(sorted(hold().await), ["a", "b"], "it keeps them");
    assert!(store.hold_duties(Vec::new(), Duration::ZERO).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ended_sessions_are_known_everywhere() {
    let Some(bed) = Bed::new_postgres() else { return };
    let (first, second) = (bed.open(), bed.open());
    let session = |signature: &str, until| EndedSession {
        signature: signature.to_owned(),
        until: clock::now() + until,
    };
    let (long, short) = (session("long", 3_600_000), EndedSession { until: 1, ..session("short", 0) });
    for _ in 0..2 {
        first.end_sessions(vec![long.clone(), short.clone()]).await.unwrap();
    }
    for store in [&first, &second] {
        let is_known = async || store.ended_sessions() == [long.clone()];
        testing::waiting::wait_until("it is known", is_known).await;
    }
    first.end_sessions(vec![]).await.unwrap();
    let rows = "DO $$ BEGIN ASSERT (SELECT count(*) FROM respool.ended_sessions) = 1; END $$";
    run_sql(&bed, rows);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silences_hold_everywhere() {
    let Some(bed) = Bed::new_postgres() else { return };
    let (first, second) = (open_server(&bed, "a"), open_server(&bed, "b"));
    assert_eq!(first.silences().await.unwrap(), None);
    for list in ["[1]", "[2]"] {
        first.set_silences(list.to_owned()).await.unwrap();
        let is_known = async |store: &Store| store.silences().await.unwrap().as_deref() == Some(list);
        assert!(is_known(&first).await, "at once where it was set");
        testing::waiting::wait_until("the other one knows it", async || is_known(&second).await).await;
    }
}

/// Lines that are sent again, or from a copy of their file, are there once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lines_of_all_nodes_are_listed() {
    let Some(bed) = Bed::new_postgres() else { return };
    let (first, second) = (open_server(&bed, "a"), open_server(&bed, "b"));
    let line = |at, offset, text: &str| AuditLogLine { at, offset, text: text.into() };
    let part = |file: &str, end, lines: &[AuditLogLine]| AuditLogPart {
        file: file.into(),
        end,
        lines: lines.to_vec(),
    };
    let (log, other) = (first.shared_audit_log().unwrap(), second.shared_audit_log().unwrap());
    assert_eq!(log.added_until("f").await.unwrap(), 0);
    let lines = [line(1, 0, "one"), line(3, 4, "three"), line(3, 10, "zero \0")];
    for _ in 0..2 {
        log.add_lines(part("f", 17, &lines)).await.unwrap();
    }
    other.add_lines(part("copy of f", 22, &[line(3, 4, "three"), line(2, 17, "two")])).await.unwrap();
    assert_eq!((log.added_until("f").await.unwrap(), log.added_until("copy of f").await.unwrap()), (17, 22));
    let listed = async |since, most| {
        let newest = other.newest_lines(since, most).await.unwrap();
        newest.into_iter().map(|(node, line)| format!("{node} {}", line.text)).collect::<Vec<_>>()
    };
    assert_eq!(listed(0, 9).await, ["a one", "b two", "a three", "a zero \u{fffd}"]);
    assert_eq!(listed(2, 2).await, ["a three", "a zero \u{fffd}"]);
    assert_eq!(listed(4, 9).await, [""; 0]);
}

fn new_alert(name: &str, body: &str) -> SentAlert {
    SentAlert { name: name.into(), body: body.into() }
}

pub(super) async fn a_sent_alert_outlives_its_process(bed: &Bed) {
    let store = bed.open();
    store.note_sent_alerts(vec![new_alert("b", "1"), new_alert("a", "2")]).await.unwrap();
    store.note_sent_alerts(vec![new_alert("b", "3")]).await.unwrap();
    drop(store);
    let store = bed.open();
    assert_eq!(store.left_alerts().await.unwrap(), [new_alert("a", "2"), new_alert("b", "3")]);
    assert_eq!(store.take_sent_alerts(vec!["b".into(), "c".into()]).await.unwrap(), ["b"]);
    assert!(store.take_sent_alerts(vec!["b".into()]).await.unwrap().is_empty(), "one process ends it");
    assert_eq!(store.left_alerts().await.unwrap(), [new_alert("a", "2")]);
}

#[tokio::test]
async fn alerts_of_a_living_node_are_its_own() {
    let Some(bed) = Bed::new_postgres() else { return };
    let (first, second) = (open_server(&bed, "a"), open_server(&bed, "b"));
    first.note_sent_alerts(vec![new_alert("x", "")]).await.unwrap();
    assert_eq!(first.left_alerts().await.unwrap().len(), 1);
    assert!(second.left_alerts().await.unwrap().is_empty());
    drop(first);
    let is_left = async || second.left_alerts().await.unwrap().len() == 1;
    testing::waiting::wait_until("its owner has ended", is_left).await;
}

#[tokio::test]
async fn nodes_are_listed() {
    let Some(bed) = Bed::new_postgres() else { return };
    let (first, second) = (open_server(&bed, "b"), open_server(&bed, "a"));
    second.note_configuration("f00-1".to_owned());
    let _command = bed.open();
    let is_noted = async || first.nodes().await.unwrap().iter().any(|node| node.configuration == "f00-1");
    testing::waiting::wait_until("the digest is noted", is_noted).await;
    let nodes = first.nodes().await.unwrap();
    let names: Vec<&str> = nodes.iter().map(|node| &*node.name).collect();
    assert_eq!(names, ["a", "b"], "commands are not listed");
    assert_eq!((&*nodes[0].version, nodes[0].runs), (concat!(env!("CARGO_PKG_VERSION"), " (0123abcd)"), 0));
    testing::waiting::wait_until("both are counted", async || first.live_nodes() == 2).await;
    assert_eq!(first.live_nodes_alike(), 1, "their servers differ");
    first.note_configuration("another-1".to_owned());
    testing::waiting::wait_until("they are alike", async || first.live_nodes_alike() == 2).await;
    drop(second);
    testing::waiting::wait_until("one is counted", async || first.live_nodes() == 1).await;
}

/// Regression: a node that was killed vanished from the list, and nothing said so.
#[tokio::test]
async fn a_killed_node_is_listed_as_lost() {
    let Some(bed) = Bed::new_postgres() else { return };
    let store = open_server(&bed, "a");
    let row = |name: &str, ago: &str| {
        run_sql(
            &bed,
            &format!(
                "INSERT INTO respool.nodes (owner, name, version, serves, configuration, began, seen)
                VALUES ('{name}{ago}', '{name}', '1', true, '', 1, respool.now_ms() - {ago})"
            ),
        );
    };
    ["16000", "17000"].iter().for_each(|ago| row("b", ago));
    row("c", "16000");
    row("old", "90000000");
    let lost = || store.lost_nodes().into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    // Each name once, and none of days ago.
    testing::waiting::wait_until("both are lost", async || lost() == ["b", "c"]).await;
    let listed = async || {
        let nodes = store.nodes().await.unwrap().into_iter();
        nodes.filter(|node| node.is_lost).map(|node| node.name).collect::<Vec<_>>()
    };
    assert_eq!(listed().await, ["b", "b", "c"]);
    let successor = open_server(&bed, "b");
    testing::waiting::wait_until("it is back", async || lost() == ["c"]).await;
    drop(successor);
    assert_eq!(listed().await, ["c"], "it has ended by itself");
    assert!(!store.forget_node("a").await.unwrap(), "it lives");
    assert!(store.forget_node("c").await.unwrap());
    testing::waiting::wait_until("it is forgotten", async || lost().is_empty()).await;
    assert_eq!(listed().await, [""; 0]);
}

#[tokio::test]
async fn packages_of_others_are_known() {
    let Some(bed) = Bed::new_postgres() else { return };
    let (first, second) = (open_server(&bed, "a"), open_server(&bed, "b"));
    second.note_packages(vec!["old".into(), "new".into()]);
    testing::waiting::wait_until("it is known", async || first.is_package_elsewhere("new")).await;
    assert!(!first.is_package_elsewhere("other") && !second.is_package_elsewhere("new"));
    second.note_packages(vec!["new".into()]);
    testing::waiting::wait_until("it is gone", async || !first.is_package_elsewhere("old")).await;
    drop(second);
    testing::waiting::wait_until("its process is gone", async || !first.is_package_elsewhere("new")).await;
}

#[tokio::test]
async fn one_node_has_a_duty() {
    let Some(bed) = Bed::new_postgres() else { return };
    let (first, second) = (bed.open(), bed.open());
    let hold = async |store: &Store, length| {
        !store.hold_duties(vec!["alert".into()], Duration::from_millis(length)).await.unwrap().is_empty()
    };
    assert!(hold(&first, 60_000).await);
    assert!(!hold(&second, 60_000).await);
    assert!(hold(&first, 1).await, "it may be kept for less");
    testing::waiting::wait_until("another one takes over", async || hold(&second, 60_000).await).await;
    assert!(!hold(&first, 60_000).await);
    drop(second);
    assert!(hold(&first, 60_000).await, "one that ends leaves it");
}

/// A run that waits for consent.
async fn ask_for_consent(store: &Store, id: &str) {
    let new = NewRun { id: id.into(), agent: "helper".into(), at: 1, ..NewRun::default() };
    store.begin(new).await.unwrap();
    let asked = ApprovalChange::Requested { id: format!("consent-{id}"), expires: None, body: "{}".into() };
    let waits = Append::status(id, Store::FIRST_EPOCH, 2, Status::AwaitingApproval);
    store.append(Append { approval: Some(asked), ..waits }).await.unwrap();
}

/// Waits until a store finds something. Returns how long that took.
async fn time_until(what: &str, find: impl AsyncFn() -> bool) -> Duration {
    let began = Instant::now();
    testing::waiting::wait_until(what, find).await;
    began.elapsed()
}

/// Waits until a store has polled, and nothing has changed since.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(2_300)).await;
}

/// The changes of others are found: within a second of a notification, and within three without one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_others_are_found_in_time() {
    let Some(bed) = Bed::new_postgres() else { return };
    let (first, second) = (bed.open(), bed.open());
    let queues = || vec!["desk".to_owned()];
    assert_eq!(first.next_due(queues()).await.unwrap(), None);
    ask_for_consent(&first, "heard").await;
    ask_for_consent(&first, "polled").await;
    settle().await;
    assert_eq!(first.next_due(queues()).await.unwrap(), None);
    let is_woken = async || !first.woken_by_approvals(10).await.unwrap().is_empty();
    assert!(!is_woken().await);
    let heard = first.wait_for_decision();
    assert!(second.decide("consent-heard", "{}".into(), 3, LateDecision::Counts).await.unwrap());
    let limit = Duration::from_secs(if postgres_server::is_pooled() { 3 } else { 1 });
    let heard = tokio::time::timeout(limit, heard).await;
    assert!(heard.is_ok() || postgres_server::is_pooled(), "the decision is not heard of");
    let took = time_until("a decision is heard of", is_woken).await;
    assert!(took < limit, "{took:?}");
    run_sql(&bed, "UPDATE respool.approvals SET state = 'applied'");
    settle().await;
    assert!(!is_woken().await);
    run_sql(&bed, "UPDATE respool.approvals SET state = 'decided' WHERE id = 'consent-polled'");
    let took = time_until("a decision is polled", is_woken).await;
    assert!(took < Duration::from_secs(3), "{took:?}");
    let is_due = async || first.next_due(queues()).await.unwrap() == Some(Duration::ZERO);
    let entry = |id: &str| NewEntry { id: id.into(), queue: "desk".into(), ..NewEntry::default() };
    second.enqueue(entry("heard")).await.unwrap();
    let took = time_until("an entry is heard of", is_due).await;
    assert!(took < limit, "{took:?}");
    run_sql(&bed, "DELETE FROM respool.queue");
    settle().await;
    assert!(!is_due().await);
    run_sql(
        &bed,
        "SELECT respool.enqueue('polled', 'desk', NULL, 0, '', NULL, NULL, NULL, NULL, NULL, NULL)",
    );
    let took = time_until("an entry is polled", is_due).await;
    assert!(took < Duration::from_secs(3), "{took:?}");
}

/// Of a run at another process it is known when that has last said that it lives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_owners_are_known() {
    let Some(bed) = Bed::new_postgres() else { return };
    let (first, second) = (bed.open(), bed.open());
    let run = NewRun { id: "r".into(), agent: "helper".into(), ..NewRun::default() };
    first.begin(run).await.unwrap();
    let silence = async |store: &Store| store.silence_of_owner("r").await.unwrap();
    assert!(silence(&second).await.unwrap() < Duration::from_millis(2_500));
    assert_eq!((silence(&first).await, second.silence_of_owner("other").await.unwrap()), (None, None));
    run_sql(&bed, "UPDATE respool.nodes SET seen = respool.now_ms() - 9000");
    assert!(silence(&second).await.unwrap() >= Duration::from_secs(9));
    drop(first);
}

/// A process knows at once what it has changed itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_changes_are_found_at_once() {
    let Some(bed) = Bed::new_postgres() else { return };
    let store = bed.open();
    ask_for_consent(&store, "a").await;
    assert_eq!(store.next_due(vec!["desk".into()]).await.unwrap(), None);
    settle().await;
    assert!(store.woken_by_approvals(10).await.unwrap().is_empty());
    store.decide("consent-a", "{}".into(), 3, LateDecision::Counts).await.unwrap();
    assert_eq!(store.woken_by_approvals(10).await.unwrap().len(), 1);
    let delay = Duration::from_secs(1);
    store
        .enqueue(NewEntry { id: "e".into(), queue: "desk".into(), delay, ..NewEntry::default() })
        .await
        .unwrap();
    let due = store.next_due(vec!["desk".into()]).await.unwrap().unwrap();
    assert!(due <= delay && due > Duration::ZERO, "{due:?}");
    testing::waiting::wait_until("it becomes due without a change", async || {
        store.next_due(vec!["desk".into()]).await.unwrap() == Some(Duration::ZERO)
    })
    .await;
}

/// The schema that the version before this one knew.
const SCHEMA_BEFORE: [&str; 6] = [
    include_str!("../postgres/schema.sql"),
    include_str!("../postgres/schema_2.sql"),
    include_str!("../postgres/schema_3.sql"),
    include_str!("../postgres/schema_4.sql"),
    include_str!("../postgres/schema_5.sql"),
    include_str!("../postgres/schema_6.sql"),
];

/// A process of the version before, as it says that it lives and queues an entry.
const WORK_BEFORE: &str =
    "INSERT INTO respool.nodes (owner, name, version, serves, configuration, began, seen)
        VALUES ('older', 'older', '0.1.0', true, 'f00', respool.now_ms(), respool.now_ms())
        ON CONFLICT (owner) DO UPDATE SET seen = respool.now_ms(), configuration = 'f00';
    INSERT INTO respool.queue (id, queue, lane, state, due, accepted, payload, blocked)
        SELECT 'e' || count(*), 'desk', 'lane', 'waiting', respool.now_ms(), respool.now_ms(), 'p',
            count(*) FILTER (WHERE state IN ('waiting', 'claimed', 'held')) > 0 FROM respool.queue";

/// A database of the version before is brought up to date, and its processes go on working in it.
#[tokio::test]
async fn the_version_before_works_on() {
    let Some(bed) = Bed::new_postgres() else { return };
    let version = "CREATE SCHEMA respool; CREATE TABLE respool.schema_version (
        only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row), version integer NOT NULL,
        oldest_that_may_use_it integer NOT NULL); INSERT INTO respool.schema_version VALUES (true, 6, 1)";
    for sql in [version].into_iter().chain(SCHEMA_BEFORE).chain([WORK_BEFORE]) {
        run_sql(&bed, sql);
    }
    let store = open_server(&bed, "newer");
    run_sql(&bed, WORK_BEFORE);
    run_sql(
        &bed,
        "DO $$ BEGIN ASSERT (SELECT oldest_that_may_use_it FROM respool.schema_version) <= 6; END $$",
    );
    let claim = async || {
        let (queues, lease) = (vec!["desk".into()], Duration::from_mins(1));
        let request = ClaimRequest { queues, most: 9, lease, ..ClaimRequest::default() };
        store.claim_entries(request).await.unwrap()
    };
    for id in ["e0", "e1"] {
        let claimed = claim().await;
        assert_eq!(
            claimed.iter().map(|one| &*one.lease.entry).collect::<Vec<_>>(),
            [id],
            "one after another"
        );
        assert!(store.complete(&claimed[0].lease, EntryEnd::Done, String::new()).await.unwrap());
    }
    let names: Vec<String> = store.nodes().await.unwrap().into_iter().map(|node| node.name).collect();
    assert_eq!(names, ["newer", "older"]);
}
