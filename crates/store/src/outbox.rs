//! The outbox: messages that are delivered at least once. A message is posted once; a later one with its id
//! is ignored; the process that delivers it claims it for a time, so that two processes do not deliver it at
//! the same moment.

use rusqlite::{Connection, Row, Transaction, params};

use super::error::StoreError;
use super::statements::{execute, find, has_changed, limit, list, signed};
use super::store::Store;

/// A message whose delivery was not tried for this long, in milliseconds, was posted while there was no way
/// to deliver it. It is not delivered later, when it is out of date. Requests for approval are: their
/// deliverer checks whether they are open.
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
    /// Its kind.
    pub kind: String,
    /// Its text.
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

impl Store {
    /// Posts a message; false when one of its id was posted before.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn post(&self, message: NewMessage, now: u64) -> Result<bool, StoreError> {
        self.write(move |change| insert(change, &message, true, now)).await
    }

    /// Keeps a message for people to read, without delivering it; false when one of its id was posted before.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn keep_message(&self, message: NewMessage, now: u64) -> Result<bool, StoreError> {
        self.write(move |change| insert(change, &message, false, now)).await
    }

    /// Messages whose delivery is due, for the process that delivers them; others get them again after
    /// `until`.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn claim_messages(
        &self,
        now: u64,
        until: u64,
        most: usize,
    ) -> Result<Vec<MessageRow>, StoreError> {
        self.write(move |change| claim(change, now, until, most)).await
    }

    /// Notes that a message was delivered; false when it was before, or there is no such message.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn message_delivered(&self, id: &str, at: u64) -> Result<bool, StoreError> {
        let id = id.to_owned();
        let sql = "UPDATE outbox SET delivered = ?2, note = NULL WHERE id = ?1 AND delivered IS NULL";
        self.write(move |change| has_changed(change, sql, params![id, signed(at)])).await
    }

    /// Puts a delivery off until `due`.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn deliver_at(&self, id: &str, due: u64, note: String) -> Result<bool, StoreError> {
        let id = id.to_owned();
        let sql = "UPDATE outbox SET due = ?2, note = ?3 WHERE id = ?1 AND delivered IS NULL";
        self.write(move |change| has_changed(change, sql, params![id, signed(due), note])).await
    }

    /// Forgets messages that were posted before a time.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn forget_messages(&self, before: u64) -> Result<usize, StoreError> {
        let sql = "DELETE FROM outbox WHERE created < ?1";
        self.write(move |change| execute(change, sql, params![signed(before)])).await
    }

    /// The messages, the newest first.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn messages(&self, filter: MessageFilter, most: usize) -> Result<Vec<MessageRow>, StoreError> {
        self.read(move |connection| messages(connection, &filter, most)).await
    }

    /// One message.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn message(&self, id: &str) -> Result<Option<MessageRow>, StoreError> {
        let id = id.to_owned();
        let sql = format!("SELECT {ROW} FROM outbox WHERE id = ?1");
        self.read(move |connection| find(connection, &sql, params![id], row)).await
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
    has_changed(change, sql, params![id, expert, entry, kind, signed(now), body, needs_delivery])
}

fn claim(change: &Transaction<'_>, now: u64, until: u64, most: usize) -> rusqlite::Result<Vec<MessageRow>> {
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

fn messages(
    connection: &Connection,
    filter: &MessageFilter,
    most: usize,
) -> rusqlite::Result<Vec<MessageRow>> {
    let sql = format!(
        "SELECT {ROW} FROM outbox
         WHERE (?1 IS NULL OR expert = ?1) AND (?2 IS NULL OR kind = ?2) AND (?3 IS NULL OR entry = ?3)
         ORDER BY created DESC, id DESC LIMIT ?4"
    );
    let MessageFilter { expert, kind, entry } = filter;
    list(connection, &sql, params![expert, kind, entry, limit(most)], row)
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
            body: format!("body of {id}"),
        }
    }

    #[tokio::test]
    async fn messages_keep_their_order_within_a_millisecond() {
        let dir = tempfile::tempdir().unwrap();
        let store =
            Store::open(&StoreConfig { state_dir: dir.path().to_owned(), ..StoreConfig::default() }).unwrap();
        for id in ["c", "a", "d", "b"] {
            assert!(store.post(message(id), 1_000).await.unwrap());
        }
        let ids = |rows: Vec<MessageRow>| rows.into_iter().map(|row| row.message.id).collect::<String>();
        assert_eq!(
            ids(store.messages(MessageFilter::default(), 10).await.unwrap()),
            "bdac",
            "the newest first"
        );
        assert_eq!(
            ids(store.claim_messages(1_000, 2_000, 10).await.unwrap()),
            "cadb",
            "they are due at once"
        );
    }

    /// A gateway that is set up later does not deliver messages of weeks ago.
    #[tokio::test]
    async fn messages_older_than_a_week_stay_undelivered() {
        const WEEK: u64 = 7 * 24 * 3_600_000;
        let dir = tempfile::tempdir().unwrap();
        let store =
            Store::open(&StoreConfig { state_dir: dir.path().to_owned(), ..StoreConfig::default() }).unwrap();
        assert!(store.post(message("tried"), 1_000).await.unwrap());
        assert_eq!(store.claim_messages(1_000, 2_000, 10).await.unwrap().len(), 1);
        assert!(store.post(message("old"), 1_000).await.unwrap());
        assert!(store.post(NewMessage { kind: "approval".into(), ..message("asks") }, 1_000).await.unwrap());
        assert!(store.post(message("new"), 5_000).await.unwrap());
        let claimed = store.claim_messages(WEEK + 2_000, WEEK + 3_000, 10).await.unwrap();
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
        let store = Store::open(&config).unwrap();
        assert!(store.post(message("a"), 1_000).await.unwrap());
        assert!(!store.post(message("a"), 2_000).await.unwrap(), "the same again");
        assert!(store.post(message("b"), 1_500).await.unwrap());
        let ids = async |now: u64| {
            let claimed = store.claim_messages(now, now + 100, 10).await.unwrap();
            claimed.into_iter().map(|row| (row.message.id, row.attempts)).collect::<Vec<_>>()
        };
        assert_eq!(ids(1_200).await, [("a".to_owned(), 1)]);
        assert_eq!(ids(1_250).await, [], "somebody delivers it");
        assert_eq!(ids(1_500).await, [("a".to_owned(), 2), ("b".to_owned(), 1)], "its claim is over");
        assert!(store.message_delivered("a", 1_510).await.unwrap());
        assert!(!store.message_delivered("a", 1_520).await.unwrap());
        assert!(store.deliver_at("b", 5_000, "the gateway is not there".into()).await.unwrap());
        assert_eq!(ids(4_999).await, []);
        assert_eq!(ids(5_000).await, [("b".to_owned(), 2)]);
        drop(store);
        let store = Store::open(&config).unwrap();
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
        let due = store.claim_messages(9_000, 9_100, 10).await.unwrap();
        assert!(due.iter().all(|row| row.message.id != "kept"), "it is not delivered");
        assert_eq!(store.message("kept").await.unwrap().unwrap().delivered, Some(6_000));
        assert_eq!(store.forget_messages(1_200).await.unwrap(), 1);
    }
}
