//! Lists of recorded requests, without the rows of route `attempt`: the selected ones in an order, and single
//! ones. Used by `usage`.

use rusqlite::{Connection, Row, params, params_from_iter};

use super::statements::signed;
use crate::usage::{Dimension, RequestOrder, RequestQuery};
use crate::usage_columns::{self, RECENT, REPAIRED, SEARCHED, column_list};
use wire::UsageRow;

/// The columns of an order.
fn order_columns(order: RequestOrder) -> &'static str {
    match order {
        RequestOrder::Newest => "at DESC, id DESC",
        RequestOrder::Oldest => "at, id",
        RequestOrder::Longest => "duration DESC, id DESC",
        RequestOrder::LatestFirstByte => "first_byte DESC, id DESC",
        RequestOrder::MostTokens => "coalesce(prompt, 0) + coalesce(completion, 0) DESC, id DESC",
    }
}

/// The details of a request, as JSON.
const DETAILS: &str = "(CASE details WHEN '' THEN '{}' ELSE details END)";

/// The expression of a column by which rows are grouped.
pub(super) fn dimension_column(dimension: Dimension) -> &'static str {
    match dimension {
        Dimension::Day => "date(at / 1000, 'unixepoch')",
        Dimension::Hour => "strftime('%Y-%m-%dT%H', at / 1000, 'unixepoch')",
        Dimension::Error => "error_code",
        // All rows of a file are those of one.
        Dimension::Node => "''",
        other => other.as_str(),
    }
}

pub(super) fn read_row(row: &Row<'_>) -> rusqlite::Result<UsageRow> {
    usage_columns::read_row(|index| row.get(index), |index| row.get(index))
}

/// Writes the conditions that rows have these values; their parameters begin with number `first`.
pub(super) fn equal_values(only: &[(Dimension, String)], first: usize) -> String {
    let condition = |(index, (dimension, _)): (usize, &(Dimension, String))| {
        format!(" AND {} = ?{}", dimension_column(*dimension), first + index)
    };
    only.iter().enumerate().map(condition).collect()
}

/// Writes the conditions of [`RequestQuery::only`]; their parameters begin with number `first`.
fn selected_values(only: &[(Dimension, String)], first: usize) -> String {
    let mut dimensions: Vec<Dimension> = only.iter().map(|(dimension, _)| *dimension).collect();
    dimensions.dedup();
    let any_value = |wanted: Dimension| {
        let numbered = only.iter().enumerate().filter(|(_, (dimension, _))| *dimension == wanted);
        let either: Vec<String> =
            numbered.map(|(index, _)| had_value(wanted, &format!("?{}", first + index))).collect();
        format!(" AND ({})", either.join(" OR "))
    };
    dimensions.into_iter().map(any_value).collect()
}

/// Writes the condition that a request, or one of its attempts, had a value.
fn had_value(dimension: Dimension, value: &str) -> String {
    let earlier = |field: &str| {
        format!(
            "EXISTS (SELECT 1 FROM json_each({DETAILS}, '$.earlier_attempts') AS earlier WHERE earlier.value ->> '{field}' = {value})"
        )
    };
    let before = match dimension {
        Dimension::Model => format!("instr(',' || ({DETAILS} ->> 'fallback'), ',' || {value} || ':') > 0"),
        Dimension::Upstream => earlier("upstream"),
        Dimension::Error => earlier("code"),
        _ => "false".to_owned(),
    };
    format!("{} = {value} OR {before}", dimension_column(dimension))
}

pub(super) fn find(connection: &Connection, query: &RequestQuery) -> rusqlite::Result<Vec<UsageRow>> {
    let statement = format!(
        "SELECT {} FROM requests WHERE at >= ?1 AND route <> 'attempt' AND (?2 = '' OR instr({SEARCHED}, lower(?2)) > 0){}{} ORDER BY {} LIMIT ?3 OFFSET ?4",
        column_list(),
        if query.repaired { REPAIRED } else { "" },
        selected_values(&query.only, 5),
        order_columns(query.order)
    );
    let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX).into();
    let fixed: [rusqlite::types::Value; 4] =
        [signed(query.since).into(), query.text.clone().into(), count(query.most), count(query.skip)];
    let values = query.only.iter().map(|(_, value)| value.clone().into());
    let parameters = params_from_iter(fixed.into_iter().chain(values));
    connection.prepare_cached(&statement)?.query_map(parameters, read_row)?.collect()
}

/// Counts the requests since a time in which respool repaired something.
pub(super) fn count_repaired(connection: &Connection, since: u64) -> rusqlite::Result<u64> {
    let statement = format!("SELECT count(*) FROM requests WHERE at >= ?1 AND route <> 'attempt'{REPAIRED}");
    let count: i64 = connection.prepare_cached(&statement)?.query_row([signed(since)], |row| row.get(0))?;
    Ok(count.unsigned_abs())
}

/// Returns the newest request of this id, or of this id and time.
pub(super) fn find_one(
    connection: &Connection,
    id: &str,
    at: Option<u64>,
) -> rusqlite::Result<Option<UsageRow>> {
    let time = if at.is_some() { "at = ?2" } else { "?2 IS NULL" };
    let columns = column_list();
    let statement = format!(
        "SELECT {columns} FROM requests WHERE request = ?1 AND route <> 'attempt' AND {time} ORDER BY at DESC LIMIT 1"
    );
    let mut statement = connection.prepare_cached(&statement)?;
    statement.query_map(params![id, at.map(signed)], read_row)?.next().transpose()
}

pub(super) fn find_of_run(
    connection: &Connection,
    run: &str,
    most: usize,
) -> rusqlite::Result<Vec<UsageRow>> {
    let columns = column_list();
    let statement = format!(
        "SELECT {columns} FROM requests WHERE run = ?1 AND route <> 'attempt' ORDER BY at, id LIMIT ?2"
    );
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    connection.prepare_cached(&statement)?.query_map(params![run, most], read_row)?.collect()
}

/// Returns the values that a column of the newest rows has, in order.
pub(super) fn recent_values(connection: &Connection, dimension: Dimension) -> rusqlite::Result<Vec<String>> {
    let column = dimension_column(dimension);
    let statement = format!(
        "SELECT DISTINCT value FROM (SELECT {column} AS value FROM requests ORDER BY at DESC LIMIT {RECENT}) WHERE value <> '' ORDER BY value"
    );
    connection.prepare_cached(&statement)?.query_map([], |row| row.get(0))?.collect()
}
