//! The driver alone: what it does with an event that does not fit, and with a run that another process has.

use async_trait::async_trait;
use serde_json::json;

use super::*;
use crate::chat_model::{ChatModel, ModelAnswer, ModelFacts, ModelRequest};
use crate::config::AgentConfig;
use crate::new_setup::new_setup;
use crate::request::AgentRequest;
use crate::setup::ModelSizes;
use crate::stored::restore;
use store::{ClaimScope, Store, StoreConfig};
use telemetry::ErrorReport;
use tools::ToolSpec;

/// No tool may run in these tests.
struct Untouched;

#[async_trait]
impl Tools for Untouched {
    fn specs(&self) -> Vec<ToolSpec> {
        vec![ToolSpec {
            name: "exec".into(),
            description: "Runs a command.".into(),
            parameters: json!({"type": "object"}),
            is_repeatable: false,
            timeout: None,
            result_limit: None,
        }]
    }

    async fn call(&self, invocation: &Invocation, _: Option<&dyn Approver>) -> Result<ToolOutput, ToolError> {
        panic!("{invocation:?}")
    }
}

/// There is no server to ask.
struct NoServer;

impl ChatModel for NoServer {
    fn ask(
        self: Arc<Self>,
        _: ModelRequest,
        _: &crate::Observer,
    ) -> futures::future::BoxFuture<'_, Result<ModelAnswer, wire::ApiError>> {
        let error = wire::ApiError::new(503, wire::ErrorCode::NoUpstream, "there is no server");
        Box::pin(std::future::ready(Err(error)))
    }

    fn learn_models<'a>(&'a self, _: Option<&'a http::HeaderValue>) -> futures::future::BoxFuture<'a, ()> {
        Box::pin(async {})
    }

    fn facts(&self, _: &str, _: &str) -> ModelFacts {
        ModelFacts::default()
    }
}

fn agent() -> Agent {
    Agent {
        name: "helper".into(),
        config: AgentConfig::default(),
        prompt: None,
        model: Arc::new(NoServer),
        tools: Arc::new(Untouched),
        target: String::new(),
        window: Some(32_768),
        reasoning: None,
        supervision: crate::definition::Supervision::default(),
    }
}

async fn begun(dir: &std::path::Path) -> (Arc<Store>, Driver, Run) {
    let config = StoreConfig { state_dir: dir.to_owned(), ..StoreConfig::default() };
    let store = Arc::new(Store::open(&config).unwrap());
    let agent = agent();
    let request = AgentRequest::from_person(json!({"role": "user", "content": "Do it."}));
    let sizes = ModelSizes { window: 32_768, max_tokens: 100, is_harmony: false, ..ModelSizes::default() };
    let setup = new_setup(&agent, request, sizes, 7, clock::now());
    let setup_text = serde_json::to_string(&setup).unwrap();
    let new = NewRun { id: "run-1".into(), setup: setup_text, agent: "helper".into(), ..NewRun::default() };
    store.begin(new).await.unwrap();
    let journal = Journal::new("run-1", Store::FIRST_EPOCH, Some(Arc::clone(&store)), 0);
    let telemetry = Telemetry {
        run: "run-1".into(),
        agent: "helper".into(),
        report: ErrorReport::new(dir.to_owned()),
        content: false,
        spans: None,
    };
    let driver =
        Driver::new(&agent, journal, telemetry, StopSignals::default(), Arc::new(|_: Activity<'_>| {}));
    (store, driver, Run::new(setup))
}

fn reply() -> EventKind {
    let calls = vec![crate::call::RequestedCall {
        id: "call00001".into(),
        name: "exec".into(),
        arguments: "{}".into(),
        problems: vec![],
    }];
    EventKind::ModelReplied(crate::event::ModelReply { calls, ..Default::default() })
}

/// The same step was executed again, without end.
#[tokio::test]
async fn an_unexpected_event_fails_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let (store, mut driver, mut run) = begun(dir.path()).await;
    driver.record_event(&mut run, reply()).await;
    driver.record_event(&mut run, EventKind::PauseEnded).await;
    let WorkEnd::Finished(outcome) = driver.drive_run(&mut run).await else { panic!("{run:?}") };
    let failure = outcome.failure.unwrap();
    assert_eq!((failure.status, failure.code.as_str()), (500, "run_state"));
    assert!(
        failure.text.ends_with("the event `paused` cannot happen to a run that runs tools"),
        "{}",
        failure.text
    );
    let stored = store.run("run-1").await.unwrap().unwrap();
    assert_eq!((stored.row.status, stored.events.len()), (Status::Failed, 2));
    assert_eq!(restore(&stored).unwrap().0, run, "what the store has is the same end");
}

/// A process that was only asleep does nothing more once another one has its run.
#[tokio::test]
async fn a_run_claimed_elsewhere_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let (store, mut driver, mut run) = begun(dir.path()).await;
    driver.record_event(&mut run, reply()).await;
    store.claim("run-1", ClaimScope::Any).await.unwrap().unwrap();
    assert_eq!(driver.drive_run(&mut run).await, WorkEnd::Left);
    let stored = store.run("run-1").await.unwrap().unwrap();
    assert_eq!((stored.row.status, stored.events.len()), (Status::Running, 1), "nothing was written");
}

#[tokio::test]
async fn a_durable_run_stops_without_its_store() {
    for (unkept, expected) in [(Unkept::Stops, "left"), (Unkept::GoesOn, "failed")] {
        let dir = tempfile::tempdir().unwrap();
        let (_store, mut driver, mut run) = begun(dir.path()).await;
        testing::stores::refuse_events(dir.path());
        driver.journal.unkept = unkept;
        driver.record_event(&mut run, EventKind::Resumed).await;
        let end = driver.drive_run(&mut run).await;
        let found = if end == WorkEnd::Left { "left" } else { "failed" };
        assert_eq!(found, expected, "{end:?}");
    }
}

/// Another process may take it over meanwhile. Once it is written, any process can.
#[tokio::test]
async fn a_shared_run_waits_for_its_store() {
    let dir = tempfile::tempdir().unwrap();
    let (_store, mut driver, mut run) = begun(dir.path()).await;
    driver.journal.unkept = Unkept::Waits;
    testing::stores::refuse_events(dir.path());
    let gone = driver.stops.gone.clone();
    {
        let mut waits = Box::pin(driver.record_event(&mut run, reply()));
        assert!(tokio::time::timeout(Duration::from_millis(100), &mut waits).await.is_err());
        gone.cancel();
        waits.await;
    }
    assert_eq!(driver.drive_run(&mut run).await, WorkEnd::Left);
    let (_, backlog) = driver.journal.into_backlog().unwrap();
    let statuses: Vec<Status> = backlog.iter().map(|append| append.status).collect();
    assert_eq!(statuses, [Status::Running, Status::Cancelled]);
}
