//! git's repositories with a work tree, and where the words in them lead. Called by `protected`.

use std::path::{Path, PathBuf};

use super::super::programs::resolve_symlinks;
use super::handles::{read_path, target_of};
use super::obeyed::{links_in, named_by_configuration};

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

/// Returns where a `.git` leads, by its own words, links in it and its configuration.
pub(super) fn named_by_repository(top: &Path, home: Option<&Path>) -> Vec<PathBuf> {
    let git = top.join(".git");
    // git obeys the files to which included ones lead.
    let own = target_of(&git);
    let common = own.as_ref().and_then(|own| Some(own.join(read_path(&own.join("commondir"))?)));
    let mut named: Vec<PathBuf> = own.into_iter().chain(common).collect();
    let all: Vec<PathBuf> = named.iter().cloned().chain([git]).collect();
    named.extend(all.iter().flat_map(|git| links_in(git).chain(links_in(&git.join("hooks")))));
    let files = all.iter().flat_map(|git| ["config", "config.worktree"].map(|name| git.join(name)));
    named.extend(named_by_configuration(files.collect(), top, home));
    named
}

/// Returns the repository whose `.git` is in this directory. A file there leads elsewhere only to a linked
/// work tree that knows of it, to a submodule's place in a repository above it, or below this directory.
pub(super) fn repository(top: &Path, known: &[PathBuf]) -> Option<Repository> {
    let git = top.join(".git");
    let kind = git.symlink_metadata().ok()?.file_type();
    let repository = |own: PathBuf, common| Repository { top: top.to_owned(), own, common };
    if kind.is_dir() {
        return Some(repository(git.clone(), git));
    }
    if !kind.is_file() {
        return None;
    }
    let own = target_of(&git)?.canonicalize().ok()?;
    if let Some(common) = common_of_linked(&git) {
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
fn common_of_linked(git: &Path) -> Option<PathBuf> {
    // git writes the real path. A command could lead a link elsewhere.
    let own = resolve_symlinks(&target_of(git)?).filter(|own| own.links.is_empty())?.real;
    let back = own.join(read_path(&own.join("gitdir"))?).canonicalize().ok()?;
    let common = own.join(read_path(&own.join("commondir"))?).canonicalize().ok()?;
    let is_known = back == git.canonicalize().ok()? && own.starts_with(common.join("worktrees"));
    (is_known && common.join("HEAD").is_file()).then_some(common)
}
