//! When a cron trigger is due: its expression in its time zone (croner, chrono-tz), and which missed times
//! are made up for. Pure: times come in as milliseconds since 1970.
//!
//! When clocks are put forward, a time in the gap fires at its end; when they are put back, a fixed time
//! fires once, and `*/30` in both hours (measured with croner).

use chrono::{DateTime, SecondsFormat, TimeZone as _, Utc};
use chrono_tz::Tz;
use croner::Cron;

use super::{CronError, parse_expression};
use crate::watch::Watch;

/// A time that was missed while nothing watched is made up for if it is younger than this, in milliseconds.
const MADE_UP_FOR: u64 = 3_600_000;
/// The most times that come due at one check.
const MOST: usize = 100;

/// The times of a cron trigger.
#[derive(Clone, Debug)]
pub struct Schedule {
    cron: Cron,
    zone: Tz,
}

impl Schedule {
    /// Returns the schedule of an expression, in UTC unless it names a zone.
    ///
    /// # Errors
    /// The fault, for people.
    pub fn new(expr: &str, zone: Option<&str>) -> Result<Self, CronError> {
        let name = zone.unwrap_or("UTC");
        let zone = name.parse().map_err(|_| CronError::UnknownZone(name.to_owned()))?;
        Ok(Self { cron: parse_expression(expr)?, zone })
    }

    /// Returns the first time after this one; `None` after the last.
    pub fn next_after(&self, after: u64) -> Option<u64> {
        let from = self.zone.timestamp_millis_opt(i64::try_from(after).ok()?).single()?;
        let next = self.cron.find_next_occurrence(&from, false).ok()?;
        u64::try_from(next.timestamp_millis()).ok().filter(|next| *next > after)
    }

    /// Returns the times for which the trigger must fire now, oldest first: all that came due while the clock
    /// was watched, and of those missed before only the latest, once, if it is younger than an hour.
    pub fn due(&self, watch: Watch) -> Vec<u64> {
        let on_time = self.times_between(watch.mark.max(watch.since), watch.now);
        if !on_time.is_empty() {
            return on_time;
        }
        let from = watch.mark.max(watch.now.saturating_sub(MADE_UP_FOR));
        self.latest(from, watch.since.min(watch.now)).into_iter().collect()
    }

    /// Returns the first time that came due and is not among those that are fired for; `None` if nothing was
    /// missed for good.
    pub fn first_missed(&self, watch: Watch, fired: &[u64]) -> Option<u64> {
        self.next_after(watch.mark).filter(|time| *time <= watch.now && !fired.contains(time))
    }

    fn times_after(&self, after: u64, until: u64) -> impl Iterator<Item = u64> {
        let times = std::iter::successors(self.next_after(after), |last| self.next_after(*last));
        times.take_while(move |time| *time <= until)
    }

    /// Returns the times after the first instant, up to and including the second.
    fn times_between(&self, after: u64, until: u64) -> Vec<u64> {
        self.times_after(after, until).take(MOST).collect()
    }

    fn latest(&self, after: u64, until: u64) -> Option<u64> {
        self.times_after(after, until).last()
    }

    /// Returns a time in the schedule's zone, such as `2026-03-29T08:00:00+02:00`.
    pub fn format_time(&self, time: u64) -> String {
        let utc = DateTime::<Utc>::from_timestamp_millis(i64::try_from(time).unwrap_or(i64::MAX));
        utc.unwrap_or_default().with_timezone(&self.zone).to_rfc3339_opts(SecondsFormat::Secs, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> u64 {
        u64::try_from(DateTime::parse_from_rfc3339(text).unwrap().timestamp_millis()).unwrap()
    }

    fn schedule(expr: &str, zone: &str) -> Schedule {
        Schedule::new(expr, Some(zone)).unwrap()
    }

    /// The times between two instants, in the zone.
    fn check(expr: &str, zone: &str, [from, until]: [&str; 2], expected: &[&str]) {
        let schedule = schedule(expr, zone);
        let found: Vec<String> = schedule
            .times_between(at(from), at(until))
            .into_iter()
            .map(|time| schedule.format_time(time))
            .collect();
        assert_eq!(found, expected, "{expr} {zone} {from}");
    }

    #[test]
    fn six_fields_begin_with_seconds() {
        let hour = ["2026-11-20T07:59:59Z", "2026-11-20T08:00:59Z"];
        check("0 8 * * 1-5", "UTC", hour, &["2026-11-20T08:00:00Z"]);
        check("*/30 0 8 * * *", "UTC", hour, &["2026-11-20T08:00:00Z", "2026-11-20T08:00:30Z"]);
        check(
            "0 8 * * 1-5",
            "Australia/Sydney",
            ["2026-11-19T20:00:00Z", "2026-11-20T20:00:00Z"],
            &["2026-11-20T08:00:00+11:00"],
        );
        check("0 8 * * 6", "UTC", hour, &[]);
    }

    #[test]
    fn intervals_exclude_their_start() {
        check(
            "0 8 * * *",
            "UTC",
            ["2026-11-20T08:00:00Z", "2026-11-21T08:00:00Z"],
            &["2026-11-21T08:00:00Z"],
        );
        check(
            "* * * * *",
            "UTC",
            ["2026-11-20T08:00:00.500Z", "2026-11-20T08:01:00Z"],
            &["2026-11-20T08:01:00Z"],
        );
    }

    #[test]
    fn times_in_the_gap_fire_at_its_end() {
        let night = ["2026-03-28T23:00:00Z", "2026-03-29T04:00:00Z"];
        check("30 2 * * *", "Europe/Vienna", night, &["2026-03-29T03:00:00+02:00"]);
        check("30 3 * * *", "Europe/Vienna", night, &["2026-03-29T03:30:00+02:00"]);
        check(
            "30 2 * * *",
            "America/New_York",
            ["2026-03-08T05:00:00Z", "2026-03-08T09:00:00Z"],
            &["2026-03-08T03:00:00-04:00"],
        );
    }

    #[test]
    fn repeated_hours_fire_fixed_times_once() {
        let night = ["2026-10-24T23:30:00Z", "2026-10-25T03:00:00Z"];
        check("30 2 * * *", "Europe/Vienna", night, &["2026-10-25T02:30:00+02:00"]);
        let both = [
            "2026-10-25T02:00:00+02:00",
            "2026-10-25T02:30:00+02:00",
            "2026-10-25T02:00:00+01:00",
            "2026-10-25T02:30:00+01:00",
            "2026-10-25T03:00:00+01:00",
            "2026-10-25T03:30:00+01:00",
            "2026-10-25T04:00:00+01:00",
        ];
        check("*/30 * * * *", "Europe/Vienna", night, &both);
    }

    #[test]
    fn missing_days_are_skipped() {
        let years = ["2026-01-01T00:00:00Z", "2029-01-01T00:00:00Z"];
        check("0 0 29 2 *", "UTC", years, &["2028-02-29T00:00:00Z"]);
        check(
            "0 0 31 * *",
            "UTC",
            ["2026-01-31T12:00:00Z", "2026-04-01T00:00:00Z"],
            &["2026-03-31T00:00:00Z"],
        );
        let never = schedule("0 0 30 2 *", "UTC");
        assert_eq!(never.next_after(at("2026-01-01T00:00:00Z")), None);
    }

    fn due(expr: &str, [mark, since, now]: [&str; 3]) -> Vec<String> {
        let schedule = schedule(expr, "UTC");
        let times = schedule.due(Watch { mark: at(mark), since: at(since), now: at(now) });
        times.into_iter().map(|time| schedule.format_time(time)).collect()
    }

    #[test]
    fn missed_times_are_reported() {
        let missed = |mark: &str, now: &str| {
            let schedule = schedule("0 * * * *", "UTC");
            let watch = Watch { mark: at(mark), since: at(now), now: at(now) };
            let fired = schedule.due(watch);
            (schedule.first_missed(watch, &fired).map(|time| schedule.format_time(time)), fired.len())
        };
        let first = Some("2026-11-20T09:00:00Z".to_owned());
        assert_eq!(missed("2026-11-20T08:00:00Z", "2026-11-20T12:20:00Z"), (first, 1));
        assert_eq!(missed("2026-11-20T08:00:00Z", "2026-11-20T09:20:00Z"), (None, 1));
        assert_eq!(missed("2026-11-20T08:00:00Z", "2026-11-20T08:20:00Z"), (None, 0));
    }

    #[test]
    fn watched_times_all_fire() {
        let found =
            due("* * * * *", ["2026-11-20T08:00:00Z", "2026-11-20T07:00:00Z", "2026-11-20T08:02:01Z"]);
        assert_eq!(found, ["2026-11-20T08:01:00Z", "2026-11-20T08:02:00Z"]);
        assert!(
            due("* * * * *", ["2026-11-20T08:00:00Z", "2026-11-20T07:00:00Z", "2026-11-20T08:00:59Z"])
                .is_empty()
        );
    }

    #[test]
    fn the_latest_missed_time_fires_once() {
        // Not running from Monday to Friday, back at 08:20.
        let back = "2026-11-20T08:20:00Z";
        assert_eq!(due("0 8 * * *", ["2026-11-16T08:00:00Z", back, back]), ["2026-11-20T08:00:00Z"]);
        assert_eq!(due("*/5 * * * *", ["2026-11-16T08:00:00Z", back, back]), ["2026-11-20T08:20:00Z"]);
        assert!(due("0 8 * * *", ["2026-11-20T08:00:00Z", back, back]).is_empty(), "it has fired");
        assert!(
            due("0 7 * * *", ["2026-11-16T08:00:00Z", back, back]).is_empty(),
            "it is older than an hour"
        );
        assert!(due("20 7 * * *", ["2026-11-16T08:00:00Z", back, back]).is_empty(), "it is an hour old");
        assert_eq!(due("21 7 * * *", ["2026-11-16T08:00:00Z", back, back]).len(), 1);
    }

    /// A missed time is not made up for if another is due now: one run is enough.
    #[test]
    fn due_times_replace_missed_ones() {
        let found =
            due("*/10 * * * *", ["2026-11-20T08:00:00Z", "2026-11-20T08:19:59Z", "2026-11-20T08:20:00Z"]);
        assert_eq!(found, ["2026-11-20T08:20:00Z"]);
    }

    #[test]
    fn clocks_put_back_do_not_repeat() {
        assert!(
            due("0 8 * * *", ["2026-11-20T08:00:00Z", "2026-11-20T09:00:00Z", "2026-11-20T07:59:00Z"])
                .is_empty()
        );
    }
}
