//! Compiles the program's own regular expressions, and matches names against patterns with stars.

use regex::Regex;

/// Compiles a pattern of the program. A wrong pattern ends the program rather than being skipped silently: a
/// feature of the regex crate may be missing in one build. Every pattern is compiled in tests.
///
/// # Panics
/// When the pattern is wrong.
#[expect(
    clippy::expect_used,
    reason = "the patterns are constants of this program, and all are compiled in tests"
)]
pub fn compile_pattern(text: &'static str) -> Regex {
    Regex::new(text).expect("a pattern of this program is valid")
}

/// Returns true when a name matches a pattern, in which `*` stands for any text.
pub fn matches_stars(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(start) else { return false };
    let (middle, end) = rest.rsplit_once('*').unwrap_or(("", rest));
    for part in middle.split('*') {
        let Some((_, after)) = name.split_once(part) else { return false };
        name = after;
    }
    name.ends_with(end)
}

#[cfg(test)]
mod tests {
    use super::matches_stars;

    #[test]
    fn stars_stand_for_any_text() {
        for (pattern, name, expected) in [
            ("read", "read", true),
            ("read", "reader", false),
            ("mcp:files/*", "mcp:files/read_file", true),
            ("mcp:files/*", "mcp:other/read_file", false),
            ("mcp:*/read_*", "mcp:files/read_file", true),
            ("a*b", "ab", true),
            ("a*ba", "aba", true),
            ("ab*ba", "aba", false),
            ("*", "anything", true),
            ("*", "", true),
            ("a*b*c", "a-b-c", true),
            ("a*b*c", "abc", true),
            ("a*b*c", "ac", false),
            ("a*a", "a", false),
            ("*b", "ab", true),
            ("ab*ab", "abab", true),
            ("ab*ab", "abaab", true),
            ("ab*ab", "aab", false),
        ] {
            assert_eq!(matches_stars(pattern, name), expected, "{pattern} {name}");
        }
    }
}
