//! Looks a database through.

use async_trait::async_trait;
use rusqlite::Connection;

use super::statements::list;
use super::store::SqliteStore;
use crate::check::{Checks, StoreCheck, checks};
use crate::error::StoreError;

checks!("");

/// The most problems of the file that are listed.
const MOST: i64 = 20;

#[async_trait]
impl Checks for SqliteStore {
    async fn check(&self) -> Result<StoreCheck, StoreError> {
        self.read(check_all).await
    }
}

fn check_all(connection: &Connection) -> rusqlite::Result<StoreCheck> {
    let schema: u32 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    let mut found = StoreCheck { schema, oldest: schema, ..StoreCheck::default() };
    let count = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0)).map(i64::unsigned_abs);
    for (table, sql) in COUNTS {
        found.counts.push((table, count(sql)?));
    }
    for (rule, sql) in RULES {
        found.note(rule, count(sql)?);
    }
    found.note("rows name others that are gone", count("SELECT count(*) FROM pragma_foreign_key_check")?);
    let sql = "SELECT integrity_check FROM pragma_integrity_check WHERE integrity_check <> 'ok' LIMIT ?1";
    found.problems.extend(list(connection, sql, [MOST], |row| row.get::<_, String>(0))?);
    Ok(found)
}
