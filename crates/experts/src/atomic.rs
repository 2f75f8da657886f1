//! Writes files whole.

use std::io::{self, Write as _};
use std::path::Path;

/// Writes a file atomically: readers see the old or the new one.
///
/// # Errors
/// When the folder cannot be written. The old file is then unchanged.
pub(super) fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_by_way_of(path.parent().unwrap_or(Path::new(".")), path, bytes)
}

/// Writes a file in a folder of the same disk first, and puts it in place atomically.
///
/// # Errors
/// When a folder is gone or cannot be written. The old file is then unchanged.
pub(super) fn write_by_way_of(folder: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path).map(drop).map_err(|error| error.error)
}
