//! `exec`: a command in the workspace. Both outputs are read as one, in order. When the call ends for any
//! reason, every process that it started ends too. `sandbox` confines it.

use std::io::{self, PipeWriter, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;
use tokio::process::Child;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout, timeout_at};

use super::super::contract::{OutputWatcher, ToolError, ToolOutput};
use super::super::environment::Passing;
use super::super::policy::Plan;
use super::super::process::Group;
use super::super::sandbox::{Launch, Reach, Sandbox, Watched};
use super::super::source::timeout_error;
use super::capture::HeadAndTail;
use super::run_blocking;

/// The time for a command to end once it is asked to, and for reading its output once it has ended.
const GRACE: Duration = Duration::from_millis(500);

/// Replaces the output of a command that wrote nothing.
pub(super) const NO_OUTPUT: &str = "[no output]";

/// Variables that keep programs from waiting for a person.
const NOT_ASKING: [(&str, &str); 7] = [
    ("TERM", "dumb"),
    ("PAGER", "cat"),
    ("GIT_PAGER", "cat"),
    ("GIT_TERMINAL_PROMPT", "0"),
    ("GIT_EDITOR", "true"),
    ("EDITOR", "true"),
    ("VISUAL", "true"),
];

/// One command to run.
#[derive(Clone)]
pub(super) struct Order {
    pub(super) plan: Plan,
    pub(super) directory: PathBuf,
    pub(super) limit: Duration,
    pub(super) passing: Passing,
    pub(super) sandbox: Arc<Sandbox>,
    /// Receives the output as it comes.
    pub(super) watcher: Option<OutputWatcher>,
}

/// The output of a command.
pub(super) struct Ran {
    pub(super) text: String,
    /// Whether its exit code was not 0.
    pub(super) failed: bool,
    /// Whether something that it made was put right.
    pub(super) is_changed: bool,
}

impl From<Ran> for ToolOutput {
    fn from(ran: Ran) -> Self {
        Self { text: ran.text, display: None }
    }
}

/// A running command. Dropping it ends all its processes.
struct Running {
    child: Child,
    output: Receiver,
    hold: Hold,
}

/// Ends the processes of a command.
enum Hold {
    Group(Group),
    /// The launcher listens at the other end.
    Launcher(PipeWriter),
}

impl Hold {
    fn terminate(&mut self) {
        match self {
            Self::Group(group) => group.terminate(),
            // It fails when the processes have ended, which is fine.
            Self::Launcher(pipe) => drop(pipe.write_all(b"t")),
        }
    }
}

/// The commands of this process.
#[derive(Default)]
struct Work {
    /// How many are at work, the look at what they made included.
    running: usize,
    /// This process ends.
    is_ending: bool,
}

static WORK: LazyLock<watch::Sender<Work>> = LazyLock::new(watch::Sender::default);

/// The longest that the end of this process waits for commands.
const LONGEST_END: Duration = Duration::from_secs(25);

struct AtWork;

impl AtWork {
    fn begin() -> Self {
        WORK.send_modify(|work| work.running += 1);
        Self
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        WORK.send_modify(|work| work.running -= 1);
    }
}

/// Ends all commands before this process ends, and waits until what they made has been looked at.
pub async fn end_commands() {
    WORK.send_modify(|work| work.is_ending = true);
    let mut work = WORK.subscribe();
    let _ = timeout(LONGEST_END, work.wait_for(|work| work.running == 0)).await;
}

pub(super) async fn run_order(order: Order, reach: Reach) -> Result<Ran, ToolError> {
    // The caller may go away. In a task of its own the command is still ended, and its settings are renamed.
    let (caller, gone) = oneshot::channel::<()>();
    let at_work = AtWork::begin();
    let mut task = tokio::spawn(async move {
        let ran = run_to_end(order, reach, gone).await;
        drop(at_work);
        ran
    });
    let mut ending = WORK.subscribe();
    let is_ending = async { _ = ending.wait_for(|work| work.is_ending).await };
    let ran = tokio::select! {
        ran = &mut task => ran,
        () = is_ending => {
            drop(caller);
            task.await
        }
    };
    ran.unwrap_or_else(|error| Err(ToolError::Failed(format!("the command was lost: {error}"))))
}

async fn run_to_end(order: Order, reach: Reach, gone: oneshot::Receiver<()>) -> Result<Ran, ToolError> {
    let captured = Captured::with_watcher(order.watcher.clone());
    let (plan, mut limit) = (order.plan.clone(), order.limit);
    let (mut notice, order, mut gone) = (order.watcher.clone(), Arc::new(order), gone);
    let started = loop {
        let next = Arc::clone(&order);
        // Both search the workspace.
        let started = run_blocking(move |_| Ok(start_order(&next, reach))).await?;
        let is_busy = started.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy);
        if !is_busy || limit.is_zero() || gone.try_recv() == Err(TryRecvError::Closed) {
            break started;
        }
        if let Some(watcher) = notice.take() {
            watcher(AWAITED);
        }
        tokio::time::sleep(LOOK_AGAIN).await;
        limit = limit.saturating_sub(LOOK_AGAIN);
    };
    let (running, watched) = match (started, plan) {
        (Err(error), Plan::Program(words)) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(Ran { text: not_found(&words), failed: true, is_changed: false });
        }
        (started, _) => started.map_err(|error| start_error(&error))?,
    };
    let ended = wait_for_exit(running, captured, limit, gone).await;
    // Also when the command was ended.
    let restore = move || watched.map(|watched| watched.restore()).unwrap_or_default();
    let (is_changed, notes) = run_blocking(move |_| Ok(restore())).await?;
    with_notes(ended, &notes).map(|ran| Ran { is_changed, ..ran })
}

/// How often a command that has to be alone looks whether the others have ended, and what is shown meanwhile.
const LOOK_AGAIN: Duration = Duration::from_millis(300);
const AWAITED: &[u8] = b"waiting for the end of another command in this directory\n";

fn caller_gone() -> ToolError {
    ToolError::Failed("the caller of the command has gone".to_owned())
}

/// Puts notes before the output of a command: its end is described last.
fn with_notes(ended: Result<Ran, ToolError>, notes: &[String]) -> Result<Ran, ToolError> {
    if notes.is_empty() {
        return ended;
    }
    let notes = format!("[{}]\n", notes.join("]\n["));
    match ended {
        Ok(ran) => Ok(Ran { text: notes + &ran.text, ..ran }),
        Err(ToolError::TimedOut(text)) => Err(ToolError::TimedOut(notes + &text)),
        other => other,
    }
}

fn start_error(error: &io::Error) -> ToolError {
    ToolError::Failed(format!("the command could not be started: {error}"))
}

/// Waits for a command's end, for at most `limit` and as long as its caller waits.
async fn wait_for_exit(
    mut running: Running,
    mut captured: Captured,
    limit: Duration,
    mut gone: oneshot::Receiver<()>,
) -> Result<Ran, ToolError> {
    let deadline = Instant::now() + limit;
    let ended = timeout_at(deadline, async {
        tokio::select! {
            status = running.child.wait() => Some(status),
            // Its end of the pipe can be closed before it ends.
            () = captured.take_all(&mut running.output) => Some(running.child.wait().await),
            _ = &mut gone => None,
        }
    });
    let ended = ended.await;
    let Running { mut child, mut output, mut hold } = running;
    let is_gone = matches!(ended, Ok(None));
    let Ok(Some(status)) = ended else {
        // git removes its locks.
        hold.terminate();
        let _ = timeout(GRACE, async { tokio::join!(child.wait(), captured.take_all(&mut output)) }).await;
        drop(hold);
        // The next command waits for the end of all processes of this one.
        let _ = child.wait().await;
        return Err(if is_gone { caller_gone() } else { timeout_error(limit, &captured.output.text()) });
    };
    // Processes left in the background hold the pipe: what is in it now is all there is.
    drop(hold);
    let _ = timeout(GRACE, captured.take_all(&mut output)).await;
    Ok(report_exit(&captured.output, status.map_err(|error| start_error(&error))?))
}

/// Returns the message of a shell for a missing command.
fn not_found(words: &[String]) -> String {
    format!("{}: command not found\n\n[exit code 127]", words.first().map_or("", String::as_str))
}

/// Returns the program to run and its arguments.
fn command_words(plan: &Plan) -> Vec<&str> {
    match plan {
        Plan::Program(words) => words.iter().map(String::as_str).collect(),
        Plan::Shell(text) => {
            let shell = if Path::new("/bin/bash").exists() { "/bin/bash" } else { "/bin/sh" };
            vec![shell, "-c", "--", text]
        }
    }
}

fn start_order(order: &Order, reach: Reach) -> io::Result<(Running, Option<Watched>)> {
    let Order { plan, directory, passing, sandbox, .. } = order;
    let (reader, writer) = io::pipe()?;
    let Launch { mut command, control, watched } =
        sandbox.prepare(&command_words(plan), directory, passing, &NOT_ASKING, reach)?;
    command.stdout(writer.try_clone()?).stderr(writer);
    let child = command.spawn()?;
    let output = Receiver::from_owned_fd(reader.into())?;
    let hold = control.map_or_else(|| Hold::Group(Group::from_child(&child)), Hold::Launcher);
    Ok((Running { child, output, hold }, watched))
}

fn report_exit(captured: &HeadAndTail, status: ExitStatus) -> Ran {
    let output = captured.text();
    let note = match (status.code(), status.signal()) {
        (Some(0), _) if output.is_empty() => NO_OUTPUT.to_owned(),
        (Some(0), _) => return Ran { text: output, failed: false, is_changed: false },
        (Some(code), _) => format!("[exit code {code}]"),
        (None, signal) => format!("[ended by signal {}]", signal.unwrap_or_default()),
    };
    let text = if output.is_empty() { note } else { format!("{}\n\n{note}", output.trim_end_matches('\n')) };
    Ran { text, failed: !status.success(), is_changed: false }
}

/// The output of a command, and the receiver of its pieces.
struct Captured {
    output: HeadAndTail,
    watcher: Option<OutputWatcher>,
}

impl Captured {
    fn with_watcher(watcher: Option<OutputWatcher>) -> Self {
        Self { output: HeadAndTail::default(), watcher }
    }

    /// Reads the pipe to its end.
    async fn take_all(&mut self, pipe: &mut Receiver) {
        let mut buffer = vec![0; 16 << 10];
        while let Ok(count @ 1..) = pipe.read(&mut buffer).await {
            self.output.push(&buffer[..count]);
            if let Some(watcher) = &self.watcher {
                watcher(&buffer[..count]);
            }
        }
    }
}
