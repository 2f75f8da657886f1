//! What keeps the database small: deletes what is old and what is too much, and gives the space back to the disk.
//!
//! Each function here is a small bite for the writing thread, so that the steps of running agents wait for milliseconds and
//! not for the whole; `Store::clear` asks for bites until nothing is left to do.

use std::time::Duration;

use rusqlite::{Connection, Transaction, params};

use super::numbers::signed;
use super::open::BUSY;

/// So many runs are deleted in one bite at most,
const RUNS: u32 = 16;
/// and no further one once they took so many bytes.
const BITE: u64 = 1 << 20;
/// So many pages are returned to the disk in one bite.
const PAGES: u32 = 256;

/// What a clearing did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cleared {
    /// Runs deleted because they were old.
    pub old: usize,
    /// Runs deleted because all together took too much.
    pub for_room: usize,
    /// Bytes in use afterwards.
    pub bytes: u64,
}

/// What the store holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Its runs.
    pub runs: u64,
    /// Bytes of the database in use; its log is not counted.
    pub bytes: u64,
}

/// True for a run of work that may be executed again: what it did is not done again only as long as it is known.
const IS_NEEDED: &str = "EXISTS (SELECT 1 FROM queue WHERE work = runs.fingerprint AND state IN ('waiting', 'claimed', 'held', 'dead_letter'))";

/// Deletes a few runs that nobody works on and to which nothing has happened since this time. Runs that wait for approval
/// stay, and those of work that may be executed again; child runs go with their parents.
pub(super) fn expire(change: &Transaction<'_>, before: u64) -> rusqlite::Result<usize> {
    let query = format!(
        "SELECT id FROM runs
         WHERE status IN ('suspended', 'interrupted', 'done', 'limited', 'failed', 'cancelled')
           AND parent IS NULL AND updated < ?1 AND NOT {IS_NEEDED} LIMIT ?2"
    );
    remove_some(change, &query, before, 0)
}

/// Deletes a few runs that ended before this time, the oldest first, as long as more than `most` bytes are in use.
pub(super) fn shrink(change: &Transaction<'_>, most: u64, before: u64) -> rusqlite::Result<usize> {
    if of_runs(change)? <= most {
        return Ok(0);
    }
    let query = format!(
        "SELECT id FROM runs
         WHERE status IN ('done', 'limited', 'failed', 'cancelled') AND parent IS NULL AND updated < ?1 AND NOT {IS_NEEDED}
         ORDER BY updated LIMIT ?2"
    );
    remove_some(change, &query, before, most)
}

/// Deletes runs of a query until they are a bite, or no more than `most` bytes are in use.
fn remove_some(change: &Transaction<'_>, query: &str, before: u64, most: u64) -> rusqlite::Result<usize> {
    let mut found = change.prepare_cached(query)?;
    let found: Vec<String> =
        found.query_map(params![signed(before), RUNS], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    let enough = of_runs(change)?.saturating_sub(BITE).max(most);
    let mut deleted = 0;
    for run in found {
        deleted += remove(change, &run)?;
        if of_runs(change)? <= enough {
            break;
        }
    }
    Ok(deleted)
}

/// Deletes one run that nobody works on and whose work is not executed again.
pub(super) fn remove(change: &Transaction<'_>, run: &str) -> rusqlite::Result<usize> {
    let query = format!("DELETE FROM runs WHERE id = ?1 AND status <> 'running' AND NOT {IS_NEEDED}");
    change.prepare_cached(&query)?.execute(params![run])
}

/// Returns a few free pages to the disk, and how many these were.
pub(super) fn give_back(change: &Transaction<'_>) -> rusqlite::Result<usize> {
    let free = |change| -> rusqlite::Result<u64> { pragma(change, "freelist_count") };
    let before = free(change)?;
    // Each step gives one page back.
    let mut statement = change.prepare(&format!("PRAGMA incremental_vacuum({PAGES})"))?;
    let mut rows = statement.query([])?;
    while rows.next()?.is_some() {}
    let returned = before.saturating_sub(free(change)?);
    Ok(usize::try_from(returned).unwrap_or(usize::MAX))
}

/// Moves the write-ahead log into the database and cuts it to nothing. When somebody writes or reads right now it stays, and
/// is cut the next time.
pub(super) fn cut_log(connection: &Connection) -> rusqlite::Result<()> {
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?;
    connection.busy_timeout(Duration::ZERO)?;
    let cut = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    connection.busy_timeout(BUSY)?;
    cut
}

pub(super) fn usage(connection: &Connection) -> rusqlite::Result<Usage> {
    let runs: i64 = connection.query_row("SELECT count(*) FROM runs", [], |row| row.get(0))?;
    Ok(Usage { runs: runs.unsigned_abs(), bytes: bytes(connection)? })
}

/// Bytes in use without the responses that clients keep, which have a limit of their own.
fn of_runs(connection: &Connection) -> rusqlite::Result<u64> {
    Ok(bytes(connection)?.saturating_sub(super::responses::bytes(connection)?))
}

/// Bytes in use: the file without what was freed in it.
pub(super) fn bytes(connection: &Connection) -> rusqlite::Result<u64> {
    let pages = pragma(connection, "page_count")?.saturating_sub(pragma(connection, "freelist_count")?);
    Ok(pages * pragma(connection, "page_size")?)
}

fn pragma(connection: &Connection, name: &str) -> rusqlite::Result<u64> {
    connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, i64>(0)).map(i64::unsigned_abs)
}
