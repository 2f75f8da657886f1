//! Why respool cannot do something with an expert, in words for people. Used by `library`, `source` and what
//! runs experts.

use std::fmt;
use std::io;
use std::path::Path;

use openexperts::foreign::FolderError;
use store::StoreError;

/// Why something with an expert failed.
#[derive(Debug)]
pub enum ExpertError {
    /// A request that cannot be met, and what to do about it.
    Refused(String),
    /// The disk failed. The text says what cannot be done, and where.
    Disk(String, io::Error),
    /// The folder of a package cannot be used.
    Folder(FolderError),
    /// The store failed.
    Store(StoreError),
}

impl ExpertError {
    /// Makes an error of the disk: "PATH cannot be …".
    pub(super) fn disk_error(path: &Path, what: &str) -> impl FnOnce(io::Error) -> Self {
        let text = format!("{} {what}", path.display());
        move |error| Self::Disk(text, error)
    }
}

impl fmt::Display for ExpertError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(why) => out.write_str(why),
            Self::Disk(what, error) => write!(out, "{what}: {error}"),
            Self::Folder(error) => error.fmt(out),
            Self::Store(error) => error.fmt(out),
        }
    }
}

impl std::error::Error for ExpertError {}

impl From<String> for ExpertError {
    fn from(why: String) -> Self {
        Self::Refused(why)
    }
}

impl From<FolderError> for ExpertError {
    fn from(error: FolderError) -> Self {
        Self::Folder(error)
    }
}

impl From<StoreError> for ExpertError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}
