//! Requests for consent in `PostgreSQL`.

use async_trait::async_trait;
use futures::future::BoxFuture;
use postgres::{Error, Row};

use super::columns::{number, some_number};
use super::link::{Change, as_bigint, limit};
use super::{News, PostgresStore, notify_at_commit};
use crate::approvals::{ApprovalChange, ApprovalRow, ApprovalState, Approvals, LateDecision, WokenRun};
use crate::error::StoreError;
use crate::status::Status;

#[async_trait]
impl Approvals for PostgresStore {
    async fn decide(
        &self,
        id: &str,
        decision: String,
        at: u64,
        late: LateDecision,
    ) -> Result<bool, StoreError> {
        let (id, owner, counts) = (id.to_owned(), self.owner.clone(), late == LateDecision::Counts);
        let sql = "UPDATE respool.approvals SET state = 'decided', decision = $2, decided = $3
             WHERE id = $1 AND state = 'waiting' AND ($4 OR expires IS NULL OR expires > $3)";
        let decide = move |change: &mut Change<'_>| {
            let is_recorded = change.has_changed(sql, &[&id, &decision, &as_bigint(at), &counts])?;
            notify_at_commit(change, &News::Decided.from(&owner))?;
            Ok(is_recorded)
        };
        self.change(decide).await
    }

    async fn approval(&self, id: &str) -> Result<Option<ApprovalRow>, StoreError> {
        let (id, sql) = (id.to_owned(), format!("SELECT {ROW} WHERE approvals.id = $1"));
        self.pool.read(move |change| change.find(&sql, &[&id], row)).await
    }

    async fn approvals(&self, state: ApprovalState, most: usize) -> Result<Vec<ApprovalRow>, StoreError> {
        let sql = format!("SELECT {ROW} WHERE state = $1 ORDER BY requested, approvals.id LIMIT $2");
        self.pool.read(move |change| change.list(&sql, &[&state.as_str(), &limit(most)], row)).await
    }

    async fn woken_by_approvals(&self, now: u64) -> Result<Vec<WokenRun>, StoreError> {
        if self.polls().current().is_some_and(|found| found.wakes_no_run(now)) {
            return Ok(Vec::new());
        }
        let sql = "WITH RECURSIVE line (id, parent) AS (
                 SELECT runs.id, runs.parent FROM respool.approvals JOIN respool.runs ON runs.id = approvals.run
                 WHERE (state = 'decided' OR expires <= $1) AND state IN ('waiting', 'decided')
                 UNION SELECT runs.id, runs.parent FROM line JOIN respool.runs ON runs.id = line.parent)
             SELECT line.id, agent, status FROM line JOIN respool.runs ON runs.id = line.id WHERE line.parent IS NULL";
        let woken = |row: &Row| {
            let status = Status::named(row.try_get(2)?).unwrap_or(Status::Failed);
            Ok(WokenRun { id: row.try_get(0)?, agent: row.try_get(1)?, status })
        };
        self.pool.read(move |change| change.list(sql, &[&as_bigint(now)], woken)).await
    }

    fn wait_for_decision(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.signals.decided.notified())
    }
}

/// Changes a request in the commit of an event of its run.
pub(super) fn change(
    change: &mut Change<'_>,
    run: &str,
    at: u64,
    approval: &ApprovalChange,
) -> Result<usize, Error> {
    let close = |change: &mut Change<'_>, id: &str, state: ApprovalState| {
        let sql = "UPDATE respool.approvals SET state = $2 WHERE id = $1 AND state IN ('waiting', 'decided')";
        change.execute(sql, &[&id, &state.as_str()])
    };
    match approval {
        ApprovalChange::Requested { id, expires, body } => {
            let sql = "INSERT INTO respool.approvals (id, run, state, requested, expires, body)
                 VALUES ($1, $2, 'waiting', $3, $4, $5) ON CONFLICT DO NOTHING";
            change.execute(sql, &[id, &run, &as_bigint(at), &expires.map(as_bigint), body])
        }
        ApprovalChange::Escalated { id } => {
            change.execute("UPDATE respool.approvals SET expires = NULL WHERE id = $1", &[id])
        }
        ApprovalChange::Applied { id } => close(change, id, ApprovalState::Applied),
        ApprovalChange::Withdrawn { id } => close(change, id, ApprovalState::Withdrawn),
    }
}

/// Withdraws the requests of a run that is over.
pub(super) fn withdraw(change: &mut Change<'_>, run: &str) -> Result<(), Error> {
    let sql =
        "UPDATE respool.approvals SET state = 'withdrawn' WHERE run = $1 AND state IN ('waiting', 'decided')";
    change.execute(sql, &[&run]).map(drop)
}

const ROW: &str = "approvals.id, run, agent, state, requested, expires, body, decided, decision
    FROM respool.approvals JOIN respool.runs ON runs.id = run";

fn row(row: &Row) -> Result<ApprovalRow, Error> {
    Ok(ApprovalRow {
        id: row.try_get(0)?,
        run: row.try_get(1)?,
        agent: row.try_get(2)?,
        state: ApprovalState::from_name(row.try_get(3)?),
        requested: number(row, 4)?,
        expires: some_number(row, 5)?,
        body: row.try_get(6)?,
        decided: some_number(row, 7)?,
        decision: row.try_get(8)?,
    })
}
