//! The files that commands never write, because other programs run or obey them without being started by the
//! person: git repositories, and the settings of editors, shells and agents. What is there when a command
//! begins is read-only to it. Such settings that it makes where there were none are renamed when it has
//! ended, and a link to settings that it replaced is put back.
//!
//! Repositories are searched for before the first command, and after that only near the top of the workspace,
//! where commands clone.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use cap_std::fs::{Dir, MetadataExt as _};

use super::super::programs::home_directories;

/// Settings that programs obey on their own, at the top of the workspace and of each repository.
const OBEYED: &str = "\
    .envrc .direnv mise.toml .mise.toml .mise .vscode .idea .zed .fleet .devcontainer .devcontainer.json .helix \
    .exrc .nvimrc .nvim.lua .nvim .vim .lazy.lua .dir-locals.el .claude .codex .cursor .gemini .opencode opencode.json \
    .mcp.json .qwen .kiro .windsurf .continue .roo .aider.conf.yml .crush.json crush.json .husky .githooks respool.toml \
    .hg .jj lefthook.yml lefthook.yaml .lefthook.yml .pre-commit-config.yaml AGENTS.md CLAUDE.md GEMINI.md .clinerules \
    .cursorrules";
/// What the name of settings ends with that a command made.
const RENAMED: &str = ".made-by-a-command";
/// More directories are not searched; the rest of the workspace is then read-only as a whole.
const MOST_DIRECTORIES: usize = 200_000;
/// More files of git's configuration are not read.
const MOST_CONFIGURATIONS: usize = 100;
/// How deep repositories are searched for that commands made.
const DEPTH_OF_CLONES: usize = 3;

/// A git repository with a work tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Repository {
    /// The directory of its work tree.
    pub(super) top: PathBuf,
    /// The directory of its index and `HEAD`.
    pub(super) own: PathBuf,
    /// The directory of its objects and references: the same, except of a linked work tree.
    pub(super) common: PathBuf,
}

/// The time, size and number of an index: another one has another.
type Stamp = (Option<SystemTime>, u64, u64);

/// The files that commands never write.
#[derive(Debug, Default)]
pub(super) struct Protected {
    /// The workspace, then the writable places of the configuration.
    roots: Vec<PathBuf>,
    /// These, and the directories that held a `.git` before the first command.
    tops: BTreeSet<PathBuf>,
    /// The repositories that were there before the first command.
    repositories: Vec<Repository>,
    places: Vec<PathBuf>,
    /// Files that git's configuration includes and that are not there.
    missing: Vec<(PathBuf, OsString)>,
    /// The repositories that commands have made since.
    made: Mutex<Vec<Repository>>,
    /// The directories that could not be searched for those.
    closed: Mutex<Vec<PathBuf>>,
    /// The settings of commands that could not be renamed.
    stuck: Arc<Mutex<BTreeSet<PathBuf>>>,
    /// The submodules that the index of each repository names.
    submodules: Mutex<BTreeMap<PathBuf, (Stamp, Vec<PathBuf>)>>,
}

impl Protected {
    /// Searches the workspace and the writable places of the configuration, and finds the repository that the
    /// workspace is in.
    pub(super) fn find(workspace: &Path, configured: &[PathBuf]) -> Self {
        let mut found = Self { roots: vec![workspace.to_owned()], ..Self::default() };
        found.roots.extend(configured.iter().filter(|place| place.is_dir()).cloned());
        let mut search = Search::new();
        search.tops.extend(found.roots.iter().cloned());
        for root in found.roots.clone() {
            search.run(&root, usize::MAX);
            if search.left == 0 {
                tracing::warn!(target: "respool::tools", directory = %root.display(),
                    "there are too many directories to find all repositories: commands only read this one");
                found.places.push(root);
            }
        }
        found.places.extend(search.closed);
        found.repositories.extend(workspace.ancestors().skip(1).find_map(|above| repository(above, &[])));
        for top in &search.tops {
            let known: Vec<PathBuf> = found.repositories.iter().map(|known| known.common.clone()).collect();
            found.repositories.extend(repository(top, &known));
            if is_symlink(&top.join(".git")) {
                // A link cannot be made read-only, so the directory that it is in is.
                found.places.push(top.clone());
            }
            found.places.extend(found.places_at(top));
        }
        found.tops = search.tops;
        let own = |root: &PathBuf| Repository {
            top: root.clone(),
            own: root.join(".git"),
            common: root.join(".git"),
        };
        let configured: Vec<Repository> =
            found.roots.iter().map(own).chain(found.repositories.clone()).collect();
        for named in configured.iter().flat_map(named_by_configuration) {
            if let Ok(real) = named.canonicalize() {
                found.places.extend(found.is_inside(&real).then_some(real));
            } else {
                let missing = first_missing(&named).filter(|(directory, _)| found.is_inside(directory));
                found.missing.extend(missing);
            }
        }
        found
    }

    /// Searches for repositories that commands have made. Only a real `.git` directory counts: a command
    /// could have made a link to any other.
    pub(super) fn find_made(&self) {
        let mut search = Search::new();
        for root in &self.roots {
            search.run(root, DEPTH_OF_CLONES);
        }
        *self.closed.lock().unwrap_or_else(PoisonError::into_inner) = search.closed;
        let is_new = |top: &PathBuf| !self.repositories.iter().any(|known| known.top == *top);
        let made = search.tops.into_iter().filter(is_new).filter_map(|top| {
            let git = top.join(".git");
            let is_real = git.symlink_metadata().is_ok_and(|data| data.is_dir());
            is_real.then(|| Repository { top, own: git.clone(), common: git })
        });
        *self.made() = made.collect();
    }

    fn made(&self) -> MutexGuard<'_, Vec<Repository>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All repositories: those of the start, then those that commands made.
    fn all(&self) -> Vec<Repository> {
        self.repositories.iter().chain(self.made().iter()).cloned().collect()
    }

    fn is_inside(&self, path: &Path) -> bool {
        self.roots.iter().any(|root| path.starts_with(root))
    }

    /// Returns what is protected at the top of a work tree. Of a link, that is what it leads to.
    fn places_at(&self, top: &Path) -> Vec<PathBuf> {
        let paths_in = |directory: &Path| {
            fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path())
        };
        let is_obeyed = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name == ".git" || obeyed().any(|known| known == name))
        };
        let links = paths_in(&top.join(".git")).filter(|path| is_symlink(path));
        let paths = paths_in(top).filter(is_obeyed).chain(links);
        paths.filter_map(|path| path.canonicalize().ok()).filter(|real| self.is_inside(real)).collect()
    }

    /// Returns the directories whose settings are protected now.
    fn tops(&self) -> BTreeSet<PathBuf> {
        self.tops.iter().cloned().chain(self.made().iter().map(|made| made.top.clone())).collect()
    }

    /// True when something below this directory is protected.
    pub(super) fn has_any_in(&self, directory: &Path) -> bool {
        let now = || self.tops.iter().flat_map(|top| self.places_at(top));
        self.places.iter().cloned().chain(now()).any(|place| place.starts_with(directory))
    }

    /// Returns git's directories, also those outside the workspace that its own `.git` leads to.
    pub(super) fn git_directories(&self) -> impl Iterator<Item = &PathBuf> {
        self.repositories.iter().flat_map(|repository| [&repository.own, &repository.common])
    }

    /// Returns what is read-only now: what was found, and the directories of submodules. A command could make
    /// a repository in one that is empty, and a person's `git status` would obey its configuration.
    ///
    /// # Errors
    /// When a repository is gone, or the directory of a submodule cannot be protected.
    pub(super) fn frozen(&self, list: impl Fn(&Repository) -> Vec<PathBuf>) -> io::Result<Vec<PathBuf>> {
        let is_gone = |path: &PathBuf| {
            path.ends_with(".git")
                && path.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        };
        if let Some(git) = self.places.iter().find(|path| is_gone(path)) {
            let text =
                format!("{} is gone, and cannot be protected any more: restart respool", git.display());
            return Err(io::Error::other(text));
        }
        let mut frozen = self.places.clone();
        frozen.extend(self.closed.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned());
        frozen.extend(self.tops().iter().flat_map(|top| self.places_at(top)));
        for repository in self.all() {
            for submodule in self.submodules(&repository, &list) {
                let Some(root) = self.roots.iter().find(|root| submodule.starts_with(root)) else { continue };
                match place_of_submodule(&submodule, root) {
                    Ok(place) => frozen.push(place),
                    // The index is a command's, and so is the trouble.
                    Err(_) if !self.repositories.contains(&repository) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(frozen)
    }

    /// Fails while there are settings that a command made and that could not be renamed.
    ///
    /// # Errors
    /// The first of these settings.
    pub(super) fn check_stuck(&self) -> io::Result<()> {
        let mut stuck = self.stuck.lock().unwrap_or_else(PoisonError::into_inner);
        let is_gone = |error: io::Error| error.kind() == io::ErrorKind::NotFound;
        stuck.retain(|path| !path.symlink_metadata().is_err_and(is_gone));
        let Some(path) = stuck.first() else { return Ok(()) };
        Err(io::Error::other(format!(
            "an earlier command made {}, which could not be renamed: the user has to look at it and rename or remove it",
            path.display()
        )))
    }

    /// Returns the settings that a command must not make or replace, for [`WatchedSettings::restore`].
    ///
    /// # Errors
    /// When a directory cannot be opened: settings in it could not be renamed.
    pub(super) fn watched_settings(&self) -> io::Result<Vec<WatchedSettings>> {
        let names =
            |top: &PathBuf| obeyed().map(OsString::from).map(|name| (top.clone(), name)).collect::<Vec<_>>();
        let mut watched = BTreeMap::<PathBuf, Vec<OsString>>::new();
        for (directory, name) in self.tops().iter().flat_map(names).chain(self.missing.iter().cloned()) {
            watched.entry(directory).or_default().push(name);
        }
        watched
            .into_iter()
            .map(|(directory, names)| WatchedSettings::find(directory, names, &self.stuck))
            .filter_map(Result::transpose)
            .collect()
    }

    fn submodules(
        &self,
        repository: &Repository,
        list: impl Fn(&Repository) -> Vec<PathBuf>,
    ) -> Vec<PathBuf> {
        let index = repository.own.join("index");
        if !index.exists() {
            return Vec::new();
        }
        let stamp = stamp(&index);
        let mut known = self.submodules.lock().unwrap_or_else(PoisonError::into_inner);
        match known.get(&repository.own) {
            Some((seen, submodules)) if *seen == stamp => submodules.clone(),
            _ => {
                let submodules = list(repository);
                known.insert(repository.own.clone(), (stamp, submodules.clone()));
                submodules
            }
        }
    }

    /// Returns the repository that git would use in a directory.
    pub(super) fn repository_of(&self, directory: &Path) -> Option<Repository> {
        let top = directory.ancestors().find(|above| above.join(".git").symlink_metadata().is_ok())?;
        self.all().into_iter().find(|repository| repository.top == top)
    }

    /// True for a directory that holds a repository, unless that is one which this repository keeps for its
    /// submodules.
    pub(super) fn has_foreign_repository(&self, directory: &Path, repository: &Repository) -> bool {
        let modules = repository.common.join("modules");
        let is_own = |known: &Repository| known.top == directory && known.own.starts_with(&modules);
        directory.join(".git").symlink_metadata().is_ok() && !self.repositories.iter().any(is_own)
    }
}

/// Returns the first name on the way to a file that is not there, after the directory of that name.
fn first_missing(path: &Path) -> Option<(PathBuf, OsString)> {
    let found = path.ancestors().find_map(|path| Some((path.parent()?.canonicalize().ok()?, path)))?;
    Some((found.0, found.1.file_name()?.to_owned()))
}

/// A file or directory by its number, and where it leads if it is a link.
type Entry = (u64, u64, Option<PathBuf>);

/// Settings that a command must not make or replace, and a handle on their directory: a command may move it.
#[derive(Debug)]
pub(crate) struct WatchedSettings {
    top: PathBuf,
    /// It is locked as long as a command may write here.
    directory: Dir,
    names: Vec<(OsString, Option<Entry>)>,
    /// Of all directories.
    stuck: Arc<Mutex<BTreeSet<PathBuf>>>,
}

impl WatchedSettings {
    /// `None` for a directory that is gone.
    fn find(
        top: PathBuf,
        names: Vec<OsString>,
        stuck: &Arc<Mutex<BTreeSet<PathBuf>>>,
    ) -> io::Result<Option<Self>> {
        let failed = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", top.display()));
        let directory = match fs::File::open(&top) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(failed)?,
        };
        let is_alone = lock(&directory).map_err(failed)?;
        let directory = Dir::from_std_file(directory);
        let names = names.into_iter().map(|name| (entry(&directory, &name), name));
        // Another command, also of another respool, may have made what is there. A link cannot be read-only.
        let is_watched =
            |found: &Option<Entry>| !is_alone || found.as_ref().is_none_or(|(_, _, target)| target.is_some());
        let names = names.filter(|(found, _)| is_watched(found)).map(|(found, name)| (name, found)).collect();
        Ok(Some(Self { top, directory, names, stuck: Arc::clone(stuck) }))
    }

    /// Renames the settings that a command has made, puts back links that it replaced, and returns a note on
    /// each.
    pub(crate) fn restore(&self) -> Vec<String> {
        // A command may have taken the directory's permissions away.
        let closed =
            self.directory.try_clone().ok().and_then(|directory| give_permissions(directory.into_std_file()));
        let notes =
            self.names.iter().filter_map(|(name, before)| self.restore_one(name, before.as_ref())).collect();
        if let Some((directory, permissions)) = closed {
            // As the command left it; what counts is renamed.
            let _ = directory.set_permissions(permissions);
        }
        notes
    }

    fn restore_one(&self, name: &OsStr, before: Option<&Entry>) -> Option<String> {
        let now = entry(&self.directory, name);
        if now.as_ref() == before {
            return None;
        }
        let note = now.map(|_| self.rename(&name.to_string_lossy()));
        let Some((_, _, Some(target))) = before else { return note };
        let put_back = match self.directory.symlink_contents(target, name) {
            Ok(()) => format!("respool put the link {} back", name.display()),
            Err(error) => format!("the link {} is gone: {error}", name.display()),
        };
        Some(note.into_iter().chain([put_back]).collect::<Vec<_>>().join("; "))
    }

    fn rename(&self, name: &str) -> String {
        let new_name = |count: usize| match count {
            0 => format!("{name}{RENAMED}"),
            _ => format!("{name}{RENAMED}-{count}"),
        };
        let is_free = |new: &String| self.directory.symlink_metadata(new).is_err();
        let path = self.top.join(name);
        let new = (0..100).map(new_name).find(is_free);
        let new = new.unwrap_or_else(|| format!("{name}{RENAMED}-{:016x}", rand::random::<u64>()));
        match self.directory.rename(name, &self.directory, &new) {
            Ok(()) => format!(
                "the command made {}, which editors, shells or agents obey without being started; respool renamed it to {new}. \
                 If it is wanted, ask the user to rename it",
                path.display()
            ),
            Err(error) => {
                let text = format!(
                    "the command made {}, which editors, shells or agents obey without being started, and it could not be \
                     renamed ({error}): ask the user to look at it. No other command runs before that",
                    path.display()
                );
                self.stuck.lock().unwrap_or_else(PoisonError::into_inner).insert(path);
                text
            }
        }
    }
}

/// Returns the entry of a name; `None` where there is nothing.
fn entry(directory: &Dir, name: &OsStr) -> Option<Entry> {
    let data = directory.symlink_metadata(name).ok()?;
    Some((data.dev(), data.ino(), directory.read_link_contents(name).ok()))
}

/// Marks a directory as one in which a command may write, for other processes too, and returns true where it
/// is the only one. Commands could hold such a lock themselves, so that this is an error at worst.
fn lock(directory: &fs::File) -> io::Result<bool> {
    let is_alone = !matches!(directory.try_lock(), Err(fs::TryLockError::WouldBlock));
    // Another respool may be at this very place.
    for _ in 0..1_000 {
        match directory.try_lock_shared() {
            Err(fs::TryLockError::WouldBlock) => std::thread::yield_now(),
            // A file system without locks.
            _ => return Ok(is_alone),
        }
    }
    Err(io::Error::other("another program has locked this directory"))
}

/// Gives the owner all permissions for a directory, and returns those it had; `None` where nothing had to be
/// given.
fn give_permissions(directory: fs::File) -> Option<(fs::File, fs::Permissions)> {
    const OWNERS: u32 = 0o700;
    let old = directory.metadata().ok()?.permissions();
    let is_open = old.mode() & OWNERS == OWNERS;
    let given = || directory.set_permissions(fs::Permissions::from_mode(old.mode() | OWNERS));
    (!is_open && given().is_ok()).then_some((directory, old))
}

/// Returns what is read-only of a submodule: its link to its repository, or without one all of it.
fn place_of_submodule(directory: &Path, workspace: &Path) -> io::Result<PathBuf> {
    let is_real = |path: &Path| path.canonicalize().is_ok_and(|real| real == path);
    let git = directory.join(".git");
    if is_real(&git) {
        return Ok(git);
    }
    if let Ok(below) = directory.strip_prefix(workspace) {
        let root = Dir::open_ambient_dir(workspace, cap_std::ambient_authority())?;
        // As git itself does when it checks the submodule's entry out.
        let _ = root.create_dir_all(below);
    }
    if is_real(directory) && directory.is_dir() {
        return Ok(directory.to_owned());
    }
    Err(io::Error::other(format!(
        "the submodule {} cannot be protected: there is no directory, or a link leads to it; check it out",
        directory.display()
    )))
}

fn stamp(file: &Path) -> Stamp {
    let data = fs::metadata(file).ok();
    data.map_or((None, 0, 0), |data| (data.modified().ok(), data.len(), data.ino()))
}

/// A search for repositories.
struct Search {
    /// Directories with a `.git`.
    tops: BTreeSet<PathBuf>,
    /// Directories of this user that cannot be searched: a command could give itself the permission.
    closed: Vec<PathBuf>,
    /// How many directories may still be searched.
    left: usize,
}

impl Search {
    fn new() -> Self {
        Self { tops: BTreeSet::new(), closed: Vec::new(), left: MOST_DIRECTORIES }
    }

    /// Searches a directory down to this depth.
    fn run(&mut self, root: &Path, depth: usize) {
        let mut waiting = vec![(root.to_owned(), 0)];
        while let Some((directory, level)) = waiting.pop() {
            // What is in it can be reached, not only listed.
            let listed = directory.join(".").symlink_metadata().and_then(|_| fs::read_dir(&directory));
            let Ok(entries) = listed else {
                if is_own(&directory) {
                    self.closed.push(directory);
                }
                continue;
            };
            for entry in entries.flatten() {
                if entry.file_name().eq_ignore_ascii_case(".git") {
                    self.tops.insert(directory.clone());
                } else if level < depth && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    self.left = self.left.saturating_sub(1);
                    waiting.extend((self.left > 0).then(|| (entry.path(), level + 1)));
                }
            }
        }
    }
}

/// True for a directory of this process's user.
fn is_own(directory: &Path) -> bool {
    let user = nix::unistd::geteuid().as_raw();
    directory.symlink_metadata().is_ok_and(|data| data.is_dir() && data.uid() == user)
}

/// Returns the files that a repository's and the person's git configuration names: those that it includes,
/// hooks, and programs of filters.
fn named_by_configuration(repository: &Repository) -> Vec<PathBuf> {
    let homes = home_directories();
    let own = ["config", "config.worktree"]
        .iter()
        .flat_map(|name| [&repository.common, &repository.own].map(|git| git.join(name)));
    let persons =
        homes.iter().flat_map(|home| [".gitconfig", ".config/git/config"].map(|name| home.join(name)));
    let mut waiting: Vec<PathBuf> = own.chain(persons).collect();
    let (mut read, mut named) = (BTreeSet::new(), Vec::new());
    while let Some(file) = waiting.pop() {
        let is_first = read.len() < MOST_CONFIGURATIONS && read.insert(file.clone());
        let text = is_first.then(|| fs::read_to_string(&file).ok()).flatten().unwrap_or_default();
        let text = text.replace("\\\n", "");
        for (key, value) in text.lines().filter_map(|line| line.split_once('=')) {
            let key = key.trim().rsplit([' ', '\t', ']']).next().unwrap_or_default().to_ascii_lowercase();
            let words = value.split_whitespace().chain([value.trim()]);
            for word in words.map(|word| word.trim_matches(['"', '\'', ';'])) {
                let word = word
                    .strip_prefix("~/")
                    .zip(homes.first())
                    .map_or_else(|| word.into(), |(rest, home)| home.join(rest));
                let included = file.parent().map(|parent| parent.join(&word)).filter(|_| key == "path");
                let other = repository.top.join(&word);
                let is_program = other.is_file() || (key == "hookspath" && other.is_dir());
                waiting.extend(included.clone());
                named.extend(included.into_iter().chain(is_program.then_some(other)));
            }
        }
    }
    named
}

fn obeyed() -> impl Iterator<Item = &'static str> {
    OBEYED.split_ascii_whitespace()
}

fn is_symlink(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|data| data.is_symlink())
}

/// Returns the repository whose `.git` is in this directory. A file there leads elsewhere only to a linked
/// work tree that knows of it, or to a submodule's place in a repository above it.
fn repository(top: &Path, known: &[PathBuf]) -> Option<Repository> {
    let git = top.join(".git");
    let kind = git.symlink_metadata().ok()?.file_type();
    let repository = |own: PathBuf, common| Repository { top: top.to_owned(), own, common };
    if kind.is_dir() {
        return Some(repository(git.clone(), git));
    }
    if !kind.is_file() {
        return None;
    }
    let own = top.join(line(&git)?.strip_prefix("gitdir:")?.trim()).canonicalize().ok()?;
    if let Some(common) = common_of_linked(&git, &own) {
        return Some(repository(own, common));
    }
    let is_part = |above: &PathBuf| own.starts_with(above.join("modules"));
    let above = top.ancestors().skip(1).map(|above| above.join(".git"));
    let is_real = |git: &PathBuf| git.symlink_metadata().is_ok_and(|data| data.is_dir());
    let above: Vec<PathBuf> = above.filter(is_real).chain(known.iter().cloned()).collect();
    (above.iter().any(is_part) && own.join("HEAD").is_file()).then(|| repository(own.clone(), own))
}

/// Returns the repository of a linked work tree, which has to know of this one: anybody can write a file that
/// leads somewhere.
fn common_of_linked(git: &Path, own: &Path) -> Option<PathBuf> {
    let back = own.join(line(&own.join("gitdir"))?).canonicalize().ok()?;
    let common = own.join(line(&own.join("commondir"))?).canonicalize().ok()?;
    let is_known = back == git.canonicalize().ok()? && own.starts_with(common.join("worktrees"));
    (is_known && common.join("HEAD").is_file()).then_some(common)
}

fn line(file: &Path) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().next().map(|line| line.trim().to_owned())
}
