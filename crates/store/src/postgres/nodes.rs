//! The processes that use a database. Each says from time to time that it lives, on a connection of its own,
//! which also hears of work that others have queued. Where that connection cannot listen, as behind a pooler,
//! the queue is looked at every second all the same.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use fallible_iterator::FallibleIterator as _;
use postgres::{Client, Config, Error, NoTls};
use tokio::sync::Notify;

use super::link::{Change, span};
use crate::error::StoreError;

/// How often a process says that it lives.
const EVERY: Duration = Duration::from_secs(3);
/// A process that has not been seen for this long is gone, and others take over what it worked on. Should it
/// come back, the epochs of its runs are those of others by then.
pub(super) const GONE_AFTER: Duration = Duration::from_secs(15);
/// Rows of processes that ended long ago are taken away.
const FORGET_AFTER: Duration = Duration::from_hours(24);

const SEEN: &str = "INSERT INTO respool.nodes (owner, name, version, began, seen)
    VALUES ($1, $2, $3, respool.now_ms(), respool.now_ms())
    ON CONFLICT (owner) DO UPDATE SET seen = respool.now_ms()";

/// The identity of this process.
#[derive(Clone, Debug)]
pub(super) struct Node {
    /// Unique among all processes that there have been.
    pub(super) owner: String,
    /// Its name for people, unique among those that live.
    pub(super) name: String,
}

/// Says for the first time that a process lives. False when another one of its name does.
pub(super) fn register(change: &mut Change<'_>, node: &Node) -> Result<bool, Error> {
    change.lock(vec!["nodes".to_owned()])?;
    let sql = "DELETE FROM respool.nodes WHERE seen < respool.now_ms() - $1";
    change.execute(sql, &[&span(FORGET_AFTER)])?;
    let sql = "SELECT 1 FROM respool.nodes WHERE name = $1 AND owner <> $2 AND seen > respool.now_ms() - $3";
    if change.exists(sql, &[&node.name, &node.owner, &span(GONE_AFTER)])? {
        return Ok(false);
    }
    change.execute(SEEN, &[&node.owner, &node.name, &env!("CARGO_PKG_VERSION")])?;
    Ok(true)
}

/// Says that a process lives for as long as this value does.
#[derive(Debug)]
pub(super) struct Presence {
    ends: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Presence {
    pub(super) fn begin(config: &Config, node: Node, queued: &Arc<Notify>) -> Result<Self, StoreError> {
        let ends = Arc::new(AtomicBool::new(false));
        let (config, queued, until) = (config.clone(), Arc::downgrade(queued), Arc::clone(&ends));
        let thread = std::thread::Builder::new()
            .name("store-presence".into())
            .spawn(move || keep_present(&config, &node, &queued, &until))
            .map_err(|error| StoreError(format!("the store's thread cannot be started: {error}")))?;
        Ok(Self { ends, thread: Some(thread) })
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A thread that has panicked has nothing left to say.
            let _ = thread.join();
        }
    }
}

fn keep_present(config: &Config, node: &Node, queued: &Weak<Notify>, ends: &AtomicBool) {
    let mut client = None;
    while !ends.load(Ordering::Relaxed) {
        if stay(&mut client, config, node, queued, ends).is_err() {
            client = None;
            std::thread::sleep(Duration::from_millis(200));
        }
    }
    if let Some(mut client) = client {
        // Others need not wait until it is missed.
        let _ = client.execute("DELETE FROM respool.nodes WHERE owner = $1", &[&node.owner]);
    }
}

/// Says once that the process lives, and hears of new work until it is time to say it again.
fn stay(
    client: &mut Option<Client>,
    config: &Config,
    node: &Node,
    queued: &Weak<Notify>,
    ends: &AtomicBool,
) -> Result<(), Error> {
    if client.is_none() {
        let mut new = config.connect(NoTls)?;
        // A pooler may refuse.
        let _ = new.batch_execute("LISTEN respool");
        *client = Some(new);
    }
    let Some(client) = client else { return Ok(()) };
    client.execute(SEEN, &[&node.owner, &node.name, &env!("CARGO_PKG_VERSION")])?;
    let began = Instant::now();
    while began.elapsed() < EVERY && !ends.load(Ordering::Relaxed) {
        let mut notifications = client.notifications();
        let mut heard = notifications.timeout_iter(Duration::from_millis(100));
        if let Some(notification) = heard.next()?
            && notification.payload() != node.owner
            && let Some(queued) = queued.upgrade()
        {
            queued.notify_one();
        }
    }
    Ok(())
}
