//! The outbox, as the rest of respool asks the store for it. Called by `expert`.

use super::outbox::{self, Change, Changed, MessageFilter, MessageRow, NewMessage};
use super::write::Job;
use super::{Store, StoreError};

impl Store {
    /// Posts a message; false when one of its id was posted before.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn post(&self, message: NewMessage, now: u64) -> Result<bool, StoreError> {
        Ok(self.change_outbox(Change::Post { message, needs_delivery: true, now }).await?.count > 0)
    }

    /// Keeps a message for those who look, and delivers it to nobody; false when one of its id was posted before.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn keep_message(&self, message: NewMessage, now: u64) -> Result<bool, StoreError> {
        Ok(self.change_outbox(Change::Post { message, needs_delivery: false, now }).await?.count > 0)
    }

    /// Messages whose delivery is due, for the process that delivers them; others get them again after `until`.
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
        self.read(move |connection| outbox::list(connection, &filter, most)).await
    }

    /// One message.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn message(&self, id: &str) -> Result<Option<MessageRow>, StoreError> {
        let id = id.to_owned();
        self.read(move |connection| outbox::one(connection, &id)).await
    }
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
    async fn messages_of_one_millisecond_are_in_the_order_in_which_they_were_posted() {
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

    /// Whoever sets up a gateway later is not told of what was posted and decided weeks ago.
    #[tokio::test]
    async fn what_nobody_tried_to_deliver_for_a_week_is_not_delivered() {
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
