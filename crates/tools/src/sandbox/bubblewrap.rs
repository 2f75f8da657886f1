//! The arguments of bubblewrap, which makes all mounts. The whole file system is read-only; on top of it lie
//! the writable places and, on top of these, what is read-only inside them. Each place is handed over as an
//! open handle: its path is resolved once, here, and through no link.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, capabilities};

use super::handles::open_place;
use super::network;
use super::spec::Spec;

/// What is mounted at a place.
enum Mount {
    Writable(PathBuf),
    /// Read-only where there is something.
    Shown(PathBuf),
    /// Read-only, or nothing runs.
    Frozen(PathBuf),
    Empty,
}

/// bubblewrap's arguments, and the handles that they name by number.
pub(super) struct Arguments {
    pub(super) words: Vec<OsString>,
    handles: Vec<OwnedFd>,
}

/// Returns false where pasta has no capability to give its user another number, as under `NoNewPrivileges`.
/// The command then has the number of root there, and no capabilities of root's.
fn can_map_root() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SETFCAP))
}

impl Arguments {
    /// Opens all places of a sandbox and names them to bubblewrap.
    ///
    /// # Errors
    /// When a place that has to be read-only cannot be.
    pub(super) fn new(spec: &Spec) -> io::Result<Self> {
        let mut arguments = Self { words: Vec::new(), handles: Vec::new() };
        arguments.words(&["--unshare-pid", "--unshare-ipc", "--as-pid-1", "--die-with-parent"]);
        if !spec.network {
            arguments.words(&["--unshare-net"]);
        }
        if let Some((user, group)) = spec.user {
            let (user, group) = (user.to_string(), group.to_string());
            if can_map_root() {
                arguments.words(&["--unshare-user", "--uid", &user, "--gid", &group]);
            }
            arguments.words(&["--cap-drop", "ALL"]);
        }
        if spec.everything {
            arguments.words(&["--dev-bind", "/", "/"]);
        } else {
            // A terminal of the command's own: neither the person's nor anybody else's is there.
            arguments.words(&["--ro-bind", "/", "/", "--dev", "/dev"]);
        }
        arguments.words(&["--proc", "/proc"]);
        for (place, mount) in mounts(spec) {
            arguments.mount(&place, &mount)?;
        }
        if let Some((settings, place)) =
            (!spec.avoided.is_empty()).then(network::resolver).transpose()?.flatten()
        {
            let handle = rustix::io::dup(&settings)?;
            arguments.words(&["--ro-bind-data", &handle.as_raw_fd().to_string()]);
            arguments.words.push(place.into());
            arguments.handles.push(handle);
        }
        Ok(arguments)
    }

    fn words(&mut self, words: &[&str]) {
        self.words.extend(words.iter().map(OsString::from));
    }

    fn mount(&mut self, place: &Path, mount: &Mount) -> io::Result<()> {
        let (option, source) = match mount {
            Mount::Writable(source) => ("--bind-fd", source),
            Mount::Shown(source) | Mount::Frozen(source) => ("--ro-bind-fd", source),
            Mount::Empty => {
                self.words(&["--tmpfs"]);
                self.words.push(place.into());
                return Ok(());
            }
        };
        let handle = match open_place(source, OFlags::empty()) {
            Ok(handle) => handle,
            Err(Errno::NOENT) => return Ok(()),
            // This user cannot get there, or a link is on the way, which is not followed.
            Err(Errno::ACCESS | Errno::NOTDIR | Errno::LOOP) if !matches!(mount, Mount::Frozen(_)) => {
                return Ok(());
            }
            // The command could open the directory for itself, and its content must stay read-only.
            Err(error) => {
                return Err(io::Error::other(format!(
                    "{} cannot be mounted: {error}; make the directories above it readable, or restart respool",
                    place.display()
                )));
            }
        };
        self.words(&[option, &handle.as_raw_fd().to_string()]);
        self.words.push(place.into());
        self.handles.push(handle);
        Ok(())
    }
}

/// What is mounted where, parents before what lies in them. At one place the last one of these holds.
fn mounts(spec: &Spec) -> BTreeMap<PathBuf, Mount> {
    let mut roots: Vec<&Path> = spec.writable.iter().map(PathBuf::as_path).collect();
    roots.extend(spec.covers.keys().map(PathBuf::as_path));
    roots.extend(spec.everything.then_some(Path::new("/")));
    let is_inside = |place: &Path| roots.iter().any(|root| place.starts_with(root) && place != *root);
    let is_in_root = |place: &&PathBuf| roots.iter().any(|root| place.starts_with(root));
    let frozen = || spec.frozen.iter().filter(is_in_root);
    // As mount points of their own, the directories on the way to what is read-only cannot be moved away.
    let is_frozen = |place: &Path| {
        let spared = |frozen: &Path| {
            let is_between = |hole: &&PathBuf| hole.starts_with(frozen) && *hole != frozen;
            spec.writable.iter().filter(is_between).any(|hole| place.starts_with(hole))
        };
        frozen().any(|frozen| place.starts_with(frozen) && !spared(frozen))
    };
    let parents = frozen().flat_map(|place| place.ancestors().skip(1));
    let pinned = spec.pinned.iter().flat_map(|place| place.ancestors());
    let parents = parents.chain(pinned).filter(|parent| is_inside(parent) && !is_frozen(parent));
    let is_below_scratch = |place: &&PathBuf| spec.scratch.iter().any(|scratch| place.starts_with(scratch));
    let is_directory = |place: &&PathBuf| place.is_dir();
    let own = |make: fn(PathBuf) -> Mount| move |place: &PathBuf| (place.clone(), make(place.clone()));

    let mut mounts: BTreeMap<PathBuf, Mount> = BTreeMap::new();
    mounts.extend(parents.map(|parent| (parent.to_owned(), Mount::Writable(parent.to_owned()))));
    mounts.extend(spec.readable.iter().filter(is_below_scratch).map(own(Mount::Shown)));
    mounts.extend(spec.scratch.iter().filter(is_directory).map(|place| (place.clone(), Mount::Empty)));
    mounts.extend(spec.writable.iter().map(own(Mount::Writable)));
    mounts.extend(spec.covers.iter().map(|(to, from)| (to.clone(), Mount::Writable(from.clone()))));
    mounts.extend(frozen().map(own(Mount::Frozen)));
    mounts
}
