//! Who may ask: clients with a key of respool's own, which goes no further; and no page that reached respool by a stranger's name.

use std::sync::Arc;

use serde_json::json;

use crate::support::accumulate::Rules;
use crate::support::client::{Request, exchange};
use crate::support::fake_vllm::FakeVllm;
use crate::support::replies;
use crate::support::respool::Respool;
use crate::support::script::Script;
use crate::support::scripted_tools::ScriptedTools;
use crate::tools_route;

const KEYS: &str = "client_keys = [\"sk-one\", \"sk-two\"]\n";

fn agent_request() -> serde_json::Value {
    json!({"model": "helper", "messages": [{"role": "user", "content": "hi"}]})
}

/// A respool that asks for keys, with an agent.
async fn asking_for_keys(fake: &FakeVllm, upstream_keys: &str, state: &std::path::Path) -> Respool {
    let toml = format!(
        "{KEYS}state_dir = \"{}\"\n[agents.helper]\nmodel = \"gpt-oss-20b\"\n[[upstream]]\nurl = \"{}\"\n{upstream_keys}",
        state.display(),
        fake.url()
    );
    Respool::started(&toml, Some(Arc::new(ScriptedTools::new(|_, _| Ok(String::new()))))).await
}

/// One request of each kind, with what the upstream answers.
fn requests() -> Vec<(Request, Script)> {
    let chat = |stream| json!({"model": "gpt-oss-20b", "stream": stream, "messages": [{"role": "user", "content": "hi"}]});
    let whole = || Script::json(200, &replies::text("Hello"));
    let streamed = Script::sse(replies::text_stream(&["Hello"], true));
    let own = |path: &str| (Request::get(path), whole());
    vec![
        (Request::chat(&tools_route::request()), whole()),
        (Request::chat(&chat(false)), whole()),
        (Request::chat(&chat(true)), streamed),
        (Request::chat(&agent_request()), whole()),
        (Request::post("/v1/embeddings", "{}"), whole()),
        own("/v1/models/helper"),
        own("/v1/runs"),
        own("/tokenizer_info"),
    ]
}

#[tokio::test]
async fn without_a_key_nothing_is_answered_and_nothing_goes_up() {
    let (fake, state) = (FakeVllm::start([]).await, tempfile::tempdir().unwrap());
    let respool = asking_for_keys(&fake, "", state.path()).await;
    for (request, _) in requests() {
        for request in
            [request.clone().without("authorization"), request.header("authorization", "Bearer sk-other")]
        {
            let reply = exchange(respool.address, &request).await;
            assert_eq!((reply.status, &reply.error()["code"]), (401, &json!("invalid_api_key")));
            assert_eq!(reply.headers.get("www-authenticate"), Some("Bearer"));
        }
    }
    let large = exchange(respool.address, &Request::post("/v1/chat/completions", vec![b' '; 4 << 20])).await;
    assert_eq!(large.status, 401, "not a reset connection");
    assert!(fake.requests().is_empty() && fake.probes().is_empty());
    for page in ["/health", "/ready", "/metrics"] {
        assert_eq!(exchange(respool.address, &Request::get(page)).await.status, 200, "{page}");
    }
}

#[tokio::test]
async fn a_clients_key_stays_here() {
    for (keys, sent) in [("", None), ("api_key = \"sk-up\"", Some("Bearer sk-up"))] {
        let (fake, state) = (FakeVllm::start([]).await, tempfile::tempdir().unwrap());
        let respool = asking_for_keys(&fake, keys, state.path()).await;
        for (request, script) in requests() {
            fake.otherwise(script.unchecked());
            let request = request.header("authorization", "Bearer sk-two").header("x-api-key", "sk-two");
            assert_eq!(exchange(respool.address, &request).await.status, 200);
        }
        let seen = [fake.requests(), fake.probes()].concat();
        assert!(seen.len() >= 6, "{}", seen.len());
        for request in seen {
            let found = (request.headers.get("authorization"), request.headers.get("x-api-key"));
            assert_eq!(found, (sent, None), "{}", request.target);
        }
    }
}

#[tokio::test]
async fn agents_and_runs_answer_to_no_name_that_a_stranger_chose() {
    let (state, tools) =
        (tempfile::tempdir().unwrap(), Arc::new(ScriptedTools::new(|_, _| Ok(String::new()))));
    let fake = FakeVllm::always(Script::json(200, &replies::text("Hello"))).await;
    let respool = Respool::with_agent(&fake, &tools, state.path(), "").await;
    let under = |request: &Request, host: &str| request.clone().without("host").header("host", host);
    let cancel = Request::post("/v1/runs/x/cancel", "");
    for request in
        [Request::chat(&agent_request()), Request::get("/v1/runs"), Request::get("/v1/runs/x"), cancel]
    {
        let reply = exchange(respool.address, &under(&request, "evil.example:8003")).await;
        assert_eq!((reply.status, &reply.error()["code"]), (403, &json!("untrusted_host")));
        assert!(reply.error()["message"].as_str().unwrap().contains("`trusted_hosts`"), "{}", reply.text());
        assert_ne!(
            exchange(respool.address, &under(&request, "host.docker.internal:8003")).await.status,
            403
        );
    }
    let relayed = under(&Request::chat(&tools_route::request()), "llm.example.org");
    exchange(respool.address, &relayed).await.stream(&Rules::default());
}
