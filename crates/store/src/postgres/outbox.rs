//! The outbox in `PostgreSQL`.

use std::time::Duration;

use async_trait::async_trait;
use postgres::{Error, Row};

use super::PostgresStore;
use super::columns::{number, some_number};
use super::link::{Change, as_bigint, limit, span};
use crate::error::StoreError;
use crate::outbox::{FIRST_TRIED_WITHIN, MessageFilter, MessageRow, NewMessage, Outbox, parse_body};

#[async_trait]
impl Outbox for PostgresStore {
    async fn post(&self, message: NewMessage, now: u64) -> Result<bool, StoreError> {
        self.change_at_once(move |change| insert(change, &message, true, now)).await
    }

    async fn keep_message(&self, message: NewMessage, now: u64) -> Result<bool, StoreError> {
        self.change_at_once(move |change| insert(change, &message, false, now)).await
    }

    async fn claim_messages(&self, lease: Duration, most: usize) -> Result<Vec<MessageRow>, StoreError> {
        if self.polls().current().is_some_and(|found| found.has_no_messages()) {
            return Ok(Vec::new());
        }
        self.polls().want(|wanted| wanted.messages = true);
        self.change_at_once(move |change| claim(change, lease, most)).await
    }

    async fn end_message(&self, id: &str, at: u64, note: Option<&str>) -> Result<bool, StoreError> {
        let (id, note) = (id.to_owned(), note.map(str::to_owned));
        let sql = "UPDATE respool.outbox SET delivered = coalesce(delivered, $2), note = $3
             WHERE id = $1 AND (delivered IS NULL OR note IS NULL AND $3::text IS NOT NULL)";
        self.change_at_once(move |change| change.has_changed(sql, &[&id, &as_bigint(at), &note])).await
    }

    async fn deliver_after(&self, id: &str, pause: Duration, note: String) -> Result<bool, StoreError> {
        let id = id.to_owned();
        let sql = "UPDATE respool.outbox SET due = respool.now_ms() + $2, note = $3 WHERE id = $1 AND delivered IS NULL";
        self.change_at_once(move |change| change.has_changed(sql, &[&id, &span(pause), &note])).await
    }

    async fn deliver_now(&self, id: &str) -> Result<bool, StoreError> {
        let id = id.to_owned();
        let sql = "UPDATE respool.outbox SET due = respool.now_ms(), attempts = greatest(attempts, 1)
             WHERE id = $1 AND delivered IS NULL";
        self.change_at_once(move |change| change.has_changed(sql, &[&id])).await
    }

    async fn forget_messages(&self, before: u64) -> Result<usize, StoreError> {
        let sql = "DELETE FROM respool.outbox WHERE created < $1";
        self.pool.run(move |change| change.execute(sql, &[&as_bigint(before)])).await
    }

    async fn messages(&self, filter: MessageFilter, most: usize) -> Result<Vec<MessageRow>, StoreError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM respool.outbox
             WHERE ($1::text IS NULL OR expert = $1) AND ($2::text IS NULL OR kind = $2) AND ($3::text IS NULL OR entry = $3)
               AND (NOT $5 OR delivered IS NULL)
             ORDER BY created DESC, place DESC LIMIT $4"
        );
        let MessageFilter { expert, kind, entry, is_open } = filter;
        self.pool
            .read(move |change| change.list(&sql, &[&expert, &kind, &entry, &limit(most), &is_open], row))
            .await
    }

    async fn messages_by_id(&self, ids: Vec<String>) -> Result<Vec<MessageRow>, StoreError> {
        let sql = format!("SELECT {COLUMNS} FROM respool.outbox WHERE id = ANY ($1)");
        self.pool.read(move |change| change.list(&sql, &[&ids], row)).await
    }
}

/// Posts a message. `needs_delivery`: it is sent, and not only kept. False when one of its id was posted
/// before.
pub(super) fn insert(
    change: &mut Change<'_>,
    message: &NewMessage,
    needs_delivery: bool,
    now: u64,
) -> Result<bool, Error> {
    let NewMessage { id, expert, entry, kind, body } = message;
    // The messages of an entry are in the order in which they were posted, also within one millisecond.
    let sql = "INSERT INTO respool.outbox (id, expert, entry, kind, created, due, body, delivered)
         VALUES ($1, $2, $3, $4,
                 coalesce((SELECT max(created) + 1 FROM respool.outbox WHERE created >= $5 AND entry = $3), $5),
                 least($5, respool.now_ms()), $6, CASE WHEN $7 THEN NULL ELSE $5 END)
         ON CONFLICT DO NOTHING";
    change.has_changed(sql, &[id, expert, entry, kind, &as_bigint(now), &body.to_string(), &needs_delivery])
}

fn claim(change: &mut Change<'_>, lease: Duration, most: usize) -> Result<Vec<MessageRow>, Error> {
    let sql = format!(
        "UPDATE respool.outbox SET due = respool.now_ms() + $1, attempts = attempts + 1
         WHERE id IN (
             SELECT id FROM respool.outbox
             WHERE delivered IS NULL AND due <= respool.now_ms()
                 AND (attempts > 0 OR created > respool.now_ms() - $3 OR kind = 'approval')
             ORDER BY due LIMIT $2 FOR UPDATE SKIP LOCKED)
         RETURNING {COLUMNS}"
    );
    let mut claimed =
        change.list(&sql, &[&span(lease), &limit(most), &as_bigint(FIRST_TRIED_WITHIN)], row)?;
    claimed.sort_by_key(|row| row.created);
    Ok(claimed)
}

const COLUMNS: &str = "id, expert, entry, kind, body, created, attempts, delivered, note, due";

fn row(row: &Row) -> Result<MessageRow, Error> {
    let (id, expert, entry) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    let body = parse_body(row.try_get(4)?);
    Ok(MessageRow {
        message: NewMessage { id, expert, entry, kind: row.try_get(3)?, body },
        created: number(row, 5)?,
        attempts: row.try_get::<_, i32>(6)?.unsigned_abs(),
        delivered: some_number(row, 7)?,
        note: row.try_get(8)?,
        due: number(row, 9)?,
    })
}
