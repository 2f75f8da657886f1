//! Kept runs: their owners, repeated answers, runs whose client leaves at the wrong moment, and
//! what is cleared.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use agent::AgentRequest;
use futures::future::join_all;
use serde_json::Value;
use store::{Append, NewRun, RunFilter, Status, Store, StoreConfig};
use tools::ToolError;

use crate::agents::{QUESTION, READ, ask, client_tools, echoing, next_turn, scripts};
use crate::support::accumulate::Rules;
use crate::support::client::{Reply, Request, exchange};
use crate::support::fake_vllm::FakeVllm;
use crate::support::look_within;
use crate::support::replies;
use crate::support::respool::Respool;
use crate::support::script::Script;
use crate::support::scripted_tools::ScriptedTools;
use crate::support::wait_until;

/// The client's first request, and the id of the call that it gets.
async fn asked(respool: &Respool, key: &str) -> (Value, String, String) {
    let mut body = ask(false);
    body["tools"] = client_tools();
    let reply = exchange(respool.address, &Request::chat(&body).header("authorization", key)).await;
    let call = reply.json()["choices"][0]["message"]["tool_calls"][0]["id"].as_str().unwrap().to_owned();
    (body, run_of(&reply), call)
}

fn run_of(reply: &Reply) -> String {
    reply.headers.get("x-respool-run-id").unwrap().to_owned()
}

fn content(reply: &Reply) -> String {
    reply.completion(&Rules::default()).choices[&0].content.clone()
}

#[tokio::test]
async fn waiting_runs_belong_to_agent_and_key() {
    for durable in [true, false] {
        let state = tempfile::tempdir().unwrap();
        std::fs::write(state.path().join("file"), "").unwrap();
        let dir = state.path().join(if durable { "state" } else { "file" });
        let texts = ["Of another key.", "Of another agent.", "The second one."].map(replies::text);
        let fake = FakeVllm::start(scripts(&[&[replies::calls(&[QUESTION])], &texts[..]].concat())).await;
        let other = "[agents.other]\nmodel = \"gpt-oss-20b\"";
        let respool = Respool::with_agent(&fake, &echoing(), &dir, other).await;
        let (body, run, call) = asked(&respool, "Bearer one").await;
        let back = next_turn(&body, &call, "the second");
        let mut elsewhere = back.clone();
        elsewhere["model"] = "other".into();
        for (body, key, answer) in
            [(&back, "Bearer two", "Of another key."), (&elsewhere, "Bearer one", "Of another agent.")]
        {
            let reply = exchange(respool.address, &Request::chat(body).header("authorization", key)).await;
            assert_eq!(content(&reply), answer);
            assert_ne!(run_of(&reply), run, "it is a run of its own, from its client's history");
        }
        assert!(fake.requests()[1].json()["messages"].to_string().contains("the second"));
        let own =
            exchange(respool.address, &Request::chat(&back).header("authorization", "Bearer one")).await;
        assert_eq!((content(&own), run_of(&own)), ("The second one.".into(), run), "durable: {durable}");
    }
}

/// The slower of two equal requests found nothing to resume and began another run, which did the work again.
#[tokio::test(flavor = "multi_thread")]
async fn equal_results_resume_a_run_once() {
    let state = tempfile::tempdir().unwrap();
    let fake = FakeVllm::start(scripts(&[replies::calls(&[QUESTION])])).await;
    fake.otherwise(Script::json(200, &replies::text("The second one.")).delay(Duration::from_millis(200)));
    let respool = Respool::with_agent(&fake, &echoing(), state.path(), "").await;
    let (body, run, call) = asked(&respool, "Bearer one").await;
    let back = Request::chat(&next_turn(&body, &call, "the second")).header("authorization", "Bearer one");
    let all = join_all((0..8).map(|_| exchange(respool.address, &back))).await;
    for reply in &all {
        assert_eq!((content(reply), run_of(reply)), ("The second one.".into(), run.clone()));
    }
    assert_eq!(fake.requests().len(), 2, "the model is asked once more");
}

/// Work that a person cancelled went on as another run when the client brought its results.
#[tokio::test]
async fn late_results_begin_no_run() {
    let state = tempfile::tempdir().unwrap();
    let fake = FakeVllm::start(scripts(&[replies::calls(&[QUESTION])])).await;
    fake.otherwise(Script::json(200, &replies::text("It went on.")));
    let respool = Respool::with_agent(&fake, &echoing(), state.path(), "").await;
    let (body, run, call) = asked(&respool, "Bearer one").await;
    assert!(respool.agents.cancel_run(&run).await.unwrap());
    let back = Request::chat(&next_turn(&body, &call, "the second")).header("authorization", "Bearer one");
    let reply = exchange(respool.address, &back).await;
    assert_eq!((run_of(&reply), fake.requests().len()), (run, 1), "{}", reply.text());
}

#[tokio::test]
async fn a_failure_is_not_told_twice() {
    let state = tempfile::tempdir().unwrap();
    let fake = FakeVllm::start(scripts(&[replies::calls(&[QUESTION])])).await;
    fake.otherwise(Script::json(400, &replies::error(400, "no such thing", "BadRequestError")));
    let respool = Respool::with_agent(&fake, &echoing(), state.path(), "").await;
    let (body, run, call) = asked(&respool, "Bearer one").await;
    let back = Request::chat(&next_turn(&body, &call, "the second")).header("authorization", "Bearer one");
    let failed = exchange(respool.address, &back).await;
    assert_eq!(run_of(&failed), run);
    assert!(failed.json().to_string().contains("no such thing"), "{:?}", failed.json());
    fake.otherwise(Script::json(200, &replies::text("Now it works.")));
    let again = exchange(respool.address, &back).await;
    assert_eq!(content(&again), "Now it works.");
    assert_ne!(run_of(&again), run);
}

#[tokio::test]
async fn answers_are_repeated_for_fifteen_minutes() {
    let state = tempfile::tempdir().unwrap();
    let texts = ["The second one.", "It is another day."].map(replies::text);
    let fake = FakeVllm::start(scripts(&[&[replies::calls(&[QUESTION])], &texts[..]].concat())).await;
    let respool = Respool::with_agent(&fake, &echoing(), state.path(), "").await;
    let (body, run, call) = asked(&respool, "Bearer one").await;
    let back = Request::chat(&next_turn(&body, &call, "the second")).header("authorization", "Bearer one");
    for (minutes, answer, same) in
        [(0, "The second one.", true), (14, "The second one.", true), (2, "It is another day.", false)]
    {
        let database = rusqlite::Connection::open(state.path().join("respool.db")).unwrap();
        database.busy_timeout(Duration::from_secs(5)).unwrap();
        database.execute("UPDATE runs SET updated = updated - ?1 * 60000", [minutes]).unwrap();
        let reply = exchange(respool.address, &back).await;
        assert_eq!(
            (content(&reply).as_str(), run_of(&reply) == run),
            (answer, same),
            "{minutes} minutes later"
        );
    }
}

/// Asks for something while the database is locked, and goes away before the commit; tells what the newest
/// run then comes to, and asks anew as long as the client was gone before the store was asked at all.
async fn gone_before_the_commit(
    respool: &Respool,
    state: &Path,
    body: &Value,
    untouched: Option<Status>,
) -> Status {
    let agent = respool.agents.get("helper").unwrap();
    let database = rusqlite::Connection::open(state.join("respool.db")).unwrap();
    let mut patience = Duration::from_millis(50);
    loop {
        database.execute_batch("BEGIN IMMEDIATE").unwrap();
        let request = AgentRequest::parse(body.to_string().as_bytes()).unwrap();
        let served =
            tokio::time::timeout(patience, respool.agents.serve_request(&agent, request, None)).await;
        assert!(served.is_err(), "nothing can be committed");
        database.execute_batch("COMMIT").unwrap();
        let mut status = None;
        let look = async || {
            let newest = respool.agents.store().unwrap().newest(RunFilter::All, 1).await.unwrap();
            status = newest.first().map(|row| row.status);
            (status != untouched && status != Some(Status::Running)).then_some(())
        };
        look_within(Duration::from_secs(2), look).await;
        patience *= 2;
        if status != untouched || patience > Duration::from_secs(4) {
            return status.unwrap();
        }
    }
}

#[tokio::test]
async fn failed_writes_are_made_later() {
    let state = tempfile::tempdir().unwrap();
    let fake = FakeVllm::always(Script::json(200, &replies::text("done"))).await;
    let respool = Respool::with_agent(&fake, &echoing(), state.path(), WINDOW).await;
    let database = rusqlite::Connection::open(state.path().join("respool.db")).unwrap();
    let refuse = "CREATE TRIGGER full BEFORE INSERT ON events BEGIN SELECT RAISE(ABORT, 'no room'); END";
    database.execute_batch(refuse).unwrap();
    let reply = exchange(respool.address, &Request::chat(&ask(false))).await;
    assert_eq!(content(&reply), "done", "the answer is not lost over it");
    let newest =
        async || respool.agents.store().unwrap().newest(RunFilter::All, 1).await.unwrap().remove(0).status;
    assert_eq!(newest().await, Status::Running, "the store knows of no end");
    database.execute_batch("DROP TRIGGER full").unwrap();
    wait_until("the run is done", async || newest().await == Status::Done).await;
}

const WINDOW: &str = "[models.\"gpt-oss-20b\"]\ncontext_window = 32768";

#[tokio::test]
async fn early_disconnects_leave_no_orphaned_run() {
    for (setting, ended) in [("cancel", Status::Cancelled), ("detach", Status::Done)] {
        let state = tempfile::tempdir().unwrap();
        let fake = FakeVllm::always(Script::json(200, &replies::text("done"))).await;
        fake.allow_cut_requests();
        let extra = format!("on_disconnect = \"{setting}\"\n{WINDOW}");
        let respool = Respool::with_agent(&fake, &echoing(), state.path(), &extra).await;
        let status = gone_before_the_commit(&respool, state.path(), &ask(false), None).await;
        assert_eq!(status, ended);
        wait_until("no run is left", async || respool.agents.active_runs().is_empty()).await;
    }
}

#[tokio::test]
async fn disconnects_during_resumption_lose_nothing() {
    let state = tempfile::tempdir().unwrap();
    let fake = FakeVllm::start(scripts(&[replies::calls(&[QUESTION])])).await;
    fake.otherwise(Script::json(200, &replies::text("The second one.")));
    fake.allow_cut_requests();
    let respool = Respool::with_agent(&fake, &echoing(), state.path(), WINDOW).await;
    let mut body = ask(false);
    body["tools"] = client_tools();
    let agent = respool.agents.get("helper").unwrap();
    let first = AgentRequest::parse(body.to_string().as_bytes()).unwrap();
    let mut watch = respool.agents.serve_request(&agent, first, None).await.unwrap();
    let suspension = loop {
        if let agent::WatchEvent::End(ended) = watch.next().await {
            break ended;
        }
    };
    let agent::WorkEnd::Suspended(suspension) = &suspension.end else { panic!("{suspension:?}") };
    let back = next_turn(&body, &suspension.calls[0].id, "the second");
    let waits = Some(Status::Suspended);
    assert_eq!(gone_before_the_commit(&respool, state.path(), &back, waits).await, Status::Cancelled);
    let again = AgentRequest::parse(back.to_string().as_bytes()).unwrap();
    let mut again = respool.agents.serve_request(&agent, again, None).await.unwrap();
    assert_eq!(again.run, watch.run);
    let ended = loop {
        if let agent::WatchEvent::End(ended) = again.next().await {
            break ended;
        }
    };
    let agent::WorkEnd::Finished(outcome) = &ended.end else { panic!("{ended:?}") };
    assert_eq!(outcome.content, "The second one.");
}

#[tokio::test]
async fn old_runs_are_removed_at_start() {
    let state = tempfile::tempdir().unwrap();
    let config = StoreConfig { state_dir: state.path().to_owned(), ..StoreConfig::default() };
    let store = Store::open(&config).unwrap();
    store
        .begin(NewRun { id: "run-0".into(), agent: "helper".into(), at: 1, ..NewRun::default() })
        .await
        .unwrap();
    let ended = Append::status("run-0", Store::FIRST_EPOCH, 1, Status::Done);
    store.append(ended).await.unwrap();
    drop(store);
    let fake = FakeVllm::start([]).await;
    let respool = Respool::with_agent(&fake, &echoing(), state.path(), "").await;
    let store = Arc::clone(respool.agents.store().unwrap());
    wait_until("the run is removed", async || store.usage().await.unwrap().runs == 0).await;
}

#[tokio::test]
async fn error_reports_respect_the_content_setting() {
    for (content, expected) in [
        (
            false,
            [
                "Iteration 1 | Tool: read | Error: 404 failed |",
                "Iteration 2 | Tool: model | Error: 400 failed |",
            ],
        ),
        (
            true,
            [
                "Iteration 1 | Tool: read | Error: fetch failed (404): a secret of the tool |",
                "a secret of the server |",
            ],
        ),
    ] {
        let state = tempfile::tempdir().unwrap();
        let failing = |_: &_, _| Err(ToolError::Failed("fetch failed (404): a secret of the tool".into()));
        let fake = FakeVllm::start(scripts(&[replies::calls(&[READ])])).await;
        fake.otherwise(Script::json(400, &replies::error(400, "a secret of the server", "BadRequestError")));
        let toml = format!(
            "state_dir = {0:?}\n[log]\ncontent = {content}\nerrors_dir = \"{1}\"\n[[upstream]]\nname = \"box\"\nurl = \"{2}\"\n\
             [agents.helper]\nmodel = \"gpt-oss-20b\"\n",
            state.path(),
            state.path().join("logs").display(),
            fake.url()
        );
        let respool = Respool::started(&toml, Some(Arc::new(ScriptedTools::new(failing)))).await;
        exchange(respool.address, &Request::chat(&ask(false))).await;
        let report = crate::support::eventually(|| {
            let day = std::fs::read_dir(state.path().join("logs")).ok()?.next()?.ok()?;
            std::fs::read_to_string(day.path()).ok().filter(|text| text.lines().count() == 2)
        })
        .await;
        assert!(expected.iter().all(|line| report.contains(line)), "{report}");
        assert_eq!(report.contains("secret"), content, "{report}");
    }
}
