//! The places that a command leaves as they are, and how many of them a sandbox can hold. Made by
//! `protected`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::super::programs::{Resolved, resolve_symlinks};
use super::handles::Entry;
use super::obeyed::is_renamed;
use super::search::Budget;

/// The most mounts that keep places read-only: bubblewrap takes a time that grows with their square (0.15 s
/// for a hundred, 2.5 s for four hundred, minutes for three thousand). A long path counts as several: all are
/// in one argument of a program, which has 131,072 bytes at most, and a byte takes up to three there.
const MOST_MOUNTS: usize = 160;
const BYTES_OF_MOUNT: usize = 190;

/// The places that a command leaves as they are.
#[derive(Clone, Debug, Default)]
pub(super) struct Kept {
    /// Files and directories that are read-only.
    pub(super) frozen: BTreeSet<PathBuf>,
    /// Directories that stay where they are.
    pub(super) pinned: BTreeSet<PathBuf>,
    /// Paths, links on the way to those among them, and the entries that stay there.
    pub(super) expected: BTreeMap<PathBuf, Entry>,
    /// Paths at which nothing is, and the first name on the way that is missing.
    pub(super) missing: BTreeMap<PathBuf, PathBuf>,
    /// A repository that is written although a directory above it is read-only as a whole.
    pub(super) spared: Option<PathBuf>,
}

impl Kept {
    /// Adds the file or directory at a path and the links on the way; if nothing is there, the first name
    /// that is missing.
    pub(super) fn add(&mut self, path: &Path, roots: &[PathBuf], budget: &mut Budget) {
        let Some(Resolved { real, links, left }) = budget.take(16).then(|| resolve_symlinks(path)).flatten()
        else {
            return;
        };
        let is_inside = |path: &Path| roots.iter().any(|root| path.starts_with(root));
        let missing = real.ancestors().take_while(|path| path.symlink_metadata().is_err()).last();
        // What is in `.git` is read-only with it.
        let is_named =
            |path: &&Path| path.parent().is_some_and(is_inside) && !path.iter().any(|part| part == ".git");
        for name in links.iter().map(PathBuf::as_path).chain(missing).filter(is_named) {
            let Some(entry) = Entry::find_at(name) else {
                // By this path it is found at the end, whatever is on the way then.
                self.missing.insert(real.clone(), name.to_owned());
                continue;
            };
            let parent = name.parent().filter(|parent| !roots.iter().any(|root| root == parent));
            self.pinned.extend(parent.map(Path::to_owned));
            self.expected.insert(name.to_owned(), entry);
        }
        self.pinned.extend(left.into_iter().filter(|left| left.parent().is_some_and(is_inside)));
        let is_frozen = || real.ancestors().any(|above| self.frozen.contains(above));
        if missing.is_none() && is_inside(&real) && !is_frozen() {
            self.frozen.insert(real);
        }
    }

    /// True when something in this directory is kept that only a mount keeps, besides what was renamed.
    pub(super) fn has_any_in(&self, directory: &Path) -> bool {
        let mut places = self.frozen.iter().chain(&self.pinned);
        places.any(|place| place.starts_with(directory) && !is_renamed(place))
    }

    /// Makes directories read-only as a whole, and forgets what is in them: these themselves have to stay.
    pub(super) fn close(&mut self, directories: BTreeSet<PathBuf>, spared: Option<PathBuf>) {
        let is_left = |place: &Path| {
            spared.as_ref().is_some_and(|own| place.starts_with(own))
                || !place.ancestors().any(|above| directories.contains(above))
        };
        self.frozen.retain(|place| is_left(place));
        self.pinned.retain(|place| is_left(place));
        self.expected.retain(|place, _| is_left(place));
        let entries = directories.iter().filter_map(|place| Some((place.clone(), Entry::find_at(place)?)));
        self.expected.extend(entries);
        self.frozen.extend(directories);
        self.spared = spared;
    }

    /// Makes the first directories below the roots read-only as a whole, or the roots, until a sandbox can be
    /// made in a moment. The repository that a command works in keeps its own places, as far as possible.
    pub(super) fn bound(&mut self, roots: &[PathBuf], own: Option<PathBuf>) {
        let is_left =
            |own: &PathBuf| !roots.contains(own) && !own.ancestors().any(|above| self.frozen.contains(above));
        let own = own.filter(is_left);
        let first = |place: &PathBuf| {
            let root = roots.iter().find(|root| place.starts_with(root))?;
            Some(root.join(place.strip_prefix(root).ok()?.iter().next().unwrap_or_default()))
        };
        let firsts = self.frozen.iter().chain(&self.pinned).filter_map(first);
        let firsts: BTreeSet<PathBuf> = firsts.filter(|first| own.as_ref() != Some(first)).collect();
        let all: BTreeSet<PathBuf> = roots.iter().cloned().collect();
        for (whole, spared) in [(firsts, own.clone()), (all.clone(), own), (all, None)] {
            if self.fits(roots) {
                return;
            }
            self.close(whole, spared);
        }
    }

    fn fits(&self, roots: &[PathBuf]) -> bool {
        let is_below = |path: &&Path| roots.iter().any(|root| path.starts_with(root) && *path != root);
        let (mut points, mut mounts) = (BTreeSet::new(), 0);
        for place in self.frozen.iter().chain(&self.pinned) {
            for point in place.ancestors().take_while(is_below) {
                if !points.insert(point) {
                    break;
                }
                mounts += 1 + point.as_os_str().len() / BYTES_OF_MOUNT;
                if mounts > MOST_MOUNTS {
                    return false;
                }
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One place cannot be looked through, and another one has many repositories.
    #[test]
    fn nothing_is_spared_in_a_closed_place() {
        let roots = ["/closed", "/full"].map(PathBuf::from);
        for (own, is_spared) in [("/closed/own", false), ("/full/own", true)] {
            let mut kept = Kept::default();
            kept.close([roots[0].clone()].into(), None);
            kept.frozen.extend((0..200).map(|number| roots[1].join(format!("{number}/.git"))));
            kept.bound(&roots, Some(own.into()));
            assert_eq!(kept.spared.is_some(), is_spared, "{own}");
        }
    }
}
