//! Child processes: in their own session and group, which ends as a whole, with a permitted part of
//! respool's environment and no way to read the rest. They have no controlling terminal: a command can
//! neither write to the person's `/dev/tty` nor type into it.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::Stdio;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use process_wrap::tokio::{CommandWrap, CommandWrapper as _, ProcessSession};
use tokio::process::{Child, Command};

use super::environment::Passing;

/// Returns a command in its own session and process group, with the permitted variables and an empty
/// standard input.
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

/// Makes the child call `setsid` before it executes the program. Of the library this uses only the hook,
/// which needs a `CommandWrap` as its second argument and ignores it.
fn start_own_session(command: &mut Command) -> io::Result<()> {
    ProcessSession.pre_spawn(command, &CommandWrap::from(Command::new("")))
}

/// Returns a command with the permitted variables, for a program that starts its own session.
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

/// Keeps other processes of the same user from reading this one's memory or environment (`/proc/PID/mem`,
/// `environ`, ptrace), which contain the keys. Only Linux has such a switch; root may still read them. It
/// also disables core dumps.
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
    /// A shell that waits for the end of a pipe which only this process holds open. It has its own session,
    /// because no other process can join the child's.
    watcher: Option<Child>,
}

impl Group {
    /// Returns the group of a child that [`new_command`] started.
    pub(super) fn from_child(child: &Child) -> Self {
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        // Without a watcher the group still ends, unless this process is killed.
        Self { id: id.map(Pid::from_raw), watcher: id.and_then(|id| start_watcher(id).ok()) }
    }

    /// Asks the group to end.
    pub(super) fn terminate(&self) {
        self.send_signal(Signal::SIGTERM);
    }

    fn send_signal(&self, signal: Signal) {
        if let Some(group) = self.id {
            // It fails when the group has ended, which is fine.
            let _ = killpg(group, signal);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.send_signal(Signal::SIGKILL);
        // This comes before its pipe is closed: the group's id may belong to another group by then.
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
