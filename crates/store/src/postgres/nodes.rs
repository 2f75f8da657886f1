//! The processes that use a database. Each says from time to time that it lives, on a connection of its own,
//! which also hears of work that others have queued. Where that connection cannot listen, as behind a pooler,
//! the queue is looked at every second all the same.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use fallible_iterator::FallibleIterator as _;
use postgres::{Client, Config, Error, NoTls};
use tokio::sync::Notify;

use super::link::{Change, Link, Values, explain, number, span};
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

/// How often a process looks whether another one of its name lives.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Says for the first time that a process lives. Returns false if another one of its name does, which says so
/// meanwhile. One that was killed is waited for until it counts as gone, so that its successor can start.
pub(super) fn register(link: &mut Link, node: &Node) -> Result<bool, StoreError> {
    let mut first_seen = None;
    loop {
        let other = link.transact(&|change: &mut Change<'_>| try_to_register(change, node))?;
        match (other, first_seen) {
            (None, _) => return Ok(true),
            (Some(seen), Some(before)) if seen != before => return Ok(false),
            (Some(seen), _) => first_seen = Some(seen),
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Registers a process unless another one of its name may live. Returns when that one was last seen.
fn try_to_register(change: &mut Change<'_>, node: &Node) -> Result<Option<u64>, Error> {
    change.lock(vec!["nodes".to_owned()])?;
    let sql = "DELETE FROM respool.nodes WHERE seen < respool.now_ms() - $1";
    change.execute(sql, &[&span(FORGET_AFTER)])?;
    let sql =
        "SELECT seen FROM respool.nodes WHERE name = $1 AND owner <> $2 AND seen > respool.now_ms() - $3
        ORDER BY seen DESC LIMIT 1";
    let values: Values<'_> = &[&node.name, &node.owner, &span(GONE_AFTER)];
    if let Some(seen) = change.find(sql, values, |row| number(row, 0))? {
        return Ok(Some(seen));
    }
    change.execute(SEEN, &[&node.owner, &node.name, &env!("CARGO_PKG_VERSION")])?;
    Ok(None)
}

/// Says that a process lives for as long as this value does.
#[derive(Debug)]
pub(super) struct Presence {
    ends: Arc<AtomicBool>,
    /// Why it could not say so the last time.
    problem: Arc<Problem>,
    thread: Option<std::thread::JoinHandle<()>>,
}

type Problem = Mutex<Option<StoreError>>;

impl Presence {
    pub(super) fn begin(config: &Config, node: Node, queued: &Arc<Notify>) -> Result<Self, StoreError> {
        let ends = Arc::new(AtomicBool::new(false));
        let problem = Arc::<Problem>::default();
        let (config, queued) = (config.clone(), Arc::downgrade(queued));
        let (until, shared) = (Arc::clone(&ends), Arc::clone(&problem));
        let thread = std::thread::Builder::new()
            .name("store-presence".into())
            .spawn(move || keep_present(&config, &node, &queued, &until, &shared))
            .map_err(|error| StoreError(format!("the store's thread cannot be started: {error}")))?;
        Ok(Self { ends, problem, thread: Some(thread) })
    }

    /// Returns an error while the database cannot be used.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        let problem = self.problem.lock().unwrap_or_else(PoisonError::into_inner);
        problem.clone().map_or(Ok(()), Err)
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

fn keep_present(config: &Config, node: &Node, queued: &Weak<Notify>, ends: &AtomicBool, problem: &Problem) {
    let set_problem = |error: Option<StoreError>| {
        *problem.lock().unwrap_or_else(PoisonError::into_inner) = error;
    };
    let mut client = None;
    while !ends.load(Ordering::Relaxed) {
        let said = say_present(&mut client, config, node).map(|()| set_problem(None));
        if let Err(error) = said.and_then(|()| listen(&mut client, node, queued, ends)) {
            set_problem(Some(explain(&error)));
            client = None;
            std::thread::sleep(Duration::from_millis(200));
        }
    }
    if let Some(mut client) = client {
        // Others need not wait until it is missed.
        let _ = client.execute("DELETE FROM respool.nodes WHERE owner = $1", &[&node.owner]);
    }
}

/// Says once that the process lives. Connects if it has to.
fn say_present(client: &mut Option<Client>, config: &Config, node: &Node) -> Result<(), Error> {
    if client.is_none() {
        let mut new = config.connect(NoTls)?;
        // A pooler may refuse.
        let _ = new.batch_execute("LISTEN respool");
        *client = Some(new);
    }
    let Some(client) = client else { return Ok(()) };
    client.execute(SEEN, &[&node.owner, &node.name, &env!("CARGO_PKG_VERSION")])?;
    Ok(())
}

/// Hears of new work until it is time to say again that the process lives.
fn listen(
    client: &mut Option<Client>,
    node: &Node,
    queued: &Weak<Notify>,
    ends: &AtomicBool,
) -> Result<(), Error> {
    let Some(client) = client else { return Ok(()) };
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
