//! The store in `PostgreSQL`, for several processes on one machine or many. Without `store.url` nothing here
//! is started.
//!
//! All of it lies in the schema `respool`. The database's clock is the only one for leases and due times. A
//! change that depends on a lease checks its epoch in the statement that makes the change, or locks the row
//! with the epoch first.

mod address;
mod approvals;
mod audit;
mod check;
mod columns;
mod keys;
mod link;
mod news;
mod nodes;
mod outbox;
mod poll;
mod queue;
mod responses;
mod run_rows;
mod runs;
mod schema;
mod shared;
mod sharing;
mod target;
mod tls;
mod usage;

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use postgres::Error;

use crate::audit::SharedAuditLog;
use crate::config::{ResponsesConfig, RunsConfig, StoreConfig};
use crate::error::StoreError;
use crate::port::StorePort;
use crate::usage::SharedUsage;

pub(crate) use target::Target;

use address::Address;
use link::{Change, Pool};
use news::{News, Signals};
use nodes::{End, LOOK_EVERY, Node, Presence, Refused, join};
use poll::Polls;

/// The store of this process in a `PostgreSQL` database.
#[derive(Debug)]
pub(crate) struct PostgresStore {
    pool: Pool,
    owner: String,
    /// The name for people.
    node: String,
    place: String,
    runs: RunsConfig,
    responses: ResponsesConfig,
    signals: Arc<Signals>,
    presence: Presence,
    /// See [`SharedUsage::database_id`]; it does not change.
    database_id: tokio::sync::OnceCell<String>,
}

impl PostgresStore {
    /// Connects to a database, makes or updates its schema, and registers this process. A process that serves
    /// does that later if the database is away, or a killed process of its name may still live.
    pub(crate) fn open(config: &StoreConfig, url: &str) -> Result<Self, StoreError> {
        Self::open_after(config, url, schema::prepare)
    }

    /// As [`Self::open`], for a command: it fails where the schema would have to be made or updated.
    pub(crate) fn open_in_place(config: &StoreConfig, url: &str) -> Result<Self, StoreError> {
        Self::open_after(config, url, schema::require)
    }

    /// Returns true if a database has the tables that this version uses; false if the next server has to make
    /// or update them.
    pub(crate) fn has_schema(url: &str) -> Result<bool, StoreError> {
        let address = Address::parse(url)?;
        let look = move || {
            let mut link = link::Link::new(address, Arc::default());
            Ok(!matches!(link.transact(&schema::look)?, schema::Found::Nothing | schema::Found::Older(_)))
        };
        from_elsewhere(COMMAND_WAITS, look).map_err(|refused| refused.why)
    }

    /// Opens it after `ready` has looked at the schema.
    fn open_after(
        config: &StoreConfig,
        url: &str,
        ready: fn(&mut link::Link) -> Result<(), StoreError>,
    ) -> Result<Self, StoreError> {
        let address = Address::parse(url)?;
        let owner = format!("{:032x}", rand::random::<u128>());
        let name = config.node.name.clone().filter(|_| config.node.is_server);
        let name = name.unwrap_or_else(|| default_name(&owner));
        let mut version = env!("CARGO_PKG_VERSION").to_owned();
        version.extend(config.node.commit.map(|commit| format!(" ({commit})")));
        let node = Node { owner: owner.clone(), name: name.clone(), serves: config.node.is_server, version };
        let within = if node.serves { SERVER_WAITS } else { COMMAND_WAITS };
        let joining = (address.clone(), node.clone());
        // Without the database it cannot be known whether its folder is the right one.
        let needs_name = !node.serves || config.store.shared_dir.is_some();
        let joins = move || {
            let mut is_said = false;
            loop {
                match join(&joining.0, &joining.1, ready) {
                    Err(Refused { why, end: End::NameFree }) if needs_name => {
                        if !std::mem::replace(&mut is_said, true) {
                            tracing::info!(target: "respool::store", "{why}");
                        }
                        std::thread::sleep(LOOK_EVERY);
                    }
                    joined => return joined,
                }
            }
        };
        let problem = match from_elsewhere(within, joins) {
            Ok(()) => None,
            Err(refused) if node.serves && refused.end != End::Never => {
                tracing::error!(target: "respool::store", error = %refused.why, "the database cannot be used yet: requests are relayed, agents and experts wait for it");
                Some(refused)
            }
            Err(refused) => return Err(refused.why),
        };
        let signals = Arc::default();
        let presence = Presence::begin(&address, node, &signals, problem)?;
        Ok(Self {
            pool: Pool::start(&address, config.store.pool, Arc::clone(&presence.shared))?,
            owner,
            node: name,
            place: address.describe(),
            runs: config.runs.clone(),
            responses: config.responses.clone(),
            presence,
            signals,
            database_id: tokio::sync::OnceCell::new(),
        })
    }
}

impl PostgresStore {
    /// Runs work in a transaction that changes what processes poll.
    async fn change<T: Send + 'static>(
        &self,
        work: impl Fn(&mut Change<'_>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, StoreError> {
        let done = self.pool.run(work).await;
        self.polls().note_change();
        done
    }

    /// Runs one statement that changes what processes poll; see [`Pool::run_statement`].
    async fn change_at_once<T: Send + 'static>(
        &self,
        statement: impl Fn(&mut Change<'_>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, StoreError> {
        let done = self.pool.run_statement(statement).await;
        self.polls().note_change();
        done
    }

    fn polls(&self) -> &Polls {
        &self.presence.shared.polls
    }

    /// Tells the other processes to look. In a transaction of its own: a notification takes a lock of the
    /// whole database at its commit.
    fn notify_others(&self) {
        self.pool.run_later("SELECT pg_notify('respool', $1)", self.owner.clone());
    }
}

/// Tells the other processes to look once this is committed. For what happens seldom.
fn notify_at_commit(change: &mut Change<'_>, payload: &str) -> Result<(), Error> {
    change.find("SELECT pg_notify('respool', $1)::text", &[&payload], |_| Ok(())).map(drop)
}

impl StorePort for PostgresStore {
    fn place(&self) -> String {
        self.place.clone()
    }

    fn node(&self) -> Option<String> {
        Some(self.node.clone())
    }

    fn shared_usage(&self) -> Option<&dyn SharedUsage> {
        Some(self)
    }

    fn shared_audit_log(&self) -> Option<&dyn SharedAuditLog> {
        Some(self)
    }

    fn check_file(&self) -> Result<(), StoreError> {
        self.presence.shared.check()
    }

    fn commits(&self) -> (u64, u64) {
        let commits = self.pool.commits();
        (commits, commits)
    }
}

fn default_name(owner: &str) -> String {
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    format!("{}-{}", host.as_deref().unwrap_or("respool"), &owner[..8])
}

/// How long a command waits for a database to answer at first.
const COMMAND_WAITS: Duration = Duration::from_secs(10);
/// The same for a process that serves: it may have to wait for the one before, and to change the schema.
const SERVER_WAITS: Duration = Duration::from_mins(2);

/// Works on a thread of its own: the client cannot be used on a thread of the runtime, and a database that
/// hangs holds only that thread.
fn from_elsewhere<T: Send + 'static>(
    within: Duration,
    work: impl FnOnce() -> Result<T, Refused> + Send + 'static,
) -> Result<T, Refused> {
    let (done, answer) = mpsc::channel();
    std::thread::Builder::new().name("store-open".into()).spawn(move || done.send(work())).map_err(
        |error| Refused::from(StoreError(format!("the store's thread cannot be started: {error}"))),
    )?;
    answer.recv_timeout(within).unwrap_or_else(|error| {
        let (why, end) = match error {
            RecvTimeoutError::Timeout => ("does not answer", End::Reached),
            RecvTimeoutError::Disconnected => ("cannot be opened", End::Never),
        };
        Err(Refused {
            why: StoreError(format!("the database {why}; look at its load and at the network")),
            end,
        })
    })
}
