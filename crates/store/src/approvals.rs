//! Requests for consent as rows: made and closed with the run's own events, decided from outside, listed for people.
//!
//! What is in a request and in a decision is `agent`'s business: both are texts here. A decision that was recorded once holds:
//! a second one is refused.

use rusqlite::{Connection, OptionalExtension as _, Row, Transaction, params};

use super::Status;
use super::numbers::signed;

/// What becomes of a request with an event of its run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApprovalChange {
    /// It is made.
    Requested {
        /// Its id.
        id: String,
        /// When it times out, in milliseconds since 1970.
        expires: Option<u64>,
        /// The request.
        body: String,
    },
    /// Its time was over, and people were reminded. It does not time out again.
    Escalated {
        /// Its id.
        id: String,
    },
    /// The run has taken the decision in.
    Applied {
        /// Its id.
        id: String,
    },
    /// The run no longer waits for it.
    Withdrawn {
        /// Its id.
        id: String,
    },
}

/// How far a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApprovalState {
    /// Nobody has decided.
    Waiting,
    /// Somebody has decided, and the run does not know it yet.
    Decided,
    /// The run knows the decision.
    Applied,
    /// The run no longer waits for it.
    Withdrawn,
}

impl ApprovalState {
    /// Its name in the store and for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Decided => "decided",
            Self::Applied => "applied",
            Self::Withdrawn => "withdrawn",
        }
    }

    fn named(name: &str) -> Self {
        match name {
            "waiting" => Self::Waiting,
            "decided" => Self::Decided,
            "applied" => Self::Applied,
            _ => Self::Withdrawn,
        }
    }
}

/// A request with what became of it. Times are milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApprovalRow {
    /// Its id.
    pub id: String,
    /// The run that waits for it.
    pub run: String,
    /// The agent of that run.
    pub agent: String,
    /// How far it is.
    pub state: ApprovalState,
    /// When it was made.
    pub requested: u64,
    /// When it times out.
    pub expires: Option<u64>,
    /// The request.
    pub body: String,
    /// When it was decided.
    pub decided: Option<u64>,
    /// The decision.
    pub decision: Option<String>,
}

/// A run that can go on, since a decision was made or the time for it is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WokenRun {
    /// Its id.
    pub id: String,
    /// Its agent.
    pub agent: String,
    /// What became of it.
    pub status: Status,
}

pub(super) fn change(
    change: &Transaction<'_>,
    run: &str,
    at: u64,
    approval: &ApprovalChange,
) -> rusqlite::Result<usize> {
    let close = |id: &str, state: ApprovalState| {
        change
            .prepare_cached(
                "UPDATE approvals SET state = ?2 WHERE id = ?1 AND state IN ('waiting', 'decided')",
            )?
            .execute(params![id, state.as_str()])
    };
    match approval {
        ApprovalChange::Requested { id, expires, body } => change
            .prepare_cached(
                "INSERT OR IGNORE INTO approvals (id, run, state, requested, expires, body)
                 VALUES (?1, ?2, 'waiting', ?3, ?4, ?5)",
            )?
            .execute(params![id, run, signed(at), expires.map(signed), body]),
        ApprovalChange::Escalated { id } => {
            change.prepare_cached("UPDATE approvals SET expires = NULL WHERE id = ?1")?.execute(params![id])
        }
        ApprovalChange::Applied { id } => close(id, ApprovalState::Applied),
        ApprovalChange::Withdrawn { id } => close(id, ApprovalState::Withdrawn),
    }
}

/// The requests of a run that is over.
pub(super) fn withdraw(change: &Transaction<'_>, run: &str) -> rusqlite::Result<usize> {
    change
        .prepare_cached(
            "UPDATE approvals SET state = 'withdrawn' WHERE run = ?1 AND state IN ('waiting', 'decided')",
        )?
        .execute(params![run])
}

/// Whether a decision counts that comes after the time for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LateDecision {
    /// It counts.
    Counts,
    /// It is refused.
    Refused,
}

pub(super) fn decide(
    change: &Transaction<'_>,
    id: &str,
    decision: &str,
    at: u64,
    late: LateDecision,
) -> rusqlite::Result<usize> {
    change
        .prepare_cached(
            "UPDATE approvals SET state = 'decided', decision = ?2, decided = ?3
             WHERE id = ?1 AND state = 'waiting' AND (?4 OR expires IS NULL OR expires > ?3)",
        )?
        .execute(params![id, decision, signed(at), late == LateDecision::Counts])
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
        state: ApprovalState::named(&state),
        requested: time(4)?.unwrap_or_default(),
        expires: time(5)?,
        body: row.get(6)?,
        decided: time(7)?,
        decision: row.get(8)?,
    })
}

pub(super) fn one(connection: &Connection, id: &str) -> rusqlite::Result<Option<ApprovalRow>> {
    let query = format!("SELECT {ROW} WHERE approvals.id = ?1");
    connection.prepare_cached(&query)?.query_row(params![id], row).optional()
}

/// The condition of the index `approvals_open`.
const OPEN: &str = "AND state IN ('waiting', 'decided')";

pub(super) fn of_state(
    connection: &Connection,
    state: ApprovalState,
    most: usize,
) -> rusqlite::Result<Vec<ApprovalRow>> {
    // With these words the index of open approvals is used, which is small however many there have been.
    let open = match state {
        ApprovalState::Waiting | ApprovalState::Decided => OPEN,
        _ => "",
    };
    let query = format!("SELECT {ROW} WHERE state = ?1 {open} ORDER BY requested, approvals.id LIMIT ?2");
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    connection.prepare_cached(&query)?.query_map(params![state.as_str(), most], row)?.collect()
}

pub(super) fn woken(connection: &Connection, now: u64) -> rusqlite::Result<Vec<WokenRun>> {
    let query = format!(
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
    connection.prepare_cached(&query)?.query_map(params![signed(now)], woken)?.collect()
}
