//! How much of a sandbox there is on this machine. Found out by making one: a kernel may have a means and not permit it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use super::spec::Spec;

/// What confines commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Level {
    /// The configuration says so.
    Off,
    /// Nothing, and why.
    Missing(String),
    /// A filter of system calls alone.
    Filter,
    /// Landlock for files, and the filter.
    Landlock,
    /// Namespaces of their own, Landlock and the filter.
    Namespaces,
}

impl Level {
    /// True when it keeps commands from files.
    pub fn holds_files(&self) -> bool {
        matches!(self, Self::Landlock | Self::Namespaces)
    }

    pub(super) fn has_namespaces(&self) -> bool {
        *self == Self::Namespaces
    }

    pub(super) fn has_filter(&self) -> bool {
        matches!(self, Self::Filter | Self::Landlock | Self::Namespaces)
    }

    /// What it does not stop, for the owner; `None` when nothing is missing.
    pub fn gap(&self) -> Option<&'static str> {
        match self {
            Self::Off | Self::Missing(_) => Some("a command may do whatever respool's user may"),
            Self::Filter => Some("a command may read and write all files of respool's user"),
            Self::Landlock => Some(
                "a command may change .git/hooks and .git/config in the workspace, and see the arguments of other processes",
            ),
            Self::Namespaces => None,
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off (tools.local.sandbox)"),
            Self::Missing(why) => write!(f, "none: {why}"),
            Self::Filter => f.write_str("seccomp alone: the kernel has no Landlock"),
            Self::Landlock => f.write_str("Landlock and seccomp; namespaces are not permitted"),
            Self::Namespaces => f.write_str("namespaces, Landlock and seccomp"),
        }
    }
}

/// The highest level that this launcher can make here. It is found out once.
pub(super) fn probe(launcher: &Path) -> Level {
    static FOUND: Mutex<BTreeMap<PathBuf, Level>> = Mutex::new(BTreeMap::new());
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    found.entry(launcher.to_owned()).or_insert_with(|| find(launcher)).clone()
}

fn find(launcher: &Path) -> Level {
    let spec = |namespaces, landlock| Spec {
        directory: "/".into(),
        namespaces,
        landlock,
        seccomp: true,
        readable: vec!["/".into()],
        ..Spec::default()
    };
    let mut why = String::new();
    for (level, spec) in [
        (Level::Namespaces, spec(true, true)),
        (Level::Landlock, spec(false, true)),
        (Level::Filter, spec(false, false)),
    ] {
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
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if output.status.success() { Ok(()) } else { Err(said) }
}
