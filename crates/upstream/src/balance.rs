//! Chooses the upstream of a request: the order in which a conversation tries those that serve its model,
//! and the choice among them by health and load. Pure: `relay` passes the current facts.
//!
//! The order is weighted rendezvous hashing: each upstream draws a number from the conversation's key and
//! its own name, and the smallest wins. A conversation thus returns to the server that still has its prefix
//! cached, even from another process of respool; and when an upstream comes or goes, only the conversations
//! that it gains or had move.

use std::time::Duration;

/// A conversation waits this long for a place at its own upstream before it goes to another one. A model
/// server needs about as long to read a long prompt again.
const PATIENCE: Duration = Duration::from_secs(2);

/// The facts about one upstream that count in the choice.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Whether its circuit lets requests through, and it takes respool's key.
    pub admits: bool,
    /// Whether it was asked already in this round.
    pub asked: bool,
    /// The expected wait for a place; zero when one is free, [`Duration::MAX`] when the queue is full.
    pub wait: Duration,
}

/// Computes FNV-1a, 64 bits: the same in every process, which the standard library's hash does not promise.
pub fn digest(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Returns the order in which a conversation asks upstreams, by name and weight: their positions, its own
/// first.
pub(super) fn rank_upstreams<'a>(
    conversation: u64,
    upstreams: impl IntoIterator<Item = (&'a str, u32)>,
) -> Vec<usize> {
    let draw = |(position, (name, weight))| (weighted_distance(conversation, name, weight), position);
    let mut drawn: Vec<(f64, usize)> = upstreams.into_iter().enumerate().map(draw).collect();
    drawn.sort_by(|one, other| one.0.total_cmp(&other.0));
    drawn.into_iter().map(|(_, position)| position).collect()
}

/// Returns an exponentially distributed number with the weight as its rate: the smallest of several comes
/// from each with a probability in proportion to its weight.
fn weighted_distance(conversation: u64, name: &str, weight: u32) -> f64 {
    let drawn = mix_bits(conversation ^ mix_bits(digest(name.as_bytes())));
    let uniform = (f64::from(u32::try_from(drawn >> 32).unwrap_or_default()) + 0.5) / 4_294_967_296.0;
    -uniform.ln() / f64::from(weight.max(1))
}

/// Returns the finaliser of splitmix64: spreads each bit over all.
fn mix_bits(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// Returns the position of the next upstream to ask, of those in a conversation's order; `None` when all were
/// asked.
///
/// Its own one, unless the wait there is long; then the first with a free place; then the one with the
/// shortest wait. Upstreams whose circuit is open are asked only when it is open at all of them: a wrong
/// guess must not turn a working server away.
pub fn choose_upstream(order: &[Load]) -> Option<usize> {
    let any_admits = order.iter().any(|load| load.admits);
    let mut open = order
        .iter()
        .enumerate()
        .filter(|(_, load)| !load.asked && (load.admits || !any_admits))
        .map(|(at, load)| (at, load.wait));
    let (own, wait) = open.clone().next()?;
    if wait <= PATIENCE {
        return Some(own);
    }
    let free = open.clone().find(|(_, wait)| wait.is_zero());
    free.or_else(|| open.by_ref().min_by_key(|(_, wait)| *wait)).map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOUR: [(&str, u32); 4] = [("a", 1), ("b", 1), ("c", 2), ("d", 4)];

    /// How many of 8,000 conversations each upstream gets first.
    fn shares(upstreams: &[(&str, u32)]) -> Vec<usize> {
        let mut shares = vec![0; upstreams.len()];
        (0..8000).for_each(|key| shares[rank_upstreams(key, upstreams.iter().copied())[0]] += 1);
        shares
    }

    #[test]
    fn shares_follow_the_weights() {
        let (found, expected) = (shares(&FOUR), [1000, 1000, 2000, 4000]);
        for (found, expected) in found.into_iter().zip(expected) {
            assert!(found.abs_diff(expected) < 150, "{found} instead of {expected}");
        }
    }

    #[test]
    fn only_those_that_must_move_do() {
        let three = &FOUR[..3];
        for key in 0..8000 {
            let (with, without) = (rank_upstreams(key, FOUR), rank_upstreams(key, three.iter().copied()));
            let kept: Vec<usize> = with.into_iter().filter(|position| *position != 3).collect();
            assert_eq!(kept, without, "the rest of the order stays as it was");
        }
    }

    #[test]
    fn the_order_is_the_same_everywhere() {
        assert_eq!(digest(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(digest(b"foobar"), 0x8594_4171_f739_67e8, "the test vector of FNV-1a");
        let firsts: Vec<usize> = (0..12).map(|key| rank_upstreams(digest(&[key]), FOUR)[0]).collect();
        assert_eq!(
            firsts,
            [1, 0, 3, 3, 2, 3, 1, 3, 2, 2, 3, 3],
            "after a change here every conversation moves once"
        );
    }

    /// `order`: a mark per upstream (`.` closed, `x` open circuit, `a` asked already), and its wait in
    /// seconds.
    fn check(order: &[(char, u64)], expected: Option<usize>) {
        let load = |(mark, wait): &(char, u64)| Load {
            admits: *mark != 'x',
            asked: *mark == 'a',
            wait: Duration::from_secs(*wait),
        };
        assert_eq!(choose_upstream(&order.iter().map(load).collect::<Vec<_>>()), expected, "{order:?}");
    }

    #[test]
    fn the_own_one_unless_it_is_ill_or_crowded() {
        check(&[('.', 0), ('.', 0)], Some(0));
        check(&[('.', 2), ('.', 0)], Some(0));
        check(&[('.', 3), ('.', 1), ('.', 0)], Some(2));
        check(&[('.', 5), ('.', 4), ('.', 4)], Some(1));
        check(&[('x', 0), ('.', 9)], Some(1));
        check(&[('a', 0), ('.', 0)], Some(1));
        check(&[('x', 0), ('x', 0)], Some(0));
        check(&[('a', 0), ('x', 0)], None);
        check(&[('a', 0)], None);
        check(&[], None);
    }
}
