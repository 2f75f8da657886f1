//! The calls that a person allows in a directory for good: `/keep` writes them into the state directory, the
//! next chat in that directory reads them, and `/ask` removes them. A prompt (`-p`) does not use them.
//! Entries of another version are left as they are.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::approval::SessionGrant;

const FILE: &str = "chat_allowed.json";

type Calls = BTreeSet<SessionGrant>;
/// The calls of all directories, as they are written.
type Entries = BTreeMap<String, Vec<Value>>;

/// Why calls cannot be kept.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotKept {
    #[error("the assistant could change what is kept, because {} is in this directory", .0.display())]
    InWorkspace(PathBuf),
    #[error("commands do not run in the whole sandbox (`respool check` says why)")]
    Unconfined,
    #[error("the name of this directory is not UTF-8")]
    Name,
    #[error("{} cannot be used: {}", .0.display(), .1)]
    File(PathBuf, io::Error),
}

/// Where the calls of a directory are kept.
#[derive(Clone, Debug)]
pub(super) struct Keeper {
    state_dir: PathBuf,
    /// The workspace, without symlinks.
    root: PathBuf,
    /// Whether its commands run in the whole sandbox.
    is_confined: bool,
}

impl Keeper {
    pub(super) fn new(state_dir: &Path, root: &Path, is_confined: bool) -> Self {
        Self { state_dir: state_dir.to_owned(), root: root.to_owned(), is_confined }
    }

    /// Reads the calls of this directory.
    pub(super) fn read(&self) -> Result<Calls, NotKept> {
        let file = self.file()?;
        let all = read_all(&file).map_err(|error| NotKept::File(file, error))?;
        let of_root = self.root.to_str().and_then(|root| all.get(root));
        let calls = of_root.map(|entries| known_calls(entries)).unwrap_or_default();
        if self.is_confined || calls.is_empty() { Ok(calls) } else { Err(NotKept::Unconfined) }
    }

    /// Adds calls to those of this directory, and returns all of them.
    pub(super) fn add(&self, new: &Calls) -> Result<Calls, NotKept> {
        if !self.is_confined {
            return Err(NotKept::Unconfined);
        }
        self.change(|entries| {
            let known = known_calls(entries);
            entries.extend(new.difference(&known).filter_map(|call| serde_json::to_value(call).ok()));
            known_calls(entries)
        })
    }

    /// Removes the calls of this directory.
    pub(super) fn clear(&self) -> Result<(), NotKept> {
        if self.file()?.exists() { self.change(Vec::clear) } else { Ok(()) }
    }

    /// Changes the calls of this directory. Of two chats, one waits for the other.
    fn change<T>(&self, change: impl FnOnce(&mut Vec<Value>) -> T) -> Result<T, NotKept> {
        let (file, root) = (self.file()?, self.root.to_str().ok_or(NotKept::Name)?);
        let write = || {
            let lock = File::options().create(true).append(true).open(file.with_extension("lock"))?;
            lock.lock()?;
            let mut all = read_all(&file)?;
            let changed = change(all.entry(root.to_owned()).or_default());
            all.retain(|_, entries| !entries.is_empty());
            atomic_file::replace(&file, &serde_json::to_vec_pretty(&all)?)?;
            Ok(changed)
        };
        write().map_err(|error| NotKept::File(file.clone(), error))
    }

    /// Returns the file, unless commands and tools of this directory could write it.
    fn file(&self) -> Result<PathBuf, NotKept> {
        let real = self.state_dir.canonicalize().unwrap_or_else(|_| self.state_dir.clone());
        if real.starts_with(&self.root) {
            return Err(NotKept::InWorkspace(self.state_dir.clone()));
        }
        Ok(self.state_dir.join(FILE))
    }
}

fn read_all(file: &Path) -> io::Result<Entries> {
    match std::fs::read(file) {
        Ok(text) => Ok(serde_json::from_slice(&text)?),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Entries::new()),
        Err(error) => Err(error),
    }
}

/// The entries that this version knows.
fn known_calls(entries: &[Value]) -> Calls {
    entries.iter().filter_map(|entry| serde_json::from_value(entry.clone()).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server_tool() -> SessionGrant {
        SessionGrant::ServerTool { tool: "a__b".into(), definition: "d".into() }
    }

    #[test]
    fn kept_calls_are_of_one_directory() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().canonicalize().unwrap().join("state");
        std::fs::create_dir(&state).unwrap();
        let [a, b] = ["/w/a", "/w/b"].map(|root| Keeper::new(&state, Path::new(root), true));
        let calls = Calls::from([
            SessionGrant::Tool("edit_file".into()),
            SessionGrant::Like("builds and tests".into(), ".".into()),
            SessionGrant::Command("python3 x.py".into(), "sub".into()),
        ]);
        assert!(a.read().unwrap().is_empty());
        a.add(&calls).unwrap();
        b.add(&Calls::from([server_tool()])).unwrap();
        assert_eq!(a.read().unwrap(), calls);
        assert_eq!(b.read().unwrap().len(), 1);
        // Regression: they held without a sandbox, too.
        let unconfined = Keeper { is_confined: false, ..a.clone() };
        assert!(matches!(unconfined.read(), Err(NotKept::Unconfined)));
        assert!(matches!(unconfined.add(&calls), Err(NotKept::Unconfined)));
        a.clear().unwrap();
        assert!(a.read().unwrap().is_empty() && !b.read().unwrap().is_empty());
        std::fs::write(state.join(FILE), "{").unwrap();
        assert!(matches!(a.add(&calls), Err(NotKept::File(..))), "what cannot be read is not replaced");
    }

    /// Regression: `/keep` of one chat brought back what `/ask` of another had taken away, and one unknown
    /// entry made the file unreadable.
    #[test]
    fn chats_keep_each_others_entries() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().canonicalize().unwrap();
        let old = r#"{"/w/a": [{"of_tomorrow": 1}, {"server_tool": "a__b"}, {"tool": "edit_file"}]}"#;
        std::fs::write(state.join(FILE), old).unwrap();
        let [one, other] = [0, 1].map(|_| Keeper::new(&state, Path::new("/w/a"), true));
        assert_eq!(one.read().unwrap(), Calls::from([SessionGrant::Tool("edit_file".into())]));
        assert_eq!(other.add(&Calls::from([server_tool()])).unwrap().len(), 2);
        assert_eq!(one.add(&Calls::from([SessionGrant::Tool("edit_file".into())])).unwrap().len(), 2);
        let written: Entries = read_all(&state.join(FILE)).unwrap();
        assert_eq!(written["/w/a"].len(), 4, "what is not known stays");
        other.clear().unwrap();
        assert_eq!(
            one.add(&Calls::from([server_tool()])).unwrap().len(),
            1,
            "what was taken back stays away"
        );
    }

    /// The file tools and commands of a directory write everything in it.
    #[test]
    fn nothing_is_kept_where_it_could_be_written() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let state = root.join("state");
        std::fs::create_dir(&state).unwrap();
        let outside = Keeper::new(&state, Path::new("/w"), true);
        outside.add(&Calls::from([SessionGrant::Tool("edit_file".into())])).unwrap();
        for inside in [Keeper::new(&state, &root, true), Keeper::new(&state, &state, true)] {
            assert!(matches!(inside.read(), Err(NotKept::InWorkspace(_))));
            assert!(matches!(inside.clear(), Err(NotKept::InWorkspace(_))));
        }
    }
}
