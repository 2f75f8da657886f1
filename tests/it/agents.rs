//! Agents: a model id of respool's own that runs tools and answers as one reply.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::support::accumulate::Rules;
use crate::support::client::{Request, exchange};
use crate::support::fake_vllm::FakeVllm;
use crate::support::replies;
use crate::support::respool::Respool;
use crate::support::script::Script;
use crate::support::scripted_tools::ScriptedTools;

const READ: (&str, &str) = ("read", r#"{"path": "a.txt"}"#);
const SEARCH: (&str, &str) = ("web_search", r#"{"query": "rust proxies"}"#);

fn ask(stream: bool) -> Value {
    let mut body = json!({"model": "helper", "messages": [{"role": "user", "content": "What does a.txt say?"}], "stream": stream});
    if stream {
        body["stream_options"] = json!({"include_usage": true});
    }
    body
}

fn echoing() -> Arc<ScriptedTools> {
    Arc::new(ScriptedTools::new(|call, count| Ok(format!("result {count} of {}", call.name))))
}

fn scripts(replies: &[Value]) -> Vec<Script> {
    replies.iter().map(|reply| Script::json(200, reply)).collect()
}

#[tokio::test]
async fn an_agent_answers_through_tools_in_one_stream() {
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
