//! The description of the sandbox that the launcher makes: plain data, as JSON in its arguments.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Begins the names under which the launcher, bubblewrap, pasta and its shell hold the command's variables.
/// These run outside of the sandbox and obey none of them: `LD_LIBRARY_PATH` may lead into the workspace.
pub(super) const HELD: &str = "RESPOOL_COMMAND_";

/// One sandbox. The default confines nothing and only keeps the processes of the command together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Spec {
    /// Where the command runs.
    pub(super) directory: PathBuf,
    /// bubblewrap, which makes namespaces for processes, mounts and IPC, and for the network where there is
    /// none to be.
    pub(super) bubblewrap: Option<PathBuf>,
    pub(super) landlock: bool,
    pub(super) seccomp: bool,
    pub(super) network: bool,
    /// pasta, which makes a network without this machine's services.
    pub(super) pasta: Option<PathBuf>,
    /// The TCP ports of this machine's loopback that lead there all the same.
    pub(super) forwarded: Vec<u16>,
    /// In pasta's namespaces: the addresses of this machine, to which no road leads.
    pub(super) avoided: Vec<IpAddr>,
    /// In pasta's namespaces: the numbers of the user and the group that the command has.
    pub(super) user: Option<(u32, u32)>,
    /// Everything of the user is in reach: all files, devices and Unix sockets.
    pub(super) everything: bool,
    pub(super) readable: Vec<PathBuf>,
    /// The only programs, and directories of programs, that are executed. Empty: all are.
    pub(super) executed: Vec<PathBuf>,
    /// Left out of what is readable.
    pub(super) hidden: Vec<PathBuf>,
    /// Directories that are listed all the same.
    pub(super) listed: Vec<PathBuf>,
    pub(super) writable: Vec<PathBuf>,
    /// Those of them in which no links are made: programs outside the sandbox write there, too.
    pub(super) without_links: Vec<PathBuf>,
    /// With bubblewrap: directories that are empty for each command.
    pub(super) scratch: Vec<PathBuf>,
    /// With bubblewrap: files and directories that are read-only also inside writable ones.
    pub(super) frozen: Vec<PathBuf>,
    /// With bubblewrap: writable directories that stay where they are.
    pub(super) pinned: Vec<PathBuf>,
    /// Directories, and the writable ones that stand in for them.
    pub(super) covers: BTreeMap<PathBuf, PathBuf>,
}

impl Spec {
    /// True when the command has processes, mounts and devices of its own.
    pub(super) fn has_namespaces(&self) -> bool {
        self.bubblewrap.is_some()
    }

    /// Returns the words for this program at another stage.
    pub(super) fn stage_arguments(&self, name: &str) -> io::Result<[String; 5]> {
        let spec = serde_json::to_string(self).map_err(io::Error::other)?;
        Ok(["sandbox-exec".to_owned(), "--stage".to_owned(), name.to_owned(), spec, "--".to_owned()])
    }

    /// Leaves out what lies only below an emptied or covered directory. It is not there, and to protect it
    /// would bring it back, with the directories above it.
    pub(super) fn leave_out_hidden(&mut self) {
        if !self.has_namespaces() {
            return;
        }
        let hidden: Vec<&PathBuf> = self.scratch.iter().chain(self.covers.keys()).collect();
        let is_below =
            |place: &Path, places: &[&PathBuf]| places.iter().any(|above| place.starts_with(above));
        let writable: Vec<&PathBuf> = self.writable.iter().collect();
        let is_there = |place: &PathBuf| !is_below(place, &hidden) || is_below(place, &writable);
        self.frozen.retain(is_there);
        self.pinned.retain(is_there);
    }
}
