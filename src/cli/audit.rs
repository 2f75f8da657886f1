//! `respool audit`: shows the calls of tools that the audit log has.

use std::borrow::Cow;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::UNIX_EPOCH;

use clap::Subcommand;

use super::failure::Failure;
use super::listing::ListArgs;
use super::say::{flat_text, say, say_on_stderr};
use settings::Loaded;
use tools::audit::{self, AuditLine, Step};

#[derive(Debug, Subcommand)]
pub(super) enum AuditCommand {
    /// List the tool calls that may have changed something and those that were refused, newest last.
    #[command(after_help = "Example:\n  respool audit list --since 24h --json")]
    List {
        #[command(flatten)]
        arguments: ListArgs,
        /// The audit log [default: `audit.jsonl` in the state directory]
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
    let place =
        |file: Option<PathBuf>| file.unwrap_or_else(|| loaded.settings.store.state_dir.join(audit::FILE));
    match command {
        AuditCommand::List { arguments, file } => list_calls(&place(file), &arguments),
        AuditCommand::Verify { .. } => Err(Failure::Failed(
            "`audit verify` was removed: lines of the audit log carry no hashes any more, because a user who may write the \
             file could renew them. To detect changes, send the lines to another machine. `respool audit list` shows them"
                .to_owned(),
        )),
    }
}

fn read_log(file: &std::path::Path) -> Result<String, Failure> {
    match std::fs::read_to_string(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            say_on_stderr(&format!(
                "There is no audit log at {}: no call that may change something has run, and none was refused or approved by \
                 a person (calls that only read are not recorded).",
                file.display()
            ));
            Ok(String::new())
        }
        read => read.map_err(|error| Failure::Failed(format!("{} cannot be read: {error}", file.display()))),
    }
}

/// Returns true for a line from within the time. A line that cannot be read is kept in the list.
fn is_recent(line: &str, arguments: &ListArgs) -> bool {
    let at =
        serde_json::from_str::<AuditLine>(line).ok().and_then(|line| humantime::parse_rfc3339(&line.at).ok());
    let millis = at.and_then(|at| at.duration_since(UNIX_EPOCH).ok()).map(clock::to_millis);
    millis.is_none_or(|millis| arguments.includes(millis))
}

fn list_calls(file: &std::path::Path, arguments: &ListArgs) -> Result<(), Failure> {
    let text = read_log(file)?;
    let lines: Vec<&str> = text.lines().filter(|line| is_recent(line, arguments)).collect();
    for line in &lines[lines.len().saturating_sub(arguments.limit)..] {
        match serde_json::from_str::<AuditLine>(line) {
            Ok(_) if arguments.json => say(line),
            Ok(read) => say(&flat_text(&describe_call(&read))),
            Err(_) => say(&flat_text(&format!("? not a line of this log: {line}"))),
        }
    }
    Ok(())
}

fn describe_call(line: &AuditLine) -> String {
    let entry = &line.entry;
    let step = match entry.step {
        Step::Begun => "begun",
        Step::Ended => "ended",
        Step::Refused => "refused",
    };
    let took = entry.took_ms.map(|took| format!(" after {took} ms"));
    let details = [
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
    fn a_call_that_may_have_been_made_says_so() {
        let line = |outcome: &str| {
            let line = serde_json::json!({"at": "2026-11-25T18:47:48Z", "step": "ended", "agent": "desk", "call": "c-1", "tool": "mcp:crm/move",
                "outcome": outcome, "took_ms": 36});
            describe_call(&serde_json::from_value(line).unwrap())
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
