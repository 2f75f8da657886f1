//! The wall clock. The product reads it here and nowhere else, and every time that it stores, compares or
//! shows is a number of milliseconds since 1970. Code that decides something takes such a number, so that
//! tests choose the time.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How far the clock that is followed is ahead of the system's, in milliseconds.
static AHEAD: AtomicI64 = AtomicI64::new(0);

/// Returns the time in milliseconds since 1970; 0 for a clock that stands before that.
pub fn now() -> u64 {
    own_time().saturating_add_signed(AHEAD.load(Ordering::Relaxed))
}

/// Returns the time of the system's clock, whether or not another one is followed.
pub fn own_time() -> u64 {
    to_millis(system_time().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// Follows a clock that is this many milliseconds ahead of the system's: the one of a database that several
/// machines share. Returns how far the followed clock was ahead before.
pub fn follow(ahead: i64) -> i64 {
    AHEAD.swap(ahead, Ordering::Relaxed)
}

/// Returns how far the clock that is followed is ahead of the system's.
pub fn ahead() -> i64 {
    AHEAD.load(Ordering::Relaxed)
}

/// Returns the time as the interfaces of files and spans take it.
pub fn system_time() -> SystemTime {
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the system's clock")]
    SystemTime::now()
}

/// Returns the time in whole seconds since 1970, as `OpenAI`'s fields `created` and `created_at` have it.
pub fn now_in_seconds() -> u64 {
    now() / 1_000
}

/// Returns the time that was `span` ago, in milliseconds since 1970.
pub fn time_ago(span: Duration) -> u64 {
    now().saturating_sub(to_millis(span))
}

/// Returns a span in milliseconds. A span beyond the range becomes the longest one.
pub fn to_millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Writes a time in milliseconds since 1970 as people read it, to the second: `2026-11-24T08:00:00Z`. A time
/// beyond the year 9999 is written as the last one before it.
pub fn format_time(at: u64) -> String {
    const LAST: u64 = 253_402_300_799_000;
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_millis(at.min(LAST))).to_string()
}

/// Returns the date of today in UTC: `2026-11-24`.
pub fn today_utc() -> String {
    format_time(now()).chars().take(10).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_to_the_second() {
        assert_eq!(format_time(1_795_223_698_999), "2026-11-21T01:14:58Z");
        assert_eq!(format_time(u64::MAX), "9999-12-31T23:59:59Z");
    }

    #[test]
    fn another_clock_is_followed() {
        let day: u64 = 86_400_000;
        assert_eq!(follow(day.cast_signed()), 0);
        assert!(now() > own_time() + day / 2);
        assert_eq!(follow(0), day.cast_signed());
        assert!(now() < own_time() + day / 2);
    }

    #[test]
    fn spans_are_clamped() {
        assert_eq!(to_millis(Duration::MAX), u64::MAX);
        assert_eq!(time_ago(Duration::MAX), 0);
    }

    #[test]
    fn both_units_agree() {
        let (first, seconds, last) = (now(), now_in_seconds(), now());
        assert!((first / 1_000..=last / 1_000).contains(&seconds));
    }
}
