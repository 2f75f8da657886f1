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
    /// A duration of this many seconds.
    pub fn seconds(seconds: u64) -> Self {
        Self { written: format!("{seconds}s"), length: Duration::from_secs(seconds) }
    }

    /// How long it is.
    pub const fn length(&self) -> Duration {
        self.length
    }
}

impl fmt::Display for Length {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.written)
    }
}

/// Reads a duration.
///
/// # Errors
/// Says what is wrong with it.
pub(crate) fn parse(text: &str) -> Result<Length, String> {
    let mut rest = text;
    let mut total: u64 = 0;
    if rest.is_empty() {
        return Err("it is empty".to_owned());
    }
    while !rest.is_empty() {
        let (digits, after) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len()));
        let (unit, after) = after.split_at(after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len()));
        let millis = part(digits, unit)?;
        total = total.checked_add(millis).ok_or("it is too long")?;
        rest = after;
    }
    Ok(Length { written: text.to_owned(), length: Duration::from_millis(total) })
}

fn part(digits: &str, unit: &str) -> Result<u64, String> {
    let scale: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        "" => return Err("a unit is missing".to_owned()),
        other => return Err(format!("there is no unit \"{other}\"")),
    };
    if digits.is_empty() {
        return Err(format!("a number is missing before \"{unit}\""));
    }
    let number: u64 = digits.parse().map_err(|_| "it is too long")?;
    number
        .checked_mul(scale)
        .filter(|millis| *millis < u64::MAX / 4)
        .ok_or_else(|| "it is too long".to_owned())
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
                parse(text).ok().map(|length| length.length()),
                millis.map(Duration::from_millis),
                "{text}"
            );
        }
    }
}
