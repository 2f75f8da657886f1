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
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use cap_std::fs::{Dir, MetadataExt as _};

use super::super::programs::{Resolved, home_directories, resolve_symlinks};
use super::index;

/// Settings that programs obey on their own, at the top of the workspace and of each repository.
const OBEYED: &str = "\
    .envrc .direnv mise.toml .mise.toml .mise .vscode .idea .zed .fleet .devcontainer .devcontainer.json .helix \
    .exrc .nvimrc .nvim.lua .nvim .vim .lazy.lua .dir-locals.el .claude .codex .cursor .gemini .opencode opencode.json \
    .mcp.json .qwen .kiro .windsurf .continue .roo .aider.conf.yml .crush.json crush.json .husky .githooks respool.toml \
    .hg .jj .sl lefthook.yml lefthook.yaml lefthook.toml lefthook-local.yml .lefthook.yml .pre-commit-config.yaml \
    .dir-locals-2.el mise.local.toml .mise.local.toml opencode.jsonc AGENTS.md AGENTS.override.md AGENT.md CLAUDE.md \
    CLAUDE.local.md GEMINI.md QWEN.md .clinerules .cursorrules .windsurfrules .goosehints .roomodes .junie .trae .augment \
    .amp";
/// What the name of settings ends with that a command made.
const RENAMED: &str = ".made-by-a-command";
/// More directories are not searched; the rest of the workspace is then read-only as a whole.
const MOST_DIRECTORIES: usize = 200_000;
/// More files of git's configuration are not read.
const MOST_CONFIGURATIONS: usize = 100;
/// How deep repositories are searched for that commands made.
const DEPTH_OF_CLONES: usize = 3;

/// The most mounts that keep places read-only: bubblewrap takes a time that grows with their square (0.15 s
/// for a hundred, 2.5 s for four hundred, minutes for three thousand).
const MOST_MOUNTS: usize = 160;
/// The most bytes of their paths, which are arguments of programs.
const MOST_BYTES: usize = 60_000;

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

/// The places that a command leaves as they are.
#[derive(Clone, Debug, Default)]
pub(super) struct Kept {
    /// Files and directories that are read-only.
    pub(super) frozen: BTreeSet<PathBuf>,
    /// Names in directories: the links on the way to those, and what is not there and must not be made.
    names: BTreeSet<(PathBuf, OsString)>,
    /// Directories in which no settings are made.
    tops: BTreeSet<PathBuf>,
    /// A repository that is written although a directory above it is read-only as a whole.
    pub(super) spared: Option<PathBuf>,
}

impl Kept {
    /// Adds the file or directory at a path, the links on the way, and those in the directory; if nothing is
    /// there, the first name that is missing.
    fn add(&mut self, path: &Path, roots: &[PathBuf]) {
        let Some(Resolved { real, links }) = resolve_symlinks(path) else { return };
        let is_inside = |path: &Path| roots.iter().any(|root| path.starts_with(root));
        let name = |path: &Path| Some((path.parent()?.to_owned(), path.file_name()?.to_owned()));
        let missing = real.ancestors().take_while(|path| path.symlink_metadata().is_err()).last();
        let names = links.iter().map(PathBuf::as_path).chain(missing).filter_map(name);
        // What is in `.git` is read-only with it.
        let is_named =
            |directory: &Path| is_inside(directory) && !directory.iter().any(|part| part == ".git");
        self.names.extend(names.filter(|(directory, _)| is_named(directory)));
        if missing.is_none() && is_inside(&real) && self.frozen.insert(real.clone()) {
            links_in(&real).for_each(|link| self.add(&link, roots));
        }
    }

    /// The directories with names that are kept, which stay where they are.
    pub(super) fn fixed_directories(&self) -> impl Iterator<Item = &PathBuf> {
        self.names.iter().map(|(directory, _)| directory)
    }

    /// All places below these roots that need a mount.
    fn mount_points(&self, roots: &[PathBuf]) -> BTreeSet<&Path> {
        let is_below = |path: &&Path| roots.iter().any(|root| path.starts_with(root) && *path != root);
        let all = self.frozen.iter().chain(self.fixed_directories());
        all.flat_map(|place| place.ancestors()).filter(is_below).collect()
    }

    /// True when something below this directory is kept that only a mount keeps.
    pub(super) fn has_any_in(&self, directory: &Path) -> bool {
        self.frozen.contains(directory) || !self.mount_points(&[directory.to_owned()]).is_empty()
    }

    /// Makes directories read-only as a whole, the deepest first, until a sandbox can be made in a moment.
    /// The repository that a command works in keeps its own places, as far as that is possible.
    fn bound(&mut self, roots: &[PathBuf], own: Option<PathBuf>) {
        let own = own.filter(|own| !roots.contains(own));
        for spared in [own, None] {
            let is_fixed = |place: &Path| {
                roots.iter().any(|root| place == root)
                    || spared.as_ref().is_some_and(|own| place.starts_with(own))
            };
            let depth = |place: &PathBuf| place.components().count();
            while self.is_too_much(roots) {
                let others = || self.frozen.iter().filter(|place| !is_fixed(place));
                let Some(deepest) = others().map(depth).max() else { break };
                let above =
                    others().filter(|place| depth(place) == deepest).filter_map(|place| place.parent());
                let above: BTreeSet<PathBuf> = above.map(Path::to_owned).collect();
                let is_left = |place: &Path| {
                    spared.as_ref().is_some_and(|own| place.starts_with(own))
                        || !place.ancestors().any(|directory| above.contains(directory))
                };
                self.frozen.retain(|place| is_left(place));
                self.names.retain(|(directory, _)| is_left(directory));
                self.tops.retain(|top| is_left(top));
                self.frozen.extend(above);
                self.spared.clone_from(&spared);
            }
        }
    }

    fn is_too_much(&self, roots: &[PathBuf]) -> bool {
        let points = self.mount_points(roots);
        let bytes: usize = points.iter().map(|place| place.as_os_str().len()).sum();
        points.len() > MOST_MOUNTS || bytes > MOST_BYTES
    }
}

/// The files that commands never write.
#[derive(Debug, Default)]
pub(super) struct Protected {
    /// The workspace, then the writable places of the configuration.
    roots: Vec<PathBuf>,
    /// These, and the directories that held a `.git` before the first command.
    tops: BTreeSet<PathBuf>,
    /// The repositories that were there before the first command.
    repositories: Vec<Repository>,
    /// The places that were there before the first command.
    kept: Kept,
    /// The repositories that commands have made since.
    made: Mutex<Vec<Repository>>,
    /// The directories that could not be searched for those.
    closed: Mutex<Vec<PathBuf>>,
    /// The settings of commands that could not be renamed.
    stuck: Arc<Mutex<BTreeSet<PathBuf>>>,
    /// The links that no command made, with their targets.
    links: Mutex<BTreeMap<PathBuf, PathBuf>>,
    /// The submodules that the index of each repository names.
    submodules: Mutex<BTreeMap<PathBuf, (Stamp, Vec<PathBuf>)>>,
}

impl Protected {
    /// Searches the workspace and the writable places of the configuration, and finds the repository that the
    /// workspace is in.
    pub(super) fn find(workspace: &Path, configured: &[PathBuf]) -> Self {
        let mut found = Self { roots: vec![workspace.to_owned()], ..Self::default() };
        found.roots.extend(configured.iter().filter(|place| !place.is_file()).cloned());
        let mut search = Search::new();
        search.tops.extend(found.roots.iter().cloned());
        for root in &found.roots {
            search.run(root, usize::MAX);
            if search.left == 0 {
                tracing::warn!(target: "respool::tools", directory = %root.display(),
                    "there are too many directories to find all repositories: commands only read this one");
                found.kept.frozen.insert(root.clone());
            }
        }
        found.kept.frozen.extend(search.closed);
        found.repositories.extend(workspace.ancestors().skip(1).find_map(|above| repository(above, &[])));
        for top in &search.tops {
            let known: Vec<PathBuf> = found.repositories.iter().map(|known| known.common.clone()).collect();
            found.repositories.extend(repository(top, &known));
            if is_symlink(&top.join(".git")) {
                // A link cannot be made read-only, so the directory that it is in is.
                found.kept.frozen.insert(top.clone());
            }
        }
        found.tops = search.tops;
        let mut kept = std::mem::take(&mut found.kept);
        found.add_settings(&mut kept);
        let own = |root: &PathBuf| Repository {
            top: root.clone(),
            own: root.join(".git"),
            common: root.join(".git"),
        };
        let configured = found.roots.iter().map(own).chain(found.repositories.clone());
        let named = configured.flat_map(|repository| named_by_configuration(&repository));
        for path in named.chain(linked_settings()) {
            kept.add(&path, &found.roots);
        }
        found.kept = kept;
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

    /// Adds the settings at the top of each work tree.
    fn add_settings(&self, kept: &mut Kept) {
        let is_obeyed = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name == ".git" || obeyed().any(|known| known == name))
        };
        let made: Vec<PathBuf> = self.made().iter().map(|made| made.top.clone()).collect();
        for top in self.tops.iter().chain(&made) {
            let git = top.join(".git");
            // Wherever a file leads, git obeys what is there.
            let own = line(&git).and_then(|line| Some(top.join(line.strip_prefix("gitdir:")?.trim())));
            let common = own.as_ref().and_then(|own| Some(own.join(line(&own.join("commondir"))?)));
            let elsewhere: Vec<PathBuf> = own.into_iter().chain(common).collect();
            let hooks = elsewhere.iter().chain([&git]).flat_map(|git| links_in(&git.join("hooks")));
            for path in paths_in(top).filter(is_obeyed).chain(hooks).chain(elsewhere.clone()) {
                kept.add(&path, &self.roots);
            }
            kept.tops.insert(top.clone());
        }
    }

    /// Returns git's directories outside the writable places.
    pub(super) fn git_directories(&self) -> impl Iterator<Item = &PathBuf> {
        let all = self.repositories.iter().flat_map(|repository| [&repository.own, &repository.common]);
        all.filter(|git| !self.roots.iter().any(|root| git.starts_with(root)))
    }

    /// Returns what a command in this directory leaves as it is: what was found, and with bubblewrap the
    /// repositories of submodules, which a person's `git status` obeys.
    ///
    /// # Errors
    /// When a repository is gone.
    pub(super) fn find_kept(&self, directory: &Path, has_mounts: bool) -> io::Result<Kept> {
        let is_gone = |path: &&PathBuf| {
            path.ends_with(".git")
                && path.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        };
        let mut kept = self.kept.clone();
        self.add_settings(&mut kept);
        if !has_mounts {
            return Ok(kept);
        }
        if let Some(git) = self.kept.frozen.iter().find(is_gone) {
            let text =
                format!("{} is gone, and cannot be protected any more: restart respool", git.display());
            return Err(io::Error::other(text));
        }
        kept.frozen.extend(self.closed.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned());
        for repository in self.all() {
            let Ok(submodules) = self.submodules(&repository) else {
                // Nobody knows what git would follow there.
                kept.frozen.extend(
                    self.roots.iter().any(|root| repository.top.starts_with(root)).then_some(repository.top),
                );
                continue;
            };
            // Where a submodule is not checked out, a command makes no repository in its place.
            for submodule in submodules {
                kept.add(&submodule.join(".git"), &self.roots);
            }
        }
        kept.bound(&self.roots, self.repository_of(directory).map(|repository| repository.top));
        let Kept { frozen, names, spared, .. } = &mut kept;
        let is_spared = |path: &Path| spared.as_ref().is_some_and(|spared| path.starts_with(spared));
        names.retain(|(path, _)| is_spared(path) || !path.ancestors().any(|above| frozen.contains(above)));
        Ok(kept)
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

    /// Returns the names that a command must not make or replace, for [`WatchedSettings::restore`].
    ///
    /// # Errors
    /// When a directory cannot be opened: settings in it could not be renamed.
    pub(super) fn watched_settings(&self, kept: &Kept) -> io::Result<Vec<WatchedSettings>> {
        let mut watched = BTreeMap::<PathBuf, Vec<OsString>>::new();
        let names = |top: &PathBuf| obeyed().map(|name| (top.clone(), name.into())).collect::<Vec<_>>();
        for (directory, name) in kept.tops.iter().flat_map(names).chain(kept.names.iter().cloned()) {
            watched.entry(directory).or_default().push(name);
        }
        watched
            .into_iter()
            .map(|(directory, names)| WatchedSettings::find(directory, names, self))
            .filter_map(Result::transpose)
            .collect()
    }

    /// The directories of submodules that the index of a repository names.
    ///
    /// # Errors
    /// When the index cannot be read.
    pub(super) fn submodules(&self, repository: &Repository) -> io::Result<Vec<PathBuf>> {
        let index = repository.own.join("index");
        if !index.exists() {
            return Ok(Vec::new());
        }
        let stamp = stamp(&index);
        let mut known = self.submodules.lock().unwrap_or_else(PoisonError::into_inner);
        match known.get(&repository.own) {
            Some((seen, submodules)) if *seen == stamp => Ok(submodules.clone()),
            _ => {
                let submodules = paths_of_submodules(repository, index::read_entries(&index, repository)?);
                known.insert(repository.own.clone(), (stamp, submodules.clone()));
                Ok(submodules)
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

/// Returns the directories of submodules among the entries of an index.
pub(super) fn paths_of_submodules(repository: &Repository, entries: Vec<index::Entry>) -> Vec<PathBuf> {
    let submodules = entries.into_iter().filter(|entry| entry.is_submodule);
    submodules.map(|entry| repository.top.join(OsString::from_vec(entry.name))).collect()
}

/// A file or directory by its number, and where it leads if it is a link.
type Entry = (u64, u64, Option<PathBuf>);

/// A name, and what it stands for.
#[derive(Debug)]
struct Watched {
    name: OsString,
    before: Option<Entry>,
    /// The target of the link that is put back.
    target: Option<PathBuf>,
}

/// Settings that a command must not make or replace, and a handle on their directory: a command may move it.
#[derive(Debug)]
pub(crate) struct WatchedSettings {
    top: PathBuf,
    /// It is locked as long as a command may write here.
    directory: Dir,
    names: Vec<Watched>,
    /// Of all directories.
    stuck: Arc<Mutex<BTreeSet<PathBuf>>>,
}

impl WatchedSettings {
    /// `None` for a directory that is gone.
    fn find(top: PathBuf, names: Vec<OsString>, protected: &Protected) -> io::Result<Option<Self>> {
        let failed = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", top.display()));
        let directory = match fs::File::open(&top) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(failed)?,
        };
        let is_alone = lock(&directory).map_err(failed)?;
        let directory = Dir::from_std_file(directory);
        let mut links = protected.links.lock().unwrap_or_else(PoisonError::into_inner);
        // Another command, also of another respool, may have made what is there. A link cannot be read-only.
        let mut watch = |name: OsString| {
            let before = entry(&directory, &name);
            let target = before.as_ref().and_then(|(_, _, target)| target.clone());
            let path = top.join(&name);
            if let Some(target) = target.as_ref().filter(|_| is_alone) {
                links.insert(path.clone(), target.clone());
            }
            let is_watched = !is_alone || before.is_none() || target.is_some();
            let target = target.filter(|target| links.get(&path) == Some(target));
            is_watched.then_some(Watched { name, before, target })
        };
        let names = names.into_iter().filter_map(&mut watch).collect();
        Ok(Some(Self { top, directory, names, stuck: Arc::clone(&protected.stuck) }))
    }

    /// Renames the settings that a command has made, puts back links that it replaced, and returns a note on
    /// each.
    pub(crate) fn restore(&self) -> Vec<String> {
        // A command may have taken the directory's permissions away.
        let closed =
            self.directory.try_clone().ok().and_then(|directory| give_permissions(directory.into_std_file()));
        let notes = self.names.iter().filter_map(|watched| self.restore_one(watched)).collect();
        if let Some((directory, permissions)) = closed {
            // As the command left it; what counts is renamed.
            let _ = directory.set_permissions(permissions);
        }
        notes
    }

    fn restore_one(&self, Watched { name, before, target }: &Watched) -> Option<String> {
        let now = entry(&self.directory, name);
        if now == *before {
            return None;
        }
        let note = now.map(|_| self.rename(&name.to_string_lossy()));
        let Some(target) = target else { return note };
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
    let persons: Vec<PathBuf> = persons.chain(["/etc/gitconfig".into()]).collect();
    // These may be links into the workspace, as those of dotfiles are.
    let (mut read, mut named) = (BTreeSet::new(), persons.clone());
    let mut waiting: Vec<PathBuf> = own.chain(persons).collect();
    while let Some(file) = waiting.pop() {
        let is_first = read.len() < MOST_CONFIGURATIONS && read.insert(file.clone());
        let text = is_first.then(|| index::read_small(&file)).flatten().unwrap_or_default();
        let text = text.replace("\\\n", "");
        for (key, value) in text.lines().filter_map(|line| line.split_once('=')) {
            let key = key.trim().rsplit([' ', '\t', ']']).next().unwrap_or_default().to_ascii_lowercase();
            let words = value.split_whitespace().chain([value.trim()]);
            for word in words.map(|word| word.trim_matches(['"', '\'', ';', '!'])) {
                // `$(git rev-parse --show-toplevel)/tools/clean`, too.
                let ends = word.match_indices('/').map(|(at, _)| Path::new(&word[at + 1..]));
                let program = ends.map(|end| repository.top.join(end)).find(|end| end.is_file());
                let word = word
                    .strip_prefix("~/")
                    .zip(homes.first())
                    .map_or_else(|| word.into(), |(rest, home)| home.join(rest));
                let included = file.parent().map(|parent| parent.join(&word)).filter(|_| key == "path");
                let other = repository.top.join(&word);
                let is_hook =
                    key == "hookspath" || (key == "fsmonitor" && Path::new(&word).iter().count() > 1);
                let is_program = other.is_file() || is_hook;
                waiting.extend(included.clone());
                named.extend(included.into_iter().chain(is_program.then_some(other)).chain(program));
            }
        }
    }
    named
}

/// Returns the settings of the person that are links, as those of dotfiles are: shells and other programs
/// obey what is there.
fn linked_settings() -> impl Iterator<Item = PathBuf> {
    let directories = home_directories().into_iter().flat_map(|home| [home.join(".config"), home]);
    let is_setting = |path: &PathBuf| {
        let is_hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        is_hidden || path.parent().is_some_and(|parent| parent.ends_with(".config"))
    };
    directories.flat_map(|directory| links_in(&directory)).filter(is_setting)
}

fn obeyed() -> impl Iterator<Item = &'static str> {
    OBEYED.split_ascii_whitespace()
}

fn paths_in(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path())
}

fn links_in(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    paths_in(directory).filter(|path| is_symlink(path))
}

fn is_symlink(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|data| data.is_symlink())
}

/// Returns the repository whose `.git` is in this directory. A file there leads elsewhere only to a linked
/// work tree that knows of it, to a submodule's place in a repository above it, or below this directory.
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
    ((own.starts_with(top) || above.iter().any(is_part)) && own.join("HEAD").is_file())
        .then(|| repository(own.clone(), own))
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
    let text = index::read_small(file)?;
    text.lines().next().map(|line| line.trim().to_owned())
}
