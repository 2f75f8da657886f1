//! git's changes to a repository that commands only read: `add`, `commit`, `switch` and their like, as git
//! itself and without a shell.
//!
//! git gets a copy of its directory in place of the real one, and writes new objects into a directory near
//! the real ones, which are read-only. When it has ended, what it changed is taken over: the files of a fixed
//! list, references and their logs as far as the command changes any, and objects that are new. Its hooks do
//! not run, and its configuration is read-only.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use cap_std::fs::Dir;
use rustix::fs::{Mode, mkdirat};
use tempfile::TempDir;
use tokio::sync::OwnedRwLockWriteGuard;

use super::handles::{Entry, MOST_TEXT, open_directory, open_file, open_in, read_at_most};
use super::index::read_names;
use super::protected::Repository;
use super::spec::{Cover, Spec};
use super::temporary::private_directory;

/// Commands that write into a repository and ask nobody. `push` is not among them: it starts what the other
/// repository says.
const WRITING: &str =
    "add branch checkout cherry-pick commit fetch merge mv pull reset restore revert rm stash switch";
/// Before the command: no program but git's own, and no work in the background.
/// A split index has another half, which would not be taken over.
const SETTINGS: &str =
    "core.hooksPath=/dev/null core.fsmonitor=false gc.auto=0 maintenance.auto=false core.splitIndex=false";
/// Options that name a program.
const PROGRAMS: &str = "--upload-pack --receive-pack --exec --extcmd";
/// Of the commands, those that change the index alone.
const OF_INDEX: &str = "add mv restore rm";
/// Of the commands, those that remove references and lines of logs.
const REMOVING: &str = "branch fetch pull stash";
/// Directories of references and their logs.
const REFERENCES: [&str; 3] = ["refs", "logs", "reftable"];
/// References by which git reads other objects than it names. None is taken over.
const REPLACING: &str = "refs/replace";
/// Files that are taken over.
const TAKEN_OVER: &str = "\
    AUTO_MERGE CHERRY_PICK_HEAD COMMIT_EDITMSG FETCH_HEAD MERGE_HEAD MERGE_MODE MERGE_MSG ORIG_HEAD REVERT_HEAD \
    SQUASH_MSG packed-refs shallow HEAD index";

/// Of these, files that are there as long as the repository is.
const LASTING: &str = "HEAD index packed-refs shallow";
/// Of these, files that all work trees of a repository share.
const SHARED: &str = "packed-refs shallow";
/// The most that is read of git's files, which are held in memory, and how much each one counts besides its
/// content.
const MOST_BYTES: u64 = 512 << 20;
const BYTES_OF_FILE: u64 = 1 << 10;
/// The beginning of the name of the directory of new objects. git itself removes what an accident left there.
const NEW_OBJECTS: &str = "tmp_objdir-respool-";
const LOCK: &str = "index.lock";

fn is_in(names: &str, name: &str) -> bool {
    names.split_ascii_whitespace().any(|known| known == name)
}

/// Returns true for the words of a git command that writes into its repository, and starts no program that
/// they name.
pub(crate) fn writes_repository(words: &[String]) -> bool {
    match words {
        [git, verb, rest @ ..] => {
            git == "git" && is_in(WRITING, verb) && !rest.iter().any(|word| names_program(word))
        }
        _ => false,
    }
}

/// Returns true for an option that names a program. git knows it by its beginning, too.
fn names_program(word: &str) -> bool {
    let option = word.split('=').next().unwrap_or_default();
    option.len() > 2 && PROGRAMS.split(' ').any(|known| known.starts_with(option))
}

/// Returns true for a name in an index that leads out of the work tree or into git's own directory.
fn leads_elsewhere(name: &[u8]) -> bool {
    name.split(|byte| *byte == b'/').any(|part| {
        // Some file systems do not see what is at the end.
        let seen = part.iter().rposition(|byte| !b". ".contains(byte)).map_or(0, |last| last + 1);
        let part = part[..seen].to_ascii_lowercase();
        part.is_empty() || part == b".git" || part == b"git~1"
    })
}

/// Returns the words with which git itself is started.
pub(crate) fn own_words(git: &Path, words: &[String]) -> Vec<String> {
    let settings = SETTINGS.split(' ').flat_map(|setting| ["-c", setting]).map(str::to_owned);
    let program = git.to_string_lossy().into_owned();
    std::iter::once(program).chain(settings).chain(words.iter().skip(1).cloned()).collect()
}

/// A command of git's at work on copies of its directories.
#[derive(Debug)]
pub(crate) struct GitWork {
    pub(super) repository: Repository,
    verb: String,
    /// The first is that of the directory with the index.
    copies: Vec<GitCopy>,
    /// The directory of the index and its lock.
    own: Dir,
    lock: Option<Entry>,
    /// The real objects, and the name of the directory of new ones among them.
    objects: Dir,
    new: String,
    /// No other command runs meanwhile.
    _turn: OwnedRwLockWriteGuard<()>,
}

/// The files of a directory of git's, by their paths in it.
type Files = BTreeMap<PathBuf, Vec<u8>>;

/// A copy of one of git's directories, without its objects.
#[derive(Debug)]
struct GitCopy {
    of: PathBuf,
    real: Dir,
    directory: TempDir,
    /// Its files when git began.
    before: Files,
}

impl Drop for GitWork {
    fn drop(&mut self) {
        // The lock is gone when another index was taken over, and another git may have made one.
        if Entry::find(&self.own, OsStr::new(LOCK)) == self.lock {
            let _ = self.own.remove_file(LOCK);
        }
        // git itself removes what stays.
        let _ = self.objects.remove_dir_all(&self.new);
    }
}

impl GitWork {
    /// Locks the index and copies git's directory, without its objects. `words` are those of
    /// [`own_words`].
    ///
    /// # Errors
    /// When another git is at work there, or the copy cannot be made.
    pub(super) fn begin(
        repository: &Repository,
        words: &[String],
        turn: OwnedRwLockWriteGuard<()>,
    ) -> io::Result<Self> {
        let (own, common) = (open_directory(&repository.own)?, open_directory(&repository.common)?);
        // Not through a link.
        let objects = open_in(&common, OsStr::new("objects"))?;
        let mut options = cap_std::fs::OpenOptions::new();
        let locked = own.open_with(LOCK, options.write(true).create_new(true));
        locked.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => io::Error::other(format!(
                "{} exists: another git is at work in this repository; run the command again when it has ended",
                repository.own.join(LOCK).display()
            )),
            _ => error,
        })?;
        let mut work = Self {
            repository: repository.clone(),
            verb: words.iter().find(|word| is_in(WRITING, word)).cloned().unwrap_or_default(),
            copies: Vec::new(),
            lock: Entry::find(&own, OsStr::new(LOCK)),
            own,
            objects,
            new: format!("{NEW_OBJECTS}{:016x}", rand::random::<u64>()),
            _turn: turn,
        };
        mkdirat(&work.objects, &work.new, Mode::RWXU)?;
        let mut directories = vec![&repository.own, &repository.common];
        directories.dedup();
        for of in directories {
            work.copies.push(GitCopy::make(of)?);
        }
        Ok(work)
    }

    /// Puts the copies in the places of git's directories.
    pub(super) fn add_to(&self, spec: &mut Spec) {
        spec.writable.push(self.repository.common.join("objects").join(&self.new));
        for copy in &self.copies {
            spec.covers.push(Cover { from: copy.directory.path().to_owned(), to: copy.of.clone() });
            spec.frozen.retain(|place| *place != copy.of);
            spec.frozen.extend(copy.read_only());
        }
    }

    /// Returns the variables that lead git to its objects.
    pub(super) fn variables(&self) -> [(&'static str, OsString); 2] {
        let real = self.repository.common.join("objects");
        let new = real.join(&self.new);
        let escape = |byte: u8| (byte == b'"' || byte == b'\\').then_some(b'\\').into_iter().chain([byte]);
        let real = real.into_os_string().into_vec();
        let quoted = [b'"'].into_iter().chain(real.into_iter().flat_map(escape)).chain([b'"']);
        [
            ("GIT_OBJECT_DIRECTORY", new.into()),
            ("GIT_ALTERNATE_OBJECT_DIRECTORIES", OsString::from_vec(quoted.collect())),
        ]
    }

    /// Takes over what git wrote, and returns a note on what it left besides.
    ///
    /// # Errors
    /// When git's index leads elsewhere, a file cannot be written, or another git has changed it.
    pub(crate) fn end(&self) -> io::Result<Option<String>> {
        let read = |copy: &GitCopy| files_of(&open_directory(copy.directory.path())?);
        let all = self.copies.iter().map(read).collect::<io::Result<Vec<Files>>>()?;
        self.check_index(&all)?;
        take_over_objects(&open_in(&self.objects, OsStr::new(&self.new))?, &self.objects)?;
        let is_of_index = is_in(OF_INDEX, &self.verb);
        let may_remove = is_in(REMOVING, &self.verb);
        let mut left = Vec::new();
        for (copy, after) in self.copies.iter().zip(all) {
            // `HEAD` and the index of a repository are not those of its linked work trees.
            let is_shared = copy.of != self.repository.own;
            let is_wanted = |name: &Path| match name.to_str().filter(|name| is_in(TAKEN_OVER, name)) {
                Some("index") => !is_shared,
                Some("packed-refs") => may_remove,
                None if name.starts_with(REPLACING) => false,
                // What these bring may replace objects, which respool sees in files alone.
                None if name.starts_with("reftable") && is_in("fetch pull", &self.verb) => false,
                Some(name) => !is_of_index && (!is_shared || is_in(SHARED, name)),
                None => !is_of_index,
            };
            left.extend(copy.take_over(&after, is_wanted, may_remove)?);
        }
        Ok((!left.is_empty()).then(|| format!("git also left {}, which was not taken over", left.join(", "))))
    }

    /// Fails for a new index that names what is not in the work tree.
    fn check_index(&self, all: &[Files]) -> io::Result<()> {
        let index = Path::new("index");
        let (Some(copy), Some(common)) = (self.copies.first(), self.copies.last()) else { return Ok(()) };
        let new = all.first().and_then(|files| files.get(index));
        let Some(new) = new.filter(|new| copy.before.get(index) != Some(new)) else { return Ok(()) };
        let config = open_file(&common.real, Path::new("config")).ok().flatten();
        let config = config.and_then(|file| read_at_most(file, MOST_TEXT)).unwrap_or_default();
        let names = read_names(new, &String::from_utf8_lossy(&config));
        let names = names.ok_or_else(|| io::Error::other("respool cannot read the new index"))?;
        let Some(name) = names.iter().find(|name| leads_elsewhere(name)) else { return Ok(()) };
        Err(io::Error::other(format!(
            "the new index names {:?}, which is not in the work tree, so nothing was taken over",
            String::from_utf8_lossy(name)
        )))
    }
}

impl GitCopy {
    fn make(of: &Path) -> io::Result<Self> {
        let (directory, real) = (private_directory()?, open_directory(of)?);
        let before = files_of(&real)?;
        for entry in real.entries()? {
            let (name, kind) = entry.and_then(|entry| Ok((entry.file_name(), entry.file_type()?)))?;
            if kind.is_dir() {
                fs::create_dir(directory.path().join(name))?;
            } else if kind.is_file()
                && !is_lock(Path::new(&name))
                && let Some(file) = open_file(&real, Path::new(&name))?
            {
                fs::write(directory.path().join(name), read_at_most(file, MOST_TEXT).unwrap_or_default())?;
            }
        }
        for (name, content) in &before {
            let to = directory.path().join(name);
            to.parent().map_or(Ok(()), fs::create_dir_all)?;
            fs::write(to, content)?;
        }
        Ok(Self { of: of.to_owned(), real, directory, before })
    }

    /// Returns the configuration, and directories in which git changes nothing.
    fn read_only(&self) -> impl Iterator<Item = PathBuf> {
        let entries = self.real.entries().into_iter().flatten().flatten();
        let is_read_only = |entry: &cap_std::fs::DirEntry| {
            let name = entry.file_name();
            let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
            (is_directory && !REFERENCES.iter().any(|directory| name == *directory))
                || name.to_string_lossy().starts_with("config")
        };
        entries.filter(is_read_only).map(|entry| self.of.join(entry.file_name()))
    }

    /// Takes over the wanted files that git changed, and those that it removed where it `may_remove` some.
    fn take_over(
        &self,
        after: &Files,
        is_wanted: impl Fn(&Path) -> bool,
        may_remove: bool,
    ) -> io::Result<Vec<String>> {
        let real = &self.real;
        let names: BTreeSet<&PathBuf> = self.before.keys().chain(after.keys()).collect();
        let is_changed = |name: &&PathBuf| self.before.get(*name) != after.get(*name);
        // A log grows, and a reference stays.
        let is_loss = |name: &Path| match (self.before.get(name), after.get(name)) {
            (Some(_), None) => name.starts_with("refs") || name.starts_with("logs"),
            (Some(before), Some(after)) => name.starts_with("logs") && !after.starts_with(before),
            _ => false,
        };
        let (taken, kept): (Vec<&PathBuf>, Vec<&PathBuf>) =
            names.into_iter().filter(is_changed).partition(|name| {
                is_wanted(name)
                    && (may_remove || !is_loss(name))
                    && !self.replaces(name, after.get(*name))
                    && after
                        .get(*name)
                        .is_none_or(|content| !name.starts_with("refs") || is_reference(content))
            });
        let (written, removed): (Vec<&PathBuf>, Vec<&PathBuf>) =
            taken.into_iter().partition(|name| after.contains_key(*name));
        for name in &written {
            self.check_unchanged(real, name)?;
        }
        // `a/b` goes before there is an `a`.
        for name in removed {
            self.check_unchanged(real, name)?;
            let is_lasting = name.to_str().is_some_and(|name| is_in(LASTING, name));
            if !is_lasting {
                real.remove_file(name)?;
                remove_empty(real, name);
            }
        }
        for name in written {
            self.write(real, name, &after[name])?;
        }
        let is_other = |name: &PathBuf| {
            !after.contains_key(name)
                && !REFERENCES.iter().any(|known| name == Path::new(known))
                && real.symlink_metadata(name).is_err()
        };
        let others = fs::read_dir(self.directory.path())?.flatten().map(|entry| entry.file_name().into());
        let left = kept.into_iter().cloned().chain(others.filter(is_other));
        Ok(left.map(|name| name.display().to_string()).collect())
    }

    /// True for packed references among which there are new ones that replace objects.
    fn replaces(&self, name: &Path, after: Option<&Vec<u8>>) -> bool {
        let lines = |content: Option<&Vec<u8>>| -> BTreeSet<String> {
            let text = String::from_utf8_lossy(content.map_or(&[][..], Vec::as_slice)).into_owned();
            text.lines().filter(|line| line.contains(REPLACING)).map(str::to_owned).collect()
        };
        name == Path::new("packed-refs") && !lines(after).is_subset(&lines(self.before.get(name)))
    }

    /// A person's git may have been at work as well.
    fn check_unchanged(&self, real: &Dir, name: &Path) -> io::Result<()> {
        if real.read(name).ok().as_ref() == self.before.get(name) {
            return Ok(());
        }
        let text = format!("another git has changed {} meanwhile, so it was not taken over", name.display());
        Err(io::Error::other(text))
    }

    fn write(&self, real: &Dir, name: &Path, content: &[u8]) -> io::Result<()> {
        if let Some(parent) = name.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            real.create_dir_all(parent)?;
        }
        // Empty directories that references have left.
        let _ = real.remove_dir(name);
        let lock = PathBuf::from(format!("{}.lock", name.display()));
        let is_own = name == Path::new("index");
        let mut options = cap_std::fs::OpenOptions::new();
        let mut file = real.open_with(&lock, options.write(true).create_new(!is_own))?.into_std();
        let from = fs::metadata(self.directory.path().join(name))?;
        file.write_all(content)?;
        file.set_permissions(from.permissions())?;
        // git compares it with those of files.
        file.set_modified(from.modified()?)?;
        real.rename(&lock, real, name)
    }
}

fn is_reference(content: &[u8]) -> bool {
    let content = content.trim_ascii();
    content.starts_with(b"ref: refs/") || (!content.is_empty() && content.iter().all(u8::is_ascii_hexdigit))
}

fn is_lock(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "lock")
}

/// Reads the files of a directory of git's that may be taken over. It follows no links and opens no pipes: a
/// program that git has started may have made them.
fn files_of(git: &Dir) -> io::Result<Files> {
    let mut files = Files::new();
    let mut left = MOST_BYTES;
    let mut waiting: Vec<PathBuf> =
        TAKEN_OVER.split_ascii_whitespace().chain(REFERENCES).map(PathBuf::from).collect();
    while let Some(name) = waiting.pop() {
        let Ok(data) = git.symlink_metadata(&name) else { continue };
        if data.is_file() && !is_lock(&name) {
            let Some(file) = open_file(git, &name)? else { continue };
            let mut content = Vec::new();
            file.take(left).read_to_end(&mut content)?;
            left = left.checked_sub(content.len() as u64 + BYTES_OF_FILE).ok_or_else(|| {
                io::Error::other(format!("{} and other files of git's are too large", name.display()))
            })?;
            files.insert(name, content);
        } else if data.is_dir() {
            let entries = git.read_dir(&name)?.flatten();
            waiting.extend(entries.map(|entry| name.join(entry.file_name())));
        }
    }
    Ok(files)
}

/// Removes the directories above a reference that hold no other.
fn remove_empty(real: &Dir, name: &Path) {
    // Two levels stay: `refs/heads`.
    let depth = name.components().count().saturating_sub(3);
    for above in name.ancestors().skip(1).take(depth) {
        if real.remove_dir(above).is_err() {
            return;
        }
    }
}

/// Moves new objects to the others. None is replaced, and an index of a pack comes after its pack.
fn take_over_objects(source: &Dir, to: &Dir) -> io::Result<()> {
    let is_hex = |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_object = |directory: &str, name: &str| match name.strip_prefix("pack-") {
        Some(pack) => directory == "pack" && pack.split_once('.').is_some_and(|(name, _)| is_hex(name)),
        None => directory.len() == 2 && is_hex(directory) && is_hex(name),
    };
    for directory in names_in(source)? {
        let Ok(inner) = source.open_dir(&directory) else { continue };
        let mut names = names_in(&inner)?;
        names.retain(|name| is_object(&directory, name));
        names.sort_by_key(|name| Path::new(name).extension().is_some_and(|extension| extension == "idx"));
        if names.is_empty() {
            continue;
        }
        to.create_dir_all(&directory)?;
        let target = to.open_dir(&directory)?;
        for name in names {
            if inner.symlink_metadata(&name)?.is_file() && target.symlink_metadata(&name).is_err() {
                inner.rename(&name, &target, &name)?;
            }
        }
    }
    Ok(())
}

fn names_in(directory: &Dir) -> io::Result<Vec<String>> {
    directory.entries()?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Also through a link that comes after the look at its place.
    #[test]
    fn files_of_git_are_read_through_no_link() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        fs::write(root.join("secret"), "secret").unwrap();
        fs::create_dir_all(root.join("git/refs/heads")).unwrap();
        fs::write(root.join("git/HEAD"), "ref: refs/heads/main").unwrap();
        symlink("../secret", root.join("git/index")).unwrap();
        nix::unistd::mkfifo(&root.join("git/ORIG_HEAD"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let git = open_directory(&root.join("git")).unwrap();
        assert_eq!(files_of(&git).unwrap().into_keys().collect::<Vec<_>>(), [Path::new("HEAD")]);
        assert!(open_file(&git, Path::new("index")).is_err());
        assert!(open_file(&git, Path::new("ORIG_HEAD")).unwrap().is_none());
        symlink("git", root.join("link")).unwrap();
        assert!(open_directory(&root.join("link")).is_err());
    }

    /// Regression: the lock was removed by its path, where by then a link to another repository was.
    #[test]
    fn the_lock_of_no_other_repository_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let (git, other) = (root.join("y/.git"), root.join("other/.git"));
        for git in [&git, &other] {
            fs::create_dir_all(git.join("objects")).unwrap();
        }
        fs::write(other.join(LOCK), "").unwrap();
        let repository = Repository { top: root.join("y"), own: git.clone(), common: git.clone() };
        let begin = || {
            let turn = std::sync::Arc::new(tokio::sync::RwLock::new(())).try_write_owned().unwrap();
            GitWork::begin(&repository, &["commit".to_owned()], turn)
        };
        let work = begin().unwrap();
        assert!(git.join(LOCK).exists());
        fs::rename(&git, root.join("moved")).unwrap();
        symlink("../other/.git", &git).unwrap();
        drop(work);
        assert!(other.join(LOCK).exists() && !root.join("moved").join(LOCK).exists());
        fs::remove_file(other.join(LOCK)).unwrap();
        assert!(begin().is_err() && !other.join(LOCK).exists());
    }

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
