//! The outbox as processes use it: `execution` puts messages in, and `delivery` takes them out.

use std::sync::Arc;

use tokio::sync::Notify;

use super::message::Message;
use store::{Store, StoreError};

/// Posts the messages of processes.
pub(super) struct Outbox {
    store: Arc<Store>,
    stirred: Arc<Notify>,
}

impl Outbox {
    /// `stirred`: signals that there is something to deliver.
    pub(super) fn new(store: &Arc<Store>, stirred: &Arc<Notify>) -> Self {
        Self { store: Arc::clone(store), stirred: Arc::clone(stirred) }
    }

    /// Posts a message to people. One that was posted before is ignored.
    pub(super) async fn post(&self, message: Message) -> Result<(), StoreError> {
        if self.store.post(message.into_row(), clock::now()).await? {
            self.stirred.notify_one();
        }
        Ok(())
    }

    /// Keeps a message for people who look, without delivering it.
    pub(super) async fn keep(&self, message: Message) -> Result<(), StoreError> {
        self.store.keep_message(message.into_row(), clock::now()).await.map(drop)
    }
}
