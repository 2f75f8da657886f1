//! Kills the process at a chosen commit, so that tests can show what survives. Only debug builds have it.

use std::env;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::signal::{Signal, raise};

/// `before:N` or `after:N`: the Nth commit of this process, counted from 1.
const VARIABLE: &str = "RESPOOL_KILL_AT_COMMIT";

static WANTED: LazyLock<Option<(String, u64)>> = LazyLock::new(|| {
    let value = env::var(VARIABLE).ok()?;
    let (moment, number) = value.split_once(':')?;
    Some((moment.to_owned(), number.parse().ok()?))
});
static BEGUN: AtomicU64 = AtomicU64::new(0);

/// Kills the process if a test asks for it. Call when a transaction begins.
pub(super) fn before_commit() {
    kill_if("before", BEGUN.fetch_add(1, Ordering::Relaxed) + 1);
}

/// Kills the process if a test asks for it. Call when the transaction is committed and before anyone learns
/// of it.
pub(super) fn after_commit() {
    kill_if("after", BEGUN.load(Ordering::Relaxed));
}

fn kill_if(moment: &str, number: u64) {
    if WANTED.as_ref().is_some_and(|(at, wanted)| at == moment && *wanted == number) {
        // The process does not outlive this line.
        let _ = raise(Signal::SIGKILL);
    }
}
