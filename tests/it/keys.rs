//! Keys with names: what each permits, how it is counted, and that a changed file holds without a restart.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use store::KeyUsage;

use crate::agents::{self, QUESTION, READ, client_tools, echoing, next_turn, scripts};
use crate::lifecycle::Served;
use crate::support::accumulate::Rules;
use crate::support::client::{Client, Reply, Request, exchange};
use crate::support::fake_vllm::FakeVllm;
use crate::support::look_within;
use crate::support::replies;
use crate::support::respool::Respool;
use crate::support::script::Script;
use crate::support::scripted_tools::ScriptedTools;
use crate::support::wait_until;
use crate::tools_route;

const ALICE: &str = "sk-alice-0123456789";
const BOB: &str = "sk-bob-0123456789";

/// A respool with an agent, whose keys stand in `keys.toml` of `dir`.
async fn with_keys(fake: &FakeVllm, dir: &Path, keys: &str) -> Respool {
    std::fs::write(dir.join("keys.toml"), keys).unwrap();
    started(fake, dir).await
}

async fn started(fake: &FakeVllm, dir: &Path) -> Respool {
    started_with(fake, dir, &echoing()).await
}

async fn started_with(fake: &FakeVllm, dir: &Path, tools: &Arc<ScriptedTools>) -> Respool {
    let (path, url) = (dir.display(), fake.url());
    let toml = format!(
        "client_keys_file = \"{path}/keys.toml\"\nstate_dir = \"{path}\"\n[log]\nerrors_dir = \"{path}/logs\"\n\
         [agents.helper]\nmodel = \"gpt-oss-20b\"\n[[upstream]]\nurl = \"{url}\"\n"
    );
    Respool::started(&toml, Some(Arc::clone(tools))).await
}

fn of(key: &str, request: Request) -> Request {
    request.header("authorization", &format!("Bearer {key}"))
}

fn chat(model: &str) -> Value {
    json!({"model": model, "messages": [{"role": "user", "content": "What is the capital of France?"}]})
}

/// As OpenClaw sends it.
fn of_openclaw(key: &str) -> Request {
    let mut body = chat("gpt-oss-20b");
    body["messages"][0] =
        json!({"role": "system", "content": "You are a personal assistant running inside OpenClaw."});
    of(key, Request::chat(&body)).header("user-agent", "OpenAI/JS 7.15.0")
}

async fn ask(respool: &Respool, key: &str, request: Request) -> Reply {
    exchange(respool.address, &of(key, request)).await
}

fn code(reply: &Reply) -> (u16, String) {
    (reply.status, reply.error()["code"].as_str().unwrap_or_default().to_owned())
}

fn no_such_model() -> (u16, String) {
    (404, "model_not_found".to_owned())
}

/// The audit log did not say who asked.
#[tokio::test]
async fn tools_know_the_key_after_restart() {
    let exec = ("exec", r#"{"command":"x"}"#);
    let turns = [replies::calls(&[READ, QUESTION]), replies::calls(&[exec]), replies::text("Done.")];
    let (fake, dir, tools) =
        (FakeVllm::start(scripts(&turns)).await, tempfile::tempdir().unwrap(), echoing());
    std::fs::write(dir.path().join("keys.toml"), format!("alice = '{ALICE}'\n")).unwrap();
    let respool = started_with(&fake, dir.path(), &tools).await;
    let mut body = agents::ask(false);
    body["tools"] = client_tools();
    let reply = ask(&respool, ALICE, Request::chat(&body)).await.json();
    let id = reply["choices"][0]["message"]["tool_calls"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(tools.keys(), [Some("alice".to_owned())]);
    respool.killed().await;
    let respool = started_with(&fake, dir.path(), &tools).await;
    let reply = ask(&respool, ALICE, Request::chat(&next_turn(&body, &id, "yes"))).await;
    assert_eq!(reply.json()["choices"][0]["message"]["content"], "Done.");
    assert_eq!(tools.keys(), [Some("alice".to_owned()), Some("alice".to_owned())]);
}

/// A form with a file between these models.
fn form_of(models: &[&str]) -> Request {
    let field = |model: &&str| format!("form-data; name=\"model\"\r\n\r\n{model}");
    let mut parts: Vec<String> = models.iter().map(field).collect();
    let file = "form-data; name=\"file\"; filename=\"a\"\r\n\r\nRIFF";
    parts.insert(parts.len().min(1), file.to_owned());
    let parts: Vec<String> =
        parts.iter().map(|part| format!("--x\r\nContent-Disposition: {part}\r\n")).collect();
    Request::new("POST", "/v1/audio/transcriptions", format!("{}--x--\r\n", parts.concat()))
        .header("content-type", "multipart/form-data; boundary=x")
}

#[tokio::test]
async fn keys_open_their_models_and_agents() {
    let (fake, dir) = (FakeVllm::start([]).await, tempfile::tempdir().unwrap());
    fake.otherwise(Script::json(200, &replies::text("Paris")).unchecked());
    let keys = format!("bob = '{BOB}'\n[alice]\nkey = '{ALICE}'\nmodels = ['gpt-oss-*']\nagents = []\n");
    let respool = with_keys(&fake, dir.path(), &keys).await;
    let listed = async |key| {
        let models = ask(&respool, key, Request::get("/v1/models")).await.json();
        let ids =
            models["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap().to_owned());
        ids.collect::<Vec<_>>()
    };
    assert_eq!(listed(ALICE).await, ["gpt-oss-20b"]);
    assert_eq!(listed(BOB).await, ["gpt-oss-20b", "helper"]);
    assert_eq!(ask(&respool, ALICE, Request::get("/v1/models/helper")).await.status, 404);
    assert_eq!(ask(&respool, ALICE, Request::chat(&chat("gpt-oss-20b"))).await.status, 200);
    assert_eq!(ask(&respool, ALICE, form_of(&["gpt-oss-20b"])).await.status, 200);
    let before = fake.requests().len();
    for model in ["helper", "llama", ""] {
        let reply = ask(&respool, ALICE, Request::chat(&chat(model))).await;
        assert_eq!(code(&reply), no_such_model(), "{model}");
    }
    // The last of several counts, here as for Python; and a name may be escaped.
    for body in [
        r#"{"model":"gpt-oss-20b","model":"llama","messages":[{"role":"user","content":"hi"}]}"#,
        // Some servers take the first.
        r#"{"model":"llama","model":"gpt-oss-20b","messages":[{"role":"user","content":"hi"}]}"#,
        r#"{"model":"llama","mod\u0065l":"gpt-oss-20b","messages":[{"role":"user","content":"hi"}]}"#,
        r#"{"mod\u0065l":"llama","messages":[{"role":"user","content":"hi"}]}"#,
        r#"{"messages":[{"role":"user","content":"hi"}]}"#,
    ] {
        for path in ["/v1/chat/completions", "/v1/completions"] {
            let reply = ask(&respool, ALICE, Request::post(path, body)).await;
            assert!([400, 404].contains(&reply.status), "{path} {body} {}", reply.text());
        }
    }
    // A byte order mark, which one parser takes and another does not.
    let marked = "\u{feff}{\"model\":\"llama\",\"max_tokens\":9,\"input\":\"hi\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}";
    for path in [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/messages/count_tokens",
    ] {
        let reply = ask(&respool, ALICE, Request::post(path, marked)).await;
        assert!([400, 404].contains(&reply.status), "{path} {}", reply.text());
    }
    let form =
        Request::post("/v1/audio/transcriptions", "--x\r\n").header("content-type", "multipart/form-data");
    for (request, status) in [
        (Request::post("/v1/embeddings", r#"{"model":"bge","input":"x"}"#), 404),
        (Request::post("/v1/embeddings", r#"{"input":"x"}"#), 400),
        (Request::post("/invocations", r#"{"model":"llama","prompt":"x"}"#), 404),
        (form, 400),
        (form_of(&[]), 400),
        (form_of(&["llama"]), 404),
        (form_of(&["gpt-oss-20b", "llama"]), 400),
        (form_of(&["llama", "gpt-oss-20b"]), 400),
        (Request::post("/v1/runs_elsewhere", r#"{"model":"llama"}"#), 403),
        (Request::post("/v1/runs/x/elsewhere", r#"{"model":"llama"}"#), 404),
        (Request::post("/hooks/x", "{}"), 404),
        (Request::new("TRACE", "/v1/x", ""), 405),
    ] {
        assert_eq!(ask(&respool, ALICE, request).await.status, status);
    }
    assert_eq!(fake.requests().len(), before, "nothing of this went up");
    let allowed = r#"{"model":"gpt-oss-emb","input":"x"}"#;
    assert_eq!(ask(&respool, ALICE, Request::post("/v1/embeddings", allowed)).await.status, 200);
    assert_eq!(fake.requests().last().unwrap().body, allowed.as_bytes());
    assert_eq!(ask(&respool, BOB, Request::chat(&chat("helper"))).await.status, 200);
}

#[tokio::test]
async fn key_files_reload_without_restart() {
    let (fake, dir) = (FakeVllm::start([]).await, tempfile::tempdir().unwrap());
    let respool = with_keys(&fake, dir.path(), &format!("alice = '{ALICE}'")).await;
    let status = async |key| ask(&respool, key, Request::get("/v1/runs")).await.status;
    assert_eq!((status(ALICE).await, status(BOB).await), (200, 401));
    std::fs::write(dir.path().join("keys.toml"), format!("bob = '{BOB}'")).unwrap();
    wait_until("the file is read", async || status(ALICE).await == 401).await;
    assert_eq!((status(ALICE).await, status(BOB).await), (401, 200));
}

#[tokio::test]
async fn limits_answer_429_with_the_wait() {
    let (fake, dir) =
        (FakeVllm::always(Script::json(200, &replies::text("Paris"))).await, tempfile::tempdir().unwrap());
    let keys = format!("bob = '{BOB}'\n[alice]\nkey = '{ALICE}'\nrequests_per_minute = 2\n");
    let respool = with_keys(&fake, dir.path(), &keys).await;
    for _ in 0..2 {
        assert_eq!(ask(&respool, ALICE, Request::chat(&chat("gpt-oss-20b"))).await.status, 200);
        // A list is no request to a model.
        assert_eq!(ask(&respool, ALICE, Request::get("/v1/models")).await.status, 200);
    }
    for request in [
        Request::chat(&chat("gpt-oss-20b")),
        Request::post("/v1/embeddings", "{}"),
        Request::chat(&chat("helper")),
    ] {
        let reply = ask(&respool, ALICE, request).await;
        assert_eq!(code(&reply), (429, "key_limit_reached".to_owned()));
        let wait: u64 = reply.headers.get("retry-after").unwrap().parse().unwrap();
        assert!((50..=60).contains(&wait), "{wait}");
    }
    let reply = exchange(respool.address, &of_openclaw(ALICE)).await;
    assert_eq!(code(&reply), (422, "key_limit_reached".to_owned()));
    assert_eq!(reply.error()["type"], "invalid_request_error");
    assert_eq!(reply.headers.get("retry-after"), None);
    assert_eq!(fake.requests().len(), 2);
    assert_eq!(exchange(respool.address, &of_openclaw(BOB)).await.status, 200, "another key, other counters");
}

#[tokio::test]
async fn so_many_requests_at_a_time() {
    let (fake, dir) = (FakeVllm::start([]).await, tempfile::tempdir().unwrap());
    let keys = format!("[alice]\nkey = '{ALICE}'\nmax_concurrency = 1\n");
    let respool = with_keys(&fake, dir.path(), &keys).await;
    for request in [Request::chat(&chat("gpt-oss-20b")), Request::post("/v1/embeddings", "{}")] {
        fake.otherwise(Script::silence());
        let holding = Client::sending(respool.address, &of(ALICE, request)).await;
        fake.wait_for_requests(fake.requests().len() + 1).await;
        let refused = ask(&respool, ALICE, Request::chat(&chat("gpt-oss-20b"))).await;
        assert_eq!(code(&refused), (429, "key_limit_reached".to_owned()));
        assert!(refused.headers.get("retry-after").is_some());
        holding.reset();
        fake.otherwise(Script::json(200, &replies::text("Paris")).unchecked());
        // The place is free as soon as the client has gone.
        let status = async || ask(&respool, ALICE, Request::chat(&chat("gpt-oss-20b"))).await.status;
        wait_until("the place is free", async || status().await == 200).await;
    }
}

/// A request of either other wire, and one for its tokens.
fn other_wires(model: &str) -> [Request; 3] {
    let said = json!([{"role": "user", "content": "What is the capital of France?"}]);
    let message = json!({"model": model, "max_tokens": 100, "messages": said}).to_string();
    let response = json!({"model": model, "input": said, "store": false}).to_string();
    [
        Request::post("/v1/responses", response),
        Request::post("/v1/messages", message.clone()),
        Request::post("/v1/messages/count_tokens", message),
    ]
}

#[tokio::test]
async fn other_apis_need_the_same_keys() {
    let (fake, dir) = (FakeVllm::start([]).await, tempfile::tempdir().unwrap());
    fake.otherwise(Script::sse(replies::text_stream(&["Paris"], true)).unchecked());
    let keys = format!("[alice]\nkey = '{ALICE}'\nmodels = ['gpt-oss-*']\nrequests_per_minute = 3\n");
    let respool = with_keys(&fake, dir.path(), &keys).await;
    for request in other_wires("gpt-oss-20b") {
        assert_eq!(exchange(respool.address, &request).await.status, 401, "{request:?}");
        assert_eq!(ask(&respool, "sk-wrong-0123456789", request.clone()).await.status, 401, "{request:?}");
    }
    for request in other_wires("llama") {
        let reply = ask(&respool, ALICE, request.clone()).await;
        assert!(
            reply.status == 404 && reply.text().contains("does not exist for this key"),
            "{}",
            reply.text()
        );
    }
    assert_eq!(fake.requests().len(), 0, "nothing of this went up");
    for request in other_wires("gpt-oss-20b") {
        assert_eq!(ask(&respool, ALICE, request.clone()).await.status, 200, "{request:?}");
    }
    assert_eq!(used(&respool, "alice").await, (2, 2 * 162), "two turns; a count costs nothing");
    for request in other_wires("gpt-oss-20b") {
        let reply = ask(&respool, ALICE, request.clone()).await;
        assert_eq!(reply.status, 429, "{request:?}");
        assert!(reply.headers.get("retry-after").is_some());
    }
    assert_eq!(fake.requests().len(), 2);
}

/// Regression: the error about a missing model named all models of the server.
#[tokio::test]
async fn errors_name_no_models_of_other_keys() {
    let (fake, dir) = (FakeVllm::start([]).await, tempfile::tempdir().unwrap());
    fake.serve_models(&["gpt-oss-20b", "secret-llama"]);
    let missing = replies::error(404, "The model `gpt-oss-x` does not exist.", "NotFoundError");
    fake.otherwise(Script::json(404, &missing).unchecked());
    let keys = format!("[alice]\nkey = '{ALICE}'\nmodels = ['gpt-oss-*']\n");
    let respool = with_keys(&fake, dir.path(), &keys).await;
    let reply = ask(&respool, ALICE, Request::chat(&chat("gpt-oss-x"))).await;
    let expected = "The model `gpt-oss-x` does not exist. `/v1/models` lists the available ones";
    assert_eq!((reply.status, &reply.error()["message"]), (404, &json!(expected)));
}

/// The requests and tokens that a key has used today.
async fn used(respool: &Respool, key: &str) -> (u64, u64) {
    respool.usage.save_keys().await;
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let rows: Vec<KeyUsage> = respool.agents.store().unwrap().key_usage_on(since / 86_400).await.unwrap();
    let rows = rows.iter().filter(|row| row.key == key);
    rows.fold((0, 0), |sum, row| (sum.0 + row.requests, sum.1 + row.prompt + row.completion))
}

#[tokio::test]
async fn tokens_are_counted_on_every_route() {
    let (fake, dir) = (FakeVllm::start([]).await, tempfile::tempdir().unwrap());
    let respool = with_keys(&fake, dir.path(), &format!("alice = '{ALICE}'")).await;
    let streamed = {
        let mut body = chat("gpt-oss-20b");
        body["stream"] = true.into();
        body
    };
    let embedded = json!({"data": [], "usage": {"prompt_tokens": 9, "total_tokens": 9}});
    let completed = format!(
        "data: {}\n\ndata: [DONE]\n\n",
        json!({"usage": {"prompt_tokens": 4, "completion_tokens": 5}})
    );
    let whole = || Script::json(200, &replies::text("Paris")).unchecked();
    let stream = || Script::sse(replies::text_stream(&["Paris"], true)).unchecked();
    let mut sum = (0, 0);
    for (request, script, tokens) in [
        (Request::chat(&tools_route::request()), whole(), 162),
        (Request::chat(&chat("gpt-oss-20b")), whole(), 162),
        (Request::chat(&streamed), stream(), 162),
        (Request::post("/v1/completions", "{}"), whole(), 162),
        (Request::post("/v1/completions", "{}"), Script::sse([completed]).unchecked(), 9),
        (Request::post("/v1/embeddings", "{}"), Script::json(200, &embedded).unchecked(), 9),
        // The agent's model calls count, its own reply does not count again.
        (Request::chat(&chat("helper")), whole(), 162),
    ] {
        fake.otherwise(script);
        assert_eq!(ask(&respool, ALICE, request.clone()).await.status, 200, "{request:?}");
        sum = (sum.0 + 1, sum.1 + tokens);
        assert_eq!(used(&respool, "alice").await, sum, "{request:?}");
    }
    for request in [Request::get("/v1/models"), Request::get("/v1/runs"), Request::post("/tokenize", "{}")] {
        ask(&respool, ALICE, request).await;
    }
    fake.otherwise(Script::json(400, &replies::error(400, "no", "BadRequestError")).unchecked());
    ask(&respool, ALICE, Request::post("/v1/embeddings", "{}")).await;
    assert_eq!(used(&respool, "alice").await, sum, "these cost nothing");
}

#[tokio::test]
async fn clients_that_leave_pay_too() {
    let (fake, dir) = (FakeVllm::start([]).await, tempfile::tempdir().unwrap());
    fake.allow_cut_requests();
    let respool = with_keys(&fake, dir.path(), &format!("alice = '{ALICE}'")).await;
    let mut body = chat("gpt-oss-20b");
    body["stream"] = true.into();
    let words = vec!["word "; 50];
    let mut frames = replies::text_stream(&words, true);
    frames.truncate(51);
    fake.otherwise(Script::sse(frames).then_stall().unchecked());
    let mut client = Client::sending(respool.address, &of(ALICE, Request::chat(&body))).await;
    assert_eq!(client.head().await.status, 200);
    let mut got = 0;
    while got < 5_000 {
        got += client.chunk().await.unwrap().bytes.len();
    }
    client.reset();
    let look = async || Some(used(&respool, "alice").await).filter(|seen| seen.0 > 0);
    let seen = look_within(Duration::from_mins(1), look).await.expect("the request is counted");
    let prompt = body.to_string().len() as u64 / 4;
    assert!(seen.0 == 1 && seen.1 >= prompt + 12 && seen.1 < prompt + 60, "{seen:?} {prompt}");
}

#[tokio::test]
async fn daily_tokens_survive_a_restart() {
    let (fake, dir) =
        (FakeVllm::always(Script::json(200, &replies::text("Paris"))).await, tempfile::tempdir().unwrap());
    let keys = |key: &str| format!("[alice]\nkey = '{key}'\ntokens_per_day = 300\n");
    let respool = with_keys(&fake, dir.path(), &keys(ALICE)).await;
    for _ in 0..2 {
        assert_eq!(ask(&respool, ALICE, Request::chat(&chat("gpt-oss-20b"))).await.status, 200);
    }
    assert_eq!(ask(&respool, ALICE, Request::chat(&chat("gpt-oss-20b"))).await.status, 429);
    respool.killed().await;
    let respool = with_keys(&fake, dir.path(), &keys(BOB)).await;
    let refused = ask(&respool, BOB, Request::chat(&chat("gpt-oss-20b"))).await;
    assert_eq!(code(&refused), (429, "key_limit_reached".to_owned()));
    assert!(refused.error()["message"].as_str().unwrap().contains("300 tokens a day"), "{}", refused.text());
    let wait: u64 = refused.headers.get("retry-after").unwrap().parse().unwrap();
    assert!((1..=86_400).contains(&wait), "{wait}");
    assert_eq!(exchange(respool.address, &of_openclaw(BOB)).await.status, 422);
}

#[tokio::test]
async fn detached_runs_keep_paying() {
    let (fake, dir) = (FakeVllm::start([]).await, tempfile::tempdir().unwrap());
    let path = dir.path().display();
    std::fs::write(dir.path().join("keys.toml"), format!("alice = '{ALICE}'")).unwrap();
    fake.then(Script::json(200, &replies::calls(&[READ])).delay(Duration::from_millis(300)));
    fake.then(Script::json(200, &replies::text("It says hello.")));
    let toml = format!(
        "client_keys_file = \"{path}/keys.toml\"\nstate_dir = \"{path}\"\n[log]\nerrors_dir = \"{path}/logs\"\n\
         [agents.helper]\nmodel = \"gpt-oss-20b\"\non_disconnect = \"detach\"\n[[upstream]]\nurl = \"{}\"\n",
        fake.url()
    );
    let respool = Respool::started(&toml, Some(echoing())).await;
    let client = Client::sending(respool.address, &of(ALICE, Request::chat(&chat("helper")))).await;
    fake.wait_for_requests(1).await;
    client.reset();
    let look = async || Some(used(&respool, "alice").await).filter(|seen| seen.0 == 2);
    let seen = look_within(Duration::from_mins(1), look).await.expect("both calls are counted");
    assert_eq!(seen, (2, 2 * 162));
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_never_show_keys() {
    let (fake, dir) =
        (FakeVllm::always(Script::json(200, &replies::text("Paris"))).await, tempfile::tempdir().unwrap());
    let (path, url) = (dir.path().display(), fake.url());
    std::fs::write(dir.path().join("keys.toml"), format!("alice = '{ALICE}'")).unwrap();
    let toml = format!(
        "client_keys_file = \"{path}/keys.toml\"\nstate_dir = \"{path}/state\"\nclient_keys = [\"sk-unnamed-012345\"]\n[[upstream]]\nurl = \"{url}\"\n"
    );
    let served = Served::with_file(&toml, &[]);
    for (key, name, route) in [
        (ALICE, json!("alice"), "passthrough"),
        ("sk-unnamed-012345", json!("client_keys[3f2b92]"), "passthrough"),
        ("sk-wrong-0123456789", Value::Null, "refused"),
    ] {
        exchange(served.address, &of(key, Request::chat(&chat("gpt-oss-20b")))).await;
        let line = served.request_line();
        assert_eq!((&line["key"], &line["route"]), (&name, &json!(route)));
        assert!(!line.to_string().contains("sk-"), "{line}");
    }
}

#[tokio::test]
async fn keys_do_not_change_streams() {
    let (fake, dir) = (FakeVllm::start([]).await, tempfile::tempdir().unwrap());
    let respool = with_keys(&fake, dir.path(), &format!("alice = '{ALICE}'")).await;
    let mut body = chat("gpt-oss-20b");
    body["stream"] = true.into();
    fake.otherwise(Script::sse(replies::text_stream(&["Pa", "ris"], false)));
    let turn = ask(&respool, ALICE, Request::chat(&body)).await.stream(&Rules::default());
    assert_eq!(turn.choices[&0].content, "Paris");
}
