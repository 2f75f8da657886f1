//! The keys of operators as rows.

use async_trait::async_trait;
use rusqlite::{Transaction, params};

use super::statements::{execute, exists, find};
use super::store::SqliteStore;
use crate::error::StoreError;
use crate::operators::{OperatorKey, Operators};

#[async_trait]
impl Operators for SqliteStore {
    async fn set_operators(&self, keys: Vec<OperatorKey>) -> Result<(), StoreError> {
        self.write(move |change| replace_all(change, &keys)).await
    }

    async fn operator(&self, digest: &str) -> Result<Option<String>, StoreError> {
        let digest = digest.to_owned();
        let sql = "SELECT name FROM operators WHERE digest = ?1";
        self.read(move |connection| find(connection, sql, params![digest], |row| row.get(0))).await
    }

    async fn has_operators(&self) -> Result<bool, StoreError> {
        self.read(|connection| exists(connection, "SELECT 1 FROM operators", [])).await
    }
}

fn replace_all(change: &Transaction<'_>, keys: &[OperatorKey]) -> rusqlite::Result<()> {
    execute(change, "DELETE FROM operators", [])?;
    keys.iter().try_for_each(|key| {
        let sql = "INSERT OR REPLACE INTO operators (digest, name) VALUES (?1, ?2)";
        execute(change, sql, params![key.digest, key.name]).map(drop)
    })
}
