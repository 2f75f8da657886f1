//! Checks that the folder of `store.shared_dir` is the one that the other processes of the database have.

use std::fs;
use std::io::{self, ErrorKind, Write as _};
use std::path::Path;

use settings::Settings;
use store::Store;
use wire::units::UnusableSetting;

/// The file whose content stands for the folder.
const MARK: &str = ".respool-shared";

type Mark = [u8; 32];

/// Compares the folder's mark with that of the database.
///
/// # Errors
/// When the folder cannot be used, or is another one than that of the other processes.
pub(super) async fn check_folder(settings: &Settings, store: &Store) -> Result<(), UnusableSetting> {
    let config = &settings.store.store;
    let (Some(folder), Some(_)) = (&config.shared_dir, &config.url) else { return Ok(()) };
    let unusable = |why: String| UnusableSetting::new(&["store", "shared_dir"], why);
    let own = read_or_make_mark(folder).map_err(|error| {
        unusable(format!("{} cannot be used: {error}; mount it, or correct the path", folder.display()))
    })?;
    let known = store.shared_secret("shared folder", own).await.map_err(|error| unusable(error.0))?;
    if known == own {
        return Ok(());
    }
    Err(unusable(format!(
        "{} is not the folder that the other processes of the database have: mount the same one on each machine. If \
         the folder was replaced on purpose, delete the row `shared folder` from `respool.secrets`",
        folder.display()
    )))
}

/// Reads the mark of a folder. It does not make the folder: an empty mount point must be noticed.
fn read_or_make_mark(folder: &Path) -> io::Result<Mark> {
    let path = folder.join(MARK);
    let made = fs::OpenOptions::new().write(true).create_new(true).open(&path);
    match made {
        Ok(mut file) => {
            let mark: Mark = rand::random();
            file.write_all(&mark)?;
            file.sync_all()?;
            Ok(mark)
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => fs::read(&path)?.try_into().map_err(|_| {
            io::Error::other(format!("{MARK} does not hold 32 bytes, start again or remove it"))
        }),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_made_once() {
        let folder = tempfile::tempdir().unwrap();
        let mark = read_or_make_mark(folder.path()).unwrap();
        assert_eq!(read_or_make_mark(folder.path()).unwrap(), mark);
        fs::write(folder.path().join(MARK), "short").unwrap();
        assert!(read_or_make_mark(folder.path()).unwrap_err().to_string().contains("32 bytes"));
        assert!(read_or_make_mark(&folder.path().join("absent")).is_err());
    }
}
