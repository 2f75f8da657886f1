//! Escapes control characters inside the strings of a JSON text: RFC 8259 demands it, and clients refuse the
//! text otherwise.
//!
//! The scanner accepts such characters, so a text that was only scanned may still contain them. Called by
//! `relay` for what it forwards.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Escapes each control character in the strings of a JSON text. Nearly every text has none.
pub fn escape_controls(json: &str) -> Cow<'_, str> {
    // This runs for every chunk of a stream, so it has no branch per byte.
    if json.bytes().fold(u8::MAX, u8::min) >= b' ' {
        return Cow::Borrowed(json);
    }
    let mut out = String::with_capacity(json.len() + 16);
    let (mut in_string, mut escaped) = (false, false);
    for letter in json.chars() {
        if in_string && letter < ' ' {
            let _ = write!(out, "\\u{:04x}", u32::from(letter));
            escaped = false;
            continue;
        }
        in_string ^= letter == '"' && !escaped;
        escaped = in_string && letter == '\\' && !escaped;
        out.push(letter);
    }
    if out == json { Cow::Borrowed(json) } else { Cow::Owned(out) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stands_in_strings_is_escaped() {
        for (text, expected) in [
            ("{\"a\": \"b\"}", "{\"a\": \"b\"}"),
            ("{\n\t\"a\":\r\n1}", "{\n\t\"a\":\r\n1}"),
            ("{\"a\": \"b\tc\0\"}", "{\"a\": \"b\\u0009c\\u0000\"}"),
            ("[\"\\\"\n\", \n\"\\\\\", \n1]", "[\"\\\"\\u000a\", \n\"\\\\\", \n1]"),
        ] {
            assert_eq!(escape_controls(text), expected);
        }
        assert!(matches!(escape_controls("{\n}"), Cow::Borrowed(_)));
    }
}
