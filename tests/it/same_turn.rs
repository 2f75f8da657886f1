//! The same turn through the three real routes: a client of any API rebuilds the same of it, streamed or
//! whole, whichever way respool asked for it.

use std::sync::{Arc, Mutex, PoisonError};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};

use crate::support::accumulate::Rules;
use crate::support::api::{Api, OTHERS};
use crate::support::client::{Request, exchange};
use crate::support::fake_vllm::FakeVllm;
use crate::support::replies;
use crate::support::respool::{ONCE, Respool};
use crate::support::script::Script;
use crate::support::turn::Turn;
use crate::tools_route;

/// The model's words.
#[derive(Clone, Debug, Default)]
struct Said {
    reasoning: String,
    content: Vec<String>,
    calls: Vec<Value>,
}

fn said() -> impl Strategy<Value = Said> {
    let text =
        prop_oneof![any::<String>(), "[a-zA-Z <>{}\"\\\\\n\t🙂é|_]{0,40}", Just("<tool_call>".to_owned())];
    let call = any::<String>().prop_map(|path| json!({"path": path}));
    (text.clone(), prop::collection::vec(text, 1..4), prop::collection::vec(call, 0..3))
        .prop_map(|(reasoning, content, calls)| Said { reasoning, content, calls })
}

impl Said {
    /// The reply of the server to this request.
    fn script(&self, request: &Value) -> Script {
        let calls = if request["tools"].is_array() { self.calls.as_slice() } else { &[] };
        let finish = if calls.is_empty() { "stop" } else { "tool_calls" };
        let function = |(place, arguments): (usize, &Value)| {
            json!({"index": place, "id": format!("chatcmpl-tool-{place}"), "type": "function",
                   "function": {"name": "read", "arguments": arguments.to_string()}})
        };
        let calls: Vec<Value> = calls.iter().enumerate().map(function).collect();
        if request["stream"] != true {
            let mut message =
                json!({"role": "assistant", "content": self.content.concat(), "reasoning": self.reasoning});
            if !calls.is_empty() {
                message["tool_calls"] = calls.into();
            }
            return Script::json(200, &replies::completion(&message, finish));
        }
        let delta = |delta: Value| replies::frame(&replies::chunk(&delta, None));
        let mut frames = vec![replies::role_frame(), delta(json!({"reasoning": self.reasoning}))];
        frames.extend(self.content.iter().map(|piece| delta(json!({"content": piece}))));
        frames.extend(calls.into_iter().map(|call| delta(json!({"tool_calls": [call]}))));
        frames.push(replies::frame(&replies::chunk(&json!({}), Some(finish))));
        frames.extend([replies::usage_frame(), replies::DONE.to_owned()]);
        Script::sse(frames)
    }
}

/// The turn that a client of this API rebuilds; `None` when it gets an error.
async fn rebuilt(respool: &Respool, api: Api, chat: &Value) -> Option<Turn> {
    let stream = chat["stream"] == true;
    let request = Request::post(api.path(), api.request(chat.clone()).to_string());
    let reply = exchange(respool.address, &request).await;
    if reply.status != 200 {
        return None;
    }
    if api != Api::Chat {
        let (turn, failed) = api.read(&reply, stream);
        return (!failed).then_some(turn);
    }
    let rules = Rules { as_it_came: true, ..Rules::default() };
    let read = if stream { reply.stream(&rules) } else { reply.completion(&rules) };
    read.error.is_none().then(|| Turn::read(&read))
}

/// With tools, read whole and as they come; and without.
fn requests() -> [Value; 3] {
    let request = |model: &str| {
        json!({"model": model, "messages": [{"role": "user", "content": "What now?"}],
               "stream_options": {"include_usage": true}})
    };
    let mut requests = [request("gpt-oss-20b"), request("live-model"), request("gpt-oss-20b")];
    requests[..2].iter_mut().for_each(|request| request["tools"] = tools_route::request()["tools"].clone());
    requests
}

#[test]
fn turns_are_equal_on_every_route() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let saying = Arc::new(Mutex::new(Said::default()));
    let shared = Arc::clone(&saying);
    let config = format!("{ONCE}[models.live-model]\ntools_mode = \"live\"\n");
    let (fake, respool) = runtime.block_on(async {
        let answer =
            move |request: &Value| shared.lock().unwrap_or_else(PoisonError::into_inner).script(request);
        let fake = FakeVllm::thinking(answer).await;
        let respool = Respool::with(&fake, &config).await;
        (fake, respool)
    });
    let mut runner = TestRunner::new(Config { cases: 20, failure_persistence: None, ..Config::default() });
    let outcome = runner.run(&said(), |said| {
        *saying.lock().unwrap_or_else(PoisonError::into_inner) = said;
        for mut chat in requests() {
            for stream in [true, false] {
                chat["stream"] = stream.into();
                if !stream {
                    chat.as_object_mut().unwrap().remove("stream_options");
                }
                let expected = runtime.block_on(rebuilt(&respool, Api::Chat, &chat));
                for api in OTHERS {
                    let seen = runtime.block_on(rebuilt(&respool, api, &chat));
                    prop_assert_eq!(&seen, &expected, "{:?} of {}", api, chat);
                }
            }
        }
        Ok(())
    });
    drop(fake);
    outcome.unwrap();
}
