//! Loops: the model is warned in the request, the client never sees it, and the run ends honestly when it
//! goes on.

use serde_json::{Value, json};

use crate::reasoning_memory::{ROUTES, answer};
use crate::support::accumulate::Rules;
use crate::support::client::{Request, exchange};
use crate::support::fake_vllm::FakeVllm;
use crate::support::respool::Respool;
use crate::tools_route;

/// A call: tool, argument, result.
type Round = (&'static str, String, String);

/// A conversation of these calls, as OpenClaw sends it.
fn conversation(rounds: &[Round]) -> Value {
    let mut body = tools_route::request();
    let messages = body["messages"].as_array_mut().unwrap();
    for (at, (tool, argument, result)) in rounds.iter().enumerate() {
        let id = format!("call{at:05}");
        let key = if *tool == "read" { "path" } else { "command" };
        messages.extend([
            json!({"role": "assistant", "content": null, "tool_calls": [{"id": id, "type": "function",
                "function": {"name": tool, "arguments": json!({key: argument}).to_string()}}]}),
            json!({"role": "tool", "tool_call_id": id, "content": result}),
        ]);
    }
    messages.push(json!({"role": "user", "content": [{"type": "text", "text": "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nx"}]}));
    body
}

fn rounds(count: usize, round: impl Fn(usize) -> (&'static str, String, &'static str)) -> Vec<Round> {
    let owned = |(tool, argument, result): (_, _, &str)| (tool, argument, result.to_owned());
    (0..count).map(|at| owned(round(at))).collect()
}

type Shape = (&'static str, usize, fn(usize) -> (&'static str, String, &'static str));

/// Kind, how many calls end it, and the calls.
const SHAPES: [Shape; 4] = [
    ("alternating", 16, |at| (["read", "exec"][at % 2], "a".into(), "same")),
    ("alternating", 24, |at| (["read", "exec", "exec"][at % 3], format!("{}", at % 3), "same")),
    ("drifting", 32, |at| ("exec", format!("grep -r word{at}"), "grep: no matches")),
    ("unknown_tool", 8, |at| (["read", "exec"][at % 2], format!("{at}"), "Tool read not found")),
];

#[tokio::test]
async fn only_the_model_is_warned() {
    for extra in ROUTES {
        for (kind, end, round) in SHAPES {
            let fake = FakeVllm::start([answer(extra), answer(extra)]).await;
            let respool = Respool::with(&fake, extra).await;
            let (healthy, warned) =
                (conversation(&rounds(end / 2 - 1, round)), conversation(&rounds(end / 2, round)));
            for body in [&healthy, &warned] {
                let reply = exchange(respool.address, &Request::chat(body)).await;
                let turn = reply.stream(&Rules::default());
                assert_eq!(turn.choices[&0].content, "done");
                assert!(!reply.text().contains("Note from respool"), "{kind}");
            }
            let [first, second] = [0, 1].map(|at| fake.requests()[at].json());
            assert_eq!(first["messages"], healthy["messages"], "{kind} {extra}");
            assert_warned(&second["messages"], &warned["messages"], kind);
        }
    }
}

/// The last result, and nothing else, has a note behind its own text.
fn assert_warned(sent: &Value, asked: &Value, kind: &str) {
    let (sent, asked) = (sent.as_array().unwrap(), asked.as_array().unwrap());
    let result = asked.len() - 2;
    for (at, (sent, asked)) in sent.iter().zip(asked).enumerate() {
        if at != result {
            assert_eq!(sent, asked, "{kind}");
        }
    }
    let text = sent[result]["content"].as_str().unwrap();
    let original = asked[result]["content"].as_str().unwrap();
    assert!(text.starts_with(&format!("{original}\n\n[Note from respool")), "{text}");
}

#[tokio::test]
async fn endless_loops_end_honestly() {
    for extra in ROUTES {
        let fake = FakeVllm::start([]).await;
        let respool = Respool::with(&fake, extra).await;
        for (kind, end, round) in SHAPES {
            let mut body = conversation(&rounds(end, round));
            let turn = exchange(respool.address, &Request::chat(&body)).await.stream(&Rules::default());
            let choice = &turn.choices[&0];
            assert!(
                choice.content.starts_with("I stopped: ") && choice.tool_calls.is_empty(),
                "{kind} {choice:?}"
            );
            assert_eq!(choice.finish_reason.as_deref(), Some("stop"));
            body["stream"] = json!(false);
            let whole = exchange(respool.address, &Request::chat(&body)).await.completion(&Rules::default());
            assert_eq!(whole.choices[&0].content, choice.content);
        }
        assert!(fake.requests().is_empty(), "the model is not asked again");
    }
}

#[tokio::test]
async fn the_thresholds_follow_the_setting() {
    let extra = "[limits]\nmax_repeats = 3";
    let same = |_| ("exec", "ls".to_owned(), "same");
    let fake = FakeVllm::start([answer(extra)]).await;
    let respool = Respool::with(&fake, extra).await;
    for (count, expected) in [(2, "done"), (3, "I stopped")] {
        let body = conversation(&rounds(count, same));
        let turn = exchange(respool.address, &Request::chat(&body)).await.stream(&Rules::default());
        assert!(turn.choices[&0].content.starts_with(expected), "{count}");
    }
    assert!(fake.requests()[0].json().to_string().contains("At 3 the run is ended"));
}

#[tokio::test]
async fn requests_without_tools_get_no_warning() {
    let fake = FakeVllm::start([answer("live")]).await;
    let respool = Respool::before(&fake).await;
    let mut body = conversation(&rounds(6, |_| ("exec", "ls".into(), "same")));
    for key in ["tools", "tool_choice"] {
        body.as_object_mut().unwrap().remove(key);
    }
    exchange(respool.address, &Request::chat(&body)).await;
    assert_eq!(fake.requests()[0].json()["messages"], body["messages"]);
}
