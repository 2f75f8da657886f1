//! Numbers as `SQLite` has them.

/// `SQLite`'s integers are signed; times and places are far from that.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
