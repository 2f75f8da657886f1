//! Types of configuration values that are not plain text: durations and sizes with a unit, closed sets of
//! words, and secrets; and the error for a setting that cannot be used. Every crate's `config.rs` builds on
//! these; no key is named here.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer};

/// The reason why a text is not a value of its kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidValue {
    /// The text has another form.
    #[error("{text:?} is not {form}: {advice}")]
    Form {
        /// The text, without secrets.
        text: String,
        /// The form with its article: "a duration".
        form: &'static str,
        /// The mistake, or a valid example.
        advice: Cow<'static, str>,
    },
    /// The size is larger than any number of bytes.
    #[error("{0:?} is too large a size")]
    TooLarge(String),
    /// A mistake whose text is not repeated, because it may be a secret or explains nothing.
    #[error("{0}")]
    Unnamed(&'static str),
}

impl InvalidValue {
    /// Makes the error for a text that has another form.
    pub fn form(text: &str, form: &'static str, advice: impl Into<Cow<'static, str>>) -> Self {
        Self::Form { text: text.to_owned(), form, advice: advice.into() }
    }
}

/// Reads a duration such as `250ms`, `2s`, `1m 30s` or `1h`.
///
/// # Errors
/// When the text is not a duration; the message shows valid ones.
pub fn parse_duration(text: &str) -> Result<Duration, InvalidValue> {
    if text.trim() == "0" {
        return Ok(Duration::ZERO);
    }
    let advice = r#"write a number and a unit, such as "250ms", "2s", "30m", "1h""#;
    humantime::parse_duration(text.trim()).map_err(|_| InvalidValue::form(text, "a duration", advice))
}

/// Writes a duration so that [`parse_duration`] reads the same one.
pub fn format_duration(duration: Duration) -> String {
    humantime::format_duration(duration).to_string()
}

/// Deserialises a [`Duration`]; for `#[serde(deserialize_with)]`.
pub fn deserialize_duration<'de, D: Deserializer<'de>>(source: D) -> Result<Duration, D::Error> {
    parse_duration(&String::deserialize(source)?).map_err(serde::de::Error::custom)
}

/// Deserialises an optional [`Duration`]; for `#[serde(deserialize_with)]`.
pub fn deserialize_optional_duration<'de, D: Deserializer<'de>>(
    source: D,
) -> Result<Option<Duration>, D::Error> {
    deserialize_duration(source).map(Some)
}

/// A number of bytes, written with a unit: `32MiB`, `64 KiB`, `1MB`, `123B`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// Units, largest first within each system; the binary ones are tried first when writing.
const UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
];

impl Size {
    /// Returns the bytes as a length in memory, at most the address space.
    pub fn to_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }

    /// Makes a size in mebibytes.
    pub const fn mib(count: u64) -> Self {
        Self(count << 20)
    }

    /// Makes a size in kibibytes.
    pub const fn kib(count: u64) -> Self {
        Self(count << 10)
    }
}

impl FromStr for Size {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let advice = r#"write a whole number and a unit, such as "32MiB", "64KiB", "1MB", "512B""#;
        let wrong = || InvalidValue::form(text, "a size", advice);
        let digits = text.trim();
        let end = digits.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let (number, unit) = digits.split_at(end);
        let number: u64 = number.parse().map_err(|_| wrong())?;
        let unit = unit.trim();
        let scale = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).ok_or_else(wrong)?.1;
        number.checked_mul(scale).map(Self).ok_or_else(|| InvalidValue::TooLarge(text.to_owned()))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = |(_, scale): &&(&str, u64)| self.0 != 0 && self.0.is_multiple_of(*scale);
        let (unit, scale) = UNITS.iter().find(whole).unwrap_or(&("B", 1));
        write!(out, "{}{unit}", self.0 / scale)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        String::deserialize(source)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A key or token. `Debug` hides it, so it cannot reach a log with the struct that contains it.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the secret itself, for the header that needs it.
    pub fn expose_secret(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("***")
    }
}

/// A setting that turned out to be unusable: a directory that does not exist, a tool that no server offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnusableSetting {
    /// The steps of its key, with the number of a list's entry: `upstream`, `0`, `url`.
    pub key: Vec<String>,
    /// The problem, and what to do about it.
    pub why: String,
}

impl UnusableSetting {
    /// Describes the problem of the setting with this key.
    #[expect(clippy::needless_pass_by_value, reason = "callers hand over messages and errors")]
    pub fn new(key: &[&str], why: impl ToString) -> Self {
        Self { key: key.iter().map(|step| (*step).to_owned()).collect(), why: why.to_string() }
    }
}

impl fmt::Display for UnusableSetting {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.key.join("."), self.why)
    }
}

/// Returns both values, or the errors of both.
pub fn zip_results<A, B, E>(one: Result<A, Vec<E>>, other: Result<B, Vec<E>>) -> Result<(A, B), Vec<E>> {
    match (one, other) {
        (Ok(one), Ok(other)) => Ok((one, other)),
        (one, other) => Err([one.err(), other.err()].into_iter().flatten().flatten().collect()),
    }
}

/// Defines an enum whose variants are words in the configuration: `NAMES`, `as_str`, `Display` and
/// `Deserialize`.
#[macro_export]
macro_rules! string_enum {
    ($(#[$meta:meta])* $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
        pub enum $name {
            $($(#[$variant_meta])* #[serde(rename = $word)] $variant),+
        }

        impl $name {
            /// Every word, in the order of the documentation.
            pub const NAMES: &'static [&'static str] = &[$($word),+];

            /// The word as it is written in the configuration.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                out.write_str(self.as_str())
            }
        }

        impl $crate::settings::Setting for $name {
            const SCALAR: $crate::settings::Scalar = $crate::settings::Scalar::Word(Self::NAMES);

            fn to_toml(&self) -> String {
                format!("{:?}", self.as_str())
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit() {
        for (text, expected) in [
            ("250ms", Some(250)),
            ("2s", Some(2_000)),
            (" 30m ", Some(1_800_000)),
            ("1h", Some(3_600_000)),
            ("1m 30s", Some(90_000)),
            ("0s", Some(0)),
            ("0", Some(0)),
            ("10", None),
            ("-1s", None),
            ("2 parsecs", None),
            ("", None),
            ("99999999999999999999h", None),
        ] {
            assert_eq!(parse_duration(text).ok(), expected.map(Duration::from_millis), "{text}");
        }
    }

    #[test]
    fn sizes_need_a_unit() {
        for (text, expected) in [
            ("32MiB", Some(32 << 20)),
            ("64 KiB", Some(64 << 10)),
            ("64kib", Some(64 << 10)),
            ("1MB", Some(1_000_000)),
            ("123B", Some(123)),
            ("0B", Some(0)),
            ("123", None),
            ("MiB", None),
            ("-1B", None),
            ("1.5MiB", None),
            ("1 PARSEC", None),
            ("99999999999TiB", None),
            ("", None),
        ] {
            assert_eq!(text.parse().ok(), expected.map(Size), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn what_is_written_reads_back(bytes: u64, millis in 0..u64::from(u32::MAX)) {
            proptest::prop_assert_eq!(Size(bytes).to_string().parse(), Ok(Size(bytes)));
            let span = Duration::from_millis(millis);
            proptest::prop_assert_eq!(parse_duration(&format_duration(span)), Ok(span));
        }
    }

    #[test]
    fn secrets_do_not_show() {
        assert_eq!(format!("{:?}", Secret::new("sk-1")), "***");
    }
}
