//! Looks at a workspace when a command has ended: what the command made and may not stay is renamed. Made by
//! `protected`.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use cap_std::fs::{Dir, OpenOptions};

use super::super::programs::home_directories;
use super::handles::{Entry, open_directory, open_in, read_small, set_aside};
use super::harmless::is_harmless;
use super::kept::Kept;
use super::locks::{Locks, Marked, note_at_work};
use super::obeyed::{is_obeyed, is_other_repository, is_renamed};
use super::protected::{Protected, named_by_person};
use super::search::{Budget, Search, is_of_git};

/// The most notes of one command.
const MOST_NOTES: usize = 50;
const OBEYED: &str = "which other programs obey or run";
/// In the place of a `.git` that was renamed: git finds no repository there, and takes none above.
const MARKER: &str = "gitdir: /dev/null\n";

/// The state of a workspace when a command began.
#[derive(Debug)]
pub(in super::super) struct Watched {
    pub(super) protected: Arc<Protected>,
    /// Entries are from a time when no command was at work. In the places that were closed, or not looked
    /// through, this one can write nothing.
    pub(super) before: Search,
    /// The links of a time when no command was at work, with their targets.
    pub(super) links: Arc<Marked>,
    pub(super) kept: Kept,
    pub(super) notes: Vec<String>,
    /// The command can write in the workspace or another of these places.
    pub(super) can_change: bool,
    /// The files that say that a command is at work.
    pub(super) at_work: OnceLock<Vec<PathBuf>>,
    pub(super) _held: Vec<OwnedFd>,
    pub(super) _locks: Locks,
}

impl Watched {
    /// Returns one for commands that change nothing.
    pub(super) fn new(protected: Arc<Protected>, locks: Locks) -> Self {
        Self {
            protected,
            before: Search::default(),
            links: Arc::default(),
            kept: Kept::default(),
            notes: Vec::new(),
            can_change: false,
            at_work: OnceLock::new(),
            _held: Vec::new(),
            _locks: locks,
        }
    }

    /// Notes that a command starts, for the case that respool is killed before the look at what it made. On a
    /// full disk, commands still remove files.
    pub(super) fn note_start(&self) {
        let note = || {
            let directory = self.protected.locks.as_deref().filter(|_| self.can_change)?;
            note_at_work(directory, &self.protected.roots, &self.list_before()).ok()
        };
        self.at_work.get_or_init(|| note().unwrap_or_default());
    }

    /// Returns the entries and links before the command.
    pub(super) fn list_before(&self) -> Marked {
        let entries = self.before.entries.iter().map(|(path, entry)| (path.clone(), entry.target()));
        entries.chain(self.links.iter().map(|(path, target)| (path.clone(), target.clone()))).collect()
    }

    /// Puts right what is not as it was, and returns whether there was anything, and a note on each.
    pub(in super::super) fn restore(&self) -> (bool, Vec<String>) {
        if !self.can_change {
            return Default::default();
        }
        let roots = &self.protected.roots;
        let (mut budget, mut notes, mut unseen) = (Budget::new(), self.notes.clone(), BTreeSet::new());
        let after = Search::run(roots, &mut budget, Some(&self.before));
        let is_other =
            |(path, expected): &(&Path, &Entry)| Entry::find_at(path).is_some_and(|now| now != **expected);
        let expected = self.kept.expected.iter().map(|(path, entry)| (path.as_path(), entry));
        let replaced: BTreeMap<&Path, &Entry> = expected.filter(is_other).collect();
        let mut made = self.find_made(&after, &replaced, &mut budget);
        for (path, expected) in &replaced {
            // The command could not replace others.
            if expected.is_link() {
                made.insert((*path).to_owned(), OBEYED);
            } else {
                notes.push(format!(
                    "{} was replaced while the command ran, which could write it from then on: ask the user to look at it",
                    path.display()
                ));
            }
        }
        for (path, first) in self.kept.missing.iter().filter(|(path, _)| path.symlink_metadata().is_ok()) {
            // A link may be on the way.
            made.insert(Entry::find_at(path).map_or(first, |_| path).clone(), OBEYED);
        }
        // The lowest first. The end of respool does not wait for longer than a budget.
        let changed = made.iter().rev().filter(|(path, _)| !self.is_read_only(path, &replaced));
        for (path, why) in changed.take_while(|_| budget.has_time()) {
            match rename(path) {
                Ok(new) => notes.push(format!(
                    "while the command ran, {} was made, {why}; respool renamed it to {new}. If it is wanted, ask the user to look \
                     at it and copy it to its old name",
                    path.display()
                )),
                // Another command that was at work has ended, too.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    unseen.extend(roots.iter().filter(|root| path.starts_with(root)).cloned());
                    notes.push(format!("while the command ran, {} was made, {why}, and it cannot be put right: {error}", path.display()));
                }
            }
        }
        unseen.extend(
            after
                .unfinished
                .into_iter()
                .chain(after.closed)
                .filter(|place| !self.is_read_only(place, &replaced)),
        );
        unseen.extend(roots.iter().filter(|_| budget.is_spent()).cloned());
        // The first of the notes are shown.
        drop(notes.splice(..0, unseen.iter().map(|place| {
            format!(
                "{} cannot be looked through to its end, or put right: it is read-only from now on; ask the user to look at it \
                 before git runs there",
                place.display()
            )
        })));
        let at_work = self.at_work.get().into_iter().flatten();
        match self.protected.note_unseen(unseen, || self.list_before()) {
            Ok(()) => at_work.for_each(|file| _ = fs::remove_file(file)),
            Err(error) if at_work.count() == 0 => notes.push(format!("that cannot be remembered ({error}): the next start of respool takes what is left for the user's")),
            Err(_) => {}
        }
        let is_changed = notes.len() > self.notes.len();
        let others = notes.len().saturating_sub(MOST_NOTES);
        notes.truncate(MOST_NOTES);
        notes.extend((others > 0).then(|| format!("there are {others} more such notes")));
        (is_changed, notes)
    }

    /// Finds what may not stay, with the reasons. Also what this command could not change: another one could
    /// lead its mounts elsewhere, and end before it. All is new in a replaced directory: numbers return.
    fn find_made(
        &self,
        after: &Search,
        replaced: &BTreeMap<&Path, &Entry>,
        budget: &mut Budget,
    ) -> BTreeMap<PathBuf, &'static str> {
        let (known, mut made) = (&self.before.entries, BTreeMap::new());
        let is_top = |top: &Path| {
            self.protected.roots.iter().any(|root| root == top) || known.contains_key(&top.join(".git"))
        };
        let is_setting = |path: &Path| {
            path.file_name().is_some_and(|name| {
                is_other_repository(name) || (is_obeyed(name) && path.parent().is_some_and(is_top))
            })
        };
        let is_kept = |path: &Path| {
            let Kept { frozen, missing, .. } = &self.kept;
            path.ancestors().any(|at| frozen.contains(at) || missing.contains_key(at) || is_setting(at))
        };
        // By them git obeys what is in a repository besides its `.git`.
        let named = named_by_person(home_directories().first().map(PathBuf::as_path)).1;
        let has_none_named = |top: &Path| named.iter().all(|name| top.join(name).symlink_metadata().is_err());
        let is_new = |(path, entry): &(&PathBuf, &Entry)| {
            known.get(*path) != Some(*entry) || is_in_any(path, replaced)
        };
        for (path, entry) in after.entries.iter().filter(is_new) {
            // It is opened, and renamed, name by name.
            if !budget.take(path.iter().count()) {
                break;
            }
            if is_of_git(path) {
                // By a second name, a later command could change a file.
                let has_one_name = || path.metadata().is_ok_and(|data| data.nlink() == 1);
                let is_marker = || has_one_name() && read_small(path).as_deref() == Some(MARKER);
                let is_harmless =
                    || is_harmless(path, &after.links) && path.parent().is_some_and(has_none_named);
                let is_excused = || is_harmless() || is_marker();
                // A directory of the person's may become a repository without a work tree: none stays.
                if !path.ends_with(".git") || entry.is_link() || !is_excused() {
                    made.insert(
                        path.clone(),
                        "whose configuration or hooks can start programs when git looks into it",
                    );
                }
            } else if !self.kept.expected.contains_key(path) && is_setting(path) && !is_renamed(path) {
                made.insert(path.clone(), "which editors, shells or agents obey without being started");
            }
        }
        let new_links = after.links.iter().filter(|(path, link)| self.links.get(*path) != Some(&link.target));
        let away =
            new_links.filter(|(path, link)| budget.take(1) && self.protected.leads_away(path, link, is_kept));
        made.extend(away.map(|(link, _)| {
            (link.clone(), "by which programs come to what commands write elsewhere, or only read")
        }));
        made
    }

    /// True where the command could write nothing.
    fn is_read_only(&self, path: &Path, replaced: &BTreeMap<&Path, &Entry>) -> bool {
        self.before.closed.iter().any(|place| path.starts_with(place) && !is_in_any(place, replaced))
    }
}

fn is_in_any(path: &Path, places: &BTreeMap<&Path, &Entry>) -> bool {
    path.ancestors().any(|above| places.contains_key(above))
}

/// Renames what a command made, and returns its new name.
fn rename(path: &Path) -> io::Result<String> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let directory = open_directory(parent)?;
    // The command knows the new name, too.
    let git = path.ends_with(".git").then(|| open_in(&directory, name).ok()).flatten();
    let head = OsStr::new("HEAD");
    let git = git.filter(|git| Entry::find(git, head).is_some());
    let head = git.map(|git| set_aside(&git, head)).transpose()?;
    let new = set_aside(&directory, name)?;
    if path.ends_with(".git") {
        put_marker(&directory, name)?;
    }
    Ok(head.map_or_else(|| new.clone(), |head| format!("{new}, and the `HEAD` in it to {head}")))
}

/// Another command may put a link there meanwhile, which is not followed.
fn put_marker(directory: &Dir, name: &OsStr) -> io::Result<()> {
    let mut marker = directory.open_with(name, OpenOptions::new().write(true).create_new(true))?;
    marker.write_all(MARKER.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_marker_goes_through_a_link() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config"), "own").unwrap();
        std::os::unix::fs::symlink("config", folder.path().join(".git")).unwrap();
        let directory = open_directory(&folder.path().canonicalize().unwrap()).unwrap();
        assert!(put_marker(&directory, OsStr::new(".git")).is_err());
        assert_eq!(std::fs::read_to_string(folder.path().join("config")).unwrap(), "own");
    }
}
