//! The outbox: messages that are to be delivered at least once. A message is posted once, whatever is posted under its id later; whoever
//! delivers claims it for a time, so that two processes do not deliver it at the same moment. Called by `expert`.

use rusqlite::{Connection, OptionalExtension as _, Row, Transaction, params};

use super::numbers::signed;
use super::write::Job;
use super::{Store, StoreError};

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
    Post { message: NewMessage, now: u64 },
    Claim { now: u64, until: u64, most: usize },
    Delivered { id: String, at: u64 },
    Again { id: String, due: u64, note: String },
    Forget { before: u64 },
}

/// What came of a change.
#[derive(Clone, Debug, Default)]
pub(super) struct Changed {
    pub(super) count: usize,
    pub(super) claimed: Vec<MessageRow>,
}

impl Store {
    /// Posts a message; false when one of its id was posted before.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn post(&self, message: NewMessage, now: u64) -> Result<bool, StoreError> {
        Ok(self.change_outbox(Change::Post { message, now }).await?.count > 0)
    }

    /// Messages whose delivery is due, for whoever delivers them; others get them again after `until`.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn claim_messages(
        &self,
        now: u64,
        until: u64,
        most: usize,
    ) -> Result<Vec<MessageRow>, StoreError> {
        Ok(self.change_outbox(Change::Claim { now, until, most }).await?.claimed)
    }

    /// A message was delivered; false when it was before, or there is none.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn message_delivered(&self, id: &str, at: u64) -> Result<bool, StoreError> {
        Ok(self.change_outbox(Change::Delivered { id: id.to_owned(), at }).await?.count > 0)
    }

    /// A message is to be delivered later.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn deliver_at(&self, id: &str, due: u64, note: String) -> Result<bool, StoreError> {
        Ok(self.change_outbox(Change::Again { id: id.to_owned(), due, note }).await?.count > 0)
    }

    /// Forgets messages that were posted before a time.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn forget_messages(&self, before: u64) -> Result<usize, StoreError> {
        Ok(self.change_outbox(Change::Forget { before }).await?.count)
    }

    async fn change_outbox(&self, change: Change) -> Result<Changed, StoreError> {
        self.ask(|answer| Job::Outbox { change, answer }).await
    }

    /// The messages, the newest first.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn messages(&self, filter: MessageFilter, most: usize) -> Result<Vec<MessageRow>, StoreError> {
        self.read(move |connection| list(connection, &filter, most)).await
    }

    /// One message.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn message(&self, id: &str) -> Result<Option<MessageRow>, StoreError> {
        let id = id.to_owned();
        self.read(move |connection| one(connection, &id)).await
    }
}

pub(super) fn apply(change: &Transaction<'_>, what: &Change) -> rusqlite::Result<Changed> {
    let count = |count| Changed { count, claimed: Vec::new() };
    match what {
        Change::Post { message, now } => change
            .prepare_cached(
                "INSERT OR IGNORE INTO outbox (id, expert, entry, kind, created, due, body) VALUES (?1, ?2, ?3, ?4, ?5, ?5, ?6)",
            )?
            .execute(params![message.id, message.expert, message.entry, message.kind, signed(*now), message.body])
            .map(count),
        Change::Claim { now, until, most } => {
            let query = format!(
                "UPDATE outbox SET due = ?2, attempts = attempts + 1
                 WHERE id IN (SELECT id FROM outbox WHERE delivered IS NULL AND due <= ?1 ORDER BY due LIMIT ?3)
                 RETURNING {ROW}"
            );
            let most = i64::try_from(*most).unwrap_or(i64::MAX);
            let mut claim = change.prepare_cached(&query)?;
            let rows = claim.query_map(params![signed(*now), signed(*until), most], row)?;
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

fn list(connection: &Connection, filter: &MessageFilter, most: usize) -> rusqlite::Result<Vec<MessageRow>> {
    let query = format!(
        "SELECT {ROW} FROM outbox
         WHERE (?1 IS NULL OR expert = ?1) AND (?2 IS NULL OR kind = ?2) AND (?3 IS NULL OR entry = ?3)
         ORDER BY created DESC, id LIMIT ?4"
    );
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let MessageFilter { expert, kind, entry } = filter;
    connection.prepare_cached(&query)?.query_map(params![expert, kind, entry, most], row)?.collect()
}

fn one(connection: &Connection, id: &str) -> rusqlite::Result<Option<MessageRow>> {
    let query = format!("SELECT {ROW} FROM outbox WHERE id = ?1");
    connection.prepare_cached(&query)?.query_row(params![id], row).optional()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoreConfig;

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
    async fn a_message_is_posted_once_claimed_for_a_time_and_delivered() {
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
        let told: Vec<_> =
            all.iter().map(|row| (row.message.id.as_str(), row.delivered, row.note.as_deref())).collect();
        assert_eq!(told, [("b", None, Some("the gateway is not there")), ("a", Some(1_510), None)]);
        assert_eq!(store.message("a").await.unwrap().unwrap().message, message("a"));
        assert_eq!(
            store
                .messages(MessageFilter { expert: Some("other".into()), ..MessageFilter::default() }, 10)
                .await
                .unwrap(),
            []
        );
        assert_eq!(store.forget_messages(1_200).await.unwrap(), 1);
    }
}
