//! Isolated functions: a call of one is a child run with its declared inputs, tools and outputs alone, as
//! durable as the run that called it.

use std::fs;

use agent::{Decision, report};
use experts::DryRun;
use serde_json::{Value, json};
use store::{EntryState, RunFilter, Store};

use crate::experts_killed::{desk as desk_of_a_process, start};
use crate::experts_run::{Desk, calls, enqueue, invocation, is_over, messages, results, until};
use crate::support::eventually;
use crate::support::fake_vllm::{FakeVllm, Seen};
use crate::support::script::Script;

const FUNCTION: &str = "---\nname: compose-response\ndescription: Drafts an answer\nsession: isolated\n\
    inputs: [{name: contact, type: string}]\n\
    outputs: [{name: text, type: string}, {name: confidence, type: string, enum: [high, medium, low]}]\n\
    tools: [crm]\nknowledge: [knowledge/margins.md]\n---\nThank them.\n";

/// The function is isolated, and the only one that may read the private margins.
fn isolate(desk: &Desk) {
    let folder = desk.path("experts/sales-desk/functions");
    fs::write(folder.join("compose-response.md"), FUNCTION).unwrap();
    let other = "---\nname: determine-next-action\ndescription: Says what to do next\n---\nOffer a demo.\n";
    fs::write(folder.join("determine-next-action.md"), other).unwrap();
}

async fn isolated(model: impl Fn(&Value) -> Script + Send + 'static) -> (FakeVllm, Desk) {
    let fake = FakeVllm::thinking(model).await;
    let desk = Desk::new(&fake.url());
    isolate(&desk);
    (fake, desk)
}

const CALL: &str = "run_function__compose-response";

fn is_function(request: &Value) -> bool {
    request["messages"][0]["content"]
        .as_str()
        .unwrap()
        .contains("You perform the function `compose-response`")
}

fn finish(outputs: Value) -> (&'static str, Value) {
    ("finish_function", outputs)
}

fn end() -> Script {
    let outputs = json!({"intent": "question", "next_action": "wait"});
    calls(&[("finish_process", json!({"summary": "done", "outputs": outputs}))])
}

fn note() -> (&'static str, Value) {
    ("crm__create_note", json!({"deal_id": "d-1", "text": "asked"}))
}

fn payload() -> Value {
    json!({"message_id": "m1", "contact_id": "sarah@acme.example"})
}

async fn children(store: &Store) -> Vec<(String, String)> {
    let rows = store.newest(RunFilter::All, 50).await.unwrap();
    rows.into_iter().filter_map(|row| Some((row.agent, row.parent?))).collect()
}

/// The prompt of a function's own run.
fn is_told_of_itself_alone(child: &Value) {
    let tools = |request: &Value| -> Vec<String> {
        let tools = request["tools"].as_array().unwrap();
        tools.iter().map(|tool| tool["function"]["name"].as_str().unwrap().to_owned()).collect()
    };
    let own = [
        "crm__get_contact",
        "crm__get_deal",
        "crm__create_note",
        "crm__update_deal_stage",
        "read",
        "finish_function",
        "escalate",
    ];
    assert_eq!(tools(child), own);
    let text = child["messages"].to_string();
    assert!(text.contains("Sarah Connor") && text.contains("Thank them."), "{text}");
    assert!(
        !text.contains("secret of the parent")
            && !text.contains("m1")
            && !text.contains("Execute the process"),
        "{text}"
    );
}

/// The child run stands under its parent, and the answers of both are withheld: what the one read the other
/// may quote.
async fn is_shown_under(store: &Store, run: &str) {
    assert_eq!(children(store).await, [("expert/sales-desk/compose-response".to_owned(), run.to_owned())]);
    let shown = report::breakdown(&store.run(run).await.unwrap().unwrap());
    assert!(shown["answer"].as_str().unwrap().starts_with("[withheld"), "{shown}");
    let child = shown["children"][0].as_str().unwrap().to_owned();
    let shown = report::breakdown(&store.run(&child).await.unwrap().unwrap());
    assert_eq!((&shown["status"], &shown["parent"]), (&json!("done"), &json!(run)));
    assert!(
        shown["answer"].as_str().unwrap().starts_with("[withheld"),
        "it may have read private knowledge: {shown}"
    );
}

/// Functions do not repeat what their process has done, and the process does not repeat what they have done.
#[tokio::test]
async fn processes_and_functions_share_calls() {
    let other = ("crm__create_note", json!({"deal_id": "d-1", "text": "answered"}));
    let model = move |request: &Value| match (is_function(request), results(request).len()) {
        (true, 0) | (false, 2) => calls(&[note(), other.clone()]),
        (true, _) => calls(&[finish(json!({"text": "Dear Sarah", "confidence": "high"}))]),
        (false, 0) => calls(&[note(), (CALL, json!({"contact": "Sarah"}))]),
        (false, _) => end(),
    };
    let (fake, desk) = isolated(model).await;
    let respool = desk.started(&fake).await;
    let store = respool.agents.store().unwrap();
    enqueue(store, invocation("i1", "inbound-email-triage", payload())).await;
    let row = until(store, "i1", is_over).await;
    assert_eq!((row.state, row.attempt), (EntryState::Done, 1), "{row:?}");
    assert_eq!(desk.effects(), ["create_note", "create_note"], "one of the process, one of its function");
    let last = results(&fake.requests().last().unwrap().json());
    assert!(last[2..].iter().all(|text| text.contains("not made again")), "{last:?}");
    respool.killed().await;
}

#[tokio::test]
async fn functions_have_inputs_and_outputs() {
    let model = |request: &Value| match (is_function(request), results(request).len()) {
        (true, 0) => calls(&[("read", json!({"path": "knowledge/margins.md"})), note()]),
        (true, 2) => calls(&[finish(json!({"text": "Dear Sarah", "confidence": "sure"}))]),
        (true, _) => calls(&[finish(json!({"text": "Dear Sarah", "confidence": "high"}))]),
        (false, 0) => calls(&[
            ("read", json!({"path": "functions/compose-response.md"})),
            ("read", json!({"path": "knowledge/margins.md"})),
            (CALL, json!({"contact": "Sarah Connor", "undeclared": "a secret of the parent"})),
        ]),
        (false, _) => end(),
    };
    let (fake, desk) = isolated(model).await;
    let respool = desk.started(&fake).await;
    let store = respool.agents.store().unwrap();
    enqueue(store, invocation("i1", "inbound-email-triage", payload())).await;
    let row = until(store, "i1", is_over).await;
    assert_eq!(row.state, EntryState::Done, "{row:?}");

    let asked: Vec<Value> = fake.requests().iter().map(Seen::json).collect();
    let parent = &asked[0];
    let system = parent["messages"][0]["content"].as_str().unwrap();
    assert!(
        system.contains(&format!("compose-response: Drafts an answer (runs by itself: call `{CALL}`)")),
        "{system}"
    );
    let child = asked.iter().find(|request| is_function(request)).unwrap();
    is_told_of_itself_alone(child);

    let told = results(asked.last().unwrap());
    assert!(told[0].contains(&format!("call `{CALL}`")), "its text is not read: {told:?}");
    assert!(told[1].contains("there is no file"), "its private knowledge is its own: {told:?}");
    assert_eq!(
        serde_json::from_str::<Value>(&told[2]).unwrap(),
        json!({"text": "Dear Sarah", "confidence": "high"})
    );
    assert!(!asked.last().unwrap()["messages"].to_string().contains("12 percent"));
    let own: Vec<&Value> = asked.iter().filter(|request| is_function(request)).collect();
    let corrected = results(own[own.len() - 1]);
    assert!(
        corrected[0].contains("12 percent") && corrected[2].contains("must be one of high, medium, low"),
        "{corrected:?}"
    );
    assert_eq!(desk.effects(), ["create_note"]);

    is_shown_under(store, &row.run.unwrap()).await;
    respool.killed().await;
}

/// Regression: a dry run executed isolated functions and said nothing of them.
#[tokio::test]
async fn dry_runs_list_functions() {
    let model = |request: &Value| match (is_function(request), results(request).len()) {
        (true, 0) => calls(&[note()]),
        (true, _) => calls(&[finish(json!({"text": "Dear Sarah", "confidence": "high"}))]),
        (false, 0) => calls(&[(CALL, json!({"contact": "Sarah"}))]),
        (false, _) => end(),
    };
    let (fake, desk) = isolated(model).await;
    desk.edit("knowledge/margins.md", "type: private", "type: static");
    let respool = desk.started(&fake).await;
    let (expert, process) = ("sales-desk".into(), "inbound-email-triage".into());
    let run = DryRun { expert, process, payload: payload(), state: desk.path("copy") };
    let report = run.run_dry(respool.experts.as_ref().unwrap()).await.unwrap();
    let listed: Vec<(&str, &str)> = report["calls"]
        .as_array()
        .unwrap()
        .iter()
        .map(|call| (call["call"].as_str().unwrap(), call["outcome"].as_str().unwrap()))
        .collect();
    let expected = [("crm__create_note", "not_called"), (CALL, "ok"), ("finish_process", "ok")];
    assert_eq!(listed, expected, "{report:#}");
    assert_eq!(report["calls"][0]["by"], CALL);
    assert_eq!(report["calls"][1]["inputs"], json!({"contact": "Sarah"}));
    assert!(report["calls"][1]["result"].as_str().unwrap().contains("Dear Sarah"));
    assert!(desk.effects().is_empty());
    respool.killed().await;
}

/// A later attempt counts what a function did as done. A function that is not sure ends the process.
#[tokio::test]
async fn later_attempts_repeat_no_call() {
    let model = |request: &Value| match (is_function(request), results(request).len()) {
        (true, 0) => calls(&[note()]),
        (true, _) if results(request)[0].contains("recorded in an earlier attempt") => {
            calls(&[finish(json!({"text": "Perhaps", "confidence": "low"}))])
        }
        (true, _) => calls(&[finish(json!({"text": "Dear Sarah", "confidence": "high"}))]),
        (false, 0) => calls(&[(CALL, json!({"contact": "Sarah"}))]),
        (false, _) => calls(&[("fail_process", json!({"reason": "the moon is wrong"}))]),
    };
    let (fake, desk) = isolated(model).await;
    let respool = desk.started(&fake).await;
    let store = respool.agents.store().unwrap();
    enqueue(store, invocation("i1", "inbound-email-triage", payload())).await;
    let row = until(store, "i1", is_over).await;
    assert_eq!((row.state, row.attempt), (EntryState::Escalated, 2), "{row:?}");
    assert_eq!(desk.effects(), ["create_note"]);
    let told = messages(store, "i1").await;
    assert_eq!((told.len(), &told[0]["kind"]), (1, &json!("escalation")), "{told:?}");
    assert!(told[0]["body"]["reason"].as_str().unwrap().contains("compose-response is not sure"), "{told:?}");
    respool.killed().await;
}

#[tokio::test]
async fn functions_await_consent_across_restarts() {
    let model = |request: &Value| match (is_function(request), results(request).len()) {
        (true, 0) => calls(&[("crm__update_deal_stage", json!({"deal_id": "d-1", "stage": "4"}))]),
        (true, 1) => calls(&[("crm__get_deal", json!({"contact_id": "c-1"}))]),
        (true, _) => calls(&[finish(json!({"text": "moved", "confidence": "high"}))]),
        (false, 0) => calls(&[(CALL, json!({"contact": "Sarah"}))]),
        (false, _) => end(),
    };
    let (fake, desk) = isolated(model).await;
    desk.faults(&json!({"get_deal": ["error", "error"]}));
    let respool = desk.started(&fake).await;
    let store = respool.agents.store().unwrap();
    enqueue(store, invocation("i1", "inbound-email-triage", payload())).await;
    until(store, "i1", |row| row.state == EntryState::Held).await;
    assert_eq!(desk.effects(), Vec::<String>::new());
    respool.killed().await;

    let respool = desk.started(&fake).await;
    let store = respool.agents.store().unwrap();
    let waiting = respool.agents.waiting_approvals(10).await.unwrap();
    respool.agents.decide_approval(&Decision::approve_all(&waiting[0].1, "anna")).await.unwrap();
    // The function's server fails the attempt.
    until(store, "i1", |row| row.note.as_ref().is_some_and(|note| note.contains("(tool_unavailable)"))).await;
    let row = until(store, "i1", is_over).await;
    assert_eq!(
        (row.state, row.attempt),
        (EntryState::Done, 2),
        "the move is answered from the record: {row:?}"
    );
    assert_eq!(desk.effects(), ["update_deal_stage", "get_deal"]);
    respool.killed().await;
}

/// The process ends in the middle of a function, after its effect: another one goes on with it.
#[tokio::test(flavor = "multi_thread")]
async fn killed_functions_continue() {
    let model = |request: &Value| match (is_function(request), results(request).len()) {
        (true, 0) => calls(&[note()]),
        (true, _) => calls(&[finish(json!({"text": "Dear Sarah", "confidence": "high"}))])
            .delay(std::time::Duration::from_millis(700)),
        (false, 0) => calls(&[(CALL, json!({"contact": "Sarah"}))]),
        (false, _) => end(),
    };
    let fake = FakeVllm::thinking(model).await;
    fake.allow_cut_requests();
    let (desk, store) = desk_of_a_process(&fake.url());
    isolate(&desk);
    enqueue(&store, invocation("i1", "inbound-email-triage", payload())).await;
    let mut first = start(&desk, "log-1");
    let is_at_its_end =
        || fake.requests().iter().any(|seen| is_function(&seen.json()) && results(&seen.json()).len() == 1);
    eventually(|| is_at_its_end().then_some(())).await;
    first.kill().await.unwrap();
    let mut second = start(&desk, "log-2");
    let row = until(&store, "i1", is_over).await;
    second.kill().await.unwrap();
    assert_eq!((row.state, row.attempt), (EntryState::Done, 1), "{row:?}");
    assert_eq!(desk.effects(), ["create_note"], "once");
    assert_eq!(children(&store).await.len(), 1, "it is the same run");
    let listed = std::process::Command::new(env!("CARGO_BIN_EXE_respool"))
        .args(["runs", "--config", "respool.toml", "list"])
        .current_dir(desk.path("."))
        .env_clear()
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines[0].starts_with("run-") && lines[0].ends_with("expert/sales-desk  inbound-email-triage"),
        "{text}"
    );
    assert!(
        lines[1].starts_with("  run-")
            && lines[1].ends_with("expert/sales-desk/compose-response  inbound-email-triage"),
        "{text}"
    );
}
