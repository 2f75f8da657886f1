//! The cost of the agent's loop outside model and tool time, with durable commits, and the memory of many
//! runs at once.
//!
//! `cargo bench --bench agent` measures runs of ten iterations: one at a time, two hundred with a model that
//! thinks for a second, and two hundred with a model that answers at once, which shows how many iterations
//! fit into a second. Model calls go over a real socket, but their time does not count. The model server is
//! in the same process. `MODEL=gpt-oss-20b`: prompts are counted in its vocabulary. `STATE=DIR` keeps the
//! store there, `REPEATABLE=1` spares it waiting for the disk.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark fails by panicking, and prints")]
#![expect(clippy::cast_precision_loss, reason = "counts of a benchmark")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use agent::{AgentRequest, Agents, WatchEvent, WorkEnd};
use async_trait::async_trait;
use futures::future::{BoxFuture, join_all};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};
use settings::{FileText, Flags, resolve};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tools::{Approver, Invocation, ToolError, ToolOutput, ToolSpec, Tools};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How long the model thinks, in milliseconds: half of it more or less, as real ones do.
static THINKS: AtomicU64 = AtomicU64::new(0);
static RANDOM: Mutex<Option<StdRng>> = Mutex::new(None);

const ITERATIONS: usize = 10;
const RESULT: usize = 2_000;

struct Instantly;

#[async_trait]
impl Tools for Instantly {
    fn specs(&self) -> Vec<ToolSpec> {
        vec![ToolSpec {
            name: "exec".into(),
            description: "Runs a command.".into(),
            parameters: json!({"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}),
            is_repeatable: std::env::var_os("REPEATABLE").is_some(),
            timeout: None,
            result_limit: None,
        }]
    }

    async fn call(&self, _: &Invocation, _: Option<&dyn Approver>) -> Result<ToolOutput, ToolError> {
        Ok(ToolOutput { text: "result ".repeat(RESULT / 7), ..ToolOutput::default() })
    }
}

async fn model(request: http::Request<Incoming>) -> Result<http::Response<Full<Bytes>>, hyper::Error> {
    let body = request.into_body().collect().await?.to_bytes();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    tokio::time::sleep(thinking()).await;
    let results =
        body["messages"].as_array().map_or(0, |all| all.iter().filter(|it| it["role"] == "tool").count());
    let message = if results < ITERATIONS - 1 {
        json!({"role": "assistant", "content": null, "tool_calls": [{"id": format!("call{results:05}"), "type": "function",
            "function": {"name": "exec", "arguments": format!("{{\"command\":\"step {results}\"}}")}}]})
    } else {
        json!({"role": "assistant", "content": "done"})
    };
    let reply = json!({"id": "x", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10}});
    let reply =
        http::Response::builder().header("content-type", "application/json").body(reply.to_string().into());
    Ok(reply.unwrap_or_default())
}

fn thinking() -> Duration {
    let factor =
        RANDOM.lock().unwrap().get_or_insert_with(|| StdRng::seed_from_u64(1)).random_range(0.5..1.5);
    Duration::from_millis(THINKS.load(Ordering::Relaxed)).mul_f64(factor)
}

async fn upstream() -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let service = hyper::service::service_fn(model);
            let connection =
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), service);
            tokio::spawn(connection);
        }
    });
    url
}

async fn agents(state: &std::path::Path) -> Arc<Agents> {
    let url = upstream().await;
    let model = std::env::var("MODEL").unwrap_or_else(|_| "other".to_owned());
    let toml = format!(
        "state_dir = \"{}\"\n[[upstream]]\nname = \"box\"\nurl = \"{url}\"\n\
         [agents.helper]\nmodel = \"{model}\"\nmax_iterations = 100\n[limits]\nmax_repeats = 1000\n",
        state.display()
    );
    let file = FileText { path: "bench.toml".as_ref(), text: &toml };
    let settings = resolve(Some(file), &BTreeMap::new(), &Flags::default()).unwrap().settings;
    let open = |_| -> BoxFuture<'_, _> { Box::pin(async { Ok(Arc::new(Instantly) as Arc<dyn Tools>) }) };
    let app = respool::cli::app_with(&settings, &CancellationToken::new(), &open).await.unwrap();
    Arc::clone(&app.agents)
}

/// The overhead per iteration of one run.
async fn run(agents: &Arc<Agents>, number: usize) -> Duration {
    let agent = agents.get("helper").unwrap();
    let body = json!({"model": "helper", "messages": [{"role": "user", "content": format!("task {number} ").repeat(100)}]});
    let request = AgentRequest::parse(body.to_string().as_bytes()).unwrap();
    let mut watch = agents.serve_request(&agent, request, None).await.unwrap();
    loop {
        if let WatchEvent::End(ended) = watch.next().await {
            assert!(
                matches!(&ended.end, WorkEnd::Finished(outcome) if outcome.content == "done"),
                "{ended:?}"
            );
            // Else the next run of the same task would get this one's answer.
            agents.mark_answered(&watch.run).await;
            return ended.overhead / u32::try_from(ITERATIONS).unwrap_or(1);
        }
    }
}

async fn measure(agents: &Arc<Agents>, concurrent: usize, rounds: usize, thinks: u64) {
    THINKS.store(thinks, Ordering::Relaxed);
    let began = Instant::now();
    let mut each = Vec::new();
    for round in 0..rounds {
        each.extend(join_all((0..concurrent).map(|number| run(agents, round * concurrent + number))).await);
    }
    let total = began.elapsed();
    each.sort_unstable();
    let at = |share: usize| each[(each.len() * share / 100).min(each.len() - 1)].as_secs_f64() * 1e3;
    let iterations = concurrent * rounds * ITERATIONS;
    println!(
        "{concurrent:>4} at once, the model thinks {thinks} ms: overhead per iteration p50 {:.3} ms, p95 {:.3} ms, most {:.3} ms; {:.0} iterations/s in all; \
         peak memory {} MiB",
        at(50),
        at(95),
        at(100),
        iterations as f64 / total.as_secs_f64(),
        peak_memory(),
    );
}

/// The most memory that this process had, the model server included, in MiB.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0) / 1024
}

fn main() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let state =
        tempfile::tempdir_in(std::env::var_os("STATE").unwrap_or_else(|| std::env::temp_dir().into()))
            .unwrap();
    runtime.block_on(async {
        let agents = agents(state.path()).await;
        measure(&agents, 1, 20, 0).await;
        measure(&agents, 200, 2, 1_000).await;
        measure(&agents, 200, 2, 0).await;
    });
}
