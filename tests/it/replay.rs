//! Exchanges that `[capture]` keeps: on the page of a request, and replayed.

use std::path::Path;

use serde_json::{Value, json};
use telemetry::{CaptureConfig, Captures, Exchange};

use crate::support::client::{Request, exchange};
use crate::support::fake_vllm::FakeVllm;
use crate::support::respool::Respool;
use crate::support::script::Script;
use crate::support::served::{Served, program};
use crate::support::{eventually, replies, requests};

async fn started(fake: &FakeVllm, dir: &Path, keys: &str) -> Respool {
    let (path, url) = (dir.display(), fake.url());
    let toml = format!(
        "state_dir = \"{path}\"\n[capture]\nkeys = {keys}\n[[upstream]]\nname = \"box\"\nurl = \"{url}\"\n"
    );
    std::fs::write(dir.join("respool.toml"), &toml).unwrap();
    Respool::configured(&toml).await
}

async fn kept(dir: &Path, id: &str) -> Exchange {
    let captures = Captures::new(dir, CaptureConfig::default());
    eventually(|| captures.find(id, None)).await
}

async fn page_of(respool: &Respool, id: &str) -> String {
    let request = Request::get(&format!("/ui/requests/{id}")).without("host").header("host", "127.0.0.1");
    exchange(respool.address, &request).await.text()
}

fn replay(dir: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = program(dir, &[&["replay"], arguments].concat());
    let output = command.env("RESPOOL_CONFIG", "respool.toml").output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// A reply that was useless at first and a stream: both are kept, shown, and replayed.
#[tokio::test(flavor = "multi_thread")]
async fn a_kept_exchange_is_shown_and_replayed() {
    let (fake, dir) = (FakeVllm::start([]).await, tempfile::tempdir().unwrap());
    let respool = started(&fake, dir.path(), r#"["*"]"#).await;
    let body = requests::with_tools();
    fake.then(Script::json(200, &replies::completion(&json!({"content": null, "reasoning": "Hm."}), "stop")));
    fake.then(Script::json(200, &replies::text("my password: hunter22-x")));
    let reply = exchange(respool.address, &Request::chat(&body).header("x-request-id", "first")).await;
    assert_eq!(reply.status, 200);
    let first = kept(dir.path(), "first").await;
    assert_eq!(first.client_request, body.to_string());
    assert_eq!(
        (first.attempts.len(), first.attempts[0].reply.status, first.client_reply.status),
        (2, 200, 200)
    );
    assert!(first.attempts[0].reply.body.contains("Hm."), "{first:?}");
    assert!(first.client_reply.body.contains("password: [redacted]"), "{first:?}");
    assert!(first.client_reply.body.ends_with("data: [DONE]\n\n"), "{first:?}");

    // The next prompt of the conversation begins differently.
    let mut next = body.clone();
    next["messages"][0]["content"] = "It is nine.".into();
    fake.then(Script::json(200, &replies::text("Hello")));
    exchange(respool.address, &Request::chat(&next).header("x-request-id", "second")).await;
    kept(dir.path(), "second").await;
    let page = page_of(&respool, "second").await;
    assert!(
        page.contains("first differs from this conversation") && page.contains("1. Sent to box"),
        "{page}"
    );
    assert!(page.contains("respool replay second") && page.contains("It is nine."), "{page}");

    fake.then(Script::sse(replies::text_stream(&["Hel", "lo"], true)));
    let plain = Request::chat(&requests::without_tools());
    exchange(respool.address, &plain.header("x-request-id", "third")).await;
    let third = kept(dir.path(), "third").await;
    assert!(third.attempts[0].reply.body.starts_with("data: {"), "a stream is kept as it came: {third:?}");

    for id in ["first", "second", "third"] {
        let (code, shown, errors) = replay(dir.path(), &[id]);
        assert_eq!(code, Some(0), "{shown}{errors}");
        assert!(shown.contains("it gets the same now") && shown.contains("1. box: HTTP 200"), "{shown}");
    }
    let (code, shown, _) = replay(dir.path(), &["--json"]);
    let list: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(
        (code, &list[0]["id"], &list[2]["attempts"]),
        (Some(0), &json!("third"), &json!(2)),
        "{shown}"
    );
}

/// Regressions: replaying a stream that broke off invented a difference, a page of a proxy was kept as
/// nothing, and a request that another upstream had rescued was replayed as a failure.
#[tokio::test(flavor = "multi_thread")]
async fn failures_are_replayed_as_they_were() {
    let (fake, other) = (FakeVllm::start([]).await, FakeVllm::start([]).await);
    let dir = tempfile::tempdir().unwrap();
    let toml = format!(
        "state_dir = \"{}\"\n[capture]\nkeys = [\"*\"]\n[[upstream]]\nname = \"box\"\nurl = \"{}\"\n\
         [[upstream]]\nname = \"other\"\nurl = \"{}\"\n",
        dir.path().display(),
        fake.url(),
        other.url()
    );
    std::fs::write(dir.path().join("respool.toml"), &toml).unwrap();
    let respool = Respool::configured(&toml).await;
    let ask = async |respool: &Respool, id: &str| {
        let mut body = requests::without_tools();
        body["messages"][0]["content"] = id.into();
        exchange(respool.address, &Request::chat(&body).header("x-request-id", id)).await;
        kept(dir.path(), id).await
    };
    let same = |id: &str| {
        let (code, shown, errors) = replay(dir.path(), &[id]);
        assert_eq!(code, Some(0), "{shown}{errors}");
    };
    let all = |script: Script| [&fake, &other].iter().for_each(|fake| fake.otherwise(script.clone()));
    all(Script::sse(replies::text_stream(&["Hello"], true)[..2].to_vec()));
    let broken = ask(&respool, "broken").await;
    assert!(broken.client_reply.body.contains("in the middle of the reply"), "{broken:?}");
    same("broken");
    all(Script::whole(200, "text/html", "<html>log in first</html>"));
    let html = ask(&respool, "html").await;
    assert!(html.attempts.last().unwrap().reply.body.contains("log in first"), "{html:?}");
    same("html");
    fake.otherwise(Script::json(500, &replies::error(500, "out of memory", "server_error")));
    other.otherwise(Script::sse(replies::text_stream(&["Hello"], true)));
    // Conversations are divided among the two; the one that fails gets most of them.
    let toml = toml.replacen("name = \"box\"", "name = \"box\"\nweight = 3", 1);
    for question in 0..40 {
        // With closed circuits.
        let (respool, id) = (Respool::configured(&toml).await, format!("rescued{question}"));
        let attempts = ask(&respool, &id).await.attempts;
        let upstreams: Vec<_> = attempts.iter().map(|attempt| &*attempt.upstream).collect();
        if upstreams == ["box", "other"] {
            return same(&id);
        }
    }
    panic!("no request was rescued");
}

/// The kept file is changed, as if an earlier version had read the reply differently.
#[tokio::test(flavor = "multi_thread")]
async fn a_difference_is_shown_and_is_a_failure() {
    let (fake, dir) = (FakeVllm::start([]).await, tempfile::tempdir().unwrap());
    let respool = started(&fake, dir.path(), r#"["*"]"#).await;
    fake.then(Script::sse(replies::text_stream(&["Hello"], true)));
    exchange(respool.address, &Request::chat(&requests::without_tools()).header("x-request-id", "r")).await;
    let mut exchange = kept(dir.path(), "r").await;
    exchange.client_reply.body = exchange.client_reply.body.replace("Hello", "Hallo");
    let report = dir.path().join("report.json");
    std::fs::write(&report, serde_json::to_vec(&exchange).unwrap()).unwrap();
    let (code, shown, errors) = replay(dir.path(), &[report.to_str().unwrap()]);
    assert_eq!(code, Some(1), "{errors}");
    assert!(shown.contains("  text       Hallo") && shown.contains("> text       Hello"), "{shown}");
    let (code, _, errors) = replay(dir.path(), &["unknown"]);
    assert!(code == Some(1) && errors.contains("no exchange of the request `unknown` is kept"), "{errors}");
}

#[tokio::test]
async fn nothing_is_kept_of_other_keys() {
    let (fake, dir) = (FakeVllm::start([]).await, tempfile::tempdir().unwrap());
    let respool = started(&fake, dir.path(), r#"["alice"]"#).await;
    fake.then(Script::sse(replies::text_stream(&["Hello"], true)));
    exchange(respool.address, &Request::chat(&requests::without_tools()).header("x-request-id", "r")).await;
    let page = page_of(&respool, "r").await;
    assert!(
        page.contains("was sent and received was not kept") && !page.contains("The client sent"),
        "{page}"
    );
    assert!(!dir.path().join("captures").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_has_streamed_replies() {
    let fake = FakeVllm::start([Script::sse(replies::text_stream(&["Hel", "lo"], true))]).await;
    let url = fake.url();
    let toml = format!("[log]\ncontent = true\n[[upstream]]\nname = \"box\"\nurl = \"{url}\"\n");
    let served = Served::with_file(&toml, &[]);
    exchange(served.address, &Request::chat(&requests::without_tools())).await;
    let next =
        || served.lines.recv_timeout(std::time::Duration::from_mins(1)).expect("a line with the reply");
    let line = std::iter::repeat_with(next).find(|line| line["what"] == "upstream reply").unwrap();
    let text = line["text"].as_str().unwrap();
    assert!(text.starts_with("data: {") && text.contains("Hel") && text.contains("[DONE]"), "{line}");
}
