//! Runs as they are read back.

use rusqlite::{Connection, Row, params};

use super::clearing::{self, Cleared, Usage};
use super::error::StoreError;
use super::queue::changes;
use super::statements::{exists, find, limit, list, signed};
use super::status::Status;
use super::store::Store;

/// One run without its events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunRow {
    /// Its id.
    pub id: String,
    /// Its agent.
    pub agent: String,
    /// How far it is.
    pub status: Status,
    /// When it began, in milliseconds since 1970.
    pub created: u64,
    /// When something happened to it last.
    pub updated: u64,
    /// Its size in the store, in bytes.
    pub bytes: u64,
    /// The run that began this one as its child.
    pub parent: Option<String>,
}

/// Selects runs by their client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunFilter {
    /// All runs, chats of the terminal too.
    All,
    /// The runs that any client began over HTTP.
    Clients,
    /// These, and the runs of experts' work, which no client began.
    Served,
    /// The runs that this client began. The name is the one of `NewRun::client`.
    Client(String),
}

impl RunFilter {
    /// The condition on a row, and the client that it compares with. A chat's client is empty, and NULL is a
    /// client whose name was not kept.
    fn condition(&self) -> (&'static str, &str) {
        match self {
            Self::All => ("?1 = ''", ""),
            Self::Clients => ("client IS NOT ?1", ""),
            Self::Served => ("(client IS NOT ?1 OR agent LIKE 'expert/%')", ""),
            Self::Client(client) => ("client = ?1 AND client <> ''", client),
        }
    }

    /// Whether a run of this agent and client is selected.
    pub fn includes(&self, agent: &str, client: Option<&str>) -> bool {
        match self {
            Self::All => true,
            Self::Clients => client != Some(""),
            Self::Served => client != Some("") || agent.starts_with("expert/"),
            Self::Client(own) => client == Some(own) && !own.is_empty(),
        }
    }
}

/// An event as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEvent {
    /// When, in milliseconds since 1970.
    pub at: u64,
    /// Its text.
    pub body: String,
}

/// A run with its setup and its events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRun {
    /// The run.
    pub row: RunRow,
    /// Stands for its client; `None` for a run of an early respool, which did not keep this.
    pub client: Option<String>,
    /// Grows with each claim: a write with another epoch is refused.
    pub epoch: u64,
    /// Its setup.
    pub setup: String,
    /// Its events, in order.
    pub events: Vec<StoredEvent>,
}

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

impl Store {
    /// Returns a run with its events.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn run(&self, id: &str) -> Result<Option<StoredRun>, StoreError> {
        let id = id.to_owned();
        self.read(move |connection| run(connection, &id)).await
    }

    /// Returns the newest runs, newest first, without their events.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn newest(&self, filter: RunFilter, most: usize) -> Result<Vec<RunRow>, StoreError> {
        let work = move |connection: &Connection| {
            let (condition, client) = filter.condition();
            let sql = format!(
                "SELECT {ROW} FROM runs WHERE {condition} ORDER BY created DESC, rowid DESC LIMIT ?2"
            );
            list(connection, &sql, params![client, limit(most)], row)
        };
        self.read(work).await
    }

    /// Returns the runs that a client began and that failed after `since` (milliseconds since 1970), the
    /// latest first.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn failed_since(&self, since: u64, most: usize) -> Result<Vec<RunRow>, StoreError> {
        let (condition, client) = RunFilter::Clients.condition();
        let sql = format!(
            "SELECT {ROW} FROM runs WHERE {condition} AND status = 'failed' AND updated > ?2 ORDER BY updated DESC LIMIT ?3"
        );
        self.read(move |connection| list(connection, &sql, params![client, signed(since), limit(most)], row))
            .await
    }

    /// Whether there is such a run and the filter selects it.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn has_run(&self, id: &str, filter: RunFilter) -> Result<bool, StoreError> {
        let id = id.to_owned();
        let work = move |connection: &Connection| {
            let (condition, client) = filter.condition();
            let sql = format!("SELECT 1 FROM runs WHERE {condition} AND id = ?2");
            exists(connection, &sql, params![client, id])
        };
        self.read(work).await
    }

    /// Returns the run of this agent and client that waits, or waited, for one of these calls.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn run_of_calls(
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

    /// Returns the newest run that the same request asked for, not before `since`, and whose client has not
    /// got its answer; not one that was ended.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn unanswered_run(&self, fingerprint: &str, since: u64) -> Result<Option<String>, StoreError> {
        let fingerprint = fingerprint.to_owned();
        let sql = "SELECT id FROM runs WHERE fingerprint = ?1 AND updated >= ?2 AND answered = 0 AND status NOT IN ('cancelled', 'failed')
                 ORDER BY updated DESC LIMIT 1";
        self.read(move |connection| {
            find(connection, sql, params![fingerprint, signed(since)], |row| row.get(0))
        })
        .await
    }

    /// Returns the runs that stand for the same work, whose answer no client got, the oldest first.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn runs_of_work(&self, fingerprint: &str) -> Result<Vec<String>, StoreError> {
        let fingerprint = fingerprint.to_owned();
        let sql = "SELECT id FROM runs WHERE fingerprint = ?1 AND answered = 0 ORDER BY created, rowid";
        self.read(move |connection| list(connection, sql, params![fingerprint], |row| row.get(0))).await
    }

    /// Returns those of these runs whose cancellation was requested, perhaps in another process.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn cancel_requested(&self, runs: Vec<String>) -> Result<Vec<String>, StoreError> {
        let sql =
            "SELECT runs.id FROM json_each(?1) AS asked JOIN runs ON runs.id = asked.value WHERE cancel = 1";
        let runs = serde_json::Value::from(runs).to_string();
        self.read(move |connection| list(connection, sql, params![runs], |row| row.get(0))).await
    }

    /// Returns the runs of a status, the oldest change first.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn runs_of_status(&self, status: Status) -> Result<Vec<RunRow>, StoreError> {
        let sql = format!("SELECT {ROW} FROM runs WHERE status = ?1 ORDER BY updated");
        self.read(move |connection| list(connection, &sql, params![status.as_str()], row)).await
    }

    /// Returns the snapshots of the runs that are not over, as their setups name them.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn snapshots_in_use(&self) -> Result<Vec<String>, StoreError> {
        let sql = "SELECT DISTINCT coalesce(json_extract(setup, '$.snapshot'), '') FROM runs
         WHERE status IN ('running', 'suspended', 'awaiting_approval', 'interrupted')";
        self.read(move |connection| list(connection, sql, [], |row| row.get(0))).await
    }

    /// Deletes what is older than `runs.keep`, then, while more than `runs.max_size` is in use, runs that
    /// ended and to which nothing has happened since `settled`, and returns the space to the disk. Others
    /// write in between. Times are milliseconds since 1970.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn clear(&self, now: u64, settled: u64) -> Result<Cleared, StoreError> {
        let (before, most) = (now.saturating_sub(clock::millis(self.runs.keep)), self.runs.max_size.0);
        let old = self.delete_in_batches(move |change| clearing::delete_old(change, before)).await?;
        self.delete_in_batches(move |change| changes::forget(change, before, now)).await?;
        self.clear_responses(now).await?;
        let for_room =
            self.delete_in_batches(move |change| clearing::delete_for_room(change, most, settled)).await?;
        self.return_space().await?;
        Ok(Cleared { old, for_room, bytes: self.usage().await?.bytes })
    }

    /// Deletes one run, and what the disk holds of it; false when it is not known, a process works on it, or
    /// its work may be executed again.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn delete(&self, run: &str) -> Result<bool, StoreError> {
        let run = run.to_owned();
        let is_deleted = self.write(move |change| Ok(clearing::delete_run(change, &run)? > 0)).await?;
        if is_deleted {
            self.return_space().await?;
        }
        Ok(is_deleted)
    }

    /// Returns the size of the store.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn usage(&self) -> Result<Usage, StoreError> {
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
