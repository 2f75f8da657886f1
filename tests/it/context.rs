//! Requests that do not fit the model's window: the client's error, what is made smaller, and what is known
//! before.

use std::fs;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::accumulate::Rules;
use crate::support::client::{Reply, Request, exchange};
use crate::support::fake_vllm::FakeVllm;
use crate::support::idle_time::IdleTime;
use crate::support::replies;
use crate::support::respool::Respool;
use crate::support::script::Script;

const TRIM: &str = "[context]\non_overflow = \"trim\"";

/// A request that OpenClaw sent: 61 KB, 12,789 tokens for gpt-oss, one call and its result.
fn openclaw() -> Value {
    let text = fs::read_to_string("fixtures/openclaw/turn-exec-2-after-tool.json").unwrap();
    let mut body: Value = serde_json::from_str(&text).unwrap();
    body["model"] = json!("gpt-oss-20b");
    body
}

/// The same conversation, in which OpenClaw's call was made `times` more times before, with long results.
fn long(times: usize) -> Value {
    let mut body = openclaw();
    let messages = body["messages"].as_array_mut().unwrap();
    let place = messages.iter().position(|message| message["tool_calls"].is_array()).unwrap();
    let pair = [messages[place].clone(), messages[place + 1].clone()];
    assert_eq!(pair[1]["role"], "tool");
    for turn in 0..times {
        let [mut call, mut result] = pair.clone();
        call["tool_calls"][0]["id"] = json!(format!("earlier{turn:04}"));
        result["tool_call_id"] = json!(format!("earlier{turn:04}"));
        result["content"] = json!(format!("result {turn}\n{}", "A line of some file.\n".repeat(500)));
        messages.splice(place..place, [call, result]);
    }
    body
}

fn said(message: &str) -> Script {
    Script::json(400, &replies::error(400, message, "BadRequestError"))
}

fn ok() -> Script {
    Script::json(200, &replies::text("Done."))
}

fn answered(reply: &Reply) {
    let turn = reply.stream(&Rules::default());
    assert_eq!((turn.choices[&0].content.as_str(), &turn.error), ("Done.", &None));
}

fn code(reply: &Reply) -> (u16, Value) {
    (reply.status, reply.error()["code"].clone())
}

/// The refusals that real servers sent, and those in vLLM's sources, for a window of 20,000 and a prompt of
/// 30,000 tokens.
const TOO_LONG: [&str; 5] = [
    "max_tokens must be at least 1, got -10000.",
    "max_tokens must be at least 1, got -10000. (parameter=max_tokens, value=-10000)",
    "Input length (30000) exceeds model's maximum context length (20000).",
    "This model's maximum context length is 20000 tokens. However, your prompt contains at least 20001 input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value=20001)",
    "This model's maximum context length is 20000 tokens. However, your request has 30000 input tokens. Please reduce the length of the input messages.",
];

/// Texts that OpenClaw 2026.9.6 takes for an overflow and answers by compacting (its `assistant-error`
/// patterns).
fn is_recognised(text: &str) -> bool {
    let pattern = r"(?i)exceeds (?:the )?(?:model'?s )?maximum context length(?: of [\d,]+ tokens?|\s*\([\d,]+\))|reduce the length of the messages|maximum context length is \d+ tokens";
    regex::Regex::new(pattern).unwrap().is_match(text)
}

#[tokio::test]
async fn overflows_use_words_openclaw_knows() {
    let captured = [
        "v0.13.0-gptoss-general",
        "v0.16.0-gptoss-general",
        "v0.25.1-gptoss-general",
        "v0.32.0-llama-hermes",
    ];
    let captured = captured.iter().flat_map(|set| {
        ["24-err-context-overflow", "39-err-stream-context-overflow"].map(|name| {
            let reply = fs::read_to_string(format!("fixtures/vllm/{set}/{name}.resp.http")).unwrap();
            Script::json(400, &serde_json::from_str(reply.split_once("\r\n\r\n").unwrap().1).unwrap())
        })
    });
    for script in captured.chain(TOO_LONG.map(said)) {
        let fake = FakeVllm::start([script]).await;
        let respool = Respool::before(&fake).await;
        let reply = exchange(respool.address, &Request::chat(&openclaw())).await;
        assert_eq!(code(&reply), (400, json!("context_length_exceeded")));
        assert!(is_recognised(reply.error()["message"].as_str().unwrap()), "{}", reply.text());
    }
}

#[tokio::test]
async fn full_prompts_are_overflows() {
    let full = || said("max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)");
    let fake = FakeVllm::start([full(), full()]).await;
    let respool = Respool::before(&fake).await;
    let reply = exchange(respool.address, &Request::chat(&openclaw())).await;
    assert_eq!(code(&reply), (400, json!("context_length_exceeded")));
    let mut own = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 0});
    let reply = exchange(respool.address, &Request::chat(&own)).await;
    assert_eq!(code(&reply), (400, Value::Null), "the client's own mistake");
    own["max_tokens"] = json!(1);
    fake.then(ok());
    let reply = exchange(respool.address, &Request::chat(&own)).await;
    assert_eq!(reply.status, 200);
}

#[tokio::test]
async fn trimming_makes_a_refused_request_fit() {
    for text in TOO_LONG {
        let fake = FakeVllm::start([said(text), ok()]).await;
        fake.serve_window(20_000);
        let respool = Respool::with(&fake, TRIM).await;
        let body = long(12);
        let reply = exchange(respool.address, &Request::chat(&body)).await;
        answered(&reply);
        let noted = reply.headers.get("x-respool-trimmed").expect("the header that says so");
        assert!(noted.starts_with("results=") && noted.contains("bytes="), "{noted}");
        let [first, second] = fake.requests().try_into().unwrap();
        assert!(first.json()["messages"] == body["messages"], "whole at first");
        check_trimmed(&body, &second.json());
    }
}

/// The beginning and the end stay, calls and results belong together (the fake checks that too), and it is
/// shorter.
fn check_trimmed(body: &Value, sent: &Value) {
    let (before, after) = (body["messages"].as_array().unwrap(), sent["messages"].as_array().unwrap());
    assert!(after[..2] == before[..2], "the system prompt and the user's question");
    assert!(after.last() == before.last(), "OpenClaw's internal context");
    let tail = |messages: &[Value]| messages[messages.len() - 3..].to_vec();
    assert!(tail(after) == tail(before), "the newest call and its result");
    let asked =
        after.iter().filter_map(|message| message["tool_calls"].as_array()).map(Vec::len).sum::<usize>();
    let results = after.iter().filter(|message| message["role"] == "tool").count();
    assert_eq!(asked, results);
    assert!(sent.to_string().len() < body.to_string().len() * 9 / 10);
    assert!(sent.to_string().contains("to fit the model's context window]"));
}

#[tokio::test]
async fn untrimmable_requests_are_honest_overflows() {
    let fake = FakeVllm::always(said(TOO_LONG[2])).await;
    let respool = Respool::with(&fake, TRIM).await;
    for (body, most) in [(openclaw(), 2), (long(12), 5)] {
        let before = fake.requests().len();
        let reply = exchange(respool.address, &Request::chat(&body)).await;
        assert_eq!(code(&reply), (400, json!("context_length_exceeded")));
        let asked = fake.requests().len() - before;
        assert!((1..=most).contains(&asked), "{asked} requests");
    }
}

#[tokio::test]
async fn early_heads_carry_the_header() {
    let _time = IdleTime::begin();
    let slow = ok().delay(Duration::from_secs(4));
    let fake = FakeVllm::start([said(TOO_LONG[2]), slow]).await;
    let respool = Respool::with(&fake, &format!("{TRIM}\n[limits]\ncommit_after = \"2s\"")).await;
    let reply = exchange(respool.address, &Request::chat(&long(12))).await;
    answered(&reply);
    assert!(reply.headers.get("x-respool-trimmed").is_some());
}

#[tokio::test]
async fn high_limits_are_lowered() {
    for (text, expected) in [
        (
            "'max_tokens' or 'max_completion_tokens' is too large: 4096. This model's maximum context length is 2048 tokens and your request has 330 input tokens (4096 > 2048 - 330).",
            1_710..=1_718,
        ),
        (
            "max_tokens=4096cannot be greater than max_model_len=max_total_tokens=2048. Please request fewer output tokens. (parameter=max_tokens, value=4096)",
            1_800..=2_000,
        ),
        (
            "max_tokens=4096 cannot be greater than max_model_len=2048. Please request fewer output tokens.",
            1_800..=2_000,
        ),
        (
            "This model's maximum context length is 2048 tokens. However, you requested 4096 output tokens and your prompt contains at least 549 input tokens, for a total of at least 4645 tokens.",
            1_800..=2_000,
        ),
    ] {
        for key in ["max_tokens", "max_completion_tokens"] {
            let fake = FakeVllm::start([said(text), ok()]).await;
            let respool = Respool::before(&fake).await;
            let body =
                json!({"model": "gpt-oss-20b", "messages": [{"role": "user", "content": "hi"}], key: 4096});
            let reply = exchange(respool.address, &Request::chat(&body)).await;
            assert_eq!(reply.status, 200, "{}", reply.text());
            let sent = fake.requests()[1].json();
            assert!(expected.contains(&sent[key].as_u64().unwrap()), "{text}: {sent}");
            assert_eq!(sent["messages"], body["messages"]);
        }
    }
}

#[tokio::test]
async fn lowering_a_limit_ends() {
    let text = "max_tokens=9cannot be greater than max_model_len=max_total_tokens=2048.";
    let fake = FakeVllm::always(said(text)).await;
    let respool = Respool::before(&fake).await;
    let body = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4096});
    let reply = exchange(respool.address, &Request::chat(&body)).await;
    assert_eq!((reply.status, reply.error()["message"].as_str()), (400, Some(text)));
    assert!(fake.requests().len() <= 5, "{}", fake.requests().len());
}

#[tokio::test]
async fn numbers_beyond_reason_are_only_numbers() {
    let huge = u64::MAX;
    for text in [
        format!(
            "This model's maximum context length is {huge} tokens. However, your request has {huge} input tokens."
        ),
        "max_tokens must be at least 1, got -9223372036854775807.".to_owned(),
        format!("max_tokens={huge} cannot be greater than max_model_len=0."),
    ] {
        let fake = FakeVllm::always(said(&text)).await;
        let respool =
            Respool::with(&fake, &format!("{TRIM}\n[models.\"gpt-oss-20b\"]\ncontext_window = 131072")).await;
        let mut body = long(1);
        body["max_completion_tokens"] = json!(huge);
        let reply = exchange(respool.address, &Request::chat(&body)).await;
        assert_eq!(reply.status, 400, "{}", reply.text());
    }
}

#[tokio::test]
async fn full_contexts_are_reported() {
    let fake = FakeVllm::start([]).await;
    let respool = Respool::before(&fake).await;
    for limit in [1, 16] {
        let mut body = openclaw();
        body["max_completion_tokens"] = json!(limit);
        let reply = exchange(respool.address, &Request::chat(&body)).await;
        assert_eq!(code(&reply), (400, json!("context_length_exceeded")));
        assert!(is_recognised(reply.error()["message"].as_str().unwrap()), "{}", reply.text());
    }
    assert!(fake.requests().is_empty());
}

#[tokio::test]
async fn small_limits_are_kept() {
    let fake = FakeVllm::always(ok()).await;
    let respool = Respool::before(&fake).await;
    let mut small = openclaw();
    small["messages"] = json!([{"role": "user", "content": "Say one word."}]);
    small["tools"].as_array_mut().unwrap().truncate(1);
    let mut without_tools = openclaw();
    without_tools.as_object_mut().unwrap().remove("tools");
    without_tools.as_object_mut().unwrap().remove("tool_choice");
    for mut body in [small, without_tools] {
        body["max_completion_tokens"] = json!(1);
        body["stream"] = json!(false);
        body["stream_options"] = Value::Null;
        let reply = exchange(respool.address, &Request::chat(&body)).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert_eq!(fake.requests().last().unwrap().json()["max_completion_tokens"], 1);
    }
}

/// Sends a request twice: the window is learnt beside the first one. Gives what was sent the second time.
async fn second_of(fake: &FakeVllm, extra: &str, body: &Value) -> Value {
    let time = IdleTime::begin();
    let respool = Respool::with(fake, extra).await;
    for _ in 0..2 {
        answered(&exchange(respool.address, &Request::chat(body)).await);
        // The answer may come before the list of models does.
        time.pass(Duration::from_secs(1)).await;
    }
    assert_eq!(fake.probes().iter().filter(|probe| probe.path() == "/v1/models").count(), 1, "asked once");
    fake.requests()[1].json()
}

fn slowly() -> Script {
    ok().delay(Duration::from_millis(100))
}

#[tokio::test]
async fn gpt_oss_tokens_are_counted_here() {
    let fake = FakeVllm::always(slowly()).await;
    fake.serve_window(16_000);
    let mut body = openclaw();
    body["max_completion_tokens"] = json!(8192);
    let sent = second_of(&fake, "", &body).await;
    let room = sent["max_completion_tokens"].as_u64().unwrap();
    assert!((3_000..16_000 - 12_789).contains(&room), "{room}");
    assert!(fake.probes().iter().all(|probe| probe.path() != "/tokenize"), "it counts gpt-oss wrongly");
    assert_eq!(fake.requests()[0].json()["max_completion_tokens"], 8192, "not known yet");
}

#[tokio::test]
async fn servers_count_tokens_near_the_window() {
    for (window, count, tokenized, limit) in [
        (131_072, 15_000, 0, 8192),
        (24_000, 15_000, 1, 8192),
        (20_000, 15_000, 1, 4992),
        (14_000, 15_000, 1, 8192),
    ] {
        let fake = FakeVllm::always(slowly()).await;
        fake.serve_models(&["qwen"]);
        fake.serve_window(window);
        fake.count_as(count);
        let mut body = openclaw();
        body["model"] = json!("qwen");
        body["max_completion_tokens"] = json!(8192);
        let sent = second_of(&fake, "", &body).await;
        assert_eq!(sent["max_completion_tokens"], limit, "window {window}");
        let probes: Vec<_> = fake.probes().into_iter().filter(|probe| probe.path() == "/tokenize").collect();
        assert_eq!(probes.len(), tokenized, "window {window}");
        for probe in probes {
            let asked = probe.json();
            let keys: Vec<_> = asked.as_object().unwrap().keys().collect();
            assert_eq!(keys, ["model", "messages", "tools"]);
            assert!(asked["messages"] == body["messages"]);
            assert_eq!(probe.headers.get("authorization"), Some("Bearer client-key"));
        }
    }
}

#[tokio::test]
async fn replies_tell_how_long_tokens_are() {
    let mut reply = replies::text("Done.");
    reply["usage"]["prompt_tokens"] = json!(12_000);
    let fake = FakeVllm::always(Script::json(200, &reply).delay(Duration::from_millis(100))).await;
    fake.serve_models(&["qwen"]);
    fake.serve_window(32_768);
    let mut body = openclaw();
    body["model"] = json!("qwen");
    second_of(&fake, "", &body).await;
    assert!(
        fake.probes().iter().all(|probe| probe.path() != "/tokenize"),
        "five bytes a token are far from the window"
    );
}

#[tokio::test]
async fn known_windows_trim_early() {
    let fake = FakeVllm::always(slowly()).await;
    fake.serve_window(20_000);
    let body = long(12);
    let sent = second_of(&fake, TRIM, &body).await;
    check_trimmed(&body, &sent);
    assert_eq!(fake.requests().len(), 2);
}

#[tokio::test]
async fn later_turns_keep_the_cuts() {
    let fake = FakeVllm::always(ok()).await;
    let respool =
        Respool::with(&fake, &format!("{TRIM}\n[models.\"gpt-oss-20b\"]\ncontext_window = 30000")).await;
    let mut body = long(12);
    let internal = body["messages"].as_array_mut().unwrap().pop().unwrap();
    for turn in 0..2 {
        let result = json!({"role": "tool", "tool_call_id": format!("next{turn}"), "content": "ok"});
        let call = json!({"id": format!("next{turn}"), "type": "function", "function": {"name": "ls", "arguments": "{}"}});
        let messages = body["messages"].as_array_mut().unwrap();
        messages.extend([
            json!({"role": "assistant", "content": null, "tool_calls": [call]}),
            result,
            internal.clone(),
        ]);
        answered(&exchange(respool.address, &Request::chat(&body)).await);
        body["messages"].as_array_mut().unwrap().pop();
    }
    let sent = |index: usize| fake.requests()[index].json()["messages"].as_array().unwrap().clone();
    let (first, second) = (sent(0), sent(1));
    assert!(
        second[..first.len() - 1] == first[..first.len() - 1],
        "what the first turn was sent, but for the last message"
    );
    assert!(
        first.len() < second.len()
            && first.iter().any(|message| message.to_string().contains("[respool cut "))
    );
}

#[tokio::test]
async fn configured_windows_hold_at_once() {
    let fake = FakeVllm::always(ok()).await;
    let respool = Respool::with(&fake, "[models.\"gpt-oss-20b\"]\ncontext_window = 16000").await;
    let mut body = openclaw();
    body["max_completion_tokens"] = json!(8192);
    answered(&exchange(respool.address, &Request::chat(&body)).await);
    assert!(fake.requests()[0].json()["max_completion_tokens"].as_u64().unwrap() < 16_000 - 12_789);
}

/// A prompt that fills the window leaves room for a token or two: a call is cut, or nothing is said. The
/// model is asked once.
#[tokio::test]
async fn usage_reveals_a_full_window() {
    let full = |mut reply: Value| {
        reply["choices"][0]["finish_reason"] = json!("length");
        reply["usage"] = json!({"prompt_tokens": 7999, "completion_tokens": 1, "total_tokens": 8000});
        Script::json(200, &reply)
    };
    let cut = || full(replies::calls(&[("exec", r#"{"comm"#)]));
    let silent = || {
        let mut usage: Value =
            serde_json::from_str(replies::usage_frame().trim_start_matches("data: ").trim()).unwrap();
        usage["usage"] = json!({"prompt_tokens": 7999, "completion_tokens": 1, "total_tokens": 8000});
        let finish = replies::frame(&replies::chunk(&json!({}), Some("length")));
        Script::sse([replies::role_frame(), finish, replies::frame(&usage), replies::DONE.to_owned()])
    };
    let fake = FakeVllm::start([cut(), cut(), silent(), cut(), silent(), full(replies::text("Done."))]).await;
    let respool = Respool::with(&fake, "[models.\"gpt-oss-20b\"]\ncontext_window = 8000").await;
    let mut body = openclaw();
    body.as_object_mut().unwrap().remove("max_completion_tokens");
    body["stream"] = json!(false);
    let reply = exchange(respool.address, &Request::chat(&body)).await;
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (400, &json!("context_length_exceeded")));
    let long = "word ".repeat(8000);
    let tool = |schema: &str| json!([{"type": "function", "name": "exec", schema: {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}}]);
    let response =
        |tools: Value| json!({"model": "gpt-oss-20b", "input": long, "store": false, "tools": tools});
    for tools in [tool("parameters"), json!([])] {
        let request = Request::post("/v1/responses", response(tools).to_string());
        let reply = exchange(respool.address, &request).await;
        assert_eq!((reply.status, &reply.json()["error"]["code"]), (400, &json!("context_length_exceeded")));
    }
    for tools in [tool("input_schema"), json!([])] {
        let tools = tools
            .as_array()
            .unwrap()
            .iter()
            .map(|tool| json!({"name": tool["name"], "input_schema": tool["input_schema"]}));
        let messages = json!([{"role": "user", "content": long}]);
        let message = json!({"model": "gpt-oss-20b", "max_tokens": 32000, "messages": messages, "tools": tools.collect::<Vec<_>>(), "stream": true});
        let request =
            Request::post("/v1/messages", message.to_string()).header("user-agent", "claude-cli/2.1.330");
        let reply = exchange(respool.address, &request).await;
        assert_eq!(reply.status, 400, "{}", reply.text());
        assert!(reply.text().contains("prompt is too long"), "{}", reply.text());
    }
    let reply = exchange(respool.address, &Request::chat(&body)).await;
    assert_eq!(reply.status, 200, "what was said leaves: {}", reply.text());
    assert_eq!(fake.requests().len(), 6, "nothing was asked again");
    fake.finish();
}

#[tokio::test]
async fn silent_servers_delay_nothing() {
    let _time = IdleTime::begin();
    let silent = |path: &str, method: &str| Script::silence().on(method, path);
    let fake = FakeVllm::start([silent("/v1/models", "GET"), slowly()]).await;
    let respool = Respool::before(&fake).await;
    let began = Instant::now();
    answered(&exchange(respool.address, &Request::chat(&openclaw())).await);
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());

    let fake = FakeVllm::start([silent("/tokenize", "POST"), ok(), ok()]).await;
    let respool = Respool::with(&fake, "[models.qwen]\ncontext_window = 16000").await;
    let mut body = openclaw();
    body["model"] = json!("qwen");
    body["max_completion_tokens"] = json!(8192);
    let began = Instant::now();
    answered(&exchange(respool.address, &Request::chat(&body)).await);
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    answered(&exchange(respool.address, &Request::chat(&body)).await);
    assert!(fake.probes().iter().all(|probe| probe.path() != "/tokenize"), "not asked again at once");
    assert_eq!(fake.requests().last().unwrap().json()["max_completion_tokens"], 8192);
}

/// A call that the limit cut is asked for with a higher one, but with no more than there is room for.
#[tokio::test]
async fn cut_replies_get_more_room() {
    let mut cut = replies::calls(&[("exec", r#"{"command": "ls"#)]);
    cut["choices"][0]["finish_reason"] = json!("length");
    cut["usage"]["prompt_tokens"] = json!(12_789);
    let fake = FakeVllm::start([Script::json(200, &cut), ok()]).await;
    let respool = Respool::with(&fake, "[models.\"gpt-oss-20b\"]\ncontext_window = 24000").await;
    let mut body = openclaw();
    body["max_completion_tokens"] = json!(4096);
    answered(&exchange(respool.address, &Request::chat(&body)).await);
    let limit = fake.requests()[1].json()["max_completion_tokens"].as_u64().unwrap();
    assert!((11_000..=24_000 - 12_789 - 8).contains(&limit), "{limit} of four times 4096");
}
