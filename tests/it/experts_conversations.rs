//! Conversations with experts: what a person gets of them beside the answer, across the end of the process.
//! Bound to real MCP servers, with a scripted model.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use agent::{ApprovalRequest, Decision, record_decision, report};
use experts::{event_of_run, message_json, open_tasks};
use serde_json::{Value, json};
use store::{ApprovalRow, EntryState, MessageFilter, Status, Store};
use tokio::process::Command;

use crate::experts_killed::{desk as desk_of_a_process, start};
use crate::experts_run::{Desk, calls, enqueue, invocation, is_over, messages, results, until};
use crate::support::client::{Request, exchange};
use crate::support::fake_vllm::FakeVllm;
use crate::support::look_within;
use crate::support::replies;
use crate::support::respool::Respool;
use crate::support::script::Script;
use crate::support::wait_until;

fn draft() -> (&'static str, Value) {
    ("email__send", json!({"to": "sarah@acme.example", "text": "Hello"}))
}

fn moving() -> (&'static str, Value) {
    ("crm__update_deal_stage", json!({"deal_id": "d-1", "stage": "4"}))
}

/// The messages of an expert apart from its answers, the oldest first.
async fn told(store: &Store) -> Vec<Value> {
    let mut all = store.messages(MessageFilter::default(), 100).await.unwrap();
    all.sort_by_key(|row| row.created);
    all.iter().map(message_json).collect()
}

fn kinds(told: &[Value]) -> Vec<&str> {
    told.iter().map(|one| one["kind"].as_str().unwrap()).collect()
}

async fn asked(respool: &Respool) -> Value {
    let body = json!({"model": "expert/sales-desk", "messages": [{"role": "user", "content": "Write to Sarah and move the deal."}]});
    exchange(respool.address, &Request::chat(&body)).await.json()
}

/// A process in which a person asked for a call that needs consent, and which has ended. Gives the waiting
/// approval.
async fn asked_before_the_end(desk: &Desk, fake: &FakeVllm) -> (ApprovalRow, ApprovalRequest) {
    let respool = desk.started(fake).await;
    asked(&respool).await;
    let waiting = respool.agents.waiting_approvals(10).await.unwrap().remove(0);
    respool.killed().await;
    waiting
}

async fn until_done(store: &Store, run: &str) {
    let status = async || store.run(run).await.unwrap().unwrap().row.status;
    wait_until("the run is done", async || status().await == Status::Done).await;
}

/// Before, drafts that no person got were reported as "handed over".
#[tokio::test]
async fn the_outbox_has_conversation_messages() {
    let model = |request: &Value| match results(request).len() {
        0 => calls(&[draft(), moving()]),
        _ => Script::json(200, &replies::text("The deal is moved.")),
    };
    let fake = FakeVllm::thinking(model).await;
    let desk = Desk::new(&fake.url());
    let respool = desk.started(&fake).await;
    let store = respool.agents.store().unwrap();
    let reply = asked(&respool).await;
    let text = reply["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    assert!(text.contains("waits for a person's approval"), "{text}");
    let first = told(store).await;
    assert_eq!(kinds(&first), ["draft", "approval"]);
    assert_eq!(
        (&first[0]["body"]["operation"], &first[0]["body"]["inputs"]["text"]),
        (&json!("email.send"), &json!("Hello"))
    );
    let waiting = respool.agents.waiting_approvals(10).await.unwrap();
    assert_eq!(first[1]["body"]["id"], json!(waiting[0].1.id));
    let row = report::approval_row(&waiting[0].0);
    assert_eq!((&row["requester"], &row["process"]), (&json!("conversation"), &Value::Null), "{row}");
    let event = event_of_run(store, &waiting[0].0.run).await.unwrap().unwrap();
    assert_eq!(event["asked"], "Write to Sarah and move the deal.", "the person sees what it is for");
    assert_eq!(event["earlier_calls"][0]["call"], "email__send");
    respool.agents.decide_approval(&Decision::approve_all(&waiting[0].1, "anna")).await.unwrap();
    until_done(store, &waiting[0].0.run).await;
    let all = told(store).await;
    assert_eq!(kinds(&all), ["draft", "approval", "result"]);
    assert_eq!(all[2]["body"]["summary"], "The deal is moved.");
    assert_eq!(all[2]["run"], json!(waiting[0].0.run));
    assert_eq!(desk.effects(), ["update_deal_stage"]);
    respool.killed().await;
}

/// A call with a person's consent is made and answered, even if the process ends right after the call.
#[tokio::test(flavor = "multi_thread")]
async fn consent_survives_a_restart() {
    for is_by_hand in [false, true] {
        let model = |request: &Value| match results(request).len() {
            0 => calls(&[moving()]),
            _ => Script::json(200, &replies::text("Moved.")).delay(Duration::from_millis(1_500)),
        };
        let fake = FakeVllm::thinking(model).await;
        fake.allow_cut_requests();
        let (desk, store) = desk_of_a_process(&fake.url());
        let (row, request) = asked_before_the_end(&desk, &fake).await;
        record_decision(&store, &Decision::approve_all(&request, "anna")).await.unwrap();

        let mut child = start(&desk, "log");
        let before = fake.requests().len();
        fake.wait_for_requests(before + 1).await;
        child.kill().await.unwrap();
        assert_eq!(desk.effects(), ["update_deal_stage"]);

        if is_by_hand {
            let mut command = Command::new(env!("CARGO_BIN_EXE_respool"));
            command
                .args(["runs", "resume", &row.run, "--config", "respool.toml"])
                .current_dir(desk.path("."));
            let output = command.output().await.unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(said.contains("Moved."), "{said} {}", String::from_utf8_lossy(&output.stderr));
        } else {
            child = start(&desk, "log-2");
            until_done(&store, &row.run).await;
            child.kill().await.unwrap();
        }
        assert_eq!(desk.effects(), ["update_deal_stage"], "once");
        let all = told(&store).await;
        assert_eq!(kinds(&all), ["approval", "result"]);
        assert_eq!(all[1]["body"]["summary"], "Moved.");
    }
}

/// Lets the server of `crm` start only while there is a file `up`.
fn gate(desk: &Desk) {
    let path = desk.path("respool.toml");
    let waiting = format!(
        "while ! [ -e '{}' ]; do sleep 0.05; done; exec python3 \\\"$@\\\"",
        desk.path("up").display()
    );
    let (python, shell) = (
        "command = \"python3\"\nargs = [",
        format!("command = \"sh\"\nargs = [\"-c\", \"{waiting}\", \"sh\", "),
    );
    fs::write(&path, fs::read_to_string(&path).unwrap().replacen(python, &shell, 1)).unwrap();
    fs::write(desk.path("up"), "").unwrap();
}

/// An approved call whose server was still starting failed, and the consent was used up.
#[tokio::test(flavor = "multi_thread")]
async fn approved_calls_wait_for_their_server() {
    let move_of = |deal: &str| ("crm__update_deal_stage", json!({"deal_id": deal, "stage": "4"}));
    for is_by_hand in [false, true] {
        let model = move |request: &Value| match results(request).len() {
            0 => calls(&[move_of("d-1"), move_of("d-2")]),
            _ => Script::json(200, &replies::text("Moved.")),
        };
        let fake = FakeVllm::thinking(model).await;
        fake.allow_cut_requests();
        let (desk, store) = desk_of_a_process(&fake.url());
        let (row, request) = asked_before_the_end(&desk, &fake).await;
        gate(&desk);
        record_decision(&store, &Decision::approve_all(&request, "anna")).await.unwrap();

        desk.faults(&json!({"update_deal_stage": ["hang"]}));
        let mut child = start(&desk, "log");
        until_file(&desk, "journal.faults", "[]").await;
        child.kill().await.unwrap();
        fs::remove_file(desk.path("up")).unwrap();

        let open = async {
            // Time for the fault: nothing is claimed of how long anything takes.
            testing::waiting::delay(Duration::from_millis(1_500)).await;
            fs::write(desk.path("up"), "").unwrap();
        };
        if is_by_hand {
            let mut command = Command::new(env!("CARGO_BIN_EXE_respool"));
            command
                .args(["runs", "resume", &row.run, "--config", "respool.toml"])
                .current_dir(desk.path("."));
            let (output, ()) = tokio::join!(command.output(), open);
            let said = String::from_utf8_lossy(&output.as_ref().unwrap().stdout).into_owned();
            assert!(said.contains("Moved."), "{said} {output:?}");
        } else {
            child = start(&desk, "log-2");
            open.await;
            until_done(&store, &row.run).await;
            child.kill().await.unwrap();
        }
        assert_eq!(desk.effects(), ["update_deal_stage"], "the second call, which was not made before");
    }
}

/// A client that repeated its request resumed its run while a server was down, and the consent was used up.
#[tokio::test(flavor = "multi_thread")]
async fn repeated_requests_wait_for_the_expert() {
    let model = |request: &Value| match results(request).len() {
        0 => calls(&[moving()]),
        _ => Script::json(200, &replies::text("Moved.")),
    };
    let fake = FakeVllm::thinking(model).await;
    let (desk, store) = desk_of_a_process(&fake.url());
    let (row, request) = asked_before_the_end(&desk, &fake).await;
    record_decision(&store, &Decision::approve_all(&request, "anna")).await.unwrap();
    // As if the client had gone before it read that a person is asked.
    rusqlite::Connection::open(store.place()).unwrap().execute("UPDATE runs SET answered = 0", []).unwrap();

    let without_servers = desk.toml(&fake.url()).replace("command = \"python3\"", "command = \"false\"");
    let respool = Respool::configured(&without_servers).await;
    let error = asked(&respool).await["error"].take();
    let message = error["message"].as_str().unwrap();
    assert_eq!(error["code"], "expert_not_ready", "{error}");
    assert!(message.contains("sales-desk is not ready") && message.contains(&row.run), "{message}");
    respool.killed().await;
    assert_eq!((desk.effects(), fake.requests().len()), (Vec::<String>::new(), 1));

    let respool = desk.started(&fake).await;
    until_done(&store, &row.run).await;
    assert_eq!(desk.effects(), ["update_deal_stage"]);
    respool.killed().await;
}

async fn until_file(desk: &Desk, name: &str, text: &str) {
    let found = || fs::read_to_string(desk.path(name)).unwrap_or_default();
    wait_until(&format!("{name} says {text}"), async || found().contains(text)).await;
}

/// Conversations were taken over at the start of a process only, so those of one that ended beside it stayed.
#[tokio::test(flavor = "multi_thread")]
async fn conversations_move_to_living_processes() {
    let answers = AtomicUsize::new(0);
    let model = move |request: &Value| match results(request).len() {
        0 => calls(&[moving()]),
        _ if answers.fetch_add(1, Ordering::Relaxed) == 0 => {
            Script::json(200, &replies::text("Never.")).delay(Duration::from_mins(10))
        }
        _ => Script::json(200, &replies::text("Moved.")),
    };
    let fake = FakeVllm::thinking(model).await;
    fake.allow_cut_requests();
    let (desk, store) = desk_of_a_process(&fake.url());
    let (row, request) = asked_before_the_end(&desk, &fake).await;
    record_decision(&store, &Decision::approve_all(&request, "anna")).await.unwrap();

    let before = fake.requests().len();
    let mut one = start(&desk, "log");
    fake.wait_for_requests(before + 1).await;
    let other = desk.started(&fake).await;
    assert_eq!(store.run(&row.run).await.unwrap().unwrap().row.status, Status::Running);
    one.kill().await.unwrap();
    until_done(&store, &row.run).await;
    assert_eq!(desk.effects(), ["update_deal_stage"]);
    assert_eq!(kinds(&told(&store).await), ["approval", "result"]);
    other.killed().await;
}

/// Before, the answer of an interrupted conversation was lost, and a conversation of weeks ago began to act
/// again.
#[tokio::test(flavor = "multi_thread")]
async fn interrupted_conversations_answer_or_ask() {
    for is_old in [false, true] {
        let answers = AtomicUsize::new(0);
        let model = move |request: &Value| match results(request).len() {
            0 => calls(&[("crm__get_contact", json!({"email": "a"}))]),
            _ if answers.fetch_add(1, Ordering::Relaxed) == 0 => {
                Script::json(200, &replies::text("Never.")).delay(Duration::from_mins(10))
            }
            _ => Script::json(200, &replies::text("It is Sarah.")),
        };
        let fake = FakeVllm::thinking(model).await;
        fake.allow_cut_requests();
        let (desk, store) = desk_of_a_process(&fake.url());
        let respool = desk.started(&fake).await;
        let address = respool.address;
        let body =
            json!({"model": "expert/sales-desk", "messages": [{"role": "user", "content": "Who is a?"}]});
        let asking = tokio::spawn(async move { exchange(address, &Request::chat(&body)).await });
        fake.wait_for_requests(2).await;
        respool.killed().await;
        asking.abort();
        let run = store.runs_of_status(Status::Interrupted).await.unwrap().remove(0).id;
        if is_old {
            let database = rusqlite::Connection::open(store.place()).unwrap();
            database.execute("UPDATE runs SET updated = updated - 2 * 3600 * 1000", []).unwrap();
        }
        let respool = desk.started(&fake).await;
        if is_old {
            let look = async || told(&store).await.pop();
            let message = look_within(Duration::from_mins(1), look).await.expect("a message");
            assert_eq!(message["kind"], "escalation");
            let advice = message["body"]["recommendation"].as_str().unwrap();
            assert!(advice.contains(&format!("respool runs resume {run}")), "{advice}");
            assert_eq!(fake.requests().len(), 2, "nothing is done");
        } else {
            until_done(&store, &run).await;
            let told = told(&store).await;
            assert_eq!((kinds(&told), &told[0]["body"]["summary"]), (vec!["result"], &json!("It is Sarah.")));
        }
        respool.killed().await;
    }
}

/// An approved call is made by the package that asked for it. Where that one is gone, nothing is made, and a
/// person is told.
#[tokio::test]
async fn held_processes_keep_their_package() {
    let model = |request: &Value| match results(request).len() {
        0 => calls(&[moving()]),
        _ => calls(&[("finish_process", json!({"summary": "moved"}))]),
    };
    for is_kept in [true, false] {
        let fake = FakeVllm::thinking(model).await;
        let desk = Desk::new(&fake.url());
        let respool = desk.started(&fake).await;
        let store = respool.agents.store().unwrap();
        enqueue(store, invocation("i1", "move-deal", json!({"deal_id": "d-1", "stage": "4"}))).await;
        until(store, "i1", |row| row.state == store::EntryState::Held).await;
        let tools = desk.path("experts/sales-desk/tools/crm.yaml");
        let text = std::fs::read_to_string(&tools).unwrap();
        std::fs::write(&tools, text.split("  - name: update_deal_stage").next().unwrap()).unwrap();
        desk.change(&[("version: \"0.1.0\"", "version: \"0.1.1\"")]);
        let experts = respool.experts.as_ref().unwrap();
        let version = || experts.get("sales-desk").unwrap().package.manifest.version.value.clone();
        wait_until("the package is updated", async || version() == "0.1.1").await;
        if !is_kept {
            std::fs::remove_dir_all(desk.path("experts/.respool/snapshots")).unwrap();
        }
        let waiting = respool.agents.waiting_approvals(10).await.unwrap();
        respool.agents.decide_approval(&Decision::approve_all(&waiting[0].1, "anna")).await.unwrap();
        let row = until(store, "i1", is_over).await;
        let (told, effects) = (messages(store, "i1").await, desk.effects());
        if is_kept {
            assert_eq!(
                (kinds(&told), effects),
                (vec!["approval", "result"], vec!["update_deal_stage".into()])
            );
        } else {
            assert_eq!(row.state, store::EntryState::DeadLetter, "{row:?}");
            assert_eq!((kinds(&told), effects), (vec!["approval", "escalation"], Vec::<String>::new()));
            let letters = async |arguments: &[&str]| {
                let mut command = Command::new(env!("CARGO_BIN_EXE_respool"));
                command.args(["expert", "--config", "respool.toml", "dead-letters"]).args(arguments);
                command.current_dir(desk.path("")).output().await.unwrap().stdout
            };
            let shown: Value = serde_json::from_slice(&letters(&["show", "i1"]).await).unwrap();
            let asked = shown["invocation"]["asked"].as_str();
            assert!(asked.is_some_and(|at| at.starts_with("20") && at.ends_with('Z')), "{shown}");
            assert_eq!(told[1]["delivered"], Value::Null);
            letters(&["remove", "i1"]).await;
            let told = messages(store, "i1").await;
            assert_eq!(told[1]["note"], "done: dropped by a person", "{:#}", told[1]);
        }
        respool.killed().await;
    }
}

/// Regression: what had begun with an earlier version became a dead letter, although the removal had promised
/// that it continues once the expert is installed again. Nothing said that its approval was in vain.
#[tokio::test(flavor = "multi_thread")]
async fn removal_keeps_the_versions_of_open_work() {
    const KEY: &str = "sk-operator-0123456789";
    let model = |request: &Value| match results(request).len() {
        0 => calls(&[moving()]),
        _ => calls(&[("finish_process", json!({"summary": "moved"}))]),
    };
    for is_purged in [false, true] {
        let fake = FakeVllm::thinking(model).await;
        let desk = Desk::new(&fake.url());
        desk.change(&[("version: \"0.1.0\"", "version: \"0.1.1\"")]);
        let toml = desk.toml(&fake.url());
        let served = Respool::started_in(&toml, &[("RESPOOL_OPERATOR_KEY", KEY)], None).await;
        let store = served.agents.store().unwrap();
        enqueue(store, invocation("i1", "move-deal", json!({"deal_id": "d-1", "stage": "4"}))).await;
        until(store, "i1", |row| row.state == EntryState::Held).await;
        let id = served.agents.waiting_approvals(10).await.unwrap().remove(0).0.id;
        let expert = async |arguments: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_respool"));
            command.args(["expert", "--config", "respool.toml"]).args(arguments).current_dir(desk.path(""));
            let ran = command.env("RESPOOL_OPERATOR_KEY", KEY).output().await.unwrap();
            let said = [ran.stdout, ran.stderr].concat();
            (ran.status.success(), String::from_utf8_lossy(&said).into_owned())
        };
        let removal = ["remove", "sales-desk", "--yes", "--purge"];
        let removed = expert(&removal[..if is_purged { 4 } else { 3 }]).await.1;
        let fate = if is_purged { "They are cancelled" } else { "these are kept" };
        assert!(removed.contains(fate), "{removed}");
        let listed = expert(&["approvals", "list"]).await.1;
        assert_eq!(listed.contains("note: sales-desk is not installed"), !is_purged, "{listed}");
        let row = store.entry("i1").await.unwrap().unwrap();
        assert_eq!(row.is_ended_by_person(), is_purged, "{row:?}");
        assert_eq!(desk.path("experts/.respool/snapshots/sales-desk").exists(), !is_purged);
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/experts/sales-desk");
        let installed = expert(&["install", source]).await;
        assert!(installed.0 && installed.1.contains("0.1.0"), "{}", installed.1);
        desk.bind("tools:\n  crm: {type: mcp, server: crm-fake}\n  email: {type: mcp, server: mail-fake}\n");
        let mut keyless = Command::new(env!("CARGO_BIN_EXE_respool"));
        keyless.args(["expert", "--config", "respool.toml", "approvals", "approve", &id]);
        keyless.current_dir(desk.path("")).env("RESPOOL_OPERATOR_KEY", "");
        let refused = keyless.output().await.unwrap().stderr;
        assert!(
            String::from_utf8_lossy(&refused).contains("put one into the variable"),
            "an empty key is none"
        );
        let (is_approved, said) = expert(&["approvals", "approve", &id]).await;
        if is_purged {
            assert!(!is_approved && said.contains(&id) && !listed.contains(&id), "{said}");
        } else {
            assert!(is_approved, "{said}");
            assert_eq!(until(store, "i1", is_over).await.state, EntryState::Done);
            assert_eq!(desk.effects(), ["update_deal_stage"]);
        }
        served.killed().await;
    }
}

/// Regression: the outbox asked to look after a task whose calls were rejected, and the queue had no such
/// task.
#[tokio::test]
async fn rejected_tasks_are_in_the_queue() {
    let fake = FakeVllm::thinking(|_: &Value| calls(&[moving()])).await;
    let desk = Desk::new(&fake.url());
    let served = desk.started(&fake).await;
    let store = served.agents.store().unwrap();
    enqueue(store, invocation("i1", "move-deal", json!({"deal_id": "d-1", "stage": "4"}))).await;
    until(store, "i1", |row| row.state == EntryState::Held).await;
    let asked = served.agents.waiting_approvals(10).await.unwrap().remove(0).1;
    let rejected = Decision { approved: Vec::new(), ..Decision::approve_all(&asked, "anna") };
    served.agents.decide_approval(&rejected).await.unwrap();
    let row = until(store, "i1", is_over).await;
    let open = open_tasks(store, None, 10).await.unwrap();
    assert_eq!(open.iter().map(|task| &*task.row.id).collect::<Vec<_>>(), ["i1"], "{row:?}");
    assert!(open[0].message.is_some());
    served.killed().await;
}
