//! The separation of one expert's runs: private knowledge from lists, scratchpads from each other, and
//! operations that have one name. Bound to real MCP servers, with a scripted model.

use agent::{Decision, report};
use serde_json::{Value, json};
use store::{EntryState, RunFilter};

use crate::experts_run::{Desk, calls, enqueue, invocation, is_over, messages, results, task, triage, until};
use crate::support::client::{Request, exchange};
use crate::support::fake_vllm::FakeVllm;
use crate::support::replies;
use crate::support::script::Script;
use crate::support::wait_until;

/// A process that preloads private knowledge left it in state, learnings and results, which the other
/// processes read.
#[tokio::test]
async fn private_knowledge_makes_all_processes_private() {
    for is_named in [false, true] {
        let fake = FakeVllm::thinking(triage).await;
        let desk = Desk::new(&fake.url());
        desk.edit("functions/determine-next-action.md", "knowledge: [knowledge/margins.md]\n", "");
        if is_named {
            desk.edit(
                "processes/move-deal.md",
                "tools: [crm]",
                "tools: [crm]\ncontext: [knowledge/margins.md]",
            );
        }
        let respool = desk.started(&fake).await;
        let store = respool.agents.store().unwrap();
        let payload = json!({"message_id": "m1", "contact_id": "sarah@acme.example"});
        enqueue(store, invocation("i1", "inbound-email-triage", payload)).await;
        until(store, "i1", is_over).await;
        let run = store.newest(RunFilter::All, 1).await.unwrap().remove(0).id;
        let shown = report::breakdown(&store.run(&run).await.unwrap().unwrap());
        let is_withheld = shown["answer"].as_str().unwrap().starts_with("[withheld");
        assert_eq!(is_withheld, is_named, "{shown:#}");
        respool.killed().await;
    }
}

/// A server that quoted a call's inputs in its error had them shown in lists.
#[tokio::test]
async fn lists_hide_reasons_of_private_failures() {
    for on_failure in ["on_failure: escalate", "on_failure: dead_letter"] {
        let fake = FakeVllm::thinking(triage).await;
        let desk = Desk::new(&fake.url());
        desk.change(&[("on_failure: escalate", on_failure)]);
        desk.faults(&json!({"get_deal": vec!["error"; 20]}));
        let respool = desk.started(&fake).await;
        let store = respool.agents.store().unwrap();
        let payload = json!({"message_id": "m1", "contact_id": "sarah@acme.example"});
        enqueue(store, invocation("i1", "inbound-email-triage", payload)).await;
        let row = until(store, "i1", is_over).await;
        let note = row.note.unwrap();
        assert!(note.contains("(tool_unavailable)") && note.contains("withheld"), "{note}");
        assert!(!note.contains("service behind it"), "{note}");
        assert!(note.ends_with("`respool expert outbox show i1:failed` shows it"), "{note}");
        let told = messages(store, "i1").await;
        assert!(told[0]["body"]["reason"].as_str().unwrap().contains("service behind it"), "{told:?}");
        respool.killed().await;
    }
}

/// The second of two invocations took the file of the first, and the first that ended deleted it.
#[tokio::test]
async fn invocations_have_their_own_scratchpads() {
    let model = |request: &Value| {
        let task = task(request);
        let between = |before: &str, after: &str| {
            task.split_once(before).unwrap().1.split_once(after).unwrap().0.to_owned()
        };
        let pad = between("Working data goes into `", "`");
        match results(request).len() {
            0 => calls(&[("write", json!({"path": pad, "content": between("\"stage\": \"", "\"")}))]),
            1 => calls(&[("crm__update_deal_stage", json!({"deal_id": "d-1", "stage": "4"}))]),
            2 => calls(&[("read", json!({"path": pad}))]),
            _ => calls(&[("finish_process", json!({"summary": results(request)[2]}))]),
        }
    };
    let fake = FakeVllm::thinking(model).await;
    let desk = Desk::new(&fake.url());
    desk.edit(
        "processes/move-deal.md",
        "tools: [crm]",
        "tools: [crm]\nscratchpad: scratch/deal-{deal_id}.md",
    );
    let respool = desk.started(&fake).await;
    let store = respool.agents.store().unwrap();
    let begin = async |id: &str| {
        let payload = json!({"deal_id": "d-1", "stage": id});
        let invocation = experts::Invocation { lane: None, ..invocation(id, "move-deal", payload) };
        enqueue(store, invocation).await;
    };
    for id in ["first", "second"] {
        begin(id).await;
        until(store, id, |row| row.state == EntryState::Held).await;
    }
    let named = desk.state("scratch/deal-d-1.md");
    assert_eq!(std::fs::read_to_string(&named).unwrap(), "first");
    let mut waiting = respool.agents.waiting_approvals(10).await.unwrap();
    for id in ["first", "second"] {
        let (_, request) = waiting.remove(0);
        respool.agents.decide_approval(&Decision::approve_all(&request, "anna")).await.unwrap();
        assert_eq!(until(store, id, is_over).await.state, EntryState::Done);
        let told = messages(store, id).await;
        assert_eq!(told.last().unwrap()["body"]["summary"], id, "it reads its own notes");
    }
    let left = std::fs::read_dir(desk.state("scratch")).unwrap().map(|entry| entry.unwrap().path());
    assert_eq!(left.collect::<Vec<_>>(), Vec::<std::path::PathBuf>::new(), "both are deleted");
    begin("third").await;
    until(store, "third", |row| row.state == EntryState::Held).await;
    assert!(named.exists(), "the name is free again");
    respool.killed().await;
}

/// The server's own tool was offered under the name that the user had given to another one.
#[tokio::test]
async fn mapped_operations_hide_server_tools() {
    let model = |request: &Value| match results(request).len() {
        0 => calls(&[("crm__update_deal_stage", json!({"deal_id": "d-1", "text": "t"}))]),
        _ => Script::json(200, &replies::text("Done.")),
    };
    let fake = FakeVllm::thinking(model).await;
    let desk = Desk::new(&fake.url());
    desk.change(&[("[tools/crm.yaml, tools/email.yaml]", "[tools/email.yaml]")]);
    let mapped = "operations: {update_deal_stage: create_note}";
    desk.bind(&format!(
        "tools:\n  crm: {{type: mcp, server: crm-fake, {mapped}}}\n  email: {{type: mcp, server: mail-fake}}\n"
    ));
    let respool = desk.started(&fake).await;
    let store = respool.agents.store().unwrap();
    let body = json!({"model": "expert/sales-desk", "messages": [{"role": "user", "content": "Note it."}]});
    exchange(respool.address, &Request::chat(&body)).await;
    let first = fake.requests()[0].json();
    let offered = first["tools"].as_array().unwrap().iter();
    let named = offered.filter(|tool| tool["function"]["name"] == "crm__update_deal_stage");
    assert_eq!(named.count(), 1, "{first:#}");
    let (row, request) = respool.agents.waiting_approvals(10).await.unwrap().remove(0);
    respool.agents.decide_approval(&Decision::approve_all(&request, "anna")).await.unwrap();
    wait_until("the call is made", async || !desk.effects().is_empty()).await;
    assert_eq!(desk.effects(), ["create_note"]);
    drop(store.run(&row.run).await.unwrap());
    respool.killed().await;
}
