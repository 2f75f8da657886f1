//! Responses of the Responses API that clients keep: to continue, to read again, and to wait for.
//!
//! A response holds its own items only; the conversation before it is read along `previous`. What the items mean is `translate`'s
//! business: inputs and response objects are texts here. Called by `server`.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{Connection, OptionalExtension as _, Row, Transaction, params};

use super::numbers::signed;

/// So many responses are deleted in one bite at most.
const BITE: u32 = 64;
/// No conversation is longer, in responses.
const LONGEST: u32 = 10_000;

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
pub(super) struct Conversation {
    /// The responses' ids.
    pub(super) ids: Vec<String>,
    /// Their items.
    pub(super) items: Vec<String>,
}

/// A change of what is kept.
#[derive(Clone, Debug)]
pub(super) enum ResponseChange {
    /// A new one, with the ids of the items that the model made. Nothing happens where it is still to be made and all of these would
    /// take more than `most_unfinished` bytes.
    Keep { response: KeptResponse, items: Vec<String>, at: u64, most_unfinished: u64 },
    /// One that was made in the background has ended. Nothing happens where it was ended or deleted meanwhile.
    Finish { id: String, status: String, body: String, items: Vec<String>, at: u64 },
    /// This process works on it from now on, if it was the other one's.
    Claim { id: String, from: String },
    /// A client has continued these.
    Use { ids: Vec<String>, at: u64 },
    /// A client deletes its own.
    Remove { id: String, client: String },
    /// Those that were not used since.
    Expire { before: u64 },
    /// Those that were used longest ago, as long as all take more than this. What is still to be made counts and stays.
    Shrink { most: u64 },
}

pub(super) fn apply(change: &Transaction<'_>, what: &ResponseChange, owner: &str) -> rusqlite::Result<usize> {
    match what {
        ResponseChange::Keep { response, items, at, most_unfinished } => {
            keep(change, response, items, *at, (owner, *most_unfinished))
        }
        ResponseChange::Finish { id, status, body, items, at } => {
            finish(change, id, (status, body), items, *at)
        }
        ResponseChange::Claim { id, from } => change
            .prepare_cached(
                "UPDATE responses SET owner = ?2 WHERE id = ?1 AND owner = ?3 AND request IS NOT NULL",
            )?
            .execute(params![id, owner, from]),
        ResponseChange::Use { ids, at } => {
            let mut touch = change.prepare_cached("UPDATE responses SET used = ?2 WHERE id = ?1")?;
            ids.iter().map(|id| touch.execute(params![id, signed(*at)])).sum()
        }
        ResponseChange::Remove { id, client } => change
            .prepare_cached("DELETE FROM responses WHERE id = ?1 AND client = ?2")?
            .execute(params![id, client]),
        ResponseChange::Expire { before } => change
            .prepare_cached(
                "DELETE FROM responses WHERE id IN
                     (SELECT id FROM responses WHERE used < ?1 AND request IS NULL LIMIT ?2)",
            )?
            .execute(params![signed(*before), BITE]),
        ResponseChange::Shrink { most } => shrink(change, *most),
    }
}

fn keep(
    change: &Transaction<'_>,
    response: &KeptResponse,
    items: &[String],
    at: u64,
    (owner, most_unfinished): (&str, u64),
) -> rusqlite::Result<usize> {
    let KeptResponse { id, client, previous, status, input, body, request } = response;
    let bytes = input.len() + body.len() + request.as_ref().map_or(0, String::len);
    let owner = request.is_some().then_some(owner);
    if request.is_some() && unfinished_bytes(change)?.saturating_add(bytes as u64) > most_unfinished {
        return Ok(0);
    }
    let kept = change
        .prepare_cached(
            "INSERT OR IGNORE INTO responses (id, client, previous, status, used, bytes, input, body, request, owner)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
        )?
        .execute(params![
            id,
            client,
            previous,
            status,
            signed(at),
            signed(bytes as u64),
            input,
            body,
            request,
            owner
        ])?;
    name_items(change, id, items)?;
    Ok(kept)
}

fn finish(
    change: &Transaction<'_>,
    id: &str,
    (status, body): (&str, &str),
    items: &[String],
    at: u64,
) -> rusqlite::Result<usize> {
    let finished = change
        .prepare_cached(
            "UPDATE responses SET status = ?2, body = ?3, used = ?4, bytes = length(CAST(input AS BLOB)) + ?5,
                 request = NULL, owner = NULL
             WHERE id = ?1 AND request IS NOT NULL",
        )?
        .execute(params![id, status, body, signed(at), signed(body.len() as u64)])?;
    if finished > 0 {
        name_items(change, id, items)?;
    }
    Ok(finished)
}

fn name_items(change: &Transaction<'_>, response: &str, items: &[String]) -> rusqlite::Result<()> {
    let mut insert =
        change.prepare_cached("INSERT OR REPLACE INTO response_items (id, response) VALUES (?1, ?2)")?;
    items.iter().try_for_each(|item| insert.execute(params![item, response]).map(drop))
}

/// Deletes a bite of those that were used longest ago.
fn shrink(change: &Transaction<'_>, most: u64) -> rusqlite::Result<usize> {
    let mut over = bytes(change)?.saturating_sub(most);
    let mut oldest = change
        .prepare_cached("SELECT id, bytes FROM responses WHERE request IS NULL ORDER BY used LIMIT ?1")?;
    let found: Vec<(String, i64)> = oldest
        .query_map(params![BITE], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let mut delete = change.prepare_cached("DELETE FROM responses WHERE id = ?1")?;
    let mut deleted = 0;
    for (id, bytes) in found {
        if over == 0 {
            break;
        }
        deleted += delete.execute(params![id])?;
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
pub(super) fn one(connection: &Connection, id: &str, client: &str) -> rusqlite::Result<Option<KeptResponse>> {
    connection
        .prepare_cached(&format!("SELECT {COLUMNS} FROM responses WHERE id = ?1 AND client = ?2"))?
        .query_row(params![id, client], row)
        .optional()
}

/// A response of a client and all that it continues. Empty when it is not known, or one of them is no longer kept or not made
/// yet; `None` when the items take more than `most` bytes.
pub(super) fn conversation(
    connection: &Connection,
    id: &str,
    client: &str,
    (most, items_of): (usize, ItemsOf),
) -> rusqlite::Result<Option<Conversation>> {
    let (mut found, mut left) = (Vec::new(), most);
    let mut next = Some(id.to_owned());
    while let Some(id) = next {
        let response = one(connection, &id, client)?.filter(|response| response.request.is_none());
        let Some(response) = response else { return Ok(Some(Conversation::default())) };
        next = response.previous.filter(|_| found.len() < LONGEST as usize);
        let items = items_of(&response.input, &response.body);
        let Some(rest) = left.checked_sub(items.iter().map(String::len).sum()) else { return Ok(None) };
        left = rest;
        found.push((id, items));
    }
    let (ids, items): (Vec<_>, Vec<_>) = found.into_iter().rev().unzip();
    Ok(Some(Conversation { ids, items: items.into_iter().flatten().collect() }))
}

/// These items of a client's responses, each with its id; `None` when they take more than `most` bytes. A response is read once,
/// however many of the items it holds.
pub(super) fn items(
    connection: &Connection,
    ids: &[String],
    client: &str,
    (most, items_named): (usize, ItemsNamed),
) -> rusqlite::Result<Option<Vec<(String, String)>>> {
    let mut holder = connection.prepare_cached(
        "SELECT responses.id FROM response_items JOIN responses ON responses.id = response_items.response
         WHERE response_items.id = ?1 AND responses.client = ?2",
    )?;
    let mut holders: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for item in ids.iter().collect::<BTreeSet<_>>() {
        let response: Option<String> =
            holder.query_row(params![item, client], |row| row.get(0)).optional()?;
        if let Some(response) = response {
            holders.entry(response).or_default().push(item.clone());
        }
    }
    let (mut found, mut left) = (Vec::new(), most);
    for (response, ids) in holders {
        let Some(response) = one(connection, &response, client)? else { continue };
        let named = items_named(&response.body, &ids);
        let bytes = named.iter().map(|(_, item)| item.len()).sum();
        let Some(rest) = left.checked_sub(bytes) else { return Ok(None) };
        left = rest;
        found.extend(named);
    }
    Ok(Some(found))
}

/// The responses that are still to be made, each with the process that works on it.
pub(super) fn unfinished(connection: &Connection) -> rusqlite::Result<Vec<(UnfinishedResponse, String)>> {
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
