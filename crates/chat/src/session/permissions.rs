//! The permissions of the assistant: the tools of MCP servers, which start with the chat, calls that are no
//! longer asked about, and the read-only mode.

use std::sync::PoisonError;
use std::time::Duration;

use tokio::sync::mpsc;

use super::{Session, Shown};
use crate::approval::Allowed;
use crate::figures::format_count;
use crate::journal::Journal;
use crate::kept::{Keeper, NotKept};
use tools::Availability;

/// How long a turn waits for MCP servers to start.
const START: Duration = Duration::from_secs(30);
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

    /// Uses the calls that the person keeps for this directory, and says so at the start.
    pub(crate) fn use_kept(&mut self) {
        match self.keeper().read() {
            Ok(kept) if kept.is_empty() => {}
            Ok(kept) => {
                let allowed = Allowed::from_kept(kept);
                let listed = allowed.list().join("; ");
                self.greeting.push(format!("Not asked about here: {listed}. /ask takes it back."));
                *self.allowed.lock().unwrap_or_else(PoisonError::into_inner) = allowed;
            }
            // Nothing was kept here.
            Err(NotKept::InWorkspace(_)) => {}
            Err(why) => self.greeting.push(format!("What was kept with /keep is asked about again: {why}")),
        }
    }

    /// Keeps the calls that need no further question for this directory.
    pub(super) fn keep_allowed(&mut self) {
        let allowed = self.allowed.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if allowed.is_empty() {
            return self.show_note("nothing was answered with always");
        }
        let allowed = match self.keeper().add(allowed.session_grants()) {
            Ok(kept) => Allowed::from_kept(kept),
            Err(why) => return self.show_problem(&format!("not kept: {why}")),
        };
        let listed = allowed.list().join("\n  ");
        *self.allowed.lock().unwrap_or_else(PoisonError::into_inner) = allowed;
        self.show_note(&format!(
            "not asked about in this directory from now on (/ask takes it back):\n  {listed}"
        ));
    }

    fn keeper(&self) -> Keeper {
        Keeper::new(&self.state_dir, &self.root, self.keeps_calls)
    }

    /// Forgets the calls that need no further question, also those that were kept.
    pub(super) fn ask_again(&mut self) {
        let forgotten = std::mem::take(&mut *self.allowed.lock().unwrap_or_else(PoisonError::into_inner));
        match self.keeper().clear() {
            // Nothing was kept here.
            Ok(()) | Err(NotKept::InWorkspace(_) | NotKept::Name) => {}
            Err(why) => self.show_problem(&format!("the next chat here does not ask again: {why}")),
        }
        let forgotten = forgotten.list();
        self.show_note(&if forgotten.is_empty() {
            "nothing was answered with always".to_owned()
        } else {
            format!("asked about again:\n  {}", forgotten.join("\n  "))
        });
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

/// Starts the MCP servers while the person writes the first message.
pub(super) async fn begin_servers(journal: &Journal) {
    journal.tools().start_servers(START).await;
}

/// Waits until the MCP servers have started, and shows which tools they have or why they have none.
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
