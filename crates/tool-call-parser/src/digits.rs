//! Keeps the digits of integers beyond 64 bits when arguments are rewritten.
//!
//! `serde_json` holds such a number as the nearest float. Its `arbitrary_precision` would keep the digits,
//! but for the whole binary, and there `1.0` and `1.00` would differ. So the digits are taken from the text
//! the model wrote and put back where the float stands. Used by `calls`, `settle` and `ledger`.

use serde_json::Number;

/// Shorter runs of digits fit into 64 bits.
const LONG: usize = 19;
/// After this many integers that are not in the rewritten arguments, no others are searched for.
const MOST_MISSES: usize = 16;

/// An integer that no 64 bits hold.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BigInteger<'a> {
    /// As it was written.
    digits: &'a str,
    /// As `serde_json` writes it.
    rounded: String,
}

/// Finds all such integers outside strings, in order.
pub(crate) fn find_big_integers(text: &str) -> Vec<BigInteger<'_>> {
    let bytes = text.as_bytes();
    let digit = |at: &usize| bytes.get(*at).is_some_and(u8::is_ascii_digit);
    let mut found = Vec::new();
    let mut strings = Strings::default();
    let mut at = LONG - 1;
    while at < bytes.len() {
        if !digit(&at) {
            at += LONG;
            continue;
        }
        let start = (0..at).rev().take_while(digit).last().unwrap_or(at);
        let end = (at..bytes.len()).find(|at| !digit(at)).unwrap_or(bytes.len());
        found.extend(parse_big(text, start, end, &mut strings));
        at = end + LONG;
    }
    found
}

fn parse_big<'a>(text: &'a str, start: usize, end: usize, strings: &mut Strings) -> Option<BigInteger<'a>> {
    let bytes = text.as_bytes();
    let before = start.checked_sub(1).map(|at| bytes[at]);
    let start = start - usize::from(before == Some(b'-'));
    let alone = !before.is_some_and(|byte| byte.is_ascii_alphanumeric() || b"._".contains(&byte))
        && !bytes.get(end).is_some_and(|byte| byte.is_ascii_alphanumeric() || b"._".contains(byte));
    if end - start < LONG || !alone || strings.hold(bytes, start) {
        return None;
    }
    let digits = &text[start..end];
    let number: Number = serde_json::from_str(digits).ok()?;
    number.is_f64().then(|| BigInteger { digits, rounded: number.to_string() })
}

/// Where strings begin and end, read once for all integers of a text.
#[derive(Default)]
struct Strings {
    at: usize,
    inside: bool,
}

impl Strings {
    /// Returns true when this place, which is after all earlier ones, is in a string.
    fn hold(&mut self, bytes: &[u8], place: usize) -> bool {
        while self.at < place {
            match bytes[self.at] {
                b'"' => self.inside = !self.inside,
                b'\\' if self.inside => self.at += 1,
                _ => {}
            }
            self.at += 1;
        }
        self.inside
    }
}

/// Puts digits back into rewritten arguments, in order, and takes them from the list.
pub(crate) fn restore_digits(written: &str, integers: &mut Vec<BigInteger<'_>>) -> String {
    let mut restored = String::new();
    let mut rest = written;
    let mut misses = 0;
    integers.retain(|integer| {
        let found = (misses < MOST_MISSES).then(|| rest.find(&integer.rounded)).flatten();
        let Some(at) = found else {
            misses += 1;
            return true;
        };
        restored.push_str(&rest[..at]);
        restored.push_str(integer.digits);
        rest = &rest[at + integer.rounded.len()..];
        false
    });
    restored.push_str(rest);
    restored
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn check(text: &str, expected: &[&str]) {
        let found: Vec<&str> = find_big_integers(text).iter().map(|integer| integer.digits).collect();
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn only_integers_that_would_be_rounded_are_found() {
        check(r#"{"a": 18446744073709551615, "b": -9223372036854775808}"#, &[]);
        check(
            r#"{"a":18446744073709551616,"b":-9223372036854775809}"#,
            &["18446744073709551616", "-9223372036854775809"],
        );
        check(
            r#"{"a": "\"18446744073709551616", "b": 0.18446744073709551616, "c": 18446744073709551616e3}"#,
            &[],
        );
        check("18446744073709551616", &["18446744073709551616"]);
    }

    #[test]
    fn digits_come_back_in_order() {
        let text = r#"{"a": 12345678901234567890123, "b": [12345678901234567890124, 1.5]}"#;
        let written = serde_json::from_str::<Value>(text).unwrap().to_string();
        let mut integers = find_big_integers(text);
        assert_eq!(restore_digits(&written, &mut integers), text.replace(": ", ":").replace(", ", ","));
        assert!(integers.is_empty());
    }

    /// Once the text before each of them was read again, and for each that was not found all of the rest.
    #[test]
    fn many_integers_take_linear_time() {
        let text = format!("[{}1]", "92345678901234567890, ".repeat(100_000));
        let mut integers = find_big_integers(&text);
        assert_eq!(integers.len(), 100_000);
        let written = "[1.0]".repeat(200_000);
        assert_eq!(restore_digits(&written, &mut integers), written);
        assert_eq!(integers.len(), 100_000);
    }
}
