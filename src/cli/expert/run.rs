//! `respool expert run`: gets one answer of an expert, or executes one process, in this process and on the
//! same store as a server.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use crate::cli::assembly::{app, finish_work};
use crate::cli::failure::{Failure, log_problem};
use crate::cli::runtime::{new_runtime, stop_signals};
use crate::cli::say::{say, say_on_stderr, say_piece_on_stderr};
use agent::{AgentRequest, RunOptions, WatchEvent, WorkEnd};
use experts::{DryRun, Experts, Worker, WorkerScope, copy_state, message_json};
use openexperts::visible;
use server::App;
use settings::Loaded;
use store::{EntryState, MessageFilter, Store};

/// How long to wait for an expert's servers.
const FIRST_START: Duration = Duration::from_secs(30);

/// Sends a message to an expert and prints its answer. Log lines go only to the configured file, so that the
/// answer stands alone.
pub(super) fn send_message(config: &Loaded, name: &str, message: &str) -> Result<(), Failure> {
    let flush = telemetry::init_file(&config.settings.log).map_err(|why| log_problem(config, why))?;
    let done = new_runtime()?.block_on(async {
        let shutdown = CancellationToken::new();
        let app = app(&config.settings, &shutdown).await.map_err(|found| config.problems(found))?;
        let answered = print_answer(&app, name, message).await;
        finish_work(&app, &shutdown).await;
        answered
    });
    drop(flush);
    done
}

async fn print_answer(app: &App, name: &str, message: &str) -> Result<(), Failure> {
    let experts = app.experts.as_ref().ok_or_else(|| NO_MODEL.to_owned())?;
    experts.await_servers(name, FIRST_START).await;
    let agent = experts.agent(name).ok_or_else(|| experts.unknown_expert(name))?;
    if let Some(why) = experts.describe_hold(name) {
        return Err(Failure::Failed(why));
    }
    refuse_without_budget(experts, name)?;
    let options = RunOptions::default();
    let [mut terminate, mut interrupt] = stop_signals()?;
    let begun = app.agents.start_run(&agent, AgentRequest::from_task(message), options).await;
    let mut watch = begun?;
    let run = watch.run.clone();
    let ended = loop {
        let event = tokio::select! {
            event = watch.next() => event,
            _ = terminate.recv() => return stop_run(app, &run).await,
            _ = interrupt.recv() => return stop_run(app, &run).await,
        };
        match event {
            WatchEvent::Progress(text) => say_piece_on_stderr(&text),
            WatchEvent::End(ended) => break ended,
        }
    };
    match &ended.end {
        WorkEnd::Finished(outcome) if outcome.failure.is_none() => say(&outcome.text()),
        WorkEnd::Finished(outcome) => return Err(Failure::Failed(outcome.text())),
        WorkEnd::AwaitingApproval(request) => say(&format!(
            "The run {run} waits for a person's approval: `respool expert approvals show {}`. A server continues it.",
            request.id
        )),
        WorkEnd::Suspended(_) | WorkEnd::Left => {
            return Err(Failure::Failed(format!("the run {run} did not end")));
        }
    }
    Ok(())
}

/// Ends a run that its person has stopped, so that no server goes on with it.
async fn stop_run(app: &App, run: &str) -> Result<(), Failure> {
    app.agents.cancel_run(run).await?;
    Err(Failure::Failed(format!("stopped: the run {run} is cancelled; what it did before stays")))
}

/// Why no expert can run.
pub(super) const NO_MODEL: &str = "experts have no model: set `experts.model` in respool.toml";

/// A process to execute.
pub(super) struct ProcessRequest {
    pub(super) expert: String,
    pub(super) process: String,
    /// JSON, or `@FILE`, or `-` for standard input.
    pub(super) payload: Option<String>,
    pub(super) is_dry: bool,
}

/// Executes a process and prints its result.
pub(super) fn run_process(config: &Loaded, wanted: ProcessRequest) -> Result<(), Failure> {
    let payload = read_payload(wanted.payload.as_deref())?;
    let flush = telemetry::init_file(&config.settings.log).map_err(|why| log_problem(config, why))?;
    let done = new_runtime()?.block_on(async {
        let shutdown = CancellationToken::new();
        let app = app(&config.settings, &shutdown).await.map_err(|found| config.problems(found))?;
        let experts = app.experts.as_ref().ok_or_else(|| NO_MODEL.to_owned())?;
        experts.await_servers(&wanted.expert, FIRST_START).await;
        let executed = if wanted.is_dry {
            let state = config.settings.experts.state_of(&wanted.expert);
            run_dry(experts, state, wanted, payload).await
        } else {
            queue_and_execute(&app, experts, wanted, payload, &shutdown).await
        };
        finish_work(&app, &shutdown).await;
        executed
    });
    drop(flush);
    done
}

fn read_payload(written: Option<&str>) -> Result<Value, Failure> {
    let text = match written {
        None => return Ok(Value::Object(Map::new())),
        Some("-") => std::io::read_to_string(std::io::stdin())
            .map_err(|error| format!("the payload cannot be read: {error}"))?,
        Some(written) => match written.strip_prefix('@') {
            Some(path) => {
                std::fs::read_to_string(path).map_err(|error| format!("{path} cannot be read: {error}"))?
            }
            None => written.to_owned(),
        },
    };
    let read: Value = serde_json::from_str(&text).map_err(|error| {
        format!("the payload is not JSON ({error}); write it, or @FILE, or - for standard input")
    })?;
    if !read.is_object() {
        return Err("the payload is not an object: it holds the inputs of the process by their names"
            .to_owned()
            .into());
    }
    Ok(read)
}

async fn run_dry(
    experts: &Arc<Experts>,
    state: PathBuf,
    wanted: ProcessRequest,
    payload: Value,
) -> Result<(), Failure> {
    let copy = tempfile::tempdir().map_err(|error| format!("no copy of the state can be made: {error}"))?;
    copy_state(&state, copy.path()).map_err(|error| format!("no copy of the state can be made: {error}"))?;
    let (expert, process) = (wanted.expert, wanted.process);
    say_problems(
        experts,
        &expert,
        "`serve` would not begin this, and no call of a tool that is named here is made",
    );
    refuse_without_budget(experts, &expert)?;
    let run = DryRun { expert, process, payload, state: copy.path().to_owned() };
    let report = run.run_dry(experts).await?;
    say(&format!("{report:#}"));
    // A test looks at the exit code.
    match report["end"].as_str() {
        Some("done") => Ok(()),
        end => Err(Failure::Failed(format!("the dry run ended as {}", end.unwrap_or_default()))),
    }
}

/// Queues the invocation, and executes it and what must end before it in its lane. A server may be quicker.
async fn queue_and_execute(
    app: &App,
    experts: &Arc<Experts>,
    wanted: ProcessRequest,
    payload: Value,
    shutdown: &CancellationToken,
) -> Result<(), Failure> {
    let store = app
        .agents
        .store()
        .cloned()
        .ok_or_else(|| "there is no store, so no process is executed".to_owned())?;
    let invocation = experts.new_invocation(&wanted.expert, &wanted.process, payload)?;
    let id = invocation.id.clone();
    store.enqueue(invocation.into_entry(Duration::ZERO)).await?;
    let goal = WorkerScope { expert: wanted.expert.clone(), entry: id.clone() };
    let worker = Worker::new(experts, shutdown.clone(), Some(goal));
    let worker = worker.ok_or_else(|| "there is no store, so no process is executed".to_owned())?;
    say_on_stderr(&format!("{id}: queued"));
    let [mut terminate, mut interrupt] = stop_signals()?;
    let working = tokio::spawn(worker.run_worker());
    let ended = tokio::select! {
        ended = follow_entry(experts, &store, &wanted.expert, &id) => ended,
        _ = terminate.recv() => Err(interrupt_error(&id)),
        _ = interrupt.recv() => Err(interrupt_error(&id)),
    };
    shutdown.cancel();
    let _ = working.await;
    ended
}

/// Returns the error of a command that a signal ended before its invocation was done.
fn interrupt_error(id: &str) -> Failure {
    Failure::Failed(format!(
        "{id} is unfinished: `respool serve` continues it, and `respool expert cancel {id}` ends it"
    ))
}

/// Refuses to ask a model once the budget is spent, as a server does.
fn refuse_without_budget(experts: &Experts, name: &str) -> Result<(), Failure> {
    experts.model_access(name).shortage_of(name).map_or(Ok(()), |why| Err(Failure::Failed(why)))
}

/// Says what keeps an expert from being ready, and what follows from it.
fn say_problems(experts: &Experts, name: &str, consequence: &str) {
    let problems = experts.get(name).map(|expert| experts.problems(&expert)).unwrap_or_default();
    for problem in problems {
        say_on_stderr(&format!("{name} is not ready, so {consequence}: {problem}"));
    }
}

async fn follow_entry(experts: &Experts, store: &Store, expert: &str, id: &str) -> Result<(), Failure> {
    say_problems(experts, expert, "the process waits (Ctrl-C leaves it in the queue)");
    let mut note = None;
    loop {
        let entry = store.entry(id).await?;
        let entry = entry.ok_or_else(|| "the invocation is gone".to_owned())?;
        if entry.note != note {
            note.clone_from(&entry.note);
            let (state, note) = (entry.state.as_str(), visible(entry.note.as_deref().unwrap_or_default()));
            say_on_stderr(&if note == state {
                format!("{id}: {state}")
            } else {
                format!("{id}: {state} {note}")
            });
        }
        let is_over = matches!(
            entry.state,
            EntryState::Done
                | EntryState::Escalated
                | EntryState::Failed
                | EntryState::DeadLetter
                | EntryState::Held
        );
        if !is_over {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        }
        let filter = MessageFilter { entry: Some(id.to_owned()), ..MessageFilter::default() };
        let mut messages = store.messages(filter, 1_000).await?;
        messages.reverse();
        messages.iter().for_each(|row| say(&format!("{:#}", message_json(row))));
        return match entry.state {
            EntryState::Done => Ok(()),
            EntryState::Escalated => {
                say(&format!(
                    "It needs your decision: `respool expert retry {id} --comment TEXT` continues it."
                ));
                Ok(())
            }
            EntryState::Held => {
                say(
                    "It waits for a person's approval: `respool expert approvals list`. `respool serve` continues it.",
                );
                Ok(())
            }
            _ => Err(Failure::Failed(format!(
                "the process failed: {}; `respool expert retry {id}` tries it again, without what was done before",
                visible(entry.note.as_deref().unwrap_or_default())
            ))),
        };
    }
}
