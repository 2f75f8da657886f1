//! A changed configuration while the server runs, in the real program. No claim is about how fast the machine
//! is.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};

use crate::lifecycle::Served;
use crate::support::accumulate::Rules;
use crate::support::client::{Client, Reply, Request, exchange};
use crate::support::fake_vllm::FakeVllm;
use crate::support::replies;
use crate::support::script::Script;
use crate::support::wait_until;

/// The next line of the configuration's watch.
fn told(served: &Served) -> Value {
    served.line(|line| line["target"] == "respool::config", Duration::from_mins(1))
}

fn write(served: &Served, text: &str) {
    std::fs::write(served.directory.path().join("respool.toml"), text).unwrap();
}

/// Writes the file, and waits until it holds: `live` and `needs_restart` of the line.
fn change(served: &Served, text: &str) -> (Value, Value) {
    write(served, text);
    let line = tokio::task::block_in_place(|| told(served));
    assert_ne!(line["level"], "ERROR", "{line}");
    (line["live"].clone(), line["needs_restart"].clone())
}

fn upstream(url: &str) -> String {
    format!("[[upstream]]\nname = \"box\"\nurl = \"{url}\"\n")
}

fn asked(model: &str, stream: bool) -> Value {
    json!({"model": model, "stream": stream, "messages": [{"role": "user", "content": "Hi"}]})
}

async fn ask(address: SocketAddr, key: &str) -> Reply {
    let request = Request::chat(&asked("m", false));
    let request =
        if key.is_empty() { request } else { request.header("authorization", &format!("Bearer {key}")) };
    exchange(address, &request).await
}

#[test]
fn reloads_apply_fail_or_need_restart() {
    let upstream = upstream("http://127.0.0.1:9");
    let served = Served::with_file(&upstream, &[]);
    let write = |text: &str| write(&served, &format!("{text}\n{upstream}"));
    write("[budgets]\nday = 1.0\n");
    let line = told(&served);
    assert_eq!((&line["level"], &line["live"]), (&"INFO".into(), &"budgets.day".into()), "{line}");
    write("[budgets]\nday = \"much\"\n");
    let line = told(&served);
    assert!(line["level"] == "ERROR" && line["why"].as_str().unwrap().contains("budgets.day"), "{line}");
    write("[budgets]\nday = 2.0\n[tools.local]\nsandbox = \"off\"\n");
    served.signal("HUP");
    let line = told(&served);
    assert_eq!((&line["level"], &line["live"]), (&"WARN".into(), &"budgets.day".into()), "{line}");
    assert_eq!(line["needs_restart"], "tools.local.sandbox", "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_finish_where_they_began() {
    let before = FakeVllm::start([
        Script::sse(replies::text_stream(&["one", " two"], false)).pause(2, Duration::from_secs(8))
    ])
    .await;
    let after = FakeVllm::start([Script::json(200, &replies::text("from the other"))]).await;
    let served = Served::with_file(&upstream(&before.url()), &[]);
    let mut client = Client::sending(served.address, &Request::chat(&asked("m", true))).await;
    assert_eq!(client.head().await.status, 200);
    let first = client.chunk().await.unwrap();
    let (live, _) = change(&served, &format!("[limits]\nmax_body = \"1KiB\"\n{}", upstream(&after.url())));
    assert_eq!(live, "limits.max_body, upstream[0].url");
    let reply = ask(served.address, "").await;
    assert_eq!(reply.completion(&Rules::default()).choices[&0].content, "from the other");
    let large = json!({"model": "m", "messages": [{"role": "user", "content": "x".repeat(2_000)}]});
    assert_eq!(exchange(served.address, &Request::chat(&large)).await.status, 413, "the new limit holds");
    let mut rest = first.bytes;
    while let Some(chunk) = client.chunk().await {
        rest.extend(chunk.bytes);
    }
    let rest = String::from_utf8(rest).unwrap();
    assert!(rest.contains("one") && rest.contains(" two") && rest.contains("[DONE]"), "{rest}");
    assert_eq!((before.requests().len(), after.requests().len()), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn all_keys_but_the_last_reload() {
    let fake = FakeVllm::always(Script::json(200, &replies::text("hello"))).await;
    let keys = |keys: &str| format!("client_keys = [{keys}]\n{}", upstream(&fake.url()));
    let served = Served::with_file(&upstream(&fake.url()), &[]);
    assert_eq!(ask(served.address, "").await.status, 200);
    assert_eq!(change(&served, &keys("\"sk-one-0123456789\"")).0, "client_keys");
    assert_eq!(ask(served.address, "").await.status, 401, "a key is needed now");
    assert_eq!(ask(served.address, "sk-one-0123456789").await.status, 200);
    change(&served, &keys("\"sk-two-0123456789\""));
    assert_eq!(ask(served.address, "sk-one-0123456789").await.status, 401, "it has gone");
    assert_eq!(ask(served.address, "sk-two-0123456789").await.status, 200);
    let (_, waiting) = change(&served, &upstream(&fake.url()));
    assert!(waiting.as_str().unwrap().starts_with("client_keys ("), "{waiting}");
    assert_eq!(ask(served.address, "").await.status, 401, "an agent may have written the file");
    assert_eq!(ask(served.address, "sk-two-0123456789").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_files_change_nothing() {
    let fake = FakeVllm::always(Script::json(200, &replies::text("hello"))).await;
    let served = Served::with_file(&upstream(&fake.url()), &[]);
    // It is wrong as a whole: the part that is right does not hold either.
    write(&served, &format!("[limits]\nmax_body = \"10B\"\nheartbeat = \"soon\"\n{}", upstream(&fake.url())));
    let line = tokio::task::block_in_place(|| told(&served));
    assert!(line["level"] == "ERROR" && line["why"].as_str().unwrap().contains("limits.heartbeat"), "{line}");
    assert_eq!(ask(served.address, "").await.status, 200);
    let page = async || exchange(served.address, &Request::get("/")).await.text();
    assert!(page().await.contains("limits.heartbeat"));
    let alert = served.directory.path().join(".local/state/respool/alerts-open.json");
    let alerts = || std::fs::read_to_string(&alert).unwrap_or_default();
    wait_until("an alert is written", async || alerts().contains("reload_failed")).await;
    change(&served, &format!("[log]\ncontent = true\n{}", upstream(&fake.url())));
    let page = page().await;
    assert!(
        !page.contains("so the old one stays in use") && page.contains("after a restart: log.content"),
        "{page}"
    );
}

/// A model that reads the file `a` and repeats the result.
async fn reading_model() -> FakeVllm {
    FakeVllm::thinking(|request| {
        let last =
            request["messages"].as_array().and_then(|messages| messages.last()).cloned().unwrap_or_default();
        let reply = match last["role"].as_str() {
            Some("tool") => replies::text(last["content"].as_str().unwrap_or_default()),
            _ => replies::calls(&[("read", r#"{"path": "a"}"#)]),
        };
        Script::json(200, &reply)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn reloads_grant_nothing_more() {
    let (fake, work) = (reading_model().await, tempfile::tempdir().unwrap());
    std::fs::write(work.path().join("a"), "the text of the file").unwrap();
    let file = |policy: &str, agents: &str| {
        format!(
            "{agents}\n[agents.helper]\nmodel = \"m\"\ntools = [\"read\"]\n[tools.local]\nworkspace = {:?}\nsandbox = \"off\"\n\
             [tools.policy]\n{policy}\n{}",
            work.path(),
            upstream(&fake.url())
        )
    };
    let open = "default = \"allow\"";
    let served = Served::with_file(&file(open, ""), &[]);
    let answer = async || {
        let reply = exchange(served.address, &Request::chat(&asked("helper", false))).await;
        reply.json()["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned()
    };
    assert!(answer().await.contains("the text of the file"));
    let closed = "[[tools.policy.rule]]\ntool = \"read\"\nthen = \"deny\"";
    change(&served, &file(closed, ""));
    assert!(answer().await.contains("denied by rule 1"), "what it forbids holds at once");
    let (_, waiting) = change(&served, &file(open, "[agents.plain]\nmodel = \"m\"\n"));
    assert!(answer().await.contains("denied by rule 1"), "what it permits waits: {waiting}");
    let (_, waiting) = change(&served, &file(open, "[agents.other]\nmodel = \"m\"\ntools = [\"exec\"]\n"));
    let waiting = waiting.as_str().unwrap();
    assert!(waiting.contains("agents.other (a new agent") && waiting.contains("tools.policy ("), "{waiting}");
    let models = exchange(served.address, &Request::get("/v1/models")).await.text();
    assert!(models.contains("helper") && !models.contains("plain") && !models.contains("other"), "{models}");
}
