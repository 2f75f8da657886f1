//! `/v1/responses` and `/v1/messages` through the whole server: the upstream sees chat completions, the
//! client its own API.

use std::time::Duration;

use serde_json::{Value, json};

use crate::agents;
use crate::live::LIVE;
use crate::support::client::{Reply, Request, exchange};
use crate::support::fake_vllm::FakeVllm;
use crate::support::other_wires::{self, Told};
use crate::support::replies;
use crate::support::respool::{ONCE, Respool};
use crate::support::script::Script;

const QUICK: &str = "[limits]\ncommit_after = \"150ms\"\nheartbeat = \"100ms\"";

fn response_request(stream: bool, tools: bool) -> Value {
    let tool = json!({"type": "function", "name": "read", "description": "Reads.", "parameters":
        {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}});
    json!({"model": "gpt-oss-20b", "input": "hi", "stream": stream, "store": false, "tools": if tools { json!([tool]) } else { json!([]) }})
}

fn message_request(stream: bool, tools: bool) -> Value {
    let tool = json!({"name": "read", "description": "Reads.", "input_schema":
        {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}});
    json!({"model": "gpt-oss-20b", "messages": [{"role": "user", "content": "hi"}], "stream": stream, "max_tokens": 4000,
        "thinking": {"type": "adaptive"}, "tools": if tools { json!([tool]) } else { json!([]) }})
}

async fn post(respool: &Respool, path: &str, body: &Value) -> Reply {
    exchange(respool.address, &Request::post(path, body.to_string())).await
}

fn text(reply: &Reply) -> String {
    String::from_utf8(reply.body()).unwrap()
}

/// Both routes, streamed and whole.
async fn all_four(respool: &Respool, tools: bool) -> [Told; 4] {
    let response = text(&post(respool, "/v1/responses", &response_request(true, tools)).await);
    let whole_response = post(respool, "/v1/responses", &response_request(false, tools)).await.json();
    let message = text(&post(respool, "/v1/messages?beta=true", &message_request(true, tools)).await);
    let whole_message = post(respool, "/v1/messages", &message_request(false, tools)).await.json();
    let told = |object| Told { object, ..Told::default() };
    [
        other_wires::responses(&response),
        told(whole_response),
        other_wires::messages(&message),
        told(whole_message),
    ]
}

#[tokio::test]
async fn leaked_calls_are_read_on_both_routes() {
    let leaked = || {
        Script::json(
            200,
            &replies::text(
                "<tool_call>\n{\"name\": \"read\", \"arguments\": {\"path\": \"a\"}}\n</tool_call>",
            ),
        )
    };
    let fake = FakeVllm::start([leaked(), leaked(), leaked(), leaked()]).await;
    let respool = Respool::before(&fake).await;
    let [response, whole_response, message, whole_message] = all_four(&respool, true).await;
    let call = vec![("read".to_owned(), r#"{"path":"a"}"#.to_owned())];
    let squeezed = |calls: &[(String, String)]| -> Vec<(String, String)> {
        calls.iter().map(|(name, arguments)| (name.clone(), arguments.replace(": ", ":"))).collect()
    };
    assert_eq!((squeezed(&response.calls), response.end.as_str()), (call.clone(), "completed"));
    assert_eq!((squeezed(&message.calls), message.end.as_str()), (call, "tool_use"));
    assert_eq!(whole_response.object["output"][0]["name"], "read");
    assert_eq!(whole_message.object["content"][0]["input"], json!({"path": "a"}));
    assert!(fake.requests().iter().all(|request| request.path() == "/v1/chat/completions"));
    fake.finish();
}

#[tokio::test]
async fn text_streams_or_is_collected() {
    let streamed = || Script::sse(replies::text_stream(&["Hel", "lo"], true));
    let fake = FakeVllm::start([streamed(), streamed(), streamed(), streamed()]).await;
    let respool = Respool::before(&fake).await;
    let [response, whole_response, message, whole_message] = all_four(&respool, false).await;
    assert_eq!((response.content.as_str(), response.usage), ("Hello", Some((131, 31))));
    assert_eq!((message.content.as_str(), message.usage), ("Hello", Some((131, 31))));
    assert_eq!(whole_response.object["output"][0]["content"][0]["text"], "Hello");
    assert_eq!(
        (&whole_message.object["content"][0]["text"], &whole_message.object["stop_reason"]),
        (&json!("Hello"), &json!("end_turn"))
    );
    fake.finish();
}

/// The text of a response object.
fn text_item(object: &Value) -> &Value {
    let is_text = |item: &&Value| item["type"] == "message";
    &object["output"].as_array().unwrap().iter().find(is_text).unwrap()["content"][0]
}

/// Streamed and whole, read at once or as it comes: what the deltas have is what the item has.
#[tokio::test]
async fn responses_clients_get_log_probabilities() {
    let of = |token: &str| {
        let bytes = token.as_bytes();
        json!({"token": token, "logprob": -0.5, "bytes": bytes, "top_logprobs": [{"token": token, "logprob": -0.5, "bytes": bytes}]})
    };
    let expected = json!([of("Hel"), of("lo")]);
    let mut whole = replies::text("Hello");
    whole["choices"][0]["logprobs"] = json!({"content": expected});
    let mut frames = replies::text_stream(&["Hel", "lo"], true);
    for (place, token) in [(1, "Hel"), (2, "lo")] {
        let mut chunk = replies::chunk(&json!({"content": token}), None);
        chunk["choices"][0]["logprobs"] = json!({"content": [of(token)]});
        frames[place] = replies::frame(&chunk);
    }
    // A token of reasoning is not the text's, and one that is not a whole character yet belongs to the text
    // that follows.
    let mut reasoning = replies::chunk(&json!({"reasoning": "Hm"}), None);
    reasoning["choices"][0]["logprobs"] = json!({"content": [of("Hm")]});
    let mut half = replies::chunk(&json!({"content": ""}), None);
    half["choices"][0]["logprobs"] = json!({"content": [of("Hel")]});
    let mut rest = replies::chunk(&json!({"content": "Hel"}), None);
    rest["choices"][0]["logprobs"] = json!({"content": []});
    frames.splice(1..2, [reasoning, half, rest].iter().map(replies::frame));
    for (tools, settings, script) in [
        (true, "", Script::json(200, &whole)),
        (false, "", Script::sse(frames.clone())),
        (true, LIVE, Script::sse(frames)),
    ] {
        let fake = FakeVllm::always(script).await;
        let respool = Respool::with(&fake, settings).await;
        let wanted = |stream: bool| {
            let mut body = response_request(stream, tools);
            (body["include"], body["top_logprobs"]) = (json!(["message.output_text.logprobs"]), json!(1));
            body
        };
        let reply = text(&post(&respool, "/v1/responses", &wanted(true)).await);
        let told = other_wires::responses(&reply);
        assert_eq!(told.content, "Hello");
        let events = reply.lines().filter_map(|line| line.strip_prefix("data: "));
        let events: Vec<Value> = events.map(|data| serde_json::from_str(data).unwrap()).collect();
        let of_kind =
            |kind: &str| events.iter().filter(|event| event["type"] == kind).cloned().collect::<Vec<_>>();
        let deltas = of_kind("response.output_text.delta");
        let in_deltas: Vec<&Value> =
            deltas.iter().flat_map(|delta| delta["logprobs"].as_array().unwrap()).collect();
        assert_eq!(in_deltas, expected.as_array().unwrap().iter().collect::<Vec<_>>());
        assert_eq!(of_kind("response.output_text.done")[0]["logprobs"], expected);
        assert_eq!(text_item(&told.object)["logprobs"], expected);
        let object = post(&respool, "/v1/responses", &wanted(false)).await.json();
        assert_eq!(text_item(&object)["logprobs"], expected);
        for request in fake.requests() {
            let chat = request.json();
            assert_eq!((&chat["logprobs"], &chat["top_logprobs"]), (&json!(true), &json!(1)));
        }
    }
}

#[tokio::test]
async fn heartbeats_are_events_of_each_api() {
    let silence = Duration::from_millis(600);
    let call = || Script::json(200, &replies::calls(&[("read", r#"{"path": "a"}"#)])).delay(silence);
    let fake = FakeVllm::start([call(), call()]).await;
    let respool = Respool::with(&fake, QUICK).await;
    let body = text(&post(&respool, "/v1/responses", &response_request(true, true)).await);
    assert!(body.matches("event: response.in_progress").count() > 2, "{body}");
    assert_eq!(other_wires::responses(&body).calls.len(), 1);
    let body = text(&post(&respool, "/v1/messages", &message_request(true, true)).await);
    assert!(body.matches("event: ping").count() > 1, "{body}");
    let told = other_wires::messages(&body);
    assert_eq!((told.calls.len(), told.reasoning.as_str()), (1, "I need a tool."));
}

#[tokio::test]
async fn errors_fit_their_route() {
    let refused =
        || Script::json(400, &replies::error(400, "temperature must be non-negative", "BadRequestError"));
    let fake = FakeVllm::start([refused(), refused(), refused(), refused()]).await;
    let respool = Respool::with(&fake, ONCE).await;
    let reply = post(&respool, "/v1/responses", &response_request(true, true)).await;
    assert_eq!((reply.status, &reply.json()["error"]["type"]), (400, &json!("invalid_request_error")));
    let reply = post(&respool, "/v1/messages", &message_request(false, true)).await;
    assert_eq!(
        (reply.status, &reply.json()["type"], &reply.json()["error"]["type"]),
        (400, &json!("error"), &json!("invalid_request_error"))
    );
    assert_eq!(reply.headers.get("x-should-retry"), Some("false"));
    assert_eq!(reply.headers.get("request-id"), reply.json()["request_id"].as_str());
    let codex = Request::post("/v1/responses", response_request(true, true).to_string())
        .header("user-agent", "codex_exec/0.169.0");
    let reply = exchange(respool.address, &codex).await;
    let told = other_wires::responses(&text(&reply));
    assert_eq!((reply.status, told.end.as_str()), (200, "failed:invalid_prompt"));
    let claude = Request::post("/v1/messages", message_request(true, true).to_string())
        .header("user-agent", "claude-cli/2.1.330");
    let reply = exchange(respool.address, &claude).await;
    assert_eq!((reply.status, reply.headers.get("x-should-retry")), (500, Some("false")));
    fake.finish();
}

#[tokio::test]
async fn messages_name_the_stop_sequence() {
    let stopped = |mut chunk: Value| {
        chunk["choices"][0]["stop_reason"] = "END".into();
        chunk
    };
    let frames = || {
        let finish = stopped(replies::chunk(&json!({}), Some("stop")));
        let text = replies::frame(&replies::chunk(&json!({"content": "Hello"}), None));
        [
            replies::role_frame(),
            text,
            replies::frame(&finish),
            replies::usage_frame(),
            replies::DONE.to_owned(),
        ]
    };
    let whole = Script::json(200, &stopped(replies::text("Hello")));
    let fake = FakeVllm::start([Script::sse(frames()), Script::sse(frames()), whole]).await;
    let respool = Respool::before(&fake).await;
    let streamed =
        other_wires::messages(&text(&post(&respool, "/v1/messages", &message_request(true, false)).await));
    let collected = post(&respool, "/v1/messages", &message_request(false, false)).await.json();
    let buffered = post(&respool, "/v1/messages", &message_request(false, true)).await.json();
    for object in [streamed.object, collected, buffered] {
        assert_eq!(
            (&object["stop_reason"], &object["stop_sequence"]),
            (&json!("stop_sequence"), &json!("END"))
        );
    }
    fake.finish();
}

#[tokio::test]
async fn truncation_auto_drops_the_oldest_results() {
    let too_long = || {
        let what = "This model's maximum context length is 8000 tokens. However, your request has 30000 input tokens. Please reduce the length of the input messages.";
        Script::json(400, &replies::error(400, what, "BadRequestError"))
    };
    let fake = FakeVllm::start([too_long(), Script::json(200, &replies::text("Done.")), too_long()]).await;
    let respool = Respool::before(&fake).await;
    let mut body = response_request(false, true);
    let turn = |number: usize| {
        let id = format!("call{number:05}");
        [
            json!({"type": "function_call", "call_id": id, "name": "read", "arguments": format!(r#"{{"path":"{number}"}}"#)}),
            json!({"type": "function_call_output", "call_id": id, "output": format!("Line {number} of some file.\n").repeat(500)}),
        ]
    };
    let mut input = vec![json!({"role": "user", "content": "hi"})];
    input.extend((0..10).flat_map(turn));
    body["input"] = input.into();
    body["truncation"] = "auto".into();
    let reply = post(&respool, "/v1/responses", &body).await;
    assert_eq!(reply.status, 200, "{}", text(&reply));
    assert!(fake.requests()[1].body.len() < fake.requests()[0].body.len() / 2);
    body["truncation"] = "disabled".into();
    let reply = post(&respool, "/v1/responses", &body).await;
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (400, &json!("context_length_exceeded")));
    fake.finish();
}

/// OpenClaw names itself in its prompt on every API.
#[tokio::test]
async fn openclaw_gets_final_errors_everywhere() {
    let broken = || Script::json(500, &replies::error(500, "CUDA error", "InternalServerError"));
    let fake = FakeVllm::start([broken(), broken(), broken()]).await;
    let respool = Respool::with(&fake, ONCE).await;
    let prompt = "<!-- openclaw:attempt:STABLE -->\nYou are a personal assistant running inside OpenClaw.";
    let mut response = response_request(true, true);
    response["input"] = json!([
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": prompt}]},
        {"type": "message", "role": "user", "content": "hi"}]);
    let mut message = message_request(true, true);
    message["system"] = json!([{"type": "text", "text": prompt}]);
    let chat = json!({"model": "gpt-oss-20b", "stream": true, "messages":
        [{"role": "system", "content": prompt}, {"role": "user", "content": "hi"}]});
    for (path, body) in
        [("/v1/responses", response), ("/v1/messages", message), ("/v1/chat/completions", chat)]
    {
        let reply = post(&respool, path, &body).await;
        let text = reply.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(reply.status == 422 && text.contains("CUDA error"), "{path}: {} {text}", reply.status);
    }
    fake.finish();
}

#[tokio::test]
async fn late_failures_are_error_events() {
    let late = || {
        Script::json(500, &replies::error(500, "boom", "InternalServerError"))
            .delay(Duration::from_millis(400))
    };
    let fake = FakeVllm::start([late(), late()]).await;
    let respool = Respool::with(&fake, &format!("{ONCE}{QUICK}")).await;
    let told =
        other_wires::responses(&text(&post(&respool, "/v1/responses", &response_request(true, true)).await));
    assert!(told.end.starts_with("failed:"), "{}", told.end);
    let told =
        other_wires::messages(&text(&post(&respool, "/v1/messages", &message_request(true, true)).await));
    assert!(told.end.starts_with("failed:"), "{}", told.end);
}

/// Claude Code sends a request whose stream failed again without `stream`: respool has tried already.
#[tokio::test]
async fn repeats_after_failed_streams_go_nowhere() {
    let late = Script::json(500, &replies::error(500, "boom", "InternalServerError"))
        .delay(Duration::from_millis(400));
    let fake = FakeVllm::start([late, Script::json(200, &replies::text("hi"))]).await;
    let respool = Respool::with(&fake, &format!("{ONCE}{QUICK}")).await;
    let claude = |stream: bool| {
        let body = message_request(stream, true).to_string();
        Request::post("/v1/messages", body).header("user-agent", "claude-cli/2.1.330")
    };
    let told = other_wires::messages(&text(&exchange(respool.address, &claude(true)).await));
    assert_eq!(told.end, "failed:api_error");
    let repeated = exchange(respool.address, &claude(false)).await;
    let why = repeated.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(repeated.status == 500 && why.contains("boom"), "{} {why}", repeated.status);
    assert_eq!(fake.requests().len(), 1);
    assert_eq!(exchange(respool.address, &claude(false)).await.status, 200, "given once");
    fake.finish();
}

#[tokio::test]
async fn a_bad_request_names_the_field() {
    let fake = FakeVllm::start([]).await;
    let respool = Respool::before(&fake).await;
    let reply = post(&respool, "/v1/responses", &json!({"model": "m"})).await;
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("input")));
    let reply =
        post(&respool, "/v1/messages", &json!({"model": "m", "messages": [{"role": "user", "content": 7}]}))
            .await;
    let message = reply.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(reply.status == 400 && message.contains("messages[0].content"), "{message}");
    let reply = exchange(respool.address, &Request::post("/v1/messages", "{")).await;
    assert_eq!((reply.status, &reply.json()["type"]), (400, &json!("error")));
    fake.finish();
}

#[tokio::test]
async fn keys_go_up_as_bearer_tokens() {
    let fake =
        FakeVllm::start([Script::json(200, &replies::text("hi")).expect_authorization("Bearer sk-mine")])
            .await;
    let respool = Respool::before(&fake).await;
    let request = Request::post("/v1/messages", message_request(false, true).to_string())
        .header("x-api-key", "sk-mine")
        .header("anthropic-version", "2023-06-01");
    assert_eq!(exchange(respool.address, &request).await.status, 200);
    let sent = &fake.requests()[0];
    assert!(sent.headers.get("x-api-key").is_none() && sent.headers.get("anthropic-version").is_none());
    fake.finish();
}

#[tokio::test]
async fn messages_clients_need_a_key() {
    let fake = FakeVllm::start([]).await;
    let respool = Respool::with(&fake, "client_keys = [\"sk-0123456789abcdef\"]").await;
    let reply = post(&respool, "/v1/messages", &message_request(false, false)).await;
    assert_eq!((reply.status, &reply.json()["error"]["type"]), (401, &json!("authentication_error")));
    fake.finish();
}

#[tokio::test]
async fn token_counts_name_their_source() {
    let fake = FakeVllm::start([]).await;
    fake.serve_models(&["gpt-oss-20b", "llama"]);
    fake.count_as(77);
    let respool = Respool::before(&fake).await;
    let count = async |model: &str| {
        let mut body = message_request(false, true);
        body["model"] = model.into();
        let reply = post(&respool, "/v1/messages/count_tokens", &body).await;
        let by = reply.headers.get("x-respool-token-count").unwrap_or_default().to_owned();
        (reply.status, reply.json()["input_tokens"].as_u64().unwrap(), by)
    };
    assert_eq!(count("llama").await, (200, 77, "tokenize".to_owned()));
    let asked = fake.probes().into_iter().find(|probe| probe.path() == "/tokenize").unwrap().json();
    assert_eq!((&asked["model"], &asked["tools"][0]["function"]["name"]), (&json!("llama"), &json!("read")));
    // vLLM counts gpt-oss's prompts wrongly: they are counted here.
    let (status, tokens, by) = count("gpt-oss-20b").await;
    assert!(status == 200 && (40..200).contains(&tokens) && by == "o200k_harmony", "{tokens} {by}");
    fake.finish();
    let replay =
        Respool::configured("[[upstream]]\nurl = \"http://127.0.0.1:1\"\nmodels = [\"llama\"]").await;
    let mut body = message_request(false, true);
    body["model"] = "llama".into();
    let reply = post(&replay, "/v1/messages/count_tokens", &body).await;
    let tokens = reply.json()["input_tokens"].as_u64().unwrap();
    assert_eq!((reply.status, reply.headers.get("x-respool-token-count")), (200, Some("estimate")));
    assert!((20..200).contains(&tokens), "{tokens}");
}

#[tokio::test]
async fn apis_can_be_left_to_the_server() {
    let own = Script::json(200, &json!({"id": "resp_own", "usage": {"input_tokens": 5, "output_tokens": 3}}))
        .on("POST", "/v1/responses");
    let own_message = |status| Script::json(status, &json!({"id": "msg_own"})).on("POST", "/v1/messages");
    let own_count = Script::json(200, &json!({"input_tokens": 4})).on("POST", "/v1/messages/count_tokens");
    let chat = || Script::json(200, &replies::text("hi")).on("POST", "/v1/chat/completions");
    let scripts = [own.unchecked(), own_message(200).unchecked(), own_count.unchecked(), chat(), chat()];
    let fake = FakeVllm::start(scripts).await;
    let models = "[models.claude]\ntarget = \"gpt-oss-20b\"\nwires = [\"messages\"]\n[[upstream]]\nwires = [\"responses\"]";
    let respool = Respool::with(&fake, models).await;
    let left = response_request(false, true);
    let reply = post(&respool, "/v1/responses", &left).await;
    assert_eq!((reply.status, reply.json()["id"].clone()), (200, json!("resp_own")));
    assert_eq!(fake.requests()[0].json(), left, "as it came");
    let reply = post(&respool, "/v1/messages", &message_request(false, true)).await;
    assert_eq!(reply.json()["content"][0]["text"], "hi");
    // A model's own setting holds whatever its upstream says, and its alias goes up as its target.
    let mut message = message_request(false, true);
    message["model"] = "claude".into();
    let request = Request::post("/v1/messages?beta=true", message.to_string())
        .header("x-api-key", "sk-mine")
        .header("anthropic-version", "2023-06-01");
    let reply = exchange(respool.address, &request).await;
    assert_eq!(reply.json()["id"], "msg_own", "{}", reply.text());
    let seen = fake.requests().into_iter().find(|seen| seen.path() == "/v1/messages").unwrap();
    assert_eq!(
        (seen.json()["model"].as_str(), seen.headers.get("x-api-key")),
        (Some("gpt-oss-20b"), Some("sk-mine"))
    );
    assert_eq!(seen.headers.get("anthropic-version"), Some("2023-06-01"));
    assert_eq!(post(&respool, "/v1/messages/count_tokens", &message).await.json()["input_tokens"], 4);
    let mut response = response_request(false, true);
    response["model"] = "claude".into();
    let reply = post(&respool, "/v1/responses", &response).await;
    assert_eq!(reply.json()["output"][0]["content"][0]["text"], "hi");
    fake.finish();
}

#[tokio::test]
async fn an_agent_answers_on_both_wires() {
    let state = tempfile::tempdir().unwrap();
    let called =
        |body: &Value| body["messages"].as_array().unwrap().iter().any(|message| message["role"] == "tool");
    let fake = FakeVllm::thinking(move |body| {
        let reply =
            if called(body) { replies::text("It says hello.") } else { replies::calls(&[agents::READ]) };
        Script::json(200, &reply)
    })
    .await;
    let respool = Respool::with_agent(&fake, &agents::echoing(), state.path(), "").await;
    let named = |mut body: Value| {
        body["model"] = "helper".into();
        body.as_object_mut().unwrap().remove("tools");
        body
    };
    let reply = post(&respool, "/v1/responses", &named(response_request(true, false))).await;
    assert!(reply.headers.get("x-respool-run-id").is_some_and(|id| id.starts_with("run-")));
    let told = other_wires::responses(&text(&reply));
    assert_eq!((told.content.as_str(), told.end.as_str()), ("It says hello.", "completed"));
    assert!(told.reasoning.contains("[read: a.txt] ok"), "{}", told.reasoning);
    assert_eq!(told.usage, Some((2 * 131, 2 * 31)));
    let mut another = named(message_request(true, false));
    another["messages"][0]["content"] = "another question".into();
    let told = other_wires::messages(&text(&post(&respool, "/v1/messages", &another).await));
    assert_eq!((told.content.as_str(), told.end.as_str()), ("It says hello.", "end_turn"));
    assert!(told.reasoning.contains("[read: a.txt] ok"), "{}", told.reasoning);
    another["stream"] = false.into();
    another["messages"][0]["content"] = "a third question".into();
    let whole = post(&respool, "/v1/messages", &another).await.json();
    let last = whole["content"].as_array().unwrap().last().unwrap().clone();
    assert_eq!((&last["text"], &whole["stop_reason"]), (&json!("It says hello."), &json!("end_turn")));
}

#[tokio::test]
async fn agents_pass_calls_of_client_tools() {
    let state = tempfile::tempdir().unwrap();
    let fake = FakeVllm::thinking(|body| {
        let results = body["messages"].as_array().unwrap().iter().filter(|message| message["role"] == "tool");
        let said = results.filter_map(|result| result["content"].as_str()).any(|text| text == "12:00");
        let reply = if said { replies::text("It is noon.") } else { replies::calls(&[("clock", "{}")]) };
        Script::json(200, &reply)
    })
    .await;
    let respool = Respool::with_agent(&fake, &agents::echoing(), state.path(), "").await;
    let tools =
        json!([{"type": "function", "name": "clock", "parameters": {"type": "object", "properties": {}}}]);
    let asked = json!({"role": "user", "content": "What time is it?"});
    let first = json!({"model": "helper", "input": [asked], "tools": tools, "stream": false, "store": false});
    let reply = post(&respool, "/v1/responses", &first).await.json();
    let call = reply["output"]
        .as_array()
        .unwrap()
        .iter()
        .find(|item| item["type"] == "function_call")
        .unwrap()
        .clone();
    assert_eq!(call["name"], "clock");
    let result = json!({"type": "function_call_output", "call_id": call["call_id"], "output": "12:00"});
    let next = json!({"model": "helper", "input": [asked, call, result], "tools": tools, "store": false});
    let reply = post(&respool, "/v1/responses", &next).await.json();
    assert_eq!(reply["output"].as_array().unwrap().last().unwrap()["content"][0]["text"], "It is noon.");

    let tools = json!([{"name": "clock", "input_schema": {"type": "object", "properties": {}}}]);
    let asked = json!({"role": "user", "content": "And what time is it now?"});
    let first = json!({"model": "helper", "max_tokens": 100, "messages": [asked], "tools": tools});
    let reply = post(&respool, "/v1/messages", &first).await.json();
    assert_eq!(reply["stop_reason"], "tool_use");
    let call = reply["content"].as_array().unwrap().last().unwrap().clone();
    let result = json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": call["id"], "content": "12:00"}]});
    let said = json!({"role": "assistant", "content": reply["content"]});
    let next =
        json!({"model": "helper", "max_tokens": 100, "messages": [asked, said, result], "tools": tools});
    let reply = post(&respool, "/v1/messages", &next).await.json();
    assert_eq!(reply["content"].as_array().unwrap().last().unwrap()["text"], "It is noon.");
}

#[tokio::test]
async fn model_lists_fit_the_client() {
    let fake = FakeVllm::start([]).await;
    fake.serve_models(&["gpt-oss-20b"]);
    let respool = Respool::before(&fake).await;
    let of_anthropic = |target: &str| Request::get(target).header("anthropic-version", "2023-06-01");
    let list = exchange(respool.address, &of_anthropic("/v1/models")).await.json();
    assert_eq!((&list["data"][0]["type"], &list["first_id"]), (&json!("model"), &json!("gpt-oss-20b")));
    let one = exchange(respool.address, &of_anthropic("/v1/models/gpt-oss-20b")).await.json();
    assert_eq!(one["display_name"], "gpt-oss-20b");
    let list = exchange(respool.address, &Request::get("/v1/models")).await.json();
    assert_eq!(list["object"], "list");
}

#[tokio::test]
async fn earlier_responses_belong_to_their_key() {
    let text = |text: &str| Script::sse(replies::text_stream(&[text], true));
    let fake = FakeVllm::start([text("Alpha"), text("Beta"), text("Gamma"), text("Delta")]).await;
    let respool = Respool::before(&fake).await;
    let ask = async |body: Value, key: &str| {
        let request = Request::post("/v1/responses", body.to_string()).header("authorization", key);
        let reply = exchange(respool.address, &request).await;
        (reply.status, reply.json())
    };
    let (_, first) = ask(json!({"model": "gpt-oss-20b", "input": "one"}), "Bearer a").await;
    let said = json!([{"type": "item_reference", "id": first["output"][0]["id"]}, {"role": "user", "content": "two"}]);
    let (_, second) = ask(json!({"model": "gpt-oss-20b", "input": said}), "Bearer a").await;
    assert_eq!((&first["store"], &second["output"][0]["content"][0]["text"]), (&json!(true), &json!("Beta")));
    let next = json!({"model": "gpt-oss-20b", "input": "three", "previous_response_id": second["id"]});
    assert_eq!(ask(next.clone(), "Bearer a").await.0, 200);
    let sent = fake.requests()[2].json();
    let contents: Vec<&str> = sent["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|message| message["content"].as_str().unwrap())
        .collect();
    assert_eq!(contents, ["Alpha", "two", "Beta", "three"]);
    let (status, refused) = ask(next, "Bearer b").await;
    assert_eq!((status, &refused["error"]["code"]), (400, &json!("previous_response_not_found")));
    let (_, fourth) = ask(json!({"model": "gpt-oss-20b", "input": "four", "store": false}), "Bearer a").await;
    let unknown = json!({"model": "gpt-oss-20b", "input": "five", "previous_response_id": fourth["id"]});
    assert_eq!(ask(unknown, "Bearer a").await.0, 400);
    fake.finish();
}

/// A stream that does not end is told without limit on the chat route, which keeps nothing of it; here it is
/// kept until its end.
#[tokio::test]
async fn live_replies_have_the_same_limit() {
    let pieces = vec!["many words ".repeat(1 << 10); 200];
    let fake = FakeVllm::always(Script::sse(replies::text_stream(
        &pieces.iter().map(String::as_str).collect::<Vec<_>>(),
        true,
    )))
    .await;
    let respool = Respool::with(&fake, "[limits]\nmax_body = \"1MiB\"").await;
    let streamed = text(&post(&respool, "/v1/responses", &response_request(true, false)).await);
    let told = other_wires::responses(&streamed);
    assert_eq!(told.end, "failed:server_error");
    assert!((1 << 20..2 << 20).contains(&told.content.len()), "{}", told.content.len());
    let whole = post(&respool, "/v1/responses", &response_request(false, false)).await;
    assert_eq!((whole.status, &whole.json()["error"]["code"]), (502, &json!("upstream_reply_too_long")));
    let streamed = text(&post(&respool, "/v1/messages", &message_request(true, false)).await);
    assert!(streamed.len() < 2 << 20 && streamed.contains("event: error"), "{}", streamed.len());
    let whole = post(&respool, "/v1/messages", &message_request(false, false)).await;
    assert_eq!(whole.status, 502, "{}", text(&whole));
}

/// Codex repeats a status of 401, 404 or 413 five times, and shows a 400 as raw JSON.
#[tokio::test]
async fn codex_gets_failed_streams_for_bad_requests() {
    let fake = FakeVllm::start([]).await;
    let respool =
        Respool::with(&fake, "client_keys = [\"sk-one-and-only\"]\n[limits]\nmax_body = \"64KiB\"").await;
    let ask = async |body: String, key: &str, header: (&str, &str)| {
        let request = Request::post("/v1/responses", body)
            .header("user-agent", "codex_exec/0.169.0")
            .header("authorization", &format!("Bearer {key}"))
            .header(header.0, header.1);
        exchange(respool.address, &request).await
    };
    let (key, none) = ("sk-one-and-only", ("x-nothing", "x"));
    let with = |extra: Value| {
        let mut body = response_request(true, false);
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        body.to_string()
    };
    let reference = json!({"input": [{"type": "item_reference", "id": "msg_1"}]});
    for (body, key, header) in [
        (with(json!({})), "sk-wrong", none),
        (with(json!({"input": "x".repeat(100 << 10)})), key, none),
        (with(reference.clone()), key, none),
        (with(json!({"store": "no"})), key, none),
        ("{\"stream\": true".to_owned(), key, none),
        (with(json!({})), key, ("content-encoding", "gzip")),
    ] {
        let reply = ask(body.clone(), key, header).await;
        let told = other_wires::responses(&text(&reply));
        assert_eq!((reply.status, told.end.as_str()), (200, "failed:invalid_prompt"), "{body:.80}");
    }
    let mut whole = reference;
    whole["stream"] = json!(false);
    assert_eq!(ask(with(whole), key, none).await.status, 404, "who wants no stream gets the status");
    fake.finish();
}

/// The SDKs read `request-id`, and errors in Anthropic's shape alone.
#[tokio::test]
async fn messages_answers_carry_a_request_id() {
    let fake = FakeVllm::always(Script::sse(replies::text_stream(&["Hello"], true))).await;
    let respool = Respool::with(&fake, "client_keys = [\"sk-0123456789abcdef\"]").await;
    let of_anthropic = |request: Request| request.header("anthropic-version", "2023-06-01");
    let with_key = |request: Request| of_anthropic(request).header("x-api-key", "sk-0123456789abcdef");
    let message = || Request::post("/v1/messages", message_request(true, false).to_string());
    for (request, status, kind) in [
        (with_key(message()), 200, None),
        (with_key(Request::get("/v1/models")), 200, None),
        (with_key(Request::get("/v1/models/nope")), 404, Some("not_found_error")),
        (of_anthropic(Request::get("/v1/models")), 401, Some("authentication_error")),
        (Request::post("/v1/messages/batches", "{}"), 401, Some("authentication_error")),
        (message(), 401, Some("authentication_error")),
    ] {
        let reply = exchange(respool.address, &request).await;
        assert_eq!(reply.status, status, "{}", text(&reply));
        assert!(
            reply.headers.get("request-id").is_some_and(|id| !id.is_empty()),
            "{status} {}",
            text(&reply)
        );
        if let Some(kind) = kind {
            let error = reply.json();
            assert_eq!((&error["type"], &error["error"]["type"]), (&json!("error"), &json!(kind)));
            assert!(status != 401 || error["error"]["message"].as_str().unwrap().contains("x-api-key"));
        }
    }
}

/// OpenAI's servers write nothing that a custom tool's expression does not match; a model here is asked
/// again.
#[tokio::test]
async fn custom_calls_must_match_their_expression() {
    let call =
        |text: &str| Script::json(200, &replies::calls(&[("when", &json!({"input": text}).to_string())]));
    let fake = FakeVllm::start([call("abc"), call("42")]).await;
    let respool = Respool::before(&fake).await;
    let mut body = response_request(false, false);
    let format = json!({"type": "grammar", "syntax": "regex", "definition": "\\d+"});
    body["tools"] = json!([{"type": "custom", "name": "when", "format": format}]);
    let reply = post(&respool, "/v1/responses", &body).await.json();
    let output = reply["output"].as_array().unwrap().last().unwrap();
    assert_eq!((&output["type"], &output["input"]), (&json!("custom_tool_call"), &json!("42")));
    assert_eq!(fake.requests().len(), 2);
    fake.finish();
}

/// The same where the reply is read as it streams: nothing of a call leaves before it is whole.
#[tokio::test]
async fn live_custom_calls_must_match_too() {
    let call = |text: &str| {
        let function = json!({"name": "when", "arguments": json!({"input": text}).to_string()});
        let call = json!([{"index": 0, "id": "chatcmpl-tool-1", "type": "function", "function": function}]);
        let chunks = [
            replies::chunk(&json!({"tool_calls": call}), None),
            replies::chunk(&json!({}), Some("tool_calls")),
        ];
        let frames = chunks.iter().map(replies::frame);
        Script::sse(frames.chain([replies::usage_frame(), replies::DONE.to_owned()]).collect::<Vec<_>>())
    };
    for stream in [false, true] {
        let fake = FakeVllm::start([call("abc"), call("42")]).await;
        let respool = Respool::with(&fake, crate::live::LIVE).await;
        let mut body = response_request(stream, false);
        let format = json!({"type": "grammar", "syntax": "regex", "definition": "\\d+"});
        body["tools"] = json!([{"type": "custom", "name": "when", "format": format}]);
        let reply = text(&post(&respool, "/v1/responses", &body).await);
        assert!(reply.contains("\"input\":\"42\"") && !reply.contains("\"abc\""), "{reply}");
        assert_eq!(fake.requests().len(), 2);
        fake.finish();
    }
}

/// A reply that the window cut is not one that `max_tokens` cut: a larger limit would not help.
#[tokio::test]
async fn messages_report_a_full_window() {
    let finish = || replies::frame(&replies::chunk(&json!({}), Some("length")));
    let usage = |completion: u64| {
        let usage =
            json!({"prompt_tokens": 131, "completion_tokens": completion, "total_tokens": 131 + completion});
        let chunk = json!({"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [], "usage": usage});
        replies::frame(&chunk)
    };
    let text_of = || replies::frame(&replies::chunk(&json!({"content": "Hello"}), None));
    let streamed = |completion: u64| {
        Script::sse([replies::role_frame(), text_of(), finish(), usage(completion), replies::DONE.to_owned()])
    };
    let whole = |completion: u64| {
        let mut reply = replies::text("Hello");
        reply["choices"][0]["finish_reason"] = "length".into();
        reply["usage"] =
            json!({"prompt_tokens": 131, "completion_tokens": completion, "total_tokens": 131 + completion});
        Script::json(200, &reply)
    };
    let window = "[models.\"gpt-oss-20b\"]\ncontext_window = 2000";
    for (completion, reason) in [
        (1869, "model_context_window_exceeded"),
        (1865, "model_context_window_exceeded"),
        (1000, "max_tokens"),
    ] {
        for live in ["", crate::live::LIVE] {
            let buffered = if live.is_empty() { whole(completion) } else { streamed(completion) };
            let fake = FakeVllm::start([streamed(completion), streamed(completion), buffered]).await;
            let respool = Respool::with(&fake, &format!("{live}\n{window}")).await;
            let told = post(&respool, "/v1/messages", &message_request(true, false)).await;
            assert_eq!(other_wires::messages(&text(&told)).end, reason, "{completion}");
            for tools in [false, true] {
                let object = post(&respool, "/v1/messages", &message_request(false, tools)).await.json();
                assert_eq!(object["stop_reason"], reason, "{completion} {tools} {live}");
            }
            fake.finish();
        }
    }
    // The client's own limit was reached.
    let fake = FakeVllm::start([streamed(1869)]).await;
    let respool = Respool::with(&fake, window).await;
    let mut body = message_request(false, false);
    body["max_tokens"] = 1869.into();
    assert_eq!(post(&respool, "/v1/messages", &body).await.json()["stop_reason"], "max_tokens");
    // Other APIs know no such end.
    let fake = FakeVllm::start([streamed(1869)]).await;
    let respool = Respool::with(&fake, window).await;
    let object = post(&respool, "/v1/responses", &response_request(false, false)).await.json();
    assert_eq!(object["incomplete_details"]["reason"], "max_output_tokens");
}

#[tokio::test]
async fn messages_report_refusals_without_tools() {
    let frames = || {
        let piece = replies::frame(&replies::chunk(&json!({"refusal": "I will not."}), None));
        let finish = replies::frame(&replies::chunk(&json!({}), Some("stop")));
        Script::sse([replies::role_frame(), piece, finish, replies::usage_frame(), replies::DONE.to_owned()])
    };
    let fake = FakeVllm::start([frames(), frames()]).await;
    let respool = Respool::before(&fake).await;
    let told =
        other_wires::messages(&text(&post(&respool, "/v1/messages", &message_request(true, false)).await));
    assert_eq!((told.end.as_str(), told.content.as_str()), ("refusal", "I will not."));
    let whole = post(&respool, "/v1/messages", &message_request(false, false)).await.json();
    assert_eq!(whole["stop_reason"], "refusal");
    fake.finish();
}

/// The key of Anthropic's clients is respool's own key, and the same one as a bearer's.
#[tokio::test]
async fn anthropic_keys_equal_bearer_tokens() {
    let fake = FakeVllm::always(Script::sse(replies::text_stream(&["Hello"], true))).await;
    fake.serve_models(&["gpt-oss-20b"]);
    let state = tempfile::tempdir().unwrap();
    let toml = format!("state_dir = \"{}\"\nclient_keys = [\"sk-0123456789abcdef\"]", state.path().display());
    let respool = Respool::with(&fake, &toml).await;
    let with_key = |request: Request| request.header("x-api-key", "sk-0123456789abcdef");
    let message = with_key(Request::post("/v1/messages", message_request(false, false).to_string()));
    assert_eq!(exchange(respool.address, &message).await.status, 200);
    let listed = exchange(respool.address, &with_key(Request::get("/v1/models"))).await;
    assert_eq!((listed.status, &listed.json()["data"][0]["id"]), (200, &json!("gpt-oss-20b")));
    let body = json!({"model": "gpt-oss-20b", "input": "hi"}).to_string();
    let made = exchange(respool.address, &with_key(Request::post("/v1/responses", body))).await.json();
    let kept = Request::get(&format!("/v1/responses/{}", made["id"].as_str().unwrap()))
        .header("authorization", "Bearer sk-0123456789abcdef");
    let kept = exchange(respool.address, &kept).await;
    assert_eq!((kept.status, kept.json()["id"].clone()), (200, made["id"].clone()));
}

#[tokio::test]
async fn parallel_calls_can_be_forbidden() {
    let two =
        || Script::json(200, &replies::calls(&[("read", r#"{"path": "a"}"#), ("read", r#"{"path": "b"}"#)]));
    let fake = FakeVllm::start([two(), two(), two(), two()]).await;
    let respool = Respool::before(&fake).await;
    for (single, calls) in [(true, 1), (false, 2)] {
        let mut body = response_request(true, true);
        body["parallel_tool_calls"] = (!single).into();
        let told = other_wires::responses(&text(&post(&respool, "/v1/responses", &body).await));
        assert_eq!(told.calls.len(), calls);
        let mut body = message_request(true, true);
        body["tool_choice"] = json!({"type": "auto", "disable_parallel_tool_use": single});
        let told = other_wires::messages(&text(&post(&respool, "/v1/messages", &body).await));
        assert_eq!(told.calls.len(), calls);
    }
    fake.finish();
}

#[tokio::test]
async fn dropped_reasoning_leaves_on_neither_route() {
    let call = || Script::json(200, &replies::calls(&[("read", r#"{"path": "a"}"#)]));
    let fake = FakeVllm::start([call(), call(), call(), call()]).await;
    let respool = Respool::with(&fake, "reasoning = \"drop\"").await;
    for told in all_four(&respool, true).await {
        assert!(!format!("{told:?}").contains("I need a tool."), "{told:?}");
    }
    fake.finish();
}

/// The client declared no tool, and the server calls one all the same, as it streams calls: in pieces.
#[tokio::test]
async fn native_pieces_join_without_declared_tools() {
    let piece = |call: Value| replies::frame(&replies::chunk(&json!({"tool_calls": [call]}), None));
    let named =
        json!({"index": 0, "id": "a", "type": "function", "function": {"name": "read", "arguments": ""}});
    let streamed = || {
        Script::sse([
            replies::role_frame(),
            piece(named.clone()),
            piece(json!({"index": 0, "function": {"arguments": "{\"path\":"}})),
            piece(json!({"index": 0, "function": {"arguments": "\"a\"}"}})),
            replies::frame(&replies::chunk(&json!({}), Some("tool_calls"))),
            replies::usage_frame(),
            replies::DONE.to_owned(),
        ])
    };
    let fake = FakeVllm::start([streamed(), streamed(), streamed(), streamed()]).await;
    let respool = Respool::before(&fake).await;
    let [response, whole_response, message, whole_message] = all_four(&respool, false).await;
    let call = vec![("read".to_owned(), r#"{"path":"a"}"#.to_owned())];
    assert_eq!((&response.calls, &message.calls, message.end.as_str()), (&call, &call, "tool_use"));
    assert_eq!(whole_response.object["output"][0]["arguments"], r#"{"path":"a"}"#);
    assert_eq!(whole_message.object["content"][0]["input"], json!({"path": "a"}));
    fake.finish();
}

#[tokio::test]
async fn live_refusals_are_answers() {
    let refused = || {
        let chunks = [
            replies::chunk(&json!({"refusal": "I will not."}), None),
            replies::chunk(&json!({}), Some("stop")),
        ];
        let frames = chunks.iter().map(replies::frame);
        Script::sse(frames.chain([replies::usage_frame(), replies::DONE.to_owned()]).collect::<Vec<_>>())
    };
    let fake = FakeVllm::start([refused(), refused()]).await;
    let respool = Respool::with(&fake, crate::live::LIVE).await;
    let response = text(&post(&respool, "/v1/responses", &response_request(true, true)).await);
    assert!(response.contains("response.refusal.delta") && response.contains("I will not."), "{response}");
    let message = text(&post(&respool, "/v1/messages", &message_request(true, true)).await);
    assert_eq!(other_wires::messages(&message).end, "refusal");
    fake.finish();
}
