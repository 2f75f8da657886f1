//! The store's face for responses that clients keep (`responses.rs` has their rows).

use super::responses::{self, ItemsNamed, ItemsOf, KeptResponse, ResponseChange, UnfinishedResponse};
use super::write::Job;
use super::{Store, StoreError};

impl Store {
    /// Keeps a response; `items`: the ids of those that the model made. `at`: milliseconds since 1970. False when it is still to be
    /// made, and all of these would take more than half of `responses.max_size`: none of them is deleted before it has ended.
    ///
    /// # Errors
    /// When the store cannot be written; nothing of it then is in the store.
    pub async fn keep_response(
        &self,
        response: KeptResponse,
        items: Vec<String>,
        at: u64,
    ) -> Result<bool, StoreError> {
        let most_unfinished = self.responses.max_size.0 / 2;
        let kept =
            self.change_responses(ResponseChange::Keep { response, items, at, most_unfinished }).await?;
        Ok(kept > 0)
    }

    /// Ends a response that was made in the background. False when it was ended or deleted meanwhile.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn finish_response(
        &self,
        id: &str,
        status: &str,
        body: String,
        items: Vec<String>,
        at: u64,
    ) -> Result<bool, StoreError> {
        let (id, status) = (id.to_owned(), status.to_owned());
        let finished = self.change_responses(ResponseChange::Finish { id, status, body, items, at }).await?;
        Ok(finished > 0)
    }

    /// Makes this process the one that works on the responses whose process has ended, and returns these.
    ///
    /// # Errors
    /// When the store cannot be used.
    pub async fn claim_responses(&self) -> Result<Vec<UnfinishedResponse>, StoreError> {
        let mut claimed = Vec::new();
        for (response, from) in self.read(responses::unfinished).await? {
            if !self.lease.is_gone(&from) {
                continue;
            }
            let id = response.id.clone();
            if self.change_responses(ResponseChange::Claim { id, from }).await? > 0 {
                claimed.push(response);
            }
        }
        Ok(claimed)
    }

    /// Deletes a client's response; false when it has none of this id.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn remove_response(&self, id: &str, client: &str) -> Result<bool, StoreError> {
        let (id, client) = (id.to_owned(), client.to_owned());
        let removed = self.change_responses(ResponseChange::Remove { id, client }).await? > 0;
        if removed {
            self.give_back().await?;
        }
        Ok(removed)
    }

    /// A client's response.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn response(&self, id: &str, client: &str) -> Result<Option<KeptResponse>, StoreError> {
        let (id, client) = (id.to_owned(), client.to_owned());
        self.read(move |connection| responses::one(connection, &id, &client)).await
    }

    /// The items of a client's response and of all that it continues, the oldest first; the responses count as used `at` this
    /// time. Empty when it is not known, or one of them is no longer kept or not made yet; `None` when the items take more than
    /// `most` bytes.
    ///
    /// # Errors
    /// When the store cannot be used.
    pub async fn continued_responses(
        &self,
        id: &str,
        client: &str,
        at: u64,
        (most, items_of): (usize, ItemsOf),
    ) -> Result<Option<Vec<String>>, StoreError> {
        let (id, client) = (id.to_owned(), client.to_owned());
        let found = self
            .read(move |connection| responses::conversation(connection, &id, &client, (most, items_of)))
            .await?;
        let Some(responses::Conversation { ids, items }) = found else { return Ok(None) };
        self.change_responses(ResponseChange::Use { ids, at }).await?;
        Ok(Some(items))
    }

    /// These items of a client's responses, each with its id; `None` when they take more than `most` bytes.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn response_items(
        &self,
        ids: Vec<String>,
        client: &str,
        (most, items_named): (usize, ItemsNamed),
    ) -> Result<Option<Vec<(String, String)>>, StoreError> {
        let client = client.to_owned();
        self.read(move |connection| responses::items(connection, &ids, &client, (most, items_named))).await
    }

    /// Deletes responses that were not used for `responses.keep`, and those that were used longest ago while all take more than
    /// `responses.max_size`. Returns how many. Those that are still to be made stay. `now`: milliseconds since 1970.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn clear_responses(&self, now: u64) -> Result<usize, StoreError> {
        let keep = clock::millis(self.responses.keep);
        let (before, most) = (now.saturating_sub(keep), self.responses.max_size.0);
        let mut deleted = 0;
        for change in [ResponseChange::Expire { before }, ResponseChange::Shrink { most }] {
            loop {
                match self.change_responses(change.clone()).await? {
                    0 => break,
                    bite => deleted += bite,
                }
                self.give_pages_back().await?;
            }
        }
        Ok(deleted)
    }

    async fn change_responses(&self, change: ResponseChange) -> Result<usize, StoreError> {
        let owner = self.lease.owner().to_owned();
        self.ask(|answer| Job::Responses { change, owner, answer }).await
    }
}

#[cfg(test)]
mod tests;
