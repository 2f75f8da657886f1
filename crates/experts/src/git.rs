//! Clones an untrusted repository with the `git` of this machine: one commit, no submodules, hooks, helper
//! protocols or terminal prompts, within limits on time and size. Called by `source`.

use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::error::ExpertError;
use ::tools::programs::{find_program, system_path};

/// How long a clone may take.
const LONGEST: Duration = Duration::from_mins(2);
/// How large it may become on disk.
const LARGEST: u64 = 256 << 20;
/// The pause between two checks of its size.
const PAUSE: Duration = Duration::from_millis(100);

/// Clones the newest commit of a repository's default branch into a directory that does not exist yet.
///
/// # Errors
/// Why the clone failed.
pub(super) fn clone_repository(url: &str, into: &Path) -> Result<(), ExpertError> {
    let git = find_program("git", &[]);
    let git = git.ok_or_else(|| {
        "git is not among the system's programs (/usr, /opt, /nix …): install it there".to_owned()
    })?;
    let mut command = Command::new(git);
    command.args([
        "-c",
        "core.hooksPath=/dev/null",
        "-c",
        "core.fsmonitor=false",
        "-c",
        "submodule.recurse=false",
    ]);
    command.args(["-c", "transfer.fsckObjects=true"]);
    command.args([
        "clone",
        "--quiet",
        "--depth=1",
        "--single-branch",
        "--no-tags",
        "--no-recurse-submodules",
    ]);
    command.args(["--template=", "--", url]).arg(into);
    // git starts others by name: ssh, and its own helpers.
    command
        .env("PATH", system_path(&[]))
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("GIT_ALLOW_PROTOCOL", "https:ssh:file")
        .env("GIT_LFS_SKIP_SMUDGE", "1");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = command.spawn().map_err(|error| format!("git cannot be started: {error}; install it"))?;
    let shown = openexperts::visible(url);
    wait_for_clone(child, into).map_err(|why| format!("{shown} was not cloned: {why}").into())
}

/// Why a clone failed.
#[derive(Debug, thiserror::Error)]
enum CloneError {
    #[error("it took longer than 2 minutes")]
    TooSlow,
    #[error("it is larger than 256 MiB")]
    TooLarge,
    /// In git's own words.
    #[error("{0}")]
    Git(String),
    #[error(transparent)]
    Wait(io::Error),
}

fn wait_for_clone(mut child: Child, into: &Path) -> Result<(), CloneError> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().map_err(CloneError::Wait)? {
            return if status.success() { Ok(()) } else { Err(CloneError::Git(last_words(child))) };
        }
        let why = if begun.elapsed() > LONGEST {
            CloneError::TooSlow
        } else if size_of(into) > LARGEST {
            CloneError::TooLarge
        } else {
            std::thread::sleep(PAUSE);
            continue;
        };
        // The clone has failed either way; the staging directory is removed with whatever is left in it.
        let _ = child.kill();
        let _ = child.wait();
        return Err(why);
    }
}

/// Returns git's words, up to the line that it calls fatal.
fn last_words(child: Child) -> String {
    let output = child.wait_with_output().map(|output| output.stderr).unwrap_or_default();
    openexperts::visible(&why_it_failed(&String::from_utf8_lossy(&output)))
}

/// The line before the fatal one often has the reason, such as a key that a server refuses.
fn why_it_failed(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let fatal = lines.iter().position(|line| line.starts_with("fatal: "));
    let last = fatal.unwrap_or(lines.len().saturating_sub(1));
    let said = lines.get(last.saturating_sub(1)..=last).unwrap_or_default().join("; ");
    let hint = if said.contains("transport '") { " (https, ssh and file are)" } else { "" };
    if said.is_empty() { "git failed without an error message".to_owned() } else { said + hint }
}

fn size_of(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => size_of(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    });
    sizes.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_stands_before_the_fatal_line() {
        for (said, expected) in [
            (
                "git@host: Permission denied (publickey).\nfatal: Could not read from remote repository.\n\nPlease make sure\n",
                "git@host: Permission denied (publickey).; fatal: Could not read from remote repository.",
            ),
            (
                "fatal: transport 'http' not allowed\n",
                "fatal: transport 'http' not allowed (https, ssh and file are)",
            ),
            ("error: x\n", "error: x"),
            ("", "git failed without an error message"),
        ] {
            assert_eq!(why_it_failed(said), expected);
        }
    }
}
