//! The keys of operators, and the usage of clients' keys, in `PostgreSQL`.

use async_trait::async_trait;
use postgres::Row;

use super::PostgresStore;
use super::columns::number;
use super::link::{Change, as_bigint};
use crate::error::StoreError;
use crate::key_usage::{KeyUsage, KeyUsages};
use crate::operators::{OperatorKey, Operators};

#[async_trait]
impl KeyUsages for PostgresStore {
    async fn add_key_usage(&self, mut rows: Vec<KeyUsage>) -> Result<(), StoreError> {
        // In one order, so that two processes that add to the same rows do not wait for each other.
        rows.sort_by(|one, other| {
            (one.day, &one.key, &one.model).cmp(&(other.day, &other.key, &other.model))
        });
        let sql = "INSERT INTO respool.key_usage AS known (day, key, model, requests, prompt, cached, completion)
             VALUES ($1, $2, $3, $4, $5, $6, $7)
             ON CONFLICT (day, key, model) DO UPDATE SET requests = known.requests + $4, prompt = known.prompt + $5,
                 cached = known.cached + $6, completion = known.completion + $7";
        let add = move |change: &mut Change<'_>| {
            rows.iter().try_for_each(|row| {
                let [day, requests, prompt, cached, completion] =
                    [row.day, row.requests, row.prompt, row.cached, row.completion].map(as_bigint);
                change
                    .execute(sql, &[&day, &row.key, &row.model, &requests, &prompt, &cached, &completion])
                    .map(drop)
            })
        };
        self.pool.run(add).await
    }

    async fn key_usage_on(&self, day: u64) -> Result<Vec<KeyUsage>, StoreError> {
        let sql = "SELECT key, model, requests, prompt, cached, completion FROM respool.key_usage
             WHERE day = $1 ORDER BY key, model";
        let row = move |row: &Row| {
            Ok(KeyUsage {
                day,
                key: row.try_get(0)?,
                model: row.try_get(1)?,
                requests: number(row, 2)?,
                prompt: number(row, 3)?,
                cached: number(row, 4)?,
                completion: number(row, 5)?,
            })
        };
        self.pool.read(move |change| change.list(sql, &[&as_bigint(day)], row)).await
    }

    async fn forget_key_usage(&self, before: u64) -> Result<(), StoreError> {
        let sql = "DELETE FROM respool.key_usage WHERE day < $1";
        self.pool.run(move |change| change.execute(sql, &[&as_bigint(before)]).map(drop)).await
    }
}

#[async_trait]
impl Operators for PostgresStore {
    async fn set_operators(&self, keys: Vec<OperatorKey>) -> Result<(), StoreError> {
        let replace = move |change: &mut Change<'_>| {
            change.lock(vec!["operators".to_owned()])?;
            change.execute("DELETE FROM respool.operators", &[])?;
            keys.iter().try_for_each(|key| {
                let sql = "INSERT INTO respool.operators (digest, name) VALUES ($1, $2)
                     ON CONFLICT (digest) DO UPDATE SET name = excluded.name";
                change.execute(sql, &[&key.digest, &key.name]).map(drop)
            })
        };
        self.pool.run(replace).await
    }

    async fn operator(&self, digest: &str) -> Result<Option<String>, StoreError> {
        let digest = digest.to_owned();
        let sql = "SELECT name FROM respool.operators WHERE digest = $1";
        self.pool.read(move |change| change.find(sql, &[&digest], |row| row.try_get(0))).await
    }

    async fn has_operators(&self) -> Result<bool, StoreError> {
        self.pool.read(|change| change.exists("SELECT 1 FROM respool.operators", &[])).await
    }
}
