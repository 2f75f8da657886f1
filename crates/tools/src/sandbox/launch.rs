//! `respool sandbox-exec`: the launcher. It goes through up to four stages, each a process of its own, and
//! gives the exit code of the command, for a signal that of a shell. Called by `cli`; started by `sandbox`
//! and by itself.
//!
//! Standard input is never the command's: it is the pipe that respool holds. A byte asks the command to end,
//! its end ends everything.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::process::Command;

use nix::unistd::setsid;
use rustix::fs::{CWD, Mode, OFlags, openat};

use super::bubblewrap::Arguments;
use super::spec::Spec;
use super::{confine, network, supervise};

/// The exit code when the sandbox cannot be made; nothing has run then.
const NOT_MADE: u8 = 125;

/// Runs a stage (`begin`, `apart`, `inside` or `confined`) and returns its exit code. Without words nothing
/// runs: the sandbox is only tried.
pub fn launch(stage: &str, spec: &str, words: &[OsString]) -> u8 {
    close_inherited();
    let ended = serde_json::from_str(spec).map_err(io::Error::other).and_then(|spec: Spec| match stage {
        "begin" => begin(&spec, words),
        "apart" => network::close_roads(&spec).and_then(|()| begin(&spec, words)),
        // The first process of the namespaces: when it ends, all others do.
        "inside" => supervise::supervise(&spec, words),
        "confined" => confine::become_command(&spec, words),
        other => Err(io::Error::other(format!("there is no stage {other:?}"))),
    });
    match ended {
        Ok(code) => u8::try_from(code).unwrap_or(u8::MAX),
        Err(error) => {
            let _ =
                writeln!(io::stderr(), "respool: the sandbox could not be made, and nothing ran: {error}");
            NOT_MADE
        }
    }
}

/// Whatever was inherited is open here too, and not the command's: a file that is open needs no permission.
fn close_inherited() {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return };
    let numbers: Vec<i32> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for number in numbers.into_iter().filter(|number| *number > 2) {
        // The directory that was just read is among them, and closed already.
        let _ = nix::unistd::close(number);
    }
}

/// Outside of all namespaces: keeps the session together, and has bubblewrap start this program inside.
fn begin(spec: &Spec, words: &[OsString]) -> io::Result<i32> {
    // Fails for the leader of a group, which has a session of its own or is not respool's child.
    let _ = setsid();
    if let Some(pasta) = &spec.pasta {
        return network::run_in_pasta(spec, pasta, words);
    }
    let Some(bubblewrap) = &spec.bubblewrap else { return supervise::supervise(spec, words) };
    let arguments = Arguments::new(spec)?;
    // By its handle: its file need not be in reach inside.
    let program = openat(CWD, "/proc/self/exe", OFlags::PATH, Mode::empty())?;
    let mut command = Command::new(bubblewrap);
    command.args(&arguments.words).arg("--").arg(format!("/proc/self/fd/{}", program.as_raw_fd()));
    let mut child = command.args(spec.stage_arguments("inside")?).args(words).spawn()?;
    drop((arguments, program));
    Ok(child.wait()?.code().unwrap_or(supervise::ENDED))
}
