//! The directory that file tools cannot leave: neither by `..`, nor by a symlink, nor by one that is created
//! in the meantime (`cap-std` opens every file relative to the directory's own handle).

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::AtomicBool;

use cap_std::fs::Dir;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::super::contract::ToolError;

/// The workspace.
#[derive(Debug)]
pub(crate) struct Workspace {
    /// Its path without symlinks.
    pub(crate) root: PathBuf,
    /// Its path as it was configured, absolute.
    written: PathBuf,
    pub(super) dir: Dir,
    /// Whether files with several hard links are refused: rules judge a file by its path, and it has others.
    pub(crate) refuses_links: AtomicBool,
}

/// A path in the workspace, relative to it; `.` is the workspace itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The path as it was written, without `..`.
    pub(super) written: PathBuf,
    /// The path whose existing part has no symlinks. All work uses this one.
    pub(super) real: PathBuf,
}

impl Place {
    /// Returns the place of a path in the workspace `root`, both without symlinks.
    pub(super) fn from_real(root: &Path, path: &Path) -> Self {
        let below = path.strip_prefix(root).unwrap_or(path);
        let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
        Self { written: below.to_owned(), real: below.to_owned() }
    }
}

/// Opens a file or directory for reading. `path`: in the workspace `root`, both without symlinks.
///
/// # Errors
/// When a part of the path has become a symlink, or it cannot be opened.
pub fn open_inside(root: &Path, path: &Path) -> Result<File, ToolError> {
    let workspace = Workspace::open(root).map_err(ToolError::Failed)?;
    Ok(workspace.open_at(&Place::from_real(root, path), OFlags::RDONLY | OFlags::NONBLOCK)?.into())
}

impl Workspace {
    /// Opens a directory.
    ///
    /// # Errors
    /// When it is not a directory, or cannot be opened.
    pub(crate) fn open(path: &Path) -> Result<Self, String> {
        let open = || {
            let root = path.canonicalize()?;
            let dir = Dir::open_ambient_dir(&root, cap_std::ambient_authority())?;
            let (written, refuses_links) = (std::path::absolute(path)?, AtomicBool::default());
            Ok(Self { root, written, dir, refuses_links })
        };
        open()
            .map_err(|error: io::Error| format!("the workspace {} cannot be opened: {error}", path.display()))
    }

    /// Finds a path that was written relative to the workspace, or absolute and inside.
    pub(super) fn find_place(&self, text: &str) -> Result<Place, ToolError> {
        let outside = || {
            let root = self.root.display();
            ToolError::Failed(format!("{text} is outside the workspace {root}: use paths inside it"))
        };
        let path = Path::new(text);
        let below = [&self.root, &self.written].into_iter().find_map(|root| path.strip_prefix(root).ok());
        let written = without_dots(below.unwrap_or(path)).ok_or_else(outside)?;
        if text.is_empty() || text.contains('\0') {
            return Err(ToolError::Failed(format!("{text:?} is not a path")));
        }
        let real = self.real_path(&written).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => outside(),
            _ => io_failure(text, &error),
        })?;
        Ok(Place { written, real })
    }

    /// Opens the file at a place without following any symlink: there was none when it was judged.
    pub(super) fn open_at(&self, place: &Place, flags: OFlags) -> Result<OwnedFd, ToolError> {
        open_beneath(&self.dir, &place.real, flags).map_err(|error| not_opened(place, error))
    }

    /// Opens the directory of a place, creating it if necessary, and returns the name of the place in it.
    pub(super) fn open_parent<'a>(&self, place: &'a Place) -> Result<(Dir, &'a Path), ToolError> {
        let failed = |error: Errno| not_opened(place, error);
        let mut directory = open_beneath(&self.dir, Path::new("."), OFlags::DIRECTORY).map_err(failed)?;
        let name = place.real.file_name().map(Path::new);
        let name =
            name.ok_or_else(|| ToolError::Failed(format!("{} is a directory", place.written.display())))?;
        for part in place.real.parent().into_iter().flat_map(Path::components) {
            match rustix::fs::mkdirat(&directory, part.as_os_str(), Mode::from_bits_retain(0o777)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(failed(error)),
            }
            directory = open_part(&directory, part.as_os_str(), OFlags::DIRECTORY).map_err(failed)?;
        }
        Ok((Dir::from_std_file(directory.into()), name))
    }

    /// Resolves the symlinks in the existing part of a path; the remaining names stay.
    fn real_path(&self, path: &Path) -> io::Result<PathBuf> {
        for ancestor in path.ancestors() {
            let here = if ancestor.as_os_str().is_empty() { Path::new(".") } else { ancestor };
            match self.dir.canonicalize(here) {
                Ok(real) => {
                    let rest = path.strip_prefix(ancestor).unwrap_or(Path::new(""));
                    return Ok(dot_if_empty(real.components().chain(rest.components())));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::new(io::ErrorKind::NotFound, "the workspace is gone"))
    }
}

/// Opens a path below a directory, refusing symlinks on the way.
#[cfg(target_os = "linux")]
fn open_beneath(directory: impl AsFd, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    use rustix::fs::{ResolveFlags, openat2};
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let open = || openat2(&directory, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve);
    // A rename elsewhere can interrupt it.
    let opened = (0..8).map(|_| open()).find(|opened| !matches!(opened, Err(Errno::AGAIN)));
    match opened.unwrap_or(Err(Errno::AGAIN)) {
        Err(Errno::NOSYS | Errno::PERM) => open_each_part(directory, path, flags),
        opened => opened,
    }
}

#[cfg(not(target_os = "linux"))]
fn open_beneath(directory: impl AsFd, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    open_each_part(directory, path, flags)
}

/// Does the same part by part, each below the handle of the one before.
fn open_each_part(directory: impl AsFd, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut parts: Vec<Component<'_>> = path.components().collect();
    let last = parts.pop().ok_or(Errno::NOENT)?;
    let mut here = rustix::io::fcntl_dupfd_cloexec(&directory, 0)?;
    for part in parts {
        here = open_part(&here, part.as_os_str(), OFlags::DIRECTORY)?;
    }
    open_part(&here, last.as_os_str(), flags)
}

fn open_part(directory: &OwnedFd, part: &OsStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(directory, part, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

fn not_opened(place: &Place, error: Errno) -> ToolError {
    match error {
        Errno::LOOP | Errno::AGAIN | Errno::XDEV => path_changed_error(place),
        error => io_failure(place.written.display(), &error.into()),
    }
}

/// Returns the error for a path that changed after it was judged.
pub(super) fn path_changed_error(place: &Place) -> ToolError {
    let path = place.written.display();
    ToolError::Failed(format!("{path} became another file meanwhile; nothing was done"))
}

impl Place {
    /// Returns both forms of the path, for the policy.
    pub(super) fn path_forms(&self) -> Vec<String> {
        let mut forms = vec![self.written.display().to_string(), self.real.display().to_string()];
        forms.dedup();
        forms
    }
}

/// Removes `.` and `..`; `None` if the path leads out or is absolute.
fn without_dots(path: &Path) -> Option<PathBuf> {
    let mut parts = Vec::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::Normal(_) => parts.push(part),
            Component::ParentDir => drop(parts.pop()?),
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(dot_if_empty(parts))
}

fn dot_if_empty<'a>(parts: impl IntoIterator<Item = Component<'a>>) -> PathBuf {
    let path: PathBuf = parts.into_iter().filter(|part| *part != Component::CurDir).collect();
    if path.as_os_str().is_empty() { PathBuf::from(".") } else { path }
}

/// Describes an I/O error for the model.
pub(super) fn io_failure(path: impl std::fmt::Display, error: &io::Error) -> ToolError {
    ToolError::Failed(match error.kind() {
        io::ErrorKind::NotFound => format!("{path} does not exist"),
        io::ErrorKind::IsADirectory => format!("{path} is a directory"),
        io::ErrorKind::NotADirectory => format!("{path}: a part of this path is a file, not a directory"),
        io::ErrorKind::PermissionDenied => format!("{path}: permission denied"),
        _ => format!("{path}: {error}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn workspace() -> (tempfile::TempDir, Workspace) {
        let outer = tempfile::tempdir().unwrap();
        let root = outer.path().join("work");
        std::fs::create_dir_all(root.join("src/deep")).unwrap();
        std::fs::write(root.join("src/a"), "a").unwrap();
        std::fs::write(outer.path().join("secret"), "s").unwrap();
        symlink("src", root.join("link")).unwrap();
        symlink("..", root.join("up")).unwrap();
        symlink("../secret", root.join("out")).unwrap();
        symlink("/etc/passwd", root.join("absolute")).unwrap();
        symlink("nothing", root.join("dangling")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        let opened = Workspace::open(&root).unwrap();
        (outer, opened)
    }

    #[test]
    fn paths_are_found_inside_and_refused_outside() {
        let (_outer, workspace) = workspace();
        let check = |text: &str, expected: Option<(&str, &str)>| {
            let found = workspace.find_place(text).ok();
            let expected =
                expected.map(|(written, real)| Place { written: written.into(), real: real.into() });
            assert_eq!(found, expected, "{text}");
        };
        check("src/a", Some(("src/a", "src/a")));
        check("./src//deep/../a", Some(("src/a", "src/a")));
        check(".", Some((".", ".")));
        check("src/..", Some((".", ".")));
        check(&workspace.root.join("src/a").display().to_string(), Some(("src/a", "src/a")));
        check(&workspace.root.display().to_string(), Some((".", ".")));
        check("link/a", Some(("link/a", "src/a")));
        check("link/new/file", Some(("link/new/file", "src/new/file")));
        check("dangling", Some(("dangling", "dangling")));
        check("link/../src/a", Some(("src/a", "src/a")));
        for text in [
            "..",
            "../secret",
            "src/../../secret",
            "/etc/passwd",
            "up/secret",
            "up",
            "out",
            "absolute",
            "~/x/../..",
            "",
            "a\0b",
            "src/a/b",
            "loop",
        ] {
            check(text, if text == "~/x/../.." { Some((".", ".")) } else { None });
        }
        check(&format!("{}/../secret", workspace.root.display()), None);
    }

    #[test]
    fn a_workspace_by_a_symlink_knows_both_its_names() {
        let outer = tempfile::tempdir().unwrap();
        std::fs::create_dir(outer.path().join("real")).unwrap();
        symlink("real", outer.path().join("alias")).unwrap();
        let workspace = Workspace::open(&outer.path().join("alias")).unwrap();
        for name in ["alias", "real"] {
            let text = outer.path().canonicalize().unwrap().join(name).join("x").display().to_string();
            assert_eq!(workspace.find_place(&text).unwrap().real, Path::new("x"), "{text}");
        }
    }
}
