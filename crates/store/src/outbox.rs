//! The outbox: messages that are delivered at least once. A message is posted once; a later one with its id
//! is ignored; the process that delivers it claims it for a time, so that two processes do not deliver it at
//! the same moment.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;

use super::error::StoreError;

/// A message whose delivery was not tried for this long, in milliseconds, was posted while there was no way
/// to deliver it. It is not delivered later, when it is out of date. Requests for approval are: their
/// deliverer checks whether they are open.
pub(crate) const FIRST_TRIED_WITHIN: u64 = 7 * 24 * 3_600_000;

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
    /// Its content, as JSON.
    pub body: Value,
}

/// A message as the store has it. Times are milliseconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
    /// When its delivery is tried next, if it is not delivered.
    pub due: u64,
}

/// Reads the body of a message that is kept.
pub(crate) fn parse_body(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_default()
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
    /// Only those that are neither delivered nor done.
    pub is_open: bool,
}

/// Messages to deliver.
#[async_trait]
pub trait Outbox: Send + Sync {
    /// Posts a message; false when one of its id was posted before.
    ///
    /// # Errors
    /// When the store cannot be written.
    async fn post(&self, message: NewMessage, now: u64) -> Result<bool, StoreError>;

    /// Keeps a message for people to read, without delivering it; false when one of its id was posted before.
    ///
    /// # Errors
    /// When the store cannot be written.
    async fn keep_message(&self, message: NewMessage, now: u64) -> Result<bool, StoreError>;

    /// Claims the messages whose delivery is due, for the process that delivers them; others get them again
    /// once this `lease` is over.
    ///
    /// # Errors
    /// When the store cannot be written.
    async fn claim_messages(&self, lease: Duration, most: usize) -> Result<Vec<MessageRow>, StoreError>;

    /// Notes that a message was delivered; false when it was before, or there is no such message.
    ///
    /// # Errors
    /// When the store cannot be written.
    async fn message_delivered(&self, id: &str, at: u64) -> Result<bool, StoreError> {
        self.end_message(id, at, None).await
    }

    /// Notes that a message needs no delivery any more, and why; without a reason, it was delivered. One that
    /// was delivered may still get a reason. Else false, as for [`Self::message_delivered`].
    ///
    /// # Errors
    /// When the store cannot be written.
    async fn end_message(&self, id: &str, at: u64, note: Option<&str>) -> Result<bool, StoreError>;

    /// Puts a delivery off for a time.
    ///
    /// # Errors
    /// When the store cannot be written.
    async fn deliver_after(&self, id: &str, pause: Duration, note: String) -> Result<bool, StoreError>;

    /// Makes a message due now, also an old one that was never tried; false as for
    /// [`Self::message_delivered`].
    ///
    /// # Errors
    /// When the store cannot be written.
    async fn deliver_now(&self, id: &str) -> Result<bool, StoreError>;

    /// Forgets messages that were posted before a time.
    ///
    /// # Errors
    /// When the store cannot be written.
    async fn forget_messages(&self, before: u64) -> Result<usize, StoreError>;

    /// Returns the messages, the newest first.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn messages(&self, filter: MessageFilter, most: usize) -> Result<Vec<MessageRow>, StoreError>;

    /// Returns the messages of these ids that there are, in no order.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn messages_by_id(&self, ids: Vec<String>) -> Result<Vec<MessageRow>, StoreError>;

    /// Returns one message.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn message(&self, id: &str) -> Result<Option<MessageRow>, StoreError> {
        Ok(self.messages_by_id(vec![id.to_owned()]).await?.pop())
    }
}
