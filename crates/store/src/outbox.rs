//! The outbox as rows of `SQLite`: messages that are to be delivered at least once. A message is posted once, whatever is posted under its id
//! later; the process that delivers it claims it for a time, so that two processes do not deliver it at the same moment.

use rusqlite::{Connection, OptionalExtension as _, Row, Transaction, params};

use super::numbers::signed;

/// A message whose delivery nobody has tried for a week, in milliseconds, was posted while there was nobody to deliver to. Who can be
/// delivered to from now on does not get what is long over; open requests for approval are not.
const FIRST_TRIED_WITHIN: u64 = 7 * 24 * 3_600_000;

/// A message to deliver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewMessage {
    /// Its id: the same thing has the same id, and is posted once.
    pub id: String,
    /// The expert that it is from.
    pub expert: String,
    /// The entry of the queue that it belongs to.
    pub entry: Option<String>,
    /// What kind of message it is.
    pub kind: String,
    /// What it says.
    pub body: String,
}

/// A message as the store has it. Times are milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageRow {
    /// The message.
    pub message: NewMessage,
    /// When it was posted.
    pub created: u64,
    /// How often its delivery was tried.
    pub attempts: u32,
    /// When it was delivered.
    pub delivered: Option<u64>,
    /// Why it was not, the last time.
    pub note: Option<String>,
}

/// Which messages are listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessageFilter {
    /// Of this expert alone.
    pub expert: Option<String>,
    /// Of this kind alone.
    pub kind: Option<String>,
    /// Of this entry alone.
    pub entry: Option<String>,
}

/// A change of the outbox.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// `needs_delivery`: it is sent, and not only kept.
    Post {
        message: NewMessage,
        needs_delivery: bool,
        now: u64,
    },
    Claim {
        now: u64,
        until: u64,
        most: usize,
    },
    Delivered {
        id: String,
        at: u64,
    },
    Again {
        id: String,
        due: u64,
        note: String,
    },
    Forget {
        before: u64,
    },
}

/// What came of a change.
#[derive(Clone, Debug, Default)]
pub(super) struct Changed {
    pub(super) count: usize,
    pub(super) claimed: Vec<MessageRow>,
}

pub(super) fn apply(change: &Transaction<'_>, what: &Change) -> rusqlite::Result<Changed> {
    let count = |count| Changed { count, claimed: Vec::new() };
    match what {
        // The messages of an entry are in the order in which they were posted, also within one millisecond.
        Change::Post { message: NewMessage { id, expert, entry, kind, body }, needs_delivery, now } => change
            .prepare_cached(
                "INSERT OR IGNORE INTO outbox (id, expert, entry, kind, created, due, body, delivered) VALUES (?1, ?2, ?3, ?4,
                 coalesce((SELECT max(created) + 1 FROM outbox WHERE created >= ?5 AND entry = ?3), ?5), ?5, ?6, iif(?7, NULL, ?5))",
            )?
            .execute(params![id, expert, entry, kind, signed(*now), body, needs_delivery])
            .map(count),
        Change::Claim { now, until, most } => {
            let query = format!(
                "UPDATE outbox SET due = ?2, attempts = attempts + 1
                 WHERE id IN (SELECT id FROM outbox WHERE delivered IS NULL AND due <= ?1 AND (attempts > 0 OR created > ?4 OR kind = 'approval')
                              ORDER BY due LIMIT ?3)
                 RETURNING {ROW}"
            );
            let most = i64::try_from(*most).unwrap_or(i64::MAX);
            let mut claim = change.prepare_cached(&query)?;
            let since = now.saturating_sub(FIRST_TRIED_WITHIN);
            let rows = claim.query_map(params![signed(*now), signed(*until), most, signed(since)], row)?;
            let mut claimed = rows.collect::<rusqlite::Result<Vec<_>>>()?;
            claimed.sort_by_key(|row| row.created);
            Ok(Changed { count: claimed.len(), claimed })
        }
        Change::Delivered { id, at } => change
            .prepare_cached("UPDATE outbox SET delivered = ?2, note = NULL WHERE id = ?1 AND delivered IS NULL")?
            .execute(params![id, signed(*at)])
            .map(count),
        Change::Again { id, due, note } => change
            .prepare_cached("UPDATE outbox SET due = ?2, note = ?3 WHERE id = ?1 AND delivered IS NULL")?
            .execute(params![id, signed(*due), note])
            .map(count),
        Change::Forget { before } => {
            change.execute("DELETE FROM outbox WHERE created < ?1", params![signed(*before)]).map(count)
        }
    }
}

const ROW: &str = "id, expert, entry, kind, body, created, attempts, delivered, note";

fn row(row: &Row<'_>) -> rusqlite::Result<MessageRow> {
    let (id, expert, entry) = (row.get(0)?, row.get(1)?, row.get(2)?);
    Ok(MessageRow {
        message: NewMessage { id, expert, entry, kind: row.get(3)?, body: row.get(4)? },
        created: row.get::<_, i64>(5)?.unsigned_abs(),
        attempts: row.get(6)?,
        delivered: row.get::<_, Option<i64>>(7)?.map(i64::unsigned_abs),
        note: row.get(8)?,
    })
}

pub(super) fn list(
    connection: &Connection,
    filter: &MessageFilter,
    most: usize,
) -> rusqlite::Result<Vec<MessageRow>> {
    let query = format!(
        "SELECT {ROW} FROM outbox
         WHERE (?1 IS NULL OR expert = ?1) AND (?2 IS NULL OR kind = ?2) AND (?3 IS NULL OR entry = ?3)
         ORDER BY created DESC, id DESC LIMIT ?4"
    );
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let MessageFilter { expert, kind, entry } = filter;
    connection.prepare_cached(&query)?.query_map(params![expert, kind, entry, most], row)?.collect()
}

pub(super) fn one(connection: &Connection, id: &str) -> rusqlite::Result<Option<MessageRow>> {
    let query = format!("SELECT {ROW} FROM outbox WHERE id = ?1");
    connection.prepare_cached(&query)?.query_row(params![id], row).optional()
}
