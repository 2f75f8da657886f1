//! Starts the confined stage and waits for it; when the command has ended, also by its timeout, all that it
//! left behind ends too: also what took a session or a group of its own. Inside namespaces the kernel does
//! that, elsewhere this process does, which gets every orphan as a child. It does not end before all others
//! have.

use std::ffi::OsString;
use std::io::{self, Read as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal, kill, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::spec::Spec;

/// The exit code when everything was ended because respool had closed its pipe.
pub(super) const ENDED: i32 = 137;

/// Runs the command, listens to the pipe on standard input, and returns the exit code, that of a shell for a
/// signal.
pub(super) fn supervise(spec: &Spec, words: &[OsString]) -> io::Result<i32> {
    nix::sys::prctl::set_child_subreaper(true)?;
    // What it starts runs as the same user, and is not to meddle with it.
    nix::sys::prctl::set_dumpable(false)?;
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGCHLD);
    signals.add(Signal::SIGTERM);
    signals.thread_block()?;
    // Its environment holds the command's.
    let mut command = Command::new("/proc/self/exe");
    command.args(spec.stage_arguments("confined")?).args(words);
    let child = command.process_group(0).stdin(Stdio::null()).spawn()?;
    let child = Pid::from_raw(i32::try_from(child.id()).unwrap_or_default());
    // The kernel ends all others with the first process of a namespace.
    let end_others: fn() = if spec.has_namespaces() { || {} } else { end_all };
    std::thread::spawn(move || {
        let mut byte = [0];
        while let Ok(1) = io::stdin().read(&mut byte) {
            let _ = killpg(child, Signal::SIGTERM);
        }
        end_others();
        std::process::exit(ENDED);
    });
    let code = wait_for(child, &signals)?;
    end_others();
    Ok(code)
}

/// Waits for the command and takes in all others that end meanwhile.
fn wait_for(child: Pid, signals: &SigSet) -> io::Result<i32> {
    loop {
        if signals.wait()? == Signal::SIGTERM {
            let _ = killpg(child, Signal::SIGTERM);
        }
        loop {
            match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) if pid == child => return Ok(code),
                Ok(WaitStatus::Signaled(pid, signal, _)) if pid == child => {
                    return Ok(128 + signal as i32);
                }
                Ok(WaitStatus::StillAlive) => break,
                Err(Errno::ECHILD) => return Ok(ENDED),
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Kills every process below this one, until all have ended.
pub(super) fn end_all() {
    let own = Pid::this();
    loop {
        let (mut waiting, mut stopped) = (children(own), Vec::new());
        // A parent is stopped before its children are looked for: it makes no others, and no number is used
        // again.
        while let Some(pid) = waiting.pop() {
            // One that has ended already is no loss.
            let _ = kill(pid, Signal::SIGSTOP);
            waiting.extend(children(pid));
            stopped.push(pid);
        }
        for pid in stopped {
            let _ = kill(pid, Signal::SIGKILL);
        }
        // Another thread may take in what ends, so this one never waits for a certain process.
        loop {
            match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Err(Errno::ECHILD) => return,
                Ok(WaitStatus::StillAlive) => break,
                Ok(_) | Err(_) => {}
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns the processes whose parent is this one.
fn children(parent: Pid) -> Vec<Pid> {
    let threads = std::fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
    let listed: Option<Vec<String>> =
        threads.map(|thread| std::fs::read_to_string(thread.path().join("children")).ok()).collect();
    match listed {
        Some(listed) => {
            let numbers = listed.iter().flat_map(|text| text.split_whitespace());
            numbers.filter_map(|number| number.parse().ok()).map(Pid::from_raw).collect()
        }
        // It has just ended, or the kernel keeps no such lists.
        None => find_children(parent),
    }
}

fn find_children(parent: Pid) -> Vec<Pid> {
    let parent = parent.to_string();
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let is_child = |stat: &str| {
        // After the name, which may hold anything: state, then the parent.
        stat.rsplit_once(')')
            .and_then(|(_, rest)| rest.split_whitespace().nth(1))
            .is_some_and(|found| found == parent)
    };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let stat = |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    pids.filter(|pid| is_child(&stat(pid))).map(Pid::from_raw).collect()
}
