//! The permissions of the assistant: its tools and those of MCP servers, which start with the first turn, the
//! calls that are no longer asked about, and the read-only mode.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;

use super::{Session, Shown};
use crate::figures::format_count;
use crate::journal::Journal;
use tools::programs::holds_home;
use tools::{Availability, Tools as _};
use wire::visible::one_line;

/// How long a turn waits for MCP servers to start.
const START: Duration = Duration::from_secs(30);
/// The columns of a tool's description.
const DESCRIPTION: usize = 100;
/// The model reads this below a message in the read-only mode.
const ONLY_LOOK: &str = "(For this message you may only look: files are read, and commands that only look run. \
                         Describe changes instead of making them.)";

impl Session {
    /// Begins the read-only mode or ends it; `None` changes between the two.
    pub(super) fn set_read_only(&mut self, wanted: Option<bool>) {
        let is_on = wanted.unwrap_or(!self.screen.is_read_only());
        self.screen.set_read_only(is_on);
        self.show_note(if is_on {
            "read-only: files are read, and commands that only look run; /readonly off ends it"
        } else {
            "no longer read-only: changes are possible again"
        });
    }

    pub(super) fn show_tools(&mut self) {
        for spec in self.journal.specs() {
            self.show_note(&format!("{:<14} {}", spec.name, one_line(&spec.description, DESCRIPTION)));
        }
        let journal = Arc::clone(&self.journal);
        for (name, found) in journal.tools().servers() {
            match found {
                _ if !self.has_started_servers => {
                    self.show_note(&format!("MCP server {name}: it starts with the next message"));
                }
                Ok(count) => self.show_note(&format!("MCP server {name}: {}", format_count(count, "tool"))),
                Err(problem) => self.show_problem(&format!("MCP server {name}: {}", problem.text)),
            }
        }
        let allowed = self.allowed.lock().unwrap_or_else(PoisonError::into_inner).list();
        let asks = match (self.yes, allowed.is_empty()) {
            _ if self.screen.is_read_only() => {
                "read-only: only reading, and commands that only look, run; /readonly off ends it".to_owned()
            }
            (true, _) => "--yes: nothing is asked; what the policy denies stays denied".to_owned(),
            (false, true) if holds_home(&self.root) => {
                "everything needs consent in a home directory, unless [tools.policy] decides".to_owned()
            }
            (false, true) => {
                "reading, and commands that only look, need no consent; everything else does, unless \
                 [tools.policy] decides"
                    .to_owned()
            }
            (false, false) => format!("allowed without a question:\n  {}", allowed.join("\n  ")),
        };
        self.show_note(&asks);
        self.show_note(&self.sandbox.clone());
    }
}

/// Returns a message as the model gets it in the read-only mode.
pub(super) fn with_mode(text: &str) -> String {
    format!("{text}\n\n{ONLY_LOOK}")
}

/// Returns the status line while a turn waits for MCP servers. `None`: the configuration has no servers.
pub(super) fn awaited_servers(journal: &Journal) -> Option<String> {
    let names: Vec<&str> = journal.tools().servers().iter().map(|(name, _)| *name).collect();
    (!names.is_empty()).then(|| format!("starting the MCP servers: {}", names.join(", ")))
}

/// Starts the MCP servers, and shows which tools they have or why they have none.
pub(super) async fn start_servers(journal: &Journal, screen: &mpsc::UnboundedSender<Shown>) {
    journal.tools().start_servers(START).await;
    for (name, found) in journal.tools().servers() {
        let shown = match found {
            Ok(count) => Shown::Note(format!("MCP server {name}: {}", format_count(count, "tool"))),
            Err(problem) if problem.prospect == Availability::Starting => Shown::Warning(format!(
                "MCP server {name}: {}; once it is up, a new conversation (/clear) has its tools",
                problem.text
            )),
            Err(problem) => Shown::Warning(format!(
                "MCP server {name} cannot be used, so its tools are missing: {}",
                problem.text
            )),
        };
        drop(screen.send(shown));
    }
}
