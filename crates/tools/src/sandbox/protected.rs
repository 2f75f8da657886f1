//! What commands never write inside a workspace, because other programs run it or obey it without being started by the person: each
//! git repository, and the settings of editors, shells and agents. It is found once, before the first command: a repository that a
//! command makes afterwards is the command's.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

/// Settings that programs obey on their own, at the top of the workspace and of each repository.
const OBEYED: [&str; 24] = [
    ".envrc",
    ".direnv",
    "mise.toml",
    ".mise.toml",
    ".mise",
    ".vscode",
    ".idea",
    ".zed",
    ".fleet",
    ".devcontainer",
    ".devcontainer.json",
    ".exrc",
    ".nvim.lua",
    ".dir-locals.el",
    ".claude",
    ".codex",
    ".cursor",
    ".gemini",
    ".opencode",
    "opencode.json",
    ".mcp.json",
    ".husky",
    ".githooks",
    "respool.toml",
];
/// More directories are not searched; the rest of the workspace is then read-only as a whole.
const MOST_DIRECTORIES: usize = 200_000;

/// A repository that was there before the first command.
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

/// What commands never write.
#[derive(Debug, Default)]
pub(super) struct Protected {
    pub(super) repositories: Vec<Repository>,
    places: Vec<PathBuf>,
    /// The submodules that the index of each repository names.
    submodules: Mutex<BTreeMap<PathBuf, (Stamp, Vec<PathBuf>)>>,
}

impl Protected {
    /// Searches a workspace, and finds the repository that it is in.
    pub(super) fn find(workspace: &Path) -> Self {
        let mut found = Self::default();
        let mut tops = vec![workspace.to_owned()];
        let mut left = MOST_DIRECTORIES;
        search(workspace, &mut left, &mut tops);
        if left == 0 {
            tracing::warn!(target: "respool::tools", workspace = %workspace.display(),
                "the workspace has too many directories to find all repositories: commands only read it");
            found.places.push(workspace.to_owned());
        }
        found.repositories.extend(workspace.ancestors().skip(1).find_map(|above| repository(above, &[])));
        for top in tops {
            let known: Vec<PathBuf> = found.repositories.iter().map(|known| known.common.clone()).collect();
            found.repositories.extend(repository(&top, &known));
            found.add_places(&top, workspace);
        }
        found
    }

    /// Adds what is protected in the top directory of a work tree.
    fn add_places(&mut self, top: &Path, workspace: &Path) {
        let git = top.join(".git");
        if is_symlink(&git) {
            // A link cannot be made read-only, so the directory that it is in is.
            self.places.push(top.to_owned());
        }
        let inner = fs::read_dir(&git).into_iter().flatten().flatten().map(|entry| entry.path());
        let links = inner.filter(|path| is_symlink(path));
        for path in OBEYED.map(|name| top.join(name)).into_iter().chain([git.clone()]).chain(links) {
            // Of a link, what it leads to is protected.
            self.places.extend(path.canonicalize().ok().filter(|real| real.starts_with(workspace)));
        }
    }

    /// True when something in the workspace has to be protected.
    pub(super) fn has_any(&self) -> bool {
        !self.places.is_empty()
    }

    /// Directories of git's outside the workspace that its own `.git` leads to.
    pub(super) fn git_directories(&self) -> impl Iterator<Item = &PathBuf> {
        self.repositories.iter().flat_map(|repository| [&repository.own, &repository.common])
    }

    /// What is read-only now: what was found, and the directories of submodules. A command could make a repository in one that is
    /// empty, and a person's `git status` would obey its configuration.
    ///
    /// # Errors
    /// When the directory of a submodule cannot be protected.
    pub(super) fn frozen(
        &self,
        workspace: &Path,
        list: impl Fn(&Repository) -> Vec<PathBuf>,
    ) -> io::Result<Vec<PathBuf>> {
        let mut frozen = self.places.clone();
        for repository in &self.repositories {
            for submodule in self.submodules(repository, &list) {
                if submodule.starts_with(workspace) && submodule != workspace {
                    frozen.push(place_of_submodule(&submodule, workspace)?);
                }
            }
        }
        Ok(frozen)
    }

    fn submodules(
        &self,
        repository: &Repository,
        list: impl Fn(&Repository) -> Vec<PathBuf>,
    ) -> Vec<PathBuf> {
        let stamp = stamp(&repository.own.join("index"));
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

    /// The repository that git would use in a directory, if it is protected.
    pub(super) fn repository_of(&self, directory: &Path) -> Option<&Repository> {
        let top = directory.ancestors().find(|above| above.join(".git").symlink_metadata().is_ok())?;
        self.repositories.iter().find(|repository| repository.top == top)
    }

    /// True for a directory that holds a repository, unless that is one which this repository keeps for its submodules.
    pub(super) fn has_foreign_repository(&self, directory: &Path, repository: &Repository) -> bool {
        let modules = repository.common.join("modules");
        let is_own = |known: &Repository| known.top == directory && known.own.starts_with(&modules);
        directory.join(".git").symlink_metadata().is_ok() && !self.repositories.iter().any(is_own)
    }
}

/// What is read-only of a submodule: its link to its repository, or without one all of it.
fn place_of_submodule(directory: &Path, workspace: &Path) -> io::Result<PathBuf> {
    let is_real = |path: &Path| path.canonicalize().is_ok_and(|real| real == path);
    let git = directory.join(".git");
    if is_real(&git) {
        return Ok(git);
    }
    if let Ok(below) = directory.strip_prefix(workspace) {
        let root = cap_std::fs::Dir::open_ambient_dir(workspace, cap_std::ambient_authority())?;
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

/// Finds each directory with a `.git` below a directory, which itself is in the list.
fn search(directory: &Path, left: &mut usize, tops: &mut Vec<PathBuf>) {
    let mut waiting = vec![directory.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            if entry.file_name().eq_ignore_ascii_case(".git") {
                tops.push(directory.clone());
            } else if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                *left = left.saturating_sub(1);
                waiting.extend((*left > 0).then(|| entry.path()));
            }
        }
    }
    tops.dedup();
}

fn is_symlink(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|data| data.is_symlink())
}

/// The repository whose `.git` is in this directory. A file there leads elsewhere only to a linked work tree that knows of it, or to
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

/// The repository of a linked work tree, which has to know of this one: anybody can write a file that leads somewhere.
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
