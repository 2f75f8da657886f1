//! Processes of the real program while their database is away, restored or another one: what they have
//! accepted is kept, what they cannot keep they refuse, and what was interrupted goes on.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use store::{Append, DatabaseConfig, EntryState, NewRun, Status, Store, StoreConfig};
use testing::postgres_server::{self, RestartableServer};
use testing::waiting::look_within;
use wire::units::Secret;

use crate::experts_killed::{noted_ids, noting};
use crate::experts_run::{is_over, results, until};
use crate::lifecycle::{Served, program};
use crate::nodes::serve_node;
use crate::nodes_harmed::{Road, address_in, desk_on, event, id, start_node};
use crate::support::client::{Client, Reply, Request, exchange};
use crate::support::fake_vllm::FakeVllm;
use crate::support::replies;
use crate::support::script::Script;
use crate::support::wait_until;

/// Two processes with an agent on one database: the road of the first one can be closed.
struct Pair {
    fake: FakeVllm,
    road: Road,
    /// The database, without the road.
    url: String,
    first: Served,
    second: Served,
}

impl Pair {
    /// Their model gives these replies, and then says "Paris". `None` on a machine without `PostgreSQL`.
    async fn start(scripts: impl IntoIterator<Item = Script>) -> Option<Self> {
        let database = postgres_server::new_remote_database()?;
        let road = Road::to(database.front).await;
        let fake = FakeVllm::start(scripts).await;
        fake.otherwise(Script::json(200, &replies::text("Paris")).unchecked());
        fake.allow_cut_requests();
        let toml = format!(
            "[agents.helper]\nmodel = \"gpt-oss-20b\"\n[models.\"gpt-oss-20b\"]\ncontext_window = 65536\n[[upstream]]\nname = \"box\"\nurl = \"{}\"\n",
            fake.url()
        );
        let url =
            |port: u16| format!("postgres://postgres@127.0.0.1:{port}/{}?sslmode=disable", database.name);
        let first = serve_node(&url(road.port), "a", &toml);
        let second = serve_node(&url(database.front), "b", &toml);
        Some(Self { fake, road, url: url(database.port), first, second })
    }

    async fn ask_first(&self, request: &Request) -> Reply {
        exchange(self.first.address, request).await
    }

    /// Asks the first process until it answers with 200.
    async fn ask_until_answered(&self, request: &Request) -> Value {
        let ask = async || Some(self.ask_first(request).await).filter(|reply| reply.status == 200);
        look_within(Duration::from_secs(20), ask).await.expect("an answer").json()
    }

    async fn runs(&self) -> Vec<Value> {
        let runs = exchange(self.second.address, &Request::get("/v1/runs")).await.json();
        runs["data"].as_array().unwrap().clone()
    }
}

fn question(model: &str) -> Value {
    json!({"model": model, "messages": [{"role": "user", "content": "What is the capital of France?"}]})
}

fn response(more: &[(&str, Value)]) -> Request {
    let mut body = json!({"model": "gpt-oss-20b", "input": "hi"});
    more.iter().for_each(|(name, value)| body[name] = value.clone());
    Request::post("/v1/responses", body.to_string())
}

fn id_of(response: &Value) -> String {
    response["id"].as_str().unwrap().to_owned()
}

/// Regression: an agent answered, and a response in the background began, without being kept anywhere.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_accepted_and_then_lost() {
    let Some(pair) = Pair::start([]).await else { return };
    let before = id_of(&pair.ask_first(&response(&[])).await.json());
    pair.road.close();
    let asked = pair.fake.requests().len();
    let in_stream = json!({"model": "helper", "stream": true, "messages": question("helper")["messages"]});
    for refused in [
        Request::chat(&question("helper")),
        Request::chat(&in_stream),
        response(&[("background", true.into())]),
        response(&[("previous_response_id", before.clone().into())]),
        Request::get(&format!("/v1/responses/{before}")),
        Request::post(&format!("/v1/responses/{before}/cancel"), ""),
    ] {
        let reply = pair.ask_first(&refused).await;
        assert_eq!(
            (reply.status, &reply.json()["error"]["code"]),
            (503, &json!("store_failed")),
            "{refused:?}"
        );
        assert_eq!(reply.headers.get("retry-after"), Some("5"), "{refused:?}");
    }
    assert_eq!(pair.fake.requests().len(), asked, "no model was asked");
    assert_eq!(pair.ask_first(&Request::chat(&question("gpt-oss-20b"))).await.status, 200);
    let meanwhile = id_of(&pair.ask_first(&response(&[])).await.json());
    pair.road.open();
    let continued = response(&[("previous_response_id", meanwhile.clone().into())]);
    pair.ask_until_answered(&continued).await;
    let other = exchange(pair.second.address, &continued).await;
    assert_eq!(other.status, 200, "it was kept after its answer: {}", other.text());
    assert_eq!(pair.runs().await.len(), 0, "no run was begun that nobody works on");
    let begun = pair.ask_until_answered(&Request::chat(&question("helper"))).await;
    assert!(begun.to_string().contains("Paris"));
}

/// Regression: it went on, and another process that took it over would have done the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_waits_for_its_database() {
    let call = replies::calls(&[("ask_person", "{\"question\": \"Which one?\"}")]);
    let Some(pair) =
        Pair::start([Script::json(200, &call).unchecked().delay(Duration::from_millis(500))]).await
    else {
        return;
    };
    let mut body = question("helper");
    let parameters = json!({"type": "object", "properties": {"question": {"type": "string"}}});
    body["tools"] =
        json!([{"type": "function", "function": {"name": "ask_person", "parameters": parameters}}]);
    let mut client = Client::sending(pair.first.address, &Request::chat(&body)).await;
    pair.fake.wait_for_requests(1).await;
    pair.road.close();
    let hands_over = tokio::time::timeout(Duration::from_millis(1_500), client.head()).await;
    assert!(hands_over.is_err(), "the calls are not kept yet: {hands_over:?}");
    pair.road.open();
    let message = client.reply().await.json()["choices"][0]["message"].clone();
    let result =
        json!({"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "the second"});
    body["messages"].as_array_mut().unwrap().extend([message, result]);
    let back = exchange(pair.second.address, &Request::chat(&body)).await;
    assert!(back.text().contains("Paris"), "{}", back.text());
    assert_eq!(pair.runs().await.len(), 1, "it went on at the other process");
}

async fn run_sql(url: &str, sql: &'static str) {
    let url = url.to_owned();
    let run = move || postgres::Client::connect(&url, postgres::NoTls).unwrap().batch_execute(sql).unwrap();
    tokio::task::spawn_blocking(run).await.unwrap();
}

/// A function before the server's own, for all new connections.
const WITHOUT_NOTIFICATIONS: &str = "
    CREATE SCHEMA mute;
    CREATE FUNCTION mute.pg_notify(text, text) RETURNS void LANGUAGE sql AS 'SELECT';
    DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = mute, pg_catalog', current_database()); END $$;
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";

/// How long a run that another process executes takes to end.
async fn time_of_cancel(pair: &Pair, number: usize) -> Duration {
    let _client = Client::sending(pair.first.address, &Request::chat(&question("helper"))).await;
    pair.fake.wait_for_requests(number + 1).await;
    let run = pair.runs().await.remove(0)["id"].as_str().unwrap().to_owned();
    let began = Instant::now();
    let cancel = Request::post(&format!("/v1/runs/{run}/cancel"), "");
    let reply = exchange(pair.second.address, &cancel).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    pair.fake.wait_until_closed(number).await;
    began.elapsed()
}

#[tokio::test(flavor = "multi_thread")]
async fn cancels_elsewhere_are_heard_of() {
    let Some(pair) = Pair::start((0..6).map(|_| Script::silence().unchecked())).await else { return };
    let mut heard = Vec::new();
    for number in 0..3 {
        heard.push(time_of_cancel(&pair, number).await);
    }
    // As behind a pooler, which passes none on.
    run_sql(&pair.url, WITHOUT_NOTIFICATIONS).await;
    let mut polled = Vec::new();
    for number in 3..6 {
        polled.push(time_of_cancel(&pair, number).await);
    }
    println!("from a cancel to the end of the request: {heard:?}, without notifications {polled:?}");
    heard.sort();
    polled.sort();
    let limit = if postgres_server::is_pooled() { 3 } else { 1 };
    assert!(heard[1] < Duration::from_secs(limit), "{heard:?}");
    assert!(polled[1] < Duration::from_secs(3), "{polled:?}");
}

/// A trigger lets the copy stop within a table: the second part of the events is written, but not committed.
const STALLED: &str = "
    CREATE SEQUENCE parts;
    CREATE FUNCTION stall() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN IF nextval('parts') > 1 THEN PERFORM pg_sleep(60); END IF; RETURN NULL; END $$;
    CREATE TRIGGER stall AFTER INSERT ON respool.events FOR EACH STATEMENT EXECUTE FUNCTION stall()";
/// The server ends the transaction of a process that was killed when it notices that.
const RELEASED: &str = "
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid();
    DROP FUNCTION stall() CASCADE";

fn count(url: &str, sql: &'static str) -> i64 {
    let url = url.to_owned();
    let count = move || {
        let mut client = postgres::Client::connect(&url, postgres::NoTls).unwrap();
        client.query_one(sql, &[]).unwrap().get(0)
    };
    std::thread::spawn(count).join().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_was_killed_goes_on() {
    const EVENTS: &str = "SELECT count(*) FROM respool.events";
    let Some(database) = postgres_server::new_remote_database() else { return };
    let url = format!("postgres://postgres@127.0.0.1:{}/{}?sslmode=disable", database.port, database.name);
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("respool.toml"), "state_dir = \"state\"\n").unwrap();
    let config = StoreConfig { state_dir: directory.path().join("state"), ..StoreConfig::default() };
    let files = Store::open(&config).unwrap();
    files.begin(NewRun { id: "r".into(), agent: "helper".into(), at: 1, ..NewRun::default() }).await.unwrap();
    // About 4 MiB are sent at a time.
    for seq in 0..3 {
        let event = Some((seq, "replied", "x".repeat(3 << 20)));
        let status = Append::status("r", Store::FIRST_EPOCH, seq, Status::Running);
        files.append(Append { event, ..status }).await.unwrap();
    }
    drop(files);
    let store = DatabaseConfig { url: Some(Secret::new(url.clone())), ..DatabaseConfig::default() };
    drop(Store::open(&StoreConfig { store, ..StoreConfig::default() }).unwrap());
    run_sql(&url, STALLED).await;
    let command = |arguments: &[&str]| {
        let mut command = program(directory.path(), arguments);
        command.env("RESPOOL_CONFIG", "respool.toml");
        command
    };
    let mut copying = command(&["store", "migrate", "--to", &url]).stdout(Stdio::null()).spawn().unwrap();
    let sleeps =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'";
    wait_until("the second part is written", async || count(&url, sleeps) == 1).await;
    copying.kill().unwrap();
    copying.wait().unwrap();
    run_sql(&url, RELEASED).await;
    wait_until("it is released", async || count(&url, sleeps) == 0).await;
    assert_eq!(count(&url, EVENTS), 2, "a part was copied");
    let output = |mut command: Command| {
        let output = command.output().unwrap();
        let text = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
        assert!(output.status.success(), "{text}");
        text
    };
    let said = output(command(&["store", "migrate", "--to", &url]));
    assert!(said.contains("3  events") && said.contains("all of this was copied and compared"), "{said}");
    let mut check = command(&["store", "check"]);
    check.env("RESPOOL__STORE__URL", &url);
    assert!(output(check).contains("no problems"));
}

/// As when a standby takes over that had not got all, or a backup is restored: what came after it is sent
/// again, and the process that lived on does no harm.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_database_is_worked_on() {
    const SLOW: usize = 2;
    let model = |request: &Value| match results(request).len() {
        1 if request.to_string().contains(&id(SLOW)) => noting(request).delay(Duration::from_secs(4)),
        _ => noting(request),
    };
    let fake = FakeVllm::thinking(model).await;
    fake.allow_cut_requests();
    let Some(server) = RestartableServer::start() else { return };
    let (desk, store) = desk_on(&fake, &server.database, server.database.front);
    let mut node = start_node(&desk, 0, &[]);
    let send = async |number: usize| {
        let send = async || store.enqueue(event(number).into_entry(Duration::ZERO)).await.is_ok();
        wait_until("the event is accepted", send).await;
    };
    let work_off = async |number: usize| {
        let row = until(&store, &id(number), is_over).await;
        assert_eq!(row.state, EntryState::Done, "{row:?}");
    };
    send(0).await;
    work_off(0).await;
    let server = on_thread(server, RestartableServer::copy).await;
    send(1).await;
    work_off(1).await;
    send(SLOW).await;
    wait_until("its call is made", async || noted_ids(&desk).contains(&SLOW)).await;
    let server = on_thread(server, RestartableServer::replace_by_copy).await;
    // The database does not know of these.
    for number in 1..=3 {
        send(number).await;
    }
    for number in 0..=3 {
        work_off(number).await;
    }
    let noted = noted_ids(&desk);
    for (number, most) in [(0, 1), (1, 2), (SLOW, 2), (3, 1)] {
        let times = noted.iter().filter(|noted| **noted == number).count();
        assert!((1..=most).contains(&times), "{number}: {noted:?}");
    }
    let log = std::fs::read_to_string(desk.path("log-0")).unwrap();
    let ready = async || {
        let reply = exchange(address_in(&log).unwrap(), &Request::get("/ready")).await;
        reply.json()["state"]["ready"] == true
    };
    wait_until("the node says that it can use the database", ready).await;
    node.kill().await.unwrap();
    tokio::task::spawn_blocking(|| drop((store, server))).await.unwrap();
}

async fn on_thread(
    mut server: RestartableServer,
    work: impl FnOnce(&mut RestartableServer) + Send + 'static,
) -> RestartableServer {
    let work = move || {
        work(&mut server);
        server
    };
    tokio::task::spawn_blocking(work).await.unwrap()
}
