//! Repositories that git's index names inside of another repository, as submodules. A `git status` above takes commands from their
//! configuration, so one that a command made there must not stay as it is.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Bytes of an index that may name a submodule: its mode, and the extensions that leave entries to other files or trees.
const MARKS: [&[u8]; 3] = [b"\0\0\xe0\0", b"link", b"sdir"];
/// What `git ls-files --stage` says of a submodule.
const SUBMODULE: &[u8] = b"160000 ";
/// Git fetches nothing, whatever a repository's configuration says: a fetch can start a program that it names.
const FETCHING_NOTHING: [(&str, &str); 2] = [("GIT_NO_LAZY_FETCH", "1"), ("GIT_ALLOW_PROTOCOL", "none")];
/// The largest part of a file in the place of `.git` that is compared, in bytes.
const LONGEST_LINK: usize = 4 << 10;

/// What is in the place of a `.git`: as long as it is the same, git goes to the same configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Leads {
    Nowhere,
    /// A directory, by its numbers.
    Here(u64, u64),
    /// The text of a file or of a symbolic link.
    There(Vec<u8>),
}

/// The submodules of one work tree before a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Gitlinks {
    root: PathBuf,
    /// Its own `.git`.
    own: Leads,
    index: PathBuf,
    before: BTreeMap<PathBuf, Leads>,
}

impl Gitlinks {
    /// Of the work tree at `root`.
    pub(super) fn of(root: &Path, index: PathBuf) -> Self {
        let root = &root.canonicalize().unwrap_or_else(|_| root.to_owned());
        let before = named(root, &index).into_iter().map(|path| (path.clone(), leads(&path))).collect();
        Self { root: root.to_owned(), own: leads(root), index, before }
    }

    /// The directories that are named.
    pub(super) fn directories(&self) -> impl Iterator<Item = &Path> {
        self.before.keys().map(PathBuf::as_path)
    }

    /// Renames each `.git` of a submodule that leads elsewhere than before, or whose directory only now is a submodule; says so. `known`: the
    /// repositories that were there, whose configuration no command could write.
    pub(super) fn restore(&self, known: &[&Self]) -> Vec<String> {
        let mut notes = Vec::new();
        // Another repository is in its place: git must not be run there, and where the one above names it, that one's restoring sees it.
        if leads(&self.root) != self.own {
            return notes;
        }
        for path in named(&self.root, &self.index) {
            let now = leads(&path);
            let is_same = self.before.get(&path).is_some_and(|before| *before == now);
            let was_there = known.iter().any(|known| known.root == path && known.own == now);
            if now == Leads::Nowhere || is_same || was_there {
                continue;
            }
            notes.push(match disable(&path) {
                Ok(aside) => format!(
                    "{} is a submodule in git's index and its repository was made by a command: git would run what its configuration \
                     says, so `.git` there was renamed to `{aside}` (`git rm --cached` takes it out of the index)",
                    path.display()
                ),
                Err(error) => format!(
                    "{} is a submodule in git's index and its repository was made by a command: run no git here before it is \
                     removed, which failed ({error})",
                    path.display()
                ),
            });
        }
        notes
    }
}

/// The directories that an index names as submodules, as far as they are here and no symbolic link leads to them.
fn named(root: &Path, index: &Path) -> Vec<PathBuf> {
    let Ok(bytes) = fs::read(index) else { return Vec::new() };
    if !MARKS.iter().any(|mark| memchr::memmem::find(&bytes, mark).is_some()) {
        return Vec::new();
    }
    let listed = list(root).unwrap_or_else(|error| {
        tracing::warn!(target: "respool::tools", root = %root.display(), %error, "git cannot list the submodules here");
        Vec::new()
    });
    let entries = listed.split(|byte| *byte == 0).filter(|entry| entry.starts_with(SUBMODULE));
    let paths = entries.filter_map(|entry| entry.splitn(2, |byte| *byte == b'\t').nth(1));
    let paths = paths.map(|path| root.join(OsStr::from_bytes(path)));
    paths.filter(|path| path.canonicalize().is_ok_and(|canonical| canonical == *path)).collect()
}

/// Git's own list: of the index alone, without a look at the work tree.
fn list(root: &Path) -> io::Result<Vec<u8>> {
    let kept = ["PATH", "HOME", "XDG_CONFIG_HOME"].map(|name| (name, std::env::var_os(name)));
    let output = Command::new("git")
        .args(["--no-optional-locks", "-c", "core.fsmonitor=false", "ls-files", "--stage", "-z"])
        .current_dir(root)
        .env_clear()
        .envs(kept.into_iter().filter_map(|(name, value)| Some((name, value?))))
        .envs(FETCHING_NOTHING)
        .stdin(Stdio::null())
        .output()?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

fn leads(directory: &Path) -> Leads {
    let git = directory.join(".git");
    let Ok(found) = fs::symlink_metadata(&git) else { return Leads::Nowhere };
    if found.is_dir() {
        return Leads::Here(found.dev(), found.ino());
    }
    let text = if found.is_symlink() {
        fs::read_link(&git).map(|target| target.into_os_string().into_encoded_bytes())
    } else {
        fs::read(&git)
    };
    let mut text = text.unwrap_or_default();
    text.truncate(LONGEST_LINK);
    Leads::There(text)
}

/// Renames the `.git` there. Returns its new name.
fn disable(directory: &Path) -> io::Result<String> {
    let names = (0..).map(|number| match number {
        0 => "git-disabled".to_owned(),
        number => format!("git-disabled-{number}"),
    });
    let mut free = names.filter(|name| fs::symlink_metadata(directory.join(name)).is_err());
    let name = free.next().unwrap_or_default();
    fs::rename(directory.join(".git"), directory.join(&name))?;
    Ok(name)
}
