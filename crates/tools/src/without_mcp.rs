//! The place of MCP servers in a build without the feature `mcp`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::{Ready, ready};
use serde_json::{Map, Value};

use super::config::McpConfig;
use super::contract::{Approver, Invocation, ToolError, ToolOutput};
use super::offer::Offer;
use super::policy::Subject;
use super::server_problem::{Availability, ServerProblem};
use super::source::{Permit, Source};
use super::unavailable::UnavailableTool;

const MISSING: &str = "this build of respool has no MCP: build it with the feature `mcp`";

/// A server, which this build cannot call.
pub(super) struct Server(String);

impl Server {
    /// Starts nothing.
    pub(super) fn start(name: &str, _: &McpConfig, _: Option<PathBuf>) -> Arc<Self> {
        Arc::new(Self(name.to_owned()))
    }

    /// Starts nothing.
    pub(super) fn prepare(name: &str, config: &McpConfig, workspace: Option<PathBuf>) -> Arc<Self> {
        Self::start(name, config, workspace)
    }

    /// Starts nothing.
    pub(super) fn begin(&self) {}

    /// Returns its name.
    pub(super) fn name(&self) -> &str {
        &self.0
    }

    /// Says why it never starts.
    pub(super) fn wait_until_started(&self, _: Duration) -> Ready<Result<(), UnavailableTool>> {
        ready(Err(UnavailableTool::Server { name: self.0.clone(), problem: MISSING.to_owned() }))
    }

    /// Returns no names.
    pub(super) fn tool_names(&self) -> Option<Vec<String>> {
        None
    }

    /// Returns the reason why it cannot be called.
    #[expect(clippy::unnecessary_wraps, reason = "as with the feature")]
    pub(super) fn problem(&self) -> Option<ServerProblem> {
        Some(ServerProblem { text: MISSING.to_owned(), prospect: Availability::Unusable })
    }

    /// Checks nothing.
    pub(super) fn confirm_reachable(&self) -> Ready<()> {
        ready(())
    }
}

#[async_trait]
impl Source for Server {
    fn offers(&self) -> Vec<Offer> {
        Vec::new()
    }

    async fn subject(&self, _: &Offer, _: &Map<String, Value>) -> Result<Subject, ToolError> {
        Err(ToolError::Failed(MISSING.to_owned()))
    }

    async fn run_call(
        &self,
        _: &Invocation,
        _: Permit,
        _: Option<&dyn Approver>,
    ) -> Result<ToolOutput, ToolError> {
        Err(ToolError::Failed(MISSING.to_owned()))
    }
}
