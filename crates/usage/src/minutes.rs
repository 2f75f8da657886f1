//! Counts the requests of the last hours for alerts, by the minute, so that a busy server needs no more
//! memory than an idle one. Pure: the time is an argument.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use wire::UsageRow;
use wire::{ErrorCode, is_request_fault};

/// A minute, in milliseconds.
const MINUTE: u64 = 60_000;
/// The number of minutes that are kept: six hours.
const KEPT: usize = 360;
/// The number of first bytes that are kept of each minute, the last ones.
const SAMPLES: usize = 50;
/// The number of pairs of an upstream and its error that are kept of each minute.
const ERRORS: usize = 50;
/// The number of overlong requests that are kept of each minute.
const OVERFLOWS: usize = 1_000;
/// A longer wait for a place at an upstream counts as long, in milliseconds.
const LONG_WAIT: u64 = 10_000;

/// The facts about an ended request that alerts need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestOutcome {
    /// It failed through no fault of the client.
    pub failed: bool,
    /// Its reply was requested again.
    pub asked_again: bool,
    /// It was ended as a loop.
    pub loop_stopped: bool,
    /// It exceeded the model's window. The number identifies the request, or the run that it is part of.
    pub overflowed: Option<u64>,
    /// The time that it waited for a place at an upstream that works, in milliseconds.
    pub queued: u64,
    /// The time to the first byte of the reply, in milliseconds.
    pub first_byte: Option<u64>,
    /// The upstreams at which it or an earlier attempt failed, each with the error's code.
    pub errors: Vec<(String, String)>,
    /// Where its prompt first differs from that of its conversation's last request, if most of it is read
    /// again.
    pub prefix_lost: Option<String>,
    /// The kinds of repairs that its calls needed, each with the upstream.
    pub repairs: Vec<(String, String)>,
}

impl RequestOutcome {
    /// Derives the facts from the request's row.
    pub fn from_row(row: &UsageRow) -> Self {
        let failed = row.outcome == "error";
        Self {
            failed: failed && !is_request_fault(&row.error_code, row.status),
            asked_again: !row.recovery.is_empty(),
            loop_stopped: !row.loop_stopped.is_empty(),
            overflowed: (row.error_code == ErrorCode::ContextLengthExceeded.as_str())
                .then(|| identity_of(row)),
            queued: 0,
            first_byte: row.first_byte.map(clock::to_millis),
            errors: {
                let last = failed.then(|| (row.upstream.clone(), row.error_code.clone()));
                let earlier = row.details.earlier_attempts.iter().filter(|attempt| !attempt.code.is_empty());
                earlier.map(|attempt| (attempt.upstream.clone(), attempt.code.clone())).chain(last).collect()
            },
            prefix_lost: None,
            repairs: row
                .repairs
                .split(',')
                .filter(|kind| !kind.is_empty())
                .map(|kind| (row.upstream.clone(), kind.to_owned()))
                .collect(),
        }
    }
}

/// Returns a number that identifies a request. An agent's request and the model calls of its run share one.
fn identity_of(row: &UsageRow) -> u64 {
    let mut hasher = DefaultHasher::new();
    if row.run.is_empty() {
        (row.at, &row.id).hash(&mut hasher);
    } else {
        row.run.hash(&mut hasher);
    }
    hasher.finish()
}

/// Requests of a period, by their outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All of them.
    pub all: u64,
    /// Those that failed through no fault of the client.
    pub failed: u64,
    /// The same, by upstream and code of the error.
    pub failures: BTreeMap<(String, String), u64>,
    /// Those whose reply was requested again.
    pub asked_again: u64,
    /// Those that waited long for a place.
    pub waited_long: u64,
    /// Those that were ended as a loop.
    pub loops_stopped: u64,
    /// Those that exceeded the model's window; a run counts once.
    pub overflowed: BTreeSet<u64>,
    /// The upstreams at which some failed, with the errors' codes.
    pub errors: BTreeSet<(String, String)>,
    /// Those whose prompt was read again for the most part.
    pub prefixes_lost: u64,
    /// Where the prompt of the last of them first differed.
    pub last_lost_prefix: Option<String>,
    /// Requests by upstream and the kind of repair that their calls needed.
    pub repairs: BTreeMap<(String, String), u64>,
}

impl Counts {
    /// Returns the codes of the errors that requests met at an upstream.
    pub fn codes_at<'a>(&'a self, upstream: &'a str) -> impl Iterator<Item = &'a str> {
        let there = self.errors.iter().filter(move |(name, code)| name == upstream && !code.is_empty());
        there.map(|(_, code)| code.as_str())
    }

    fn add(&mut self, ended: RequestOutcome) {
        self.all += 1;
        self.failed += u64::from(ended.failed);
        self.asked_again += u64::from(ended.asked_again);
        self.waited_long += u64::from(ended.queued > LONG_WAIT);
        self.loops_stopped += u64::from(ended.loop_stopped);
        self.overflowed.extend(ended.overflowed.filter(|_| self.overflowed.len() < OVERFLOWS));
        if let Some(last) = ended.errors.last().filter(|_| ended.failed)
            && (self.failures.len() < ERRORS || self.failures.contains_key(last))
        {
            *self.failures.entry(last.clone()).or_default() += 1;
        }
        let room = ERRORS.saturating_sub(self.errors.len());
        self.errors.extend(ended.errors.into_iter().take(room));
        self.prefixes_lost += u64::from(ended.prefix_lost.is_some());
        self.last_lost_prefix = ended.prefix_lost.or(self.last_lost_prefix.take());
        for repair in ended.repairs {
            if self.repairs.len() < ERRORS || self.repairs.contains_key(&repair) {
                *self.repairs.entry(repair).or_default() += 1;
            }
        }
    }

    fn merge(mut self, other: &Self) -> Self {
        self.all += other.all;
        self.failed += other.failed;
        for (failure, count) in &other.failures {
            *self.failures.entry(failure.clone()).or_default() += count;
        }
        self.asked_again += other.asked_again;
        self.waited_long += other.waited_long;
        self.loops_stopped += other.loops_stopped;
        self.overflowed.extend(&other.overflowed);
        self.errors.extend(other.errors.iter().cloned());
        self.prefixes_lost += other.prefixes_lost;
        self.last_lost_prefix = other.last_lost_prefix.clone().or(self.last_lost_prefix);
        for (repair, count) in &other.repairs {
            *self.repairs.entry(repair.clone()).or_default() += count;
        }
        self
    }
}

/// The requests of one minute.
#[derive(Clone, Debug)]
struct Minute {
    /// Its number since 1970.
    number: u64,
    counts: Counts,
    /// The times to the first byte of some replies, in milliseconds.
    first_bytes: VecDeque<u64>,
}

/// The requests of the last hours.
#[derive(Clone, Debug, Default)]
pub struct Minutes {
    /// The last minutes in which requests ended, the oldest first.
    minutes: VecDeque<Minute>,
    /// The upstreams that refused respool's key or a secure connection and have not worked since: each with
    /// the error's code, and when it last happened.
    refusals: BTreeMap<(String, ErrorCode), u64>,
}

impl Minutes {
    /// Adds a request that ended at this time, in milliseconds since 1970.
    pub fn add_request(&mut self, ended: RequestOutcome, at: u64) {
        ended.errors.iter().for_each(|error| self.note_refusal(error, at));
        // After a clock was set back, the last minute goes on.
        let number = (at / MINUTE).max(self.minutes.back().map_or(0, |last| last.number));
        while self.minutes.front().is_some_and(|first| first.number + KEPT as u64 <= number) {
            self.minutes.pop_front();
        }
        if self.minutes.back().is_none_or(|last| last.number < number) {
            self.minutes.push_back(Minute {
                number,
                counts: Counts::default(),
                first_bytes: VecDeque::new(),
            });
        }
        let Some(minute) = self.minutes.back_mut() else { return };
        if let Some(first_byte) = ended.first_byte {
            if minute.first_bytes.len() == SAMPLES {
                minute.first_bytes.pop_front();
            }
            minute.first_bytes.push_back(first_byte);
        }
        minute.counts.add(ended);
    }

    fn note_refusal(&mut self, (upstream, code): &(String, String), at: u64) {
        let refusals = [ErrorCode::UpstreamCredentialsRefused, ErrorCode::UpstreamTls];
        let Some(code) = refusals.into_iter().find(|refusal| refusal.as_str() == code) else { return };
        let refusal = (upstream.clone(), code);
        if self.refusals.len() < ERRORS || self.refusals.contains_key(&refusal) {
            self.refusals.insert(refusal, at);
        }
    }

    /// Forgets that an upstream refused respool, because it works.
    pub fn forget_refusals(&mut self, upstream: &str) {
        // Called for every reply.
        if !self.refusals.is_empty() {
            self.refusals.retain(|(name, _), _| name != upstream);
        }
    }

    /// Returns the upstreams that have refused respool since a time, in milliseconds since 1970, and have not
    /// worked after that, each with the error's code.
    pub fn refusals_since(&self, since: u64) -> impl Iterator<Item = (&str, ErrorCode)> {
        let recent = self.refusals.iter().filter(move |(_, at)| **at >= since);
        recent.map(|((upstream, code), _)| (upstream.as_str(), *code))
    }

    /// Counts the requests that ended since a time in milliseconds since 1970, to the minute.
    pub fn counts_since(&self, since: u64) -> Counts {
        let counts =
            self.minutes.iter().filter(|minute| minute.ended_after(since)).map(|minute| &minute.counts);
        counts.fold(Counts::default(), Counts::merge)
    }

    /// Returns the median times to the first byte before and since a time, in milliseconds, if there are at
    /// least `least` samples.
    pub fn first_bytes(&self, since: u64, least: usize) -> (Option<u64>, Option<u64>) {
        let median = |is_late: bool| {
            let minutes = self.minutes.iter().filter(|minute| minute.ended_after(since) == is_late);
            let mut times: Vec<u64> = minutes.flat_map(|minute| minute.first_bytes.iter().copied()).collect();
            times.sort_unstable();
            (times.len() >= least).then(|| times[times.len() / 2])
        };
        (median(false), median(true))
    }
}

impl Minute {
    fn ended_after(&self, since: u64) -> bool {
        (self.number + 1) * MINUTE > since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 60 * MINUTE;

    #[test]
    fn a_busy_server_keeps_every_hour() {
        let mut minutes = Minutes::default();
        // Fifty requests a second for seven hours: fast at first, and slow in the last ten minutes.
        for second in 0..7 * 3_600 {
            for _ in 0..50 {
                let first_byte = Some(if second < 6 * 3_600 + 50 * 60 { 100 } else { 9_000 });
                minutes
                    .add_request(RequestOutcome { first_byte, ..RequestOutcome::default() }, second * 1_000);
            }
        }
        assert_eq!(minutes.minutes.len(), KEPT);
        assert!(minutes.minutes.iter().all(|minute| minute.first_bytes.len() == SAMPLES));
        assert_eq!(minutes.first_bytes(7 * HOUR - 10 * MINUTE, 10), (Some(100), Some(9_000)));
        assert_eq!(minutes.counts_since(7 * HOUR - 5 * MINUTE).all, 5 * 60 * 50);
        assert_eq!(minutes.counts_since(0).all, 6 * 3_600 * 50);
    }

    #[test]
    fn a_run_that_is_too_long_counts_once() {
        let row = |run: &str, id: &str| UsageRow {
            run: run.into(),
            id: id.into(),
            error_code: ErrorCode::ContextLengthExceeded.as_str().into(),
            ..UsageRow::default()
        };
        let mut minutes = Minutes::default();
        let rows = [row("run-1", "a"), row("run-1", "b"), row("", "c"), row("", "d"), row("run-2", "e")];
        for (minute, row) in rows.iter().enumerate() {
            minutes.add_request(RequestOutcome::from_row(row), minute as u64 * MINUTE);
        }
        assert_eq!(minutes.counts_since(0).overflowed.len(), 4);
    }

    /// Regression: an upstream that failed every request had no errors, because another one answered them.
    #[test]
    fn errors_of_earlier_attempts_count() {
        let attempt = wire::EarlierAttempt {
            upstream: "down".into(),
            code: "upstream_unreachable".into(),
            ..wire::EarlierAttempt::default()
        };
        let mut row = UsageRow { upstream: "up".into(), outcome: "ok".into(), ..UsageRow::default() };
        row.details.earlier_attempts = vec![attempt.clone(), wire::EarlierAttempt::default()];
        let expected = [(attempt.upstream, attempt.code)];
        assert_eq!(RequestOutcome::from_row(&row).errors, expected);
    }

    #[test]
    fn a_clock_put_back_loses_nothing() {
        let mut minutes = Minutes::default();
        minutes.add_request(RequestOutcome::default(), 10 * MINUTE);
        minutes.add_request(RequestOutcome { failed: true, ..RequestOutcome::default() }, 2 * MINUTE);
        let counts = minutes.counts_since(10 * MINUTE);
        assert_eq!((counts.all, counts.failed), (2, 1));
    }
}
