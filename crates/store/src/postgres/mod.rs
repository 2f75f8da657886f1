//! The store in `PostgreSQL`, for several processes on one machine or many. Without `store.url` nothing here
//! is started.
//!
//! All of it lies in the schema `respool`. The database's clock is the only one for leases and due times. A
//! change that depends on a lease checks its epoch in the statement that makes the change, or locks the row
//! with the epoch first.

mod approvals;
mod keys;
mod link;
mod nodes;
mod outbox;
mod queue;
mod responses;
mod run_rows;
mod runs;
mod schema;

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use postgres::Config;
use tokio::sync::Notify;

use crate::config::{ResponsesConfig, RunsConfig, StoreConfig};
use crate::error::StoreError;
use crate::port::StorePort;

use link::{Link, Pool, with_causes};
use nodes::{Node, Presence};

/// How long it may take to connect, unless the URL says otherwise.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// A connection whose other end is silent for this long is lost.
const SILENT_FOR: Duration = Duration::from_secs(15);

/// The store of this process in a `PostgreSQL` database.
#[derive(Debug)]
pub(crate) struct PostgresStore {
    pool: Pool,
    owner: String,
    place: String,
    runs: RunsConfig,
    responses: ResponsesConfig,
    /// An entry was queued, here or elsewhere.
    queued: Arc<Notify>,
    presence: Presence,
}

impl PostgresStore {
    /// Connects to a database, makes or updates its schema, and registers this process.
    pub(crate) fn open(config: &StoreConfig, url: &str) -> Result<Self, StoreError> {
        let parsed = parse(url)?;
        let owner = format!("{:032x}", rand::random::<u128>());
        let name = config.node.name.clone().filter(|_| config.node.is_server);
        let name = name.unwrap_or_else(|| default_name(&owner));
        let node = Node { owner: owner.clone(), name };
        prepare(&parsed, &node)?;
        let queued = Arc::new(Notify::new());
        Ok(Self {
            pool: Pool::start(&parsed, config.store.pool)?,
            owner,
            place: describe(&parsed),
            runs: config.runs.clone(),
            responses: config.responses.clone(),
            presence: Presence::begin(&parsed, node, &queued)?,
            queued,
        })
    }
}

impl StorePort for PostgresStore {
    fn place(&self) -> String {
        self.place.clone()
    }

    fn check_file(&self) -> Result<(), StoreError> {
        self.presence.check()
    }

    fn commits(&self) -> (u64, u64) {
        let commits = self.pool.commits();
        (commits, commits)
    }
}

/// Reads the URL. Encrypted connections are not supported yet, and one that asks for them is refused.
fn parse(url: &str) -> Result<Config, StoreError> {
    // The client does not know `sslmode=verify-ca` and `verify-full`.
    let asks_for_tls = ["require", "verify-ca", "verify-full"];
    if asks_for_tls.iter().any(|mode| url.contains(&format!("sslmode={mode}"))) {
        return Err(StoreError(
            "`store.url` asks for TLS, which the store does not speak yet: reach the database over a socket, a private \
             network or a tunnel, and set `sslmode=disable`"
                .to_owned(),
        ));
    }
    let mut config: Config = url.parse().map_err(|error: postgres::Error| {
        let why = with_causes(&error);
        StoreError(format!("`store.url` cannot be read: {why}; write it as `postgres://USER@HOST/DATABASE`"))
    })?;
    config.application_name("respool");
    config.keepalives_idle(SILENT_FOR).tcp_user_timeout(SILENT_FOR);
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_WITHIN);
    }
    Ok(config)
}

/// The place of the database without its password.
fn describe(config: &Config) -> String {
    let host = match config.get_hosts().first() {
        Some(postgres::config::Host::Tcp(host)) => host.clone(),
        #[cfg(unix)]
        Some(postgres::config::Host::Unix(path)) => path.display().to_string(),
        None => "localhost".to_owned(),
    };
    let name = config.get_dbname().or(config.get_user()).unwrap_or_default();
    format!("postgres://{host}/{name}")
}

fn default_name(owner: &str) -> String {
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    format!("{}-{}", host.as_deref().unwrap_or("respool"), &owner[..8])
}

/// Brings the schema up to date and registers the node, on a thread of its own: the client cannot be used on
/// a thread of the runtime.
fn prepare(config: &Config, node: &Node) -> Result<(), StoreError> {
    let (done, answer) = mpsc::channel();
    let (mut link, named) = (Link::new(config.clone(), Arc::default()), node.clone());
    let work = move || {
        let is_registered = schema::prepare(&mut link).and_then(|()| nodes::register(&mut link, &named));
        let _ = done.send(is_registered);
    };
    std::thread::Builder::new()
        .name("store-open".into())
        .spawn(work)
        .map_err(|error| StoreError(format!("the store's thread cannot be started: {error}")))?;
    let is_registered =
        answer.recv().unwrap_or_else(|_| Err(StoreError("the database cannot be opened".to_owned())))?;
    if is_registered {
        return Ok(());
    }
    Err(StoreError(format!(
        "another process named {:?} uses this database: give each its own `node.name`",
        node.name
    )))
}
