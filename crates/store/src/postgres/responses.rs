//! Responses that clients keep, in `PostgreSQL`.

use async_trait::async_trait;
use postgres::{Error, Row};

use super::PostgresStore;
use super::columns::number;
use super::link::{Change, as_bigint, span};
use crate::error::StoreError;
use crate::responses::{
    Conversation, ItemsNamed, ItemsOf, KeptResponse, Responses, UnfinishedResponse, group_items,
    read_conversation, read_items,
};

/// At most this many responses are deleted in one batch.
const BATCH: i64 = 64;

#[async_trait]
impl Responses for PostgresStore {
    async fn keep_response(
        &self,
        response: KeptResponse,
        items: Vec<String>,
        at: u64,
    ) -> Result<bool, StoreError> {
        let (most_unfinished, owner) = (self.responses.max_size.0 / 2, self.owner.clone());
        let work = move |change: &mut Change<'_>| {
            let has_room = response.request.is_none()
                || unfinished_bytes(change)?.saturating_add(bytes_of(&response)) <= most_unfinished;
            Ok(has_room && keep(change, &response, &items, at, &owner)?)
        };
        self.pool.run(work).await
    }

    async fn finish_response(
        &self,
        id: &str,
        status: &str,
        body: String,
        items: Vec<String>,
        at: u64,
    ) -> Result<bool, StoreError> {
        let (id, status) = (id.to_owned(), status.to_owned());
        let sql = "UPDATE respool.responses SET status = $2, body = $3, used = $4, bytes = octet_length(input) + $5::bigint,
                 request = NULL, owner = NULL
             WHERE id = $1 AND request IS NOT NULL";
        let work = move |change: &mut Change<'_>| {
            let (at, bytes) = (as_bigint(at), as_bigint(body.len() as u64));
            let is_finished = change.has_changed(sql, &[&id, &status, &body, &at, &bytes])?;
            if is_finished {
                name_items(change, &id, &items)?;
            }
            Ok(is_finished)
        };
        self.pool.run(work).await
    }

    async fn claim_responses(&self) -> Result<Vec<UnfinishedResponse>, StoreError> {
        if !self.presence.shared.may_miss_others() {
            return Ok(Vec::new());
        }
        let owner = self.owner.clone();
        let sql = "WITH living AS (SELECT owner FROM respool.nodes WHERE seen > respool.now_ms() - $2)
             UPDATE respool.responses SET owner = $1 WHERE id IN (
                 SELECT id FROM respool.responses
                 WHERE request IS NOT NULL AND EXISTS (SELECT 1 FROM living WHERE living.owner = $1)
                     AND NOT EXISTS (SELECT 1 FROM living WHERE living.owner = responses.owner)
                 FOR UPDATE SKIP LOCKED)
             RETURNING id, client, request, body";
        let row = |row: &Row| {
            let (id, client) = (row.try_get(0)?, row.try_get(1)?);
            Ok(UnfinishedResponse { id, client, request: row.try_get(2)?, body: row.try_get(3)? })
        };
        let gone = span(super::shared::GONE_AFTER);
        // One statement, because an idle process asks again and again.
        self.pool.run_statement(move |change| change.list(sql, &[&owner, &gone], row)).await
    }

    async fn still_unfinished(&self, ids: Vec<String>) -> Result<Vec<String>, StoreError> {
        let owner = self.owner.clone();
        let sql =
            "SELECT id FROM respool.responses WHERE id = ANY ($1) AND owner = $2 AND request IS NOT NULL";
        self.pool.read(move |change| change.list(sql, &[&ids, &owner], |row| row.try_get(0))).await
    }

    async fn remove_response(&self, id: &str, client: &str) -> Result<bool, StoreError> {
        let (id, client) = (id.to_owned(), client.to_owned());
        let sql = "DELETE FROM respool.responses WHERE id = $1 AND client = $2";
        self.pool.run(move |change| change.has_changed(sql, &[&id, &client])).await
    }

    async fn response(&self, id: &str, client: &str) -> Result<Option<KeptResponse>, StoreError> {
        let (id, client) = (id.to_owned(), client.to_owned());
        self.pool.run(move |change| response(change, &id, &client)).await
    }

    async fn continued_responses(
        &self,
        id: &str,
        client: &str,
        at: u64,
        most: usize,
        items_of: ItemsOf,
    ) -> Result<Option<Vec<String>>, StoreError> {
        let (id, client) = (id.to_owned(), client.to_owned());
        let work = move |change: &mut Change<'_>| {
            let found = read_conversation(&id, most, items_of, |id| response(change, id, &client))?;
            let Some(Conversation { ids, items }) = found else { return Ok(None) };
            let sql = "UPDATE respool.responses SET used = $2 WHERE id = ANY ($1)";
            change.execute(sql, &[&ids, &as_bigint(at)])?;
            Ok(Some(items))
        };
        self.pool.run(work).await
    }

    async fn response_items(
        &self,
        ids: Vec<String>,
        client: &str,
        most: usize,
        items_named: ItemsNamed,
    ) -> Result<Option<Vec<(String, String)>>, StoreError> {
        let client = client.to_owned();
        let sql =
            "SELECT responses.id FROM respool.response_items JOIN respool.responses ON responses.id = response
             WHERE response_items.id = $1 AND client = $2";
        let work = move |change: &mut Change<'_>| {
            let holders =
                group_items(&ids, |item| change.find(sql, &[&item, &client], |row| row.try_get(0)))?;
            read_items(holders, most, items_named, |id| response(change, id, &client))
        };
        self.pool.run(work).await
    }

    async fn clear_responses(&self, now: u64) -> Result<usize, StoreError> {
        let (before, most) =
            (now.saturating_sub(clock::to_millis(self.responses.keep)), self.responses.max_size.0);
        let sql = "DELETE FROM respool.responses WHERE id IN (
                 SELECT id FROM respool.responses WHERE used < $1 AND request IS NULL LIMIT $2)";
        let old = move |change: &mut Change<'_>| change.execute(sql, &[&as_bigint(before), &BATCH]);
        let deleted = self.delete_in_batches(old).await?;
        Ok(deleted + self.delete_in_batches(move |change| delete_for_room(change, most)).await?)
    }
}

/// The bytes of a response that count against the limit.
fn bytes_of(response: &KeptResponse) -> u64 {
    let request = response.request.as_ref().map_or(0, String::len);
    (response.input.len() + response.body.len() + request) as u64
}

fn keep(
    change: &mut Change<'_>,
    response: &KeptResponse,
    items: &[String],
    at: u64,
    owner: &str,
) -> Result<bool, Error> {
    let KeptResponse { id, client, previous, status, input, body, request } = response;
    let owner = request.is_some().then_some(owner);
    let (at, bytes) = (as_bigint(at), as_bigint(bytes_of(response)));
    let sql = "INSERT INTO respool.responses (id, client, previous, status, used, bytes, input, body, request, owner)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT DO NOTHING";
    let is_kept = change
        .has_changed(sql, &[id, client, previous, status, &at, &bytes, input, body, request, &owner])?;
    name_items(change, id, items)?;
    Ok(is_kept)
}

fn name_items(change: &mut Change<'_>, response: &str, items: &[String]) -> Result<(), Error> {
    let sql = "INSERT INTO respool.response_items (id, response) VALUES ($1, $2)
         ON CONFLICT (id) DO UPDATE SET response = excluded.response";
    items.iter().try_for_each(|item| change.execute(sql, &[item, &response]).map(drop))
}

/// Deletes a batch of those that were used longest ago, while all take more than `most` bytes.
fn delete_for_room(change: &mut Change<'_>, most: u64) -> Result<usize, Error> {
    let sql = "SELECT coalesce(sum(bytes), 0)::bigint FROM respool.responses";
    let all = change.find(sql, &[], |row| number(row, 0))?.unwrap_or_default();
    let mut over = all.saturating_sub(most);
    let sql = "SELECT id, bytes FROM respool.responses WHERE request IS NULL ORDER BY used LIMIT $1";
    let oldest: Vec<(String, u64)> =
        change.list(sql, &[&BATCH], |row| Ok((row.try_get(0)?, number(row, 1)?)))?;
    let mut deleted = 0;
    for (id, bytes) in oldest {
        if over == 0 {
            break;
        }
        deleted += change.execute("DELETE FROM respool.responses WHERE id = $1", &[&id])?;
        over = over.saturating_sub(bytes);
    }
    Ok(deleted)
}

/// The bytes of those that are still to be made.
fn unfinished_bytes(change: &mut Change<'_>) -> Result<u64, Error> {
    // One at a time, so that several processes together do not exceed the limit.
    change.lock(vec!["unfinished responses".to_owned()])?;
    let sql = "SELECT coalesce(sum(bytes), 0)::bigint FROM respool.responses WHERE request IS NOT NULL";
    Ok(change.find(sql, &[], |row| number(row, 0))?.unwrap_or_default())
}

/// One response of a client.
fn response(change: &mut Change<'_>, id: &str, client: &str) -> Result<Option<KeptResponse>, Error> {
    let sql = "SELECT id, client, previous, status, input, body, request FROM respool.responses
         WHERE id = $1 AND client = $2";
    let row = |row: &Row| {
        Ok(KeptResponse {
            id: row.try_get(0)?,
            client: row.try_get(1)?,
            previous: row.try_get(2)?,
            status: row.try_get(3)?,
            input: row.try_get(4)?,
            body: row.try_get(5)?,
            request: row.try_get(6)?,
        })
    };
    change.find(sql, &[&id, &client], row)
}
