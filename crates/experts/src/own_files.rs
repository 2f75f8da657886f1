//! Files in packages' folders that are not the packages' own, and how files are written whole.

use std::io::{self, Write as _};
use std::path::Path;

/// The user's file in a package's directory; it is never taken from a source.
pub const BINDINGS: &str = "bindings.yaml";
/// The file in an installed package's folder that shows that respool wrote it: it has the same random text as the record.
pub(super) const MARK: &str = ".installed-by-respool";

/// Whether a file or folder of this name was made by a file manager or an archiver, and is neither the package's nor the user's.
pub(super) fn is_clutter(name: &str) -> bool {
    const CLUTTER: [&str; 4] = [".DS_Store", "Thumbs.db", "desktop.ini", "__MACOSX"];
    name.starts_with("._") || CLUTTER.iter().any(|clutter| name.eq_ignore_ascii_case(clutter))
}

/// Whether a path names a file that is in an installed package's folder but never part of the package. Some file systems do not
/// distinguish capital letters.
pub(super) fn is_reserved(path: &str) -> bool {
    [BINDINGS, MARK].iter().any(|name| path.eq_ignore_ascii_case(name))
}

/// Writes a file atomically: readers see the old or the new one.
pub(super) fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = tempfile::NamedTempFile::new_in(path.parent().unwrap_or(Path::new(".")))?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path).map(drop).map_err(|error| error.error)
}
