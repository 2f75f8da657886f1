//! The experts in service: a snapshot of each package, taken again when its folder changes. Work in progress
//! keeps the snapshot it began with. If a new version does not load, the previous one stays in service.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hash::{Hash, Hasher};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::bound::CheckedBindings;
use super::library::{Library, digest};
use super::name_claim::{NameClaim, preferred_folder};
use openexperts::{Diagnostic, MANIFEST, Package, Severity, Trigger, load, visible};

/// How often the folders are checked for changes.
const EVERY: Duration = Duration::from_secs(2);
/// The most files of a folder that are checked.
const MOST_FILES: usize = 5_000;

/// A package in service. It does not change.
#[derive(Debug)]
pub struct Snapshot {
    /// The package.
    pub package: Arc<Package>,
    /// The digest of its files.
    pub digest: String,
    /// The user's bindings.
    pub bindings: CheckedBindings,
    /// The folder of the installed package, in which the user's `bindings.yaml` is.
    pub directory: PathBuf,
}

impl Snapshot {
    /// Returns the name of its folder.
    pub(super) fn folder(&self) -> String {
        folder_name(&self.directory)
    }

    /// Returns the expert's name.
    pub fn name(&self) -> &str {
        &self.package.manifest.name.value
    }

    /// Returns a trigger of the package.
    pub fn trigger(&self, name: &str) -> Option<&Trigger> {
        self.package.manifest.triggers.items.iter().find(|trigger| trigger.name.value == name)
    }
}

/// A folder at the last check.
#[derive(Debug)]
struct Folder {
    /// The fingerprint of its content.
    seen: u64,
    snapshot: Option<Arc<Snapshot>>,
    /// Why the package in it does not load.
    problem: Option<String>,
}

/// The experts in service.
#[derive(Debug)]
pub struct Catalog {
    library: Library,
    folders: Mutex<BTreeMap<PathBuf, Folder>>,
    current: RwLock<Arc<Current>>,
}

/// The experts at one moment, by name.
#[derive(Debug, Default)]
pub struct Current {
    /// Grows with each change.
    pub generation: u64,
    /// The experts.
    pub experts: BTreeMap<String, Arc<Snapshot>>,
    /// Whether a folder holds a package that has no loadable version, or several folders hold one name and
    /// none of them is used.
    pub has_unloaded: bool,
    /// Why packages do not load, by folder. A version before them may be in service.
    pub load_problems: BTreeMap<String, String>,
}

impl Catalog {
    /// Returns the experts that are installed now.
    pub fn open(dir: &Path) -> Self {
        let catalog =
            Self { library: Library::new(dir), folders: Mutex::default(), current: RwLock::default() };
        catalog.reload();
        catalog
    }

    /// Returns the experts as they are now.
    pub fn current(&self) -> Arc<Current> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns an expert.
    pub fn get(&self, name: &str) -> Option<Arc<Snapshot>> {
        self.current().experts.get(name).cloned()
    }

    /// Returns true while the package of a folder is in its place, or being replaced. Changes are taken into
    /// service only at the next check.
    pub(super) fn is_in_place(&self, folder: &str) -> bool {
        self.library.dir().join(folder).join(MANIFEST).exists() || self.library.is_replaced_now(folder)
    }

    /// Returns the package that was installed with this digest in an expert's folder, while it is kept.
    pub(super) fn package_of(&self, folder: &str, digest: &str) -> Option<Package> {
        self.library.package_of(folder, digest)
    }

    /// Stores the package of a folder under its digest, for work that begins with it.
    pub(super) fn keep_snapshot(&self, folder: &str, package: &Package, digest: &str) -> std::io::Result<()> {
        self.library.keep_snapshot(folder, package, digest)
    }

    /// Deletes unneeded snapshots of a folder's packages that are older than this.
    pub(super) fn prune_snapshots(
        &self,
        folder: &str,
        in_use: &BTreeSet<String>,
        older: Duration,
    ) -> std::io::Result<()> {
        self.library.prune_snapshots(folder, in_use, older)
    }

    /// Checks the folders and takes changes into service. True if there were any.
    pub fn reload(&self) -> bool {
        let mut folders = self.folders.lock().unwrap_or_else(PoisonError::into_inner);
        let found = self.find_folders(&folders);
        let mut has_changed = false;
        folders.retain(|path, _| {
            let stays = found.contains(path);
            if !stays {
                tracing::info!(target: "respool::expert", folder = %path.display(), "the expert is gone");
            }
            has_changed |= !stays;
            stays
        });
        for path in found {
            let seen = folder_fingerprint(&path, &self.library.own_bindings(&folder_name(&path)));
            let before = folders.get(&path);
            if before.is_some_and(|folder| folder.seen == seen) || !path.join(MANIFEST).exists() {
                continue;
            }
            let before = before.and_then(|folder| folder.snapshot.clone());
            let (snapshot, problem) = self.take_snapshot(&path, before);
            folders.insert(path, Folder { seen, snapshot, problem });
            has_changed = true;
        }
        if has_changed {
            self.publish_changes(&folders);
        }
        has_changed
    }

    /// Checks one folder now, and not at the next check of all: changes of before are in service when this
    /// returns.
    pub(super) fn look_at_folder(&self, folder: &str) {
        let path = self.library.dir().join(folder);
        let seen = folder_fingerprint(&path, &self.library.own_bindings(folder));
        let known = self.folders.lock().unwrap_or_else(PoisonError::into_inner).get(&path).map(|at| at.seen);
        if known != Some(seen) {
            self.reload();
        }
    }

    /// Returns the folders with a package, including one whose package is being replaced.
    fn find_folders(&self, known: &BTreeMap<PathBuf, Folder>) -> BTreeSet<PathBuf> {
        let entries = fs::read_dir(self.library.dir()).into_iter().flatten().flatten();
        let folders = entries.filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."));
        let packages = folders.map(|entry| entry.path()).filter(|path| path.join(MANIFEST).exists());
        let replaced = known.keys().filter(|path| self.library.is_replaced_now(&folder_name(path)));
        packages.chain(replaced.cloned()).collect()
    }

    /// Loads the package of a folder. If it cannot be loaded, returns the reason and the package in service,
    /// or the one that was installed last if none is in service.
    fn take_snapshot(
        &self,
        path: &Path,
        before: Option<Arc<Snapshot>>,
    ) -> (Option<Arc<Snapshot>>, Option<String>) {
        let loaded = load(path);
        let text = self.library.bindings_of(&folder_name(path));
        if let Some(file) = self.library.unread_bindings(&folder_name(path)) {
            tracing::warn!(
                target: "respool::expert", file = %file.display(), read_instead = %self.library.own_bindings(&folder_name(path)).display(),
                "bindings in a package that respool has not installed are not read"
            );
        }
        let new = |package: Arc<Package>| {
            let digest = digest(&package.files);
            let bindings = match &text {
                Ok((text, _)) => CheckedBindings::from_text(text, &package),
                Err(error) => CheckedBindings::unreadable(error),
            };
            Arc::new(Snapshot { package, digest, bindings, directory: path.to_owned() })
        };
        let why = match loaded {
            Ok(loaded) => match loaded.package {
                Some(package) => return (Some(new(Arc::new(package))), None),
                None => first_error(&loaded.diagnostics),
            },
            Err(error) => error.to_string(),
        };
        let before = before.map(|before| Arc::clone(&before.package));
        let kept = before.or_else(|| self.library.kept_package(&folder_name(path)).map(Arc::new)).map(new);
        tracing::error!(
            target: "respool::expert", folder = %path.display(), why, version_in_service = kept.as_ref().map(|kept| kept.package.manifest.version.value.clone()),
            "the package does not load: correct what `respool expert validate` shows; the version before it stays in service"
        );
        (kept, Some(why))
    }

    /// Puts at most one of several packages with the same name into service.
    fn publish_changes(&self, folders: &BTreeMap<PathBuf, Folder>) {
        let mut by_name: BTreeMap<&str, Vec<&Arc<Snapshot>>> = BTreeMap::new();
        for snapshot in folders.values().filter_map(|folder| folder.snapshot.as_ref()) {
            by_name.entry(snapshot.name()).or_default().push(snapshot);
        }
        let (mut experts, mut has_unloaded) = (BTreeMap::new(), false);
        for (name, snapshots) in by_name {
            match self.choose_folders(name, &snapshots) {
                Some(snapshot) => drop(experts.insert(name.to_owned(), Arc::clone(snapshot))),
                None => has_unloaded = true,
            }
        }
        has_unloaded |= folders.values().any(|folder| folder.snapshot.is_none());
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        for (name, snapshot) in &experts {
            let before = current.experts.get(name);
            if before.is_none_or(|before| !Arc::ptr_eq(&before.package, &snapshot.package)) {
                tracing::info!(
                    target: "respool::expert", expert = name, version = snapshot.package.manifest.version.value,
                    folder = %snapshot.directory.display(), "the expert is in service"
                );
            }
        }
        let problem =
            |(path, folder): (&PathBuf, &Folder)| Some((folder_name(path), folder.problem.clone()?));
        let load_problems = folders.iter().filter_map(problem).collect();
        *current =
            Arc::new(Current { generation: current.generation + 1, experts, has_unloaded, load_problems });
    }

    /// Returns the snapshot that is in service under a name.
    fn choose_folders<'s>(&self, name: &str, snapshots: &[&'s Arc<Snapshot>]) -> Option<&'s Arc<Snapshot>> {
        if let [only] = snapshots {
            return Some(only);
        }
        let claim = |snapshot: &&Arc<Snapshot>| {
            let folder = snapshot.folder();
            NameClaim { is_recorded: self.library.is_recorded(&folder), folder }
        };
        let claims: Vec<NameClaim> = snapshots.iter().map(claim).collect();
        let used = preferred_folder(name, &claims);
        let folder = |index: usize| claims[index].folder.as_str();
        let is_unused = |index: &usize| used.is_none_or(|(used, _)| used != *index);
        let unused: Vec<&str> = (0..claims.len()).filter(is_unused).map(folder).collect();
        tracing::error!(
            target: "respool::expert", expert = name, used = used.map_or("none", |(index, _)| folder(index)), unused = unused.join(", "),
            why = used.map_or("respool did not install exactly one of these folders, and no folder has the expert's name", |(_, why)| why),
            "several folders hold an expert of the same name: remove all but one, or give the others another name"
        );
        used.map(|(index, _)| snapshots[index])
    }

    /// Takes changes into service until `stop`; `changed` is called at the beginning and after each.
    pub async fn watch_folders<F>(self: Arc<Self>, changed: F, stop: CancellationToken)
    where
        F: Fn(&Self) + Send + Sync + 'static,
    {
        let (changed, mut shown) = (Arc::new(changed), None);
        loop {
            let (catalog, changed) = (Arc::clone(&self), Arc::clone(&changed));
            let look = move || {
                catalog.reload();
                // Work that began may have taken them in.
                let generation = catalog.current().generation;
                if shown != Some(generation) {
                    changed(&catalog);
                }
                generation
            };
            shown = tokio::task::spawn_blocking(look).await.ok();
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(EVERY) => {}
            }
        }
    }
}

fn folder_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn first_error(diagnostics: &[Diagnostic]) -> String {
    let error = diagnostics.iter().find(|one| one.severity == Severity::Error);
    error.map(|error| format!("{}: {}", error.file, visible(&error.message))).unwrap_or_default()
}

/// Returns a fingerprint that changes when a file in the folder, or the bindings file outside it, is written,
/// created or removed.
fn folder_fingerprint(folder: &Path, bindings: &Path) -> u64 {
    let mut hasher = DefaultHasher::new();
    let metadata = fs::metadata(bindings).ok();
    metadata.map(|about| (about.len(), about.mtime(), about.mtime_nsec(), about.ino())).hash(&mut hasher);
    let (mut open, mut left) = (vec![folder.to_owned()], MOST_FILES);
    while let Some(path) = open.pop() {
        let mut entries: Vec<_> = fs::read_dir(&path).into_iter().flatten().flatten().collect();
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            left = left.saturating_sub(1);
            // Links are not followed: they lead to files of the same folder, or to files that do not count.
            let Some(about) = entry.metadata().ok().filter(|_| left > 0) else { continue };
            let path = entry.path();
            (&path, about.len(), about.mtime(), about.mtime_nsec(), about.ino()).hash(&mut hasher);
            if about.is_dir() && entry.file_name() != ".git" {
                open.push(path);
            }
        }
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, folder: &str, name: &str, version: &str) {
        let root = dir.join(folder);
        fs::create_dir_all(&root).unwrap();
        let manifest = format!(
            "spec: '1.0'\nname: {name}\nversion: {version}\ndescription: d\ncomponents: {{orchestrator: o.md, persona: [p.md], functions: [f.md]}}\n"
        );
        fs::write(root.join(MANIFEST), manifest).unwrap();
        fs::write(root.join("o.md"), "Go.\n").unwrap();
        fs::write(root.join("p.md"), "You.\n").unwrap();
        fs::write(root.join("f.md"), "---\nname: f\ndescription: d\n---\nDo.\n").unwrap();
    }

    fn version(catalog: &Catalog, name: &str) -> Option<String> {
        catalog.get(name).map(|snapshot| snapshot.package.manifest.version.value.clone())
    }

    #[test]
    fn changes_are_served_and_old_snapshots_stay() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "sales", "sales", "1.0.0");
        let catalog = Catalog::open(dir.path());
        let old = catalog.get("sales").unwrap();
        assert!(!catalog.reload(), "nothing has changed");
        write(dir.path(), "sales", "sales", "1.10.0");
        write(dir.path(), "desk", "desk", "2.0.0");
        assert!(catalog.reload());
        assert_eq!(
            (version(&catalog, "sales").as_deref(), version(&catalog, "desk").as_deref()),
            (Some("1.10.0"), Some("2.0.0"))
        );
        assert_eq!(old.package.manifest.version.value, "1.0.0");
        assert_ne!(old.digest, catalog.get("sales").unwrap().digest);
        fs::remove_dir_all(dir.path().join("sales")).unwrap();
        assert!(catalog.reload() && catalog.get("sales").is_none() && catalog.get("desk").is_some());
    }

    #[test]
    fn broken_updates_keep_the_old_package() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "sales", "sales", "1.0.0");
        let catalog = Catalog::open(dir.path());
        fs::remove_file(dir.path().join("sales/f.md")).unwrap();
        assert!(catalog.reload());
        assert_eq!(version(&catalog, "sales").as_deref(), Some("1.0.0"));
        write(dir.path(), "sales", "sales", "1.0.1");
        assert!(catalog.reload());
        assert_eq!(version(&catalog, "sales").as_deref(), Some("1.0.1"));
    }

    #[test]
    fn broken_packages_are_served_as_installed() {
        let (source, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write(source.path(), "sales", "sales", "1.0.0");
        let library = Library::new(dir.path());
        let package = load(&source.path().join("sales")).unwrap().package.unwrap();
        let from = crate::Source::parse(&source.path().join("sales").display().to_string()).unwrap();
        library.install(&package, &from, &library.lock().unwrap()).unwrap();
        fs::remove_file(dir.path().join("sales/o.md")).unwrap();
        assert_eq!(version(&Catalog::open(dir.path()), "sales").as_deref(), Some("1.0.0"));
        fs::remove_dir_all(dir.path().join(".respool")).unwrap();
        assert_eq!(version(&Catalog::open(dir.path()), "sales"), None);
    }

    /// Between the two renames of an update, the package's folder does not exist.
    #[test]
    fn experts_stay_while_being_replaced() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "sales", "sales", "1.0.0");
        let catalog = Catalog::open(dir.path());
        let replaced = dir.path().join(".respool/replaced");
        fs::create_dir_all(&replaced).unwrap();
        fs::rename(dir.path().join("sales"), replaced.join("sales")).unwrap();
        assert!(!catalog.reload() && catalog.get("sales").is_some());
        write(dir.path(), "sales", "sales", "1.1.0");
        fs::remove_dir_all(replaced.join("sales")).unwrap();
        assert!(catalog.reload());
        assert_eq!(version(&catalog, "sales").as_deref(), Some("1.1.0"));
    }

    /// The order of the folders' names decided, so a copy that was made by hand could take an installed
    /// expert's place.
    #[test]
    fn one_folder_per_expert_name_is_used() {
        let check = |folders: &[&str], recorded: &[&str], expected: Option<&str>| {
            let dir = tempfile::tempdir().unwrap();
            for folder in folders {
                write(dir.path(), folder, "sales", "1.0.0");
            }
            fs::create_dir_all(dir.path().join(".respool")).unwrap();
            for folder in recorded {
                let record =
                    r#"{"source": "s", "version": "1.0.0", "digest": "d", "installed": 0, "mark": "m"}"#;
                fs::write(dir.path().join(format!(".respool/{folder}.json")), record).unwrap();
                fs::write(dir.path().join(folder).join(".installed-by-respool"), "m").unwrap();
            }
            let catalog = Catalog::open(dir.path());
            let used = catalog.get("sales").map(|snapshot| snapshot.folder());
            assert_eq!(used.as_deref(), expected, "{folders:?} {recorded:?}");
            assert_eq!(catalog.current().has_unloaded, expected.is_none(), "{folders:?} {recorded:?}");
        };
        check(&["a", "sales", "z"], &["z"], Some("z"));
        check(&["a", "sales"], &[], Some("sales"));
        check(&["a", "sales"], &["a", "sales"], Some("sales"));
        check(&["a", "b"], &[], None);
        check(&["a", "b", "sales"], &["a", "b"], None);
    }

    /// Bindings are the user's: those in the package's folder count only if respool installed it, those
    /// outside it take precedence, and a change to either is noticed.
    #[test]
    fn bindings_belong_to_the_snapshot() {
        let dir = tempfile::tempdir().unwrap();
        let experts = dir.path().join("experts");
        write(&experts, "sales", "sales", "1.0.0");
        let catalog = Catalog::open(&experts);
        let bound_tools =
            || catalog.get("sales").unwrap().bindings.bindings.tools.keys().cloned().collect::<Vec<_>>();
        assert!(bound_tools().is_empty());
        fs::write(experts.join("sales/bindings.yaml"), "tools: {crm: {type: gateway}}\n").unwrap();
        assert!(catalog.reload());
        assert!(bound_tools().is_empty(), "a package may not bring its own");
        fs::create_dir_all(experts.join(".respool")).unwrap();
        let record = r#"{"source": "s", "version": "1.0.0", "digest": "d", "installed": 0, "mark": "m"}"#;
        fs::write(experts.join(".respool/sales.json"), record).unwrap();
        fs::write(experts.join("sales/.installed-by-respool"), "m").unwrap();
        fs::write(experts.join("sales/README.md"), "# Sales\n").unwrap();
        assert!(catalog.reload());
        assert_eq!(bound_tools(), ["crm"]);
        let beside = dir.path().join("expert-config/sales");
        fs::create_dir_all(&beside).unwrap();
        fs::write(beside.join("bindings.yaml"), "tools: {mail: {type: gateway}}\n").unwrap();
        assert!(catalog.reload());
        assert_eq!(bound_tools(), ["mail"]);
        assert!(!catalog.reload());
    }

    /// Waiting work may outlive any number of updates, and a package put there by hand has no other copy.
    #[test]
    fn packages_in_use_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let catalog = Catalog::open(dir.path());
        let mut digests = Vec::new();
        for version in ["1.0.0", "1.1.0", "1.2.0"] {
            write(dir.path(), "sales", "sales", version);
            catalog.reload();
            let snapshot = catalog.get("sales").unwrap();
            catalog.keep_snapshot("sales", &snapshot.package, &snapshot.digest).unwrap();
            catalog.keep_snapshot("sales", &snapshot.package, &snapshot.digest).unwrap();
            digests.push(snapshot.digest.clone());
        }
        let version_of = |digest: &String| {
            catalog.package_of("sales", digest).map(|package| package.manifest.version.value)
        };
        assert_eq!(version_of(&digests[0]).as_deref(), Some("1.0.0"));
        let in_use = BTreeSet::from([digests[0].clone()]);
        catalog.prune_snapshots("sales", &in_use, Duration::from_hours(1)).unwrap();
        assert!(digests.iter().all(|digest| version_of(digest).is_some()), "they are new");
        catalog.prune_snapshots("sales", &in_use, Duration::ZERO).unwrap();
        let left: Vec<bool> = digests.iter().map(|digest| version_of(digest).is_some()).collect();
        assert_eq!(left, [true, false, false]);
        catalog.prune_snapshots("not there", &in_use, Duration::ZERO).unwrap();
    }
}
