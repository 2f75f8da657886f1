//! Checks one value against its key.

use std::fmt;
use std::path::Path;

use ::config::ValueKind;

use wire::settings::{Key, Scalar, Shape};

use upstream::Address;
use wire::units::{Size, parse_duration};

/// A fault in a value; the text says what to write in its place.
#[derive(Debug, thiserror::Error)]
pub(super) enum ValueError {
    /// It has another type, in words.
    #[error("{0}")]
    Mismatch(String),
    /// A whole number out of its range.
    #[error("expected a whole number from {least} to {}, found {found}", u32::MAX)]
    Count { least: u64, found: i64 },
    /// A number out of its range.
    #[error("expected a number from {least} to {most}, found {found}")]
    Range { least: f64, most: f64, found: f64 },
    /// An empty text; an example of the key follows.
    #[error("it is empty; write a value, such as {0}, or leave the key out")]
    Blank(&'static str),
    /// None of the words that the key accepts, in words.
    #[error("{0}")]
    NotAWord(String),
    /// A duration of no length.
    #[error("{0:?} is too short; it must be longer than 0s")]
    TooShort(String),
    /// A size of no bytes.
    #[error("{0:?} is too small; it must be larger than 0B")]
    TooSmall(String),
    /// An address that is not one of HTTP.
    #[error("{0:?} is not a URL: write it as \"http://127.0.0.1:18789\"")]
    NotHttp(String),
    /// A path below a home directory that is not known.
    #[error("{0:?} begins at the home directory, and HOME is not set; write the whole path")]
    NoHome(String),
    /// A text that its own type cannot read, with its words.
    #[error("{0}")]
    Unreadable(String),
}

impl ValueError {
    fn unreadable(why: impl fmt::Display) -> Self {
        Self::Unreadable(why.to_string())
    }
}

/// Returns the value in the form that the settings read, or its problem.
pub(super) fn read_scalar(
    key: &'static Key,
    kind: ValueKind,
    home: Option<&Path>,
) -> Result<ValueKind, ValueError> {
    match (key.scalar, kind) {
        (Scalar::Any, kind) | (Scalar::Switch, kind @ ValueKind::Boolean(_)) => Ok(kind),
        (Scalar::Count(least), ValueKind::I64(number)) => check_count(number, least),
        (Scalar::Number(least, most), ValueKind::Float(number)) => check_range(number, least, most),
        (Scalar::Number(least, most), ValueKind::I64(number)) =>
        {
            #[expect(clippy::cast_precision_loss, reason = "numbers that large are out of every key's range")]
            check_range(number as f64, least, most)
        }
        (Scalar::Switch | Scalar::Count(_) | Scalar::Number(..), kind) => {
            Err(ValueError::Mismatch(describe_mismatch(key, &kind)))
        }
        (_, ValueKind::String(text)) => read_text(key, text, home).map(ValueKind::String),
        (_, kind) => Err(ValueError::Mismatch(describe_mismatch(key, &kind))),
    }
}

fn check_count(found: i64, least: u64) -> Result<ValueKind, ValueError> {
    match u32::try_from(found) {
        Ok(whole) if u64::from(whole) >= least => Ok(ValueKind::I64(found)),
        _ => Err(ValueError::Count { least, found }),
    }
}

fn check_range(found: f64, least: f64, most: f64) -> Result<ValueKind, ValueError> {
    if (least..=most).contains(&found) {
        Ok(ValueKind::Float(found))
    } else {
        Err(ValueError::Range { least, most, found })
    }
}

fn read_text(key: &'static Key, text: String, home: Option<&Path>) -> Result<String, ValueError> {
    let blank = text.trim().is_empty() && key.shape != Shape::Table && key.name() != "args";
    match key.scalar {
        Scalar::HttpUrl => check_http_url(text),
        Scalar::Form(_, parse) => parse(&text).map(|()| text).map_err(ValueError::unreadable),
        _ if blank => Err(ValueError::Blank(&key.example)),
        Scalar::Word(words) if !words.contains(&text.as_str()) => {
            Err(ValueError::NotAWord(no_such_word(&text, words)))
        }
        Scalar::Duration(zero) => match parse_duration(&text).map_err(ValueError::unreadable)? {
            duration if duration.is_zero() && !zero => Err(ValueError::TooShort(text)),
            _ => Ok(text),
        },
        Scalar::Size => match text.parse().map_err(ValueError::unreadable)? {
            Size(0) => Err(ValueError::TooSmall(text)),
            _ => Ok(text),
        },
        Scalar::Path => expand_home(text, home),
        _ => Ok(text),
    }
}

fn check_http_url(text: String) -> Result<String, ValueError> {
    match text.parse().map_err(ValueError::unreadable)? {
        Address::Http { .. } => Ok(text),
        Address::Replay(_) => Err(ValueError::NotHttp(text)),
    }
}

fn no_such_word(text: &str, words: &[&str]) -> String {
    let listed = words.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(", ");
    let lower = text.to_ascii_lowercase();
    let near = words.iter().map(|word| (strsim::damerau_levenshtein(word, &lower), word)).min();
    match near {
        Some((distance, word)) if distance <= word.len() / 3 => {
            format!("{text:?} is not one of {listed}; did you mean {word:?}?")
        }
        _ => format!("{text:?} is not one of {listed}"),
    }
}

/// Replaces a leading `~/` by the home directory.
fn expand_home(text: String, home: Option<&Path>) -> Result<String, ValueError> {
    match (text.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => Ok(home.join(rest).display().to_string()),
        (Some(_), None) => Err(ValueError::NoHome(text)),
        (None, _) => Ok(text),
    }
}

/// Says what was expected and what was found.
fn describe_mismatch(key: &Key, kind: &ValueKind) -> String {
    let wanted = match key.scalar {
        Scalar::Text | Scalar::Word(_) => "text",
        Scalar::Path => "a path",
        Scalar::Switch => "true or false",
        Scalar::Count(_) => "a whole number",
        Scalar::Number(..) => "a number",
        Scalar::Duration(_) => "a duration with its unit",
        Scalar::Size => "a size with its unit",
        Scalar::HttpUrl => "an http or https URL",
        Scalar::Form(name, _) => name,
        Scalar::Any => "any value",
    };
    let example = if key.shape == Shape::One { format!(", such as {}", key.example) } else { String::new() };
    format!("expected {wanted}{example}, found {}", describe_value(kind, key.secret))
}

/// Returns a value in words; a secret's only by its type.
pub(super) fn describe_value(kind: &ValueKind, secret: bool) -> String {
    let (name, shown) = match kind {
        ValueKind::String(text) => ("the text", format!(" {text:?}")),
        ValueKind::Boolean(switch) => ("the switch", format!(" {switch}")),
        ValueKind::I64(number) => ("the number", format!(" {number}")),
        ValueKind::Float(number) => ("the number", format!(" {number}")),
        ValueKind::Array(_) => return "a list".into(),
        ValueKind::Table(_) => return "a table".into(),
        _ => return "nothing that TOML knows".into(),
    };
    if secret { name.replacen("the", "a", 1) } else { format!("{name}{shown}") }
}
