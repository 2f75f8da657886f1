//! The files that commands never write, because other programs run or obey them without being started by the
//! person: git repositories, and the settings of editors, shells and agents. What is there when a command
//! begins is read-only to it; `watched` looks at what is there when it has ended. Of each entry one thing is
//! asked: is it what was there while no command was at work?

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::unistd::geteuid;
use rustix::fs::{Access, OFlags, access};

use super::super::programs::{Resolved, gits_own_settings, home_directories, resolve_symlinks};
use super::handles::{Entry, open_place};
use super::kept::Kept;
use super::locks::{self, Locks, Marked, read_marks};
use super::obeyed::{is_obeyed, linked_settings, links_in, named_by_configuration};
use super::places::is_of_system;
use super::repository::{Repository, named_by_repository, repository};
use super::search::{Budget, Link, Search, is_of_git};
use super::watched::Watched;

/// The knowledge of one command that the next one needs.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    /// The entries that were there while no command was at work.
    known: BTreeMap<PathBuf, Entry>,
    /// The links that were, with their targets.
    links: Arc<Marked>,
    /// No command of another respool was at work when these were found.
    is_sure: bool,
    /// Places that could not be looked through, or put right, when a command had ended.
    unseen: BTreeSet<PathBuf>,
    /// The entries and links before that command, if there are such places.
    before: Marked,
    /// A killed respool has left some.
    is_left: bool,
}

impl State {
    /// Takes note of the places that an earlier process, or another one, could not look through, and if no
    /// command is at work, of those in which one was when its respool was killed.
    fn read_marks(&mut self, locks: Option<&Path>, roots: &[PathBuf], is_alone: bool) {
        self.is_left |= is_alone && locks.is_some_and(|directory| locks::mark_left(directory, roots));
        for mark in locks.into_iter().flat_map(|directory| read_marks(directory, roots)) {
            self.unseen.insert(mark.place);
            self.before.extend(mark.before);
        }
    }

    /// Returns false for what may be a command's, in a place that has not been looked through.
    fn was_there(&self, path: &Path, target: &PathBuf) -> bool {
        let is_unseen = self.unseen.iter().any(|place| path.starts_with(place));
        !is_unseen || self.before.get(path) == Some(target)
    }
}

/// The files that commands never write.
#[derive(Debug)]
pub(super) struct Protected {
    /// The workspace, then the writable places of the configuration.
    pub(super) roots: Vec<PathBuf>,
    /// Places that programs outside the sandbox use.
    named: Vec<PathBuf>,
    /// Places outside of these that commands read, and those that they write.
    pub(super) readable: Vec<PathBuf>,
    pub(super) caches: Vec<PathBuf>,
    /// The directory of locks.
    pub(super) locks: Option<PathBuf>,
    /// The repositories that were there before the first command.
    repositories: Vec<Repository>,
    state: Mutex<State>,
}

impl Protected {
    /// Searches the workspace and the writable places of the configuration, and finds the repository that the
    /// workspace is in. `named` are places that programs outside the sandbox use.
    pub(super) fn find(
        workspace: &Path,
        configured: &[PathBuf],
        named: &[PathBuf],
        locks: Option<PathBuf>,
    ) -> Self {
        let directories = configured.iter().filter(|place| !place.is_file()).cloned();
        let roots: Vec<PathBuf> = std::iter::once(workspace.to_owned()).chain(directories).collect();
        let taken = Locks::take(locks.as_deref(), &roots, false);
        let is_alone = taken.as_ref().is_ok_and(|taken| taken.are_alone);
        let mut search = Search::run(&roots, &mut Budget::new(), None);
        let mut state = State::default();
        state.read_marks(locks.as_deref(), &roots, is_alone);
        search.entries.retain(|path, entry| state.was_there(path, &entry.target()));
        search.links.retain(|path, link| is_alone && state.was_there(path, &link.target));
        let mut repositories: Vec<Repository> =
            workspace.ancestors().skip(1).find_map(|above| repository(above, &[])).into_iter().collect();
        for top in search.repositories() {
            let known: Vec<PathBuf> = repositories.iter().map(|known| known.common.clone()).collect();
            repositories.extend(repository(top, &known));
        }
        (state.links, state.known) = (search.targets().into(), search.entries);
        let (readable, caches, state) = (Vec::new(), Vec::new(), Mutex::new(state));
        Self { roots, named: named.to_vec(), readable, caches, locks, repositories, state }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what a command in this directory leaves as it is, and looks at that when it has ended.
    ///
    /// # Errors
    /// When another command has to be alone, or this one, and the other is at work.
    pub(super) fn begin(self: &Arc<Self>, directory: &Path, is_alone: bool) -> io::Result<Watched> {
        let first = self.begin_once(directory, is_alone)?;
        if !std::mem::take(&mut self.state().is_left) {
            return Ok(first);
        }
        // What a command of a killed respool made is put right before.
        let found = first.restore().1.split_off(first.notes.len());
        drop(first);
        let mut watched = self.begin_once(directory, is_alone)?;
        watched.notes.splice(..0, found);
        Ok(watched)
    }

    fn begin_once(self: &Arc<Self>, directory: &Path, is_alone: bool) -> io::Result<Watched> {
        let locks = self.lock(is_alone)?;
        let mut budget = Budget::new();
        let mut search = Search::run(&self.roots, &mut budget, None);
        self.learn(&search, locks.are_alone);
        let mut kept = self.find_kept(&search, &mut budget);
        // The launcher gets places as text.
        let is_odd = |place: &PathBuf| place.to_str().is_none_or(|text| text.contains(char::is_control));
        let odd: Vec<&PathBuf> =
            kept.frozen.iter().chain(&kept.pinned).filter(|place| is_odd(place)).collect();
        let is_unsearched =
            |root: &&PathBuf| budget.is_spent() || odd.iter().any(|place| place.starts_with(root));
        search.unfinished.extend(self.roots.iter().filter(is_unsearched).cloned());
        let notes = search.unfinished.iter().map(|place| {
            format!(
                "{} is read-only for commands: it has too many directories or settings, or too long or odd paths, to be looked through",
                place.display()
            )
        });
        let unseen = self.state().unseen.clone();
        let earlier = unseen.iter().map(|place| {
            format!(
                "{} is read-only for this command: what an earlier one made there has not been looked through to its end, or put right",
                place.display()
            )
        });
        let notes = notes.chain(earlier).collect();
        let unsearched: BTreeSet<PathBuf> = search.unfinished.union(&unseen).cloned().collect();
        if !unsearched.is_empty() {
            kept.close(unsearched, None);
        }
        kept.bound(&self.roots, self.repository_of(directory).map(|repository| repository.top));
        search.closed.append(&mut search.unfinished);
        search.entries = self.state().known.clone();
        search.links.clear();
        let locks = if is_alone { locks } else { locks.share()? };
        // No other file gets the number of one that is open.
        let held = kept.frozen.iter().filter_map(|place| open_place(place, OFlags::CLOEXEC).ok()).collect();
        let links = Arc::clone(&self.state().links);
        let begun = Watched::new(Arc::clone(self), locks);
        Ok(Watched { before: search, links, kept, notes, can_change: true, _held: held, ..begun })
    }

    /// Begins commands of git's that change nothing but its directory: nothing has to be looked at.
    ///
    /// # Errors
    /// When another command is at work.
    pub(super) fn begin_index(self: &Arc<Self>) -> io::Result<Watched> {
        let locks = self.lock(true)?;
        Ok(Watched::new(Arc::clone(self), locks))
    }

    fn lock(&self, is_alone: bool) -> io::Result<Locks> {
        match Locks::take(self.locks.as_deref(), &self.roots, is_alone) {
            // Others may be at work. On a full disk, commands still remove files.
            Err(error) if !is_alone && error.kind() != io::ErrorKind::ResourceBusy => Ok(Locks::default()),
            taken => taken,
        }
    }

    /// Takes note of what is there although no command is at work, and forgets what is gone: its number may
    /// be given to what a command makes.
    fn learn(&self, search: &Search, is_alone: bool) {
        let mut state = self.state();
        if is_alone {
            state.read_marks(self.locks.as_deref(), &self.roots, true);
        }
        if is_alone && state.unseen.is_empty() && search.unfinished.is_empty() {
            state.known.clone_from(&search.entries);
            (state.links, state.is_sure) = (search.targets().into(), true);
            return;
        }
        let unsearched = search.closed.iter().chain(&search.unfinished);
        let is_unsearched = |path: &Path| unsearched.clone().any(|place| path.starts_with(place));
        let (mut known, mut links) = (std::mem::take(&mut state.known), std::mem::take(&mut state.links));
        known.retain(|path, entry| {
            let is_there = search.entries.contains_key(path);
            (is_there || is_unsearched(path)) && state.was_there(path, &entry.target())
        });
        Arc::make_mut(&mut links).retain(|path, target| {
            let is_there = search.links.get(path).is_some_and(|link| link.target == *target);
            (is_there || is_unsearched(path)) && state.was_there(path, target)
        });
        (state.known, state.links) = (known, links);
    }

    /// Takes note of the places that could not be looked through, or put right, now that a command has ended,
    /// also for later processes.
    ///
    /// # Errors
    /// When that cannot be written.
    pub(super) fn note_unseen(
        &self,
        unseen: BTreeSet<PathBuf>,
        before: impl FnOnce() -> Marked,
    ) -> io::Result<()> {
        let mut state = self.state();
        let is_unchanged = unseen.is_empty() && state.unseen.is_empty();
        state.before = if unseen.is_empty() { Marked::default() } else { before() };
        state.unseen = unseen;
        let Some(directory) = self.locks.as_deref().filter(|_| !is_unchanged) else { return Ok(()) };
        locks::remove_marks(directory, &self.roots)?;
        let is_marked = |root: &&PathBuf| state.unseen.iter().any(|place| place.starts_with(root));
        self.roots.iter().filter(is_marked).try_for_each(|root| locks::mark(directory, root, &state.before))
    }

    /// Finds what is read-only.
    fn find_kept(&self, search: &Search, budget: &mut Budget) -> Kept {
        let State { known, is_sure, .. } = self.state().clone();
        let mut kept = Kept::default();
        kept.frozen.extend(search.closed.iter().cloned());
        let mut places: Vec<PathBuf> = linked_settings().chain(self.named.iter().cloned()).collect();
        let mut tops: BTreeSet<&Path> = self.roots.iter().map(PathBuf::as_path).collect();
        tops.extend(self.repositories.iter().map(|repository| repository.top.as_path()));
        // Where others lead is their own: a command may have made them.
        let is_persons = |path: &PathBuf| is_sure && known.contains_key(path);
        tops.extend(search.repositories().filter(|top| is_persons(&top.join(".git"))));
        for (path, entry) in &search.entries {
            let Some(top) = path.parent().filter(|_| budget.take(1)) else { break };
            let (is_git, is_bare) = (path.ends_with(".git"), path.ends_with("HEAD"));
            match entry {
                // A link cannot be made read-only, so the directory that it is in is.
                Entry::Link(_) if is_git => _ = kept.frozen.insert(top.to_owned()),
                Entry::Link(_) => places.push(path.clone()),
                Entry::Made(..) => _ = kept.frozen.insert(if is_bare { top } else { path }.to_owned()),
            }
            if !is_git && tops.contains(top) {
                places.extend(links_in(path));
            }
        }
        let home = home_directories().into_iter().next();
        let (absolute, relative) = named_by_person(home.as_deref());
        places.extend(absolute);
        for top in tops {
            // The directory of a repository above the workspace is not searched.
            let names_obeyed = |link: &PathBuf| link.file_name().is_some_and(is_obeyed);
            places.extend(links_in(top).filter(names_obeyed));
            places.extend(relative.iter().map(|path| top.join(path)));
            places.extend(named_by_repository(top, home.as_deref()));
            // Of a directory of the project's, this alone is obeyed.
            places.push(top.join(".github/hooks"));
        }
        for place in places {
            kept.add(&place, &self.roots, budget);
            for link in links_in(&place) {
                kept.add(&link, &self.roots, budget);
            }
        }
        let frozen = kept.frozen.iter().filter(|place| !is_of_git(place));
        kept.expected.extend(frozen.filter_map(|place| Some((place.clone(), Entry::find_at(place)?))));
        // What another command made is not what has to be there.
        kept.expected.retain(|path, _| !search.entries.contains_key(path) || is_persons(path));
        kept
    }

    /// Returns true for a path that commands never write, as things were when no command was at work.
    pub(super) fn keeps(&self, path: &Path) -> bool {
        let mut budget = Budget::new();
        let entries = self.state().known.clone();
        let kept = self.find_kept(&Search { entries, ..Search::default() }, &mut budget);
        budget.is_spent()
            || kept
                .frozen
                .iter()
                .chain(kept.expected.keys())
                .chain(kept.missing.keys())
                .any(|place| path.starts_with(place))
    }

    /// Returns true for a link that leads to where this user's commands may write, those of another respool
    /// with other places among them, or to what holds such a place. Also for one that comes by a link there,
    /// which may lead elsewhere later, one by which each program comes to another place, one in a circle, and
    /// one to what commands only read.
    pub(super) fn leads_away(&self, path: &Path, link: &Link, is_kept: impl Fn(&Path) -> bool) -> bool {
        let Some(Resolved { real, links, .. }) = resolve_symlinks(path).filter(|_| !link.turns) else {
            return true;
        };
        let is_in = |places: &[PathBuf], way: &Path| places.iter().any(|place| way.starts_with(place));
        // Another respool's commands may have a cache among the directories of tools.
        let holds_cache =
            |way: &Path| is_in(&self.caches, way) || self.caches.iter().any(|cache| cache.starts_with(way));
        let may_change = |way: &Path| !is_in(&self.roots, way) && way.ancestors().any(may_write_in);
        let is_only_read = |way: &Path| is_in(&self.readable, way) && !holds_cache(way);
        links
            .iter()
            .chain([&real])
            .any(|way| way.starts_with("/proc") || may_change(way) && !is_only_read(way))
            || is_kept(&real)
            || !is_in(&self.roots, &real) && holds_cache(&real)
            || may_change(&real) && !is_of_system(&real) && !real.is_file()
    }

    /// Returns true for an entry that was there while no command was at work.
    fn is_persons(&self, path: &Path) -> bool {
        let state = self.state();
        state.is_sure
            && state.known.get(path).is_some_and(|known| Entry::find_at(path).as_ref() == Some(known))
    }

    /// Returns true for what lies in git's directory of a repository, whatever the name of that is.
    pub(super) fn is_of_git(&self, path: &Path) -> bool {
        self.all_git().any(|git| path.starts_with(git))
    }

    fn all_git(&self) -> impl Iterator<Item = &PathBuf> {
        self.repositories.iter().flat_map(|repository| [&repository.own, &repository.common])
    }

    /// Returns git's directories outside the writable places.
    pub(super) fn git_directories(&self) -> impl Iterator<Item = &PathBuf> {
        self.all_git().filter(|git| !self.roots.iter().any(|root| git.starts_with(root)))
    }

    /// Returns the repository that git would use in a directory. Of those that came later only one with a
    /// `.git` of its own counts, and one that was there while no command was at work: a command could make a
    /// link to any other.
    pub(super) fn repository_of(&self, directory: &Path) -> Option<Repository> {
        let top = directory.ancestors().find(|above| above.join(".git").symlink_metadata().is_ok())?;
        let known = self.repositories.iter().find(|repository| repository.top == top).cloned();
        let is_inside = self.roots.iter().any(|root| top.starts_with(root));
        let git = top.join(".git");
        let later = || {
            let is_own = is_inside && git.symlink_metadata().is_ok_and(|data| data.is_dir());
            (is_own || self.is_persons(&git)).then(|| repository(top, &[])).flatten()
        };
        known.or_else(later)
    }
}

/// Returns the paths that the person's settings of git name: absolute ones, and those in each work tree.
pub(super) fn named_by_person(home: Option<&Path>) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let named = named_by_configuration(gits_own_settings(), Path::new(""), home);
    named.into_iter().partition(|path| path.is_absolute())
}

/// Returns true for what belongs to this user, and for a directory in which this user may make files.
fn may_write_in(place: &Path) -> bool {
    place.metadata().is_ok_and(|data| data.uid() == geteuid().as_raw())
        || place.is_dir() && access(place, Access::WRITE_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cap_std::fs::Dir;
    use std::fs;

    fn make_repository(top: &Path, config: &str) {
        fs::create_dir_all(top.join(".git")).unwrap();
        fs::write(top.join(".git/HEAD"), "ref: refs/heads/main\n").unwrap();
        fs::write(top.join(".git/config"), config).unwrap();
    }

    /// Regression: "always" for one file covered the hooks that git's configuration names.
    #[test]
    fn files_that_other_programs_act_on_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        make_repository(
            &root,
            "[core]\n\thooksPath = scripts/hooks # ours\n[include]\n\tpath = ../inc ; mine\n",
        );
        fs::write(root.join("inc"), "").unwrap();
        for directory in ["scripts/hooks", ".vscode", "linked", "mirror/objects", "mirror/refs", "src"] {
            fs::create_dir_all(root.join(directory)).unwrap();
        }
        fs::write(root.join("mirror/HEAD"), "ref: refs/heads/main\n").unwrap();
        std::os::unix::fs::symlink("../linked", root.join(".vscode/to")).unwrap();
        let protected = Protected::find(&root, &[], &[], None);
        for kept in [
            "scripts/hooks/pre-commit",
            "inc",
            "linked/tasks.json",
            "mirror/config",
            "mirror/hooks/post-receive",
        ] {
            assert!(protected.keeps(&root.join(kept)), "{kept}");
        }
        // Settings of the repository above a workspace lead into it.
        fs::write(root.join("src/envrc"), "").unwrap();
        std::os::unix::fs::symlink("src/envrc", root.join(".envrc")).unwrap();
        assert!(Protected::find(&root.join("src"), &[], &[], None).keeps(&root.join("src/envrc")));
        assert!(!protected.keeps(&root.join("src/main.rs")) && !protected.keeps(&root.join("new")));
    }

    fn with_locks(directory: &Path, root: &Path) -> Protected {
        Protected::find(root, &[], &[], Some(directory.join("locks")))
    }

    /// Two commands at once could exchange a repository between the search and the mounts of one of them. A
    /// repository that the person made before stays, whatever its form.
    #[test]
    fn only_what_no_command_made_is_excused() {
        const HARMFUL: &str = "[core]\n\tfsmonitor = x\n";
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap().join("work");
        let [first, persons, made, late] = ["first", "persons", "made", "late"].map(|name| root.join(name));
        make_repository(&first, HARMFUL);
        let protected = Arc::new(with_locks(dir.path(), &root));
        make_repository(&persons, HARMFUL);
        let running = protected.begin(&root, false).unwrap();
        make_repository(&made, "");
        make_repository(&late, HARMFUL);
        let watched = protected.begin(&root, false).unwrap();
        // The same file as before.
        fs::write(made.join(".git/config"), HARMFUL).unwrap();
        let (_, notes) = watched.restore();
        assert_eq!(notes.len(), 2, "{notes:?}");
        let is_named = |name: &str| notes.iter().any(|note| note.contains(name));
        assert!(is_named("late/.git") && is_named("made/.git"), "{notes:?}");
        assert!(first.join(".git").is_dir() && persons.join(".git").is_dir());
        assert!(running.restore().1.is_empty());
    }

    /// The person removes a repository while a command is at work, which makes another one in its place.
    #[test]
    fn no_number_is_given_again() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap().join("work");
        let git = root.join("dep/.git");
        make_repository(&root.join("dep"), "");
        let protected = Arc::new(with_locks(dir.path(), &root));
        let _running = protected.begin(&root, false).unwrap();
        let old = Entry::find_at(&git).unwrap();
        fs::remove_dir_all(&git).unwrap();
        for number in 0..500 {
            fs::create_dir(root.join(number.to_string())).unwrap();
            assert_ne!(Entry::find_at(&root.join(number.to_string())).as_ref(), Some(&old));
        }
        // Another one begins.
        assert!(protected.state().known.contains_key(&git));
        protected.begin(&root, false).unwrap();
        assert!(!protected.state().known.contains_key(&git));
    }

    /// Of many repositories only the directory above stays open, so that other files get their numbers.
    #[test]
    fn nothing_in_a_replaced_directory_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let (vendor, old) = (root.join("vendor"), root.join("old"));
        for number in 0..200 {
            make_repository(&vendor.join(number.to_string()), "[core]\n\tfsmonitor = x\n");
        }
        let protected = Arc::new(Protected::find(&root, &[], &[], None));
        let watched = protected.begin(&root, false).unwrap();
        fs::rename(&vendor, &old).unwrap();
        fs::create_dir_all(vendor.join("0")).unwrap();
        fs::rename(old.join("0/.git"), vendor.join("0/.git")).unwrap();
        fs::remove_dir_all(&old).unwrap();
        let (_, notes) = watched.restore();
        assert!(notes.len() == 2 && notes[1].contains("vendor/0/.git was made"), "{notes:?}");
    }

    /// Thousands below a thousand directories were renamed for minutes, and were left when respool ended.
    #[test]
    fn deep_entries_use_up_the_budget() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let protected = Arc::new(Protected::find(&root, &[], &[], None));
        let watched = protected.begin(&root, false).unwrap();
        for number in 0..700 {
            let top = root.join("d/".repeat(600)).join(number.to_string());
            fs::create_dir_all(&top).unwrap();
            fs::write(top.join(".git"), "gitdir: elsewhere\n").unwrap();
        }
        let (_, notes) = watched.restore();
        assert!(notes[0].contains("it is read-only from now on"), "{:?}", notes.first());
    }

    /// Two commands hand a link on to each other.
    #[test]
    fn links_made_again_are_new() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap().join("work");
        fs::create_dir(&root).unwrap();
        let link = root.join("sub");
        let protected = Arc::new(with_locks(dir.path(), &root));
        let first = protected.begin(&root, false).unwrap();
        std::os::unix::fs::symlink("..", &link).unwrap();
        let changed = || link.symlink_metadata().map(|data| (data.ctime(), data.ctime_nsec())).unwrap();
        let before = changed();
        let second = protected.begin(&root, false).unwrap();
        fs::remove_file(&link).unwrap();
        assert!(first.restore().1.is_empty());
        std::os::unix::fs::symlink("..", &link).unwrap();
        // The clock of a file system may stand for some milliseconds.
        while changed() == before {
            fs::remove_file(&link).unwrap();
            std::os::unix::fs::symlink("..", &link).unwrap();
        }
        assert_eq!(second.restore().1.len(), 1);
    }

    /// Regression: a link that was there when a command began stayed, although another command had made it,
    /// whose own look can miss it.
    #[test]
    fn links_of_other_commands_are_judged() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap().join("work");
        fs::create_dir(&root).unwrap();
        let protected = Arc::new(with_locks(dir.path(), &root));
        let _first = protected.begin(&root, false).unwrap();
        std::os::unix::fs::symlink("..", root.join("sub")).unwrap();
        let second = protected.begin(&root, false).unwrap();
        assert_eq!(second.restore().1.len(), 1);
    }

    /// Regression: the next respool took what one had not looked through for the person's.
    #[test]
    fn what_was_not_seen_stays_so() {
        const HARMFUL: &str = "[core]\n\tfsmonitor = x\n";
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap().join("work");
        let [persons, made] = ["persons", "made"].map(|name| root.join(name));
        make_repository(&persons, HARMFUL);
        std::os::unix::fs::symlink("..", root.join("own")).unwrap();
        make_repository(&dir.path().join("other"), HARMFUL);
        let find = || Arc::new(with_locks(dir.path(), &root));
        let protected = find();
        let watched = protected.begin(&root, false).unwrap();
        make_repository(&made, HARMFUL);
        std::os::unix::fs::symlink("..", root.join("away")).unwrap();
        protected.note_unseen([root.clone()].into(), || watched.list_before()).unwrap();
        drop(watched);
        // Another process takes over.
        drop(protected);
        let above = Arc::new(with_locks(dir.path(), dir.path()));
        assert!(above.state().known.contains_key(&dir.path().join("other/.git")));
        let protected = find();
        assert!(protected.repository_of(&persons).is_some());
        let watched = protected.begin(&root, false).unwrap();
        assert!(watched.kept.frozen.contains(&root), "{:?}", watched.kept);
        let (_, notes) = watched.restore();
        let is_named = |name: &str| notes.iter().any(|note| note.contains(name));
        assert!(notes.len() == 3 && is_named("made/.git was made") && is_named("away was made"), "{notes:?}");
        assert!(persons.join(".git").is_dir() && root.join("own").is_symlink());
        drop(watched);
        // Now all was looked through.
        for protected in [protected, find()] {
            let watched = protected.begin(&root, false).unwrap();
            assert!(!watched.kept.frozen.contains(&root) && watched.restore().1.is_empty());
        }
    }

    /// Regression: a respool that began meanwhile took what was not looked at for the person's.
    #[test]
    fn unseen_things_are_not_known_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap().join("work");
        fs::create_dir(&root).unwrap();
        let [first, later] = ["made", "persons"].map(|name| root.join(name));
        let find = || Arc::new(with_locks(dir.path(), &root));
        let protected = find();
        let watched = protected.begin(&root, false).unwrap();
        make_repository(&first, "[core]\n\tfsmonitor = x\n");
        let meanwhile = find();
        protected.note_unseen([root.clone()].into(), || watched.list_before()).unwrap();
        drop(watched);
        let (_, notes) = meanwhile.begin(&root, false).unwrap().restore();
        assert!(notes.iter().any(|note| note.contains("made/.git was made")), "{notes:?}");
        make_repository(&later, "");
        let (_, notes) = find().begin(&root, false).unwrap().restore();
        assert!(notes.is_empty() && later.join(".git").is_dir(), "{notes:?}");
    }

    /// Regression: what a command had made when respool was killed counted as the person's.
    #[test]
    fn commands_of_killed_respools_are_looked_at() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap().join("work");
        fs::create_dir(&root).unwrap();
        let begin = || Arc::new(with_locks(dir.path(), &root)).begin(&root, false).unwrap();
        make_repository(&root.join("persons"), "[core]\n\tfsmonitor = x\n");
        let watched = begin();
        watched.note_start();
        make_repository(&root.join("made"), "[core]\n\tfsmonitor = x\n");
        fs::write(root.join(".envrc"), "").unwrap();
        drop(watched);
        let later = begin();
        assert!(!root.join(".envrc").exists() && root.join("made/.git").is_file());
        assert!(root.join("persons/.git").is_dir());
        // The command is not kept from writing.
        assert!(!later.kept.frozen.contains(&root) && later.notes.len() == 2, "{:?}", later.notes);
        later.note_start();
        assert_eq!(later.restore().1.len(), 2);
        fs::write(root.join(".envrc"), "the person's").unwrap();
        assert!(begin().restore().1.is_empty() && root.join(".envrc").exists());
    }

    /// Regression: links whose place could not be found, or changed later, were judged by what was found.
    #[test]
    fn links_whose_place_is_unsure_are_renamed() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap().join("work");
        fs::create_dir(&root).unwrap();
        let link = |target: &str, name: &str| std::os::unix::fs::symlink(target, root.join(name)).unwrap();
        link("one/..", "persons");
        fs::create_dir_all(root.join("one")).unwrap();
        let protected = Arc::new(with_locks(dir.path(), &root));
        let watched = protected.begin(&root, false).unwrap();
        link(".", "here");
        link("loop", "loop");
        // The link there may lead elsewhere later.
        let elsewhere = dir.path().canonicalize().unwrap().join("back");
        std::os::unix::fs::symlink(&root, &elsewhere).unwrap();
        link(&elsewhere.join("one").display().to_string(), "back");
        link(&format!("{}here", "x/../".repeat(505)), "long");
        link("later/../here", "turning");
        // Its path is longer than a system call takes, and so is the link's, which leads outside.
        let mut deep = Dir::from_std_file(fs::File::open(&root).unwrap());
        let mut left = 4_080 - root.as_os_str().len();
        while left > 1 {
            let name = "d".repeat((left - 1).min(200));
            left -= name.len() + 1;
            deep.create_dir(&name).unwrap();
            deep = deep.open_dir(&name).unwrap();
        }
        rustix::fs::symlinkat(dir.path(), &deep, "l".repeat(40)).unwrap();
        let (_, notes) = watched.restore();
        let is_named = |name: &str| notes.iter().any(|note| note.contains(&format!("{name} was made")));
        let deep = "l".repeat(40);
        for name in ["/long", "/turning", "/loop", "/back", &deep] {
            assert!(is_named(name), "{name}: {notes:?}");
        }
        assert_eq!(notes.len(), 5, "{notes:?}");
    }

    /// Regression: a command put another directory in the place of one that a setting leads through.
    #[test]
    fn directories_on_the_way_stay() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        make_repository(&root, "[core]\n\thooksPath = tools/../githooks\n");
        for directory in ["tools", "githooks"] {
            fs::create_dir(root.join(directory)).unwrap();
        }
        let protected = Arc::new(Protected::find(&root, &[], &[], None));
        let kept = &protected.begin(&root, false).unwrap().kept;
        assert!(kept.pinned.contains(&root.join("tools")) && kept.frozen.contains(&root.join("githooks")));
    }

    /// Regression: commands wrote the hooks of a repository that the person cloned while the chat was open.
    #[test]
    fn later_repositories_of_the_person_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap().join("work");
        fs::create_dir(&root).unwrap();
        let protected = Arc::new(with_locks(dir.path(), &root));
        drop(protected.begin(&root, false).unwrap().restore());
        make_repository(&root.join("y"), "[core]\n\thooksPath = scripts\n");
        fs::create_dir(root.join("y/scripts")).unwrap();
        let watched = protected.begin(&root, false).unwrap();
        assert!(watched.kept.frozen.contains(&root.join("y/scripts")), "{:?}", watched.kept.frozen);
    }

    /// Regression: a link to what holds a cache stayed, where that is a directory of the system.
    #[test]
    fn no_link_leads_to_what_holds_a_cache() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap().join("work");
        fs::create_dir(&root).unwrap();
        let mut protected = with_locks(dir.path(), &root);
        protected.readable.push("/usr".into());
        let leads_away = |protected: &Protected, target: &str| {
            let link = root.join("link");
            let _ = fs::remove_file(&link);
            std::os::unix::fs::symlink(target, &link).unwrap();
            let search = Search::run(std::slice::from_ref(&root), &mut Budget::new(), None);
            protected.leads_away(&link, &search.links[&link], |_| false)
        };
        assert!(!leads_away(&protected, "/usr/bin"));
        protected.caches.push("/usr/bin/cache".into());
        assert!(leads_away(&protected, "/usr/bin") && leads_away(&protected, "/"));
    }

    /// Regression: `chown -R` and `cp -al` renamed the person's links to another project.
    #[test]
    fn links_of_the_person_may_be_touched() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap().join("work");
        fs::create_dir(&root).unwrap();
        let link = root.join("shared");
        std::os::unix::fs::symlink("../other", &link).unwrap();
        let protected = Arc::new(with_locks(dir.path(), &root));
        let watched = protected.begin(&root, false).unwrap();
        std::os::unix::fs::lchown(&link, Some(geteuid().as_raw()), None).unwrap();
        fs::hard_link(&link, root.join("again")).unwrap();
        let (_, notes) = watched.restore();
        assert!(notes.len() == 1 && notes[0].contains("again was made"), "{notes:?}");
    }

    /// The next command cannot write the file `.git`, but another name of it.
    #[test]
    fn a_marker_with_two_names_is_renamed() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let protected = Arc::new(Protected::find(&root, &[], &[], None));
        let watched = protected.begin(&root, false).unwrap();
        for name in ["one", "two"] {
            fs::create_dir(root.join(name)).unwrap();
            fs::write(root.join(name).join(".git"), "gitdir: /dev/null\n").unwrap();
        }
        fs::hard_link(root.join("two/.git"), root.join("two/other")).unwrap();
        let (_, notes) = watched.restore();
        assert!(notes.len() == 1 && notes[0].contains("two/.git was made"), "{notes:?}");
    }

    /// The person goes on with a repository that a command cloned.
    #[test]
    fn changes_of_the_person_are_theirs() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let protected = Arc::new(Protected::find(&root, &[], &[], None));
        let cloning = protected.begin(&root, false).unwrap();
        make_repository(&root, "");
        assert!(cloning.restore().1.is_empty());
        fs::write(root.join(".git/config"), "[filter \"lfs\"]\n\tclean = git-lfs clean\n").unwrap();
        let later = protected.begin(&root, false).unwrap();
        assert!(later.restore().1.is_empty() && root.join(".git").is_dir());
    }

    /// An editor replaces a file while a command runs, which could write the new one.
    #[test]
    fn settings_that_are_replaced_are_noted() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        fs::write(root.join(".envrc"), "own").unwrap();
        let protected = Arc::new(Protected::find(&root, &[], &[], None));
        let watched = protected.begin(&root, false).unwrap();
        fs::write(root.join("new"), "own").unwrap();
        fs::rename(root.join("new"), root.join(".envrc")).unwrap();
        let (_, notes) = watched.restore();
        assert!(notes.len() == 1 && notes[0].contains(".envrc was replaced"), "{notes:?}");
        assert!(root.join(".envrc").exists());
    }

    /// Another respool searches while a command is at work: what that made is not the person's for ever.
    #[test]
    fn what_is_gone_is_forgotten() {
        const HARMFUL: &str = "[core]\n\tfsmonitor = x\n";
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let (git, aside) = (root.join("a/.git"), root.join("a/.git.made-by-a-command"));
        let other = Arc::new(Protected::find(&root, &[], &[], None));
        let running = other.begin(&root, false).unwrap();
        make_repository(&root.join("a"), HARMFUL);
        let protected = Arc::new(Protected::find(&root, &[], &[], None));
        assert_eq!(running.restore().1.len(), 1);
        for _ in 0..2 {
            let watched = protected.begin(&root, false).unwrap();
            // A file is there that stops git.
            fs::remove_file(&git).unwrap();
            // The directory that was there at first, by its number.
            fs::rename(&aside, &git).unwrap();
            assert_eq!(watched.restore().1.len(), 1);
        }
    }
}
