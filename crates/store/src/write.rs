//! The writing thread: takes the jobs that wait, commits them together, and answers each.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

use rusqlite::{Connection, OptionalExtension as _, Transaction, params};
use tokio::sync::oneshot;

use super::key_usage::{self, KeyUsage};
use super::numbers::signed;
use super::open::failed;
use super::operators::{self, OperatorKey};
use super::queue::{self, Change, Changed, EntryLease};
use super::responses::{self, ResponseChange};
use super::{ApprovalChange, LateDecision, NewMessage, Status, StoreError, approvals, clearing, outbox};

/// At most so many jobs are one transaction.
const LARGEST_GROUP: usize = 256;

/// The epoch of a run that begins.
pub(super) const FIRST_EPOCH: u64 = 1;

/// A run that begins.
#[derive(Clone, Debug, Default)]
pub struct NewRun {
    /// Its id.
    pub id: String,
    /// Its agent.
    pub agent: String,
    /// When it began, in milliseconds since 1970.
    pub at: u64,
    /// Stands for the request that asked for it.
    pub fingerprint: String,
    /// Stands for the client; a child has its parent's.
    pub client: String,
    /// Everything that its course depends on.
    pub setup: String,
}

/// What happened to a run.
#[derive(Clone, Debug)]
pub struct Append {
    /// The run.
    pub run: String,
    /// The epoch in which the writer works on it. What comes with an older one than the run's is not written.
    pub epoch: u64,
    /// When, in milliseconds since 1970.
    pub at: u64,
    /// The event: its place, its kind, its text. `None`: only the status changes.
    pub event: Option<(u64, &'static str, String)>,
    /// What the run is from now on.
    pub status: Status,
    /// Ids of calls that leave for the client with this.
    pub client_calls: Vec<String>,
    /// What becomes of an approval with this.
    pub approval: Option<ApprovalChange>,
    /// A message that is posted with this.
    pub message: Option<Box<NewMessage>>,
    /// A child run that begins with this.
    pub child: Option<NewRun>,
    /// It stands before an effect that must not be repeated: it must survive a power failure too.
    pub synchronous: bool,
}

impl Append {
    /// A change of the status alone.
    pub fn status(run: &str, epoch: u64, at: u64, status: Status) -> Self {
        Self {
            run: run.to_owned(),
            epoch,
            at,
            event: None,
            status,
            client_calls: Vec::new(),
            approval: None,
            message: None,
            child: None,
            synchronous: false,
        }
    }
}

/// Which runs can be claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimScope {
    /// Those that nobody works on.
    Idle,
    /// Also those whose client went away.
    IdleOrCancelled,
    /// Also those that somebody works on: the claimant has the right to (the parent of a child run, the holder of a lease).
    Any,
}

/// What a commit returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ack {
    /// Somebody wants the run to end.
    pub cancel: bool,
    /// Another process works on the run by now. Nothing was written.
    pub lost: bool,
}

type Answer<T> = oneshot::Sender<Result<T, StoreError>>;

/// One thing to write.
pub(super) enum Job {
    Begin { run: NewRun, owner: String, answer: Answer<()> },
    Append { append: Append, owner: String, answer: Answer<Ack> },
    Claim { run: String, owner: String, scope: ClaimScope, answer: Answer<Option<u64>> },
    Decide { id: String, decision: String, at: u64, late: LateDecision, answer: Answer<bool> },
    Answered { run: String, answer: Answer<bool> },
    Cancel { run: String, at: u64, answer: Answer<bool> },
    ForgetCancel { run: String, epoch: u64, answer: Answer<bool> },
    Orphan { owners: Vec<String>, answer: Answer<usize> },
    Remove { run: String, answer: Answer<bool> },
    Expire { before: u64, answer: Answer<usize> },
    Shrink { most: u64, before: u64, answer: Answer<usize> },
    GiveBack { answer: Answer<usize> },
    Used { rows: Vec<KeyUsage>, answer: Answer<usize> },
    ForgetUsage { before: u64, answer: Answer<usize> },
    Operators { keys: Vec<OperatorKey>, answer: Answer<usize> },
    Queue { change: Change, answer: Answer<Changed> },
    Outbox { change: outbox::Change, answer: Answer<outbox::Changed> },
    BeginLeased { run: NewRun, lease: EntryLease, owner: String, answer: Answer<bool> },
    ClaimLeased { run: String, lease: EntryLease, owner: String, answer: Answer<Option<u64>> },
    Forget { before: u64, now: u64, answer: Answer<usize> },
    Responses { change: ResponseChange, owner: String, answer: Answer<usize> },
}

/// Works until nobody can send jobs any more.
pub(super) fn work(
    mut connection: Connection,
    queue: &mpsc::Receiver<Job>,
    path: &Path,
    counts: &CommitCounts,
) {
    let mut group = Vec::new();
    let mut waits_for_disk = false;
    while let Ok(first) = queue.recv() {
        group.push(first);
        group.extend(queue.try_iter().take(LARGEST_GROUP - 1));
        counts.all.fetch_add(1, Ordering::Relaxed);
        counts.synchronised.fetch_add(group.iter().any(Job::is_synchronous).into(), Ordering::Relaxed);
        commit(&mut connection, &mut waits_for_disk, &mut group, path);
    }
}

/// How often this process has committed.
#[derive(Debug, Default)]
pub(super) struct CommitCounts {
    pub(super) all: AtomicU64,
    /// Those that waited for the disk.
    pub(super) synchronised: AtomicU64,
}

/// Jobs in one transaction. When it fails, each is tried alone, so that one bad job fails by itself. `waits_for_disk`: how the
/// connection commits now.
fn commit(connection: &mut Connection, waits_for_disk: &mut bool, group: &mut Vec<Job>, path: &Path) {
    let synchronous = group.iter().any(Job::is_synchronous);
    let done =
        set_synchronous(connection, waits_for_disk, synchronous).and_then(|()| together(connection, group));
    let alone = group.len() == 1;
    match done {
        Ok(replies) => {
            for (reply, job) in replies.into_iter().zip(group.drain(..)) {
                job.answer(Ok(reply));
            }
        }
        Err(error) if alone => group.drain(..).for_each(|job| job.answer(Err(failed("write", path, &error)))),
        Err(_) => {
            for job in group.drain(..) {
                let reply = together(connection, std::slice::from_ref(&job));
                let reply = reply.map(|mut replies| replies.remove(0));
                job.answer(reply.map_err(|error| failed("write", path, &error)));
            }
        }
    }
}

fn set_synchronous(connection: &Connection, current: &mut bool, wanted: bool) -> rusqlite::Result<()> {
    if *current != wanted {
        connection.pragma_update(None, "synchronous", if wanted { "full" } else { "normal" })?;
        *current = wanted;
    }
    Ok(())
}

fn together(connection: &mut Connection, group: &[Job]) -> rusqlite::Result<Vec<Reply>> {
    #[cfg(debug_assertions)]
    super::failpoint::before_commit();
    let change = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    let replies = group.iter().map(|job| job.write(&change)).collect::<rusqlite::Result<_>>()?;
    change.commit()?;
    #[cfg(debug_assertions)]
    super::failpoint::after_commit();
    Ok(replies)
}

/// What a job has to say, whatever its type.
#[derive(Clone, Debug, Default)]
struct Reply {
    count: usize,
    ack: Ack,
    epoch: Option<u64>,
    queue: Changed,
    outbox: outbox::Changed,
}

impl Job {
    fn is_synchronous(&self) -> bool {
        match self {
            Self::Append { append, .. } => append.synchronous,
            Self::Queue { change, .. } => queue::synchronous(change),
            Self::Decide { .. } => true,
            _ => false,
        }
    }

    fn write(&self, change: &Transaction<'_>) -> rusqlite::Result<Reply> {
        let count = |count| Reply { count, ..Reply::default() };
        match self {
            Self::Begin { run, owner, .. } => begin(change, run, None, owner).map(count),
            Self::Append { append, owner, .. } => write_append(change, append, owner),
            Self::Claim { run, owner, scope, .. } => claim(change, run, owner, *scope),
            Self::Decide { id, decision, at, late, .. } => {
                approvals::decide(change, id, decision, *at, *late).map(count)
            }
            Self::Answered { run, .. } => change
                .prepare_cached("UPDATE runs SET answered = 1 WHERE id = ?1 AND status <> 'running'")?
                .execute(params![run])
                .map(count),
            Self::Cancel { run, at, .. } => cancel(change, run, *at).map(count),
            Self::ForgetCancel { run, epoch, .. } => change
                .prepare_cached(
                    "UPDATE runs SET cancel = 0 WHERE id = ?1 AND epoch = ?2 AND status = 'running'",
                )?
                .execute(params![run, signed(*epoch)])
                .map(count),
            Self::Orphan { owners, .. } => orphan(change, owners).map(count),
            Self::Remove { run, .. } => clearing::remove(change, run).map(count),
            Self::Expire { before, .. } => clearing::expire(change, *before).map(count),
            Self::Shrink { most, before, .. } => clearing::shrink(change, *most, *before).map(count),
            Self::GiveBack { .. } => clearing::give_back(change).map(count),
            Self::Used { rows, .. } => key_usage::add(change, rows).map(count),
            Self::ForgetUsage { before, .. } => key_usage::forget(change, *before).map(count),
            Self::Operators { keys, .. } => operators::set(change, keys).map(count),
            Self::Queue { change: what, .. } => {
                queue::apply(change, what).map(|queue| Reply { queue, ..Reply::default() })
            }
            Self::Outbox { change: what, .. } => {
                outbox::apply(change, what).map(|outbox| Reply { outbox, ..Reply::default() })
            }
            Self::BeginLeased { run, lease, owner, .. } => begin_leased(change, run, lease, owner).map(count),
            Self::ClaimLeased { run, lease, owner, .. } => claim_leased(change, run, lease, owner),
            Self::Forget { before, now, .. } => queue::forget(change, *before, *now).map(count),
            Self::Responses { change: what, owner, .. } => responses::apply(change, what, owner).map(count),
        }
    }

    fn answer(self, reply: Result<Reply, StoreError>) {
        // The caller may be gone; the commit stands.
        match self {
            Self::Begin { answer, .. } => drop(answer.send(reply.map(|_| ()))),
            Self::Append { answer, .. } => drop(answer.send(reply.map(|reply| reply.ack))),
            Self::Claim { answer, .. } | Self::ClaimLeased { answer, .. } => {
                drop(answer.send(reply.map(|reply| reply.epoch)));
            }
            Self::Queue { answer, .. } => drop(answer.send(reply.map(|reply| reply.queue))),
            Self::Outbox { answer, .. } => drop(answer.send(reply.map(|reply| reply.outbox))),
            Self::Decide { answer, .. }
            | Self::BeginLeased { answer, .. }
            | Self::Answered { answer, .. }
            | Self::Cancel { answer, .. }
            | Self::ForgetCancel { answer, .. }
            | Self::Remove { answer, .. } => {
                drop(answer.send(reply.map(|reply| reply.count > 0)));
            }
            Self::Orphan { answer, .. }
            | Self::Expire { answer, .. }
            | Self::Shrink { answer, .. }
            | Self::GiveBack { answer }
            | Self::Used { answer, .. }
            | Self::Forget { answer, .. }
            | Self::Responses { answer, .. }
            | Self::Operators { answer, .. }
            | Self::ForgetUsage { answer, .. } => {
                drop(answer.send(reply.map(|reply| reply.count)));
            }
        }
    }
}

fn begin(
    change: &Transaction<'_>,
    run: &NewRun,
    parent: Option<&str>,
    owner: &str,
) -> rusqlite::Result<usize> {
    change
        .prepare_cached(
            "INSERT INTO runs (id, agent, status, owner, created, updated, fingerprint, setup, client, epoch, parent)
             VALUES (?1, ?2, 'running', ?3, ?4, ?4, ?5, ?6,
                     CASE WHEN ?9 IS NULL THEN ?7 ELSE (SELECT client FROM runs WHERE id = ?9) END, ?8, ?9)",
        )?
        .execute(params![
            run.id,
            run.agent,
            owner,
            signed(run.at),
            run.fingerprint,
            run.setup,
            run.client,
            signed(FIRST_EPOCH),
            parent
        ])
}

/// The epoch grows with every claim, so that a process which held the run before can write nothing more.
fn claim(change: &Transaction<'_>, run: &str, owner: &str, scope: ClaimScope) -> rusqlite::Result<Reply> {
    let epoch: Option<i64> = change
        .prepare_cached(
            "UPDATE runs SET owner = ?2, status = 'running', answered = 0, epoch = epoch + 1
             WHERE id = ?1 AND cancel = 0
               AND (status IN ('interrupted', 'suspended', 'awaiting_approval') OR (?3 AND status = 'cancelled')
                    OR (?4 AND status = 'running'))
             RETURNING epoch",
        )?
        .query_row(params![run, owner, scope != ClaimScope::Idle, scope == ClaimScope::Any], |row| row.get(0))
        .optional()?;
    Ok(Reply { epoch: epoch.map(i64::unsigned_abs), ..Reply::default() })
}

/// A run that works on an entry of the queue begins only while the entry's lease holds.
fn begin_leased(
    change: &Transaction<'_>,
    run: &NewRun,
    lease: &EntryLease,
    owner: &str,
) -> rusqlite::Result<usize> {
    if !queue::check_lease(change, lease)? {
        return Ok(0);
    }
    queue::set_run(change, lease, &run.id, &run.fingerprint)?;
    begin(change, run, None, owner)
}

/// So it is claimed, no matter who works on it now.
fn claim_leased(
    change: &Transaction<'_>,
    run: &str,
    lease: &EntryLease,
    owner: &str,
) -> rusqlite::Result<Reply> {
    if !queue::check_lease(change, lease)? {
        return Ok(Reply::default());
    }
    claim(change, run, owner, ClaimScope::Any)
}

fn write_append(change: &Transaction<'_>, append: &Append, owner: &str) -> rusqlite::Result<Reply> {
    if is_lost(change, append)? {
        return Ok(Reply { ack: Ack { lost: true, cancel: false }, ..Reply::default() });
    }
    if let Some((seq, kind, body)) = &append.event {
        // One that was given up while it was written is written again: the same number is the same event.
        change
            .prepare_cached(
                "INSERT OR IGNORE INTO events (run, seq, at, kind, body) VALUES (?1, ?2, ?3, ?4, ?5)",
            )?
            .execute(params![append.run, signed(*seq), signed(append.at), kind, body])?;
    }
    for id in &append.client_calls {
        change
            .prepare_cached("INSERT OR REPLACE INTO client_calls (id, run) VALUES (?1, ?2)")?
            .execute(params![id, append.run])?;
    }
    if let Some(approval) = &append.approval {
        approvals::change(change, &append.run, append.at, approval)?;
    }
    if let Some(message) = &append.message {
        let message = (**message).clone();
        outbox::apply(change, &outbox::Change::Post { message, needs_delivery: true, now: append.at })?;
    }
    if let Some(child) = &append.child {
        begin(change, child, Some(&append.run), owner)?;
    }
    if append.status.is_over() {
        close_children(change, &append.run)?;
    }
    let cancel: Option<bool> = change
        .prepare_cached("UPDATE runs SET status = ?2, updated = ?3 WHERE id = ?1 RETURNING cancel")?
        .query_row(params![append.run, append.status.as_str(), signed(append.at)], |row| row.get(0))
        .optional()?;
    let cancel = cancel.unwrap_or(false);
    if cancel && append.status != Status::Running && !append.status.is_over() {
        // Nothing would end it any more: only runs that are executed look at the request to cancel.
        end_cancelled(change, &append.run, append.at)?;
    }
    Ok(Reply { ack: Ack { cancel, lost: false }, ..Reply::default() })
}

/// Whether another process has claimed the run since this writer did.
fn is_lost(change: &Transaction<'_>, append: &Append) -> rusqlite::Result<bool> {
    let epoch: Option<i64> = change
        .prepare_cached("SELECT epoch FROM runs WHERE id = ?1")?
        .query_row(params![append.run], |row| row.get(0))
        .optional()?;
    Ok(epoch.is_some_and(|epoch| epoch != signed(append.epoch)))
}

fn cancel(change: &Transaction<'_>, run: &str, at: u64) -> rusqlite::Result<usize> {
    let found = change.execute(
        "UPDATE runs SET cancel = 1, status = CASE status WHEN 'running' THEN 'running' ELSE 'cancelled' END
         WHERE id = ?1 AND status IN ('running', 'suspended', 'interrupted', 'awaiting_approval')",
        params![run],
    )?;
    let is_over: bool = change.query_row(
        "SELECT EXISTS (SELECT 1 FROM runs WHERE id = ?1 AND status = 'cancelled')",
        params![run],
        |row| row.get(0),
    )?;
    if is_over {
        end_cancelled(change, run, at)?;
    } else {
        // Whoever executes a child learns of it by the child's own commits.
        change.execute(
            "WITH RECURSIVE line (id) AS (
                SELECT id FROM runs WHERE parent = ?1 UNION SELECT runs.id FROM runs JOIN line ON runs.parent = line.id
             )
             UPDATE runs SET cancel = 1
             WHERE id IN line AND status IN ('running', 'suspended', 'interrupted', 'awaiting_approval')",
            params![run],
        )?;
    }
    Ok(found)
}

/// Ends a cancelled run that nobody executes, with all that belongs to it.
fn end_cancelled(change: &Transaction<'_>, run: &str, at: u64) -> rusqlite::Result<()> {
    change.prepare_cached("UPDATE runs SET status = 'cancelled' WHERE id = ?1")?.execute(params![run])?;
    close_children(change, run)?;
    approvals::withdraw(change, run)?;
    queue::give_up_run(change, run, at)
}

/// Nobody works on the children of a run that is over.
fn close_children(change: &Transaction<'_>, run: &str) -> rusqlite::Result<()> {
    let mut children = change.prepare_cached("SELECT id FROM runs WHERE parent = ?1")?;
    let children: Vec<String> =
        children.query_map(params![run], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    for child in children {
        change
            .prepare_cached(
                "UPDATE runs SET status = 'cancelled'
                 WHERE id = ?1 AND status IN ('running', 'suspended', 'interrupted', 'awaiting_approval')",
            )?
            .execute(params![child])?;
        approvals::withdraw(change, &child)?;
        close_children(change, &child)?;
    }
    Ok(())
}

fn orphan(change: &Transaction<'_>, owners: &[String]) -> rusqlite::Result<usize> {
    let mut left = change.prepare_cached(
        "UPDATE runs SET status = 'interrupted' WHERE status = 'running' AND owner = ?1
         RETURNING id, cancel, CAST(unixepoch('subsec') * 1000 AS INTEGER)",
    )?;
    let mut count = 0;
    for owner in owners {
        let rows = left.query_map(params![owner], |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, bool>(1)?, row.get::<_, i64>(2)?.unsigned_abs()))
        })?;
        for (run, cancel, now) in rows.collect::<rusqlite::Result<Vec<_>>>()? {
            count += 1;
            if cancel {
                end_cancelled(change, &run, now)?;
            }
        }
    }
    Ok(count)
}
