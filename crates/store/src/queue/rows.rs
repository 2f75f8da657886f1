//! The queue as rows of `SQLite`. Each change is one function in the writing thread's transaction.
//!
//! `blocked` says that an earlier entry of the same lane has not ended, so that claiming looks at an index and not at lanes. It is
//! set when an entry is accepted and cleared when the one before it ends.

use rusqlite::{Connection, OptionalExtension as _, Row, Transaction, params};

use super::{
    ClaimRequest, Claimed, Clock, Enqueued, EntryEnd, EntryLease, GoneClocks, LaneKey, NewEntry,
    clock_rollback, clocks,
};
use crate::numbers::signed;

/// So many rows are forgotten in one bite.
const BITE: u32 = 256;

/// A change of the queue.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Enqueue { entries: Vec<NewEntry>, now: u64 },
    Claim(ClaimRequest),
    Heartbeat { lease: EntryLease, until: u64 },
    Retry { lease: EntryLease, at: u64, note: String },
    GiveBack { lease: EntryLease, at: u64, note: String },
    Hold { lease: EntryLease, note: String },
    Wake { entry: String, now: u64 },
    Complete { lease: EntryLease, end: EntryEnd, note: String, now: u64 },
    Replay { entry: String, new_id: String, now: u64 },
    Drop { entry: String },
    GiveUp { entry: String, note: String, now: u64 },
    WatchClock { clock: Clock, now: u64 },
    ForgetClocks(GoneClocks),
    CorrectClock { now: u64 },
}

/// What came of a change.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changed {
    pub(crate) count: usize,
    pub(crate) enqueued: Vec<Enqueued>,
    pub(crate) claimed: Vec<Claimed>,
    pub(crate) mark: Option<u64>,
    /// By how much the system clock was set back.
    pub(crate) set_back: Option<u64>,
}

/// How far an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryState {
    /// It waits for its time, or for its lane.
    Waiting,
    /// Somebody works on it.
    Claimed,
    /// A person is awaited.
    Held,
    /// It was done.
    Done,
    /// It failed, and nobody has to look after it.
    Failed,
    /// It failed, and is kept until a person replays or drops it.
    DeadLetter,
}

impl EntryState {
    const ALL: [Self; 6] =
        [Self::Waiting, Self::Claimed, Self::Held, Self::Done, Self::Failed, Self::DeadLetter];

    /// Its name in the store and for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Claimed => "claimed",
            Self::Held => "held",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::DeadLetter => "dead_letter",
        }
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }
}

impl EntryEnd {
    pub(super) fn state(self) -> EntryState {
        match self {
            Self::Done => EntryState::Done,
            Self::Failed => EntryState::Failed,
            Self::DeadLetter => EntryState::DeadLetter,
        }
    }
}

/// An entry as people see it. Times are milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryRow {
    /// Its id.
    pub id: String,
    /// Whose work it is.
    pub queue: String,
    /// Its lane.
    pub lane: Option<LaneKey>,
    /// How far it is.
    pub state: EntryState,
    /// When it was accepted.
    pub accepted: u64,
    /// When it may run.
    pub due: u64,
    /// How many attempts have begun.
    pub attempt: u32,
    /// An earlier entry of its lane has not ended.
    pub is_blocked: bool,
    /// The run that works on it.
    pub run: Option<String>,
    /// What is to be done.
    pub payload: String,
    /// What was noted last.
    pub note: Option<String>,
    /// When it ended.
    pub ended: Option<u64>,
}

/// Whether a change must survive a power failure before it is answered.
pub(crate) fn synchronous(change: &Change) -> bool {
    matches!(change, Change::Enqueue { .. })
}

pub(crate) fn apply(change: &Transaction<'_>, what: &Change) -> rusqlite::Result<Changed> {
    let changed = |count| Changed { count, ..Changed::default() };
    match what {
        Change::Enqueue { entries, now } => {
            let enqueued = entries.iter().map(|entry| enqueue(change, entry, *now));
            Ok(Changed { enqueued: enqueued.collect::<rusqlite::Result<_>>()?, ..Changed::default() })
        }
        Change::Claim(request) => claim(change, request),
        Change::Heartbeat { lease, until } => {
            let set = "lease_until = ?3";
            of_lease(change, lease, set, &[&signed(*until)]).map(changed)
        }
        Change::Retry { lease, at, note } => {
            let set = "state = 'waiting', due = ?3, note = ?4, lease_until = NULL, is_new_attempt = 1";
            of_lease(change, lease, set, &[&signed(*at), note]).map(changed)
        }
        Change::GiveBack { lease, at, note } => {
            let set = "state = 'waiting', due = ?3, note = ?4, lease_until = NULL";
            of_lease(change, lease, set, &[&signed(*at), note]).map(changed)
        }
        Change::Hold { lease, note } => {
            let set = "state = 'held', note = ?3, lease_until = NULL";
            of_lease(change, lease, set, &[note]).map(changed)
        }
        Change::Wake { entry, now } => change
            .prepare_cached(
                "UPDATE queue SET state = 'waiting', due = ?2, note = NULL WHERE id = ?1 AND state = 'held'",
            )?
            .execute(params![entry, signed(*now)])
            .map(changed),
        Change::Complete { lease, end, note, now } => complete(change, lease, *end, note, *now).map(changed),
        Change::Replay { entry, new_id, now } => replay(change, entry, new_id, *now).map(changed),
        Change::Drop { entry } => drop_dead(change, entry).map(changed),
        Change::GiveUp { entry, note, now } => give_up(change, entry, note, *now).map(changed),
        Change::WatchClock { clock, now } => {
            clocks::mark(change, clock, *now).map(|mark| Changed { mark: Some(mark), ..Changed::default() })
        }
        Change::ForgetClocks(gone) => clocks::forget(change, gone).map(changed),
        Change::CorrectClock { now } => clock_rollback::correct_clock(change, *now)
            .map(|set_back| Changed { set_back, ..Changed::default() }),
    }
}

fn of_lease(
    change: &Transaction<'_>,
    lease: &EntryLease,
    set: &str,
    values: &[&dyn rusqlite::ToSql],
) -> rusqlite::Result<usize> {
    let query = format!("UPDATE queue SET {set} WHERE id = ?1 AND epoch = ?2 AND state = 'claimed'");
    let epoch = signed(lease.epoch);
    let mut all: Vec<&dyn rusqlite::ToSql> = vec![&lease.entry, &epoch];
    all.extend(values);
    change.prepare_cached(&query)?.execute(&all[..])
}

/// Whether a lease holds.
pub(crate) fn check_lease(change: &Transaction<'_>, lease: &EntryLease) -> rusqlite::Result<bool> {
    change
        .prepare_cached("SELECT 1 FROM queue WHERE id = ?1 AND epoch = ?2 AND state = 'claimed'")?
        .exists(params![lease.entry, signed(lease.epoch)])
}

/// Remembers the run that works on an entry, and what stands for all its runs.
pub(crate) fn set_run(
    change: &Transaction<'_>,
    lease: &EntryLease,
    run: &str,
    work: &str,
) -> rusqlite::Result<usize> {
    of_lease(change, lease, "run = ?3, work = ?4", &[&run, &work])
}

fn enqueue(change: &Transaction<'_>, entry: &NewEntry, now: u64) -> rusqlite::Result<Enqueued> {
    if let Some((key, _)) = &entry.dedupe {
        let known: Option<String> = change
            .prepare_cached("SELECT entry FROM dedupe WHERE key = ?1 AND until > ?2")?
            .query_row(params![key.0, signed(now)], |row| row.get(0))
            .optional()?;
        if let Some(known) = known {
            return Ok(Enqueued::Duplicate(known));
        }
    }
    if let Some(time) = &entry.clock
        && let Some(earlier) = clocks::advance(change, time, &entry.id)?
    {
        return Ok(Enqueued::Duplicate(earlier));
    }
    if let Some((key, until)) = &entry.dedupe {
        change
            .prepare_cached("INSERT OR REPLACE INTO dedupe (key, until, entry) VALUES (?1, ?2, ?3)")?
            .execute(params![key.0, signed(*until), entry.id])?;
    }
    let lane = entry.lane.as_ref().map(|lane| lane.0.as_str());
    insert(change, &entry.id, &entry.queue, lane, [entry.due, now], &entry.payload)?;
    Ok(Enqueued::Accepted)
}

/// `times`: when it is due, and now.
fn insert(
    change: &Transaction<'_>,
    id: &str,
    queue: &str,
    lane: Option<&str>,
    times: [u64; 2],
    payload: &str,
) -> rusqlite::Result<usize> {
    let [due, now] = times.map(signed);
    change
        .prepare_cached(
            "INSERT INTO queue (id, queue, lane, state, due, accepted, payload, blocked)
             VALUES (?1, ?2, ?3, 'waiting', ?4, ?5, ?6, EXISTS (
                 SELECT 1 FROM queue WHERE queue = ?2 AND lane = ?3 AND state IN ('waiting', 'claimed', 'held')))",
        )?
        .execute(params![id, queue, lane, due, now, payload])
}

fn claim(change: &Transaction<'_>, request: &ClaimRequest) -> rusqlite::Result<Changed> {
    let now = signed(request.now);
    // The attempt of a dead holder goes on.
    change
        .prepare_cached(
            "UPDATE queue SET state = 'waiting' WHERE state = 'claimed' AND lease_until <= ?1
                 AND id NOT IN (SELECT value FROM json_each(?2))",
        )?
        .execute(params![now, serde_json::Value::from(request.working.clone()).to_string()])?;
    let mut ready: Vec<(i64, i64)> = Vec::new();
    for queue in &request.queues {
        // Towards an entry lead, in its lane, those before it.
        let mut found = change.prepare_cached(
            "SELECT due, seq FROM queue WHERE queue = ?1 AND state = 'waiting' AND blocked = 0 AND due <= ?2
                 AND (?4 IS NULL OR id = ?4 OR EXISTS (
                     SELECT 1 FROM queue AS goal WHERE goal.id = ?4 AND goal.lane = queue.lane AND goal.seq > queue.seq))
             ORDER BY due, seq LIMIT ?3",
        )?;
        let most = i64::try_from(request.most).unwrap_or(i64::MAX);
        let values = params![queue, now, most, request.towards];
        let rows = found.query_map(values, |row| Ok((row.get(0)?, row.get(1)?)))?;
        ready.extend(rows.collect::<rusqlite::Result<Vec<_>>>()?);
    }
    ready.sort_unstable();
    ready.dedup();
    // A new attempt has no run yet: the one of the attempt before is not its own.
    let mut take = change.prepare_cached(
        "UPDATE queue SET state = 'claimed', epoch = epoch + 1, lease_until = ?2, attempt = attempt + is_new_attempt,
             run = CASE is_new_attempt WHEN 1 THEN NULL ELSE run END, is_new_attempt = 0
         WHERE seq = ?1 RETURNING id, epoch, queue, payload, attempt, claims, run, accepted",
    )?;
    let mut count = change.prepare_cached("UPDATE queue SET claims = attempt WHERE seq = ?1")?;
    let mut claimed = Vec::new();
    for (_, seq) in ready.into_iter().take(request.most) {
        claimed.push(take.query_row(params![seq, signed(request.until)], claimed_row)?);
        count.execute(params![seq])?;
    }
    Ok(Changed { count: claimed.len(), claimed, ..Changed::default() })
}

fn claimed_row(row: &Row<'_>) -> rusqlite::Result<Claimed> {
    let (attempt, claims): (u32, u32) = (row.get(4)?, row.get(5)?);
    Ok(Claimed {
        lease: EntryLease { entry: row.get(0)?, epoch: row.get::<_, i64>(1)?.unsigned_abs() },
        queue: row.get(2)?,
        payload: row.get(3)?,
        attempt,
        is_continued: claims == attempt,
        run: row.get(6)?,
        accepted: row.get::<_, i64>(7)?.unsigned_abs(),
    })
}

fn complete(
    change: &Transaction<'_>,
    lease: &EntryLease,
    end: EntryEnd,
    note: &str,
    now: u64,
) -> rusqlite::Result<usize> {
    let set = "state = ?3, note = ?4, ended = ?5, lease_until = NULL";
    let done = of_lease(change, lease, set, &[&end.state().as_str(), &note, &signed(now)])?;
    if done > 0 {
        free_lane(change, &lease.entry)?;
    }
    Ok(done)
}

/// Lets the next entry of a lane run, once the one before it has ended.
fn free_lane(change: &Transaction<'_>, entry: &str) -> rusqlite::Result<usize> {
    change
        .prepare_cached(
            "UPDATE queue SET blocked = 0 WHERE seq = (
                 SELECT min(later.seq) FROM queue AS ended JOIN queue AS later
                     ON later.queue = ended.queue AND later.lane = ended.lane
                 WHERE ended.id = ?1 AND later.state IN ('waiting', 'claimed', 'held'))",
        )?
        .execute(params![entry])
}

/// Ends an entry that nobody works on, and lets the next one of its lane run.
fn give_up(change: &Transaction<'_>, entry: &str, note: &str, now: u64) -> rusqlite::Result<usize> {
    let ended = change
        .prepare_cached(
            "UPDATE queue SET state = 'failed', note = ?2, ended = ?3, lease_until = NULL
             WHERE id = ?1 AND state IN ('waiting', 'held')",
        )?
        .execute(params![entry, note, signed(now)])?;
    if ended > 0 {
        free_lane(change, entry)?;
    }
    Ok(ended)
}

/// Ends the entry of a run that was cancelled while nobody worked on it: otherwise it would be waited for without end.
pub(crate) fn give_up_run(change: &Transaction<'_>, run: &str, now: u64) -> rusqlite::Result<()> {
    let entry: Option<String> = change
        .prepare_cached(
            "UPDATE queue SET state = 'failed', note = 'its run was cancelled', ended = ?2, lease_until = NULL
             WHERE run = ?1 AND state IN ('waiting', 'claimed', 'held') RETURNING id",
        )?
        .query_row(params![run, signed(now)], |row| row.get(0))
        .optional()?;
    entry.map_or(Ok(()), |entry| free_lane(change, &entry).map(drop))
}

fn replay(change: &Transaction<'_>, entry: &str, new_id: &str, now: u64) -> rusqlite::Result<usize> {
    type Dead = (String, Option<String>, String, Option<String>);
    let dead: Option<Dead> = change
        .query_row(
            "SELECT queue, lane, payload, work FROM queue WHERE id = ?1 AND state = 'dead_letter'",
            params![entry],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)),
        )
        .optional()?;
    let Some((queue, lane, payload, work)) = dead else { return Ok(0) };
    drop_dead(change, entry)?;
    let count = insert(change, new_id, &queue, lane.as_deref(), [now, now], &payload)?;
    change.execute("UPDATE queue SET work = ?2 WHERE id = ?1", params![new_id, work])?;
    Ok(count)
}

fn drop_dead(change: &Transaction<'_>, entry: &str) -> rusqlite::Result<usize> {
    change.execute("DELETE FROM queue WHERE id = ?1 AND state = 'dead_letter'", params![entry])
}

/// Forgets some entries that ended before a time, and some dedupe keys whose time is over. Dead letters stay.
pub(crate) fn forget(change: &Transaction<'_>, before: u64, now: u64) -> rusqlite::Result<usize> {
    let entries = change
        .prepare_cached(
            "DELETE FROM queue WHERE seq IN (
                 SELECT seq FROM queue WHERE state IN ('done', 'failed') AND ended < ?1 LIMIT ?2)",
        )?
        .execute(params![signed(before), BITE])?;
    let keys = change
        .prepare_cached(
            "DELETE FROM dedupe WHERE key IN (SELECT key FROM dedupe WHERE until <= ?1 LIMIT ?2)",
        )?
        .execute(params![signed(now), BITE])?;
    Ok(entries + keys)
}

const ROW: &str =
    "id, queue, lane, state, accepted, due, attempt, blocked, run, payload, note, ended FROM queue";

fn row(row: &Row<'_>) -> rusqlite::Result<EntryRow> {
    let state: String = row.get(3)?;
    let time = |index| row.get::<_, Option<i64>>(index).map(|time| time.map(i64::unsigned_abs));
    Ok(EntryRow {
        id: row.get(0)?,
        queue: row.get(1)?,
        lane: row.get::<_, Option<String>>(2)?.map(LaneKey),
        state: EntryState::named(&state).unwrap_or(EntryState::Failed),
        accepted: time(4)?.unwrap_or_default(),
        due: time(5)?.unwrap_or_default(),
        attempt: row.get(6)?,
        is_blocked: row.get(7)?,
        run: row.get(8)?,
        payload: row.get(9)?,
        note: row.get(10)?,
        ended: time(11)?,
    })
}

pub(crate) fn one(connection: &Connection, id: &str) -> rusqlite::Result<Option<EntryRow>> {
    let query = format!("SELECT {ROW} WHERE id = ?1");
    connection.prepare_cached(&query)?.query_row(params![id], row).optional()
}

pub(crate) fn of_run(connection: &Connection, run: &str) -> rusqlite::Result<Option<EntryRow>> {
    let query = format!("SELECT {ROW} WHERE run = ?1 ORDER BY seq DESC LIMIT 1");
    connection.prepare_cached(&query)?.query_row(params![run], row).optional()
}

pub(crate) fn list(
    connection: &Connection,
    queue: Option<&str>,
    state: EntryState,
    most: usize,
) -> rusqlite::Result<Vec<EntryRow>> {
    let query = format!("SELECT {ROW} WHERE state = ?1 AND (?2 IS NULL OR queue = ?2) ORDER BY seq LIMIT ?3");
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    connection.prepare_cached(&query)?.query_map(params![state.as_str(), queue, most], row)?.collect()
}

/// The entries of a state that were accepted last, the newest first.
pub(crate) fn newest(
    connection: &Connection,
    state: EntryState,
    most: usize,
) -> rusqlite::Result<Vec<EntryRow>> {
    let query = format!("SELECT {ROW} WHERE state = ?1 ORDER BY seq DESC LIMIT ?2");
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    connection.prepare_cached(&query)?.query_map(params![state.as_str(), most], row)?.collect()
}

/// The places of open entries of a queue behind one of them.
pub(crate) fn open_places(connection: &Connection, queue: &str, behind: u64) -> rusqlite::Result<Vec<u64>> {
    // The index has state and place: only what is new is looked up.
    let query = "SELECT seq FROM queue INDEXED BY queue_states
        WHERE state IN ('waiting', 'claimed', 'held') AND seq > ?2 AND queue = ?1 ORDER BY seq";
    let place = |row: &Row<'_>| row.get::<_, i64>(0).map(i64::unsigned_abs);
    connection.prepare_cached(query)?.query_map(params![queue, signed(behind)], place)?.collect()
}

/// The entries at places of the queue.
pub(crate) fn at_places(connection: &Connection, places: &[u64]) -> rusqlite::Result<Vec<EntryRow>> {
    let mut found = connection.prepare_cached(&format!("SELECT {ROW} WHERE seq = ?1"))?;
    let rows = places.iter().map(|place| found.query_row(params![signed(*place)], row).optional());
    rows.filter_map(rusqlite::Result::transpose).collect()
}

pub(crate) fn before(connection: &Connection, id: &str) -> rusqlite::Result<Option<EntryRow>> {
    let query = format!(
        "SELECT {ROW} WHERE seq = (
             SELECT min(earlier.seq) FROM queue AS own JOIN queue AS earlier
                 ON earlier.queue = own.queue AND earlier.lane = own.lane AND earlier.seq < own.seq
             WHERE own.id = ?1 AND earlier.state IN ('waiting', 'claimed', 'held'))"
    );
    connection.prepare_cached(&query)?.query_row(params![id], row).optional()
}

pub(crate) fn next_due(connection: &Connection, queues: &[String]) -> rusqlite::Result<Option<u64>> {
    let lease: Option<i64> =
        connection
            .query_row("SELECT min(lease_until) FROM queue WHERE state = 'claimed'", [], |row| row.get(0))?;
    let mut next = lease;
    for queue in queues {
        let due: Option<i64> = connection
            .prepare_cached(
                "SELECT min(due) FROM queue WHERE queue = ?1 AND state = 'waiting' AND blocked = 0",
            )?
            .query_row(params![queue], |row| row.get(0))?;
        next = next.into_iter().chain(due).min();
    }
    Ok(next.map(i64::unsigned_abs))
}
