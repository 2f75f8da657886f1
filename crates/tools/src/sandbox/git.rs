//! git's changes to a repository that commands only read: `add`, `commit`, `switch` and their like, as git itself and without a shell.
//!
//! git gets a copy of its directory in place of the real one, with the stores of objects, references and their logs inside. When it
//! has ended, the files of a fixed list are taken over from the copy; whatever else is there, and whoever put it there, is not.
//! Its hooks do not run, and its configuration is read-only.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::private_directory;
use super::protected::Repository;
use super::spec::{Cover, Spec};

/// Commands that write into a repository and ask nobody.
const WRITING: [&str; 16] = [
    "add",
    "branch",
    "checkout",
    "cherry-pick",
    "commit",
    "fetch",
    "merge",
    "mv",
    "pull",
    "push",
    "reset",
    "restore",
    "revert",
    "rm",
    "stash",
    "switch",
];
/// Before the command: no program but git's own, and no work in the background.
const SETTINGS: [&str; 8] = [
    "-c",
    "core.hooksPath=/dev/null",
    "-c",
    "core.fsmonitor=false",
    "-c",
    "gc.auto=0",
    "-c",
    "maintenance.auto=false",
];
/// Directories that git writes itself.
const STORES: [&str; 4] = ["objects", "refs", "logs", "reftable"];
/// Files that are taken over.
const TAKEN_OVER: [&str; 14] = [
    "AUTO_MERGE",
    "CHERRY_PICK_HEAD",
    "COMMIT_EDITMSG",
    "FETCH_HEAD",
    "MERGE_HEAD",
    "MERGE_MODE",
    "MERGE_MSG",
    "ORIG_HEAD",
    "REVERT_HEAD",
    "SQUASH_MSG",
    "packed-refs",
    "shallow",
    "HEAD",
    "index",
];

/// Of these, files that are there as long as the repository is.
const LASTING: [&str; 4] = ["HEAD", "index", "packed-refs", "shallow"];

/// True for the words of a git command that writes into its repository.
pub(crate) fn writes_repository(words: &[String]) -> bool {
    match words {
        [git, verb, ..] => git == "git" && WRITING.contains(&verb.as_str()),
        _ => false,
    }
}

/// The words with which git itself is started.
pub(crate) fn own_words(git: &Path, words: &[String]) -> Vec<String> {
    let settings = SETTINGS.map(str::to_owned);
    let program = git.to_string_lossy().into_owned();
    std::iter::once(program).chain(settings).chain(words.iter().skip(1).cloned()).collect()
}

/// A command of git's at work on a copy of its directory.
#[derive(Debug)]
pub(crate) struct GitWork {
    pub(super) repository: Repository,
    copy: TempDir,
    lock: IndexLock,
}

/// git's own lock on an index; dropping it removes it.
#[derive(Debug)]
struct IndexLock(PathBuf);

impl Drop for IndexLock {
    fn drop(&mut self) {
        // It is gone when the index was taken over.
        let _ = fs::remove_file(&self.0);
    }
}

impl GitWork {
    /// Locks the index and copies git's directory, without its stores.
    ///
    /// # Errors
    /// When another git is at work there, or the copy cannot be made.
    pub(super) fn begin(repository: &Repository) -> io::Result<Self> {
        let lock = repository.own.join("index.lock");
        OpenOptions::new().write(true).create_new(true).open(&lock).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => io::Error::other(format!(
                "{} exists: another git is at work in this repository; run the command again when it has ended",
                lock.display()
            )),
            _ => error,
        })?;
        let lock = IndexLock(lock);
        let copy = private_directory()?;
        // git would make it in the copy.
        let _ = fs::create_dir(repository.own.join("logs"));
        for entry in fs::read_dir(&repository.own)? {
            let (entry, name) = entry.map(|entry| (entry.path(), entry.file_name()))?;
            let kind = entry.symlink_metadata()?.file_type();
            if kind.is_dir() {
                fs::create_dir(copy.path().join(name))?;
            } else if kind.is_file() && entry.extension().is_none_or(|extension| extension != "lock") {
                fs::copy(&entry, copy.path().join(name))?;
            }
        }
        Ok(Self { repository: repository.clone(), copy, lock })
    }

    /// Puts the copy in the place of git's directory.
    pub(super) fn add_to(&self, spec: &mut Spec) {
        let Repository { own, common, .. } = &self.repository;
        let stores = [own, common].into_iter().flat_map(|git| STORES.map(|name| git.join(name)));
        spec.writable.extend(stores);
        spec.covers.push(Cover { from: self.copy.path().to_owned(), to: own.clone() });
        spec.frozen.retain(|place| place != own);
        let entries = fs::read_dir(own).into_iter().flatten().flatten();
        let is_frozen = |entry: &fs::DirEntry| {
            let name = entry.file_name();
            let is_store = STORES.iter().any(|store| name == *store);
            let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
            (is_directory && !is_store) || name.to_string_lossy().starts_with("config")
        };
        spec.frozen.extend(entries.filter(is_frozen).map(|entry| entry.path()));
    }

    /// True when the copy has another index.
    pub(super) fn has_new_index(&self) -> bool {
        let index = |git: &Path| fs::read(git.join("index")).ok();
        index(self.copy.path()) != index(&self.repository.own)
    }

    /// Takes over what git wrote, and returns the names of what else is new in the copy.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub(super) fn take_over(self) -> io::Result<Vec<String>> {
        let (copy, own) = (self.copy.path(), &self.repository.own);
        for name in TAKEN_OVER {
            let (from, to) = (copy.join(name), own.join(name));
            let is_file = |path: &Path| path.symlink_metadata().is_ok_and(|data| data.is_file());
            if is_file(&from) {
                let content = fs::read(&from)?;
                if fs::read(&to).ok().as_ref() != Some(&content) {
                    let lock = own.join(format!("{name}.lock"));
                    let is_index = lock == self.lock.0;
                    let mut file = OpenOptions::new().write(true).create_new(!is_index).open(&lock)?;
                    write_as(&mut file, &content, &from)?;
                    fs::rename(&lock, &to)?;
                }
            } else if is_file(&to) && !LASTING.contains(&name) {
                fs::remove_file(&to)?;
            }
        }
        for store in
            [own, &self.repository.common].into_iter().flat_map(|git| STORES.map(|name| git.join(name)))
        {
            remove_links(&store);
        }
        let names =
            fs::read_dir(copy)?.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        let is_left = |name: &String| {
            !TAKEN_OVER.contains(&name.as_str()) && own.join(name).symlink_metadata().is_err()
        };
        Ok(names.filter(is_left).collect())
    }
}

/// Removes symlinks: git makes none in its stores, and follows those that lead out of them.
fn remove_links(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => remove_links(&entry.path()),
            Ok(kind) if kind.is_symlink() => drop(fs::remove_file(entry.path())),
            _ => {}
        }
    }
}

/// The time of the copy stays: git compares it with those of files.
fn write_as(file: &mut File, content: &[u8], from: &Path) -> io::Result<()> {
    file.write_all(content)?;
    file.set_permissions(fs::metadata(from)?.permissions())?;
    file.set_modified(fs::metadata(from)?.modified()?)
}
