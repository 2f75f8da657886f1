//! The files of a state directory as a source of rows. Nothing here changes them.

use std::path::{Path, PathBuf};

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags};

use super::lease::Lease;
use super::open;
use crate::error::StoreError;
use crate::tables::Table;

/// The database of a state directory, which no process uses meanwhile.
pub(crate) struct Source {
    connection: Connection,
    place: PathBuf,
    _lease: Lease,
}

impl Source {
    /// Opens the database to read it.
    pub(crate) fn open(directory: &Path) -> Result<Self, StoreError> {
        if !open::is_present(directory) {
            return Err(StoreError(format!("there is no store in {}: set `state_dir`", directory.display())));
        }
        let lease = Lease::take(directory).map_err(|error| open::unusable(directory, &error.to_string()))?;
        if !lease.is_alone().unwrap_or(false) {
            return Err(StoreError(format!(
                "a respool uses the files in {}: end it first, so that nothing is written behind the copy",
                directory.display()
            )));
        }
        let place = open::path(directory);
        let open = || -> rusqlite::Result<_> {
            let connection = Connection::open_with_flags(&place, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
            let schema: u32 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
            Ok((connection, schema))
        };
        let (connection, schema) = open().map_err(|error| open::failed("open", &place, &error))?;
        if usize::try_from(schema) != Ok(open::STEPS.len()) {
            return Err(StoreError(format!(
                "{} has schema {schema}, and this respool copies {}: `respool store check` brings an older one up to date",
                place.display(),
                open::STEPS.len()
            )));
        }
        Ok(Self { connection, place, _lease: lease })
    }

    /// Reads the rows of a table one by one.
    pub(crate) fn read_rows(
        &self,
        table: &Table,
        mut take: impl FnMut(&[ValueRef<'_>]) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let failed = |error| open::failed("read", &self.place, &error);
        let mut statement = self.connection.prepare(&table.read_statement()).map_err(failed)?;
        let columns = statement.column_count();
        let mut rows = statement.query([]).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            let values: rusqlite::Result<Vec<_>> = (0..columns).map(|index| row.get_ref(index)).collect();
            take(&values.map_err(failed)?)?;
        }
        Ok(())
    }
}
