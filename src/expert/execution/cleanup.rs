//! What is kept no longer than needed: working data of processes that failed, session files, and messages that were delivered.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::now;
use crate::expert::experts::Experts;
use crate::store::Store;

/// How often it is looked.
const EVERY: Duration = Duration::from_hours(1);
/// How long working data of a failed process stays after its last change.
const KEEP_SCRATCH: Duration = Duration::from_hours(7 * 24);
/// How long messages stay.
const KEEP_MESSAGES: u64 = 90 * 24 * 3_600_000;

/// Cleans now and then, until it is dropped.
pub(super) async fn keep_clean(experts: &Experts, store: &Store) {
    loop {
        let roots: Vec<_> = experts.names().iter().map(|name| experts.config.state_of(name)).collect();
        let swept = tokio::task::spawn_blocking(move || {
            for root in roots {
                sweep(&root.join("scratch"), SystemTime::now(), KEEP_SCRATCH);
                sweep(&root.join("sessions"), SystemTime::now(), KEEP_SCRATCH);
            }
        });
        let _ = swept.await;
        if let Err(error) = store.forget_messages(now().saturating_sub(KEEP_MESSAGES)).await {
            tracing::warn!(target: "respool::expert", %error, "old messages cannot be deleted");
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// Deletes what has not changed for so long. Links are deleted, not followed.
fn sweep(folder: &Path, now: SystemTime, keep: Duration) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(metadata) = entry.metadata() else { continue };
        let age = metadata.modified().ok().and_then(|changed| now.duration_since(changed).ok());
        if age.is_none_or(|age| age < keep) {
            continue;
        }
        let path = entry.path();
        let _ = if metadata.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_old_goes() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.md"), "x").unwrap();
        fs::create_dir(dir.path().join("session")).unwrap();
        let week = KEEP_SCRATCH;
        sweep(dir.path(), SystemTime::now() + week - Duration::from_mins(1), week);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
        sweep(dir.path(), SystemTime::now() + week + Duration::from_mins(1), week);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        sweep(&dir.path().join("not there"), SystemTime::now(), week);
    }
}
