//! The operators that `respool serve` knows, by the digests of their keys. The command line checks a person's
//! key against these and not against its own environment, which the user who starts it chooses. Written by
//! `cli::serve`, read by the faces of approvals.

use rusqlite::{Transaction, params};

use super::error::StoreError;
use super::statements::{execute, exists, find};
use super::store::Store;

/// An operator's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperatorKey {
    /// The SHA-256 of the key, in hexadecimal.
    pub digest: String,
    /// The key's name; never the key.
    pub name: String,
}

impl Store {
    /// Replaces the operators' keys that the command line accepts.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn set_operators(&self, keys: Vec<OperatorKey>) -> Result<(), StoreError> {
        self.write(move |change| replace_all(change, &keys)).await
    }

    /// Returns the name of the operator's key with this SHA-256 in hexadecimal.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn operator(&self, digest: &str) -> Result<Option<String>, StoreError> {
        let digest = digest.to_owned();
        let sql = "SELECT name FROM operators WHERE digest = ?1";
        self.read(move |connection| find(connection, sql, params![digest], |row| row.get(0))).await
    }

    /// Whether any operator is known.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn has_operators(&self) -> Result<bool, StoreError> {
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
