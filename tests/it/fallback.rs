//! Another model answers in the place of one that does not: when, and who says so.

use serde_json::{Value, json};

use crate::support::accumulate::Rules;
use crate::support::client::{Client, Request, exchange};
use crate::support::fake_vllm::{FakeVllm, Seen};
use crate::support::replies;
use crate::support::respool::Respool;
use crate::support::script::Script;

const FALLBACK: &str = "[recovery]\nattempts = 0\n[models.big]\nfallback = [\"middle\", \"small\"]\n";

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
