//! The space of a database on the disk: how much is in use, and how freed pages go back.

use std::time::Duration;

use rusqlite::{Connection, Transaction};

use super::open::BUSY;

/// At most this many pages are returned to the disk in one batch.
const PAGES: u32 = 256;

/// Returns a few free pages to the disk. Returns how many.
pub(super) fn return_pages(change: &Transaction<'_>) -> rusqlite::Result<usize> {
    let free = |change| -> rusqlite::Result<u64> { pragma(change, "freelist_count") };
    let before = free(change)?;
    // Each step gives one page back.
    let mut statement = change.prepare(&format!("PRAGMA incremental_vacuum({PAGES})"))?;
    let mut rows = statement.query([])?;
    while rows.next()?.is_some() {}
    let returned = before.saturating_sub(free(change)?);
    Ok(usize::try_from(returned).unwrap_or(usize::MAX))
}

/// Moves the write-ahead log into the database and cuts it to nothing. When another connection writes or
/// reads right now, it stays and is cut the next time.
pub(super) fn cut_log(connection: &Connection) -> rusqlite::Result<()> {
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?;
    connection.busy_timeout(Duration::ZERO)?;
    let cut = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    connection.busy_timeout(BUSY)?;
    cut
}

/// Bytes in use: the file without what was freed in it.
pub(super) fn bytes(connection: &Connection) -> rusqlite::Result<u64> {
    let pages = pragma(connection, "page_count")?.saturating_sub(pragma(connection, "freelist_count")?);
    Ok(pages * pragma(connection, "page_size")?)
}

fn pragma(connection: &Connection, name: &str) -> rusqlite::Result<u64> {
    connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, i64>(0)).map(i64::unsigned_abs)
}
