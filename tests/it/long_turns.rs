//! Long turns on a bad day: turns of twelve tool calls by a client that behaves as OpenClaw does, while the
//! model and its server spoil each reply with the same probability, in one of 22 ways. A turn is right if all
//! calls were made, in order and with their own arguments, and the final answer came. Seeded, so that a turn
//! can be played again.
//!
//! `LONG_TURNS=200 cargo test --test it long_turns -- --nocapture` plays 200 turns for each probability and
//! prints a table.

use std::sync::Mutex;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::accumulate::{Accumulated, Choice, Rules};
use crate::support::client::{Request, exchange};
use crate::support::fake_vllm::FakeVllm;
use crate::support::idle_time::IdleTime;
use crate::support::replies;
use crate::support::respool::Respool;
use crate::support::script::{Fault, Script};
use crate::tools_route;

/// The calls of one turn.
const CALLS: usize = 12;

/// The final answer.
const DONE: &str = "All parts are read.";

/// How a reply is spoilt that should have been a call: the call itself comes out wrong.
const OF_CALLS: [&str; 11] = [
    "text-hermes",
    "text-harmony",
    "text-harmony-stripped",
    "cut-arguments",
    "arguments-unclosed",
    "arguments-unquoted",
    "arguments-empty",
    "arguments-garbage",
    "arguments-wrong-name",
    "unknown-tool",
    "polluted-name",
];

/// How any reply is spoilt.
const OF_ALL: [&str; 11] = [
    "cut-reasoning",
    "glitch",
    "glitch-200",
    "empty",
    "lost",
    "only-reasoning",
    "no-choices",
    "500",
    "503",
    "drop",
    "cut-body",
];

/// Internal context as OpenClaw appends it to each request after a tool result.
const INTERNAL: &str =
    "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nnothing new\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>";

fn path_of(part: usize) -> String {
    format!("part-{part}.txt")
}

/// The results that the model has.
fn parts_read(request: &Value) -> usize {
    let messages = request["messages"].as_array().unwrap();
    messages
        .iter()
        .filter(|message| message["content"].as_str().is_some_and(|it| it.starts_with("ok ")))
        .count()
}

fn call_of(name: &str, arguments: &str, id: u64) -> Value {
    json!({"role": "assistant", "content": null, "reasoning": "The next part.", "tool_calls": [
        {"id": format!("chatcmpl-tool-{id:032x}"), "type": "function",
         "function": {"name": name, "arguments": arguments}}]})
}

fn message(message: &Value, finish: &str) -> Script {
    Script::json(200, &replies::completion(message, finish))
}

fn says(content: &str) -> Script {
    message(&json!({"role": "assistant", "content": content, "reasoning": null}), "stop")
}

/// The right reply of the model.
fn right(part: usize, id: u64) -> Script {
    if part == CALLS {
        return says(DONE);
    }
    message(&call_of("read", &json!({"path": path_of(part)}).to_string(), id), "tool_calls")
}

/// The call, spoilt in this way.
fn spoilt_call(way: &str, part: usize, id: u64) -> Script {
    let path = path_of(part);
    let arguments = json!({"path": path}).to_string();
    let native = |name: &str, arguments: &str| message(&call_of(name, arguments, id), "tool_calls");
    match way {
        "text-hermes" => {
            says(&format!("<tool_call>{{\"name\":\"read\",\"arguments\":{arguments}}}</tool_call>"))
        }
        "text-harmony" => says(&format!(
            "<|channel|>commentary to=functions.read <|constrain|>json<|message|>{arguments}<|call|>"
        )),
        "text-harmony-stripped" => says(&format!("commentary to=functions.read json{arguments}")),
        "cut-arguments" => message(&call_of("read", &arguments[..14], id), "length"),
        "arguments-unclosed" => native("read", arguments.trim_end_matches('}')),
        "arguments-unquoted" => native("read", &format!("{{path: {path}}}")),
        "arguments-empty" => native("read", ""),
        "arguments-garbage" => native("read", "{\"path\": ]["),
        "arguments-wrong-name" => native("read", "{\"bytes\": 7}"),
        "unknown-tool" => native("look_at_the_screen", &arguments),
        "polluted-name" => native("functions.read<|channel|>commentary", &arguments),
        other => panic!("there is no way `{other}` to spoil a call"),
    }
}

/// Any reply, spoilt in this way.
fn spoilt_reply(way: &str, id: u64) -> Script {
    let thinking =
        |finish| message(&json!({"role": "assistant", "content": null, "reasoning": "Hm."}), finish);
    let glitch = "unexpected tokens remaining in message header: Some(\"to=functions.read\")";
    let mut blank = replies::text("");
    match way {
        "cut-reasoning" => thinking("length"),
        "only-reasoning" => thinking("stop"),
        "glitch" => Script::json(500, &replies::error(500, glitch, "InternalServerError")),
        "glitch-200" => Script::json(200, &replies::error(400, glitch, "BadRequestError")),
        "empty" => {
            blank["usage"]["completion_tokens"] = json!(1);
            Script::json(200, &blank)
        }
        "lost" => Script::json(200, &blank),
        "no-choices" => {
            blank["choices"] = json!([]);
            Script::json(200, &blank)
        }
        "500" => {
            Script::json(500, &replies::error(500, "EngineCore encountered an issue.", "InternalServerError"))
        }
        "503" => Script::json(503, &replies::error(503, "The server is busy.", "ServiceUnavailableError")),
        "drop" => Script::no_reply(if id.is_multiple_of(2) { Fault::Reset } else { Fault::Close }),
        "cut-body" => right(0, id).reset_after(200),
        other => panic!("there is no way `{other}` to spoil a reply"),
    }
}

/// A model that spoils each reply with this probability.
async fn spoiling(probability: f64, seed: u64) -> FakeVllm {
    let random = Mutex::new(StdRng::seed_from_u64(seed));
    FakeVllm::thinking(move |request| {
        let mut random = random.lock().unwrap();
        let (part, id) = (parts_read(request), random.random::<u64>());
        if !random.random_bool(probability) {
            return right(part, id);
        }
        let way = random.random_range(0..OF_CALLS.len() + OF_ALL.len());
        match OF_CALLS.get(way).filter(|_| part < CALLS) {
            Some(way) => spoilt_call(way, part, id),
            None => spoilt_reply(OF_ALL[way % OF_ALL.len()], id),
        }
    })
    .await
}

/// A turn as OpenClaw plays it.
struct Turn {
    messages: Vec<Value>,
    parts: usize,
    /// Requests that it sent.
    steps: usize,
}

impl Turn {
    fn new(number: usize) -> Self {
        let system =
            "<!-- openclaw:attempt:STABLE -->\nYou are a personal assistant running inside OpenClaw.";
        let user = format!("[Tue 2026-11-24 01:03 UTC] Read all parts. This is turn {number}.");
        let messages =
            vec![json!({"role": "system", "content": system}), json!({"role": "user", "content": user})];
        Self { messages, parts: 0, steps: 0 }
    }

    /// Plays it to its end; the error says why it ended too early.
    async fn play(&mut self, respool: &Respool) -> Result<(), String> {
        while self.steps < 4 * CALLS {
            let turn = self.ask(respool).await?;
            let choice = &turn.choices[&0];
            if choice.tool_calls.is_empty() {
                let is_right = choice.content == DONE && self.parts == CALLS;
                return if is_right { Ok(()) } else { Err(format!("ended with {:?}", choice.content)) };
            }
            self.make_calls(choice)?;
        }
        Err("went on and on".to_owned())
    }

    async fn ask(&mut self, respool: &Respool) -> Result<Accumulated, String> {
        self.steps += 1;
        let mut body = tools_route::request();
        let mut messages = self.messages.clone();
        if self.steps > 1 {
            messages.push(json!({"role": "user", "content": [{"type": "text", "text": INTERNAL}]}));
        }
        body["messages"] = json!(messages);
        let reply = exchange(respool.address, &Request::chat(&body)).await;
        if reply.status != 200 {
            return Err(format!("step {}: {} {}", self.steps, reply.status, reply.text()));
        }
        let turn = reply.stream(&Rules { usage: None, ..Rules::default() });
        match &turn.error {
            Some(error) => Err(format!("step {}: {error}", self.steps)),
            None => Ok(turn),
        }
    }

    fn make_calls(&mut self, choice: &Choice) -> Result<(), String> {
        let calls = choice.tool_calls.iter().map(|call| {
            json!({"id": call.id, "type": "function",
                   "function": {"name": call.name, "arguments": call.json().to_string()}})
        });
        let calls: Vec<Value> = calls.collect();
        self.messages.push(json!({"role": "assistant", "content": null, "tool_calls": calls}));
        for call in &choice.tool_calls {
            let result = self.result_of(&call.name, &call.json())?;
            self.messages.push(json!({"role": "tool", "tool_call_id": call.id, "content": result}));
        }
        Ok(())
    }

    /// The results of OpenClaw's tools. Only the call that the model meant is ever made.
    fn result_of(&mut self, name: &str, arguments: &Value) -> Result<String, String> {
        match (name, arguments["path"].as_str()) {
            ("read", Some(path)) if path == path_of(self.parts) => {
                self.parts += 1;
                Ok(format!("ok {path}"))
            }
            ("read", None) => {
                Ok("Validation failed for tool \"read\": path: must have required properties path".to_owned())
            }
            ("read", Some(path)) => Err(format!("step {}: read {path}", self.steps)),
            (name, _) => Ok(format!("Tool {name} not found")),
        }
    }
}

/// How the turns of one probability went.
struct Outcome {
    turns: usize,
    /// Why the others ended.
    lost: Vec<String>,
    /// Upstream requests for each request of the client.
    requests_per_step: f64,
}

async fn play(probability: f64, turns: usize) -> Outcome {
    let _time = IdleTime::begin();
    let fake = spoiling(probability, 7).await;
    let respool = Respool::with(&fake, "[recovery]\nwait_for_upstream = \"1m\"").await;
    let (mut steps, mut lost) = (0, vec![]);
    for number in 0..turns {
        let mut turn = Turn::new(number);
        lost.extend(turn.play(&respool).await.err().map(|why| format!("turn {number}: {why}")));
        steps += turn.steps;
    }
    let requests = fake.requests().iter().filter(|seen| seen.path() == "/v1/chat/completions").count();
    #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
    let requests_per_step = requests as f64 / steps as f64;
    Outcome { turns, lost, requests_per_step }
}

/// A server that has answered these many requests and then answers 500 for ever.
async fn dying(useful: usize) -> FakeVllm {
    let fake = FakeVllm::start((0..useful).map(|_| says("ok"))).await;
    fake.otherwise(spoilt_reply("500", 0));
    fake
}

#[tokio::test]
async fn dead_servers_get_no_storm() {
    let _time = IdleTime::begin();
    let fake = dying(50).await;
    let respool = Respool::with(&fake, "[recovery]\nwait_for_upstream = \"1m\"").await;
    let ask = async || exchange(respool.address, &Request::chat(&tools_route::request())).await.status;
    for _ in 0..50 {
        assert_eq!(ask().await, 200);
    }
    let began = Instant::now();
    let statuses = futures::future::join_all((0..100).map(|_| ask())).await;
    assert!(statuses.iter().all(|status| *status != 200), "{statuses:?}");
    let repeats = fake.requests().len() - 150;
    // A floor of ten repeats in ten seconds and a fifth of 150 requests, and what 50 replies have earned
    // before the circuit opened.
    assert!((1..100).contains(&repeats), "{repeats} repeats");
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
}

#[tokio::test]
async fn dying_servers_end_turns_in_minutes() {
    let _time = IdleTime::begin();
    let fake = dying(1).await;
    let respool = Respool::with(&fake, "[recovery]\nwait_for_upstream = \"1m\"").await;
    let ask = async |body: &Value| exchange(respool.address, &Request::chat(body)).await;
    assert_eq!(ask(&tools_route::request()).await.status, 200);
    let mut body = tools_route::request();
    let messages = body["messages"].as_array_mut().unwrap();
    for step in 0..11 {
        let mut made = call_of("read", &json!({"path": path_of(step)}).to_string(), step as u64);
        let id = made["tool_calls"][0]["id"].clone();
        made.as_object_mut().unwrap().remove("reasoning");
        messages.extend([made, json!({"role": "tool", "tool_call_id": id, "content": format!("ok {step}")})]);
    }
    let began = Instant::now();
    let reply = ask(&body).await.text();
    assert!(reply.contains("EngineCore encountered an issue"), "{reply}");
    let requests = fake.requests().len() - 1;
    assert!((5..=13).contains(&requests), "{requests} requests");
    assert!(began.elapsed() < Duration::from_mins(2), "{:?}", began.elapsed());
}

#[tokio::test]
async fn long_turns_survive_a_bad_day() {
    let turns = std::env::var("LONG_TURNS").ok().map(|turns| turns.parse().unwrap());
    let probabilities: &[f64] = if turns.is_some() { &[0.1, 0.2, 0.3, 0.4, 0.5, 0.6] } else { &[0.4, 0.6] };
    let mut flaws = vec![];
    println!("| spoilt replies | turns that end right | upstream requests per step | at most |");
    for &probability in probabilities {
        let Outcome { turns, lost, requests_per_step } = play(probability, turns.unwrap_or(25)).await;
        let most = 1.15 / (1.0 - probability);
        println!(
            "| {:.0} % | {} of {turns} | {requests_per_step:.2} | {most:.2} |",
            probability * 100.0,
            turns - lost.len()
        );
        // 99 % up to 40 %, 95 % up to 60 %.
        let may_be_lost = if probability > 0.4 { turns / 20 } else { turns / 100 };
        if lost.len() > may_be_lost || requests_per_step > most {
            flaws.push(format!(
                "{probability}: {requests_per_step:.2} requests per step\n{}",
                lost.join("\n")
            ));
        }
    }
    assert!(flaws.is_empty(), "{}", flaws.join("\n"));
}
