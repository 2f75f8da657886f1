//! Responses that clients keep, as rows.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension as _, Row, Transaction, params};

use super::statements::{execute, exists, find, has_changed, list, signed};
use super::store::SqliteStore;
use crate::error::StoreError;
use crate::responses::{
    Conversation, ItemsNamed, ItemsOf, KeptResponse, Responses, UnfinishedResponse, group_items,
    read_conversation, read_items,
};

/// At most this many responses are deleted in one batch.
const BATCH: u32 = 64;

#[async_trait]
impl Responses for SqliteStore {
    async fn keep_response(
        &self,
        response: KeptResponse,
        items: Vec<String>,
        at: u64,
    ) -> Result<bool, StoreError> {
        let most_unfinished = self.responses.max_size.0 / 2;
        let owner = self.lease.owner().to_owned();
        let work = move |change: &Transaction<'_>| {
            let has_room = response.request.is_none()
                || unfinished_bytes(change)?.saturating_add(bytes_of(&response)) <= most_unfinished;
            Ok(has_room && keep(change, &response, &items, at, &owner)?)
        };
        self.write(work).await
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
        let sql = "UPDATE responses SET status = ?2, body = ?3, used = ?4, bytes = length(CAST(input AS BLOB)) + ?5,
                 request = NULL, owner = NULL
             WHERE id = ?1 AND request IS NOT NULL";
        let work = move |change: &Transaction<'_>| {
            let values = params![id, status, body, signed(at), signed(body.len() as u64)];
            let is_finished = has_changed(change, sql, values)?;
            if is_finished {
                name_items(change, &id, &items)?;
            }
            Ok(is_finished)
        };
        self.write(work).await
    }

    async fn claim_responses(&self) -> Result<Vec<UnfinishedResponse>, StoreError> {
        let mut claimed = Vec::new();
        for (response, from) in self.read(find_unfinished).await? {
            if !self.lease.is_gone(&from) {
                continue;
            }
            let (id, owner) = (response.id.clone(), self.lease.owner().to_owned());
            let sql = "UPDATE responses SET owner = ?2 WHERE id = ?1 AND owner = ?3 AND request IS NOT NULL";
            if self.write(move |change| has_changed(change, sql, params![id, owner, from])).await? {
                claimed.push(response);
            }
        }
        Ok(claimed)
    }

    async fn still_unfinished(&self, ids: Vec<String>) -> Result<Vec<String>, StoreError> {
        let owner = self.lease.owner().to_owned();
        let sql = "SELECT 1 FROM responses WHERE id = ?1 AND owner = ?2 AND request IS NOT NULL";
        let is_unfinished = move |connection: &Connection| {
            let mut unfinished = Vec::new();
            for id in ids {
                if exists(connection, sql, params![id, owner])? {
                    unfinished.push(id);
                }
            }
            Ok(unfinished)
        };
        self.read(is_unfinished).await
    }

    async fn remove_response(&self, id: &str, client: &str) -> Result<bool, StoreError> {
        let (id, client) = (id.to_owned(), client.to_owned());
        let sql = "DELETE FROM responses WHERE id = ?1 AND client = ?2";
        let is_removed = self.write(move |change| has_changed(change, sql, params![id, client])).await?;
        if is_removed {
            self.return_space().await?;
        }
        Ok(is_removed)
    }

    async fn response(&self, id: &str, client: &str) -> Result<Option<KeptResponse>, StoreError> {
        let (id, client) = (id.to_owned(), client.to_owned());
        self.read(move |connection| response(connection, &id, &client)).await
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
        let read = move |connection: &Connection| {
            read_conversation(&id, most, items_of, |id| response(connection, id, &client))
        };
        let found = self.read(read).await?;
        let Some(Conversation { ids, items }) = found else { return Ok(None) };
        let sql = "UPDATE responses SET used = ?2 WHERE id = ?1";
        let touch = move |change: &Transaction<'_>| {
            ids.iter().try_for_each(|id| execute(change, sql, params![id, signed(at)]).map(drop))
        };
        self.write(touch).await?;
        Ok(Some(items))
    }

    async fn response_items(
        &self,
        ids: Vec<String>,
        client: &str,
        most: usize,
        items_named: ItemsNamed,
    ) -> Result<Option<Vec<(String, String)>>, StoreError> {
        let client = client.to_owned();
        let read = move |connection: &Connection| {
            let mut holder = connection.prepare_cached(
                "SELECT responses.id FROM response_items JOIN responses ON responses.id = response_items.response
                 WHERE response_items.id = ?1 AND responses.client = ?2",
            )?;
            let holders = group_items(&ids, |item| {
                holder.query_row(params![item, client], |row| row.get(0)).optional()
            })?;
            read_items(holders, most, items_named, |id| response(connection, id, &client))
        };
        self.read(read).await
    }

    async fn clear_responses(&self, now: u64) -> Result<usize, StoreError> {
        let keep = clock::to_millis(self.responses.keep);
        let (before, most) = (now.saturating_sub(keep), self.responses.max_size.0);
        let sql = "DELETE FROM responses WHERE id IN
                     (SELECT id FROM responses WHERE used < ?1 AND request IS NULL LIMIT ?2)";
        let old = move |change: &Transaction<'_>| execute(change, sql, params![signed(before), BATCH]);
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
    change: &Transaction<'_>,
    response: &KeptResponse,
    items: &[String],
    at: u64,
    owner: &str,
) -> rusqlite::Result<bool> {
    let KeptResponse { id, client, previous, status, input, body, request } = response;
    let owner = request.is_some().then_some(owner);
    let (at, bytes) = (signed(at), signed(bytes_of(response)));
    let sql = "INSERT OR IGNORE INTO responses (id, client, previous, status, used, bytes, input, body, request, owner)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
    let values = params![id, client, previous, status, at, bytes, input, body, request, owner];
    let is_kept = has_changed(change, sql, values)?;
    name_items(change, id, items)?;
    Ok(is_kept)
}

fn name_items(change: &Transaction<'_>, response: &str, items: &[String]) -> rusqlite::Result<()> {
    let mut insert =
        change.prepare_cached("INSERT OR REPLACE INTO response_items (id, response) VALUES (?1, ?2)")?;
    items.iter().try_for_each(|item| insert.execute(params![item, response]).map(drop))
}

/// Deletes a batch of those that were used longest ago, while all take more than `most` bytes.
fn delete_for_room(change: &Transaction<'_>, most: u64) -> rusqlite::Result<usize> {
    let mut over = bytes(change)?.saturating_sub(most);
    let sql = "SELECT id, bytes FROM responses WHERE request IS NULL ORDER BY used LIMIT ?1";
    let oldest: Vec<(String, i64)> = list(change, sql, params![BATCH], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let mut deleted = 0;
    for (id, bytes) in oldest {
        if over == 0 {
            break;
        }
        deleted += execute(change, "DELETE FROM responses WHERE id = ?1", params![id])?;
        over = over.saturating_sub(bytes.unsigned_abs());
    }
    Ok(deleted)
}

/// The bytes of those that are still to be made.
fn unfinished_bytes(connection: &Connection) -> rusqlite::Result<u64> {
    let sum: i64 = connection.query_row(
        "SELECT coalesce(sum(bytes), 0) FROM responses WHERE request IS NOT NULL",
        [],
        |row| row.get(0),
    )?;
    Ok(sum.unsigned_abs())
}

/// The bytes of all that is kept.
pub(super) fn bytes(connection: &Connection) -> rusqlite::Result<u64> {
    let sum: i64 =
        connection.query_row("SELECT coalesce(sum(bytes), 0) FROM responses", [], |row| row.get(0))?;
    Ok(sum.unsigned_abs())
}

const COLUMNS: &str = "id, client, previous, status, input, body, request";

fn row(row: &Row<'_>) -> rusqlite::Result<KeptResponse> {
    Ok(KeptResponse {
        id: row.get(0)?,
        client: row.get(1)?,
        previous: row.get(2)?,
        status: row.get(3)?,
        input: row.get(4)?,
        body: row.get(5)?,
        request: row.get(6)?,
    })
}

/// One response of a client.
fn response(connection: &Connection, id: &str, client: &str) -> rusqlite::Result<Option<KeptResponse>> {
    let sql = format!("SELECT {COLUMNS} FROM responses WHERE id = ?1 AND client = ?2");
    find(connection, &sql, params![id, client], row)
}

/// The responses that are still to be made, each with the process that works on it.
fn find_unfinished(connection: &Connection) -> rusqlite::Result<Vec<(UnfinishedResponse, String)>> {
    let mut found = connection.prepare(
        "SELECT id, client, request, body, coalesce(owner, '') FROM responses WHERE request IS NOT NULL",
    )?;
    let row = |row: &Row<'_>| {
        let response = UnfinishedResponse {
            id: row.get(0)?,
            client: row.get(1)?,
            request: row.get(2)?,
            body: row.get(3)?,
        };
        Ok((response, row.get(4)?))
    };
    found.query_map([], row)?.collect()
}

#[cfg(test)]
#[path = "responses_tests.rs"]
mod tests;
