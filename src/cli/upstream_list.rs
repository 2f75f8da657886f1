//! `respool upstreams`: lists the configured upstreams, whether each answers, its models, and what the
//! running respool observes of it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::banner::check_command;
use super::failure::Failure;
use super::reachability::{IS_RESPOOL, Reachability, ask_all};
use super::running::{RunningUpstream, ask_running, find_listener};
use super::runtime::new_runtime;
use super::say::{flat_text, say, say_on_stderr};
use super::upstreams::ServedUpstreams;
use adapt::describe_rule;
use settings::{Flags, Loaded};
use upstream::{KeptModelRules, KeptRules, ListedModel, RuleFile};

/// How long a server has to list its models, which needs no computation.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct UpstreamsArgs {
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
    #[command(subcommand)]
    command: Option<UpstreamsCommand>,
}

#[derive(Subcommand, Debug)]
enum UpstreamsCommand {
    /// Forget how requests for this upstream are adapted. A running server follows within seconds.
    #[command(after_help = "Example:\n  respool upstreams forget gpu-box")]
    Forget {
        /// The upstream's name
        name: String,
        /// The configuration file [default: respool.toml in the user's or the system's configuration
        /// directory]
        #[arg(long, value_name = "FILE", help_heading = "Configuration")]
        config: Option<PathBuf>,
    },
}

impl UpstreamsArgs {
    /// Returns the configuration file that a subcommand names.
    pub(super) fn config(&self) -> Option<&Path> {
        let Some(UpstreamsCommand::Forget { config, .. }) = &self.command else { return None };
        config.as_deref()
    }
}

/// Executes `respool upstreams`.
pub(super) fn upstreams(flags: &Flags, arguments: &UpstreamsArgs) -> Result<(), Failure> {
    if let Some(UpstreamsCommand::Forget { name, .. }) = &arguments.command {
        return forget(&Loaded::from_process(flags)?, name);
    }
    let (loaded, problems) = Loaded::records_from_process(flags)?;
    let is_default = loaded.place_of_upstream(0).is_default();
    if problems.is_none() && !is_default {
        return list_upstreams(&loaded, flags, arguments);
    }
    let listen = find_listener(&loaded.settings);
    let running = new_runtime()?.block_on(ask_running(&listen));
    match (running, problems) {
        (Some(running), Some(problems)) => {
            say_on_stderr(&format!(
                "respool: warning: the configuration is wrong, and `respool serve` would not start with it. Shown is what the \
                 respool that runs at {listen} says:\n{problems}"
            ));
            list_running(&running, arguments)
        }
        (Some(running), None) => {
            say_on_stderr(&format!(
                "No upstream is configured here. Shown are those of the respool that runs at {listen}."
            ));
            list_running(&running, arguments)
        }
        (None, Some(problems)) => Err(problems.into()),
        (None, None) => {
            say_on_stderr(
                "No upstream is configured, so this is the default one; name yours with --upstream URL.",
            );
            list_upstreams(&loaded, flags, arguments)
        }
    }
}

/// Lists the upstreams of the running respool, which has others than are configured here.
fn list_running(running: &[RunningUpstream], arguments: &UpstreamsArgs) -> Result<(), Failure> {
    if arguments.json {
        let entry = |seen: &RunningUpstream| json!({"name": seen.name, "running": seen.json()});
        say(&format!("{:#}", running.iter().map(entry).collect::<Value>()));
    } else {
        running.iter().for_each(|seen| say(&flat_text(&seen.line())));
    }
    report_failing(running)?;
    if running.iter().all(RunningUpstream::is_usable) { Ok(()) } else { Err(Failure::Reported) }
}

/// Explains which requests tell more, if requests fail at an upstream.
fn report_failing(running: &[RunningUpstream]) -> Result<(), Failure> {
    if !running.iter().any(RunningUpstream::is_failing) {
        return Ok(());
    }
    say_on_stderr(
        "The running respool leaves an upstream out, because requests fail there: `respool requests` shows them, also those that another upstream answered.",
    );
    Err(Failure::Reported)
}

fn forget(loaded: &Loaded, name: &str) -> Result<(), Failure> {
    let names: Vec<&str> = loaded.settings.upstreams.iter().map(|upstream| upstream.name.as_str()).collect();
    if !names.contains(&name) {
        let known = names.join(", ");
        return Err(Failure::from(format!("There is no upstream `{name}`. Available upstreams: {known}")));
    }
    let file = RuleFile::new(&loaded.settings.store.state_dir);
    let had_rules =
        file.forget(name).map_err(|error| format!("the learned rules cannot be changed: {error}"))?;
    let done = if had_rules { "begin unchanged again." } else { "were not adapted: nothing to forget." };
    say(&format!("Requests for `{name}` {done}"));
    Ok(())
}

fn list_upstreams(loaded: &Loaded, flags: &Flags, arguments: &UpstreamsArgs) -> Result<(), Failure> {
    let abort = CancellationToken::new();
    let listen = find_listener(&loaded.settings);
    let (found, running) = new_runtime()?.block_on(async {
        let upstreams = ServedUpstreams::open(&loaded.settings, &abort).await;
        let upstreams = upstreams.map_err(|found| loaded.problems(found))?;
        Ok::<_, Failure>(tokio::join!(ask_all(&upstreams.fleet, ANSWER_WITHIN), ask_running(&listen)))
    })?;
    let seen = |name: &str| running.iter().flatten().find(|seen| seen.name == name);
    let rules = RuleFile::new(&loaded.settings.store.state_dir);
    if arguments.json {
        let entry = |upstream: &Reachability| {
            let mut entry = upstream.json();
            entry["learned_rules"] = json!(rules.rules_of(&upstream.name).models);
            entry["running"] = seen(&upstream.name).map(RunningUpstream::json).unwrap_or_default();
            entry
        };
        let all: Vec<Value> = found.iter().map(entry).collect();
        say(&format!("{:#}", Value::from(all)));
    } else {
        table_lines(&found).iter().for_each(|line| say(&flat_text(line)));
        if running.is_none() {
            say_on_stderr(&format!("No respool answers at {listen}, so circuits and queues are not known."));
        }
        running.iter().flatten().for_each(|seen| say(&flat_text(&seen.line())));
        for upstream in &found {
            rule_lines(&upstream.name, &rules.rules_of(&upstream.name))
                .iter()
                .for_each(|line| say(&flat_text(line)));
        }
    }
    report_failing(running.as_deref().unwrap_or_default())?;
    if found.iter().all(|upstream| upstream.problem.is_none()) {
        return Ok(());
    }
    say_on_stderr(&format!("An upstream cannot be used: `{}` says how to correct it.", check_command(flags)));
    Err(Failure::Reported)
}

/// Writes the models that are sent adapted requests, and what each rule changes and costs.
fn rule_lines(upstream: &str, rules: &KeptRules) -> Vec<String> {
    let lines = |model: &KeptModelRules| {
        let since = clock::format_time(model.learned_at);
        let head = format!("{upstream}: requests for {} are adapted since {since}:", model.model);
        let rules = model.rules.iter().map(|name| format!("  {name}: {}", describe_rule(name)));
        std::iter::once(head).chain(rules).collect::<Vec<String>>()
    };
    rules.models.iter().flat_map(lines).collect()
}

/// Writes a line for each upstream, and one for each further model.
fn table_lines(found: &[Reachability]) -> Vec<String> {
    let name_width = found.iter().map(|upstream| upstream.name.chars().count()).max().unwrap_or_default();
    let mut lines = Vec::new();
    for upstream in found {
        let name = &upstream.name;
        if let Some(problem) = &upstream.problem {
            lines.push(format!("{name:<name_width$}  FAIL     {problem}"));
        }
        for (index, model) in upstream.models.iter().enumerate() {
            let (name, state) = if index == 0 { (name.as_str(), "answers") } else { ("", "") };
            let took = upstream.took.as_millis();
            let note = if upstream.is_respool { format!("; {IS_RESPOOL}") } else { String::new() };
            let took = if index == 0 { format!("  ({took} ms){note}") } else { String::new() };
            lines.push(format!("{name:<name_width$}  {state:<7}  {}{took}", describe_model(model)));
        }
    }
    lines
}

fn describe_model(model: &ListedModel) -> String {
    match model.window {
        Some(window) => format!("{}, context of {window} tokens", model.id),
        None => model.id.clone(),
    }
}
