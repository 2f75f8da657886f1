//! Whether files can be written in a directory, and what to do where they cannot: the same words wherever the
//! state directory is opened or checked.

use std::io::{self, ErrorKind, Write as _};
use std::path::Path;

/// The least room in a state directory, in bytes.
const ROOM: usize = 64 << 10;

/// Writes a little into a directory. Nothing of it stays.
///
/// # Errors
/// The reason why files cannot be written there.
pub fn try_directory(dir: &Path) -> io::Result<()> {
    tempfile::tempfile_in(dir)?.write_all(&vec![0; ROOM])
}

/// Says what lets a file be written.
pub fn write_remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::NotFound => "make its directory",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "make room on its disk",
        ErrorKind::ReadOnlyFilesystem => "mount its disk so that it can be written",
        _ => "give respool permission to write there",
    }
}
