//! Runs as `SQLite` reads them back.

use async_trait::async_trait;
use rusqlite::{Connection, Row, params};

use super::clearing;
use super::queue::changes;
use super::statements::{exists, find, limit, list, signed};
use super::store::SqliteStore;
use crate::attention::{Attention, attention};
use crate::error::StoreError;
use crate::responses::Responses as _;
use crate::run_rows::{Cleared, RunFilter, RunRow, RunRows, StoredEvent, StoredRun, Usage};
use crate::status::Status;

const ROW: &str = "id, agent, status, created, updated, octet_length(setup)
                   + (SELECT coalesce(sum(octet_length(body)), 0) FROM events WHERE run = runs.id), parent";

fn row(row: &Row<'_>) -> rusqlite::Result<RunRow> {
    let status: String = row.get(2)?;
    let number = |index| row.get::<_, i64>(index).map(i64::unsigned_abs);
    Ok(RunRow {
        id: row.get(0)?,
        agent: row.get(1)?,
        status: Status::named(&status).unwrap_or(Status::Failed),
        created: number(3)?,
        updated: number(4)?,
        bytes: number(5)?,
        parent: row.get(6)?,
    })
}

/// Returns the condition of a filter on a row, and the client that it compares with. A chat's client is
/// empty. NULL is a client whose name was not kept.
fn condition(filter: &RunFilter) -> (&'static str, &str) {
    match filter {
        RunFilter::All => ("?1 = ''", ""),
        RunFilter::Clients => ("client IS NOT ?1", ""),
        RunFilter::Served => ("(client IS NOT ?1 OR agent LIKE 'expert/%')", ""),
        RunFilter::Client(client) => ("client = ?1 AND client <> ''", client),
    }
}

#[async_trait]
impl RunRows for SqliteStore {
    async fn run(&self, id: &str) -> Result<Option<StoredRun>, StoreError> {
        let id = id.to_owned();
        self.read(move |connection| run(connection, &id)).await
    }

    async fn newest(&self, filter: RunFilter, most: usize) -> Result<Vec<RunRow>, StoreError> {
        let work = move |connection: &Connection| {
            let (condition, client) = condition(&filter);
            let sql = format!(
                "SELECT {ROW} FROM runs WHERE {condition} ORDER BY created DESC, rowid DESC LIMIT ?2"
            );
            list(connection, &sql, params![client, limit(most)], row)
        };
        self.read(work).await
    }

    async fn attention(&self, since: u64, most: usize) -> Result<Attention, StoreError> {
        let row = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?));
        let rows = self.read(move |connection| {
            list(connection, attention!(""), params![signed(since), limit(most)], row)
        });
        Ok(Attention::from_rows(rows.await?))
    }

    async fn has_run(&self, id: &str, filter: RunFilter) -> Result<bool, StoreError> {
        let id = id.to_owned();
        let work = move |connection: &Connection| {
            let (condition, client) = condition(&filter);
            let sql = format!("SELECT 1 FROM runs WHERE {condition} AND id = ?2");
            exists(connection, &sql, params![client, id])
        };
        self.read(work).await
    }

    async fn run_of_calls(
        &self,
        ids: Vec<String>,
        agent: &str,
        client: &str,
    ) -> Result<Option<String>, StoreError> {
        let (agent, client) = (agent.to_owned(), client.to_owned());
        let sql = "SELECT run FROM client_calls JOIN runs ON runs.id = run
                 WHERE client_calls.id = ?1 AND agent = ?2 AND (client = ?3 OR client IS NULL)";
        let work = move |connection: &Connection| {
            let run_of = |id| find(connection, sql, params![id, agent, client], |row| row.get(0)).transpose();
            ids.iter().find_map(run_of).transpose()
        };
        self.read(work).await
    }

    async fn unanswered_run(&self, fingerprint: &str, since: u64) -> Result<Option<String>, StoreError> {
        let fingerprint = fingerprint.to_owned();
        let sql = "SELECT id FROM runs WHERE fingerprint = ?1 AND updated >= ?2 AND answered = 0 AND status NOT IN ('cancelled', 'failed')
                 ORDER BY updated DESC LIMIT 1";
        self.read(move |connection| {
            find(connection, sql, params![fingerprint, signed(since)], |row| row.get(0))
        })
        .await
    }

    async fn runs_of_work(&self, fingerprint: &str) -> Result<Vec<String>, StoreError> {
        let fingerprint = fingerprint.to_owned();
        let sql = "SELECT id FROM runs WHERE fingerprint = ?1 AND answered = 0 ORDER BY created, rowid";
        self.read(move |connection| list(connection, sql, params![fingerprint], |row| row.get(0))).await
    }

    async fn cancel_requested(&self, runs: Vec<String>) -> Result<Vec<String>, StoreError> {
        let sql =
            "SELECT runs.id FROM json_each(?1) AS asked JOIN runs ON runs.id = asked.value WHERE cancel = 1";
        let runs = serde_json::Value::from(runs).to_string();
        self.read(move |connection| list(connection, sql, params![runs], |row| row.get(0))).await
    }

    async fn runs_of_status(&self, status: Status) -> Result<Vec<RunRow>, StoreError> {
        let sql = format!("SELECT {ROW} FROM runs WHERE status = ?1 ORDER BY updated");
        self.read(move |connection| list(connection, &sql, params![status.as_str()], row)).await
    }

    async fn snapshots_in_use(&self) -> Result<Vec<String>, StoreError> {
        let sql = "SELECT DISTINCT coalesce(json_extract(setup, '$.snapshot'), '') FROM runs
         WHERE status IN ('running', 'suspended', 'awaiting_approval', 'interrupted')";
        self.read(move |connection| list(connection, sql, [], |row| row.get(0))).await
    }

    async fn clear(&self, now: u64, settled: u64) -> Result<Cleared, StoreError> {
        let (before, most) = (now.saturating_sub(clock::to_millis(self.runs.keep)), self.runs.max_size.0);
        let old = self.delete_in_batches(move |change| clearing::delete_old(change, before)).await?;
        self.delete_in_batches(move |change| changes::forget(change, before, now)).await?;
        self.clear_responses(now).await?;
        let for_room =
            self.delete_in_batches(move |change| clearing::delete_for_room(change, most, settled)).await?;
        self.return_space().await?;
        Ok(Cleared { old, for_room, bytes: self.usage().await?.bytes })
    }

    async fn delete(&self, run: &str) -> Result<bool, StoreError> {
        let run = run.to_owned();
        let is_deleted = self.write(move |change| Ok(clearing::delete_run(change, &run)? > 0)).await?;
        if is_deleted {
            self.return_space().await?;
        }
        Ok(is_deleted)
    }

    async fn usage(&self) -> Result<Usage, StoreError> {
        self.read(clearing::usage).await
    }
}

fn run(connection: &Connection, id: &str) -> rusqlite::Result<Option<StoredRun>> {
    let sql = format!("SELECT {ROW}, setup, client, epoch FROM runs WHERE id = ?1");
    let found = find(connection, &sql, params![id], |it| {
        Ok((row(it)?, it.get(7)?, it.get(8)?, it.get::<_, i64>(9)?.unsigned_abs()))
    })?;
    let Some((run, setup, client, epoch)) = found else { return Ok(None) };
    let event = |it: &Row<'_>| Ok(StoredEvent { at: it.get::<_, i64>(0)?.unsigned_abs(), body: it.get(1)? });
    let sql = "SELECT at, body FROM events WHERE run = ?1 ORDER BY seq";
    let events = list(connection, sql, params![id], event)?;
    Ok(Some(StoredRun { row: run, client, epoch, setup, events }))
}
