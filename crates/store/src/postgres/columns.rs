//! Reads columns that hold times and counts.

use postgres::{Error, Row};

/// A column that holds a time or a count.
pub(super) fn number(row: &Row, index: usize) -> Result<u64, Error> {
    Ok(row.try_get::<_, i64>(index)?.unsigned_abs())
}

/// A column that holds a time, or nothing.
pub(super) fn some_number(row: &Row, index: usize) -> Result<Option<u64>, Error> {
    Ok(row.try_get::<_, Option<i64>>(index)?.map(i64::unsigned_abs))
}
