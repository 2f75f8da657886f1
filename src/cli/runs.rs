//! `respool runs`: lists and shows agent runs, resumes an interrupted one, cancels or removes one. Works on
//! the store directly, also while a server uses it.

use std::sync::Arc;

use clap::Subcommand;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::assembly::{app, finish_work};
use super::failure::{Failure, log_problem};
use super::listing::{ListArgs, Noun};
use super::runtime::new_runtime;
use super::say::{say, say_on_stderr, say_piece_on_stderr, say_row};
use agent::{WatchEvent, WorkEnd, report};
use settings::Loaded;
use store::{RunFilter, RunRow, Status, Store};

#[derive(Debug, Subcommand)]
pub(super) enum RunsCommand {
    /// List runs, newest first.
    #[command(after_help = "Example:\n  respool runs list --since 24h")]
    List(ListArgs),
    /// Print one run with its iterations, tools and tokens, as JSON.
    #[command(after_help = "Example:\n  respool runs show RUN")]
    Show {
        /// The id of the run, as `respool runs list` shows it
        run: String,
    },
    /// Resume an interrupted run and print its answer.
    #[command(after_help = "Example:\n  respool runs resume RUN")]
    Resume {
        /// The id of the run, as `respool runs list` shows it
        run: String,
    },
    /// Cancel a run: at once if no process is working on it, otherwise after its current step.
    #[command(after_help = "Example:\n  respool runs cancel RUN")]
    Cancel {
        /// The id of the run, as `respool runs list` shows it
        run: String,
    },
    /// Remove a run that no process is working on, with everything stored for it.
    #[command(
        name = "remove",
        alias = "delete",
        alias = "rm",
        after_help = "Example:\n  respool runs remove RUN"
    )]
    Remove {
        /// The id of the run, as `respool runs list` shows it
        run: String,
    },
}

impl RunsCommand {
    /// Returns true for a command that changes nothing.
    pub(super) fn only_reads(&self) -> bool {
        matches!(self, Self::List(_) | Self::Show { .. })
    }
}

impl Default for RunsCommand {
    fn default() -> Self {
        Self::List(ListArgs::default())
    }
}

pub(super) fn run_runs(loaded: &Loaded, command: RunsCommand) -> Result<(), Failure> {
    let flush = telemetry::init(&loaded.settings.log).map_err(|why| log_problem(loaded, why))?;
    let done = new_runtime()?.block_on(async {
        match command {
            RunsCommand::List(arguments) => list_runs(&*open_store(loaded).await?, &arguments).await,
            RunsCommand::Show { run } => show_run(&*open_store(loaded).await?, &run).await,
            RunsCommand::Resume { run } => resume_run(loaded, &run).await,
            RunsCommand::Cancel { run } => cancel_run(&*open_store(loaded).await?, &run).await,
            RunsCommand::Remove { run } => delete_run(&*open_store(loaded).await?, &run).await,
        }
    });
    drop(flush);
    done
}

/// Returns the store, with runs of ended processes marked as interrupted.
async fn open_store(loaded: &Loaded) -> Result<Arc<Store>, Failure> {
    let store = Store::open_in_place(&loaded.settings.store)?;
    // Runs can be read even if the disk is full.
    if let Err(error) = store.mark_orphans().await {
        say_on_stderr(&format!(
            "respool: runs whose process has ended may still be shown as running: {error}"
        ));
    }
    Ok(Arc::new(store))
}

async fn list_runs(store: &Store, arguments: &ListArgs) -> Result<(), Failure> {
    let mut rows = store.newest(RunFilter::All, arguments.limit).await?;
    rows.retain(|row| arguments.includes(row.created));
    if arguments.json {
        let rows: Vec<Value> = rows.iter().map(report::summary).collect();
        say(&format!("{:#}", Value::from(rows)));
        return Ok(());
    }
    let usage = store.usage().await?;
    for (row, depth) in nest_runs(&rows) {
        let title = store.run(&row.id).await?.and_then(|stored| report::title(&stored));
        say_row(&run_line(row, depth, title.as_deref().unwrap_or_default()));
    }
    say_on_stderr(&format!(
        "{} of {}, {} of at most {} in {}",
        rows.len(),
        Noun("run", "runs").count_things(usize::try_from(usage.runs).unwrap_or(usize::MAX)),
        round_size(usage.bytes),
        store.limits().max_size,
        store.place()
    ));
    Ok(())
}

/// Returns the runs in order, each followed by its children with their depth. A child without a listed parent
/// names it.
fn nest_runs(rows: &[RunRow]) -> Vec<(&RunRow, usize)> {
    fn add_run<'a>(rows: &'a [RunRow], row: &'a RunRow, depth: usize, all: &mut Vec<(&'a RunRow, usize)>) {
        all.push((row, depth));
        let children = rows.iter().rev().filter(|other| other.parent.as_ref() == Some(&row.id));
        children.for_each(|child| add_run(rows, child, depth + 1, all));
    }
    let has_parent = |row: &&RunRow| rows.iter().any(|other| Some(&other.id) == row.parent.as_ref());
    let mut all = Vec::new();
    rows.iter().filter(|row| !has_parent(row)).for_each(|row| add_run(rows, row, 0, &mut all));
    all
}

fn run_line(row: &RunRow, depth: usize, title: &str) -> String {
    let begun = clock::format_time(row.created);
    let (size, status) = (round_size(row.bytes), row.status.as_str());
    let (indent, agent) = ("  ".repeat(depth), &row.agent);
    let parent = row.parent.as_ref().filter(|_| depth == 0);
    let parent = parent.map(|parent| format!("  (child of {parent})")).unwrap_or_default();
    let line = format!("{indent}{}  {begun}  {size:>9}  {status:<17}  {agent}{parent}  {title}", row.id);
    line.trim_end().to_owned()
}

/// Returns a size, formatted for people.
fn round_size(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    #[expect(clippy::cast_precision_loss, reason = "it is rounded anyway")]
    let mut size = bytes as f64 / 1_024.0;
    let mut unit = 0;
    while size >= 1_000.0 && unit + 1 < units.len() {
        size /= 1_024.0;
        unit += 1;
    }
    format!("{size:.1}{}", units[unit])
}

async fn show_run(store: &Store, id: &str) -> Result<(), Failure> {
    let run = store.run(id).await?.ok_or_else(|| unknown_run(id))?;
    say(&format!("{:#}", report::breakdown(&run)));
    Ok(())
}

async fn cancel_run(store: &Store, id: &str) -> Result<(), Failure> {
    if store.request_cancel(id, clock::now()).await? {
        return Ok(());
    }
    let run = store.run(id).await?.ok_or_else(|| unknown_run(id))?;
    Err(format!("the run {id} is already {}", run.row.status.as_str()).into())
}

async fn delete_run(store: &Store, id: &str) -> Result<(), Failure> {
    if store.delete(id).await? {
        return Ok(());
    }
    match store.run(id).await? {
        Some(run) if run.row.status == Status::Running => {
            Err(format!("a process works on {id}; cancel it first: respool runs cancel {id}").into())
        }
        Some(_) => Err(format!(
            "{id} belongs to an invocation that may be executed again and then needs the run; end the invocation first: \
             `respool expert cancel` for one in `respool expert queue`, or `respool expert dead-letters remove`"
        )
        .into()),
        None => Err(unknown_run(id).into()),
    }
}

async fn resume_run(loaded: &Loaded, id: &str) -> Result<(), Failure> {
    let stored = open_store(loaded).await?.run(id).await?;
    let stop = CancellationToken::new();
    let app = app(&loaded.settings, &stop).await.map_err(|found| loaded.problems(found))?;
    let agent = stored.ok_or_else(|| unknown_run(id))?.row.agent;
    #[cfg(feature = "chat")]
    if agent == chat::NAME {
        let what = "is a conversation of `respool chat`: continue it with `respool chat --continue`";
        return Err(format!("{id} {what}").into());
    }
    let of_expert = match &app.experts {
        Some(experts) => experts.resume(id).await.map(|resumed| resumed.map_err(|error| error.to_string())),
        None => None,
    };
    let resumed = match of_expert {
        Some(resumed) => resumed,
        // Without agents no store of runs is used.
        None if app.agents.store().is_none() => Err(format!("its agent `{agent}` is not configured")),
        None => app.agents.resume_run(id).await.map_err(|error| error.to_string()),
    };
    let mut watch = resumed.map_err(|why| format!("the run {id} cannot be resumed: {why}"))?;
    let ended = loop {
        match watch.next().await {
            WatchEvent::Progress(text) => say_piece_on_stderr(&text),
            WatchEvent::End(ended) => break ended,
        }
    };
    finish_work(&app, &stop).await;
    match &ended.end {
        WorkEnd::Finished(outcome) => {
            say(&outcome.text());
            Ok(())
        }
        WorkEnd::Suspended(_) => Err("the run now waits for its client's tool results".into()),
        WorkEnd::AwaitingApproval(request) => {
            Err(format!("the run waits for a person's approval `{}`", request.id).into())
        }
        WorkEnd::Left => Err("the run was interrupted again".into()),
    }
}

fn unknown_run(id: &str) -> String {
    format!("no run has the id {id}; `respool runs list` shows all ids")
}
