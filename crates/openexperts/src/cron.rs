//! When a clock fires: cron expressions (croner) in a zone of the IANA database (chrono-tz). Pure: the time
//! comes in as an argument.

pub(crate) mod schedule;

use chrono::{DateTime, Utc};
use croner::Cron;
use croner::parser::{CronParser, Seconds};

/// An arbitrary instant to search from, to learn whether there is any next time at all.
const SOME_TIME: i64 = 1_700_000_000;

/// Why an expression or a zone cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CronError {
    /// It begins with `@`.
    #[error("nicknames are not part of the format")]
    Nickname,
    /// It has this many fields.
    #[error("it needs 5 or 6 fields, and has {0}")]
    FieldCount(usize),
    /// A field cannot be read; the text is croner's.
    #[error("{0}")]
    Syntax(String),
    /// No date matches it.
    #[error("that date never comes")]
    NoDate,
    /// The IANA database has no zone of this name.
    #[error("{0:?} is not a time zone")]
    UnknownZone(String),
}

/// Checks an expression.
///
/// # Errors
/// Says what is wrong with it.
pub(crate) fn check_expression(expr: &str) -> Result<(), CronError> {
    let cron = parse_expression(expr)?;
    let from = DateTime::<Utc>::from_timestamp(SOME_TIME, 0).unwrap_or_default();
    match cron.find_next_occurrence(&from, false) {
        Ok(_) => Ok(()),
        Err(_) => Err(CronError::NoDate),
    }
}

fn parse_expression(expr: &str) -> Result<Cron, CronError> {
    let count = expr.split_whitespace().count();
    if expr.trim_start().starts_with('@') {
        return Err(CronError::Nickname);
    }
    if !(5..=6).contains(&count) {
        return Err(CronError::FieldCount(count));
    }
    CronParser::builder()
        .seconds(Seconds::Optional)
        .build()
        .parse(expr)
        .map_err(|error| CronError::Syntax(error.to_string()))
}

/// Returns true if the IANA database has a zone of this name.
pub(crate) fn is_zone(name: &str) -> bool {
    name.parse::<chrono_tz::Tz>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_must_have_a_next_time() {
        for good in ["0 8 * * 1-5", "*/5 * * * *", "0 30 7 * * MON", "0 0 29 2 *", "0 0 L * *"] {
            assert_eq!(check_expression(good), Ok(()), "{good}");
        }
        for bad in ["", "@daily", "0 25 * * *", "0 0 30 2 *", "* * * *", "0 0 0 1 1 * 2030", "every day at 8"]
        {
            assert!(check_expression(bad).is_err(), "{bad}");
        }
        assert!(is_zone("Europe/Vienna") && is_zone("UTC") && !is_zone("Europe/Wien") && !is_zone(""));
    }
}
