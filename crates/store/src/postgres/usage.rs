//! Usage rows and spending of all processes.

use std::fmt::Write as _;
use std::io::Write as _;

use async_trait::async_trait;
use postgres::types::ToSql;
use postgres::{Error, Row};

use super::PostgresStore;
use super::link::{Change, as_bigint, limit};
use crate::error::StoreError;
use crate::nodes::Nodes as _;
use crate::usage::{
    Dimension, ScopeCost, SharedUsage, StoredUsage, UncopiedUsage, UsageQuery, UsageRows, UsageSum,
};
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

#[async_trait]
impl UsageRows for PostgresStore {
    async fn sums(&self, query: UsageQuery) -> Result<Vec<UsageSum>, StoreError> {
        let columns: String = query.by.iter().flat_map(|by| [column(*by), ", "]).collect();
        let mut only = String::new();
        for (index, (by, _)) in query.only.iter().enumerate() {
            let _ = write!(only, " AND {} = ${}", column(*by), index + 3);
        }
        let sql = format!(
            "SELECT {columns}{SUMS} FROM respool.usage WHERE at >= $1 AND at < $2{only}
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

    async fn requests_of_run(&self, run: &str, most: usize) -> Result<Vec<StoredUsage>, StoreError> {
        let run = run.to_owned();
        let sql = format!(
            "SELECT {} FROM respool.usage WHERE run = $1 ORDER BY at, place, origin LIMIT $2",
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
        let sql = format!(
            "INSERT INTO respool.usage (origin, place, {columns})
             SELECT $1, place, {columns} FROM json_populate_recordset(NULL::respool.usage, $2::text::json)
             ON CONFLICT (origin, place) DO NOTHING"
        );
        let (origin, rows) = (rows.origin, write_json(&rows.rows));
        self.pool.run(move |change| change.execute(&sql, &[&origin, &rows]).map(drop)).await
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

/// Writes rows as a JSON array. Each request has a row, so it is written without values in between.
fn write_json(rows: &[(u64, UsageRow)]) -> String {
    let mut text = Vec::with_capacity(rows.len() * 512);
    for (index, (place, row)) in rows.iter().enumerate() {
        // Writing to memory does not fail.
        let _ = write!(text, "{}{{\"place\":{place}", if index == 0 { '[' } else { ',' });
        for column in &TEXTS {
            let _ = write!(text, ",\"{}\":", column.name);
            let value = (column.get)(row);
            // The database has no zero byte in a text.
            let value = if value.contains('\0') { value.replace('\0', "\u{fffd}").into() } else { value };
            let _ = serde_json::to_writer(&mut text, &*value);
        }
        for column in &NUMBERS {
            let _ = match (column.get)(row) {
                Some(number) => write!(text, ",\"{}\":{}", column.name, as_bigint(number)),
                None => write!(text, ",\"{}\":null", column.name),
            };
        }
        text.push(b'}');
    }
    text.extend_from_slice(if rows.is_empty() { b"[]" } else { b"]" });
    String::from_utf8(text).unwrap_or_default()
}

fn read_stored(row: &Row) -> Result<StoredUsage, Error> {
    usage_columns::read_row(|index| row.try_get(index), |index| row.try_get(index))
}

fn read_sum(row: &Row, width: usize) -> Result<UsageSum, Error> {
    usage_columns::read_sum(width, |index| row.try_get(index), |index| row.try_get(index))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_written_as_json() {
        let row = UsageRow { id: "a\0\"\\\n".into(), at: u64::MAX, ..UsageRow::default() };
        for count in 0..3 {
            let rows: Vec<_> = (0..count).map(|place| (place, row.clone())).collect();
            let written: Vec<serde_json::Value> = serde_json::from_str(&write_json(&rows)).unwrap();
            assert_eq!(written.len(), rows.len());
            for (place, one) in written.iter().enumerate() {
                assert_eq!(one.as_object().unwrap().len(), 1 + TEXTS.len() + NUMBERS.len());
                assert_eq!((&one["place"], &one["request"]), (&place.into(), &"a\u{fffd}\"\\\n".into()));
                assert_eq!((&one["at"], &one["prompt"]), (&i64::MAX.into(), &serde_json::Value::Null));
            }
        }
    }
}
