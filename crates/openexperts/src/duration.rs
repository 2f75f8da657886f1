//! Durations in packages: whole numbers, each with a unit, which may be combined (`90s`, `1h30m`). Pure;
//! called by `fields`.

use std::fmt;
use std::time::Duration;

/// A duration that keeps its original text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Length {
    written: String,
    length: Duration,
}

impl Length {
    /// Returns a duration of this many seconds.
    pub fn seconds(seconds: u64) -> Self {
        Self { written: format!("{seconds}s"), length: Duration::from_secs(seconds) }
    }

    /// Returns how long it is.
    pub const fn length(&self) -> Duration {
        self.length
    }
}

impl fmt::Display for Length {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.written)
    }
}

/// Why a text is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DurationError {
    /// It is empty.
    #[error("it is empty")]
    Empty,
    /// It is longer than can be counted.
    #[error("it is too long")]
    TooLong,
    /// A number has no unit.
    #[error("a unit is missing")]
    NoUnit,
    /// A unit has no number.
    #[error("a number is missing before \"{0}\"")]
    NoNumber(String),
    /// The format has no such unit.
    #[error("there is no unit \"{0}\"")]
    UnknownUnit(String),
}

/// Reads a duration.
///
/// # Errors
/// Says what is wrong with it.
pub(crate) fn parse_length(text: &str) -> Result<Length, DurationError> {
    let mut rest = text;
    let mut total: u64 = 0;
    if rest.is_empty() {
        return Err(DurationError::Empty);
    }
    while !rest.is_empty() {
        let (digits, after) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len()));
        let (unit, after) = after.split_at(after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len()));
        let millis = parse_part(digits, unit)?;
        total = total.checked_add(millis).ok_or(DurationError::TooLong)?;
        rest = after;
    }
    Ok(Length { written: text.to_owned(), length: Duration::from_millis(total) })
}

fn parse_part(digits: &str, unit: &str) -> Result<u64, DurationError> {
    let scale: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        "" => return Err(DurationError::NoUnit),
        other => return Err(DurationError::UnknownUnit(other.to_owned())),
    };
    if digits.is_empty() {
        return Err(DurationError::NoNumber(unit.to_owned()));
    }
    let number: u64 = digits.parse().map_err(|_| DurationError::TooLong)?;
    number.checked_mul(scale).filter(|millis| *millis < u64::MAX / 4).ok_or(DurationError::TooLong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_units_in_a_row() {
        for (text, millis) in [
            ("90s", Some(90_000)),
            ("1h30m", Some(5_400_000)),
            ("250ms", Some(250)),
            ("2d", Some(172_800_000)),
            ("0s", Some(0)),
            ("30", None),
            ("1M", None),
            ("5 minutes", None),
            ("5 m", None),
            ("1.5h", None),
            ("-5m", None),
            ("m", None),
            ("", None),
            ("99999999999999999999d", None),
            ("9999999999999999d", None),
        ] {
            assert_eq!(
                parse_length(text).ok().map(|length| length.length()),
                millis.map(Duration::from_millis),
                "{text}"
            );
        }
    }
}
