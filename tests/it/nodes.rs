//! Several processes of the real program on one `PostgreSQL`: each event is worked on once and in the order
//! of its lane, also when a process is killed or stops for longer than its lease.

use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use agent::{ApprovalRequest, Decision, record_decision};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use store::{ApprovalState, DatabaseConfig, EntryState, Store, StoreConfig};
use testing::postgres_server;
use testing::waiting::delay;
use tokio::process::Child;
use tools::audit::{self, AuditEntry, Step};
use tools::{AuditConfig, Caller};
use wire::units::Secret;

use crate::alerts::webhook;
use crate::experts_killed::{
    Life, assert_nothing_is_lost_or_doubled, assert_state_is_that_of_one_run,
    assert_two_processes_keep_the_order, desk, insistent, noting, start,
};
use crate::experts_run::{Desk, calls, enqueue, invocation, is_over, results, until};
use crate::lifecycle::{Served, program, run};
use crate::page::csrf_mark;
use crate::support::client::{Client, Request, exchange};
use crate::support::fake_vllm::FakeVllm;
use crate::support::replies;
use crate::support::script::Script;
use crate::support::wait_until;

/// A desk whose processes share a database; `None` on a machine without `PostgreSQL`.
fn desk_on_postgres(upstream: &str) -> Option<(Desk, Store)> {
    Some(desk_on_database(upstream, postgres_server::new_database()?))
}

fn desk_on_database(upstream: &str, url: String) -> (Desk, Store) {
    let (desk, _) = desk(upstream);
    let toml = fs::read_to_string(desk.path("respool.toml")).unwrap();
    fs::write(desk.path("respool.toml"), format!("{toml}\n[store]\nurl = \"{url}\"\npool = 3\n")).unwrap();
    let database = DatabaseConfig { url: Some(Secret::new(url)), pool: 2, ..DatabaseConfig::default() };
    let config = StoreConfig { state_dir: desk.path("state"), store: database, ..StoreConfig::default() };
    (desk, Store::open(&config).unwrap())
}

pub fn send_signal(process: &Child, signal: Signal) {
    send_signal_to(process.id().unwrap(), signal);
}

fn send_signal_to(process: u32, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(process).unwrap()), signal).unwrap();
}

/// Regression: `check` made the tables of the database, or called one that was away a wrong configuration.
#[tokio::test(flavor = "multi_thread")]
async fn checks_leave_databases_alone() {
    let Some(url) = postgres_server::new_database() else { return };
    let fake = FakeVllm::always(Script::json(200, &replies::text("done"))).await;
    let check = async |url: &str| {
        let toml =
            format!("[[upstream]]\nname = \"box\"\nurl = \"{}\"\n[store]\nurl = \"{url}\"\n", fake.url());
        tokio::task::spawn_blocking(move || run(&["check"], Some(&toml), &[])).await.unwrap()
    };
    let database = DatabaseConfig { url: Some(Secret::new(url.clone())), ..DatabaseConfig::default() };
    let config = StoreConfig { store: database, ..StoreConfig::default() };
    let has_schema = async || {
        let config = config.clone();
        tokio::task::spawn_blocking(move || Store::has_schema(&config)).await.unwrap()
    };
    let (_, said, _) = check(&url).await;
    assert!(said.contains("`respool serve` of this version makes or updates its tables"), "{said}");
    assert_eq!(has_schema().await, Ok(Some(false)));
    drop(Store::open(&config).unwrap());
    let (_, said, _) = check(&url).await;
    assert!(said.contains("in service: no node"), "{said}");
    let (code, said, _) = check("postgres://127.0.0.1:1/respool").await;
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("Connection refused") && said.contains("upstream `box`"), "{said}");
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

/// Ends or stops the node that works on an event, and starts another one. Returns the desk when the event is
/// over; `None` without `PostgreSQL`.
async fn take_over_after(signal: Signal) -> Option<Desk> {
    let asked = AtomicUsize::new(0);
    // On a busy machine the signal may come late: without the wait the first one may be done by then.
    let model = move |request: &Value| match asked.fetch_add(1, Ordering::Relaxed) {
        2 => insistent(request).delay(Duration::from_secs(3)),
        _ => insistent(request),
    };
    let fake = FakeVllm::thinking(model).await;
    fake.allow_cut_requests();
    let (desk, store) = desk_on_postgres(&fake.url())?;
    desk.faults(&json!({}));
    let payload = json!({"message_id": "m1", "contact_id": "sarah@acme.example"});
    enqueue(&store, invocation("i1", "inbound-email-triage", payload)).await;
    let mut first = start(&desk, "log-1");
    Life { requests: 2, then: Duration::from_millis(20) }.over(&fake).await;
    send_signal(&first, signal);
    let mut second = start(&desk, "log-2");
    if signal == Signal::SIGSTOP {
        // The other one has taken the event over when it asks the model.
        Life { requests: 1, then: Duration::from_millis(20) }.over(&fake).await;
        send_signal(&first, Signal::SIGCONT);
    }
    let row = until(&store, "i1", is_over).await;
    assert_eq!(row.state, EntryState::Done, "{row:?}");
    assert_nothing_is_lost_or_doubled(&fake, &desk, &store).await;
    first.kill().await.unwrap();
    second.kill().await.unwrap();
    Some(desk)
}

#[tokio::test(flavor = "multi_thread")]
async fn another_node_goes_on_after_a_kill() {
    if let Some(desk) = take_over_after(Signal::SIGKILL).await {
        assert_state_is_that_of_one_run(&desk);
    }
}

/// A process that wakes up with a lease that others have taken over writes nothing: neither to the store nor
/// to a file of the expert's state.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_slept_too_long_does_no_harm() {
    if let Some(desk) = take_over_after(Signal::SIGSTOP).await {
        assert_state_is_that_of_one_run(&desk);
    }
}

/// A process of a database, named so, with this rest of its configuration.
pub fn serve_node(url: &str, name: &str, toml: &str) -> Served {
    let toml = format!("{toml}\n[store]\nurl = \"{url}\"\npool = 2\n[node]\nname = \"{name}\"\n");
    Served::with_file(&toml, &[])
}

/// The number of statements that were run in a database until now.
fn count_statements(url: &str) -> i64 {
    let url = url.to_owned();
    let count = move || {
        let sql =
            "SELECT sum(calls)::bigint FROM pg_stat_statements WHERE query NOT LIKE '%pg_stat_statements%'
            AND dbid = (SELECT oid FROM pg_database WHERE datname = current_database())";
        let mut client = postgres::Client::connect(&url, postgres::NoTls).unwrap();
        client.batch_execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements").unwrap();
        client.query_one(sql, &[]).unwrap().get(0)
    };
    std::thread::spawn(count).join().unwrap()
}

/// A node with an expert, while an upstream is down and a failed task waits for a person.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_node_asks_less_than_once_a_second() {
    const SECONDS: i64 = 12;
    let Some((desk, store)) = desk_on_postgres("http://127.0.0.1:9") else { return };
    enqueue(&store, invocation("i1", "no-such-process", json!({}))).await;
    let _node = start(&desk, "log");
    until(&store, "i1", is_over).await;
    drop(store);
    let toml: toml::Table = toml::from_str(&fs::read_to_string(desk.path("respool.toml")).unwrap()).unwrap();
    let url = toml["store"]["url"].as_str().unwrap();
    let is_idle = async || {
        let before = count_statements(url);
        tokio::time::sleep(Duration::from_secs(SECONDS.cast_unsigned())).await;
        let asked = count_statements(url) - before;
        println!("{asked} statements in {SECONDS} s");
        (1..=SECONDS).contains(&asked)
    };
    wait_until("it is idle", is_idle).await;
}

/// Names and digests of configurations, as `respool nodes --json` lists them.
fn list_nodes(node: &Served) -> Vec<(String, String)> {
    let mut command = program(node.directory.path(), &["nodes", "--json"]);
    let output = command.env("RESPOOL_CONFIG", "respool.toml").output().unwrap();
    let nodes: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    nodes.iter().map(|node| (text(&node["name"]), text(&node["configuration"]))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_list_each_other_and_share_logins() {
    const ROOT: &str = "sk-root-0123456789";
    let Some(url) = postgres_server::new_database() else { return };
    let keys = tempfile::tempdir().unwrap();
    let file = keys.path().join("keys.toml");
    fs::write(&file, format!("[root]\nkey = '{ROOT}'\noperator = true\n")).unwrap();
    let toml = format!(
        "client_keys_file = \"{}\"\n{{}}\n[[upstream]]\nname = \"box\"\nurl = \"http://127.0.0.1:9\"\n",
        file.display()
    );
    let first = serve_node(&url, "a", &toml.replace("{}", ""));
    let second = serve_node(&url, "b", &toml.replace("{}", ""));
    let odd = serve_node(&url, "odd", &toml.replace("{}", "[budgets]\nday = 5.0"));
    let is_known = async || list_nodes(&first).iter().filter(|(_, digest)| !digest.is_empty()).count() == 3;
    wait_until("all digests are known", is_known).await;
    let nodes = list_nodes(&second);
    let names: Vec<&str> = nodes.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["a", "b", "odd"]);
    assert!(nodes[0].1 == nodes[1].1 && nodes[1].1 != nodes[2].1, "{nodes:?}");
    let here = |request: Request| request.without("host").header("host", "127.0.0.1");
    let login = here(Request::post("/ui/login", format!("key={ROOT}"))).header("origin", "http://127.0.0.1");
    let reply = exchange(first.address, &login).await;
    let cookie = reply.headers.get("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    let page = exchange(odd.address, &here(Request::get("/")).header("cookie", &cookie)).await;
    assert_eq!(page.status, 200, "a login holds on every node: {}", page.text());
    let form = format!("csrf={}", csrf_mark(&page.text()));
    let logout = here(Request::post("/ui/logout", form)).header("origin", "http://127.0.0.1");
    assert_eq!(exchange(first.address, &logout.header("cookie", &cookie)).await.status, 303);
    // Another process has the key that signed it, too.
    let later = serve_node(&url, "later", &toml.replace("{}", ""));
    let page = here(Request::get("/")).header("cookie", &cookie);
    for node in [&odd, &later] {
        let is_out = async || exchange(node.address, &page).await.status == 303;
        wait_until("a logout holds on every node", is_out).await;
    }
}

/// The calls that the command lists on a node: which node made them, and their names.
fn list_calls(node: &Served) -> Vec<(String, String)> {
    let mut command = program(node.directory.path(), &["audit", "list", "--json"]);
    let output = command.env("RESPOOL_CONFIG", "respool.toml").output().unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    let call = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        let text = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
        (text("node"), text("call"))
    };
    lines.lines().map(call).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_log_is_that_of_all() {
    let Some(url) = postgres_server::new_database() else { return };
    let toml = "[[upstream]]\nname = \"box\"\nurl = \"http://127.0.0.1:9\"\n";
    let (first, mut second) = (serve_node(&url, "a", toml), serve_node(&url, "b", toml));
    let note_call = |node: &Served, call: &str| {
        let file = node.directory.path().join(".local/state/respool").join(audit::FILE);
        let entry = AuditEntry::new(Step::Begun, &Caller::default(), call, "exec");
        audit::append_entry(&AuditConfig { file, content: false }, entry).unwrap();
    };
    for (node, call) in [(&first, "c1"), (&second, "c2"), (&first, "c3")] {
        note_call(node, call);
        delay(Duration::from_millis(2)).await;
    }
    let all = [("a", "c1"), ("b", "c2"), ("a", "c3")].map(|(node, call)| (node.to_owned(), call.to_owned()));
    wait_until("all calls are listed", async || list_calls(&first) == all && list_calls(&second) == all)
        .await;
    // The last line of a node is copied when it ends, and others list it for ever.
    note_call(&second, "c4");
    send_signal_to(second.child.id(), Signal::SIGTERM);
    second.child.wait().unwrap();
    assert_eq!(list_calls(&first).last(), Some(&("b".to_owned(), "c4".to_owned())));
}

/// Regression: a silence held on the node alone where it was set.
#[tokio::test(flavor = "multi_thread")]
async fn a_silence_holds_on_all_nodes() {
    let Some(url) = postgres_server::new_database() else { return };
    let toml = "[[upstream]]\nname = \"box\"\nurl = \"http://127.0.0.1:9\"\n";
    let (first, second) = (serve_node(&url, "a", toml), serve_node(&url, "b", toml));
    let change = |node: &Served, change: &str| {
        let mut command = program(node.directory.path(), &["alerts", change, "error_rate"]);
        assert!(command.env("RESPOOL_CONFIG", "respool.toml").status().unwrap().success());
    };
    let silences = |node: &Served| {
        let file = node.directory.path().join(".local/state/respool/alerts-silenced.json");
        fs::read_to_string(file).unwrap_or_default()
    };
    change(&first, "silence");
    wait_until("the other one is silent", async || silences(&second).contains("error_rate")).await;
    change(&second, "unsilence");
    wait_until("the first one is not", async || silences(&first) == "[]").await;
}

/// Both find the same upstream down; one says so, and its end.
#[tokio::test(flavor = "multi_thread")]
async fn an_alert_is_sent_by_one_node() {
    let Some(url) = postgres_server::new_database() else { return };
    let (hook, mut told) = webhook(200).await;
    let toml = format!(
        "[alerts]\ngroup = \"1s\"\n[[alerts.sink]]\ntype = \"webhook\"\nurl = \"{hook}\"\n\
         [[upstream]]\nname = \"box\"\nurl = \"http://127.0.0.1:9\"\n"
    );
    let _nodes = [serve_node(&url, "a", &toml), serve_node(&url, "b", &toml)];
    let first = tokio::time::timeout(Duration::from_mins(1), told.recv()).await.unwrap().unwrap();
    assert_eq!(first["alerts"][0]["rule"], "upstream_down");
    // Twice the time between two looks.
    let second = tokio::time::timeout(Duration::from_secs(10), told.recv()).await;
    assert!(second.is_err(), "{second:?}");
}

/// The spending of one node counts on the other, and each reports on the requests of both.
#[tokio::test(flavor = "multi_thread")]
async fn a_budget_holds_for_all_nodes() {
    let Some(url) = postgres_server::new_database() else { return };
    let fake = FakeVllm::start([]).await;
    fake.otherwise(Script::json(200, &replies::text("Paris")).unchecked());
    let toml = format!(
        "[budgets]\nday = 1.0\n[prices.\"gpt-oss-20b\"]\ninput = 1000000.0\n[[upstream]]\nname = \"box\"\nurl = \"{}\"\n",
        fake.url()
    );
    let (first, second) = (serve_node(&url, "a", &toml), serve_node(&url, "b", &toml));
    let ask = async |node: &Served| {
        let messages = json!([{"role": "user", "content": "What is the capital of France?"}]);
        exchange(node.address, &Request::chat(&json!({"model": "gpt-oss-20b", "messages": messages})))
            .await
            .status
    };
    assert_eq!(ask(&first).await, 200);
    wait_until("the other node refuses", async || ask(&second).await == 429).await;
    let refused_by = async |node: &Served| ask(node).await == 429;
    assert!(refused_by(&first).await);
    let mut command = program(second.directory.path(), &["usage", "--json"]);
    let mut counts = || {
        let output = command.env("RESPOOL_CONFIG", "respool.toml").output().unwrap();
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["total"]["requests"].as_u64().unwrap()
    };
    wait_until("rows of both are reported", async || counts() >= 3).await;
    let nodes_of = |more: &[&str]| {
        let arguments = [&["requests", "--json"], more].concat();
        let mut command = program(second.directory.path(), &arguments);
        let output = command.env("RESPOOL_CONFIG", "respool.toml").output().unwrap();
        let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
        let names = rows.iter().map(|row| row["node"].as_str().unwrap().to_owned());
        names.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>()
    };
    assert_eq!((nodes_of(&[]), nodes_of(&["--node", "a"])), (vec!["a".into(), "b".into()], vec!["a".into()]));
}

/// Two processes with two places at an upstream have one each.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_divide_the_places_at_an_upstream() {
    let Some(url) = postgres_server::new_database() else { return };
    let fake = FakeVllm::start([]).await;
    fake.otherwise(Script::json(200, &replies::text("Paris")).unchecked().delay(Duration::from_millis(300)));
    let toml = format!("[[upstream]]\nname = \"box\"\nurl = \"{}\"\nmax_concurrency = 2\n", fake.url());
    let (first, _second) = (serve_node(&url, "a", &toml), serve_node(&url, "b", &toml));
    let messages = json!([{"role": "user", "content": "What is the capital of France?"}]);
    let ask = Request::chat(&json!({"model": "gpt-oss-20b", "messages": messages}));
    let is_alone_there = async || {
        let before = fake.requests().len();
        let both = [exchange(first.address, &ask), exchange(first.address, &ask)];
        let (_, _, other) = futures::future::select_all(both.map(Box::pin)).await;
        let seen = fake.requests().len() - before;
        futures::future::join_all(other).await;
        seen == 1
    };
    wait_until("the second request waits for the first one", is_alone_there).await;
}

/// Any node cancels a response in the background, and makes those of a node that is gone.
#[tokio::test(flavor = "multi_thread")]
async fn responses_in_the_background_are_shared() {
    let Some(url) = postgres_server::new_database() else { return };
    let answer = Script::json(200, &replies::text("Paris")).unchecked();
    let silence = || Script::silence().unchecked();
    let fake = FakeVllm::start([silence(), silence(), answer]).await;
    fake.allow_cut_requests();
    let toml = format!("[[upstream]]\nname = \"box\"\nurl = \"{}\"\n", fake.url());
    let (mut first, second) = (serve_node(&url, "a", &toml), serve_node(&url, "b", &toml));
    let address = first.address;
    let begin = async |requests: usize| {
        let body = json!({"model": "gpt-oss-20b", "input": "hi", "background": true});
        let begun = exchange(address, &Request::post("/v1/responses", body.to_string())).await.json();
        fake.wait_for_requests(requests).await;
        format!("/v1/responses/{}", begun["id"].as_str().unwrap())
    };
    let cancel = Request::post(&format!("{}/cancel", begin(1).await), "");
    assert_eq!(exchange(second.address, &cancel).await.json()["status"], "cancelled");
    fake.wait_until_closed(0).await;
    let orphan = Request::get(&begin(2).await);
    first.child.kill().unwrap();
    let is_made = async || exchange(second.address, &orphan).await.json()["status"] == "completed";
    wait_until("the other node makes it", is_made).await;
}

/// An expert's run goes on at its node, which hears of the decision by the other one's notification.
#[tokio::test(flavor = "multi_thread")]
async fn decisions_elsewhere_are_heard_of() {
    let model = |request: &Value| match results(request).len() {
        0 => calls(&[("crm__update_deal_stage", json!({"deal_id": "d-1", "stage": "4"}))]),
        _ => calls(&[("finish_process", json!({"summary": "moved"}))]),
    };
    let fake = FakeVllm::thinking(model).await;
    let Some((desk, store)) = desk_on_postgres(&fake.url()) else { return };
    let mut node = start(&desk, "log");
    let mut spans = Vec::new();
    for number in 0..5 {
        let id = format!("i{number}");
        enqueue(&store, invocation(&id, "move-deal", json!({"deal_id": id, "stage": "4"}))).await;
        until(&store, &id, |row| row.state == EntryState::Held).await;
        let row = store.approvals(ApprovalState::Waiting, 1).await.unwrap().remove(0);
        let request: ApprovalRequest = serde_json::from_str(&row.body).unwrap();
        let decided = Instant::now();
        record_decision(&store, &Decision::approve_all(&request, "anna")).await.unwrap();
        wait_until("the call is made", async || desk.effects().len() > number).await;
        spans.push(decided.elapsed());
        until(&store, &id, is_over).await;
    }
    node.kill().await.unwrap();
    spans.sort();
    println!("from a decision to its call: {spans:?}");
    let limit = Duration::from_secs(if postgres_server::is_pooled() { 3 } else { 1 });
    assert!(spans[2] < limit, "{spans:?}");
}

/// A proxy sends the request that a killed node has cut to another one at once, long before the node counts
/// as gone. The run goes on; a new one would make its calls again.
#[tokio::test(flavor = "multi_thread")]
async fn a_cut_request_finds_its_run() {
    let Some(url) = postgres_server::new_database() else { return };
    let answer = Script::json(200, &replies::text("Paris")).unchecked();
    let fake = FakeVllm::start([Script::silence().unchecked(), answer]).await;
    fake.allow_cut_requests();
    let toml = format!(
        "[agents.helper]\nmodel = \"gpt-oss-20b\"\n[[upstream]]\nname = \"box\"\nurl = \"{}\"\n",
        fake.url()
    );
    let (mut first, second) = (serve_node(&url, "a", &toml), serve_node(&url, "b", &toml));
    let messages = json!([{"role": "user", "content": "What is the capital of France?"}]);
    let ask = Request::chat(&json!({"model": "helper", "messages": messages}));
    let cut = Client::sending(first.address, &ask).await;
    fake.wait_for_requests(1).await;
    first.child.kill().unwrap();
    let reply = exchange(second.address, &ask).await;
    assert_eq!((reply.status, reply.text().contains("Paris")), (200, true), "{}", reply.text());
    let runs = exchange(second.address, &Request::get("/v1/runs")).await.json();
    assert_eq!(runs["data"].as_array().unwrap().len(), 1, "{runs}");
    drop(cut);
}

/// The clocks of machines differ; that of the database counts for all of them.
#[tokio::test(flavor = "multi_thread")]
async fn the_clock_of_the_database_counts() {
    let Some(url) = postgres_server::new_database() else { return };
    let fake = FakeVllm::start([]).await;
    fake.otherwise(Script::json(200, &replies::text("Paris")).unchecked());
    let toml = format!("[[upstream]]\nname = \"box\"\nurl = \"{}\"\n", fake.url());
    drop(serve_node(&url, "a", &toml));
    let change = "CREATE OR REPLACE FUNCTION respool.now_ms() RETURNS bigint LANGUAGE sql STABLE AS
        $$ SELECT (extract(epoch FROM statement_timestamp() + interval '400 days') * 1000)::bigint $$";
    let at = url.clone();
    let change = move || postgres::Client::connect(&at, postgres::NoTls).unwrap().batch_execute(change);
    std::thread::spawn(change).join().unwrap().unwrap();
    let node = serve_node(&url, "b", &toml);
    let messages = json!([{"role": "user", "content": "What is the capital of France?"}]);
    let ask = Request::chat(&json!({"model": "gpt-oss-20b", "messages": messages}));
    assert_eq!(exchange(node.address, &ask).await.status, 200);
    let days = || {
        let mut command = program(node.directory.path(), &["usage", "--by", "day", "--json"]);
        let output = command.env("RESPOOL_CONFIG", "respool.toml").output().unwrap();
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["data"].clone()
    };
    wait_until("a row", async || days().as_array().is_some_and(|days| !days.is_empty())).await;
    let ahead = clock::format_time(clock::now() + 400 * 86_400_000);
    assert!(days().to_string().contains(&ahead[..7]), "{} in {}", &ahead[..7], days());
}

/// Two machines with two folders would each have their own experts.
#[tokio::test(flavor = "multi_thread")]
async fn another_shared_folder_is_refused() {
    let Some(url) = postgres_server::new_database() else { return };
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let file = |index: usize| {
        format!(
            "[store]\nurl = \"{url}\"\nshared_dir = \"{}\"\n[[upstream]]\nname = \"box\"\nurl = \"http://127.0.0.1:9\"\n",
            folders[index].path().display()
        )
    };
    let first = Served::with_file(&file(0), &[]);
    drop(Served::with_file(&file(0), &[]));
    let (code, _, error) = run(&["serve", "--listen", "127.0.0.1:0"], Some(&file(1)), &[]);
    assert_eq!(code, 78, "{error}");
    assert!(error.contains("is not the folder that the other processes of the database have"), "{error}");
    drop(first);
}

fn package_digest(desk: &Desk) -> String {
    let package = openexperts::load(&desk.path("experts/sales-desk")).unwrap().package.unwrap();
    experts::digest(&package.files)
}

/// Each node has a package of its own on its disk: an event is worked on with the version that accepted it,
/// as long as a node has that.
#[tokio::test(flavor = "multi_thread")]
async fn events_keep_their_version_of_a_package() {
    const MARK: &str = "You work for the new version.";
    let fake = FakeVllm::thinking(noting).await;
    let Some(url) = postgres_server::new_database() else { return };
    let (older, store) = desk_on_database(&fake.url(), url.clone());
    let (newer, _) = desk_on_database(&fake.url(), url);
    let orchestrator = fs::read_to_string(newer.path("experts/sales-desk/orchestrator.md")).unwrap();
    fs::write(newer.path("experts/sales-desk/orchestrator.md"), format!("{orchestrator}\n{MARK}\n")).unwrap();
    let digests = [package_digest(&older), package_digest(&newer)];
    assert_ne!(digests[0], digests[1]);
    let (old_node, mut new_node) = (start(&older, "log"), start(&newer, "log"));
    let are_known = async || digests.iter().all(|digest| store.is_package_elsewhere(digest));
    wait_until("both packages are known", are_known).await;
    // The nodes know each other's a poll later.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let mut wanted = std::collections::BTreeMap::new();
    for number in 0..8 {
        let id = format!("e{number}");
        let mut event = invocation(&id, "inbound-email-triage", json!({"message_id": id}));
        event.digest.clone_from(&digests[number % 2]);
        event.lane = None;
        wanted.insert(id, number % 2 == 1);
        enqueue(&store, event).await;
    }
    for id in wanted.keys() {
        let row = until(&store, id, is_over).await;
        assert_eq!(row.state, EntryState::Done, "{row:?}");
    }
    for request in fake.requests() {
        let text = request.json().to_string();
        let (id, is_new) = wanted.iter().find(|(id, _)| text.contains(&format!("\\\"{id}\\\""))).unwrap();
        assert_eq!(text.contains(MARK), *is_new, "{id} with the wrong version");
    }
    // A version that no node has any more does not hold an event up.
    send_signal(&new_node, Signal::SIGTERM);
    new_node.wait().await.unwrap();
    let mut event = invocation("late", "inbound-email-triage", json!({"message_id": "late"}));
    event.digest.clone_from(&digests[1]);
    enqueue(&store, event).await;
    assert_eq!(until(&store, "late", is_over).await.state, EntryState::Done);
    drop(old_node);
}
