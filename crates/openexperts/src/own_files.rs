//! Files in a package's folder that do not belong to the package. Pure.

/// The user's file in a package's directory; it is never taken from a source.
pub const BINDINGS: &str = "bindings.yaml";
/// The file in an installed package's folder that shows that respool wrote it: it has the same random text as
/// the record.
pub const MARK: &str = ".installed-by-respool";

/// Returns true if a file or folder of this name was made by a file manager or an archiver, and is neither
/// the package's nor the user's.
pub fn is_clutter(name: &str) -> bool {
    const CLUTTER: [&str; 4] = [".DS_Store", "Thumbs.db", "desktop.ini", "__MACOSX"];
    name.starts_with("._") || CLUTTER.iter().any(|clutter| name.eq_ignore_ascii_case(clutter))
}

/// Returns true if a path names a file that is in an installed package's folder but never part of the
/// package. Some file systems do not distinguish capital letters.
pub fn is_reserved(path: &str) -> bool {
    [BINDINGS, MARK].iter().any(|name| path.eq_ignore_ascii_case(name))
}
