//! Keeps the store of runs small while the process lives, and says when it cannot. Called by `agents` and
//! `conversation`.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::stored::{REPEATABLE_FOR, ok_or_log};
use store::{Cleared, Store, StoreError};
use wire::units::Size;

/// The pause between clearings.
const EVERY: Duration = Duration::from_hours(1);

/// Clears now and every hour, until the process ends; a clearing that is under way does not hold that up.
pub(super) async fn keep_clear(store: Arc<Store>, shutdown: CancellationToken) {
    let clearing = async {
        loop {
            if let Some(cleared) = ok_or_log(clear_once(&store).await) {
                log_cleared(&store, cleared);
            }
            // Another process on the same store may have ended meanwhile.
            let _ = ok_or_log(store.mark_orphans().await);
            tokio::time::sleep(EVERY).await;
        }
    };
    let _ = shutdown.run_until_cancelled(clearing).await;
}

/// Clears once. What ended just now stays: its client may still ask for the answer.
pub(super) async fn clear_once(store: &Store) -> Result<Cleared, StoreError> {
    let now = clock::now();
    store.clear(now, now.saturating_sub(REPEATABLE_FOR)).await
}

fn log_cleared(store: &Store, cleared: Cleared) {
    let Cleared { old, for_room, bytes } = cleared;
    let max_size = store.limits().max_size;
    if old + for_room > 0 {
        tracing::info!(target: "respool::store", old, for_room, bytes, "runs were deleted");
    }
    if Size(bytes) > max_size {
        tracing::warn!(
            target: "respool::store",
            bytes,
            max_size = %max_size,
            "the runs that respool keeps (in progress, waiting, interrupted, or ended in the last 15 minutes) take more than \
             `runs.max_size`: raise it, or remove some of them with `respool runs remove`"
        );
    }
}
