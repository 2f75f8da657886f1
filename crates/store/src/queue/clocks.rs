//! The marks of clocks: the last time for which each fired. A mark only grows, and it grows in the commit that queues the entry, so that of
//! several processes one fires for a time.

use rusqlite::{OptionalExtension as _, Transaction, params};

use super::{Clock, ClockTime, GoneClocks};
use crate::numbers::signed;

/// The mark of a clock. One that is new, or has another schedule than before, is set to `now`.
pub(super) fn mark(change: &Transaction<'_>, clock: &Clock, now: u64) -> rusqlite::Result<u64> {
    let Clock { queue, name, schedule } = clock;
    change
        .prepare_cached(
            "INSERT INTO clocks (queue, name, schedule, mark) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT (queue, name) DO UPDATE SET schedule = ?3, mark = ?4, entry = NULL WHERE schedule <> ?3",
        )?
        .execute(params![queue, name, schedule, signed(now)])?;
    change
        .prepare_cached("SELECT mark FROM clocks WHERE queue = ?1 AND name = ?2")?
        .query_row(params![queue, name], |row| row.get::<_, i64>(0))
        .map(i64::unsigned_abs)
}

/// Forgets the marks of clocks that are gone.
pub(super) fn forget(change: &Transaction<'_>, gone: &GoneClocks) -> rusqlite::Result<usize> {
    let kept = match gone {
        GoneClocks::OfQueue(queue) => {
            return change.execute("DELETE FROM clocks WHERE queue = ?1", params![queue]);
        }
        GoneClocks::AllBut(kept) => kept,
    };
    let mut all = change.prepare_cached("SELECT queue, name FROM clocks")?;
    let all: Vec<(String, String)> =
        all.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<rusqlite::Result<_>>()?;
    let mut delete = change.prepare_cached("DELETE FROM clocks WHERE queue = ?1 AND name = ?2")?;
    all.iter()
        .filter(|clock| !kept.contains(*clock))
        .map(|(queue, name)| delete.execute(params![queue, name]))
        .sum()
}

/// Puts a clock forward to a time for which an entry is queued. Where it is there already, or beyond: the entry that was queued last. A
/// clock that was forgotten while a process still watches it, because its expert was removed and installed again, is remembered anew.
pub(super) fn advance(
    change: &Transaction<'_>,
    time: &ClockTime,
    entry: &str,
) -> rusqlite::Result<Option<String>> {
    let Clock { queue, name, schedule } = &time.clock;
    let advanced = change
        .prepare_cached(
            "INSERT INTO clocks (queue, name, schedule, mark, entry) VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT (queue, name) DO UPDATE SET mark = ?4, entry = ?5 WHERE schedule = ?3 AND mark < ?4",
        )?
        .execute(params![queue, name, schedule, signed(time.time), entry])?;
    if advanced > 0 {
        return Ok(None);
    }
    let last: Option<Option<String>> = change
        .prepare_cached("SELECT entry FROM clocks WHERE queue = ?1 AND name = ?2")?
        .query_row(params![queue, name], |row| row.get(0))
        .optional()?;
    Ok(Some(last.flatten().unwrap_or_default()))
}
