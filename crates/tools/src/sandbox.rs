//! The sandbox of commands: which of the kernel's means are there, what a command may reach, and how it is started.
//!
//! respool starts itself as a small launcher (`respool sandbox-exec`), which confines itself and then becomes the command:
//! namespaces and read-only places (`namespaces`), the processes that end with the call (`supervise`), Landlock, the filter
//! of system calls and limits (`confine`). Used by `local`; what each level stops is in docs/tools.md.

#[cfg(target_os = "linux")]
mod confine;
#[cfg(target_os = "linux")]
mod filter;
mod gitlinks;
#[cfg(target_os = "linux")]
mod launch;
mod level;
#[cfg(target_os = "linux")]
mod namespaces;
mod places;
mod repository;
mod spec;
#[cfg(target_os = "linux")]
mod supervise;

use std::io::PipeWriter;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;

use super::config::{LocalConfig, SandboxMode};
use super::environment::Passing;
use super::process;
pub use level::Level;
use places::Places;
use spec::Spec;

#[cfg(target_os = "linux")]
pub use launch::launch;

/// Elsewhere than on Linux there is no launcher.
#[cfg(not(target_os = "linux"))]
pub fn launch(_: &str, _: &str, _: &[std::ffi::OsString]) -> u8 {
    125
}

/// The sandbox of one workspace.
#[derive(Debug)]
pub(super) struct Sandbox {
    launcher: Option<PathBuf>,
    level: Level,
    network: bool,
    workspace: PathBuf,
    places: Places,
    /// What commands see as `/tmp`.
    temporary: Option<tempfile::TempDir>,
}

/// How much a command may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// The workspace, the usual caches, and what the configuration adds.
    Workspace,
    /// All files of the user, and Unix sockets: a person said so.
    User,
}

/// Why a command failed, as far as its sandbox is the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// For the model, with the keys that would permit it.
    pub(super) text: String,
    /// It could work outside the sandbox.
    pub(super) may_be_lifted: bool,
}

/// True when git says that it could not write a repository's configuration. (That of the user is another matter.)
fn writes_git_config(output: &str) -> bool {
    let is_config = |line: &str| {
        line.contains("could not lock config file") || line.contains("could not write config file")
    };
    output.lines().any(|line| is_config(line) && line.contains(".git/"))
}

/// What a command may not reach after all: found before it starts, looked at again when it has ended. Dropping it does the same, silently.
pub(super) struct Watch {
    repositories: Vec<repository::Repository>,
}

impl Sandbox {
    /// Finds out what the kernel offers and what commands of this workspace need.
    ///
    /// # Errors
    /// When the configuration requires a sandbox and the kernel has none.
    pub(super) fn open(config: &LocalConfig, workspace: &Path, is_persons: bool) -> Result<Self, String> {
        let launcher = config.launcher.clone();
        let level = level(config);
        if config.sandbox == SandboxMode::Require && !level.holds_files() {
            return Err(format!(
                "a sandbox is required and cannot be had: {level}. Use a kernel with Landlock (5.13 or later, \
                 `landlock` in /sys/kernel/security/lsm), or set tools.local.sandbox = \"auto\""
            ));
        }
        let network = config.network.unwrap_or(is_persons);
        let places = Places::find(config, workspace, network);
        // The temporary directory of a workspace that holds it is the workspace's own.
        let is_outside = !std::env::temp_dir().starts_with(workspace);
        let temporary = (level.holds_files() && is_outside).then(|| {
            tempfile::Builder::new()
                .prefix("respool-")
                .tempdir()
                .map_err(|error| format!("the directory for temporary files cannot be made: {error}"))
        });
        let temporary = temporary.transpose()?;
        Ok(Self { launcher, level, network, workspace: workspace.to_owned(), places, temporary })
    }

    pub(super) fn level(&self) -> &Level {
        &self.level
    }

    /// True for what tools on files never write: git's own files, and respool's.
    pub(super) fn guards(&self, path: &Path) -> bool {
        let below = path.strip_prefix(&self.workspace).unwrap_or(path);
        let is_git = |part: std::path::Component<'_>| part.as_os_str().eq_ignore_ascii_case(".git");
        below.components().any(is_git)
            || below == Path::new("respool.toml")
            || self.places.own.iter().any(|own| path.starts_with(own))
    }

    /// The command that starts the launcher, and the pipe that ends everything it started when it is closed; `None` where
    /// there is no launcher.
    ///
    /// # Errors
    /// When pipes cannot be made.
    pub(super) fn command(
        &self,
        words: &[&str],
        directory: &Path,
        passing: &Passing,
        reach: Reach,
    ) -> std::io::Result<Option<(Command, PipeWriter, Watch)>> {
        let Some(launcher) = &self.launcher else { return Ok(None) };
        let watch = Watch { repositories: repository::find(&self.workspace) };
        let spec = self.spec(directory, reach, &watch.repositories);
        let spec = serde_json::to_string(&spec).map_err(std::io::Error::other)?;
        let (control, writer) = std::io::pipe()?;
        let mut command = process::plain_command(launcher, passing);
        command.args(["sandbox-exec", &spec, "--"]).args(words);
        command.current_dir("/").env("PWD", directory).stdin(Stdio::from(control));
        if let Some(temporary) = self.seen_temporary(reach) {
            command.env("TMPDIR", temporary);
        }
        Ok(Some((command, writer, watch)))
    }

    fn spec(&self, directory: &Path, reach: Reach, repositories: &[repository::Repository]) -> Spec {
        let holds_files = self.level.holds_files();
        let mut spec = Spec {
            directory: directory.to_owned(),
            namespaces: self.level.has_namespaces(),
            landlock: holds_files,
            seccomp: self.level.has_filter(),
            network: self.network,
            spared: vec![i32::try_from(std::process::id()).unwrap_or_default()],
            ..Spec::default()
        };
        for repository in repositories {
            repository.add_to(&self.workspace, &mut spec);
        }
        spec.frozen.extend(self.places.own.iter().filter(|own| own.exists()).cloned());
        match reach {
            Reach::User => {
                spec.sockets = true;
                spec.writable.push("/".into());
            }
            Reach::Workspace => {
                spec.writable.push(self.workspace.clone());
                spec.writable.extend(self.places.writable.iter().cloned());
                spec.readable.extend(self.places.readable.iter().cloned());
                spec.temporary = self.temporary.as_ref().map(|dir| dir.path().to_owned());
            }
        }
        spec
    }

    fn seen_temporary(&self, reach: Reach) -> Option<PathBuf> {
        let own = self.temporary.as_ref().filter(|_| reach == Reach::Workspace)?;
        Some(if self.level.has_namespaces() { "/tmp".into() } else { own.path().to_owned() })
    }

    /// The note on a command that failed as if the sandbox had stopped it; `None` when it looks otherwise.
    pub(super) fn refusal(&self, output: &str) -> Option<Refusal> {
        if self.level.has_namespaces() && writes_git_config(output) {
            let text = "no tool writes .git/config, because git takes commands from it, and no key of respool's configuration \
                        permits it: ask the user to run this command in a terminal of their own; for one command \
                        `git -c NAME=VALUE …` or a URL in place of a remote's name does without";
            return Some(Refusal { text: text.to_owned(), may_be_lifted: false });
        }
        if !self.level.holds_files() || !SIGNS.iter().any(|sign| output.contains(sign)) {
            return None;
        }
        let network = if self.network { "" } else { " and has no network (`tools.local.network`)" };
        let text = format!(
            "the command ran in respool's sandbox: it may write below {}, in the usual caches and in /tmp \
             (`tools.local.writable` adds places), read there, in the system's directories and those of tools \
             (`tools.local.readable`){network}; it never writes .git/config, .git/hooks or respool's own files",
            self.workspace.display()
        );
        Some(Refusal { text, may_be_lifted: true })
    }
}

/// What a program says when the sandbox may have stopped it.
const SIGNS: [&str; 11] = [
    "ermission denied",
    "peration not permitted",
    "ead-only file system",
    "EACCES",
    "EPERM",
    "EROFS",
    "ould not resolve host",
    "ame resolution",
    "etwork is unreachable",
    "EAI_AGAIN",
    "evice or resource busy",
];

/// What confines commands on this machine, as the configuration wants it.
pub fn level(config: &LocalConfig) -> Level {
    match (&config.launcher, config.sandbox) {
        (_, SandboxMode::Off) => Level::Off,
        (None, _) => Level::Missing("this program cannot start respool's launcher".to_owned()),
        (Some(launcher), _) => level::probe(launcher),
    }
}

impl Watch {
    /// Takes away what leads git to another configuration and was not there before; says so.
    pub(super) fn end(self) -> Option<String> {
        self.restore()
    }

    fn restore(&self) -> Option<String> {
        repository::restore(&self.repositories)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(note) = self.restore() {
            tracing::warn!(target: "respool::tools", note, "a command that was stopped left something for git");
        }
    }
}
