//! `respool sandbox-exec`: the launcher. It goes through up to three stages, each a process of its own, and gives the exit
//! code, or the signal, of the command. Called by `cli`; started by `sandbox` and by itself.
//!
//! Standard input is never the command's: at the first stage it is the pipe that respool holds (a byte asks the command to
//! end, its end ends everything), at the second the pipe that takes the command's end to the first.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, PipeReader, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::process::{Child, Command, Stdio};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, kill, raise};
use nix::unistd::{Pid, setsid};

use super::spec::Spec;
use super::{confine, namespaces, supervise};

/// The exit code when the sandbox cannot be made; nothing has run then.
const NOT_MADE: u8 = 125;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Code(i32),
    Signal(i32),
}

/// Runs a stage (`begin`, `init` or `confined`) and returns its exit code. Without words nothing runs: the sandbox is only
/// tried.
pub fn launch(stage: &str, spec: &str, words: &[OsString]) -> u8 {
    close_inherited();
    let ended = serde_json::from_str(spec).map_err(io::Error::other).and_then(|spec: Spec| match stage {
        "begin" => begin(&spec, words),
        "init" => init(&spec, words),
        "confined" => confine::become_command(&spec, words).map(End::Code),
        other => Err(io::Error::other(format!("there is no stage {other:?}"))),
    });
    match ended {
        Ok(end) => leave(end),
        Err(error) => {
            let _ =
                writeln!(io::stderr(), "respool: the sandbox could not be made, and nothing ran: {error}");
            NOT_MADE
        }
    }
}

/// Whatever respool itself inherited is open here too, and not the command's: a file that is open needs no permission.
fn close_inherited() {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return };
    let numbers: Vec<i32> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for number in numbers.into_iter().filter(|number| *number > 2) {
        // The directory that was just read is among them, and closed already.
        let _ = nix::unistd::close(number);
    }
}

/// Outside the namespaces: keeps the session together.
fn begin(spec: &Spec, words: &[OsString]) -> io::Result<End> {
    // Fails for the leader of a group, which has a session of its own or is not respool's child.
    let _ = setsid();
    if !spec.namespaces {
        return supervise::supervise(spec, words, true);
    }
    namespaces::enter(spec)?;
    let (reader, writer) = io::pipe()?;
    let mut init = stage("init", spec, words)?.stdin(Stdio::from(writer)).spawn()?;
    let reported = relay(reader, pid_of(&init))?;
    let status = init.wait()?;
    Ok(read_end(&reported).unwrap_or_else(|| supervise::end_of(status)))
}

/// Passes on what respool asks for until the namespaces have ended, and returns what they reported of the end. There are no
/// threads after `unshare`.
fn relay(mut reader: PipeReader, init: Pid) -> io::Result<String> {
    let mut is_heard = true;
    loop {
        let stdin = io::stdin();
        let mut waiting =
            [PollFd::new(reader.as_fd(), PollFlags::POLLIN), PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
        let count = if is_heard { 2 } else { 1 };
        match poll(&mut waiting[..count], PollTimeout::NONE) {
            Err(Errno::EINTR) => continue,
            polled => polled?,
        };
        let is_ready = |fd: &PollFd<'_>| fd.any() == Some(true);
        let [is_told, is_asked] = [is_ready(&waiting[0]), is_heard && is_ready(&waiting[1])];
        if is_told {
            let mut reported = String::new();
            reader.read_to_string(&mut reported)?;
            return Ok(reported);
        }
        if is_asked {
            is_heard = matches!(rustix::io::read(&stdin, &mut [0]), Ok(1));
            let signal = if is_heard { Signal::SIGTERM } else { Signal::SIGKILL };
            // It fails when the namespaces have ended, which is what is wanted.
            let _ = kill(init, signal);
        }
    }
}

/// The first process of the namespaces: when it ends, all others do.
fn init(spec: &Spec, words: &[OsString]) -> io::Result<End> {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    namespaces::mount_places(spec)?;
    let end = supervise::supervise(spec, words, false)?;
    let mut pipe = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let (kind, number) = match end {
        End::Code(code) => ("code", code),
        End::Signal(signal) => ("signal", signal),
    };
    write!(pipe, "{kind} {number}")?;
    Ok(end)
}

fn read_end(text: &str) -> Option<End> {
    match text.split_once(' ')? {
        ("code", number) => Some(End::Code(number.parse().ok()?)),
        ("signal", number) => Some(End::Signal(number.parse().ok()?)),
        _ => None,
    }
}

/// This program again, at another stage. Its environment is the command's.
pub(super) fn stage(name: &str, spec: &Spec, words: &[OsString]) -> io::Result<Command> {
    let mut command = Command::new("/proc/self/exe");
    let spec = serde_json::to_string(spec).map_err(io::Error::other)?;
    command.args(["sandbox-exec", "--stage", name, &spec, "--"]).args(words);
    Ok(command)
}

pub(super) fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap_or_default())
}

/// Listens to respool in a thread: `true` for a byte, `false` for the end of the pipe.
pub(super) fn on_control(hear: impl Fn(bool) + Send + 'static) {
    std::thread::spawn(move || {
        let mut byte = [0];
        while let Ok(1) = io::stdin().read(&mut byte) {
            hear(true);
        }
        hear(false);
    });
}

/// Ends as the command did.
fn leave(end: End) -> u8 {
    match end {
        End::Code(code) => u8::try_from(code).unwrap_or(u8::MAX),
        End::Signal(number) => {
            let _ = rlimit::Resource::CORE.set(0, 0);
            if let Ok(signal) = Signal::try_from(number) {
                let mut set = SigSet::empty();
                set.add(signal);
                let _ = set.thread_unblock();
                let _ = raise(signal);
            }
            u8::try_from(128 + number).unwrap_or(u8::MAX)
        }
    }
}
