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
    /// It begins with `@`; the fields that mean the same.
    #[error("nicknames are not part of the format; write `{0}`")]
    Nickname(&'static str),
    /// It has this many fields.
    #[error("it needs 5 or 6 fields, and has {0}")]
    FieldCount(usize),
    /// A field cannot be read.
    #[error(
        "the {name} is {written:?}, but it must be {range}, `*`, or a list (1,5), range (1-5) or step (*/5) of these"
    )]
    Field {
        /// The field.
        name: &'static str,
        /// Its text.
        written: String,
        /// The permitted values.
        range: &'static str,
    },
    /// Its fields cannot be combined.
    #[error("its fields cannot be combined")]
    Combination,
    /// No date matches it.
    #[error("that date never comes")]
    NoDate,
    /// The IANA database has no zone of this name.
    #[error("{0:?} is not a time zone")]
    UnknownZone(String),
}

impl CronError {
    /// Returns the correction.
    pub(crate) fn help(&self) -> &'static str {
        match self {
            Self::Field { .. } => "correct this field",
            Self::NoDate => "write a day that one of these months has",
            _ => "write 5 fields (minute hour day month weekday), or 6 with seconds first",
        }
    }
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
    let fields: Vec<&str> = expr.split_whitespace().collect();
    if let Some(first) = fields.first().filter(|first| first.starts_with('@')) {
        let same = NICKNAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(first));
        return Err(CronError::Nickname(same.map_or("0 8 * * 1-5", |&(_, fields)| fields)));
    }
    if !(5..=6).contains(&fields.len()) {
        return Err(CronError::FieldCount(fields.len()));
    }
    parse(expr).ok_or_else(|| find_fault(&fields))
}

fn parse(expr: &str) -> Option<Cron> {
    CronParser::builder().seconds(Seconds::Optional).build().parse(expr).ok()
}

/// Returns the first field that cannot be read by itself.
fn find_fault(fields: &[&str]) -> CronError {
    let names = &FIELDS[FIELDS.len() - fields.len()..];
    for (index, &(name, range)) in names.iter().enumerate() {
        let mut alone = vec!["*"; fields.len()];
        alone[index] = fields[index];
        if parse(&alone.join(" ")).is_none() {
            return CronError::Field { name, written: fields[index].to_owned(), range };
        }
    }
    CronError::Combination
}

/// The fields and their values; the first one is optional.
const FIELDS: [(&str, &str); 6] = [
    ("second", "0-59"),
    ("minute", "0-59"),
    ("hour", "0-23"),
    ("day of the month", "1-31 or L"),
    ("month", "1-12 or JAN-DEC"),
    ("weekday", "0-7 (0 and 7 are Sunday) or SUN-SAT"),
];

/// Nicknames of other crons.
const NICKNAMES: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

/// Returns true if the IANA database has a zone of this name.
pub(crate) fn is_zone(name: &str) -> bool {
    name.parse::<chrono_tz::Tz>().is_ok()
}

/// Returns the zone that was probably meant: the same but for case and one letter, or a city without its
/// region.
pub(crate) fn nearest_zone(written: &str) -> Option<&'static str> {
    let written = written.to_lowercase().replace(' ', "_");
    let is_near = |zone: &&str| {
        let zone = zone.to_lowercase();
        zone.rsplit('/').next() == Some(written.as_str()) || strsim::damerau_levenshtein(&zone, &written) <= 1
    };
    chrono_tz::TZ_VARIANTS.iter().map(|zone| zone.name()).find(is_near).filter(|_| written.len() > 3)
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
        for (expr, expected) in [
            ("0 25 * * *", "the hour is \"25\", but it must be 0-23"),
            ("0 0 8 * * mo", "the weekday is \"mo\", but it must be 0-7"),
            ("60 0 * * *", "the minute is \"60\", but it must be 0-59"),
            ("@daily", "write `0 0 * * *`"),
        ] {
            let said = check_expression(expr).unwrap_err().to_string();
            assert!(said.contains(expected), "{expr}: {said}");
        }
        for (written, expected) in [
            ("europe/vienna", Some("Europe/Vienna")),
            ("Europe/Viena", Some("Europe/Vienna")),
            ("Vienna", Some("Europe/Vienna")),
            ("America/New York", Some("America/New_York")),
            ("Europe/Wien", None),
        ] {
            assert_eq!(nearest_zone(written), expected, "{written}");
        }
        assert!(is_zone("Europe/Vienna") && is_zone("UTC") && !is_zone("Europe/Wien") && !is_zone(""));
    }
}
