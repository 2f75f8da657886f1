//! Three processes of the real program on one store, while they are killed, stopped for longer than a lease
//! and cut off from the database, while it is slow, and with clocks that differ by minutes. An MCP server
//! counts: no event is lost, none is worked on twice, and none is stuck.
//!
//! `RESPOOL_KILLS=1000 RESPOOL_SEED=7` harms more often than the few times of every test run, in that order;
//! `RESPOOL_RESTARTS=20` restarts the database 20 times.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::sys::signal::Signal;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};
use store::{DatabaseConfig, EntryState, Store, StoreConfig};
use testing::postgres_server::{self, RemoteDatabase, RestartableServer};
use testing::seed::seed;
use testing::waiting::delay;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::task::AbortHandle;
use wire::units::Secret;

use crate::experts_killed::{desk, noted_ids, noting, program_of, wanted};
use crate::experts_run::{Desk, enqueue, invocation, is_over, results};
use crate::nodes::send_signal;
use crate::support::client::{Request, exchange};
use crate::support::fake_vllm::{FakeVllm, Seen};
use crate::support::replies;
use crate::support::script::Script;
use crate::support::wait_until;

/// Of the desk, see [`desk`].
const LEASE: Duration = Duration::from_millis(600);
/// Nothing may be stuck for longer once no one does harm.
const STUCK: Duration = Duration::from_mins(1);
const LANES: usize = 5;
/// The largest number of events that are under way or waiting.
const BACKLOG: usize = 15;

/// The way to the database, which can be cut, and can be slow.
pub struct Road {
    pub port: u16,
    is_closed: Arc<AtomicBool>,
    connections: Arc<Mutex<Vec<AbortHandle>>>,
    /// The milliseconds that each piece of data takes.
    lag: Arc<AtomicU64>,
}

impl Road {
    /// Builds a way to this port.
    pub async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let road = Self {
            port: listener.local_addr().unwrap().port(),
            is_closed: Arc::default(),
            connections: Arc::default(),
            lag: Arc::default(),
        };
        let (is_closed, connections) = (Arc::clone(&road.is_closed), Arc::clone(&road.connections));
        let lag = Arc::clone(&road.lag);
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                if is_closed.load(Ordering::Relaxed) {
                    continue;
                }
                let lag = Arc::clone(&lag);
                let passed_on = tokio::spawn(async move {
                    if let Ok(mut far) = TcpStream::connect(("127.0.0.1", port)).await {
                        let ((asks, answers), (gets, says)) = (near.split(), far.split());
                        tokio::select! { () = pass_on(asks, says, &lag) => {}, () = pass_on(gets, answers, &lag) => {} }
                    }
                });
                connections.lock().unwrap_or_else(PoisonError::into_inner).push(passed_on.abort_handle());
            }
        });
        road
    }

    /// Cuts some of the connections, wherever their transactions are.
    fn cut(&self, random: &mut StdRng) {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.retain(|connection| {
            let is_cut = random.random_bool(0.5);
            if is_cut {
                connection.abort();
            }
            !is_cut && !connection.is_finished()
        });
    }

    /// Cuts all connections, and lets none through.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        for connection in self.connections.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            connection.abort();
        }
    }

    pub fn open(&self) {
        self.is_closed.store(false, Ordering::Relaxed);
    }

    /// Cuts all connections, and lets none through for a while.
    async fn close_for(&self, duration: Duration) {
        self.close();
        delay(duration).await;
        self.open();
    }

    /// Delays each piece of data, for a while.
    async fn slow_down_for(&self, duration: Duration, lag: u64) {
        self.lag.store(lag, Ordering::Relaxed);
        delay(duration).await;
        self.lag.store(0, Ordering::Relaxed);
    }
}

/// Passes on what is read, late as long as there is a lag.
async fn pass_on(mut from: ReadHalf<'_>, mut to: WriteHalf<'_>, lag: &AtomicU64) {
    let mut piece = vec![0; 1 << 16];
    while let Ok(length @ 1..) = from.read(&mut piece).await {
        delay(Duration::from_millis(lag.load(Ordering::Relaxed))).await;
        if to.write_all(&piece[..length]).await.is_err() {
            return;
        }
    }
}

/// Shifts the clock of a process, where Debian's `faketime` is installed.
const SHIFT: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";

pub fn start_node(desk: &Desk, number: usize, clocks: &[&str]) -> Child {
    let mut command = program_of(desk, &format!("log-{number}"));
    if let Some(shift) = clocks.get(number) {
        assert!(fs::exists(SHIFT).unwrap() || std::env::var_os("CI").is_none(), "faketime is not installed");
        command.env("LD_PRELOAD", SHIFT).env("FAKETIME", shift);
        command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("FAKETIME_DISABLE_SHM", "1");
    }
    command.spawn().unwrap()
}

/// Three processes at work while they are harmed, and the events that arrive meanwhile.
struct Field<'d> {
    desk: &'d Desk,
    store: &'d Store,
    seed: u64,
    random: StdRng,
    nodes: Vec<Child>,
    events: usize,
}

impl<'d> Field<'d> {
    fn start(desk: &'d Desk, store: &'d Store, clocks: &[&str]) -> Self {
        let seed = seed();
        let nodes = (0..3).map(|number| start_node(desk, number, clocks)).collect();
        Self { desk, store, seed, random: StdRng::seed_from_u64(seed), nodes, events: 0 }
    }

    /// Lets some events arrive, and a while pass.
    async fn let_events_arrive(&mut self) {
        // More would only be waiting at the end.
        let behind = self.events - noted_ids(self.desk).len().min(self.events);
        for _ in 0..self.random.random_range(0..3).min(BACKLOG - behind.min(BACKLOG)) {
            // A sender repeats an event when the database ends the connection: it may have been accepted.
            let sends =
                async || self.store.enqueue(event(self.events).into_entry(Duration::ZERO)).await.is_ok();
            wait_until("the event is accepted", sends).await;
            self.events += 1;
        }
        delay(Duration::from_millis(self.random.random_range(0..400))).await;
    }

    /// Waits until all events are over.
    async fn finish(self) {
        let Self { desk, store, seed, nodes, events, .. } = self;
        let all_over = async {
            for number in 0..events {
                let row = crate::experts_run::until(store, &id(number), is_over).await;
                assert_eq!(row.state, EntryState::Done, "seed {seed}: {row:?}");
            }
        };
        let logs = || (0..3).map(|number| fs::read_to_string(desk.path(&format!("log-{number}"))).unwrap());
        let is_over = tokio::time::timeout(STUCK, all_over).await.is_ok();
        assert!(is_over, "seed {seed}: stuck: {}", logs().collect::<Vec<_>>().join("\n"));
        for mut node in nodes {
            node.kill().await.unwrap();
        }
        assert!(events > 0, "seed {seed} brings no events");
    }
}

/// Harms three processes so often, while events arrive, and waits until all events are over. Returns a list
/// of the harms.
async fn harm(desk: &Desk, store: &Store, road: Option<&Road>, clocks: &[&str], times: usize) -> String {
    let mut field = Field::start(desk, store, clocks);
    let mut harms: BTreeMap<&str, usize> = BTreeMap::new();
    for _ in 0..times {
        field.let_events_arrive().await;
        let Field { nodes, random, .. } = &mut field;
        let number = random.random_range(0..nodes.len());
        let name = match random.random_range(0..10) {
            0..5 => {
                nodes[number].kill().await.unwrap();
                nodes[number] = start_node(desk, number, clocks);
                "killed"
            }
            5..7 => {
                send_signal(&nodes[number], Signal::SIGSTOP);
                delay(LEASE.mul_f64(random.random_range(0.5..2.5))).await;
                send_signal(&nodes[number], Signal::SIGCONT);
                "stopped"
            }
            7 if let Some(road) = road => {
                road.cut(random);
                "cut off"
            }
            8 if let Some(road) = road => {
                let span = Duration::from_millis(random.random_range(0..1_500));
                road.slow_down_for(span, random.random_range(1..400)).await;
                "slow"
            }
            _ if let Some(road) = road => {
                road.close_for(Duration::from_millis(random.random_range(0..1_500))).await;
                "without the database"
            }
            _ => "left alone",
        };
        *harms.entry(name).or_default() += 1;
    }
    let told = format!("seed {}: {} events, {harms:?}", field.seed, field.events);
    field.finish().await;
    told
}

pub fn id(number: usize) -> String {
    format!("{number:05}")
}

pub fn event(number: usize) -> experts::Invocation {
    let mut event = invocation(&id(number), "inbound-email-triage", json!({"message_id": id(number)}));
    let value = format!("lane-{}", number % LANES);
    event.lane = Some(experts::InvocationLane::Key { path: "contact_id".into(), value });
    event
}

/// Each event has left its note once, in the order of its lane. If the model has read that the outcome of the
/// call is unknown, there may be no note, or a late one: the process that had begun the call was stopped
/// before it sent it.
fn assert_each_once(desk: &Desk, fake: &FakeVllm) {
    let requests: Vec<Value> = fake.requests().iter().map(Seen::json).collect();
    let is_unknown = |number: usize| {
        let of_it = requests.iter().filter(|request| request.to_string().contains(&id(number)));
        of_it.flat_map(results).any(|result| result.contains("outcome is unknown"))
    };
    let noted = noted_ids(desk);
    let mut lanes: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for number in noted.iter().filter(|number| !is_unknown(**number)) {
        lanes.entry(number % LANES).or_default().push(*number);
    }
    for (lane, order) in &lanes {
        assert!(order.is_sorted_by(|one, two| one < two), "lane {lane}: each once and in order: {order:?}");
    }
    let once: BTreeSet<usize> = noted.iter().copied().collect();
    assert_eq!(once.len(), noted.len(), "twice: {noted:?}");
    let last = noted.iter().max().copied().unwrap_or_default();
    let missing: Vec<usize> =
        (0..=last).filter(|number| !once.contains(number) && !is_unknown(*number)).collect();
    assert!(missing.is_empty(), "lost: {missing:?}");
}

/// A desk whose processes reach their database over a road, and the store, which does not take it: the test
/// itself always sees what is there. `None` on a machine without `PostgreSQL`.
async fn desk_behind_a_road(fake: &FakeVllm) -> Option<(Desk, Store, Road)> {
    let database = postgres_server::new_remote_database()?;
    let road = Road::to(database.front).await;
    let (desk, store) = desk_on(fake, &database, road.port);
    Some((desk, store, road))
}

/// A desk whose processes reach a database at this port, and the store, which reaches it directly.
pub fn desk_on(fake: &FakeVllm, database: &RemoteDatabase, port: u16) -> (Desk, Store) {
    let (desk, _) = desk(&fake.url());
    let url = |port: u16| format!("postgres://postgres@127.0.0.1:{port}/{}?sslmode=disable", database.name);
    let toml = fs::read_to_string(desk.path("respool.toml")).unwrap();
    let toml = format!("{toml}\n[store]\nurl = \"{}\"\npool = 3\n", url(port));
    fs::write(desk.path("respool.toml"), toml).unwrap();
    let own = DatabaseConfig { url: Some(Secret::new(url(database.front))), pool: 2, ..Default::default() };
    let config = StoreConfig { state_dir: desk.path("state"), store: own, ..StoreConfig::default() };
    (desk, Store::open(&config).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn harm_to_nodes_loses_and_doubles_nothing() {
    let fake = FakeVllm::thinking(noting).await;
    fake.allow_cut_requests();
    let Some((desk, store, road)) = desk_behind_a_road(&fake).await else { return };
    println!("{}", harm(&desk, &store, Some(&road), &["+0s", "+5m", "-5m"], wanted(12)).await);
    assert_each_once(&desk, &fake);
}

/// The database is restarted, in order or as after a crash, while nodes are at work and events arrive.
#[tokio::test(flavor = "multi_thread")]
async fn restarts_of_the_database_lose_and_double_nothing() {
    let fake = FakeVllm::thinking(noting).await;
    fake.allow_cut_requests();
    let Some(mut server) = RestartableServer::start() else { return };
    let (desk, store) = desk_on(&fake, &server.database, server.database.front);
    let restarts = std::env::var("RESPOOL_RESTARTS").map_or(2, |restarts| restarts.parse().unwrap());
    let mut field = Field::start(&desk, &store, &[]);
    for number in 0..restarts {
        for _ in 0..4 {
            field.let_events_arrive().await;
        }
        let mode = if number % 2 == 0 { "fast" } else { "immediate" };
        server = tokio::task::spawn_blocking(move || {
            server.restart(mode);
            server
        })
        .await
        .unwrap();
    }
    println!("seed {}: {} events, {restarts} restarts of the database", field.seed, field.events);
    field.finish().await;
    assert_each_once(&desk, &fake);
    tokio::task::spawn_blocking(|| drop((store, server))).await.unwrap();
}

/// A request of a client, which is no event.
fn question() -> Request {
    let messages = json!([{"role": "user", "content": "What is the capital of France?"}]);
    Request::chat(&json!({"model": "gpt-oss-20b", "messages": messages}))
}

fn noting_or_answering(request: &Value) -> Script {
    let is_relayed = request.to_string().contains("capital");
    if is_relayed { Script::json(200, &replies::text("Paris")).unchecked() } else { noting(request) }
}

/// Requests are relayed meanwhile, and the node takes up its work when the database is there.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_starts_while_its_database_is_away() {
    let fake = FakeVllm::thinking(noting_or_answering).await;
    fake.allow_cut_requests();
    let Some((desk, store, road)) = desk_behind_a_road(&fake).await else { return };
    enqueue(&store, event(0)).await;
    road.close();
    let mut node = start_node(&desk, 0, &[]);
    let log = || fs::read_to_string(desk.path("log-0")).unwrap();
    let mut listens = async || {
        assert!(node.try_wait().unwrap().is_none(), "{}", log());
        address_in(&log()).is_some()
    };
    wait_until("the node listens", &mut listens).await;
    let address = address_in(&log()).unwrap();
    let reply = exchange(address, &question()).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let ready = exchange(address, &Request::get("/ready")).await.json();
    assert!(ready["state"]["problem"].as_str().unwrap().contains("check `store.url`"), "{ready}");
    assert!(store.nodes().await.unwrap().is_empty(), "the node has not joined");
    let mut usage = Command::new(env!("CARGO_BIN_EXE_respool"));
    let usage = usage.args(["usage", "--config", "respool.toml"]).current_dir(desk.path("."));
    let usage = usage.output().await.unwrap();
    let said = String::from_utf8_lossy(&usage.stderr);
    assert!(usage.status.success() && said.contains("of this node alone"), "{said}");
    road.open();
    let row = crate::experts_run::until(&store, &id(0), is_over).await;
    assert_eq!(row.state, EntryState::Done, "{row:?}");
    let is_ready = async || exchange(address, &Request::get("/ready")).await.json()["state"]["ready"] == true;
    wait_until("the node says that it can use the database", is_ready).await;
    node.kill().await.unwrap();
}

/// As after a failover to a standby: nothing can be written, and all connections are lost.
const READ_ONLY: [&str; 2] = [
    "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database()); END $$;
     SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
    "BEGIN READ WRITE;
     DO $$ BEGIN EXECUTE format('ALTER DATABASE %I RESET default_transaction_read_only', current_database()); END $$;
     COMMIT;
     SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
];
/// As on a full disk: each change fails that needs room. A sign of life finds some.
const FULL: [&str; 2] = [
    "CREATE FUNCTION respool.fail() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END $$;
     CREATE TRIGGER fail BEFORE INSERT OR UPDATE ON respool.queue EXECUTE FUNCTION respool.fail();
     CREATE TRIGGER fail BEFORE INSERT OR UPDATE ON respool.events EXECUTE FUNCTION respool.fail();
     CREATE TRIGGER fail BEFORE INSERT OR UPDATE ON respool.usage EXECUTE FUNCTION respool.fail()",
    "DROP FUNCTION respool.fail() CASCADE",
];

/// Requests are relayed meanwhile, hooks are refused, and work goes on when the database can be written.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_cannot_be_written_is_waited_for() {
    const SECRET: &str = "0123456789abcdef0123";
    let fake = FakeVllm::thinking(noting_or_answering).await;
    fake.allow_cut_requests();
    let Some(database) = postgres_server::new_remote_database() else { return };
    let (desk, _store) = desk_on(&fake, &database, database.front);
    let toml = fs::read_to_string(desk.path("respool.toml")).unwrap();
    let hooks = "[experts.sales-desk]\nhook_secret_env = { new_email = \"HOOK\" }\n";
    fs::write(desk.path("respool.toml"), format!("{toml}{hooks}")).unwrap();
    let mut node = program_of(&desk, "log-0").env("HOOK", SECRET).spawn().unwrap();
    let log = || fs::read_to_string(desk.path("log-0")).unwrap();
    wait_until("the node listens", async || address_in(&log()).is_some()).await;
    let address = address_in(&log()).unwrap();
    let state = async || exchange(address, &Request::get("/ready")).await.json()["state"].clone();
    let post = async |number: usize| {
        let mail = json!({"messages": [{"id": id(number), "from": "a@acme.example", "subject": "s"}]});
        let hook = Request::post("/hooks/sales-desk/new_email", mail.to_string());
        exchange(address, &hook.header("authorization", &format!("Bearer {SECRET}"))).await
    };
    wait_until("the hook is known", async || post(0).await.status == 202).await;
    // A pooler would keep the session that forbids writing, which may still write.
    let url = format!("postgres://postgres@127.0.0.1:{}/{}?sslmode=disable", database.port, database.name);
    let run = async |sql: &'static str| {
        let url = url.clone();
        let run =
            move || postgres::Client::connect(&url, postgres::NoTls).unwrap().batch_execute(sql).unwrap();
        tokio::task::spawn_blocking(run).await.unwrap();
    };
    for (number, [begin, end], why) in [(1, READ_ONLY, "read-only"), (2, FULL, "disk is full")] {
        run(begin).await;
        let says_why =
            async || state().await["problem"].as_str().is_some_and(|problem| problem.contains(why));
        assert_eq!(exchange(address, &question()).await.status, 200, "{why}");
        wait_until("it says what is the matter", says_why).await;
        let refused = post(number).await;
        assert_eq!(refused.status, 503, "{why}: {}", refused.text());
        assert!(refused.headers.get("retry-after").is_some(), "{why}");
        run(end).await;
        wait_until("it can be used again", async || state().await["ready"] == true).await;
        // A connection of before may still refuse it once.
        wait_until("the mail is accepted", async || post(number).await.status == 202).await;
        wait_until("the mail is noted", async || noted_ids(&desk).contains(&number)).await;
    }
    assert_each_once(&desk, &fake);
    node.kill().await.unwrap();
}

/// The address that a process said it listens on.
pub fn address_in(log: &str) -> Option<SocketAddr> {
    let mut lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.find_map(|line| line["listen"].as_str()?.parse().ok())
}

#[tokio::test(flavor = "multi_thread")]
async fn harm_to_processes_on_files_is_harmless() {
    let fake = FakeVllm::thinking(noting).await;
    fake.allow_cut_requests();
    let (desk, store) = desk(&fake.url());
    println!("{}", harm(&desk, &store, None, &[], wanted(8)).await);
    assert_each_once(&desk, &fake);
}
