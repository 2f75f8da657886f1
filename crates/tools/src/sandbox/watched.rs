//! Looks at a workspace when a command has ended. An entry that was not there before, and may not stay, is
//! renamed, and a link that was replaced is put back. Made by `protected`.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cap_std::fs::{Dir, MetadataExt as _};
use rustix::fs::{Mode, fchmod};

use super::budget::Budget;
use super::handles::{Entry, MOST_TEXT, open_directory, open_file, read_at_most};
use super::harmless::is_harmless;
use super::obeyed::{RENAMED, is_obeyed};
use super::protected::{Known, Locks, Protected, common_of_linked};
use super::search::{Search, is_of_git};

/// The most notes of one command.
const MOST_NOTES: usize = 50;

/// The state of a workspace when a command began.
#[derive(Debug)]
pub(in super::super) struct Watched {
    pub(super) protected: Arc<Protected>,
    /// The places that are searched.
    pub(super) roots: Vec<PathBuf>,
    /// Directories that were closed already.
    pub(super) closed: BTreeSet<PathBuf>,
    /// Names at which nothing must be made.
    pub(super) missing: BTreeSet<PathBuf>,
    /// Places in which the command could write nothing.
    pub(super) unsearched: BTreeSet<PathBuf>,
    pub(super) _locks: Option<Locks>,
}

impl Watched {
    /// Puts right what is not as it was, and returns a note on each.
    pub(in super::super) fn restore(&self) -> Vec<String> {
        let state = self.protected.state();
        let (known, tops) = (state.known.clone(), state.tops.clone());
        drop(state);
        let unsearched = self.unsearched.iter().map(|place| {
            format!(
                "{} is read-only for commands: it has too many directories or settings, or too long paths, to be looked through",
                place.display()
            )
        });
        let mut notes: Vec<String> = unsearched.collect();
        let mut budget = Budget::new();
        let mut after = Search::run(&self.roots, &mut budget, Some(&self.closed));
        // git looks there, too, when the person follows the link.
        let caches = after.links.iter().filter_map(|link| self.protected.linked_cache(link));
        let caches: Vec<PathBuf> = caches.collect::<BTreeSet<_>>().into_iter().collect();
        let linked = Search::run(&caches, &mut budget, Some(&self.closed));
        notes.extend(linked.unfinished.iter().map(|place| {
            format!(
                "{}, to which a link leads, has too many directories to be looked through",
                place.display()
            )
        }));
        after.entries.extend(linked.entries);
        notes.extend(
            after
                .opened
                .iter()
                .map(|path| format!("respool opened {} again, to look into it", path.display())),
        );
        // Also what this command could not change: others may run meanwhile.
        for (path, entry) in &after.entries {
            if budget.take(1) && !may_stay(path, entry, &known, &tops, &mut budget) {
                self.put_right(path, None, &mut notes);
            }
        }
        for name in &self.missing {
            self.put_right(name, None, &mut notes);
        }
        for (link, Known { entry, is_sure }) in &known {
            if *is_sure && entry.is_link() && !is_of_git(link) && !self.roots.is_empty() {
                self.put_right(link, Some(entry), &mut notes);
            }
        }
        let closed = after.closed.iter().filter(|path| !self.closed.contains(*path));
        let spent = self.roots.iter().filter(|_| budget.is_spent());
        let unseen: BTreeSet<&PathBuf> = after.unfinished.iter().chain(closed).chain(spent).collect();
        for place in unseen.into_iter().filter(|place| !self.is_read(place)) {
            notes.push(format!(
                "repositories that the command made in {} cannot all be found, because there are too many directories or too long \
                 paths: it is read-only from now on; ask the user to look before git runs there",
                place.display()
            ));
        }
        let others = notes.len().saturating_sub(MOST_NOTES);
        notes.truncate(MOST_NOTES);
        notes.extend((others > 0).then(|| format!("there are {others} more such notes")));
        notes
    }

    /// True where the command could write nothing.
    fn is_read(&self, path: &Path) -> bool {
        self.unsearched.iter().any(|root| path.starts_with(root))
    }

    /// Renames what is at a path if it is not the link that belongs there, and puts that back.
    fn put_right(&self, path: &Path, link: Option<&Entry>, notes: &mut Vec<String>) {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return };
        let directory = match open_directory(parent) {
            Err(error) if error.kind() != io::ErrorKind::NotFound && !self.is_read(path) => {
                self.protected.state().stuck.insert(path.to_owned());
                notes.push(format!("the command closed {}: {error}", parent.display()));
                return;
            }
            Ok(directory) if !self.is_read(path) => directory,
            _ => return,
        };
        let now = Entry::find(&directory, name);
        if now.as_ref() == link {
            return;
        }
        if now.is_some() {
            self.rename(&directory, path, notes);
        }
        if let Some(Entry::Link(target)) = link {
            notes.push(match directory.symlink_contents(target, name) {
                Ok(()) => format!("respool put the link {} back", name.display()),
                Err(error) => format!("the link {} is gone: {error}", name.display()),
            });
        }
    }

    /// Renames what a command made in this directory.
    fn rename(&self, directory: &Dir, path: &Path, notes: &mut Vec<String>) {
        let name = path.file_name().unwrap_or_default();
        let text = name.to_string_lossy();
        // No name has more than 255 bytes.
        let text = &text[..text.floor_char_boundary(200)];
        let new_name = |count: usize| match count {
            0 => format!("{text}{RENAMED}"),
            _ => format!("{text}{RENAMED}-{count}"),
        };
        let is_free = |new: &String| directory.symlink_metadata(new).is_err();
        let new = (0..100).map(new_name).find(is_free);
        let new = new.unwrap_or_else(|| format!("{text}{RENAMED}-{:016x}", rand::random::<u64>()));
        // The command may have taken the directory's permissions away.
        let _ = directory
            .dir_metadata()
            .map(|data| fchmod(directory, Mode::from_raw_mode(data.mode()) | Mode::RWXU));
        let obeyed = if is_of_git(path) {
            "whose configuration or hooks can start programs when git looks into it"
        } else {
            if give_one_name(directory, name).is_none() {
                notes.push(format!("{} has other names, by which commands can change it", path.display()));
            }
            "which editors, shells or agents obey without being started"
        };
        let made = format!("the command made {}, {obeyed}", path.display());
        notes.push(match directory.rename(name, directory, &new) {
            Ok(()) => {
                format!("{made}; respool renamed it to {new}. If it is wanted, ask the user to rename it")
            }
            Err(error) => {
                self.protected.state().stuck.insert(path.to_owned());
                format!(
                    "{made}, and it could not be renamed ({error}): ask the user to look at it. No other command runs before that"
                )
            }
        });
    }
}

/// Returns true for what was there, if commands could not write it meanwhile, and for what starts nothing.
fn may_stay(
    path: &Path,
    entry: &Entry,
    known: &HashMap<PathBuf, Known>,
    tops: &BTreeSet<PathBuf>,
    budget: &mut Budget,
) -> bool {
    let is_git = is_of_git(path);
    // Settings of the person are read-only by their names: editors replace the files.
    let is_same = |known: &Known| {
        known.entry == *entry || (!is_git && known.is_sure && !known.entry.is_link() && !entry.is_link())
    };
    if known.get(path).is_some_and(is_same) {
        return true;
    }
    if is_git {
        // A work tree that the person has added to a repository, which commands do not write.
        let is_linked = || common_of_linked(path).is_some_and(|common| known.contains_key(&common));
        return is_harmless(path, budget) || is_linked();
    }
    let is_setting =
        path.file_name().is_some_and(is_obeyed) || known.contains_key(&path.with_file_name(".envrc"));
    !is_setting || !path.parent().is_some_and(|top| tops.contains(top))
}

/// Copies each file there that has other names, by which a later command could change it when a person has
/// looked at it; `None` if one is too large.
fn give_one_name(directory: &Dir, name: &OsStr) -> Option<()> {
    let mut waiting = vec![PathBuf::from(name)];
    while let Some(path) = waiting.pop() {
        let data = directory.symlink_metadata(&path).ok()?;
        if data.is_dir() {
            let entries = directory.read_dir(&path).ok()?;
            waiting.extend(entries.flatten().map(|entry| path.join(entry.file_name())));
        } else if data.is_file() && data.nlink() > 1 {
            let content = read_at_most(open_file(directory, &path).ok()??, MOST_TEXT)?;
            directory.remove_file(&path).ok()?;
            directory.write(&path, content).ok()?;
            directory.set_permissions(&path, data.permissions()).ok()?;
        }
    }
    Some(())
}
