//! Which scratchpad an invocation works with. Two open invocations whose inputs name the same file must not
//! write into each other's, so a file belongs to the invocation that took it first, and a second one gets a
//! name of its own. Called by `attempt` and `conclusion`.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::attempt::Attempt;
use super::worker::Worker;
use crate::workspace::Workspace;
use store::{EntryState, StoreError};
use wire::digest::{hex, sha256};

/// The folder of the owners, in an expert's workspace. Runs cannot reach it.
pub(super) const OWNERS: &str = ".scratchpads";

/// Who works with a scratchpad.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Owner {
    invocation: String,
    /// The entry of the queue that executes it.
    entry: String,
}

/// The owners of an expert's scratchpads.
pub(super) struct Scratchpads {
    root: PathBuf,
}

impl Scratchpads {
    pub(super) fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    fn record_owner(&self, path: &str) -> PathBuf {
        self.root.join(OWNERS).join(format!("{}.json", hex(&sha256(path.as_bytes())[..16])))
    }

    fn owner_of(&self, path: &str) -> Option<Owner> {
        serde_json::from_slice(&fs::read(self.record_owner(path)).ok()?).ok()
    }

    /// Makes an invocation the owner of a scratchpad that still belongs to `before`; false if it does not.
    /// A file of another invocation is moved aside first.
    fn take_over(&self, files: &Workspace, path: &str, taking: &ScratchpadClaim) -> io::Result<bool> {
        let folder = self.root.join(OWNERS);
        fs::create_dir_all(&folder)?;
        // Other processes wait here.
        let lock = File::create(folder.join(".lock"))?;
        lock.lock()?;
        if self.owner_of(path) != taking.before {
            return Ok(false);
        }
        let is_own =
            taking.before.as_ref().is_some_and(|before| before.invocation == taking.owner.invocation);
        // A file that another invocation owned is not this one's, however far this one has got.
        if !is_own && (taking.is_first || taking.before.is_some()) {
            files.set_aside(path, clock::now())?;
        }
        let (record, new) = (self.record_owner(path), folder.join(".new"));
        fs::write(&new, serde_json::to_vec(&taking.owner)?)?;
        fs::rename(new, record)?;
        Ok(true)
    }

    /// Deletes the scratchpad of an invocation that is over. If this process was stopped meanwhile, another
    /// invocation may have the scratchpad, and it stays.
    pub(super) fn clear(&self, files: &Workspace, path: &str, invocation: &str) -> io::Result<()> {
        let lock = File::create(self.root.join(OWNERS).join(".lock"))?;
        lock.lock()?;
        if self.owner_of(path).is_some_and(|owner| owner.invocation == invocation) {
            files.delete_scratch(path);
            fs::remove_file(self.record_owner(path))?;
        }
        Ok(())
    }
}

/// An invocation that takes a scratchpad.
struct ScratchpadClaim {
    owner: Owner,
    /// Who has it before, as far as the invocation knows.
    before: Option<Owner>,
    /// Nothing of the invocation has run yet, so a file that is there is not its own.
    is_first: bool,
}

impl Worker {
    /// Returns the scratchpad of an attempt. This is the scratchpad that the process names, unless another
    /// open invocation uses it; then the invocation gets its own.
    pub(super) async fn claimed_scratchpad(
        &self,
        attempt: &Attempt<'_>,
    ) -> Result<Option<String>, StoreError> {
        let Some(named) = &attempt.scratchpad else { return Ok(None) };
        let root = self.experts.config.state_of(attempt.expert.name());
        let pads = Scratchpads::new(&root);
        let files = Workspace::new(&root, Arc::clone(&attempt.package), attempt.session(), &[]);
        let Attempt { invocation, claimed, .. } = attempt;
        let owner = Owner { invocation: invocation.id.clone(), entry: claimed.lease.entry.clone() };
        let is_first = claimed.attempt == 1 && claimed.run.is_none();
        let take = |path: &str, before| {
            let taken =
                pads.take_over(&files, path, &ScratchpadClaim { owner: owner.clone(), before, is_first });
            taken.inspect_err(|error| tracing::warn!(target: "respool::expert", path, %error, "a scratchpad cannot be prepared"))
        };
        let own = own_name(named, &invocation.id);
        let (current, has_own) = (pads.owner_of(named), pads.owner_of(&own).is_some());
        let is_free = match &current {
            Some(current) => current.invocation == owner.invocation || !self.is_open(current).await?,
            None => true,
        };
        if !has_own && is_free && take(named, current).unwrap_or(true) {
            return Ok(Some(named.clone()));
        }
        let _ = take(&own, pads.owner_of(&own));
        Ok(Some(own))
    }

    /// Returns true if the work of an owner may still go on, also because a person has it tried again.
    async fn is_open(&self, owner: &Owner) -> Result<bool, StoreError> {
        let entry = self.store.entry(&owner.entry).await?;
        Ok(entry.is_some_and(|entry| entry.state != EntryState::Done && !entry.is_ended_by_person()))
    }
}

/// Returns the name of an invocation's own scratchpad.
fn own_name(path: &str, invocation: &str) -> String {
    let mark = hex(&sha256(invocation.as_bytes())[..6]);
    match path.strip_suffix(".md") {
        Some(stem) => format!("{stem}-{mark}.md"),
        None => format!("{path}-{mark}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that is killed between claiming an entry and beginning its run has not written what is in
    /// the file.
    #[test]
    fn foreign_scratchpads_are_moved_aside() {
        let dir = tempfile::tempdir().unwrap();
        let manifest = "spec: '1.0'\nname: desk\nversion: 1.0.0\ndescription: d\n\
                        components: {orchestrator: o.md, persona: [o.md], functions: [f.md]}\n";
        let function = "---\nname: f\ndescription: d\n---\nBody.\n";
        for (file, text) in [("expert.yaml", manifest), ("o.md", "o\n"), ("f.md", function)] {
            fs::write(dir.path().join(file), text).unwrap();
        }
        let package = Arc::new(openexperts::load(dir.path()).unwrap().package.unwrap());
        let root = dir.path().join("root");
        let files = Workspace::new(&root, package, "s", &[]);
        fs::create_dir_all(root.join("scratch")).unwrap();
        let (pads, path) = (Scratchpads::new(&root), "scratch/deal.md");
        let owner = |invocation: &str| Owner { invocation: invocation.into(), entry: invocation.into() };
        let take = |invocation: &str, before: Option<&str>, is_first| {
            let taking = ScratchpadClaim { owner: owner(invocation), before: before.map(owner), is_first };
            assert!(pads.take_over(&files, path, &taking).unwrap());
            root.join(path).exists()
        };
        take("a", None, true);
        fs::write(root.join(path), "a's notes").unwrap();
        assert!(take("a", Some("a"), false), "its own stay for its next attempt");
        assert!(!take("b", Some("a"), false), "another one's do not");
        assert_eq!(fs::read_dir(root.join("scratch")).unwrap().count(), 1, "and are not lost");
        fs::write(root.join(path), "b's notes").unwrap();
        pads.clear(&files, path, "a").unwrap();
        assert!(root.join(path).exists(), "a process that wakes up late deletes its own alone");
        pads.clear(&files, path, "b").unwrap();
        assert!(!root.join(path).exists() && pads.owner_of(path).is_none());
    }
}
