//! The files that commands never write, because other programs run or obey them without being started by the person: git
//! repositories, and the settings of editors, shells and agents. What is there when a command begins is read-only to it. Such
//! settings that it makes where there were none are renamed when it has ended.
//!
//! Repositories are searched for before the first command, and after that only near the top of the workspace, where commands clone.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use cap_std::fs::Dir;

/// Settings that programs obey on their own, at the top of the workspace and of each repository.
const OBEYED: &str = "\
    .envrc .direnv mise.toml .mise.toml .mise .vscode .idea .zed .fleet .devcontainer .devcontainer.json .helix \
    .exrc .nvimrc .nvim.lua .nvim .vim .lazy.lua .dir-locals.el .claude .codex .cursor .gemini .opencode opencode.json \
    .mcp.json .qwen .kiro .windsurf .continue .roo .aider.conf.yml .crush.json crush.json .husky .githooks respool.toml";
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
    /// The submodules that the index of each repository names.
    submodules: Mutex<BTreeMap<PathBuf, (Stamp, Vec<PathBuf>)>>,
}

impl Protected {
    /// Searches the workspace and the writable places of the configuration, and finds the repository that the workspace is in.
    pub(super) fn find(workspace: &Path, configured: &[PathBuf]) -> Self {
        let mut found = Self { roots: vec![workspace.to_owned()], ..Self::default() };
        found.roots.extend(configured.iter().filter(|place| place.is_dir()).cloned());
        let mut tops = BTreeSet::from([workspace.to_owned()]);
        let mut left = MOST_DIRECTORIES;
        for root in found.roots.clone() {
            search(&root, usize::MAX, &mut left, &mut tops);
            if left == 0 {
                tracing::warn!(target: "respool::tools", directory = %root.display(),
                    "there are too many directories to find all repositories: commands only read this one");
                found.places.push(root);
            }
        }
        found.repositories.extend(workspace.ancestors().skip(1).find_map(|above| repository(above, &[])));
        for top in tops {
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

    /// Searches for repositories that commands have made. Only a real `.git` directory counts: a command could have made a link
    /// to any other.
    pub(super) fn find_made(&self) {
        let (mut tops, mut left) = (BTreeSet::new(), MOST_DIRECTORIES);
        for root in &self.roots {
            search(root, DEPTH_OF_CLONES, &mut left, &mut tops);
        }
        let is_new = |top: &PathBuf| !self.repositories.iter().any(|known| known.top == *top);
        let made = tops.into_iter().filter(is_new).filter_map(|top| {
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

    /// Returns what is read-only now: what was found, and the directories of submodules. A command could make a repository in one
    /// that is empty, and a person's `git status` would obey its configuration.
    ///
    /// # Errors
    /// When the directory of a submodule cannot be protected.
    pub(super) fn frozen(&self, list: impl Fn(&Repository) -> Vec<PathBuf>) -> io::Result<Vec<PathBuf>> {
        let mut frozen = self.places.clone();
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

    /// Returns the settings that are not there now, for [`AbsentSettings::rename`].
    pub(super) fn absent_settings(&self) -> Vec<AbsentSettings> {
        let tops = self.all().into_iter().map(|repository| repository.top);
        let tops: BTreeSet<PathBuf> = tops.chain(self.roots.first().cloned()).collect();
        tops.iter().filter(|top| self.is_inside(top)).filter_map(|top| AbsentSettings::find(top)).collect()
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

    /// Returns the repository that git would use in a directory, if it is protected.
    pub(super) fn repository_of(&self, directory: &Path) -> Option<Repository> {
        let top = directory.ancestors().find(|above| above.join(".git").symlink_metadata().is_ok())?;
        self.all().into_iter().find(|repository| repository.top == top)
    }

    /// True for a directory that holds a repository, unless that is one which this repository keeps for its submodules.
    pub(super) fn has_foreign_repository(&self, directory: &Path, repository: &Repository) -> bool {
        let modules = repository.common.join("modules");
        let is_own = |known: &Repository| known.top == directory && known.own.starts_with(&modules);
        directory.join(".git").symlink_metadata().is_ok() && !self.repositories.iter().any(is_own)
    }
}

/// The settings that are not there at the top of a work tree, and a handle on that directory: a command may move it.
#[derive(Debug)]
pub(crate) struct AbsentSettings {
    top: PathBuf,
    directory: Dir,
    names: Vec<&'static str>,
}

impl AbsentSettings {
    fn find(top: &Path) -> Option<Self> {
        let directory = Dir::open_ambient_dir(top, cap_std::ambient_authority()).ok()?;
        let is_absent = |name: &&str| directory.symlink_metadata(name).is_err();
        let names = OBEYED.split_ascii_whitespace().filter(is_absent).collect();
        Some(Self { top: top.to_owned(), directory, names })
    }

    /// Renames the settings that a command has made, and returns a note on each.
    pub(crate) fn rename(&self) -> Vec<String> {
        let made = self.names.iter().filter(|name| self.directory.symlink_metadata(name).is_ok());
        made.map(|name| self.rename_one(name)).collect()
    }

    fn rename_one(&self, name: &str) -> String {
        let new_name = |count: usize| match count {
            0 => format!("{name}{RENAMED}"),
            _ => format!("{name}{RENAMED}-{count}"),
        };
        let is_free = |new: &String| self.directory.symlink_metadata(new).is_err();
        let path = self.top.join(name);
        let new = (0..100).map(new_name).find(is_free).unwrap_or_else(|| new_name(0));
        match self.directory.rename(name, &self.directory, &new) {
            Ok(()) => format!(
                "the command made {}, which editors, shells or agents obey without being started; respool renamed it to {new}. \
                 If it is wanted, ask the user to rename it",
                path.display()
            ),
            Err(error) => format!(
                "the command made {}, which editors, shells or agents obey without being started, and it could not be renamed \
                 ({error}): ask the user to look at it",
                path.display()
            ),
        }
    }
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
    use std::os::unix::fs::MetadataExt as _;
    let data = fs::metadata(file).ok();
    data.map_or((None, 0, 0), |data| (data.modified().ok(), data.len(), data.ino()))
}

/// Finds each directory with a `.git` below a directory, and that itself, down to this depth.
fn search(root: &Path, depth: usize, left: &mut usize, tops: &mut BTreeSet<PathBuf>) {
    let mut waiting = vec![(root.to_owned(), 0)];
    while let Some((directory, level)) = waiting.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            if entry.file_name().eq_ignore_ascii_case(".git") {
                tops.insert(directory.clone());
            } else if level < depth && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                *left = left.saturating_sub(1);
                waiting.extend((*left > 0).then(|| (entry.path(), level + 1)));
            }
        }
    }
}

fn is_symlink(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|data| data.is_symlink())
}

/// Returns the repository whose `.git` is in this directory. A file there leads elsewhere only to a linked work tree that knows of it, or to
/// a submodule's place in a repository above it.
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

/// Returns the repository of a linked work tree, which has to know of this one: anybody can write a file that leads somewhere.
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
