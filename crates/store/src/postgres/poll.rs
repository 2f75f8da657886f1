//! One statement for all that a process asks of the database again and again while nothing happens. It also
//! says that the process lives. The answer holds until this process changes something or hears that another
//! one has; then the questions are asked one by one until the next poll. Called by `nodes`, and by what reads
//! the queue, runs and spending.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use postgres::{Error, Row};

use super::columns::{number, some_number};
use crate::nodes::EndedSession;
use crate::usage::ScopeCost;

/// How often a process polls. What changes elsewhere without a notification is found this much later.
pub(super) const EVERY: Duration = Duration::from_secs(2);
/// An older answer does not hold: the database is slow, or away.
const HOLDS_FOR: Duration = Duration::from_millis(2_500);

/// Says that a process lives. Returns the number of the others that serve and live, the time, the number of
/// those among them that have its configuration, and what [`Found`] has. A name that lives is not lost.
pub(super) const POLL: &str = "WITH said AS (
        INSERT INTO respool.nodes (owner, name, version, serves, configuration, packages, began, seen)
        VALUES ($1, $2, $3, $4, $5, $11, respool.now_ms(), respool.now_ms())
        ON CONFLICT (owner) DO UPDATE SET seen = respool.now_ms(), configuration = $5, packages = $11),
    living AS (SELECT * FROM respool.nodes WHERE seen > respool.now_ms() - $6),
    others AS (SELECT * FROM living WHERE serves AND owner <> $1),
    lost AS (SELECT name, max(seen) AS seen FROM respool.nodes
        WHERE serves AND name <> $2 AND seen <= respool.now_ms() - $6 AND seen > respool.now_ms() - $12
            AND name NOT IN (SELECT name FROM others) GROUP BY name),
    heads AS (SELECT min(head.due) AS due FROM unnest($7::text[]) AS wanted (name), LATERAL (
        SELECT due FROM respool.queue WHERE queue = wanted.name AND state = 'waiting' AND NOT blocked
        ORDER BY due LIMIT 1) AS head),
    spent AS (SELECT scope, sum(millionths)::bigint AS cost FROM respool.spending
        WHERE day = $8 AND owner <> $1 GROUP BY scope)
    SELECT (SELECT count(*) FROM others), respool.now_ms(),
        (SELECT count(*) FROM others
             WHERE split_part(configuration, '-', 2) = split_part($5, '-', 2) AND split_part($5, '-', 2) <> ''),
        least((SELECT min(lease_until) FROM respool.queue WHERE state = 'claimed'), (SELECT due FROM heads))
            - respool.now_ms(),
        (SELECT max(seq) FROM respool.queue),
        EXISTS (SELECT 1 FROM respool.approvals WHERE state = 'decided'),
        (SELECT min(expires) FROM respool.approvals WHERE state = 'waiting'),
        EXISTS (SELECT 1 FROM respool.runs WHERE status = 'interrupted'),
        EXISTS (SELECT 1 FROM respool.runs WHERE status = 'running'
            AND NOT EXISTS (SELECT 1 FROM living WHERE living.owner = runs.owner)),
        EXISTS (SELECT 1 FROM respool.outbox WHERE $9 AND delivered IS NULL AND due <= respool.now_ms() + 2000
            AND (attempts > 0 OR created > respool.now_ms() - $10 OR kind = 'approval')),
        ARRAY (SELECT scope FROM spent ORDER BY scope), ARRAY (SELECT cost FROM spent ORDER BY scope),
        ARRAY (SELECT DISTINCT unnest(packages) FROM others),
        ARRAY (SELECT name FROM lost ORDER BY name), ARRAY (SELECT seen FROM lost ORDER BY name),
        ARRAY (SELECT signature FROM respool.ended_sessions WHERE until > respool.now_ms() ORDER BY signature),
        ARRAY (SELECT until FROM respool.ended_sessions WHERE until > respool.now_ms() ORDER BY signature),
        (SELECT list FROM respool.silences)";

/// The objects of a poll: they were asked for of late.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    /// The queues that this process works on.
    pub(super) queues: Vec<String>,
    /// Whether it delivers messages.
    pub(super) messages: bool,
}

/// The result of a poll.
#[derive(Debug)]
pub(super) struct Found {
    wanted: Wanted,
    at: Instant,
    /// The milliseconds from then until an entry of the queues is due, or a lease of any ends.
    due_in: Option<i64>,
    /// The place of the entry that was accepted last.
    pub(super) last_place: u64,
    approvals: FoundApprovals,
    pub(super) has_interrupted: bool,
    /// There are runs of processes that are gone.
    pub(super) has_orphans: bool,
    has_messages: bool,
    /// The spending of the others on this day.
    spent: (u64, Vec<ScopeCost>),
    /// The packages of the others that serve.
    packages: Vec<String>,
    /// The names of those that did not end by themselves, and when each was last seen.
    lost: Vec<(String, u64)>,
    /// The sessions of the page that were ended before their time.
    ended_sessions: Vec<EndedSession>,
    /// The silences of alerts.
    pub(super) silences: Option<String>,
}

/// The requests for approval.
#[derive(Debug)]
struct FoundApprovals {
    /// One was decided whose run does not go on yet.
    has_decided: bool,
    /// When the time for the next one is over.
    next_expiry: Option<u64>,
}

impl Found {
    /// Reads the row of a poll that began at a time, on a day.
    pub(super) fn read(row: &Row, wanted: Wanted, at: Instant, day: u64) -> Result<Self, Error> {
        let (scopes, costs): (Vec<String>, Vec<i64>) = (row.try_get(10)?, row.try_get(11)?);
        let (lost, seen): (Vec<String>, Vec<i64>) = (row.try_get(13)?, row.try_get(14)?);
        let (signatures, ends): (Vec<String>, Vec<i64>) = (row.try_get(15)?, row.try_get(16)?);
        let ended = signatures.into_iter().zip(ends);
        Ok(Self {
            wanted,
            at,
            due_in: row.try_get(3)?,
            last_place: some_number(row, 4)?.unwrap_or_default(),
            approvals: FoundApprovals { has_decided: row.try_get(5)?, next_expiry: some_number(row, 6)? },
            has_interrupted: row.try_get(7)?,
            has_orphans: row.try_get(8)?,
            has_messages: row.try_get(9)?,
            spent: (day, scopes.into_iter().zip(costs).collect()),
            packages: row.try_get(12)?,
            lost: lost.into_iter().zip(seen.into_iter().map(i64::unsigned_abs)).collect(),
            ended_sessions: ended
                .map(|(signature, until)| EndedSession { signature, until: until.unsigned_abs() })
                .collect(),
            silences: row.try_get(17)?,
        })
    }

    /// Whether these are the queues that were looked at.
    pub(super) fn has_looked_at(&self, queues: &[String]) -> bool {
        self.wanted.queues == queues
    }

    /// Returns the time until an entry of the queues is due, or a lease ends.
    pub(super) fn next_due(&self) -> Option<Duration> {
        let passed = i64::try_from(self.at.elapsed().as_millis()).unwrap_or(i64::MAX);
        self.due_in
            .map(|due| Duration::from_millis(u64::try_from(due.saturating_sub(passed)).unwrap_or_default()))
    }

    /// Whether no run goes on because of a decision, or because the time for one is over.
    pub(super) fn wakes_no_run(&self, now: u64) -> bool {
        !self.approvals.has_decided && self.approvals.next_expiry.is_none_or(|expiry| expiry > now)
    }

    /// Whether there is nothing to deliver.
    pub(super) fn has_no_messages(&self) -> bool {
        self.wanted.messages && !self.has_messages
    }
}

/// The last poll of this process.
#[derive(Debug, Default)]
pub(super) struct Polls {
    /// The count of changes before it, and its result.
    last: Mutex<Option<(u64, Arc<Found>)>>,
    /// How often this process has changed something, or heard that another one has.
    changes: AtomicU64,
    wanted: Mutex<Wanted>,
    /// The spending on a day that this process said last.
    said: Mutex<(u64, BTreeMap<String, i64>)>,
}

impl Polls {
    /// Notes that what was found may no longer be so.
    pub(super) fn note_change(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the objects of the next poll, and the count of changes before it.
    pub(super) fn begin(&self) -> (Wanted, u64) {
        (lock(&self.wanted).clone(), self.changes.load(Ordering::Acquire))
    }

    pub(super) fn set(&self, changes: u64, found: Found) {
        *lock(&self.last) = Some((changes, Arc::new(found)));
    }

    /// Changes what is looked for.
    pub(super) fn want(&self, change: impl FnOnce(&mut Wanted)) {
        change(&mut lock(&self.wanted));
    }

    /// Returns what was found if it still holds.
    pub(super) fn current(&self) -> Option<Arc<Found>> {
        let last = lock(&self.last);
        let (changes, found) = last.as_ref()?;
        let holds = *changes == self.changes.load(Ordering::Acquire) && found.at.elapsed() < HOLDS_FOR;
        holds.then(|| Arc::clone(found))
    }

    /// Whether another process that serves had this package a moment ago.
    pub(super) fn is_package_elsewhere(&self, digest: &str) -> bool {
        lock(&self.last).as_ref().is_some_and(|(_, found)| found.packages.iter().any(|one| one == digest))
    }

    /// Returns the processes that were lost, as it was known a moment ago.
    pub(super) fn lost_nodes(&self) -> Vec<(String, u64)> {
        lock(&self.last).as_ref().map(|(_, found)| found.lost.clone()).unwrap_or_default()
    }

    /// Returns the sessions that any process had ended a moment ago.
    pub(super) fn ended_sessions(&self) -> Vec<EndedSession> {
        lock(&self.last).as_ref().map(|(_, found)| found.ended_sessions.clone()).unwrap_or_default()
    }

    /// Returns the spending of the others on a day, as it was a moment ago. `None` if this process has spent
    /// something since it said so.
    pub(super) fn spent_by_others(&self, day: u64, own: &[ScopeCost]) -> Option<Vec<ScopeCost>> {
        let is_said = {
            let said = lock(&self.said);
            own.is_empty()
                || (said.0 == day && own.iter().all(|(scope, cost)| said.1.get(scope) == Some(cost)))
        };
        let found = lock(&self.last).as_ref().map(|(_, found)| Arc::clone(found))?;
        let holds = is_said && found.spent.0 == day && found.at.elapsed() < HOLDS_FOR;
        holds.then(|| found.spent.1.clone())
    }

    /// Notes what this process has said that it has spent.
    pub(super) fn note_said(&self, day: u64, own: Vec<ScopeCost>) {
        *lock(&self.said) = (day, own.into_iter().collect());
    }
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the beginning of the row of a poll: the number of others that serve, the time, and how many of
/// them have this configuration.
pub(super) fn presence(row: &Row) -> Result<(u64, u64, u64), Error> {
    Ok((number(row, 0)?, number(row, 1)?, number(row, 2)?))
}
