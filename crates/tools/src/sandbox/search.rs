//! The search for what other programs run or obey on their own: git repositories at any depth, and settings
//! at the top of each. It goes by handles, so no link leads it elsewhere. Called by `protected`, `watched`.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use cap_std::fs::Dir;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::super::programs::resolve_symlinks;
use super::handles::{Entry, is_own, open_in, open_place, open_place_in, open_to_owner};
use super::locks::Marked;
use super::obeyed::{is_obeyed, is_other_repository};

/// The most directories that are open at once: each has others in it that wait.
const MOST_OPEN: usize = 256;
/// A longer path leaves no room for `.git` in what the system takes.
const LONGEST_PATH: usize = 4_090;
/// The most directories that are searched and places that are looked up before or after one command, and the
/// longest time for that. A workspace that needs more is read-only as a whole.
const MOST_STEPS: usize = 400_000;
/// The most names in one directory: all of one are in memory.
const MOST_NAMES: usize = 400_000;
const LONGEST: Duration = Duration::from_secs(20);

/// How much may still be done for one command.
#[derive(Debug)]
pub(super) struct Budget {
    left: usize,
    end: Instant,
}

impl Budget {
    pub(super) fn new() -> Self {
        Self { left: MOST_STEPS, end: Instant::now() + LONGEST }
    }

    /// Returns false, from then on, if no more steps are left.
    pub(super) fn take(&mut self, steps: usize) -> bool {
        self.left = self.left.saturating_sub(steps);
        self.has_time() && !self.is_spent()
    }

    /// Returns true until the time has passed. From then on, no steps are left either.
    pub(super) fn has_time(&mut self) -> bool {
        let has_time = Instant::now() <= self.end;
        self.left *= usize::from(has_time);
        has_time
    }

    pub(super) fn is_spent(&self) -> bool {
        self.left == 0
    }
}

/// A link as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Link {
    /// Its text; if it turns, the place to which it leads.
    pub(super) target: PathBuf,
    /// Its text has a `..` behind a name: what is at that name may change, and so the place.
    pub(super) turns: bool,
}

impl Link {
    fn find(directory: &Dir, name: &OsStr, link: &Path, budget: &mut Budget) -> Self {
        let mut target = directory.read_link_contents(name).unwrap_or_default();
        let mut parts = target.components().skip_while(|part| !matches!(part, Component::Normal(_)));
        let turns = parts.any(|part| part == Component::ParentDir);
        if turns && budget.take(target.iter().count()) {
            target = resolve_symlinks(link).map_or(target, |place| place.real);
        }
        Self { target, turns }
    }
}

/// The results of a search.
#[derive(Debug, Default)]
pub(super) struct Search {
    /// Each `.git`, the `HEAD` of each repository without a work tree, which stands for its directory, and
    /// the settings at the top of the places and of each repository.
    pub(super) entries: BTreeMap<PathBuf, Entry>,
    /// Directories of this user that cannot be searched: a command could give itself the permission.
    pub(super) closed: BTreeSet<PathBuf>,
    /// All links; pipes and devices, too, which have no targets.
    pub(super) links: BTreeMap<PathBuf, Link>,
    /// Places that were not searched to their end.
    pub(super) unfinished: BTreeSet<PathBuf>,
}

/// True for an entry that makes its directory a repository.
pub(super) fn is_of_git(path: &Path) -> bool {
    path.ends_with(".git") || path.ends_with("HEAD")
}

/// True for a directory with the names of one of git's. A linked work tree's has some of them elsewhere.
pub(super) fn is_repository(has: impl Fn(&str) -> bool) -> bool {
    has("HEAD") && (has("commondir") || (has("objects") && has("refs")))
}

impl Search {
    /// Searches everything below these places. When a command has ended, with what was found before it:
    /// directories that it closed are opened, and repositories that it may have made are searched, too.
    pub(super) fn run(places: &[PathBuf], budget: &mut Budget, before: Option<&Self>) -> Self {
        let mut search = Self::default();
        for place in places {
            match search.go_through(place, places, budget, before) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    search.unfinished.insert(place.clone());
                }
                _ => {}
            }
        }
        search
    }

    /// Returns the links with their targets.
    pub(super) fn targets(&self) -> Marked {
        self.links.iter().map(|(path, link)| (path.clone(), link.target.clone())).collect()
    }

    /// Returns the directories with a `.git`.
    pub(super) fn repositories(&self) -> impl Iterator<Item = &Path> {
        self.entries.keys().filter(|path| path.ends_with(".git")).filter_map(|git| git.parent())
    }

    /// # Errors
    /// When it cannot come to its end.
    fn go_through(
        &mut self,
        place: &Path,
        places: &[PathBuf],
        budget: &mut Budget,
        before: Option<&Self>,
    ) -> io::Result<()> {
        let (Some(above), Some(name)) = (place.parent(), place.file_name()) else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let directory = Dir::from_std_file(open_place(above, OFlags::CLOEXEC)?.into());
        let mut waiting = vec![(directory, above.to_owned(), vec![name.to_owned()])];
        while let Some((directory, path, names)) = waiting.last_mut() {
            let Some(name) = names.pop() else {
                waiting.pop();
                continue;
            };
            let path = path.join(&name);
            let mut opened = open_in(directory, &name);
            if matches!(opened, Err(Errno::ACCESS))
                && let Ok(closed) = open_place_in(directory, &name)
                && is_own(&closed)
            {
                if before.is_some_and(|before| !before.closed.contains(&path)) {
                    opened = open_to_owner(&closed).and_then(|()| open_in(directory, &name));
                }
                self.closed.extend(opened.is_err().then(|| path.clone()));
            }
            if names.is_empty() {
                waiting.pop();
            }
            let directory = match opened {
                Ok(directory) => directory,
                // Something else is there by now, or what no command reaches either.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) => continue,
                Err(error) => return Err(error.into()),
            };
            let is_deep = path.as_os_str().len() > LONGEST_PATH || waiting.len() > MOST_OPEN;
            if is_deep || !budget.take(1) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let mut names = self.look_into(&directory, &path, places.contains(&path), budget)?;
            let is_known = |name: &str| before.is_some_and(|before| self.is_known(&path.join(name), before));
            names.retain(|name| name != ".git" || (before.is_some() && !is_known(".git")));
            if is_known("HEAD") {
                names.clear();
            }
            waiting.push((directory, path, names));
        }
        Ok(())
    }

    /// True for the entry of a repository that was there before.
    fn is_known(&self, git: &Path, before: &Self) -> bool {
        self.entries.get(git).zip(before.entries.get(git)).is_some_and(|(now, known)| now == known)
    }

    /// Looks into one directory, and returns the names of those in it.
    fn look_into(
        &mut self,
        directory: &Dir,
        path: &Path,
        is_place: bool,
        budget: &mut Budget,
    ) -> io::Result<Vec<OsString>> {
        let (mut names, mut directories) = (Vec::new(), Vec::new());
        for entry in directory.entries()? {
            let entry = entry?;
            let name = entry.file_name();
            let kind = entry.file_type().ok();
            if kind.is_some_and(|kind| kind.is_dir()) {
                directories.push(name.clone());
            } else if !kind.is_some_and(|kind| kind.is_file()) {
                let path = path.join(&name);
                let link = Link::find(directory, &name, &path, budget);
                // All are in memory.
                budget.take(1 + (path.as_os_str().len() + link.target.as_os_str().len()) / 256);
                self.links.insert(path, link);
            }
            names.push(name);
            if !budget.take(0) || names.len() > MOST_NAMES {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        // In some directories `.GIT` is the same.
        let has = |known: &str| names.iter().any(|name| name.eq_ignore_ascii_case(known));
        let has_git = has(".git");
        let is_top = is_place || has_git || names.iter().any(|name| is_other_repository(name));
        let settings = names.iter().filter(|name| is_top && is_obeyed(name)).map(OsString::as_os_str);
        for name in settings.chain(has_git.then_some(OsStr::new(".git"))) {
            self.entries.extend(Entry::find(directory, name).map(|entry| (path.join(name), entry)));
        }
        if is_repository(has) && !path.ends_with(".git") {
            // git itself replaces the file.
            let found = Entry::find(directory, OsStr::new("."));
            self.entries.extend(found.map(|entry| (path.join("HEAD"), entry)));
        }
        Ok(directories)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hundreds of thousands with paths of kilobytes took gigabytes of memory.
    #[test]
    fn long_links_use_up_the_budget() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        for number in 0..10 {
            std::os::unix::fs::symlink("x/".repeat(2_000), root.join(number.to_string())).unwrap();
        }
        let mut budget = Budget::new();
        budget.take(MOST_STEPS - 100);
        assert!(Search::run(std::slice::from_ref(&root), &mut budget, None).unfinished.contains(&root));
    }
}
