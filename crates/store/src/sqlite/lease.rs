//! Who works on a run: each process holds a lock on a file of its own for as long as it lives, so that others
//! can see whether it is gone. The system gives the lock back however the process ends.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

/// This process's own lock.
#[derive(Debug)]
pub(super) struct Lease {
    owner: String,
    dir: PathBuf,
    _locked: File,
}

impl Lease {
    /// Takes a lock in the state directory.
    pub(super) fn take(state_dir: &Path) -> io::Result<Self> {
        Self::take_of(state_dir, "")
    }

    /// Takes a lock for one purpose, which leaves the others alone.
    pub(super) fn take_of(state_dir: &Path, purpose: &str) -> io::Result<Self> {
        let dir = state_dir.join("owners");
        fs::create_dir_all(&dir)?;
        let owner = format!("{purpose}{:032x}", rand::random::<u128>());
        let new = dir.join(format!(".{owner}"));
        let locked = File::create(&new)?;
        locked.lock()?;
        // Under its name it is locked from the first moment.
        fs::rename(new, dir.join(&owner))?;
        Ok(Self { owner, dir, _locked: locked })
    }

    /// Returns the name under which this process owns runs.
    pub(super) fn owner(&self) -> &str {
        &self.owner
    }

    /// Returns true when no other process uses the state directory for the same purpose. Takes the files of
    /// those that ended away.
    pub(super) fn is_alone(&self) -> io::Result<bool> {
        let names = fs::read_dir(&self.dir)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let purpose = self.owner.trim_end_matches(|c: char| c.is_ascii_hexdigit());
        let is_of_purpose = |name: &str| name.trim_end_matches(|c: char| c.is_ascii_hexdigit()) == purpose;
        let others = names.filter(|name| *name != self.owner && is_of_purpose(name));
        Ok(others.filter(|name| !self.is_gone(name)).count() == 0)
    }

    /// Returns true when the process of this name has ended. Its file is taken away.
    pub(super) fn is_gone(&self, owner: &str) -> bool {
        if owner == self.owner {
            return false;
        }
        let path = self.dir.join(owner);
        // Over NFS an exclusive lock needs a descriptor that can be written.
        let file = match File::options().read(true).write(true).open(&path) {
            Ok(file) => file,
            // Whatever else keeps it from being opened says nothing of its owner.
            Err(error) => return error.kind() == io::ErrorKind::NotFound,
        };
        match file.try_lock() {
            Ok(()) => {
                let _ = fs::remove_file(&path);
                true
            }
            Err(TryLockError::WouldBlock) => false,
            // A file system without locks: no other process can be known to be alive.
            Err(TryLockError::Error(_)) => true,
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.dir.join(&self.owner));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_without_lock_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let (own, other) = (Lease::take(dir.path()).unwrap(), Lease::take(dir.path()).unwrap());
        assert!(!own.is_gone(own.owner()) && !own.is_gone(other.owner()));
        let name = other.owner().to_owned();
        assert!(!own.is_alone().unwrap());
        drop(other);
        assert!(own.is_gone(&name) && own.is_gone("never-was"));
        // One that was killed leaves its file.
        let left = dir.path().join("owners").join(name);
        fs::write(&left, "").unwrap();
        assert!(own.is_alone().unwrap() && !left.exists());
    }
}
