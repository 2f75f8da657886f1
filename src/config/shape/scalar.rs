//! Checks one value against its key.

use std::path::Path;

use ::config::ValueKind;

use wire::settings::{Scalar, Shape};

use crate::config::keys::Key;
use crate::units::{Size, parse_duration};
use crate::upstream::Address;

/// Returns the value in the form that the settings read, or its problem.
pub(super) fn read_scalar(key: &Key, kind: ValueKind, home: Option<&Path>) -> Result<ValueKind, String> {
    match (key.scalar, kind) {
        (Scalar::Switch, kind @ ValueKind::Boolean(_)) => Ok(kind),
        (Scalar::Count(least), ValueKind::I64(number)) => check_count(number, least),
        (Scalar::Number(least, most), ValueKind::Float(number)) => check_range(number, least, most),
        (Scalar::Number(least, most), ValueKind::I64(number)) =>
        {
            #[expect(clippy::cast_precision_loss, reason = "numbers that large are out of every key's range")]
            check_range(number as f64, least, most)
        }
        (Scalar::Switch | Scalar::Count(_) | Scalar::Number(..), kind) => Err(describe_mismatch(key, &kind)),
        (_, ValueKind::String(text)) => read_text(key, text, home).map(ValueKind::String),
        (_, kind) => Err(describe_mismatch(key, &kind)),
    }
}

fn check_count(number: i64, least: u64) -> Result<ValueKind, String> {
    match u32::try_from(number) {
        Ok(whole) if u64::from(whole) >= least => Ok(ValueKind::I64(number)),
        _ => Err(format!("expected a whole number from {least} to {}, found {number}", u32::MAX)),
    }
}

fn check_range(number: f64, least: f64, most: f64) -> Result<ValueKind, String> {
    if (least..=most).contains(&number) {
        Ok(ValueKind::Float(number))
    } else {
        Err(format!("expected a number from {least} to {most}, found {number}"))
    }
}

fn read_text(key: &Key, text: String, home: Option<&Path>) -> Result<String, String> {
    let blank = text.trim().is_empty() && key.shape != Shape::Table && key.name() != "args";
    match key.scalar {
        Scalar::HttpUrl => check_http_url(&text).map(|()| text),
        Scalar::Form(_, parse) => parse(&text).map(|()| text),
        _ if blank => Err(format!("it is empty; write it, as {}, or leave the key out", key.example)),
        Scalar::Word(words) if !words.contains(&text.as_str()) => Err(no_such_word(&text, words)),
        Scalar::Duration(zero) => match parse_duration(&text)? {
            duration if duration.is_zero() && !zero => {
                Err(format!("{text:?} is too short; it must be longer than 0s"))
            }
            _ => Ok(text),
        },
        Scalar::Size => match text.parse::<Size>()? {
            Size(0) => Err(format!("{text:?} is too small; it must be larger than 0B")),
            _ => Ok(text),
        },
        Scalar::Path => expand_home(text, home),
        _ => Ok(text),
    }
}

fn check_http_url(text: &str) -> Result<(), String> {
    match text.parse::<Address>()? {
        Address::Http { .. } => Ok(()),
        Address::Replay(_) => Err(format!("{text:?} is not a URL: write it as \"http://127.0.0.1:18789\"")),
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

/// A path with the home directory for a leading `~/`.
fn expand_home(text: String, home: Option<&Path>) -> Result<String, String> {
    match (text.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => Ok(home.join(rest).display().to_string()),
        (Some(_), None) => {
            Err(format!("{text:?} begins at the home directory, and HOME is not set; write the whole path"))
        }
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
    };
    let example = if key.shape == Shape::One { format!(", as {}", key.example) } else { String::new() };
    format!("expected {wanted}{example}, found {}", describe_value(kind, key.secret))
}

/// A value in words; a secret's only by its type.
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
