//! The place of the database in a build without the feature `postgres`.

use serde_json::Value;

use super::config::StoreConfig;
use super::error::StoreError;
use super::sqlite::SqliteStore;
use super::tables::{RowsDigest, Table};

/// A database, which this build cannot have.
pub(crate) enum Target {}

/// A store in a database, which this build cannot have.
pub(crate) struct PostgresStore;

impl PostgresStore {
    pub(crate) fn open(_: &StoreConfig, _: &str) -> Result<SqliteStore, StoreError> {
        Err(missing())
    }

    pub(crate) fn open_in_place(_: &StoreConfig, _: &str) -> Result<SqliteStore, StoreError> {
        Err(missing())
    }

    pub(crate) fn has_schema(_: &str) -> Result<bool, StoreError> {
        Err(missing())
    }
}

impl Target {
    pub(crate) fn open(_: &str) -> Result<Self, StoreError> {
        Err(missing())
    }

    pub(crate) fn write_rows(&mut self, _: &Table, _: Vec<Value>) -> Result<(), StoreError> {
        match *self {}
    }

    pub(crate) fn read_all(&mut self, _: &Table) -> Result<RowsDigest, StoreError> {
        match *self {}
    }
}

fn missing() -> StoreError {
    StoreError("this build of respool cannot use a database: build it with the feature `postgres`".to_owned())
}
