//! `respool audit`: shows what tools did and what was refused, and verifies the log.

use std::io::ErrorKind;
use std::path::PathBuf;

use clap::Subcommand;

use super::Failure;
use super::say::{flat, say};
use crate::config::Loaded;
use crate::tools::audit::{self, Line, Step};

#[derive(Debug, Subcommand)]
pub(super) enum AuditCommand {
    /// List tool calls, newest last.
    List {
        /// How many lines to print, counted from the end
        #[arg(long, value_name = "COUNT", default_value_t = 50)]
        limit: usize,
        /// Print the lines exactly as they are in the log
        #[arg(long)]
        json: bool,
        /// The audit log [default: `audit.jsonl` in the state directory]
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// Verify that no line was changed or removed; exits with 1 if one was.
    Verify {
        /// The audit log [default: `audit.jsonl` in the state directory]
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
    },
}

pub(super) fn audit(loaded: &Loaded, command: AuditCommand) -> Result<(), Failure> {
    let place =
        |file: Option<PathBuf>| file.unwrap_or_else(|| loaded.settings.store.state_dir.join(audit::FILE));
    match command {
        AuditCommand::List { limit, json, file } => list(&place(file), limit, json),
        AuditCommand::Verify { file } => verify(&place(file)),
    }
}

fn text(file: &std::path::Path) -> Result<String, Failure> {
    std::fs::read_to_string(file).map_err(|error| {
        Failure::Failed(match error.kind() {
            ErrorKind::NotFound => {
                format!(
                    "there is no audit log at {}: no call that may change something has run, and none was refused or approved by a person \
                     (other calls that only read are not recorded)",
                    file.display()
                )
            }
            _ => format!("{} cannot be read: {error}", file.display()),
        })
    })
}

fn list(file: &std::path::Path, limit: usize, json: bool) -> Result<(), Failure> {
    let text = text(file)?;
    let lines: Vec<&str> = text.lines().collect();
    for line in &lines[lines.len().saturating_sub(limit)..] {
        match serde_json::from_str::<Line>(line) {
            Ok(_) if json => say(line),
            Ok(read) => say(&flat(&in_words(&read))),
            Err(_) => say(&flat(&format!("? not a line of this log: {line}"))),
        }
    }
    Ok(())
}

fn in_words(line: &Line) -> String {
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
        entry.approved_by.as_ref().map(|who| format!("approved by the {who}")),
        entry.outcome.as_ref().map(|outcome| format!("{outcome}{}", took.unwrap_or_default())),
        entry.arguments.as_ref().map(|arguments| serde_json::to_string(arguments).unwrap_or_default()),
    ];
    let details: Vec<String> = details.into_iter().flatten().collect();
    format!("{}  {step:7}  {}  {}", line.at, entry.tool, details.join(", "))
}

fn verify(file: &std::path::Path) -> Result<(), Failure> {
    match audit::verify(&text(file)?) {
        Ok(found) => {
            say(&format!(
                "{}: {} lines, none changed or missing; the last hash is {}",
                file.display(),
                found.lines,
                found.last
            ));
            Ok(())
        }
        Err(broken) => Err(Failure::Failed(format!(
            "{}, line {}: {}. What is before that line is whole",
            file.display(),
            broken.line,
            broken.why
        ))),
    }
}
