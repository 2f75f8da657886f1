//! The usage of keys as rows.

use async_trait::async_trait;
use rusqlite::{Transaction, params};

use super::statements::{execute, list, signed};
use super::store::SqliteStore;
use crate::error::StoreError;
use crate::key_usage::{KeyUsage, KeyUsages};

#[async_trait]
impl KeyUsages for SqliteStore {
    async fn add_key_usage(&self, rows: Vec<KeyUsage>) -> Result<(), StoreError> {
        self.write(move |change| rows.iter().try_for_each(|row| add(change, row))).await
    }

    async fn key_usage_on(&self, day: u64) -> Result<Vec<KeyUsage>, StoreError> {
        let sql = "SELECT key, model, requests, prompt, cached, completion FROM key_usage WHERE day = ?1";
        let row = move |row: &rusqlite::Row<'_>| {
            let number = |index| row.get::<_, i64>(index).map(i64::unsigned_abs);
            Ok(KeyUsage {
                day,
                key: row.get(0)?,
                model: row.get(1)?,
                requests: number(2)?,
                prompt: number(3)?,
                cached: number(4)?,
                completion: number(5)?,
            })
        };
        self.read(move |connection| list(connection, sql, params![signed(day)], row)).await
    }

    async fn forget_key_usage(&self, before: u64) -> Result<(), StoreError> {
        let sql = "DELETE FROM key_usage WHERE day < ?1";
        self.write(move |change| execute(change, sql, params![signed(before)]).map(drop)).await
    }
}

fn add(change: &Transaction<'_>, row: &KeyUsage) -> rusqlite::Result<()> {
    let sql = "INSERT INTO key_usage (day, key, model, requests, prompt, cached, completion) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
         ON CONFLICT DO UPDATE SET requests = requests + ?4, prompt = prompt + ?5, cached = cached + ?6,
             completion = completion + ?7";
    let [day, requests, prompt, cached, completion] =
        [row.day, row.requests, row.prompt, row.cached, row.completion].map(signed);
    execute(change, sql, params![day, row.key, row.model, requests, prompt, cached, completion]).map(drop)
}
