//! Child processes: in a group of their own that ends as a whole, with as much of respool's environment as they may know.

use std::process::Stdio;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::Command;

use super::environment::Passing;

/// A command in a process group of its own, with the variables that pass and nothing on standard input.
pub(super) fn command(program: &str, passing: &Passing) -> Command {
    let mut command = Command::new(program);
    let passed = std::env::vars_os().filter(|(name, value)| {
        name.to_str().is_some_and(|name| passing.lets(name, &value.to_string_lossy()))
    });
    command.env_clear().envs(passed).stdin(Stdio::null()).process_group(0);
    command
}

/// The process group of a running child. Dropping it kills the whole group: the child, its children, theirs.
#[derive(Debug)]
pub(super) struct Group(Option<Pid>);

impl Group {
    /// The group of a child that [`command`] started.
    pub(super) fn of(child: &tokio::process::Child) -> Self {
        Self(child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw))
    }

    /// Asks the group to end.
    pub(super) fn terminate(&self) {
        self.signal(Signal::SIGTERM);
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.0 {
            // It fails when nothing is left of the group, which is what is wanted.
            let _ = killpg(group, signal);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
    }
}

/// A task that ends when this is dropped.
#[derive(Debug)]
pub(super) struct AbortOnDrop(pub(super) tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
