//! The end of the process at any moment: the real program serves an agent with real tools, is killed at
//! random points of a run of twenty calls, is started again, and its client repeats the request. Transcript
//! and workspace must end as those of an undisturbed run, but for calls that were reported to the model as
//! unknown: these happened once or not at all.
//!
//! The processes of a command end with the program.
//!
//! `RESPOOL_KILLS=100` kills more often than the few times of every test run; `RESPOOL_SEED` repeats the
//! moments of an earlier run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};
use testing::seed::seed;
use tokio::process::{Child, Command};

use crate::support::eventually;
use crate::support::fake_vllm::FakeVllm;
use crate::support::look_within;
use crate::support::replies;
use crate::support::script::Script;
use crate::tools_local::is_alive;

/// Each part of the run is four calls: a command, a new file, a change to a file, and a look at that file.
const PARTS: usize = 5;
const UNKNOWN: &str = "Error: the outcome is unknown";

/// The calls of the next turn, which follow from how many results there are, so that any process gets the
/// same.
fn turn(results: usize) -> Vec<(&'static str, Value)> {
    let part = results / 4;
    let command =
        format!("echo begin {part} >> effects; sleep 0.01; echo end {part} >> effects; echo did {part}");
    let edit = json!({"oldText": "state: open", "newText": "state: done"});
    match results % 4 {
        0 => vec![("exec", json!({"command": command}))],
        1 => vec![(
            "write",
            json!({"path": format!("new/{part}"), "content": format!("text of {part}\n").repeat(500)}),
        )],
        2 => vec![
            ("edit", json!({"path": format!("old/{part}"), "edits": [edit]})),
            ("read", json!({"path": format!("old/{part}"), "limit": 1})),
        ],
        _ => panic!("the model was asked in the middle of a turn"),
    }
}

fn model(request: &Value) -> Script {
    let messages = request["messages"].as_array().unwrap();
    let results = messages.iter().filter(|message| message["role"] == "tool").count();
    if results == 4 * PARTS {
        return Script::json(200, &replies::text("All done."));
    }
    let calls: Vec<(&str, String)> =
        turn(results).into_iter().map(|(name, arguments)| (name, arguments.to_string())).collect();
    let calls: Vec<(&str, &str)> =
        calls.iter().map(|(name, arguments)| (*name, arguments.as_str())).collect();
    Script::json(200, &replies::calls(&calls))
}

/// A directory with the program's settings, its state, and a workspace.
struct KilledServer(tempfile::TempDir);

impl KilledServer {
    fn new(upstream: &FakeVllm) -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        fs::create_dir_all(place.path("work/old")).unwrap();
        for part in 0..PARTS {
            fs::write(place.path(&format!("work/old/{part}")), before(part)).unwrap();
        }
        let rules: String = ["exec", "write", "edit", "read"]
            .map(|tool| format!("[[tools.policy.rule]]\ntool = \"{tool}\"\nthen = \"allow\"\n"))
            .concat();
        let toml = format!(
            "state_dir = \"{dir}/state\"\n[log]\nformat = \"json\"\nerrors_dir = \"{dir}/logs\"\n[[upstream]]\nurl = \"{url}\"\n\
             [agents.helper]\nmodel = \"gpt-oss-20b\"\nmax_iterations = 100\ntools = [\"exec\", \"write\", \"edit\", \"read\"]\n\
             [tools.local]\nworkspace = \"{dir}/work\"\nsandbox = \"off\"\n[tools.policy]\ndefault = \"deny\"\n{rules}",
            dir = place.0.path().display(),
            url = upstream.url(),
        );
        fs::write(place.path("respool.toml"), toml).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn start(&self) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_respool"));
        command
            .args(["serve", "--config", "respool.toml", "--listen", "127.0.0.1:0"])
            .current_dir(self.0.path());
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap()).kill_on_drop(true);
        command.stdin(Stdio::null()).stderr(fs::File::create(self.path("log")).unwrap()).spawn().unwrap()
    }

    /// The address of the program, once it is ready.
    async fn address(&self) -> String {
        let log = || fs::read_to_string(self.path("log")).unwrap();
        let look = async || {
            let log = log();
            let mut lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let ready = lines.find(|line| line["message"] == "ready")?;
            Some(ready["listen"].as_str().unwrap().to_owned())
        };
        let address = look_within(Duration::from_mins(1), look).await;
        address.unwrap_or_else(|| panic!("it does not start: {}", log()))
    }

    async fn get(&self, path: &str) -> Option<Value> {
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let reply = client.get(format!("http://{}{path}", self.address().await)).send().await.ok()?;
        serde_json::from_str(&reply.text().await.ok()?).ok()
    }

    /// The client's request, always the same.
    async fn ask(&self) -> Option<String> {
        let body = json!({"model": "helper", "messages": [{"role": "user", "content": "Do it all."}]});
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let request = client.post(format!("http://{}/v1/chat/completions", self.address().await));
        let request = request.header("content-type", "application/json").body(body.to_string());
        let body: Value = serde_json::from_str(&request.send().await.ok()?.text().await.ok()?).ok()?;
        Some(body["choices"][0]["message"]["content"].as_str().unwrap_or_else(|| panic!("{body}")).to_owned())
    }

    /// The files of the workspace by their names.
    fn files(&self) -> BTreeMap<String, String> {
        let mut files = BTreeMap::new();
        for directory in ["work", "work/old", "work/new"] {
            for entry in fs::read_dir(self.path(directory)).into_iter().flatten().map(Result::unwrap) {
                let name = format!("{directory}/{}", entry.file_name().to_str().unwrap());
                let text = || fs::read_to_string(entry.path()).unwrap();
                files.extend(entry.path().is_file().then(|| (name["work/".len()..].to_owned(), text())));
            }
        }
        files
    }
}

/// A file before its edit.
fn before(part: usize) -> String {
    format!("{part}, state: open\n{}", "a line that nobody edits\n".repeat(2000))
}

/// The traces of a run.
struct Traces {
    /// The last prompt, with places for ids.
    transcript: Vec<Value>,
    files: BTreeMap<String, String>,
    kills: usize,
    /// How long the last process lived.
    took: Duration,
}

/// Runs one run to its end, with at most this many kills. `life` returns how long each killed process lives.
async fn run(kills: usize, mut life: impl FnMut() -> Duration) -> Traces {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let fake = FakeVllm::thinking(model).await;
    fake.allow_cut_requests();
    let place = KilledServer::new(&fake);
    let mut killed = 0;
    loop {
        let began = Instant::now();
        let mut child = place.start();
        let most = if killed < kills { life() } else { Duration::from_mins(1) };
        let answer = tokio::time::timeout(most, place.ask()).await;
        let runs = if answer.is_ok() { place.get("/v1/runs").await } else { None };
        child.kill().await.unwrap();
        let Ok(answer) = answer else {
            assert!(killed < kills, "it hangs: {}", fs::read_to_string(place.path("log")).unwrap());
            killed += 1;
            continue;
        };
        assert_eq!(answer.as_deref(), Some("All done."));
        assert_eq!(
            runs.unwrap()["data"].as_array().unwrap().len(),
            1,
            "a repeated request begins no second run"
        );
        let prompts: Vec<Value> = fake.requests().iter().map(|seen| seen.json()["messages"].take()).collect();
        let lengths: Vec<usize> = prompts.iter().map(|prompt| prompt.as_array().unwrap().len()).collect();
        assert!(lengths.is_sorted(), "a step was lost: {lengths:?}");
        let transcript = with_places(prompts.last().unwrap().as_array().unwrap());
        return Traces { transcript, files: place.files(), kills: killed, took: began.elapsed() };
    }
}

/// The messages with the place of each call in the place of its id, which the process chose.
fn with_places(messages: &[Value]) -> Vec<Value> {
    let mut messages = messages.to_vec();
    let mut places = BTreeMap::new();
    for (at, message) in messages.iter_mut().enumerate() {
        for (index, call) in message["tool_calls"].as_array_mut().into_iter().flatten().enumerate() {
            let id = std::mem::replace(&mut call["id"], json!([at, index]));
            assert!(places.insert(id.to_string(), json!([at, index])).is_none(), "{id} stands for two calls");
        }
        if message["role"] == "tool" {
            let id = message["tool_call_id"].to_string();
            message["tool_call_id"] = places[&id].clone();
        }
    }
    messages
}

/// Calls of unknown outcome: the tool and the part of the run.
type Open = BTreeSet<(&'static str, usize)>;

/// The traces that the killed run should have left, derived from the undisturbed one.
fn compare(undisturbed: &Traces, found: &Traces) -> Open {
    let mut open = Open::new();
    let mut results = 0;
    for (expected, found_message) in undisturbed.transcript.iter().zip(&found.transcript) {
        let mut expected = expected.clone();
        if expected["role"] == "tool" {
            let (tool, part) = (["exec", "write", "edit", "read"][results % 4], results / 4);
            results += 1;
            let text = found_message["content"].as_str().unwrap();
            if text.starts_with(UNKNOWN) && tool != "read" {
                open.insert((tool, part));
                expected["content"] = text.into();
            } else if tool == "read" && !was_edited(found, part) {
                // The judgement of the files says whether that may be.
                expected["content"] = expected["content"].as_str().unwrap().replace("done", "open").into();
            }
        }
        assert_eq!(*found_message, expected);
    }
    assert_eq!(found.transcript.len(), undisturbed.transcript.len());
    compare_files(undisturbed, found, &open);
    open
}

fn was_edited(found: &Traces, part: usize) -> bool {
    found.files[&format!("old/{part}")] != before(part)
}

fn compare_files(undisturbed: &Traces, found: &Traces, open: &Open) {
    let (mut expected, mut files) = (undisturbed.files.clone(), found.files.clone());
    for &(tool, part) in open {
        let name = format!("{}/{part}", if tool == "write" { "new" } else { "old" });
        match tool {
            "write" if !files.contains_key(&name) => drop(expected.remove(&name)),
            "edit" if !was_edited(found, part) => drop(expected.insert(name, before(part))),
            _ => {}
        }
    }
    let (wanted, lines) = (expected.remove("effects").unwrap(), files.remove("effects").unwrap_or_default());
    for part in 0..PARTS {
        let of = |text: &str| {
            text.lines().filter(|line| line.ends_with(&part.to_string())).collect::<Vec<_>>().join(",")
        };
        let (wanted, lines) = (of(&wanted), of(&lines));
        let may_be_less = open.contains(&("exec", part)) && wanted.starts_with(&lines);
        assert!(lines == wanted || may_be_less, "{lines} instead of {wanted}; unknown: {open:?}");
    }
    let unfinished = files.extract_if(.., |name, _| name.contains("/.respool-")).count();
    let changes = open.iter().filter(|(tool, _)| *tool != "exec").count();
    assert!(
        unfinished <= changes,
        "{unfinished} files were left over by {changes} changes of unknown outcome"
    );
    assert!(files == expected, "{:?} instead of {:?}", files.keys(), expected.keys());
}

#[tokio::test]
async fn kills_lose_and_repeat_nothing() {
    let wanted: usize = std::env::var("RESPOOL_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(5);
    let mut random = StdRng::seed_from_u64(seed());
    let undisturbed = run(0, || unreachable!()).await;
    assert_eq!(undisturbed.transcript.len(), 1 + 7 * PARTS);
    let (mut kills, mut unknown) = (0, BTreeMap::<&str, usize>::new());
    while kills < wanted {
        let life = || undisturbed.took.mul_f64(random.random_range(0.0..0.7));
        let found = run(5.min(wanted - kills), life).await;
        kills += found.kills;
        for (tool, _) in compare(&undisturbed, &found) {
            *unknown.entry(tool).or_default() += 1;
        }
    }
    println!("{kills} kills; a life of {:?}; calls of unknown outcome: {unknown:?}", undisturbed.took);
}

#[tokio::test]
async fn commands_die_with_the_program() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let command = "echo begun >> effects; (sleep 1000 & echo $! > pid; wait)";
    let thinking = FakeVllm::thinking(move |request| {
        let result = request["messages"].as_array().unwrap().last().unwrap()["content"].as_str().unwrap();
        Script::json(
            200,
            &match result {
                "Do it all." => replies::calls(&[("exec", &json!({"command": command}).to_string())]),
                result => replies::text(&format!("I was told: {result}")),
            },
        )
    });
    let fake = thinking.await;
    let place = KilledServer::new(&fake);
    let pid = place.path("work/pid");
    let mut child = place.start();
    let began = eventually(|| fs::read_to_string(&pid).ok().filter(|text| text.ends_with('\n')));
    tokio::select! {
        answer = place.ask() => panic!("it ended: {answer:?}"),
        _ = began => assert!(is_alive(&pid)),
    }
    child.kill().await.unwrap();
    eventually(|| (!is_alive(&pid)).then_some(())).await;
    let _child = place.start();
    let answer = place.ask().await.unwrap();
    assert!(answer.starts_with(&format!("I was told: {UNKNOWN}")), "{answer}");
    assert_eq!(place.files()["effects"], "begun\n");
}
