//! `respool sandbox-exec`: the launcher. It goes through up to four stages, each a process of its own, and
//! gives the exit code, or the signal, of the command. Called by `cli`; started by `sandbox` and by itself.
//!
//! Standard input is never the command's: it is the pipe that respool holds. A byte asks the command to end,
//! its end ends everything.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::process::Command;

use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigSet, Signal, raise};
use nix::unistd::setsid;
use rustix::fs::{CWD, Mode, OFlags, openat};

use super::bubblewrap::Arguments;
use super::spec::{End, Spec};
use super::{confine, network, supervise};

/// The exit code when the sandbox cannot be made; nothing has run then.
const NOT_MADE: u8 = 125;

/// Runs a stage (`begin`, `apart`, `inside` or `confined`) and returns its exit code. Without words nothing
/// runs: the sandbox is only tried.
pub fn launch(stage: &str, spec: &str, words: &[OsString]) -> u8 {
    let ended = serde_json::from_str(spec).map_err(io::Error::other).and_then(|spec: Spec| match stage {
        "begin" => begin(&spec, words),
        "apart" => network::close_roads(&spec).and_then(|()| begin(&spec, words)),
        "inside" => inside(&spec, words),
        "confined" => {
            close_inherited(None);
            confine::become_command(&spec, words).map(End::Code)
        }
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

/// Whatever was inherited is open here too, and not the command's: a file that is open needs no permission.
fn close_inherited(except: Option<&File>) {
    let except = except.map(File::as_raw_fd);
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return };
    let numbers: Vec<i32> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for number in numbers.into_iter().filter(|number| *number > 2 && Some(*number) != except) {
        // The directory that was just read is among them, and closed already.
        let _ = nix::unistd::close(number);
    }
}

/// Outside of all namespaces: keeps the session together, and has bubblewrap start this program inside.
fn begin(spec: &Spec, words: &[OsString]) -> io::Result<End> {
    close_inherited(None);
    // Fails for the leader of a group, which has a session of its own or is not respool's child.
    let _ = setsid();
    if let Some(pasta) = &spec.pasta {
        return network::run_in_pasta(spec, pasta, words);
    }
    let Some(bubblewrap) = &spec.bubblewrap else { return supervise::supervise(spec, words) };
    let arguments = Arguments::new(spec)?;
    // By its handle: its file need not be in reach inside.
    let program = open_inheritable("/proc/self/exe", OFlags::PATH)?;
    let (mut reader, writer) = io::pipe()?;
    let report = open_inheritable(&format!("/proc/self/fd/{}", writer.as_raw_fd()), OFlags::WRONLY)?;
    drop(writer);
    let inside = Spec { report: Some(report.as_raw_fd()), ..spec.clone() };
    let mut command = Command::new(bubblewrap);
    command.args(&arguments.words).arg("--").arg(format!("/proc/self/fd/{}", program.as_raw_fd()));
    let mut child = command.args(inside.stage_arguments("inside")?).args(words).spawn()?;
    drop((arguments, program, report));
    let status = child.wait()?;
    // What it started may be there yet, if it has failed, and would be waited for.
    rustix::fs::fcntl_setfl(&reader, OFlags::NONBLOCK)?;
    let mut reported = [0; 64];
    let length = reader.read(&mut reported).unwrap_or_default();
    match (read_end(&String::from_utf8_lossy(&reported[..length])), status.code()) {
        (Some(end), _) => Ok(end),
        (None, Some(code)) if code == i32::from(NOT_MADE) => Ok(End::Code(code)),
        // It was ended with all that it had started.
        (None, None | Some(supervise::ENDED)) => Ok(End::Signal(Signal::SIGKILL as i32)),
        (None, Some(code)) => Err(io::Error::other(format!("bubblewrap failed with exit code {code}"))),
    }
}

fn open_inheritable(path: &str, flags: OFlags) -> io::Result<OwnedFd> {
    Ok(openat(CWD, path, flags, Mode::empty())?)
}

/// The first process of the namespaces: when it ends, all others do. It reports how the command ended.
fn inside(spec: &Spec, words: &[OsString]) -> io::Result<End> {
    let report = spec.report.ok_or(io::ErrorKind::InvalidInput)?;
    let mut report = OpenOptions::new().write(true).open(format!("/proc/self/fd/{report}"))?;
    close_inherited(Some(&report));
    let end = supervise::supervise(spec, words)?;
    match end {
        End::Code(code) => write!(report, "code {code}")?,
        End::Signal(signal) => write!(report, "signal {signal}")?,
    }
    Ok(end)
}

fn read_end(text: &str) -> Option<End> {
    match text.split_once(' ')? {
        ("code", number) => Some(End::Code(number.parse().ok()?)),
        ("signal", number) => Some(End::Signal(number.parse().ok()?)),
        _ => None,
    }
}

/// Ends as the command did.
fn leave(end: End) -> u8 {
    match end {
        End::Code(code) => u8::try_from(code).unwrap_or(u8::MAX),
        End::Signal(number) => {
            let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
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
