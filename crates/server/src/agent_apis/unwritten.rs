//! Changes of kept responses that the store could not take: they wait in memory, and are made as soon as it
//! can be written. Called by `kept`.

use std::collections::VecDeque;

use tokio::sync::Mutex;

use store::{KeptResponse, Store, StoreError};
use translate::responses::FinishedResponse;

/// The largest number of bytes that wait.
const MOST: usize = 64 << 20;
/// A change that the store refuses so often, although it can be used, is given up.
const MOST_REFUSALS: u32 = 60;

/// A change of a kept response.
#[derive(Clone, Debug)]
pub(super) enum ResponseChange {
    /// It is kept, and has these items.
    Kept(KeptResponse, Vec<String>),
    /// It was made in the background, and has ended.
    Ended(FinishedResponse),
}

impl ResponseChange {
    /// Makes the change.
    pub(super) async fn write_to(&self, store: &Store) -> Result<(), StoreError> {
        let now = clock::now();
        match self.clone() {
            Self::Kept(response, items) => store.keep_response(response, items, now).await,
            Self::Ended(FinishedResponse { id, status, items, body, .. }) => {
                store.finish_response(&id, &status, body, items, now).await
            }
        }
        .map(drop)
    }

    fn size(&self) -> usize {
        match self {
            Self::Kept(response, _) => response.input.len() + response.body.len(),
            Self::Ended(response) => response.body.len(),
        }
    }
}

/// The changes that wait, in order, each with how often the store has refused it.
#[derive(Debug, Default)]
pub(super) struct Unwritten(Mutex<VecDeque<(ResponseChange, u32)>>);

impl Unwritten {
    /// Lets a change wait. Returns true if it is the only one.
    pub(super) async fn push(&self, change: ResponseChange) -> bool {
        let mut waiting = self.0.lock().await;
        let size: usize = waiting.iter().map(|(change, _)| change.size()).sum();
        if size + change.size() > MOST {
            tracing::error!(target: "respool::store", "a response is not kept: too many wait for the store");
            return false;
        }
        waiting.push_back((change, 0));
        waiting.len() == 1
    }

    /// Makes the changes that wait. Returns true if none is left.
    pub(super) async fn write_to(&self, store: &Store) -> bool {
        let mut waiting = self.0.lock().await;
        while let Some((change, refusals)) = waiting.front_mut() {
            if let Err(error) = change.write_to(store).await {
                *refusals += u32::from(store.check_file().is_ok());
                if *refusals < MOST_REFUSALS {
                    return false;
                }
                tracing::error!(target: "respool::store", %error, "a response is not kept");
            }
            waiting.pop_front();
        }
        true
    }
}
