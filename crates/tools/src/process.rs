//! Child processes: in a session and a group of their own that ends as a whole, with as much of respool's
//! environment as they may know, and without a way to read the rest. Without a controlling terminal: a
//! command can neither write to the person's `/dev/tty` nor type into it.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::Stdio;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use process_wrap::tokio::{CommandWrap, CommandWrapper as _, ProcessSession};
use tokio::process::{Child, Command};

use super::environment::Passing;

/// A command in a session and process group of its own, with the variables that pass and nothing on standard
/// input.
///
/// # Errors
/// When it cannot get a session.
pub(super) fn new_command(program: &str, passing: &Passing) -> io::Result<Command> {
    close_to_children();
    let mut command = Command::new(program);
    command.env_clear().envs(passed_variables(passing)).stdin(Stdio::null());
    start_own_session(&mut command)?;
    Ok(command)
}

/// Has the child call `setsid` before it becomes the program. The library's wrapper of a child is not used:
/// only its hook, which needs a `CommandWrap` for its second argument and does not look at it.
fn start_own_session(command: &mut Command) -> io::Result<()> {
    ProcessSession.pre_spawn(command, &CommandWrap::from(Command::new("")))
}

/// The number of this process.
pub(super) fn process_id() -> i32 {
    i32::try_from(std::process::id()).unwrap_or_default()
}

/// A command with the variables that pass, for a program that takes a session of its own.
pub(super) fn plain_command(program: &Path, passing: &Passing) -> Command {
    close_to_children();
    let mut command = Command::new(program);
    command.env_clear().envs(passed_variables(passing));
    command
}

fn passed_variables(passing: &Passing) -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os().filter(|(name, value)| {
        name.to_str().is_some_and(|name| passing.allows_variable(name, &value.to_string_lossy()))
    })
}

/// From now on no process of the same user may read this one's memory or environment (`/proc/PID/mem`,
/// `environ`, ptrace): they hold the keys. Linux alone has such a switch; root may read all the same. There
/// are no core dumps either.
fn close_to_children() {
    #[cfg(target_os = "linux")]
    if let Err(error) = nix::sys::prctl::set_dumpable(false) {
        tracing::warn!(%error, "what tools start may read respool's environment");
    }
}

/// The process group of a running child. Dropping it kills the whole group: the child, its children, theirs.
/// So does the end of this process, also by SIGKILL.
#[derive(Debug)]
pub(super) struct Group {
    id: Option<Pid>,
    /// A shell that waits for the end of a pipe which only this process holds open. It is in a session of its
    /// own, as nobody can join the child's.
    watcher: Option<Child>,
}

impl Group {
    /// The group of a child that [`command`] started.
    pub(super) fn from_child(child: &Child) -> Self {
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        // Without a watcher the group ends all the same, unless this process is killed.
        Self { id: id.map(Pid::from_raw), watcher: id.and_then(|id| start_watcher(id).ok()) }
    }

    /// Asks the group to end.
    pub(super) fn terminate(&self) {
        self.send_signal(Signal::SIGTERM);
    }

    fn send_signal(&self, signal: Signal) {
        if let Some(group) = self.id {
            // It fails when nothing is left of the group, which is what is wanted.
            let _ = killpg(group, signal);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.send_signal(Signal::SIGKILL);
        // Before its pipe is closed: the group's number may belong to another group by then.
        if let Some(watcher) = &mut self.watcher {
            let _ = watcher.start_kill();
        }
    }
}

fn start_watcher(group: i32) -> io::Result<Child> {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", &format!("read -r _; kill -KILL -{group}")]).env_clear();
    start_own_session(&mut shell)?;
    shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

/// A task that ends when this is dropped.
#[derive(Debug)]
pub(super) struct AbortOnDrop(pub(super) tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
