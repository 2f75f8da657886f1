//! The pure decisions of a queue: which lane, when again, and what is the same. No clock, no I/O.

use wire::digest::{hex, sha256};

/// A lane: entries of the same lane of a queue run one at a time, in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneKey(pub(crate) String);

impl LaneKey {
    /// Returns the one lane of a trigger.
    pub fn serial(trigger: &str) -> Self {
        Self(joined(&["serial", trigger]))
    }

    /// Returns the lane of a key's value; it spans all triggers that name the same key.
    pub fn per_key(path: &str, value: &str) -> Self {
        Self(joined(&["key", path, value]))
    }

    /// Returns the key as the store has it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Identifies equal events.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DedupeKey(pub(crate) String);

impl DedupeKey {
    /// Returns the key of an event: of which queue, by which trigger, with which value. Of a bounded length
    /// whatever the value is.
    pub fn new(queue: &str, trigger: &str, value: &str) -> Self {
        Self(hex(&sha256(joined(&[queue, trigger, value]).as_bytes())))
    }
}

/// Parts as one text in such a way that no two lists of parts are the same text.
fn joined(parts: &[&str]) -> String {
    parts.iter().flat_map(|part| [part.len().to_string(), ":".to_owned(), (*part).to_owned()]).collect()
}

/// How the pauses between attempts grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackoffKind {
    /// They do not.
    Fixed,
    /// Each is twice the one before.
    #[default]
    Exponential,
}

/// The pauses between attempts, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// How they grow.
    pub kind: BackoffKind,
    /// The first one.
    pub delay: u64,
    /// No pause is longer.
    pub longest: u64,
}

impl Backoff {
    /// Returns the pause after a failed attempt, the first of which is 1.
    pub fn after(&self, attempt: u32) -> u64 {
        let factor = match self.kind {
            BackoffKind::Fixed => 1,
            BackoffKind::Exponential => 1_u64.checked_shl(attempt.saturating_sub(1)).unwrap_or(u64::MAX),
        };
        self.delay.saturating_mul(factor).min(self.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_bound() {
        let hour = 3_600_000;
        let check = |kind, expected: [u64; 4]| {
            let backoff = Backoff { kind, delay: 30_000, longest: hour };
            assert_eq!([1, 2, 3, 200].map(|attempt| backoff.after(attempt)), expected, "{kind:?}");
        };
        check(BackoffKind::Fixed, [30_000; 4]);
        check(BackoffKind::Exponential, [30_000, 60_000, 120_000, hour]);
        let long = Backoff { kind: BackoffKind::Fixed, delay: 2 * hour, longest: hour };
        assert_eq!(long.after(1), hour);
    }

    #[test]
    fn no_value_can_pose_as_another_lane_or_key() {
        assert_ne!(LaneKey::per_key("a", "b1:c"), LaneKey::per_key("ab", "1:c"));
        assert_ne!(LaneKey::serial("key1:a1:b"), LaneKey::per_key("a", "b"));
        assert_eq!(LaneKey::per_key("contact_id", "7"), LaneKey::per_key("contact_id", "7"));
        assert_ne!(DedupeKey::new("a", "b", "c"), DedupeKey::new("ab", "", "c"));
        assert_eq!(DedupeKey::new("a", "b", &"x".repeat(100_000)).0.len(), 64);
    }
}
