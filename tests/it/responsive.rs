//! No input of clients, models or upstreams keeps respool from answering others: neither by work without
//! end on the threads that answer, nor by requests that go in a circle.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use tokio::net::{TcpListener, TcpStream};

use crate::agents::ask;
use crate::support::client::{Reply, Request, exchange};
use crate::support::fake_vllm::FakeVllm;
use crate::support::replies;
use crate::support::respool::{ONCE, Respool};
use crate::support::script::Script;
use crate::support::scripted_tools::ScriptedTools;

/// The longest that `/health` may take while an attack runs. Builds without optimisation on a busy machine
/// take many times as long, and the attacks themselves used to take minutes or to never end.
const LONGEST: Duration = Duration::from_millis(if cfg!(debug_assertions) { 3_000 } else { 100 });
/// On a busy machine an answer may take longer for other reasons, but not each time.
const ROUNDS: usize = 5;

/// A schema whose levels each refer to the next one ten times: 10^12 ways lead to the innermost one.
fn multiplied(keyword: &str, innermost: &Value) -> Value {
    let mut definitions = Map::new();
    for level in 0..12 {
        let next = json!({"$ref": format!("#/$defs/l{}", level + 1)});
        definitions.insert(format!("l{level}"), json!({ keyword: vec![next; 10] }));
    }
    definitions.insert("l12".into(), innermost.clone());
    json!({"$ref": "#/$defs/l0", "$defs": definitions})
}

fn many(value: &Value, count: usize) -> Value {
    Value::Array(vec![value.clone(); count])
}

/// Each of them is two bytes in JSON, and four where JSON is a text in JSON.
fn backslashes() -> String {
    "\\".repeat(1_600_000)
}

fn names(prefix: &str, count: usize, value: &Value) -> Map<String, Value> {
    (0..count).map(|index| (format!("{prefix}{index}"), value.clone())).collect()
}

/// Schemas, and the arguments that a model sends for them.
fn attacks() -> Vec<(&'static str, Value, String)> {
    let minimax =
        |body: &str| format!("]<]minimax[>[<tool_call><invoke name=\"bomb\">{body}</invoke></tool_call>");
    vec![
        ("allOf", multiplied("allOf", &json!({"type": "object"})), "{}".into()),
        ("anyOf", multiplied("anyOf", &json!({"type": "array"})), "{}".into()),
        (
            "nested choices",
            json!({"properties": {"x": {"$ref": "#/$defs/l0"}}, "$defs": multiplied("oneOf", &json!({"type": "integer"}))["$defs"]}),
            json!({"x": [["a"]]}).to_string(),
        ),
        (
            "a long list of values",
            json!({"properties": {"x": {"items": {"enum": many(&json!("b"), 20_000)}}}}),
            json!({"x": many(&json!("a"), 20_000)}).to_string(),
        ),
        (
            "many names that are nearly right",
            json!({"properties": names("first-name-", 8_000, &json!({})), "required": ["first-name-1"]}),
            Value::Object(names("first_name__", 8_000, &json!(1))).to_string(),
        ),
        (
            "many forms of a large text",
            json!({"properties": {"x": {"anyOf": many(&json!({"type": ["integer", "object"]}), 3_000)}}}),
            json!({"x": "[1,".repeat(100_000)}).to_string(),
        ),
        (
            "a pattern that backtracks",
            json!({"properties": {"x": {"type": "string", "pattern": "^(a+)+$"}}}),
            json!({"x": format!("{}!", "a".repeat(100_000))}).to_string(),
        ),
        (
            "a form that is its own form",
            json!({"anyOf": [{"$ref": "#"}]}),
            minimax("]<]minimax[>[<x>1]<]minimax[>[</x>"),
        ),
        ("tags in tags", json!({}), minimax(&"]<]minimax[>[<x>".repeat(20_000))),
        ("breaks without end", json!({"required": ["x"]}), format!("x{}", "\n".repeat(300_000))),
        (
            "integers beyond 64 bits",
            json!({"properties": {"x": {"items": {"type": "string"}}}}),
            format!("{{\"x\": [{}1]}}", "12345678901234567890, ".repeat(50_000)),
        ),
        (
            "backslashes",
            json!({"properties": {"x": {"type": "string"}}}),
            json!({"x": backslashes()}).to_string(),
        ),
        ("backslashes of a broken argument", json!({}), format!("{{\"x\": \"{}", backslashes())),
    ]
}

fn request(schema: &Value) -> Value {
    json!({
        "model": "gpt-oss-20b", "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"type": "function", "function": {"name": "bomb", "description": "d", "parameters": schema}}],
    })
}

/// Asks for `/health` until the attack has ended, and gives the longest time that an answer took.
async fn longest_pause(address: SocketAddr, is_over: &AtomicBool) -> Duration {
    let mut longest = Duration::ZERO;
    loop {
        let is_last = is_over.load(Ordering::SeqCst);
        let begun = Instant::now();
        assert_eq!(exchange(address, &Request::get("/health")).await.status, 200);
        longest = longest.max(begun.elapsed());
        if is_last {
            return longest;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Has three clients send this at once, round after round, until `/health` was quick in one of them.
async fn assert_responsive(name: &str, respool: &Respool, body: &Value) {
    let address = respool.address;
    let mut longest = Duration::MAX;
    for _ in 0..ROUNDS {
        let is_over = Arc::new(AtomicBool::new(false));
        let clients = (0..3).map(|_| {
            let body = body.clone();
            async move { exchange(address, &Request::chat(&body)).await.status }
        });
        let begun = Instant::now();
        let attack = tokio::spawn(futures::future::join_all(clients.collect::<Vec<_>>()));
        let watch = tokio::spawn({
            let is_over = Arc::clone(&is_over);
            async move { longest_pause(address, &is_over).await }
        });
        let statuses = attack.await.unwrap();
        is_over.store(true, Ordering::SeqCst);
        longest = longest.min(watch.await.unwrap());
        assert!(begun.elapsed() < Duration::from_secs(30), "{name}: {:?}", begun.elapsed());
        assert!(statuses.iter().all(|status| *status < 500 || *status == 502), "{name}: {statuses:?}");
        if longest < LONGEST {
            return;
        }
    }
    panic!("{name}: /health took {longest:?} or longer in each of {ROUNDS} rounds");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_answers_under_attack() {
    for (name, schema, arguments) in attacks() {
        let reply = if arguments.starts_with(']') {
            replies::text(&arguments)
        } else {
            replies::calls(&[("bomb", &arguments)])
        };
        let fake = FakeVllm::always(Script::json(200, &reply).unchecked()).await;
        let respool = Respool::with(&fake, ONCE).await;
        assert_responsive(name, &respool, &request(&schema)).await;
    }
}

/// A model that makes these calls one after the other, and ends.
fn model(body: &Value, calls: &[(&str, &str)]) -> Script {
    let messages = body["messages"].as_array().map_or(&[][..], Vec::as_slice);
    let made = messages.iter().filter(|message| message["role"] == "tool").count();
    let reply = calls.get(made).map_or_else(|| replies::text("done"), |call| replies::calls(&[*call]));
    Script::json(200, &reply).unchecked()
}

/// An MCP server declares the schema and returns the result; the model's call of it is checked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_answers_while_the_tools_of_an_agent_attack() {
    let marks = "<|im_start|>[INST]]~b]<".repeat(200_000);
    let (few, some) = (marks[..64 << 10].to_owned(), marks[..32 << 10].to_owned());
    for (name, schema, arguments, result) in [
        ("schema", multiplied("allOf", &json!({"type": "object"})), "{}".to_owned(), String::new()),
        ("template marks in a result", json!({}), "{}".to_owned(), marks),
        ("template marks in a schema", json!({"description": few}), "{}".to_owned(), String::new()),
        ("template marks in arguments", json!({}), json!({"x": some}).to_string(), String::new()),
    ] {
        let fake = FakeVllm::thinking(move |body| model(body, &[("read", &arguments)])).await;
        let state = tempfile::tempdir().unwrap();
        let tools = Arc::new(ScriptedTools::new(move |_, _| Ok(result.clone())).with_schema(schema));
        let respool = Respool::with_agent(&fake, &tools, state.path(), "").await;
        assert_responsive(name, &respool, &ask(false)).await;
    }
}

/// The diff of two long files that have nothing in common, and of one that is a single line.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_answers_while_diffs_are_made() {
    let lines = |word: &str| -> Vec<String> {
        (0..25_000).map(|index| format!("{word}{}\n", index % 20_000)).collect()
    };
    let reversed: Vec<String> = lines("a").into_iter().rev().collect();
    for (name, before, after) in [
        ("different lines", lines("a").concat(), lines("b").concat()),
        ("lines in another order", lines("a").concat(), reversed.concat()),
        ("few kinds of lines", "a\nb\n".repeat(50_000), "b\na\na\n".repeat(40_000)),
        ("one line", "a".repeat(200_000), "b".repeat(200_000)),
    ] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("file"), &before).unwrap();
        let write = |text: &str| json!({"path": "file", "content": text}).to_string();
        let (there, back) = (write(&after), write(&before));
        let fake = FakeVllm::thinking(move |body| model(body, &[("write", &there), ("write", &back)])).await;
        let respool = Respool::configured(&format!(
            "state_dir = {:?}\n[tools]\npolicy.default = \"allow\"\nlocal.workspace = {:?}\n[agents.helper]\nmodel = \"gpt-oss-20b\"\n\
             tools = [\"write\"]\n[[upstream]]\nname = \"box\"\nurl = \"{}\"\n",
            folder.path().join("state"), folder.path(), fake.url()
        ))
        .await;
        assert_responsive(name, &respool, &ask(false)).await;
    }
}

/// A door to a server whose address is not known yet, and how many connections came through it.
struct Door {
    address: SocketAddr,
    target: tokio::sync::watch::Sender<Option<SocketAddr>>,
    connections: Arc<AtomicUsize>,
}

impl Door {
    async fn new() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (target, mut found) = tokio::sync::watch::channel(None::<SocketAddr>);
        let connections = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&connections);
        tokio::spawn(async move {
            let target = found.wait_for(Option::is_some).await.map(|address| *address).unwrap().unwrap();
            while let Ok((mut client, _)) = listener.accept().await {
                // The attack is to end long before it takes all files of the machine.
                if counter.fetch_add(1, Ordering::SeqCst) > 200 {
                    return;
                }
                tokio::spawn(async move {
                    let mut server = TcpStream::connect(target).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
        Self { address, target, connections }
    }
}

fn upstream(address: SocketAddr) -> String {
    format!("{ONCE}[[upstream]]\nname = \"box\"\nurl = \"http://{address}\"\n")
}

fn says_that_it_goes_in_a_circle(reply: &Reply) {
    let said = reply.error()["message"].as_str().unwrap_or_default().to_owned();
    assert!(
        reply.status == 400 && said.contains("leads back to a respool"),
        "{} {}",
        reply.status,
        reply.text()
    );
}

/// One request to such a respool once opened 19,787 connections and was never answered.
#[tokio::test]
async fn self_loops_are_reported() {
    for others in [0, 1] {
        let door = Door::new().await;
        let mut respools = vec![Respool::configured(&upstream(door.address)).await];
        for _ in 0..others {
            let last = respools.last().unwrap().address;
            respools.push(Respool::configured(&upstream(last)).await);
        }
        let last = respools.last().unwrap().address;
        door.target.send_replace(Some(last));
        let plain = json!({"model": "x", "messages": [{"role": "user", "content": "hi"}]});
        for request in [
            Request::chat(&plain),
            Request::chat(&request(&json!({}))),
            Request::post("/v1/embeddings", json!({"model": "x", "input": "y"}).to_string()),
            Request::get("/v1/models"),
            Request::get("/version"),
        ] {
            says_that_it_goes_in_a_circle(&exchange(last, &request).await);
        }
        assert_eq!(exchange(last, &Request::get("/health")).await.status, 200);
        let count = door.connections.load(Ordering::SeqCst);
        assert!(count < 100, "{count} connections with {others} others");
    }
}

#[tokio::test]
async fn a_respool_may_stand_before_another() {
    let fake = FakeVllm::always(Script::json(200, &replies::text("Hello")).unchecked()).await;
    let inner = Respool::with(&fake, ONCE).await;
    let outer = Respool::configured(&upstream(inner.address)).await;
    let plain = json!({"model": "gpt-oss-20b", "messages": [{"role": "user", "content": "hi"}]});
    let reply = exchange(outer.address, &Request::chat(&plain)).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
}
