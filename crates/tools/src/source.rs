//! Where tools come from, as the gate in `set.rs` sees it: what is offered, what a call touches, and running it.
//!
//! [`Source::run`] takes a [`Permit`], and only the gate can make one: no path to a tool avoids the policy.

use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::{Map, Value};

use super::contract::{Approver, Invocation, ToolError, ToolOutput, ToolSpec};
use super::policy::Subject;
use super::set::Permit;

/// A tool on offer.
#[derive(Clone, Debug)]
pub(super) struct Offer {
    /// As the model sees it.
    pub(super) spec: ToolSpec,
    /// The name in an agent's `tools`, in rules and in the tables of timeouts and limits: `exec`, `mcp:files/read_file`.
    pub(super) name: String,
}

/// Tools of one origin.
pub(super) trait Source: Send + Sync {
    /// What it offers now. The tools of a server that is down stay on offer.
    fn offers(&self) -> Vec<Offer>;

    /// Waits a moment for a tool that this source does not offer and may offer later.
    ///
    /// # Errors
    /// When the source does not know now whether it has the tool.
    fn await_tool<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<(), ToolError>> {
        Box::pin(async { Ok(()) })
    }

    /// What a call would touch.
    ///
    /// # Errors
    /// For arguments that cannot be read: the call does not run.
    fn subject<'a>(
        &'a self,
        offer: &'a Offer,
        arguments: &'a Map<String, Value>,
    ) -> BoxFuture<'a, Result<Subject, ToolError>>;

    /// Takes note that somebody was asked about a call of this tool and agreed to it.
    fn accept(&self, _tool: &str) {}

    /// What would change, for the person who is asked.
    ///
    /// # Errors
    /// When it is already clear that the call will fail: nobody is asked.
    fn preview<'a>(&'a self, _: &'a Invocation) -> BoxFuture<'a, Result<Option<String>, ToolError>> {
        Box::pin(async { Ok(None) })
    }

    /// Runs the call; `approver` is who may be asked for more than was permitted.
    fn run<'a>(
        &'a self,
        invocation: &'a Invocation,
        permit: Permit,
        approver: Option<&'a dyn Approver>,
    ) -> BoxFuture<'a, Result<ToolOutput, ToolError>>;
}

/// Ends a call that takes too long.
pub(super) async fn within<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, ToolError>>,
) -> Result<T, ToolError> {
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| Err(timed_out(limit, "")))
}

/// The error of a call that took longer than `limit`, with what there is of its output.
pub(super) fn timed_out(limit: Duration, output: &str) -> ToolError {
    let note = format!("[stopped after {}; it may have done a part of its work]", seconds(limit));
    ToolError::TimedOut(if output.is_empty() { note } else { format!("{}\n\n{note}", output.trim_end()) })
}

fn seconds(limit: Duration) -> String {
    if limit.subsec_millis() == 0 {
        format!("{} s", limit.as_secs())
    } else {
        format!("{} ms", limit.as_millis())
    }
}
