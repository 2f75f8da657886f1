//! Deletes what is no longer needed: working data of failed processes, session files, and old messages.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::attempt::MAIN_SESSION;
use super::scratchpad::OWNERS;
use crate::epoch::EPOCHS;
use crate::experts::Experts;
use openexperts::label::MODEL_PREFIX;
use store::Store;

/// How often to clean up.
const EVERY: Duration = Duration::from_hours(1);
/// How long a failed process's working data is kept after its last change.
const KEEP_SCRATCH: Duration = Duration::from_hours(7 * 24);
/// A run's files may be created a moment before the run is stored.
const SLACK: Duration = Duration::from_mins(1);
/// How long messages are kept, in milliseconds.
const KEEP_MESSAGES: u64 = 90 * 24 * 3_600_000;

/// Cleans up periodically, until it is dropped.
pub(super) async fn keep_clean(experts: &Experts, store: &Store) {
    loop {
        for name in experts.names() {
            clean_files(experts, store, &name).await;
        }
        if let Err(error) = store.forget_messages(clock::now().saturating_sub(KEEP_MESSAGES)).await {
            tracing::warn!(target: "respool::expert", %error, "old messages cannot be deleted");
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// Deletes old files of an expert. Open work, such as a process that waits for a person, keeps everything
/// that has changed since it began.
async fn clean_files(experts: &Experts, store: &Store, name: &str) {
    let oldest = match store.oldest_open(name, &format!("{MODEL_PREFIX}{name}")).await {
        Ok(oldest) => oldest,
        Err(error) => {
            tracing::warn!(target: "respool::expert", expert = name, %error, "old working data is not deleted");
            return;
        }
    };
    let begun = oldest.map(|millis| SystemTime::UNIX_EPOCH + Duration::from_millis(millis));
    let before =
        (clock::system_time() - KEEP_SCRATCH).min(begun.map_or(clock::system_time(), |begun| begun - SLACK));
    let root = experts.config.state_of(name);
    let swept = tokio::task::spawn_blocking(move || {
        remove_old_files(&root.join("scratch"), before);
        remove_old_files(&root.join("sessions"), before);
        remove_old_files(&root.join(OWNERS), before);
        remove_old_files(&root.join(EPOCHS), before);
    });
    let _ = swept.await;
}

/// Deletes the files of a folder and its subfolders that have not changed since a time, and subfolders that
/// are empty then. Links are deleted, not followed.
fn remove_old_files(folder: &Path, before: SystemTime) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(metadata) = entry.metadata() else { continue };
        let is_old = metadata.modified().is_ok_and(|changed| changed <= before);
        let path = entry.path();
        if metadata.is_dir() {
            if entry.file_name() != MAIN_SESSION {
                remove_old_files(&path, before);
            }
            // A folder with newer files stays.
            let _ = is_old.then(|| fs::remove_dir(&path));
        } else if is_old {
            let _ = fs::remove_file(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_old_files_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.md"), "x").unwrap();
        fs::create_dir(dir.path().join("session")).unwrap();
        remove_old_files(dir.path(), clock::system_time() - Duration::from_mins(1));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
        remove_old_files(dir.path(), clock::system_time() + Duration::from_mins(1));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        remove_old_files(&dir.path().join("not there"), clock::system_time());
    }

    /// Regression: a new file went with its old folder, and an old one stayed in a folder that changed.
    #[test]
    fn files_age_by_their_own_time() {
        let dir = tempfile::tempdir().unwrap();
        let deal = dir.path().join("deals/d1");
        fs::create_dir_all(&deal).unwrap();
        fs::write(deal.join("notes.md"), "x").unwrap();
        fs::write(deal.join("old.md"), "x").unwrap();
        let hour = clock::system_time() - Duration::from_hours(1);
        let set = |path: &Path| fs::File::open(path).unwrap().set_modified(hour).unwrap();
        [deal.join("old.md"), deal.clone(), dir.path().join("deals")].iter().for_each(|path| set(path));
        remove_old_files(dir.path(), clock::system_time() - Duration::from_mins(1));
        assert!(deal.join("notes.md").exists() && !deal.join("old.md").exists());
        set(&deal.join("notes.md"));
        set(&deal);
        remove_old_files(dir.path(), clock::system_time() - Duration::from_mins(1));
        assert!(!deal.exists(), "an empty folder goes");
    }
}
