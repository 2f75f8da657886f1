//! Several upstreams: who gets a request, and who when the first one fails.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::accumulate::Rules;
use crate::support::client::{Reply, Request, exchange};
use crate::support::fake_vllm::FakeVllm;
use crate::support::idle_time::IdleTime;
use crate::support::replies;
use crate::support::respool::Respool;
use crate::support::script::{Fault, Script};
use crate::support::wait_until;
use crate::{passthrough, tools_route};

/// The pause before the first trial of an upstream that failed.
const PAUSE: Duration = Duration::from_millis(1200);

const ALL: &str = "models = [\"gpt-oss-20b\"]";

/// In front of these servers: name, address, and further keys of its table.
pub(crate) async fn before(upstreams: &[(&str, &str, &str)], extra: &str) -> Respool {
    let tables = upstreams
        .iter()
        .map(|(name, url, keys)| format!("[[upstream]]\nname = \"{name}\"\nurl = \"{url}\"\n{keys}\n"));
    Respool::configured(&format!("{extra}\n{}", tables.collect::<String>())).await
}

/// Two servers that answer with their own name, `a` and `b`, both with the same model.
async fn pair() -> (FakeVllm, FakeVllm, Respool) {
    pair_with("").await
}

async fn pair_with(extra: &str) -> (FakeVllm, FakeVllm, Respool) {
    let (a, b) = (says("a").await, says("b").await);
    let respool = before(&[("a", &a.url(), ALL), ("b", &b.url(), ALL)], extra).await;
    (a, b, respool)
}

fn ok(name: &str) -> Script {
    Script::json(200, &replies::text(name))
}

async fn says(name: &str) -> FakeVllm {
    FakeVllm::always(ok(name)).await
}

/// A request of a conversation that begins with this.
pub(crate) fn begins(with: &str) -> Value {
    let mut body = tools_route::request();
    body["messages"][1]["content"] = with.into();
    body
}

async fn ask(respool: &Respool, body: &Value) -> Reply {
    exchange(respool.address, &Request::chat(body)).await
}

/// The name of the server that answered.
async fn who(respool: &Respool, body: &Value) -> String {
    ask(respool, body).await.stream(&Rules::default()).choices[&0].content.clone()
}

/// A conversation whose own upstream is this one.
async fn one_of(respool: &Respool, name: &str) -> Value {
    one_like(respool, name, &tools_route::request()).await
}

/// The same with requests of this form.
async fn one_like(respool: &Respool, name: &str, form: &Value) -> Value {
    let user = form["messages"].as_array().unwrap().len() - 1;
    for number in 0..64 {
        let mut body = form.clone();
        body["messages"][user]["content"] = format!("conversation {number}").into();
        if who(respool, &body).await == name {
            return body;
        }
    }
    panic!("64 conversations, and none for {name}");
}

async fn standing(respool: &Respool, name: &str) -> Value {
    let ready = exchange(respool.address, &Request::get("/ready")).await.json();
    let found = ready["upstreams"].as_array().unwrap().iter().find(|upstream| upstream["name"] == name);
    found.unwrap().clone()
}

/// Waits until the models of all upstreams are known.
async fn lists_known(respool: &Respool, names: &[&str]) {
    for name in names {
        let is_known = async || standing(respool, name).await["models"].is_array();
        wait_until("the list of models comes", is_known).await;
    }
}

#[tokio::test]
async fn a_conversation_stays_where_it_is() {
    let (a, b, respool) = pair().await;
    for number in 0..12 {
        let mut body = begins(&format!("conversation {number}"));
        let first = who(&respool, &body).await;
        for later in ["Go on.", "And then?"] {
            let messages = body["messages"].as_array_mut().unwrap();
            messages.push(json!({"role": "assistant", "content": first}));
            messages.push(json!({"role": "user", "content": later}));
            assert_eq!(who(&respool, &body).await, first);
        }
    }
    assert!(a.requests().len() >= 6 && b.requests().len() >= 6, "both take part");
}

/// A router in front of model servers gets the conversation's name and the request's urgency.
#[tokio::test]
async fn routers_get_conversation_and_urgency() {
    let fake = says("a").await;
    let keys = "session_header = \"x-smg-routing-key\"\nobjectives = { background = \"batch\" }";
    let respool = before(&[("pool", &fake.url(), keys)], "").await;
    let mut body = begins("one");
    let other = Request::chat(&begins("another")).header("x-respool-priority", "background");
    for request in [Request::chat(&body), other] {
        exchange(respool.address, &request).await;
    }
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": "a"}));
    messages.push(json!({"role": "user", "content": "Go on."}));
    exchange(respool.address, &Request::chat(&body)).await;
    let own = Request::chat(&body).header("x-smg-routing-key", "own");
    exchange(respool.address, &own.header("x-gateway-inference-objective", "mine")).await;
    let sent = |name: &str| -> Vec<Option<String>> {
        fake.requests().iter().map(|seen| seen.headers.get(name).map(str::to_owned)).collect()
    };
    let keys = sent("x-smg-routing-key");
    assert!(keys[0].is_some() && keys[0] == keys[2], "a conversation keeps its name: {keys:?}");
    assert!(keys[1].is_some() && keys[1] != keys[0] && keys[3].as_deref() == Some("own"), "{keys:?}");
    let objectives = sent("x-gateway-inference-objective");
    assert_eq!(objectives, [None, Some("batch".into()), None, Some("mine".into())]);
}

#[tokio::test]
async fn openclaw_sessions_name_conversations() {
    let (_a, _b, respool) = pair().await;
    for header in ["session_id", "x-session-affinity"] {
        for session in 0..6 {
            let mut first: Option<String> = None;
            for beginning in ["one", "another", "a third", "a fourth"] {
                let request = Request::chat(&begins(beginning)).header(header, &format!("{session}:0"));
                let reply = exchange(respool.address, &request).await.stream(&Rules::default());
                let name = reply.choices[&0].content.clone();
                assert_eq!(*first.get_or_insert_with(|| name.clone()), name, "{header}");
            }
        }
    }
}

#[tokio::test]
async fn shares_follow_the_weights() {
    let (a, b) = (says("a").await, says("b").await);
    let heavy = format!("{ALL}\nweight = 4");
    let respool = before(&[("a", &a.url(), ALL), ("b", &b.url(), &heavy)], "").await;
    for number in 0..100 {
        who(&respool, &begins(&format!("conversation {number}"))).await;
    }
    let found = b.requests().len();
    assert!((70..=90).contains(&found), "{found} of 100 instead of 80");
}

#[tokio::test]
async fn models_and_aliases_reach_their_server() {
    let (a, b) = (says("a").await, says("b").await);
    b.serve_models(&["org/other"]);
    let alias = "[models.\"fast\"]\ntarget = \"org/other\"";
    let respool = before(&[("a", &a.url(), ""), ("b", &b.url(), "")], alias).await;
    for (model, server) in [("gpt-oss-20b", "a"), ("org/other", "b"), ("fast", "b"), ("gpt-oss-20b", "a")] {
        let mut body = begins(model);
        body["model"] = model.into();
        assert_eq!(who(&respool, &body).await, server, "{model}");
    }
    assert_eq!(b.requests()[1].json()["model"], "org/other");
    let mut body = begins("hi");
    body["model"] = "nobody's".into();
    let reply = ask(&respool, &body).await;
    assert_eq!((reply.status, &reply.error()["code"]), (404, &json!("model_not_found")));
    let text = reply.error()["message"].as_str().unwrap().to_owned();
    assert!(text.contains("gpt-oss-20b, org/other, fast"), "{text}");
    let embeddings = Request::post("/v1/embeddings", r#"{"model": "org/other", "input": "x"}"#);
    exchange(respool.address, &embeddings).await;
    assert_eq!(b.requests().last().unwrap().path(), "/v1/embeddings");
}

#[tokio::test]
async fn dead_servers_delay_no_client() {
    let _time = IdleTime::begin();
    let (works, silent) = (says("works").await, FakeVllm::start([]).await);
    silent.otherwise(Script::silence().on("GET", "/v1/models"));
    works.serve_models(&["gpt-oss-20b", "twice"]);
    let upstreams =
        [("dead", "http://127.0.0.1:1", ""), ("silent", &silent.url(), ""), ("works", &works.url(), "")];
    let began = tokio::time::Instant::now();
    let respool = before(&upstreams, "").await;
    assert_eq!(who(&respool, &begins("hi")).await, "works");
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    let list = exchange(respool.address, &Request::get("/v1/models")).await.json();
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(list["data"].as_array().unwrap().len(), 2, "{list}");
}

#[tokio::test]
async fn servers_without_a_list_are_tried() {
    let _time = IdleTime::begin();
    let (a, b) = (says("a").await, says("b").await);
    b.otherwise(Script::json(401, &json!({"error": "Unauthorized"})).on("GET", "/v1/models"));
    b.then(ok("b"));
    let respool = before(&[("a", &a.url(), ""), ("b", &b.url(), "")], "").await;
    lists_known(&respool, &["a"]).await;
    let mut body = begins("hi");
    body["model"] = "of-b".into();
    assert_eq!(who(&respool, &body).await, "b");
    assert_eq!(who(&respool, &begins("hi")).await, "a", "it is known to serve this one");
}

/// Regression: an upstream without a key was ready, and answered for every unknown model.
#[tokio::test]
async fn refused_keys_are_said() {
    let (a, b) = (says("a").await, FakeVllm::start([]).await);
    b.otherwise(Script::json(401, &json!({"error": "Unauthorized"})).on("GET", "/v1/models"));
    for (own, reason) in
        [("api_key = \"wrong\"", "it rejects the key (HTTP 401)"), ("", "it asks for a key (HTTP 401)")]
    {
        let keys = "client_keys = [\"sk-one-0123456789\"]\n[models.m-b]\nfallback = [\"gpt-oss-20b\"]";
        let respool = before(&[("a", &a.url(), ""), ("b", &b.url(), own)], keys).await;
        let mut body = begins("hi");
        body["model"] = "m-typo".into();
        let request = Request::chat(&body).header("authorization", "Bearer sk-one-0123456789");
        let reply = exchange(respool.address, &request).await;
        let text = reply.error()["message"].as_str().unwrap().to_owned();
        let expected = format!("Available models: gpt-oss-20b. Unknown models: those of `b` ({reason})");
        assert!(reply.status == 404 && text.ends_with(&expected), "{text}");
        body["model"] = "m-b".into();
        b.then(Script::json(401, &json!({"error": "Unauthorized"})));
        let request = Request::chat(&body).header("authorization", "Bearer sk-one-0123456789");
        let reply = exchange(respool.address, &request).await;
        assert!(reply.status == 200, "the fallback answers: {}", reply.text());
        let seen = standing(&respool, "b").await;
        assert_eq!((&seen["ready"], &seen["problem"]), (&json!(false), &json!(reason)));
    }
}

/// A service said nothing of it until the first request failed.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_asks_for_a_key_is_logged() {
    let fake = FakeVllm::start([]).await;
    fake.otherwise(Script::json(401, &json!({"error": "Unauthorized"})).on("GET", "/v1/models"));
    let served = crate::lifecycle::Served::with_file(&format!("[[upstream]]\nurl = \"{}\"", fake.url()), &[]);
    let line = tokio::task::spawn_blocking(move || {
        served.line(|line| line["message"] == "the upstream asks for a key", Duration::from_secs(20))
    });
    let line = line.await.unwrap();
    assert_eq!(
        (&line["level"], &line["upstream"]),
        (&json!("WARN"), &json!(fake.url().replace("http://", "")))
    );
}

/// A server that refused the key got its share: the weaker fallback answered while an equal server was idle.
#[tokio::test]
async fn a_refused_key_leads_to_the_equal_server() {
    let _time = IdleTime::begin();
    let (a, b) = (FakeVllm::start([]).await, says("b").await);
    let own = "api_key = \"old\"\nweight = 3";
    let respool = before(&[("a", &a.url(), own), ("b", &b.url(), "")], "").await;
    lists_known(&respool, &["a", "b"]).await;
    let refused = || Script::json(401, &json!({"error": "Unauthorized"}));
    a.otherwise(refused());
    let turns = || a.requests().iter().filter(|seen| seen.method == "POST").count();
    for number in 0..8 {
        assert_eq!(who(&respool, &begins(&format!("first {number}"))).await, "b");
    }
    let asked = turns();
    assert!(asked > 0, "it was not known to refuse the key");
    a.otherwise(refused().on("GET", "/v1/models"));
    let is_known = async || standing(&respool, "a").await["problem"] == "it rejects the key (HTTP 401)";
    wait_until("the refusal is known", is_known).await;
    for number in 0..8 {
        assert_eq!(who(&respool, &begins(&format!("then {number}"))).await, "b");
    }
    assert_eq!(turns(), asked, "it is known now");
}

#[tokio::test]
async fn lists_of_models_are_merged() {
    let (a, b) = (says("a").await, says("b").await);
    a.serve_models(&["one", "both"]);
    b.serve_models(&["both", "two", "not-named"]);
    let alias = "[models.\"two\"]\ntarget = \"one\"\n[models.\"fast\"]\ntarget = \"both\"";
    let named = "models = [\"both\", \"other\"]";
    let respool = before(&[("a", &a.url(), ""), ("b", &b.url(), named)], alias).await;
    let list = exchange(respool.address, &Request::get("/v1/models")).await.json();
    let ids: Vec<&str> =
        list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["one", "both", "fast", "two"]);
}

#[tokio::test]
async fn another_server_replaces_a_failing_one() {
    let head_only = Script::sse(replies::text_stream(&["x"], false)).reset_after(0);
    let in_the_head = Script::raw("HTTP/1.1 200 OK\r\ncontent-ty");
    let unknown = Script::json(404, &replies::error(404, "The model `x` does not exist.", "NotFoundError"));
    for (script, name) in [
        (
            Script::json(
                500,
                &replies::error(500, "EngineCore encountered an issue.", "InternalServerError"),
            ),
            "500",
        ),
        (Script::json(503, &json!({"error": {"message": "overloaded"}})), "503"),
        (Script::json(429, &replies::error(429, "slow down", "RateLimit")), "429"),
        (Script::no_reply(Fault::Reset), "reset before the head"),
        (in_the_head, "end in the head"),
        (head_only, "reset after the head"),
        (unknown, "unknown model"),
    ] {
        for form in [tools_route::request(), passthrough::request()] {
            let (a, _b, respool) = pair().await;
            let body = one_like(&respool, "a", &form).await;
            a.otherwise(script.clone());
            assert_eq!(who(&respool, &body).await, "b", "{name}");
        }
    }
}

#[tokio::test]
async fn another_server_replaces_an_absent_one() {
    let b = says("b").await;
    let respool = before(&[("gone", "http://127.0.0.1:1", ALL), ("b", &b.url(), ALL)], "").await;
    for number in 0..6 {
        for form in [tools_route::request(), passthrough::request()] {
            let mut body = form;
            body["messages"][0]["content"] = format!("conversation {number}").into();
            assert_eq!(who(&respool, &body).await, "b");
        }
    }
    assert_eq!(b.requests().len(), 12);
    let metrics = exchange(respool.address, &Request::get("/metrics")).await.text();
    let series = |name: &str| {
        let begin = format!("respool_upstream_{name}{{upstream=\"gone\"}} ");
        metrics.lines().find_map(|line| line.strip_prefix(&begin)?.parse::<u64>().ok())
    };
    assert!(series("failovers_total") >= Some(3), "{metrics}");
    assert_eq!((series("circuit_open"), series("in_flight"), series("queued")), (Some(1), Some(0), Some(0)));
    assert!(series("ejections_total") >= Some(1));
}

#[tokio::test]
async fn broken_replies_move_the_request() {
    let early = replies::text_stream(&["x"], false)[..1].to_vec();
    for (form, script, other) in [
        (tools_route::request(), Script::json(200, &replies::text("x")).close_early_after(100), ok("b")),
        (
            passthrough::request(),
            Script::sse(early).reset(),
            Script::sse(replies::text_stream(&["b"], false)),
        ),
    ] {
        let (a, b, respool) = pair().await;
        let body = one_like(&respool, "a", &form).await;
        a.otherwise(script);
        b.otherwise(other);
        let before = a.requests().len();
        assert_eq!(who(&respool, &body).await, "b");
        assert_eq!(a.requests().len() - before, 1);
    }
}

#[tokio::test]
async fn requests_fit_each_servers_version() {
    let (a, b, respool) = pair().await;
    let mut old = replies::text("a");
    old["system_fingerprint"] = json!("vllm-0.10.2-0");
    a.otherwise(Script::json(200, &old));
    let mut body = one_of(&respool, "a").await;
    body["messages"].as_array_mut().unwrap().extend([
        json!({"role": "assistant", "content": null, "reasoning_content": "why", "tool_calls": [
            {"id": "call00001", "type": "function", "function": {"name": "read", "arguments": "{\"path\":\"a\"}"}}]}),
        json!({"role": "tool", "tool_call_id": "call00001", "content": "text"}),
    ]);
    assert_eq!(who(&respool, &body).await, "a");
    a.otherwise(Script::json(503, &json!({})));
    assert_eq!(who(&respool, &body).await, "b");
    let reasoning = |fake: &FakeVllm, key: &str| {
        let sent = fake.requests().iter().rfind(|seen| seen.method == "POST").unwrap().json();
        sent["messages"][2].get(key).cloned()
    };
    assert_eq!((reasoning(&a, "reasoning_content"), reasoning(&a, "reasoning")), (Some(json!("why")), None));
    assert_eq!((reasoning(&b, "reasoning_content"), reasoning(&b, "reasoning")), (None, Some(json!("why"))));
}

#[tokio::test]
async fn wrong_requests_are_sent_once() {
    for (status, message, left) in [
        (400, "temperature must be non-negative", 400),
        (400, "This model's maximum context length is 10 tokens.", 400),
        (401, "Unauthorized", 422),
        (500, "unexpected tokens remaining in message header: Some(\"x\")", 502),
    ] {
        let (a, b, respool) = pair_with("[recovery]\nattempts = 0").await;
        for fake in [&a, &b] {
            fake.otherwise(Script::json(status, &replies::error(status, message, "BadRequestError")));
        }
        for _ in 0..4 {
            assert_eq!(ask(&respool, &begins("hi")).await.status, left);
        }
        assert_eq!(a.requests().len() + b.requests().len(), 4, "{message}");
        assert_eq!(
            (
                standing(&respool, "a").await["circuit"].clone(),
                standing(&respool, "b").await["circuit"].clone()
            ),
            (json!("closed"), json!("closed"))
        );
    }
}

#[tokio::test]
async fn total_failures_are_reported_once() {
    let (a, b, respool) = pair().await;
    a.otherwise(Script::json(503, &json!({"error": {"message": "overloaded"}})));
    b.otherwise(Script::json(404, &replies::error(404, "The model `x` does not exist.", "NotFoundError")));
    let reply = ask(&respool, &begins("hi")).await;
    assert_eq!(reply.status, 503, "the one that knows the model: {}", reply.text());
    assert!(reply.error()["message"].as_str().unwrap().contains("upstream `a` failed"), "{}", reply.text());
    assert!(a.requests().len() <= 4 && b.requests().len() <= 4, "retries are brief");
}

#[tokio::test]
async fn failing_servers_are_skipped_and_retried() {
    let time = IdleTime::begin();
    let (a, _b, respool) = pair().await;
    let body = one_of(&respool, "a").await;
    a.otherwise(Script::json(503, &json!({})));
    let before = a.requests().len();
    for _ in 0..6 {
        assert_eq!(who(&respool, &body).await, "b");
    }
    assert_eq!(a.requests().len() - before, 3, "three failures in a row");
    assert_eq!(standing(&respool, "a").await["circuit"], "open");
    a.otherwise(ok("a").delay(Duration::from_secs(2)));
    time.pass(PAUSE).await;
    let trial = who(&respool, &body);
    let meanwhile = async {
        a.wait_for_requests(before + 4).await;
        assert_eq!(standing(&respool, "a").await["circuit"], "half_open");
        who(&respool, &body).await
    };
    let (trial, meanwhile) = tokio::join!(trial, meanwhile);
    assert_eq!((trial.as_str(), meanwhile.as_str()), ("a", "b"), "one request at a time tries it");
    assert_eq!(who(&respool, &body).await, "a", "it is back");
    assert_eq!(standing(&respool, "a").await["circuit"], "closed");
}

#[tokio::test]
async fn failed_trials_cost_nothing() {
    let time = IdleTime::begin();
    let (a, _b, respool) = pair().await;
    let body = one_of(&respool, "a").await;
    a.otherwise(Script::json(503, &json!({})));
    for _ in 0..3 {
        who(&respool, &body).await;
    }
    time.pass(PAUSE).await;
    let before = a.requests().len();
    assert_eq!((who(&respool, &body).await, who(&respool, &body).await), ("b".to_owned(), "b".to_owned()));
    assert_eq!(a.requests().len() - before, 1, "one trial, and the pause begins anew");
    a.otherwise(Script::silence());
    time.pass(2 * PAUSE).await;
    let gives_up = crate::support::client::Client::sending(respool.address, &Request::chat(&body)).await;
    a.wait_for_requests(before + 2).await;
    a.otherwise(ok("a"));
    drop(gives_up);
    a.wait_until_closed(before + 1).await;
    time.pass(Duration::from_millis(200)).await;
    assert_eq!(who(&respool, &body).await, "a");
}

#[tokio::test]
async fn single_servers_are_always_asked() {
    let fake = FakeVllm::always(Script::json(503, &json!({}))).await;
    let respool = Respool::before(&fake).await;
    assert_eq!(ask(&respool, &begins("hi")).await.status, 503);
    assert_eq!(
        (standing(&respool, "box").await["circuit"].clone(), fake.requests().len()),
        (json!("open"), 3)
    );
    let ready = exchange(respool.address, &Request::get("/ready")).await;
    assert_eq!(ready.status, 503, "all upstreams are left out");
    let is_counted =
        async || standing(&respool, "box").await["recent_errors"] == json!(["upstream_unavailable"]);
    wait_until("the failure is counted", is_counted).await;
    fake.otherwise(ok("back"));
    assert_eq!(who(&respool, &begins("hi")).await, "back", "at once");
    assert_eq!(standing(&respool, "box").await["circuit"], "closed");
}

#[tokio::test]
async fn other_routes_use_working_servers() {
    let b = FakeVllm::always(Script::json(200, &json!({"data": []})).unchecked()).await;
    let respool = before(&[("gone", "http://127.0.0.1:1", ALL), ("b", &b.url(), ALL)], "").await;
    for request in [
        Request::get("/load"),
        Request::post("/pooling", r#"{"model": "gpt-oss-20b", "prompt": "x"}"#),
        Request::post("/v1/embeddings", r#"{"model": "gpt-oss-20b", "input": "x"}"#),
    ] {
        assert_eq!(exchange(respool.address, &request).await.status, 200);
    }
    assert_eq!(b.requests()[1].body, br#"{"model": "gpt-oss-20b", "prompt": "x"}"#);
}

#[tokio::test]
async fn long_bodies_reach_the_models_server() {
    let (a, b) = (
        FakeVllm::start([]).await,
        FakeVllm::always(Script::json(200, &json!({"data": []})).unchecked()).await,
    );
    let of = |model: &str| format!("models = [\"{model}\"]");
    let alias = "[models.fast]\ntarget = \"two\"\n";
    let respool = before(&[("a", &a.url(), &of("one")), ("b", &b.url(), &of("two"))], alias).await;
    for model in ["two", "fast"] {
        let body = json!({"model": model, "input": "x".repeat(2 << 20)}).to_string();
        assert_eq!(exchange(respool.address, &Request::post("/v1/embeddings", body)).await.status, 200);
        assert_eq!(b.requests().last().unwrap().json()["model"], "two");
    }
    assert_eq!((a.requests().len(), b.requests().len()), (0, 2));
}

#[tokio::test]
async fn flapping_servers_lose_no_turn() {
    let (a, b, c) = (says("a").await, says("b").await, says("c").await);
    let keys = format!("{ALL}\nmax_concurrency = 4\nmax_queue = 200");
    let respool = before(&[("a", &a.url(), &keys), ("b", &b.url(), &keys), ("c", &c.url(), &keys)], "").await;
    let turns = futures::future::join_all((0..150).map(|number| {
        let (body, respool) = (begins(&format!("conversation {number}")), &respool);
        async move { who(respool, &body).await }
    }));
    // After every few requests of another server the first one changes.
    let flapping = async {
        for script in [Script::no_reply(Fault::Reset), ok("a"), Script::json(503, &json!({}))].iter().cycle()
        {
            a.otherwise(script.clone());
            b.wait_for_requests(b.requests().len() + 3).await;
        }
    };
    let all = tokio::select! { all = turns => all, () = flapping => vec![] };
    assert_eq!(all.len(), 150);
    for name in ["a", "b", "c"] {
        let left = standing(&respool, name).await;
        assert_eq!((&left["in_flight"], &left["queued"]), (&json!(0), &json!(0)), "{name}");
    }
}
