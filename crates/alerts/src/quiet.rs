//! Hours in which nothing is sent. Pure.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer};

/// A day, in minutes.
const DAY: u64 = 24 * 60;

/// From a minute of the UTC day until another; over midnight where the first is later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuietHours {
    from: u64,
    until: u64,
}

impl QuietHours {
    /// True when a time, in milliseconds since 1970, is in them.
    pub fn contains(self, now: u64) -> bool {
        let minute = now / 60_000 % DAY;
        if self.from <= self.until {
            (self.from..self.until).contains(&minute)
        } else {
            minute >= self.from || minute < self.until
        }
    }
}

impl FromStr for QuietHours {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a valid range of hours: write it in UTC, as \"22:00-07:00\"");
        let minute = |part: &str| {
            let (hours, minutes) = part.trim().split_once(':')?;
            let (hours, minutes): (u64, u64) = (hours.parse().ok()?, minutes.parse().ok()?);
            (hours < 24 && minutes < 60).then_some(hours * 60 + minutes)
        };
        let (from, until) = text.split_once('-').ok_or_else(wrong)?;
        Ok(Self { from: minute(from).ok_or_else(wrong)?, until: minute(until).ok_or_else(wrong)? })
    }
}

impl fmt::Display for QuietHours {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |minute: u64| format!("{:02}:{:02}", minute / 60, minute % 60);
        write!(out, "{}-{}", part(self.from), part(self.until))
    }
}

impl<'de> Deserialize<'de> for QuietHours {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        String::deserialize(source)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_may_go_over_midnight() {
        let check = |hours: &str, time: (u64, u64), expected: bool| {
            let hours: QuietHours = hours.parse().unwrap();
            let now = (20_000 * DAY + time.0 * 60 + time.1) * 60_000;
            assert_eq!(hours.contains(now), expected, "{hours} {time:?}");
        };
        check("22:00-07:00", (21, 59), false);
        check("22:00-07:00", (22, 0), true);
        check("22:00-07:00", (6, 59), true);
        check("22:00-07:00", (7, 0), false);
        check("12:00-13:30", (13, 0), true);
        check("12:00-13:30", (1, 0), false);
        assert_eq!("9:5-17:00".parse::<QuietHours>().unwrap().to_string(), "09:05-17:00");
        ["", "22-7", "25:00-07:00", "22:00"]
            .iter()
            .for_each(|text| assert!(text.parse::<QuietHours>().is_err()));
    }
}
