//! Agents: a model id of respool's own that runs tools and answers as one reply.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use store::{Store, StoreConfig};
use tokio::time::Instant;
use tools::ToolError;

use crate::support::accumulate::Rules;
use crate::support::client::{Client, Request, exchange};
use crate::support::fake_vllm::FakeVllm;
use crate::support::look_within;
use crate::support::replies;
use crate::support::respool::Respool;
use crate::support::script::Script;
use crate::support::scripted_tools::ScriptedTools;
use crate::support::{eventually, wait_until};

pub const READ: (&str, &str) = ("read", r#"{"path": "a.txt"}"#);
const SEARCH: (&str, &str) = ("web_search", r#"{"query": "rust proxies"}"#);

pub fn ask(stream: bool) -> Value {
    let mut body = json!({"model": "helper", "messages": [{"role": "user", "content": "What does a.txt say?"}], "stream": stream});
    if stream {
        body["stream_options"] = json!({"include_usage": true});
    }
    body
}

pub fn echoing() -> Arc<ScriptedTools> {
    Arc::new(ScriptedTools::new(|call, count| Ok(format!("result {count} of {}", call.name))))
}

pub fn scripts(replies: &[Value]) -> Vec<Script> {
    replies.iter().map(|reply| Script::json(200, reply)).collect()
}

#[tokio::test]
async fn tool_results_lead_to_one_stream() {
    let state = tempfile::tempdir().unwrap();
    let tools = echoing();
    let fake = FakeVllm::start(scripts(&[
        replies::calls(&[READ]),
        replies::calls(&[SEARCH, READ]),
        replies::text("It says hello."),
    ]))
    .await;
    let respool = Respool::with_agent(&fake, &tools, state.path(), "").await;
    let reply = exchange(respool.address, &Request::chat(&ask(true))).await;
    assert!(reply.headers.get("x-respool-run-id").is_some_and(|id| id.starts_with("run-")));
    let turn = reply.stream(&Rules { usage: Some(true), ..Rules::default() });
    let choice = &turn.choices[&0];
    assert_eq!((choice.content.as_str(), choice.tool_calls.len()), ("It says hello.", 0));
    assert_eq!(choice.finish_reason.as_deref(), Some("stop"));
    for line in ["[read: a.txt] ok, 16 bytes in ", "[web_search: rust proxies] ok, "] {
        assert!(choice.reasoning.contains(line), "{}", choice.reasoning);
    }
    let usage = turn.usage.unwrap();
    assert_eq!(
        (usage["prompt_tokens"].as_u64(), usage["completion_tokens"].as_u64()),
        (Some(3 * 131), Some(3 * 31))
    );
    let asked = [("read", "a.txt"), ("web_search", "rust proxies"), ("read", "a.txt")];
    assert_eq!(tools.asked(), asked.map(|(tool, on)| (tool.to_owned(), on.to_owned())));
    let last = fake.requests()[2].json();
    let results: Vec<&str> = last["messages"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|it| it["role"] == "tool")
        .filter_map(|it| it["content"].as_str())
        .collect();
    assert_eq!(results, ["result 0 of read", "result 1 of web_search", "result 2 of read"]);
    assert_eq!(
        (&last["stream"], &last["temperature"], &last["max_tokens"]),
        (&json!(false), &json!(0.25), &json!(1000))
    );
}

/// The tools that the client declares.
pub fn client_tools() -> Value {
    json!([
        {"type": "function", "function": {"name": "ask_user", "description": "Asks.", "parameters":
            {"type": "object", "properties": {"question": {"type": "string"}}, "required": ["question"]}}},
        {"type": "function", "function": {"name": "read", "description": "The client's own.", "parameters": {"type": "object"}}},
    ])
}

pub const QUESTION: (&str, &str) = ("ask_user", r#"{"question": "Which?"}"#);

/// OpenClaw's next messages after a reply with calls: the conversation so far, the calls, and a result.
pub fn next_turn(body: &Value, id: &str, result: &str) -> Value {
    let mut body = body.clone();
    body["messages"].as_array_mut().unwrap().extend([
        json!({"role": "assistant", "content": null, "tool_calls": [{"id": id, "type": "function",
            "function": {"name": "ask_user", "arguments": "{\"question\":\"Which?\"}"}}]}),
        json!({"role": "tool", "tool_call_id": id, "content": result}),
        json!({"role": "user", "content": [{"type": "text", "text": "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nx"}]}),
    ]);
    body
}

#[tokio::test]
async fn runs_with_client_tools_survive_restarts() {
    let state = tempfile::tempdir().unwrap();
    let tools = echoing();
    let fake = FakeVllm::start(scripts(&[
        replies::calls(&[READ]),
        replies::calls(&[QUESTION, SEARCH]),
        replies::text("The second one."),
    ]))
    .await;
    let respool = Respool::with_agent(&fake, &tools, state.path(), "").await;
    let mut body = ask(true);
    body["tools"] = client_tools();
    let first = exchange(respool.address, &Request::chat(&body)).await;
    let run = first.headers.get("x-respool-run-id").unwrap().to_owned();
    let turn = first.stream(&Rules { usage: Some(true), ..Rules::default() });
    let choice = &turn.choices[&0];
    assert_eq!(choice.finish_reason.as_deref(), Some("tool_calls"));
    let names: Vec<&str> = choice.tool_calls.iter().map(|call| call.name.as_str()).collect();
    assert_eq!(names, ["ask_user"], "what respool runs itself does not leave");
    respool.killed().await;

    let respool = Respool::with_agent(&fake, &tools, state.path(), "").await;
    let id = &choice.tool_calls[0].id;
    let again = next_turn(&body, id, "the second");
    let second = exchange(respool.address, &Request::chat(&again)).await;
    assert_eq!(second.headers.get("x-respool-run-id"), Some(run.as_str()));
    let turn = second.stream(&Rules { usage: Some(true), ..Rules::default() });
    assert_eq!(turn.choices[&0].content, "The second one.");
    assert_eq!(turn.usage.unwrap()["prompt_tokens"], 131, "what was told before is not told again");
    let sent = fake.requests()[2].json();
    let told: Vec<String> = sent["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|message| match &message["content"] {
            Value::String(text) => text.clone(),
            content => content.to_string(),
        })
        .collect();
    assert_eq!(told[2], "result 0 of read", "what was done in between is not lost");
    assert_eq!(told[4..6], ["the second", "result 1 of web_search"], "{told:?}");
    assert!(told[6].contains("OPENCLAW_INTERNAL_CONTEXT"));
    assert_eq!(tools.asked().len(), 2);

    // The client did not get the reply and asks again: it gets the same one, and nothing is done twice.
    let third = exchange(respool.address, &Request::chat(&again))
        .await
        .stream(&Rules { usage: Some(true), ..Rules::default() });
    assert_eq!(third.choices[&0].content, "The second one.");
    assert_eq!((tools.asked().len(), fake.requests().len()), (2, 3));
}

#[tokio::test]
async fn replies_and_lists_have_both_forms() {
    let state = tempfile::tempdir().unwrap();
    let fake = FakeVllm::start(scripts(&[replies::calls(&[READ]), replies::text("It says hello.")])).await;
    let respool = Respool::with_agent(&fake, &echoing(), state.path(), "").await;
    let reply = exchange(respool.address, &Request::chat(&ask(false))).await;
    let run = reply.headers.get("x-respool-run-id").unwrap().to_owned();
    let turn = reply.completion(&Rules { usage: Some(true), ..Rules::default() });
    assert_eq!(turn.choices[&0].content, "It says hello.");
    let models = exchange(respool.address, &Request::get("/v1/models")).await.json();
    let ids: Vec<&str> =
        models["data"].as_array().unwrap().iter().filter_map(|model| model["id"].as_str()).collect();
    assert_eq!(ids, ["gpt-oss-20b", "helper"]);
    let runs = exchange(respool.address, &Request::get("/v1/runs")).await.json();
    assert_eq!((&runs["data"][0]["id"], &runs["data"][0]["status"]), (&json!(run), &json!("done")));
    let one = exchange(respool.address, &Request::get(&format!("/v1/runs/{run}"))).await.json();
    assert_eq!((&one["usage"]["total_tokens"], &one["answer"]), (&json!(2 * 162), &json!("It says hello.")));
    let tool = &one["iterations"][0]["tools"][0];
    assert_eq!(
        (&tool["tool"], &tool["outcome"], &tool["result_bytes"]),
        (&json!("read"), &json!("ok"), &json!(16))
    );
    let unknown = exchange(respool.address, &Request::get("/v1/runs/run-0")).await;
    assert_eq!((unknown.status, &unknown.error()["code"]), (404, &json!("run_not_found")));
    wait_until("no run is left", async || respool.agents.active_runs().is_empty()).await;
}

#[tokio::test]
async fn early_failures_keep_their_status() {
    let state = tempfile::tempdir().unwrap();
    let overflow =
        replies::error(400, "This model's maximum context length is 10 tokens.", "BadRequestError");
    let fake = FakeVllm::always(Script::json(400, &overflow)).await;
    let respool = Respool::with_agent(&fake, &echoing(), state.path(), "").await;
    for stream in [true, false] {
        let reply = exchange(respool.address, &Request::chat(&ask(stream))).await;
        assert_eq!((reply.status, &reply.error()["code"]), (400, &json!("context_length_exceeded")));
        assert!(reply.headers.get("x-respool-run-id").is_some());
    }
    let mut body = ask(true);
    body["n"] = json!(2);
    let reply = exchange(respool.address, &Request::chat(&body)).await;
    assert_eq!((reply.status, &reply.error()["param"]), (400, &json!("n")));
}

#[tokio::test]
async fn tool_failures_reach_model_and_report() {
    let state = tempfile::tempdir().unwrap();
    let tools = Arc::new(ScriptedTools::new(|_, _| Err(ToolError::Failed("there is no file a.txt".into()))));
    let fake = FakeVllm::start(scripts(&[replies::calls(&[READ]), replies::text("It is not there.")])).await;
    let respool = Respool::with_agent(&fake, &tools, state.path(), "").await;
    let turn = exchange(respool.address, &Request::chat(&ask(true)))
        .await
        .stream(&Rules { usage: Some(true), ..Rules::default() });
    assert!(turn.choices[&0].reasoning.contains("[read: a.txt] failed after"));
    assert_eq!(fake.requests()[1].json()["messages"][2]["content"], "Error: there is no file a.txt");
    let report = crate::support::eventually(|| {
        let day = std::fs::read_dir(state.path().join("logs")).ok()?.next()?.ok()?;
        let name = day.file_name().into_string().ok()?;
        Some((name, std::fs::read_to_string(day.path()).ok().filter(|text| !text.is_empty())?))
    })
    .await;
    assert!(report.0.ends_with("-errors.md"), "{report:?}");
    assert!(
        report.1.contains("] Iteration 1 | Tool: read | Error: failed | Attempted fix: the model is told\n")
    );
}

/// The rest of a reply.
async fn rest(client: &mut Client) -> String {
    let mut text = String::new();
    while let Some(chunk) = client.chunk().await {
        text.push_str(&String::from_utf8_lossy(&chunk.bytes));
    }
    text
}

#[tokio::test]
async fn disconnects_end_or_detach_the_run() {
    for (setting, outcome) in [("cancel", "cancelled"), ("detach", "done")] {
        let state = tempfile::tempdir().unwrap();
        let tools = Arc::new(ScriptedTools::new(|_, _| Ok("x".into())).slow(Duration::from_millis(300)));
        let fake = FakeVllm::always(Script::json(200, &replies::text("done"))).await;
        fake.then(Script::json(200, &replies::calls(&[READ])));
        let respool =
            Respool::with_agent(&fake, &tools, state.path(), &format!("on_disconnect = \"{setting}\"")).await;
        let mut client = Client::sending(respool.address, &Request::chat(&ask(true))).await;
        let head = client.head().await;
        let run = head.headers.get("x-respool-run-id").unwrap().to_owned();
        client.reset();
        let path = format!("/v1/runs/{run}");
        let shown = async || exchange(respool.address, &Request::get(&path)).await.json();
        let look = async || Some(shown().await).filter(|run| run["status"] != "running");
        let ended = look_within(Duration::from_secs(10), look).await.expect("the run ends");
        assert_eq!(ended["status"], outcome, "{ended}");
        if setting == "detach" {
            assert_eq!(ended["answer"], "done", "its answer is kept");
            let again = exchange(respool.address, &Request::chat(&ask(true))).await;
            assert_eq!(
                again.headers.get("x-respool-run-id"),
                Some(run.as_str()),
                "whoever asks again gets it"
            );
            let anew = exchange(respool.address, &Request::chat(&ask(true))).await;
            assert_ne!(anew.headers.get("x-respool-run-id"), Some(run.as_str()), "once");
        }
    }
}

#[tokio::test]
async fn runs_can_be_cancelled() {
    let state = tempfile::tempdir().unwrap();
    let tools = Arc::new(ScriptedTools::new(|_, _| Ok("x".into())).slow(Duration::from_mins(1)));
    let fake = FakeVllm::start(scripts(&[replies::calls(&[READ])])).await;
    let respool = Respool::with_agent(&fake, &tools, state.path(), "").await;
    let mut client = Client::sending(respool.address, &Request::chat(&ask(true))).await;
    let head = client.head().await;
    let run = head.headers.get("x-respool-run-id").unwrap().to_owned();
    let ended = exchange(respool.address, &Request::post(&format!("/v1/runs/{run}/cancel"), "")).await.json();
    assert_eq!(ended["cancelled"], true);
    let tail = rest(&mut client).await;
    assert!(tail.contains("[respool: the run was cancelled]"), "{tail}");
    let again = exchange(respool.address, &Request::post(&format!("/v1/runs/{run}/cancel"), "")).await;
    assert_eq!(again.status, 404);
}

/// `respool runs cancel` beside a server: the run learnt of it when its model had replied.
#[tokio::test]
async fn another_process_can_cancel_a_run() {
    let state = tempfile::tempdir().unwrap();
    let tools = Arc::new(ScriptedTools::new(|_, _| Ok("x".into())));
    let silent = Script::json(200, &replies::text("too late")).delay(Duration::from_mins(1));
    let fake = FakeVllm::start([silent]).await;
    let respool = Respool::with_agent(&fake, &tools, state.path(), "").await;
    respool.agents.start_housekeeping().await;
    let mut client = Client::sending(respool.address, &Request::chat(&ask(true))).await;
    let run = client.head().await.headers.get("x-respool-run-id").unwrap().to_owned();
    let config = StoreConfig { state_dir: state.path().to_owned(), ..StoreConfig::default() };
    assert!(Store::open(&config).unwrap().request_cancel(&run, 1).await.unwrap());
    let tail = tokio::time::timeout(Duration::from_secs(20), rest(&mut client)).await.unwrap();
    assert!(tail.contains("[respool: the run was cancelled]"), "{tail}");
}

#[tokio::test]
async fn heartbeats_fill_silent_runs() {
    let state = tempfile::tempdir().unwrap();
    let tools = Arc::new(ScriptedTools::new(|_, _| Ok("x".into())).slow(Duration::from_millis(400)));
    let fake = FakeVllm::start(scripts(&[replies::calls(&[READ]), replies::text("done")])).await;
    let extra = "progress = \"silent\"\n[limits]\ncommit_after = \"50ms\"\nheartbeat = \"50ms\"";
    let respool = Respool::with_agent(&fake, &tools, state.path(), extra).await;
    let turn = exchange(respool.address, &Request::chat(&ask(true)))
        .await
        .stream(&Rules { usage: Some(true), ..Rules::default() });
    assert!(turn.heartbeats >= 3, "{turn:?}");
    assert_eq!((turn.choices[&0].reasoning.as_str(), turn.choices[&0].content.as_str()), ("", "done"));
}

/// A call that must not be made twice continues for a while when respool is stopped. Its client does not wait
/// for it.
#[tokio::test]
async fn stopped_streams_do_not_await_tools() {
    for is_committed in [false, true] {
        let state = tempfile::tempdir().unwrap();
        let tools = Arc::new(ScriptedTools::new(|_, _| Ok("x".into())).slow(Duration::from_mins(1)));
        let fake = FakeVllm::start(scripts(&[replies::calls(&[("exec", r#"{"command": "ls"}"#)])])).await;
        let commit_after = if is_committed { "50ms" } else { "1m" };
        let extra = format!("progress = \"silent\"\n[limits]\ncommit_after = \"{commit_after}\"");
        let respool = Respool::with_agent(&fake, &tools, state.path(), &extra).await;
        let mut client = Client::sending(respool.address, &Request::chat(&ask(true))).await;
        if is_committed {
            client.head().await;
        }
        eventually(|| (tools.asked().len() == 1).then_some(())).await;
        respool.stop.abort.cancel();
        let status = if is_committed { 200 } else { client.head().await.status };
        let tail = tokio::time::timeout(Duration::from_secs(20), rest(&mut client)).await.unwrap();
        assert!(tail.contains("send the request again, and it goes on"), "{tail}");
        assert_eq!(
            (status, tail.ends_with("data: [DONE]\n\n")),
            if is_committed { (200, true) } else { (503, false) }
        );
    }
}

/// The time that a request took to arrive counts, as on the other routes.
#[tokio::test]
async fn commit_after_counts_from_arrival() {
    let pause = Duration::from_secs(4);
    let state = tempfile::tempdir().unwrap();
    let fake = FakeVllm::start([Script::silence()]).await;
    let extra = "[limits]\ncommit_after = \"4s\"";
    let respool = Respool::with_agent(&fake, &echoing(), state.path(), extra).await;
    let request = Request::chat(&ask(true)).to_bytes();
    let (begin, rest) = request.split_at(request.len() - 1);
    let mut client = Client::connect(respool.address).await;
    client.send_raw(begin).await;
    testing::waiting::delay(pause).await;
    client.send_raw(rest).await;
    let sent = Instant::now();
    client.head().await;
    assert!(sent.elapsed() < pause * 3 / 4, "{:?}", sent.elapsed());
}

#[tokio::test]
async fn repeated_requests_resume_stopped_runs() {
    let state = tempfile::tempdir().unwrap();
    let slow = Arc::new(ScriptedTools::new(|_, _| Ok("x".into())).slow(Duration::from_mins(1)));
    let fake = FakeVllm::start(scripts(&[replies::calls(&[READ]), replies::text("done")])).await;
    let respool = Respool::with_agent(&fake, &slow, state.path(), "").await;
    let mut client = Client::sending(respool.address, &Request::chat(&ask(true))).await;
    let run = client.head().await.headers.get("x-respool-run-id").unwrap().to_owned();
    client.chunk().await.unwrap();
    respool.stop.abort.cancel();
    let tail = rest(&mut client).await;
    assert!(tail.contains("send the request again, and it goes on"), "{tail}");
    respool.killed().await;

    let tools = echoing();
    let respool = Respool::with_agent(&fake, &tools, state.path(), "").await;
    let again = exchange(respool.address, &Request::chat(&ask(true))).await;
    assert_eq!(again.headers.get("x-respool-run-id"), Some(run.as_str()));
    assert_eq!(again.stream(&Rules { usage: Some(true), ..Rules::default() }).choices[&0].content, "done");
    assert_eq!(fake.requests().len(), 2, "the model is not asked twice for what it has said");
}

#[tokio::test]
async fn runs_work_without_a_store() {
    let state = tempfile::tempdir().unwrap();
    std::fs::write(state.path().join("blocked"), "a file where a directory should be").unwrap();
    let mut tools = client_tools();
    tools.as_array_mut().unwrap().truncate(1);
    let fake =
        FakeVllm::start(scripts(&[replies::calls(&[QUESTION]), replies::text("The second one.")])).await;
    let respool = Respool::with_agent(&fake, &echoing(), &state.path().join("blocked"), "").await;
    let mut body = ask(true);
    body["tools"] = tools;
    let rules = Rules { usage: Some(true), ..Rules::default() };
    let turn = exchange(respool.address, &Request::chat(&body)).await.stream(&rules);
    let id = &turn.choices[&0].tool_calls[0].id;
    let turn =
        exchange(respool.address, &Request::chat(&next_turn(&body, id, "second"))).await.stream(&rules);
    assert_eq!(turn.choices[&0].content, "The second one.");
}

#[tokio::test]
async fn reasoning_calls_need_declared_tools() {
    let state = tempfile::tempdir().unwrap();
    let thought = |text: &str| {
        replies::completion(&json!({"role": "assistant", "content": null, "reasoning": text}), "stop")
    };
    let tools = echoing();
    let fake = FakeVllm::start(scripts(&[
        thought("The user wants a file. [TOOL:read|path=a.txt]"),
        thought("I will search for \"rust proxies\" using web_search."),
        thought("[TOOL:exec|command=ls]"),
        replies::text("All I know."),
    ]))
    .await;
    let extra = "parsers = [\"markers\", \"fuzzy\"]\nread_first = \"reasoning\"\nmax_iterations = 3";
    let respool = Respool::with_agent(&fake, &tools, state.path(), extra).await;
    let turn = exchange(respool.address, &Request::chat(&ask(true)))
        .await
        .stream(&Rules { usage: Some(true), ..Rules::default() });
    let answer = "All I know.\n\n[respool: the run met its limit max_iterations (3)]";
    assert_eq!(turn.choices[&0].content, answer, "{turn:?} {:?}", tools.asked());
    let asked = [("read", "a.txt"), ("web_search", "rust proxies"), ("exec", "ls")];
    assert_eq!(tools.asked(), asked.map(|(tool, on)| (tool.to_owned(), on.to_owned())));
    let requests = fake.requests();
    assert!(requests.iter().all(|request| request.json().get("tools").is_none()));
    let messages = requests[3].json()["messages"].to_string();
    assert!(
        messages.contains("[TOOL_RESULT: read] result 0 of read") && messages.contains("met its limit"),
        "{messages}"
    );
}

#[tokio::test]
async fn missing_upstreams_get_three_attempts() {
    let state = tempfile::tempdir().unwrap();
    let fake = FakeVllm::start(scripts(&[replies::calls(&[READ])])).await;
    fake.otherwise(Script::json(503, &replies::error(503, "loading", "x")));
    let extra = "[limits]\ncommit_after = \"0s\"";
    let respool = Respool::with_agent(&fake, &echoing(), state.path(), extra).await;
    let turn = exchange(respool.address, &Request::chat(&ask(true)))
        .await
        .stream(&Rules { usage: Some(true), ..Rules::default() });
    let content = &turn.choices[&0].content;
    assert!(content.contains("What was done:\n- read {\"path\": \"a.txt\"}: a result"), "{content}");
    assert!(
        content
            .contains("[respool: the model could not go on: upstream `box` failed: loading (asked 3 times)]"),
        "{content}"
    );
    assert_eq!(fake.requests().len(), 4);
}

/// The real program with these arguments: its standard output, its log, and whether it succeeded.
async fn respool(config: &Path, arguments: &[&str]) -> (String, String, bool) {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_respool"));
    command.args(arguments).arg("--config").arg(config).env_clear();
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr), output.status.success())
}

#[tokio::test]
async fn the_program_manages_interrupted_runs() {
    let state = tempfile::tempdir().unwrap();
    let slow = Arc::new(ScriptedTools::new(|_, _| Ok("x".into())).slow(Duration::from_mins(1)));
    let fake = FakeVllm::start(scripts(&[replies::calls(&[READ]), replies::text("done")])).await;
    let served = Respool::with_agent(&fake, &slow, state.path(), "").await;
    let mut client = Client::sending(served.address, &Request::chat(&ask(true))).await;
    let run = client.head().await.headers.get("x-respool-run-id").unwrap().to_owned();
    client.chunk().await.unwrap();
    served.killed().await;

    let config = state.path().join("respool.toml");
    let text = format!(
        "state_dir = \"{0}\"\n[log]\nformat = \"json\"\nerrors_dir = \"{0}\"\n[[upstream]]\nname = \"box\"\nurl = \"{1}\"\n[agents.helper]\nmodel = \"gpt-oss-20b\"\n",
        state.path().display(),
        fake.url()
    );
    std::fs::write(&config, text).unwrap();
    let (listed, ..) = respool(&config, &["runs", "list"]).await;
    let row = listed.lines().find(|line| line.starts_with(&run)).unwrap_or_default();
    assert!(row.contains("  interrupted  ") && row.ends_with("helper  What does a.txt say?"), "{listed}");
    let used = ["usage", "--by", "agent", "--csv"];
    let (before, ..) = respool(&config, &used).await;
    let (answer, log, _) = respool(&config, &["runs", "resume", &run]).await;
    assert_eq!(answer, "done\n");
    let (after, ..) = respool(&config, &used).await;
    assert!(after.contains("helper") && after != before, "the usage of a short command is written: {after}");
    let lines: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let of = |message: &str| {
        let is_it = |line: &&Value| line["message"] == message && line["run_id"] == run.as_str();
        lines.iter().find(is_it).unwrap_or_else(|| panic!("no {message} in {log}"))
    };
    let iteration = of("iteration");
    assert_eq!(
        (&iteration["iteration"], &iteration["prompt_tokens"], &iteration["tokens_total"]),
        (&json!(2), &json!(131), &json!(2 * 162))
    );
    assert_eq!((&of("tool")["tool"], &of("tool")["status"]), (&json!("read"), &json!("failed")));
    assert_eq!((&of("run ended")["outcome"], &of("run ended")["tools_failed"]), (&json!("done"), &json!(1)));
    assert!(!log.contains("What does a.txt say?"), "message text is not logged");
    let (shown, ..) = respool(&config, &["runs", "show", &run]).await;
    assert_eq!(serde_json::from_str::<Value>(&shown).unwrap()["status"], "done");
    let (_, said, succeeded) = respool(&config, &["runs", "cancel", &run]).await;
    assert!(said.contains("is already done") && !succeeded, "{said}");
    assert!(respool(&config, &["runs", "delete", &run]).await.2);
    let (_, said, succeeded) = respool(&config, &["runs", "delete", &run]).await;
    assert!(said.contains(&format!("no run has the id {run}")) && !succeeded, "{said}");
    let (listed, said, _) = respool(&config, &["runs", "list"]).await;
    assert!(
        listed.is_empty() && said.contains("0 of 0 runs, ") && said.contains(" of at most 1GiB in "),
        "{said}"
    );
}

#[tokio::test]
async fn failed_commits_lose_no_answer() {
    let state = tempfile::tempdir().unwrap();
    let database = state.path().join("respool.db");
    let tools = Arc::new(ScriptedTools::new(move |_, _| {
        // No event of a run that is not there can be written.
        let store = rusqlite::Connection::open(&database).unwrap();
        store.busy_timeout(Duration::from_secs(5)).unwrap();
        store.execute("DELETE FROM runs", []).unwrap();
        Ok("x".into())
    }));
    let fake = FakeVllm::start(scripts(&[replies::calls(&[READ]), replies::text("done")])).await;
    let respool = Respool::with_agent(&fake, &tools, state.path(), "").await;
    let rules = Rules { usage: Some(true), ..Rules::default() };
    let turn = exchange(respool.address, &Request::chat(&ask(true))).await.stream(&rules);
    assert_eq!(turn.choices[&0].content, "done");
    assert!(turn.choices[&0].reasoning.contains("[this run cannot be kept on disk at present; it goes on]"));
    let logs = state.path().join("logs");
    let report = crate::support::eventually(|| {
        let day = std::fs::read_dir(&logs).ok()?.next()?.ok()?;
        std::fs::read_to_string(day.path()).ok().filter(|text| !text.is_empty())
    })
    .await;
    assert!(report.contains("| Tool: store | Error: cannot write "), "{report}");
    assert_eq!(report.lines().count(), 1, "it is said once");
}

#[tokio::test]
async fn agents_get_their_configured_tools() {
    let state = tempfile::tempdir().unwrap();
    let workspace = tempfile::tempdir().unwrap();
    std::fs::write(workspace.path().join("a.txt"), "hello from the file").unwrap();
    let write = ("write", r#"{"path": "b.txt", "content": "x"}"#);
    let fake = FakeVllm::start(scripts(&[
        replies::calls(&[READ]),
        replies::calls(&[write]),
        replies::text("It says hello."),
    ]))
    .await;
    let settings = |tools: &str| {
        format!(
            "state_dir = {:?}\n[agents.helper]\nmodel = \"gpt-oss-20b\"\ntools = [{tools}]\n[tools.local]\nworkspace = {:?}\n\
             [[tools.policy.rule]]\ntool = \"read\"\nthen = \"allow\"\n[[upstream]]\nname = \"box\"\nurl = \"{}\"\n",
            state.path(),
            workspace.path(),
            fake.url()
        )
    };
    let respool = Respool::configured(&settings(r#""read", "write""#)).await;
    let turn = exchange(respool.address, &Request::chat(&ask(false))).await.completion(&Rules::default());
    assert_eq!(turn.choices[&0].content, "It says hello.");
    let last = fake.requests()[2].json();
    let results: Vec<&str> = last["messages"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|it| it["role"] == "tool")
        .filter_map(|it| it["content"].as_str())
        .collect();
    assert!(results[0].contains("hello from the file"), "{results:?}");
    // No person can be asked, so `ask` is a denial, and the model learns that.
    assert!(
        results[1].to_lowercase().contains("not allowed") || results[1].to_lowercase().contains("denied"),
        "{results:?}"
    );
    assert!(!workspace.path().join("b.txt").exists());
}

#[tokio::test]
async fn failed_runs_are_not_resumed() {
    let state = tempfile::tempdir().unwrap();
    let tools = echoing();
    let fake = FakeVllm::start([]).await;
    fake.otherwise(Script::json(
        400,
        &replies::error(400, "temperature must be non-negative", "BadRequestError"),
    ));
    let respool = Respool::with_agent(&fake, &tools, state.path(), "").await;
    assert_eq!(exchange(respool.address, &Request::chat(&ask(false))).await.status, 400);
    fake.otherwise(Script::json(200, &replies::text("Now it works.")));
    let turn = exchange(respool.address, &Request::chat(&ask(false))).await.completion(&Rules::default());
    assert_eq!(turn.choices[&0].content, "Now it works.");
}

#[tokio::test]
async fn agents_are_listed_without_a_server() {
    let dead = "[[upstream]]\nname = \"dead\"\nurl = \"http://127.0.0.1:1\"\n";
    let state = tempfile::tempdir().unwrap();
    let agent = format!("state_dir = \"{}\"\n[agents.helper]\nmodel = \"m\"\n{dead}", state.path().display());
    let respool = Respool::configured(&agent).await;
    let list = exchange(respool.address, &Request::get("/v1/models")).await;
    assert_eq!((list.status, list.json()["data"].as_array().unwrap().len()), (200, 1));
    let one = exchange(respool.address, &Request::get("/v1/models/helper")).await;
    assert_eq!((one.status, &one.json()["id"]), (200, &json!("helper")));
    let other = exchange(respool.address, &Request::get("/v1/models/m")).await;
    assert_eq!(
        (other.status, &other.error()["code"]),
        (503, &json!("upstream_unreachable")),
        "it may be there"
    );
    let alone = Respool::configured(dead).await;
    assert_eq!(exchange(alone.address, &Request::get("/v1/models")).await.status, 503, "no empty list");
}

#[tokio::test]
async fn pages_of_other_sites_get_nothing() {
    let state = tempfile::tempdir().unwrap();
    let tools = echoing();
    let fake = FakeVllm::always(Script::json(200, &replies::text("Hello"))).await;
    let respool = Respool::with_agent(&fake, &tools, state.path(), "").await;
    for request in
        [Request::chat(&ask(false)), Request::get("/v1/runs"), Request::post("/v1/runs/x/cancel", "")]
    {
        let foreign = request.clone().header("origin", "https://evil.example");
        assert_eq!(exchange(respool.address, &foreign).await.status, 403);
        let address = respool.address.to_string();
        let own =
            request.without("host").header("host", &address).header("origin", &format!("http://{address}"));
        assert_ne!(exchange(respool.address, &own).await.status, 403);
    }
}
