//! The files that commands never write, because other programs run or obey them without being started by the
//! person: git repositories, and the settings of editors, shells and agents. What is there when a command
//! begins is read-only to it; `watched` looks at what is there when it has ended. Of each entry one thing is
//! asked: is it what was there while no command was at work?

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::super::programs::{gits_own_settings, home_directories};
use super::budget::Budget;
use super::handles::{Entry, open_directory, read_path, target_of};
use super::kept::Kept;
use super::obeyed::{is_obeyed, linked_settings, links_in, named_by_configuration};
use super::search::{Search, is_of_git};
use super::watched::Watched;

/// The longest that a command waits for another one's search.
const LONGEST_WAIT: Duration = Duration::from_mins(1);

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

/// An entry that no command made.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) entry: Entry,
    /// No command was at work, of another respool either.
    pub(super) is_sure: bool,
}

/// The knowledge of one command that the next one needs.
#[derive(Debug, Default)]
pub(super) struct State {
    /// The entries that no command made, and the links on the way to what they name.
    pub(super) known: HashMap<PathBuf, Known>,
    /// Where settings count: the roots, and directories that held a `.git` while no command was at work.
    pub(super) tops: BTreeSet<PathBuf>,
    /// Places that could not be looked through when a command had ended.
    pub(super) unseen: BTreeSet<PathBuf>,
    /// Entries that commands made and that could not be renamed.
    pub(super) stuck: BTreeSet<PathBuf>,
}

/// The files that commands never write.
#[derive(Debug)]
pub(super) struct Protected {
    /// The workspace, then the writable places of the configuration.
    pub(super) roots: Vec<PathBuf>,
    /// Places that programs outside the sandbox use.
    named: Vec<PathBuf>,
    /// Caches and other places that commands write.
    pub(super) caches: Vec<PathBuf>,
    /// The repositories that were there before the first command.
    repositories: Vec<Repository>,
    state: Mutex<State>,
}

impl Protected {
    /// Searches the workspace and the writable places of the configuration, and finds the repository that the
    /// workspace is in. `named` are places that programs outside the sandbox use.
    pub(super) fn find(workspace: &Path, configured: &[PathBuf], named: &[PathBuf]) -> Self {
        let directories = configured.iter().filter(|place| !place.is_file()).cloned();
        let roots: Vec<PathBuf> = std::iter::once(workspace.to_owned()).chain(directories).collect();
        let locks = Locks::take(&roots);
        let is_sure = locks.as_ref().is_ok_and(|locks| locks.are_alone);
        let search = Search::run(&roots, &mut Budget::new(), None);
        drop(locks);
        for root in &search.unfinished {
            tracing::warn!(target: "respool::tools", directory = %root.display(),
                "there are too many directories to find all repositories: commands only read this one");
        }
        let mut repositories: Vec<Repository> =
            workspace.ancestors().skip(1).find_map(|above| repository(above, &[])).into_iter().collect();
        for top in search.repositories() {
            let known: Vec<PathBuf> = repositories.iter().map(|known| known.common.clone()).collect();
            repositories.extend(repository(top, &known));
        }
        let tops = search.repositories().map(Path::to_owned).chain(roots.iter().cloned()).collect();
        let known =
            |(path, entry): (&PathBuf, &Entry)| (path.clone(), Known { entry: entry.clone(), is_sure });
        let known = search.entries.iter().map(known).collect();
        let state = State { known, tops, ..State::default() };
        Self { roots, named: named.to_vec(), caches: Vec::new(), repositories, state: Mutex::new(state) }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what a command in this directory leaves as it is, and what looks at that when it has ended.
    ///
    /// # Errors
    /// When another program has locked the workspace.
    pub(super) fn begin(self: &Arc<Self>, directory: &Path, has_mounts: bool) -> io::Result<(Kept, Watched)> {
        let nothing_runs = Arc::strong_count(self) == 1;
        let locks = Locks::take(&self.roots)?;
        let is_alone = nothing_runs && locks.are_alone;
        let mut budget = Budget::new();
        let search = Search::run(&self.roots, &mut budget, None);
        self.learn(&search, is_alone);
        let mut kept = self.find_kept(&search, has_mounts, &mut budget);
        if is_alone {
            let entries = kept.links.iter().map(|(link, target)| (link.clone(), Entry::Link(target.clone())));
            let known = entries.map(|(link, entry)| (link, Known { entry, is_sure: true }));
            self.state().known.extend(known);
        }
        let spent = self.roots.iter().filter(|_| budget.is_spent());
        kept.unsearched.extend(search.unfinished.iter().chain(spent).cloned());
        kept.unsearched.extend(self.state().unseen.iter().cloned());
        if !kept.unsearched.is_empty() {
            kept.close(kept.unsearched.clone(), None);
        }
        if has_mounts {
            kept.bound(&self.roots, self.repository_of(directory).map(|repository| repository.top));
        }
        let watched = Watched {
            protected: Arc::clone(self),
            roots: self.roots.clone(),
            closed: search.closed,
            links: search.links,
            missing: kept.missing.clone(),
            unsearched: kept.unsearched.clone(),
            _locks: Some(locks.share()?),
        };
        Ok((kept, watched))
    }

    /// Returns what looks at names alone, at which nothing must be made.
    pub(super) fn watch_names(self: &Arc<Self>, missing: BTreeSet<PathBuf>) -> Watched {
        let (roots, none) = (Vec::new(), BTreeSet::new());
        Watched {
            protected: Arc::clone(self),
            roots,
            closed: none.clone(),
            links: none.clone(),
            missing,
            unsearched: none,
            _locks: None,
        }
    }

    /// Takes note of the settings that are there although no command made them, and forgets what is gone. A
    /// repository counts as the person's only if it was there at the start.
    fn learn(&self, search: &Search, is_alone: bool) {
        let mut state = self.state();
        let is_unsearched = |path: &Path| search.unfinished.iter().any(|root| path.starts_with(root));
        state.known.retain(|path, known| {
            let is_same = search.entries.get(path) == Some(&known.entry);
            known.is_sure |= is_alone && is_same;
            is_same || is_unsearched(path) || (known.is_sure && !is_alone)
        });
        if is_alone {
            let settings = search.entries.iter().filter(|(path, _)| !is_of_git(path));
            let known = |entry: &Entry| Known { entry: entry.clone(), is_sure: true };
            state.known.extend(settings.map(|(path, entry)| (path.clone(), known(entry))));
            state.tops = search
                .repositories()
                .chain(self.roots.iter().map(PathBuf::as_path))
                .map(Path::to_owned)
                .collect();
        }
    }

    /// Finds what is read-only. Of what commands made, that is only what mounts can keep so.
    fn find_kept(&self, search: &Search, has_mounts: bool, budget: &mut Budget) -> Kept {
        let known = self.state().known.clone();
        let mut kept = Kept::default();
        kept.frozen.extend(search.closed.iter().cloned());
        let mut places: Vec<PathBuf> = linked_settings().chain(self.named.iter().cloned()).collect();
        let mut tops: BTreeSet<&Path> = self.roots.iter().map(PathBuf::as_path).collect();
        tops.extend(self.repositories.iter().map(|repository| repository.top.as_path()));
        // Where a command's repository leads is its own.
        tops.extend(search.repositories().filter(|top| known.contains_key(&top.join(".git"))));
        for (path, entry) in &search.entries {
            let Some(top) = path.parent().filter(|_| budget.take(1)) else { break };
            let (is_git, is_bare) = (path.ends_with(".git"), path.ends_with("HEAD"));
            if !known.contains_key(path) && (is_bare || !has_mounts) {
                continue;
            }
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
        let persons = named_by_configuration(gits_own_settings(), Path::new(""), home.as_deref(), budget);
        let (absolute, relative): (Vec<_>, Vec<_>) = persons.into_iter().partition(|path| path.is_absolute());
        places.extend(absolute);
        for top in tops {
            // The directory of a repository above the workspace is not searched.
            let names_obeyed = |link: &PathBuf| link.file_name().is_some_and(is_obeyed);
            places.extend(links_in(top).filter(names_obeyed));
            places.extend(relative.iter().map(|path| top.join(path)));
            places.extend(named_by_repository(top, home.as_deref(), budget));
        }
        for place in places {
            kept.add(&place, &self.roots, budget);
            for link in links_in(&place) {
                kept.add(&link, &self.roots, budget);
            }
        }
        kept
    }

    /// Returns true for a path that commands never write, as things are now.
    pub(super) fn keeps(&self, path: &Path) -> bool {
        let mut budget = Budget::new();
        let search = Search::run(&self.roots, &mut budget, None);
        let kept = self.find_kept(&search, true, &mut budget);
        budget.is_spent() || kept.frozen.iter().chain(&kept.missing).any(|place| path.starts_with(place))
    }

    /// Returns the directory in a cache to which a link leads, or the repository around that.
    pub(super) fn linked_cache(&self, real: &Path) -> Option<PathBuf> {
        let real = Some(real).filter(|real| real.is_dir())?;
        let cache = self.caches.iter().find(|cache| real.starts_with(cache))?;
        let inside = real.ancestors().take_while(|above| above.starts_with(cache));
        let top = inside.filter(|above| above.join(".git").symlink_metadata().is_ok()).last();
        Some(top.unwrap_or(real).to_owned())
    }

    /// Fails while there is something that a command made and that could not be renamed.
    ///
    /// # Errors
    /// The first of these.
    pub(super) fn check_stuck(&self) -> io::Result<()> {
        let is_gone = |error: io::Error| error.kind() == io::ErrorKind::NotFound;
        let mut state = self.state();
        state.stuck.retain(|path| !path.symlink_metadata().is_err_and(is_gone));
        let Some(path) = state.stuck.first() else { return Ok(()) };
        Err(io::Error::other(format!(
            "an earlier command made {}, which could not be renamed: the user has to look at it and rename or remove it",
            path.display()
        )))
    }

    /// Returns true for what lies in git's directory of a repository, whatever the name of that is.
    pub(super) fn is_of_git(&self, path: &Path) -> bool {
        let mut all = self.repositories.iter().flat_map(|repository| [&repository.own, &repository.common]);
        all.any(|git| path.starts_with(git))
    }

    /// Returns git's directories outside the writable places.
    pub(super) fn git_directories(&self) -> impl Iterator<Item = &PathBuf> {
        let all = self.repositories.iter().flat_map(|repository| [&repository.own, &repository.common]);
        all.filter(|git| !self.roots.iter().any(|root| git.starts_with(root)))
    }

    /// Returns the repository that git would use in a directory. Of those that came later only one with a
    /// `.git` of its own counts: a command could have made a link to any other.
    pub(super) fn repository_of(&self, directory: &Path) -> Option<Repository> {
        let top = directory.ancestors().find(|above| above.join(".git").symlink_metadata().is_ok())?;
        let known = self.repositories.iter().find(|repository| repository.top == top).cloned();
        let is_inside = self.roots.iter().any(|root| top.starts_with(root));
        let git = top.join(".git");
        let is_own = || is_inside && git.symlink_metadata().is_ok_and(|data| data.is_dir());
        known.or_else(|| {
            is_own().then(|| Repository { top: top.to_owned(), own: git.clone(), common: git.clone() })
        })
    }
}

/// Locks on the roots. Commands share them as long as they may write there; who has them alone knows that no
/// command of any respool is at work.
#[derive(Debug)]
pub(super) struct Locks {
    files: Vec<fs::File>,
    are_alone: bool,
}

impl Locks {
    /// Takes them alone, or else with the others.
    ///
    /// # Errors
    /// When a root cannot be opened, or another program has locked it.
    fn take(roots: &[PathBuf]) -> io::Result<Self> {
        let mut locks = Self { files: Vec::new(), are_alone: true };
        for root in roots {
            match open_directory(root) {
                Ok(directory) => locks.files.push(directory.into_std_file()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    return Err(io::Error::new(error.kind(), format!("{}: {error}", root.display())));
                }
            }
        }
        // A file system may have no locks.
        let is_held = |file: &fs::File| matches!(file.try_lock(), Err(fs::TryLockError::WouldBlock));
        locks.are_alone = !locks.files.iter().any(is_held);
        if locks.are_alone { Ok(locks) } else { locks.share() }
    }

    /// Lets others in.
    fn share(self) -> io::Result<Self> {
        let end = Instant::now() + LONGEST_WAIT;
        for file in &self.files {
            while matches!(file.try_lock_shared(), Err(fs::TryLockError::WouldBlock)) {
                if Instant::now() > end {
                    return Err(io::Error::other("another program has locked the workspace"));
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(self)
    }
}

/// Returns where a `.git` leads, by its own words, links in it and its configuration.
fn named_by_repository(top: &Path, home: Option<&Path>, budget: &mut Budget) -> Vec<PathBuf> {
    let git = top.join(".git");
    // git obeys the files to which included ones lead.
    let own = target_of(&git);
    let common = own.as_ref().and_then(|own| Some(own.join(read_path(&own.join("commondir"))?)));
    let mut named: Vec<PathBuf> = own.into_iter().chain(common).collect();
    let all: Vec<PathBuf> = named.iter().cloned().chain([git]).collect();
    named.extend(all.iter().flat_map(|git| links_in(git).chain(links_in(&git.join("hooks")))));
    let files = all.iter().flat_map(|git| ["config", "config.worktree"].map(|name| git.join(name)));
    named.extend(named_by_configuration(files.collect(), top, home, budget));
    named
}

/// Returns the repository whose `.git` is in this directory. A file there leads elsewhere only to a linked
/// work tree that knows of it, to a submodule's place in a repository above it, or below this directory.
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
pub(super) fn common_of_linked(git: &Path) -> Option<PathBuf> {
    let own = target_of(git)?.canonicalize().ok()?;
    let back = own.join(read_path(&own.join("gitdir"))?).canonicalize().ok()?;
    let common = own.join(read_path(&own.join("commondir"))?).canonicalize().ok()?;
    let is_known = back == git.canonicalize().ok()? && own.starts_with(common.join("worktrees"));
    (is_known && common.join("HEAD").is_file()).then_some(common)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let protected = Protected::find(&root, &[], &[]);
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
        assert!(Protected::find(&root.join("src"), &[], &[]).keeps(&root.join("src/envrc")));
        assert!(!protected.keeps(&root.join("src/main.rs")) && !protected.keeps(&root.join("new")));
    }

    /// Two commands at once could exchange a repository between the search and the mounts of one of them.
    #[test]
    fn only_what_no_command_made_is_excused() {
        const HARMFUL: &str = "[core]\n\tfsmonitor = x\n";
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let [first, made, cloned, late] = ["first", "made", "cloned", "late"].map(|name| root.join(name));
        make_repository(&first, HARMFUL);
        let protected = Arc::new(Protected::find(&root, &[], &[]));
        make_repository(&made, "");
        make_repository(&cloned, HARMFUL);
        let (_, running) = protected.begin(&root, true).unwrap();
        make_repository(&late, HARMFUL);
        let (_, watched) = protected.begin(&root, true).unwrap();
        // The same file as before.
        fs::write(made.join(".git/config"), HARMFUL).unwrap();
        let notes = watched.restore();
        assert_eq!(notes.len(), 3, "{notes:?}");
        let is_named = |name: &str| notes.iter().any(|note| note.contains(name));
        assert!(is_named("late/.git") && is_named("made/.git") && is_named("cloned/.git"), "{notes:?}");
        assert!(first.join(".git").exists());
        assert!(running.restore().is_empty());
    }

    /// An editor replaces a file while a command runs, which could write the new one.
    #[test]
    fn settings_that_are_replaced_are_noted() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        fs::write(root.join(".envrc"), "own").unwrap();
        let protected = Arc::new(Protected::find(&root, &[], &[]));
        let (_, watched) = protected.begin(&root, true).unwrap();
        fs::write(root.join("new"), "own").unwrap();
        fs::rename(root.join("new"), root.join(".envrc")).unwrap();
        let notes = watched.restore();
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
        let other = Arc::new(Protected::find(&root, &[], &[]));
        let (_, running) = other.begin(&root, true).unwrap();
        make_repository(&root.join("a"), HARMFUL);
        let protected = Arc::new(Protected::find(&root, &[], &[]));
        assert_eq!(running.restore().len(), 1);
        assert!(!git.exists());
        for _ in 0..2 {
            let (kept, watched) = protected.begin(&root, true).unwrap();
            assert!(!kept.frozen.contains(&git));
            // The directory that was there at first, by its number.
            fs::rename(&aside, &git).unwrap();
            assert_eq!(watched.restore().len(), 1);
        }
    }
}
