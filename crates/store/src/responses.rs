//! Responses of the Responses API that clients keep: to continue, to read again, and to wait for.
//!
//! A response holds its own items only; the conversation before it is read along `previous`. What the items
//! mean is `translate`'s business: inputs and response objects are texts here. Called by `server`.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;

use super::error::StoreError;

/// The longest conversation, in responses.
pub(crate) const LONGEST: usize = 10_000;

/// A response that is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptResponse {
    /// Its id.
    pub id: String,
    /// Stands for the client that may read it.
    pub client: String,
    /// The response that it continues.
    pub previous: Option<String>,
    /// Its status, as the API calls it.
    pub status: String,
    /// The request's own items, a JSON array.
    pub input: String,
    /// The response object, JSON.
    pub body: String,
    /// The body of the request, while the response is still to be made in the background.
    pub request: Option<String>,
}

/// A response that no living process works on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnfinishedResponse {
    /// Its id.
    pub id: String,
    /// Stands for its client.
    pub client: String,
    /// The body of the request.
    pub request: String,
    /// The response object as it was begun.
    pub body: String,
}

/// Gives the items of a response of its input and its response object.
pub type ItemsOf = fn(&str, &str) -> Vec<String>;

/// Gives those items of a response object that have these ids, each with its id.
pub type ItemsNamed = fn(&str, &[String]) -> Vec<(String, String)>;

/// A response and all that it continues, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Conversation {
    /// The responses' ids.
    pub(crate) ids: Vec<String>,
    /// Their items.
    pub(crate) items: Vec<String>,
}

/// Reads a response and all that it continues, each with `find`. Empty when it is not known, or one of them
/// is no longer kept or not made yet; `None` when the items take more than `most` bytes.
pub(crate) fn read_conversation<E>(
    id: &str,
    most: usize,
    items_of: ItemsOf,
    mut find: impl FnMut(&str) -> Result<Option<KeptResponse>, E>,
) -> Result<Option<Conversation>, E> {
    let (mut found, mut left) = (Vec::new(), most);
    let mut next = Some(id.to_owned());
    while let Some(id) = next {
        let response = find(&id)?.filter(|response| response.request.is_none());
        let Some(response) = response else { return Ok(Some(Conversation::default())) };
        next = response.previous.filter(|_| found.len() < LONGEST);
        let items = items_of(&response.input, &response.body);
        let Some(rest) = left.checked_sub(items.iter().map(String::len).sum()) else { return Ok(None) };
        left = rest;
        found.push((id, items));
    }
    let (ids, items): (Vec<_>, Vec<_>) = found.into_iter().rev().unzip();
    Ok(Some(Conversation { ids, items: items.into_iter().flatten().collect() }))
}

/// Groups items by the response that holds them, which `holder` names.
pub(crate) fn group_items<E>(
    ids: &[String],
    mut holder: impl FnMut(&str) -> Result<Option<String>, E>,
) -> Result<BTreeMap<String, Vec<String>>, E> {
    let mut holders: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for item in ids.iter().collect::<BTreeSet<_>>() {
        if let Some(response) = holder(item)? {
            holders.entry(response).or_default().push(item.clone());
        }
    }
    Ok(holders)
}

/// Reads items, each with its id; `None` when they take more than `most` bytes. A response is read once,
/// with `find`, however many of the items it holds.
pub(crate) fn read_items<E>(
    holders: BTreeMap<String, Vec<String>>,
    most: usize,
    items_named: ItemsNamed,
    mut find: impl FnMut(&str) -> Result<Option<KeptResponse>, E>,
) -> Result<Option<Vec<(String, String)>>, E> {
    let (mut found, mut left) = (Vec::new(), most);
    for (response, ids) in holders {
        let Some(response) = find(&response)? else { continue };
        let named = items_named(&response.body, &ids);
        let bytes = named.iter().map(|(_, item)| item.len()).sum();
        let Some(rest) = left.checked_sub(bytes) else { return Ok(None) };
        left = rest;
        found.extend(named);
    }
    Ok(Some(found))
}

/// Responses that clients keep.
#[async_trait]
pub trait Responses: Send + Sync {
    /// Keeps a response; `items`: the ids of those that the model made. `at`: milliseconds since 1970. False
    /// when it is still to be made, and all of these would take more than half of `responses.max_size`: none
    /// of them is deleted before it has ended.
    ///
    /// # Errors
    /// When the store cannot be written; nothing of it then is in the store.
    async fn keep_response(
        &self,
        response: KeptResponse,
        items: Vec<String>,
        at: u64,
    ) -> Result<bool, StoreError>;

    /// Ends a response that was made in the background. False when it was ended or deleted meanwhile.
    ///
    /// # Errors
    /// When the store cannot be written.
    async fn finish_response(
        &self,
        id: &str,
        status: &str,
        body: String,
        items: Vec<String>,
        at: u64,
    ) -> Result<bool, StoreError>;

    /// Makes this process the one that works on the responses whose process has ended, and returns these.
    ///
    /// # Errors
    /// When the store cannot be used.
    async fn claim_responses(&self) -> Result<Vec<UnfinishedResponse>, StoreError>;

    /// Returns those of these responses that this process is still to make: they have neither ended nor been
    /// deleted, and no other process has claimed them.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn still_unfinished(&self, ids: Vec<String>) -> Result<Vec<String>, StoreError>;

    /// Deletes a client's response; false when it has none of this id.
    ///
    /// # Errors
    /// When the store cannot be written.
    async fn remove_response(&self, id: &str, client: &str) -> Result<bool, StoreError>;

    /// A client's response.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn response(&self, id: &str, client: &str) -> Result<Option<KeptResponse>, StoreError>;

    /// The items of a client's response and of all that it continues, the oldest first; the responses count
    /// as used `at` this time. Empty when it is not known, or one of them is no longer kept or not made yet;
    /// `None` when the items take more than `most` bytes.
    ///
    /// # Errors
    /// When the store cannot be used.
    async fn continued_responses(
        &self,
        id: &str,
        client: &str,
        at: u64,
        most: usize,
        items_of: ItemsOf,
    ) -> Result<Option<Vec<String>>, StoreError>;

    /// These items of a client's responses, each with its id; `None` when they take more than `most` bytes.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn response_items(
        &self,
        ids: Vec<String>,
        client: &str,
        most: usize,
        items_named: ItemsNamed,
    ) -> Result<Option<Vec<(String, String)>>, StoreError>;

    /// Deletes responses that were not used for `responses.keep`, and those that were used longest ago while
    /// all take more than `responses.max_size`. Returns how many. Those that are still to be made stay.
    /// `now`: milliseconds since 1970.
    ///
    /// # Errors
    /// When the store cannot be written.
    async fn clear_responses(&self, now: u64) -> Result<usize, StoreError>;
}
