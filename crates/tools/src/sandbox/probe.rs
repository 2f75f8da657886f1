//! How much of a sandbox there is on this machine, and which services commands reach by the network. Found
//! out by making one: a kernel may have a means and not permit it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use super::super::config::{LocalConfig, SandboxMode};
use super::super::programs::find_program;
use super::level::Level;
use super::spec::Spec;

/// What confines commands on this machine, as the configuration wants it.
pub fn sandbox_level(config: &LocalConfig) -> Level {
    match (&config.launcher, config.sandbox) {
        (_, SandboxMode::Off) => Level::Off,
        (None, _) => Level::Missing("this program cannot start respool's launcher".to_owned()),
        (Some(launcher), _) => probe(launcher, find_bubblewrap(config), config.highest_level.as_ref()),
    }
}

/// Finds bubblewrap where no command could have put it.
pub(super) fn find_bubblewrap(config: &LocalConfig) -> Option<PathBuf> {
    find_program("bwrap", &config.writable_by_commands())
}

/// Returns the highest level that this launcher can make here, with this bubblewrap if there is one, and not
/// above `highest`. It is found out once.
fn probe(launcher: &Path, bubblewrap: Option<PathBuf>, highest: Option<&Level>) -> Level {
    static FOUND: Mutex<BTreeMap<Question, Level>> = Mutex::new(BTreeMap::new());
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    let question = (launcher.to_owned(), bubblewrap, highest.cloned());
    found.entry(question).or_insert_with_key(find).clone()
}

/// The launcher, bubblewrap and the highest level with which a level was found.
type Question = (PathBuf, Option<PathBuf>, Option<Level>);

/// Returns why pasta cannot make a network of a command's own; `None` if it can.
fn why_pasta_fails(launcher: &Path, bubblewrap: &Path, pasta: &Path) -> Option<String> {
    let own = Spec { pasta: Some(pasta.to_owned()), network: true, ..trial(Some(bubblewrap), true) };
    attempt(launcher, &own).err()
}

/// A sandbox in which a mount of each kind is tried.
fn trial(bubblewrap: Option<&Path>, landlock: bool) -> Spec {
    Spec {
        directory: "/".into(),
        bubblewrap: bubblewrap.map(Path::to_owned),
        landlock,
        seccomp: true,
        readable: vec!["/".into()],
        writable: vec![std::env::temp_dir()],
        frozen: vec![std::env::temp_dir()],
        ..Spec::default()
    }
}

fn find((launcher, bubblewrap, highest): &Question) -> Level {
    let mut why = String::new();
    let full = bubblewrap.as_ref().map(|bubblewrap| (Level::Full, trial(Some(bubblewrap), true)));
    let others = [(Level::Landlock, trial(None, true)), (Level::Filter, trial(None, false))];
    let levels = full.into_iter().chain(others);
    for (level, spec) in levels.filter(|(level, _)| highest.as_ref().is_none_or(|highest| level <= highest)) {
        match attempt(launcher, &spec) {
            Ok(()) => return level,
            Err(reason) => why = reason,
        }
    }
    Level::Missing(why)
}

/// Makes a sandbox in which nothing runs.
fn attempt(launcher: &Path, spec: &Spec) -> Result<(), String> {
    let spec = serde_json::to_string(spec).map_err(|error| error.to_string())?;
    let (control, _held) = std::io::pipe().map_err(|error| error.to_string())?;
    let output = Command::new(launcher)
        .args(["sandbox-exec", &spec])
        .env_clear()
        .stdin(Stdio::from(control))
        .output()
        .map_err(|error| format!("the launcher cannot be started: {error}"))?;
    let said = [output.stderr, output.stdout].concat();
    let said = String::from_utf8_lossy(&said).trim().to_owned();
    if output.status.success() { Ok(()) } else { Err(said) }
}

/// The network of a sandbox's commands.
#[derive(Debug)]
pub(super) enum CommandNetwork {
    /// No network at all.
    Off,
    /// The machine's. Where commands are confined all the same, a sentence tells the owner why.
    Shared(Option<String>),
    /// One of each command's own, which this pasta makes. The TCP ports lead to the machine's loopback.
    Own { pasta: PathBuf, forwarded: Vec<u16> },
}

impl CommandNetwork {
    /// Returns the network of the commands that may have one.
    pub(super) fn find(config: &LocalConfig, level: &Level) -> Self {
        let (Some(launcher), true) = (&config.launcher, level.holds_files()) else {
            return Self::Shared(None);
        };
        let shared = |why: &str| {
            Self::Shared(Some(format!(
                "a command with the network reaches services on this machine, such as daemons of build tools, which run what they \
                 are asked to outside the sandbox: {why}"
            )))
        };
        let pasta = find_program("pasta", &config.writable_by_commands());
        let (Some(bubblewrap), Some(pasta)) =
            (find_bubblewrap(config).filter(|_| level.has_namespaces()), pasta)
        else {
            return shared("install bubblewrap and passt");
        };
        match why_pasta_fails(launcher, &bubblewrap, &pasta) {
            None => Self::Own { pasta, forwarded: config.loopback_ports.clone() },
            Some(why) => shared(&format!("pasta fails here ({why}); install passt from a current system")),
        }
    }

    /// Returns why a command reaches services of this machine although it is confined.
    pub(super) fn reached_services(&self) -> Option<&str> {
        match self {
            Self::Shared(why) => why.as_deref(),
            Self::Off | Self::Own { .. } => None,
        }
    }
}
