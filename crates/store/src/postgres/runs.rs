//! Runs in `PostgreSQL`: begun, appended to, claimed, cancelled. Each change locks the row of its run first,
//! so that the epoch it has seen holds until its commit.

use std::time::Duration;

use async_trait::async_trait;
use postgres::{Error, Row};

use super::link::{Change, as_bigint};
use super::{News, PostgresStore, approvals, notify_at_commit, outbox, queue};
use crate::error::StoreError;
use crate::queue::EntryLease;
use crate::runs::{Ack, Append, ClaimScope, FIRST_EPOCH, NewRun, Runs};
use crate::status::Status;

#[async_trait]
impl Runs for PostgresStore {
    async fn begin(&self, run: NewRun) -> Result<(), StoreError> {
        let owner = self.owner.clone();
        self.change(move |change| begin(change, &run, None, &owner)).await
    }

    async fn begin_leased(&self, run: NewRun, lease: &EntryLease) -> Result<bool, StoreError> {
        let (lease, owner) = (lease.clone(), self.owner.clone());
        self.change_at_once(move |change| begin_leased(change, &run, &lease, &owner)).await
    }

    async fn append(&self, append: Append) -> Result<Ack, StoreError> {
        let owner = self.owner.clone();
        self.change(move |change| write_append(change, &append, &owner)).await
    }

    async fn claim(&self, run: &str, scope: ClaimScope) -> Result<Option<u64>, StoreError> {
        let (run, owner) = (run.to_owned(), self.owner.clone());
        self.change_at_once(move |change| claim(change, &run, &owner, scope)).await
    }

    async fn claim_leased(&self, run: &str, lease: &EntryLease) -> Result<Option<u64>, StoreError> {
        let (run, lease, owner) = (run.to_owned(), lease.clone(), self.owner.clone());
        let work = move |change: &mut Change<'_>| {
            if queue::check_lease(change, &lease)? {
                claim(change, &run, &owner, ClaimScope::Any)
            } else {
                Ok(None)
            }
        };
        self.change(work).await
    }

    async fn request_cancel(&self, run: &str, at: u64) -> Result<bool, StoreError> {
        let (run, owner) = (run.to_owned(), self.owner.clone());
        let cancel = move |change: &mut Change<'_>| {
            let is_known = cancel(change, &run, at)?;
            notify_at_commit(change, &News::Decided.from(&owner))?;
            Ok(is_known)
        };
        self.change(cancel).await
    }

    async fn forget_cancel(&self, run: &str, epoch: u64) -> Result<bool, StoreError> {
        let run = run.to_owned();
        let sql =
            "UPDATE respool.runs SET cancel = false WHERE id = $1 AND epoch = $2 AND status = 'running'";
        self.change_at_once(move |change| change.has_changed(sql, &[&run, &as_bigint(epoch)])).await
    }

    async fn mark_answered(&self, run: &str) -> Result<bool, StoreError> {
        let run = run.to_owned();
        let sql = "UPDATE respool.runs SET answered = true WHERE id = $1 AND status <> 'running'";
        self.change_at_once(move |change| change.has_changed(sql, &[&run])).await
    }

    async fn mark_orphans(&self) -> Result<usize, StoreError> {
        let has_none = || self.polls().current().is_some_and(|found| !found.has_orphans);
        if !self.presence.shared.may_miss_others() || has_none() {
            return Ok(0);
        }
        let owner = self.owner.clone();
        self.change(move |change| mark_orphans(change, &owner)).await
    }

    async fn silence_of_owner(&self, run: &str) -> Result<Option<Duration>, StoreError> {
        let (run, owner) = (run.to_owned(), self.owner.clone());
        let sql = "SELECT respool.now_ms() - coalesce((SELECT seen FROM respool.nodes WHERE nodes.owner = runs.owner), 0)
             FROM respool.runs WHERE id = $1 AND status = 'running' AND owner <> $2";
        let find =
            move |change: &mut Change<'_>| change.find(sql, &[&run, &owner], |row| row.try_get::<_, i64>(0));
        let silence = self.pool.read(find).await?;
        Ok(silence.map(|millis| Duration::from_millis(u64::try_from(millis).unwrap_or_default())))
    }
}

/// Begins a run, unless it was begun by a commit whose answer was lost.
fn begin(change: &mut Change<'_>, run: &NewRun, parent: Option<&str>, owner: &str) -> Result<(), Error> {
    let sql = "INSERT INTO respool.runs (id, agent, status, owner, created, updated, fingerprint, setup, client, epoch, parent)
         VALUES ($1, $2, 'running', $3, $4, $4, $5, $6,
                 CASE WHEN $9::text IS NULL THEN $7 ELSE (SELECT client FROM respool.runs WHERE id = $9) END, $8, $9)
         ON CONFLICT (id) DO NOTHING";
    let NewRun { id, agent, at, fingerprint, client, setup } = run;
    let (at, epoch) = (as_bigint(*at), as_bigint(FIRST_EPOCH));
    change.execute(sql, &[id, agent, &owner, &at, fingerprint, setup, client, &epoch, &parent]).map(drop)
}

/// Begins a run in the name of an entry's lease. Nothing happens if that is lost.
fn begin_leased(
    change: &mut Change<'_>,
    run: &NewRun,
    lease: &EntryLease,
    owner: &str,
) -> Result<bool, Error> {
    let sql = "WITH held AS (
             UPDATE respool.queue SET run = $3, work = $7 WHERE id = $1 AND epoch = $2 AND state = 'claimed' RETURNING 1)
         INSERT INTO respool.runs (id, agent, status, owner, created, updated, fingerprint, setup, client, epoch)
         SELECT $3, $4, 'running', $5, $6, $6, $7, $8, $9, $10 FROM held";
    let NewRun { id, agent, at, fingerprint, client, setup } = run;
    let (entry, lease_epoch, at, epoch) =
        (&lease.entry, as_bigint(lease.epoch), as_bigint(*at), as_bigint(FIRST_EPOCH));
    change
        .has_changed(sql, &[entry, &lease_epoch, id, agent, &owner, &at, fingerprint, setup, client, &epoch])
}

/// Claims a run. Its epoch grows with every claim, so that a process which held the run before can write
/// nothing more.
fn claim(change: &mut Change<'_>, run: &str, owner: &str, scope: ClaimScope) -> Result<Option<u64>, Error> {
    let sql = "UPDATE respool.runs SET owner = $2, status = 'running', answered = false, epoch = epoch + 1
         WHERE id = $1 AND NOT cancel
           AND (status IN ('interrupted', 'suspended', 'awaiting_approval') OR ($3 AND status = 'cancelled')
                OR ($4 AND status = 'running') OR ($5 AND status IN ('done', 'limited', 'failed')))
         RETURNING epoch";
    let [with_running, with_over] = [ClaimScope::Any, ClaimScope::IdleOrOver].map(|wide| scope == wide);
    let values: [&(dyn postgres::types::ToSql + Sync); 5] =
        [&run, &owner, &(scope != ClaimScope::Idle), &with_running, &with_over];
    change.find(sql, &values, |row| super::columns::number(row, 0))
}

fn write_append(change: &mut Change<'_>, append: &Append, owner: &str) -> Result<Ack, Error> {
    let held = find_held(change, append)?;
    if held == Held::Incomplete {
        let sql = "UPDATE respool.runs SET status = 'interrupted' WHERE id = $1";
        change.execute(sql, &[&append.run])?;
    }
    if held != Held::Whole {
        return Ok(Ack { lost: true, cancel: false });
    }
    write_parts(change, append, owner)?;
    if append.status.is_over() {
        close_children(change, &append.run)?;
    }
    let sql = "UPDATE respool.runs SET status = $2, updated = $3 WHERE id = $1 RETURNING cancel";
    let values: [&(dyn postgres::types::ToSql + Sync); 3] =
        [&append.run, &append.status.as_str(), &as_bigint(append.at)];
    let cancel = change.find(sql, &values, |row| row.try_get(0))?.unwrap_or(false);
    if cancel && append.status != Status::Running && !append.status.is_over() {
        // Nothing else would end it: only runs that are executed look at the request to cancel.
        end_cancelled(change, &append.run)?;
    }
    Ok(Ack { cancel, lost: false })
}

/// Writes what comes with an event: the event itself, calls, an approval, a message, a child run.
fn write_parts(change: &mut Change<'_>, append: &Append, owner: &str) -> Result<(), Error> {
    if let Some((seq, kind, body)) = &append.event {
        // An event whose writer gave up waiting is written again: the same number is the same event.
        let sql = "INSERT INTO respool.events (run, seq, at, kind, body) VALUES ($1, $2, $3, $4, $5)
             ON CONFLICT DO NOTHING";
        change.execute(sql, &[&append.run, &as_bigint(*seq), &as_bigint(append.at), kind, body])?;
    }
    for id in &append.client_calls {
        let sql = "INSERT INTO respool.client_calls (id, run) VALUES ($1, $2)
             ON CONFLICT (id) DO UPDATE SET run = excluded.run";
        change.execute(sql, &[id, &append.run])?;
    }
    if let Some(approval) = &append.approval {
        approvals::change(change, &append.run, append.at, approval)?;
    }
    if let Some(message) = &append.message {
        outbox::insert(change, message, true, append.at)?;
    }
    if let Some(child) = &append.child {
        begin(change, child, Some(&append.run), owner)?;
    }
    Ok(())
}

/// How the database has the run of a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    /// As the writer knows it, until the commit.
    Whole,
    /// Without the event before this one: the database was restored, or a standby took over that lacked it.
    Incomplete,
    /// Not at all, or another process has claimed it since.
    No,
}

fn find_held(change: &mut Change<'_>, append: &Append) -> Result<Held, Error> {
    let sql = "SELECT epoch, $2::bigint = 0 OR EXISTS (SELECT 1 FROM respool.events WHERE run = $1 AND seq = $2 - 1)
         FROM respool.runs WHERE id = $1 FOR UPDATE";
    let seq = append.event.as_ref().map_or(0, |(seq, ..)| as_bigint(*seq));
    let found: Option<(i64, bool)> =
        change.find(sql, &[&append.run, &seq], |row| Ok((row.try_get(0)?, row.try_get(1)?)))?;
    Ok(match found {
        Some((epoch, is_whole)) if epoch == as_bigint(append.epoch) => {
            if is_whole {
                Held::Whole
            } else {
                Held::Incomplete
            }
        }
        _ => Held::No,
    })
}

fn cancel(change: &mut Change<'_>, run: &str, _at: u64) -> Result<bool, Error> {
    let sql = "UPDATE respool.runs
         SET cancel = true, status = CASE status WHEN 'running' THEN 'running' ELSE 'cancelled' END
         WHERE id = $1 AND status IN ('running', 'suspended', 'interrupted', 'awaiting_approval')";
    let found = change.has_changed(sql, &[&run])?;
    if change.exists("SELECT 1 FROM respool.runs WHERE id = $1 AND status = 'cancelled'", &[&run])? {
        end_cancelled(change, run)?;
    } else {
        // The process that executes a child learns of it by the child's own commits.
        let sql = "WITH RECURSIVE line (id) AS (
                 SELECT id FROM respool.runs WHERE parent = $1
                 UNION SELECT runs.id FROM respool.runs JOIN line ON runs.parent = line.id)
             UPDATE respool.runs SET cancel = true
             WHERE id IN (SELECT id FROM line) AND status IN ('running', 'suspended', 'interrupted', 'awaiting_approval')";
        change.execute(sql, &[&run])?;
    }
    Ok(found)
}

/// Ends a cancelled run that no process executes, with all that belongs to it.
fn end_cancelled(change: &mut Change<'_>, run: &str) -> Result<(), Error> {
    change.execute("UPDATE respool.runs SET status = 'cancelled' WHERE id = $1", &[&run])?;
    close_children(change, run)?;
    approvals::withdraw(change, run)?;
    queue::give_up_run(change, run)
}

/// Cancels the children of a run that is over: no process works on them.
fn close_children(change: &mut Change<'_>, run: &str) -> Result<(), Error> {
    let sql = "SELECT id FROM respool.runs WHERE parent = $1";
    let children: Vec<String> = change.list(sql, &[&run], |row| row.try_get(0))?;
    for child in children {
        let sql = "UPDATE respool.runs SET status = 'cancelled'
             WHERE id = $1 AND status IN ('running', 'suspended', 'interrupted', 'awaiting_approval')";
        change.execute(sql, &[&child])?;
        approvals::withdraw(change, &child)?;
        close_children(change, &child)?;
    }
    Ok(())
}

/// Marks the runs of nodes that have been silent for too long. If the database was away, so that this node
/// (`judge`) was silent itself, it marks none.
fn mark_orphans(change: &mut Change<'_>, judge: &str) -> Result<usize, Error> {
    let sql = "WITH living AS (SELECT owner FROM respool.nodes WHERE seen > respool.now_ms() - $1)
         UPDATE respool.runs SET status = 'interrupted'
         WHERE status = 'running' AND NOT EXISTS (SELECT 1 FROM living WHERE living.owner = runs.owner)
             AND EXISTS (SELECT 1 FROM living WHERE living.owner = $2)
         RETURNING id, cancel";
    let row = |row: &Row| Ok((row.try_get(0)?, row.try_get(1)?));
    let interrupted: Vec<(String, bool)> =
        change.list(sql, &[&super::link::span(super::shared::GONE_AFTER), &judge], row)?;
    for (run, is_cancelled) in &interrupted {
        if *is_cancelled {
            end_cancelled(change, run)?;
        }
    }
    Ok(interrupted.len())
}

#[cfg(test)]
mod tests {
    use testing::postgres_server;

    use super::*;
    use crate::{NewRun, StoreConfig};

    /// Regression: the process that a database answered first after a pause took the runs of the others.
    #[tokio::test(flavor = "multi_thread")]
    async fn runs_are_not_taken_after_a_pause() {
        let Some(url) = postgres_server::new_database() else { return };
        let open = || PostgresStore::open(&StoreConfig::default(), &url).unwrap();
        let (store, other) = (open(), open());
        other.begin(NewRun { id: "run".into(), ..NewRun::default() }).await.unwrap();
        let owner = other.owner.clone();
        drop(other);
        let mark = async |judge: &str| {
            let judge = judge.to_owned();
            store.change(move |change| mark_orphans(change, &judge)).await.unwrap()
        };
        assert_eq!(mark(&owner).await, 0, "it counts as gone itself");
        store.presence.shared.feign_pause();
        store.polls().note_change();
        assert_eq!(store.mark_orphans().await.unwrap(), 0);
        assert_eq!(mark(&store.owner).await, 1);
    }
}
