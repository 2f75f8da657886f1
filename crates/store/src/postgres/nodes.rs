//! The processes that use a database. Each says from time to time that it lives, on a connection of its own,
//! which also hears of work that others have queued. Where that connection cannot listen, as behind a pooler,
//! it is polled all the same.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

use postgres::fallible_iterator::FallibleIterator as _;
use postgres::{Client, Error, Row};

use super::address::Address;
use super::columns::number;
use super::link::{Change, Link, Values, as_bigint, explain, is_away, span};
use super::news::{News, Signals};
use super::poll::{EVERY, Found, POLL, Wanted, presence};
use super::schema;
use super::shared::{GONE_AFTER, LOST_FOR, Shared};
use crate::error::StoreError;
use crate::outbox::FIRST_TRIED_WITHIN;

/// Rows of processes that ended long ago are taken away.
const FORGET_AFTER: Duration = Duration::from_hours(24);

/// The milliseconds of a day.
const DAY: u64 = 24 * 3_600_000;
/// A clock that differs by less than this, in milliseconds, is taken to be right.
const NEGLIGIBLE: u64 = 100;

/// The identity of this process.
#[derive(Clone, Debug)]
pub(super) struct Node {
    /// Unique among all processes that there have been.
    pub(super) owner: String,
    /// Its name for people, unique among those that live.
    pub(super) name: String,
    /// False for a command that uses the database for a moment.
    pub(super) serves: bool,
    /// Its version for people, with the commit.
    pub(super) version: String,
}

impl Node {
    /// Says that the process lives, and polls. Returns how many others live, how many of these have its
    /// configuration, and what was found.
    fn poll(
        &self,
        (configuration, packages): (&str, &[String]),
        wanted: Wanted,
        run: impl FnOnce(Values<'_>) -> Result<Row, Error>,
    ) -> Result<(u64, u64, Found), Error> {
        let gone = span(GONE_AFTER);
        let (asked, began) = (clock::own_time(), Instant::now());
        let (day, tried_within) = (clock::now() / DAY, as_bigint(FIRST_TRIED_WITHIN));
        let Node { owner, name, serves, version } = self;
        let Wanted { queues, messages } = &wanted;
        let day_value = as_bigint(day);
        let values: Values<'_> = &[
            owner,
            name,
            version,
            serves,
            &configuration,
            &gone,
            queues,
            &day_value,
            messages,
            &tried_within,
            &packages,
            &span(LOST_FOR),
        ];
        let row = run(values)?;
        let (others, time, alike) = presence(&row)?;
        follow_clock(time, asked, clock::own_time());
        Ok((others, alike, Found::read(&row, wanted, began, day)?))
    }
}

/// Why a process cannot join those of a database.
pub(super) struct Refused {
    pub(super) why: StoreError,
    pub(super) end: End,
}

/// When a process can join that cannot yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Not by itself.
    Never,
    /// As soon as the server answers: it is starting, or cannot be reached at the moment.
    Reached,
    /// As soon as the one that had its name, and was killed, counts as gone.
    NameFree,
}

impl From<StoreError> for Refused {
    fn from(why: StoreError) -> Self {
        Self { why, end: End::Never }
    }
}

/// Registers the node, after `ready` has looked at the schema.
pub(super) fn join(
    address: &Address,
    node: &Node,
    ready: impl Fn(&mut Link) -> Result<(), StoreError>,
) -> Result<(), Refused> {
    let mut link = Link::new(address.clone(), Arc::default());
    let unreached = |error| {
        let end = if is_away(&error) { End::Reached } else { End::Never };
        Refused { why: explain(&error), end }
    };
    link.connect().map(drop).map_err(unreached)?;
    ready(&mut link)?;
    register(&mut link, node)
}

/// How often a process looks whether another one of its name lives.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(500);
/// A process that has said nothing for this long has most likely been killed: it polls more often.
const SILENT_AFTER: Duration = Duration::from_secs(5);
/// How long a process that ends waits for the database to hear of it. Else it is missed a little later.
const FAREWELL: Duration = Duration::from_secs(2);

/// Says for the first time that a process lives. That fails if another one of its name does, which says so
/// meanwhile, and as long as one that was killed does not count as gone.
fn register(link: &mut Link, node: &Node) -> Result<(), Refused> {
    let mut first_seen = None;
    loop {
        let other = link.transact(&|change: &mut Change<'_>| try_to_register(change, node))?;
        match (other, first_seen) {
            (None, _) => return Ok(()),
            (Some((seen, _)), Some(before)) if seen != before => {
                return Err(Refused::from(StoreError(format!(
                    "another process named {:?} uses this database: give each its own `node.name`",
                    node.name
                ))));
            }
            (Some((_, age)), _) if age >= SILENT_AFTER => {
                let why = StoreError(format!(
                    "a process named {:?} was here a moment ago: this one joins the others when that one counts as gone, within {} s",
                    node.name,
                    GONE_AFTER.as_secs()
                ));
                return Err(Refused { why, end: End::NameFree });
            }
            (Some((seen, _)), _) => first_seen = Some(seen),
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Registers a process unless another one of its name may live. Returns when that one was last seen, and how
/// long ago that is.
fn try_to_register(change: &mut Change<'_>, node: &Node) -> Result<Option<(u64, Duration)>, Error> {
    change.lock(vec!["nodes".to_owned()])?;
    // One of this name that is gone has its successor now.
    let sql = "DELETE FROM respool.nodes WHERE seen < respool.now_ms() - $1
            OR (name = $2 AND seen <= respool.now_ms() - $3)";
    change.execute(sql, &[&span(FORGET_AFTER), &node.name, &span(GONE_AFTER)])?;
    let sql = "SELECT seen, greatest(respool.now_ms() - seen, 0) FROM respool.nodes
        WHERE name = $1 AND owner <> $2 ORDER BY seen DESC LIMIT 1";
    let seen = |row: &Row| Ok((number(row, 0)?, Duration::from_millis(number(row, 1)?)));
    if let Some(seen) = change.find(sql, &[&node.name, &node.owner], seen)? {
        return Ok(Some(seen));
    }
    node.poll(("", &[]), Wanted::default(), |values| change.one(POLL, values))?;
    Ok(None)
}

/// Says that a process lives for as long as this value does.
#[derive(Debug)]
pub(super) struct Presence {
    pub(super) shared: Arc<Shared>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Presence {
    /// Begins with a process that has joined the others, or could not yet because of a problem.
    pub(super) fn begin(
        address: &Address,
        node: Node,
        signals: &Arc<Signals>,
        problem: Option<Refused>,
    ) -> Result<Self, StoreError> {
        let waits_for_name = problem.as_ref().is_some_and(|refused| refused.end == End::NameFree);
        let shared = Arc::new(Shared::new(problem.map(|refused| refused.why)));
        shared.waits_for_name.store(waits_for_name, Ordering::Relaxed);
        let (address, signals, with_thread) = (address.clone(), Arc::downgrade(signals), Arc::clone(&shared));
        let thread = std::thread::Builder::new()
            .name("store-presence".into())
            .spawn(move || keep_present(&address, &node, &signals, &with_thread))
            .map_err(|error| StoreError(format!("the store's thread cannot be started: {error}")))?;
        Ok(Self { shared, thread: Some(thread) })
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
        let until = Instant::now() + FAREWELL;
        while self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn keep_present(address: &Address, node: &Node, signals: &Weak<Signals>, shared: &Shared) {
    join_late(address, node, shared);
    let mut client = None;
    while !shared.has_ended() {
        let said = say_present(&mut client, address, node, shared).map(|()| shared.note_heard());
        if let Err(error) = said.and_then(|()| listen(&mut client, node, signals, shared)) {
            shared.set_problem(Some(explain(&error)));
            client = None;
            std::thread::sleep(Duration::from_millis(200));
        }
    }
    if let Some(mut client) = client {
        // Others need not wait until it is missed.
        let _ = client.execute("DELETE FROM respool.duties WHERE owner = $1", &[&node.owner]);
        let _ = client.execute("DELETE FROM respool.nodes WHERE owner = $1", &[&node.owner]);
    }
}

/// Joins the others as soon as the database that was away at the start can be used, or the name is free.
fn join_late(address: &Address, node: &Node, shared: &Shared) {
    while !shared.has_joined.load(Ordering::Relaxed) && !shared.has_ended() {
        match join(address, node, schema::prepare) {
            Ok(()) => {
                tracing::info!(target: "respool::store", "the database can be used now");
                shared.note_heard();
                shared.has_joined.store(true, Ordering::Release);
            }
            Err(error) => {
                shared.waits_for_name.store(error.end == End::NameFree, Ordering::Relaxed);
                shared.set_problem(Some(error.why));
                std::thread::sleep(LOOK_EVERY);
            }
        }
    }
}

/// Says once that the process lives. Connects if it has to.
fn say_present(
    client: &mut Option<Client>,
    address: &Address,
    node: &Node,
    shared: &Shared,
) -> Result<(), Error> {
    if client.is_none() {
        let mut new = address.connect()?;
        // A pooler may refuse. What was said meanwhile was not heard.
        let _ = new.batch_execute("LISTEN respool");
        shared.polls.note_change();
        *client = Some(new);
    }
    let Some(client) = client else { return Ok(()) };
    shared.is_changed.store(false, Ordering::Relaxed);
    let configuration = shared.configuration.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let packages = shared.packages.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let traits = (&*configuration, &*packages);
    let (wanted, changes) = shared.polls.begin();
    let (others, alike, found) = node.poll(traits, wanted, |values| client.query_one(POLL, values))?;
    for (count, others) in [(&shared.live, others), (&shared.alike, alike)] {
        let others = u32::try_from(others).unwrap_or(0);
        count.store(others + u32::from(node.serves), Ordering::Relaxed);
    }
    shared.polls.set(changes, found);
    Ok(())
}

/// Follows the database's clock, unless this machine's is right as far as that can be known. `time` is that
/// of the database at a moment between two times of this machine.
fn follow_clock(time: u64, asked: u64, answered: u64) {
    let doubt = answered.saturating_sub(asked) / 2;
    let ahead = time.cast_signed() - (asked + doubt).cast_signed();
    let is_near = |other: i64| ahead.abs_diff(other) <= doubt + NEGLIGIBLE;
    if is_near(clock::ahead()) {
        return;
    }
    let ahead = if is_near(0) { 0 } else { ahead };
    clock::follow(ahead);
    if ahead != 0 {
        tracing::warn!(target: "respool::store", milliseconds = ahead, "the clock of this machine is not that of the database, which counts for all nodes: correct it");
    }
}

/// Hears of new work until it is time to say again that the process lives.
fn listen(
    client: &mut Option<Client>,
    node: &Node,
    signals: &Weak<Signals>,
    shared: &Shared,
) -> Result<(), Error> {
    let Some(client) = client else { return Ok(()) };
    let began = Instant::now();
    let is_over = || began.elapsed() >= EVERY || shared.is_changed.load(Ordering::Relaxed);
    while !is_over() && !shared.has_ended() {
        let mut notifications = client.notifications();
        let mut heard = notifications.timeout_iter(Duration::from_millis(100));
        let Some(notification) = heard.next()? else { continue };
        let (sender, news) = News::read(notification.payload());
        if sender != node.owner
            && let Some(signals) = signals.upgrade()
        {
            shared.polls.note_change();
            match news {
                News::Queued => signals.queued.notify_one(),
                News::Decided => signals.decided.notify_waiters(),
            }
        }
    }
    Ok(())
}
