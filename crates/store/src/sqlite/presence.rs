//! Notices that the file of an open database was removed or replaced. `SQLite` would go on writing into the
//! unlinked file, which no program can open any more, and report success.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::error::StoreError;

/// The file that a database was opened from.
#[derive(Clone, Debug)]
pub(super) struct DatabaseFile {
    path: PathBuf,
    /// Device and inode; `None` if they could not be read.
    identity: Option<(u64, u64)>,
}

impl DatabaseFile {
    /// Notes the identity of the file at this path, which has just been opened.
    pub(super) fn opened(path: &Path) -> Self {
        Self { path: path.to_owned(), identity: path.metadata().ok().as_ref().map(identity_of) }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Checks that the path still leads to the file that was opened.
    ///
    /// # Errors
    /// When it was removed or replaced. A file whose state cannot be read counts as unchanged.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        let Some(opened) = self.identity else { return Ok(()) };
        let is_same = match self.path.metadata() {
            Ok(found) => identity_of(&found) == opened,
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        };
        if is_same {
            return Ok(());
        }
        Err(StoreError(format!(
            "the database {} was removed or replaced while respool was using it, so nothing can be kept: restart respool, which opens the \
             file that is there then or makes a new one",
            self.path.display()
        )))
    }
}

fn identity_of(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_removed_or_replaced_file_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, aside) = (folder.path().join("a.db"), folder.path().join("b.db"));
        fs::write(&path, "1").unwrap();
        let file = DatabaseFile::opened(&path);
        file.check().unwrap();
        fs::rename(&path, &aside).unwrap();
        assert!(file.check().unwrap_err().0.contains("removed or replaced"));
        fs::write(&path, "2").unwrap();
        assert!(file.check().is_err(), "another file of this name");
        fs::rename(&aside, &path).unwrap();
        file.check().unwrap();
    }
}
