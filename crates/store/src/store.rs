//! The store as the rest of respool has it: a port, and the engine behind it that the configuration chose.

use std::ops::Deref;

use super::config::{RunsConfig, StoreConfig};
use super::error::StoreError;
use super::port::StorePort;
use super::postgres::PostgresStore;
use super::runs::FIRST_EPOCH;
use super::sqlite::SqliteStore;

/// The store of this process. Dropping the last of it ends its threads once they have written what waits.
#[derive(Debug)]
pub struct Store {
    port: Box<dyn StorePort>,
    runs: RunsConfig,
}

impl Store {
    /// The epoch of a run that was begun and not claimed since.
    pub const FIRST_EPOCH: u64 = FIRST_EPOCH;

    /// Opens or makes the store, and brings its schema up to date.
    ///
    /// # Errors
    /// When the database, or the directory or the file, cannot be used. A file that is damaged is set aside
    /// and a new one begun, unless another process uses it.
    pub fn open(config: &StoreConfig) -> Result<Self, StoreError> {
        let port: Box<dyn StorePort> = match &config.store.url {
            Some(url) => Box::new(PostgresStore::open(config, url.expose_secret())?),
            None => Box::new(SqliteStore::open(config)?),
        };
        Ok(Self { port, runs: config.runs.clone() })
    }

    /// Opens the store for a command that shows it or changes a row. A file that is damaged stays where it
    /// is, and no table of a database is made.
    ///
    /// # Errors
    /// When the database, or the directory or the file, cannot be used.
    pub fn open_in_place(config: &StoreConfig) -> Result<Self, StoreError> {
        let port: Box<dyn StorePort> = match &config.store.url {
            Some(url) => Box::new(PostgresStore::open_in_place(config, url.expose_secret())?),
            None => Box::new(SqliteStore::open_in_place(config)?),
        };
        Ok(Self { port, runs: config.runs.clone() })
    }

    /// Returns true if the configured database has the tables that this version uses, and false if the next
    /// server makes or updates them; `None` where there is no database.
    ///
    /// # Errors
    /// When the database cannot be used.
    pub fn has_schema(config: &StoreConfig) -> Result<Option<bool>, StoreError> {
        let url = config.store.url.as_ref();
        url.map(|url| PostgresStore::has_schema(url.expose_secret())).transpose()
    }

    /// Returns true when there is a store already.
    pub fn is_present(config: &StoreConfig) -> bool {
        config.store.url.is_some() || SqliteStore::is_present(config)
    }

    /// Returns the configured limits of what is kept of runs.
    pub fn limits(&self) -> &RunsConfig {
        &self.runs
    }
}

impl Deref for Store {
    type Target = dyn StorePort;

    fn deref(&self) -> &Self::Target {
        &*self.port
    }
}
