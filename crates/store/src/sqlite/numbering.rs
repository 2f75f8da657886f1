//! The numbers of usage rows. A database knows a row by the origin and the number that it has in its file, so
//! a copy of the file must not give numbers that the file itself has given since. Called by `usage`.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::UNIX_EPOCH;

use rusqlite::{Transaction, params};

use super::statements::{exists, has_changed};

/// The file that gave the last numbers. Made once rows are copied to a database.
const OWN_FILE: &str = "CREATE TABLE IF NOT EXISTS own_file (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    identity TEXT NOT NULL
) STRICT";

/// Returns the number of the next row where this is a copy of the file that gave the last one: far behind all
/// that the other has given or will give. `None` where rows are numbered on.
pub(super) fn number_after_copy(change: &Transaction<'_>, path: &Path) -> rusqlite::Result<Option<i64>> {
    if !exists(change, "SELECT 1 FROM sqlite_schema WHERE name = 'copies'", [])? {
        return Ok(None);
    }
    change.execute_batch(OWN_FILE)?;
    let sql =
        "INSERT INTO own_file VALUES (1, ?1) ON CONFLICT DO UPDATE SET identity = ?1 WHERE identity <> ?1";
    if !has_changed(change, sql, params![identity(path)])? {
        return Ok(None);
    }
    let last: i64 = change.query_row("SELECT coalesce(max(id), 0) FROM requests", [], |row| row.get(0))?;
    let gap = (i64::from(rand::random::<u32>()) + 1) << 16;
    Ok(Some(last.saturating_add(gap)))
}

/// Inode and time of birth: one that has another file's inode is younger. The device's number may change when
/// the machine starts.
fn identity(path: &Path) -> String {
    let metadata = path.metadata().ok();
    let born = metadata.as_ref().and_then(|found| found.created().ok()?.duration_since(UNIX_EPOCH).ok());
    format!("{}-{}", metadata.map_or(0, |found| found.ino()), born.unwrap_or_default().as_nanos())
}
