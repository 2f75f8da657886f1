//! The usage of clients' keys, by day and model: one counter, added to in batches and read back at the start.
//! The code that limits or bills by it keeps its own sum in memory. Called by `server`.

use rusqlite::{Transaction, params};

use super::error::StoreError;
use super::statements::{execute, list, signed};
use super::store::Store;

/// The usage of one model by one key on one day.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyUsage {
    /// The UTC day, counted from 1970-01-01.
    pub day: u64,
    /// The key's name; never the key.
    pub key: String,
    /// The model, as far as an upstream is known to serve it; else empty.
    pub model: String,
    /// Requests.
    pub requests: u64,
    /// Tokens of prompts.
    pub prompt: u64,
    /// Those of them that were cached.
    pub cached: u64,
    /// Tokens of replies.
    pub completion: u64,
}

impl Store {
    /// Adds to what keys have used.
    ///
    /// # Errors
    /// When the store cannot be written; nothing of it then is in the store.
    pub async fn add_key_usage(&self, rows: Vec<KeyUsage>) -> Result<(), StoreError> {
        self.write(move |change| rows.iter().try_for_each(|row| add(change, row))).await
    }

    /// Returns what keys have used on one UTC day, counted from 1970-01-01.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn key_usage_on(&self, day: u64) -> Result<Vec<KeyUsage>, StoreError> {
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

    /// Forgets what keys used before a day.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn forget_key_usage(&self, before: u64) -> Result<(), StoreError> {
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
