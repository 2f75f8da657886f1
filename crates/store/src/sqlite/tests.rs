//! The store on real files: what is committed stays, and what a disk can do to it ends in clear words.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::lease::Lease;
use super::*;
use crate::runs::FIRST_EPOCH;
use crate::*;
use wire::units::Size;

fn open(dir: &Path) -> Result<SqliteStore, StoreError> {
    keeping(dir, RunsConfig::default())
}

fn keeping(dir: &Path, runs: RunsConfig) -> Result<SqliteStore, StoreError> {
    SqliteStore::open(&StoreConfig { runs, ..config(dir) })
}

fn config(dir: &Path) -> StoreConfig {
    StoreConfig { state_dir: dir.to_owned(), ..StoreConfig::default() }
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
    Append { event, ..Append::status(run, FIRST_EPOCH, 100 + seq, status) }
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

async fn left(store: &SqliteStore) -> Vec<String> {
    store.newest(RunFilter::All, 1_000).await.unwrap().into_iter().map(|row| row.id).collect()
}

const MIB: u64 = 1 << 20;

/// A run with events of this many KiB in all.
async fn large(store: &SqliteStore, id: &str, at: u64, kib: usize, status: Status) {
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
    let error = SqliteStore::open_in_place(&config(dir.path())).unwrap_err().0;
    assert!(error.contains("start `respool serve`"), "no command moves it: {error}");
    assert_eq!(damaged::find_damaged(dir.path()), [dir.path().join("respool.db")]);
    let store = open(dir.path()).unwrap();
    let [aside] = &*damaged::find_set_aside(dir.path()) else { panic!("it is set aside") };
    assert!(fs::read_to_string(aside).unwrap().starts_with("this is no database"), "{}", aside.display());
    store.begin(new("a", "f", 1)).await.unwrap();
    drop(store);
    open(dir.path()).unwrap();
    assert_eq!((damaged::find_damaged(dir.path()).len(), damaged::find_set_aside(dir.path()).len()), (0, 1));

    let path = dir.path().join("respool.db");
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.busy_timeout(std::time::Duration::from_secs(5)).unwrap();
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    drop(connection);
    let mut bytes = fs::read(&path).unwrap();
    bytes[4_096..].fill(0xa5);
    fs::write(&path, bytes).unwrap();
    open(dir.path()).unwrap();
    assert_eq!(damaged::find_set_aside(dir.path()).len(), 2);
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
    assert!(damaged::find_set_aside(dir.path()).is_empty());
    let mark = dir.path().join("respool.db-damaged");
    testing::waiting::wait_until("the damage is found", async || mark.exists()).await;
    drop(store);
    let store = open(dir.path()).unwrap();
    assert!(damaged::find_set_aside(dir.path()).len() == 1 && !mark.exists());
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
        SqliteStore::start(&StoreConfig::default(), lease, opened).unwrap()
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
