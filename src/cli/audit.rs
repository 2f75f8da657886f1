//! `respool audit`: shows the calls of tools that the audit log has, with `store.url` those of all nodes.

use std::borrow::Cow;
use std::collections::HashSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde_json::{Map, Value};

use super::failure::Failure;
use super::listing::ListArgs;
use super::runtime::new_runtime;
use super::say::{flat_text, say, say_on_stderr};
use settings::Loaded;
use store::{AuditLogLine, Store, StoreConfig};
use tools::audit::{self, AuditLine, Step};

#[derive(Debug, Subcommand)]
pub(super) enum AuditCommand {
    /// List the tool calls that may have changed something and those that were refused, newest last.
    #[command(after_help = "Example:\n  respool audit list --since 24h --json")]
    List {
        #[command(flatten)]
        arguments: ListArgs,
        /// Only this file [default: `audit.jsonl` in the state directory, and the lines of all nodes]
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// Removed: lines carry no hashes any more.
    #[command(hide = true)]
    Verify {
        /// Ignored
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
    },
}

impl Default for AuditCommand {
    fn default() -> Self {
        Self::List { arguments: ListArgs::default(), file: None }
    }
}

pub(super) fn run_audit(loaded: &Loaded, command: AuditCommand) -> Result<(), Failure> {
    match command {
        AuditCommand::List { arguments, file } => list_calls(&loaded.settings.store, file, &arguments),
        AuditCommand::Verify { .. } => Err(Failure::Failed(
            "`audit verify` was removed: lines of the audit log carry no hashes any more, because a user who may write the \
             file could renew them. To detect changes, send the lines to another machine. `respool audit list` shows them"
                .to_owned(),
        )),
    }
}

/// A line, with the node that wrote it where several share a database.
struct Listed {
    at: u64,
    node: Option<String>,
    line: String,
}

/// Reads the lines of a file; `None` without one.
fn read_log(file: &Path) -> Result<Option<String>, Failure> {
    match std::fs::read_to_string(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        read => {
            let read = read.map(Some);
            read.map_err(|error| Failure::Failed(format!("{} cannot be read: {error}", file.display())))
        }
    }
}

/// Returns the newest lines that all nodes have copied to the database.
fn find_shared(config: &StoreConfig, arguments: &ListArgs) -> Result<Vec<Listed>, Failure> {
    let store = Store::open_in_place(config)?;
    let Some(shared) = store.shared_audit_log() else { return Ok(Vec::new()) };
    let since = arguments.since.map(clock::time_ago).unwrap_or_default();
    let found = new_runtime()?.block_on(shared.newest_lines(since, arguments.limit))?;
    let listed =
        |(node, line): (String, AuditLogLine)| Listed { at: line.at, node: Some(node), line: line.text };
    Ok(found.into_iter().map(listed).collect())
}

/// Returns the lines of all nodes in the order of their times, each once: the database has most lines of this
/// node's file.
fn merge_lines(mut shared: Vec<Listed>, own: &str, node: Option<&str>) -> Vec<Listed> {
    let known: HashSet<String> = shared.iter().map(|listed| listed.line.clone()).collect();
    let mut at = 0;
    for line in own.lines().filter(|line| !line.is_empty()) {
        // One that cannot be read stays behind the one before.
        at = AuditLine::time_of(line).unwrap_or(at);
        if !known.contains(line) {
            shared.push(Listed { at, node: node.map(str::to_owned), line: line.to_owned() });
        }
    }
    shared.sort_by_key(|listed| listed.at);
    shared
}

fn list_calls(config: &StoreConfig, file: Option<PathBuf>, arguments: &ListArgs) -> Result<(), Failure> {
    let shared = if config.store.url.is_some() && file.is_none() {
        find_shared(config, arguments).unwrap_or_else(|error| {
            say_on_stderr(&format!("Shown are the calls of this node alone: {error}"));
            Vec::new()
        })
    } else {
        Vec::new()
    };
    let file = file.unwrap_or_else(|| config.state_dir.join(audit::FILE));
    let own = read_log(&file)?;
    if own.is_none() && shared.is_empty() {
        say_on_stderr(&format!(
            "There is no audit log at {}: no call that may change something has run, and none was refused or approved by \
             a person (calls that only read are not recorded).",
            file.display()
        ));
    }
    let mut lines = merge_lines(shared, &own.unwrap_or_default(), config.node.name.as_deref());
    lines.retain(|listed| arguments.includes(listed.at));
    for Listed { node, line, .. } in &lines[lines.len().saturating_sub(arguments.limit)..] {
        let node = node.as_deref().filter(|_| config.store.url.is_some());
        match serde_json::from_str::<AuditLine>(line) {
            Ok(_) if arguments.json => say(&with_node(line, node)),
            Ok(read) => say(&flat_text(&describe_call(&read, node))),
            Err(_) => say(&flat_text(&format!("? not a line of this log: {line}"))),
        }
    }
    Ok(())
}

/// Adds the node to the JSON of a line.
fn with_node(line: &str, node: Option<&str>) -> String {
    let (Some(node), Ok(mut object)) = (node, serde_json::from_str::<Map<String, Value>>(line)) else {
        return line.to_owned();
    };
    object.insert("node".to_owned(), node.into());
    Value::from(object).to_string()
}

fn describe_call(line: &AuditLine, node: Option<&str>) -> String {
    let entry = &line.entry;
    let step = match entry.step {
        Step::Begun => "begun",
        Step::Ended => "ended",
        Step::Refused => "refused",
    };
    let took = entry.took_ms.map(|took| format!(" after {took} ms"));
    let details = [
        node.map(|node| format!("node {node}")),
        (!entry.caller.agent.is_empty()).then(|| format!("agent {}", entry.caller.agent)),
        (!entry.caller.run.is_empty()).then(|| format!("run {}", entry.caller.run)),
        entry.caller.key.as_ref().map(|key| format!("key {key}")),
        entry.rule.clone(),
        entry.approved_by.as_ref().map(|who| format!("approved by {who}")),
        entry
            .outcome
            .as_deref()
            .map(|outcome| format!("{}{}", describe_outcome(outcome), took.unwrap_or_default())),
        entry.arguments.as_ref().map(|arguments| serde_json::to_string(arguments).unwrap_or_default()),
    ];
    let details: Vec<String> = details.into_iter().flatten().collect();
    format!("{}  {step:7}  {}  {}", line.at, entry.tool, details.join(", "))
}

/// Describes how a call ended. `transient` alone does not say that the call may have been made.
fn describe_outcome(outcome: &str) -> Cow<'_, str> {
    match outcome {
        "unknown" => "it is not known whether it took effect".into(),
        "transient" | "protocol_error" | "timed_out" | "cancelled" => {
            format!("{outcome} (it is not known whether it took effect)").into()
        }
        _ => outcome.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_all_nodes_are_in_order() {
        let line = |second: u32, call: &str| {
            format!(r#"{{"at":"1970-01-01T00:00:0{second}Z","step":"ended","call":"{call}","tool":"exec"}}"#)
        };
        let shared = |at, node: &str, line: String| Listed { at, node: Some(node.to_owned()), line };
        let of_all = vec![shared(1_000, "a", line(1, "one")), shared(3_000, "b", line(3, "three"))];
        let own = [&line(1, "one"), &line(2, "two"), "no line", &line(4, "four")].join("\n");
        let merged = merge_lines(of_all, &own, Some("a"));
        let told: Vec<_> = merged.iter().map(|listed| (listed.at, listed.node.as_deref().unwrap())).collect();
        assert_eq!(told, [(1_000, "a"), (2_000, "a"), (2_000, "a"), (3_000, "b"), (4_000, "a")]);
        assert_eq!(merged[2].line, "no line");
        let read: AuditLine = serde_json::from_str(&with_node(&merged[3].line, Some("b"))).unwrap();
        assert_eq!(read.entry.call, "three");
        assert!(
            describe_call(&read, Some("b")).ends_with("exec  node b"),
            "{}",
            describe_call(&read, Some("b"))
        );
        assert!(with_node(&merged[3].line, Some("b")).contains(r#""node":"b""#));
    }

    #[test]
    fn a_call_that_may_have_been_made_says_so() {
        let line = |outcome: &str| {
            let line = serde_json::json!({"at": "2026-11-25T18:47:48Z", "step": "ended", "agent": "desk", "call": "c-1", "tool": "mcp:crm/move",
                "outcome": outcome, "took_ms": 36});
            describe_call(&serde_json::from_value(line).unwrap(), None)
        };
        let doubt = "it is not known whether it took effect";
        assert_eq!(line("ok"), "2026-11-25T18:47:48Z  ended    mcp:crm/move  agent desk, ok after 36 ms");
        assert!(
            line("transient").ends_with(&format!("transient ({doubt}) after 36 ms")),
            "{}",
            line("transient")
        );
        assert!(line("unknown").ends_with(&format!("{doubt} after 36 ms")), "{}", line("unknown"));
    }
}
