//! Usage: a row for each request and model call, seen by those who may, and budgets counted on it.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};
use store::RequestQuery;

use crate::agents::{READ, echoing};
use crate::lifecycle::{Served, program, run};
use crate::support::client::{Client, Request, exchange};
use crate::support::fake_vllm::FakeVllm;
use crate::support::replies;
use crate::support::respool::Respool;
use crate::support::script::Script;
use crate::support::wait_until;
use crate::tools_route;
use wire::UsageRow;

const ALICE: &str = "sk-alice-0123456789";
const BOB: &str = "sk-bob-0123456789";
const ROOT: &str = "sk-root-0123456789";

/// A respool with an agent and keys of alice, bob and an operator.
async fn started(fake: &FakeVllm, dir: &Path, extra: &str) -> Respool {
    let (path, url) = (dir.display(), fake.url());
    let keys = format!("alice = '{ALICE}'\nbob = '{BOB}'\n[root]\nkey = '{ROOT}'\noperator = true\n");
    std::fs::write(dir.join("keys.toml"), keys).unwrap();
    let toml = format!(
        "client_keys_file = \"{path}/keys.toml\"\nstate_dir = \"{path}\"\n[log]\nerrors_dir = \"{path}/logs\"\n\
         [agents.helper]\nmodel = \"gpt-oss-20b\"\n{extra}\n[[upstream]]\nname = \"box\"\nurl = \"{url}\"\n"
    );
    Respool::started(&toml, Some(echoing())).await
}

fn of(key: &str, request: Request) -> Request {
    request.header("authorization", &format!("Bearer {key}"))
}

fn chat(model: &str) -> Request {
    Request::chat(
        &json!({"model": model, "messages": [{"role": "user", "content": "What is the capital of France?"}]}),
    )
}

async fn usage(respool: &Respool, key: &str, query: &str) -> Value {
    let reply = exchange(respool.address, &of(key, Request::get(&format!("/v1/usage{query}")))).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

async fn rows(respool: &Respool) -> Vec<UsageRow> {
    let query = RequestQuery { most: 100, ..RequestQuery::default() };
    respool.usage.records().find_requests(query).await.unwrap()
}

/// Regression: a client with a wrong key could not be found.
#[tokio::test]
async fn refused_requests_name_their_client() {
    let (fake, dir) = (FakeVllm::start([]).await, tempfile::tempdir().unwrap());
    let respool = started(&fake, dir.path(), "").await;
    let wrong = of("sk-wrong-0123456789", Request::get("/v1/models"));
    assert_eq!(exchange(respool.address, &wrong).await.status, 401);
    let row = rows(&respool).await.remove(0);
    assert_eq!((&*row.details.refused, &*row.details.client), ("GET /v1/models", "127.0.0.1"));
    assert!(row.error.contains("SHA-256 begins with"), "{}", row.error);
}

/// Regression: behind a proxy, every client had the proxy's address.
#[tokio::test]
async fn trusted_proxies_name_their_clients() {
    let (fake, dir) = (FakeVllm::start([]).await, tempfile::tempdir().unwrap());
    let wrong = of("sk-wrong-0123456789", Request::get("/v1/models")).header("x-forwarded-for", "192.0.2.7");
    for (trusted, client) in [("127.0.0.0/8", "192.0.2.7"), ("10.0.0.0/8", "127.0.0.1")] {
        let toml = format!(
            "client_keys = ['{ALICE}']\ntrusted_proxies = ['{trusted}']\nstate_dir = '{}'\n[[upstream]]\nurl = '{}'\n",
            dir.path().display(),
            fake.url()
        );
        let respool = Respool::started(&toml, None).await;
        assert_eq!(exchange(respool.address, &wrong).await.status, 401);
        assert_eq!(&*rows(&respool).await[0].details.client, client);
    }
}

/// Regression: requests at a server that hangs were on the page alone.
#[tokio::test]
async fn running_requests_are_listed() {
    let fake = FakeVllm::always(Script::silence().unchecked()).await;
    let toml = format!("[[upstream]]\nname = 'gpu1'\nurl = '{}'\n", fake.url());
    let served = Served::with_file(&toml, &[]);
    let _waiting = Client::sending(served.address, &chat("gpt-oss-20b")).await;
    let list = |more: &[&str]| {
        let arguments = [&["requests", "--running", "--config", "respool.toml"], more].concat();
        let listed = program(served.directory.path(), &arguments).output().unwrap();
        String::from_utf8(listed.stdout).unwrap()
    };
    wait_until("the request is listed", async || list(&[]).contains("waiting for the model  gpt-oss-20b"))
        .await;
    let listed: Value = serde_json::from_str(&list(&["--json", "--upstream", "gpu1"])).unwrap();
    assert_eq!((&listed[0]["upstream"], &listed[0]["attempts"]), (&json!("gpu1"), &json!(1)));
    assert_eq!(list(&["--key", "alice"]), "");
}

#[tokio::test]
async fn rows_hold_no_content() {
    let (fake, dir) = (FakeVllm::start([]).await, tempfile::tempdir().unwrap());
    let respool = started(&fake, dir.path(), "").await;
    fake.otherwise(Script::json(200, &replies::text("Paris")).unchecked());
    exchange(respool.address, &of(ALICE, chat("gpt-oss-20b"))).await;
    exchange(respool.address, &of(BOB, Request::chat(&tools_route::request()))).await;
    fake.otherwise(Script::json(400, &replies::error(400, "no such thing", "BadRequestError")).unchecked());
    exchange(respool.address, &of(BOB, chat("gpt-oss-20b"))).await;
    let rows = rows(&respool).await;
    let found: Vec<_> = rows.iter().map(|row| (&*row.key, &*row.route, &*row.outcome, row.status)).collect();
    assert_eq!(
        found,
        [
            ("bob", "passthrough", "error", 400),
            ("bob", "tools", "ok", 200),
            ("alice", "passthrough", "ok", 200),
        ]
    );
    let alice = &rows[2];
    assert_eq!((&*alice.model, &*alice.upstream, alice.attempts), ("gpt-oss-20b", "box", 1));
    assert_eq!(alice.usage.map(|usage| usage.total_tokens()), Some(162));
    assert!(alice.at > 1_600_000_000_000 && alice.first_byte.is_some() && !alice.id.is_empty());
    assert!(!format!("{rows:?}").contains("capital") && !format!("{rows:?}").contains("Paris"));
    let problems = respool.usage.problems();
    assert_eq!((problems.len(), &*problems[0].model), (1, "gpt-oss-20b"));
}

#[tokio::test]
async fn clients_see_their_own_usage() {
    let (fake, dir) = (FakeVllm::start([]).await, tempfile::tempdir().unwrap());
    let respool = started(&fake, dir.path(), "[prices.\"gpt-oss-20b\"]\ninput = 1.0\noutput = 1.0").await;
    fake.otherwise(Script::json(200, &replies::text("Paris")).unchecked());
    for key in [ALICE, ALICE, BOB] {
        exchange(respool.address, &of(key, chat("gpt-oss-20b"))).await;
    }
    let keys = |body: &Value| {
        let line =
            |line: &Value| (line["key"].as_str().unwrap().to_owned(), line["requests"].as_u64().unwrap());
        body["data"].as_array().unwrap().iter().map(line).collect::<Vec<_>>()
    };
    // What is asked here is no row.
    let of_alice = usage(&respool, ALICE, "?by=key,model&costs=true").await;
    assert!(keys(&of_alice).iter().all(|(key, _)| key == "alice"), "{of_alice}");
    let line =
        of_alice["data"].as_array().unwrap().iter().find(|line| line["model"] == "gpt-oss-20b").unwrap();
    assert_eq!((&line["requests"], &line["cost"]["paid"]), (&json!(2), &json!(0.000_324)));
    assert!(of_alice["compared"].as_array().unwrap().len() >= 2);
    let all = usage(&respool, ROOT, "?by=key,model").await;
    assert!(keys(&all).contains(&("alice".into(), 2)) && keys(&all).contains(&("bob".into(), 1)), "{all}");
    assert!(all.get("compared").is_none());
    let wrong = exchange(respool.address, &of(ROOT, Request::get("/v1/usage?by=colour"))).await;
    assert_eq!(wrong.status, 400);
}

#[tokio::test]
async fn agent_calls_are_counted_once() {
    let (fake, dir) = (FakeVllm::start([]).await, tempfile::tempdir().unwrap());
    let respool = started(&fake, dir.path(), "").await;
    fake.then(Script::json(200, &replies::calls(&[READ])));
    fake.then(Script::json(200, &replies::text("It says hello.")));
    let reply = exchange(respool.address, &of(ALICE, chat("helper"))).await;
    let run = reply.headers.get("x-respool-run-id").unwrap().to_owned();
    let rows = rows(&respool).await;
    let found: Vec<_> = rows
        .iter()
        .map(|row| {
            (&*row.route, &*row.agent, &*row.key, row.run == run, row.usage.map(|it| it.total_tokens()))
        })
        .collect();
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(found.contains(&("agent", "helper", "alice", true, Some(0))), "{found:?}");
    assert_eq!(
        found.iter().filter(|row| **row == ("agent_model", "helper", "alice", true, Some(162))).count(),
        2
    );
    let body = usage(&respool, ALICE, "?by=agent").await;
    let helper = body["data"].as_array().unwrap().iter().find(|line| line["agent"] == "helper").unwrap();
    assert_eq!((&helper["requests"], &helper["model_calls"]), (&json!(1), &json!(2)));
    assert_eq!(
        helper["prompt_tokens"].as_u64().unwrap() + helper["completion_tokens"].as_u64().unwrap(),
        324
    );
}

#[tokio::test]
async fn spent_budgets_survive_a_restart() {
    let (fake, dir) = (FakeVllm::start([]).await, tempfile::tempdir().unwrap());
    fake.otherwise(Script::json(200, &replies::text("Paris")).unchecked());
    let extra =
        "[prices.\"gpt-oss-20b\"]\ninput = 10000.0\noutput = 10000.0\n[budgets]\nkeys = { alice = 2.0 }";
    let respool = started(&fake, dir.path(), extra).await;
    for expected in [200, 200, 429] {
        assert_eq!(exchange(respool.address, &of(ALICE, chat("gpt-oss-20b"))).await.status, expected);
    }
    assert_eq!(respool.usage.reached_budgets().len(), 1);
    respool.killed().await;
    let respool = started(&fake, dir.path(), extra).await;
    let refused = exchange(respool.address, &of(ALICE, chat("gpt-oss-20b"))).await;
    assert_eq!((refused.status, &refused.error()["code"]), (429, &json!("budget_spent")));
    let wait: u64 = refused.headers.get("retry-after").unwrap().parse().unwrap();
    assert!((1..=86_400).contains(&wait), "{wait}");
    let input = json!({"model": "gpt-oss-20b", "input": "x"});
    let messages =
        json!({"model": "gpt-oss-20b", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]});
    for (path, body) in [("/v1/embeddings", &input), ("/v1/responses", &input), ("/v1/messages", &messages)] {
        let request = Request::post(path, body.to_string());
        assert_eq!(exchange(respool.address, &of(ALICE, request)).await.status, 429, "{path}");
    }
    // The row of the process that was killed may be lost.
    let refused: Vec<_> = rows(&respool).await.into_iter().filter(|row| row.status == 429).collect();
    assert!(refused.len() >= 4, "{refused:?}");
    assert!(
        refused.iter().all(|row| row.model == "gpt-oss-20b"),
        "a refusal says for which model: {refused:?}"
    );
    assert_eq!(
        exchange(respool.address, &of(BOB, chat("gpt-oss-20b"))).await.status,
        200,
        "it is alice's budget"
    );
    assert_eq!(
        exchange(respool.address, &of(ALICE, Request::get("/v1/models"))).await.status,
        200,
        "a list costs nothing"
    );
}

/// Regression: a stream that the end of its process had cut was on no list.
#[tokio::test]
async fn requests_of_a_killed_respool_are_listed() {
    let fake = FakeVllm::always(Script::silence().unchecked()).await;
    fake.allow_cut_requests();
    let toml = format!("[[upstream]]\nname = 'gpu1'\nurl = '{}'\n", fake.url());
    let mut served = Served::with_file(&toml, &[]);
    let cut = Client::sending(served.address, &chat("gpt-oss-20b")).await;
    let list = |served: &Served, selection: &[&str]| {
        let arguments = [&["requests", "--json", "--config", "respool.toml"], selection].concat();
        let listed = program(served.directory.path(), &arguments).output().unwrap();
        serde_json::from_slice::<Value>(&listed.stdout).unwrap()
    };
    let is_running = async || list(&served, &["--running"])[0]["upstream"] == "gpu1";
    wait_until("the request is listed", is_running).await;
    served.child.kill().unwrap();
    served.child.wait().unwrap();
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--config", "respool.toml"];
    let mut next = program(served.directory.path(), &arguments).stderr(Stdio::null()).spawn().unwrap();
    let is_listed = async || list(&served, &["--failed"])[0]["error_code"] == "killed";
    wait_until("the cut request is listed", is_listed).await;
    next.kill().unwrap();
    next.wait().unwrap();
    let listed = list(&served, &[]);
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    assert_eq!((&listed[0]["model"], &listed[0]["upstream"]), (&json!("gpt-oss-20b"), &json!("gpu1")));
    drop(cut);
}

#[tokio::test]
async fn a_running_respool_is_copied() {
    let fake = FakeVllm::always(Script::json(200, &replies::text("Paris")).unchecked()).await;
    let toml = format!("[[upstream]]\nname = 'box'\nurl = '{}'\n", fake.url());
    let served = Served::with_file(&toml, &[]);
    let home = served.directory.path();
    assert_eq!(exchange(served.address, &chat("gpt-oss-20b")).await.status, 200);
    let respool = |arguments: &[&str]| {
        let output = program(home, &[arguments, &["--config", "respool.toml"]].concat()).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.success(), text(&output.stdout), text(&output.stderr))
    };
    wait_until("the row is written", async || respool(&["requests"]).1.contains("gpt-oss-20b")).await;
    let state = home.join(".local/state/respool");
    std::fs::write(home.join("secret"), "s").unwrap();
    std::os::unix::fs::symlink(home.join("secret"), state.join("linked.key")).unwrap();
    let (done, shown, said) = respool(&["store", "copy", "copies/first"]);
    assert!(done && shown.contains("usage.db\n") && shown.contains("other file"), "{shown}{said}");
    let copy = home.join("copies/first");
    assert!(copy.join("reasoning.key").exists() && !copy.join("serve.lock").exists());
    assert_eq!(std::fs::read_to_string(copy.join("linked.key")).unwrap(), "s", "a mounted secret");
    // Regression: everybody could read the copy.
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&copy), mode(&copy.join("usage.db"))), (0o700, 0o600));
    let inside = state.join("copies/first");
    let (done, _, said) = respool(&["store", "copy", inside.to_str().unwrap()]);
    assert!(!done && said.contains("in the state directory") && !state.join("copies").exists(), "{said}");
    assert!(!respool(&["store", "copy", "copies/first"]).0, "a copy is not written over");
    let restored = program(home, &["requests", "--json", "--config", "respool.toml"])
        .env("RESPOOL__STATE_DIR", &copy)
        .output()
        .unwrap();
    let rows: Value = serde_json::from_slice(&restored.stdout).unwrap();
    assert_eq!(rows[0]["model"], "gpt-oss-20b");
    let served = Served::with_file(&toml, &[("RESPOOL__STATE_DIR", copy.to_str().unwrap())]);
    assert_eq!(exchange(served.address, &chat("gpt-oss-20b")).await.status, 200);
}

/// Regression: the error asked for the `state_dir` that was set.
#[test]
fn a_relay_alone_migrates_without_runs() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("usage.db"), "").unwrap();
    let toml = format!("state_dir = {:?}\n", dir.path());
    let (code, _, said) = run(&["store", "migrate", "--to", "postgres://127.0.0.1:9/x"], Some(&toml), &[]);
    assert!(code == 0 && said.contains("usage records follow by themselves"), "{said}");
}
