//! Events of experts that wait, and the words for them.

use std::fs;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use agent::Decision;
use serde_json::{Value, json};
use store::EntryState;
use usage::LedgerSettings;

use crate::experts_run::{Desk, calls, enqueue, invocation, is_over, respool, results, task, triage, until};
use crate::support::fake_vllm::FakeVllm;
use crate::support::respool::Respool;
use crate::support::served::Served;
use crate::support::wait_until;

/// A spent budget refused requests, and the events of an expert were executed all the same.
#[tokio::test]
async fn events_wait_for_a_spent_budget() {
    let fake = FakeVllm::thinking(triage).await;
    let desk = Desk::new(&fake.url());
    let budget =
        "[prices.gpt-oss-20b]\ninput = 10.0\n[budgets]\nagents = { \"expert/sales-desk\" = 0.001 }\n";
    let respool = Respool::configured(&(desk.toml(&fake.url()) + budget)).await;
    let store = respool.agents.store().unwrap();
    let mail = |id: &str| json!({"message_id": id, "contact_id": "sarah@acme.example"});
    enqueue(store, invocation("i1", "inbound-email-triage", mail("m1"))).await;
    assert_eq!(until(store, "i1", is_over).await.state, EntryState::Done, "what has begun is finished");
    let asked = fake.requests().len();
    enqueue(store, invocation("i2", "inbound-email-triage", mail("m1"))).await;
    let readiness = &respool.experts.as_ref().unwrap().readiness;
    let is_about_it =
        |why: String| why.starts_with("today's budget for the agent `expert/sales-desk` (0.001000)");
    wait_until("the reason is said", async || readiness.why_not_ready("sales-desk").is_some_and(is_about_it))
        .await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let waiting = store.entry("i2").await.unwrap().unwrap();
    assert_eq!((waiting.state, fake.requests().len()), (EntryState::Waiting, asked), "{waiting:?}");
    respool.usage.change_settings(LedgerSettings::default()).await;
    assert_eq!(until(store, "i2", is_over).await.state, EntryState::Done);
    respool.killed().await;
}

/// Regression: for two seconds after its removal, an expert still acted.
#[tokio::test]
async fn removed_experts_begin_nothing() {
    let fake = FakeVllm::thinking(triage).await;
    let desk = Desk::new(&fake.url());
    let respool = desk.started(&fake).await;
    let store = respool.agents.store().unwrap();
    let experts = respool.experts.as_ref().unwrap();
    wait_until("it is ready", async || experts.readiness.last_check().ready.contains("sales-desk")).await;
    fs::remove_dir_all(desk.path("experts/sales-desk")).unwrap();
    let mail = json!({"message_id": "m1", "contact_id": "sarah@acme.example"});
    enqueue(store, invocation("i1", "inbound-email-triage", mail)).await;
    until(store, "i1", |row| row.note.as_deref() == Some("the expert is not installed")).await;
    assert!(fake.requests().is_empty());
    respool.killed().await;
}

/// A person approved a call in attempt 2 without knowing that a call of attempt 1 may have taken effect.
#[tokio::test]
async fn requests_tell_of_earlier_attempts() {
    let moved = |deal: &str| calls(&[("crm__update_deal_stage", json!({"deal_id": deal, "stage": "4"}))]);
    let model = move |request: &Value| match (results(request).len(), task(request)) {
        (0, task) if task.contains("This is attempt 1.") => moved("d-1"),
        (0, _) => moved("d-2"),
        _ => calls(&[("finish_process", json!({"summary": "done"}))]),
    };
    let fake = FakeVllm::thinking(model).await;
    let desk = Desk::new(&fake.url());
    desk.faults(&json!({"update_deal_stage": ["die-after"]}));
    let respool = desk.started(&fake).await;
    let store = respool.agents.store().unwrap();
    enqueue(store, invocation("i1", "move-deal", json!({"deal_id": "d-1", "stage": "4"}))).await;
    let event = async |attempt: u32| {
        until(store, "i1", |row| row.state == EntryState::Held && row.attempt == attempt).await;
        let waiting = respool.agents.waiting_approvals(10).await.unwrap().remove(0);
        let event = experts::event_of_run(store, &waiting.0.run).await.unwrap().unwrap();
        respool.agents.decide_approval(&Decision::approve_all(&waiting.1, "anna")).await.unwrap();
        event
    };
    let first = event(1).await;
    assert_eq!((&first["attempt"], &first["unknown_outcomes"]), (&json!(1), &Value::Null));
    let second = event(2).await;
    assert_eq!(second["attempt"], 2);
    assert_eq!(second["unknown_outcomes"][0]["operation"], "crm.update_deal_stage");
    assert_eq!(second["unknown_outcomes"][0]["inputs"]["deal_id"], "d-1");
    respool.killed().await;
}

/// Regression: Ctrl-C ended `expert run` without a word, and the work went on later.
#[tokio::test(flavor = "multi_thread")]
async fn interrupted_runs_name_their_invocation() {
    let fake = FakeVllm::thinking(|request: &Value| triage(request).delay(Duration::from_mins(1))).await;
    let desk = Desk::new(&fake.url());
    let payload = json!({"message_id": "m1", "contact_id": "sarah@acme.example"}).to_string();
    let line =
        ["expert", "--config", "respool.toml", "run", "sales-desk", "--process", "inbound-email-triage"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_respool"));
    command.args(line).args(["--payload", &payload]).current_dir(desk.path(""));
    let running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    fake.wait_for_requests(1).await;
    let interrupted = Command::new("kill").args(["-INT", &running.id().to_string()]).status().unwrap();
    assert!(interrupted.success());
    let out = running.wait_with_output().unwrap();
    let said = String::from_utf8(out.stderr).unwrap();
    let (id, _) = said.split_once(": queued").unwrap();
    assert!(!out.status.success() && said.contains(&format!("{id} is unfinished")), "{said}");
    assert!(said.contains(&format!("respool expert cancel {id}")), "{said}");
}

fn text(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

/// Regression: an operation that a rule denied "runs alone", and the author saw no warning.
#[tokio::test(flavor = "multi_thread")]
async fn restricted_operations_are_named() {
    let fake = FakeVllm::start([]).await;
    fake.serve_models(&["gpt-oss-20b"]);
    let desk = Desk::new(&fake.url());
    let rules = "[[tools.policy.rule]]\ntool = \"mcp:crm-fake/create_note\"\nthen = \"deny\"\n\
                 [[tools.policy.rule]]\ntool = \"mcp:crm-fake/get_deal\"\nthen = \"ask\"\n";
    fs::write(desk.path("respool.toml"), desk.toml(&fake.url()) + rules).unwrap();
    let shown = text(&respool(&desk, &["show", "sales-desk"]));
    let alone = shown.lines().find(|line| line.starts_with("runs alone: ")).unwrap();
    assert!(!alone.contains("create_note") && !alone.contains("get_deal"), "{alone}");
    for line in [
        "denied: crm.create_note (rule 1 of tools.policy)",
        "asks first too: crm.get_deal (rule 2 of tools.policy)",
    ] {
        assert!(shown.contains(line), "{shown}");
    }
    let validated = respool(&desk, &["validate", "sales-desk"]);
    let warning = "warn: crm.create_note: rule 1 of tools.policy denies it, so its calls fail";
    assert!(validated.status.success() && text(&validated).contains(warning), "{}", text(&validated));
}

/// Regression: the expert was ready for `validate`, and not for the server, which had an older configuration.
#[tokio::test(flavor = "multi_thread")]
async fn validate_asks_the_running_server() {
    let fake = FakeVllm::start([]).await;
    fake.serve_models(&["gpt-oss-20b"]);
    let desk = Desk::new(&fake.url());
    let toml = desk.toml(&fake.url());
    let served = Served::with_file(&toml, &[("PATH", &std::env::var("PATH").unwrap())]);
    let second = toml.split_once("[tools.mcp.crm-fake]").unwrap().1.split_once("[tools.").unwrap().0;
    fs::write(desk.path("respool.toml"), format!("{toml}[tools.mcp.second]{second}")).unwrap();
    let bound = respool(&desk, &["bind", "sales-desk", "crm", "second"]);
    assert!(bound.status.success(), "{}", text(&bound));
    let validated = respool(&desk, &["validate", "sales-desk"]);
    let lacks = "not ready: the running `respool serve` cannot use it: crm: ";
    assert!(!validated.status.success() && text(&validated).contains(lacks), "{}", text(&validated));
    drop(served);
}

/// Regression: two tasks were approved that each rewrite a list, and the second lost what the first had
/// added. A person's consent is to the change that they were shown.
#[tokio::test]
async fn approved_writes_replace_what_was_shown() {
    let write = |content: &str| {
        calls(&[("crm__update_deal_stage", json!({"path": "orders.md", "content": content}))])
    };
    let model = move |request: &Value| match results(request).last() {
        None => write("A\nC\n"),
        Some(text) if text.contains("has changed since a person approved") => write("A\nB\nC\n"),
        Some(_) => calls(&[("finish_process", json!({"summary": "done"}))]),
    };
    let fake = FakeVllm::thinking(model).await;
    let desk = Desk::new(&fake.url());
    fs::create_dir(desk.path("files")).unwrap();
    fs::write(desk.path("files/orders.md"), "A\n").unwrap();
    let operations = "get_contact: read, get_deal: ls, create_note: edit, update_deal_stage: write";
    let email = "email: {type: mcp, server: mail-fake}";
    desk.bind(&format!("tools:\n  crm: {{type: local, operations: {{{operations}}}}}\n  {email}\n"));
    let local = format!("[tools.local]\nworkspace = \"{}\"\n", desk.path("files").display());
    let respool = Respool::configured(&(desk.toml(&fake.url()) + &local)).await;
    let store = respool.agents.store().unwrap();
    enqueue(store, invocation("i1", "move-deal", json!({"deal_id": "d-1", "stage": "4"}))).await;
    let asked = async |before: &str| {
        wait_until("it asks", async || {
            let waiting = respool.agents.waiting_approvals(10).await.unwrap();
            waiting.first().is_some_and(|(row, _)| row.id != before)
        })
        .await;
        respool.agents.waiting_approvals(10).await.unwrap().remove(0)
    };
    until(store, "i1", |row| row.state == EntryState::Held).await;
    let (row, request) = asked("").await;
    let shown = &agent::report::approval_row(&row)["calls"][0];
    assert_eq!((&shown["bound_to"], &shown["arguments"]["path"]), (&json!("write"), &json!("orders.md")));
    assert!(shown["change"].as_str().unwrap().ends_with(" A\n+C\n"), "{shown}");
    fs::write(desk.path("files/orders.md"), "A\nB\n").unwrap();
    respool.agents.decide_approval(&Decision::approve_all(&request, "anna")).await.unwrap();
    let (_, request) = asked(&row.id).await;
    assert_eq!(fs::read_to_string(desk.path("files/orders.md")).unwrap(), "A\nB\n", "nothing is lost");
    respool.agents.decide_approval(&Decision::approve_all(&request, "anna")).await.unwrap();
    assert_eq!(until(store, "i1", is_over).await.state, EntryState::Done);
    assert_eq!(fs::read_to_string(desk.path("files/orders.md")).unwrap(), "A\nB\nC\n");
    respool.killed().await;
}

/// Regression: inputs that were approved for one server went to another, because the tool was bound again.
#[tokio::test]
async fn approved_calls_reach_the_server_shown() {
    let model = |request: &Value| match results(request).last() {
        Some(text) if text.contains("is bound to mcp:second/") => {
            calls(&[("escalate", json!({"reason": text, "context": "c", "recommendation": "r"}))])
        }
        None => calls(&[("crm__update_deal_stage", json!({"deal_id": "d-1", "stage": "4"}))]),
        Some(_) => calls(&[("finish_process", json!({"summary": "done"}))]),
    };
    let fake = FakeVllm::thinking(model).await;
    let desk = Desk::new(&fake.url());
    let toml = desk.toml(&fake.url());
    let second = toml.split_once("[tools.mcp.crm-fake]").unwrap().1.split_once("[tools.").unwrap().0;
    let respool = Respool::configured(&format!("{toml}[tools.mcp.second]{second}")).await;
    let store = respool.agents.store().unwrap();
    enqueue(store, invocation("i1", "move-deal", json!({"deal_id": "d-1", "stage": "4"}))).await;
    until(store, "i1", |row| row.state == EntryState::Held).await;
    desk.bind("tools:\n  crm: {type: mcp, server: second}\n  email: {type: mcp, server: mail-fake}\n");
    let experts = respool.experts.as_ref().unwrap();
    let is_bound_again = || experts.get("sales-desk").unwrap().bound_tools()[0].1 == "second";
    wait_until("it is bound again", async || is_bound_again()).await;
    let (_, request) = respool.agents.waiting_approvals(10).await.unwrap().remove(0);
    assert_eq!(request.effects.values().next().unwrap().tool, "mcp:crm-fake/update_deal_stage");
    respool.agents.decide_approval(&Decision::approve_all(&request, "anna")).await.unwrap();
    assert_eq!(until(store, "i1", is_over).await.state, EntryState::Escalated);
    assert_eq!(desk.effects(), Vec::<String>::new(), "neither server was called");
    respool.killed().await;
}
