//! Runs as rows: begun, appended to, claimed, cancelled.

use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Transaction, params};

use super::queue::changes;
use super::statements::{execute, find, has_changed, list, signed};
use super::store::SqliteStore;
use super::writer::Durability;
use super::{approvals, outbox};
use crate::error::StoreError;
use crate::queue::EntryLease;
use crate::runs::{Ack, Append, ClaimScope, FIRST_EPOCH, NewRun, Runs};
use crate::status::Status;

#[async_trait]
impl Runs for SqliteStore {
    async fn begin(&self, run: NewRun) -> Result<(), StoreError> {
        let owner = self.lease.owner().to_owned();
        self.write(move |change| begin(change, &run, None, &owner)).await
    }

    async fn begin_leased(&self, run: NewRun, lease: &EntryLease) -> Result<bool, StoreError> {
        let (lease, owner) = (lease.clone(), self.lease.owner().to_owned());
        let work = move |change: &Transaction<'_>| {
            let holds = changes::set_run(change, &lease, &run.id, &run.fingerprint)?;
            if holds {
                begin(change, &run, None, &owner)?;
            }
            Ok(holds)
        };
        self.write(work).await
    }

    async fn append(&self, append: Append) -> Result<Ack, StoreError> {
        let owner = self.lease.owner().to_owned();
        let durability = if append.synchronous { Durability::PowerFailure } else { Durability::Process };
        self.write_with(durability, move |change| write_append(change, &append, &owner)).await
    }

    async fn claim(&self, run: &str, scope: ClaimScope) -> Result<Option<u64>, StoreError> {
        let (run, owner) = (run.to_owned(), self.lease.owner().to_owned());
        self.write(move |change| claim(change, &run, &owner, scope)).await
    }

    async fn claim_leased(&self, run: &str, lease: &EntryLease) -> Result<Option<u64>, StoreError> {
        let (run, lease, owner) = (run.to_owned(), lease.clone(), self.lease.owner().to_owned());
        let work = move |change: &Transaction<'_>| {
            if changes::check_lease(change, &lease)? {
                claim(change, &run, &owner, ClaimScope::Any)
            } else {
                Ok(None)
            }
        };
        self.write(work).await
    }

    async fn request_cancel(&self, run: &str, at: u64) -> Result<bool, StoreError> {
        let run = run.to_owned();
        self.write(move |change| cancel(change, &run, at)).await
    }

    async fn forget_cancel(&self, run: &str, epoch: u64) -> Result<bool, StoreError> {
        let run = run.to_owned();
        let sql = "UPDATE runs SET cancel = 0 WHERE id = ?1 AND epoch = ?2 AND status = 'running'";
        self.write(move |change| has_changed(change, sql, params![run, signed(epoch)])).await
    }

    async fn mark_answered(&self, run: &str) -> Result<bool, StoreError> {
        let run = run.to_owned();
        let sql = "UPDATE runs SET answered = 1 WHERE id = ?1 AND status <> 'running'";
        self.write(move |change| has_changed(change, sql, params![run])).await
    }

    async fn mark_orphans(&self) -> Result<usize, StoreError> {
        let sql = "SELECT DISTINCT owner FROM runs WHERE status = 'running'";
        let owners: Vec<String> =
            self.read(move |connection| list(connection, sql, [], |row| row.get(0))).await?;
        let gone: Vec<String> = owners.into_iter().filter(|owner| self.lease.is_gone(owner)).collect();
        if gone.is_empty() {
            return Ok(0);
        }
        self.write(move |change| interrupt_runs_of(change, &gone)).await
    }

    async fn silence_of_owner(&self, _: &str) -> Result<Option<Duration>, StoreError> {
        Ok(None)
    }
}

fn begin(change: &Transaction<'_>, run: &NewRun, parent: Option<&str>, owner: &str) -> rusqlite::Result<()> {
    let values = params![
        run.id,
        run.agent,
        owner,
        signed(run.at),
        run.fingerprint,
        run.setup,
        run.client,
        signed(FIRST_EPOCH),
        parent
    ];
    let sql = "INSERT INTO runs (id, agent, status, owner, created, updated, fingerprint, setup, client, epoch, parent)
        VALUES (?1, ?2, 'running', ?3, ?4, ?4, ?5, ?6,
                CASE WHEN ?9 IS NULL THEN ?7 ELSE (SELECT client FROM runs WHERE id = ?9) END, ?8, ?9)";
    execute(change, sql, values).map(drop)
}

/// Claims a run. Its epoch grows with every claim, so that a process which held the run before can write
/// nothing more.
fn claim(
    change: &Transaction<'_>,
    run: &str,
    owner: &str,
    scope: ClaimScope,
) -> rusqlite::Result<Option<u64>> {
    let sql = "UPDATE runs SET owner = ?2, status = 'running', answered = 0, epoch = epoch + 1
        WHERE id = ?1 AND cancel = 0
          AND (status IN ('interrupted', 'suspended', 'awaiting_approval') OR (?3 AND status = 'cancelled')
               OR (?4 AND status = 'running') OR (?5 AND status IN ('done', 'limited', 'failed')))
        RETURNING epoch";
    let [with_running, with_over] = [ClaimScope::Any, ClaimScope::IdleOrOver].map(|wide| scope == wide);
    let values = params![run, owner, scope != ClaimScope::Idle, with_running, with_over];
    let epoch = find(change, sql, values, |row| row.get::<_, i64>(0))?;
    Ok(epoch.map(i64::unsigned_abs))
}

fn write_append(change: &Transaction<'_>, append: &Append, owner: &str) -> rusqlite::Result<Ack> {
    if is_lost(change, append)? {
        return Ok(Ack { lost: true, cancel: false });
    }
    if let Some((seq, kind, body)) = &append.event {
        // An event whose writer gave up waiting is written again: the same number is the same event.
        let sql = "INSERT OR IGNORE INTO events (run, seq, at, kind, body) VALUES (?1, ?2, ?3, ?4, ?5)";
        execute(change, sql, params![append.run, signed(*seq), signed(append.at), kind, body])?;
    }
    for id in &append.client_calls {
        let sql = "INSERT OR REPLACE INTO client_calls (id, run) VALUES (?1, ?2)";
        execute(change, sql, params![id, append.run])?;
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
    if append.status.is_over() {
        close_children(change, &append.run)?;
    }
    let sql = "UPDATE runs SET status = ?2, updated = ?3 WHERE id = ?1 RETURNING cancel";
    let values = params![append.run, append.status.as_str(), signed(append.at)];
    let cancel = find(change, sql, values, |row| row.get(0))?.unwrap_or(false);
    if cancel && append.status != Status::Running && !append.status.is_over() {
        // Nothing else would end it: only runs that are executed look at the request to cancel.
        end_cancelled(change, &append.run, append.at)?;
    }
    Ok(Ack { cancel, lost: false })
}

/// Returns whether another process has claimed the run since this writer did.
fn is_lost(change: &Transaction<'_>, append: &Append) -> rusqlite::Result<bool> {
    let epoch: Option<i64> =
        find(change, "SELECT epoch FROM runs WHERE id = ?1", params![append.run], |row| row.get(0))?;
    Ok(epoch.is_some_and(|epoch| epoch != signed(append.epoch)))
}

fn cancel(change: &Transaction<'_>, run: &str, at: u64) -> rusqlite::Result<bool> {
    let sql =
        "UPDATE runs SET cancel = 1, status = CASE status WHEN 'running' THEN 'running' ELSE 'cancelled' END
        WHERE id = ?1 AND status IN ('running', 'suspended', 'interrupted', 'awaiting_approval')";
    let found = has_changed(change, sql, params![run])?;
    let sql = "SELECT 1 FROM runs WHERE id = ?1 AND status = 'cancelled'";
    if super::statements::exists(change, sql, params![run])? {
        end_cancelled(change, run, at)?;
    } else {
        // The process that executes a child learns of it by the child's own commits.
        let sql = "WITH RECURSIVE line (id) AS (
                SELECT id FROM runs WHERE parent = ?1 UNION SELECT runs.id FROM runs JOIN line ON runs.parent = line.id
            )
            UPDATE runs SET cancel = 1
            WHERE id IN line AND status IN ('running', 'suspended', 'interrupted', 'awaiting_approval')";
        execute(change, sql, params![run])?;
    }
    Ok(found)
}

/// Ends a cancelled run that no process executes, with all that belongs to it.
fn end_cancelled(change: &Transaction<'_>, run: &str, at: u64) -> rusqlite::Result<()> {
    execute(change, "UPDATE runs SET status = 'cancelled' WHERE id = ?1", params![run])?;
    close_children(change, run)?;
    approvals::withdraw(change, run)?;
    changes::give_up_run(change, run, at)
}

/// Cancels the children of a run that is over: no process works on them.
fn close_children(change: &Transaction<'_>, run: &str) -> rusqlite::Result<()> {
    let sql = "SELECT id FROM runs WHERE parent = ?1";
    let children: Vec<String> = list(change, sql, params![run], |row| row.get(0))?;
    for child in children {
        let sql = "UPDATE runs SET status = 'cancelled'
            WHERE id = ?1 AND status IN ('running', 'suspended', 'interrupted', 'awaiting_approval')";
        execute(change, sql, params![child])?;
        approvals::withdraw(change, &child)?;
        close_children(change, &child)?;
    }
    Ok(())
}

fn interrupt_runs_of(change: &Transaction<'_>, owners: &[String]) -> rusqlite::Result<usize> {
    let sql = "UPDATE runs SET status = 'interrupted' WHERE status = 'running' AND owner = ?1
        RETURNING id, cancel, CAST(unixepoch('subsec') * 1000 AS INTEGER)";
    let mut count = 0;
    for owner in owners {
        let row =
            |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get::<_, i64>(2)?.unsigned_abs()));
        let interrupted: Vec<(String, bool, u64)> = list(change, sql, params![owner], row)?;
        for (run, cancel, now) in interrupted {
            count += 1;
            if cancel {
                end_cancelled(change, &run, now)?;
            }
        }
    }
    Ok(count)
}
