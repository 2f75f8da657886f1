//! Seeds: random tests print theirs, and a failed run can be repeated.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};

/// Returns the seed in `RESPOOL_SEED`, or else a new one, and prints it.
pub fn seed() -> u64 {
    let given = std::env::var("RESPOOL_SEED").ok().map(|text| text.parse().unwrap());
    // Each `RandomState` has keys of its own.
    let seed = given.unwrap_or_else(|| RandomState::new().build_hasher().finish() >> 32);
    #[expect(clippy::print_stderr, reason = "a test prints its seed")]
    {
        eprintln!("RESPOOL_SEED={seed}");
    }
    seed
}
