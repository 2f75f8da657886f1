//! The marks of clocks: the last time for which each fired. A mark only grows, and it grows in the commit
//! that queues the entry, so that of several processes one fires for a time. A skipped time counts as fired.

use rusqlite::{Transaction, params};

use crate::queue::{Clock, ClockTime, GoneClocks};
use crate::sqlite::statements::{execute, find, has_changed, list, signed};

/// Returns the mark of a clock. One that is new, or has another schedule than before, is set to `now`.
pub(super) fn mark(change: &Transaction<'_>, clock: &Clock, now: u64) -> rusqlite::Result<u64> {
    let Clock { queue, name, schedule } = clock;
    let sql = "INSERT INTO clocks (queue, name, schedule, mark) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT (queue, name) DO UPDATE SET schedule = ?3, mark = ?4, entry = NULL WHERE schedule <> ?3";
    execute(change, sql, params![queue, name, schedule, signed(now)])?;
    let sql = "SELECT mark FROM clocks WHERE queue = ?1 AND name = ?2";
    let mark = find(change, sql, params![queue, name], |row| row.get::<_, i64>(0))?;
    Ok(mark.map_or(now, i64::unsigned_abs))
}

/// Puts a clock forward to a time for which it does not fire.
pub(super) fn skip(change: &Transaction<'_>, time: &ClockTime) -> rusqlite::Result<()> {
    let Clock { queue, name, schedule } = &time.clock;
    let sql = "UPDATE clocks SET mark = ?4 WHERE queue = ?1 AND name = ?2 AND schedule = ?3 AND mark < ?4";
    execute(change, sql, params![queue, name, schedule, signed(time.time)]).map(drop)
}

/// Forgets the marks of clocks that are gone.
pub(super) fn forget(change: &Transaction<'_>, gone: &GoneClocks) -> rusqlite::Result<()> {
    let kept = match gone {
        GoneClocks::OfQueue(queue) => {
            return execute(change, "DELETE FROM clocks WHERE queue = ?1", params![queue]).map(drop);
        }
        GoneClocks::AllBut(kept) => kept,
    };
    let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
    let all: Vec<(String, String)> = list(change, "SELECT queue, name FROM clocks", [], row)?;
    all.iter().filter(|clock| !kept.contains(*clock)).try_for_each(|(queue, name)| {
        let sql = "DELETE FROM clocks WHERE queue = ?1 AND name = ?2";
        execute(change, sql, params![queue, name]).map(drop)
    })
}

/// Puts a clock forward to a time for which an entry is queued. Where it is there already, or beyond: the
/// entry that was queued last. A clock that was forgotten while a process still watches it, because its
/// expert was removed and installed again, is remembered again.
pub(super) fn advance(
    change: &Transaction<'_>,
    time: &ClockTime,
    entry: &str,
) -> rusqlite::Result<Option<String>> {
    let Clock { queue, name, schedule } = &time.clock;
    let sql = "INSERT INTO clocks (queue, name, schedule, mark, entry) VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT (queue, name) DO UPDATE SET mark = ?4, entry = ?5 WHERE schedule = ?3 AND mark < ?4";
    if has_changed(change, sql, params![queue, name, schedule, signed(time.time), entry])? {
        return Ok(None);
    }
    let sql = "SELECT entry FROM clocks WHERE queue = ?1 AND name = ?2";
    let last: Option<Option<String>> = find(change, sql, params![queue, name], |row| row.get(0))?;
    Ok(Some(last.flatten().unwrap_or_default()))
}
