//! Who may ask: clients with a key of respool's own, which goes no further; and no page that reached respool
//! by a stranger's name.

use std::sync::Arc;

use serde_json::json;
use store::NewRun;

use crate::support::accumulate::Rules;
use crate::support::client::{Request, exchange};
use crate::support::eventually;
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
async fn requests_without_a_key_stop_here() {
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
            let request = request.header("api-key", "sk-two").header("x-goog-api-key", "sk-two");
            assert_eq!(exchange(respool.address, &request).await.status, 200);
        }
        let seen = [fake.requests(), fake.probes()].concat();
        assert!(seen.len() >= 6, "{}", seen.len());
        for request in seen {
            let found = (request.headers.get("authorization"), request.headers.get("x-api-key"));
            assert_eq!(found, (sent, None), "{}", request.target);
            let others = (request.headers.get("api-key"), request.headers.get("x-goog-api-key"));
            assert_eq!(others, (None, None), "{}", request.target);
        }
    }
}

#[tokio::test]
async fn foreign_host_names_reach_no_agent() {
    let (state, tools) =
        (tempfile::tempdir().unwrap(), Arc::new(ScriptedTools::new(|_, _| Ok(String::new()))));
    let fake = FakeVllm::always(Script::json(200, &replies::text("Hello"))).await;
    let respool = Respool::with_agent(&fake, &tools, state.path(), "").await;
    let cancel = Request::post("/v1/runs/x/cancel", "");
    for request in
        [Request::chat(&agent_request()), Request::get("/v1/runs"), Request::get("/v1/runs/x"), cancel]
    {
        let reply = exchange(respool.address, &under(&request, "evil.example:8003")).await;
        assert_eq!((reply.status, &reply.error()["code"]), (400, &json!("untrusted_host")));
        assert!(reply.error()["message"].as_str().unwrap().contains("`trusted_hosts`"), "{}", reply.text());
        let known = exchange(respool.address, &under(&request, "host.docker.internal:8003")).await;
        assert_ne!(known.status, 400);
    }
    let relayed = under(&Request::chat(&tools_route::request()), "llm.example.org");
    exchange(respool.address, &relayed).await.stream(&Rules::default());
}

fn under(request: &Request, host: &str) -> Request {
    request.clone().without("host").header("host", host)
}

#[tokio::test]
async fn pages_cannot_use_the_upstream_key() {
    let fake = FakeVllm::start([]).await;
    let respool = Respool::with(&fake, "[[upstream]]\napi_key = \"sk-up\"\n").await;
    let simple =
        |request: Request| request.without("content-type").header("content-type", "text/plain;charset=UTF-8");
    for (request, script) in requests() {
        fake.otherwise(script.unchecked());
        let before = fake.requests().len() + fake.probes().len();
        let request = simple(request).without("authorization");
        let own = format!("http://{}", respool.address);
        for (foreign, status) in [
            (request.clone().header("origin", "https://evil.example"), 403),
            (request.clone().header("origin", "null"), 403),
            (request.clone().header("sec-fetch-site", "cross-site"), 403),
            (under(&request, "evil.example"), 400),
            (under(&request, "evil.example").header("origin", "http://evil.example"), 403),
        ] {
            let reply = exchange(respool.address, &foreign).await;
            assert_eq!(reply.status, status, "{}", reply.text());
            assert_eq!(reply.headers.get("access-control-allow-origin"), None);
        }
        assert_eq!(fake.requests().len() + fake.probes().len(), before, "nothing went up");
        let own_page = under(&request, &respool.address.to_string())
            .header("origin", &own)
            .header("sec-fetch-site", "same-origin");
        assert!(![400, 403].contains(&exchange(respool.address, &own_page).await.status));
    }
}

#[tokio::test]
async fn cors_headers_of_upstreams_are_dropped() {
    for (keys, expected) in [("", Some("*")), ("api_key = \"sk-up\"", None)] {
        let open = Script::json(200, &json!({})).header("access-control-allow-origin", "*");
        let fake = FakeVllm::always(open.unchecked()).await;
        let respool = Respool::with(&fake, &format!("[[upstream]]\n{keys}\n")).await;
        let reply = exchange(respool.address, &Request::post("/v1/embeddings", "{}")).await;
        assert_eq!((reply.status, reply.headers.get("access-control-allow-origin")), (200, expected));
    }
}

#[tokio::test]
async fn pages_of_upstreams_are_sandboxed() {
    let page = Script::whole(200, "text/html", "<script>alert(1)</script>")
        .header("set-cookie", "respool_session=x")
        .header("clear-site-data", "\"*\"")
        .unchecked();
    let fake = FakeVllm::always(page).await;
    let respool = Respool::before(&fake).await;
    let reply = exchange(respool.address, &Request::get("/docs")).await;
    assert_eq!((reply.status, reply.headers.get("content-type")), (200, Some("text/html")));
    assert_eq!(reply.headers.get("content-security-policy"), Some("sandbox"));
    assert_eq!(reply.headers.get("x-content-type-options"), Some("nosniff"));
    assert_eq!((reply.headers.get("set-cookie"), reply.headers.get("clear-site-data")), (None, None));
}

#[tokio::test]
async fn administrative_routes_are_not_passed_on() {
    let fake = FakeVllm::always(Script::json(200, &json!({})).unchecked()).await;
    let respool = Respool::before(&fake).await;
    let paths = ["/sleep?level=2", "/v1/load_lora_adapter", "/collective_rpc", "/%73leep", "//pause"];
    for path in paths {
        let reply = exchange(respool.address, &Request::post(path, "{}")).await;
        assert_eq!((reply.status, &reply.error()["code"]), (403, &json!("administrative_route")), "{path}");
    }
    for (path, hint) in [
        ("/v1/v1/chat/completions", "the base URL ends in /v1 once: use `/v1/chat/completions`"),
        ("/v1/chat/completion", "did you mean `/v1/chat/completions`"),
        ("/v1", "is a base URL"),
    ] {
        let reply = exchange(respool.address, &Request::post(path, "{}")).await;
        assert_eq!((reply.status, &reply.error()["code"]), (404, &json!("not_found")), "{path}");
        assert!(reply.error()["message"].as_str().unwrap().contains(hint), "{path}");
    }
    let reply = exchange(respool.address, &Request::post("/x/../update_weights", "{}")).await;
    assert_eq!((reply.status, &reply.error()["code"]), (400, &json!("bad_path")));
    let reply = exchange(respool.address, &Request::post("/a_route_of_next_year", "{}")).await;
    let said = reply.error()["message"].as_str().unwrap_or_default().to_owned();
    for setting in ["`pass_routes = [\"/a_route_of_next_year\"]`", "`allow_admin_routes = true`"] {
        assert!(said.contains(setting), "{said}");
    }
    assert_eq!(exchange(respool.address, &Request::get("/is_sleeping")).await.status, 403);
    assert!(fake.requests().is_empty(), "nothing went up");
    let passing = Respool::with(&fake, "pass_routes = [\"/v1/files/*\"]\n").await;
    assert_eq!(exchange(passing.address, &Request::get("/v1/files/a/content")).await.status, 200);
    assert_eq!(exchange(passing.address, &Request::get("/v1/files")).await.status, 403);
    assert_eq!(fake.requests().pop().unwrap().target, "/v1/files/a/content");
    let allowing = Respool::with(&fake, "allow_admin_routes = true\n").await;
    assert_eq!(exchange(allowing.address, &Request::post("/sleep?level=2", "{}")).await.status, 200);
    assert_eq!(fake.requests().pop().unwrap().target, "/sleep?level=2");
}

/// The ids of the runs that a key sees.
async fn seen(respool: &Respool, key: &str) -> Vec<String> {
    let list = Request::get("/v1/runs").header("authorization", &format!("Bearer {key}"));
    let runs = exchange(respool.address, &list).await.json();
    runs["data"].as_array().unwrap().iter().map(|run| run["id"].as_str().unwrap().to_owned()).collect()
}

/// A chat of the terminal in the same state directory.
async fn begin_chat(respool: &Respool) -> String {
    let chat = NewRun { id: "run-chat".into(), agent: "respool chat".into(), at: 1, ..NewRun::default() };
    let id = chat.id.clone();
    respool.agents.store().unwrap().begin(chat).await.unwrap();
    id
}

#[tokio::test]
async fn clients_see_only_their_own_runs() {
    let (fake, state) =
        (FakeVllm::always(Script::json(200, &replies::text("Hello"))).await, tempfile::tempdir().unwrap());
    let toml = format!(
        "{KEYS}operator_keys_env = \"OPERATORS\"\nstate_dir = \"{}\"\n[agents.helper]\nmodel = \"gpt-oss-20b\"\n[[upstream]]\nurl = \"{}\"\n",
        state.path().display(),
        fake.url()
    );
    let tools = Arc::new(ScriptedTools::new(|_, _| Ok(String::new())));
    let respool = Respool::started_in(&toml, &[("OPERATORS", "sk-root")], Some(tools)).await;
    let mut runs = Vec::new();
    for key in ["sk-one", "sk-two"] {
        let ask = Request::chat(&agent_request()).without("authorization").header("x-api-key", key);
        let reply = exchange(respool.address, &ask).await;
        runs.push(reply.headers.get("x-respool-run-id").unwrap().to_owned());
    }
    let chat = begin_chat(&respool).await;
    assert_eq!(seen(&respool, "sk-one").await, [runs[0].as_str()]);
    assert_eq!(seen(&respool, "sk-two").await, [runs[1].as_str()]);
    let mut all = seen(&respool, "sk-root").await;
    all.sort();
    runs.sort();
    assert_eq!(all, runs, "all of clients, and no chat");
    let mine = seen(&respool, "sk-one").await.remove(0);
    for (key, run, expected) in [
        ("sk-one", &mine, [200, 404]),
        ("sk-two", &mine, [404, 404]),
        ("sk-root", &mine, [200, 404]),
        ("sk-one", &chat, [404, 404]),
        ("sk-root", &chat, [404, 404]),
    ] {
        let bearer = format!("Bearer {key}");
        let path = format!("/v1/runs/{run}");
        let requests = [Request::get(&path), Request::post(&format!("{path}/cancel"), "")];
        for (request, expected) in requests.into_iter().zip(expected) {
            let reply = exchange(respool.address, &request.header("authorization", &bearer)).await;
            assert_eq!(reply.status, expected, "{key} {run}");
        }
    }
}

#[tokio::test]
async fn strangers_cannot_cancel_a_run() {
    let (fake, state) = (FakeVllm::start([]).await, tempfile::tempdir().unwrap());
    fake.otherwise(Script::silence());
    let toml = format!(
        "{KEYS}operator_keys_env = \"OPERATORS\"\nstate_dir = \"{}\"\n[agents.helper]\nmodel = \"gpt-oss-20b\"\n[[upstream]]\nurl = \"{}\"\n",
        state.path().display(),
        fake.url()
    );
    let tools = Arc::new(ScriptedTools::new(|_, _| Ok(String::new())));
    let respool = Arc::new(Respool::started_in(&toml, &[("OPERATORS", "sk-root")], Some(tools)).await);
    for (stranger, owner) in [("sk-two", "sk-one"), ("sk-one", "sk-root")] {
        let asking = Arc::clone(&respool);
        let ask = Request::chat(&agent_request()).without("authorization").header("x-api-key", "sk-one");
        let asked = tokio::spawn(async move { exchange(asking.address, &ask).await });
        let run = eventually(|| respool.agents.active_runs().pop()).await;
        let cancel = Request::post(&format!("/v1/runs/{run}/cancel"), "");
        for (key, expected) in [(stranger, 404), (owner, 200)] {
            if key == "sk-one" && expected == 404 {
                continue; // It is its own.
            }
            let request = cancel.clone().header("authorization", &format!("Bearer {key}"));
            assert_eq!(exchange(respool.address, &request).await.status, expected, "{key}");
        }
        assert!(asked.await.unwrap().status >= 200);
    }
}

#[tokio::test]
async fn chats_stay_hidden_without_keys() {
    let (fake, state) =
        (FakeVllm::always(Script::json(200, &replies::text("Hello"))).await, tempfile::tempdir().unwrap());
    let tools = Arc::new(ScriptedTools::new(|_, _| Ok(String::new())));
    let respool = Respool::with_agent(&fake, &tools, state.path(), "").await;
    let chat = begin_chat(&respool).await;
    assert!(seen(&respool, "whatever").await.is_empty());
    let path = format!("/v1/runs/{chat}");
    assert_eq!(exchange(respool.address, &Request::get(&path)).await.status, 404);
    assert_eq!(exchange(respool.address, &Request::post(&format!("{path}/cancel"), "")).await.status, 404);
}
