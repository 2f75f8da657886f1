//! The file of the log. When another program moves or removes it, as logrotate does, a new one is begun at
//! the same path.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// A file that lines are added to.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    file: File,
}

impl LogFile {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        // It may contain text of people and models, so only its owner may read it.
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Returns true if the file that is open is the one at its path.
    fn is_in_place(&self) -> io::Result<bool> {
        let (there, open) = (fs::metadata(&self.path)?, self.file.metadata()?);
        Ok((there.dev(), there.ino()) == (open.dev(), open.ino()))
    }
}

impl Write for LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Where no new file can be begun, the old one stays in use.
        if !self.is_in_place().unwrap_or(false)
            && let Ok(new) = Self::open(&self.path)
        {
            *self = new;
        }
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log was made readable for everybody.
    #[test]
    fn a_log_file_is_its_owners_alone() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let log = LogFile::open(&dir.path().join("log")).unwrap();
        assert_eq!(log.file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }

    /// After logrotate, lines went to the file that it had moved away, until a restart.
    #[test]
    fn rotated_logs_are_begun_again() {
        let dir = tempfile::tempdir().unwrap();
        let (path, old) = (dir.path().join("log"), dir.path().join("log.1"));
        let mut log = LogFile::open(&path).unwrap();
        log.write_all(b"one\n").unwrap();
        fs::rename(&path, &old).unwrap();
        log.write_all(b"two\n").unwrap();
        fs::remove_file(&path).unwrap();
        log.write_all(b"three\n").unwrap();
        let read = |path| fs::read_to_string(path).unwrap();
        assert_eq!((read(old), read(path)), ("one\n".to_owned(), "three\n".to_owned()));
    }
}
