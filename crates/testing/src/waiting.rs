//! Waiting for what another task or process brings about. Tests wait for conditions, with a bound that only a
//! failure reaches; nothing sleeps for a time that is believed to suffice.

use std::time::Duration;

use tokio::time::{sleep, timeout};

/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(10);
/// The bound where a test names no other.
const BOUND: Duration = Duration::from_mins(1);

/// Looks again and again until something is found. Returns `None` after `bound`.
pub async fn look_within<T>(bound: Duration, mut look: impl AsyncFnMut() -> Option<T>) -> Option<T> {
    let looking = async {
        loop {
            match look().await {
                Some(found) => return found,
                None => sleep(PAUSE).await,
            }
        }
    };
    timeout(bound, looking).await.ok()
}

/// As [`look_within`], outside a runtime.
pub fn look_blocking<T>(bound: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let end = std::time::Instant::now() + bound;
    loop {
        match look() {
            None if std::time::Instant::now() < end => std::thread::sleep(PAUSE),
            found => return found,
        }
    }
}

/// Takes the time that a scripted server, tool or client takes, or that passes between two harms. Tests do
/// not wait for results with it.
pub async fn delay(span: Duration) {
    sleep(span).await;
}

/// Waits until a condition holds. Panics with `what` when that takes longer than a minute.
pub async fn wait_until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let found = look_within(BOUND, async || condition().await.then_some(())).await;
    assert!(found.is_some(), "not within {BOUND:?}: {what}");
}

/// Waits for something and returns it.
pub async fn eventually<T>(look: impl FnMut() -> Option<T>) -> T {
    find_within(BOUND, look).await.unwrap()
}

/// True when a condition holds within `bound`.
pub async fn holds_within(bound: Duration, mut condition: impl FnMut() -> bool) -> bool {
    find_within(bound, || condition().then_some(())).await.is_some()
}

/// Like [`look_within`], for a look that does not wait: its future can be spawned.
async fn find_within<T>(bound: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let looking = async {
        loop {
            match look() {
                Some(found) => return found,
                None => sleep(PAUSE).await,
            }
        }
    };
    timeout(bound, looking).await.ok()
}
