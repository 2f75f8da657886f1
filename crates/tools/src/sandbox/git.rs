//! git's changes to a repository that commands only read: `add`, `commit`, `switch` and their like, as git
//! itself and without a shell.
//!
//! git gets a copy of its directory in place of the real one, with the stores of objects, references and
//! their logs inside. When it has ended, the files of a fixed list are taken over from the copy; whatever
//! else is there, and whoever put it there, is not. Its hooks do not run, and its configuration is read-only.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use cap_std::fs::Dir;
use tempfile::TempDir;

use super::private_directory;
use super::protected::Repository;
use super::spec::{Cover, Spec};

/// Commands that write into a repository and ask nobody. `push` is not among them: it starts what the other
/// repository says.
const WRITING: [&str; 15] = [
    "add",
    "branch",
    "checkout",
    "cherry-pick",
    "commit",
    "fetch",
    "merge",
    "mv",
    "pull",
    "reset",
    "restore",
    "revert",
    "rm",
    "stash",
    "switch",
];
/// Before the command: no program but git's own, and no work in the background.
const SETTINGS: [&str; 10] = [
    "-c",
    "core.hooksPath=/dev/null",
    "-c",
    "core.fsmonitor=false",
    "-c",
    "gc.auto=0",
    "-c",
    "maintenance.auto=false",
    // The other half of a split index would not be taken over.
    "-c",
    "core.splitIndex=false",
];
/// Options that name a program.
const PROGRAMS: [&str; 4] = ["--upload-pack", "--receive-pack", "--exec", "--extcmd"];
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
/// Of these, files that all work trees of a repository share.
const SHARED: [&str; 2] = ["packed-refs", "shallow"];

/// True for the words of a git command that writes into its repository, and starts no program that they name.
pub(crate) fn writes_repository(words: &[String]) -> bool {
    match words {
        [git, verb, rest @ ..] => {
            git == "git" && WRITING.contains(&verb.as_str()) && !rest.iter().any(|word| names_program(word))
        }
        _ => false,
    }
}

/// True for an option that names a program. git knows it by its beginning, too.
fn names_program(word: &str) -> bool {
    let option = word.split('=').next().unwrap_or_default();
    option.len() > 2 && PROGRAMS.iter().any(|known| known.starts_with(option))
}

/// True for a name in an index that leads out of the work tree or into git's own directory.
pub(crate) fn leads_elsewhere(name: &[u8]) -> bool {
    name.split(|byte| *byte == b'/').any(|part| {
        // Some file systems do not see what is at the end.
        let seen = part.iter().rposition(|byte| !b". ".contains(byte)).map_or(0, |last| last + 1);
        let part = part[..seen].to_ascii_lowercase();
        part.is_empty() || part == b".git" || part == b"git~1"
    })
}

/// The words with which git itself is started.
pub(crate) fn own_words(git: &Path, words: &[String]) -> Vec<String> {
    let settings = SETTINGS.map(str::to_owned);
    let program = git.to_string_lossy().into_owned();
    std::iter::once(program).chain(settings).chain(words.iter().skip(1).cloned()).collect()
}

/// A command of git's at work on copies of its directories.
#[derive(Debug)]
pub(crate) struct GitWork {
    pub(super) repository: Repository,
    /// The first is that of the directory with the index.
    copies: Vec<GitCopy>,
    lock: IndexLock,
}

/// A copy of one of git's directories, without its stores.
#[derive(Debug)]
struct GitCopy {
    of: PathBuf,
    directory: TempDir,
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
        // git would make it in the copy.
        let _ = fs::create_dir(repository.own.join("logs"));
        let mut directories = vec![&repository.own, &repository.common];
        directories.dedup();
        let copies: io::Result<Vec<GitCopy>> = directories.into_iter().map(|of| GitCopy::make(of)).collect();
        Ok(Self { repository: repository.clone(), copies: copies?, lock })
    }

    /// Puts the copies in the places of git's directories.
    pub(super) fn add_to(&self, spec: &mut Spec) {
        for copy in &self.copies {
            spec.writable.extend(STORES.map(|name| copy.of.join(name)));
            spec.covers.push(Cover { from: copy.directory.path().to_owned(), to: copy.of.clone() });
            spec.frozen.retain(|place| *place != copy.of);
            spec.frozen.extend(copy.read_only());
        }
    }

    /// True when the copy has another index.
    pub(super) fn has_new_index(&self) -> bool {
        let index = |git: &Path| fs::read(git.join("index")).ok();
        self.copies.first().is_some_and(|copy| index(copy.directory.path()) != index(&copy.of))
    }

    /// The index that git has written.
    pub(super) fn copied_index(&self) -> Option<PathBuf> {
        self.copies.first().map(|copy| copy.directory.path().join("index"))
    }

    /// Takes over what git wrote, and returns the names of what else is new in the copies.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub(super) fn take_over(self) -> io::Result<Vec<String>> {
        let mut left = Vec::new();
        for copy in &self.copies {
            // `HEAD` and the index of a repository are not those of its linked work trees.
            let is_shared = copy.of != self.repository.own;
            for name in TAKEN_OVER.iter().filter(|name| !is_shared || SHARED.contains(name)) {
                copy.take_over(name, &self.lock)?;
            }
            let directory = Dir::open_ambient_dir(&copy.of, cap_std::ambient_authority())?;
            for store in STORES {
                // A store that is itself a link out of the repository is not opened.
                if let Ok(store) = directory.open_dir(store) {
                    remove_links(&store);
                }
            }
            left.extend(copy.left()?);
        }
        Ok(left)
    }
}

impl GitCopy {
    fn make(of: &Path) -> io::Result<Self> {
        let directory = private_directory()?;
        for entry in fs::read_dir(of)? {
            let (entry, name) = entry.map(|entry| (entry.path(), entry.file_name()))?;
            let kind = entry.symlink_metadata()?.file_type();
            if kind.is_dir() {
                fs::create_dir(directory.path().join(name))?;
            } else if kind.is_file() && entry.extension().is_none_or(|extension| extension != "lock") {
                fs::copy(&entry, directory.path().join(name))?;
            }
        }
        Ok(Self { of: of.to_owned(), directory })
    }

    /// The configuration, and directories that are no stores.
    fn read_only(&self) -> impl Iterator<Item = PathBuf> {
        let entries = fs::read_dir(&self.of).into_iter().flatten().flatten();
        let is_read_only = |entry: &fs::DirEntry| {
            let name = entry.file_name();
            let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
            (is_directory && !STORES.iter().any(|store| name == *store))
                || name.to_string_lossy().starts_with("config")
        };
        entries.filter(is_read_only).map(|entry| entry.path())
    }

    fn take_over(&self, name: &str, index_lock: &IndexLock) -> io::Result<()> {
        let (from, to) = (self.directory.path().join(name), self.of.join(name));
        let is_file = |path: &Path| path.symlink_metadata().is_ok_and(|data| data.is_file());
        if !is_file(&from) {
            let is_gone = is_file(&to) && !LASTING.contains(&name);
            return if is_gone { fs::remove_file(&to) } else { Ok(()) };
        }
        let content = fs::read(&from)?;
        if fs::read(&to).is_ok_and(|known| known == content) {
            return Ok(());
        }
        let lock = self.of.join(format!("{name}.lock"));
        let mut file = OpenOptions::new().write(true).create_new(lock != index_lock.0).open(&lock)?;
        write_as(&mut file, &content, &from)?;
        fs::rename(&lock, &to)
    }

    /// The names of what is new and not taken over.
    fn left(&self) -> io::Result<Vec<String>> {
        let names = fs::read_dir(self.directory.path())?.flatten();
        let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let is_left = |name: &String| {
            !TAKEN_OVER.contains(&name.as_str()) && self.of.join(name).symlink_metadata().is_err()
        };
        Ok(names.filter(is_left).collect())
    }
}

/// Removes symlinks: git makes none in its stores, and follows those that lead out of them.
fn remove_links(directory: &Dir) {
    for entry in directory.entries().into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => drop(entry.open_dir().map(|inner| remove_links(&inner))),
            Ok(kind) if kind.is_symlink() => drop(entry.remove_file()),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_name_programs_are_no_work_of_gits() {
        let writes = |line: &str| writes_repository(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        for line in ["git add -A", "git fetch -u origin", "git commit -m x", "git pull -- origin"] {
            assert!(writes(line), "{line}");
        }
        for line in
            ["git fetch --upload-pack=x .", "git pull --upl x .", "git push . x", "git fetch --exec=x"]
        {
            assert!(!writes(line), "{line}");
        }
    }

    #[test]
    fn names_that_lead_elsewhere_are_found() {
        for name in ["a", "a/b", ".gitignore", "a/.github/x", "..a", "a b"] {
            assert!(!leads_elsewhere(name.as_bytes()), "{name}");
        }
        for name in
            ["", "/a", "../a", "a/../b", "a//b", "./a", ".git/x", "a/.GIT", "git~1/x", ".git. /x", "a/"]
        {
            assert!(leads_elsewhere(name.as_bytes()), "{name}");
        }
    }
}
