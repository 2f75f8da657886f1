//! The operators that `respool serve` knows, by the digests of their keys. The command line checks a person's key against these and not against
//! its own environment, which the user who starts it chooses. Written by `cli::serve`, read by the faces of approvals.

use rusqlite::{Connection, OptionalExtension as _, Transaction, params};

/// An operator's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperatorKey {
    /// The SHA-256 of the key, in hexadecimal.
    pub digest: String,
    /// The key's name; never the key.
    pub name: String,
}

/// From now on these are all.
pub(super) fn set(change: &Transaction<'_>, keys: &[OperatorKey]) -> rusqlite::Result<usize> {
    change.execute("DELETE FROM operators", [])?;
    let mut insert =
        change.prepare_cached("INSERT OR REPLACE INTO operators (digest, name) VALUES (?1, ?2)")?;
    keys.iter().map(|key| insert.execute(params![key.digest, key.name])).sum()
}

/// The name of the key with this digest.
pub(super) fn name(connection: &Connection, digest: &str) -> rusqlite::Result<Option<String>> {
    connection
        .prepare_cached("SELECT name FROM operators WHERE digest = ?1")?
        .query_row(params![digest], |row| row.get(0))
        .optional()
}

/// Whether there are any.
pub(super) fn any(connection: &Connection) -> rusqlite::Result<bool> {
    connection.prepare_cached("SELECT 1 FROM operators")?.exists([])
}
