//! Why respool cannot do something with an expert, in words for people. Used by `library`, `source` and what
//! runs experts.

use std::io;
use std::path::Path;

use openexperts::foreign::FolderError;
use store::StoreError;

/// Why something with an expert failed.
#[derive(Debug, thiserror::Error)]
pub enum ExpertError {
    /// A request that cannot be met, and what to do about it.
    #[error("{0}")]
    Refused(String),
    /// The disk failed. The text says what cannot be done, and where.
    #[error("{0}: {1}")]
    Disk(String, io::Error),
    /// The folder of a package cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl ExpertError {
    /// Makes an error of the disk: "PATH cannot be …".
    pub(super) fn disk_error(path: &Path, what: &str) -> impl FnOnce(io::Error) -> Self {
        let text = format!("{} {what}", path.display());
        move |error| Self::Disk(text, error)
    }
}

impl From<String> for ExpertError {
    fn from(why: String) -> Self {
        Self::Refused(why)
    }
}
