//! Several processes of the real program on one `PostgreSQL`: each event is worked on once and in the order
//! of its lane, also when a process is killed or stops for longer than its lease.

use std::fs;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use respool::store::{DatabaseConfig, EntryState, Store, StoreConfig};
use respool::units::Secret;
use serde_json::json;
use testing::postgres_server;
use tokio::process::Child;

use crate::experts_killed::{
    Life, assert_nothing_is_lost_or_doubled, assert_two_processes_keep_the_order, desk, insistent, noting,
    start,
};
use crate::experts_run::{Desk, enqueue, invocation, is_over, until};
use crate::support::fake_vllm::FakeVllm;

/// A desk whose processes share a database; `None` on a machine without `PostgreSQL`.
fn desk_on_postgres(upstream: &str) -> Option<(Desk, Store)> {
    let url = postgres_server::new_database()?;
    let (desk, _) = desk(upstream);
    let toml = fs::read_to_string(desk.path("respool.toml")).unwrap();
    fs::write(desk.path("respool.toml"), format!("{toml}\n[store]\nurl = \"{url}\"\npool = 3\n")).unwrap();
    let database = DatabaseConfig { url: Some(Secret::new(url)), pool: 2 };
    let config = StoreConfig { state_dir: desk.path("state"), store: database, ..StoreConfig::default() };
    Some((desk, Store::open(&config).unwrap()))
}

fn signal(process: &Child, signal: Signal) {
    let id = i32::try_from(process.id().unwrap()).unwrap();
    kill(Pid::from_raw(id), signal).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_share_one_database() {
    let fake = FakeVllm::thinking(noting).await;
    fake.allow_cut_requests();
    let Some((desk, store)) = desk_on_postgres(&fake.url()) else { return };
    assert_two_processes_keep_the_order(&desk, &store).await;
    let database = sqlite_tables(&desk);
    assert!(database.is_empty(), "nothing is kept beside the database: {database:?}");
}

/// The rows of runs and entries that a node keeps on its own disk.
fn sqlite_tables(desk: &Desk) -> Vec<String> {
    let path = desk.path("state/respool.db");
    if !path.exists() {
        return Vec::new();
    }
    let local = rusqlite::Connection::open(path).unwrap();
    let count = |table: &str| -> u32 {
        local.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
    };
    ["runs", "queue", "outbox"].into_iter().filter(|table| count(table) > 0).map(str::to_owned).collect()
}

async fn share_one_event(harm: impl AsyncFnOnce(&mut Child, &FakeVllm)) {
    let fake = FakeVllm::thinking(insistent).await;
    fake.allow_cut_requests();
    let Some((desk, store)) = desk_on_postgres(&fake.url()) else { return };
    desk.faults(&json!({}));
    let payload = json!({"message_id": "m1", "contact_id": "sarah@acme.example"});
    enqueue(&store, invocation("i1", "inbound-email-triage", payload)).await;
    // The first one holds the event when the second one starts.
    let mut first = start(&desk, "log-1");
    Life { requests: 2, then: Duration::from_millis(20) }.over(&fake).await;
    let mut second = start(&desk, "log-2");
    harm(&mut first, &fake).await;
    let row = until(&store, "i1", is_over).await;
    assert_eq!(row.state, EntryState::Done, "{row:?}");
    assert_nothing_is_lost_or_doubled(&fake, &desk, &store).await;
    first.kill().await.unwrap();
    second.kill().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn another_node_goes_on_after_a_kill() {
    share_one_event(async |first: &mut Child, _: &FakeVllm| first.kill().await.unwrap()).await;
}

/// A process that wakes up with a lease that others have taken over writes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_slept_too_long_does_no_harm() {
    share_one_event(async |first: &mut Child, fake: &FakeVllm| {
        signal(first, Signal::SIGSTOP);
        // The other one has taken the event over when it asks the model.
        Life { requests: 1, then: Duration::from_millis(20) }.over(fake).await;
        signal(first, Signal::SIGCONT);
    })
    .await;
}
