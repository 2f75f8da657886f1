//! The connections of this process. Each belongs to a thread, which takes one piece of work after another.
//! The client is synchronous, and the runtime's threads never wait for the database.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use postgres::error::SqlState;
use postgres::types::ToSql;
use postgres::{Client, Error, Row, Statement};
use tokio::sync::oneshot;

use super::address::{Address, with_causes};
use super::shared::Shared;
use crate::error::StoreError;

/// A caller waits this long. The work may still be done later, as after a lost connection.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// How often it looks meanwhile whether the database answers at all.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often work is tried that another transaction stood in the way of, or whose connection was lost before
/// anything could be committed.
const TRIES: u32 = 5;
/// A connection that was not used for longer may have been lost without a sign.
const TRUSTED_FOR: Duration = Duration::from_millis(250);
/// A statement holds its locks for 20 s at most, and a process that is stopped in a transaction for 5 s: the
/// others wait for these locks, also when they take over its work. Said in each transaction, because a pooler
/// between here and the database keeps nothing of a session.
const BEGIN: &str =
    "BEGIN; SET LOCAL statement_timeout = '20s'; SET LOCAL idle_in_transaction_session_timeout = '5s'";

pub(super) type Values<'v> = &'v [&'v (dyn ToSql + Sync)];

type Job = Box<dyn FnOnce(&mut Link) + Send>;

/// How work reaches the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// As a transaction.
    Transaction,
    /// As one statement that commits by itself.
    Statement,
    /// As statements that change nothing.
    Read,
}

/// The threads that work on the database.
#[derive(Debug)]
pub(super) struct Pool {
    jobs: mpsc::Sender<Job>,
    commits: Arc<AtomicU64>,
    presence: Arc<Shared>,
}

impl Pool {
    /// Starts a thread for each connection. They connect when there is work.
    pub(super) fn start(
        address: &Address,
        connections: usize,
        presence: Arc<Shared>,
    ) -> Result<Self, StoreError> {
        let (jobs, queue) = mpsc::channel::<Job>();
        let (queue, commits) = (Arc::new(Mutex::new(queue)), Arc::new(AtomicU64::new(0)));
        for number in 0..connections.max(1) {
            let queue = Arc::clone(&queue);
            let mut link = Link::new(address.clone(), Arc::clone(&commits));
            let work = move || {
                loop {
                    let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(job) = job else { return };
                    job(&mut link);
                }
            };
            std::thread::Builder::new()
                .name(format!("store-{number}"))
                .spawn(work)
                .map_err(|error| StoreError(format!("the store's thread cannot be started: {error}")))?;
        }
        Ok(Self { jobs, commits, presence })
    }

    pub(super) fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    /// Runs work in a transaction of its own, and again when another transaction stood in its way. Returns
    /// once it is committed, which survives a power failure of the database's machine.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl Fn(&mut Change<'_>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.send(Mode::Transaction, work).await
    }

    /// Runs work that is one statement: it commits by itself, in one round trip instead of three. It must not
    /// wait for locks without end.
    pub(super) async fn run_statement<T: Send + 'static>(
        &self,
        work: impl Fn(&mut Change<'_>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.send(Mode::Statement, work).await
    }

    /// Runs small queries, each with a snapshot of its own.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        work: impl Fn(&mut Change<'_>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.send(Mode::Read, work).await
    }

    async fn send<T: Send + 'static>(
        &self,
        mode: Mode,
        work: impl Fn(&mut Change<'_>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.presence.check_joined()?;
        let (caller, mut answer) = oneshot::channel();
        let job = move |link: &mut Link| {
            // The caller may be gone; the commit stands.
            let _ = caller.send(link.work(mode, &work));
        };
        let ended = || StoreError("the store's threads have ended; restart respool".to_owned());
        self.jobs.send(Box::new(job)).map_err(|_| ended())?;
        let asked = Instant::now();
        loop {
            if let Ok(answered) = tokio::time::timeout(LOOK_EVERY, &mut answer).await {
                let answered = answered.unwrap_or_else(|_| Err(ended()));
                if answered.is_ok() {
                    self.presence.note_answer();
                }
                return answered;
            }
            // The work may still be done later, as after a lost connection.
            if self.presence.is_silent() {
                self.presence.check()?;
            }
            if asked.elapsed() > ANSWER_WITHIN {
                return Err(StoreError(format!(
                    "the database did not answer within {} s; look at its load and at the network",
                    ANSWER_WITHIN.as_secs()
                )));
            }
        }
    }

    /// Runs a statement whose result no one waits for.
    pub(super) fn run_later(&self, sql: &'static str, value: String) {
        let job = move |link: &mut Link| {
            let _ = link.work(Mode::Statement, &|change: &mut Change<'_>| change.execute(sql, &[&value]));
        };
        let _ = self.jobs.send(Box::new(job));
    }
}

/// A connection that is made when it is needed, and again after it was lost.
pub(super) struct Link {
    address: Address,
    client: Option<Client>,
    statements: HashMap<String, Statement>,
    commits: Arc<AtomicU64>,
    used: Instant,
}

impl Link {
    pub(super) fn new(address: Address, commits: Arc<AtomicU64>) -> Self {
        Self { address, client: None, statements: HashMap::new(), commits, used: Instant::now() }
    }

    /// Makes a connection unless it has one.
    pub(super) fn connect(&mut self) -> Result<Change<'_>, Error> {
        let client = if let Some(client) = self.client.take().filter(|client| !client.is_closed()) {
            client
        } else {
            self.statements.clear();
            self.address.connect()?
        };
        Ok(Change { client: self.client.insert(client), statements: &mut self.statements })
    }

    /// Runs work in a transaction.
    pub(super) fn transact<T>(
        &mut self,
        work: &dyn Fn(&mut Change<'_>) -> Result<T, Error>,
    ) -> Result<T, StoreError> {
        self.work(Mode::Transaction, work)
    }

    fn work<T>(
        &mut self,
        mode: Mode,
        work: &dyn Fn(&mut Change<'_>) -> Result<T, Error>,
    ) -> Result<T, StoreError> {
        for tried in 1.. {
            match self.try_once(mode, work) {
                Ok(value) => return Ok(value),
                Err(Failed::MayRepeat(_)) if tried < TRIES => {}
                Err(Failed::MayRepeat(error) | Failed::Final(error)) => return Err(explain(&error)),
            }
        }
        Err(StoreError("the database cannot be used".to_owned()))
    }

    fn try_once<T>(
        &mut self,
        mode: Mode,
        work: &dyn Fn(&mut Change<'_>) -> Result<T, Error>,
    ) -> Result<T, Failed> {
        let was_connected = self.client.as_ref().is_some_and(|client| !client.is_closed());
        let is_trusted = std::mem::replace(&mut self.used, Instant::now()).elapsed() < TRUSTED_FOR;
        let commits = Arc::clone(&self.commits);
        let mut change = self.connect().map_err(Failed::Final)?;
        let opening = match mode {
            Mode::Transaction => Some(BEGIN),
            // Whether a statement that was sent on a lost connection was executed, no one knows.
            Mode::Statement if was_connected && !is_trusted => Some(""),
            Mode::Statement | Mode::Read => None,
        };
        let opened = opening.map_or(Ok(()), |sql| change.client.batch_execute(sql));
        let is_open = opened.is_ok();
        let value = match opened.and_then(|()| work(&mut change)) {
            Ok(value) => value,
            Err(error) => {
                // The last word of a server that ends is an answer, too.
                let is_lost = change.client.is_closed() || is_away(&error);
                let is_standby = error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION);
                if mode == Mode::Transaction && !is_lost {
                    let _ = change.client.batch_execute("ROLLBACK");
                }
                // Nothing of a connection that was lost before the commit is kept.
                let is_undone = mode != Mode::Statement || !is_open;
                let may_repeat = (is_lost && was_connected && is_undone) || is_conflict(&error);
                // Another server may be the primary by now.
                if is_lost || is_standby {
                    self.client = None;
                }
                return Err(if may_repeat { Failed::MayRepeat(error) } else { Failed::Final(error) });
            }
        };
        if mode == Mode::Read {
            return Ok(value);
        }
        commits.fetch_add(1, Ordering::Relaxed);
        if mode == Mode::Statement {
            return Ok(value);
        }
        // Where the connection is lost now, no one knows whether the commit stands.
        change.client.batch_execute("COMMIT").map(|()| value).map_err(Failed::Final)
    }
}

enum Failed {
    MayRepeat(Error),
    Final(Error),
}

/// Whether another transaction stood in the way.
fn is_conflict(error: &Error) -> bool {
    error.code().is_some_and(|code| {
        *code == SqlState::T_R_DEADLOCK_DETECTED || *code == SqlState::T_R_SERIALIZATION_FAILURE
    })
}

/// Whether there is no connection because the server is starting, or cannot be reached at the moment. A host
/// without an address is not one of these: that is rather a mistake in the URL.
pub(super) fn is_away(error: &Error) -> bool {
    if let Some(code) = error.code() {
        let away = [
            SqlState::CANNOT_CONNECT_NOW,
            SqlState::ADMIN_SHUTDOWN,
            SqlState::CRASH_SHUTDOWN,
            SqlState::TOO_MANY_CONNECTIONS,
        ];
        return away.contains(code);
    }
    if error.is_closed() {
        return true;
    }
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<std::io::Error>());
    cause.is_some_and(|cause| {
        matches!(
            cause.kind(),
            ErrorKind::ConnectionRefused
                | ErrorKind::ConnectionReset
                | ErrorKind::HostUnreachable
                | ErrorKind::NetworkUnreachable
                | ErrorKind::TimedOut
                | ErrorKind::UnexpectedEof
        )
    })
}

/// A database error, with what to do about it.
pub(super) fn explain(error: &Error) -> StoreError {
    let Some(found) = error.as_db_error() else {
        return StoreError(format!(
            "PostgreSQL cannot be used: {}; check `store.url`, the server and the network",
            with_causes(error)
        ));
    };
    let code = found.code();
    let todo = if *code == SqlState::INVALID_PASSWORD
        || *code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION
    {
        "check user and password in `store.url`, and the server's pg_hba.conf"
    } else if *code == SqlState::INVALID_CATALOG_NAME {
        "make this database, or name another one in `store.url`"
    } else if *code == SqlState::INSUFFICIENT_PRIVILEGE {
        "give the user of `store.url` the right to create and use the schema `respool`"
    } else if *code == SqlState::DISK_FULL {
        "the database's disk is full: make room"
    } else if *code == SqlState::READ_ONLY_SQL_TRANSACTION {
        "this server is a standby or read-only: name the primary in `store.url`"
    } else if [SqlState::INVALID_SQL_STATEMENT_NAME, SqlState::DUPLICATE_PSTATEMENT].contains(code) {
        "a pooler in transaction mode must keep prepared statements: PgBouncer 1.21 or newer does, with `max_prepared_statements`"
    } else {
        "look at the server's log"
    };
    StoreError(format!("PostgreSQL says: {} (SQLSTATE {}); {todo}", found.message(), code.code()))
}

/// A transaction under way. Its statements are prepared once for each connection.
pub(super) struct Change<'l> {
    client: &'l mut Client,
    statements: &'l mut HashMap<String, Statement>,
}

impl Change<'_> {
    fn prepare(&mut self, sql: &str) -> Result<Statement, Error> {
        if let Some(known) = self.statements.get(sql) {
            return Ok(known.clone());
        }
        let statement = self.client.prepare(sql)?;
        self.statements.insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }

    /// Runs a statement that changes rows. Returns how many it changed.
    pub(super) fn execute(&mut self, sql: &str, values: Values<'_>) -> Result<usize, Error> {
        let statement = self.prepare(sql)?;
        Ok(usize::try_from(self.client.execute(&statement, values)?).unwrap_or(usize::MAX))
    }

    /// Runs a statement that changes rows. True when it changed any.
    pub(super) fn has_changed(&mut self, sql: &str, values: Values<'_>) -> Result<bool, Error> {
        Ok(self.execute(sql, values)? > 0)
    }

    /// Returns the first row of a query.
    pub(super) fn find<T>(
        &mut self,
        sql: &str,
        values: Values<'_>,
        row: impl FnOnce(&Row) -> Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        let statement = self.prepare(sql)?;
        self.client.query(&statement, values)?.first().map(row).transpose()
    }

    /// Returns the row of a query that has exactly one.
    pub(super) fn one(&mut self, sql: &str, values: Values<'_>) -> Result<Row, Error> {
        let statement = self.prepare(sql)?;
        self.client.query_one(&statement, values)
    }

    /// Returns all rows of a query.
    pub(super) fn list<T>(
        &mut self,
        sql: &str,
        values: Values<'_>,
        row: impl FnMut(&Row) -> Result<T, Error>,
    ) -> Result<Vec<T>, Error> {
        let statement = self.prepare(sql)?;
        self.client.query(&statement, values)?.iter().map(row).collect()
    }

    /// Whether a query has any row.
    pub(super) fn exists(&mut self, sql: &str, values: Values<'_>) -> Result<bool, Error> {
        Ok(self.find(sql, values, |_| Ok(()))?.is_some())
    }

    /// Waits until no other transaction holds these names, and holds them until the end of this one.
    pub(super) fn lock(&mut self, mut names: Vec<String>) -> Result<(), Error> {
        // In one order, so that two transactions do not wait for each other.
        names.sort_unstable();
        names.dedup();
        let sql = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))::text";
        names.iter().try_for_each(|name| self.find(sql, &[name], |_| Ok(())).map(drop))
    }

    /// Runs statements of a migration.
    pub(super) fn run_script(&mut self, sql: &str) -> Result<(), Error> {
        self.client.batch_execute(sql)
    }
}

/// A number as the database has it. Its integers are signed; times and places are far from that.
pub(super) fn as_bigint(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A limit of rows as the database has it.
pub(super) fn limit(most: usize) -> i64 {
    i64::try_from(most).unwrap_or(i64::MAX)
}

/// A span in milliseconds as the database has it.
pub(super) fn span(duration: Duration) -> i64 {
    // Added to a time, it must stay a number.
    as_bigint(clock::to_millis(duration)).min(i64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: after a restart of the server, work failed once on each connection that was idle.
    #[test]
    fn work_is_repeated_on_a_new_connection() {
        let Some(url) = testing::postgres_server::new_database() else { return };
        let mut links = [0; 2].map(|_| Link::new(Address::parse(&url).unwrap(), Arc::default()));
        let count = |change: &mut Change<'_>| change.execute("SELECT 1", &[]);
        links[0].transact(&count).unwrap();
        let end = |change: &mut Change<'_>| {
            let sql = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
                WHERE datname = current_database() AND pid <> pg_backend_pid()";
            change.execute(sql, &[])
        };
        links[1].transact(&end).unwrap();
        assert_eq!(links[0].transact(&count), Ok(1));
    }

    /// After a failover a connection to the server of before would fail for ever.
    #[test]
    fn a_standby_is_not_asked_again() {
        let Some(url) = testing::postgres_server::new_database() else { return };
        let mut link = Link::new(Address::parse(&url).unwrap(), Arc::default());
        let make = |change: &mut Change<'_>| change.execute("CREATE TABLE made ()", &[]);
        link.connect().unwrap().run_script("SET default_transaction_read_only = on").unwrap();
        assert!(link.transact(&make).unwrap_err().0.contains("name the primary"));
        link.transact(&make).unwrap();
    }
}
