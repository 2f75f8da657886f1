//! `exec`: commands in the workspace, one after the other. Both outputs are read as one, in order. When the
//! call ends for any reason, every process that it started ends too. `sandbox` confines them.

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
use super::super::programs::is_executable;
use super::super::sandbox::{
    FILTERS, HOOKS, Launch, NO_HOOKS, Reach, Sandbox, Watched, hooks_for, question, words_without_filters,
};
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

/// git's words, with exit code 0, on files that it could not write or remove.
const UNWRITTEN: [&str; 5] = [
    "unable to unlink",
    "unable to create file",
    "failed to remove",
    "could not write config file",
    "external filter",
];
/// Its words where a line hides its failure, as by a pipe.
const UNLOCKED: &str = "index.lock': Read-only file system";
const HALF_DONE: &str = "git has done half of its work: files that commands only read could not be written or removed, or new ones were \
    renamed. Ask the user to put that right (`git status`), and commit nothing before. Later commands of the line have not run";

/// Commands to run, one after the other.
#[derive(Clone)]
pub(super) struct Order {
    pub(super) steps: Vec<Step>,
    pub(super) limit: Duration,
    pub(super) passing: Passing,
    pub(super) sandbox: Arc<Sandbox>,
    /// Receives the output as it comes.
    pub(super) watcher: Option<OutputWatcher>,
}

/// One command of a line.
#[derive(Clone)]
pub(super) struct Step {
    pub(super) plan: Plan,
    pub(super) directory: PathBuf,
    pub(super) reach: Reach,
    /// Whether it runs even if the one before it has failed.
    pub(super) runs_anyway: bool,
    /// The line from here on, and the directory in which that begins.
    pub(super) rest: (Plan, PathBuf),
}

impl Step {
    /// Returns the only command of a line.
    pub(super) fn only(plan: Plan, directory: PathBuf, reach: Reach) -> Self {
        Self { rest: (plan.clone(), directory.clone()), plan, directory, reach, runs_anyway: true }
    }
}

/// The output of commands.
#[derive(Default)]
pub(super) struct Ran {
    pub(super) text: String,
    /// Whether the exit code of the last one was not 0.
    pub(super) failed: bool,
    /// The exit code of the last one; `None` if a signal ended it.
    pub(super) exit_code: Option<i32>,
    /// git has done half of its work. None ran after it.
    pub(super) half_done: bool,
    /// Why the sandbox seems to have stopped one, and which. None ran after it.
    pub(super) stopped: Option<(String, Step)>,
}

impl From<Ran> for ToolOutput {
    fn from(ran: Ran) -> Self {
        Self { text: ran.text, exit_code: ran.exit_code, display: None }
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
    /// Of commands whose callers have gone, the last ones.
    notes: Vec<String>,
}

static WORK: LazyLock<watch::Sender<Work>> = LazyLock::new(watch::Sender::default);

/// How many notes are kept for the end of this process.
const MOST_NOTES: usize = 100;
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

/// Ends all commands before this process ends, and waits until what they made has been looked at. Returns
/// notes on that whose callers had gone.
pub async fn end_commands() -> Vec<String> {
    WORK.send_modify(|work| work.is_ending = true);
    let mut work = WORK.subscribe();
    let _ = timeout(LONGEST_END, work.wait_for(|work| work.running == 0)).await;
    let mut notes = Vec::new();
    WORK.send_modify(|work| notes.append(&mut work.notes));
    notes
}

pub(super) async fn run_order(order: Order) -> Result<Ran, ToolError> {
    // The caller may go away. In a task of its own the command is still ended, and its settings are renamed.
    let (caller, gone) = oneshot::channel::<()>();
    let at_work = AtWork::begin();
    let mut task = tokio::spawn(async move {
        let deadline = Instant::now() + order.limit;
        let ran = Line { order, deadline, gone, ran: Ran::default() }.run().await;
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

/// The commands of a line at work.
struct Line {
    order: Order,
    deadline: Instant,
    /// Ends when the caller has gone.
    gone: oneshot::Receiver<()>,
    ran: Ran,
}

impl Line {
    /// Runs one command after the other as a shell would, until the sandbox seems to stop one.
    async fn run(mut self) -> Result<Ran, ToolError> {
        let steps = std::mem::take(&mut self.order.steps);
        // git may do half of its work: the next command runs only after the look at what it made.
        let are_joined =
            |step: &Step, next: &Step| step.reach == next.reach && step.reach != Reach::Repository;
        for group in steps.chunk_by(are_joined) {
            let ended = self.run_group(group).await;
            ended.map_err(|error| error_behind(&self.ran.text, error))?;
            if self.ran.stopped.is_some() || self.ran.half_done {
                break;
            }
        }
        if self.ran.text.is_empty() {
            NO_OUTPUT.clone_into(&mut self.ran.text);
        }
        Ok(self.ran)
    }

    /// Runs commands of the same reach. The workspace is looked at before the first and after the last of
    /// them, also when they were ended.
    async fn run_group(&mut self, steps: &[Step]) -> Result<(), ToolError> {
        let first = steps.iter().find(|step| step.runs_anyway || !self.ran.failed);
        let Some(Step { directory, reach, .. }) = first.cloned() else { return Ok(()) };
        let watched = Arc::new(self.watch(&directory, reach).await?);
        let before = std::mem::take(&mut self.ran.text);
        let ended = self.run_steps(steps, &watched).await;
        let look = move || {
            let watched = (*watched).as_ref().filter(|_| reach != Reach::Index);
            watched.map(Watched::restore).unwrap_or_default()
        };
        let (is_changed, notes) = run_blocking(move |_| Ok(look())).await?;
        if self.gone.try_recv() == Err(TryRecvError::Closed) {
            WORK.send_modify(|work| {
                work.notes.extend(notes.iter().cloned());
                work.notes.drain(..work.notes.len().saturating_sub(MOST_NOTES));
            });
        }
        let output = std::mem::replace(&mut self.ran.text, before);
        // The end of a command is described last.
        for note in notes {
            append(&mut self.ran.text, &format!("[{note}]\n"));
        }
        append(&mut self.ran.text, &output);
        if is_changed && reach == Reach::Repository {
            self.ran.fail_half_done();
        }
        ended
    }

    /// Looks at the workspace once no other command keeps this one from that.
    async fn watch(&mut self, directory: &Path, reach: Reach) -> Result<Option<Watched>, ToolError> {
        let (mut notice, called) = (self.order.watcher.clone(), Instant::now());
        loop {
            let (sandbox, directory) = (Arc::clone(&self.order.sandbox), directory.to_owned());
            let began = Instant::now();
            let watched = run_blocking(move |_| Ok(sandbox.watch(&directory, reach))).await?;
            self.deadline += began.elapsed();
            let is_busy = watched.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy);
            // This receiver panics when it is polled again.
            if self.gone.try_recv() == Err(TryRecvError::Closed) {
                return Err(caller_gone());
            }
            let waited = called.elapsed();
            if !is_busy || waited > LONGEST_WAIT || Instant::now() > self.deadline {
                return watched.map_err(|error| start_error(&error));
            }
            if let Some(watcher) = notice.take_if(|_| waited > SILENT_WAIT) {
                watcher(AWAITED);
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    async fn run_steps(&mut self, steps: &[Step], watched: &Arc<Option<Watched>>) -> Result<(), ToolError> {
        for step in steps {
            if self.ran.failed && !step.runs_anyway {
                continue;
            }
            let mut ran = if step.reach.is_gits() {
                self.run_git(step, watched).await?
            } else {
                let watcher = self.order.watcher.clone();
                self.run_plan(step.plan.clone(), step, watched, watcher).await?
            };
            if let Plan::Shell(line) = &step.plan {
                let notes = [
                    leaves_background(line).then(|| BACKGROUND_ENDED.to_owned()),
                    self.order.sandbox.lost_files_note(line, step.reach),
                ];
                notes.iter().flatten().for_each(|note| append(&mut ran.text, &format!("[{note}]\n")));
            }
            // After a failure, one without output says that it did not fail.
            if ran.text != NO_OUTPUT || self.ran.failed {
                append(&mut self.ran.text, &ran.text);
            }
            (self.ran.failed, self.ran.exit_code) = (ran.failed, ran.exit_code);
            self.ran.half_done = ran.half_done;
            if ran.half_done {
                break;
            }
            let is_stopped = ran.failed || ran.text.contains(UNLOCKED);
            if let Some(refusal) = self.order.sandbox.refusal(&ran.text, step.reach).filter(|_| is_stopped) {
                self.ran.stopped = Some((refusal, step.clone()));
                break;
            }
        }
        Ok(())
    }

    /// Runs a command of git's, which executes no filter.
    async fn run_git(&mut self, step: &Step, watched: &Arc<Option<Watched>>) -> Result<Ran, ToolError> {
        let Plan::Program(words) = &step.plan else { return Err(caller_gone()) };
        if let Some(why) = self.why_not(words, step, watched).await? {
            let text = format!("git was not run: {why}\n\n[exit code 1]");
            return Ok(Ran { text, failed: true, exit_code: Some(1), ..Ran::default() });
        }
        let listed = self.ask_git(question(words, &FILTERS), step, watched).await?;
        let plan = Plan::Program(words_without_filters(words, &listed));
        let watcher = self.order.watcher.clone();
        let mut ran = self.run_plan(plan, step, watched, watcher).await?;
        let is_unwritten = |line: &str| {
            let (kind, text) = line.split_once(": ").unwrap_or_default();
            ["error", "warning"].contains(&kind) && UNWRITTEN.iter().any(|sign| text.starts_with(sign))
        };
        if ran.text.lines().any(is_unwritten) {
            ran.fail_half_done();
        }
        Ok(ran)
    }

    /// Returns why git would do only a part of its work, or pass over a hook.
    async fn why_not(
        &mut self,
        words: &[String],
        step: &Step,
        watched: &Arc<Option<Watched>>,
    ) -> Result<Option<String>, ToolError> {
        let kept = (**watched).as_ref();
        let before = kept.and_then(|kept| self.order.sandbox.words_before(words, &step.directory, kept));
        if let Some(before) = before {
            let changed = self.ask_git(before, step, watched).await?;
            if !changed.is_empty() {
                return Ok(Some(format!("it would change these in a read-only file system:\n{changed}")));
            }
        }
        let mut hooks = hooks_for(words).to_vec();
        if !hooks.is_empty() {
            let said = self.ask_git(question(words, &HOOKS), step, watched).await?;
            if said.is_empty() {
                return Ok(Some(format!("it does not say where hooks are, and {NO_HOOKS}")));
            }
            let places = said.lines().map(|line| step.directory.join(line));
            hooks.retain(|name| places.clone().any(|place| is_executable(&place.join(name))));
        }
        let noun = if hooks.len() == 1 { "hook" } else { "hooks" };
        let is_free = hooks.is_empty();
        Ok((!is_free).then(|| format!("this repository has the {noun} {}, and {NO_HOOKS}", hooks.join(", "))))
    }

    /// Returns what git says, without its warnings; nothing where it fails.
    async fn ask_git(
        &mut self,
        words: Vec<String>,
        step: &Step,
        watched: &Arc<Option<Watched>>,
    ) -> Result<String, ToolError> {
        let said = self.run_plan(Plan::Program(words), step, watched, None).await?;
        let is_answer = !said.failed && said.text != NO_OUTPUT;
        let lines = said.text.lines().filter(|line| is_answer && !line.starts_with("warning: "));
        Ok(lines.collect::<Vec<_>>().join("\n"))
    }

    async fn run_plan(
        &mut self,
        plan: Plan,
        step: &Step,
        watched: &Arc<Option<Watched>>,
        watcher: Option<OutputWatcher>,
    ) -> Result<Ran, ToolError> {
        let (order, step, watched) = (self.order.clone(), step.clone(), Arc::clone(watched));
        let words = plan.clone();
        let start = move || start_plan(&plan, &order, &step, (*watched).as_ref());
        let running = match (run_blocking(move |_| Ok(start())).await?, words) {
            (Err(error), Plan::Program(words)) if error.kind() == io::ErrorKind::NotFound => {
                let text = not_found(&words);
                return Ok(Ran { text, failed: true, exit_code: Some(127), ..Ran::default() });
            }
            (started, _) => started.map_err(|error| start_error(&error))?,
        };
        let captured = Captured { output: HeadAndTail::default(), watcher };
        wait_for_exit(running, captured, (self.deadline, self.order.limit), &mut self.gone).await
    }
}

/// How often a command that waits for others looks whether they have ended, for how long, and what is shown
/// after a moment.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
const SILENT_WAIT: Duration = Duration::from_millis(300);
const AWAITED: &[u8] = b"waiting for the end of another command in this directory\n";

impl Ran {
    fn fail_half_done(&mut self) {
        (self.failed, self.half_done) = (true, true);
        self.text = format!("{}\n[{HALF_DONE}]\n", self.text.trim_end());
    }
}

/// The note on a line that leaves processes behind.
const BACKGROUND_ENDED: &str = "a process left in the background ends with the call: to use a server, start it and what needs it in one \
     command";

/// Returns true if a line starts a process in the background, as far as its text shows that. The mark of it
/// may stand in quotes, but not as a part of another operator.
fn leaves_background(line: &str) -> bool {
    let (mut quote, mut before, mut rest) = (None, ' ', line.chars().peekable());
    while let Some(c) = rest.next() {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (Some('\''), _) => {}
            (_, '\\') => drop(rest.next()),
            (None, '\'' | '"') => quote = Some(c),
            (None, '&') if !"&|<>".contains(before) && !matches!(rest.peek(), Some('&' | '>')) => {
                return true;
            }
            _ => {}
        }
        before = c;
    }
    false
}

/// Appends a text on a line of its own.
fn append(text: &mut String, more: &str) {
    let is_within = !text.is_empty() && !text.ends_with('\n') && !more.is_empty();
    text.extend([if is_within { "\n" } else { "" }, more]);
}

/// Puts the output of the commands before it in front of the error of one.
fn error_behind(output: &str, error: ToolError) -> ToolError {
    let behind = |text: String| {
        let mut all = output.to_owned();
        append(&mut all, &text);
        all
    };
    match error {
        ToolError::TimedOut(text) => ToolError::TimedOut(behind(text)),
        ToolError::Failed(text) => ToolError::Failed(behind(text)),
        other => other,
    }
}

fn caller_gone() -> ToolError {
    ToolError::Failed("the caller of the command has gone".to_owned())
}

fn start_error(error: &io::Error) -> ToolError {
    ToolError::Failed(format!("the command could not be started: {error}"))
}

/// Waits for a command's end, at most to the deadline of its line, and as long as its caller waits.
async fn wait_for_exit(
    mut running: Running,
    mut captured: Captured,
    (deadline, limit): (Instant, Duration),
    gone: &mut oneshot::Receiver<()>,
) -> Result<Ran, ToolError> {
    let ended = timeout_at(deadline, async {
        tokio::select! {
            status = running.child.wait() => Some(status),
            // Its end of the pipe can be closed before it ends.
            () = captured.take_all(&mut running.output) => Some(running.child.wait().await),
            _ = gone => None,
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

fn start_plan(plan: &Plan, order: &Order, step: &Step, watched: Option<&Watched>) -> io::Result<Running> {
    let (reader, writer) = io::pipe()?;
    let (words, passing) = (command_words(plan), &order.passing);
    let Launch { mut command, control } =
        order.sandbox.prepare(&words, &step.directory, passing, &NOT_ASKING, step.reach, watched)?;
    command.stdout(writer.try_clone()?).stderr(writer);
    let child = command.spawn()?;
    let output = Receiver::from_owned_fd(reader.into())?;
    let hold = control.map_or_else(|| Hold::Group(Group::from_child(&child)), Hold::Launcher);
    Ok(Running { child, output, hold })
}

fn report_exit(captured: &HeadAndTail, status: ExitStatus) -> Ran {
    let output = captured.text();
    let note = match (status.code(), status.signal()) {
        (Some(0), _) if output.is_empty() => NO_OUTPUT.to_owned(),
        (Some(0), _) => return Ran { text: output, exit_code: Some(0), ..Ran::default() },
        (Some(code), _) => format!("[exit code {code}]"),
        (None, signal) => format!("[ended by signal {}]", signal.unwrap_or_default()),
    };
    let text = if output.is_empty() { note } else { format!("{}\n\n{note}", output.trim_end_matches('\n')) };
    Ran { text, failed: !status.success(), exit_code: status.code(), ..Ran::default() }
}

/// The output of a command, and the receiver of its pieces.
struct Captured {
    output: HeadAndTail,
    watcher: Option<OutputWatcher>,
}

impl Captured {
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

#[cfg(test)]
mod tests {
    use super::super::super::config::LocalConfig;
    use super::*;

    /// Regression: a server was gone in the next call, and nothing said why.
    #[test]
    fn background_processes_are_told_apart() {
        for line in ["sleep 9 & echo started", "serve >log 2>&1 &", "(a&) ; b", "a &\nb"] {
            assert!(leaves_background(line), "{line}");
        }
        for line in ["a && b", "a 2>&1 | b", "a &> log", "echo 'a & b' \"c & d\" e\\&f", "a |& b", "a <&3"] {
            assert!(!leaves_background(line), "{line}");
        }
    }

    /// Regression: the end of a caller during the search was asked for again by the command, which panicked.
    #[tokio::test]
    async fn without_a_caller_nothing_starts() {
        let workspace = tempfile::tempdir().unwrap();
        let sandbox = Sandbox::open(&LocalConfig::default(), workspace.path(), true).unwrap();
        let words = ["touch", "made"].map(str::to_owned).to_vec();
        let order = Order {
            steps: vec![Step::only(Plan::Program(words), workspace.path().to_owned(), Reach::Workspace)],
            limit: Duration::from_mins(1),
            passing: Passing::default(),
            sandbox: Arc::new(sandbox),
            watcher: None,
        };
        let gone = oneshot::channel().1;
        let line = Line { deadline: Instant::now() + order.limit, order, gone, ran: Ran::default() };
        assert!(line.run().await.is_err() && !workspace.path().join("made").exists());
    }
}
