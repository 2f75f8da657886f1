//! Files that are written as a whole or not at all: a reader sees the old file or the new one, and so does
//! the next start after a crash or a power failure.
//!
//! A new file is readable by its owner alone, from its first byte on.

use std::fs::Permissions;
use std::io::{self, Write as _};
use std::path::Path;

use tempfile::NamedTempFile;

/// Writes a file, in place of the present one if there is any.
///
/// # Errors
/// When the folder does not exist or cannot be written. The present file is then unchanged.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_from(folder_of(path), path, bytes)
}

/// As [`replace`], without waiting for the disk: after a power failure the file may be empty.
///
/// # Errors
/// As those of [`replace`].
pub fn replace_unsynced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    Ok(write_unsynced(folder_of(path), bytes)?.persist(path).map(drop)?)
}

/// As [`replace`], by way of a folder on the same disk: it fails once that folder is gone.
///
/// # Errors
/// As those of [`replace`], for either folder.
pub fn replace_from(folder: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    Ok(write_temporary(folder, bytes)?.persist(path).map(drop)?)
}

/// As [`replace`], with permissions other than those of the owner alone.
///
/// # Errors
/// As those of [`replace`].
pub fn replace_with(path: &Path, bytes: &[u8], permissions: Permissions) -> io::Result<()> {
    let file = write_temporary(folder_of(path), bytes)?;
    file.as_file().set_permissions(permissions)?;
    Ok(file.persist(path).map(drop)?)
}

/// Writes a file, unless there is one: of several processes, one creates it. Returns true if it was this one.
///
/// # Errors
/// When the folder does not exist or cannot be written.
pub fn create(path: &Path, bytes: &[u8]) -> io::Result<bool> {
    persist_new(write_temporary(folder_of(path), bytes)?, path)
}

/// As [`create`], without waiting for the disk: after a power failure the file may be empty.
///
/// # Errors
/// As those of [`create`].
pub fn create_unsynced(path: &Path, bytes: &[u8]) -> io::Result<bool> {
    persist_new(write_unsynced(folder_of(path), bytes)?, path)
}

fn persist_new(file: NamedTempFile, path: &Path) -> io::Result<bool> {
    match file.persist_noclobber(path) {
        Ok(_) => Ok(true),
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error.error),
    }
}

fn write_temporary(folder: &Path, bytes: &[u8]) -> io::Result<NamedTempFile> {
    let file = write_unsynced(folder, bytes)?;
    file.as_file().sync_all()?;
    Ok(file)
}

fn write_unsynced(folder: &Path, bytes: &[u8]) -> io::Result<NamedTempFile> {
    let mut file = NamedTempFile::new_in(folder)?;
    file.write_all(bytes)?;
    Ok(file)
}

/// Returns the folder of a file, which for a bare name is the current one.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn files_are_replaced_or_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert!(create(&path, b"first").unwrap() && !create(&path, b"second").unwrap());
        assert_eq!((fs::read(&path).unwrap().as_slice(), mode()), (&b"first"[..], 0o600));
        replace_with(&path, b"third", Permissions::from_mode(0o644)).unwrap();
        assert_eq!((fs::read(&path).unwrap().as_slice(), mode()), (&b"third"[..], 0o644));
        replace(&path, b"fourth").unwrap();
        assert_eq!((fs::read(&path).unwrap().as_slice(), mode()), (&b"fourth"[..], 0o600));
        replace_unsynced(&path, b"fourth again").unwrap();
        replace_from(&dir.path().join("gone"), &path, b"fifth").unwrap_err();
        assert_eq!(fs::read(&path).unwrap(), b"fourth again");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left behind");
    }

    #[test]
    fn bare_names_are_in_this_folder() {
        assert_eq!(folder_of(Path::new("a")), Path::new("."));
        assert_eq!(folder_of(Path::new("/a")), Path::new("/"));
    }
}
