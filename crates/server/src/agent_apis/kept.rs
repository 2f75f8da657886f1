//! The responses that clients keep: the items that `previous_response_id` and `item_reference` add to a
//! request, and the responses that are being made in the background.
//!
//! They are in the store of runs, each bound to the key of its client. Where no agent needs the store, the
//! first response to be kept opens it. Called by `agent_apis`.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

use super::unwritten::{ResponseChange, Unwritten};
use crate::respond::store_failed;
use store::{KeptResponse, Store, StoreConfig, UnfinishedResponse};
use translate::responses::{
    FinishedResponse, ItemReferences, RecalledItems, conversation_items, output_items_named,
};
use wire::units::Size;
use wire::{ApiError, ErrorCode};

/// The `retry-after` of a response in the background that found no room, in seconds.
const RETRY_AFTER: u64 = 30;
/// The pause before what could not be written is tried again.
const WRITE_AGAIN: Duration = Duration::from_millis(500);
/// The pause between clearings of a store that no agent uses.
const EVERY: Duration = Duration::from_hours(1);

/// The kept responses, and their store.
#[derive(Debug)]
pub struct KeptResponses {
    config: StoreConfig,
    /// `None` when it cannot be opened.
    store: OnceCell<Option<Arc<Store>>>,
    /// The bytes that were kept since all were last counted.
    uncounted: AtomicU64,
    in_background: Mutex<HashMap<String, CancellationToken>>,
    unwritten: Unwritten,
}

impl KeptResponses {
    /// Uses the store of the agents, if there is one.
    pub fn new(config: &StoreConfig, store: Option<Arc<Store>>) -> Self {
        let store = OnceCell::new_with(store.map(Some));
        let uncounted = AtomicU64::new(config.responses.max_size.0);
        Self {
            config: config.clone(),
            store,
            uncounted,
            in_background: Mutex::default(),
            unwritten: Unwritten::default(),
        }
    }

    /// Returns the store for responses; `None` when the owner disabled it or it cannot be opened.
    pub(super) async fn store(&self) -> Option<&Arc<Store>> {
        if !self.config.responses.store {
            return None;
        }
        let store = self.store.get_or_init(|| async {
            let config = self.config.clone();
            tokio::task::spawn_blocking(move || open_own_store(&config)).await.ok().flatten()
        });
        store.await.as_ref()
    }

    /// Returns the store, once it is open.
    pub fn open_store(&self) -> Option<&Arc<Store>> {
        self.store.get()?.as_ref()
    }

    /// Returns the store, if it may contain something, with what could not be written before.
    pub(super) async fn existing_store(&self) -> Option<&Arc<Store>> {
        let is_present = self.store.initialized() || Store::is_present(&self.config);
        let store = if is_present { self.store().await } else { None }?;
        self.unwritten.write_to(store).await;
        Some(store)
    }

    /// Returns the kept items that a client's request names. Together with them the request must not exceed
    /// `most`; `bytes` is its own size.
    pub(super) async fn recall_items(
        &self,
        client: &str,
        wanted: ItemReferences,
        bytes: usize,
        most: Size,
    ) -> Result<RecalledItems, ApiError> {
        let (mut recalled, mut left) = (RecalledItems::default(), most.to_usize().saturating_sub(bytes));
        if wanted == ItemReferences::default() {
            return Ok(recalled);
        }
        let Some(store) = self.existing_store().await else { return Ok(recalled) };
        if let Some(id) = wanted.previous {
            let found = store.continued_responses(&id, client, clock::now(), left, conversation_items).await;
            let found = found.map_err(store_failed)?;
            let items = found.ok_or_else(|| too_large("previous_response_id", most))?;
            left = left.saturating_sub(items.iter().map(String::len).sum());
            if items.is_empty() {
                self.refuse_unfinished(store, &id, client).await?;
            }
            recalled.previous = Some(items).filter(|items| !items.is_empty());
        }
        if !wanted.items.is_empty() {
            let found = store.response_items(wanted.items.clone(), client, left, output_items_named).await;
            let found = found.map_err(store_failed)?;
            recalled.items = found.ok_or_else(|| too_large("input", most))?.into_iter().collect();
            // An item that is named a hundred times is sent a hundred times.
            let recalled_sizes = wanted.items.iter().filter_map(|id| recalled.items.get(id)).map(String::len);
            if recalled_sizes.sum::<usize>() > left {
                return Err(too_large("input", most));
            }
        }
        Ok(recalled)
    }

    /// A response that is still being made cannot be continued yet.
    async fn refuse_unfinished(&self, store: &Store, id: &str, client: &str) -> Result<(), ApiError> {
        let found = store.response(id, client).await.map_err(store_failed)?;
        if found.is_none_or(|response| response.request.is_none()) {
            return Ok(());
        }
        let what = format!(
            "Previous response with id '{id}' is still in progress: wait until `GET /v1/responses/{id}` says that it has ended, and send \
             this request again"
        );
        Err(ApiError::bad_request(ErrorCode::PreviousResponseNotFound, what)
            .with_param("previous_response_id"))
    }

    /// Keeps a response, or lets it be kept later: its client gets its answer in any case.
    pub(super) async fn keep_response(self: &Arc<Self>, client: &str, response: FinishedResponse) {
        let FinishedResponse { id, previous, status, input, items, body } = response;
        let kept =
            KeptResponse { id, client: client.to_owned(), previous, status, input, body, request: None };
        match self.put_response(kept.clone(), items.clone()).await {
            Ok(_) => {}
            Err(error) if error.code == Some(ErrorCode::StoreFailed) => {
                self.write_later(ResponseChange::Kept(kept, items), error.message).await;
            }
            Err(error) => {
                tracing::error!(target: "respool::store", error = error.message, "a response could not be kept");
            }
        }
    }

    /// Makes a change as soon as the store can be written again.
    async fn write_later(self: &Arc<Self>, change: ResponseChange, error: String) {
        tracing::error!(target: "respool::store", error, "a response could not be kept: it is tried again");
        if self.unwritten.push(change).await {
            let responses = Arc::clone(self);
            tokio::spawn(async move {
                while let Some(store) = responses.store().await {
                    tokio::time::sleep(WRITE_AGAIN).await;
                    if responses.unwritten.write_to(store).await {
                        return;
                    }
                }
            });
        }
    }

    /// Stores a response that is going to be made.
    pub(super) async fn begin_response(&self, response: KeptResponse) -> Result<(), ApiError> {
        let is_kept = self.put_response(response, Vec::new()).await?;
        if is_kept { Ok(()) } else { Err(self.full_error()) }
    }

    fn full_error(&self) -> ApiError {
        let what = format!(
            "the responses in progress in the background fill half of the room for responses ({}, `responses.max_size` in respool.toml): \
             send this one again in {RETRY_AFTER} s, or without `background`",
            self.config.responses.max_size
        );
        let mut error = ApiError::new(503, ErrorCode::ResponsesFull, what);
        error.retry_after = Some(RETRY_AFTER);
        error
    }

    /// Returns false when there is no room for a response that is going to be made.
    async fn put_response(&self, response: KeptResponse, items: Vec<String>) -> Result<bool, ApiError> {
        let Some(store) = self.store().await else { return Err(no_store()) };
        let bytes = response.input.len() + response.body.len();
        let is_kept = store.keep_response(response, items, clock::now()).await.map_err(store_failed)?;
        // The store never exceeds the limit by more than a sixteenth.
        let most = self.config.responses.max_size.0;
        if self.uncounted.fetch_add(bytes as u64, Ordering::Relaxed) >= most / 16 {
            self.uncounted.store(0, Ordering::Relaxed);
            let store = Arc::clone(store);
            tokio::spawn(async move { clear_expired(&store).await });
        }
        Ok(is_kept)
    }

    /// Ends a response that was made in the background, perhaps later.
    pub(super) async fn finish_response(self: &Arc<Self>, response: FinishedResponse) {
        let Some(store) = self.store().await else { return };
        let change = ResponseChange::Ended(response);
        if let Err(error) = change.write_to(store).await {
            self.write_later(change, error.0).await;
        }
    }

    /// Ends a response that cannot be made.
    pub(super) async fn fail_response(self: &Arc<Self>, id: String, body: String) {
        self.finish_response(ended_response(&id, "failed", body)).await;
    }

    /// Claims the responses that an ended process did not finish.
    pub(super) async fn claim_unfinished(&self) -> Vec<UnfinishedResponse> {
        let Some(store) = self.existing_store().await else { return Vec::new() };
        store.claim_responses().await.unwrap_or_else(|error| {
            tracing::error!(target: "respool::store", %error, "responses in the background cannot be continued");
            Vec::new()
        })
    }

    /// Ends the work on responses that were cancelled or deleted at another process, or that it has claimed.
    pub(super) async fn stop_unwanted_work(&self) {
        let ids: Vec<String> = self.active_ids().into_iter().collect();
        let Some(Some(store)) = self.store.get().filter(|_| !ids.is_empty()) else { return };
        // While the store cannot be read, the work goes on.
        let Ok(wanted) = store.still_unfinished(ids.clone()).await else { return };
        ids.iter().filter(|id| !wanted.contains(*id)).for_each(|id| self.work_ends(id));
    }

    /// Registers the work on a response; cancelling the returned token ends it early.
    pub(super) fn work_begins(&self, id: &str) -> CancellationToken {
        let token = CancellationToken::new();
        self.lock_background().insert(id.to_owned(), token.clone());
        token
    }

    /// Ends the work on a response.
    pub(super) fn work_ends(&self, id: &str) {
        if let Some(token) = self.lock_background().remove(id) {
            token.cancel();
        }
    }

    fn lock_background(&self) -> MutexGuard<'_, HashMap<String, CancellationToken>> {
        self.in_background.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the ids of the responses that this process makes in the background.
    pub fn active_ids(&self) -> HashSet<String> {
        self.lock_background().keys().cloned().collect()
    }
}

/// Opens the store for responses alone, and clears it regularly.
fn open_own_store(config: &StoreConfig) -> Option<Arc<Store>> {
    match Store::open(config) {
        Ok(store) => {
            let store = Arc::new(store);
            tokio::spawn(keep_clear(Arc::downgrade(&store)));
            Some(store)
        }
        Err(error) => {
            tracing::error!(target: "respool::store", %error, "responses are not kept: `previous_response_id` will not find them");
            None
        }
    }
}

async fn keep_clear(store: Weak<Store>) {
    loop {
        let Some(store) = store.upgrade() else { return };
        clear_expired(&store).await;
        drop(store);
        tokio::time::sleep(EVERY).await;
    }
}

async fn clear_expired(store: &Store) {
    match store.clear_responses(clock::now()).await {
        Ok(0) => {}
        Ok(deleted) => tracing::info!(target: "respool::store", deleted, "responses were deleted"),
        Err(error) => tracing::error!(target: "respool::store", %error, "responses cannot be deleted"),
    }
}

/// Returns a response that ends although it was not made.
pub(super) fn ended_response(id: &str, status: &str, body: String) -> FinishedResponse {
    FinishedResponse {
        id: id.to_owned(),
        previous: None,
        status: status.to_owned(),
        input: String::new(),
        items: Vec::new(),
        body,
    }
}

fn too_large(field: &str, most: Size) -> ApiError {
    let what = format!(
        "with the kept items that `{field}` names the request is larger than {most} (`limits.max_body` in respool.toml): send a \
         shorter conversation"
    );
    ApiError::bad_request(ErrorCode::RequestTooLarge, what).with_param(field)
}

fn no_store() -> ApiError {
    let what = "no responses are kept: `responses.store` is off in respool.toml, or the state directory cannot be used (see the log)";
    ApiError::new(400, ErrorCode::NoStore, what)
}
