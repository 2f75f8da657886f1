//! The queue in `PostgreSQL`. Leases and due times are by the database's clock alone.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use postgres::{Error, Row};

use super::columns::{number, some_number};
use super::link::{Change, Values, as_bigint, limit, span};
use super::{News, PostgresStore, notify_at_commit};
use crate::error::StoreError;
use crate::queue::{
    ClaimRequest, Claimed, Clock, ClockTime, Enqueued, EntryEnd, EntryLease, EntryRow, EntryState,
    GoneClocks, LaneKey, NewEntry, OpenCount, Queue, QueueEntries,
};

/// At most this many rows are forgotten in one batch.
const BATCH: i64 = 256;

#[async_trait]
impl Queue for PostgresStore {
    async fn enqueue_all(&self, entries: Vec<NewEntry>) -> Result<Vec<Enqueued>, StoreError> {
        let enqueued = if let [_] = &*entries {
            self.change_at_once(move |change| entries.iter().map(|entry| enqueue(change, entry)).collect())
                .await?
        } else {
            self.change(move |change| enqueue_all(change, &entries)).await?
        };
        if enqueued.contains(&Enqueued::Accepted) {
            self.signals.queued.notify_one();
            self.notify_others();
        }
        Ok(enqueued)
    }

    async fn correct_clock(&self, _now: u64) -> Result<Option<u64>, StoreError> {
        Ok(None)
    }

    async fn clock_mark(&self, clock: &Clock, now: u64) -> Result<u64, StoreError> {
        let clock = clock.clone();
        self.pool.run(move |change| clock_mark(change, &clock, now)).await
    }

    async fn skip_time(&self, time: &ClockTime) -> Result<(), StoreError> {
        let ClockTime { clock: Clock { queue, name, schedule }, time } = time.clone();
        let sql = "UPDATE respool.clocks SET mark = $4 WHERE queue = $1 AND name = $2 AND schedule = $3 AND mark < $4";
        let skip = move |change: &mut Change<'_>| {
            change.execute(sql, &[&queue, &name, &schedule, &as_bigint(time)]).map(drop)
        };
        self.pool.run(skip).await
    }

    async fn forget_clocks(&self, gone: GoneClocks) -> Result<(), StoreError> {
        self.pool.run(move |change| forget_clocks(change, &gone)).await
    }

    async fn claim_entries(&self, request: ClaimRequest) -> Result<Vec<Claimed>, StoreError> {
        self.change_at_once(move |change| claim(change, &request)).await
    }

    async fn heartbeat(&self, lease: &EntryLease, length: Duration) -> Result<bool, StoreError> {
        let (lease, length) = (lease.clone(), span(length));
        let sql = "UPDATE respool.queue SET lease_until = respool.now_ms() + $3
             WHERE id = $1 AND epoch = $2 AND state = 'claimed'";
        self.change_at_once(move |change| {
            change.has_changed(sql, &[&lease.entry, &as_bigint(lease.epoch), &length])
        })
        .await
    }

    async fn retry_after(
        &self,
        lease: &EntryLease,
        pause: Duration,
        note: String,
    ) -> Result<bool, StoreError> {
        let (lease, pause) = (lease.clone(), span(pause));
        let sql = "UPDATE respool.queue SET state = 'waiting', due = respool.now_ms() + $3, note = $4, lease_until = NULL,
                 is_new_attempt = true
             WHERE id = $1 AND epoch = $2 AND state = 'claimed'";
        self.change_at_once(move |change| {
            change.has_changed(sql, &[&lease.entry, &as_bigint(lease.epoch), &pause, &note])
        })
        .await
    }

    async fn hold(&self, lease: &EntryLease, note: String) -> Result<bool, StoreError> {
        let lease = lease.clone();
        let sql = "UPDATE respool.queue SET state = 'held', note = $3, lease_until = NULL
             WHERE id = $1 AND epoch = $2 AND state = 'claimed'";
        self.change_at_once(move |change| {
            change.has_changed(sql, &[&lease.entry, &as_bigint(lease.epoch), &note])
        })
        .await
    }

    async fn wake(&self, entry: &str) -> Result<bool, StoreError> {
        let entry = entry.to_owned();
        let sql = "UPDATE respool.queue SET state = 'waiting', due = respool.now_ms(), note = NULL
             WHERE id = $1 AND state = 'held'";
        self.change_at_once(move |change| change.has_changed(sql, &[&entry])).await
    }

    async fn complete(&self, lease: &EntryLease, end: EntryEnd, note: String) -> Result<bool, StoreError> {
        let lease = lease.clone();
        let freed = self.change(move |change| complete(change, &lease, end, &note)).await?;
        if freed == Some(true) {
            self.notify_others();
        }
        Ok(freed.is_some())
    }
}

#[async_trait]
impl QueueEntries for PostgresStore {
    async fn wait_for_entry(&self) {
        self.signals.queued.notified().await;
    }

    async fn sorted_entries(
        &self,
        queue: Option<&str>,
        state: EntryState,
        newest_first: bool,
        most: usize,
    ) -> Result<Vec<EntryRow>, StoreError> {
        let queue = queue.map(str::to_owned);
        let order = if newest_first { "DESC" } else { "ASC" };
        let condition =
            format!("state = $1 AND ($2::text IS NULL OR queue = $2) ORDER BY seq {order} LIMIT $3");
        let sql = select(&condition);
        self.pool.read(move |change| change.list(&sql, &[&state.as_str(), &queue, &limit(most)], row)).await
    }

    async fn open_counts(&self) -> Result<Vec<OpenCount>, StoreError> {
        let sql = "SELECT queue, state, count(*) FROM respool.queue
             WHERE state IN ('waiting', 'claimed', 'held') GROUP BY queue, state";
        let row = |row: &Row| {
            let state = EntryState::from_name(row.try_get(1)?).unwrap_or(EntryState::Waiting);
            Ok(OpenCount { queue: row.try_get(0)?, state, count: number(row, 2)? })
        };
        self.pool.read(move |change| change.list(sql, &[], row)).await
    }

    async fn open_places(&self, queue: &str, behind: u64) -> Result<Vec<u64>, StoreError> {
        if self.polls().current().is_some_and(|found| found.last_place <= behind) {
            return Ok(Vec::new());
        }
        let queue = queue.to_owned();
        let sql = "SELECT seq FROM respool.queue
             WHERE state IN ('waiting', 'claimed', 'held') AND queue = $1 AND seq > $2 ORDER BY seq";
        self.pool
            .read(move |change| change.list(sql, &[&queue, &as_bigint(behind)], |row| number(row, 0)))
            .await
    }

    async fn entries_at(&self, places: Vec<u64>) -> Result<Vec<EntryRow>, StoreError> {
        if places.is_empty() {
            return Ok(Vec::new());
        }
        let places: Vec<i64> = places.into_iter().map(as_bigint).collect();
        let sql = select("seq = ANY ($1) ORDER BY seq");
        self.pool.read(move |change| change.list(&sql, &[&places], row)).await
    }

    async fn entry(&self, id: &str) -> Result<Option<EntryRow>, StoreError> {
        let (id, sql) = (id.to_owned(), select("id = $1"));
        self.pool.read(move |change| change.find(&sql, &[&id], row)).await
    }

    async fn oldest_open(&self, queue: &str, agent: &str) -> Result<Option<u64>, StoreError> {
        let (queue, agent) = (queue.to_owned(), agent.to_owned());
        let sql = "SELECT min(at) FROM (
                SELECT min(accepted) AS at FROM respool.queue WHERE queue = $1 AND state IN ('waiting', 'claimed', 'held')
                UNION ALL
                SELECT min(created) FROM respool.runs
                    WHERE agent = $2 AND status IN ('running', 'suspended', 'awaiting_approval', 'interrupted')) AS open";
        let find =
            move |change: &mut Change<'_>| change.find(sql, &[&queue, &agent], |row| some_number(row, 0));
        Ok(self.pool.read(find).await?.flatten())
    }

    async fn entry_of_run(&self, run: &str) -> Result<Option<EntryRow>, StoreError> {
        let (run, sql) = (run.to_owned(), select("run = $1 ORDER BY seq DESC LIMIT 1"));
        self.pool.read(move |change| change.find(&sql, &[&run], row)).await
    }

    async fn entry_before(&self, id: &str) -> Result<Option<EntryRow>, StoreError> {
        let sql = select(
            "seq = (SELECT min(earlier.seq) FROM respool.queue AS own JOIN respool.queue AS earlier
                 ON earlier.queue = own.queue AND earlier.lane = own.lane AND earlier.seq < own.seq
             WHERE own.id = $1 AND earlier.state IN ('waiting', 'claimed', 'held'))",
        );
        let id = id.to_owned();
        self.pool.read(move |change| change.find(&sql, &[&id], row)).await
    }

    async fn next_due(&self, queues: Vec<String>) -> Result<Option<Duration>, StoreError> {
        if let Some(found) = self.polls().current().filter(|found| found.has_looked_at(&queues)) {
            return Ok(found.next_due());
        }
        self.polls().want(|wanted| wanted.queues.clone_from(&queues));
        let sql = "SELECT least(
                (SELECT min(lease_until) FROM respool.queue WHERE state = 'claimed'),
                (SELECT min(due) FROM respool.queue WHERE queue = ANY ($1) AND state = 'waiting' AND NOT blocked))
             - respool.now_ms()";
        let find = move |change: &mut Change<'_>| {
            change.find(sql, &[&queues], |row| row.try_get::<_, Option<i64>>(0))
        };
        let due = self.pool.read(find).await?.flatten();
        Ok(due.map(|due| Duration::from_millis(u64::try_from(due).unwrap_or(0))))
    }

    async fn replay(&self, entry: &str, new_id: &str, payload: Option<String>) -> Result<bool, StoreError> {
        let (entry, new_id) = (entry.to_owned(), new_id.to_owned());
        let owner = self.owner.clone();
        let replay = move |change: &mut Change<'_>| {
            let is_queued = replay(change, &entry, &new_id, payload.as_deref())?;
            notify_at_commit(change, &News::Queued.from(&owner))?;
            Ok(is_queued)
        };
        self.change(replay).await
    }

    async fn drop_dead_letter(&self, entry: &str) -> Result<bool, StoreError> {
        let entry = entry.to_owned();
        let sql = "DELETE FROM respool.queue WHERE id = $1 AND state = 'dead_letter'";
        self.change_at_once(move |change| change.has_changed(sql, &[&entry])).await
    }

    async fn give_back_entry(
        &self,
        lease: &EntryLease,
        pause: Duration,
        note: &str,
    ) -> Result<bool, StoreError> {
        let (lease, pause, note) = (lease.clone(), span(pause), note.to_owned());
        let sql = "UPDATE respool.queue SET state = 'waiting', due = respool.now_ms() + $3, note = $4, lease_until = NULL
             WHERE id = $1 AND epoch = $2 AND state = 'claimed'";
        self.change_at_once(move |change| {
            change.has_changed(sql, &[&lease.entry, &as_bigint(lease.epoch), &pause, &note])
        })
        .await
    }

    async fn give_up(&self, entry: &str, note: &str) -> Result<bool, StoreError> {
        let (entry, note) = (entry.to_owned(), note.to_owned());
        let work = move |change: &mut Change<'_>| {
            lock_lane_of(change, &entry)?;
            let sql = "UPDATE respool.queue SET state = 'failed', note = $2, ended = respool.now_ms(), lease_until = NULL
                 WHERE id = $1 AND state IN ('waiting', 'held')";
            let has_ended = change.has_changed(sql, &[&entry, &note])?;
            if has_ended {
                free_lane(change, &entry)?;
            }
            Ok(has_ended)
        };
        self.change(work).await
    }
}

const COLUMNS: &str = "id, queue, lane, state, accepted, due, attempt, blocked, run, payload, note, ended";

fn select(condition: &str) -> String {
    format!("SELECT {COLUMNS} FROM respool.queue WHERE {condition}")
}

fn row(row: &Row) -> Result<EntryRow, Error> {
    Ok(EntryRow {
        id: row.try_get(0)?,
        queue: row.try_get(1)?,
        lane: row.try_get::<_, Option<String>>(2)?.map(LaneKey),
        state: EntryState::from_name(row.try_get(3)?).unwrap_or(EntryState::Failed),
        accepted: number(row, 4)?,
        due: number(row, 5)?,
        attempt: row.try_get::<_, i32>(6)?.unsigned_abs(),
        is_blocked: row.try_get(7)?,
        run: row.try_get(8)?,
        payload: row.try_get(9)?,
        note: row.try_get(10)?,
        ended: some_number(row, 11)?,
    })
}

fn lane_name(queue: &str, lane: &str) -> String {
    format!("lane {queue} {lane}")
}

/// Queues entries. Others cannot queue into these lanes, or remember these keys, until the end of the
/// transaction.
fn enqueue_all(change: &mut Change<'_>, entries: &[NewEntry]) -> Result<Vec<Enqueued>, Error> {
    let lanes = entries.iter().filter_map(|entry| Some(lane_name(&entry.queue, &entry.lane.as_ref()?.0)));
    let keys = entries.iter().filter_map(|entry| Some(format!("key {}", entry.dedupe.as_ref()?.0.0)));
    change.lock(lanes.chain(keys).collect())?;
    entries.iter().map(|entry| enqueue(change, entry)).collect()
}

fn enqueue(change: &mut Change<'_>, entry: &NewEntry) -> Result<Enqueued, Error> {
    let sql = "SELECT respool.enqueue($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
    let NewEntry { id, queue, payload, .. } = entry;
    let lane = entry.lane.as_ref().map(|lane| lane.0.as_str());
    let (key, keep) = entry.dedupe.as_ref().map(|(key, keep)| (key.0.as_str(), span(*keep))).unzip();
    let time = entry.clock.as_ref();
    let (of_queue, name) = time.map(|time| (&time.clock.queue, &time.clock.name)).unzip();
    let (schedule, at) = time.map(|time| (&time.clock.schedule, as_bigint(time.time))).unzip();
    let delay = span(entry.delay);
    let values: Values<'_> =
        &[id, queue, &lane, &delay, payload, &key, &keep, &of_queue, &name, &schedule, &at];
    let earlier: Option<String> = change.one(sql, values)?.try_get(0)?;
    Ok(earlier.map_or(Enqueued::Accepted, Enqueued::Duplicate))
}

/// The caller holds the lane.
fn insert(
    change: &mut Change<'_>,
    id: &str,
    queue: &str,
    lane: Option<&str>,
    delay: Duration,
    payload: &str,
) -> Result<bool, Error> {
    let sql = "INSERT INTO respool.queue (id, queue, lane, state, due, accepted, payload, blocked)
         VALUES ($1, $2, $3, 'waiting', respool.now_ms() + $4, respool.now_ms(), $5, EXISTS (
             SELECT 1 FROM respool.queue WHERE queue = $2 AND lane = $3 AND state IN ('waiting', 'claimed', 'held')))";
    change.has_changed(sql, &[&id, &queue, &lane, &span(delay), &payload])
}

fn claim(change: &mut Change<'_>, request: &ClaimRequest) -> Result<Vec<Claimed>, Error> {
    let sql = "SELECT id, epoch, queue, payload, attempt, is_continued, run, accepted
         FROM respool.claim($1, $2, $3, $4, $5) ORDER BY due, seq";
    let ClaimRequest { queues, most, lease, working, towards } = request;
    change.list(sql, &[queues, &limit(*most), &span(*lease), working, towards], claimed_row)
}

fn claimed_row(row: &Row) -> Result<Claimed, Error> {
    Ok(Claimed {
        lease: EntryLease { entry: row.try_get(0)?, epoch: number(row, 1)? },
        queue: row.try_get(2)?,
        payload: row.try_get(3)?,
        attempt: row.try_get::<_, i32>(4)?.unsigned_abs(),
        is_continued: row.try_get(5)?,
        run: row.try_get(6)?,
        accepted: number(row, 7)?,
    })
}

/// Whether a lease holds; then it does until the end of the transaction.
pub(super) fn check_lease(change: &mut Change<'_>, lease: &EntryLease) -> Result<bool, Error> {
    let sql = "SELECT 1 FROM respool.queue WHERE id = $1 AND epoch = $2 AND state = 'claimed' FOR UPDATE";
    change.exists(sql, &[&lease.entry, &as_bigint(lease.epoch)])
}

/// Ends an entry. Returns whether another one of its lane can run now; `None` if the lease is lost.
fn complete(
    change: &mut Change<'_>,
    lease: &EntryLease,
    end: EntryEnd,
    note: &str,
) -> Result<Option<bool>, Error> {
    lock_lane_of(change, &lease.entry)?;
    let sql = "UPDATE respool.queue SET state = $3, note = $4, ended = respool.now_ms(), lease_until = NULL
         WHERE id = $1 AND epoch = $2 AND state = 'claimed'";
    let state = end.state().as_str();
    let is_done = change.has_changed(sql, &[&lease.entry, &as_bigint(lease.epoch), &state, &note])?;
    if is_done { free_lane(change, &lease.entry).map(Some) } else { Ok(None) }
}

/// Keeps others from queueing into the lane of an entry, and from ending one of it.
fn lock_lane_of(change: &mut Change<'_>, entry: &str) -> Result<(), Error> {
    let sql = "SELECT queue, lane FROM respool.queue WHERE id = $1 AND lane IS NOT NULL";
    let lane = change.find(sql, &[&entry], |row| Ok(lane_name(row.try_get(0)?, row.try_get(1)?)))?;
    change.lock(lane.into_iter().collect())
}

/// Lets the next entry of a lane run, once the one before it has ended. Returns whether there is one.
/// The caller holds the lane.
fn free_lane(change: &mut Change<'_>, entry: &str) -> Result<bool, Error> {
    let sql = "UPDATE respool.queue SET blocked = false WHERE seq = (
             SELECT min(later.seq) FROM respool.queue AS ended JOIN respool.queue AS later
                 ON later.queue = ended.queue AND later.lane = ended.lane
             WHERE ended.id = $1 AND later.state IN ('waiting', 'claimed', 'held'))";
    change.has_changed(sql, &[&entry])
}

/// Ends the entry of a run that was cancelled while no process worked on it: otherwise it would be waited for
/// without end.
pub(super) fn give_up_run(change: &mut Change<'_>, run: &str) -> Result<(), Error> {
    let open = "SELECT id FROM respool.queue WHERE run = $1 AND state IN ('waiting', 'claimed', 'held')";
    let Some(entry): Option<String> = change.find(open, &[&run], |row| row.try_get(0))? else {
        return Ok(());
    };
    lock_lane_of(change, &entry)?;
    let sql = "UPDATE respool.queue
         SET state = 'failed', note = 'its run was cancelled', ended = respool.now_ms(), lease_until = NULL
         WHERE id = $1 AND run = $2 AND state IN ('waiting', 'claimed', 'held')";
    if change.has_changed(sql, &[&entry, &run])? {
        free_lane(change, &entry)?;
    }
    Ok(())
}

/// Queues an entry that failed or was escalated again under a new id.
fn replay(change: &mut Change<'_>, entry: &str, new_id: &str, payload: Option<&str>) -> Result<bool, Error> {
    type Ended = (String, Option<String>, String, Option<String>);
    lock_lane_of(change, entry)?;
    let sql = "DELETE FROM respool.queue WHERE id = $1 AND state IN ('dead_letter', 'failed', 'escalated')
         RETURNING queue, lane, payload, work";
    let row = |row: &Row| Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?));
    let ended: Option<Ended> = change.find(sql, &[&entry], row)?;
    let Some((queue, lane, own, work)) = ended else { return Ok(false) };
    let payload = payload.unwrap_or(&own);
    let is_queued = insert(change, new_id, &queue, lane.as_deref(), Duration::ZERO, payload)?;
    change.execute("UPDATE respool.queue SET work = $2 WHERE id = $1", &[&new_id, &work])?;
    Ok(is_queued)
}

/// Forgets some entries that ended before a time, and some dedupe keys whose time is over. Dead letters stay.
pub(super) fn forget(change: &mut Change<'_>, before: u64) -> Result<usize, Error> {
    let sql = "DELETE FROM respool.queue WHERE seq IN (
             SELECT seq FROM respool.queue WHERE state IN ('done', 'failed', 'escalated') AND ended < $1 LIMIT $2)";
    let entries = change.execute(sql, &[&as_bigint(before), &BATCH])?;
    let sql = "DELETE FROM respool.dedupe WHERE key IN (
             SELECT key FROM respool.dedupe WHERE until <= respool.now_ms() LIMIT $1)";
    Ok(entries + change.execute(sql, &[&BATCH])?)
}

/// The mark of a clock. One that is new, or has another schedule than before, is set to `now`.
fn clock_mark(change: &mut Change<'_>, clock: &Clock, now: u64) -> Result<u64, Error> {
    let Clock { queue, name, schedule } = clock;
    let sql = "INSERT INTO respool.clocks AS known (queue, name, schedule, mark) VALUES ($1, $2, $3, $4)
         ON CONFLICT (queue, name) DO UPDATE SET schedule = $3, mark = $4, entry = NULL WHERE known.schedule <> $3";
    change.execute(sql, &[queue, name, schedule, &as_bigint(now)])?;
    let sql = "SELECT mark FROM respool.clocks WHERE queue = $1 AND name = $2";
    Ok(change.find(sql, &[queue, name], |row| number(row, 0))?.unwrap_or(now))
}

fn forget_clocks(change: &mut Change<'_>, gone: &GoneClocks) -> Result<(), Error> {
    let kept: &BTreeSet<(String, String)> = match gone {
        GoneClocks::OfQueue(queue) => {
            return change.execute("DELETE FROM respool.clocks WHERE queue = $1", &[queue]).map(drop);
        }
        GoneClocks::AllBut(kept) => kept,
    };
    let (queues, names): (Vec<&str>, Vec<&str>) =
        kept.iter().map(|(queue, name)| (queue.as_str(), name.as_str())).unzip();
    let sql = "DELETE FROM respool.clocks WHERE (queue, name) NOT IN (SELECT * FROM unnest($1::text[], $2::text[]))";
    change.execute(sql, &[&queues, &names]).map(drop)
}
