//! The files that commands never write, because other programs run or obey them without being started by the
//! person: git repositories, and the settings of editors, shells and agents. What is there when a command
//! begins is read-only to it. Such settings that it makes where there were none are renamed when it has
//! ended.
//!
//! Repositories are searched for before the first command, and after that only near the top of the workspace,
//! where commands clone.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use cap_std::fs::Dir;

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
    /// The repositories that were there before the first command.
    repositories: Vec<Repository>,
    places: Vec<PathBuf>,
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
        search.tops.insert(workspace.to_owned());
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
        for top in search.tops {
            let known: Vec<PathBuf> = found.repositories.iter().map(|known| known.common.clone()).collect();
            found.repositories.extend(repository(&top, &known));
            if is_symlink(&top.join(".git")) {
                // A link cannot be made read-only, so the directory that it is in is.
                found.places.push(top.clone());
            }
            found.places.extend(found.places_at(&top));
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
        let git = top.join(".git");
        let inner = fs::read_dir(&git).into_iter().flatten().flatten().map(|entry| entry.path());
        let links = inner.filter(|path| is_symlink(path));
        let settings = OBEYED.split_ascii_whitespace().map(|name| top.join(name));
        let paths = settings.chain([git.clone()]).chain(links);
        paths.filter_map(|path| path.canonicalize().ok()).filter(|real| self.is_inside(real)).collect()
    }

    /// True when something below this directory was protected at the start.
    pub(super) fn has_any_in(&self, directory: &Path) -> bool {
        self.places.iter().any(|place| place.starts_with(directory))
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
        for repository in self.all() {
            let is_made = !self.repositories.contains(&repository);
            if is_made {
                frozen.extend(self.places_at(&repository.top));
            }
            for submodule in self.submodules(&repository, &list) {
                let Some(root) = self.roots.iter().find(|root| submodule.starts_with(root)) else { continue };
                match place_of_submodule(&submodule, root) {
                    Ok(place) => frozen.push(place),
                    // The index is a command's, and so is the trouble.
                    Err(_) if is_made => {}
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

    /// Returns the settings that are not there now, for [`AbsentSettings::rename`].
    ///
    /// # Errors
    /// When a directory cannot be opened: settings in it could not be renamed.
    pub(super) fn absent_settings(&self) -> io::Result<Vec<AbsentSettings>> {
        let tops = self.all().into_iter().map(|repository| repository.top);
        let tops: BTreeSet<PathBuf> = tops.chain(self.roots.first().cloned()).collect();
        let tops = tops.iter().filter(|top| self.is_inside(top));
        tops.map(|top| AbsentSettings::find(top, &self.stuck)).filter_map(Result::transpose).collect()
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

    /// Returns the repository that git would use in a directory, if it was there at the start: one that a
    /// command made may hold links in place of git's own directories.
    pub(super) fn repository_of(&self, directory: &Path) -> Option<Repository> {
        let top = directory.ancestors().find(|above| above.join(".git").symlink_metadata().is_ok())?;
        self.repositories.iter().find(|repository| repository.top == top).cloned()
    }

    /// True for a directory that holds a repository, unless that is one which this repository keeps for its
    /// submodules.
    pub(super) fn has_foreign_repository(&self, directory: &Path, repository: &Repository) -> bool {
        let modules = repository.common.join("modules");
        let is_own = |known: &Repository| known.top == directory && known.own.starts_with(&modules);
        directory.join(".git").symlink_metadata().is_ok() && !self.repositories.iter().any(is_own)
    }
}

/// The settings that are not there at the top of a work tree, and a handle on that directory: a command may
/// move it.
#[derive(Debug)]
pub(crate) struct AbsentSettings {
    top: PathBuf,
    directory: Dir,
    names: Vec<&'static str>,
    /// Of all directories.
    stuck: Arc<Mutex<BTreeSet<PathBuf>>>,
}

impl AbsentSettings {
    /// `None` for a directory that is gone.
    fn find(top: &Path, stuck: &Arc<Mutex<BTreeSet<PathBuf>>>) -> io::Result<Option<Self>> {
        let opened = match fs::File::open(top) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened,
        };
        let directory = Dir::from_std_file(opened.map_err(|error| {
            io::Error::new(error.kind(), format!("{} cannot be opened: {error}", top.display()))
        })?);
        let is_absent = |name: &&str| directory.symlink_metadata(name).is_err();
        let names = OBEYED.split_ascii_whitespace().filter(is_absent).collect();
        Ok(Some(Self { top: top.to_owned(), directory, names, stuck: Arc::clone(stuck) }))
    }

    /// Renames the settings that a command has made, and returns a note on each.
    pub(crate) fn rename(&self) -> Vec<String> {
        // A command may have taken the directory's permissions away.
        let closed =
            self.directory.try_clone().ok().and_then(|directory| give_permissions(directory.into_std_file()));
        let is_absent = |error: io::Error| error.kind() == io::ErrorKind::NotFound;
        let made =
            self.names.iter().filter(|name| !self.directory.symlink_metadata(name).is_err_and(is_absent));
        let notes = made.map(|name| self.rename_one(name)).collect();
        if let Some((directory, permissions)) = closed {
            // As the command left it; what counts is renamed.
            let _ = directory.set_permissions(permissions);
        }
        notes
    }

    fn rename_one(&self, name: &str) -> String {
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
