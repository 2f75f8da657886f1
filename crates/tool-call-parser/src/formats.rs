//! The forms of texts that a schema asks for: patterns, dates, times and UUIDs. Used by `schema`.

use std::collections::HashMap;

use regex::{Regex, RegexBuilder};

/// The longest pattern that is compiled, in bytes.
const LONGEST_PATTERN: usize = 1_000;
/// The most memory of a compiled pattern, in bytes.
const SIZE_LIMIT: usize = 1 << 18;
/// Operators of sets that the regex crate knows and JavaScript does not.
const SET_OPERATORS: [&str; 3] = ["&&", "--", "~~"];

/// The patterns of one check, compiled when they are needed. `None`: the pattern has a construct that the
/// regex crate lacks, such as a look-ahead.
#[derive(Debug, Default)]
pub(crate) struct Patterns(HashMap<String, Option<Regex>>);

impl Patterns {
    /// Returns the steps that it takes to compile a pattern and to try it on a text.
    pub(crate) fn steps(pattern: &str, text: &str) -> usize {
        500 + 10 * pattern.len() + text.len() / 8
    }

    /// Returns true when a text has no part that matches the pattern.
    pub(crate) fn excludes(&mut self, pattern: &str, text: &str) -> bool {
        if !self.0.contains_key(pattern) {
            self.0.insert(pattern.to_owned(), compile(pattern));
        }
        self.0.get(pattern).and_then(Option::as_ref).is_some_and(|compiled| !compiled.is_match(text))
    }
}

fn compile(pattern: &str) -> Option<Regex> {
    if pattern.len() > LONGEST_PATTERN || SET_OPERATORS.iter().any(|operator| pattern.contains(operator)) {
        return None;
    }
    RegexBuilder::new(pattern).size_limit(SIZE_LIMIT).dfa_size_limit(SIZE_LIMIT).build().ok()
}

/// Returns false when a text cannot be of this format. Formats that are not known here are possible.
pub(crate) fn is_possible(format: &str, text: &str) -> bool {
    match format {
        "date" => is_date(text),
        "time" => is_time(text),
        "date-time" => {
            let halves = text.split_once(['T', 't', ' ']);
            halves.is_some_and(|(date, time)| is_date(date) && is_time(time))
        }
        "uuid" => has_form(text, "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"),
        _ => true,
    }
}

fn is_date(text: &str) -> bool {
    has_form(text, "0000-00-00")
}

/// Returns true for `12:00:00`, with a fraction and a zone or without.
fn is_time(text: &str) -> bool {
    let Some((time, rest)) = text.split_at_checked(8) else { return false };
    let rest = rest
        .strip_prefix('.')
        .map_or(rest, |fraction| fraction.trim_start_matches(|digit: char| digit.is_ascii_digit()));
    let zone = rest.strip_prefix(['+', '-']).map(|offset| has_form(offset, "00:00"));
    has_form(time, "00:00:00") && zone.unwrap_or(matches!(rest, "" | "Z" | "z"))
}

/// Returns true when a text has this form, in which `0` stands for a digit and `x` for a hexadecimal one.
fn has_form(text: &str, form: &str) -> bool {
    text.len() == form.len()
        && text.bytes().zip(form.bytes()).all(|(byte, form)| match form {
            b'0' => byte.is_ascii_digit(),
            b'x' => byte.is_ascii_hexdigit(),
            _ => byte == form,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_with_a_grammar_are_checked() {
        for (format, text, expected) in [
            ("date", "2026-11-25", true),
            ("date", "25.11.2026", false),
            ("time", "12:30:00", true),
            ("time", "12:30:00.25Z", true),
            ("time", "12:30:00+01:00", true),
            ("time", "12:30", false),
            ("time", "12:30:0ü", false),
            ("date-time", "2026-11-25T12:30:00Z", true),
            ("date-time", "2026-11-25", false),
            ("uuid", "123e4567-e89b-12d3-a456-426614174000", true),
            ("uuid", "123e4567", false),
            ("uri", "not checked", true),
        ] {
            assert_eq!(is_possible(format, text), expected, "{format} {text}");
        }
    }
}
