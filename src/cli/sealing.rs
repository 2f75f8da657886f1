//! The secret that seals reasoning which clients keep. Processes that share a database share it; otherwise it
//! belongs to the installation if there is a state directory, or else to this process.
//!
//! Without the file, reasoning that clients send back after a restart is ignored. Called by `serve`.

use std::fs;
use std::io;
use std::path::Path;

use store::Store;
use translate::Sealer;

const FILE: &str = "reasoning.key";

type Secret = [u8; 32];

/// Returns the sealer of all processes that share a store; of a store in files, the installation's. A process
/// that has shared the secret once knows it also while the database is away.
pub(super) async fn open_sealer(state_dir: &Path, store: Option<&Store>) -> Sealer {
    let own = open_secret(state_dir);
    let Some(store) = store else { return Sealer::new(&own) };
    let shared = store.shared_secret("reasoning", own).await.unwrap_or_else(|error| {
        tracing::warn!(target: "respool::server", %error, "sealed reasoning holds on this node alone, unless it has joined the others before");
        own
    });
    if shared != own {
        // Without the file, the next start asks the database.
        let _ = atomic_file::replace(&state_dir.join(FILE), &shared);
    }
    Sealer::new(&shared)
}

fn open_secret(state_dir: &Path) -> Secret {
    read_or_create_key(state_dir).unwrap_or_else(|error| {
        if error.kind() != io::ErrorKind::NotFound {
            tracing::warn!(target: "respool::server", error = %error, path = %state_dir.join(FILE).display(),
                "the key that seals clients' reasoning cannot be saved; after a restart, sealed reasoning that they send back is ignored");
        }
        rand::random()
    })
}

/// Reads the key, or creates one. It does not create the state directory.
fn read_or_create_key(state_dir: &Path) -> io::Result<Secret> {
    let path = state_dir.join(FILE);
    match fs::read(&path) {
        // An earlier version left it so on a full disk.
        Ok(bytes) if bytes.is_empty() => fs::remove_file(&path).and_then(|()| create_key(state_dir)),
        Ok(bytes) => bytes.try_into().map_err(|_| {
            io::Error::new(io::ErrorKind::InvalidData, "the file does not hold 32 bytes: remove it")
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => create_key(state_dir),
        Err(error) => Err(error),
    }
}

/// Creates the key whole or not at all.
fn create_key(state_dir: &Path) -> io::Result<Secret> {
    let secret: Secret = rand::random();
    if atomic_file::create(&state_dir.join(FILE), &secret)? {
        Ok(secret)
    } else {
        // Another process was faster.
        read_or_create_key(state_dir)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_key_is_made_once_and_private() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(open_secret(folder.path()), open_secret(folder.path()));
        let mode = fs::metadata(folder.path().join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        atomic_file::replace(&folder.path().join(FILE), &[7; 32]).unwrap();
        assert_eq!(open_secret(folder.path()), [7; 32]);
        fs::write(folder.path().join(FILE), "").unwrap();
        assert_eq!(
            open_secret(folder.path()),
            open_secret(folder.path()),
            "one that a full disk left is replaced"
        );
        fs::write(folder.path().join(FILE), "short").unwrap();
        assert!(read_or_create_key(folder.path()).unwrap_err().to_string().contains("remove it"));
    }

    #[test]
    fn no_state_directory_is_made() {
        let folder = tempfile::tempdir().unwrap();
        let absent = folder.path().join("absent");
        assert_ne!(open_secret(&absent), open_secret(&absent));
        assert!(!absent.exists());
    }
}
