//! Keeps the database small: deletes what is old and what is too much, and returns the space to the disk.
//!
//! Each function here is a small batch for the writing thread, so that the steps of running agents wait for
//! milliseconds and not for the whole. `Store::clear` asks for batches until nothing is left to do.

use rusqlite::{Connection, Transaction, params};

use super::space;
use super::statements::{execute, list, signed};
use crate::run_rows::Usage;

/// At most this many runs are deleted in one batch,
const RUNS: u32 = 16;
/// and no further one once the batch has freed this many bytes.
const BATCH: u64 = 1 << 20;
/// True for a run of work that may be executed again: what it did is not done again only as long as it is
/// known.
const IS_NEEDED: &str = "EXISTS (SELECT 1 FROM queue WHERE work = runs.fingerprint AND state IN ('waiting', 'claimed', 'held', 'dead_letter', 'failed', 'escalated'))";

/// Deletes a few runs that no process works on and to which nothing has happened since this time. Runs that
/// wait for approval stay, and those of work that may be executed again; child runs go with their parents.
pub(super) fn delete_old(change: &Transaction<'_>, before: u64) -> rusqlite::Result<usize> {
    let query = format!(
        "SELECT id FROM runs
         WHERE status IN ('suspended', 'interrupted', 'done', 'limited', 'failed', 'cancelled')
           AND parent IS NULL AND updated < ?1 AND NOT {IS_NEEDED} LIMIT ?2"
    );
    delete_some(change, &query, before, 0)
}

/// Deletes a few runs that ended before this time, the oldest first, while more than `most` bytes are in use.
pub(super) fn delete_for_room(change: &Transaction<'_>, most: u64, before: u64) -> rusqlite::Result<usize> {
    if bytes_of_runs(change)? <= most {
        return Ok(0);
    }
    let query = format!(
        "SELECT id FROM runs
         WHERE status IN ('done', 'limited', 'failed', 'cancelled') AND parent IS NULL AND updated < ?1 AND NOT {IS_NEEDED}
         ORDER BY updated LIMIT ?2"
    );
    delete_some(change, &query, before, most)
}

/// Deletes runs of a query until they are a batch, or no more than `most` bytes are in use.
fn delete_some(change: &Transaction<'_>, query: &str, before: u64, most: u64) -> rusqlite::Result<usize> {
    let found: Vec<String> = list(change, query, params![signed(before), RUNS], |row| row.get(0))?;
    let enough = bytes_of_runs(change)?.saturating_sub(BATCH).max(most);
    let mut deleted = 0;
    for run in found {
        deleted += delete_run(change, &run)?;
        if bytes_of_runs(change)? <= enough {
            break;
        }
    }
    Ok(deleted)
}

/// Deletes one run that no process works on and whose work is not executed again.
pub(super) fn delete_run(change: &Transaction<'_>, run: &str) -> rusqlite::Result<usize> {
    let query = format!("DELETE FROM runs WHERE id = ?1 AND status <> 'running' AND NOT {IS_NEEDED}");
    execute(change, &query, params![run])
}

pub(super) fn usage(connection: &Connection) -> rusqlite::Result<Usage> {
    let runs: i64 = connection.query_row("SELECT count(*) FROM runs", [], |row| row.get(0))?;
    Ok(Usage { runs: runs.unsigned_abs(), bytes: space::bytes(connection)? })
}

/// Bytes in use without the responses that clients keep, which have a limit of their own.
fn bytes_of_runs(connection: &Connection) -> rusqlite::Result<u64> {
    Ok(space::bytes(connection)?.saturating_sub(super::responses::bytes(connection)?))
}
