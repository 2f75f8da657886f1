//! A store is looked through, and copied from files to a database.

use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;
use wire::units::Secret;

use super::Bed;
use crate::{
    ClaimRequest, Copied, DatabaseConfig, DedupeKey, KeyUsage, LaneKey, NewEntry, NewMessage, NewRun,
    RunFilter, Store, StoreConfig, copy_to_database,
};

fn entry(id: &str) -> NewEntry {
    NewEntry {
        id: id.into(),
        queue: "desk".into(),
        lane: Some(LaneKey::serial("lane")),
        payload: format!("ü {id} \\ \" \n"),
        dedupe: Some((DedupeKey::new("desk", "mail", id), Duration::from_hours(1))),
        ..NewEntry::default()
    }
}

async fn fill(store: &Store) {
    for id in ["one", "two"] {
        store.enqueue(entry(id)).await.unwrap();
    }
    let (id, expert, kind) = ("m".into(), "desk".into(), "result".into());
    let message = NewMessage { id, expert, entry: None, kind, body: serde_json::json!({}) };
    store.post(message, 5).await.unwrap();
    let usage = KeyUsage { day: 3, key: "alice".into(), requests: 2, ..KeyUsage::default() };
    store.add_key_usage(vec![usage]).await.unwrap();
}

pub(super) async fn a_sound_store_has_no_problems(bed: &Bed) {
    let store = bed.open();
    fill(&store).await;
    let run = NewRun { id: "r".into(), agent: "helper".into(), at: 1, ..NewRun::default() };
    store.begin(run).await.unwrap();
    let found = store.check().await.unwrap();
    assert_eq!(found.problems, [""; 0]);
    let count = |table| found.counts.iter().find(|(name, _)| *name == table).unwrap().1;
    assert_eq!([count("queue"), count("runs"), count("outbox"), count("events")], [2, 1, 1, 0]);
}

/// A power failure or a person with an editor may leave such a lane.
#[tokio::test]
async fn a_broken_lane_is_found() {
    let bed = Bed::new_sqlite();
    let store = bed.open();
    fill(&store).await;
    let file = Connection::open(bed.config.state_dir.join("respool.db")).unwrap();
    file.execute("UPDATE queue SET blocked = 1", []).unwrap();
    assert_eq!(store.check().await.unwrap().problems, ["1 lanes wait for an entry that has ended"]);
}

/// The files of an older version, brought up to date, with rows of today.
async fn old_files(bed: &Bed) {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/store");
    let sql = std::fs::read_to_string(fixtures.join("schema-2.sql")).unwrap();
    testing::stores::write_runs(&bed.config.state_dir, &sql);
    let url = Secret::new("host=/nowhere");
    let why = copy_to_database(&bed.config, &url, |_| {}).unwrap_err();
    assert!(why.0.contains("`respool store check` brings an older one up to date"), "{why}");
    let files = StoreConfig { store: DatabaseConfig::default(), ..bed.config.clone() };
    let store = Store::open(&files).unwrap();
    fill(&store).await;
    let why = copy_to_database(&bed.config, &url, |_| {}).unwrap_err();
    assert!(why.0.contains("end it first"), "{why}");
}

/// Copies on a thread of its own, as the command line does.
fn copy(bed: &Bed) -> Result<Vec<Copied>, String> {
    let (config, url) = (bed.config.clone(), bed.config.store.url.clone().unwrap());
    let copy = move || {
        let mut all = Vec::new();
        copy_to_database(&config, &url, |copied| all.push(*copied)).map(|()| all).map_err(|error| error.0)
    };
    std::thread::spawn(copy).join().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_copied_to_a_database() {
    let Some(bed) = Bed::new_postgres() else { return };
    old_files(&bed).await;
    let copied = copy(&bed).unwrap();
    let rows = |table: &str| copied.iter().find(|copied| copied.table == table).unwrap().rows;
    assert!(rows("events") > 10 && rows("client_calls") > 0, "{copied:?}");
    assert_eq!([rows("queue"), rows("dedupe"), rows("outbox"), rows("key_usage")], [2, 2, 1, 1]);
    assert_eq!(copy(&bed).unwrap(), copied, "a second time adds nothing");
    let files = StoreConfig { store: DatabaseConfig::default(), ..bed.config.clone() };
    let counts = Store::open(&files).unwrap().check().await.unwrap().counts;
    assert!(counts.iter().all(|(table, count)| rows(table) == *count), "the files have all rows: {counts:?}");
    let store = bed.open();
    assert_eq!(store.newest(RunFilter::All, 100).await.unwrap().len() as u64, rows("runs"));
    assert_eq!(store.check().await.unwrap().problems, [""; 0]);
    store.enqueue(entry("three")).await.unwrap();
    let request = ClaimRequest {
        queues: vec!["desk".into()],
        most: 9,
        lease: Duration::from_mins(1),
        ..ClaimRequest::default()
    };
    let claimed = store.claim_entries(request).await.unwrap();
    assert_eq!((claimed.len(), &*claimed[0].payload), (1, &*entry("one").payload), "new ones come last");
    let why = copy(&bed).unwrap_err();
    assert!(why.contains("`queue` of the database does not equal that of the files"), "{why}");
}
