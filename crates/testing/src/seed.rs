//! Seeds: random tests print theirs, and a failed run can be repeated.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the seed in `RESPOOL_SEED`, or else a new one, and prints it.
pub fn seed() -> u64 {
    let given = std::env::var("RESPOOL_SEED").ok().map(|text| text.parse().unwrap());
    let seed = given.unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        u64::from(now.subsec_nanos())
    });
    #[expect(clippy::print_stderr, reason = "a test prints its seed")]
    {
        eprintln!("RESPOOL_SEED={seed}");
    }
    seed
}
