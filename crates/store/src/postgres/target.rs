//! A database as the target of a copy.

use std::sync::Arc;

use postgres::fallible_iterator::FallibleIterator as _;
use postgres::{Client, Error};
use serde_json::Value;

use super::address::Address;
use super::link::{Link, explain};
use super::schema;
use crate::error::StoreError;
use crate::tables::{RowsDigest, Table};

/// A database that rows are copied to.
pub(crate) struct Target(Client);

impl Target {
    /// Connects, and makes or updates the schema. Not for threads of the runtime.
    pub(crate) fn open(url: &str) -> Result<Self, StoreError> {
        let address = Address::parse(url)?;
        schema::prepare(&mut Link::new(address.clone(), Arc::default()))?;
        address.connect().map(Self).map_err(|error| explain(&error))
    }

    /// Writes rows in one commit. Those that are there already stay.
    pub(crate) fn write_rows(&mut self, table: &Table, rows: Vec<Value>) -> Result<(), StoreError> {
        if rows.is_empty() {
            return Ok(());
        }
        let written = self.0.execute(&table.write_statement(), &[&Value::from(rows).to_string()]);
        written.map(drop).and_then(|()| self.number_on(table)).map_err(|error| explain(&error))
    }

    /// Lets new rows be numbered behind those that were copied.
    fn number_on(&mut self, table: &Table) -> Result<(), Error> {
        let Some(column) = table.numbered else { return Ok(()) };
        let name = table.name;
        self.0.batch_execute(&format!(
            "SELECT setval(pg_get_serial_sequence('respool.{name}', '{column}'), max({column})) FROM respool.{name}"
        ))
    }

    /// Reads all rows of a table.
    pub(crate) fn read_all(&mut self, table: &Table) -> Result<RowsDigest, StoreError> {
        let mut digest = RowsDigest::default();
        let mut read = || -> Result<(), Error> {
            let mut rows = self.0.query_raw(&table.compare_statement(), None::<i64>)?;
            while let Some(row) = rows.next()? {
                let texts: Result<Vec<Option<&str>>, Error> =
                    (0..row.len()).map(|index| row.try_get(index)).collect();
                digest.add_row(texts?.into_iter());
            }
            Ok(())
        };
        read().map_err(|error| explain(&error))?;
        Ok(digest)
    }
}
