//! Looks at a workspace when a command has ended. An entry that was not there before, and may not stay, is
//! renamed, and a link that was replaced is put back. Made by `protected`.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cap_std::fs::{Dir, MetadataExt as _};
use rustix::fs::{Mode, fchmod};

use super::super::programs::{Resolved, resolve_symlinks};
use super::budget::Budget;
use super::handles::{Entry, MOST_TEXT, open_directory, open_file, open_in, read_at_most};
use super::harmless::is_harmless;
use super::obeyed::{RENAMED, is_obeyed};
use super::protected::{Known, Locks, Protected, common_of_linked};
use super::search::{Before, Search, is_of_git};

/// The most notes of one command.
const MOST_NOTES: usize = 50;

/// The state of a workspace when a command began.
#[derive(Debug)]
pub(in super::super) struct Watched {
    pub(super) protected: Arc<Protected>,
    /// The places that are searched.
    pub(super) roots: Vec<PathBuf>,
    /// Directories that were closed already, and links that were there.
    pub(super) closed: BTreeSet<PathBuf>,
    pub(super) links: BTreeSet<PathBuf>,
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
        let before = Some(Before { closed: &self.closed, known: &known });
        let after = Search::run(&self.roots, &mut budget, before);
        self.put_entries_right(&after, &known, &tops, &mut budget, &mut notes);
        let caches = self.follow_links(&after, &mut budget, &mut notes);
        let linked = Search::run(caches.as_deref().unwrap_or_default(), &mut budget, before);
        self.put_entries_right(&linked, &known, &tops, &mut budget, &mut notes);
        notes.extend(linked.unfinished.iter().map(|place| {
            format!(
                "{}, to which a link leads, has too many directories to be looked through",
                place.display()
            )
        }));
        let opened = after.opened.iter();
        notes.extend(opened.map(|path| format!("respool opened {} again, to look into it", path.display())));
        for name in &self.missing {
            self.put_right(name, None, &mut notes);
        }
        for (link, Known { entry, is_sure }) in &known {
            if *is_sure && entry.is_link() && !is_of_git(link) && !self.roots.is_empty() {
                self.put_right(link, Some(entry), &mut notes);
            }
        }
        let closed = after.closed.iter().filter(|path| !self.closed.contains(*path));
        let is_whole = caches.is_some() && !budget.is_spent();
        let unseen: BTreeSet<&PathBuf> = self.roots.iter().filter(|_| !is_whole).collect();
        if !self.roots.is_empty() {
            self.protected.state().unseen = unseen.iter().copied().cloned().collect();
        }
        let unseen: BTreeSet<_> = after.unfinished.iter().chain(closed).chain(unseen).collect();
        for place in unseen.into_iter().filter(|place| !self.is_read(place)) {
            notes.push(format!(
                "repositories that the command made in {} cannot all be found, because there are too many directories, links or too \
                 long paths: it is read-only from now on; ask the user to look before git runs there",
                place.display()
            ));
        }
        let others = notes.len().saturating_sub(MOST_NOTES);
        notes.truncate(MOST_NOTES);
        notes.extend((others > 0).then(|| format!("there are {others} more such notes")));
        notes
    }

    /// Renames the entries that may not stay, the lowest first. Also what this command could not change:
    /// others may run meanwhile.
    fn put_entries_right(
        &self,
        after: &Search,
        known: &HashMap<PathBuf, Known>,
        tops: &BTreeSet<PathBuf>,
        budget: &mut Budget,
        notes: &mut Vec<String>,
    ) {
        for (path, entry) in after.entries.iter().rev().take_while(|_| budget.take(1)) {
            match judge(path, entry, known, tops, &after.links) {
                Judgement::Stays => {}
                Judgement::Replaced => notes.push(format!(
                    "{} was replaced while the command ran, which could write it from then on: ask the user to look at it",
                    path.display()
                )),
                Judgement::Made => self.put_right(path, None, notes),
            }
        }
    }

    /// Returns the places in caches to which links lead: git looks there, too, when the person follows one.
    /// `None` where a link leads over too many names to say. By a link through `/proc` each program comes to
    /// another place, so a new one is renamed.
    fn follow_links(
        &self,
        after: &Search,
        budget: &mut Budget,
        notes: &mut Vec<String>,
    ) -> Option<Vec<PathBuf>> {
        let (mut caches, mut seen) = (BTreeSet::new(), BTreeSet::new());
        for link in after.links.iter().filter(|_| after.leads_out) {
            let found = budget.take(1).then(|| resolve_symlinks(link)).flatten();
            let Some(Resolved { real, links }) = found else {
                if link.exists() {
                    return None;
                }
                continue;
            };
            if links.iter().any(|way| way.starts_with("/proc")) && !self.links.contains(link) {
                self.put_right(link, None, notes);
            }
            // Each directory on the way is looked up by its whole path.
            let depth = real.iter().count();
            if seen.insert(real.clone()) && budget.take(depth * depth / 64) {
                caches.extend(self.protected.linked_cache(&real));
            }
        }
        Some(caches.into_iter().collect())
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
        let is_by_proc = |found: Resolved| found.links.iter().any(|way| way.starts_with("/proc"));
        let obeyed = if resolve_symlinks(path).is_some_and(is_by_proc) {
            "by which each program comes to another place"
        } else if is_of_git(path) {
            "whose configuration or hooks can start programs when git looks into it"
        } else {
            if give_one_name(directory, name).is_none() {
                notes.push(format!("{} has other names, by which commands can change it", path.display()));
            }
            "which editors, shells or agents obey without being started"
        };
        let made = format!("the command made {}, {obeyed}", path.display());
        let git = path.ends_with(".git").then(|| open_in(directory, name).ok()).flatten();
        // The command knows the new name, too.
        let is_broken = git.is_some_and(|git| git.rename("HEAD", &git, format!("HEAD{RENAMED}")).is_ok());
        let also = if is_broken { ", and the `HEAD` in it likewise" } else { "" };
        notes.push(match directory.rename(name, directory, &new) {
            Ok(()) => {
                format!("{made}; respool renamed it to {new}{also}. If it is wanted, ask the user to rename it")
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

/// The judgement on an entry that is there when a command has ended.
enum Judgement {
    Stays,
    /// Programs of the person's replace their settings while a command runs.
    Replaced,
    Made,
}

fn judge(
    path: &Path,
    entry: &Entry,
    known: &HashMap<PathBuf, Known>,
    tops: &BTreeSet<PathBuf>,
    links: &BTreeSet<PathBuf>,
) -> Judgement {
    let was_there = known.get(path);
    let stays = if was_there.is_some_and(|known| known.entry == *entry) {
        true
    } else if is_of_git(path) {
        // A work tree that the person has added to a repository, which commands do not write.
        let is_linked = || common_of_linked(path).is_some_and(|common| known.contains_key(&common));
        path.ends_with(".git") && (is_harmless(path, links) || is_linked())
    } else if was_there.is_some_and(|known| known.is_sure && !known.entry.is_link()) && !entry.is_link() {
        return Judgement::Replaced;
    } else {
        let is_setting =
            path.file_name().is_some_and(is_obeyed) || known.contains_key(&path.with_file_name(".envrc"));
        !is_setting || !path.parent().is_some_and(|top| tops.contains(top))
    };
    if stays { Judgement::Stays } else { Judgement::Made }
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
