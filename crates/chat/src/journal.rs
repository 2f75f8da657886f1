//! Remembers the content of files before `edit_file` and `write_file` change them, turn by turn, so that a
//! turn can be undone.
//!
//! It stands between the loop and the tools and passes everything through unchanged. It reads a file once
//! its change is permitted, by the path that the tool itself resolved: never outside the workspace, never
//! through a symlink, and never more than a bounded part. It does not see changes that commands make, but
//! counts the commands so that the person knows of them.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use super::changes::FileChange;
use tools::diff::unified_diff;
use tools::{
    Approver, Consent, Invocation, OutputWatcher, Question, Target, ToolError, ToolOutput, ToolSet, ToolSpec,
    Tools, open_inside, put_back,
};

/// Larger files are not remembered.
const LARGEST: u64 = 16 << 20;
/// The most turns that can be undone, the last one first.
const MOST_TURNS: usize = 20;

/// The tools of a chat, with their memory.
pub(super) struct Journal {
    inner: Arc<ToolSet>,
    /// The workspace, without symlinks.
    root: PathBuf,
    turns: Mutex<Vec<Turn>>,
}

/// The changes of one turn.
#[derive(Debug, Default)]
struct Turn {
    files: BTreeMap<PathBuf, Change>,
    /// Files whose old content was not kept.
    lost: Vec<PathBuf>,
    commands: usize,
}

/// A file before and after; `None` where it did not exist.
#[derive(Debug)]
struct Change {
    before: Option<Vec<u8>>,
    after: Option<Vec<u8>>,
    /// The directories that came with it, the deepest first.
    made: Vec<PathBuf>,
}

/// The state of a file when it was read.
#[derive(Debug)]
enum FileState {
    Nothing,
    File(Vec<u8>),
    TooLarge,
}

/// The result of an undo.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Undone {
    /// The restored files, relative to the workspace.
    pub(super) files: Vec<PathBuf>,
    /// The files that did not exist before.
    pub(super) removed: Vec<PathBuf>,
    /// The commands of that turn, whose effects stay.
    pub(super) commands: usize,
    /// Changed files that could not be restored.
    pub(super) lost: Vec<PathBuf>,
}

/// Why a turn was not undone.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotUndone {
    #[error("no file change can be undone")]
    NoChange,
    /// These files are others now.
    #[error("nothing was undone: {} changed since then", .0.join(", "))]
    Changed(Vec<String>),
    /// A file cannot be written; those before it are restored.
    #[error("not all is restored: {why}; restored before it: {}", list_names(.restored))]
    Unwritable { why: String, restored: Vec<String> },
}

fn list_names(names: &[String]) -> String {
    if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
}

impl Journal {
    /// Returns a journal between the chat and these tools. `root`: the workspace of the tools.
    pub(super) fn new(inner: Arc<ToolSet>, root: PathBuf) -> Self {
        Self { inner, root, turns: Mutex::default() }
    }

    /// Returns the tools.
    pub(super) fn tools(&self) -> &ToolSet {
        &self.inner
    }

    fn lock_turns(&self) -> MutexGuard<'_, Vec<Turn>> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a turn.
    pub(super) fn begin_turn(&self) {
        let mut turns = self.lock_turns();
        if turns.last().is_some_and(|turn| turn.files.is_empty() && turn.lost.is_empty()) {
            turns.pop();
        }
        if turns.len() >= MOST_TURNS {
            turns.remove(0);
        }
        turns.push(Turn::default());
    }

    /// Restores the files that the last turn with changes changed: all of them, or none.
    ///
    /// # Errors
    /// [`NotUndone`].
    pub(super) fn undo_turn(&self) -> Result<Undone, NotUndone> {
        let mut turns = self.lock_turns();
        turns.retain(|turn| !turn.files.is_empty() || !turn.lost.is_empty());
        let Some(turn) = turns.last() else {
            return Err(NotUndone::NoChange);
        };
        let same = |path: &Path, change: &Change| match (look_at_file(&self.root, path), &change.after) {
            (FileState::File(now), Some(after)) => now == *after,
            (FileState::Nothing, None) => true,
            _ => false,
        };
        let changed = turn.files.iter().filter(|(path, change)| !same(path, change));
        let changed: Vec<String> =
            changed.map(|(path, _)| self.display_name(path).display().to_string()).collect();
        if !changed.is_empty() {
            return Err(NotUndone::Changed(changed));
        }
        let mut undone = Undone { commands: turn.commands, ..Undone::default() };
        undone.lost = turn.lost.iter().map(|path| self.display_name(path)).collect();
        for (path, change) in &turn.files {
            put_back(&self.root, path, change.before.as_deref()).map_err(|error| {
                let restored = undone.files.iter().chain(&undone.removed);
                let restored = restored.map(|path| path.display().to_string()).collect();
                NotUndone::Unwritable { why: error.text().to_owned(), restored }
            })?;
            let list = if change.before.is_some() { &mut undone.files } else { &mut undone.removed };
            list.push(self.display_name(path));
            for directory in &change.made {
                // One that another file has come into stays.
                let _ = std::fs::remove_dir(directory);
            }
        }
        turns.pop();
        Ok(undone)
    }

    /// Returns how the files that calls changed in these turns differ from what they were before the first of
    /// them.
    pub(super) fn changes(&self) -> Vec<FileChange> {
        let mut first: BTreeMap<&Path, &Change> = BTreeMap::new();
        let turns = self.lock_turns();
        for (path, change) in turns.iter().flat_map(|turn| &turn.files) {
            first.entry(path).or_insert(change);
        }
        let changed = |(path, change): (&Path, &Change)| {
            let name = self.display_name(path).display().to_string();
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let before = change.before.as_deref().map(text).unwrap_or_default();
            let now = look_at_file(&self.root, path).content().as_deref().map(text).unwrap_or_default();
            let diff = unified_diff(&name, &before, &now);
            (!diff.is_empty()).then_some(FileChange { path: name, diff })
        };
        first.into_iter().filter_map(changed).collect()
    }

    /// Returns the path for people.
    fn display_name(&self, path: &Path) -> PathBuf {
        path.strip_prefix(&self.root).unwrap_or(path).to_owned()
    }

    async fn call_watched(
        &self,
        invocation: &Invocation,
        approver: Option<&dyn Approver>,
    ) -> Result<ToolOutput, ToolError> {
        let changes = matches!(invocation.name.as_str(), "edit_file" | "write_file");
        let watch = Watch { approver, changes, root: &self.root, began: Mutex::default() };
        let done = self.inner.call(invocation, Some(&watch)).await;
        match watch.began.into_inner().unwrap_or_else(PoisonError::into_inner) {
            // A call that timed out may have written all the same.
            Some(Began::Change { path, before, made }) => {
                let after = look_aside(&self.root, &path).await;
                self.record_change(path, before, after, made);
            }
            Some(Began::Command) => {
                if let Some(turn) = self.lock_turns().last_mut() {
                    turn.commands += 1;
                }
            }
            None => {}
        }
        done
    }

    fn record_change(&self, path: PathBuf, before: FileState, after: FileState, made: Vec<PathBuf>) {
        let mut turns = self.lock_turns();
        let Some(turn) = turns.last_mut() else { return };
        let (before, after) = match (before, after) {
            (FileState::File(before), FileState::File(after)) if before == after => return,
            (FileState::Nothing, FileState::Nothing) => return,
            (FileState::TooLarge, _) | (_, FileState::TooLarge) => {
                turn.files.remove(&path);
                turn.lost.push(path);
                return;
            }
            (before, after) => (before.content(), after.content()),
        };
        turn.files.entry(path).and_modify(|change| change.after.clone_from(&after)).or_insert(Change {
            before,
            after,
            made,
        });
    }
}

impl FileState {
    fn content(self) -> Option<Vec<u8>> {
        match self {
            Self::File(bytes) => Some(bytes),
            Self::Nothing | Self::TooLarge => None,
        }
    }
}

#[async_trait]
impl Tools for Journal {
    fn specs(&self) -> Vec<ToolSpec> {
        self.inner.specs()
    }

    async fn call(
        &self,
        invocation: &Invocation,
        approver: Option<&dyn Approver>,
    ) -> Result<ToolOutput, ToolError> {
        self.call_watched(invocation, approver).await
    }
}

/// A call that is about to begin.
#[derive(Debug)]
enum Began {
    /// A change of this file, with its state before and the directories that do not exist yet.
    Change {
        path: PathBuf,
        before: FileState,
        made: Vec<PathBuf>,
    },
    Command,
}

/// Reads a file when its change is permitted, after the person has answered: it may have changed in the
/// meantime.
struct Watch<'a> {
    approver: Option<&'a dyn Approver>,
    /// The tool changes files.
    changes: bool,
    /// The workspace.
    root: &'a Path,
    began: Mutex<Option<Began>>,
}

#[async_trait]
impl Approver for Watch<'_> {
    fn output_watcher(&self) -> Option<OutputWatcher> {
        self.approver.and_then(Approver::output_watcher)
    }

    fn only_looks(&self) -> bool {
        self.approver.is_some_and(Approver::only_looks)
    }

    fn is_present(&self) -> bool {
        self.approver.is_some_and(Approver::is_present)
    }

    async fn approve(&self, question: Question<'_>) -> Consent {
        match self.approver {
            Some(approver) => approver.approve(question).await,
            None => Consent::UNASKED,
        }
    }

    async fn note_permission(&self, target: &Target) {
        let began = match (target, target.file_path().filter(|_| self.changes)) {
            (Target::Command { .. }, _) => Some(Began::Command),
            (_, Some(path)) => {
                let before = look_aside(self.root, &path).await;
                let missing = path.ancestors().skip(1).take_while(|directory| !directory.exists());
                let made = missing.map(Path::to_owned).collect();
                Some(Began::Change { path, before, made })
            }
            _ => None,
        };
        *self.began.lock().unwrap_or_else(PoisonError::into_inner) = began;
    }
}

async fn look_aside(root: &Path, path: &Path) -> FileState {
    let (root, path) = (root.to_owned(), path.to_owned());
    tokio::task::spawn_blocking(move || look_at_file(&root, &path)).await.unwrap_or(FileState::TooLarge)
}

/// Reads the state of a file in the workspace `root`, both without symlinks: one that appeared since is not
/// followed. Only a regular file of at most `LARGEST` bytes is kept; a pipe is not waited for.
fn look_at_file(root: &Path, path: &Path) -> FileState {
    let Ok(file) = open_inside(root, path) else {
        return if path.symlink_metadata().is_err() { FileState::Nothing } else { FileState::TooLarge };
    };
    let mut bytes = Vec::new();
    let is_file = file.metadata().is_ok_and(|data| data.is_file());
    let is_read = is_file && file.take(LARGEST + 1).read_to_end(&mut bytes).is_ok();
    if is_read && bytes.len() as u64 <= LARGEST { FileState::File(bytes) } else { FileState::TooLarge }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use tools::{Caller, PolicyConfig, ToolsConfig, Verdict};

    struct Yes<'a>(&'a Path);

    #[async_trait]
    impl Approver for Yes<'_> {
        async fn approve(&self, _: Question<'_>) -> Consent {
            std::fs::write(self.0, "changed by hand\n").unwrap();
            Consent::Given
        }
    }

    fn journal(default: Verdict) -> (tempfile::TempDir, Journal) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::fs::write(root.join("a.txt"), "one\n").unwrap();
        let policy = PolicyConfig { default, ..PolicyConfig::default() };
        let set = ToolSet::open_for_chat(&ToolsConfig::default(), &policy, &root).unwrap();
        (dir, Journal::new(Arc::new(set), root))
    }

    async fn call(journal: &Journal, name: &str, arguments: &Value) -> Result<ToolOutput, ToolError> {
        journal.call(&invocation(name, arguments), None).await
    }

    fn invocation(name: &str, arguments: &Value) -> Invocation {
        Invocation {
            name: name.into(),
            arguments: arguments.as_object().cloned().unwrap(),
            key: "k".into(),
            timeout: std::time::Duration::from_secs(10),
            caller: Caller::default(),
        }
    }

    fn read(journal: &Journal, name: &str) -> Option<String> {
        std::fs::read_to_string(journal.root.join(name)).ok()
    }

    #[tokio::test]
    async fn a_turn_is_undone_as_a_whole() {
        let (_dir, journal) = journal(Verdict::Allow);
        journal.begin_turn();
        for new in ["two\n", "three\n"] {
            call(&journal, "write_file", &json!({"file_path": "./x/../a.txt", "content": new}))
                .await
                .unwrap();
        }
        call(&journal, "write_file", &json!({"file_path": "new/b.txt", "content": "b"})).await.unwrap();
        call(&journal, "shell_command", &json!({"command": "true"})).await.unwrap();
        journal.begin_turn();
        let changes: Vec<_> = journal.changes().into_iter().map(|one| (one.path, one.diff)).collect();
        let of_a = "--- a.txt\n+++ a.txt\n@@ -1 +1 @@\n-one\n+three\n";
        assert_eq!(changes[0], ("a.txt".to_owned(), of_a.to_owned()), "from the first turn on");
        assert_eq!((changes.len(), changes[1].0.as_str()), (2, "new/b.txt"));
        let undone = journal.undo_turn().unwrap();
        assert_eq!((undone.files, undone.removed), (vec!["a.txt".into()], vec!["new/b.txt".into()]));
        assert!(!journal.root.join("new").exists(), "its empty directory stays");
        assert_eq!((undone.commands, undone.lost), (1, vec![]));
        assert_eq!(journal.changes(), [], "nothing differs any more");
        assert_eq!((read(&journal, "a.txt").as_deref(), read(&journal, "new/b.txt")), (Some("one\n"), None));
        assert!(journal.undo_turn().unwrap_err().to_string().contains("no file change"));
    }

    #[tokio::test]
    async fn undo_stops_at_a_changed_file() {
        let (_dir, journal) = journal(Verdict::Allow);
        journal.begin_turn();
        call(&journal, "write_file", &json!({"file_path": "b.txt", "content": "b"})).await.unwrap();
        call(&journal, "edit_file", &json!({"file_path": "a.txt", "old_string": "one", "new_string": "1"}))
            .await
            .unwrap();
        std::fs::write(journal.root.join("a.txt"), "mine\n").unwrap();
        let why = journal.undo_turn().unwrap_err().to_string();
        assert!(why.contains("a.txt changed since") && !why.contains("b.txt"), "{why}");
        assert_eq!(
            (read(&journal, "a.txt").unwrap(), read(&journal, "b.txt").unwrap()),
            ("mine\n".into(), "b".into())
        );
    }

    #[tokio::test]
    async fn the_file_at_the_time_of_the_answer_counts() {
        let (_dir, journal) = journal(Verdict::Ask);
        journal.begin_turn();
        let write = invocation("write_file", &json!({"file_path": "a.txt", "content": "two\n"}));
        let path = journal.root.join("a.txt");
        journal.call(&write, Some(&Yes(&path))).await.unwrap();
        journal.undo_turn().unwrap();
        assert_eq!(read(&journal, "a.txt").unwrap(), "changed by hand\n");
    }

    /// Regression: the file was read before `write_file` was refused; it was `/proc/self/pagemap` and gave 2
    /// GiB.
    #[tokio::test]
    async fn refused_calls_are_neither_looked_at_nor_remembered() {
        let (dir, journal) = journal(Verdict::Deny);
        journal.begin_turn();
        let outside = dir.path().parent().unwrap().join("nothing-here");
        for path in ["a.txt", outside.to_str().unwrap(), "/proc/self/pagemap"] {
            let write = invocation("write_file", &json!({"file_path": path, "content": "x"}));
            let watch = Watch { approver: None, changes: true, root: &journal.root, began: Mutex::default() };
            journal.inner.call(&write, Some(&watch)).await.unwrap_err();
            assert!(watch.began.into_inner().unwrap().is_none(), "{path} was looked at");
            call(&journal, "write_file", &json!({"file_path": path, "content": "x"})).await.unwrap_err();
        }
        assert!(journal.undo_turn().is_err());
    }

    #[test]
    fn only_small_regular_files_are_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let make =
            |name: &str, size: u64| std::fs::File::create(root.join(name)).unwrap().set_len(size).unwrap();
        make("small", 10);
        make("large", LARGEST + 1);
        std::os::unix::fs::symlink("small", root.join("link")).unwrap();
        std::os::unix::fs::symlink(".", root.join("folder")).unwrap();
        assert!(
            matches!(look_at_file(&root, &root.join("small")), FileState::File(bytes) if bytes.len() == 10)
        );
        assert!(matches!(look_at_file(&root, &root.join("nothing")), FileState::Nothing));
        assert!(matches!(look_at_file(&root, &root.join("no/thing")), FileState::Nothing));
        let devices = [Path::new("/dev/zero").to_owned(), Path::new("/proc/self/pagemap").to_owned()];
        let odd = ["large", "link", "folder/small", "."].map(|name| root.join(name));
        for path in odd.iter().chain(&devices) {
            assert!(matches!(look_at_file(&root, path), FileState::TooLarge), "{}", path.display());
        }
        assert!(put_back(&root, &root.join("folder/small"), Some(b"x")).is_err());
        assert_eq!(std::fs::metadata(root.join("small")).unwrap().len(), 10);
    }

    /// Regression: with two names for the path, the journal read a different file from the one that the tool
    /// wrote.
    #[tokio::test]
    async fn what_is_undone_is_what_was_written() {
        let (_dir, journal) = journal(Verdict::Allow);
        std::os::unix::fs::symlink("a.txt", journal.root.join("link.txt")).unwrap();
        journal.begin_turn();
        for name in ["path", "file", "filePath", "file_path"] {
            call(&journal, "write_file", &json!({name: "link.txt", "content": name})).await.unwrap();
        }
        assert_eq!(read(&journal, "a.txt").as_deref(), Some("file_path"));
        assert_eq!(journal.undo_turn().unwrap().files, [PathBuf::from("a.txt")]);
        assert_eq!(read(&journal, "a.txt").as_deref(), Some("one\n"));
    }
}
