//! Checks that the folder of `store.shared_dir` is the one that the other processes of the database have.

use std::fs;
use std::io::{self, ErrorKind, Write as _};
use std::path::Path;

use store::{Store, StoreConfig};
use wire::units::UnusableSetting;

/// The file whose content stands for the folder.
const MARK: &str = ".respool-shared";
/// The file of the state directory that has the mark which the database knew last.
const KNOWN: &str = "shared-folder";

type Mark = [u8; 32];

/// Compares the folder's mark with that of the database or, while it is away, with what it said last.
///
/// # Errors
/// When the folder cannot be used, or is another one than that of the other processes.
pub(super) async fn check_folder(config: &StoreConfig, store: &Store) -> Result<(), UnusableSetting> {
    let (Some(folder), Some(_)) = (&config.store.shared_dir, &config.store.url) else { return Ok(()) };
    let remembered = config.state_dir.join(KNOWN);
    let unusable = |why: String| UnusableSetting::new(&["store", "shared_dir"], why);
    let own = read_or_make_mark(folder).map_err(|error| {
        unusable(format!("{} cannot be used: {error}; mount it, or correct the path", folder.display()))
    })?;
    let is_remembered = fs::read(&remembered).is_ok_and(|mark| mark == own);
    let known = match store.shared_secret("shared folder", own).await {
        Err(_) if is_remembered => return Ok(()),
        known => known.map_err(|error| unusable(error.0))?,
    };
    if known == own {
        if !is_remembered {
            // Without the file, a start without the database fails.
            let _ = atomic_file::replace(&remembered, &own);
        }
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
    use store::DatabaseConfig;
    use testing::postgres_server;
    use wire::units::Secret;

    use super::*;

    /// Regression: a node ended with 78, which systemd does not try again, if its database started later.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_known_folder_needs_no_database() {
        let Some(url) = postgres_server::new_database() else { return };
        let [state, folder, other] = [(); 3].map(|()| tempfile::tempdir().unwrap());
        let check = async |url: &str, folder: &Path| {
            let mut config = StoreConfig { state_dir: state.path().to_owned(), ..StoreConfig::default() };
            config.node.is_server = true;
            let (url, shared_dir) = (Some(Secret::new(url)), Some(folder.to_owned()));
            config.store = DatabaseConfig { url, shared_dir, pool: 1 };
            let store = Store::open(&config).unwrap();
            check_folder(&config, &store).await.map_err(|found| found.to_string())
        };
        let away = "postgres://127.0.0.1:1/respool";
        let why = check(away, folder.path()).await.unwrap_err();
        assert!(why.contains("Connection refused"), "{why}");
        assert_eq!(check(&url, folder.path()).await, Ok(()));
        assert_eq!(check(away, folder.path()).await, Ok(()));
        assert!(check(away, other.path()).await.is_err());
        let why = check(&url, other.path()).await.unwrap_err();
        assert!(why.contains("is not the folder"), "{why}");
    }

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
