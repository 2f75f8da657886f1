//! Requests that a server refuses are adapted, learned from and sent right the next time.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::client::{Request, exchange};
use crate::support::fake_vllm::{FakeVllm, Seen};
use crate::support::replies;
use crate::support::respool::Respool;
use crate::support::script::Script;
use respool::adapt::{Loss, Row, Rule, TABLE, row_of};

fn refusal(status: u16, words: &str) -> Script {
    Script::json(status, &replies::error(status, words, "BadRequestError"))
}

fn ok() -> Script {
    Script::json(200, &replies::text("ok"))
}

/// The fields of a row's example; each tool has a description, which respool would add otherwise.
fn fields(text: &str) -> Value {
    let mut fields: Value = serde_json::from_str(text).unwrap();
    for tool in fields.get_mut("tools").and_then(Value::as_array_mut).into_iter().flatten() {
        tool["function"]["description"] = json!("d");
    }
    fields
}

/// A whole request from the fields of a row's example.
fn request(text: &str) -> Value {
    let mut body = fields(text);
    body["model"] = json!("m");
    if body.get("messages").is_none() {
        body["messages"] = json!([{"role": "user", "content": "hi"}]);
    }
    body
}

#[tokio::test]
async fn one_refusal_teaches_each_rule() {
    for row in TABLE.iter().filter(|row| row.loss != Loss::Lossy) {
        let (before, after) = row.example;
        let fake = FakeVllm::start([refusal(400, row.said[0].1), ok(), ok()]).await;
        let respool = Respool::before(&fake).await;
        for _ in 0..2 {
            let reply = exchange(respool.address, &Request::chat(&request(before))).await;
            assert_eq!(reply.status, 200, "{}", row.rule);
        }
        let sent: Vec<Value> = fake.requests().iter().map(Seen::json).collect();
        assert_eq!(sent.len(), 3, "{}: the first turn takes two requests, the next one", row.rule);
        for (field, value) in fields(after).as_object().unwrap() {
            assert_eq!((&sent[1][field], &sent[2][field]), (value, value), "{}", row.rule);
        }
    }
}

#[tokio::test]
async fn lossy_rules_need_consent() {
    let body = request(r#"{"messages":[{"role":"system","content":"a"},{"role":"user","content":"b"}]}"#);
    let fake = FakeVllm::always(refusal(400, "System role not supported")).await;
    let respool = Respool::before(&fake).await;
    let reply = exchange(respool.address, &Request::chat(&body)).await;
    assert_eq!((reply.status, fake.requests().len()), (400, 1));
    assert!(reply.text().contains(r#"`[adapt] lossy = [\"messages.system_as_user\"]`"#), "{}", reply.text());
}

#[tokio::test]
async fn lossy_rules_apply_with_consent() {
    let body = request(r#"{"messages":[{"role":"system","content":"a"},{"role":"user","content":"b"}]}"#);
    let fake = FakeVllm::start([refusal(400, "System role not supported"), ok()]).await;
    let respool = Respool::with(&fake, "[adapt]\nlossy = [\"messages.*\"]").await;
    assert_eq!(exchange(respool.address, &Request::chat(&body)).await.status, 200);
    assert_eq!(fake.requests()[1].json()["messages"], json!([{"role": "user", "content": "a\n\nb"}]));
}

#[tokio::test]
async fn pictures_stay_where_media_is_false() {
    let row = row_of(&Rule::NoImages).unwrap();
    let fake = FakeVllm::always(refusal(500, row.said[0].1)).await;
    let respool = Respool::with(&fake, "[adapt]\nmedia = false").await;
    let reply = exchange(respool.address, &Request::chat(&request(row.example.0))).await;
    assert_eq!((reply.status >= 400, fake.requests().len()), (true, 1));
    assert!(reply.text().contains("`[adapt] media = true`"), "{}", reply.text());
}

#[tokio::test]
async fn unknown_refusals_reach_the_client() {
    let fake = FakeVllm::always(refusal(400, "You must be at least 13 years old")).await;
    let respool = Respool::before(&fake).await;
    let reply = exchange(respool.address, &Request::chat(&request("{}"))).await;
    assert_eq!((reply.status, fake.requests().len()), (400, 1));
}

#[tokio::test]
async fn useless_rules_are_forgotten() {
    let body = request(TABLE[0].example.0);
    let words = TABLE[0].said[0].1;
    let fake = FakeVllm::start([refusal(400, words), refusal(400, words), ok()]).await;
    let respool = Respool::before(&fake).await;
    assert_eq!(exchange(respool.address, &Request::chat(&body)).await.status, 400);
    assert_eq!(exchange(respool.address, &Request::chat(&body)).await.status, 200);
    let sent: Vec<Value> = fake.requests().iter().map(Seen::json).collect();
    assert_eq!((sent.len(), &sent[2]["tools"]), (3, &body["tools"]));
}

#[tokio::test]
async fn each_attempt_removes_one_cause() {
    let system = "System message must be at the beginning.";
    let alternate = "Conversation roles must alternate user/assistant/user/assistant/...";
    let fake = FakeVllm::start([refusal(400, system), refusal(500, alternate), ok(), ok()]).await;
    let respool = Respool::before(&fake).await;
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "a"},
        {"role": "system", "content": "s"}, {"role": "user", "content": "b"}]});
    for _ in 0..2 {
        assert_eq!(exchange(respool.address, &Request::chat(&body)).await.status, 200);
    }
    let sent: Vec<Value> = fake.requests().iter().map(Seen::json).collect();
    let expected = json!([{"role": "system", "content": "s"}, {"role": "user", "content": "a\n\nb"}]);
    assert_eq!((sent.len(), &sent[2]["messages"], &sent[3]["messages"]), (4, &expected, &expected));
}

const HEAD: &str = "# What servers refuse, and what is sent instead

When a model server refuses a request, respool reads the refusal, makes the smallest change that avoids its cause, and sends the
request again: at most four times, one named cause each. A rule is kept for that server and model once the changed request has
succeeded. The next request then goes right at once. After a day, and when the server's version changes, a request is tried unchanged.

A change that costs part of the meaning needs your consent: the refusal then names the setting. Pictures, audio and files are the
exception, because they stay in the conversation and every later request would fail: they become a text that says so, unless
`[adapt] media = false` forbids it.

This page is generated from the table of rules (`crates/adapt/src/table.rs`); to regenerate it, run
`UPDATE_DOCS=1 cargo test --test it adapt`.

| rule | refused | sent instead | lost | in whose words |
|---|---|---|---|---|
";

fn loss(row: &Row) -> String {
    match row.loss {
        Loss::Lossless | Loss::Enforced => row.lost.to_owned(),
        Loss::Lossy => format!("**needs consent**: {}", row.lost),
        Loss::Media => format!("{} (`[adapt] media`)", row.lost),
    }
}

#[test]
fn the_page_of_rules_is_current() {
    let mut page = HEAD.to_owned();
    for row in TABLE {
        let said: Vec<String> = row
            .said
            .iter()
            .map(|(server, words)| format!("{server}: “{}”", words.replace('\n', " ")))
            .collect();
        let said = said.join("<br>").replace('|', "\\|");
        writeln!(page, "| `{}` | {} | {} | {} | {said} |", row.rule, row.refused, row.change, loss(row))
            .unwrap();
    }
    page.push_str(
        "\nA single parameter that a server does not know is left out (`parameter.drop:NAME`), renamed (`parameter.rename:FROM:TO`) \
         or limited to the server's range (`parameter.at_most:NAME:NUMBER`). Leaving out `tool_choice`, `response_format`, \
         `max_tokens`, `max_completion_tokens`, `stop` or `n` needs consent.\n",
    );
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/requests.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let current = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(page == current, "docs/requests.md is not current: run UPDATE_DOCS=1 cargo test --test it adapt");
}
