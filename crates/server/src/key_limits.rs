//! The limits of a key and the counters for them: requests a minute, requests at a time, tokens a day. Pure:
//! time comes in as a number. Used by `meter`.

use std::collections::VecDeque;

use upstream::Priority;
use wire::pattern::matches_stars;

/// A minute, in milliseconds.
const MINUTE: u64 = 60_000;
/// A day, in milliseconds.
const DAY: u64 = 24 * 60 * MINUTE;
/// The assumed duration of a request before one has ended, in milliseconds.
const FIRST_GUESS: u64 = 5_000;
/// The bodies that may be read at a time, even if a key permits fewer requests.
const FEW_BODIES: u32 = 8;

/// The models and the amounts that a key permits. `None`: no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KeyLimits {
    /// The models that may be asked for, by the names that clients use; `*` is any text.
    pub(super) models: Option<Vec<String>>,
    /// The agents that may be asked, likewise.
    pub(super) agents: Option<Vec<String>>,
    /// Requests in any minute.
    pub(super) requests_per_minute: Option<u32>,
    /// Tokens of prompts and replies in one UTC day.
    pub(super) tokens_per_day: Option<u64>,
    /// Requests at a time.
    pub(super) max_concurrency: Option<u32>,
    /// How urgent its requests are at most.
    pub(super) priority: Option<Priority>,
}

impl KeyLimits {
    /// Returns these limits, and those of `others` where these are not set.
    #[must_use]
    pub(super) fn or(self, others: &Self) -> Self {
        Self {
            models: self.models.or_else(|| others.models.clone()),
            agents: self.agents.or_else(|| others.agents.clone()),
            requests_per_minute: self.requests_per_minute.or(others.requests_per_minute),
            tokens_per_day: self.tokens_per_day.or(others.tokens_per_day),
            max_concurrency: self.max_concurrency.or(others.max_concurrency),
            priority: self.priority.or(others.priority),
        }
    }

    /// Returns one process's part of the amounts, where several share them: an equal part of the requests,
    /// rounded up. Tokens are counted for all processes together.
    pub(super) fn share_of(&self, nodes: u32) -> Self {
        let part = |amount: Option<u32>| amount.map(|amount| amount.div_ceil(nodes.max(1)));
        Self {
            models: None,
            agents: None,
            requests_per_minute: part(self.requests_per_minute),
            tokens_per_day: self.tokens_per_day,
            max_concurrency: part(self.max_concurrency),
            priority: None,
        }
    }

    /// Returns true if some models or agents are forbidden.
    pub(super) fn is_restricted(&self) -> bool {
        self.models.is_some() || self.agents.is_some()
    }

    /// Returns true if this model or agent is permitted.
    pub(super) fn permits(&self, name: &str, is_agent: bool) -> bool {
        let permitted = if is_agent { &self.agents } else { &self.models };
        permitted.as_ref().is_none_or(|list| list.iter().any(|pattern| matches_stars(pattern, name)))
    }
}

/// A moment, in two clocks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timestamps {
    /// Milliseconds of a clock that only goes forward.
    pub(super) steady: u64,
    /// Milliseconds since 1970.
    pub(super) since_1970: u64,
}

impl Timestamps {
    /// Seconds until the next UTC day, at least one.
    fn seconds_to_midnight(self) -> u64 {
        whole_seconds(DAY - self.since_1970 % DAY)
    }
}

/// Returns the milliseconds as whole seconds, rounded up.
fn whole_seconds(milliseconds: u64) -> u64 {
    milliseconds.div_ceil(1_000).max(1)
}

/// A limit that was reached, and the time to wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Exceeded {
    /// The limit, in words.
    pub(super) limit: String,
    /// The seconds until another request may pass.
    pub(super) wait: u64,
}

/// The use of a key's limits.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// When the requests of the last minute came, oldest first.
    minute: VecDeque<u64>,
    running: u32,
    /// The bodies that are being read of requests that have not begun.
    reading: u32,
    /// The recent duration of requests, in milliseconds.
    lasting: Option<u64>,
}

impl Counters {
    /// Counts a body that is read from now on, unless too many are being read. Requests beyond
    /// `max_concurrency` are usually refused once they are read, in the form that suits their client; this
    /// holds off a client that sends bodies and never ends them.
    pub(super) fn begin_reading(&mut self, limits: &KeyLimits) -> Result<(), Exceeded> {
        if let Some(most) = limits.max_concurrency.filter(|most| self.reading >= (*most).max(FEW_BODIES)) {
            return Err(self.too_many(most));
        }
        self.reading += 1;
        Ok(())
    }

    /// Ends the reading of a counted body.
    pub(super) fn end_reading(&mut self) {
        self.reading = self.reading.saturating_sub(1);
    }

    fn too_many(&self, most: u32) -> Exceeded {
        let lasting = self.lasting.unwrap_or(FIRST_GUESS);
        Exceeded {
            limit: format!("{most} requests at a time"),
            wait: whole_seconds(lasting / u64::from(most.max(1))),
        }
    }

    /// Counts a request that begins now, unless a limit is reached. `tokens`: those that the key has used
    /// today.
    pub(super) fn begin_request(
        &mut self,
        limits: &KeyLimits,
        tokens: u64,
        now: Timestamps,
    ) -> Result<(), Exceeded> {
        if let Some(most) = limits.max_concurrency.filter(|most| self.running >= *most) {
            return Err(self.too_many(most));
        }
        if let Some(most) = limits.tokens_per_day.filter(|most| tokens >= *most) {
            return Err(Exceeded { limit: format!("{most} tokens a day"), wait: now.seconds_to_midnight() });
        }
        if let Some(most) = limits.requests_per_minute {
            while self.minute.front().is_some_and(|came| came + MINUTE <= now.steady) {
                self.minute.pop_front();
            }
            let most = usize::try_from(most).unwrap_or(usize::MAX);
            // There may be more than the limit allows if it was lowered.
            if let Some(came) = self.minute.len().checked_sub(most).and_then(|index| self.minute.get(index)) {
                let wait = whole_seconds((came + MINUTE).saturating_sub(now.steady));
                return Err(Exceeded { limit: format!("{most} requests a minute"), wait });
            }
            self.minute.push_back(now.steady);
        } else {
            self.minute.clear();
        }
        self.running += 1;
        Ok(())
    }

    /// Ends a counted request, which took these milliseconds.
    pub(super) fn end_request(&mut self, lasted: u64) {
        self.running = self.running.saturating_sub(1);
        self.lasting = Some(self.lasting.map_or(lasted, |before| (before * 7 + lasted) / 8));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(steady: u64) -> Timestamps {
        Timestamps { steady, since_1970: 20_000 * DAY + steady }
    }

    #[test]
    fn requests_a_minute_are_limited() {
        let limits = KeyLimits { requests_per_minute: Some(3), ..KeyLimits::default() };
        let mut counters = Counters::default();
        let mut check = |ms: u64, wait: Option<u64>| {
            let found = counters.begin_request(&limits, 0, at(ms)).err();
            assert_eq!(found.as_ref().map(|exceeded| exceeded.wait), wait, "{ms}");
            assert!(found.is_none_or(|exceeded| exceeded.limit == "3 requests a minute"));
        };
        [0, 10_000, 20_000].iter().for_each(|ms| check(*ms, None));
        check(20_001, Some(40));
        check(59_999, Some(1));
        check(60_000, None);
        check(60_001, Some(10));
        check(70_000, None);
    }

    #[test]
    fn processes_share_the_requests() {
        let limits =
            KeyLimits { requests_per_minute: Some(10), tokens_per_day: Some(9), ..KeyLimits::default() };
        let part = |nodes| limits.share_of(nodes).requests_per_minute;
        assert_eq!([part(0), part(1), part(3), part(20)], [Some(10), Some(10), Some(4), Some(1)]);
        assert_eq!((limits.share_of(3).tokens_per_day, limits.share_of(3).max_concurrency), (Some(9), None));
    }

    #[test]
    fn a_lowered_limit_holds_at_once() {
        let mut counters = Counters::default();
        let of = |most| KeyLimits { requests_per_minute: Some(most), ..KeyLimits::default() };
        for ms in 0..10 {
            counters.begin_request(&of(10), 0, at(ms * 1_000)).unwrap();
        }
        // Two of the last minute are allowed: the ninth of the ten has to be a minute old.
        assert_eq!(counters.begin_request(&of(2), 0, at(10_000)).unwrap_err().wait, 58);
    }

    #[test]
    fn used_tokens_are_refused_until_midnight() {
        let limits = KeyLimits { tokens_per_day: Some(100), ..KeyLimits::default() };
        let mut counters = Counters::default();
        counters.begin_request(&limits, 99, at(0)).unwrap();
        let exceeded = counters.begin_request(&limits, 100, at(DAY - 90_500)).unwrap_err();
        assert_eq!(exceeded, Exceeded { limit: "100 tokens a day".into(), wait: 91 });
    }

    #[test]
    fn requests_at_a_time_are_limited() {
        let limits = KeyLimits { max_concurrency: Some(2), ..KeyLimits::default() };
        let mut counters = Counters::default();
        counters.begin_request(&limits, 0, at(0)).unwrap();
        counters.begin_request(&limits, 0, at(0)).unwrap();
        assert_eq!(counters.begin_request(&limits, 0, at(0)).unwrap_err().wait, 3, "half of five seconds");
        counters.end_request(20_000);
        counters.begin_request(&limits, 0, at(0)).unwrap();
        let exceeded = counters.begin_request(&limits, 0, at(0)).unwrap_err();
        assert_eq!(exceeded, Exceeded { limit: "2 requests at a time".into(), wait: 10 });
    }

    #[test]
    fn bodies_at_a_time_are_limited() {
        for (max_concurrency, bodies) in [(Some(2), 8), (Some(20), 20), (None, 100)] {
            let limits = KeyLimits { max_concurrency, ..KeyLimits::default() };
            let mut counters = Counters::default();
            (0..bodies).for_each(|_| counters.begin_reading(&limits).unwrap());
            assert_eq!(counters.begin_reading(&limits).is_err(), max_concurrency.is_some());
            counters.end_reading();
            counters.begin_reading(&limits).unwrap();
        }
    }

    #[test]
    fn a_key_inherits_the_limits_of_all() {
        let all = KeyLimits {
            requests_per_minute: Some(5),
            models: Some(vec!["a".into()]),
            ..KeyLimits::default()
        };
        let own = KeyLimits { requests_per_minute: Some(9), ..KeyLimits::default() };
        let both = KeyLimits { requests_per_minute: Some(9), models: all.models.clone(), ..own.clone() };
        assert_eq!(own.or(&all), both);
    }

    #[test]
    fn models_and_agents_by_name_and_pattern() {
        let limits = KeyLimits {
            models: Some(vec!["gpt-oss-*".into(), "qwen".into()]),
            agents: Some(vec![]),
            ..KeyLimits::default()
        };
        for (name, is_agent, expected) in [
            ("gpt-oss-20b", false, true),
            ("gpt-oss-", false, true),
            ("qwen", false, true),
            ("qwen3", false, false),
            ("my-gpt-oss-20b", false, false),
            ("", false, false),
            ("gpt-oss-20b", true, false),
        ] {
            assert_eq!(limits.permits(name, is_agent), expected, "{name} {is_agent}");
        }
        assert!(KeyLimits::default().permits("any", true));
    }
}
