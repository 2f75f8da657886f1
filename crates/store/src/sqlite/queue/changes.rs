//! The changes of the queue. Each is one function in the writing thread's transaction.
//!
//! `blocked` says that an earlier entry of the same lane has not ended, so that claiming looks at an index
//! and not at lanes. It is set when an entry is accepted and cleared when the one before it ends.

use std::time::Duration;

use rusqlite::{Row, ToSql, Transaction, params};

use super::clocks;
use crate::queue::{ClaimRequest, Claimed, Enqueued, EntryEnd, EntryLease, NewEntry};
use crate::sqlite::statements::{execute, exists, find, has_changed, limit, list, signed};

/// At most this many rows are forgotten in one batch.
const BATCH: u32 = 256;

pub(crate) fn enqueue(change: &Transaction<'_>, entry: &NewEntry, now: u64) -> rusqlite::Result<Enqueued> {
    if let Some((key, _)) = &entry.dedupe {
        let sql = "SELECT entry FROM dedupe WHERE key = ?1 AND until > ?2";
        if let Some(known) = find(change, sql, params![key.0, signed(now)], |row| row.get(0))? {
            return Ok(Enqueued::Duplicate(known));
        }
    }
    if let Some(time) = &entry.clock
        && let Some(earlier) = clocks::advance(change, time, &entry.id)?
    {
        return Ok(Enqueued::Duplicate(earlier));
    }
    if let Some((key, kept)) = &entry.dedupe {
        let sql = "INSERT OR REPLACE INTO dedupe (key, until, entry) VALUES (?1, ?2, ?3)";
        execute(change, sql, params![key.0, signed(later(now, *kept)), entry.id])?;
    }
    let lane = entry.lane.as_ref().map(|lane| lane.0.as_str());
    insert(change, &entry.id, &entry.queue, lane, [later(now, entry.delay), now], &entry.payload)?;
    Ok(Enqueued::Accepted)
}

/// Adds a span to a time.
fn later(now: u64, by: Duration) -> u64 {
    now.saturating_add(clock::to_millis(by))
}

/// Inserts an entry. `times`: when it is due, and now.
fn insert(
    change: &Transaction<'_>,
    id: &str,
    queue: &str,
    lane: Option<&str>,
    times: [u64; 2],
    payload: &str,
) -> rusqlite::Result<bool> {
    let [due, now] = times.map(signed);
    let sql = "INSERT INTO queue (id, queue, lane, state, due, accepted, payload, blocked)
        VALUES (?1, ?2, ?3, 'waiting', ?4, ?5, ?6, EXISTS (
            SELECT 1 FROM queue WHERE queue = ?2 AND lane = ?3 AND state IN ('waiting', 'claimed', 'held')))";
    has_changed(change, sql, params![id, queue, lane, due, now, payload])
}

pub(crate) fn claim(
    change: &Transaction<'_>,
    request: &ClaimRequest,
    at: u64,
) -> rusqlite::Result<Vec<Claimed>> {
    let now = signed(at);
    // The attempt of a dead holder goes on.
    let sql = "UPDATE queue SET state = 'waiting' WHERE state = 'claimed' AND lease_until <= ?1
                 AND id NOT IN (SELECT value FROM json_each(?2))";
    let working = serde_json::Value::from(request.working.clone()).to_string();
    execute(change, sql, params![now, working])?;
    let mut ready: Vec<(i64, i64)> = Vec::new();
    for queue in &request.queues {
        // The entries before the wanted one, in its lane, lead towards it.
        let sql = "SELECT due, seq FROM queue WHERE queue = ?1 AND state = 'waiting' AND blocked = 0 AND due <= ?2
                 AND (?4 IS NULL OR id = ?4 OR EXISTS (
                     SELECT 1 FROM queue AS goal WHERE goal.id = ?4 AND goal.lane = queue.lane AND goal.seq > queue.seq))
             ORDER BY due, seq LIMIT ?3";
        let values = params![queue, now, limit(request.most), request.towards];
        ready.extend(list(change, sql, values, |row| Ok((row.get(0)?, row.get(1)?)))?);
    }
    ready.sort_unstable();
    ready.dedup();
    // A new attempt has no run yet: the one of the attempt before is not its own.
    let mut take = change.prepare_cached(
        "UPDATE queue SET state = 'claimed', epoch = epoch + 1, lease_until = ?2, attempt = attempt + is_new_attempt,
             run = CASE is_new_attempt WHEN 1 THEN NULL ELSE run END, is_new_attempt = 0
         WHERE seq = ?1 RETURNING id, epoch, queue, payload, attempt, claims, run, accepted",
    )?;
    let mut claimed = Vec::new();
    for (_, seq) in ready.into_iter().take(request.most) {
        claimed.push(take.query_row(params![seq, signed(later(at, request.lease))], claimed_row)?);
        execute(change, "UPDATE queue SET claims = attempt WHERE seq = ?1", params![seq])?;
    }
    Ok(claimed)
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

/// Changes a claimed entry; false when the lease is lost. `set` uses `values` from `?3` on.
fn update_leased(
    change: &Transaction<'_>,
    lease: &EntryLease,
    set: &str,
    values: &[&dyn ToSql],
) -> rusqlite::Result<bool> {
    let sql = format!("UPDATE queue SET {set} WHERE id = ?1 AND epoch = ?2 AND state = 'claimed'");
    let epoch = signed(lease.epoch);
    let mut all: Vec<&dyn ToSql> = vec![&lease.entry, &epoch];
    all.extend(values);
    has_changed(change, &sql, &all[..])
}

/// Returns whether a lease holds.
pub(crate) fn check_lease(change: &Transaction<'_>, lease: &EntryLease) -> rusqlite::Result<bool> {
    let sql = "SELECT 1 FROM queue WHERE id = ?1 AND epoch = ?2 AND state = 'claimed'";
    exists(change, sql, params![lease.entry, signed(lease.epoch)])
}

/// Remembers the run that works on an entry, and what stands for all its runs.
pub(crate) fn set_run(
    change: &Transaction<'_>,
    lease: &EntryLease,
    run: &str,
    work: &str,
) -> rusqlite::Result<bool> {
    update_leased(change, lease, "run = ?3, work = ?4", &[&run, &work])
}

pub(crate) fn renew(change: &Transaction<'_>, lease: &EntryLease, until: u64) -> rusqlite::Result<bool> {
    update_leased(change, lease, "lease_until = ?3", &[&signed(until)])
}

/// Gives an entry back for a further attempt.
pub(crate) fn retry(
    change: &Transaction<'_>,
    lease: &EntryLease,
    at: u64,
    note: &str,
) -> rusqlite::Result<bool> {
    let set = "state = 'waiting', due = ?3, note = ?4, lease_until = NULL, is_new_attempt = 1";
    update_leased(change, lease, set, &[&signed(at), &note])
}

/// Gives an entry back as if it had not been claimed.
pub(crate) fn give_back(
    change: &Transaction<'_>,
    lease: &EntryLease,
    at: u64,
    note: &str,
) -> rusqlite::Result<bool> {
    let set = "state = 'waiting', due = ?3, note = ?4, lease_until = NULL";
    update_leased(change, lease, set, &[&signed(at), &note])
}

pub(crate) fn hold(change: &Transaction<'_>, lease: &EntryLease, note: &str) -> rusqlite::Result<bool> {
    update_leased(change, lease, "state = 'held', note = ?3, lease_until = NULL", &[&note])
}

pub(crate) fn wake(change: &Transaction<'_>, entry: &str, now: u64) -> rusqlite::Result<bool> {
    let sql = "UPDATE queue SET state = 'waiting', due = ?2, note = NULL WHERE id = ?1 AND state = 'held'";
    has_changed(change, sql, params![entry, signed(now)])
}

pub(crate) fn complete(
    change: &Transaction<'_>,
    lease: &EntryLease,
    end: EntryEnd,
    note: &str,
    now: u64,
) -> rusqlite::Result<bool> {
    let set = "state = ?3, note = ?4, ended = ?5, lease_until = NULL";
    let is_done = update_leased(change, lease, set, &[&end.state().as_str(), &note, &signed(now)])?;
    if is_done {
        free_lane(change, &lease.entry)?;
    }
    Ok(is_done)
}

/// Lets the next entry of a lane run, once the one before it has ended.
fn free_lane(change: &Transaction<'_>, entry: &str) -> rusqlite::Result<()> {
    let sql = "UPDATE queue SET blocked = 0 WHERE seq = (
                 SELECT min(later.seq) FROM queue AS ended JOIN queue AS later
                     ON later.queue = ended.queue AND later.lane = ended.lane
                 WHERE ended.id = ?1 AND later.state IN ('waiting', 'claimed', 'held'))";
    execute(change, sql, params![entry]).map(drop)
}

/// Ends an entry that no process works on, and lets the next one of its lane run.
pub(crate) fn give_up(change: &Transaction<'_>, entry: &str, note: &str, now: u64) -> rusqlite::Result<bool> {
    let sql = "UPDATE queue SET state = 'failed', note = ?2, ended = ?3, lease_until = NULL
             WHERE id = ?1 AND state IN ('waiting', 'held')";
    let has_ended = has_changed(change, sql, params![entry, note, signed(now)])?;
    if has_ended {
        free_lane(change, entry)?;
    }
    Ok(has_ended)
}

/// Ends the entry of a run that was cancelled while no process worked on it: otherwise it would be waited for
/// without end.
pub(crate) fn give_up_run(change: &Transaction<'_>, run: &str, now: u64) -> rusqlite::Result<()> {
    let sql =
        "UPDATE queue SET state = 'failed', note = 'its run was cancelled', ended = ?2, lease_until = NULL
             WHERE run = ?1 AND state IN ('waiting', 'claimed', 'held') RETURNING id";
    let entry: Option<String> = find(change, sql, params![run, signed(now)], |row| row.get(0))?;
    entry.map_or(Ok(()), |entry| free_lane(change, &entry))
}

/// Queues an entry that failed or was escalated again under a new id.
pub(crate) fn replay(
    change: &Transaction<'_>,
    entry: &str,
    new_id: &str,
    payload: Option<&str>,
    now: u64,
) -> rusqlite::Result<bool> {
    type Ended = (String, Option<String>, String, Option<String>);
    let sql = "DELETE FROM queue WHERE id = ?1 AND state IN ('dead_letter', 'failed', 'escalated')
             RETURNING queue, lane, payload, work";
    let row = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?));
    let ended: Option<Ended> = find(change, sql, params![entry], row)?;
    let Some((queue, lane, own, work)) = ended else { return Ok(false) };
    let payload = payload.unwrap_or(&own);
    let is_queued = insert(change, new_id, &queue, lane.as_deref(), [now, now], payload)?;
    execute(change, "UPDATE queue SET work = ?2 WHERE id = ?1", params![new_id, work])?;
    Ok(is_queued)
}

pub(crate) fn drop_dead_letter(change: &Transaction<'_>, entry: &str) -> rusqlite::Result<bool> {
    has_changed(change, "DELETE FROM queue WHERE id = ?1 AND state = 'dead_letter'", params![entry])
}

/// Forgets some entries that ended before a time, and some dedupe keys whose time is over. Dead letters stay.
pub(crate) fn forget(change: &Transaction<'_>, before: u64, now: u64) -> rusqlite::Result<usize> {
    let sql = "DELETE FROM queue WHERE seq IN (
                 SELECT seq FROM queue WHERE state IN ('done', 'failed', 'escalated') AND ended < ?1 LIMIT ?2)";
    let entries = execute(change, sql, params![signed(before), BATCH])?;
    let sql = "DELETE FROM dedupe WHERE key IN (SELECT key FROM dedupe WHERE until <= ?1 LIMIT ?2)";
    Ok(entries + execute(change, sql, params![signed(now), BATCH])?)
}
