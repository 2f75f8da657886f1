//! Experts at work: bound to real MCP servers over standard input and output, served as models, and with
//! processes executed from the queue. The model is scripted: what it does next follows from its prompt alone,
//! so that any process gets the same.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use respool::agent::CallOutcome;
use respool::agent::{Decision, report};
use respool::expert::{DryRun, Invocation, InvocationLane, Origin, message_json, settled_operations};
use respool::store::{EntryRow, EntryState, MessageFilter, Queue as _, RunFilter, Store, StoreConfig};
use serde_json::{Value, json};

use crate::support::client::{Request, exchange};
use crate::support::fake_vllm::FakeVllm;
use crate::support::look_within;
use crate::support::replies;
use crate::support::respool::Respool;
use crate::support::script::Script;
use crate::support::wait_until;

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples");

/// The installed sales desk with its fake servers, in a directory of its own.
pub struct Desk {
    dir: tempfile::TempDir,
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

impl Desk {
    pub fn new(upstream: &str) -> Self {
        let desk = Self { dir: tempfile::tempdir().unwrap() };
        copy(&Path::new(EXAMPLES).join("experts/sales-desk"), &desk.path("experts/sales-desk"));
        desk.bind("tools:\n  crm: {type: mcp, server: crm-fake}\n  email: {type: mcp, server: mail-fake}\n");
        fs::write(desk.path("respool.toml"), desk.toml(upstream)).unwrap();
        desk
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn bind(&self, bindings: &str) {
        fs::create_dir_all(self.path("expert-config/sales-desk")).unwrap();
        fs::write(self.path("expert-config/sales-desk/bindings.yaml"), bindings).unwrap();
    }

    /// Changes a file of the package.
    pub fn edit(&self, file: &str, from: &str, to: &str) {
        let path = self.path("experts/sales-desk").join(file);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{from}");
        fs::write(path, text.replacen(from, to, 1)).unwrap();
    }

    /// Changes the package's `expert.yaml`.
    pub fn change(&self, replaced: &[(&str, &str)]) {
        let path = self.path("experts/sales-desk/expert.yaml");
        let mut text = fs::read_to_string(&path).unwrap();
        for (old, new) in replaced {
            assert!(text.contains(old), "{old}");
            text = text.replacen(old, new, 1);
        }
        fs::write(path, text).unwrap();
    }

    /// The first failure of a process makes its invocation a dead letter.
    pub fn fails_for_good_at_once(&self) {
        self.change(&[
            ("on_failure: escalate", "on_failure: dead_letter"),
            ("max_attempts: 3", "max_attempts: 1"),
        ]);
    }

    pub fn toml(&self, upstream: &str) -> String {
        let dir = self.dir.path().display();
        let server = |name: &str, tools: &str| {
            format!(
                "[tools.mcp.{name}]\ncommand = \"python3\"\nargs = [\"{EXAMPLES}/experts-demo/servers/fake_mcp.py\", \
                 \"{EXAMPLES}/experts-demo/servers/{tools}\", \"{dir}/journal\"]\n"
            )
        };
        format!(
            "state_dir = \"{dir}/state\"\n[log]\nformat = \"json\"\nerrors_dir = \"{dir}/logs\"\n[[upstream]]\nname = \"box\"\nurl = \"{upstream}\"\n\
             [models.\"gpt-oss-20b\"]\ncontext_window = 65536\n\
             [experts]\ndir = \"{dir}/experts\"\nworkspace = \"{dir}/workspace\"\nmodel = \"gpt-oss-20b\"\nlease = \"2s\"\n{}{}",
            server("crm-fake", "crm.json"),
            server("mail-fake", "email.json"),
        )
    }

    pub async fn started(&self, fake: &FakeVllm) -> Respool {
        Respool::configured(&self.toml(&fake.url())).await
    }

    pub fn state(&self, name: &str) -> PathBuf {
        self.path("workspace/expert-state/sales-desk").join(name)
    }

    /// The calls that reached the servers, as `tool`.
    pub fn effects(&self) -> Vec<String> {
        let journal = fs::read_to_string(self.path("journal")).unwrap_or_default();
        let tool =
            |line: &str| serde_json::from_str::<Value>(line).unwrap()["tool"].as_str().unwrap().to_owned();
        journal.lines().map(tool).collect()
    }

    pub fn faults(&self, faults: &Value) {
        fs::write(self.path("journal.faults"), faults.to_string()).unwrap();
    }
}

pub fn invocation(id: &str, process: &str, payload: Value) -> Invocation {
    Invocation {
        id: id.into(),
        expert: "sales-desk".into(),
        digest: String::new(),
        process: process.into(),
        payload,
        mapped: serde_json::Map::new(),
        origin: Origin::Person,
        lane: Some(InvocationLane::Key { path: "contact_id".into(), value: "sarah@acme.example".into() }),
        dedupe: None,
        asked: now(),
        warnings: Vec::new(),
    }
}

pub fn now() -> u64 {
    let since = std::time::Duration::from_millis(clock::now());
    u64::try_from(since.as_millis()).unwrap()
}

pub async fn enqueue(store: &Store, invocation: Invocation) {
    store.enqueue(invocation.into_entry(Duration::ZERO)).await.unwrap();
}

/// Waits until an entry is as it should be.
pub async fn until(store: &Store, id: &str, is_so: impl Fn(&EntryRow) -> bool) -> EntryRow {
    let mut last = None;
    let look = async || {
        let row = store.entry(id).await.unwrap().unwrap();
        last = Some(row.clone());
        is_so(&row).then_some(row)
    };
    let found = look_within(Duration::from_mins(2), look).await;
    found.unwrap_or_else(|| panic!("it stays {last:?}"))
}

pub fn is_over(row: &EntryRow) -> bool {
    matches!(row.state, EntryState::Done | EntryState::Failed | EntryState::DeadLetter)
}

pub async fn messages(store: &Store, id: &str) -> Vec<Value> {
    let filter = MessageFilter { entry: Some(id.to_owned()), ..MessageFilter::default() };
    let mut all: Vec<Value> = store.messages(filter, 100).await.unwrap().iter().map(message_json).collect();
    all.reverse();
    all
}

pub fn calls(calls: &[(&str, Value)]) -> Script {
    let calls: Vec<(&str, String)> =
        calls.iter().map(|(name, arguments)| (*name, arguments.to_string())).collect();
    let calls: Vec<(&str, &str)> =
        calls.iter().map(|(name, arguments)| (*name, arguments.as_str())).collect();
    Script::json(200, &replies::calls(&calls))
}

/// The texts of the tool results in a prompt.
pub fn results(request: &Value) -> Vec<String> {
    let messages = request["messages"].as_array().unwrap();
    let tool = messages.iter().filter(|message| message["role"] == "tool");
    tool.map(|message| message["content"].as_str().unwrap_or_default().to_owned()).collect()
}

pub fn task(request: &Value) -> String {
    let messages = request["messages"].as_array().unwrap();
    messages.iter().find(|message| message["role"] == "user").unwrap()["content"].as_str().unwrap().to_owned()
}

/// The note that the flow leaves.
pub fn triage_note() -> (&'static str, Value) {
    ("crm__create_note", json!({"deal_id": "d-1", "text": "buying signal"}))
}

/// The seed's flow: three look-ups, three functions, a draft, a note, state, the end. A later attempt reads
/// the scratchpad and goes on.
pub fn triage(request: &Value) -> Script {
    // A call that was made again is no step.
    let is_step = |result: &&String| !result.contains("this call was made before");
    let done = results(request).iter().filter(is_step).count();
    let is_later = !task(request).contains("This is attempt 1.");
    let pad = "scratch/triage-m1.md";
    let first: Vec<(&str, Value)> = vec![
        ("email__get_email", json!({"message_id": "m1"})),
        ("crm__get_contact", json!({"email": "sarah@acme.example"})),
        ("write", json!({"path": pad, "content": "- [x] mail\n- [x] contact c-1\n"})),
    ];
    let again: Vec<(&str, Value)> = vec![("read", json!({"path": pad}))];
    let rest: Vec<(&str, Value)> = vec![
        ("crm__get_deal", json!({"contact_id": "c-1"})),
        ("read", json!({"path": "functions/classify-email-intent.md"})),
        ("read", json!({"path": "functions/determine-next-action.md"})),
        ("read", json!({"path": "functions/compose-response.md"})),
        (
            "email__send",
            json!({"to": "sarah@acme.example", "text": "Dear Sarah, how about a demo on Thursday?"}),
        ),
        triage_note(),
        ("read", json!({"path": "state/pipeline.md"})),
        ("write", json!({"path": "state/pipeline.md", "content": "## Moving\n\n- Acme: demo\n"})),
        (
            "finish_process",
            json!({"summary": "Buying signal from Sarah at Acme.", "outputs": {"intent": "buying_signal", "next_action": "schedule a demo"}}),
        ),
    ];
    let steps = [if is_later { again } else { first }, rest].concat();
    match steps.get(done) {
        Some(step) => calls(std::slice::from_ref(step)),
        None => panic!("asked after the end: {request:#}"),
    }
}

fn mail() -> Value {
    json!({"message_id": "m1", "contact_id": "sarah@acme.example"})
}

#[tokio::test]
async fn mails_become_drafts_notes_and_results() {
    let fake = FakeVllm::thinking(triage).await;
    let desk = Desk::new(&fake.url());
    let respool = desk.started(&fake).await;
    let store = respool.agents.store().unwrap();
    enqueue(store, invocation("i1", "inbound-email-triage", mail())).await;
    let row = until(store, "i1", is_over).await;
    assert_eq!((row.state, row.attempt), (EntryState::Done, 1), "{row:?}");
    assert_eq!(
        desk.effects(),
        ["get_email", "get_contact", "get_deal", "create_note"],
        "a draft is not sent"
    );
    assert!(!desk.state("scratch/triage-m1.md").exists(), "the scratchpad goes on success");
    assert_eq!(fs::read_to_string(desk.state("state/pipeline.md")).unwrap(), "## Moving\n\n- Acme: demo\n");
    let told = messages(store, "i1").await;
    let kinds: Vec<&str> = told.iter().map(|message| message["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["draft", "result"]);
    assert_eq!(told[0]["body"]["operation"], "email.send");
    assert_eq!(told[0]["body"]["inputs"]["to"], "sarah@acme.example");
    let result = &told[1]["body"];
    assert_eq!(result["summary"], "Buying signal from Sarah at Acme.");
    assert_eq!(result["outputs"], json!({"intent": "buying_signal", "next_action": "schedule a demo"}));
    assert_eq!(result["drafts"][0]["operation"], "email.send");
    let first = fake.requests()[0].json();
    let names: Vec<&str> = first["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["function"]["name"].as_str().unwrap())
        .collect();
    assert!(names.contains(&"crm__get_contact") && names.contains(&"email__send"), "{names:?}");
    let task = task(&first);
    assert!(
        task.contains("## Moving")
            && task.contains("\"message_id\": \"m1\"")
            && task.contains("scratch/triage-m1.md"),
        "{task}"
    );
    let system = first["messages"][0]["content"].as_str().unwrap();
    assert!(!system.contains("margins") && system.contains("email.send: call `email__send`"), "{system}");
    respool.killed().await;
}

#[tokio::test]
async fn only_failed_steps_are_repeated() {
    let fake = FakeVllm::thinking(triage).await;
    let desk = Desk::new(&fake.url());
    desk.faults(&json!({"get_deal": ["error", "error"]}));
    let respool = desk.started(&fake).await;
    let store = respool.agents.store().unwrap();
    enqueue(store, invocation("i1", "inbound-email-triage", mail())).await;
    let failed = until(store, "i1", |row| row.state == EntryState::Waiting && row.attempt == 1).await;
    assert!(failed.note.unwrap().contains("(tool_unavailable)"), "why is kept");
    assert!(desk.state("scratch/triage-m1.md").exists(), "the scratchpad stays for the next attempt");
    let row = until(store, "i1", is_over).await;
    assert_eq!((row.state, row.attempt), (EntryState::Done, 2));
    assert_eq!(desk.effects(), ["get_email", "get_contact", "get_deal", "create_note"]);
    let later = fake
        .requests()
        .iter()
        .map(|seen| task(&seen.json()))
        .find(|task| task.contains("This is attempt 2."))
        .unwrap();
    assert!(
        later.contains("It failed.") && later.contains("email__get_email") && later.contains("read it first"),
        "{later}"
    );
    let kinds: Vec<String> =
        messages(store, "i1").await.iter().map(|one| one["kind"].as_str().unwrap().to_owned()).collect();
    assert_eq!(kinds, ["draft", "result"]);
    respool.killed().await;
}

/// Only the model learnt that it is not known whether a call took effect, and the person was told that all
/// was done.
#[tokio::test]
async fn an_unknown_outcome_reaches_the_person() {
    let model = |request: &Value| match results(request).len() {
        0 => calls(&[("crm__update_deal_stage", json!({"deal_id": "d-1", "stage": "4"}))]),
        _ => calls(&[("finish_process", json!({"summary": "done"}))]),
    };
    let fake = FakeVllm::thinking(model).await;
    let desk = Desk::new(&fake.url());
    desk.faults(&json!({"update_deal_stage": ["die-after"]}));
    let respool = desk.started(&fake).await;
    let store = respool.agents.store().unwrap();
    enqueue(store, invocation("i1", "move-deal", json!({"deal_id": "d-1", "stage": "4"}))).await;
    until(store, "i1", |row| row.state == EntryState::Held).await;
    let waiting = respool.agents.waiting_approvals(10).await.unwrap().remove(0);
    respool.agents.decide_approval(&Decision::approve_all(&waiting.1, "anna")).await.unwrap();
    assert_eq!(until(store, "i1", is_over).await.state, EntryState::Done);
    assert_eq!(desk.effects(), ["update_deal_stage"]);
    let told = messages(store, "i1").await;
    let result = told.iter().find(|one| one["kind"] == "result").unwrap();
    let unknown = &result["body"]["unknown_outcomes"];
    assert_eq!(unknown[0]["operation"], "crm.update_deal_stage", "{told:?}");
    assert_eq!(unknown[0]["inputs"], json!({"deal_id": "d-1", "stage": "4"}));
    let row = store.approval(&waiting.0.id).await.unwrap().unwrap();
    let shown = respool::agent::approval_details(store, &row).await.unwrap();
    assert_eq!(shown["calls"][0]["outcome"], "transient", "{shown}");
    assert!(shown["calls"][0]["note"].as_str().unwrap().contains("not known whether"), "{shown}");
    respool.killed().await;
}

/// A call without its required arguments reached the server after two corrections, and a person was asked for
/// consent to it.
#[tokio::test]
async fn calls_need_their_required_arguments() {
    let model = |request: &Value| match results(request).len() {
        0 => calls(&[("crm__create_note", json!({"deal_id": "d-1"}))]),
        1 => calls(&[("crm__update_deal_stage", json!({"deal_id": "d-1"}))]),
        2 => calls(&[("edit", json!({"path": "state/pipeline.md"}))]),
        _ => calls(&[("finish_process", json!({"summary": "s"}))]),
    };
    let fake = FakeVllm::thinking(model).await;
    let desk = Desk::new(&fake.url());
    let respool = desk.started(&fake).await;
    let store = respool.agents.store().unwrap();
    enqueue(store, invocation("i1", "move-deal", json!({"deal_id": "d-1", "stage": "4"}))).await;
    let row = until(store, "i1", |row| is_over(row) || row.state == EntryState::Held).await;
    assert_eq!(row.state, EntryState::Done, "nobody is asked: {row:?}");
    assert_eq!(desk.effects(), Vec::<String>::new());
    let told = results(&fake.requests().last().unwrap().json());
    assert!(told.iter().all(|result| result.contains("the arguments do not fit")), "{told:?}");
    respool.killed().await;
}

/// One hiccup of a server cost a whole attempt, and with a single attempt the process.
#[tokio::test]
async fn reads_are_repeated_after_protocol_errors() {
    let fake = FakeVllm::thinking(triage).await;
    let desk = Desk::new(&fake.url());
    desk.faults(&json!({"get_deal": ["error"]}));
    let respool = desk.started(&fake).await;
    let store = respool.agents.store().unwrap();
    enqueue(store, invocation("i1", "inbound-email-triage", mail())).await;
    let row = until(store, "i1", is_over).await;
    assert_eq!((row.state, row.attempt), (EntryState::Done, 1), "{row:?}");
    assert_eq!(desk.effects(), ["get_email", "get_contact", "get_deal", "create_note"]);
    respool.killed().await;
}

/// When the record of a run cannot be read, respool does not know which calls the run made, so it makes no
/// more.
#[tokio::test(flavor = "multi_thread")]
async fn unreadable_runs_stop_the_work() {
    let fake = FakeVllm::thinking(triage).await;
    let desk = Desk::new(&fake.url());
    desk.faults(&json!({"get_deal": ["error", "error"]}));
    let respool = desk.started(&fake).await;
    let store = respool.agents.store().unwrap();
    enqueue(store, invocation("i1", "inbound-email-triage", mail())).await;
    until(store, "i1", |row| row.state == EntryState::Waiting && row.attempt == 1).await;
    let database = rusqlite::Connection::open(store.place()).unwrap();
    database.execute("UPDATE events SET body = '{\"from_the_future\":{}}' WHERE seq = 3", []).unwrap();
    let row = until(store, "i1", is_over).await;
    assert_eq!(row.state, EntryState::DeadLetter, "{row:?}");
    assert!(row.note.unwrap().contains("written by another version of respool"));
    assert_eq!(desk.effects(), ["get_email", "get_contact"]);
    let told = messages(store, "i1").await;
    assert!(told.iter().any(|one| one["kind"] == "escalation"), "{told:?}");
    respool.killed().await;
}

/// A successful call that may not be repeated is answered from the record, even if a later attempt makes it
/// again.
#[tokio::test]
async fn later_attempts_repeat_no_success() {
    let model = |request: &Value| {
        let is_later = !task(request).contains("This is attempt 1.");
        match (results(request).len(), is_later) {
            (0, _) => calls(&[
                ("crm__create_note", json!({"text": "once", "deal_id": "d-1"})),
                ("email__send", json!({"to": "a", "text": "b"})),
            ]),
            (2, false) => calls(&[("fail_process", json!({"reason": "the moon is wrong"}))]),
            _ => calls(&[(
                "finish_process",
                json!({"summary": "s", "outputs": {"intent": "nonsense", "next_action": "n"}}),
            )]),
        }
    };
    let fake = FakeVllm::thinking(model).await;
    let desk = Desk::new(&fake.url());
    let respool = desk.started(&fake).await;
    let store = respool.agents.store().unwrap();
    enqueue(store, invocation("i1", "inbound-email-triage", mail())).await;
    let row = until(store, "i1", is_over).await;
    assert_eq!((row.state, row.attempt), (EntryState::Done, 2));
    assert_eq!(desk.effects(), ["create_note"]);
    let last = results(&fake.requests().last().unwrap().json());
    assert!(last[0].contains("[recorded in an earlier attempt, not made again]"), "{last:?}");
    assert!(last[1].contains("in an earlier attempt, and not again"), "{last:?}");
    assert!(last[2].contains("must be one of buying_signal, question, other"), "one correction: {last:?}");
    let told = messages(store, "i1").await;
    let kinds: Vec<&str> = told.iter().map(|message| message["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["draft", "result"], "a draft is handed over once");
    assert_eq!(told[1]["body"]["outputs"], json!({"next_action": "n"}));
    assert!(told[1]["body"]["problems"][0].as_str().unwrap().contains("`intent`"));
    respool.killed().await;
}

/// A replay knows what was done before: neither the note nor the draft comes again.
#[tokio::test]
async fn a_replay_hands_nothing_over_again() {
    let model = |request: &Value| {
        let done = results(request);
        match done.last() {
            None => calls(&[
                ("crm__create_note", json!({"text": "once", "deal_id": "d-1"})),
                ("email__send", json!({"to": "a", "text": "b"})),
            ]),
            Some(last) if !last.contains("in an earlier attempt") => {
                calls(&[("fail_process", json!({"reason": "the moon is wrong"}))])
            }
            _ => calls(&[(
                "finish_process",
                json!({"summary": "s", "outputs": {"intent": "other", "next_action": "n"}}),
            )]),
        }
    };
    let fake = FakeVllm::thinking(model).await;
    let desk = Desk::new(&fake.url());
    desk.fails_for_good_at_once();
    let respool = desk.started(&fake).await;
    let store = respool.agents.store().unwrap();
    enqueue(store, invocation("i1", "inbound-email-triage", mail())).await;
    assert_eq!(until(store, "i1", is_over).await.state, EntryState::DeadLetter);
    let stored = Invocation::read(&store.entry("i1").await.unwrap().unwrap().payload).unwrap();
    let settled = settled_operations(store, &stored).await.unwrap();
    let expected =
        [("crm.create_note".to_owned(), CallOutcome::Ok), ("email.send".to_owned(), CallOutcome::HandedOver)];
    assert_eq!(settled, expected);
    assert!(store.replay("i1", "i2").await.unwrap());
    assert_eq!(until(store, "i2", is_over).await.state, EntryState::Done);
    assert_eq!(desk.effects(), ["create_note"]);
    let kinds = async |id: &str| -> Vec<String> {
        messages(store, id).await.iter().map(|one| one["kind"].as_str().unwrap().to_owned()).collect()
    };
    // The second message is only kept: it has the reason, which lists withhold.
    assert_eq!(kinds("i1").await, ["draft", "escalation"]);
    assert_eq!(kinds("i2").await, ["result"]);
    respool.killed().await;
}

#[tokio::test]
async fn the_last_attempt_informs_the_person() {
    let model = |request: &Value| {
        if request["tools"].is_null() {
            return Script::json(200, &replies::text("Ask Sarah for the number of her deal."));
        }
        calls(&[("crm__get_deal", json!({"contact_id": "c-1"}))])
    };
    let fake = FakeVllm::thinking(model).await;
    let desk = Desk::new(&fake.url());
    desk.faults(&json!({"get_deal": vec!["error"; 9]}));
    let respool = desk.started(&fake).await;
    let store = respool.agents.store().unwrap();
    enqueue(store, invocation("i1", "inbound-email-triage", mail())).await;
    let row = until(store, "i1", is_over).await;
    assert_eq!((row.state, row.attempt), (EntryState::Failed, 3));
    let told = messages(store, "i1").await;
    assert_eq!((told.len(), &told[0]["kind"]), (1, &json!("escalation")));
    let body = &told[0]["body"];
    assert!(body["reason"].as_str().unwrap().contains("crm__get_deal"), "{told:?}");
    assert_eq!(body["recommendation"], "Ask Sarah for the number of her deal.");
    assert_eq!((&body["recommended_by"], &body["contact"]), (&json!("agent"), &json!("sarah@acme.example")));
    assert_eq!(body["payload"], mail());
    let ask = Request::get(&path).header("authorization", &format!("Bearer {key}"));
    assert_eq!(exchange(served.address, &ask).await.json()["event"], shown["event"]);
    let approve = Request::post(&path, r#"{"approve": true}"#);
    let approve = approve.header("authorization", &format!("Bearer {key}"));
    assert_eq!(exchange(served.address, &approve).await.status, 200);
    assert_eq!(until(store, "i1", is_over).await.state, EntryState::Done);
    assert_eq!(desk.effects(), ["update_deal_stage"]);
    served.killed().await;
}

/// The person who looks at a dry run sees what would be done, and nothing of private knowledge.
#[tokio::test]
async fn dry_runs_hide_private_knowledge() {
    let model = |request: &Value| match results(request).len() {
        0 => calls(&[
            ("read", json!({"path": "knowledge/margins.md"})),
            ("crm__get_contact", json!({"email": "a"})),
        ]),
        _ => calls(&[("finish_process", json!({"summary": "s"}))]),
    };
    let fake = FakeVllm::thinking(model).await;
    let desk = Desk::new(&fake.url());
    let margins = fs::read_to_string(desk.path("experts/sales-desk/knowledge/margins.md")).unwrap();
    let respool = desk.started(&fake).await;
    let run = DryRun {
        expert: "sales-desk".into(),
        process: "move-deal".into(),
        payload: json!({}),
        state: desk.path("copy"),
    };
    let report = run.run_dry(respool.experts.as_ref().unwrap()).await.unwrap();
    let told = results(&fake.requests().last().unwrap().json());
    assert_eq!(told[0], margins, "the model reads it");
    assert!(report["calls"][0]["result"].as_str().unwrap().starts_with("[withheld"), "{report}");
    assert_eq!(report["calls"][1]["result"], told[1].as_str(), "{report}");
    respool.killed().await;
}

/// The command of docs/experts.md.
#[test]
fn the_documented_example_runs() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new("sh");
    command.arg(format!("{EXAMPLES}/experts-demo/try.sh")).arg(dir.path());
    let out = command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("RESPOOL", env!("CARGO_BIN_EXE_respool"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{text}{}", String::from_utf8_lossy(&out.stderr));
    assert!(
        text.contains("\"topic\": \"outage\"") && text.contains("\"operation\": \"tickets.reply\""),
        "{text}"
    );
    let journal = fs::read_to_string(dir.path().join("journal")).unwrap();
    assert_eq!(journal.lines().count(), 3, "find, current and add_note: {journal}");
}

/// The commits that docs/runs.md names: an accepted event, the beginning of a call that may not be
/// repeated, a draft, a request for consent.
#[tokio::test]
async fn few_commits_wait_for_the_disk() {
    let fake = FakeVllm::thinking(triage).await;
    let desk = Desk::new(&fake.url());
    let respool = desk.started(&fake).await;
    let store = respool.agents.store().unwrap();
    let (_, before) = store.commits();
    enqueue(store, invocation("i1", "inbound-email-triage", mail())).await;
    until(store, "i1", is_over).await;
    let (all, synchronised) = store.commits();
    // The event, the draft, and the beginning of the note. `edit` may not be repeated either, and is not
    // called.
    assert_eq!(synchronised - before, 3, "of {all}");
    respool.killed().await;
}

/// A rule of the owner's policy stands above the package's `auto`.
#[tokio::test]
async fn rules_ask_despite_auto() {
    let model = |request: &Value| match results(request).len() {
        0 => calls(&[("crm__get_contact", json!({"email": "a"}))]),
        1 => calls(&[("crm__create_note", json!({"deal_id": "d-1", "text": "t"}))]),
        _ => calls(&[("finish_process", json!({"summary": "s"}))]),
    };
    let fake = FakeVllm::thinking(model).await;
    let desk = Desk::new(&fake.url());
    let toml = desk.toml(&fake.url());
    let rule = "[[tools.policy.rule]]\ntool = \"mcp:crm-fake/create_note\"\nthen = \"ask\"\n";
    let respool = Respool::configured(&format!("{toml}{rule}")).await;
    let store = respool.agents.store().unwrap();
    enqueue(store, invocation("i1", "move-deal", json!({"deal_id": "d-1", "stage": "4"}))).await;
    until(store, "i1", |row| row.state == EntryState::Held).await;
    assert_eq!(desk.effects(), ["get_contact"], "the default of the policy asks nobody");
    let system = fake.requests()[0].json()["messages"][0]["content"].as_str().unwrap().to_owned();
    let (_, confirm) = system.split_once("CONFIRM").unwrap();
    assert!(confirm.contains("crm.create_note"), "the model is told the tier that holds: {system}");
    let waiting = respool.agents.waiting_approvals(10).await.unwrap();
    respool.agents.decide_approval(&Decision::approve_all(&waiting[0].1, "anna")).await.unwrap();
    assert_eq!(until(store, "i1", is_over).await.state, EntryState::Done);
    assert_eq!(desk.effects(), ["get_contact", "create_note"], "consent to the call answers the rule");
    respool.killed().await;
}

/// Results, drafts, questions and the runs that made them over HTTP, for operators alone.
#[tokio::test]
async fn only_operators_see_the_outbox() {
    let fake = FakeVllm::thinking(triage).await;
    let desk = Desk::new(&fake.url());
    let toml = format!(
        "client_keys_env = \"CLIENTS\"\noperator_keys_env = \"OPERATORS\"\n{}",
        desk.toml(&fake.url())
    );
    let keys = [("CLIENTS", "sk-one"), ("OPERATORS", "sk-root")];
    let respool = Respool::started_in(&toml, &keys, None).await;
    let store = respool.agents.store().unwrap();
    enqueue(store, invocation("i1", "inbound-email-triage", mail())).await;
    until(store, "i1", is_over).await;
    let send = async |request: Request, key: &str| {
        let reply =
            exchange(respool.address, &request.header("authorization", &format!("Bearer {key}"))).await;
        (reply.status, reply.json())
    };
    for request in [
        Request::get("/v1/outbox"),
        Request::get("/v1/outbox/i1:result"),
        Request::post("/v1/outbox/i1:result/done", ""),
    ] {
        let (status, body) = send(request, "sk-one").await;
        assert_eq!((status, body["error"]["code"].as_str()), (403, Some("operators_only")), "{body}");
    }
    let (_, all) = send(Request::get("/v1/outbox?expert=sales-desk&invocation=i1"), "sk-root").await;
    let kinds: Vec<&str> =
        all["data"].as_array().unwrap().iter().map(|one| one["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["result", "draft"]);
    let (_, drafts) = send(Request::get("/v1/outbox?kind=draft"), "sk-root").await;
    assert_eq!(drafts["data"][0]["body"]["operation"], "email.send");
    let (status, wrong) = send(Request::get("/v1/outbox?kind=letter"), "sk-root").await;
    assert_eq!((status, wrong["error"]["param"].as_str()), (400, Some("kind")), "{wrong}");
    let (_, one) = send(Request::get("/v1/outbox/i1:result"), "sk-root").await;
    assert_eq!(one["body"]["summary"], "Buying signal from Sarah at Acme.");
    assert_eq!(send(Request::post("/v1/outbox/i1:result/done", ""), "sk-root").await.0, 200);
    assert!(send(Request::get("/v1/outbox/i1:result"), "sk-root").await.1["delivered"].is_u64());
    assert_eq!(send(Request::get("/v1/outbox/other"), "sk-root").await.0, 404);
    let (_, runs) = send(Request::get("/v1/runs"), "sk-root").await;
    assert_eq!(runs["data"][0]["agent"], "expert/sales-desk", "{runs}");
    let run = format!("/v1/runs/{}", runs["data"][0]["id"].as_str().unwrap());
    assert_eq!(send(Request::get(&run), "sk-root").await.0, 200);
    assert_eq!(send(Request::get(&run), "sk-one").await.0, 404, "no client began it");
    respool.killed().await;
}
