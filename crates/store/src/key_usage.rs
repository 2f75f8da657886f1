//! What the keys of clients have used, by day and model: one counter, added to in batches and read back at the start.
//! The code that limits or bills by it keeps its own sum in memory. Called by `server`.

use rusqlite::{Connection, Transaction, params};

use super::numbers::signed;

/// What one key used of one model on one day.
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

/// Adds to what is there.
pub(super) fn add(change: &Transaction<'_>, rows: &[KeyUsage]) -> rusqlite::Result<usize> {
    let mut statement = change.prepare_cached(
        "INSERT INTO key_usage (day, key, model, requests, prompt, cached, completion) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
         ON CONFLICT DO UPDATE SET requests = requests + ?4, prompt = prompt + ?5, cached = cached + ?6,
             completion = completion + ?7",
    )?;
    rows.iter()
        .map(|row| {
            let [day, requests, prompt, cached, completion] =
                [row.day, row.requests, row.prompt, row.cached, row.completion].map(signed);
            statement.execute(params![day, row.key, row.model, requests, prompt, cached, completion])
        })
        .sum()
}

/// Forgets the days before this one.
pub(super) fn forget(change: &Transaction<'_>, before: u64) -> rusqlite::Result<usize> {
    change.execute("DELETE FROM key_usage WHERE day < ?1", params![signed(before)])
}

/// What was used on one day.
pub(super) fn of_day(connection: &Connection, day: u64) -> rusqlite::Result<Vec<KeyUsage>> {
    let query = "SELECT key, model, requests, prompt, cached, completion FROM key_usage WHERE day = ?1";
    let mut found = connection.prepare_cached(query)?;
    let row = |row: &rusqlite::Row<'_>| {
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
    found.query_map(params![signed(day)], row)?.collect()
}
