//! The git repositories of a workspace, as far as they need care: what git has to write there, and what no tool may write,
//! because git runs it (hooks) or takes commands from it (configuration).

use std::fs;
use std::path::{Path, PathBuf};

use super::gitlinks::Gitlinks;
use super::spec::Spec;

/// How deep repositories are looked for in a workspace, and in how many directories.
const DEPTH: usize = 3;
const MOST_DIRECTORIES: usize = 2_000;
/// Submodules of submodules are looked for so often.
const SUBMODULES: usize = 10;
/// Large, and nobody's work.
const PASSED_OVER: [&str; 4] = ["node_modules", "target", "venv", "vendor"];

/// One repository, by its own directory (`.git`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Repository {
    /// Where its objects, references and configuration are.
    common: PathBuf,
    /// For a linked work tree: its own part of that.
    own: Option<PathBuf>,
    /// The file that leads there.
    link: Option<PathBuf>,
    /// Directories of git's, here and of submodules, without a `commondir`: a new one would lead git to another configuration.
    without_commondir: Vec<PathBuf>,
    /// The submodules that its index names.
    gitlinks: Gitlinks,
}

/// The repositories in a workspace, and the one that it is in.
pub(super) fn find(workspace: &Path) -> Vec<Repository> {
    let mut found: Vec<Repository> = workspace.ancestors().find_map(at).into_iter().collect();
    let mut left = MOST_DIRECTORIES;
    below(workspace, DEPTH, &mut left, &mut found);
    unique(&mut found);
    for _ in 0..SUBMODULES {
        let count = found.len();
        let named: Vec<Repository> =
            found.iter().flat_map(|repository| repository.gitlinks.directories()).filter_map(at).collect();
        found.extend(named);
        unique(&mut found);
        if found.len() == count {
            break;
        }
    }
    found
}

fn unique(found: &mut Vec<Repository>) {
    found.sort_by(|a, b| a.common.cmp(&b.common).then_with(|| a.own.cmp(&b.own)));
    found.dedup_by(|a, b| (&a.common, &a.own) == (&b.common, &b.own));
}

/// Takes away or renames what commands left that leads git to another configuration. Returns what was done, for people.
pub(super) fn restore(repositories: &[Repository]) -> Option<String> {
    let mut notes: Vec<String> = repositories.iter().flat_map(Repository::remove_commondirs).collect();
    let known: Vec<&Gitlinks> = repositories.iter().map(|repository| &repository.gitlinks).collect();
    notes.extend(known.iter().flat_map(|gitlinks| gitlinks.restore(&known)));
    (!notes.is_empty()).then(|| notes.join("; "))
}

fn below(directory: &Path, depth: usize, left: &mut usize, found: &mut Vec<Repository>) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let name = name.to_string_lossy();
        if !is_directory || name.starts_with('.') || PASSED_OVER.contains(&&*name) || *left == 0 {
            continue;
        }
        *left -= 1;
        found.extend(at(&entry.path()));
        if depth > 1 {
            below(&entry.path(), depth - 1, left, found);
        }
    }
}

/// The repository whose `.git` is in this directory.
fn at(directory: &Path) -> Option<Repository> {
    let mut git = directory.join(".git");
    let mut kind = fs::symlink_metadata(&git).ok()?.file_type();
    if kind.is_symlink() {
        git = git.canonicalize().ok().filter(|git| git.starts_with(directory))?;
        kind = fs::symlink_metadata(&git).ok()?.file_type();
    }
    if kind.is_dir() {
        return Some(Repository::new(directory, git, None, None));
    }
    if !kind.is_file() {
        return None;
    }
    let target = line(&git)?.strip_prefix("gitdir:")?.trim().to_owned();
    let own = directory.join(target).canonicalize().ok()?;
    let common = linked(&git, &own).or_else(|| submodule(directory, &own))?;
    Some(Repository::new(directory, common, Some(own), Some(git)))
}

/// The repository of a linked work tree, which has to know of this one: anybody can write a file that leads somewhere.
fn linked(git: &Path, own: &Path) -> Option<PathBuf> {
    let back = own.join(line(&own.join("gitdir"))?).canonicalize().ok()?;
    let common = own.join(line(&own.join("commondir"))?).canonicalize().ok()?;
    (back == git.canonicalize().ok()? && own.starts_with(&common) && common.join("HEAD").is_file())
        .then_some(common)
}

/// The repository of a submodule, which has to be a part of one above it.
fn submodule(directory: &Path, own: &Path) -> Option<PathBuf> {
    let is_part = |above: &Path| {
        above.join(".git/modules").canonicalize().is_ok_and(|modules| own.starts_with(modules))
    };
    (directory.ancestors().skip(1).any(is_part) && own.join("HEAD").is_file()).then(|| own.to_owned())
}

fn line(file: &Path) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().next().map(|line| line.trim().to_owned())
}

impl Repository {
    fn new(root: &Path, common: PathBuf, own: Option<PathBuf>, link: Option<PathBuf>) -> Self {
        let mut without_commondir = vec![common.clone()];
        modules(&common.join("modules"), DEPTH, &mut without_commondir);
        without_commondir.retain(|directory| fs::symlink_metadata(directory.join("commondir")).is_err());
        let gitlinks = Gitlinks::of(root, own.as_ref().unwrap_or(&common).join("index"));
        Self { common, own, link, without_commondir, gitlinks }
    }

    /// Below the workspace it can be written anyway, and there a command could have put a link in its place by now.
    pub(super) fn add_to(&self, workspace: &Path, spec: &mut Spec) {
        if !self.common.starts_with(workspace) {
            spec.writable.push(self.common.clone());
        }
        spec.pinned.push(self.common.clone());
        let hooks = self.common.join("hooks");
        // What is not there cannot be made read-only; git makes this directory itself.
        let _ = fs::create_dir(&hooks);
        spec.frozen.extend([hooks, self.common.join("config"), self.common.join("config.worktree")]);
        let work_trees = fs::read_dir(self.common.join("worktrees")).into_iter().flatten().flatten();
        for own in work_trees.map(|entry| entry.path()).chain(self.own.clone()) {
            spec.frozen.extend(["config.worktree", "commondir", "gitdir"].map(|name| own.join(name)));
        }
        spec.frozen.extend(self.link.clone());
        let mut submodules = Vec::new();
        modules(&self.common.join("modules"), DEPTH, &mut submodules);
        for path in submodules {
            let _ = fs::create_dir(path.join("hooks"));
            spec.frozen.extend([path.join("hooks"), path.join("config")]);
            spec.pinned.push(path);
        }
        spec.frozen.retain(|path| fs::symlink_metadata(path).is_ok());
    }

    /// Removes each `commondir` that a command made, and says so.
    fn remove_commondirs(&self) -> impl Iterator<Item = String> {
        let files = self.without_commondir.iter().map(|directory| directory.join("commondir"));
        let removed =
            files.filter(|file| fs::symlink_metadata(file).is_ok() && fs::remove_file(file).is_ok());
        removed
            .map(|file| format!("{} was removed: it would lead git to another configuration", file.display()))
    }
}

/// The repositories of submodules, by git's own directories for them.
fn modules(directory: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        let path = entry.path();
        if depth > 1 {
            modules(&path, depth - 1, found);
        }
        if path.join("HEAD").is_file() {
            found.push(path);
        }
    }
}
