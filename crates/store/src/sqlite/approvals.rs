//! Requests for consent as rows.

use async_trait::async_trait;
use futures::future::BoxFuture;
use rusqlite::{Connection, Row, Transaction, params};

use super::statements::{execute, find, has_changed, limit, list, signed};
use super::store::SqliteStore;
use crate::approvals::{ApprovalChange, ApprovalRow, ApprovalState, Approvals, LateDecision, WokenRun};
use crate::error::StoreError;
use crate::status::Status;

#[async_trait]
impl Approvals for SqliteStore {
    async fn decide(
        &self,
        id: &str,
        decision: String,
        at: u64,
        late: LateDecision,
    ) -> Result<bool, StoreError> {
        let id = id.to_owned();
        let sql = "UPDATE approvals SET state = 'decided', decision = ?2, decided = ?3
             WHERE id = ?1 AND state = 'waiting' AND (?4 OR expires IS NULL OR expires > ?3)";
        let counts = late == LateDecision::Counts;
        self.write_to_disk(move |change| has_changed(change, sql, params![id, decision, signed(at), counts]))
            .await
    }

    async fn approval(&self, id: &str) -> Result<Option<ApprovalRow>, StoreError> {
        let id = id.to_owned();
        let sql = format!("SELECT {ROW} WHERE approvals.id = ?1");
        self.read(move |connection| find(connection, &sql, params![id], row)).await
    }

    async fn approvals(&self, state: ApprovalState, most: usize) -> Result<Vec<ApprovalRow>, StoreError> {
        self.read(move |connection| approvals_of_state(connection, state, most)).await
    }

    async fn woken_by_approvals(&self, now: u64) -> Result<Vec<WokenRun>, StoreError> {
        self.read(move |connection| woken_runs(connection, now)).await
    }

    fn wait_for_decision(&self) -> BoxFuture<'_, ()> {
        // Nothing is heard of other processes.
        Box::pin(std::future::pending())
    }
}

/// Changes a request in the commit of an event of its run.
pub(super) fn change(
    change: &Transaction<'_>,
    run: &str,
    at: u64,
    approval: &ApprovalChange,
) -> rusqlite::Result<usize> {
    let close = |id: &str, state: ApprovalState| {
        let sql = "UPDATE approvals SET state = ?2 WHERE id = ?1 AND state IN ('waiting', 'decided')";
        execute(change, sql, params![id, state.as_str()])
    };
    match approval {
        ApprovalChange::Requested { id, expires, body } => {
            let sql = "INSERT OR IGNORE INTO approvals (id, run, state, requested, expires, body)
                 VALUES (?1, ?2, 'waiting', ?3, ?4, ?5)";
            execute(change, sql, params![id, run, signed(at), expires.map(signed), body])
        }
        ApprovalChange::Escalated { id } => {
            execute(change, "UPDATE approvals SET expires = NULL WHERE id = ?1", params![id])
        }
        ApprovalChange::Applied { id } => close(id, ApprovalState::Applied),
        ApprovalChange::Withdrawn { id } => close(id, ApprovalState::Withdrawn),
    }
}

/// Withdraws the requests of a run that is over.
pub(super) fn withdraw(change: &Transaction<'_>, run: &str) -> rusqlite::Result<()> {
    let sql = "UPDATE approvals SET state = 'withdrawn' WHERE run = ?1 AND state IN ('waiting', 'decided')";
    execute(change, sql, params![run]).map(drop)
}

const ROW: &str = "approvals.id, run, agent, state, requested, expires, body, decided, decision
                   FROM approvals JOIN runs ON runs.id = run";

fn row(row: &Row<'_>) -> rusqlite::Result<ApprovalRow> {
    let state: String = row.get(3)?;
    let time = |index| row.get::<_, Option<i64>>(index).map(|time| time.map(i64::unsigned_abs));
    Ok(ApprovalRow {
        id: row.get(0)?,
        run: row.get(1)?,
        agent: row.get(2)?,
        state: ApprovalState::from_name(&state),
        requested: time(4)?.unwrap_or_default(),
        expires: time(5)?,
        body: row.get(6)?,
        decided: time(7)?,
        decision: row.get(8)?,
    })
}

/// The condition of the index `approvals_open`.
const OPEN: &str = "AND state IN ('waiting', 'decided')";

fn approvals_of_state(
    connection: &Connection,
    state: ApprovalState,
    most: usize,
) -> rusqlite::Result<Vec<ApprovalRow>> {
    // With these words the index of open approvals is used, which is small however many there have been.
    let open = match state {
        ApprovalState::Waiting | ApprovalState::Decided => OPEN,
        _ => "",
    };
    let sql = format!("SELECT {ROW} WHERE state = ?1 {open} ORDER BY requested, approvals.id LIMIT ?2");
    list(connection, &sql, params![state.as_str(), limit(most)], row)
}

fn woken_runs(connection: &Connection, now: u64) -> rusqlite::Result<Vec<WokenRun>> {
    let sql = format!(
        "WITH RECURSIVE line (id, parent) AS (
            SELECT runs.id, runs.parent FROM approvals JOIN runs ON runs.id = approvals.run
            WHERE (state = 'decided' OR expires <= ?1) {OPEN}
            UNION SELECT runs.id, runs.parent FROM line JOIN runs ON runs.id = line.parent
        )
        SELECT line.id, agent, status FROM line JOIN runs ON runs.id = line.id WHERE line.parent IS NULL"
    );
    let woken = |row: &Row<'_>| {
        let status: String = row.get(2)?;
        let status = Status::named(&status).unwrap_or(Status::Failed);
        Ok(WokenRun { id: row.get(0)?, agent: row.get(1)?, status })
    };
    list(connection, &sql, params![signed(now)], woken)
}
