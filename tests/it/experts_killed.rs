//! The end of the process at any moment, and two processes on one store: the real program executes the sales
//! desk's processes with real MCP servers. Nothing is lost, and nothing that must not be is done twice: a
//! call that was reported to the model as unknown happened once or not at all.
//!
//! `RESPOOL_KILLS=100` kills more often than the few times of every test run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;
use std::time::Duration;

use experts::InvocationLane;
use serde_json::{Value, json};
use store::{EntryState, Store, StoreConfig};
use tokio::process::{Child, Command};

use crate::experts_run::{
    Desk, calls, enqueue, invocation, is_over, messages, results, triage, triage_note, until,
};
use crate::support::fake_vllm::FakeVllm;
use crate::support::script::Script;
use crate::support::wait_until;

pub fn desk(upstream: &str) -> (Desk, Store) {
    let desk = Desk::new(upstream);
    let toml =
        fs::read_to_string(desk.path("respool.toml")).unwrap().replace("lease = \"2s\"", "lease = \"600ms\"");
    fs::write(desk.path("respool.toml"), toml).unwrap();
    let store =
        Store::open(&StoreConfig { state_dir: desk.path("state"), ..StoreConfig::default() }).unwrap();
    (desk, store)
}

pub fn start(desk: &Desk, log: &str) -> Child {
    start_killed_at(desk, log, None)
}

/// `commit`: the process ends itself there, as `before:7` or `after:7`.
fn start_killed_at(desk: &Desk, log: &str, commit: Option<String>) -> Child {
    let mut command = program_of(desk, log);
    command.envs(commit.map(|commit| ("RESPOOL_KILL_AT_COMMIT", commit)));
    command.spawn().unwrap()
}

/// The program that serves the desk, with its log in this file.
pub fn program_of(desk: &Desk, log: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_respool"));
    command
        .args(["serve", "--config", "respool.toml", "--listen", "127.0.0.1:0"])
        .current_dir(desk.path("."));
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap()).kill_on_drop(true);
    command.stdin(Stdio::null()).stderr(fs::File::create(desk.path(log)).unwrap());
    command
}

/// The good flow, but a call whose outcome is unknown is made again.
pub fn insistent(request: &Value) -> Script {
    if results(request).last().is_some_and(|last| last.contains("the outcome is unknown")) {
        return calls(&[triage_note()]);
    }
    triage(request)
}

/// An invocation that waits for a process of the program.
async fn queued(faults: Value) -> (FakeVllm, Desk, Store) {
    let fake = FakeVllm::thinking(insistent).await;
    fake.allow_cut_requests();
    let (desk, store) = desk(&fake.url());
    desk.faults(&faults);
    let payload = json!({"message_id": "m1", "contact_id": "sarah@acme.example"});
    enqueue(&store, invocation("i1", "inbound-email-triage", payload)).await;
    (fake, desk, store)
}

/// Runs one flow to its end with at most this many kills. `life` says when each comes. Returns the steps of
/// its attempt before each.
async fn killed(most: usize, faults: Value, life: impl Fn(usize) -> Life) -> Vec<usize> {
    let (fake, desk, store) = queued(faults).await;
    let mut kills = Vec::new();
    let row = loop {
        let mut child = start(&desk, "log");
        let end = async {
            if kills.len() < most {
                life(kills.len()).over(&fake).await;
            } else {
                tokio::time::sleep(LAST_LIFE).await;
            }
        };
        let over = tokio::select! { row = until(&store, "i1", is_over) => Some(row), () = end => None };
        child.kill().await.unwrap();
        match over {
            Some(row) => break row,
            None => kills.push(fake.requests().last().map_or(0, |seen| results(&seen.json()).len())),
        }
        assert!(kills.len() <= most, "it hangs: {}", fs::read_to_string(desk.path("log")).unwrap());
    };
    assert_eq!(row.state, EntryState::Done, "{row:?}");
    assert_nothing_is_lost_or_doubled(&fake, &desk, &store).await;
    assert_state_is_that_of_one_run(&desk);
    kills
}

/// One flow to its end; its processes end at these commits of their own. Gives how many did.
async fn killed_at_commits(faults: Value, commits: impl IntoIterator<Item = String>) -> usize {
    let (fake, desk, store) = queued(faults).await;
    let (mut commits, mut kills) = (commits.into_iter(), 0);
    let row = loop {
        let mut child = start_killed_at(&desk, "log", commits.next());
        let over = tokio::select! {
            row = until(&store, "i1", is_over) => Some(row),
            status = child.wait() => {
                let log = || fs::read_to_string(desk.path("log")).unwrap();
                assert_eq!(status.unwrap().signal(), Some(9), "{}", log());
                None
            }
        };
        match over {
            Some(row) => {
                child.kill().await.unwrap();
                break row;
            }
            None => kills += 1,
        }
    };
    assert_eq!(row.state, EntryState::Done, "{row:?}");
    assert_nothing_is_lost_or_doubled(&fake, &desk, &store).await;
    assert_state_is_that_of_one_run(&desk);
    kills
}

pub async fn assert_nothing_is_lost_or_doubled(fake: &FakeVllm, desk: &Desk, store: &Store) {
    let effects = desk.effects();
    let count = |tool: &str| effects.iter().filter(|effect| *effect == tool).count();
    let prompts: Vec<String> = fake.requests().iter().map(|seen| seen.json().to_string()).collect();
    let is_told = prompts.iter().any(|prompt| prompt.contains("outcome is unknown"));
    assert_eq!(count("send"), 0, "a draft is never sent");
    assert!(count("create_note") == 1 || (is_told && count("create_note") == 0), "{effects:?}");
    for tool in ["get_email", "get_contact", "get_deal"] {
        assert!(count(tool) >= 1, "{tool} is missing: {effects:?}");
    }
    let told = messages(store, "i1").await;
    let kinds: Vec<&str> = told.iter().map(|message| message["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["draft", "result"], "each once");
    assert_audit_log_is_closed(desk);
}

/// The files of the expert's state are those of a run that was made once.
pub fn assert_state_is_that_of_one_run(desk: &Desk) {
    assert!(!desk.state("scratch/triage-m1.md").exists());
    assert_eq!(fs::read_to_string(desk.state("state/pipeline.md")).unwrap(), "## Moving\n\n- Acme: demo\n");
}

/// In the audit log, each call that has begun has an end.
fn assert_audit_log_is_closed(desk: &Desk) {
    let log = fs::read_to_string(desk.path("state/audit.jsonl")).unwrap();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(!lines.is_empty());
    for (index, begun) in lines.iter().enumerate().filter(|(_, line)| line["step"] == "begun") {
        let is_end = |line: &Value| line["step"] == "ended" && line["call"] == begun["call"];
        assert!(lines[index..].iter().any(is_end), "{begun} has no end in {log}");
    }
}

/// The number of harms that `RESPOOL_KILLS` asks for.
pub fn wanted(default: usize) -> usize {
    std::env::var("RESPOOL_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(default)
}

/// The last process of a flow is not killed; this is its limit.
const LAST_LIFE: Duration = Duration::from_mins(2);

/// The life of a process: until it has asked the model this often, and a time after that.
pub struct Life {
    pub requests: usize,
    pub then: Duration,
}

impl Life {
    pub async fn over(&self, fake: &FakeVllm) {
        let wanted = fake.requests().len() + self.requests;
        wait_until("the model is asked", async || fake.requests().len() >= wanted).await;
        tokio::time::sleep(self.then).await;
    }
}

/// Lives of the processes: each gets a few steps further, and ends at another moment of a step.
fn life(kill: usize) -> Life {
    Life { requests: 1 + kill % 3, then: Duration::from_millis((kill as u64 * 17) % 61) }
}

/// The claim of a process that was killed ended only after `experts.lease`, half a minute by default.
#[tokio::test(flavor = "multi_thread")]
async fn work_continues_at_once_after_restart() {
    let slow = |request: &Value| triage(request).delay(Duration::from_millis(300));
    let fake = FakeVllm::thinking(slow).await;
    fake.allow_cut_requests();
    let (desk, store) = desk(&fake.url());
    let toml = fs::read_to_string(desk.path("respool.toml")).unwrap();
    fs::write(desk.path("respool.toml"), toml.replace("lease = \"600ms\"", "lease = \"1h\"")).unwrap();
    let payload = json!({"message_id": "m1", "contact_id": "sarah@acme.example"});
    enqueue(&store, invocation("i1", "inbound-email-triage", payload)).await;
    // Another process on the store may be the one that holds the claim.
    drop(store);
    let mut first = start(&desk, "log");
    Life { requests: 2, then: Duration::ZERO }.over(&fake).await;
    first.kill().await.unwrap();
    let _second = start(&desk, "log-2");
    Life { requests: 1, then: Duration::ZERO }.over(&fake).await;
    let store =
        Store::open(&StoreConfig { state_dir: desk.path("state"), ..StoreConfig::default() }).unwrap();
    let row = until(&store, "i1", is_over).await;
    assert_eq!((row.state, row.attempt), (EntryState::Done, 1), "{row:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_in_the_good_flow_are_harmless() {
    killed(wanted(4), json!({}), life).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_in_the_failing_flow_are_harmless() {
    killed(wanted(4), json!({"get_deal": ["error"]}), |kill| life(kill + 2)).await;
}

/// Each process gets one commit further than the one before the last, and ends before it or after it.
#[tokio::test(flavor = "multi_thread")]
async fn kills_at_commits_are_harmless() {
    let commits = (1..=20).flat_map(|number| ["before", "after"].map(|moment| format!("{moment}:{number}")));
    let kills = killed_at_commits(json!({"get_deal": ["error"]}), commits).await;
    assert!(kills >= 10, "{kills}");
}

/// A kill before and after each commit of both flows, one in each.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes"]
async fn a_kill_at_each_commit() {
    for faults in [json!({}), json!({"get_deal": ["error"], "create_note": ["die-after"]})] {
        let mut number = 0;
        let mut kills = 1;
        while kills > 0 {
            number += 1;
            kills = 0;
            for moment in ["before", "after"] {
                kills += killed_at_commits(faults.clone(), [format!("{moment}:{number}")]).await;
            }
        }
        println!("{} commits", number - 1);
        assert!(number > 20, "{number}");
    }
}

/// A hundred kills, and one at least at each step of both flows.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes"]
async fn a_hundred_kills() {
    // Twelve steps in the good flow, ten in the second attempt of the other one.
    let all: [BTreeSet<usize>; 2] = [(0..12).collect(), (0..10).collect()];
    let mut steps = [BTreeSet::new(), BTreeSet::new()];
    let mut kills = 0;
    for round in 0..40 {
        let faults = if round % 2 == 0 {
            json!({})
        } else {
            json!({"get_deal": ["error"], "create_note": ["die-after"]})
        };
        let came = killed(10, faults, |kill| life(kill * 7 + round)).await;
        kills += came.len();
        println!("round {round}: kills after {came:?} steps, {kills} in all");
        steps[round % 2].extend(came);
        if kills >= wanted(100) && steps.iter().zip(&all).all(|(steps, all)| steps.is_superset(all)) {
            return;
        }
    }
    panic!("{kills} kills, after these steps: {steps:?}");
}

/// Leaves a note with the id of its mail.
pub fn noting(request: &Value) -> Script {
    let messages = request["messages"].as_array().unwrap();
    let task =
        messages.iter().find(|message| message["role"] == "user").unwrap()["content"].as_str().unwrap();
    let id = task.split("\"message_id\": \"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    match results(request).len() {
        0 => calls(&[("crm__create_note", json!({"deal_id": "d-1", "text": id}))])
            .delay(Duration::from_millis(30)),
        _ => calls(&[(
            "finish_process",
            json!({"summary": "s", "outputs": {"intent": "other", "next_action": "none"}}),
        )]),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_share_one_store() {
    let fake = FakeVllm::thinking(noting).await;
    fake.allow_cut_requests();
    let (desk, store) = desk(&fake.url());
    assert_two_processes_keep_the_order(&desk, &store).await;
}

/// Two processes work on twelve events of three lanes: on each once, and in the order of its lane.
pub async fn assert_two_processes_keep_the_order(desk: &Desk, store: &Store) {
    for number in 0..12 {
        let id = format!("{number:02}");
        let mut one = invocation(&id, "inbound-email-triage", json!({"message_id": id}));
        one.lane =
            Some(InvocationLane::Key { path: "contact_id".into(), value: format!("lane-{}", number % 3) });
        enqueue(store, one).await;
    }
    let (mut one, mut two) = (start(desk, "log-1"), start(desk, "log-2"));
    for number in 0..12 {
        let row = until(store, &format!("{number:02}"), is_over).await;
        assert_eq!(row.state, EntryState::Done, "{row:?}");
    }
    one.kill().await.unwrap();
    two.kill().await.unwrap();
    let mut lanes: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for number in noted_ids(desk) {
        lanes.entry(number % 3).or_default().push(number);
    }
    for (lane, order) in lanes {
        assert_eq!(order, (lane..12).step_by(3).collect::<Vec<_>>(), "each once and in order");
    }
}

/// The ids that [`noting`] has left, in the order in which the server was called.
pub fn noted_ids(desk: &Desk) -> Vec<usize> {
    let journal = fs::read_to_string(desk.path("journal")).unwrap_or_default();
    let id = |line: &str| {
        let call: Value = serde_json::from_str(line).unwrap();
        call["arguments"]["text"].as_str().unwrap().parse().unwrap()
    };
    journal.lines().map(id).collect()
}
