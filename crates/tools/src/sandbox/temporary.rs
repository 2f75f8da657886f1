//! The temporary directories of commands.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use tempfile::TempDir;

/// The temporary directories that are in use.
static TEMPORARY: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Makes a temporary directory for this user alone.
pub(super) fn private_directory() -> io::Result<TempDir> {
    let owner_only = fs::Permissions::from_mode(0o700);
    let directory = tempfile::Builder::new().prefix("respool-").permissions(owner_only).tempdir()?;
    let mut known = TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner);
    known.retain(|known| known.exists());
    known.push(directory.path().to_owned());
    Ok(directory)
}

/// Removes the temporary directories of commands, for an end of this process that drops nothing.
pub fn remove_temporary_directories() {
    for directory in TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        open_to_owner(&directory);
        // What cannot be removed now stays for its owner.
        let _ = fs::remove_dir_all(directory);
    }
}

/// Gives the owner back what commands have closed, so that it can be removed. None of them is at work.
pub(super) fn open_to_owner(directory: &Path) {
    let _ = fs::set_permissions(directory, fs::Permissions::from_mode(0o700));
    let entries: Vec<fs::DirEntry> = fs::read_dir(directory).into_iter().flatten().flatten().collect();
    let is_directory = |entry: &&fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    entries.iter().filter(is_directory).for_each(|entry| open_to_owner(&entry.path()));
}
