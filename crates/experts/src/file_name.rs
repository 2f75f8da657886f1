//! Names of files from texts of events and models.

use wire::digest::{hex, sha256};

/// Returns a text as part of a file name: letters, digits and `._-`, at most 64; a text that was changed gets
/// a distinguishing suffix.
pub(super) fn file_name(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let is_safe =
        !text.is_empty() && !text.starts_with('.') && text.len() <= 64 && text.chars().all(is_plain);
    if is_safe {
        return text.to_owned();
    }
    let kept: String = text.chars().filter(|c| is_plain(*c)).take(40).collect();
    let mark = hex(&sha256(text.as_bytes())[..6]);
    format!("{}-{mark}", kept.trim_start_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_texts_become_harmless_names() {
        assert_eq!(file_name("18c2f-a_b.c"), "18c2f-a_b.c");
        for text in ["../../state/pipeline", "a/b", ".hidden", "", "ä", &"x".repeat(65)] {
            let name = file_name(text);
            assert!(!name.contains('/') && !name.starts_with('.') && name.len() <= 64, "{name}");
            assert_ne!(name, text);
        }
        assert_ne!(file_name("a/b"), file_name("a:b"));
    }
}
