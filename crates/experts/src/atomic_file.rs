//! Files that readers see as they were or as they are, never in between.

use std::io::{self, Write as _};
use std::path::Path;

/// Writes a file atomically: readers see the old or the new one.
pub(super) fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = tempfile::NamedTempFile::new_in(path.parent().unwrap_or(Path::new(".")))?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path).map(drop).map_err(|error| error.error)
}
