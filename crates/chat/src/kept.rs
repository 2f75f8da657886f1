//! The calls that a person allows in a directory for good: `/keep` writes them into the state directory, the
//! next chat in that directory reads them, and `/ask` removes them. A prompt (`-p`) does not use them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use super::approval::SessionGrant;

const FILE: &str = "chat_allowed.json";

type Calls = BTreeSet<SessionGrant>;

/// Why calls cannot be kept.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotKept {
    #[error("the assistant could change what is kept, because {} is in this directory", .0.display())]
    InWorkspace(PathBuf),
    #[error("commands do not run in the whole sandbox (`respool check` says why)")]
    Unconfined,
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
        let all = Self::read_all(&file).map_err(|error| NotKept::File(file, error))?;
        let of_root = all.into_iter().find(|(root, _)| *root == self.root);
        let calls = of_root.map(|(_, calls)| calls).unwrap_or_default();
        if self.is_confined || calls.is_empty() { Ok(calls) } else { Err(NotKept::Unconfined) }
    }

    /// Writes the calls of this directory.
    pub(super) fn write(&self, calls: &Calls) -> Result<(), NotKept> {
        let file = self.file()?;
        if !self.is_confined && !calls.is_empty() {
            return Err(NotKept::Unconfined);
        }
        self.write_all(&file, calls).map_err(|error| NotKept::File(file, error))
    }

    /// Returns the file, unless commands and tools of this directory could write it.
    fn file(&self) -> Result<PathBuf, NotKept> {
        let real = self.state_dir.canonicalize().unwrap_or_else(|_| self.state_dir.clone());
        if real.starts_with(&self.root) {
            return Err(NotKept::InWorkspace(self.state_dir.clone()));
        }
        Ok(self.state_dir.join(FILE))
    }

    fn read_all(file: &Path) -> io::Result<BTreeMap<PathBuf, Calls>> {
        match std::fs::read(file) {
            Ok(text) => Ok(serde_json::from_slice(&text)?),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(BTreeMap::new()),
            Err(error) => Err(error),
        }
    }

    fn write_all(&self, file: &Path, calls: &Calls) -> io::Result<()> {
        let mut all = Self::read_all(file)?;
        if calls.is_empty() {
            all.remove(&self.root);
        } else {
            all.insert(self.root.clone(), calls.clone());
        }
        let text = serde_json::to_vec_pretty(&all)?;
        // Another chat reads the old file or the new one, never a part. Only the owner can read it.
        let mut beside = tempfile::NamedTempFile::new_in(&self.state_dir)?;
        beside.write_all(&text)?;
        beside.persist(file).map(drop).map_err(|error| error.error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        a.write(&calls).unwrap();
        b.write(&Calls::from([SessionGrant::ServerTool("a__b".into())])).unwrap();
        assert_eq!(a.read().unwrap(), calls);
        assert_eq!(b.read().unwrap().len(), 1);
        // Regression: they held without a sandbox, too.
        let unconfined = Keeper { is_confined: false, ..a.clone() };
        assert!(matches!(unconfined.read(), Err(NotKept::Unconfined)));
        assert!(matches!(unconfined.write(&calls), Err(NotKept::Unconfined)));
        a.write(&Calls::new()).unwrap();
        assert!(a.read().unwrap().is_empty() && !b.read().unwrap().is_empty());
        std::fs::write(state.join(FILE), "{").unwrap();
        assert!(matches!(a.write(&calls), Err(NotKept::File(..))), "what cannot be read is not replaced");
    }

    /// The file tools and commands of a directory write everything in it.
    #[test]
    fn nothing_is_kept_where_it_could_be_written() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let state = root.join("state");
        std::fs::create_dir(&state).unwrap();
        let outside = Keeper::new(&state, Path::new("/w"), true);
        outside.write(&Calls::from([SessionGrant::Tool("edit_file".into())])).unwrap();
        for inside in [Keeper::new(&state, &root, true), Keeper::new(&state, &state, true)] {
            assert!(matches!(inside.read(), Err(NotKept::InWorkspace(_))));
            assert!(matches!(inside.write(&Calls::new()), Err(NotKept::InWorkspace(_))));
        }
    }
}
