//! Reasoning that a client drops in a tool loop comes back to the model, on both routes, and to no other
//! client.

use serde_json::{Value, json};
use store::RequestQuery;
use tempfile::tempdir;

use crate::live::LIVE;
use crate::support::accumulate::{Call, Rules};
use crate::support::client::{Request, exchange};
use crate::support::fake_vllm::FakeVllm;
use crate::support::replies;
use crate::support::respool::Respool;
use crate::support::script::Script;
use crate::tools_route;

pub(crate) const ROUTES: [&str; 2] = ["", LIVE];
const READ: (&str, &str) = ("read", r#"{"path": "/tmp/a.txt", "limit": 5.0}"#);
const CONTEXT: &str = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nx";

/// A reply of native calls with this reasoning, as the route asks for it.
fn thoughtful(extra: &str, reasoning: &str, calls: &[(&str, &str)]) -> Script {
    let mut whole = replies::calls(calls);
    whole["choices"][0]["message"]["reasoning"] = json!(reasoning);
    if !extra.contains("live") {
        return Script::json(200, &whole);
    }
    let mut frames = vec![replies::role_frame()];
    let delta = |delta: Value| replies::frame(&replies::chunk(&delta, None));
    frames.extend(reasoning.split_inclusive(' ').map(|word| delta(json!({"reasoning": word}))));
    let calls = whole["choices"][0]["message"]["tool_calls"].as_array().unwrap().iter().enumerate();
    frames.extend(calls.map(|(index, call)| {
        let mut call = call.clone();
        call["index"] = json!(index);
        delta(json!({"tool_calls": [call]}))
    }));
    frames.push(replies::frame(&replies::chunk(&json!({}), Some("tool_calls"))));
    frames.extend([replies::usage_frame(), replies::DONE.to_owned()]);
    Script::sse(frames)
}

/// An answer without calls, as the route asks for it.
pub(crate) fn answer(extra: &str) -> Script {
    if extra.contains("live") {
        return Script::sse(replies::text_stream(&["done"], true));
    }
    Script::json(200, &replies::text("done"))
}

/// The assistant message as OpenClaw replays it: no reasoning, compact arguments.
fn replayed(calls: &[Call]) -> Value {
    let call = |call: &Call| {
        let arguments = call.json().to_string().replace("5.0", "5");
        json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}})
    };
    json!({"role": "assistant", "content": null, "tool_calls": calls.iter().map(call).collect::<Vec<_>>()})
}

/// The turn, its results and OpenClaw's own message, behind what was said before.
fn looped(body: &mut Value, assistant: &Value) {
    let messages = body["messages"].as_array_mut().unwrap();
    messages.retain(|message| !message["content"].to_string().contains("INTERNAL_CONTEXT"));
    messages.push(assistant.clone());
    for call in assistant["tool_calls"].as_array().unwrap() {
        messages.push(json!({"role": "tool", "tool_call_id": call["id"], "content": "text"}));
    }
    messages.push(json!({"role": "user", "content": [{"type": "text", "text": CONTEXT}]}));
}

async fn asked(respool: &Respool, body: &Value) -> Vec<Call> {
    let turn = exchange(respool.address, &Request::chat(body)).await.stream(&Rules::default());
    turn.choices[&0].tool_calls.clone()
}

/// The second request of a loop as it went upstream, after this change to its body.
async fn second_request(extra: &str, change: impl Fn(&mut Value)) -> Value {
    let fake = FakeVllm::start([thoughtful(extra, "I need a.txt.", &[READ]), answer(extra)]).await;
    let respool = Respool::with(&fake, extra).await;
    let mut body = tools_route::request();
    let calls = asked(&respool, &body).await;
    looped(&mut body, &replayed(&calls));
    change(&mut body);
    asked(&respool, &body).await;
    fake.requests()[1].json()
}

#[tokio::test]
async fn each_turn_gets_its_reasoning_once() {
    for extra in ROUTES {
        let both = [READ, ("exec", r#"{"command": "ls"}"#)];
        let fake = FakeVllm::start([
            thoughtful(extra, "First I read.", &[READ]),
            thoughtful(extra, "Then I do both.", &both),
            answer(extra),
        ])
        .await;
        let respool = Respool::with(&fake, extra).await;
        let mut body = tools_route::request();
        for _ in 0..2 {
            let calls = asked(&respool, &body).await;
            looped(&mut body, &replayed(&calls));
        }
        asked(&respool, &body).await;
        let sent = fake.requests()[2].json();
        let thoughts: Vec<&Value> =
            sent["messages"].as_array().unwrap().iter().map(|it| &it["reasoning"]).collect();
        let (first, second, none) = (json!("First I read."), json!("Then I do both."), Value::Null);
        assert_eq!(thoughts, [&none, &none, &first, &none, &second, &none, &none, &none], "{extra}");
        body["messages"][2]["reasoning"] = first;
        body["messages"][4]["reasoning"] = second;
        assert_eq!(sent["messages"], body["messages"], "nothing else was changed");
    }
}

#[tokio::test]
async fn ids_that_openclaw_altered_are_found() {
    for extra in ROUTES {
        let sent = second_request(extra, |body| {
            for pointer in ["/messages/2/tool_calls/0/id", "/messages/3/tool_call_id"] {
                let id = body.pointer_mut(pointer).unwrap();
                *id = json!(format!("{}0a1b2c3d", id.as_str().unwrap()));
            }
        })
        .await;
        assert_eq!(sent["messages"][2]["reasoning"], "I need a.txt.", "{extra}");
    }
}

#[tokio::test]
async fn what_the_client_sends_itself_stands() {
    for (field, value, expected) in [
        ("reasoning_content", "mine", "mine"),
        ("reasoning", "mine", "mine"),
        ("reasoning_content", "", "I need a.txt."),
    ] {
        let sent = second_request("", |body| body["messages"][2][field] = json!(value)).await;
        let message = &sent["messages"][2];
        assert_eq!(
            (&message["reasoning"], message.get("reasoning_content")),
            (&json!(expected), None),
            "{field}"
        );
    }
    let thought = json!([{"type": "text", "text": "<think>I need a.txt.</think>"}]);
    let sent = second_request("", |body| body["messages"][2]["content"] = thought.clone()).await;
    assert_eq!(sent["messages"][2].get("reasoning"), None, "it is there already");
}

#[tokio::test]
async fn foreign_reasoning_is_not_restored() {
    let user = json!({"role": "user", "content": "Thank you. And b.txt?"});
    for extra in ROUTES {
        let after =
            second_request(extra, |body| body["messages"].as_array_mut().unwrap().push(user.clone())).await;
        let other_call = second_request(extra, |body| {
            body["messages"][2]["tool_calls"][0]["function"]["arguments"] = json!("{}");
        });
        let other_words = second_request(extra, |body| body["messages"][1]["content"] = json!("Other words"));
        let off = format!("{extra}\n[recovery]\nreasoning_memory = false");
        for (case, sent) in [
            ("after a new user message", after),
            ("another call under this id", other_call.await),
            ("another conversation", other_words.await),
            ("switched off", second_request(&off, |_| {}).await),
        ] {
            assert_eq!(sent["messages"][2].get("reasoning"), None, "{case} {extra}");
        }
    }
}

#[tokio::test]
async fn other_clients_get_no_reasoning() {
    let fake = FakeVllm::start([thoughtful("", "SECRET", &[READ]), answer(""), answer("")]).await;
    let respool = Respool::before(&fake).await;
    let mut body = tools_route::request();
    let alice = |body: &Value| Request::chat(body).header("authorization", "Bearer alice");
    let turn = exchange(respool.address, &alice(&body)).await.stream(&Rules::default());
    looped(&mut body, &replayed(&turn.choices[&0].tool_calls));
    exchange(respool.address, &Request::chat(&body).header("authorization", "Bearer eve")).await;
    exchange(respool.address, &alice(&body)).await;
    let seen = fake.requests();
    assert_eq!(seen[1].json()["messages"][2].get("reasoning"), None);
    assert_eq!(seen[2].json()["messages"][2]["reasoning"], "SECRET");
}

/// Behind a proxy, or after a restart: the turn was another process's.
#[tokio::test]
async fn unknown_reasoning_is_noted() {
    for (reasoning, other_process, expected) in
        [("I need a.txt.", true, 1), ("I need a.txt.", false, 0), ("", false, 0)]
    {
        let fake = FakeVllm::start([thoughtful("", reasoning, &[READ]), answer("")]).await;
        let dirs = [tempdir().unwrap(), tempdir().unwrap()];
        let kept = |at: usize| format!("state_dir = \"{}\"\n", dirs[at].path().display());
        let processes = [Respool::with(&fake, &kept(0)).await, Respool::with(&fake, &kept(1)).await];
        let mut body = tools_route::request();
        let calls = asked(&processes[0], &body).await;
        looped(&mut body, &replayed(&calls));
        let next = &processes[usize::from(other_process)];
        asked(next, &body).await;
        let query = RequestQuery { most: 9, ..RequestQuery::default() };
        let rows = next.usage.records().find_requests(query).await.unwrap();
        let unknown: u64 = rows.iter().map(|row| row.details.reasoning_unknown).sum();
        assert_eq!(unknown, expected, "{reasoning} {other_process}");
    }
}

#[tokio::test]
async fn reasoning_uses_the_versions_field() {
    for (version, name, other) in
        [("0.13.0", "reasoning_content", "reasoning"), ("0.32.0", "reasoning", "reasoning_content")]
    {
        // A live reply of these versions does not tell which it is: respool has to ask, and only once it
        // matters.
        let fake = FakeVllm::start([thoughtful(LIVE, "I need a.txt.", &[READ])]).await;
        let respool = Respool::with(&fake, LIVE).await;
        let mut body = tools_route::request();
        let calls = asked(&respool, &body).await;
        fake.then(Script::json(200, &json!({"version": version})).on("GET", "/version"));
        fake.then(answer(LIVE));
        looped(&mut body, &replayed(&calls));
        asked(&respool, &body).await;
        let sent = fake.requests().last().unwrap().json();
        let message = &sent["messages"][2];
        assert_eq!((&message[name], message.get(other)), (&json!("I need a.txt."), None), "{version}");
    }
}

#[tokio::test]
async fn clients_may_drop_the_field() {
    for extra in ROUTES {
        let sent = second_request(&format!("{extra}\nreasoning = \"drop\""), |_| {}).await;
        assert_eq!(sent["messages"][2]["reasoning"], "I need a.txt.", "{extra}");
    }
}

#[tokio::test]
async fn refused_parameters_keep_reasoning() {
    let refusal = replies::error(400, "Unrecognized request argument supplied: user", "BadRequestError");
    let fake =
        FakeVllm::start([thoughtful("", "I need a.txt.", &[READ]), Script::json(400, &refusal), answer("")])
            .await;
    let respool = Respool::before(&fake).await;
    let mut body = tools_route::request();
    let calls = asked(&respool, &body).await;
    looped(&mut body, &replayed(&calls));
    body["user"] = json!("u");
    asked(&respool, &body).await;
    let sent = fake.requests()[2].json();
    assert_eq!((sent.get("user"), &sent["messages"][2]["reasoning"]), (None, &json!("I need a.txt.")));
}

#[tokio::test]
async fn the_metrics_tell_what_is_remembered() {
    second_request("", |_| {}).await;
    let fake = FakeVllm::start([]).await;
    let respool = Respool::before(&fake).await;
    let page = exchange(respool.address, &Request::get("/metrics")).await.text();
    let value = |name: &str| {
        let line =
            page.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name} in {page}"));
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    assert!(value("respool_reasoning_memory_entries ") >= 1.0);
    assert!(value("respool_reasoning_memory_bytes ") >= 13.0);
    assert!(value(r#"respool_reasoning_memory_lookups_total{result="hit"}"#) >= 1.0);
}
