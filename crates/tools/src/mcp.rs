//! MCP servers as sources of tools, with the official SDK: over a child's standard input and output, or
//! streamable HTTP.
//!
//! `mcp/connection.rs` keeps the connection to each server up, `mcp/names.rs` names its tools, and
//! `mcp/result.rs` reads its results. Output that answers nothing is noted in `mcp/stray.rs`. Sampling, roots
//! and questions to the user are not offered to servers.

mod connection;
mod names;
mod result;
mod stray;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rmcp::model::{CallToolRequestParams, Tool};
use serde_json::{Map, Value, json};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};

use super::config::McpConfig;
use super::contract::{Approver, Invocation, Target, ToolError, ToolOutput, ToolSpec};
use super::policy::{Subject, foreign};

use super::offer::{MCP_PREFIX, Offer};
use super::server_problem::{Availability, ServerProblem};
use super::source::{Permit, Source, run_with_limit, timeout_error};
use super::unavailable::UnavailableTool;
use connection::{REASON_WITHIN, State, Up, is_url, ping_server, supervise_server};

/// The time that a call waits for a server that is down.
const PATIENCE: Duration = Duration::from_secs(5);
/// Describes a server whose connection has ended for an unknown reason.
const ENDED: &str = "its connection has ended";
/// The longest description and the longest schema of a tool. No model could read more, and they are part of
/// each turn.
const LARGEST_TEXT: usize = 64 << 10;

/// A task that ends when this is dropped.
#[derive(Debug)]
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// One server. Dropping it ends the connection and the server's process.
pub(super) struct Server {
    name: String,
    state: watch::Receiver<State>,
    /// Has it started.
    begin: Arc<Notify>,
    /// Signals that the server could not be reached; `None` for a program, whose end is noticed anyway.
    doubt: Option<Arc<Notify>>,
    workspace: Option<PathBuf>,
    /// The tools as the server listed them first, or as a person agreed to them later; `None` before the
    /// first list.
    known: Mutex<Option<HashMap<String, Tool>>>,
    _supervisor: AbortOnDrop,
}

impl Server {
    /// Starts a server and keeps it running until it is dropped.
    pub(super) fn start(name: &str, config: &McpConfig, workspace: Option<PathBuf>) -> Arc<Self> {
        let server = Self::prepare(name, config, workspace);
        server.begin();
        server
    }

    /// Returns a server that starts with [`Self::begin`].
    pub(super) fn prepare(name: &str, config: &McpConfig, workspace: Option<PathBuf>) -> Arc<Self> {
        let (sender, state) = watch::channel(State::Starting);
        let (begin, doubt) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let supervision = supervise_server(name.to_owned(), config.clone(), sender, Arc::clone(&doubt));
        let begun = Arc::clone(&begin);
        let supervisor = tokio::spawn(async move {
            begun.notified().await;
            supervision.await;
        });
        Arc::new(Self {
            name: name.to_owned(),
            state,
            begin,
            doubt: is_url(config).then_some(doubt),
            workspace,
            known: Mutex::default(),
            _supervisor: AbortOnDrop(supervisor),
        })
    }

    /// Starts it, unless it has been started.
    pub(super) fn begin(&self) {
        self.begin.notify_one();
    }

    /// Returns its name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Waits until it has started, at most for `limit`.
    ///
    /// # Errors
    /// When it can never start with its configuration.
    pub(super) async fn wait_until_started(&self, limit: Duration) -> Result<(), UnavailableTool> {
        let mut state = self.state.clone();
        let settled = timeout(limit, state.wait_for(|state| !matches!(state, State::Starting))).await;
        match settled {
            Ok(Ok(state)) => match &*state {
                State::Down(problem, _) if problem.is_final => {
                    Err(UnavailableTool::Server { name: self.name.clone(), problem: problem.text.clone() })
                }
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// Returns the names of its tools, if it is up.
    pub(super) fn tool_names(&self) -> Option<Vec<String>> {
        match &*self.state.borrow() {
            State::Up(up) => Some(up.tools.iter().map(|tool| self.name_of(tool)).collect()),
            _ => None,
        }
    }

    /// Returns the reason why it cannot be called now.
    pub(super) fn problem(&self) -> Option<ServerProblem> {
        let problem = |text: &str, prospect| Some(ServerProblem { text: text.to_owned(), prospect });
        match &*self.state.borrow() {
            State::Up(up) if up.tools.is_empty() => problem("it offers no tools", Availability::Down),
            State::Up(_) => None,
            State::Down(down, _) if down.is_final => problem(&down.text, Availability::Unusable),
            State::Down(down, _) => problem(&down.text, Availability::Down),
            State::Ended(_) => problem(ENDED, Availability::Down),
            State::Starting => problem(self.describe_start(), Availability::Starting),
        }
    }

    /// Says what is awaited of a server that is starting.
    fn describe_start(&self) -> &'static str {
        match self.doubt {
            Some(_) => "it is still starting",
            None => {
                "it is still starting, and has not answered `initialize` and `tools/list` yet: it has to write each reply to its standard output, on \
                 one line, and to flush it"
            }
        }
    }

    fn name_of(&self, tool: &Tool) -> String {
        format!("{MCP_PREFIX}{}/{}", self.name, tool.name)
    }

    fn build_offer(&self, tool: &Tool) -> Offer {
        let hints = tool.annotations.as_ref();
        let is_repeatable = hints
            .is_some_and(|hints| hints.read_only_hint == Some(true) || hints.idempotent_hint == Some(true));
        let description = tool.description.as_deref().or(tool.title.as_deref()).unwrap_or_default();
        let description = &description[..description.floor_char_boundary(LARGEST_TEXT)];
        let parameters = parameters_of(&tool.input_schema);
        let spec = ToolSpec {
            name: names::exposed_name(&self.name, &tool.name),
            description: description.to_owned(),
            parameters,
            is_repeatable,
            timeout: None,
            result_limit: None,
        };
        Offer { spec, name: self.name_of(tool) }
    }

    /// Returns the tools that the server offers now. The first list is remembered.
    fn tools(&self) -> Arc<Vec<Tool>> {
        let tools = self.state.borrow().tools();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.is_none() && !tools.is_empty() {
            *known = Some(tools.iter().map(|tool| (tool.name.to_string(), tool.clone())).collect());
        }
        tools
    }

    /// Finds the tool that the model calls by this name.
    fn find_tool(&self, exposed: &str) -> Option<Tool> {
        self.tools().iter().find(|tool| names::exposed_name(&self.name, &tool.name) == exposed).cloned()
    }

    /// Describes how a tool differs from the one that its rule was written for.
    fn definition_change(&self, exposed: &str) -> Option<String> {
        let tool = self.find_tool(exposed)?;
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        match known.as_ref()?.get(&*tool.name) {
            Some(known) if *known == tool => None,
            Some(_) => {
                Some(format!("the MCP server {} has changed {} since it was started", self.name, tool.name))
            }
            None => {
                Some(format!("the MCP server {} did not offer {} when it was started", self.name, tool.name))
            }
        }
    }

    /// Checks whether a server behind a URL that seems to be up still answers. If it does not, it is marked
    /// as down when this returns.
    pub(super) async fn confirm_reachable(&self) {
        let State::Up(up) = self.state.borrow().clone() else { return };
        if self.doubt.is_some() && ping_server(&up.peer).await.is_err() {
            self.report_doubt().await;
        }
    }

    /// Has the server pinged because it could not be reached, and waits for the result.
    async fn report_doubt(&self) {
        let Some(doubt) = &self.doubt else { return };
        let mut state = self.state.clone();
        state.mark_unchanged();
        doubt.notify_one();
        // If the state has changed in the meantime, the server is already known to be down.
        let _ = timeout(PATIENCE, state.changed()).await;
    }

    /// Returns the connection, once it is up.
    async fn wait_until_up(&self, patience: Duration) -> Result<Up, ToolError> {
        let mut state = self.state.clone();
        let found = timeout(patience, state.wait_for(|state| matches!(state, State::Up(_)))).await;
        match found.map_err(drop).and_then(|found| found.map(|state| state.clone()).map_err(drop)) {
            Ok(State::Up(up)) => Ok(up),
            _ => Err(self.down_error()),
        }
    }

    fn down_error(&self) -> ToolError {
        let reason = match &*self.state.borrow() {
            State::Down(problem, _) => problem.text.clone(),
            State::Ended(_) => ENDED.to_owned(),
            _ => self.describe_start().to_owned(),
        };
        ToolError::Unreachable(format!(
            "the MCP server {} is not running: {reason}. It is being started again",
            self.name
        ))
    }

    /// Calls the tool. A call that was not sent is tried again, once the server's state was checked.
    async fn call_tool(&self, invocation: &Invocation) -> Result<ToolOutput, ToolError> {
        // A call that has not begun must not end with a timeout.
        let patience = PATIENCE.min(invocation.timeout / 4);
        match self.call_once(invocation, self.wait_until_up(patience).await?).await {
            Err(error @ ToolError::Unreachable(_)) => {
                let _ = timeout(patience, self.report_doubt()).await;
                let Ok(up) = self.wait_until_up(patience).await else { return Err(error) };
                self.call_once(invocation, up).await
            }
            Err(ToolError::Transient(text)) => {
                let Some(doubt) = &self.doubt else {
                    return Err(ToolError::Transient(self.explain_break(text, patience).await));
                };
                // The next call must not rely on a server that has gone.
                doubt.notify_one();
                Err(ToolError::Transient(text))
            }
            called => called,
        }
    }

    /// Describes a call whose connection broke, with the reason why the program has ended. It returns `text`
    /// if the reason does not become known.
    async fn explain_break(&self, text: String, patience: Duration) -> String {
        let mut state = self.state.clone();
        let is_known = |state: &State| state.problem_text().is_some();
        let found = timeout(REASON_WITHIN.min(patience), state.wait_for(is_known)).await;
        let found = found.ok().and_then(Result::ok);
        let reason = found.as_deref().and_then(State::problem_text);
        reason.map_or(text, |reason| result::describe_break(&self.name, reason))
    }

    /// Describes output of the program since then that answers nothing.
    fn stray_since(&self, began: Instant) -> Option<String> {
        let state = self.state.borrow();
        let State::Up(Up { stray: Some(stray), .. }) = &*state else { return None };
        Some(format!("the MCP server {} has not answered: {}", self.name, stray.noted_after(began)?))
    }

    async fn call_once(&self, invocation: &Invocation, up: Up) -> Result<ToolOutput, ToolError> {
        let tool =
            up.tools.iter().find(|tool| names::exposed_name(&self.name, &tool.name) == invocation.name);
        let Some(tool) = tool else {
            return Err(ToolError::Failed(format!(
                "the MCP server {} has no {} any more",
                self.name, invocation.name
            )));
        };
        let request =
            CallToolRequestParams::new(tool.name.clone()).with_arguments(invocation.arguments.clone());
        result::read_result(&self.name, up.peer.call_tool_once(request).await)
    }
}

/// Returns the schema of a tool's arguments; any object is valid if the schema is too long.
fn parameters_of(schema: &Map<String, Value>) -> Value {
    let mut parameters = Value::Object(schema.clone());
    if parameters.to_string().len() > LARGEST_TEXT {
        parameters = json!({});
    }
    if parameters.get("type").is_none() {
        parameters["type"] = json!("object");
    }
    parameters
}

#[async_trait]
impl Source for Server {
    fn offers(&self) -> Vec<Offer> {
        self.tools().iter().map(|tool| self.build_offer(tool)).collect()
    }

    async fn await_tool(&self, name: &str) -> Result<(), ToolError> {
        let is_known = !self.state.borrow().tools().is_empty();
        if is_known || !names::may_be_of(&self.name, name) {
            return Ok(());
        }
        self.wait_until_up(PATIENCE).await.map(drop)
    }

    async fn subject(&self, offer: &Offer, arguments: &Map<String, Value>) -> Result<Subject, ToolError> {
        let names = vec![offer.spec.name.clone(), offer.name.clone()];

        let subject =
            foreign::build_subject(names, arguments, &offer.spec.parameters, self.workspace.as_deref());
        let target = Target::Server { definition: offer.digest() };
        Ok(Subject { changed: self.definition_change(&offer.spec.name), target, ..subject })
    }

    fn only_looks(&self, offer: &Offer) -> bool {
        let tool = self.find_tool(&offer.spec.name);
        tool.and_then(|tool| tool.annotations?.read_only_hint) == Some(true)
    }

    fn note_consent(&self, tool: &str) {
        let tool = self.find_tool(tool);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, tool)) = known.as_mut().zip(tool) {
            known.insert(tool.name.to_string(), tool);
        }
    }

    /// When this future is dropped, the SDK cancels the call at the server.
    async fn run_call(
        &self,
        invocation: &Invocation,
        _: Permit,
        _: Option<&dyn Approver>,
    ) -> Result<ToolOutput, ToolError> {
        let (began, limit) = (Instant::now(), invocation.timeout);
        let called = run_with_limit(limit, self.call_tool(invocation)).await;
        match self.stray_since(began).filter(|_| matches!(called, Err(ToolError::TimedOut(_)))) {
            Some(stray) => Err(timeout_error(limit, &stray)),
            None => called,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_that_is_too_long_permits_any_object() {
        let schema = |length: usize| Map::from_iter([("description".to_owned(), "x".repeat(length).into())]);
        assert_eq!(parameters_of(&schema(LARGEST_TEXT)), json!({"type": "object"}));
        assert_eq!(parameters_of(&schema(3)), json!({"type": "object", "description": "xxx"}));
    }
}
