//! The outbox as rows.

use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, Row, Transaction, params};

use super::statements::{execute, find, has_changed, limit, list, signed};
use super::store::SqliteStore;
use crate::error::StoreError;
use crate::outbox::{FIRST_TRIED_WITHIN, MessageFilter, MessageRow, NewMessage, Outbox, parse_body};

#[async_trait]
impl Outbox for SqliteStore {
    async fn post(&self, message: NewMessage, now: u64) -> Result<bool, StoreError> {
        self.write(move |change| insert(change, &message, true, now)).await
    }

    async fn keep_message(&self, message: NewMessage, now: u64) -> Result<bool, StoreError> {
        self.write(move |change| insert(change, &message, false, now)).await
    }

    async fn claim_messages(&self, lease: Duration, most: usize) -> Result<Vec<MessageRow>, StoreError> {
        let now = clock::now();
        let until = now.saturating_add(clock::to_millis(lease));
        self.write(move |change| claim(change, now, until, most)).await
    }

    async fn end_message(&self, id: &str, at: u64, note: Option<&str>) -> Result<bool, StoreError> {
        let (id, note) = (id.to_owned(), note.map(str::to_owned));
        let sql = "UPDATE outbox SET delivered = coalesce(delivered, ?2), note = ?3
             WHERE id = ?1 AND (delivered IS NULL OR note IS NULL AND ?3 IS NOT NULL)";
        self.write(move |change| has_changed(change, sql, params![id, signed(at), note])).await
    }

    async fn deliver_after(&self, id: &str, pause: Duration, note: String) -> Result<bool, StoreError> {
        let (id, due) = (id.to_owned(), clock::now().saturating_add(clock::to_millis(pause)));
        self.write(move |change| deliver_at(change, &id, due, &note)).await
    }

    async fn deliver_now(&self, id: &str) -> Result<bool, StoreError> {
        let (id, now) = (id.to_owned(), signed(clock::now()));
        let sql =
            "UPDATE outbox SET due = ?2, attempts = max(attempts, 1) WHERE id = ?1 AND delivered IS NULL";
        self.write(move |change| has_changed(change, sql, params![id, now])).await
    }

    async fn forget_messages(&self, before: u64) -> Result<usize, StoreError> {
        let sql = "DELETE FROM outbox WHERE created < ?1";
        self.write(move |change| execute(change, sql, params![signed(before)])).await
    }

    async fn messages(&self, filter: MessageFilter, most: usize) -> Result<Vec<MessageRow>, StoreError> {
        self.read(move |connection| messages(connection, &filter, most)).await
    }

    async fn messages_by_id(&self, ids: Vec<String>) -> Result<Vec<MessageRow>, StoreError> {
        let sql = format!("SELECT {ROW} FROM outbox WHERE id = ?1");
        let work = move |connection: &Connection| {
            let found = ids.iter().map(|id| find(connection, &sql, params![id], row));
            found.filter_map(rusqlite::Result::transpose).collect()
        };
        self.read(work).await
    }
}

/// Posts a message. `needs_delivery`: it is sent, and not only kept. False when one of its id was posted
/// before.
pub(super) fn insert(
    change: &Transaction<'_>,
    message: &NewMessage,
    needs_delivery: bool,
    now: u64,
) -> rusqlite::Result<bool> {
    let NewMessage { id, expert, entry, kind, body } = message;
    // The messages of an entry are in the order in which they were posted, also within one millisecond.
    let sql = "INSERT OR IGNORE INTO outbox (id, expert, entry, kind, created, due, body, delivered) VALUES (?1, ?2, ?3, ?4,
        coalesce((SELECT max(created) + 1 FROM outbox WHERE created >= ?5 AND entry = ?3), ?5), ?5, ?6, iif(?7, NULL, ?5))";
    has_changed(change, sql, params![id, expert, entry, kind, signed(now), body.to_string(), needs_delivery])
}

fn deliver_at(change: &Transaction<'_>, id: &str, due: u64, note: &str) -> rusqlite::Result<bool> {
    let sql = "UPDATE outbox SET due = ?2, note = ?3 WHERE id = ?1 AND delivered IS NULL";
    has_changed(change, sql, params![id, signed(due), note])
}

pub(super) fn claim(
    change: &Transaction<'_>,
    now: u64,
    until: u64,
    most: usize,
) -> rusqlite::Result<Vec<MessageRow>> {
    let sql = format!(
        "UPDATE outbox SET due = ?2, attempts = attempts + 1
         WHERE id IN (SELECT id FROM outbox WHERE delivered IS NULL AND due <= ?1 AND (attempts > 0 OR created > ?4 OR kind = 'approval')
                      ORDER BY due LIMIT ?3)
         RETURNING {ROW}"
    );
    let since = now.saturating_sub(FIRST_TRIED_WITHIN);
    let mut claimed =
        list(change, &sql, params![signed(now), signed(until), limit(most), signed(since)], row)?;
    claimed.sort_by_key(|row| row.created);
    Ok(claimed)
}

const ROW: &str = "id, expert, entry, kind, body, created, attempts, delivered, note, due";

fn row(row: &Row<'_>) -> rusqlite::Result<MessageRow> {
    let (id, expert, entry) = (row.get(0)?, row.get(1)?, row.get(2)?);
    let body = parse_body(&row.get::<_, String>(4)?);
    Ok(MessageRow {
        message: NewMessage { id, expert, entry, kind: row.get(3)?, body },
        created: row.get::<_, i64>(5)?.unsigned_abs(),
        attempts: row.get(6)?,
        delivered: row.get::<_, Option<i64>>(7)?.map(i64::unsigned_abs),
        note: row.get(8)?,
        due: row.get::<_, i64>(9)?.unsigned_abs(),
    })
}

fn messages(
    connection: &Connection,
    filter: &MessageFilter,
    most: usize,
) -> rusqlite::Result<Vec<MessageRow>> {
    let sql = format!(
        "SELECT {ROW} FROM outbox
         WHERE (?1 IS NULL OR expert = ?1) AND (?2 IS NULL OR kind = ?2) AND (?3 IS NULL OR entry = ?3)
           AND (NOT ?5 OR delivered IS NULL)
         ORDER BY created DESC, id DESC LIMIT ?4"
    );
    let MessageFilter { expert, kind, entry, is_open } = filter;
    list(connection, &sql, params![expert, kind, entry, limit(most), is_open], row)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StoreConfig;

    fn message(id: &str) -> NewMessage {
        NewMessage {
            id: id.into(),
            expert: "sales".into(),
            entry: Some("e1".into()),
            kind: "result".into(),
            body: format!("body of {id}").into(),
        }
    }

    async fn put_off(store: &SqliteStore, id: &'static str, due: u64) -> bool {
        store.write(move |change| deliver_at(change, id, due, "the gateway is not there")).await.unwrap()
    }

    async fn claim_at(store: &SqliteStore, now: u64, until: u64) -> Result<Vec<MessageRow>, StoreError> {
        store.write(move |change| claim(change, now, until, 10)).await
    }

    #[tokio::test]
    async fn messages_keep_their_order_within_a_millisecond() {
        let dir = tempfile::tempdir().unwrap();
        let store =
            SqliteStore::open(&StoreConfig { state_dir: dir.path().to_owned(), ..StoreConfig::default() })
                .unwrap();
        for id in ["c", "a", "d", "b"] {
            assert!(store.post(message(id), 1_000).await.unwrap());
        }
        let ids = |rows: Vec<MessageRow>| rows.into_iter().map(|row| row.message.id).collect::<String>();
        assert_eq!(
            ids(store.messages(MessageFilter::default(), 10).await.unwrap()),
            "bdac",
            "the newest first"
        );
        assert_eq!(ids(claim_at(&store, 1_000, 2_000).await.unwrap()), "cadb", "they are due at once");
    }

    /// A gateway that is set up later does not deliver messages of weeks ago.
    #[tokio::test]
    async fn messages_older_than_a_week_stay_undelivered() {
        const WEEK: u64 = 7 * 24 * 3_600_000;
        let dir = tempfile::tempdir().unwrap();
        let store =
            SqliteStore::open(&StoreConfig { state_dir: dir.path().to_owned(), ..StoreConfig::default() })
                .unwrap();
        assert!(store.post(message("tried"), 1_000).await.unwrap());
        assert_eq!(claim_at(&store, 1_000, 2_000).await.unwrap().len(), 1);
        assert!(store.post(message("old"), 1_000).await.unwrap());
        assert!(store.post(NewMessage { kind: "approval".into(), ..message("asks") }, 1_000).await.unwrap());
        assert!(store.post(message("new"), 5_000).await.unwrap());
        let claimed = claim_at(&store, WEEK + 2_000, WEEK + 3_000).await.unwrap();
        let ids: Vec<&str> = claimed.iter().map(|row| row.message.id.as_str()).collect();
        assert_eq!(
            ids,
            ["tried", "asks", "new"],
            "who delivers it finds out whether a request is still open"
        );
        assert_eq!(store.message("old").await.unwrap().unwrap().delivered, None, "people still find it");
    }

    #[tokio::test]
    async fn a_message_is_claimed_and_delivered_once() {
        let dir = tempfile::tempdir().unwrap();
        let config = StoreConfig { state_dir: dir.path().to_owned(), ..StoreConfig::default() };
        let store = SqliteStore::open(&config).unwrap();
        assert!(store.post(message("a"), 1_000).await.unwrap());
        assert!(!store.post(message("a"), 2_000).await.unwrap(), "the same again");
        assert!(store.post(message("b"), 1_500).await.unwrap());
        let ids = async |now: u64| {
            let claimed = claim_at(&store, now, now + 100).await.unwrap();
            claimed.into_iter().map(|row| (row.message.id, row.attempts)).collect::<Vec<_>>()
        };
        assert_eq!(ids(1_200).await, [("a".to_owned(), 1)]);
        assert_eq!(ids(1_250).await, [], "somebody delivers it");
        assert_eq!(ids(1_500).await, [("a".to_owned(), 2), ("b".to_owned(), 1)], "its claim is over");
        assert!(store.message_delivered("a", 1_510).await.unwrap());
        assert!(!store.message_delivered("a", 1_520).await.unwrap());
        assert!(put_off(&store, "b", 5_000).await);
        assert_eq!(ids(4_999).await, []);
        assert_eq!(ids(5_000).await, [("b".to_owned(), 2)]);
        drop(store);
        let store = SqliteStore::open(&config).unwrap();
        let all = store
            .messages(MessageFilter { kind: Some("result".into()), ..MessageFilter::default() }, 10)
            .await
            .unwrap();
        let kept: Vec<_> =
            all.iter().map(|row| (row.message.id.as_str(), row.delivered, row.note.as_deref())).collect();
        assert_eq!(kept, [("b", None, Some("the gateway is not there")), ("a", Some(1_510), None)]);
        assert_eq!(store.message("a").await.unwrap().unwrap().message, message("a"));
        assert_eq!(
            store
                .messages(MessageFilter { expert: Some("other".into()), ..MessageFilter::default() }, 10)
                .await
                .unwrap(),
            []
        );
        assert!(store.keep_message(message("kept"), 6_000).await.unwrap());
        assert!(!store.keep_message(message("kept"), 6_001).await.unwrap());
        let due = claim_at(&store, 9_000, 9_100).await.unwrap();
        assert!(due.iter().all(|row| row.message.id != "kept"), "it is not delivered");
        assert_eq!(store.message("kept").await.unwrap().unwrap().delivered, Some(6_000));
        assert_eq!(store.forget_messages(1_200).await.unwrap(), 1);
    }
}
