//! Keeps a process from changing an expert's files for a run that another process has taken over. A process
//! may be stopped at any moment and go on later, also between its last look at the store and the write.
//!
//! Each epoch of a run that changes files has a folder. A file is written there and put in place by one
//! rename, and a later epoch begins by removing the folders of earlier ones: their renames find nothing then.
//! Called by `workspace`.

use std::fs;
use std::io;
use std::path::Path;

use super::file_name::file_name;

/// The folder of the epochs, in an expert's workspace. Runs cannot reach it.
pub(super) const EPOCHS: &str = ".epochs";

/// Begins an epoch of a run, in the workspace at `root`. Returns its folder, relative to that. An epoch may
/// be begun more than once.
///
/// # Errors
/// When a later epoch has begun, or the disk cannot be written.
pub(super) fn begin_epoch(root: &Path, run: &str, epoch: u64) -> io::Result<String> {
    let all = format!("{EPOCHS}/{}", file_name(run));
    let own = format!("{all}/{epoch}");
    fs::create_dir_all(root.join(&own))?;
    // Two that begin at the same time see each other, since each looks after it has made its folder.
    for other in fs::read_dir(root.join(&all))? {
        let other = other?;
        match other.file_name().to_str().and_then(|name| name.parse::<u64>().ok()) {
            Some(later) if later > epoch => {
                let _ = fs::remove_dir_all(root.join(&own));
                return Err(io::Error::other("another process works on this run now"));
            }
            Some(earlier) if earlier < epoch => remove_folder(&other.path())?,
            _ => {}
        }
    }
    Ok(own)
}

fn remove_folder(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        // Its own process has removed it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_epoch_ends_earlier_ones() {
        let dir = tempfile::tempdir().unwrap();
        let begin = |run, epoch| begin_epoch(dir.path(), run, epoch);
        let first = begin("run-1", 1).unwrap();
        assert_eq!(begin("run-1", 1).unwrap(), first, "again");
        // The process was stopped right before it put the file in place.
        let staged = dir.path().join(&first).join("new");
        fs::write(&staged, "old").unwrap();
        begin("run-2", 7).unwrap();
        assert!(staged.exists(), "another run is no matter");
        begin("run-1", 2).unwrap();
        let put = fs::rename(&staged, dir.path().join("state.md"));
        assert_eq!(put.unwrap_err().kind(), io::ErrorKind::NotFound);
        let write = fs::write(&staged, "old");
        assert_eq!(write.unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(begin("run-1", 1).unwrap_err().to_string().contains("another process"));
        assert!(!dir.path().join(first).exists());
    }
}
