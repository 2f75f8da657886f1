//! Every case of `crates/tool-call-parser/cases` through the whole relay: the live route, fed in small
//! pieces, tells the same turn as the buffered one. The engine's own tests judge the turn (`cases.rs` of that
//! crate).

use serde_json::{Value, json};

use crate::live::{LIVE, anew};
use crate::support::accumulate::{Choice, Rules};
use crate::support::client::{Request, exchange};
use crate::support::fake_vllm::FakeVllm;
use crate::support::replies;
use crate::support::respool::{ONCE, Respool};
use crate::support::script::Script;

/// How many letters come in one piece: odd, so that marks are cut in every place over the cases.
const PIECE: usize = 3;

fn cases() -> Vec<Value> {
    let reported = include_str!("../../crates/tool-call-parser/cases/toolcall-cases.jsonl");
    let own = include_str!("../../crates/tool-call-parser/cases/toolcall-cases-own.jsonl");
    reported.lines().chain(own.lines()).map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn request(case: &Value) -> Value {
    let tool = |tool: &Value| {
        let name = tool.as_str().or(tool["name"].as_str()).unwrap();
        let parameters = tool.get("parameters").cloned().unwrap_or_else(|| json!({"type": "object"}));
        json!({"type": "function", "function": {"name": name, "description": "", "parameters": parameters}})
    };
    let tools: Vec<Value> = case["tools"].as_array().unwrap().iter().map(tool).collect();
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": true, "tools": tools});
    for (key, value) in case["request"].as_object().into_iter().flatten() {
        body[key] = value.clone();
    }
    body
}

fn native(case: &Value) -> Vec<Value> {
    let calls: Vec<Value> = serde_json::from_str(case["text"].as_str().unwrap()).unwrap();
    let text = |arguments: &Value| arguments.as_str().map_or_else(|| arguments.to_string(), str::to_owned);
    calls.iter().map(|call| json!({"name": call["name"], "arguments": text(&call["arguments"])})).collect()
}

fn finish_reason(case: &Value) -> &str {
    case["finish_reason"].as_str().unwrap_or("stop")
}

fn whole(case: &Value) -> Value {
    let message = match case["field"].as_str().unwrap() {
        "tool_calls" => {
            let call = |(index, function): (usize, Value)| json!({"id": format!("call-{index}"), "type": "function", "function": function});
            let calls: Vec<Value> = native(case).into_iter().enumerate().map(call).collect();
            json!({"role": "assistant", "content": null, "tool_calls": calls})
        }
        field => json!({"role": "assistant", field: case["text"]}),
    };
    replies::completion(&message, finish_reason(case))
}

fn pieces(text: &str) -> Vec<String> {
    let letters: Vec<char> = text.chars().collect();
    letters.chunks(PIECE).map(|piece| piece.iter().collect()).collect()
}

fn stream(case: &Value) -> Vec<String> {
    let mut deltas = Vec::new();
    match case["field"].as_str().unwrap() {
        "tool_calls" => {
            for (index, function) in native(case).into_iter().enumerate() {
                deltas.push(json!({"tool_calls": [{"index": index, "id": format!("call-{index}"), "type": "function", "function": {"name": function["name"]}}]}));
                let arguments = pieces(function["arguments"].as_str().unwrap());
                deltas.extend(arguments.iter().map(
                    |piece| json!({"tool_calls": [{"index": index, "function": {"arguments": piece}}]}),
                ));
            }
        }
        field => {
            deltas.extend(pieces(case["text"].as_str().unwrap()).iter().map(|piece| json!({field: piece})));
        }
    }
    let mut frames = vec![replies::role_frame()];
    frames.extend(deltas.iter().map(|delta| replies::frame(&replies::chunk(delta, None))));
    frames.extend([
        replies::frame(&replies::chunk(&json!({}), Some(finish_reason(case)))),
        replies::usage_frame(),
        replies::DONE.to_owned(),
    ]);
    frames
}

/// The turn without what may differ: ids, and white space in arguments. An error is its status.
async fn told(respool: &Respool, body: &Value, rules: &Rules) -> Result<Choice, u16> {
    let reply = exchange(respool.address, &Request::chat(body)).await;
    if reply.status != 200 {
        return Err(reply.status);
    }
    let turn = reply.stream(rules);
    if let Some(error) = turn.error {
        return Err(error["code"].as_u64().unwrap().try_into().unwrap());
    }
    let mut choice = turn.choices[&0].clone();
    for call in &mut choice.tool_calls {
        call.id.clear();
        call.arguments = anew(&call.arguments);
    }
    Ok(choice)
}

#[tokio::test]
async fn live_cases_equal_buffered_ones() {
    let (mut differ, mut count) = (Vec::new(), 0);
    let (whole_fake, stream_fake) = (FakeVllm::start([]).await, FakeVllm::start([]).await);
    let buffered = Respool::with(&whole_fake, ONCE).await;
    let live = Respool::with(&stream_fake, &format!("{LIVE}\n{ONCE}")).await;
    for case in cases() {
        let body = request(&case);
        whole_fake.then(Script::json(200, &whole(&case)));
        stream_fake.then(Script::sse(stream(&case)));
        let a = told(&buffered, &body, &Rules::default()).await;
        let b = told(&live, &body, &Rules { as_it_came: true, ..Rules::default() }).await;
        count += 1;
        if a != b {
            differ.push(format!("{}: {a:#?}\nlive: {b:#?}", case["id"]));
        }
    }
    assert!(count > 140, "only {count} cases");
    assert!(differ.is_empty(), "{} of {count} differ:\n{}", differ.len(), differ.join("\n"));
}
