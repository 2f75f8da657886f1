//! Reads a package from disk: only regular files inside its directory, wherever links point, and only up to a
//! size. Nothing else is opened, and nothing is executed. Called by `package`.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use cap_std::ambient_authority;
use cap_std::fs::{Dir, OpenOptions, OpenOptionsExt};

/// Why a file was not read.
#[derive(Debug)]
pub(crate) enum Unreadable {
    /// It does not exist, or a link leads nowhere.
    Missing,
    /// It is not a regular file.
    NotAFile,
    /// A link leads out of the package.
    Escapes,
    /// A link leads out of the package and back into it, or it is absolute.
    Detour,
    /// It is larger than this many bytes.
    TooLarge(u64),
    /// The system refused.
    Failed(io::Error),
}

/// A package's directory.
pub(crate) struct PackageDir {
    dir: Dir,
    path: PathBuf,
}

impl PackageDir {
    /// Opens the directory.
    ///
    /// # Errors
    /// The system's own message.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { dir: Dir::open_ambient_dir(path, ambient_authority())?, path: path.to_owned() })
    }

    /// Reads a regular file of at most this many bytes. Its kind is checked before it is opened, because
    /// opening a pipe would block.
    ///
    /// # Errors
    /// Why it was not read.
    pub(crate) fn read(&self, path: &str, most: u64) -> Result<Vec<u8>, Unreadable> {
        self.bytes(path, most).map_err(|why| match why {
            Unreadable::Escapes if self.ends_inside(path) => Unreadable::Detour,
            why => why,
        })
    }

    /// Returns the paths of the regular files in a folder and those below it, at most this many, in order.
    /// Links are not followed, and hidden files are left out.
    pub(crate) fn list(&self, folder: &str, most: usize) -> Vec<String> {
        let (mut found, mut open) = (Vec::new(), vec![folder.to_owned()]);
        while let Some(folder) = open.pop() {
            let place = if folder.is_empty() { "." } else { &folder };
            for entry in self.dir.read_dir(place).into_iter().flatten().flatten() {
                let (name, Ok(kind)) = (entry.file_name(), entry.file_type()) else { continue };
                let Some(name) = name.to_str().filter(|name| !name.starts_with('.')) else { continue };
                let path = if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") };
                if kind.is_dir() && open.len() < most {
                    open.push(path);
                } else if kind.is_file() && found.len() < most {
                    found.push(path);
                }
            }
        }
        found.sort();
        found
    }

    /// Returns true if a path ends inside the package when all links are followed. Nothing is opened.
    fn ends_inside(&self, path: &str) -> bool {
        let end = self.path.join(path).canonicalize();
        end.ok().zip(self.path.canonicalize().ok()).is_some_and(|(end, root)| end.starts_with(root))
    }

    fn bytes(&self, path: &str, most: u64) -> Result<Vec<u8>, Unreadable> {
        let metadata = self.dir.metadata(path).map_err(reason_of)?;
        if !metadata.is_file() {
            return Err(Unreadable::NotAFile);
        }
        if metadata.len() > most {
            return Err(Unreadable::TooLarge(most));
        }
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(nix::libc::O_NONBLOCK);
        let file = self.dir.open_with(path, &options).map_err(reason_of)?;
        if !file.metadata().map_err(reason_of)?.is_file() {
            return Err(Unreadable::NotAFile);
        }
        let mut bytes = Vec::new();
        file.take(most + 1).read_to_end(&mut bytes).map_err(reason_of)?;
        if bytes.len() as u64 > most {
            return Err(Unreadable::TooLarge(most));
        }
        Ok(bytes)
    }
}

/// Interprets an error of the sandboxed directory, which reports a path that leads outside as "permission
/// denied" without an OS error code.
fn reason_of(error: io::Error) -> Unreadable {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Unreadable::Missing,
        io::ErrorKind::PermissionDenied if error.raw_os_error().is_none() => Unreadable::Escapes,
        io::ErrorKind::CrossesDevices => Unreadable::Escapes,
        _ => Unreadable::Failed(error),
    }
}
