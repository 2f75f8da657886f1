//! Regular expressions that are part of the program.

use regex::Regex;

/// Compiles a pattern. It must not be silently off when it is wrong, or when a feature of the crate is missing in one build
/// and present in another: each use is tested, and a wrong one ends the program.
///
/// # Panics
/// When the pattern is wrong.
#[expect(
    clippy::expect_used,
    reason = "the patterns are constants of this program, and all are compiled in tests"
)]
pub fn pattern(text: &'static str) -> Regex {
    Regex::new(text).expect("a pattern of this program is valid")
}
