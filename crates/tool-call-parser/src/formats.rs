//! The forms of texts that a schema asks for: patterns, and the formats of JSON Schema but the international
//! ones and templates. Used by `schema`.

use core::net::{Ipv4Addr, Ipv6Addr};
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
    /// Returns the steps that it takes to try a pattern on a text, and to compile it before if it is new.
    pub(crate) fn steps(&self, pattern: &str, text: &str) -> usize {
        let new = if self.0.contains_key(pattern) { 1 } else { 500 + 10 * pattern.len() };
        new + text.len() / 8
    }

    /// Returns whether a part of a text matches the pattern; `None` for a pattern that cannot be read.
    pub(crate) fn matches(&mut self, pattern: &str, text: &str) -> Option<bool> {
        if !self.0.contains_key(pattern) {
            self.0.insert(pattern.to_owned(), compile(pattern));
        }
        Some(self.0.get(pattern)?.as_ref()?.is_match(text))
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
        "duration" => is_duration(text),
        "email" => is_email(text),
        "hostname" => is_hostname(text),
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "uri" => is_uri(text),
        "json-pointer" => text.is_empty() || text.starts_with('/'),
        _ => true,
    }
}

/// Returns true for `P1Y2M3DT4H5M6S`, with at least one part, and for weeks.
fn is_duration(text: &str) -> bool {
    let Some(rest) = text.strip_prefix('P') else { return false };
    let (date, time) = rest.split_once('T').map_or((rest, None), |(date, time)| (date, Some(time)));
    let has_parts = |text: &str, units: &str| {
        let mut units = units.chars();
        text.split_inclusive(|letter: char| !letter.is_ascii_digit()).all(|part| {
            let number = part.trim_end_matches(|letter: char| !letter.is_ascii_digit());
            let unit = &part[number.len()..];
            !number.is_empty() && units.any(|known| unit == known.encode_utf8(&mut [0; 4]))
        })
    };
    let is_date = has_parts(date, "YMD") || (time.is_none() && has_parts(date, "W"));
    is_date && !rest.is_empty() && time.is_none_or(|time| !time.is_empty() && has_parts(time, "HMS"))
}

fn is_email(text: &str) -> bool {
    let is_part = |part: &str| !part.is_empty() && !part.contains(char::is_whitespace);
    text.rsplit_once('@').is_some_and(|(name, host)| is_part(name) && is_part(host))
}

fn is_hostname(text: &str) -> bool {
    let is_label = |label: &str| {
        let is_plain = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        is_plain && (1..=63).contains(&label.len()) && !label.starts_with('-') && !label.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(is_label)
}

/// Returns true for a scheme and something behind it, without white space.
fn is_uri(text: &str) -> bool {
    let is_scheme = |scheme: &str| {
        scheme.starts_with(|first: char| first.is_ascii_alphabetic())
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
    };
    let has_scheme = text.split_once(':').is_some_and(|(scheme, _)| is_scheme(scheme));
    has_scheme && !text.contains(|letter: char| letter.is_whitespace() || letter.is_control())
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
    fn formats_are_checked() {
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
            ("duration", "P1Y2M3DT4H5M6S", true),
            ("duration", "PT30M", true),
            ("duration", "P2W", true),
            ("duration", "P", false),
            ("duration", "P1DT", false),
            ("duration", "30 minutes", false),
            ("email", "a.b@example.com", true),
            ("email", "a at example.com", false),
            ("hostname", "host-1.example.com", true),
            ("hostname", "-a.example", false),
            ("ipv4", "127.0.0.1", true),
            ("ipv4", "127.0.0.256", false),
            ("ipv6", "::1", true),
            ("ipv6", "1::2::3", false),
            ("uri", "https://example.com/a?b#c", true),
            ("uri", "mailto:a@example.com", true),
            ("uri", "example.com/a", false),
            ("json-pointer", "/a/0", true),
            ("json-pointer", "a", false),
            ("iri", "not checked", true),
        ] {
            assert_eq!(is_possible(format, text), expected, "{format} {text}");
        }
    }
}
