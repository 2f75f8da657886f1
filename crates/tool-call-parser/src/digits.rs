//! Keeps the digits of integers beyond 64 bits when arguments are rewritten.
//!
//! `serde_json` reads such a number as the nearest float. Its `arbitrary_precision` would keep the digits,
//! but it affects the whole binary, in which `1.0` and `1.00` would then differ. So the digits are taken from
//! the model's text and put back in place of the float. Used by `calls`, `settle` and `ledger`.

use serde_json::Number;

/// Shorter runs of digits fit into 64 bits.
const LONG: usize = 19;

/// An integer that does not fit into 64 bits.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BigInteger<'a> {
    /// Its original text.
    digits: &'a str,
    /// Its text as `serde_json` writes it.
    rounded: String,
}

/// Finds all such integers outside strings, in order.
pub(crate) fn find_big_integers(text: &str) -> Vec<BigInteger<'_>> {
    let bytes = text.as_bytes();
    let digit = |at: &usize| bytes.get(*at).is_some_and(u8::is_ascii_digit);
    let mut found = Vec::new();
    let mut at = LONG - 1;
    while at < bytes.len() {
        if !digit(&at) {
            at += LONG;
            continue;
        }
        let start = (0..at).rev().take_while(digit).last().unwrap_or(at);
        let end = (at..bytes.len()).find(|at| !digit(at)).unwrap_or(bytes.len());
        found.extend(parse_big(text, start, end));
        at = end + LONG;
    }
    found
}

fn parse_big(text: &str, start: usize, end: usize) -> Option<BigInteger<'_>> {
    let bytes = text.as_bytes();
    let before = start.checked_sub(1).map(|at| bytes[at]);
    let start = start - usize::from(before == Some(b'-'));
    let alone = !before.is_some_and(|byte| byte.is_ascii_alphanumeric() || b"._".contains(&byte))
        && !bytes.get(end).is_some_and(|byte| byte.is_ascii_alphanumeric() || b"._".contains(byte));
    if end - start < LONG || !alone || is_in_string(&text[..start]) {
        return None;
    }
    let digits = &text[start..end];
    let number: Number = serde_json::from_str(digits).ok()?;
    number.is_f64().then(|| BigInteger { digits, rounded: number.to_string() })
}

fn is_in_string(before: &str) -> bool {
    let mut inside = false;
    let mut bytes = before.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => inside = !inside,
            b'\\' if inside => drop(bytes.next()),
            _ => {}
        }
    }
    inside
}

/// Puts digits back into rewritten arguments, in order, and takes them from the list.
pub(crate) fn restore_digits(written: &str, integers: &mut Vec<BigInteger<'_>>) -> String {
    let mut restored = String::new();
    let mut rest = written;
    integers.retain(|integer| {
        let Some(at) = rest.find(&integer.rounded) else { return true };
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
}
