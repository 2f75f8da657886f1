//! The rows of what was used, in a file of their own (`usage.db`): a full disk or a large history there does
//! not touch the runs, and neither is in the other's limits. Called by `usage`.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use rusqlite::{Connection, Row, Transaction, params, params_from_iter};

use super::fresh_rows::FreshRows;
use super::lease::Lease;
use super::open::{self, failed};
use super::presence::DatabaseFile;
use super::requests::{self, dimension_column, read_row};
use super::space;
use super::statements::{execute, exists, limit, list, signed};
use crate::error::StoreError;
use crate::usage::{Dimension, RequestQuery, UncopiedUsage, UsageQuery, UsageRows, UsageSum};
use crate::usage_columns::{self, NUMBERS, SUMS, TEXTS, column_list};
use wire::UsageRow;

const FILE: &str = "usage.db";
/// The schema, as the steps from each version to the next.
const STEPS: [&str; 2] = [include_str!("usage_schema.sql"), include_str!("usage_details.sql")];
/// The purpose of the lock of a process that uses the file.
const PURPOSE: &str = "usage-";
/// At most this many rows are deleted in one batch.
const BATCH: u32 = 5_000;

/// The file in a directory.
pub(super) fn path(state_dir: &Path) -> PathBuf {
    state_dir.join(FILE)
}

/// The rows of one state directory.
#[derive(Debug)]
pub struct UsageStore {
    writer: Arc<Mutex<Connection>>,
    reader: Arc<Mutex<Connection>>,
    path: PathBuf,
    file: DatabaseFile,
    /// Changed only while the writer is locked.
    fresh: Arc<Mutex<FreshRows>>,
    /// Other processes see that the file is in use.
    _lease: Option<Lease>,
}

impl UsageStore {
    /// Opens or makes the file in a directory.
    ///
    /// # Errors
    /// When it cannot be used. A damaged one is set aside, unless another process uses it.
    pub fn open(state_dir: &Path) -> Result<Self, StoreError> {
        open::make_directory(state_dir)?;
        let path = path(state_dir);
        let lease = Lease::take_of(state_dir, PURPOSE).ok();
        let alone = lease.as_ref().is_some_and(|lease| lease.is_alone().unwrap_or(false));
        let (writer, reader) = open::open_other(&path, &STEPS, alone)?;
        open::check_later(&path);
        let file = DatabaseFile::opened(&path);
        let (writer, reader) = (Arc::new(Mutex::new(writer)), Arc::new(Mutex::new(reader)));
        Ok(Self { writer, reader, path, file, fresh: Arc::default(), _lease: lease })
    }

    /// Opens the file in a directory to read it, also on a disk that cannot be written. Without a file there
    /// are no rows. Nothing is made or set aside, because a server may use the file.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn open_to_read(state_dir: &Path) -> Result<Self, StoreError> {
        let path = path(state_dir);
        let connection = Arc::new(Mutex::new(open::open_to_read(&path, &STEPS)?));
        let file = DatabaseFile::opened(&path);
        let writer = Arc::clone(&connection);
        Ok(Self { writer, reader: connection, path, file, fresh: Arc::default(), _lease: None })
    }

    /// Checks that the file is still the one that was opened. Where it is not, no rows are written.
    ///
    /// # Errors
    /// When it was removed or replaced.
    pub fn check_file(&self) -> Result<(), StoreError> {
        self.file.check()
    }

    /// Writes rows in one transaction.
    ///
    /// # Errors
    /// When they cannot be written; none of them then is, and they are returned.
    pub async fn append(&self, rows: Vec<UsageRow>) -> Result<(), (Vec<UsageRow>, StoreError)> {
        if let Err(error) = self.check_file() {
            return Err((rows, error));
        }
        let (writer, fresh, path) = (Arc::clone(&self.writer), Arc::clone(&self.fresh), self.path.clone());
        let work = move || {
            let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
            match insert(&mut writer, &rows) {
                Ok(last) => {
                    lock(&fresh).add(last, rows);
                    Ok(())
                }
                Err(error) => Err((rows, failed("write", &path, &error))),
            }
        };
        let ended = |error: tokio::task::JoinError| {
            Err((Vec::new(), StoreError(format!("rows cannot be written: {error}"))))
        };
        tokio::task::spawn_blocking(work).await.unwrap_or_else(ended)
    }

    /// Deletes rows of before a time, then the oldest until the file is no larger than `most` bytes.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub async fn clear(&self, before: u64, most: u64) -> Result<usize, StoreError> {
        let mut all = 0;
        loop {
            let fresh = Arc::clone(&self.fresh);
            let clear = move |connection: &mut Connection| {
                lock(&fresh).forget_all();
                clear_some(connection, before, most)
            };
            let deleted = self.work(&self.writer, "write", clear).await?;
            if deleted == 0 {
                return Ok(all);
            }
            all += deleted;
        }
    }

    /// Returns rows that a database of this name does not have yet, the oldest first.
    ///
    /// # Errors
    /// When the file cannot be used.
    pub async fn list_uncopied(&self, database: String, most: usize) -> Result<UncopiedUsage, StoreError> {
        let fresh = Arc::clone(&self.fresh);
        let list =
            move |connection: &mut Connection| list_uncopied(connection, &mut lock(&fresh), &database, most);
        self.work(&self.writer, "read", list).await
    }

    /// Returns true if rows were ever copied to this database, or were about to be.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub async fn was_copied_to(&self, database: String) -> Result<bool, StoreError> {
        let find = move |connection: &mut Connection| {
            connection.execute_batch(COPIES)?;
            let sql = "SELECT EXISTS (SELECT 1 FROM copies WHERE database = ?1)";
            connection.query_row(sql, params![database], |row| row.get(0))
        };
        self.work(&self.writer, "read", find).await
    }

    /// Notes that a database has the rows of this origin up to this number.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub async fn mark_copied(&self, database: String, origin: String, last: u64) -> Result<(), StoreError> {
        let sql = "UPDATE copies SET last = max(last, ?2) WHERE database = ?1 AND origin = ?3";
        let mark = move |connection: &mut Connection| {
            execute(connection, sql, params![database, signed(last), origin]).map(drop)
        };
        self.work(&self.writer, "write", mark).await
    }

    /// Notes that a database has no rows of this origin behind this number.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub async fn mark_missing(&self, database: String, origin: String, last: u64) -> Result<(), StoreError> {
        let sql = "UPDATE copies SET last = min(last, ?2) WHERE database = ?1 AND origin = ?3";
        let mark = move |connection: &mut Connection| {
            execute(connection, sql, params![database, signed(last), origin]).map(drop)
        };
        self.work(&self.writer, "write", mark).await
    }

    /// Moves the rows from this number on far behind all that a copy of the file may give.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub async fn move_behind(&self, first: u64) -> Result<(), StoreError> {
        let fresh = Arc::clone(&self.fresh);
        let gap = (i64::from(rand::random::<u32>()) + 1) << 16;
        let work = move |connection: &mut Connection| {
            lock(&fresh).forget_all();
            let sql = "SELECT coalesce(max(id), 0) FROM requests";
            let last: i64 = connection.query_row(sql, [], |row| row.get(0))?;
            let sql = "UPDATE requests SET id = id - ?1 + ?2 WHERE id >= ?1";
            execute(connection, sql, params![signed(first), last.saturating_add(gap)]).map(drop)
        };
        self.work(&self.writer, "write", work).await
    }

    async fn work<T: Send + 'static>(
        &self,
        connection: &Arc<Mutex<Connection>>,
        what: &'static str,
        work: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (connection, path) = (Arc::clone(connection), self.path.clone());
        let work = move || {
            let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
            work(&mut connection).map_err(|error| failed(what, &path, &error))
        };
        let done = tokio::task::spawn_blocking(work).await;
        done.unwrap_or_else(|error| {
            Err(StoreError(format!("the rows of what was used cannot be used: {error}")))
        })
    }
}

#[async_trait]
impl UsageRows for UsageStore {
    async fn sums(&self, query: UsageQuery) -> Result<Vec<UsageSum>, StoreError> {
        self.work(&self.reader, "read", move |connection| sums(connection, &query)).await
    }

    async fn sums_of_runs(&self, runs: Vec<String>) -> Result<Vec<UsageSum>, StoreError> {
        self.work(&self.reader, "read", move |connection| sums_of_runs(connection, runs)).await
    }

    async fn requests_of_run(&self, run: &str, most: usize) -> Result<Vec<UsageRow>, StoreError> {
        let run = run.to_owned();
        self.work(&self.reader, "read", move |connection| requests::find_of_run(connection, &run, most)).await
    }

    async fn find(&self, query: RequestQuery) -> Result<Vec<UsageRow>, StoreError> {
        self.work(&self.reader, "read", move |connection| requests::find(connection, &query)).await
    }

    async fn count_repaired(&self, since: u64) -> Result<u64, StoreError> {
        self.work(&self.reader, "read", move |connection| requests::count_repaired(connection, since)).await
    }

    async fn find_one(&self, id: &str, at: Option<u64>) -> Result<Option<UsageRow>, StoreError> {
        let id = id.to_owned();
        self.work(&self.reader, "read", move |connection| requests::find_one(connection, &id, at)).await
    }

    async fn recent_values(
        &self,
        columns: Vec<Dimension>,
    ) -> Result<Vec<(Dimension, Vec<String>)>, StoreError> {
        let work = move |connection: &mut Connection| {
            let values = |column| Ok((column, requests::recent_values(connection, column)?));
            columns.into_iter().map(values).collect()
        };
        self.work(&self.reader, "read", work).await
    }
}

/// Up to which row each database has the rows. Made once there is a database.
const COPIES: &str = "CREATE TABLE IF NOT EXISTS copies (
    database TEXT PRIMARY KEY,
    origin TEXT NOT NULL,
    last INTEGER NOT NULL
) STRICT, WITHOUT ROWID";

fn list_uncopied(
    connection: &mut Connection,
    fresh: &mut FreshRows,
    database: &str,
    most: usize,
) -> rusqlite::Result<UncopiedUsage> {
    connection.execute_batch(COPIES)?;
    let sql = "INSERT INTO copies (database, origin, last) VALUES (?1, lower(hex(randomblob(16))), 0) ON CONFLICT DO NOTHING";
    execute(connection, sql, params![database])?;
    let sql = "SELECT origin, last FROM copies WHERE database = ?1";
    let (origin, last): (String, i64) =
        connection.query_row(sql, params![database], |row| Ok((row.get(0)?, row.get(1)?)))?;
    if let Some(rows) = fresh.take_after(last.unsigned_abs(), most) {
        return Ok(UncopiedUsage { origin, rows });
    }
    let sql = format!("SELECT {}, id FROM requests WHERE id > ?1 ORDER BY id LIMIT ?2", column_list());
    let place = TEXTS.len() + NUMBERS.len();
    let numbered = |row: &Row<'_>| Ok((row.get::<_, i64>(place)?.unsigned_abs(), read_row(row)?));
    Ok(UncopiedUsage { origin, rows: list(connection, &sql, params![last, limit(most)], numbered)? })
}

/// Once no row is left, new ones are numbered from the beginning: they are rows of another origin.
fn forget_copies(change: &Transaction<'_>) -> rusqlite::Result<()> {
    let has_copies = exists(change, "SELECT 1 FROM sqlite_schema WHERE name = 'copies'", [])?;
    if has_copies && !exists(change, "SELECT 1 FROM requests", [])? {
        execute(change, "DELETE FROM copies", [])?;
    }
    Ok(())
}

fn lock(fresh: &Mutex<FreshRows>) -> MutexGuard<'_, FreshRows> {
    fresh.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Inserts rows. Returns the number of the last one.
fn insert(connection: &mut Connection, rows: &[UsageRow]) -> rusqlite::Result<u64> {
    let places = vec!["?"; TEXTS.len() + NUMBERS.len()].join(", ");
    let sql = format!("INSERT INTO requests ({}) VALUES ({places})", column_list());
    let change = connection.transaction()?;
    {
        let mut statement = change.prepare_cached(&sql)?;
        // A parameter keeps its value until it gets another one, and most of a row is as in the row before.
        let (mut last_texts, mut last_numbers) =
            ([const { None::<Cow<'_, str>> }; TEXTS.len()], [None; NUMBERS.len()]);
        for row in rows {
            for (index, (column, last)) in TEXTS.iter().zip(&mut last_texts).enumerate() {
                let text = (column.get)(row);
                if last.as_ref() != Some(&text) {
                    statement.raw_bind_parameter(1 + index, &*text)?;
                    *last = Some(text);
                }
            }
            for (index, (column, last)) in NUMBERS.iter().zip(&mut last_numbers).enumerate() {
                let number = (column.get)(row);
                if last.replace(number) != Some(number) {
                    statement.raw_bind_parameter(1 + TEXTS.len() + index, number.map(signed))?;
                }
            }
            statement.raw_execute()?;
        }
    }
    let last = change.last_insert_rowid().unsigned_abs();
    change.commit()?;
    Ok(last)
}

fn clear_some(connection: &mut Connection, before: u64, most: u64) -> rusqlite::Result<usize> {
    let change = connection.transaction()?;
    let mut deleted = change
        .prepare_cached(
            "DELETE FROM requests WHERE id IN (SELECT id FROM requests WHERE at < ?1 ORDER BY at LIMIT ?2)",
        )?
        .execute(params![signed(before), BATCH])?;
    if deleted == 0 && space::bytes(&change)? > most {
        deleted = change
            .prepare_cached(
                "DELETE FROM requests WHERE id IN (SELECT id FROM requests ORDER BY at LIMIT ?1)",
            )?
            .execute(params![BATCH])?;
    }
    if deleted > 0 {
        forget_copies(&change)?;
        while space::return_pages(&change)? > 0 {}
    }
    change.commit()?;
    Ok(deleted)
}

/// The requests, and a row for each of their earlier attempts, at the upstream where it was made.
const WITH_ATTEMPTS: &str = "(SELECT at, route, key, model, upstream, agent, outcome, error_code,
        CASE WHEN instr(details, 'earlier_attempts') THEN 1 ELSE attempts END AS attempts,
        duration, prompt, cached, reasoning, completion
    FROM requests WHERE at >= ?1
    UNION ALL
    SELECT at, 'attempt', requests.key, model, earlier.value ->> 'upstream', agent, 'error',
        coalesce(earlier.value ->> 'code', ''), 2, 0, NULL, NULL, NULL, NULL
    FROM requests, json_each(CASE details WHEN '' THEN '{}' ELSE details END, '$.earlier_attempts') AS earlier
    WHERE at >= ?1 AND earlier.value ->> 'why' <> 'put_back')";

fn sums(connection: &Connection, query: &UsageQuery) -> rusqlite::Result<Vec<UsageSum>> {
    let by: Vec<&str> = query.by.iter().map(|dimension| dimension_column(*dimension)).collect();
    let columns: String = by.iter().flat_map(|column| [*column, ", "]).collect();
    let only = requests::equal_values(&query.only, 3);
    let from = if query.by.contains(&Dimension::Upstream) { WITH_ATTEMPTS } else { "requests" };
    let statement = format!(
        "SELECT {columns}{SUMS} FROM {from} WHERE at >= ?1 AND at < ?2{only} GROUP BY {columns}model"
    );
    let mut statement = connection.prepare_cached(&statement)?;
    let width = by.len();
    let span = [signed(query.since), signed(query.until)].map(rusqlite::types::Value::from);
    let values = query.only.iter().map(|(_, value)| value.clone().into());
    let parameters = params_from_iter(span.into_iter().chain(values));
    statement.query_map(parameters, |row| read_sum(row, width))?.collect()
}

fn sums_of_runs(connection: &Connection, runs: Vec<String>) -> rusqlite::Result<Vec<UsageSum>> {
    let statement = format!(
        "SELECT run, key, {SUMS} FROM requests WHERE run <> '' AND run IN (SELECT value FROM json_each(?1)) GROUP BY run, key, model"
    );
    let runs = serde_json::Value::from(runs).to_string();
    connection.prepare_cached(&statement)?.query_map(params![runs], |row| read_sum(row, 2))?.collect()
}

fn read_sum(row: &Row<'_>, width: usize) -> rusqlite::Result<UsageSum> {
    usage_columns::read_sum(width, |index| row.get(index), |index| row.get(index))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use wire::RequestDetails;
    use wire::turn::Usage;

    use super::*;
    use crate::sqlite::damaged;
    use crate::usage::RequestOrder;
    use crate::usage_columns::LONGEST_ERROR;
    use crate::{DatabaseConfig, Store, StoreConfig};
    use wire::units::Secret;

    fn row(at: u64, key: &str, model: &str, tokens: u64) -> UsageRow {
        UsageRow {
            at,
            id: format!("r{at}"),
            route: "chat".into(),
            key: key.into(),
            model: model.into(),
            upstream: "box".into(),
            usage: Some(Usage { prompt: tokens, completion: 1, cached: Some(2), ..Usage::default() }),
            duration: Duration::from_secs(1),
            attempts: 2,
            outcome: "ok".into(),
            ..UsageRow::default()
        }
    }

    fn query(by: &[Dimension]) -> UsageQuery {
        UsageQuery { since: 0, until: u64::MAX, by: by.to_vec(), only: Vec::new() }
    }

    fn newest(most: usize) -> RequestQuery {
        RequestQuery { most, ..RequestQuery::default() }
    }

    /// In a process's own file, and in the database of all.
    #[tokio::test(flavor = "multi_thread")]
    async fn requests_are_selected_and_ordered() {
        let dir = tempfile::tempdir().unwrap();
        let file = UsageStore::open(dir.path()).unwrap();
        let attempt = wire::EarlierAttempt {
            upstream: "old".into(),
            ended: 7,
            why: "failover".into(),
            remedy: String::new(),
            error: "HTTP 500".into(),
            code: "upstream_error".into(),
        };
        let fallback = "other:busy,big:7b:failed".into();
        let details =
            RequestDetails { earlier_attempts: vec![attempt], fallback, ..RequestDetails::default() };
        let failed = UsageRow {
            outcome: "error".into(),
            error: "Connection refused".into(),
            details: details.clone(),
            ..row(3, "bob", "m", 1)
        };
        let long = UsageRow {
            duration: Duration::from_secs(9),
            dialects: "hermes".into(),
            ..row(2, "bob", "n", 900)
        };
        let rows = vec![row(1, "alice", "m", 10), long, failed];
        file.append(rows.clone()).await.unwrap();
        check_selection(&file, &details).await;
        let Some(url) = testing::postgres_server::new_database() else { return };
        let store = DatabaseConfig { url: Some(Secret::new(url)), pool: 2, ..DatabaseConfig::default() };
        let config = StoreConfig { state_dir: dir.path().to_owned(), store, ..StoreConfig::default() };
        let database = Store::open(&config).unwrap();
        let shared = database.shared_usage().unwrap();
        shared.add_rows(UncopiedUsage { origin: "a".into(), rows: (1..).zip(rows).collect() }).await.unwrap();
        check_selection(shared, &details).await;
    }

    async fn check_selection(store: &dyn UsageRows, details: &RequestDetails) {
        let found = async |query: RequestQuery| {
            let rows = store.find(RequestQuery { most: 9, ..query }).await.unwrap();
            rows.iter().map(|row| row.at).collect::<Vec<_>>()
        };
        let all = RequestQuery::default;
        assert_eq!(found(all()).await, [3, 2, 1]);
        assert_eq!(found(RequestQuery { since: 2, order: RequestOrder::Oldest, ..all() }).await, [2, 3]);
        assert_eq!(found(RequestQuery { order: RequestOrder::Longest, skip: 1, ..all() }).await, [3, 1]);
        assert_eq!(found(RequestQuery { order: RequestOrder::MostTokens, ..all() }).await, [2, 1, 3]);
        assert_eq!(found(RequestQuery { text: "connection REFUSED".into(), ..all() }).await, [3]);
        assert_eq!(found(RequestQuery { repaired: true, ..all() }).await, [2]);
        assert_eq!([store.count_repaired(2).await.unwrap(), store.count_repaired(3).await.unwrap()], [1, 0]);
        let only = vec![(Dimension::Key, "bob".into()), (Dimension::Model, "n".into())];
        assert_eq!(found(RequestQuery { only, ..all() }).await, [2]);
        let codes = store.sums(query(&[Dimension::Error])).await.unwrap();
        assert!(codes.iter().any(|sum| sum.names == [""]), "{codes:?}");
        let only = vec![(Dimension::Outcome, "error".into())];
        assert_eq!(found(RequestQuery { only, ..all() }).await, [3]);
        let of = async |dimension, value: &str| {
            found(RequestQuery { only: vec![(dimension, value.to_owned())], ..all() }).await
        };
        assert_eq!(of(Dimension::Model, "big:7b").await, [3], "it was asked for this one");
        assert_eq!(of(Dimension::Upstream, "old").await, [3], "it failed there first");
        assert_eq!(of(Dimension::Error, "upstream_error").await, [3]);
        let only = vec![(Dimension::Model, "n".into()), (Dimension::Model, "big:7b".into())];
        assert_eq!(found(RequestQuery { only, ..all() }).await, [3, 2], "either");
        let by_upstream = store.sums(query(&[Dimension::Upstream])).await.unwrap();
        let counts = |sum: &UsageSum| (sum.names[0].clone(), sum.totals.requests, sum.totals.repeats);
        let counts: Vec<_> = by_upstream.iter().map(counts).collect();
        assert_eq!(counts, [("box".into(), 2, 1), ("box".into(), 1, 1), ("old".into(), 0, 1)]);
        let one = store.find_one("r3", None).await.unwrap().unwrap();
        assert_eq!((one.at, &one.details), (3, details));
        assert!(store.find_one("r3", Some(4)).await.unwrap().is_none());
        let values = store.recent_values(vec![Dimension::Key, Dimension::Model]).await.unwrap();
        assert_eq!(values[0].1, ["alice", "bob"]);
        assert_eq!(values[1].1, ["m", "n"]);
        let hours = store.sums(query(&[Dimension::Hour])).await.unwrap();
        assert_eq!(hours[0].names, ["1970-01-01T00"]);
    }

    /// The file of an earlier respool has no column for details.
    #[tokio::test]
    async fn rows_of_an_earlier_version_are_read() {
        let dir = tempfile::tempdir().unwrap();
        drop(open::open_other(&dir.path().join(FILE), &STEPS[..1], true).unwrap());
        let old = Connection::open(dir.path().join(FILE)).unwrap();
        let mut listed = old.prepare("SELECT name FROM pragma_table_info('requests')").unwrap();
        let columns: Vec<String> =
            listed.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
        drop(listed);
        let values = vec!["'1'"; columns.len()].join(", ");
        let columns = columns.join(", ");
        old.execute(&format!("INSERT INTO requests ({columns}) VALUES ({values})"), []).unwrap();
        drop(old);
        let store = UsageStore::open(dir.path()).unwrap();
        store.append(vec![row(9, "alice", "m", 1)]).await.unwrap();
        let found = store.find(newest(9)).await.unwrap();
        assert_eq!((found.len(), &*found[1].id, &found[1].details), (2, "1", &RequestDetails::default()));
    }

    #[tokio::test]
    async fn reading_makes_and_moves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let store = UsageStore::open_to_read(dir.path()).unwrap();
        assert_eq!((store.find(newest(9)).await.unwrap(), path.exists()), (vec![], false));
        let written = UsageStore::open(dir.path()).unwrap();
        written.append(vec![row(9, "alice", "m", 1)]).await.unwrap();
        let store = UsageStore::open_to_read(dir.path()).unwrap();
        assert_eq!(store.find(newest(9)).await.unwrap().len(), 1);
        let read_only = open::open_read_only(&path).unwrap();
        let found: u32 = read_only.query_row("SELECT count(*) FROM requests", [], |row| row.get(0)).unwrap();
        assert_eq!(found, 1, "its log is read too");
        drop((read_only, store, written));
        std::fs::write(&path, "not a database, however long the text may be".repeat(99)).unwrap();
        let error = UsageStore::open_to_read(dir.path()).unwrap_err().to_string();
        assert!(error.contains("is damaged") && path.exists(), "{error}");
    }

    #[test]
    fn a_newer_file_is_refused_with_its_own_versions() {
        let dir = tempfile::tempdir().unwrap();
        drop(UsageStore::open(dir.path()).unwrap());
        let newer = Connection::open(dir.path().join(FILE)).unwrap();
        newer.pragma_update(None, "user_version", 99).unwrap();
        let error = UsageStore::open(dir.path()).unwrap_err().to_string();
        let expected = format!("(schema 99, this one knows {})", STEPS.len());
        assert!(error.contains(&expected), "{error}");
    }

    #[tokio::test]
    async fn usage_rows_round_trip() {
        let dir = tempfile::tempdir().unwrap();
        let store = UsageStore::open(dir.path()).unwrap();
        let day = 86_400_000;
        let error = UsageRow {
            outcome: "error".into(),
            error: "ü".repeat(500),
            usage: None,
            ..row(day + 5, "bob", "m", 0)
        };
        let rows = vec![row(1, "alice", "m", 10), row(500, "alice", "n", 20), error, row(day, "bob", "m", 5)];
        store.append(rows.clone()).await.unwrap();
        let newest = store.find(newest(10)).await.unwrap();
        assert_eq!(newest[3], rows[0]);
        assert!(newest[0].error.len() <= LONGEST_ERROR && newest[0].usage.is_none());
        let sums = store.sums(query(&[Dimension::Key, Dimension::Day])).await.unwrap();
        let found: Vec<_> = sums
            .iter()
            .map(|sum| {
                (
                    sum.names.join(" "),
                    &*sum.model,
                    sum.totals.requests,
                    sum.totals.failed,
                    sum.totals.usage.prompt,
                )
            })
            .collect();
        assert_eq!(
            found,
            [
                ("alice 1970-01-01".to_owned(), "m", 1, 0, 10),
                ("alice 1970-01-01".to_owned(), "n", 1, 0, 20),
                ("bob 1970-01-02".to_owned(), "m", 2, 1, 5),
            ]
        );
        let of_alice = UsageQuery { only: vec![(Dimension::Key, "alice".into())], ..query(&[]) };
        assert_eq!(store.sums(of_alice).await.unwrap().iter().map(|sum| sum.totals.requests).sum::<u64>(), 2);
    }

    #[tokio::test]
    async fn agent_requests_count_once() {
        let dir = tempfile::tempdir().unwrap();
        let store = UsageStore::open(dir.path()).unwrap();
        let of_run = |route: &'static str, tokens| UsageRow {
            route: route.into(),
            run: "run-1".into(),
            ..row(1, "", "m", tokens)
        };
        let asked = UsageRow { usage: Some(Usage::default()), upstream: String::new(), ..of_run("agent", 0) };
        store.append(vec![of_run("agent_model", 10), of_run("agent_model", 20), asked]).await.unwrap();
        let sums = store.sums_of_runs(vec!["run-1".into(), "run-2".into()]).await.unwrap();
        let totals = sums[0].totals;
        assert_eq!((sums.len(), totals.requests, totals.model_calls, totals.usage.prompt), (1, 1, 2, 30));
        assert_eq!(sums[0].names[0], "run-1");
    }

    #[tokio::test]
    async fn old_and_excess_rows_are_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let store = UsageStore::open(dir.path()).unwrap();
        store.append((0..30_000).map(|at| row(at, "alice", "m", 1)).collect()).await.unwrap();
        store.clear(100, u64::MAX).await.unwrap();
        let count = |sums: Vec<UsageSum>| sums.iter().map(|sum| sum.totals.requests).sum::<u64>();
        assert_eq!(count(store.sums(query(&[])).await.unwrap()), 29_900);
        store.clear(0, 1 << 20).await.unwrap();
        let left = store.find(newest(usize::MAX)).await.unwrap();
        assert!(left.len() < 20_000 && left[0].at == 29_999, "{}", left.len());
        assert!(std::fs::metadata(store.path).unwrap().len() <= 3 << 20);
    }

    #[tokio::test]
    async fn a_damaged_file_is_set_aside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        std::fs::write(&path, "no database".repeat(1_000)).unwrap();
        let store = UsageStore::open(dir.path()).unwrap();
        assert_eq!(damaged::find_set_aside(dir.path()), [dir.path().join("usage.damaged-1")]);

        store.append((0..1_000).map(|at| row(at, "alice", "m", 1)).collect()).await.unwrap();
        drop(store);
        damage_all_but_the_schema(&path);
        let server = Lease::take_of(dir.path(), PURPOSE).unwrap();
        let error = UsageStore::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("end all processes of respool that use it"), "{error}");
        drop(server);
        let store = UsageStore::open(dir.path()).unwrap();
        assert_eq!(damaged::find_set_aside(dir.path()).len(), 2);
        store.append(vec![row(0, "alice", "m", 1)]).await.unwrap();
    }

    /// Regression: a file that is too large to be read at the start was never set aside.
    #[tokio::test]
    async fn damage_met_in_use_is_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let store = UsageStore::open(dir.path()).unwrap();
        let long = "a".repeat(2_000);
        store.append((0..10_000).map(|at| row(at, &long, "m", 1)).collect()).await.unwrap();
        drop(store);
        // The log moves into the file when the last task has let it go.
        testing::waiting::wait_until("the file is large", async || !open::is_small(&path)).await;
        damage_all_but_the_schema(&path);
        let store = UsageStore::open(dir.path()).unwrap();
        store.sums(query(&[])).await.unwrap_err();
        drop(store);
        UsageStore::open(dir.path()).unwrap().sums(query(&[])).await.unwrap();
        assert_eq!(damaged::find_set_aside(dir.path()), [dir.path().join("usage.damaged-1")]);
    }

    fn damage_all_but_the_schema(path: &Path) {
        let mut bytes = std::fs::read(path).unwrap();
        bytes[4_096..].fill(0xa5);
        std::fs::write(path, bytes).unwrap();
    }
}
