//! Usage rows and spending of all processes.

use std::borrow::Cow;
use std::fmt::Write as _;

use async_trait::async_trait;
use postgres::types::ToSql;
use postgres::{Error, Row};

use super::PostgresStore;
use super::columns::{number, some_number};
use super::link::{Change, as_bigint, limit};
use crate::error::StoreError;
use crate::nodes::Nodes as _;
use crate::usage::{
    Dimension, RequestOrder, RequestQuery, ScopeCost, SharedUsage, UncopiedUsage, UsageQuery, UsageRows,
    UsageSum,
};
use crate::usage_columns::{self, NUMBERS, RECENT, REPAIRED, SEARCHED, SUMS, TEXTS, column_list};
use wire::UsageRow;
use wire::digest::hex;

/// For how many days spending is kept.
const KEEP_DAYS: u64 = 7;

fn column(dimension: Dimension) -> &'static str {
    match dimension {
        Dimension::Error => "error_code",
        Dimension::Day => "to_char(to_timestamp(at / 1000) AT TIME ZONE 'UTC', 'YYYY-MM-DD')",
        Dimension::Hour => "to_char(to_timestamp(at / 1000) AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24')",
        other => other.as_str(),
    }
}

/// The details of a request, as JSON of the database, which has no escapes of zero bytes.
const DETAILS: &str = r"replace(CASE details WHEN '' THEN '{}' ELSE details END, '\u0000', '\ufffd')::jsonb";

/// Writes the requests, and a row for each of their earlier attempts, at the upstream where it was made.
fn with_attempts() -> String {
    format!(
        "(SELECT at, route, key, model, upstream, agent, node, outcome, error_code,
        CASE WHEN strpos(details, 'earlier_attempts') > 0 THEN 1 ELSE attempts END AS attempts,
        duration, prompt, cached, reasoning, completion
    FROM respool.usage WHERE at >= $1
    UNION ALL
    SELECT at, 'attempt', key, model, earlier ->> 'upstream', agent, node, 'error',
        coalesce(earlier ->> 'code', ''), 2, 0, NULL, NULL, NULL, NULL
    FROM respool.usage, jsonb_array_elements({DETAILS} -> 'earlier_attempts') AS earlier
    WHERE at >= $1 AND earlier ->> 'why' <> 'put_back') AS attempts"
    )
}

#[async_trait]
impl UsageRows for PostgresStore {
    async fn sums(&self, query: UsageQuery) -> Result<Vec<UsageSum>, StoreError> {
        let columns: String = query.by.iter().flat_map(|by| [column(*by), ", "]).collect();
        let mut only = String::new();
        for (index, (by, _)) in query.only.iter().enumerate() {
            let _ = write!(only, " AND {} = ${}", column(*by), index + 3);
        }
        let has_attempts = query.by.contains(&Dimension::Upstream);
        let from = if has_attempts { with_attempts() } else { "respool.usage".to_owned() };
        let sql = format!(
            "SELECT {columns}{SUMS} FROM {from} WHERE at >= $1 AND at < $2{only}
             GROUP BY {columns}model ORDER BY {columns}model"
        );
        let read = move |change: &mut Change<'_>| {
            let width = query.by.len();
            let span = [as_bigint(query.since), as_bigint(query.until)];
            let values = span.iter().map(|time| time as &(dyn ToSql + Sync));
            let only = query.only.iter().map(|(_, value)| value as &(dyn ToSql + Sync));
            let values: Vec<_> = values.chain(only).collect();
            change.list(&sql, &values, |row| read_sum(row, width))
        };
        self.pool.run(read).await
    }

    async fn sums_of_runs(&self, runs: Vec<String>) -> Result<Vec<UsageSum>, StoreError> {
        let sql = format!(
            "SELECT run, key, {SUMS} FROM respool.usage WHERE run <> '' AND run = ANY ($1)
             GROUP BY run, key, model ORDER BY run, key, model"
        );
        self.pool.run(move |change| change.list(&sql, &[&runs], |row| read_sum(row, 2))).await
    }

    async fn requests_of_run(&self, run: &str, most: usize) -> Result<Vec<UsageRow>, StoreError> {
        let run = run.to_owned();
        let sql = format!(
            "SELECT {} FROM respool.usage WHERE run = $1 AND route <> 'attempt' ORDER BY at, place, origin LIMIT $2",
            stored_columns()
        );
        self.pool.run(move |change| change.list(&sql, &[&run, &limit(most)], read_stored)).await
    }

    async fn find(&self, query: RequestQuery) -> Result<Vec<UsageRow>, StoreError> {
        let sql = format!(
            "SELECT {} FROM respool.usage WHERE at >= $1 AND route <> 'attempt' AND ($2::text = '' OR strpos({SEARCHED}, lower($2)) > 0){}{}
             ORDER BY {} LIMIT $3 OFFSET $4",
            stored_columns(),
            if query.repaired { REPAIRED } else { "" },
            selected_values(&query.only),
            order_columns(query.order)
        );
        let find = move |change: &mut Change<'_>| {
            let counts = [as_bigint(query.since), limit(query.most), limit(query.skip)];
            let mut values: Vec<&(dyn ToSql + Sync)> = vec![&counts[0], &query.text, &counts[1], &counts[2]];
            values.extend(query.only.iter().map(|(_, value)| value as &(dyn ToSql + Sync)));
            change.list(&sql, &values, read_stored)
        };
        self.pool.run(find).await
    }

    async fn count_repaired(&self, since: u64) -> Result<u64, StoreError> {
        let sql =
            format!("SELECT count(*) FROM respool.usage WHERE at >= $1 AND route <> 'attempt'{REPAIRED}");
        let count = move |change: &mut Change<'_>| {
            change.find(&sql, &[&as_bigint(since)], |row| number(row, 0)).map(Option::unwrap_or_default)
        };
        self.pool.run(count).await
    }

    async fn find_one(&self, id: &str, at: Option<u64>) -> Result<Option<UsageRow>, StoreError> {
        let (id, at) = (id.to_owned(), at.map(as_bigint));
        let sql = format!(
            "SELECT {} FROM respool.usage WHERE request = $1 AND route <> 'attempt' AND ($2::bigint IS NULL OR at = $2)
             ORDER BY at DESC LIMIT 1",
            stored_columns()
        );
        self.pool.run(move |change| change.find(&sql, &[&id, &at], read_stored)).await
    }

    async fn recent_values(
        &self,
        columns: Vec<Dimension>,
    ) -> Result<Vec<(Dimension, Vec<String>)>, StoreError> {
        let read = move |change: &mut Change<'_>| {
            let values = |dimension: &Dimension| {
                let sql = format!(
                    "SELECT DISTINCT value FROM (SELECT {} AS value FROM respool.usage ORDER BY at DESC LIMIT {RECENT}) AS newest
                     WHERE value <> '' ORDER BY value",
                    column(*dimension)
                );
                Ok((*dimension, change.list(&sql, &[], |row| row.try_get(0))?))
            };
            columns.iter().map(values).collect()
        };
        self.pool.run(read).await
    }
}

/// Writes the conditions of [`RequestQuery::only`]; their parameters begin with number 5.
fn selected_values(only: &[(Dimension, String)]) -> String {
    let mut dimensions: Vec<Dimension> = only.iter().map(|(dimension, _)| *dimension).collect();
    dimensions.dedup();
    let any_value = |wanted: Dimension| {
        let numbered = only.iter().enumerate().filter(|(_, (dimension, _))| *dimension == wanted);
        let either: Vec<String> =
            numbered.map(|(index, _)| had_value(wanted, &format!("${}::text", index + 5))).collect();
        format!(" AND ({})", either.join(" OR "))
    };
    dimensions.into_iter().map(any_value).collect()
}

/// Writes the condition that a request, or one of its attempts, had a value.
fn had_value(dimension: Dimension, value: &str) -> String {
    let earlier = |field: &str| {
        format!(
            "EXISTS (SELECT 1 FROM jsonb_array_elements({DETAILS} -> 'earlier_attempts') AS earlier WHERE earlier ->> '{field}' = {value})"
        )
    };
    let before = match dimension {
        Dimension::Model => {
            format!("strpos(',' || coalesce({DETAILS} ->> 'fallback', ''), ',' || {value} || ':') > 0")
        }
        Dimension::Upstream => earlier("upstream"),
        Dimension::Error => earlier("code"),
        _ => "false".to_owned(),
    };
    format!("{} = {value} OR {before}", column(dimension))
}

/// The columns of an order.
fn order_columns(order: RequestOrder) -> &'static str {
    match order {
        RequestOrder::Newest => "at DESC, place DESC, origin",
        RequestOrder::Oldest => "at, place, origin",
        RequestOrder::Longest => "duration DESC NULLS LAST, at DESC, place DESC",
        RequestOrder::LatestFirstByte => "first_byte DESC NULLS LAST, at DESC, place DESC",
        RequestOrder::MostTokens => "coalesce(prompt, 0) + coalesce(completion, 0) DESC, at DESC, place DESC",
    }
}

#[async_trait]
impl SharedUsage for PostgresStore {
    async fn database_id(&self) -> Result<String, StoreError> {
        let ask = async || Ok(hex(&self.shared_secret("database", rand::random()).await?));
        self.database_id.get_or_try_init(ask).await.cloned()
    }

    async fn add_rows(&self, rows: UncopiedUsage) -> Result<Option<u64>, StoreError> {
        let columns = column_list();
        let texts = TEXTS.iter().map(|column| (format!("coalesce({}, '')", column.name), "text[]"));
        let numbers = NUMBERS.iter().map(|column| (column.name.to_owned(), "bigint[]"));
        let node = TEXTS.len() + NUMBERS.len() + 3;
        let (mut values, mut arrays) = (String::new(), String::new());
        for (index, (value, kind)) in texts.chain(numbers).enumerate() {
            let _ = write!(values, ", {value}");
            let _ = write!(arrays, ", ${}::{kind}", index + 3);
        }
        let sql = format!(
            "INSERT INTO respool.usage (origin, node, place, {columns})
             SELECT $1, ${node}, place{values} FROM unnest($2::bigint[]{arrays}) AS sent (place, {columns})
             ON CONFLICT (origin, place) DO NOTHING"
        );
        let name = self.node.clone();
        let add = move |change: &mut Change<'_>| {
            let taken = find_taken(change, &rows)?;
            if taken.is_none() {
                add_columns(change, &sql, &rows, &name)?;
            }
            Ok(taken)
        };
        self.pool.run(add).await
    }

    async fn last_row_of(&self, origin: &str) -> Result<Option<u64>, StoreError> {
        let (origin, sql) = (origin.to_owned(), "SELECT max(place) FROM respool.usage WHERE origin = $1");
        let find = move |change: &mut Change<'_>| change.find(sql, &[&origin], |row| some_number(row, 0));
        Ok(self.pool.read(find).await?.flatten())
    }

    async fn forget_rows(&self, before: u64) -> Result<(), StoreError> {
        let sql = "DELETE FROM respool.usage WHERE at < $1";
        self.pool.run(move |change| change.execute(sql, &[&as_bigint(before)]).map(drop)).await
    }

    async fn exchange_spending(&self, day: u64, own: Vec<ScopeCost>) -> Result<Vec<ScopeCost>, StoreError> {
        if let Some(others) = self.polls().spent_by_others(day, &own) {
            return Ok(others);
        }
        let (owner, said) = (self.owner.clone(), own.clone());
        let (scopes, costs): (Vec<String>, Vec<i64>) = own.into_iter().unzip();
        let exchange = move |change: &mut Change<'_>| {
            let day = as_bigint(day);
            if !scopes.is_empty() {
                let sql = "INSERT INTO respool.spending (day, owner, scope, millionths)
                     SELECT $1, $2, scope, cost FROM unnest($3::text[], $4::bigint[]) AS own (scope, cost)
                     ON CONFLICT (day, owner, scope) DO UPDATE SET millionths = excluded.millionths";
                change.execute(sql, &[&day, &owner, &scopes, &costs])?;
                let sql = "DELETE FROM respool.spending WHERE day < $1";
                change.execute(sql, &[&(day - as_bigint(KEEP_DAYS))])?;
            }
            let sql =
                "SELECT scope, sum(millionths)::bigint FROM respool.spending WHERE day = $1 AND owner <> $2
                GROUP BY scope";
            change.list(sql, &[&day, &owner], |row| Ok((row.try_get(0)?, row.try_get(1)?)))
        };
        let others = self.pool.run(exchange).await?;
        self.polls().note_said(day, said);
        Ok(others)
    }
}

/// Returns the first number of these rows under which another row is there.
fn find_taken(change: &mut Change<'_>, rows: &UncopiedUsage) -> Result<Option<u64>, Error> {
    let UncopiedUsage { origin, rows } = rows;
    let places: Vec<i64> = rows.iter().map(|(place, _)| as_bigint(*place)).collect();
    let times: Vec<i64> = rows.iter().map(|(_, row)| as_bigint(row.at)).collect();
    let ids: Vec<_> = rows.iter().map(|(_, row)| without_zero_bytes((&*row.id).into())).collect();
    let sql =
        "SELECT min(place) FROM unnest($2::bigint[], $3::bigint[], $4::text[]) AS sent (place, at, request)
            JOIN respool.usage AS kept USING (place)
        WHERE kept.origin = $1 AND (kept.at, kept.request) <> (sent.at, sent.request)";
    let found = change.find(sql, &[origin, &places, &times, &ids], |row| some_number(row, 0))?;
    Ok(found.flatten())
}

/// Adds rows column by column: an array for each is quicker to write and to read than a text for each row.
/// Most texts of a row are empty. A column that is empty in all rows goes up as an array without elements.
fn add_columns(change: &mut Change<'_>, sql: &str, rows: &UncopiedUsage, node: &str) -> Result<(), Error> {
    let UncopiedUsage { origin, rows } = rows;
    let places: Vec<i64> = rows.iter().map(|(place, _)| as_bigint(*place)).collect();
    let texts = TEXTS.each_ref().map(|column| {
        let values = || rows.iter().map(|(_, row)| without_zero_bytes((column.get)(row)));
        if values().all(|text| text.is_empty()) { Vec::new() } else { values().collect() }
    });
    let numbers = NUMBERS.each_ref().map(|column| {
        let values = rows.iter().map(|(_, row)| (column.get)(row).map(as_bigint));
        values.collect::<Vec<_>>()
    });
    let mut values: Vec<&(dyn ToSql + Sync)> = vec![origin, &places];
    values.extend(texts.iter().map(|column| column as &(dyn ToSql + Sync)));
    values.extend(numbers.iter().map(|column| column as &(dyn ToSql + Sync)));
    values.push(&node);
    change.execute(sql, &values).map(drop)
}

/// Replaces zero bytes, which the database has in no text.
pub(super) fn without_zero_bytes(text: Cow<'_, str>) -> Cow<'_, str> {
    if text.contains('\0') { text.replace('\0', "\u{fffd}").into() } else { text }
}

/// The columns that [`read_stored`] reads.
fn stored_columns() -> String {
    format!("{}, node", column_list())
}

fn read_stored(row: &Row) -> Result<UsageRow, Error> {
    let read = usage_columns::read_row(|index| row.try_get(index), |index| row.try_get(index))?;
    Ok(UsageRow { node: row.try_get("node")?, ..read })
}

fn read_sum(row: &Row, width: usize) -> Result<UsageSum, Error> {
    usage_columns::read_sum(width, |index| row.try_get(index), |index| row.try_get(index))
}
