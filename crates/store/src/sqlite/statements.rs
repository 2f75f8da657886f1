//! How statements are run: prepared once in each connection, with numbers and limits as `SQLite` has them.

use rusqlite::{Connection, OptionalExtension as _, Params, Row};

/// Returns a number as `SQLite` has it. Its integers are signed; times and places are far from that.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Returns a limit of rows as `SQLite` has it.
pub(super) fn limit(most: usize) -> i64 {
    i64::try_from(most).unwrap_or(i64::MAX)
}

/// Runs a statement that changes rows. Returns how many it changed.
pub(super) fn execute(connection: &Connection, sql: &str, values: impl Params) -> rusqlite::Result<usize> {
    connection.prepare_cached(sql)?.execute(values)
}

/// Runs a statement that changes rows. True when it changed any.
pub(super) fn has_changed(connection: &Connection, sql: &str, values: impl Params) -> rusqlite::Result<bool> {
    Ok(execute(connection, sql, values)? > 0)
}

/// Returns the first row of a query.
pub(super) fn find<T>(
    connection: &Connection,
    sql: &str,
    values: impl Params,
    row: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Option<T>> {
    connection.prepare_cached(sql)?.query_row(values, row).optional()
}

/// Returns all rows of a query.
pub(super) fn list<T>(
    connection: &Connection,
    sql: &str,
    values: impl Params,
    row: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Vec<T>> {
    connection.prepare_cached(sql)?.query_map(values, row)?.collect()
}

/// Returns whether a query has any row.
pub(super) fn exists(connection: &Connection, sql: &str, values: impl Params) -> rusqlite::Result<bool> {
    connection.prepare_cached(sql)?.exists(values)
}
