//! The files that an expert sees in a run: those of its package's snapshot, which are read-only, and its own
//! on disk.
//!
//! `functions/NAME.md`, `processes/NAME.md`, `knowledge/NAME.md` and the package's own paths refer to the
//! snapshot; `state/` and `scratch/` are on disk and writable; `learnings/` is on disk and read-only. State
//! with `scope: session` has a separate folder for each session. A file is written atomically, and only by a
//! run that has read what it replaces. Called by `tools`.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cap_std::ambient_authority;
use cap_std::fs::{Dir, OpenOptions};

use super::epoch::begin_epoch;
use super::file_error::FileError;
use super::file_name::file_name;
use super::knowledge;
use super::learning::{LearningEntry, LearningFiles};
use super::state;
use agent::{CallOutcome, MadeCall};
use openexperts::{
    FunctionSession, KnowledgeKind, Package, Scope,
    label::call_name,
    path::{self, state_file},
    skill,
};
use wire::digest::sha256;

/// The largest file that is read or written.
const LARGEST: u64 = 1 << 20;

/// The files of one run.
pub(super) struct Workspace {
    root: PathBuf,
    package: Arc<Package>,
    /// Identifies the session, in characters that a folder name may have.
    session: String,
    /// Private knowledge that a function or the process names.
    permitted: BTreeSet<String>,
    /// The digests of what was last read or written here, by path.
    seen: Mutex<HashMap<String, [u8; 32]>>,
    /// The folder of the run's epoch, once it changes files.
    epoch: OnceLock<String>,
}

/// The file to which a path refers.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    /// A text of the snapshot.
    Package(String),
    /// A file below the root.
    Disk { path: String, is_writable: bool },
}

impl Workspace {
    /// Returns the files for a session; `context` is what the process preloads.
    pub(super) fn new(root: &Path, package: Arc<Package>, session: &str, context: &[String]) -> Self {
        // Only the function's own run reads what only an isolated function names.
        let inline = package.functions.items.iter().filter(|one| one.session == FunctionSession::Inline);
        let by_functions = inline.flat_map(|function| &function.knowledge.items);
        let named = by_functions.map(|path| path.value.clone()).chain(context.iter().cloned());
        let permitted = named.map(|named| path::normalize(&named)).collect();
        let session = file_name(session);
        Self {
            root: root.to_owned(),
            package,
            session,
            permitted,
            seen: Mutex::default(),
            epoch: OnceLock::new(),
        }
    }

    /// Returns true if a run with these files may quote private knowledge. All runs of a package share state,
    /// learnings and the results of the main session, so it is enough that any function or process of the
    /// package names private knowledge.
    pub(super) fn may_quote_private(&self) -> bool {
        let contexts = self.package.processes.items.iter().flat_map(|process| &process.context.items);
        let preloaded: BTreeSet<String> = contexts.map(|path| path::normalize(&path.value)).collect();
        let is_read = |path: &String| self.permitted.contains(path) || preloaded.contains(path);
        let mut private =
            self.package.knowledge.items.iter().filter(|one| one.kind == KnowledgeKind::Private);
        private.any(|one| is_read(&one.path)) || knowledge::any_reads_private(&self.package)
    }

    /// Returns true if a path refers to a text of the package, not to a file on disk that runs write.
    pub(super) fn is_of_package(&self, written: &str) -> bool {
        matches!(self.resolve_path(written), Ok(Place::Package(_)))
    }

    /// Creates what must exist when a run begins.
    ///
    /// # Errors
    /// When the disk cannot be written.
    pub(super) fn prepare(&self) -> io::Result<()> {
        std::fs::create_dir_all(&self.root)?;
        state::prepare(&self.root, None, &self.package)?;
        state::prepare_session(&self.root.join(self.session_folder()), &self.package)
    }

    /// Changes files in this epoch of a run from now on. A process that works on the run in an earlier epoch
    /// changes none after that.
    ///
    /// # Errors
    /// When another process works on the run in a later epoch, or the disk cannot be written.
    pub(super) fn begin_epoch(&self, run: &str, epoch: u64) -> io::Result<()> {
        if self.epoch.get().is_none() {
            let folder = begin_epoch(&self.root, run, epoch)?;
            let _ = self.epoch.set(folder);
        }
        Ok(())
    }

    /// Restores what a run has read and written before its process ended, so that it continues as if
    /// uninterrupted. A file whose content cannot be derived from that must be read again.
    pub(super) fn restore_seen(&self, calls: &[MadeCall]) {
        let mut texts: HashMap<String, String> = HashMap::new();
        for made in calls.iter().filter(|made| made.outcome == CallOutcome::Ok) {
            let arguments = made.call.parsed_arguments();
            let text = |name: &str| arguments[name].as_str().unwrap_or_default();
            let Ok(Place::Disk { path, .. }) = self.resolve_path(text("path")) else { continue };
            match made.call.name.as_str() {
                "read" => drop(texts.insert(path, made.text.clone())),
                "write" => drop(texts.insert(path, text("content").to_owned())),
                "edit" => {
                    if let Some(known) = texts.get_mut(&path) {
                        *known = known.replacen(text("old"), text("new"), 1);
                    }
                }
                _ => {}
            }
        }
        texts.iter().for_each(|(path, text)| self.note_seen(path, text.as_bytes()));
    }

    /// Deletes the files of the session.
    pub(super) fn end_session(&self) {
        let _ = std::fs::remove_dir_all(self.root.join(self.session_folder()));
    }

    fn session_folder(&self) -> String {
        format!("sessions/{}", self.session)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// Why it cannot be read, for the model.
    pub(super) fn read(&self, written: &str) -> Result<String, FileError> {
        match self.resolve_path(written)? {
            Place::Package(text) => match self.function_at(&path::normalize(written)) {
                Some(function) => {
                    let learnt = self.learnings().text_before(function);
                    Ok(learnt.map_err(|error| FileError::Read(written.to_owned(), error))? + &text)
                }
                None => Ok(text),
            },
            Place::Disk { path, .. } => {
                let bytes = self.read_disk(&path)?.ok_or_else(|| FileError::Missing(written.to_owned()))?;
                self.note_seen(&path, &bytes);
                String::from_utf8(bytes).map_err(|_| FileError::NotText(written.to_owned()))
            }
        }
    }

    /// Returns the function whose file this is.
    fn function_at(&self, wanted: &str) -> Option<&str> {
        let is_meant = |one: &&openexperts::Function| {
            one.path == wanted || wanted == format!("functions/{}.md", one.name.value)
        };
        self.package.functions.items.iter().find(is_meant).map(|one| one.name.value.as_str())
    }

    fn learnings(&self) -> LearningFiles {
        let learnings = LearningFiles::new(&self.root);
        match self.epoch.get() {
            Some(epoch) => learnings.written_by_way_of(self.root.join(epoch)),
            None => learnings,
        }
    }

    /// Stores a learning for later runs.
    ///
    /// # Errors
    /// Why it is not stored, for the model.
    pub(super) fn add_learning(&self, scope: &str, entry: &LearningEntry) -> Result<String, FileError> {
        let added = self.learnings().add(&self.package, scope, entry);
        added.map(|_| "it is kept for later runs".to_owned()).map_err(FileError::Learning)
    }

    /// Writes a whole file.
    ///
    /// # Errors
    /// Why it is not written, for the model.
    pub(super) fn write(&self, written: &str, text: &str) -> Result<(), FileError> {
        if let Ok(Place::Disk { path, is_writable: true }) = self.resolve_path(written)
            && self.read_disk(&path)?.as_deref() == Some(text.as_bytes())
        {
            // A repeated call whose outcome was unknown.
            self.note_seen(&path, text.as_bytes());
            return Ok(());
        }
        self.change_file(written, |_| Ok(text.to_owned()))
    }

    /// Replaces a text that occurs once in a file.
    ///
    /// # Errors
    /// Why it is not changed, for the model.
    pub(super) fn edit(&self, written: &str, old: &str, new: &str) -> Result<(), FileError> {
        self.change_file(written, |text| {
            let text = text.ok_or_else(|| FileError::Missing(written.to_owned()))?;
            match text.matches(old).count() {
                1 if !old.is_empty() => Ok(text.replacen(old, new, 1)),
                0 => Err(FileError::TextMissing(written.to_owned())),
                _ => Err(FileError::TextRepeated(written.to_owned())),
            }
        })
    }

    fn change_file(
        &self,
        written: &str,
        make: impl FnOnce(Option<&str>) -> Result<String, FileError>,
    ) -> Result<(), FileError> {
        let Place::Disk { path, is_writable: true } = self.resolve_path(written)? else {
            return Err(FileError::ReadOnly(written.to_owned()));
        };
        let cannot = |error: io::Error| FileError::Write(written.to_owned(), error);
        // Other runs wait here, including those of other processes.
        let lock = File::create(self.root.join(".lock")).map_err(cannot)?;
        lock.lock().map_err(cannot)?;
        let before = self.read_disk(&path)?;
        if before.as_deref().is_some_and(|bytes| self.seen_digest(&path) != Some(sha256(bytes))) {
            return Err(FileError::Changed(written.to_owned()));
        }
        let old =
            before.map(String::from_utf8).transpose().map_err(|_| FileError::NotText(written.to_owned()))?;
        let text = make(old.as_deref())?;
        if text.len() as u64 > LARGEST {
            return Err(FileError::WouldBeTooLarge(written.to_owned()));
        }
        self.replace_file(&path, text.as_bytes()).map_err(cannot)?;
        self.note_seen(&path, text.as_bytes());
        Ok(())
    }

    /// Returns true if there is such a file on disk.
    pub(super) fn exists(&self, written: &str) -> bool {
        match self.resolve_path(written) {
            Ok(Place::Disk { path, .. }) => matches!(self.read_disk(&path), Ok(Some(_))),
            Ok(Place::Package(_)) => true,
            Err(_) => false,
        }
    }

    /// Deletes a file of `scratch/`.
    pub(super) fn delete_scratch(&self, written: &str) {
        if let Ok(Place::Disk { path, .. }) = self.resolve_path(written)
            && path.starts_with("scratch/")
            && let Ok(dir) = self.dir()
        {
            let _ = dir.remove_file(path);
        }
    }

    /// Moves a leftover file of another invocation aside.
    ///
    /// # Errors
    /// When it cannot be moved.
    pub(super) fn set_aside(&self, written: &str, mark: u64) -> io::Result<()> {
        let Ok(Place::Disk { path, .. }) = self.resolve_path(written) else { return Ok(()) };
        let dir = self.dir()?;
        if dir.exists(&path) { dir.rename(&path, &dir, format!("{path}.{mark}.old")) } else { Ok(()) }
    }

    fn resolve_path(&self, written: &str) -> Result<Place, FileError> {
        if let Some(why) = path::escape_reason(written) {
            return Err(FileError::BadPath(written.to_owned(), why));
        }
        let wanted = path::normalize(written);
        let wanted = wanted.as_str();
        if let Some(found) = self.package_file(wanted)? {
            return Ok(found);
        }
        let disk = |path: String, is_writable| Ok(Place::Disk { path, is_writable });
        let is_session =
            |one: &&openexperts::State| one.scope == Scope::Session && state_file(&one.path) == wanted;
        match wanted.split('/').next() {
            _ if wanted.ends_with('/') || matches!(wanted, "state" | "scratch" | "learnings") => {
                Err(FileError::Folder(wanted.to_owned()))
            }
            Some("state") if self.package.state.items.iter().any(|one| is_session(&one)) => {
                disk(format!("{}/{wanted}", self.session_folder()), true)
            }
            Some("state" | "scratch") => disk(wanted.to_owned(), true),
            Some("learnings") => disk(wanted.to_owned(), false),
            _ => Err(FileError::UnknownFolder(wanted.to_owned())),
        }
    }

    /// Returns a file of the package, by its path or its component's name. State is on disk.
    fn package_file(&self, wanted: &str) -> Result<Option<Place>, FileError> {
        let package = &self.package;
        let named = |folder: &str, name: &str| wanted == format!("{folder}/{name}.md");
        let function = package
            .functions
            .items
            .iter()
            .find(|one| one.path == wanted || named("functions", &one.name.value));
        let process = package
            .processes
            .items
            .iter()
            .find(|one| one.path == wanted || named("processes", &one.name.value));
        let knowledge =
            package.knowledge.items.iter().find(|one| one.path == wanted || named("knowledge", &one.name));
        if let Some(isolated) = function.filter(|one| one.session == FunctionSession::Isolated) {
            let function = isolated.name.value.clone();
            return Err(FileError::Isolated { tool: call_name(&function), function });
        }
        let is_hidden = |path: &str| !self.permitted.contains(path);
        if knowledge.is_some_and(|one| one.kind == KnowledgeKind::Private && is_hidden(&one.path)) {
            // The answer does not reveal whether it exists.
            return Err(FileError::Missing(wanted.to_owned()));
        }
        let found =
            function.map(|one| &one.path).or(process.map(|one| &one.path)).or(knowledge.map(|one| &one.path));
        let is_state =
            package.state.items.iter().any(|one| one.path == wanted || state_file(&one.path) == wanted);
        let found = found.map(String::as_str).or((!is_state).then_some(wanted));
        let note = function.filter(|one| skill::is_skill(&one.path));
        let note = note.and_then(|one| skill::note(&package.files, &one.path)).unwrap_or_default();
        Ok(found.and_then(|path| package.files.get(path)).map(|text| Place::Package(note + text)))
    }

    fn dir(&self) -> io::Result<Dir> {
        Dir::open_ambient_dir(&self.root, ambient_authority())
    }

    fn read_disk(&self, path: &str) -> Result<Option<Vec<u8>>, FileError> {
        let cannot = |error: io::Error| FileError::Read(path.to_owned(), error);
        let dir = self.dir().map_err(cannot)?;
        match dir.metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(cannot(error)),
            Ok(metadata) if !metadata.is_file() => return Err(FileError::NotRegular(path.to_owned())),
            Ok(metadata) if metadata.len() > LARGEST => return Err(FileError::TooLarge(path.to_owned())),
            Ok(_) => {}
        }
        let mut bytes = Vec::new();
        let file = dir.open(path).map_err(cannot)?;
        file.take(LARGEST).read_to_end(&mut bytes).map_err(cannot)?;
        Ok(Some(bytes))
    }

    /// Replaces a file atomically: readers see the old file or the new one. Fails if the run's epoch is over.
    fn replace_file(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        let dir = self.dir()?;
        if let Some((folder, _)) = path.rsplit_once('/') {
            dir.create_dir_all(folder)?;
        }
        let new = self.epoch.get().map_or_else(|| format!("{path}.new"), |epoch| format!("{epoch}/new"));
        let mut options = OpenOptions::new();
        let mut file = dir.open_with(&new, options.write(true).create(true).truncate(true))?;
        file.write_all(bytes)?;
        file.sync_all()?;
        dir.rename(&new, &dir, path)
    }

    fn seen_digest(&self, path: &str) -> Option<[u8; 32]> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).get(path).copied()
    }

    fn note_seen(&self, path: &str, bytes: &[u8]) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).insert(path.to_owned(), sha256(bytes));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use agent::{EndsRun, RequestedCall};

    const MANIFEST: &str = "spec: \"1.0\"\nname: desk\nversion: \"1.0.0\"\ndescription: d\ncomponents:\n  orchestrator: o.md\n  persona: [persona/identity.md]\n  functions: [functions/f1.md]\n  knowledge: [knowledge/open.md, knowledge/hidden.md, knowledge/secret.md]\n  state: [state/pipeline.md, state/notes.md]\n";

    fn package(dir: &Path) -> Arc<Package> {
        let files = [
            ("expert.yaml", MANIFEST),
            ("README.md", "r"),
            ("o.md", "o"),
            ("persona/identity.md", "i"),
            (
                "functions/f1.md",
                "---\nname: classify\ndescription: d\nknowledge: [knowledge/hidden.md]\n---\nBody.\n",
            ),
            ("knowledge/open.md", "---\nname: prices\n---\nOpen.\n"),
            ("knowledge/hidden.md", "---\ntype: private\n---\nHidden.\n"),
            ("knowledge/secret.md", "---\ntype: private\n---\nSecret.\n"),
            ("state/pipeline.md", "---\nscope: persistent\n---\nempty\n"),
            ("state/notes.md", "---\nscope: session\n---\nnothing\n"),
        ];
        for (path, text) in files {
            let path = dir.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let loaded = openexperts::load(dir).unwrap();
        Arc::new(loaded.package.unwrap_or_else(|| panic!("{:?}", loaded.diagnostics)))
    }

    fn both(dir: &Path) -> (Workspace, Workspace) {
        let package = package(&dir.join("package"));
        let open = |session: &str| {
            let workspace = Workspace::new(&dir.join("root"), Arc::clone(&package), session, &[]);
            workspace.prepare().unwrap();
            workspace
        };
        (open("one"), open("two"))
    }

    /// A process that was stopped wakes up after another one has taken its run over.
    #[test]
    fn earlier_epochs_change_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (early, late) = both(dir.path());
        early.begin_epoch("run", 1).unwrap();
        early.write("scratch/plan.md", "first").unwrap();
        late.begin_epoch("run", 2).unwrap();
        let why = early.write("scratch/other.md", "late").unwrap_err();
        assert!(matches!(why, FileError::Write(..)), "{why}");
        let learning = LearningEntry { title: "late".into(), ..LearningEntry::default() };
        assert!(early.add_learning("package", &learning).is_err());
        assert!(!late.exists("scratch/other.md"));
        assert_eq!(late.read("scratch/plan.md").unwrap(), "first");
        late.write("scratch/plan.md", "second").unwrap();
        late.add_learning("package", &learning).unwrap();
        let (slow, _) = both(dir.path());
        assert!(slow.begin_epoch("run", 1).is_err(), "it had not changed anything yet");
    }

    #[test]
    fn private_bodies_are_read_only_where_named() {
        let dir = tempfile::tempdir().unwrap();
        let (files, _) = both(dir.path());
        for path in ["functions/classify.md", "functions/f1.md", "./functions/f1.md"] {
            assert!(files.read(path).unwrap().ends_with("Body.\n"), "{path}");
        }
        assert!(files.read("knowledge/prices.md").unwrap().contains("Open."));
        assert!(files.read("knowledge/hidden.md").unwrap().contains("Hidden."));
        assert_eq!(
            files.read("knowledge/secret.md").unwrap_err().to_string(),
            "there is no file knowledge/secret.md"
        );
        assert!(files.write("functions/f1.md", "x").unwrap_err().to_string().contains("only be read"));
        assert!(files.write("learnings/_package.md", "x").unwrap_err().to_string().contains("only be read"));
    }

    #[test]
    fn session_state_is_not_shared() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = both(dir.path());
        assert!(one.read("state/notes.md").unwrap().contains("nothing"));
        one.edit("state/notes.md", "nothing", "mine").unwrap();
        assert!(two.read("state/notes.md").unwrap().contains("nothing"), "another session has its own");
        one.read("state/pipeline.md").unwrap();
        one.write("state/pipeline.md", "deal").unwrap();
        assert_eq!(two.read("state/pipeline.md").unwrap(), "deal");
        one.end_session();
        assert!(!dir.path().join("root/sessions/one").exists());
    }

    #[test]
    fn folders_are_refused_as_files() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = both(dir.path());
        for written in ["state/./notes.md", "state//notes.md"] {
            one.read(written).unwrap();
            one.write(written, written).unwrap();
            assert_eq!(one.read("state/notes.md").unwrap(), written);
            assert!(two.read(written).unwrap().contains("nothing"), "another session has its own");
        }
        for written in ["scratch", "state", "learnings", "./scratch", "scratch/", "scratch/."] {
            assert!(
                one.write(written, "x").unwrap_err().to_string().contains("is a folder; name a file"),
                "{written}"
            );
        }
    }

    #[test]
    fn empty_session_files_are_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let (one, _) = both(dir.path());
        let file = dir.path().join("root/sessions/one/state/notes.md");
        std::fs::write(&file, "mine").unwrap();
        one.prepare().unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
        std::fs::write(&file, "").unwrap();
        one.prepare().unwrap();
        assert!(one.read("state/notes.md").unwrap().contains("nothing"));
    }

    #[test]
    fn changed_files_are_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = both(dir.path());
        assert!(
            one.write("state/pipeline.md", "blind").unwrap_err().to_string().contains("read it"),
            "it was never read"
        );
        one.read("state/pipeline.md").unwrap();
        two.read("state/pipeline.md").unwrap();
        one.write("state/pipeline.md", "first").unwrap();
        one.write("state/pipeline.md", "second").unwrap();
        assert!(two.write("state/pipeline.md", "third").unwrap_err().to_string().contains("has changed"));
        assert_eq!(two.read("state/pipeline.md").unwrap(), "second");
        two.write("state/pipeline.md", "third").unwrap();
        one.write("scratch/new.md", "made at the first write").unwrap();
    }

    /// A process that takes over a run counts as having read what the run has read.
    #[test]
    fn resumed_runs_may_write_what_they_read() {
        let dir = tempfile::tempdir().unwrap();
        let (before, after) = both(dir.path());
        let made = |name: &str, arguments: Value, text: &str| MadeCall {
            call: RequestedCall {
                name: name.into(),
                arguments: arguments.to_string(),
                ..RequestedCall::default()
            },
            outcome: CallOutcome::Ok,
            text: text.to_owned(),
            is_repeatable: true,
            ends_run: EndsRun::Never,
        };
        let path = "state/pipeline.md";
        let read = made("read", json!({"path": path}), &before.read(path).unwrap());
        before.edit(path, "empty", "one deal").unwrap();
        let edit = made("edit", json!({"path": path, "old": "empty", "new": "one deal"}), "it is changed");
        after.restore_seen(std::slice::from_ref(&read));
        assert!(
            after.write(path, "x").unwrap_err().to_string().contains("has changed"),
            "somebody else wrote it"
        );
        after.restore_seen(&[read, edit]);
        after.write(path, "two deals").unwrap();
        assert_eq!(before.read(path).unwrap(), "two deals");
    }

    #[test]
    fn no_path_leads_out() {
        let dir = tempfile::tempdir().unwrap();
        let (files, _) = both(dir.path());
        std::fs::write(dir.path().join("secret"), "outside").unwrap();
        std::os::unix::fs::symlink(dir.path(), dir.path().join("root/scratch")).unwrap();
        for path in [
            "../secret",
            "/etc/passwd",
            "state/../../secret",
            "scratch/secret",
            "state\\..\\x",
            "other/x",
            "state/",
        ] {
            assert!(files.read(path).is_err(), "{path}");
            assert!(files.write(path, "x").is_err(), "{path}");
        }
        assert_eq!(std::fs::read_to_string(dir.path().join("secret")).unwrap(), "outside");
    }

    #[test]
    fn skills_are_functions_of_a_package() {
        let dir = tempfile::tempdir().unwrap();
        let manifest = "spec: '1.0'\nname: office\nversion: 1.0.0\ndescription: d\n\
            components: {orchestrator: o.md, persona: [o.md], functions: [skills/pdf-forms/SKILL.md]}\n";
        let skill = "---\nname: pdf-forms\ndescription: Fills forms\n---\n\nSee references/fields.md. Run scripts/fill.py.\n";
        for (path, text) in [
            ("expert.yaml", manifest),
            ("o.md", "Go.\n"),
            ("skills/pdf-forms/SKILL.md", skill),
            ("skills/pdf-forms/references/fields.md", "# Fields\n"),
            ("skills/pdf-forms/scripts/fill.py", "print('filled')\n"),
        ] {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let package = openexperts::load(dir.path()).unwrap().package.unwrap();
        let files = Workspace::new(&dir.path().join("root"), package.into(), "s", &[]);
        let text = files.read("functions/pdf-forms.md").unwrap();
        assert!(text.contains("- `references/fields.md`: `skills/pdf-forms/references/fields.md`"), "{text}");
        assert!(text.ends_with("Run scripts/fill.py.\n"), "{text}");
        assert_eq!(files.read("skills/pdf-forms/references/fields.md").unwrap(), "# Fields\n");
        assert!(files.read("skills/pdf-forms/scripts/fill.py").is_err());
    }
}
