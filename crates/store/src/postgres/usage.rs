//! Usage rows and spending of all processes.

use std::borrow::Cow;
use std::fmt::Write as _;

use async_trait::async_trait;
use postgres::types::ToSql;
use postgres::{Error, Row};

use super::PostgresStore;
use super::link::{Change, as_bigint, limit};
use crate::error::StoreError;
use crate::nodes::Nodes as _;
use crate::usage::{Dimension, ScopeCost, SharedUsage, UncopiedUsage, UsageQuery, UsageRows, UsageSum};
use crate::usage_columns::{self, NUMBERS, SUMS, TEXTS, column_list};
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

/// The requests, and a row for each of their earlier attempts, at the upstream where it was made.
const WITH_ATTEMPTS: &str = "(SELECT at, route, key, model, upstream, agent, outcome, error_code,
        CASE WHEN strpos(details, 'earlier_attempts') > 0 THEN 1 ELSE attempts END AS attempts,
        duration, prompt, cached, reasoning, completion
    FROM respool.usage WHERE at >= $1
    UNION ALL
    SELECT at, 'attempt', key, model, earlier ->> 'upstream', agent, 'error',
        coalesce(earlier ->> 'code', ''), 2, 0, NULL, NULL, NULL, NULL
    FROM respool.usage, jsonb_array_elements(
        (CASE details WHEN '' THEN '{}' ELSE details END)::jsonb -> 'earlier_attempts') AS earlier
    WHERE at >= $1 AND earlier ->> 'why' <> 'put_back') AS attempts";

#[async_trait]
impl UsageRows for PostgresStore {
    async fn sums(&self, query: UsageQuery) -> Result<Vec<UsageSum>, StoreError> {
        let columns: String = query.by.iter().flat_map(|by| [column(*by), ", "]).collect();
        let mut only = String::new();
        for (index, (by, _)) in query.only.iter().enumerate() {
            let _ = write!(only, " AND {} = ${}", column(*by), index + 3);
        }
        let from = if query.by.contains(&Dimension::Upstream) { WITH_ATTEMPTS } else { "respool.usage" };
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
            column_list()
        );
        self.pool.run(move |change| change.list(&sql, &[&run, &limit(most)], read_stored)).await
    }
}

#[async_trait]
impl SharedUsage for PostgresStore {
    async fn database_id(&self) -> Result<String, StoreError> {
        let ask = async || Ok(hex(&self.shared_secret("database", rand::random()).await?));
        self.database_id.get_or_try_init(ask).await.cloned()
    }

    async fn add_rows(&self, rows: UncopiedUsage) -> Result<(), StoreError> {
        let columns = column_list();
        let texts = TEXTS.iter().map(|column| (format!("coalesce({}, '')", column.name), "text[]"));
        let numbers = NUMBERS.iter().map(|column| (column.name.to_owned(), "bigint[]"));
        let (mut values, mut arrays) = (String::new(), String::new());
        for (index, (value, kind)) in texts.chain(numbers).enumerate() {
            let _ = write!(values, ", {value}");
            let _ = write!(arrays, ", ${}::{kind}", index + 3);
        }
        let sql = format!(
            "INSERT INTO respool.usage (origin, place, {columns})
             SELECT $1, place{values} FROM unnest($2::bigint[]{arrays}) AS sent (place, {columns})
             ON CONFLICT (origin, place) DO NOTHING"
        );
        self.pool.run(move |change| add_columns(change, &sql, &rows)).await
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

/// Adds rows column by column: an array for each is quicker to write and to read than a text for each row.
/// Most texts of a row are empty. A column that is empty in all rows goes up as an array without elements.
fn add_columns(change: &mut Change<'_>, sql: &str, rows: &UncopiedUsage) -> Result<(), Error> {
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
    change.execute(sql, &values).map(drop)
}

/// Replaces zero bytes, which the database has in no text.
fn without_zero_bytes(text: Cow<'_, str>) -> Cow<'_, str> {
    if text.contains('\0') { text.replace('\0', "\u{fffd}").into() } else { text }
}

fn read_stored(row: &Row) -> Result<UsageRow, Error> {
    usage_columns::read_row(|index| row.try_get(index), |index| row.try_get(index))
}

fn read_sum(row: &Row, width: usize) -> Result<UsageSum, Error> {
    usage_columns::read_sum(width, |index| row.try_get(index), |index| row.try_get(index))
}
