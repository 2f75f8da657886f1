//! Wrong keys, by the address that they came from: an address that tries many has to wait. Pure: time comes
//! in as a number. Used by `access`.
//!
//! While an address has to wait, its short keys are not looked at, right or wrong, so that guessing learns
//! nothing. Keys that were used from there before still hold, and so do long ones, which cannot be guessed:
//! clients behind one proxy must not shut each other out.

use std::net::IpAddr;

use lru::LruCache;

/// How many wrong keys an address may send in one period.
const MOST: u32 = 20;
/// The period, in milliseconds.
const PERIOD: u64 = 60_000;
/// How many addresses are remembered, the last ones.
const ADDRESSES: usize = 4_096;

/// One place on the network: an address, or the half of an IPv6 address that stands for a subscriber's
/// network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Neighbour(u128);

impl From<IpAddr> for Neighbour {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self(u128::from(u32::from(address))),
            IpAddr::V6(address) => Self((u128::from(address) >> 64 << 64) | 1),
        }
    }
}

/// The wrong keys of one period.
#[derive(Clone, Copy, Debug)]
struct Tries {
    since: u64,
    count: u32,
}

/// The addresses that sent wrong keys of late.
#[derive(Debug)]
pub(super) struct WrongKeys(LruCache<Neighbour, Tries>);

impl Default for WrongKeys {
    fn default() -> Self {
        Self(LruCache::unbounded())
    }
}

impl WrongKeys {
    /// Returns the seconds that this neighbour has to wait.
    pub(super) fn required_wait(&self, from: Neighbour, now: u64) -> Option<u64> {
        let tries = self.0.peek(&from).filter(|tries| tries.count >= MOST)?;
        let left = (tries.since + PERIOD).checked_sub(now).filter(|left| *left > 0)?;
        Some(left.div_ceil(1_000))
    }

    /// Counts a wrong key. True when it is the one from which on the neighbour has to wait.
    pub(super) fn count_wrong_key(&mut self, from: Neighbour, now: u64) -> bool {
        let fresh = Tries { since: now, count: 0 };
        if self.0.len() >= ADDRESSES && !self.0.contains(&from) {
            self.0.pop_lru();
        }
        let tries = self.0.get_or_insert_mut(from, || fresh);
        if tries.since + PERIOD <= now {
            *tries = fresh;
        }
        tries.count = tries.count.saturating_add(1);
        tries.count == MOST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn neighbour(address: &str) -> Neighbour {
        Neighbour::from(address.parse::<IpAddr>().unwrap())
    }

    #[test]
    fn only_a_guessing_address_waits() {
        let (mut wrong, guesser, other) =
            (WrongKeys::default(), neighbour("192.0.2.1"), neighbour("192.0.2.2"));
        for index in 1..=MOST {
            assert_eq!(wrong.required_wait(guesser, 1_000), None, "{index}");
            assert_eq!(wrong.count_wrong_key(guesser, 1_000), index == MOST);
        }
        assert_eq!(wrong.required_wait(guesser, 1_000), Some(60));
        assert_eq!(wrong.required_wait(guesser, 60_999), Some(1));
        assert_eq!(wrong.required_wait(guesser, 61_000), None);
        assert_eq!(wrong.required_wait(other, 1_000), None);
        assert!(!wrong.count_wrong_key(guesser, 61_000));
        assert_eq!(wrong.required_wait(guesser, 61_000), None, "a new period");
    }

    #[test]
    fn a_network_is_one_neighbour() {
        assert_eq!(neighbour("2001:db8::1"), neighbour("2001:db8::ffff:1"));
        assert_ne!(neighbour("2001:db8::1"), neighbour("2001:db8:0:1::1"));
        assert_eq!(neighbour("::ffff:192.0.2.1"), neighbour("192.0.2.1"));
        assert_ne!(neighbour("192.0.2.1"), neighbour("192.0.2.2"));
    }

    #[test]
    fn memory_is_bounded() {
        let mut wrong = WrongKeys::default();
        for address in 0..20_000_u32 {
            wrong.count_wrong_key(Neighbour::from(IpAddr::from(address.to_be_bytes())), 0);
        }
        assert_eq!(wrong.0.len(), ADDRESSES);
    }
}
