//! The description of the sandbox that the launcher makes: plain data, as JSON in its arguments.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// One sandbox. The default confines nothing and only keeps the processes of the command together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Spec {
    /// Where the command runs.
    pub(super) directory: PathBuf,
    /// Own namespaces for users, processes, mounts and IPC, and for the network where there is none to be.
    pub(super) namespaces: bool,
    pub(super) landlock: bool,
    pub(super) seccomp: bool,
    pub(super) network: bool,
    /// Unix sockets may be opened.
    pub(super) sockets: bool,
    pub(super) readable: Vec<PathBuf>,
    pub(super) writable: Vec<PathBuf>,
    /// With namespaces: directories that cannot be moved or removed.
    pub(super) pinned: Vec<PathBuf>,
    /// With namespaces: files and directories that are read-only also inside writable ones.
    pub(super) frozen: Vec<PathBuf>,
    /// The directory that takes the place of `/tmp` and `/var/tmp`.
    pub(super) temporary: Option<PathBuf>,
    /// Processes that get no signals.
    pub(super) spared: Vec<i32>,
}
