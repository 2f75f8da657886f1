//! Requests that a server refuses are adapted, learned from and sent right the next time.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::client::{Request, exchange};
use crate::support::fake_vllm::{FakeVllm, Seen};
use crate::support::replies;
use crate::support::respool::{ONCE, Respool};
use crate::support::script::Script;
use crate::support::served::Served;
use adapt::{Loss, ParameterRow, Rule, parameter_rows, row_of, rows};
use upstream::RuleFile;

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
    for row in rows().filter(|row| row.loss != Loss::Lossy) {
        let (before, after) = row.example;
        // A picture or sound that is certainly good is refused, too: the model cannot see or hear.
        let probes = usize::from(matches!(row.rule, Rule::NoImages | Rule::NoAudio));
        let refusals = std::iter::repeat_n(refusal(400, row.said[0].1), 1 + probes);
        let fake = FakeVllm::start(refusals.chain([ok(), ok()])).await;
        let respool = Respool::before(&fake).await;
        for _ in 0..2 {
            let reply = exchange(respool.address, &Request::chat(&request(before))).await;
            assert_eq!(reply.status, 200, "{}", row.rule);
        }
        let sent: Vec<Value> = fake.requests().iter().map(Seen::json).collect();
        assert_eq!(sent.len(), 3 + probes, "{}: the first turn takes two requests, the next one", row.rule);
        for (field, value) in fields(after).as_object().unwrap() {
            let adapted = &sent[1 + probes..];
            assert_eq!((&adapted[0][field], &adapted[1][field]), (value, value), "{}", row.rule);
        }
    }
}

/// Parameters that are unknown, have another name, exclude one another or are out of range.
#[tokio::test]
async fn one_refusal_teaches_each_parameter() {
    let of_table =
        parameter_rows().iter().filter(|row| row.loss != Loss::Lossy).flat_map(ParameterRow::examples);
    let others = [
        [
            "max_completion_tokens: Extra inputs are not permitted",
            r#"{"max_completion_tokens":5}"#,
            r#"{"max_tokens":5}"#,
        ],
        [
            "`temperature` and `top_p` cannot both be specified for this model.",
            r#"{"temperature":0.5,"top_p":0.9}"#,
            r#"{"temperature":0.5}"#,
        ],
    ];
    for [words, before, after] in of_table.chain(others.map(|example| example.map(str::to_owned))) {
        let is_for_streams_only = words.contains("stream_options");
        if is_for_streams_only {
            continue;
        }
        let fake = FakeVllm::start([refusal(400, &words), ok(), ok()]).await;
        let respool = Respool::before(&fake).await;
        let (before, after) = (request(&before), request(&after));
        for _ in 0..2 {
            assert_eq!(exchange(respool.address, &Request::chat(&before)).await.status, 200, "{words}");
        }
        let sent: Vec<Value> = fake.requests().iter().map(Seen::json).collect();
        assert_eq!(sent, [before, after.clone(), after], "{words}");
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

/// A server that does not know `tool_choice`: the rule that leaves out `auto` leaves out nothing else.
#[tokio::test]
async fn a_default_is_left_out_alone() {
    let fake = FakeVllm::thinking(|request| match &request["tool_choice"] {
        Value::Null => ok(),
        _ => refusal(400, "tool_choice is not supported"),
    })
    .await;
    let respool = Respool::before(&fake).await;
    for (choice, status) in [("auto", 200), ("required", 400), ("auto", 200)] {
        let body = request(&json!({"tool_choice": choice}).to_string());
        let reply = exchange(respool.address, &Request::chat(&body)).await;
        assert_eq!(reply.status, status, "{choice}");
        let is_named = reply.text().contains(r#"`[adapt] lossy = [\"parameter.drop:tool_choice\"]`"#);
        assert_eq!(is_named, status == 400, "{}", reply.text());
    }
    assert_eq!(fake.requests().len(), 4);
}

#[tokio::test]
async fn learned_rules_end_with_their_consent() {
    let state = tempfile::tempdir().unwrap();
    let body = request(r#"{"logit_bias":{"5":-100}}"#);
    let fake = FakeVllm::start([refusal(400, "logit_bias is not supported"), ok(), ok()]).await;
    for (consent, sent, is_left_out) in [("\"parameter.drop:*\"", 2, true), ("", 3, false)] {
        let config = format!("state_dir = {:?}\n[adapt]\nlossy = [{consent}]\n", state.path());
        let respool = Respool::with(&fake, &config).await;
        assert_eq!(exchange(respool.address, &Request::chat(&body)).await.status, 200);
        let requests = fake.requests();
        assert_eq!(
            (requests.len(), requests[sent - 1].json().get("logit_bias").is_none()),
            (sent, is_left_out)
        );
        respool.killed().await;
    }
}

/// Each lossy row of the table, and lossy parameters: the body that was refused, and the one that is sent
/// with consent.
#[tokio::test]
async fn lossy_rules_apply_with_consent() {
    let of_table = rows().filter(|row| row.loss == Loss::Lossy).map(|row| {
        let (before, after) = row.example;
        [row.said[0].1, before, after].map(str::to_owned)
    });
    let parameters = parameter_rows().iter().filter(|row| row.loss == Loss::Lossy);
    for [words, before, after] in of_table.chain(parameters.flat_map(ParameterRow::examples)) {
        let (before, after) = (request(&before), request(&after));
        let has_other_rule = words == row_of(&Rule::SystemFirst).unwrap().said[0].1;
        if !has_other_rule {
            let fake = FakeVllm::always(refusal(400, &words)).await;
            let respool = Respool::before(&fake).await;
            let reply = exchange(respool.address, &Request::chat(&before)).await;
            assert_eq!((reply.status, fake.requests().len()), (400, 1), "{words}");
            assert!(reply.text().contains("`[adapt] lossy = ["), "{}", reply.text());
        }
        let fake = FakeVllm::start([refusal(400, &words), ok(), ok()]).await;
        let respool = Respool::with(&fake, "[adapt]\nlossy = [\"messages.*\", \"parameter.drop:*\"]").await;
        for _ in 0..2 {
            assert_eq!(exchange(respool.address, &Request::chat(&before)).await.status, 200, "{words}");
        }
        let sent: Vec<Value> = fake.requests().iter().map(Seen::json).collect();
        assert_eq!(sent, [before, after.clone(), after], "{words}");
    }
}

/// The server does not check `pattern`: the model is asked again when a call breaks it.
#[tokio::test]
async fn calls_that_break_dropped_checks_are_asked_again() {
    let row = row_of(&Rule::ToolPattern).unwrap();
    let call = |a: &str| Script::json(200, &replies::calls(&[("f", &json!({"a": a}).to_string())]));
    for (again, expected) in [("7", "7"), ("y", "x")] {
        let fake = FakeVllm::start([refusal(400, row.said[0].1), call("x"), call(again)]).await;
        let respool = Respool::before(&fake).await;
        let reply = exchange(respool.address, &Request::chat(&request(row.example.0))).await;
        let sent = fake.requests();
        let note = sent[2].json()["messages"][0]["content"].to_string();
        assert!(note.contains("breaks its schema: a: must match the pattern"), "{note}");
        assert_eq!((sent.len(), &sent[2].json()["tools"]), (3, &fields(row.example.1)["tools"]));
        let called = &reply.json()["choices"][0]["message"]["tool_calls"][0]["function"];
        assert_eq!(called["arguments"], json!({"a": expected}).to_string());
    }
    let fake = FakeVllm::start([call("x")]).await;
    let respool = Respool::before(&fake).await;
    let reply = exchange(respool.address, &Request::chat(&request(row.example.0))).await;
    assert_eq!((reply.status, fake.requests().len()), (200, 1), "this server knows the whole schema");
}

/// The server does not know `parallel_tool_calls`: respool lets only the first call leave.
#[tokio::test]
async fn one_call_leaves_without_the_parameter() {
    let mut body = request(row_of(&Rule::ToolPattern).unwrap().example.1);
    for (is_parallel, left) in [(false, 1), (true, 2)] {
        let calls = Script::json(200, &replies::calls(&[("f", r#"{"a":"1"}"#), ("f", r#"{"a":"2"}"#)]));
        let refused = refusal(400, "property 'parallel_tool_calls' is unsupported");
        let fake = FakeVllm::start([refused, calls]).await;
        let respool = Respool::before(&fake).await;
        body["parallel_tool_calls"] = json!(is_parallel);
        let reply = exchange(respool.address, &Request::chat(&body)).await.json();
        let called = reply["choices"][0]["message"]["tool_calls"].as_array().unwrap();
        assert_eq!((called.len(), &called[0]["function"]["arguments"]), (left, &json!(r#"{"a":"1"}"#)));
        assert_eq!(fake.requests()[1].json().get("parallel_tool_calls"), None);
    }
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

/// `capabilities` in the list of models says what refusals have taught, or that pictures go elsewhere.
#[tokio::test]
async fn the_list_of_models_says_who_sees() {
    let row = row_of(&Rule::NoImages).unwrap();
    let refusals = [refusal(400, row.said[0].1), refusal(400, row.said[0].1)];
    let fake = FakeVllm::start(refusals.into_iter().chain([ok()])).await;
    fake.serve_models(&["m", "other"]);
    let respool = Respool::with(&fake, "[models.other]\nvision = \"seer\"").await;
    let capabilities = async || {
        let list = exchange(respool.address, &Request::get("/v1/models")).await.json();
        let of = |place: usize| list["data"][place]["capabilities"].clone();
        (of(0), of(1))
    };
    assert_eq!(capabilities().await, (Value::Null, json!({"vision": true})));
    assert_eq!(exchange(respool.address, &Request::chat(&request(row.example.0))).await.status, 200);
    assert_eq!(capabilities().await, (json!({"vision": false}), json!({"vision": true})));
}

#[tokio::test]
async fn one_broken_picture_blinds_no_model() {
    let row = row_of(&Rule::NoImages).unwrap();
    let refused = refusal(400, "Invalid content part: image could not be read");
    // The picture that is certainly good is accepted.
    let fake = FakeVllm::start([refused, ok(), ok(), ok()]).await;
    let respool = Respool::before(&fake).await;
    let broken = request(row.example.0);
    let good = request(&row.example.0.replace("a.png", "b.png"));
    for body in [&broken, &good] {
        assert_eq!(exchange(respool.address, &Request::chat(body)).await.status, 200);
    }
    let sent: Vec<Value> = fake.requests().iter().map(Seen::json).collect();
    assert_eq!(sent[1]["max_tokens"], 1, "the picture that is certainly good");
    assert_eq!(sent[2]["messages"], fields(row.example.1)["messages"], "the session lives");
    assert_eq!((sent.len(), &sent[3]["messages"]), (4, &good["messages"]), "another one keeps its picture");
}

#[tokio::test]
async fn renamed_tools_come_back_under_their_own_names() {
    let name = "mcp.github.read";
    let call = Script::json(200, &replies::calls(&[("mcp_github_read_2c9be892", r#"{"path":"a"}"#)]));
    let fake = FakeVllm::start([refusal(400, row_of(&Rule::ToolNames).unwrap().said[0].1), call]).await;
    let respool = Respool::before(&fake).await;
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}],
        "tool_choice": {"type": "function", "function": {"name": name}},
        "tools": [{"type": "function", "function": {"name": name, "description": "d", "parameters": {"type": "object"}}}]});
    let reply = exchange(respool.address, &Request::chat(&body)).await;
    let sent = fake.requests()[1].json();
    assert_eq!(sent["tools"][0]["function"]["name"], "mcp_github_read_2c9be892");
    assert_eq!(sent["tool_choice"]["function"]["name"], "mcp_github_read_2c9be892");
    let called = &reply.json()["choices"][0]["message"]["tool_calls"][0]["function"];
    assert_eq!((&called["name"], &called["arguments"]), (&json!(name), &json!(r#"{"path":"a"}"#)));
}

/// A vLLM without a parser of calls leaves them in the text, unless the client insists on a call.
#[tokio::test]
async fn calls_need_no_parser_at_the_server() {
    let row = row_of(&Rule::Unparsed).unwrap();
    let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
    let refused = || refusal(400, row.said[0].1);
    let fake = FakeVllm::start([refused(), Script::json(200, &replies::text(call)), refused()]).await;
    let respool = Respool::before(&fake).await;
    let mut body = request(row.example.0);
    let reply = exchange(respool.address, &Request::chat(&body)).await.json();
    assert_eq!(reply["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "f");
    body["tool_choice"] = json!("required");
    let reply = exchange(respool.address, &Request::chat(&body)).await;
    assert_eq!((reply.status, fake.requests().len()), (400, 3));
    assert!(reply.text().contains("Start vLLM with --enable-auto-tool-choice"), "{}", reply.text());
}

/// Two turns of a conversation share their adapted beginning, so the server's prefix cache holds; another
/// conversation's refusals change nothing in it.
#[tokio::test]
async fn a_running_conversation_keeps_its_prefix() {
    let words = row_of(&Rule::ResultName).unwrap().said[0].1;
    let fake = FakeVllm::start([ok(), refusal(400, words), ok(), ok(), ok()]).await;
    let respool = Respool::before(&fake).await;
    let long = "s".repeat(9_000);
    let turns = |first: &str, more: &[Value]| {
        let call = json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}});
        let mut messages = vec![
            json!({"role": "system", "content": long}),
            json!({"role": "user", "content": first}),
            json!({"role": "assistant", "content": "", "tool_calls": [call]}),
            json!({"role": "tool", "tool_call_id": "1", "content": "x"}),
        ];
        messages.extend(more.iter().cloned());
        json!({"model": "m", "messages": messages})
    };
    let next = [json!({"role": "assistant", "content": "a"}), json!({"role": "user", "content": "b"})];
    for body in [turns("one", &[]), turns("two", &[]), turns("one", &next), turns("two", &next)] {
        assert_eq!(exchange(respool.address, &Request::chat(&body)).await.status, 200);
    }
    let bytes: Vec<Vec<u8>> = fake.requests().into_iter().map(|seen| seen.body).collect();
    assert!(bytes[4].starts_with(bytes[2].strip_suffix(b"]}").unwrap()), "byte for byte");
    let sent: Vec<Value> = fake.requests().iter().map(Seen::json).collect();
    let messages = |at: usize| sent[at]["messages"].as_array().unwrap();
    assert_eq!(messages(2)[3]["name"], "f", "the other conversation is adapted");
    assert_eq!(messages(3)[..4], messages(0)[..4], "the running one keeps its form");
}

/// A client that adds a system message in each turn: with consent, the server's cache holds.
#[tokio::test]
async fn later_system_messages_keep_the_prefix() {
    let words = row_of(&Rule::LaterSystemAsUser).unwrap().said[0].1;
    let fake = FakeVllm::start([refusal(400, words), ok(), ok()]).await;
    let respool = Respool::with(&fake, "[adapt]\nlossy = [\"messages.later_system_as_user\"]").await;
    let message = |role: &str, text: &str| json!({"role": role, "content": text});
    let mut messages = vec![message("system", "s"), message("user", "a"), message("system", "It is noon.")];
    for _ in 0..2 {
        let body = json!({"model": "m", "messages": messages});
        assert_eq!(exchange(respool.address, &Request::chat(&body)).await.status, 200);
        messages.extend([message("assistant", "b"), message("system", "It is one."), message("user", "c")]);
    }
    let sent = fake.requests();
    assert!(sent[2].body.starts_with(sent[1].body.strip_suffix(b"]}").unwrap()), "byte for byte");
    let last = "<system>\n\nIt is one.\n\n</system>\n\nc";
    assert_eq!(sent[2].json()["messages"][3], message("user", last));
}

/// The client's conversation goes on, and its system message comes first at the server.
#[tokio::test(flavor = "multi_thread")]
async fn a_rule_that_costs_the_prefix_is_noticed() {
    let words = row_of(&Rule::SystemFirst).unwrap().said[0].1;
    let fake = FakeVllm::start([refusal(400, words), ok(), ok(), ok()]).await;
    let served = Served::start(&fake.url());
    let message = |role: &str, text: &str| json!({"role": role, "content": text});
    let short = [message("user", "a"), message("system", "b")];
    let mut long = vec![message("system", "a"), message("user", &"u".repeat(9_000))];
    let mut lost = Vec::new();
    for late in [None, None, Some(message("system", "It is noon."))] {
        long.extend(late);
        let messages = if lost.is_empty() { &short[..] } else { &long };
        let body = json!({"model": "m", "messages": messages});
        assert_eq!(exchange(served.address, &Request::chat(&body)).await.status, 200);
        let line = served.line(|line| line["message"] == "request", Duration::from_secs(20));
        lost.push(line["prefix_lost"].clone());
    }
    assert_eq!(lost[..2], [Value::Null, Value::Null]);
    let place = "message 0 as rules of docs/requests.md changed it, byte 29: ";
    assert!(lost[2].as_str().is_some_and(|lost| lost.starts_with(place)), "{lost:?}");
}

/// Some servers send the head of a stream before they read the request.
#[tokio::test]
async fn refusals_come_as_error_events_too() {
    let row = row_of(&Rule::SystemFirst).unwrap();
    let event = replies::frame(&replies::error(400, row.said[0].1, "BadRequestError"));
    let stream = || Script::sse(replies::text_stream(&["ok"], false));
    let fake = FakeVllm::start([Script::sse([event]), stream(), stream()]).await;
    let respool = Respool::before(&fake).await;
    let mut body = request(row.example.0);
    body["stream"] = json!(true);
    for _ in 0..2 {
        let reply = exchange(respool.address, &Request::chat(&body)).await;
        assert!(reply.text().contains(r#""content":"ok""#), "{}", reply.text());
    }
    let sent: Vec<Value> = fake.requests().iter().map(Seen::json).collect();
    let adapted = &fields(row.example.1)["messages"];
    assert_eq!((sent.len(), &sent[1]["messages"], &sent[2]["messages"]), (3, adapted, adapted));
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
    let row = rows().next().unwrap();
    let body = request(row.example.0);
    let words = row.said[0].1;
    let fake = FakeVllm::start([refusal(400, words), refusal(400, words), ok()]).await;
    let respool = Respool::before(&fake).await;
    assert_eq!(exchange(respool.address, &Request::chat(&body)).await.status, 400);
    assert_eq!(exchange(respool.address, &Request::chat(&body)).await.status, 200);
    let sent: Vec<Value> = fake.requests().iter().map(Seen::json).collect();
    assert_eq!((sent.len(), &sent[2]["tools"]), (3, &body["tools"]));
}

/// A 200 and the beginning of a stream prove nothing: the server may still fail.
#[tokio::test]
async fn rules_are_kept_after_a_whole_reply() {
    let row = row_of(&Rule::SystemFirst).unwrap();
    let failed = || replies::error(500, "CUDA error", "InternalServerError");
    let chunks = replies::text_stream(&["hal"], false).into_iter().take(2);
    let broken = Script::sse(chunks.chain([replies::frame(&failed())]));
    let stream = || Script::sse(replies::text_stream(&["ok"], false));
    for (streams, fails, succeeds) in
        [(true, broken, stream as fn() -> Script), (false, Script::json(200, &failed()), ok)]
    {
        let words = || refusal(400, row.said[0].1);
        let fake = FakeVllm::start([words(), fails, words(), succeeds(), succeeds()]).await;
        let respool = Respool::with(&fake, ONCE).await;
        let mut body = request(row.example.0);
        body["stream"] = json!(streams);
        for _ in 0..3 {
            exchange(respool.address, &Request::chat(&body)).await;
        }
        let sent: Vec<Value> = fake.requests().iter().map(|seen| seen.json()["messages"].clone()).collect();
        let (before, after) = (&body["messages"], &fields(row.example.1)["messages"]);
        assert_eq!(sent.iter().collect::<Vec<_>>(), [before, after, before, after, after], "{streams}");
    }
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

/// Four causes are removed; the refusal of a fifth one reaches the client.
#[tokio::test]
async fn a_fifth_cause_is_the_clients() {
    let names = ["metadata", "verbosity", "user", "service_tier", "prompt_cache_key"];
    let body =
        request(&json!(names.iter().map(|name| (*name, false)).collect::<BTreeMap<_, _>>()).to_string());
    let words = names.map(|name| refusal(400, &format!("Unrecognized request argument supplied: {name}")));
    let fake = FakeVllm::start(words).await;
    let respool = Respool::before(&fake).await;
    let reply = exchange(respool.address, &Request::chat(&body)).await;
    assert_eq!((reply.status, fake.requests().len()), (400, 5));
    assert!(reply.text().contains("prompt_cache_key"), "{}", reply.text());
    let last = fake.requests()[4].json();
    let left: Vec<&str> = names.into_iter().filter(|name| last.get(*name).is_some()).collect();
    assert_eq!(left, ["prompt_cache_key"]);
}

#[tokio::test]
async fn metrics_count_each_adapted_request() {
    let words = "Unrecognized request argument supplied: user";
    let fake = FakeVllm::start([refusal(400, words), ok(), ok(), ok()]).await;
    let respool =
        Respool::configured(&format!("[[upstream]]\nname = \"counted\"\nurl = \"{}\"\n", fake.url())).await;
    for body in [r#"{"user":"u"}"#, r#"{"user":"u"}"#, "{}"] {
        assert_eq!(exchange(respool.address, &Request::chat(&request(body))).await.status, 200);
    }
    let metrics = exchange(respool.address, &Request::get("/metrics")).await.text();
    let line = r#"respool_adaptations_total{rule="refused_parameter",upstream="counted"} 2"#;
    assert!(metrics.lines().any(|one| one == line), "{metrics}");
}

const VARIANTS: &str = r#"
[models."qwen3.6"]
default = { temperature = 0.7, chat_template_kwargs = { keep = 1 } }
strip = ["metadata", "extra.user"]
[models."qwen3.6:nothink"]
target = "qwen3.6"
set = { chat_template_kwargs = { enable_thinking = false } }
"#;

#[tokio::test]
async fn variants_declare_their_parameters() {
    let fake = FakeVllm::start([ok(), ok()]).await;
    let respool = Respool::with(&fake, VARIANTS).await;
    let asked = json!({"model": "qwen3.6:nothink", "messages": [{"role": "user", "content": "hi"}], "metadata": {"a": 1},
        "extra": {"user": 1, "id": 2}, "chat_template_kwargs": {"enable_thinking": true}});
    let mut plain = asked.clone();
    plain["model"] = json!("qwen3.6");
    for body in [&asked, &plain] {
        assert_eq!(exchange(respool.address, &Request::chat(body)).await.status, 200);
    }
    let sent: Vec<Value> = fake.requests().iter().map(Seen::json).collect();
    for (body, thinks) in sent.iter().zip([false, true]) {
        assert_eq!((&body["model"], &body["temperature"]), (&json!("qwen3.6"), &json!(0.7)));
        assert_eq!(body["chat_template_kwargs"], json!({"enable_thinking": thinks, "keep": 1}));
        assert_eq!((body.get("metadata"), &body["extra"]), (None, &json!({"id": 2})));
    }
}

#[tokio::test]
async fn no_reasoning_reaches_the_model() {
    let config = "[models.\"house\"]\nreasoning_off = { chat_template_kwargs = { mode = \"quick\" } }\n";
    let fake = FakeVllm::start([ok(), ok(), ok(), ok()]).await;
    let respool = Respool::with(&fake, config).await;
    for model in ["Qwen/Qwen3-32B", "house", "gpt-oss-20b"] {
        let body = json!({"model": model, "messages": [{"role": "user", "content": "hi"}], "think": false});
        assert_eq!(exchange(respool.address, &Request::chat(&body)).await.status, 200);
    }
    let messages = json!({"model": "Qwen/Qwen3-32B", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}],
        "thinking": {"type": "disabled"}});
    assert_eq!(
        exchange(respool.address, &Request::post("/v1/messages", messages.to_string())).await.status,
        200
    );
    let sent: Vec<Value> = fake.requests().iter().map(Seen::json).collect();
    assert_eq!(sent[0]["chat_template_kwargs"], json!({"enable_thinking": false}));
    assert_eq!(sent[1]["chat_template_kwargs"], json!({"mode": "quick"}));
    assert_eq!(sent[2]["reasoning_effort"], "low");
    assert_eq!(sent[3]["chat_template_kwargs"], json!({"enable_thinking": false}));
}

/// A reply with reasoning, in both forms.
fn reasoning_reply(request: &Value) -> Script {
    if request["stream"] != true {
        let mut reply = replies::text("ok");
        reply["choices"][0]["message"]["reasoning"] = json!("Hm.");
        return Script::json(200, &reply);
    }
    let mut frames = replies::text_stream(&["ok"], false);
    frames.insert(1, replies::frame(&replies::chunk(&json!({"reasoning": "Hm."}), None)));
    Script::sse(frames)
}

#[tokio::test(flavor = "multi_thread")]
async fn disobedient_models_are_reported_once() {
    let fake = FakeVllm::thinking(reasoning_reply).await;
    let served = Served::start(&fake.url());
    let tools = json!([{"type": "function", "function": {"name": "f", "description": "d"}}]);
    let off = json!({"type": "disabled"});
    let requests = [
        ("qwen3-a", "/v1/chat/completions", json!({"think": false}), 1),
        ("qwen3-b", "/v1/chat/completions", json!({"think": false, "stream": true}), 1),
        ("qwen3-c", "/v1/chat/completions", json!({"think": false, "tools": tools}), 1),
        ("qwen3-d", "/v1/messages", json!({"max_tokens": 9, "thinking": off, "stream": true}), 1),
        // It always reasons.
        ("gpt-oss-20b", "/v1/chat/completions", json!({"think": false}), 0),
    ];
    for (model, path, mut body, wanted) in requests {
        body["model"] = json!(model);
        body["messages"] = json!([{"role": "user", "content": "hi"}]);
        let warnings = Cell::new(0);
        for _ in 0..2 {
            assert_eq!(exchange(served.address, &Request::post(path, body.to_string())).await.status, 200);
            let is_last = |line: &Value| {
                let warns = line["message"].as_str().unwrap().starts_with("the model reasons although");
                warnings.set(warnings.get() + u32::from(warns));
                line["message"] == "request"
            };
            served.line(is_last, Duration::from_secs(20));
        }
        assert_eq!(warnings.get(), wanted, "{body}");
    }
}

#[test]
fn fields_that_make_the_request_cannot_be_declared() {
    for declared in ["set = { messages = [] }", "default = { model = \"x\" }", "strip = [\"stream\"]"] {
        let text = format!("[models.m]\n{declared}\n");
        let file = settings::FileText { path: "test.toml".as_ref(), text: &text };
        let problems = settings::resolve(Some(file), &BTreeMap::new(), &settings::Flags::default())
            .err()
            .unwrap_or_else(|| panic!("{declared} is taken"));
        assert!(problems.to_string().contains("makes the request what it is"), "{problems}");
    }
}

#[tokio::test]
async fn learned_rules_outlive_a_restart() {
    let row = rows().next().unwrap();
    let body = request(row.example.0);
    let state = tempfile::tempdir().unwrap();
    let config = format!("state_dir = {:?}\n", state.path());
    let fake = FakeVllm::start([refusal(400, row.said[0].1), ok(), ok(), ok()]).await;
    for sent in [2, 3] {
        let respool = Respool::with(&fake, &config).await;
        assert_eq!(exchange(respool.address, &Request::chat(&body)).await.status, 200);
        assert_eq!(fake.requests().len(), sent, "only the first turn is refused");
        respool.killed().await;
    }
    let file = RuleFile::new(state.path());
    assert_eq!(file.rules_of("box").models[0].rules, [row.rule.to_string()]);
    assert!(file.forget("box").unwrap());
    let respool = Respool::with(&fake, &config).await;
    assert_eq!(exchange(respool.address, &Request::chat(&body)).await.status, 200);
    assert_eq!(fake.requests()[3].json()["tools"], body["tools"], "it begins unchanged again");
}

/// gpt-oss takes only text. Its servers leave out pictures and sounds without a word, so nothing is learned.
#[tokio::test]
async fn pictures_for_gpt_oss_become_texts() {
    let (image, sound) = (row_of(&Rule::NoImages).unwrap(), row_of(&Rule::NoAudio).unwrap());
    for (config, is_replaced) in [("", true), ("[adapt]\nmedia = false", false)] {
        let fake = FakeVllm::always(ok()).await;
        fake.serve_models(&["gpt-oss-20b"]);
        let respool = Respool::with(&fake, config).await;
        for row in [image, sound] {
            let mut body = request(row.example.0);
            body["model"] = json!("gpt-oss-20b");
            assert_eq!(exchange(respool.address, &Request::chat(&body)).await.status, 200);
            let wanted = if is_replaced { fields(row.example.1) } else { fields(row.example.0) };
            let sent = fake.requests().last().unwrap().json();
            assert_eq!(sent["messages"], wanted["messages"], "{config}");
        }
        assert_eq!(fake.requests().len(), 2, "no probe");
        let list = exchange(respool.address, &Request::get("/v1/models")).await.json();
        assert_eq!(list["data"][0]["capabilities"], json!({"vision": false, "audio": false}));
    }
}
