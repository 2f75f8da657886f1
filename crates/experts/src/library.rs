//! The installed experts: a directory with one package each, copied as it was checked, and immutable
//! snapshots of installed versions. Called by the command line, and by `catalog` for the packages in service.
//!
//! ```text
//! DIR/NAME/                            the package; `bindings.yaml` in it is the user's, if respool installed it
//! DIR/.respool/NAME.json               where it came from
//! DIR/.respool/snapshots/NAME/DIGEST/  what was installed, by the digest of its files
//! DIR/../expert-config/NAME/           `bindings.yaml` of the user for any package
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::error::ExpertError;
use super::name_claim::{NameClaim, describe_conflict, preferred_folder};
use super::source::Source;

use openexperts::{
    Code, Diagnostic, Loaded, MANIFEST, Package, Severity,
    grants::{self, VersionStep},
    load, name,
    own_files::{BINDINGS, MARK, is_clutter, is_reserved},
    suggest_nearest,
};
use wire::digest::{hex, sha256};

/// The user's bindings of an expert that was removed.
const REMOVED_BINDINGS: &str = "bindings.removed.yaml";
/// The folder with respool's own records about the experts.
const OWN: &str = ".respool";

/// The directory of installed experts.
#[derive(Clone, Debug)]
pub struct Library {
    dir: PathBuf,
}

/// The record of an installation. Its field names are a file format: older files must stay readable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Where it came from, as written.
    pub source: String,
    /// Its version.
    pub version: String,
    /// The digest of its files.
    pub digest: String,
    /// When it was installed, in milliseconds since 1970.
    pub installed: u64,
    /// The text of the mark in the folder; records of earlier builds have none.
    #[serde(default)]
    mark: Option<String>,
    /// The previous installation, for a rollback.
    #[serde(default)]
    pub previous: Option<Box<Record>>,
}

/// A package in the directory.
#[derive(Debug)]
pub struct Installed {
    /// Its directory.
    pub directory: PathBuf,
    /// The result of loading it.
    pub loaded: Loaded,
    /// Where it came from, if respool installed it.
    pub record: Option<Record>,
    /// The expert's name. Of an installed package that does not load, it is the name under which it was
    /// installed.
    pub name: Option<String>,
    /// Which other folders hold an expert of the same name, which of them is used, and why.
    pub name_conflict: Option<String>,
    /// No other folder is used for its name.
    is_chosen: bool,
}

impl Installed {
    /// Returns the name of the expert whose data, bindings and work are its own. A folder that is not used
    /// has only what goes by its own name.
    pub fn owner(&self) -> String {
        self.name.clone().filter(|_| self.is_chosen).unwrap_or_else(|| self.folder())
    }

    /// Returns the folder that is used for its name once this one is gone, if it is used now and there is
    /// another one.
    pub fn successor(&self, library: &Library) -> Option<String> {
        let name = self.name.as_ref().filter(|_| self.is_chosen && self.name_conflict.is_some())?;
        let all = library.list().ok()?;
        let others: Vec<&Self> = all
            .iter()
            .filter(|one| one.name.as_ref() == Some(name) && one.directory != self.directory)
            .collect();
        let claims: Vec<NameClaim> = others
            .iter()
            .map(|one| NameClaim { folder: one.folder(), is_recorded: one.record.is_some() })
            .collect();
        match claims.as_slice() {
            [only] => Some(only.folder.clone()),
            claims => preferred_folder(name, claims).map(|(index, _)| claims[index].folder.clone()),
        }
    }

    /// Returns the name of its folder, which also names its data.
    pub fn folder(&self) -> String {
        self.directory.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

/// The result of a removal.
#[derive(Debug)]
pub struct Removal {
    /// The folder that is deleted.
    pub directory: PathBuf,
    /// The file with the user's bindings.
    pub kept_bindings: Option<PathBuf>,
}

/// Chooses at most one of several folders with the same expert name; the package of the others is rejected
/// with the reason.
fn choose_by_name(all: &mut [Installed], is_recorded: impl Fn(&str) -> bool) {
    let mut by_name: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (index, one) in all.iter().enumerate() {
        by_name.entry(one.name.clone().unwrap_or_default()).or_default().push(index);
    }
    for (name, indexes) in by_name.into_iter().filter(|(name, indexes)| !name.is_empty() && indexes.len() > 1)
    {
        let claims: Vec<NameClaim> = indexes
            .iter()
            .map(|index| {
                let folder = all[*index].folder();
                NameClaim { is_recorded: is_recorded(&folder), folder }
            })
            .collect();
        let used = preferred_folder(&name, &claims);
        for (claim, index) in indexes.into_iter().enumerate() {
            let (conflict, help) = describe_conflict(&name, &claims, claim, used);
            let one = &mut all[index];
            one.name_conflict = Some(conflict.clone());
            one.is_chosen = used.is_some_and(|(used, _)| used == claim);
            if one.is_chosen {
                continue;
            }
            let Some(package) = one.loaded.package.take() else { continue };
            one.loaded.diagnostics.push(Diagnostic {
                severity: Severity::Error,
                code: Code::DuplicateName,
                file: MANIFEST.to_owned(),
                at: Some(package.manifest.name.at),
                message: conflict,
                help,
            });
        }
    }
}

/// An update that was planned but not applied.
#[derive(Debug)]
pub struct Plan {
    /// The expert.
    pub name: String,
    /// The folder of its package.
    folder: String,
    /// The version step.
    pub step: VersionStep,
    /// The old and the new version.
    pub versions: (String, String),
    /// The new permissions of the expert, one line each.
    pub loosened: Vec<String>,
    /// The changes made by hand, which would be lost, as far as they are known.
    pub local_changes: Option<Vec<String>>,
    /// Whether the folder's package does not load.
    pub is_broken: bool,
    /// Files that are new, missing or different.
    pub changed: Vec<String>,
    /// The installed package.
    pub old: Package,
    /// The package that replaces it.
    pub package: Package,
    /// It goes back to what was installed before, so an older version is intended.
    is_rollback: bool,
    record: Record,
}

impl Plan {
    /// Returns why it needs to be forced.
    pub fn cautions(&self) -> Vec<&'static str> {
        let local = self
            .local_changes
            .as_ref()
            .map(|_| "files in its folder were changed by hand or added by hand, and would be lost");
        let step = self.step.caution().filter(|_| !self.is_rollback);
        step.into_iter().chain(local).collect()
    }
}

/// Keeps other processes out while it exists.
pub struct Lock {
    _file: File,
}

impl Library {
    /// Returns the experts in this directory, which may not exist yet.
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    /// Returns the directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Locks the directory against other processes, and repairs what one of them left unfinished.
    ///
    /// # Errors
    /// When the directory cannot be written, or another process holds the lock.
    pub fn lock(&self) -> Result<Lock, ExpertError> {
        let own = self.dir.join(OWN);
        fs::create_dir_all(&own).map_err(ExpertError::disk_error(&own, "cannot be made"))?;
        let path = own.join("lock");
        let file = File::create(&path).map_err(ExpertError::disk_error(&path, "cannot be written"))?;
        file.try_lock()
            .map_err(|_| format!("another respool is changing {}; try again", self.dir.display()))?;
        self.recover_replaced().map_err(ExpertError::disk_error(&self.dir, "cannot be put in order"))?;
        Ok(Lock { _file: file })
    }

    /// Restores packages that are only in their old place, because a process ended between the two renames of
    /// [`Self::replace_folder`].
    fn recover_replaced(&self) -> io::Result<()> {
        let replaced = self.dir.join(OWN).join("replaced");
        for entry in fs::read_dir(&replaced).into_iter().flatten() {
            let entry = entry?;
            let place = self.dir.join(entry.file_name());
            if place.join(MANIFEST).exists() {
                fs::remove_dir_all(entry.path())?;
            } else {
                fs::rename(entry.path(), place)?;
            }
        }
        Ok(())
    }

    /// Returns all packages in the directory, by folder name. Of several with the same expert name one loads
    /// at most.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn list(&self) -> io::Result<Vec<Installed>> {
        let mut folders: Vec<PathBuf> = match fs::read_dir(&self.dir) {
            Ok(entries) => entries.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<_>>()?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        folders.sort();
        let is_hidden =
            |path: &Path| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        let packages = folders.into_iter().filter(|path| !is_hidden(path) && path.join(MANIFEST).exists());
        let mut all =
            packages.map(|directory| self.read_installed(directory)).collect::<io::Result<Vec<_>>>()?;
        choose_by_name(&mut all, |folder| self.is_recorded(folder));
        Ok(all)
    }

    fn read_installed(&self, directory: PathBuf) -> io::Result<Installed> {
        let loaded = load(&directory)?;
        let folder = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let record =
            self.read_record(&folder).filter(|record| self.is_marked(&folder, record) != Some(false));
        let kept = || record.as_ref().and_then(|_| self.kept_package(&folder));
        let name = match &loaded.package {
            Some(package) => Some(package.manifest.name.value.clone()),
            None => kept().map(|package| package.manifest.name.value),
        };
        Ok(Installed { directory, loaded, record, name, name_conflict: None, is_chosen: true })
    }

    /// Returns the expert of this name. One that does not load is known by the name of its folder.
    ///
    /// # Errors
    /// When no expert has this name.
    pub fn get(&self, name: &str) -> Result<Installed, ExpertError> {
        check_name(name)?;
        let mut all = self.list().map_err(ExpertError::disk_error(&self.dir, "cannot be read"))?;
        let by_name = all.iter().position(|one| {
            one.loaded.package.as_ref().is_some_and(|package| package.manifest.name.value == name)
        });
        let by_folder = || all.iter().position(|one| one.loaded.package.is_none() && one.folder() == name);
        let found = by_name.or_else(by_folder);
        let found = found.map(|index| all.swap_remove(index));
        if let Some(found) = found {
            return Ok(found);
        }
        let holders: Vec<String> =
            all.iter().filter(|one| one.name.as_deref() == Some(name)).map(Installed::folder).collect();
        if !holders.is_empty() {
            return Err(format!(
                "no expert {name:?} is used, because several folders hold one: {}; `respool expert validate FOLDER` says what to do",
                holders.join(", ")
            )
            .into());
        }
        let dir = self.dir.display();
        let names: Vec<String> = all.iter().map(Installed::owner).collect();
        let near = suggest_nearest(name, names.iter().map(String::as_str));
        Err(format!(
            "no expert {name:?} is installed in {dir}: {near}`respool expert list` shows the installed experts"
        )
        .into())
    }

    /// Installs a package that loaded.
    ///
    /// # Errors
    /// When an expert of its name exists already, or it cannot be written.
    pub fn install(&self, package: &Package, source: &Source, _: &Lock) -> Result<Record, ExpertError> {
        let name = package.manifest.name.value.as_str();
        check_name(name)?;
        let place = self.dir.join(name);
        let all = self.list().map_err(ExpertError::disk_error(&self.dir, "cannot be read"))?;
        let other = all.into_iter().find(|one| one.name.as_deref() == Some(name));
        let other = other.map(|installed| installed.directory);
        if let Some(there) = other.or_else(|| place.exists().then_some(place)) {
            return Err(
                format!("{} is there already; use `respool expert update {name}`", there.display()).into()
            );
        }
        let record = record_of(package, source, new_mark(), None);
        let failed = |error| ExpertError::Disk(format!("{name} cannot be installed"), error);
        self.write_package(name, package, &record).map_err(failed)?;
        Ok(record)
    }

    /// Plans an update to a package.
    ///
    /// # Errors
    /// When there is nothing to update, or the package has another name.
    pub fn plan(&self, name: &str, package: Package, source: &Source) -> Result<Plan, ExpertError> {
        let new_name = &package.manifest.name.value;
        if new_name != name {
            return Err(format!("the source is the package of {new_name:?}, not of {name:?}").into());
        }
        let installed = self.get(name)?;
        let folder = installed.folder();
        // Files that do not load were changed by hand; what was installed last says what they could do.
        let is_broken = installed.loaded.package.is_none();
        let Some(old) = installed.loaded.package.or_else(|| self.kept_package(&folder)) else {
            return Err(format!(
                "the installed package of {name} does not load, and no copy of it is kept; correct it, or remove it and install it again"
            )
            .into());
        };
        let added = other_files(&installed.directory, &old.files);
        let is_as_installed = !is_broken
            && installed.record.as_ref().is_some_and(|record| record.digest == digest(&old.files))
            && added.is_empty();
        let kept = self.kept_package(&folder).filter(|_| !is_as_installed);
        let mut by_hand = kept.map(|kept| changed_files(&kept.files, &old.files)).unwrap_or_default();
        by_hand.extend(added.iter().map(|file| format!("added: {file}")));
        let mark = installed.record.as_ref().and_then(|record| record.mark.clone()).unwrap_or_else(new_mark);
        let previous = match installed.record.clone() {
            // It is repaired, and goes back to what was there before.
            Some(record) if record.digest == digest(&package.files) => record.previous,
            record => record.map(|record| Box::new(Record { previous: None, ..record })),
        };
        Ok(Plan {
            name: name.to_owned(),
            folder,
            step: VersionStep::from_versions(&old.manifest.version.value, &package.manifest.version.value),
            versions: (old.manifest.version.value.clone(), package.manifest.version.value.clone()),
            loosened: grants::list_loosened(&old, &package),
            local_changes: (!is_as_installed).then_some(by_hand),
            is_broken,
            changed: changed_files(&old.files, &package.files),
            record: record_of(&package, source, mark, previous),
            is_rollback: false,
            old,
            package,
        })
    }

    /// Plans the rollback to what was installed before.
    ///
    /// # Errors
    /// When there was nothing.
    pub fn plan_rollback(&self, name: &str) -> Result<Plan, ExpertError> {
        let installed = self.get(name)?;
        let folder = installed.folder();
        let Some(previous) = installed.record.and_then(|record| record.previous) else {
            return Err(format!("no version of {name} from before its last update is kept").into());
        };
        let snapshot = self.snapshot_dir(&folder, &previous.digest);
        let loaded = load(&snapshot).map_err(ExpertError::disk_error(&snapshot, "cannot be read"))?;
        let package =
            loaded.package.ok_or_else(|| format!("{} does not load any more", snapshot.display()))?;
        if digest(&package.files) != previous.digest {
            return Err(format!(
                "the snapshot {} was changed; install the version again",
                snapshot.display()
            )
            .into());
        }
        let source = Source::parse(&previous.source)?;
        Ok(Plan { is_rollback: true, ..self.plan(name, package, &source)? })
    }

    /// Applies an update.
    ///
    /// # Errors
    /// When it cannot be written; the old package is then still in place.
    pub fn apply(&self, plan: &Plan, _: &Lock) -> Result<(), ExpertError> {
        let Plan { name, folder, package, record, .. } = plan;
        let failed = |error| ExpertError::Disk(format!("{name} cannot be updated"), error);
        self.write_package(folder, package, record).map_err(failed)
    }

    /// Returns the path of the bindings file next to the directory of experts. It takes precedence over the
    /// one in the package's folder.
    pub(super) fn own_bindings(&self, folder: &str) -> PathBuf {
        self.dir.with_file_name("expert-config").join(folder).join(BINDINGS)
    }

    /// Returns the text of an expert's bindings, and the file that contains it or would. In a folder that
    /// respool did not install, such as one created by `git clone`, the package's author may have written the
    /// file, so it is not read there.
    ///
    /// # Errors
    /// When the file exists but cannot be read.
    pub fn bindings_of(&self, folder: &str) -> io::Result<(String, PathBuf)> {
        let own = self.own_bindings(folder);
        let is_beside = own.is_file() || !self.is_recorded(folder);
        let path = if is_beside { own } else { self.dir.join(folder).join(BINDINGS) };
        match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok((String::new(), path)),
            read => Ok((read?, path)),
        }
    }

    /// Returns the bindings file in a package's folder that is ignored because respool did not install the
    /// package.
    pub fn unread_bindings(&self, folder: &str) -> Option<PathBuf> {
        let path = self.dir.join(folder).join(BINDINGS);
        (!self.is_recorded(folder) && path.is_file()).then_some(path)
    }

    /// Returns true if respool wrote this folder. A folder put in the place of an installed one does not have
    /// its mark. Where the record is of an earlier build, the files must be those that were installed.
    pub(super) fn is_recorded(&self, folder: &str) -> bool {
        let Some(record) = self.read_record(folder) else { return false };
        self.is_marked(folder, &record).unwrap_or_else(|| {
            let loaded = load(&self.dir.join(folder)).ok();
            loaded
                .and_then(|loaded| loaded.package)
                .is_some_and(|package| digest(&package.files) == record.digest)
        })
    }

    /// Returns whether the folder has the mark of its record; `None` if the record has none.
    fn is_marked(&self, folder: &str, record: &Record) -> Option<bool> {
        let mark = record.mark.as_ref()?;
        let written = fs::read_to_string(self.dir.join(folder).join(MARK)).ok();
        Some(written.as_ref() == Some(mark))
    }

    fn read_record(&self, folder: &str) -> Option<Record> {
        serde_json::from_slice(&fs::read(self.record_path(folder)).ok()?).ok()
    }

    /// Writes an expert's bindings.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_bindings(&self, folder: &str, text: &str, _: &Lock) -> io::Result<PathBuf> {
        let (_, path) = self.bindings_of(folder)?;
        fs::create_dir_all(path.parent().unwrap_or(&self.dir))?;
        atomic_file::replace(&path, text.as_bytes())?;
        Ok(path)
    }

    /// Returns the package that was installed with this digest, while it is kept.
    pub fn package_of(&self, folder: &str, wanted: &str) -> Option<Package> {
        let package = load(&self.snapshot_dir(folder, wanted)).ok()?.package?;
        (digest(&package.files) == wanted).then_some(package)
    }

    /// Removes an expert's package, and what is not to stay for the case that it is installed again.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn remove(&self, installed: &Installed, stays: Stays<'_>, _: &Lock) -> Result<Removal, ExpertError> {
        let (folder, name) = (installed.folder(), installed.owner());
        let failed = |error| ExpertError::Disk(format!("{name} cannot be removed"), error);
        let kept_bindings = if matches!(stays, Stays::Nothing) {
            self.bindings_beside(installed)
                .iter()
                .try_for_each(|path| remove_with_empty_folder(path))
                .map_err(failed)?;
            None
        } else {
            self.keep_bindings(&folder, &name).map_err(failed)?
        };
        let gone = |result: io::Result<()>| match result {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
            _ => Ok(()),
        };
        gone(remove_dir(&installed.directory))?;
        gone(fs::remove_file(self.record_path(&folder)))?;
        match stays {
            Stays::Nothing => gone(fs::remove_dir_all(self.versions_of(&folder)))?,
            Stays::BindingsAnd(versions) => {
                gone(self.prune_snapshots(&folder, versions, Duration::ZERO))?;
            }
            Stays::BindingsAndVersions => {}
        }
        Ok(Removal { directory: installed.directory.clone(), kept_bindings })
    }

    /// Returns the directory of the versions that are kept of an expert. It may not exist.
    pub fn versions_of(&self, folder: &str) -> PathBuf {
        self.dir.join(OWN).join("snapshots").join(folder)
    }

    /// Lists the bindings files of an expert next to the directory of experts.
    pub fn bindings_beside(&self, installed: &Installed) -> Vec<PathBuf> {
        let (folder, name) = (installed.folder(), installed.owner());
        let of_name = (!self.is_of_another(&name, &folder)).then_some(name);
        let names: BTreeSet<String> = of_name.into_iter().chain([folder]).collect();
        let files = names.into_iter().map(|name| self.own_bindings(&name));
        let files = files.flat_map(|path| [path.with_file_name(REMOVED_BINDINGS), path]);
        files.filter(|path| path.is_file()).collect()
    }

    /// Returns true if the bindings under a name are those of another folder.
    fn is_of_another(&self, name: &str, folder: &str) -> bool {
        name != folder && self.dir.join(name).exists()
    }

    /// Copies the user's bindings from a folder that will be deleted to a file that respool does not read:
    /// they were made for this package, and another one may be installed under its name.
    fn keep_bindings(&self, folder: &str, name: &str) -> io::Result<Option<PathBuf>> {
        let (inside, own) = (self.dir.join(folder).join(BINDINGS), self.own_bindings(folder));
        let used = if own.is_file() { own.clone() } else { inside };
        if !used.is_file() || (used != own && !self.is_recorded(folder)) {
            return Ok(None);
        }
        let kept = self.own_bindings(if self.is_of_another(name, folder) { folder } else { name });
        let kept = kept.with_file_name(REMOVED_BINDINGS);
        fs::create_dir_all(kept.parent().unwrap_or(&self.dir))?;
        atomic_file::replace(&kept, &fs::read(&used)?)?;
        if used == own {
            fs::remove_file(&own)?;
        }
        Ok(Some(kept))
    }

    /// Returns the bindings that were kept when an expert of this name was removed. They apply once the user
    /// renames the file to `bindings.yaml`.
    pub fn removed_bindings(&self, name: &str) -> Option<PathBuf> {
        Some(self.own_bindings(name).with_file_name(REMOVED_BINDINGS)).filter(|path| path.is_file())
    }

    /// Returns the package as it was last installed into a folder, from its snapshot.
    pub(super) fn kept_package(&self, folder: &str) -> Option<Package> {
        let record = self.read_record(folder)?;
        let package = load(&self.snapshot_dir(folder, &record.digest)).ok()?.package?;
        (digest(&package.files) == record.digest).then_some(package)
    }

    /// Returns true while an update of a folder is between its two renames, so that its package is not in
    /// place.
    pub(super) fn is_replaced_now(&self, folder: &str) -> bool {
        self.dir.join(OWN).join("replaced").join(folder).exists()
    }

    fn record_path(&self, folder: &str) -> PathBuf {
        self.dir.join(OWN).join(format!("{folder}.json"))
    }

    fn snapshot_dir(&self, folder: &str, digest: &str) -> PathBuf {
        self.versions_of(folder).join(digest)
    }

    /// Writes the snapshot, the package and the record, each atomically.
    fn write_package(&self, folder: &str, package: &Package, record: &Record) -> io::Result<()> {
        self.keep_snapshot(folder, package, &record.digest)?;
        let staged = self.stage_files(&package.files)?;
        // Only a folder that loads may replace another one.
        let is_whole = load(staged.path())?.package.is_some_and(|copy| digest(&copy.files) == record.digest);
        if !is_whole {
            return Err(io::Error::other("its copy does not load as the source does; report this as a bug"));
        }
        if let Some(mark) = &record.mark {
            fs::write(staged.path().join(MARK), mark)?;
        }
        let bindings = self.dir.join(folder).join(BINDINGS);
        if self.is_recorded(folder) && bindings.is_file() {
            fs::copy(&bindings, staged.path().join(BINDINGS))?;
        }
        self.replace_folder(folder, &staged.keep())?;
        atomic_file::replace(&self.record_path(folder), serde_json::to_string_pretty(record)?.as_bytes())
    }

    /// Stores a package under its digest, for work that began with it: of a package put there by hand there
    /// is no other copy.
    pub(super) fn keep_snapshot(&self, folder: &str, package: &Package, digest: &str) -> io::Result<()> {
        let snapshot = self.snapshot_dir(folder, digest);
        if snapshot.exists() {
            return Ok(());
        }
        fs::create_dir_all(snapshot.parent().unwrap_or(&self.dir))?;
        let staged = self.stage_files(&package.files)?;
        let renamed = fs::rename(staged.path(), &snapshot);
        // Another process may have been faster.
        if snapshot.exists() { Ok(()) } else { renamed }
    }

    /// Writes the files to a new directory on the same disk as the packages, so that it can be renamed into
    /// place.
    fn stage_files(&self, files: &BTreeMap<String, String>) -> io::Result<tempfile::TempDir> {
        let staged = tempfile::tempdir_in(self.dir.join(OWN))?;
        for (path, text) in files.iter().filter(|(path, _)| !is_reserved(path)) {
            let target = staged.path().join(path);
            let folder = target.parent().unwrap_or(staged.path());
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
            // A package may hold its owner's private knowledge.
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&target)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
        }
        Ok(staged)
    }

    /// Replaces a package with a directory. Between the two renames only the old package exists, in
    /// `replaced`.
    fn replace_folder(&self, folder: &str, staged: &Path) -> io::Result<()> {
        let place = self.dir.join(folder);
        let replaced = self.dir.join(OWN).join("replaced").join(folder);
        let is_update = place.exists();
        if is_update {
            fs::create_dir_all(replaced.parent().unwrap_or(&self.dir))?;
            fs::rename(&place, &replaced)?;
        }
        let moved = fs::rename(staged, &place);
        if moved.is_err() && is_update {
            fs::rename(&replaced, &place)?;
        } else if is_update {
            remove_dir(&replaced)?;
        }
        moved
    }

    /// Deletes the snapshots of an expert that are older than this, except those of the installed package, of
    /// a rollback, and in use.
    ///
    /// # Errors
    /// When the folder cannot be read or written.
    pub(super) fn prune_snapshots(
        &self,
        folder: &str,
        in_use: &BTreeSet<String>,
        older: Duration,
    ) -> io::Result<()> {
        let record = self.read_record(folder);
        let previous = record.as_ref().and_then(|record| record.previous.as_ref());
        let kept = [record.as_ref().map(|record| &record.digest), previous.map(|record| &record.digest)];
        let snapshots = match fs::read_dir(self.versions_of(folder)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        for entry in snapshots {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let age = entry.metadata()?.modified()?.elapsed().unwrap_or_default();
            if age >= older && !in_use.contains(&name) && !kept.contains(&Some(&name)) {
                fs::remove_dir_all(entry.path())?;
            }
        }
        Ok(())
    }
}

/// The parts of an expert that its removal leaves.
#[derive(Clone, Copy, Debug)]
pub enum Stays<'a> {
    /// Nothing.
    Nothing,
    /// The user's bindings, and the versions with these digests, which open work began with.
    BindingsAnd(&'a BTreeSet<String>),
    /// The user's bindings and all versions, because it is not known which of them open work needs.
    BindingsAndVersions,
}

/// Checks that a name can be a folder's name.
fn check_name(text: &str) -> Result<(), ExpertError> {
    let is_empty = if text.is_empty() { Err("it is empty") } else { Ok(()) };
    is_empty
        .and_then(|()| name::check_name(text, name::NameKind::Package))
        .map_err(|why| format!("{text:?} cannot be the name of an expert: {why}").into())
}

/// Removes a directory, or only the link if it is one.
fn remove_dir(path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path)?.is_symlink() { fs::remove_file(path) } else { fs::remove_dir_all(path) }
}

/// Removes a file, and its folder if nothing else is in it.
fn remove_with_empty_folder(path: &Path) -> io::Result<()> {
    fs::remove_file(path)?;
    match path.parent().map(fs::remove_dir) {
        Some(Err(error)) if error.kind() != io::ErrorKind::DirectoryNotEmpty => Err(error),
        _ => Ok(()),
    }
}

/// Makes a random text of 128 bits, in hexadecimal.
fn new_mark() -> String {
    hex(&rand::random::<[u8; 16]>())
}

/// Lists the files of a folder that are neither the package's nor respool's, and folders that cannot be read.
fn other_files(directory: &Path, files: &BTreeMap<String, String>) -> Vec<String> {
    let (mut found, mut open) = (Vec::new(), vec![directory.to_owned()]);
    let shown = |path: &Path| path.strip_prefix(directory).unwrap_or(path).display().to_string();
    while let Some(folder) = open.pop() {
        let Ok(entries) = fs::read_dir(&folder) else {
            found.push(shown(&folder));
            continue;
        };
        for entry in entries.flatten() {
            let path = entry.path();
            if entry.file_name().to_str().is_some_and(is_clutter) {
                continue;
            }
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                open.push(path);
                continue;
            }
            let name = path.strip_prefix(directory).ok().and_then(Path::to_str);
            if !name.is_some_and(|name| files.contains_key(name) || is_reserved(name)) {
                found.push(shown(&path));
            }
        }
    }
    found.sort();
    found
}

fn record_of(package: &Package, source: &Source, mark: String, previous: Option<Box<Record>>) -> Record {
    Record {
        source: source.as_text(),
        version: package.manifest.version.value.clone(),
        digest: digest(&package.files),
        installed: clock::now(),
        mark: Some(mark),
        previous,
    }
}

/// Returns the digest of a package's files: their paths and texts, each preceded by its length.
pub fn digest(files: &BTreeMap<String, String>) -> String {
    let mut bytes = Vec::new();
    for part in files.iter().flat_map(|(path, text)| [path, text]) {
        bytes.extend((part.len() as u64).to_be_bytes());
        bytes.extend(part.as_bytes());
    }
    hex(&sha256(&bytes))
}

fn changed_files(old: &BTreeMap<String, String>, new: &BTreeMap<String, String>) -> Vec<String> {
    let mut lines = Vec::new();
    for (path, text) in new {
        match old.get(path) {
            None => lines.push(format!("new: {path}")),
            Some(before) if before != text => lines.push(format!("changed: {path}")),
            Some(_) => {}
        }
    }
    lines.extend(old.keys().filter(|path| !new.contains_key(*path)).map(|path| format!("gone: {path}")));
    lines
}
