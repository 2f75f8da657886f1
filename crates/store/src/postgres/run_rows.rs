//! Runs as `PostgreSQL` reads them back.

use async_trait::async_trait;
use postgres::{Error, Row};

use super::PostgresStore;
use super::columns::number;
use super::link::{Change, as_bigint, limit};
use super::queue;
use crate::attention::{Attention, attention};
use crate::error::StoreError;
use crate::responses::Responses as _;
use crate::run_rows::{Cleared, RunFilter, RunRow, RunRows, StoredEvent, StoredRun, Usage};
use crate::status::Status;

/// At most this many runs are deleted in one batch.
const BATCH: i64 = 16;
/// True for a run of work that may be executed again: what it did is not done again only as long as it is
/// known.
const IS_NEEDED: &str = "EXISTS (SELECT 1 FROM respool.queue
    WHERE work = runs.fingerprint AND state IN ('waiting', 'claimed', 'held', 'dead_letter', 'failed', 'escalated'))";
const COLUMNS: &str = "id, agent, status, created, updated, octet_length(setup)
    + (SELECT coalesce(sum(octet_length(body)), 0)::bigint FROM respool.events WHERE run = runs.id), parent";
const BYTES: &str = "SELECT (SELECT coalesce(sum(octet_length(setup)), 0) FROM respool.runs)::bigint
    + (SELECT coalesce(sum(octet_length(body)), 0) FROM respool.events)::bigint";

#[async_trait]
impl RunRows for PostgresStore {
    async fn run(&self, id: &str) -> Result<Option<StoredRun>, StoreError> {
        let id = id.to_owned();
        self.pool.read(move |change| run(change, &id)).await
    }

    async fn newest(&self, filter: RunFilter, most: usize) -> Result<Vec<RunRow>, StoreError> {
        let (condition, client) = condition(&filter);
        let client = client.to_owned();
        let sql = select(&format!("{condition} ORDER BY created DESC, place DESC LIMIT $2"));
        self.pool.read(move |change| change.list(&sql, &[&client, &limit(most)], row)).await
    }

    async fn attention(&self, since: u64, most: usize) -> Result<Attention, StoreError> {
        let row = |row: &Row| Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?));
        let sql = attention!("respool.");
        let values = (as_bigint(since), limit(most));
        let rows = self.pool.read(move |change| change.list(sql, &[&values.0, &values.1], row)).await?;
        Ok(Attention::from_rows(rows))
    }

    async fn has_run(&self, id: &str, filter: RunFilter) -> Result<bool, StoreError> {
        let (condition, client) = condition(&filter);
        let (id, client) = (id.to_owned(), client.to_owned());
        let sql = format!("SELECT 1 FROM respool.runs WHERE {condition} AND id = $2");
        self.pool.read(move |change| change.exists(&sql, &[&client, &id])).await
    }

    async fn run_of_calls(
        &self,
        ids: Vec<String>,
        agent: &str,
        client: &str,
    ) -> Result<Option<String>, StoreError> {
        let (agent, client) = (agent.to_owned(), client.to_owned());
        let sql = "SELECT run FROM respool.client_calls JOIN respool.runs ON runs.id = run
             WHERE client_calls.id = ANY ($1) AND agent = $2 AND (client = $3 OR client IS NULL)
             ORDER BY array_position($1::text[], client_calls.id) LIMIT 1";
        self.pool.read(move |change| change.find(sql, &[&ids, &agent, &client], |row| row.try_get(0))).await
    }

    async fn unanswered_run(&self, fingerprint: &str, since: u64) -> Result<Option<String>, StoreError> {
        let fingerprint = fingerprint.to_owned();
        let sql = "SELECT id FROM respool.runs
             WHERE fingerprint = $1 AND updated >= $2 AND NOT answered AND status NOT IN ('cancelled', 'failed')
             ORDER BY updated DESC LIMIT 1";
        self.pool
            .read(move |change| change.find(sql, &[&fingerprint, &as_bigint(since)], |row| row.try_get(0)))
            .await
    }

    async fn runs_of_work(&self, fingerprint: &str) -> Result<Vec<String>, StoreError> {
        let fingerprint = fingerprint.to_owned();
        let sql =
            "SELECT id FROM respool.runs WHERE fingerprint = $1 AND NOT answered ORDER BY created, place";
        self.pool.read(move |change| change.list(sql, &[&fingerprint], |row| row.try_get(0))).await
    }

    async fn cancel_requested(&self, runs: Vec<String>) -> Result<Vec<String>, StoreError> {
        let sql = "SELECT id FROM respool.runs WHERE id = ANY ($1) AND cancel";
        self.pool.read(move |change| change.list(sql, &[&runs], |row| row.try_get(0))).await
    }

    async fn runs_of_status(&self, status: Status) -> Result<Vec<RunRow>, StoreError> {
        let is_interrupted = status == Status::Interrupted;
        if is_interrupted && self.polls().current().is_some_and(|found| !found.has_interrupted) {
            return Ok(Vec::new());
        }
        let sql = select("status = $1 ORDER BY updated");
        self.pool.read(move |change| change.list(&sql, &[&status.as_str()], row)).await
    }

    async fn snapshots_in_use(&self) -> Result<Vec<String>, StoreError> {
        let sql = "SELECT DISTINCT coalesce(setup::json ->> 'snapshot', '') FROM respool.runs
             WHERE status IN ('running', 'suspended', 'awaiting_approval', 'interrupted')";
        self.pool.read(move |change| change.list(sql, &[], |row| row.try_get(0))).await
    }

    async fn clear(&self, now: u64, settled: u64) -> Result<Cleared, StoreError> {
        let (before, most) = (now.saturating_sub(clock::to_millis(self.runs.keep)), self.runs.max_size.0);
        let old = self.delete_in_batches(move |change| delete_old(change, before)).await?;
        self.delete_in_batches(move |change| queue::forget(change, before)).await?;
        self.clear_responses(now).await?;
        let for_room = self.delete_in_batches(move |change| delete_for_room(change, most, settled)).await?;
        Ok(Cleared { old, for_room, bytes: self.usage().await?.bytes })
    }

    async fn delete(&self, run: &str) -> Result<bool, StoreError> {
        let run = run.to_owned();
        self.change(move |change| Ok(delete_run(change, &run)? > 0)).await
    }

    async fn usage(&self) -> Result<Usage, StoreError> {
        let usage = |change: &mut Change<'_>| {
            let runs = change.find("SELECT count(*) FROM respool.runs", &[], |row| number(row, 0))?;
            Ok(Usage { runs: runs.unwrap_or_default(), bytes: bytes(change)? })
        };
        self.pool.run(usage).await
    }
}

impl PostgresStore {
    /// Deletes in small batches until nothing more is deleted. Returns how much was deleted.
    pub(super) async fn delete_in_batches(
        &self,
        delete_some: impl Fn(&mut Change<'_>) -> Result<usize, Error> + Clone + Send + 'static,
    ) -> Result<usize, StoreError> {
        let mut all = 0;
        loop {
            match self.change(delete_some.clone()).await? {
                0 => return Ok(all),
                deleted => all += deleted,
            }
        }
    }
}

fn select(condition: &str) -> String {
    format!("SELECT {COLUMNS} FROM respool.runs WHERE {condition}")
}

/// Returns the condition of a filter on a row, and the client that it compares with. A chat's client is
/// empty.
fn condition(filter: &RunFilter) -> (&'static str, &str) {
    match filter {
        RunFilter::All => ("$1::text = ''", ""),
        RunFilter::Clients => ("client IS DISTINCT FROM $1", ""),
        RunFilter::Served => ("(client IS DISTINCT FROM $1 OR agent LIKE 'expert/%')", ""),
        RunFilter::Client(client) => ("client = $1 AND client <> ''", client),
    }
}

fn row(row: &Row) -> Result<RunRow, Error> {
    Ok(RunRow {
        id: row.try_get(0)?,
        agent: row.try_get(1)?,
        status: Status::named(row.try_get(2)?).unwrap_or(Status::Failed),
        created: number(row, 3)?,
        updated: number(row, 4)?,
        bytes: number(row, 5)?,
        parent: row.try_get(6)?,
    })
}

fn run(change: &mut Change<'_>, id: &str) -> Result<Option<StoredRun>, Error> {
    let sql = format!("SELECT {COLUMNS}, setup, client, epoch FROM respool.runs WHERE id = $1");
    let found =
        change.find(&sql, &[&id], |it| Ok((row(it)?, it.try_get(7)?, it.try_get(8)?, number(it, 9)?)))?;
    let Some((run, setup, client, epoch)) = found else { return Ok(None) };
    let sql = "SELECT at, body FROM respool.events WHERE run = $1 ORDER BY seq";
    let event = |it: &Row| Ok(StoredEvent { at: number(it, 0)?, body: it.try_get(1)? });
    let events = change.list(sql, &[&id], event)?;
    Ok(Some(StoredRun { row: run, client, epoch, setup, events }))
}

fn bytes(change: &mut Change<'_>) -> Result<u64, Error> {
    Ok(change.find(BYTES, &[], |row| number(row, 0))?.unwrap_or_default())
}

/// Deletes a few runs that no process works on and to which nothing has happened since this time. Runs that
/// wait for approval stay, and those of work that may be executed again; child runs go with their parents.
fn delete_old(change: &mut Change<'_>, before: u64) -> Result<usize, Error> {
    let sql = format!(
        "DELETE FROM respool.runs WHERE id IN (SELECT id FROM respool.runs
         WHERE status IN ('suspended', 'interrupted', 'done', 'limited', 'failed', 'cancelled')
           AND parent IS NULL AND updated < $1 AND NOT {IS_NEEDED} LIMIT $2 FOR UPDATE SKIP LOCKED)"
    );
    change.execute(&sql, &[&as_bigint(before), &BATCH])
}

/// Deletes a few runs that ended before this time, the oldest first, while more than `most` bytes are in use.
fn delete_for_room(change: &mut Change<'_>, most: u64, before: u64) -> Result<usize, Error> {
    let mut over = bytes(change)?.saturating_sub(most);
    let sql = select(&format!(
        "status IN ('done', 'limited', 'failed', 'cancelled') AND parent IS NULL AND updated < $1 AND NOT {IS_NEEDED}
         ORDER BY updated LIMIT $2"
    ));
    let mut deleted = 0;
    for run in change.list(&sql, &[&as_bigint(before), &BATCH], row)? {
        if over == 0 {
            break;
        }
        deleted += delete_run(change, &run.id)?;
        over = over.saturating_sub(run.bytes);
    }
    Ok(deleted)
}

/// Deletes one run that no process works on and whose work is not executed again.
fn delete_run(change: &mut Change<'_>, run: &str) -> Result<usize, Error> {
    let sql = format!("DELETE FROM respool.runs WHERE id = $1 AND status <> 'running' AND NOT {IS_NEEDED}");
    change.execute(&sql, &[&run])
}
