//! The end of the process at any moment: a child process serves an agent, is killed at random points of a run of twenty
//! steps, is started again, and its client repeats the request. The end must be that of an undisturbed run.
//!
//! `RESPOOL_KILLS=100` kills more often than the few times of every test run.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::routing::{get, post};
use respool::tools::Invocation;
use serde_json::{Value, json};

use crate::support::respool::Respool;
use crate::support::scripted_tools::ScriptedTools;
use crate::support::{eventually, replies};

const STEPS: usize = 20;
const CHILD: &str = "RESPOOL_KILL_CHILD";

/// The model: what it says follows from how many results it sees, so any process gets the same from it.
async fn model(State(seen): State<Arc<Mutex<Vec<Value>>>>, body: bytes::Bytes) -> String {
    let body: Value = serde_json::from_slice(&body).unwrap();
    let results =
        body["messages"].as_array().unwrap().iter().filter(|message| message["role"] == "tool").count();
    seen.lock().unwrap().push(body);
    let reply = match results {
        STEPS.. => replies::text("All done."),
        step if step % 3 == 1 => replies::calls(&[("read", &format!(r#"{{"path":"{step}"}}"#))]),
        step => replies::calls(&[("exec", &format!(r#"{{"command":"{step}"}}"#))]),
    };
    reply.to_string()
}

async fn upstream() -> (String, Arc<Mutex<Vec<Value>>>) {
    let seen: Arc<Mutex<Vec<Value>>> = Arc::default();
    let models = json!({"object": "list", "data": [{"id": "gpt-oss-20b", "object": "model"}]});
    let router = Router::new()
        .route("/v1/chat/completions", post(model))
        .route("/v1/models", get(move || std::future::ready(models.to_string())))
        .route("/version", get(|| std::future::ready(r#"{"version":"0.32.0"}"#)))
        .with_state(Arc::clone(&seen));
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { serve(listener, router).await });
    (url, seen)
}

async fn serve(listener: tokio::net::TcpListener, router: Router) {
    while let Ok((socket, _)) = listener.accept().await {
        let service = hyper_util::service::TowerToHyperService::new(router.clone());
        let io = hyper_util::rt::TokioIo::new(socket);
        tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(io, service));
    }
}

/// One line for each effect, written in one piece.
fn effect(invocation: &Invocation, dir: &Path) -> String {
    use std::io::Write as _;
    let what = invocation.arguments.values().next().and_then(Value::as_str).unwrap_or_default();
    let file = dir.join(format!("{}.effects", invocation.name));
    let mut file = std::fs::OpenOptions::new().append(true).create(true).open(file).unwrap();
    file.write_all(format!("{what}\n").as_bytes()).unwrap();
    format!("result of {what}")
}

/// The child process; does nothing in an ordinary run of the tests.
#[tokio::test]
async fn child_that_is_killed() {
    let Some(dir) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    let url = std::fs::read_to_string(dir.join("upstream")).unwrap();
    let effects = dir.clone();
    let tools = ScriptedTools::new(move |call, _| Ok(effect(call, &effects))).slow(Duration::from_millis(2));
    let toml = format!(
        "state_dir = \"{dir}\"\n[log]\nerrors_dir = \"{dir}\"\n[[upstream]]\nname = \"box\"\nurl = \"{url}\"\n\
         [agents.helper]\nmodel = \"gpt-oss-20b\"\nmax_iterations = 100\n",
        dir = dir.display()
    );
    let respool = Respool::started(&toml, Some(Arc::new(tools))).await;
    std::fs::write(dir.join("address.new"), respool.address.to_string()).unwrap();
    std::fs::rename(dir.join("address.new"), dir.join("address")).unwrap();
    std::future::pending::<()>().await;
}

fn start(dir: &Path) -> Child {
    let _ = std::fs::remove_file(dir.join("address"));
    Command::new(std::env::current_exe().unwrap())
        .args(["agents_killed::child_that_is_killed", "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, dir)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

async fn ask(dir: &Path) -> Option<String> {
    let address = eventually(|| std::fs::read_to_string(dir.join("address")).ok()).await;
    let body = json!({"model": "helper", "messages": [{"role": "user", "content": "Do it all."}]});
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let request = client.post(format!("http://{address}/v1/chat/completions")).body(body.to_string());
    let reply = request.header("content-type", "application/json").send().await.ok()?;
    let body: Value = serde_json::from_str(&reply.text().await.ok()?).ok()?;
    body["choices"][0]["message"]["content"].as_str().map(str::to_owned)
}

/// What a run left: the last prompt, and the effects of each tool.
struct Traces {
    prompt: Vec<Value>,
    exec: Vec<String>,
    read: Vec<String>,
}

/// One run to its end, with so many kills; tells how many there were.
async fn run(mut kills: usize, random: &mut impl FnMut(u64) -> u64) -> (Traces, usize) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let dir = tempfile::tempdir().unwrap();
    let (url, seen) = upstream().await;
    std::fs::write(dir.path().join("upstream"), url).unwrap();
    let mut killed = 0;
    loop {
        let mut child = start(dir.path());
        let asked = ask(dir.path());
        let answer = if kills > 0 {
            let began = eventually(|| std::fs::metadata(dir.path().join("address")).ok());
            began.await;
            tokio::time::timeout(Duration::from_millis(random(220)), asked).await.ok().flatten()
        } else {
            asked.await
        };
        child.kill().unwrap();
        child.wait().unwrap();
        if let Some(answer) = answer {
            assert_eq!(answer, "All done.");
            break;
        }
        (killed, kills) = (killed + 1, kills.saturating_sub(1));
    }
    let lines = |tool: &str| {
        let text = std::fs::read_to_string(dir.path().join(format!("{tool}.effects"))).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    };
    let prompt = seen.lock().unwrap().last().unwrap()["messages"].as_array().unwrap().clone();
    (Traces { prompt, exec: lines("exec"), read: lines("read") }, killed)
}

const UNKNOWN: &str = "Error: the outcome is unknown";

/// What must be the same: everything but the ids that the model server chose, and the results of calls that were under way.
fn comparable(prompt: &[Value]) -> Vec<String> {
    let text = |message: &Value| {
        let calls = message["tool_calls"][0]["function"].to_string();
        let content = message["content"].as_str().unwrap_or_default();
        let content = if message["role"] == "tool" && content.starts_with(UNKNOWN) { "" } else { content };
        format!("{} {content} {calls}", message["role"])
    };
    prompt.iter().map(text).collect()
}

#[tokio::test]
async fn a_killed_process_loses_no_step_and_repeats_no_effect() {
    let wanted: usize = std::env::var("RESPOOL_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(5);
    let mut state = std::process::id().into();
    let mut random = move |below: u64| {
        state = u64::wrapping_mul(state ^ 0x9e37_79b9, 0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (state >> 33) % below
    };
    let (undisturbed, _) = run(0, &mut random).await;
    let expected = comparable(&undisturbed.prompt);
    assert_eq!(undisturbed.exec.len() + undisturbed.read.len(), STEPS);
    let (mut killed, mut unknown) = (0, 0);
    while killed < wanted {
        let (traces, kills) = run(5.min(wanted - killed), &mut random).await;
        killed += kills;
        let open: Vec<String> = traces
            .prompt
            .windows(2)
            .filter(|pair| pair[1]["content"].as_str().is_some_and(|text| text.starts_with(UNKNOWN)))
            .filter_map(|pair| {
                let arguments = pair[0]["tool_calls"][0]["function"]["arguments"].as_str()?;
                serde_json::from_str::<Value>(arguments).ok()?["command"].as_str().map(str::to_owned)
            })
            .collect();
        unknown += open.len();
        for (place, (found, wanted)) in comparable(&traces.prompt).iter().zip(&expected).enumerate() {
            let is_open = found.starts_with("\"tool\"  ");
            assert!(found == wanted || is_open, "message {place}: {found} instead of {wanted}");
        }
        assert_eq!(traces.prompt.len(), undisturbed.prompt.len());
        for step in &undisturbed.exec {
            let count = traces.exec.iter().filter(|it| *it == step).count();
            assert!(
                count == 1 || (count == 0 && open.contains(step)),
                "step {step} took effect {count} times; {open:?}"
            );
        }
        assert!(undisturbed.read.iter().all(|step| traces.read.contains(step)), "{:?}", traces.read);
    }
    println!("{killed} kills, {unknown} calls of unknown outcome");
}
