//! Calls that need a person's consent, drafts, and child runs: through the agents, on a real store, across
//! restarts.

use std::sync::Arc;
use std::time::Duration;

use agent::{
    Agent, AgentRequest, ApprovalRequest, ApprovalRules, ChildRuns, DecideError, Decision, EndsRun, Executor,
    OfferedTool, OnRejection, OnTimeout, Outcome, RequestedCall, Requester, RunOptions, Setup, Supervision,
    Tier, WatchEvent, WorkEnd,
};
use serde_json::{Value, json};
use store::{ApprovalState, ClaimRequest, ClaimScope, NewEntry, Status};

use crate::agents::{READ, ask, echoing, scripts};
use crate::support::client::{Request, exchange};
use crate::support::eventually;
use crate::support::fake_vllm::FakeVllm;
use crate::support::look_within;
use crate::support::replies;
use crate::support::respool::Respool;
use crate::support::script::Script;
use crate::support::scripted_tools::ScriptedTools;
use crate::support::wait_until;

const EXEC: (&str, &str) = ("exec", r#"{"command":"send it"}"#);
const WINDOW: &str = "[models.\"gpt-oss-20b\"]\ncontext_window = 32768";

/// The configured agent, with other supervision.
pub fn supervised(respool: &Respool, supervision: Supervision) -> Arc<Agent> {
    named("helper", respool, supervision)
}

/// The same under another name: then the configured one does not resume its runs.
fn named(name: &str, respool: &Respool, supervision: Supervision) -> Arc<Agent> {
    let helper = respool.agents.get("helper").unwrap();
    Arc::new(Agent {
        name: name.into(),
        config: helper.config.clone(),
        prompt: None,
        model: Arc::clone(&helper.model),
        tools: Arc::clone(&helper.tools),
        target: helper.target.clone(),
        window: helper.window,
        reasoning: None,
        supervision,
    })
}

pub fn confirms(tools: &[&str], rules: ApprovalRules) -> Supervision {
    let tiers = tools.iter().map(|tool| ((*tool).to_owned(), Tier::Confirm)).collect();
    Supervision { tiers, rules, ..Supervision::default() }
}

fn request() -> AgentRequest {
    AgentRequest::parse(ask(false).to_string().as_bytes()).unwrap().with_client_key(b"")
}

pub async fn serve(respool: &Respool, agent: &Arc<Agent>) -> (String, WorkEnd) {
    let watch = respool.agents.serve_request(agent, request(), None).await.unwrap();
    end(watch).await
}

async fn end(mut watch: agent::Watch) -> (String, WorkEnd) {
    loop {
        if let WatchEvent::End(report) = watch.next().await {
            return (watch.run, report.end.clone());
        }
    }
}

pub fn awaited(end: WorkEnd) -> ApprovalRequest {
    match end {
        WorkEnd::AwaitingApproval(request) => request,
        other => panic!("it does not wait: {other:?}"),
    }
}

fn finished(end: WorkEnd) -> Outcome {
    match end {
        WorkEnd::Finished(outcome) => outcome,
        other => panic!("it has not ended: {other:?}"),
    }
}

async fn status(respool: &Respool, run: &str) -> Status {
    respool.agents.store().unwrap().run(run).await.unwrap().unwrap().row.status
}

async fn ends_as(respool: &Respool, run: &str, expected: Status) {
    let is_so = async || (status(respool, run).await == expected).then_some(());
    let found = look_within(Duration::from_mins(1), is_so).await;
    assert!(found.is_some(), "{run} is {:?}", status(respool, run).await);
}

async fn fake(replies: &[Value]) -> FakeVllm {
    FakeVllm::start(scripts(replies)).await
}

#[tokio::test]
async fn late_consent_runs_recorded_inputs_once() {
    let state = tempfile::tempdir().unwrap();
    let fake = fake(&[replies::calls(&[EXEC, READ]), replies::text("Sent.")]).await;
    let tools = echoing();
    let respool = Respool::with_agent(&fake, &tools, state.path(), WINDOW).await;
    let agent = supervised(&respool, confirms(&["exec"], ApprovalRules::default()));
    let (run, waits) = serve(&respool, &agent).await;
    let request = awaited(waits);
    assert_eq!((request.calls.len(), request.calls[0].arguments.as_str()), (1, EXEC.1));
    assert_eq!(status(&respool, &run).await, Status::AwaitingApproval);
    let shown = exchange(respool.address, &Request::get(&format!("/v1/runs/{run}"))).await.json();
    assert_eq!(shown["approval"]["calls"][0]["arguments"], json!({"command": "send it"}), "{shown}");
    assert_eq!(shown["status"], "awaiting_approval");
    respool.killed().await;

    let respool = Respool::with_agent(&fake, &tools, state.path(), WINDOW).await;
    let waiting = respool.agents.waiting_approvals(10).await.unwrap();
    assert_eq!((waiting.len(), &waiting[0].1, waiting[0].0.run.as_str()), (1, &request, run.as_str()));
    assert_eq!(tools.asked(), [], "nothing ran without consent");
    let foreign = Decision { approved: vec!["other".into()], ..Decision::approve_all(&request, "anna") };
    let refused = respool.agents.decide_approval(&foreign).await.unwrap_err().describe_for("it");
    let known = format!("the approval it has no call other. Its calls: {} (exec)", request.calls[0].id);
    assert_eq!(refused, known);
    let consent = Decision::approve_all(&request, "anna");
    respool.agents.decide_approval(&consent).await.unwrap();
    let again = respool.agents.decide_approval(&Decision { approved: vec![], ..consent }).await;
    let again = again.unwrap_err().describe_for("it");
    assert!(again.starts_with("the approval it is over: it was approved by anna at 2"), "{again}");
    ends_as(&respool, &run, Status::Done).await;
    let made = [("exec".to_owned(), "send it".to_owned()), ("read".to_owned(), "a.txt".to_owned())];
    assert_eq!((tools.asked(), tools.approved()), (made.to_vec(), 1));
    let (answered, answer) = serve(&respool, &agent).await;
    assert_eq!((answered, finished(answer).text()), (run, "Sent.".to_owned()), "the client asks again");
}

#[tokio::test]
async fn decisions_cross_processes() {
    let state = tempfile::tempdir().unwrap();
    let fake = fake(&[replies::calls(&[EXEC]), replies::text("Then not.")]).await;
    let tools = echoing();
    let respool = Respool::with_agent(&fake, &tools, state.path(), WINDOW).await;
    let agent = supervised(&respool, confirms(&["exec"], ApprovalRules::default()));
    let (run, waits) = serve(&respool, &agent).await;
    let rejection = Decision {
        comment: Some("too early".into()),
        approved: vec![],
        ..Decision::approve_all(&awaited(waits), "b")
    };
    let store = respool.agents.store().unwrap();
    agent::record_decision(store, &rejection).await.unwrap();
    ends_as(&respool, &run, Status::Done).await;
    let told = fake.requests()[1].json()["messages"].to_string();
    assert!(told.contains("the person who was asked rejected the call: too early"), "{told}");
    assert_eq!(tools.asked(), []);
}

#[tokio::test]
async fn unanswered_requests_are_rejected_or_escalated() {
    for on_timeout in [OnTimeout::Reject, OnTimeout::Escalate] {
        let state = tempfile::tempdir().unwrap();
        let answer = (on_timeout == OnTimeout::Escalate).then(|| replies::text("Sent."));
        let replies: Vec<Value> = [replies::calls(&[EXEC])].into_iter().chain(answer).collect();
        let fake = fake(&replies).await;
        let tools = echoing();
        let respool = Respool::with_agent(&fake, &tools, state.path(), WINDOW).await;
        let rules = ApprovalRules {
            timeout: Some(1),
            on_timeout,
            on_rejection: OnRejection::EndRun,
            ..ApprovalRules::default()
        };
        let agent = supervised(&respool, confirms(&["exec"], rules));
        let (run, waits) = serve(&respool, &agent).await;
        match on_timeout {
            OnTimeout::Reject => {
                ends_as(&respool, &run, Status::Failed).await;
                let shown = exchange(respool.address, &Request::get(&format!("/v1/runs/{run}"))).await.json();
                assert_eq!(shown["failure"]["code"], "approval_timeout");
            }
            OnTimeout::Escalate => {
                let request = awaited(waits);
                let store = respool.agents.store().unwrap();
                let approval = async || store.approval(&request.id).await.unwrap().unwrap();
                wait_until("it is escalated", async || approval().await.expires.is_none()).await;
                ends_as(&respool, &run, Status::AwaitingApproval).await;
                respool.agents.decide_approval(&Decision::approve_all(&request, "anna")).await.unwrap();
                ends_as(&respool, &run, Status::Done).await;
                assert_eq!(tools.asked().len(), 1, "late consent counts");
            }
        }
    }
}

/// Also if no process was running when the time for the decision ended.
#[tokio::test]
async fn expired_consent_is_refused() {
    let state = tempfile::tempdir().unwrap();
    let fake = fake(&[replies::calls(&[EXEC])]).await;
    let tools = echoing();
    let respool = Respool::with_agent(&fake, &tools, state.path(), WINDOW).await;
    let rules =
        ApprovalRules { timeout: Some(500), on_rejection: OnRejection::EndRun, ..ApprovalRules::default() };
    // Nobody resumes the runs of an agent that is not configured.
    let agent = named("desk", &respool, confirms(&["exec"], rules));
    let (run, waits) = serve(&respool, &agent).await;
    let request = awaited(waits);
    let expires = request.expires.unwrap();
    wait_until("its time is over", async || clock::now() > expires).await;
    let late = respool.agents.decide_approval(&Decision::approve_all(&request, "anna")).await;
    assert_eq!(late, Err(DecideError::TooLate));
    let watch = respool.agents.resume_as(&agent, &run, RunOptions::default()).await.unwrap();
    let failure = finished(end(watch).await.1).failure.unwrap();
    assert_eq!((failure.code.as_str(), tools.asked().len()), ("approval_timeout", 0));
}

#[tokio::test]
async fn drafts_never_run() {
    let state = tempfile::tempdir().unwrap();
    let read_last = [replies::calls(&[EXEC]), replies::text("Drafted."), replies::calls(&[READ])];
    let fake = fake(&read_last).await;
    let tools = echoing();
    let respool = Respool::with_agent(&fake, &tools, state.path(), WINDOW).await;
    let tiers = [("exec".to_owned(), Tier::Manual)].into();
    let agent = supervised(&respool, Supervision { tiers, ..Supervision::default() });
    let (run, done) = serve(&respool, &agent).await;
    assert_eq!((finished(done).text(), tools.asked().len()), ("Drafted.".to_owned(), 0));
    let store = respool.agents.store().unwrap();
    let events = store.run(&run).await.unwrap().unwrap().events;
    assert!(events.iter().any(|event| event.body.contains("HandedOver") && event.body.contains("send it")));
    respool.agents.mark_answered(&run).await;

    let agent = supervised(&respool, confirms(&["read"], ApprovalRules::default()));
    let (run, waits) = serve(&respool, &agent).await;
    let request = awaited(waits);
    assert!(respool.agents.cancel_run(&run).await.unwrap());
    let late = respool.agents.decide_approval(&Decision::approve_all(&request, "anna")).await;
    assert!(
        matches!(&late, Err(DecideError::NotWaiting(row)) if row.state == ApprovalState::Withdrawn),
        "{late:?}"
    );
    assert_eq!(status(&respool, &run).await, Status::Cancelled);
}

/// Child runs with one tool that needs consent.
struct Children(Arc<Agent>);

impl ChildRuns for Children {
    fn child_tools(&self) -> Vec<OfferedTool> {
        vec![OfferedTool {
            name: "ask_expert".into(),
            description: "Asks an expert.".into(),
            parameters: json!({"type": "object", "properties": {"task": {"type": "string"}}}),
            executor: Executor::Child,
            result_limit: 10_000,
            tier: Tier::Auto,
            ends_run: EndsRun::Never,
            judges_arguments: false,
        }]
    }

    fn child_run(&self, call: &RequestedCall, seed: u64, at: u64) -> Result<(Arc<Agent>, Setup), String> {
        let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
        let task = arguments["task"].as_str().ok_or("`task` is missing")?;
        let request = AgentRequest::from_task(task);
        Ok((Arc::clone(&self.0), self.0.child_setup(request, seed, at)))
    }
}

#[tokio::test]
async fn waiting_child_runs_survive_restarts() {
    let state = tempfile::tempdir().unwrap();
    let ask_expert = ("ask_expert", r#"{"task":"send the letter"}"#);
    let fake = fake(&[
        replies::calls(&[ask_expert]),
        replies::calls(&[EXEC]),
        replies::text("The letter is sent."),
        replies::text("All done."),
    ])
    .await;
    let tools = echoing();
    let respool = Respool::with_agent(&fake, &tools, state.path(), WINDOW).await;
    let parent = |respool: &Respool| {
        let child = supervised(respool, confirms(&["exec"], ApprovalRules::default()));
        let children: Arc<dyn ChildRuns> = Arc::new(Children(child));
        named("lead", respool, Supervision { children: Some(children), ..Supervision::default() })
    };
    let (run, waits) = serve(&respool, &parent(&respool)).await;
    let request = awaited(waits);
    let store = respool.agents.store().unwrap();
    let child = store.approval(&request.id).await.unwrap().unwrap().run;
    assert_eq!(store.run(&child).await.unwrap().unwrap().row.parent.as_deref(), Some(run.as_str()));
    assert_eq!(status(&respool, &run).await, Status::AwaitingApproval, "the parent waits with it");
    respool.killed().await;

    let respool = Respool::with_agent(&fake, &tools, state.path(), WINDOW).await;
    let store = respool.agents.store().unwrap();
    agent::record_decision(store, &Decision::approve_all(&request, "anna")).await.unwrap();
    let options = RunOptions { is_detached: true, is_durable: true, lease: None };
    let resumed = respool.agents.resume_as(&parent(&respool), &run, options).await.unwrap();
    assert_eq!(finished(end(resumed).await.1).text(), "All done.");
    assert_eq!(tools.asked(), [("exec".to_owned(), "send it".to_owned())]);
    assert_eq!(status(&respool, &child).await, Status::Done);
    let task = fake.requests()[1].json()["messages"].to_string();
    assert!(task.contains("send the letter") && !task.contains("What does a.txt say?"), "{task}");
    let result = fake.requests()[3].json()["messages"].to_string();
    assert!(result.contains("The letter is sent."), "{result}");
}

#[tokio::test]
async fn sleeping_processes_lose_their_run() {
    let state = tempfile::tempdir().unwrap();
    let slow = Script::json(200, &replies::calls(&[EXEC])).delay(Duration::from_millis(400));
    let fake = FakeVllm::start(vec![slow]).await;
    let tools = echoing();
    let respool = Respool::with_agent(&fake, &tools, state.path(), WINDOW).await;
    let agent = respool.agents.get("helper").unwrap();
    let watch = respool.agents.serve_request(&agent, request(), None).await.unwrap();
    eventually(|| (fake.requests().len() == 1).then_some(())).await;
    let store = respool.agents.store().unwrap();
    store.claim(&watch.run, ClaimScope::Any).await.unwrap().unwrap();
    assert_eq!(end(watch).await.1, WorkEnd::Left);
    assert_eq!(tools.asked(), []);
}

#[tokio::test]
async fn durable_runs_need_a_store() {
    let state = tempfile::tempdir().unwrap();
    std::fs::write(state.path().join("file"), "").unwrap();
    let fake = fake(&[]).await;
    let respool = Respool::with_agent(&fake, &echoing(), &state.path().join("file/state"), WINDOW).await;
    let agent = respool.agents.get("helper").unwrap();
    let options = RunOptions { is_detached: true, is_durable: true, lease: None };
    let begun = respool.agents.start_run(&agent, AgentRequest::from_task("Do it."), options).await;
    assert!(begun.is_err_and(|error| error.0.contains("the store of runs is not open")));
}

#[tokio::test]
async fn queued_runs_stop_without_their_lease() {
    let state = tempfile::tempdir().unwrap();
    let slow = Script::json(200, &replies::calls(&[EXEC])).delay(Duration::from_millis(500));
    let mut scripts = vec![slow];
    scripts.extend(crate::agents::scripts(&[replies::calls(&[EXEC]), replies::text("Sent.")]));
    let fake = FakeVllm::start(scripts).await;
    let tools = echoing();
    let respool = Respool::with_agent(&fake, &tools, state.path(), WINDOW).await;
    let agent = respool.agents.get("helper").unwrap();
    let store = respool.agents.store().unwrap();
    let entry = NewEntry { id: "event-1".into(), queue: "desk".into(), ..NewEntry::default() };
    store.enqueue(entry).await.unwrap();
    let claim = async |lease: Duration| {
        let request = ClaimRequest { queues: vec!["desk".into()], most: 1, lease, ..ClaimRequest::default() };
        store.claim_entries(request).await.unwrap().remove(0)
    };
    let options = |lease| RunOptions { is_detached: true, is_durable: true, lease: Some(lease) };
    let asleep = claim(Duration::ZERO).await.lease;
    let request = || AgentRequest::from_task("Do it.");
    let first = respool.agents.start_run(&agent, request(), options(asleep.clone())).await.unwrap();
    eventually(|| (fake.requests().len() == 1).then_some(())).await;
    let taken_over = claim(Duration::from_mins(1)).await;
    assert_eq!(taken_over.run.as_deref(), Some(first.run.as_str()));
    let other =
        store::Store::open(&store::StoreConfig { state_dir: state.path().to_owned(), ..Default::default() })
            .unwrap();
    other.claim_leased(&first.run, &taken_over.lease).await.unwrap().unwrap();
    let refused = respool.agents.start_run(&agent, request(), options(asleep)).await;
    assert!(refused.is_err_and(|error| error.0.contains("another process is working on this queue entry")));
    let run = first.run.clone();
    assert_eq!(end(first).await.1, WorkEnd::Left, "its reply comes and nothing is done with it");
    assert_eq!(tools.asked(), []);
    let resumed = respool.agents.resume_as(&agent, &run, options(taken_over.lease)).await.unwrap();
    assert_eq!(finished(end(resumed).await.1).text(), "Sent.");
    assert_eq!(tools.asked().len(), 1);
}

/// respool with keys: `sk-one` is a client's, `sk-root` an operator's.
async fn with_keys(
    fake: &FakeVllm,
    tools: &Arc<crate::support::scripted_tools::ScriptedTools>,
    state: &std::path::Path,
) -> Respool {
    let toml = format!(
        "{}[agents.helper]\nmodel = \"gpt-oss-20b\"\n[[upstream]]\nurl = \"{}\"\n{WINDOW}\n",
        head(state),
        fake.url()
    );
    let environment = [("CLIENTS", "sk-one"), ("OPERATORS", "sk-root")];
    Respool::started_in(&toml, &environment, Some(Arc::clone(tools))).await
}

fn head(state: &std::path::Path) -> String {
    format!(
        "client_keys_env = \"CLIENTS\"\noperator_keys_env = \"OPERATORS\"\nstate_dir = \"{}\"\n",
        state.display()
    )
}

#[tokio::test]
async fn operators_change_inputs_over_http() {
    let state = tempfile::tempdir().unwrap();
    let fake = fake(&[replies::calls(&[EXEC]), replies::text("Sent.")]).await;
    let tools = echoing();
    let respool = with_keys(&fake, &tools, state.path()).await;
    let agent = supervised(&respool, confirms(&["exec"], ApprovalRules::default()));
    let (run, waits) = serve(&respool, &agent).await;
    let request = awaited(waits);
    let (path, call) = (format!("/v1/approvals/{}", request.id), &request.calls[0].id);
    let decide = async |body: Value| {
        let request = Request::post(&path, body.to_string()).header("authorization", "Bearer sk-root");
        let reply = exchange(respool.address, &request).await;
        (reply.status, reply.json())
    };
    let inputs = json!({call: {"command": "send that"}});
    for (body, code) in [
        (json!({"approve": false, "inputs": inputs}), "invalid_json"),
        (json!({"approve": true, "inputs": {"other": {}}}), "invalid_json"),
        (json!({"approve": true, "inputs": {call: "send that"}}), "unsupported_value"),
    ] {
        let (status, answer) = decide(body).await;
        assert_eq!((status, answer["error"]["code"].as_str()), (400, Some(code)), "{answer}");
    }
    let (status, answer) = decide(json!({"approve": true, "inputs": inputs})).await;
    assert_eq!((status, &answer["approved"]), (200, &json!([call])), "{answer}");
    ends_as(&respool, &run, Status::Done).await;
    assert_eq!(tools.asked(), [("exec".to_owned(), "send that".to_owned())]);
    let shown = Request::get(&path).header("authorization", "Bearer sk-root");
    let shown = exchange(respool.address, &shown).await.json();
    assert_eq!(shown["decision"]["inputs"], inputs, "{shown}");
    let told = fake.requests()[1].json()["messages"].to_string();
    assert!(told.contains("changed its inputs to"), "{told}");
}

#[tokio::test]
async fn only_operators_decide_over_http() {
    let state = tempfile::tempdir().unwrap();
    let fake = fake(&[replies::calls(&[EXEC]), replies::text("Sent.")]).await;
    let tools = echoing();
    let respool = with_keys(&fake, &tools, state.path()).await;
    let agent = supervised(&respool, confirms(&["exec"], ApprovalRules::default()));
    let (run, waits) = serve(&respool, &agent).await;
    let id = awaited(waits).id;
    let path = format!("/v1/approvals/{id}");
    let send = async |request: Request, key: &str| {
        let request = request.header("authorization", &format!("Bearer {key}"));
        let reply = exchange(respool.address, &request).await;
        (reply.status, reply.json())
    };
    for request in
        [Request::get("/v1/approvals"), Request::get(&path), Request::post(&path, r#"{"approve": true}"#)]
    {
        let (status, body) = send(request, "sk-one").await;
        assert_eq!((status, body["error"]["code"].as_str()), (403, Some("operators_only")), "{body}");
    }
    let (_, listed) = send(Request::get("/v1/approvals"), "sk-root").await;
    assert_eq!((listed["data"].as_array().unwrap().len(), &listed["data"][0]["run"]), (1, &json!(run)));
    let (_, shown) = send(Request::get(&path), "sk-root").await;
    assert_eq!(shown["calls"][0]["arguments"], json!({"command": "send it"}), "{shown}");
    for (body, status, code) in [
        (r#"{"approve": "yes"}"#, 400, "invalid_json"),
        (r#"{"approve": true, "always": true}"#, 400, "invalid_json"),
        (r#"{"approve": ["other"]}"#, 400, "unsupported_value"),
    ] {
        let (found, answer) = send(Request::post(&path, body), "sk-root").await;
        assert_eq!((found, answer["error"]["code"].as_str()), (status, Some(code)), "{answer}");
    }
    let missing = send(Request::post("/v1/approvals/none", r#"{"approve": true}"#), "sk-root").await;
    assert_eq!(missing.0, 404);
    assert_eq!(tools.asked(), []);
    assert_eq!(send(Request::post(&path, r#"{"approve": true}"#), "sk-root").await.0, 200);
    let (status, late) = send(Request::post(&path, r#"{"approve": false}"#), "sk-root").await;
    assert_eq!((status, late["error"]["code"].as_str()), (409, Some("approval_not_waiting")), "{late}");
    ends_as(&respool, &run, Status::Done).await;
    let (_, decided) = send(Request::get(&path), "sk-root").await;
    assert_eq!(
        (&decided["state"], &decided["decision"]["by"]),
        (&json!("applied"), &json!("operator_keys_env[8649dc]"))
    );
}

#[tokio::test]
async fn http_decisions_need_an_operator() {
    let state = tempfile::tempdir().unwrap();
    let fake = fake(&[]).await;
    let respool = Respool::with_agent(&fake, &echoing(), state.path(), "").await;
    let reply = exchange(respool.address, &Request::get("/v1/approvals")).await;
    assert_eq!((reply.status, reply.json()["error"]["code"].as_str()), (403, Some("operators_only")));
}

/// `respool expert approvals …`: output, errors, success.
async fn command(config: &std::path::Path, arguments: &[&str], key: Option<&str>) -> (String, String, bool) {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_respool"));
    command.args(["expert", "approvals"]).args(arguments).arg("--config").arg(config).env_clear();
    command
        .env("CLIENTS", "sk-one")
        .env("OPERATORS", "sk-root")
        .envs(key.map(|key| ("RESPOOL_OPERATOR_KEY", key)));
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr), output.status.success())
}

#[tokio::test]
async fn command_line_decisions_reach_the_server() {
    let state = tempfile::tempdir().unwrap();
    let fake = fake(&[replies::calls(&[EXEC, READ]), replies::text("Half of it.")]).await;
    let tools = echoing();
    let respool = with_keys(&fake, &tools, state.path()).await;
    let rules =
        ApprovalRules { requester: Some(Requester::Process("send".into())), ..ApprovalRules::default() };
    let agent = supervised(&respool, confirms(&["exec", "read"], rules));
    let (run, waits) = serve(&respool, &agent).await;
    let request = awaited(waits);
    let config = state.path().join("respool.toml");
    std::fs::write(&config, format!("{}[[upstream]]\nurl = \"{}\"\n", head(state.path()), fake.url()))
        .unwrap();
    let (listed, ..) = command(&config, &["list"], None).await;
    assert!(
        listed.starts_with(&request.id)
            && listed.contains("  helper  process send\n    asked: What does a.txt say?\n    exec {"),
        "{listed}"
    );
    let read = "\n    read {\"path\": \"a.txt\"}\n    the model's reason: none written; its reasoning: I need a tool.\n";
    assert!(listed.ends_with(read), "{listed}");
    assert_eq!(command(&config, &["list", "--expert", "other"], None).await.0, "");
    let (shown, ..) = command(&config, &["show", &request.id], None).await;
    assert!(shown.contains("send it") && shown.contains(&run), "{shown}");
    assert!(
        shown.contains("\"requester\": \"process\"") && shown.contains("\"process\": \"send\""),
        "{shown}"
    );
    for (key, expected) in [(None, "needs an operator's key"), (Some("sk-one"), "is not one of")] {
        let (_, problem, is_done) = command(&config, &["approve", &request.id], key).await;
        assert!(!is_done && problem.contains(expected), "{problem}");
    }
    // Whoever starts the command chooses its configuration and its environment.
    let own = state.path().join("own.toml");
    let text = std::fs::read_to_string(&config).unwrap().replace("\"OPERATORS\"", "\"RESPOOL_OPERATOR_KEY\"");
    std::fs::write(&own, text).unwrap();
    let (_, problem, is_done) = command(&own, &["approve", &request.id], Some("sk-made-up")).await;
    assert!(!is_done && problem.contains("is not one of"), "{problem}");
    let arguments = ["approve", &request.id, "--only", &request.calls[1].id];
    let (said, problem, is_done) = command(&config, &arguments, Some("sk-root")).await;
    assert!(is_done && said.ends_with("1 approved, 1 rejected\n"), "{said}{problem}");
    let twice = ["reject", &request.id, &request.id];
    let (_, problem, is_done) = command(&config, &twice, Some("sk-root")).await;
    let over = "is over: 1 of its 2 calls were approved by operator_keys_env";
    assert!(!is_done && problem.matches(over).count() == 2, "each is tried: {problem}");
    ends_as(&respool, &run, Status::Done).await;
    assert_eq!(tools.asked(), [("read".to_owned(), "a.txt".to_owned())], "only the approved call");
}

/// A call that a stop cut off was neither made nor known not to be made.
#[tokio::test]
async fn stops_await_begun_calls() {
    let state = tempfile::tempdir().unwrap();
    let fake = fake(&[replies::calls(&[EXEC])]).await;
    let slow = Arc::new(ScriptedTools::new(|_, _| Ok("sent".into())).slow(Duration::from_millis(500)));
    let respool = Respool::with_agent(&fake, &slow, state.path(), WINDOW).await;
    let agent = named("lead", &respool, Supervision::default());
    let options = RunOptions { is_detached: true, ..RunOptions::default() };
    let watch = respool.agents.start_run(&agent, AgentRequest::from_task("Do it."), options).await.unwrap();
    eventually(|| (slow.asked().len() == 1).then_some(())).await;
    respool.stop.abort.cancel();
    respool.agents.wait_for_runs(Duration::from_secs(30)).await;
    let (run, end) = end(watch).await;
    assert_eq!(end, WorkEnd::Left);
    let store = respool.agents.store().unwrap();
    let stored = store.run(&run).await.unwrap().unwrap();
    let last = stored.events.last().unwrap();
    assert!(last.body.contains("Returned") && last.body.contains("sent"), "{}", last.body);
    assert_eq!((stored.row.status, fake.requests().len()), (Status::Interrupted, 1));
}
