//! The commands that are at work, of every respool of this user: each shares a lock on the file of its
//! workspace in the state directory, which no command can open. Taken by `protected`.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use percent_encoding::{NON_ALPHANUMERIC, percent_encode};

/// No name may have more than 255 bytes. Where two places have the same beginning, they count as one.
const LONGEST_NAME: usize = 250;

/// Locks on some places.
#[derive(Debug)]
pub(super) struct Locks {
    files: Vec<fs::File>,
    /// No other command is at work in these places, until the locks are shared.
    pub(super) are_alone: bool,
}

impl Locks {
    /// Takes the locks alone if no other command holds one, else together with the others. Without a
    /// directory that can be written, it sees no others.
    pub(super) fn take(directory: Option<&Path>, places: &[PathBuf]) -> Self {
        let open = |place: &PathBuf| {
            let name = percent_encode(place.as_os_str().as_bytes(), NON_ALPHANUMERIC).to_string();
            let file = directory?.join(name.get(..LONGEST_NAME).unwrap_or(&name));
            fs::create_dir_all(directory?).ok()?;
            fs::OpenOptions::new().create(true).append(true).open(file).ok()
        };
        let files: Vec<fs::File> = places.iter().filter_map(open).collect();
        // A file system may have no locks.
        let is_held = |file: &fs::File| matches!(file.try_lock(), Err(fs::TryLockError::WouldBlock));
        let are_alone = !files.iter().any(is_held);
        let locks = Self { files, are_alone };
        if are_alone { locks } else { locks.share() }
    }

    /// Lets others begin.
    pub(super) fn share(self) -> Self {
        for file in &self.files {
            // Another one holds it no longer than its search takes, or a command of git's.
            let _ = file.lock_shared();
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_see_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let take = |place: &str| Locks::take(Some(folder.path()), &[PathBuf::from(place)]);
        let first = take("/p").share();
        assert!(first.are_alone && !take("/p").are_alone && take("/pq").are_alone);
        drop(first);
        // A program that another test starts has the file open, too, until it is loaded.
        let tries = std::iter::repeat_with(|| take("/p")).take(100_000);
        let again =
            tries.inspect(|_| std::thread::yield_now()).find(|again| again.are_alone).unwrap().share();
        assert!(again.are_alone && !take("/p").are_alone);
        let long = format!("/{}", "a/".repeat(500));
        assert!(take(&long).are_alone);
    }
}
