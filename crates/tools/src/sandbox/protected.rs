//! The files that commands never write, because other programs run or obey them without being started by the
//! person: git repositories, and the settings of editors, shells and agents. What is there when a command
//! begins is read-only to it. Such settings that it makes where there were none are renamed when it has
//! ended, and a link to settings that it replaced is put back.
//!
//! Repositories are searched for before the first command, and after that only near the top of the workspace,
//! where commands clone.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cap_std::fs::{Dir, MetadataExt as _};
use rustix::fs::OFlags;

use super::super::programs::{Resolved, home_directories, resolve_symlinks};
use super::handles::open_to_owner;
use super::harmless::{is_harmless, line, starts_nothing};
use super::obeyed::{
    LONGEST_PATH, Left, MOST_PARTS, RENAMED, is_obeyed, is_symlink, linked_settings, links_below, links_in,
    list_settings, named_by_settings, paths_in,
};
use super::search::{Identity, Search, identity};

/// The most places that are looked up for one command, about as many as a second has time for. Where more
/// have to be, commands only read.
const MOST_PLACES: usize = 300_000;
/// The most mounts that keep places read-only: bubblewrap takes a time that grows with their square (0.15 s
/// for a hundred, 2.5 s for four hundred, minutes for three thousand).
const MOST_MOUNTS: usize = 160;
/// The most bytes of their paths. A path is up to four times in one argument of a program, which has
/// 131,072 bytes at most.
const MOST_BYTES: usize = 30_000;

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

/// The places that a command leaves as they are.
#[derive(Clone, Debug, Default)]
pub(super) struct Kept {
    /// Files and directories that are read-only.
    pub(super) frozen: BTreeSet<PathBuf>,
    /// Names in directories: the links on the way to those, and what is not there and must not be made.
    names: BTreeSet<(PathBuf, OsString)>,
    /// Directories in which no settings are made.
    tops: BTreeSet<PathBuf>,
    /// A repository that is written although a directory above it is read-only as a whole.
    pub(super) spared: Option<PathBuf>,
    /// The places that could not be looked through, and are read-only as a whole.
    pub(super) unsearched: BTreeSet<PathBuf>,
}

impl Repository {
    fn open(top: &Path) -> Self {
        let git = top.join(".git");
        Self { top: top.to_owned(), own: git.clone(), common: git }
    }
}

impl Kept {
    /// Adds the file or directory at a path, the links on the way, those in the directory, and what they lead
    /// to; if nothing is there, the first name that is missing.
    fn add(&mut self, path: PathBuf, roots: &[PathBuf], left: &mut Left) {
        let is_inside = |path: &Path| roots.iter().any(|root| path.starts_with(root));
        let mut waiting = vec![path];
        while let Some(path) = waiting.pop() {
            if !left.take(1) {
                return;
            }
            let Some(Resolved { real, links }) = resolve_symlinks(&path) else { continue };
            let name = |path: &Path| Some((path.parent()?.to_owned(), path.file_name()?.to_owned()));
            let missing = real.ancestors().take_while(|path| path.symlink_metadata().is_err()).last();
            let names = links.iter().map(PathBuf::as_path).chain(missing).filter_map(name);
            // What is in `.git` is read-only with it.
            let is_named =
                |directory: &Path| is_inside(directory) && !directory.iter().any(|part| part == ".git");
            self.names.extend(names.filter(|(directory, _)| is_named(directory)));
            if missing.is_none() && is_inside(&real) && self.frozen.insert(real.clone()) {
                waiting.extend(links_below(&real, left));
            }
        }
    }

    /// Makes directories read-only as a whole, and forgets what is in them.
    fn close(&mut self, directories: BTreeSet<PathBuf>, spared: Option<PathBuf>) {
        let is_left = |place: &Path| {
            spared.as_ref().is_some_and(|own| place.starts_with(own))
                || !place.ancestors().any(|above| directories.contains(above))
        };
        self.frozen.retain(|place| is_left(place));
        self.names.retain(|(directory, _)| is_left(directory));
        self.tops.retain(|top| is_left(top));
        self.frozen.extend(directories);
        self.spared = spared;
    }

    /// The directories with names that are kept, which stay where they are.
    pub(super) fn fixed_directories(&self) -> BTreeSet<&PathBuf> {
        self.names.iter().map(|(directory, _)| directory).collect()
    }

    /// All places below these roots that need a mount.
    fn mount_points(&self, roots: &[PathBuf]) -> BTreeSet<&Path> {
        let is_below = |path: &&Path| roots.iter().any(|root| path.starts_with(root) && *path != root);
        let all = self.frozen.iter().chain(self.fixed_directories());
        all.flat_map(|place| place.ancestors()).filter(is_below).collect()
    }

    /// True when something below this directory is kept that only a mount keeps.
    pub(super) fn has_any_in(&self, directory: &Path) -> bool {
        self.frozen.contains(directory) || !self.mount_points(&[directory.to_owned()]).is_empty()
    }

    /// Makes directories read-only as a whole, the deepest first, until a sandbox can be made in a moment.
    /// The repository that a command works in keeps its own places, as far as that is possible.
    fn bound(&mut self, roots: &[PathBuf], own: Option<PathBuf>) {
        let own = own.filter(|own| !roots.contains(own));
        for spared in [own, None] {
            let is_fixed = |place: &Path| {
                roots.iter().any(|root| place == root)
                    || spared.as_ref().is_some_and(|own| place.starts_with(own))
            };
            let depth = |place: &PathBuf| place.components().count();
            while self.is_too_much(roots) {
                let others = || self.frozen.iter().filter(|place| !is_fixed(place));
                let Some(deepest) = others().map(depth).max() else { break };
                let above =
                    others().filter(|place| depth(place) == deepest).filter_map(|place| place.parent());
                self.close(above.map(Path::to_owned).collect(), spared.clone());
            }
        }
    }

    fn is_too_much(&self, roots: &[PathBuf]) -> bool {
        let points = self.mount_points(roots);
        let bytes: usize = points.iter().map(|place| place.as_os_str().len()).sum();
        points.len() > MOST_MOUNTS || bytes > MOST_BYTES
    }
}

/// The files that commands never write.
#[derive(Debug, Default)]
pub(super) struct Protected {
    /// The workspace, then the writable places of the configuration.
    roots: Vec<PathBuf>,
    /// Places that programs outside the sandbox use.
    named: Vec<PathBuf>,
    /// These, and the directories that held a `.git` before the first command.
    tops: BTreeSet<PathBuf>,
    /// The repositories that were there before the first command.
    repositories: Vec<Repository>,
    /// The places that were there before the first command.
    kept: Kept,
    /// The repositories that commands have made since.
    made: Mutex<Vec<Repository>>,
    /// The repositories and closed directories before the last command.
    seen: Mutex<Arc<Search>>,
    /// The `.git`s, and the `HEAD`s of repositories without a work tree, that no command made.
    excused: Mutex<BTreeMap<PathBuf, Identity>>,
    /// Each command that runs has a copy.
    running: Arc<()>,
    /// How many commands have run or run.
    begun: AtomicU64,
    /// The settings of commands that could not be renamed.
    stuck: Arc<Mutex<BTreeSet<PathBuf>>>,
    /// The links that no command made, with their targets.
    links: Mutex<BTreeMap<PathBuf, PathBuf>>,
}

impl Protected {
    /// Searches the workspace and the writable places of the configuration, and finds the repository that the
    /// workspace is in. `named` are places that programs outside the sandbox use.
    pub(super) fn find(workspace: &Path, configured: &[PathBuf], named: &[PathBuf]) -> Self {
        let roots = vec![workspace.to_owned()];
        let mut found = Self { roots, named: named.to_vec(), ..Self::default() };
        found.roots.extend(configured.iter().filter(|place| !place.is_file()).cloned());
        let search = Search::run_all(&found.roots, &Search::default());
        for root in &search.unfinished {
            tracing::warn!(target: "respool::tools", directory = %root.display(),
                "there are too many directories to find all repositories: commands only read this one");
        }
        found.tops = search.tops.keys().chain(&found.roots).cloned().collect();
        found.kept.frozen.extend(search.closed.iter().chain(&search.bare).cloned());
        found.repositories.extend(workspace.ancestors().skip(1).find_map(|above| repository(above, &[])));
        for top in &found.tops {
            let known: Vec<PathBuf> = found.repositories.iter().map(|known| known.common.clone()).collect();
            found.repositories.extend(repository(top, &known));
            if is_symlink(&top.join(".git")) {
                // A link cannot be made read-only, so the directory that it is in is.
                found.kept.frozen.insert(top.clone());
            }
        }
        found.excused = Mutex::new(entries(&search).collect());
        found.seen = Mutex::new(Arc::new(search));
        let mut kept = std::mem::take(&mut found.kept);
        found.add_settings(&mut kept, false);
        // There may be more time for the next search.
        found.kept = Kept { unsearched: BTreeSet::new(), ..kept };
        found
    }

    /// Searches for repositories that commands have made. Only a real `.git` directory counts: a command
    /// could have made a link to any other.
    pub(super) fn find_made(&self, has_mounts: bool) {
        let (begun, nothing_runs) =
            (self.begun.load(Ordering::SeqCst), Arc::strong_count(&self.running) == 1);
        let search = Search::run_all(&self.roots, &self.seen());
        if nothing_runs {
            let excused = self.lock_excused();
            // Those of commands start nothing: they were judged when the last one ended.
            let is_of_person = |(entry, id): &(PathBuf, Identity)| {
                excused.get(entry) != Some(id) && !entry_is_harmless(entry)
            };
            let found: Vec<_> = entries(&search).filter(is_of_person).collect();
            drop(excused);
            if self.begun.load(Ordering::SeqCst) == begun {
                self.lock_excused().extend(found);
            }
        }
        let is_new = |top: &&PathBuf| !self.repositories.iter().any(|known| known.top == **top);
        let made = search.tops.keys().filter(is_new).filter(|top| {
            let git = top.join(".git");
            git.symlink_metadata().is_ok_and(|data| data.is_dir())
        });
        if has_mounts {
            *self.made() = made.map(|top| Repository::open(top)).collect();
        }
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(search);
    }

    fn seen(&self) -> Arc<Search> {
        Arc::clone(&self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn lock_excused(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Identity>> {
        self.excused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn made(&self) -> MutexGuard<'_, Vec<Repository>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All repositories: those of the start, then those that commands made.
    fn all(&self) -> Vec<Repository> {
        self.repositories.iter().chain(self.made().iter()).cloned().collect()
    }

    /// Adds the settings at the top of each work tree.
    fn add_settings(&self, kept: &mut Kept, has_mounts: bool) {
        let is_obeyed =
            |path: &PathBuf| path.file_name().is_some_and(|name| name == ".git" || is_obeyed(name));
        let seen = self.seen();
        let made: BTreeSet<PathBuf> =
            seen.tops.keys().filter(|_| has_mounts).chain(&self.tops).cloned().collect();
        let mut left = Left(MOST_PLACES);
        for top in &made {
            let git = top.join(".git");
            // Wherever a file leads, git obeys what is there.
            let own = line(&git).and_then(|line| Some(top.join(line.strip_prefix("gitdir:")?.trim())));
            let common = own.as_ref().and_then(|own| Some(own.join(line(&own.join("commondir"))?)));
            let elsewhere: Vec<PathBuf> = own.into_iter().chain(common).collect();
            let hooks = elsewhere.iter().chain([&git]).flat_map(|git| links_in(&git.join("hooks")));
            let mut places: Vec<PathBuf> = hooks.chain(elsewhere.clone()).collect();
            places.extend(named_by_settings(&git.join("hooks"), top, &mut left));
            for settings in paths_in(top).filter(is_obeyed) {
                places.extend(named_by_settings(&settings, top, &mut left));
                places.push(settings);
            }
            places.into_iter().for_each(|path| kept.add(path, &self.roots, &mut left));
            kept.tops.insert(top.clone());
        }
        let tops = self.roots.iter().map(|root| Repository::open(root));
        let mut places: Vec<PathBuf> = linked_settings().chain(self.named.iter().cloned()).collect();
        for repository in tops.chain(self.all()) {
            places.extend(named_by_configuration(&repository, &mut left));
        }
        places.into_iter().for_each(|path| kept.add(path, &self.roots, &mut left));
        kept.unsearched
            .extend(seen.unfinished.iter().chain(self.roots.iter().filter(|_| left.is_spent())).cloned());
    }

    /// Returns true for what lies in git's directory of a repository, whatever the name of that is.
    pub(super) fn is_of_git(&self, path: &Path) -> bool {
        let is_in = |repository: &Repository| {
            path.starts_with(&repository.own) || path.starts_with(&repository.common)
        };
        self.all().iter().any(is_in)
    }

    /// Returns git's directories outside the writable places.
    pub(super) fn git_directories(&self) -> impl Iterator<Item = &PathBuf> {
        let all = self.repositories.iter().flat_map(|repository| [&repository.own, &repository.common]);
        all.filter(|git| !self.roots.iter().any(|root| git.starts_with(root)))
    }

    /// Returns what a command in this directory leaves as it is.
    ///
    /// # Errors
    /// When a repository is gone.
    pub(super) fn find_kept(&self, directory: &Path, has_mounts: bool) -> io::Result<Kept> {
        let is_gone = |path: &&PathBuf| {
            path.ends_with(".git")
                && path.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        };
        let mut kept = self.kept.clone();
        self.add_settings(&mut kept, has_mounts);
        if !kept.unsearched.is_empty() {
            kept.close(kept.unsearched.clone(), None);
        }
        if !has_mounts {
            return Ok(kept);
        }
        if let Some(git) = self.kept.frozen.iter().find(is_gone) {
            let text =
                format!("{} is gone, and cannot be protected any more: restart respool", git.display());
            return Err(io::Error::other(text));
        }
        let seen = self.seen();
        // What starts nothing may be a package manager's cache. It is judged again when the command ends.
        let bare = seen.bare.iter().filter(|top| !starts_nothing(top));
        kept.frozen.extend(seen.closed.iter().chain(bare).cloned());
        kept.bound(&self.roots, self.repository_of(directory).map(|repository| repository.top));
        let Kept { frozen, names, spared, .. } = &mut kept;
        let is_spared = |path: &Path| spared.as_ref().is_some_and(|spared| path.starts_with(spared));
        names.retain(|(path, _)| is_spared(path) || !path.ancestors().any(|above| frozen.contains(above)));
        Ok(kept)
    }

    /// Fails while there are settings that a command made and that could not be renamed.
    ///
    /// # Errors
    /// The first of these settings.
    pub(super) fn check_stuck(&self) -> io::Result<()> {
        let mut stuck = self.stuck.lock().unwrap_or_else(PoisonError::into_inner);
        let is_gone = |error: io::Error| error.kind() == io::ErrorKind::NotFound;
        stuck.retain(|path| !path.symlink_metadata().is_err_and(is_gone));
        let Some(path) = stuck.first() else { return Ok(()) };
        Err(io::Error::other(format!(
            "an earlier command made {}, which could not be renamed: the user has to look at it and rename or remove it",
            path.display()
        )))
    }

    /// Returns the names that a command must not make or replace, for [`WatchedSettings::restore`].
    ///
    /// # Errors
    /// When a directory cannot be opened: settings in it could not be renamed.
    pub(super) fn watched_settings(&self, kept: &Kept) -> io::Result<Vec<WatchedSettings>> {
        let mut watched: BTreeMap<&PathBuf, BTreeSet<OsString>> = BTreeMap::new();
        for top in &kept.tops {
            watched.insert(top, BTreeSet::new());
        }
        for (directory, name) in &kept.names {
            watched.entry(directory).or_default().insert(name.clone());
        }
        watched
            .into_iter()
            .map(|(directory, names)| {
                let names: Vec<OsString> = names.into_iter().collect();
                WatchedSettings::find(directory, &names, kept.tops.contains(directory), self)
            })
            .filter_map(Result::transpose)
            .collect()
    }

    /// Returns what finds the repositories that a command makes.
    pub(super) fn watched_repositories(&self) -> WatchedRepositories {
        let running = Arc::clone(&self.running);
        self.begun.fetch_add(1, Ordering::SeqCst);
        let excused = self.lock_excused().clone();
        let (roots, before, stuck) = (self.roots.clone(), self.seen(), Arc::clone(&self.stuck));
        WatchedRepositories { roots, before, excused, stuck, _running: running }
    }

    /// Returns the repository that git would use in a directory.
    pub(super) fn repository_of(&self, directory: &Path) -> Option<Repository> {
        let top = directory.ancestors().find(|above| above.join(".git").symlink_metadata().is_ok())?;
        self.all().into_iter().find(|repository| repository.top == top)
    }
}

/// A file or directory by its number, and where it leads if it is a link.
type Entry = (u64, u64, Option<PathBuf>);

/// A name, and what it stands for.
#[derive(Debug)]
struct Watched {
    name: OsString,
    before: Option<Entry>,
    /// The target of the link that is put back.
    target: Option<PathBuf>,
}

/// Settings that a command must not make or replace, and a handle on their directory: a command may move it.
#[derive(Debug)]
pub(crate) struct WatchedSettings {
    top: PathBuf,
    /// It is locked as long as a command may write here.
    directory: Dir,
    names: Vec<Watched>,
    /// Where programs look for settings: the names that were there, and those above.
    known: Option<BTreeSet<OsString>>,
    /// Of all directories.
    stuck: Arc<Mutex<BTreeSet<PathBuf>>>,
}

impl WatchedSettings {
    /// `None` for a directory that is gone.
    fn find(top: &Path, names: &[OsString], is_top: bool, protected: &Protected) -> io::Result<Option<Self>> {
        let failed = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", top.display()));
        // A command may have put a pipe in its place, which would be waited for.
        let only_directory = (OFlags::DIRECTORY | OFlags::NONBLOCK).bits().cast_signed();
        let opened = fs::OpenOptions::new().read(true).custom_flags(only_directory).open(top);
        let is_gone = |error: &io::Error| {
            matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
        };
        let directory = match opened {
            Err(error) if is_gone(&error) => return Ok(None),
            opened => opened.map_err(failed)?,
        };
        let is_alone = lock(&directory).map_err(failed)?;
        let directory = Dir::from_std_file(directory);
        let mut links = protected.links.lock().unwrap_or_else(PoisonError::into_inner);
        // Another command, also of another respool, may have made what is there. A link cannot be read-only.
        let mut watch = |name: OsString| {
            let before = entry(&directory, &name);
            let target = before.as_ref().and_then(|(_, _, target)| target.clone());
            let path = top.join(&name);
            if let Some(target) = target.as_ref().filter(|_| is_alone) {
                links.insert(path.clone(), target.clone());
            }
            let is_watched = !is_alone || before.is_none() || target.is_some();
            let target = target.filter(|target| links.get(&path) == Some(target));
            is_watched.then_some(Watched { name, before, target })
        };
        let settings = if is_top { list_settings(&directory)? } else { BTreeSet::new() };
        let known: BTreeSet<OsString> = names.iter().cloned().chain(settings).collect();
        let names = known.iter().cloned().filter_map(&mut watch).collect();
        let (top, stuck) = (top.to_owned(), Arc::clone(&protected.stuck));
        Ok(Some(Self { top, directory, names, known: is_top.then_some(known), stuck }))
    }

    /// Renames the settings that a command has made, puts back links that it replaced, and returns a note on
    /// each.
    pub(crate) fn restore(&self) -> Vec<String> {
        // A command may have taken the directory's permissions away.
        let closed =
            self.directory.try_clone().ok().and_then(|directory| give_permissions(directory.into_std_file()));
        let mut notes: Vec<String> =
            self.names.iter().filter_map(|watched| self.restore_one(watched)).collect();
        if let Some(known) = &self.known {
            let settings = list_settings(&self.directory).unwrap_or_default();
            notes.extend(settings.difference(known).map(|name| self.rename(name)));
        }
        if let Some((directory, permissions)) = closed {
            // As the command left it; what counts is renamed.
            let _ = directory.set_permissions(permissions);
        }
        notes
    }

    fn restore_one(&self, Watched { name, before, target }: &Watched) -> Option<String> {
        let now = entry(&self.directory, name);
        if now == *before {
            return None;
        }
        let note = now.map(|_| self.rename(name));
        let Some(target) = target else { return note };
        let put_back = match self.directory.symlink_contents(target, name) {
            Ok(()) => format!("respool put the link {} back", name.display()),
            Err(error) => format!("the link {} is gone: {error}", name.display()),
        };
        Some(note.into_iter().chain([put_back]).collect::<Vec<_>>().join("; "))
    }

    fn rename(&self, name: &OsStr) -> String {
        let obeyed = "which editors, shells or agents obey without being started";
        set_aside(&self.directory, &self.top.join(name), obeyed, &self.stuck)
    }
}

/// Repositories that a command must not make: git starts a program when the person looks at one.
#[derive(Debug)]
pub(crate) struct WatchedRepositories {
    roots: Vec<PathBuf>,
    before: Arc<Search>,
    excused: BTreeMap<PathBuf, Identity>,
    stuck: Arc<Mutex<BTreeSet<PathBuf>>>,
    _running: Arc<()>,
}

impl WatchedRepositories {
    /// Renames the `.git` of such repositories, and returns a note on each.
    pub(crate) fn restore(&self) -> Vec<String> {
        let (mut after, mut notes) = (Search::run_all(&self.roots, &self.before), Vec::new());
        // A command may have closed the directory that one is in.
        let mut opened: BTreeSet<PathBuf> = self.before.closed.iter().cloned().collect();
        while let Some(closed) = after.closed.pop() {
            if opened.insert(closed.clone()) {
                notes.push(match open_to_owner(&closed) {
                    Ok(()) => format!("respool opened {} again, to look into it", closed.display()),
                    Err(error) => format!("the command closed {}: {error}", closed.display()),
                });
                after.run(&closed, &self.before);
            }
        }
        // Where not all were found before, commands only read.
        let is_read = |place: &Path| self.before.unfinished.iter().any(|root| place.starts_with(root));
        for root in after.unfinished.iter().filter(|root| !is_read(root)) {
            notes.push(format!(
                "repositories that the command made in {} cannot all be found, because there are too many directories or too long \
                 paths: it is read-only from now on; ask the user to look before git runs there",
                root.display()
            ));
        }
        // All others are judged, even if this command could not change them: others may run meanwhile.
        let is_judged = |(entry, id): &(PathBuf, Identity)| {
            self.excused.get(entry) != Some(id) && !is_read(entry) && !entry_is_harmless(entry)
        };
        for (entry, _) in entries(&after).filter(is_judged) {
            if let (Some(top), Some(name)) = (entry.parent(), entry.file_name().and_then(OsStr::to_str)) {
                notes.push(self.set_aside(top, name));
            }
        }
        notes
    }

    fn set_aside(&self, top: &Path, name: &str) -> String {
        let open = || {
            let root = self.roots.iter().find(|root| top.starts_with(root)).ok_or(io::ErrorKind::NotFound)?;
            let directory = Dir::open_ambient_dir(root, cap_std::ambient_authority())?;
            let below = Path::new(".").join(top.strip_prefix(root).unwrap_or(top));
            Ok::<_, io::Error>(Dir::from_std_file(directory.open(below)?.into_std()))
        };
        let obeyed = "whose configuration or hooks can start programs when git looks into it";
        match open() {
            Ok(directory) => {
                let closed = directory.try_clone().ok().and_then(|it| give_permissions(it.into_std_file()));
                let note = set_aside(&directory, &top.join(name), obeyed, &self.stuck);
                if let Some((directory, permissions)) = closed {
                    let _ = directory.set_permissions(permissions);
                }
                note
            }
            Err(error) => {
                let made = top.join(name);
                let text = format!("the command made {}, {obeyed}: {error}", made.display());
                self.stuck.lock().unwrap_or_else(PoisonError::into_inner).insert(made);
                text
            }
        }
    }
}

/// Renames what a command made in this directory, and returns a note.
fn set_aside(directory: &Dir, path: &Path, obeyed: &str, stuck: &Mutex<BTreeSet<PathBuf>>) -> String {
    let name = path.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
    // No name has more than 255 bytes.
    let name = &name[..name.floor_char_boundary(200)];
    let new_name = |count: usize| match count {
        0 => format!("{name}{RENAMED}"),
        _ => format!("{name}{RENAMED}-{count}"),
    };
    let is_free = |new: &String| directory.symlink_metadata(new).is_err();
    let new = (0..100).map(new_name).find(is_free);
    let new = new.unwrap_or_else(|| format!("{name}{RENAMED}-{:016x}", rand::random::<u64>()));
    match directory.rename(path.file_name().unwrap_or_default(), directory, &new) {
        Ok(()) => format!(
            "the command made {}, {obeyed}; respool renamed it to {new}. If it is wanted, ask the user to rename it",
            path.display()
        ),
        Err(error) => {
            stuck.lock().unwrap_or_else(PoisonError::into_inner).insert(path.to_owned());
            format!(
                "the command made {}, {obeyed}, and it could not be renamed ({error}): ask the user to look at it. No other \
                 command runs before that",
                path.display()
            )
        }
    }
}

/// Returns the entry of a name; `None` where there is nothing.
fn entry(directory: &Dir, name: &OsStr) -> Option<Entry> {
    let data = directory.symlink_metadata(name).ok()?;
    Some((data.dev(), data.ino(), directory.read_link_contents(name).ok()))
}

/// Marks a directory as one in which a command may write, for other processes too, and returns true where it
/// is the only one. Commands could hold such a lock themselves, so that this is an error at worst.
fn lock(directory: &fs::File) -> io::Result<bool> {
    let is_alone = !matches!(directory.try_lock(), Err(fs::TryLockError::WouldBlock));
    // Another respool may be at this very place.
    for _ in 0..1_000 {
        match directory.try_lock_shared() {
            Err(fs::TryLockError::WouldBlock) => std::thread::yield_now(),
            // A file system without locks.
            _ => return Ok(is_alone),
        }
    }
    Err(io::Error::other("another program has locked this directory"))
}

/// Gives the owner all permissions for a directory, and returns those it had; `None` where nothing had to be
/// given.
fn give_permissions(directory: fs::File) -> Option<(fs::File, fs::Permissions)> {
    const OWNERS: u32 = 0o700;
    let old = directory.metadata().ok()?.permissions();
    let is_open = old.mode() & OWNERS == OWNERS;
    let given = || directory.set_permissions(fs::Permissions::from_mode(old.mode() | OWNERS));
    (!is_open && given().is_ok()).then_some((directory, old))
}

/// Returns the entry that makes each directory of a search a repository: its `.git`; without a work tree, its
/// `HEAD`, with the number of the directory.
fn entries(search: &Search) -> impl Iterator<Item = (PathBuf, Identity)> {
    let tops = search.tops.iter().map(|(top, id)| (top.join(".git"), *id));
    tops.chain(search.bare.iter().filter_map(|bare| Some((bare.join("HEAD"), identity(bare)?))))
}

/// True if git starts no program in the repository of such an entry.
fn entry_is_harmless(entry: &Path) -> bool {
    if entry.ends_with(".git") { is_harmless(entry) } else { entry.parent().is_some_and(starts_nothing) }
}

/// Returns the files that a repository's and the person's git configuration names: those that it includes,
/// hooks, and programs of filters.
fn named_by_configuration(repository: &Repository, left: &mut Left) -> Vec<PathBuf> {
    let homes = home_directories();
    let own = ["config", "config.worktree"]
        .iter()
        .flat_map(|name| [&repository.common, &repository.own].map(|git| git.join(name)));
    let persons =
        homes.iter().flat_map(|home| [".gitconfig", ".config/git/config"].map(|name| home.join(name)));
    let persons: Vec<PathBuf> = persons.chain(["/etc/gitconfig".into()]).collect();
    // These may be links into the workspace, as those of dotfiles are.
    let (mut read, mut named) = (BTreeSet::new(), persons.clone());
    let mut waiting: Vec<PathBuf> = own.chain(persons).collect();
    while let Some(file) = waiting.pop() {
        let is_first = read.insert(file.clone());
        let text = is_first.then(|| left.read(&file)).flatten().unwrap_or_default();
        let text = text.replace("\\\n", "");
        for (key, value) in text.lines().filter_map(|line| line.split_once('=')) {
            let key = key.trim().rsplit([' ', '\t', ']']).next().unwrap_or_default().to_ascii_lowercase();
            let is_started = !key.ends_with("file") && key != "template" && key != "path";
            let words = value.split_whitespace().chain([value.trim()]);
            for word in words.map(|word| word.trim_matches(['"', '\'', ';', '!'])) {
                if word.len() > LONGEST_PATH || !left.take(MOST_PARTS) {
                    continue;
                }
                // `$(git rev-parse --show-toplevel)/tools/clean`, too.
                let ends = word.match_indices('/').take(MOST_PARTS).map(|(at, _)| Path::new(&word[at + 1..]));
                let program = ends.map(|end| repository.top.join(end)).find(|end| end.is_file());
                // `-m tools.clean`.
                let is_module = word.contains('.')
                    && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._".contains(&byte));
                let module = is_module.then(|| repository.top.join(word.replace('.', "/")));
                let word = word
                    .strip_prefix("~/")
                    .zip(homes.first())
                    .map_or_else(|| word.into(), |(rest, home)| home.join(rest));
                let included = file.parent().map(|parent| parent.join(&word)).filter(|_| key == "path");
                let other = repository.top.join(&word);
                let is_hook =
                    key == "hookspath" || (key == "fsmonitor" && Path::new(&word).iter().count() > 1);
                let is_program = other.is_file() || is_hook;
                waiting.extend(included.clone());
                let module = module.filter(|path| path.is_dir() || path.with_extension("py").is_file());
                let programs = is_program.then_some(other).into_iter().chain(program).chain(module);
                for program in programs {
                    // An interpreter finds modules in the directory of its program.
                    let beside = program.parent().filter(|parent| *parent != repository.top && is_started);
                    named.extend(beside.map(Path::to_owned));
                    named.push(program);
                }
                named.extend(included);
            }
        }
    }
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
    let own = top.join(line(&git)?.strip_prefix("gitdir:")?.trim()).canonicalize().ok()?;
    if let Some(common) = common_of_linked(&git, &own) {
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
fn common_of_linked(git: &Path, own: &Path) -> Option<PathBuf> {
    let back = own.join(line(&own.join("gitdir"))?).canonicalize().ok()?;
    let common = own.join(line(&own.join("commondir"))?).canonicalize().ok()?;
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

    /// Two commands at once could exchange a repository between the search and the mounts of one of them.
    #[test]
    fn only_what_no_command_made_is_excused() {
        const HARMFUL: &str = "[core]\n\tfsmonitor = x\n";
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let [first, made, cloned, late] = ["first", "made", "cloned", "late"].map(|name| root.join(name));
        make_repository(&first, HARMFUL);
        let protected = Protected::find(&root, &[], &[]);
        make_repository(&made, "");
        make_repository(&cloned, HARMFUL);
        protected.find_made(true);
        let running = protected.watched_repositories();
        make_repository(&late, HARMFUL);
        protected.find_made(true);
        let watched = protected.watched_repositories();
        // The same file as before.
        fs::write(made.join(".git/config"), HARMFUL).unwrap();
        let notes = watched.restore();
        assert_eq!(notes.len(), 2, "{notes:?}");
        assert!(notes[0].contains("late/.git") && notes[1].contains("made/.git"), "{notes:?}");
        assert!(first.join(".git").exists() && cloned.join(".git").exists());
        assert!(running.restore().is_empty());
    }
}
