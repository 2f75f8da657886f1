//! Alerts from end to end: the real program, a model server that goes away and comes back, and a webhook that
//! hears of it.

use std::net::TcpListener as Port;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::lifecycle::{Served, program, run};
use crate::support::client::{Request, exchange};
use crate::support::fake_vllm::FakeVllm;
use crate::support::replies;
use crate::support::script::Script;
use crate::support::wait_until;

/// A webhook; what it was sent.
pub async fn webhook(first_status: u16) -> (String, mpsc::UnboundedReceiver<Value>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let (sender, received) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut status = first_status;
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut got = Vec::new();
            let body = loop {
                let mut piece = [0; 8192];
                let length = socket.read(&mut piece).await.unwrap();
                got.extend_from_slice(&piece[..length]);
                let text = String::from_utf8_lossy(&got).into_owned();
                if let Some((head, body)) = text.split_once("\r\n\r\n") {
                    let head = head.to_ascii_lowercase();
                    let wanted = head.split("content-length: ").nth(1).unwrap().split("\r\n").next().unwrap();
                    if body.len() >= wanted.parse::<usize>().unwrap() {
                        break body.to_owned();
                    }
                }
            };
            let _ = sender.send(serde_json::from_str(&body).unwrap());
            let answer = format!("HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
            let _ = socket.write_all(answer.as_bytes()).await;
            status = 200;
        }
    });
    (url, received)
}

/// Starts a program that answers every request: with a list of models while it `is_server`.
async fn answer_requests(port: u16, is_server: Arc<AtomicBool>) {
    let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let _ = socket.read(&mut [0; 4096]).await;
            let body =
                if is_server.load(Ordering::Relaxed) { r#"{"data":[{"id":"m"}]}"# } else { "<html></html>" };
            let head =
                format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
            let _ = socket.write_all((head + body).as_bytes()).await;
        }
    });
}

/// Reports an upstream that is down within 30 s, once, and its return. A sink that fails is tried again.
#[tokio::test(flavor = "multi_thread")]
async fn dead_servers_raise_alerts_within_30_s() {
    let (url, mut told) = webhook(503).await;
    let port = Port::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let toml = format!(
        "[alerts]\ngroup = \"1s\"\n[[alerts.sink]]\ntype = \"webhook\"\nurl = \"{url}\"\n\
         [[upstream]]\nname = \"box\"\nurl = \"http://127.0.0.1:{port}\"\n"
    );
    let began = Instant::now();
    let served = Served::with_file(&toml, &[]);
    let mut next = async || tokio::time::timeout(Duration::from_mins(1), told.recv()).await.unwrap().unwrap();
    let first = next().await;
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    let alert = &first["alerts"][0];
    assert_eq!(
        (&alert["rule"], &alert["subject"], &alert["state"]),
        (&json!("upstream_down"), &json!("box"), &json!("new"))
    );
    assert!(
        ["what", "since", "meaning", "todo"]
            .iter()
            .all(|name| alert[*name].as_str().is_some_and(|text| text.len() > 10))
    );
    assert_eq!(next().await, first, "the webhook answered 503, so it is sent again");
    // Another program comes up, then the server.
    let is_server = Arc::new(AtomicBool::new(false));
    answer_requests(port, Arc::clone(&is_server)).await;
    let why = "it answers /v1/models with a web page";
    let ready = exchange(served.address, &Request::get("/ready")).await;
    assert_eq!((ready.status, &ready.json()["upstreams"][0]["problem"]), (503, &json!(why)));
    let checked = tokio::task::spawn_blocking({
        let toml = toml.clone();
        move || run(&["check"], Some(&toml), &[])
    });
    let (status, out, _) = checked.await.unwrap();
    assert!(status == 1 && out.contains(why), "{out}");
    wait_until("the page says why", async || {
        exchange(served.address, &Request::get("/")).await.text().contains(why)
    })
    .await;
    is_server.store(true, Ordering::Relaxed);
    let over = next().await;
    assert_eq!(
        (&over["alerts"][0]["state"], over["alerts"].as_array().unwrap().len()),
        (&json!("resolved"), 1),
        "{over}"
    );
    drop(served);
}

/// Regression: an alert that was open when respool ended had no end.
#[tokio::test(flavor = "multi_thread")]
async fn an_alert_ends_after_a_restart() {
    let (url, mut told) = webhook(200).await;
    let port = Port::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let state = tempfile::tempdir().unwrap();
    let toml = format!(
        "state_dir = \"{}\"\n[alerts]\ngroup = \"1s\"\n[[alerts.sink]]\ntype = \"webhook\"\nurl = \"{url}\"\n\
         [agents.helper]\nmodel = \"m\"\n[[upstream]]\nname = \"box\"\nurl = \"http://127.0.0.1:{port}\"\n",
        state.path().display()
    );
    let served = Served::with_file(&toml, &[]);
    let mut next = async || tokio::time::timeout(Duration::from_mins(1), told.recv()).await.unwrap().unwrap();
    let begun = next().await;
    assert_eq!(begun["alerts"][0]["state"], "new");
    // It is killed, and the server comes back before it is started again.
    drop(served);
    answer_requests(port, Arc::new(AtomicBool::new(true))).await;
    let served = Served::with_file(&toml, &[]);
    let over = next().await;
    let alert = &over["alerts"][0];
    assert_eq!((&alert["state"], &alert["subject"]), (&json!("resolved"), &json!("box")), "{over}");
    assert_eq!(alert["since"], begun["alerts"][0]["since"]);
    drop(served);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_database_is_an_alert() {
    let (url, mut sent) = webhook(200).await;
    let toml = format!(
        "[alerts]\ngroup = \"1s\"\ndisabled = [\"upstream_down\"]\n[[alerts.sink]]\ntype = \"webhook\"\nurl = \"{url}\"\n\
         [agents.helper]\nmodel = \"m\"\n[[upstream]]\nurl = \"http://127.0.0.1:9\"\n"
    );
    let served = Served::with_file(&toml, &[]);
    std::fs::remove_file(served.directory.path().join(".local/state/respool/respool.db")).unwrap();
    let message = tokio::time::timeout(Duration::from_mins(1), sent.recv()).await.unwrap().unwrap();
    assert_eq!(message["alerts"][0]["rule"], "state_removed", "{message}");
    assert!(message["alerts"][0]["what"].as_str().unwrap().contains("respool.db was removed"), "{message}");
}

/// Regression: nothing was said where only kept responses used the database, or where one was damaged.
#[tokio::test(flavor = "multi_thread")]
async fn lost_databases_are_alerts_without_agents() {
    let fake = FakeVllm::always(Script::json(200, &replies::text("hello"))).await;
    let state = tempfile::tempdir().unwrap();
    let (db, usage) = (state.path().join("respool.db"), state.path().join("usage.db"));
    std::fs::write(&usage, "no database".repeat(1_000)).unwrap();
    let toml = format!("state_dir = {:?}\n[[upstream]]\nurl = \"{}\"\n", state.path(), fake.url());
    let served = Served::with_file(&toml, &[]);
    let body = json!({"model": "m", "input": "Hi"}).to_string();
    let kept = exchange(served.address, &Request::post("/v1/responses", body)).await;
    let kept = Request::get(&format!("/v1/responses/{}", kept.json()["id"].as_str().unwrap()));
    wait_until("it is kept", async || exchange(served.address, &kept).await.status == 200).await;
    std::fs::remove_file(&db).unwrap();
    let ready = exchange(served.address, &Request::get("/ready")).await.json();
    assert!(ready["state"]["problem"].as_str().unwrap().contains("was removed"), "{ready}");
    let list = state.path().join("alerts-open.json");
    for rule in ["state_removed", "database_set_aside", "usage.damaged-1"] {
        let is_open = async || std::fs::read_to_string(&list).unwrap_or_default().contains(rule);
        wait_until(rule, is_open).await;
    }
    std::fs::remove_file(&usage).unwrap();
    let chat = Request::chat(&json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}]}));
    exchange(served.address, &chat).await;
    let tile = "<dd>–</dd><dt><a href=\"/ui/requests\">requests today";
    wait_until("the page does not say 0", async || {
        exchange(served.address, &Request::get("/")).await.text().contains(tile)
    })
    .await;
    let checked = tokio::task::spawn_blocking(move || run(&["check"], Some(&toml), &[]));
    let (_, out, _) = checked.await.unwrap();
    assert!(out.contains("a damaged database was set aside as "), "{out}");
    drop(served);
}

#[tokio::test(flavor = "multi_thread")]
async fn sinks_are_tested_one_by_one() {
    let (url, mut told) = webhook(200).await;
    let toml = format!(
        "[[alerts.sink]]\ntype = \"webhook\"\nurl = \"{url}\"\n[[alerts.sink]]\ntype = \"slack\"\nurl = \"{url}\"\n\
         [[alerts.sink]]\ntype = \"ntfy\"\nurl = \"http://127.0.0.1:9/topic\"\n\
         [[alerts.sink]]\ntype = \"command\"\nprogram = [\"/bin/sh\", \"-c\", \"grep -q respool\"]\n"
    );
    let toml = toml.clone();
    let (status, out, err) =
        tokio::task::spawn_blocking(move || run(&["alerts", "test"], Some(&toml), &[])).await.unwrap();
    assert_eq!(status, 1, "one of them is not there: {out}{err}");
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 4, "{out}");
    assert!(lines[0] == "webhook 127.0.0.1: delivered" && lines[1] == "slack 127.0.0.1: delivered", "{out}");
    assert!(
        lines[2].starts_with("ntfy 127.0.0.1: not delivered: ") && lines[3] == "command: delivered",
        "{out}"
    );
    let sent = [told.recv().await.unwrap(), told.recv().await.unwrap()];
    assert!(
        sent.iter().any(|body| body["source"] == "respool")
            && sent.iter().any(|body| body["text"].is_string()),
        "{sent:?}"
    );
}

/// OpenClaw answers a tool that failed with 200 too.
#[tokio::test(flavor = "multi_thread")]
async fn unsent_messages_stay_undelivered() {
    let answer = || async { r#"{"ok":false,"error":{"type":"tool_error","message":"no such channel"}}"# };
    let router = axum::Router::new().route("/tools/invoke", axum::routing::post(answer));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    let toml = format!("[[alerts.sink]]\ntype = \"openclaw\"\nurl = \"{url}\"\ntoken = \"t\"\nto = \"me\"\n");
    let (status, out, err) =
        tokio::task::spawn_blocking(move || run(&["alerts", "test"], Some(&toml), &[])).await.unwrap();
    assert_eq!(status, 1, "{out}{err}");
    assert!(out.contains("not delivered: ") && out.contains("no such channel"), "{out}");
}

#[test]
fn silences_persist_and_check_names() {
    let (status, out, err) = run(&["alerts", "silence", "upstream_down", "--for", "1h"], None, &[]);
    assert!(status == 0 && out.starts_with("Silenced upstream_down until 2"), "{out}{err}");
    let (status, _, err) = run(&["alerts", "silence", "nonsense"], None, &[]);
    assert!(status == 2 && err.contains("Available rules: upstream_down"), "{err}");
    let (status, _, err) = run(&["alerts", "list"], None, &[]);
    assert!(status == 0 && err.contains("No alerts have been recorded"), "{err}");
    let (status, _, err) = run(&["alerts", "test"], None, &[]);
    assert!(status == 1 && err.contains("[[alerts.sink]]"), "{err}");
}

/// Regression: Prometheus saw no wrong file of keys, and the open circuit of a removed upstream for ever.
#[tokio::test(flavor = "multi_thread")]
async fn metrics_follow_alerts() {
    let files = tempfile::tempdir().unwrap();
    let (keys, key) = (files.path().join("keys.toml"), "sk-one-0123456789");
    std::fs::write(&keys, format!("one = {key:?}\n")).unwrap();
    let toml = |name: &str| {
        format!(
            "client_keys_file = {keys:?}\n[recovery]\nwait_for_upstream = '0s'\n[budgets]\nday = 2.5\n\
             [[upstream]]\nname = '{name}'\nurl = 'http://127.0.0.1:9'\n"
        )
    };
    let served = Served::with_file(&toml("gone"), &[]);
    let with_key = |request: Request| request.header("authorization", &format!("Bearer {key}"));
    let chat = Request::chat(&json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}]}));
    for _ in 0..5 {
        exchange(served.address, &with_key(chat.clone())).await;
    }
    let has = async |line: &str| {
        let metrics = exchange(served.address, &with_key(Request::get("/metrics"))).await.text();
        metrics.lines().any(|one| one == line)
    };
    assert!(has("respool_upstream_circuit_open{upstream=\"gone\"} 1").await);
    let metrics = exchange(served.address, &with_key(Request::get("/metrics"))).await.text();
    let build = format!("\nrespool_build_info{{version=\"{}\",commit=\"", env!("CARGO_PKG_VERSION"));
    assert!(metrics.contains(&build), "{metrics}");
    std::fs::write(&keys, "one = 1\n").unwrap();
    for line in [
        "respool_alerts_open{severity=\"critical\",rule=\"upstream_down\",upstream=\"gone\"} 1",
        "respool_alerts_open{severity=\"warning\",rule=\"reload_failed\",upstream=\"\"} 1",
        "respool_configuration_reload_failed 1",
        "respool_budget_limit{scope=\"all\",name=\"\"} 2.5",
        "respool_budget_spent{scope=\"all\",name=\"\"} 0",
        "respool_alerts_open{severity=\"critical\",rule=\"error_rate\",upstream=\"\"} 0",
    ] {
        wait_until(line, async || has(line).await).await;
    }
    std::fs::write(served.directory.path().join("respool.toml"), toml("new")).unwrap();
    let line = "respool_upstream_circuit_open{upstream=\"gone\"} NaN";
    wait_until(line, async || has(line).await).await;
}

/// Regression: a server that was stopped in an outage left an empty list.
#[test]
fn alerts_stay_listed_when_their_server_ends() {
    let toml =
        "[recovery]\nwait_for_upstream = '0s'\n[[upstream]]\nname = 'box'\nurl = 'http://127.0.0.1:9'\n";
    let mut served = Served::with_file(toml, &[]);
    served.line(|line| line["rule"] == "upstream_down", Duration::from_secs(40));
    served.signal("TERM");
    assert_eq!(served.exit(Duration::from_secs(15)), 0);
    let listed =
        program(served.directory.path(), &["alerts", "list", "--config", "respool.toml"]).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(text(&listed.stdout).contains("upstream_down  box  "), "{listed:?}");
    assert!(text(&listed.stderr).contains("those of before it ended"), "{listed:?}");
}
