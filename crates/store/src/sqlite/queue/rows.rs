//! The entries of the queue as `SQLite` reads them back.

use rusqlite::{Connection, Row, params};

use crate::queue::{EntryRow, EntryState, LaneKey, OpenCount};
use crate::sqlite::statements::{find, limit, list, signed};

const ROW: &str =
    "id, queue, lane, state, accepted, due, attempt, blocked, run, payload, note, ended FROM queue";

fn row(row: &Row<'_>) -> rusqlite::Result<EntryRow> {
    let state: String = row.get(3)?;
    let time = |index| row.get::<_, Option<i64>>(index).map(|time| time.map(i64::unsigned_abs));
    Ok(EntryRow {
        id: row.get(0)?,
        queue: row.get(1)?,
        lane: row.get::<_, Option<String>>(2)?.map(LaneKey),
        state: EntryState::from_name(&state).unwrap_or(EntryState::Failed),
        accepted: time(4)?.unwrap_or_default(),
        due: time(5)?.unwrap_or_default(),
        attempt: row.get(6)?,
        is_blocked: row.get(7)?,
        run: row.get(8)?,
        payload: row.get(9)?,
        note: row.get(10)?,
        ended: time(11)?,
    })
}

pub(crate) fn entry(connection: &Connection, id: &str) -> rusqlite::Result<Option<EntryRow>> {
    find(connection, &format!("SELECT {ROW} WHERE id = ?1"), params![id], row)
}

pub(crate) fn entry_of_run(connection: &Connection, run: &str) -> rusqlite::Result<Option<EntryRow>> {
    find(connection, &format!("SELECT {ROW} WHERE run = ?1 ORDER BY seq DESC LIMIT 1"), params![run], row)
}

/// Returns the entries of a state by when they were accepted.
pub(crate) fn entries(
    connection: &Connection,
    queue: Option<&str>,
    state: EntryState,
    newest_first: bool,
    most: usize,
) -> rusqlite::Result<Vec<EntryRow>> {
    let order = if newest_first { "DESC" } else { "ASC" };
    let sql =
        format!("SELECT {ROW} WHERE state = ?1 AND (?2 IS NULL OR queue = ?2) ORDER BY seq {order} LIMIT ?3");
    list(connection, &sql, params![state.as_str(), queue, limit(most)], row)
}

/// Returns how many open entries each queue has in each state.
pub(crate) fn open_counts(connection: &Connection) -> rusqlite::Result<Vec<OpenCount>> {
    let sql = "SELECT queue, state, count(*) FROM queue
        WHERE state IN ('waiting', 'claimed', 'held') GROUP BY queue, state";
    let row = |row: &Row<'_>| {
        let state = EntryState::from_name(&row.get::<_, String>(1)?).unwrap_or(EntryState::Waiting);
        Ok(OpenCount { queue: row.get(0)?, state, count: row.get::<_, i64>(2)?.unsigned_abs() })
    };
    list(connection, sql, params![], row)
}

/// Returns the places of open entries of a queue behind one of them.
pub(crate) fn open_places(connection: &Connection, queue: &str, behind: u64) -> rusqlite::Result<Vec<u64>> {
    // The index has state and place: only what is new is looked up.
    let sql = "SELECT seq FROM queue INDEXED BY queue_states
        WHERE state IN ('waiting', 'claimed', 'held') AND seq > ?2 AND queue = ?1 ORDER BY seq";
    let place = |row: &Row<'_>| row.get::<_, i64>(0).map(i64::unsigned_abs);
    list(connection, sql, params![queue, signed(behind)], place)
}

/// Returns the entries at places of the queue.
pub(crate) fn entries_at(connection: &Connection, places: &[u64]) -> rusqlite::Result<Vec<EntryRow>> {
    let sql = format!("SELECT {ROW} WHERE seq = ?1");
    let found = places.iter().map(|place| find(connection, &sql, params![signed(*place)], row));
    found.filter_map(rusqlite::Result::transpose).collect()
}

pub(crate) fn entry_before(connection: &Connection, id: &str) -> rusqlite::Result<Option<EntryRow>> {
    let sql = format!(
        "SELECT {ROW} WHERE seq = (
             SELECT min(earlier.seq) FROM queue AS own JOIN queue AS earlier
                 ON earlier.queue = own.queue AND earlier.lane = own.lane AND earlier.seq < own.seq
             WHERE own.id = ?1 AND earlier.state IN ('waiting', 'claimed', 'held'))"
    );
    find(connection, &sql, params![id], row)
}

pub(crate) fn next_due(connection: &Connection, queues: &[String]) -> rusqlite::Result<Option<u64>> {
    let time = |row: &Row<'_>| row.get::<_, Option<i64>>(0);
    let lease = find(connection, "SELECT min(lease_until) FROM queue WHERE state = 'claimed'", [], time)?;
    let mut next = lease.flatten();
    for queue in queues {
        let sql = "SELECT min(due) FROM queue WHERE queue = ?1 AND state = 'waiting' AND blocked = 0";
        let due = find(connection, sql, params![queue], time)?;
        next = next.into_iter().chain(due.flatten()).min();
    }
    Ok(next.map(i64::unsigned_abs))
}

/// Returns when the oldest entry of a queue was accepted that has not ended, or the oldest run of its agent
/// begun that is not over.
pub(crate) fn oldest_open(
    connection: &Connection,
    queue: &str,
    agent: &str,
) -> rusqlite::Result<Option<u64>> {
    let sql = "SELECT min(at) FROM (
        SELECT min(accepted) AS at FROM queue WHERE queue = ?1 AND state IN ('waiting', 'claimed', 'held')
        UNION ALL
        SELECT min(created) FROM runs WHERE agent = ?2 AND status IN ('running', 'suspended', 'awaiting_approval', 'interrupted'))";
    let at = find(connection, sql, params![queue, agent], |row| row.get::<_, Option<i64>>(0))?;
    Ok(at.flatten().map(i64::unsigned_abs))
}
