//! Another model answers in the place of one that does not: when, and who says so.

use std::time::Duration;

use serde_json::{Value, json};

use store::{Dimension, RequestQuery, UsageQuery};
use tempfile::{TempDir, tempdir};

use crate::support::accumulate::Rules;
use crate::support::client::{Client, Request, exchange};
use crate::support::fake_vllm::{FakeVllm, Seen};
use crate::support::idle_time::IdleTime;
use crate::support::other_wires;
use crate::support::replies;
use crate::support::respool::Respool;
use crate::support::script::Script;
use crate::tools_route;

const FALLBACK: &str = "[recovery]\nattempts = 0\n[models.big]\nfallback = [\"middle\", \"small\"]\n";

/// Heads and heartbeats leave early.
const EARLY: &str = "[limits]\ncommit_after = \"3s\"\nheartbeat = \"2s\"\n";
/// Longer than a head waits, and than two heartbeats.
const SILENCE: Duration = Duration::from_secs(8);

fn ok() -> Script {
    Script::json(200, &replies::text("ok"))
}

fn error(status: u16, words: &str) -> Script {
    Script::json(status, &replies::error(status, words, "BadRequestError"))
}

fn body(stream: bool) -> Value {
    json!({"model": "big", "messages": [{"role": "user", "content": "hi"}], "stream": stream})
}

fn models(seen: &[Seen]) -> Vec<String> {
    seen.iter().map(|seen| seen.json()["model"].as_str().unwrap().to_owned()).collect()
}

/// Plays these replies to one request, and returns its status and the models that were asked.
async fn play(scripts: Vec<Script>) -> (u16, Vec<String>) {
    let fake = FakeVllm::start(scripts).await;
    let respool = Respool::with(&fake, FALLBACK).await;
    let reply = exchange(respool.address, &Request::chat(&body(false))).await;
    (reply.status, models(&fake.requests()))
}

#[tokio::test]
async fn another_model_answers_when_the_first_fails() {
    let full = "This model's maximum context length is 10 tokens. However, you requested 20 tokens.";
    for failure in [error(500, "CUDA error"), error(401, "bad key"), error(400, full)] {
        assert_eq!(play(vec![failure, ok()]).await, (200, vec!["big".into(), "middle".into()]));
    }
}

#[tokio::test]
async fn all_models_are_tried_in_order() {
    let failed = || error(500, "CUDA error");
    let asked = ["big", "middle", "small"].map(str::to_owned).to_vec();
    assert_eq!(play(vec![failed(), failed(), ok()]).await, (200, asked));
}

#[tokio::test]
async fn mistakes_of_the_client_stay_its_own() {
    assert_eq!(play(vec![error(400, "temperature: not a number")]).await, (400, vec!["big".into()]));
}

#[tokio::test]
async fn the_next_request_begins_with_the_first_model() {
    let fake = FakeVllm::start([error(500, "CUDA error"), ok(), ok()]).await;
    let respool = Respool::with(&fake, FALLBACK).await;
    for _ in 0..2 {
        assert_eq!(exchange(respool.address, &Request::chat(&body(false))).await.status, 200);
    }
    assert_eq!(models(&fake.requests()), ["big", "middle", "big"]);
}

#[tokio::test]
async fn a_stream_that_breaks_before_it_speaks_falls_back() {
    let broken = Script::sse([replies::frame(&json!({"error": {"message": "CUDA error", "code": 500}}))]);
    let fake = FakeVllm::start([broken, Script::sse(replies::text_stream(&["ok"], true))]).await;
    let respool = Respool::with(&fake, FALLBACK).await;
    let reply = exchange(respool.address, &Request::chat(&body(true))).await;
    assert_eq!(reply.stream(&Rules::default()).choices[&0].content, "ok");
    assert_eq!(models(&fake.requests()), ["big", "middle"]);
}

fn streamed_ok() -> Script {
    Script::sse(replies::text_stream(&["ok"], true))
}

/// A stream of the first model that has begun, and breaks before or after its first word.
fn broken(words: &[&str]) -> Script {
    let mut frames = replies::text_stream(words, false);
    frames.truncate(1 + words.len());
    Script::sse(frames).reset()
}

/// A respool that keeps its usage rows in a directory.
async fn keeping_rows(dir: &TempDir, fake: &FakeVllm, config: &str) -> Respool {
    Respool::with(fake, &format!("state_dir = \"{}\"\n{EARLY}{config}", dir.path().display())).await
}

/// The model and the fallbacks of the only usage row.
async fn recorded(respool: &Respool) -> (String, String) {
    let query = RequestQuery { most: 9, ..RequestQuery::default() };
    let mut rows = respool.usage.records().find_requests(query).await.unwrap();
    assert_eq!(rows.len(), 1);
    let row = rows.remove(0);
    (row.model, row.details.fallback)
}

/// The head, the role and heartbeats have left, as respool's own or the upstream's.
#[tokio::test]
async fn fallbacks_continue_begun_streams() {
    let _time = IdleTime::begin();
    let late_error = replies::frame(&json!({"error": {"message": "CUDA error", "code": 500}}));
    for failure in [
        error(500, "CUDA error").delay(SILENCE),
        broken(&[]).delay(SILENCE),
        Script::sse([replies::role_frame(), late_error]).pause(1, SILENCE),
    ] {
        let (fake, dir) = (FakeVllm::start([failure, streamed_ok()]).await, tempdir().unwrap());
        let respool = keeping_rows(&dir, &fake, FALLBACK).await;
        let reply = exchange(respool.address, &Request::chat(&body(true))).await;
        let turn = reply.stream(&Rules { fallback: true, ..Rules::default() });
        assert_eq!((&*turn.choices[&0].content, &*turn.model), ("ok", "middle"), "{}", reply.text());
        assert!(turn.heartbeats >= 2, "{turn:?}");
        assert_eq!(models(&fake.requests()), ["big", "middle"]);
        assert_eq!(recorded(&respool).await, ("middle".into(), "big:failed".into()));
    }
}

/// With tools, whole and as they arrive.
#[tokio::test]
async fn fallbacks_continue_tool_turns() {
    let _time = IdleTime::begin();
    let mut asked = body(true);
    asked["tools"] = tools_route::request()["tools"].clone();
    let call = || Script::json(200, &replies::calls(&[("read", r#"{"path": "a"}"#)]));
    for (mode, answer, calls) in [("buffered", call(), 1), ("live", streamed_ok(), 0)] {
        let fake = FakeVllm::start([error(500, "CUDA error").delay(SILENCE), answer]).await;
        let config = format!("{EARLY}{FALLBACK}tools_mode = \"{mode}\"\n");
        let respool = Respool::with(&fake, &config).await;
        let reply = exchange(respool.address, &Request::chat(&asked)).await;
        let turn = reply.stream(&Rules { fallback: true, ..Rules::default() });
        assert_eq!((turn.choices[&0].tool_calls.len(), &*turn.model), (calls, "gpt-oss-20b"), "{mode}");
        assert_eq!(reply.text().matches(r#""model":"big""#).count(), 3, "{mode}: the role and heartbeats");
    }
}

#[tokio::test]
async fn a_begun_answer_stays() {
    let fake = FakeVllm::start([broken(&["half"])]).await;
    let respool = Respool::with(&fake, FALLBACK).await;
    let turn = exchange(respool.address, &Request::chat(&body(true))).await.stream(&Rules::default());
    assert_eq!(turn.choices[&0].content, "half");
    assert!(turn.error.is_some(), "nothing is repeated");
    assert_eq!(models(&fake.requests()), ["big"]);
}

fn agent_request(path: &str, stream: bool) -> Request {
    let mut asked = json!({"model": "big", "stream": stream});
    if path == "/v1/responses" {
        (asked["input"], asked["store"]) = (json!("hi"), json!(false));
    } else {
        (asked["messages"], asked["max_tokens"]) = (body(false)["messages"].clone(), json!(4000));
    }
    Request::post(path, asked.to_string())
}

/// Also when the first model's reply broke in the middle: a client without a stream has seen nothing of it.
#[tokio::test]
async fn fallbacks_answer_the_agent_apis() {
    let _time = IdleTime::begin();
    for path in ["/v1/responses", "/v1/messages"] {
        for (stream, failure) in
            [(true, error(500, "CUDA error").delay(SILENCE)), (true, broken(&[])), (false, broken(&["half"]))]
        {
            let (fake, dir) = (FakeVllm::start([failure, streamed_ok()]).await, tempdir().unwrap());
            let respool = keeping_rows(&dir, &fake, FALLBACK).await;
            let reply = exchange(respool.address, &agent_request(path, stream)).await;
            let (content, object) = match (path, stream) {
                ("/v1/responses", true) => {
                    let told = other_wires::responses(&reply.text());
                    (told.content, told.object)
                }
                (_, true) => {
                    let told = other_wires::messages(&reply.text());
                    (told.content, told.object)
                }
                _ => (reply.text(), reply.json()),
            };
            assert!(content.contains("ok") && !content.contains("half"), "{content}");
            if path == "/v1/responses" || !stream {
                assert_eq!(object["model"], "middle", "{}", reply.text());
            }
            assert_eq!(models(&fake.requests()), ["big", "middle"]);
            assert_eq!(recorded(&respool).await, ("middle".into(), "big:failed".into()));
        }
    }
}

#[tokio::test]
async fn replies_of_the_agent_apis_break_unseen() {
    for path in ["/v1/responses", "/v1/messages"] {
        let fake = FakeVllm::start([broken(&["half"]), streamed_ok()]).await;
        let respool = Respool::before(&fake).await;
        let reply = exchange(respool.address, &agent_request(path, false)).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert!(reply.text().contains("ok") && !reply.text().contains("half"), "{}", reply.text());
    }
}

#[tokio::test]
async fn a_busy_model_is_not_waited_for() {
    let (busy, free) = (FakeVllm::always(Script::silence()).await, FakeVllm::always(ok()).await);
    let respool = Respool::configured(&format!(
        "[models.big]\nfallback = [\"cloud/small\"]\nfallback_after = \"100ms\"\n\
         [[upstream]]\nname = \"box\"\nurl = \"{}\"\nmax_concurrency = 1\nmodels = [\"big\"]\n\
         [[upstream]]\nname = \"cloud\"\nurl = \"{}\"\nmodels = [\"small\"]\n",
        busy.url(),
        free.url()
    ))
    .await;
    let first = Client::sending(respool.address, &Request::chat(&body(false))).await;
    busy.wait_for_requests(1).await;
    assert_eq!(exchange(respool.address, &Request::chat(&body(false))).await.status, 200);
    assert_eq!(
        (models(&busy.requests()), models(&free.requests())),
        (vec!["big".into()], vec!["small".into()])
    );
    drop(first);
}

#[tokio::test]
async fn pictures_go_to_a_model_with_sight() {
    let fake = FakeVllm::start([ok(), ok()]).await;
    let respool = Respool::with(&fake, "[models.big]\nvision = \"eyes\"\n").await;
    let picture = json!({"type": "image_url", "image_url": {"url": "https://example.org/a.png"}});
    let seen = json!({"model": "big", "messages": [{"role": "user", "content": [picture]}]});
    for body in [&seen, &body(false)] {
        assert_eq!(exchange(respool.address, &Request::chat(body)).await.status, 200);
    }
    assert_eq!(models(&fake.requests()), ["eyes", "big"]);
    assert_eq!(fake.requests()[0].json()["messages"], seen["messages"], "the picture is sent");
}

/// Regression: the reply and the usage row of these APIs named the model without sight.
#[tokio::test]
async fn the_model_with_sight_is_named() {
    let (fake, dir) = (FakeVllm::start([streamed_ok()]).await, tempdir().unwrap());
    let respool = keeping_rows(&dir, &fake, "[models.big]\nvision = \"eyes\"\n").await;
    let source = json!({"type": "base64", "media_type": "image/png", "data": "aGk="});
    let message = json!({"role": "user", "content": [{"type": "image", "source": source}]});
    let asked = json!({"model": "big", "max_tokens": 4000, "messages": [message]});
    let reply = exchange(respool.address, &Request::post("/v1/messages", asked.to_string())).await;
    assert_eq!(reply.json()["model"], "eyes", "{}", reply.text());
    assert_eq!(recorded(&respool).await, ("eyes".into(), "big:pictures".into()));
}

#[tokio::test]
async fn a_spent_budget_leaves_the_free_model() {
    let extra = "[usage]\nkeep = \"1d\"\n[prices.big]\ninput = 10000.0\noutput = 10000.0\n[budgets]\nday = 0.5\n\
                 [models.big]\nfallback = [\"small\"]\n";
    let fake = FakeVllm::always(ok()).await;
    let respool = Respool::with(&fake, extra).await;
    for _ in 0..2 {
        assert_eq!(exchange(respool.address, &Request::chat(&body(false))).await.status, 200);
    }
    let mut free = body(false);
    free["model"] = json!("small");
    assert_eq!(exchange(respool.address, &Request::chat(&free)).await.status, 200, "it costs nothing");
    assert_eq!(models(&fake.requests()), ["big", "small", "small"]);
}

/// A fallback that was renamed was silently none any more.
#[tokio::test(flavor = "multi_thread")]
async fn missing_fallbacks_are_known() {
    let fake = FakeVllm::start([]).await;
    let respool = Respool::with(
        &fake,
        "[models.big]\nfallback = [\"middle\"]\nvision = \"eyes\"\n[models.fast]\ntarget = \"big\"\n",
    )
    .await;
    let missing = || respool.relay.missing_models();
    fake.serve_models(&["big", "qwen3"]);
    let upstream = respool.relay.upstreams().next().unwrap();
    upstream.ask_models(http::HeaderMap::new(), Duration::from_secs(5)).await.unwrap();
    let eyes = ("eyes".into(), "answers pictures for `big`".into());
    assert_eq!(missing(), [("middle".into(), "is a fallback of `big`".into()), eyes]);
    fake.serve_models(&["middle", "eyes"]);
    upstream.ask_models(http::HeaderMap::new(), Duration::from_secs(5)).await.unwrap();
    assert_eq!(missing(), [("big".into(), "`fast` stands for".into())]);
}

/// Regression: the tokens of a reply that was thrown away were in no row, and counted in no budget.
#[tokio::test]
async fn useless_replies_of_the_first_model_count() {
    let config = "[prices.big]\ninput = 1000.0\noutput = 1000.0\n[prices.middle]\ninput = 1.0\noutput = 1.0\n[budgets]\nday = 5.0\n";
    let fake = FakeVllm::start([Script::json(200, &replies::text("")), ok()]).await;
    let dir = tempdir().unwrap();
    let respool = keeping_rows(&dir, &fake, &format!("{config}{FALLBACK}")).await;
    assert_eq!(exchange(respool.address, &Request::chat(&body(false))).await.status, 200);
    assert_eq!(recorded(&respool).await, ("middle".into(), "big:failed".into()));
    let query = UsageQuery { since: 0, until: u64::MAX, by: vec![Dimension::Model], only: Vec::new() };
    let report = respool.usage.records().report(query).await.unwrap();
    let spent: Vec<_> =
        report.lines.iter().map(|line| (&*line.names[0], line.totals.requests, line.totals.usage)).collect();
    let [("big", 0, of_big), ("middle", 1, of_middle)] = spent[..] else { panic!("{spent:?}") };
    assert_eq!(of_big, of_middle, "both replies state the same");
    let cost = f64::from(u32::try_from(of_big.total_tokens() * 1_001).unwrap()) / 1e6;
    assert!((report.total.cost.units() - cost).abs() < 1e-9, "{:?}", report.total.cost);
    assert_eq!(respool.usage.budgets(&[])[0].spent, report.total.cost);
}
