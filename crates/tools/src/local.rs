//! respool's own tools on the files of a workspace, under two sets of names: `exec read write edit ls search`
//! for agents, and the chat's `shell_command read_file edit_file write_file`.
//!
//! This file reads a call (names, types, the place of its path); the other files do the work of each tool.

mod arguments;
mod capture;
mod edit;
mod exec;
mod line;
mod looking;
mod ls;
mod read;
mod search;
mod shown;
mod specs;
mod text;
mod workspace;
mod write;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Map, Value};

use super::config::LocalConfig;
use super::contract::{
    Approver, Consent, Invocation, Preview, Question, QuestionKind, Target, ToolError, ToolOutput,
};
use super::environment::Passing;
use super::plain::plain_text;
use super::policy::{Plan, Subject};
use super::programs::holds_home;
use super::sandbox::{Level, Reach, Sandbox};

use super::offer::Offer;
use super::source::{Permit, Source, run_with_limit};
use arguments::{Arguments, COMMAND, PATH, WORKDIR};
use edit::Edit;
pub use exec::end_commands;
use exec::{Order, Ran, Step};
use read::WantedLines;
use search::Query;
use specs::Tool;
pub(super) use specs::{Naming, agent_names};
use workspace::Place;
pub(super) use workspace::Workspace;
pub use workspace::open_inside;
pub use write::put_back;

/// The local tools.
#[derive(Debug)]
pub(super) struct Local {
    workspace: Arc<Workspace>,
    naming: Naming,
    /// The part of respool's environment that commands get.
    passing: Passing,
    sandbox: Arc<Sandbox>,
}

/// A call that was read.
#[derive(Clone)]
enum Call {
    Exec { command: String, workdir: Place, timeout: Option<Duration> },
    Read { place: Place, lines: WantedLines },
    Write { place: Place, content: String },
    Edit { place: Place, edits: Vec<Edit> },
    Ls { place: Place },
    Search { place: Place, query: Arc<Query> },
}

/// The longest that a command looks around before the question.
const LOOKING: Duration = Duration::from_secs(20);

impl Local {
    /// Returns the tools on a workspace.
    ///
    /// # Errors
    /// When commands cannot have the sandbox that the configuration requires.
    pub(super) fn new(workspace: Workspace, naming: Naming, config: &LocalConfig) -> Result<Self, String> {
        let is_persons = naming == Naming::Chat;
        let passing = Passing::new(config, is_persons);
        let sandbox = Sandbox::open(config, &workspace.root, is_persons)?;
        Ok(Self { workspace: Arc::new(workspace), naming, passing, sandbox: Arc::new(sandbox) })
    }

    /// Sets whether files with several hard links are refused from now on.
    pub(super) fn refuse_links(&self, refuses: bool) {
        self.workspace.refuses_links.store(refuses, Ordering::Relaxed);
    }

    /// Returns the sandbox of commands.
    pub(super) fn sandbox(&self) -> &Level {
        &self.sandbox.level
    }

    async fn read_call(&self, name: &str, arguments: &Map<String, Value>) -> Result<Call, ToolError> {
        let tool = self
            .naming
            .find_tool(name)
            .ok_or_else(|| ToolError::Failed(format!("there is no tool {name}")))?;
        let (workspace, naming, arguments) = (Arc::clone(&self.workspace), self.naming, arguments.clone());
        run_blocking(move |_| read_call(tool, naming, &Arguments(&arguments), &workspace)).await
    }
}

/// Returns the command or path of a call of a local tool, for a line about the call before it is resolved.
pub fn named_subject(arguments: &Map<String, Value>) -> Option<&str> {
    let arguments = Arguments(arguments);
    let text = |names| arguments.optional_text(names).ok().flatten();
    text(COMMAND).or_else(|| text(PATH))
}

fn read_call(
    tool: Tool,
    naming: Naming,
    arguments: &Arguments<'_>,
    workspace: &Workspace,
) -> Result<Call, ToolError> {
    let here = |names| {
        workspace.find_place(arguments.optional_text(names)?.filter(|text| !text.is_empty()).unwrap_or("."))
    };
    let place = || workspace.find_place(arguments.required_text(PATH)?);
    Ok(match tool {
        Tool::Exec => Call::Exec {
            command: arguments.required_text(COMMAND)?.to_owned(),
            workdir: here(WORKDIR)?,
            timeout: arguments
                .optional_count(&["timeout", "timeoutSeconds"])?
                .map(|seconds| Duration::from_secs(seconds as u64)),
        },
        Tool::Read => Call::Read {
            place: place()?,
            lines: WantedLines {
                first: arguments.optional_count(&["offset"])?.unwrap_or(1),
                limit: arguments.optional_count(&["limit"])?,
                naming,
            },
        },
        Tool::Write => {
            Call::Write { place: place()?, content: arguments.required_text(&["content"])?.to_owned() }
        }
        Tool::Edit => Call::Edit { place: place()?, edits: edit::read_edits(arguments)? },
        Tool::Ls => Call::Ls { place: here(PATH)? },
        Tool::Search => Call::Search {
            place: here(PATH)?,
            query: Arc::new(Query {
                pattern: arguments.required_text(&["pattern", "query"])?.to_owned(),
                glob: arguments.optional_text(&["glob"])?.map(str::to_owned),
                ignore_case: arguments.optional_switch("ignore_case")?,
                limit: arguments.optional_count(&["limit"])?,
            }),
        },
    })
}

impl Call {
    fn place(&self) -> &Place {
        match self {
            Self::Exec { workdir: place, .. }
            | Self::Read { place, .. }
            | Self::Write { place, .. }
            | Self::Edit { place, .. }
            | Self::Ls { place }
            | Self::Search { place, .. } => place,
        }
    }

    fn target(&self, workspace: &Workspace, is_kept: bool) -> Target {
        match self {
            Self::Exec { command, workdir, .. } => {
                Target::Command { line: command.clone(), directory: workdir.real.clone() }
            }
            other => {
                let Place { real, written } = other.place().clone();
                Target::File { root: workspace.root.clone(), real, written, is_kept }
            }
        }
    }

    /// Returns the subject that rules judge. It does not contain a command's directory: rules for files do
    /// not apply to commands.
    fn subject(&self, names: Vec<String>, workspace: &Workspace, is_kept: bool) -> Subject {
        let target = self.target(workspace, is_kept);
        let mut subject = Subject { names, target, is_known: true, ..Subject::default() };
        match self {
            Self::Exec { command, .. } => subject.commands.push(command.clone()),
            other => subject.paths = other.place().path_forms(),
        }
        subject
    }

    /// Runs a tool on files.
    fn run_on_files(
        &self,
        workspace: &Workspace,
        permit: &Permit,
        stopped: &AtomicBool,
    ) -> Result<ToolOutput, ToolError> {
        match self {
            Self::Read { place, lines } => read::read_file(workspace, place, *lines, stopped),
            Self::Write { place, content } => write::write_file(workspace, place, content),
            Self::Edit { place, edits } => {
                edit::plan_change(workspace, place, edits)?.write_change(workspace, place)
            }
            Self::Ls { place } => ls::list_directory(workspace, place),
            Self::Search { place, query } => search::search_files(workspace, place, query, permit, stopped),
            Self::Exec { .. } => Ok(ToolOutput::default()),
        }
    }

    fn preview_change(&self, workspace: &Workspace) -> Result<Option<Preview>, ToolError> {
        match self {
            Self::Write { place, content } => write::preview_write(workspace, place, content),
            Self::Edit { place, edits } => {
                let diff = Some(edit::plan_change(workspace, place, edits)?.diff(place));
                Ok(Some(Preview::Change { diff, replaces: None }))
            }
            _ => Ok(None),
        }
    }
}

#[async_trait]
impl Source for Local {
    fn offers(&self) -> Vec<Offer> {
        self.naming.offers()
    }

    fn only_looks(&self, offer: &Offer) -> bool {
        offer.spec.is_repeatable
    }

    async fn subject(&self, offer: &Offer, arguments: &Map<String, Value>) -> Result<Subject, ToolError> {
        let names = vec![offer.spec.name.clone(), offer.name.clone()];
        let call = self.read_call(&offer.spec.name, arguments).await?;
        self.refuse_guarded(&call).await?;
        let is_kept = self.is_kept(&call).await?;
        let mut subject = call.subject(names, &self.workspace, is_kept);
        if let Call::Write { place, .. } | Call::Edit { place, .. } = &call
            && self.sandbox.is_of_server(&self.workspace.root.join(&place.real))
        {
            subject.changed = Some("an MCP server outside the sandbox is started with this path".to_owned());
        }
        Ok(subject)
    }

    async fn preview_call(&self, invocation: &Invocation) -> Result<Option<Preview>, ToolError> {
        let call = self.read_call(&invocation.name, &invocation.arguments).await?;
        if let Call::Exec { .. } = call {
            return Ok(self.sandbox.warning.clone().map(Preview::Reach));
        }
        let workspace = Arc::clone(&self.workspace);
        run_with_limit(invocation.timeout, run_blocking(move |_| call.preview_change(&workspace))).await
    }

    async fn look(&self, invocation: &Invocation) -> Option<ToolOutput> {
        let is_free = self.sandbox.level.has_namespaces() && !holds_home(&self.workspace.root);
        if self.naming != Naming::Chat || !is_free {
            return None;
        }
        let call = self.read_call(&invocation.name, &invocation.arguments).await.ok()?;
        let Call::Exec { command, workdir, timeout } = call else { return None };
        if !looking::only_looks(&command) {
            return None;
        }
        let directory = self.command_directory(&workdir).ok()?;
        let order = Order {
            steps: vec![Step::only(Plan::Shell(command), directory, Reach::Look)],
            limit: timeout.unwrap_or(LOOKING).min(LOOKING).min(invocation.timeout),
            passing: Passing::default(),
            sandbox: Arc::clone(&self.sandbox),
            watcher: None,
        };
        let ran = exec::run_order(order).await.ok()?;
        // `find -exec` and the last command of a pipe hide failures of others.
        let lacks = |words: &str| ran.text.contains(words);
        let is_missing = ran.failed && lacks("not found");
        (ran.stopped.is_none() && !is_missing && !lacks("Read-only file system")).then(|| ran.into())
    }

    async fn run_call(
        &self,
        invocation: &Invocation,
        permit: Permit,
        approver: Option<&dyn Approver>,
    ) -> Result<ToolOutput, ToolError> {
        let call = self.read_call(&invocation.name, &invocation.arguments).await?;
        if let Call::Exec { command, workdir, timeout } = &call {
            // The search for it may take long.
            let search = |sandbox: &Sandbox| {
                sandbox.find_protected();
                Ok(())
            };
            self.with_sandbox(search).await?;
            let directory = self.command_directory(workdir)?;
            let order = Order {
                steps: self.steps(command, permit.plan(), directory),
                limit: timeout.unwrap_or(invocation.timeout).min(invocation.timeout),
                passing: self.passing.clone(),
                sandbox: Arc::clone(&self.sandbox),
                watcher: approver.and_then(Approver::output_watcher),
            };
            return self.run_command(order, workdir, invocation, approver).await;
        }
        self.refuse_guarded(&call).await?;
        if !permit.has_judged(&call.place().path_forms()) {
            return Err(workspace::path_changed_error(call.place()));
        }
        let workspace = Arc::clone(&self.workspace);
        run_with_limit(
            invocation.timeout,
            run_blocking(move |stopped| call.run_on_files(&workspace, &permit, stopped)),
        )
        .await
    }
}

impl Local {
    /// Runs a command. If the sandbox seems to have stopped it, the text names the keys that would permit
    /// it; in the chat, the person is asked.
    async fn run_command(
        &self,
        order: Order,
        workdir: &Place,
        invocation: &Invocation,
        approver: Option<&dyn Approver>,
    ) -> Result<ToolOutput, ToolError> {
        let is_split = order.steps.len() > 1;
        let mut ran = exec::run_order(order.clone()).await?;
        let Some((mut refusal, step)) = ran.stopped.take() else { return Ok(ran.into()) };
        let (rest, directory) = step.rest;
        let place = directory.strip_prefix(&self.workspace.root).unwrap_or(&directory);
        let place = if place.as_os_str().is_empty() { Path::new(".") } else { place };
        let (mut left, mut target) = (String::new(), Target::Other);
        // What is done is not done again.
        if let Plan::Shell(line) = &rest
            && is_split
        {
            let is_elsewhere = *place != workdir.real;
            let shown = if is_elsewhere { format!(" in {}", place.display()) } else { String::new() };
            left = format!("[still to run{shown}: {line}]\n");
            target = Target::Command { line: line.clone(), directory: place.to_owned() };
        }
        if let Some(approver) = approver.filter(|_| self.naming == Naming::Chat) {
            let tool = format!("{} outside the sandbox", invocation.name);
            let (kind, target, arguments) = (QuestionKind::OutsideSandbox, &target, &invocation.arguments);
            let preview = Some(plain_text(ran.text.trim_end()));
            let question = Question { kind, tool: &tool, arguments, target, preview, is_by_default: false };
            match approver.approve(question).await {
                Consent::Given => {
                    let steps = vec![Step::only(rest, directory, Reach::User)];
                    let ran = exec::run_order(Order { steps, ..order }).await?;
                    return Ok(Ran { text: left + &ran.text, ..ran }.into());
                }
                Consent::Refused(reason) => refusal = format!("{refusal}; {reason}"),
            }
        }
        let notes = format!("[{refusal}]\n{left}");
        // The note on how the command ended stays last, for the model and for the person.
        let text = match ran.text.trim_end().rsplit_once('\n') {
            Some((output, status)) => format!("{}\n\n{notes}{status}", output.trim_end()),
            None => format!("{notes}{}", ran.text.trim_end()),
        };
        Ok(Ran { text, ..ran }.into())
    }

    /// Prepares files of the sandbox on a thread that may block.
    async fn with_sandbox<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Sandbox) -> std::io::Result<T> + Send + 'static,
    ) -> Result<T, ToolError> {
        let sandbox = Arc::clone(&self.sandbox);
        let failed =
            |error: std::io::Error| ToolError::Failed(format!("the command could not be run: {error}"));
        run_blocking(move |_| work(&sandbox).map_err(failed)).await
    }

    /// Refuses a call that changes git's own files or respool's.
    async fn refuse_guarded(&self, call: &Call) -> Result<(), ToolError> {
        let (Call::Write { place, .. } | Call::Edit { place, .. }) = call else { return Ok(()) };
        let paths = [&place.written, &place.real].map(|path| self.workspace.root.join(path));
        let is_guarded = move |sandbox: &Sandbox| Ok(paths.iter().any(|path| sandbox.guards(path)));
        if self.with_sandbox(is_guarded).await? {
            let path = place.written.display();
            return Err(ToolError::Failed(format!(
                "{path} belongs to git or to respool itself: no tool writes there; ask the user to do it"
            )));
        }
        Ok(())
    }

    /// Returns true for a call that changes a file on which other programs act. Only the chat, whose person
    /// may say "always", looks for such files.
    async fn is_kept(&self, call: &Call) -> Result<bool, ToolError> {
        let (Naming::Chat, Call::Write { place, .. } | Call::Edit { place, .. }) = (self.naming, call) else {
            return Ok(false);
        };
        let path = self.workspace.root.join(&place.real);
        self.with_sandbox(move |sandbox| Ok(sandbox.keeps(&path))).await
    }

    fn command_directory(&self, place: &Place) -> Result<PathBuf, ToolError> {
        // Without the `.` that the workspace itself has as its place.
        let directory: PathBuf = self.workspace.root.join(&place.real).components().collect();
        if directory.is_dir() {
            return Ok(directory);
        }
        Err(ToolError::Failed(format!("the workdir {} is not a directory", place.written.display())))
    }
}

/// Runs file work on a thread that may block. It stops when its caller has gone.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce(&AtomicBool) -> Result<T, ToolError> + Send + 'static,
) -> Result<T, ToolError> {
    struct StopOnDrop(Arc<AtomicBool>);
    impl Drop for StopOnDrop {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let stop = StopOnDrop(Arc::default());
    let stopped = Arc::clone(&stop.0);
    let done = tokio::task::spawn_blocking(move || work(&stopped)).await;
    done.unwrap_or_else(|error| Err(ToolError::Failed(format!("the tool failed: {error}"))))
}
