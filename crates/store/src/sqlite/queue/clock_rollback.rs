//! Moves times in the store back when the system clock was set back, as after a start with a wrong clock (a
//! machine that shares its clock with another operating system is hours ahead until the network corrects it).
//! They keep their distance from the present.

use rusqlite::{Transaction, params};

use crate::sqlite::statements::{execute, find, signed};

/// A smaller step back is ignored, in milliseconds: what was due then happens that much later.
const TOLERANCE: u64 = 60_000;
/// A clock of a trigger that fired for a time up to this far ahead does not fire for it again, in
/// milliseconds; what cron daemons do.
const MAX_SKIPPED: u64 = 3 * 3_600_000;

/// Notes the time. Returns by how much the clock was set back since it was noted last, if it was.
pub(super) fn correct_clock(change: &Transaction<'_>, now: u64) -> rusqlite::Result<Option<u64>> {
    let sql = "SELECT at FROM last_time WHERE only = 0";
    let last: Option<i64> = find(change, sql, [], |row| row.get(0))?;
    let sql = "INSERT INTO last_time (only, at) VALUES (0, ?1) ON CONFLICT (only) DO UPDATE SET at = ?1";
    execute(change, sql, params![signed(now)])?;
    let last = last.map_or(now, i64::unsigned_abs);
    let by = last.saturating_sub(now);
    if by <= TOLERANCE {
        return Ok(None);
    }
    let times = params![signed(now), signed(by)];
    change.execute("UPDATE queue SET due = due - ?2 WHERE ended IS NULL AND due > ?1", times)?;
    // How late work is counts from here.
    change
        .execute("UPDATE queue SET accepted = accepted - ?2 WHERE ended IS NULL AND accepted > ?1", times)?;
    change.execute("UPDATE outbox SET due = due - ?2 WHERE delivered IS NULL AND due > ?1", times)?;
    // A living holder has renewed its lease by the new clock, or will before it ends.
    change.execute(
        "UPDATE queue SET lease_until = lease_until - ?2 WHERE state = 'claimed' AND lease_until >= ?1 + ?2",
        times,
    )?;
    let again = params![signed(now), signed(now.saturating_add(MAX_SKIPPED))];
    change.execute("UPDATE clocks SET mark = ?1 WHERE mark > ?2", again)?;
    Ok(Some(by))
}
