//! The search for git repositories, and for directories that cannot be searched. Called by `protected`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io::{self, ErrorKind::InvalidFilename, ErrorKind::TimedOut};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// The most directories of a search, and its longest time. A place that is not searched to its end is
/// read-only as a whole.
const MOST_DIRECTORIES: usize = 200_000;
const LONGEST_SEARCH: Duration = Duration::from_secs(20);
/// A search for repositories.
#[derive(Debug, Default)]
pub(super) struct Search {
    /// Directories with a `.git`.
    pub(super) tops: BTreeMap<PathBuf, Identity>,
    /// Repositories without a work tree.
    pub(super) bare: Vec<PathBuf>,
    /// Directories of this user that cannot be searched: a command could give itself the permission.
    pub(super) closed: Vec<PathBuf>,
    /// Places that were not searched to their end.
    pub(super) unfinished: BTreeSet<PathBuf>,
    /// All directories, so that the next search reads only those that have changed.
    listed: HashMap<PathBuf, Arc<Listed>>,
}

/// The parts of a directory that count for a search.
#[derive(Debug)]
struct Listed {
    stamp: Option<Stamp>,
    directories: Vec<PathBuf>,
    git: Option<Identity>,
    is_bare: bool,
}

/// Names in a directory of git's.
const PARTS: [&str; 4] = ["HEAD", "objects", "refs", "commondir"];

/// A file or directory by its number. The time at which it was made tells it from a later one with the same.
pub(super) type Identity = (u64, u64, Option<SystemTime>);

pub(super) fn identity(path: &Path) -> Option<Identity> {
    let data = path.symlink_metadata().ok()?;
    Some((data.dev(), data.ino(), data.created().ok()))
}

/// The time of a directory's last change, which no program can set, and its number.
type Stamp = (i64, i64, u64);

/// Returns the stamp of a directory; `None` where it may change again within the same tick of the clock.
fn stamp(directory: &Path) -> Option<Stamp> {
    const SECONDS: i64 = 2;
    let data = directory.symlink_metadata().ok()?;
    let now = i64::try_from(clock::own_time() / 1000).ok()?;
    let is_old = data.ctime() < now - SECONDS;
    is_old.then(|| (data.ctime(), data.ctime_nsec(), data.ino()))
}

impl Listed {
    fn read(directory: &Path, end: Instant) -> io::Result<Self> {
        let stamp = stamp(directory);
        // What is in it can be reached, not only listed.
        directory.join(".").symlink_metadata()?;
        let git = identity(&directory.join(".git"));
        let (mut directories, mut parts) = (Vec::new(), BTreeSet::new());
        for entry in fs::read_dir(directory)?.flatten() {
            if Instant::now() > end {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let name = entry.file_name();
            parts.extend(PARTS.into_iter().filter(|part| name.eq_ignore_ascii_case(part)));
            // In some directories `.GIT` is the same.
            let is_git =
                || name.eq_ignore_ascii_case(".git") && git.is_some() && identity(&entry.path()) == git;
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) && !is_git() {
                directories.push(entry.path());
            }
        }
        // A linked work tree's directory has the other two elsewhere.
        let is_bare = parts.contains("HEAD") && (parts.contains("commondir") || parts.len() > 2);
        Ok(Self { stamp, directories, git, is_bare })
    }
}

impl Search {
    /// Searches everything below directories, with what is `known` from an earlier search.
    pub(super) fn run_all(roots: &[PathBuf], known: &Self) -> Self {
        let mut search = Self::default();
        roots.iter().for_each(|root| search.run(root, known));
        search
    }

    pub(super) fn run(&mut self, root: &Path, known: &Self) {
        let end = Instant::now() + LONGEST_SEARCH;
        let mut waiting = vec![root.to_owned()];
        while let Some(directory) = waiting.pop() {
            if self.listed.len() >= MOST_DIRECTORIES || Instant::now() > end {
                self.unfinished.insert(root.to_owned());
                return;
            }
            let is_same = |listed: &&Arc<Listed>| listed.stamp.is_some() && listed.stamp == stamp(&directory);
            let listed = match known.listed.get(&directory).filter(is_same) {
                Some(listed) => Ok(Arc::clone(listed)),
                None => Listed::read(&directory, end).map(Arc::new),
            };
            let listed = match listed {
                Ok(listed) => listed,
                // git looks from where it is, and sees what has too long a path from `/`.
                Err(error) if matches!(error.kind(), TimedOut | InvalidFilename) => {
                    self.unfinished.insert(root.to_owned());
                    continue;
                }
                Err(_) if is_own(&directory) => {
                    self.closed.push(directory);
                    continue;
                }
                Err(_) => continue,
            };
            if let Some(git) = listed.git {
                self.tops.insert(directory.clone(), git);
            }
            if listed.is_bare {
                self.bare.push(directory.clone());
            }
            waiting.extend(listed.directories.iter().cloned());
            self.listed.insert(directory, listed);
        }
    }
}

/// True for a directory of this process's user.
fn is_own(directory: &Path) -> bool {
    let user = nix::unistd::geteuid().as_raw();
    directory.symlink_metadata().is_ok_and(|data| data.is_dir() && data.uid() == user)
}
