//! What is read back. Each function is one query on the reading connection.

use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::Status;

/// One run without its events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunRow {
    /// Its id.
    pub id: String,
    /// Its agent.
    pub agent: String,
    /// What became of it.
    pub status: Status,
    /// When it began, in milliseconds since 1970.
    pub created: u64,
    /// When something happened to it last.
    pub updated: u64,
    /// What is kept of it, in bytes.
    pub bytes: u64,
    /// The run that began this one as its child.
    pub parent: Option<String>,
}

/// Whose runs are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whose {
    /// All runs, chats of the terminal too.
    Everybody,
    /// The runs that any client began over HTTP.
    Clients,
    /// These, and the runs of experts' work, which no client began.
    Served,
    /// The runs that this client began; it is named as in [`super::NewRun::client`].
    Client(String),
}

impl Whose {
    /// The condition on a row, and the client that it compares with. A chat's client is empty, and NULL is a client whose name
    /// was not kept.
    fn condition(&self) -> (&'static str, &str) {
        match self {
            Self::Everybody => ("?1 = ''", ""),
            Self::Clients => ("client IS NOT ?1", ""),
            Self::Served => ("(client IS NOT ?1 OR agent LIKE 'expert/%')", ""),
            Self::Client(client) => ("client = ?1 AND client <> ''", client),
        }
    }

    /// True when a run of this agent and client is meant.
    pub fn includes(&self, agent: &str, client: Option<&str>) -> bool {
        match self {
            Self::Everybody => true,
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

/// A run with everything that was kept of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRun {
    /// The run.
    pub row: RunRow,
    /// Stands for its client; `None` for one that was begun by a respool that did not keep this.
    pub client: Option<String>,
    /// How often it was claimed: what is written with another epoch is refused.
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

pub(super) fn run(connection: &Connection, id: &str) -> rusqlite::Result<Option<StoredRun>> {
    let mut found =
        connection.prepare_cached(&format!("SELECT {ROW}, setup, client, epoch FROM runs WHERE id = ?1"))?;
    let found = found
        .query_row(params![id], |it| Ok((row(it)?, it.get(7)?, it.get(8)?, it.get::<_, i64>(9)?)))
        .optional()?;
    let Some((run, setup, client, epoch)) = found else { return Ok(None) };
    let mut events = connection.prepare_cached("SELECT at, body FROM events WHERE run = ?1 ORDER BY seq")?;
    let event = |it: &Row<'_>| Ok(StoredEvent { at: it.get::<_, i64>(0)?.unsigned_abs(), body: it.get(1)? });
    let events = events.query_map(params![id], event)?.collect::<rusqlite::Result<_>>()?;
    Ok(Some(StoredRun { row: run, client, epoch: epoch.unsigned_abs(), setup, events }))
}

pub(super) fn newest(connection: &Connection, whose: &Whose, most: usize) -> rusqlite::Result<Vec<RunRow>> {
    let (condition, client) = whose.condition();
    let query =
        format!("SELECT {ROW} FROM runs WHERE {condition} ORDER BY created DESC, rowid DESC LIMIT ?2");
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    connection.prepare_cached(&query)?.query_map(params![client, most], row)?.collect()
}

/// The runs of a status, the oldest change first.
pub(super) fn of_status(connection: &Connection, status: &str) -> rusqlite::Result<Vec<RunRow>> {
    let query = format!("SELECT {ROW} FROM runs WHERE status = ?1 ORDER BY updated");
    connection.prepare_cached(&query)?.query_map(params![status], row)?.collect()
}

/// The clients' runs that failed after this moment, the latest first.
pub(super) fn failed_since(
    connection: &Connection,
    since: u64,
    most: usize,
) -> rusqlite::Result<Vec<RunRow>> {
    let (condition, client) = Whose::Clients.condition();
    let query = format!(
        "SELECT {ROW} FROM runs WHERE {condition} AND status = 'failed' AND updated > ?2 ORDER BY updated DESC LIMIT ?3"
    );
    let [since, most] = [i64::try_from(since), i64::try_from(most)].map(|number| number.unwrap_or(i64::MAX));
    connection.prepare_cached(&query)?.query_map(params![client, since, most], row)?.collect()
}

pub(super) fn is_of(connection: &Connection, run: &str, whose: &Whose) -> rusqlite::Result<bool> {
    let (condition, client) = whose.condition();
    let query = format!("SELECT 1 FROM runs WHERE {condition} AND id = ?2");
    connection.prepare_cached(&query)?.exists(params![client, run])
}

pub(super) fn by_call(
    connection: &Connection,
    ids: &[String],
    agent: &str,
    client: &str,
) -> rusqlite::Result<Option<String>> {
    let query = "SELECT run FROM client_calls JOIN runs ON runs.id = run
                 WHERE client_calls.id = ?1 AND agent = ?2 AND (client = ?3 OR client IS NULL)";
    let mut found = connection.prepare_cached(query)?;
    for id in ids {
        if let Some(run) = found.query_row(params![id, agent, client], |row| row.get(0)).optional()? {
            return Ok(Some(run));
        }
    }
    Ok(None)
}

pub(super) fn unanswered(
    connection: &Connection,
    fingerprint: &str,
    since: u64,
) -> rusqlite::Result<Option<String>> {
    let query = "SELECT id FROM runs WHERE fingerprint = ?1 AND updated >= ?2 AND answered = 0 AND status NOT IN ('cancelled', 'failed')
                 ORDER BY updated DESC LIMIT 1";
    let since = i64::try_from(since).unwrap_or(i64::MAX);
    connection.prepare_cached(query)?.query_row(params![fingerprint, since], |row| row.get(0)).optional()
}

/// Those of these runs that somebody asked to cancel.
pub(super) fn cancel_requested(connection: &Connection, runs: &[String]) -> rusqlite::Result<Vec<String>> {
    let query =
        "SELECT runs.id FROM json_each(?1) AS asked JOIN runs ON runs.id = asked.value WHERE cancel = 1";
    let runs = serde_json::to_string(runs).unwrap_or_default();
    connection.prepare_cached(query)?.query_map(params![runs], |row| row.get(0))?.collect()
}

/// The runs of a fingerprint that no client got the answer of, the oldest first.
pub(super) fn runs_of(connection: &Connection, fingerprint: &str) -> rusqlite::Result<Vec<String>> {
    let query = "SELECT id FROM runs WHERE fingerprint = ?1 AND answered = 0 ORDER BY created, rowid";
    connection.prepare_cached(query)?.query_map(params![fingerprint], |row| row.get(0))?.collect()
}

/// When the oldest entry of a queue was accepted that has not ended, or the oldest run of its agent begun that is not over.
pub(super) fn oldest_open(
    connection: &Connection,
    queue: &str,
    agent: &str,
) -> rusqlite::Result<Option<u64>> {
    let query = "SELECT min(at) FROM (
        SELECT min(accepted) AS at FROM queue WHERE queue = ?1 AND state IN ('waiting', 'claimed', 'held')
        UNION ALL
        SELECT min(created) FROM runs WHERE agent = ?2 AND status IN ('running', 'suspended', 'awaiting_approval', 'interrupted'))";
    let at: Option<i64> =
        connection.prepare_cached(query)?.query_row(params![queue, agent], |row| row.get(0))?;
    Ok(at.map(i64::unsigned_abs))
}

/// What stands in the setups of runs that are not over for what they were made of.
pub(super) fn snapshots_in_use(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut snapshots = connection.prepare_cached(
        "SELECT DISTINCT coalesce(json_extract(setup, '$.snapshot'), '') FROM runs
         WHERE status IN ('running', 'suspended', 'awaiting_approval', 'interrupted')",
    )?;
    snapshots.query_map([], |row| row.get(0))?.collect()
}

pub(super) fn owners_of_running(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut owners = connection.prepare("SELECT DISTINCT owner FROM runs WHERE status = 'running'")?;
    owners.query_map([], |row| row.get(0))?.collect()
}
