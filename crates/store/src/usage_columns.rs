//! The columns of usage rows and of their sums, as both engines have them. Pure.

use std::borrow::Cow;
use std::time::Duration;

use crate::usage::{UsageSum, UsageTotals};
use wire::turn::Usage;
use wire::{RequestDetails, UsageRow};

/// Longer texts of errors are cut, in bytes.
pub(crate) const LONGEST_ERROR: usize = 400;

/// A column: its name, and how its value is read from a row and put into one.
pub(crate) struct Column<Get, Put> {
    pub(crate) name: &'static str,
    pub(crate) get: Get,
    put: Put,
}

type TextColumn = Column<fn(&UsageRow) -> Cow<'_, str>, fn(&mut UsageRow, String)>;
type NumberColumn = Column<fn(&UsageRow) -> Option<u64>, fn(&mut UsageRow, Option<u64>)>;

const fn text(
    name: &'static str,
    get: fn(&UsageRow) -> Cow<'_, str>,
    put: fn(&mut UsageRow, String),
) -> TextColumn {
    Column { name, get, put }
}

const fn number(
    name: &'static str,
    get: fn(&UsageRow) -> Option<u64>,
    put: fn(&mut UsageRow, Option<u64>),
) -> NumberColumn {
    Column { name, get, put }
}

/// The columns of texts.
pub(crate) static TEXTS: [TextColumn; 15] = [
    text("request", |row| (&*row.id).into(), |row, text| row.id = text),
    text("route", |row| (&*row.route).into(), |row, text| row.route = text.into()),
    text("key", |row| (&*row.key).into(), |row, text| row.key = text),
    text("model", |row| (&*row.model).into(), |row, text| row.model = text),
    text("upstream", |row| (&*row.upstream).into(), |row, text| row.upstream = text),
    text("agent", |row| (&*row.agent).into(), |row, text| row.agent = text),
    text("run", |row| (&*row.run).into(), |row, text| row.run = text),
    text("dialects", |row| (&*row.dialects).into(), |row, text| row.dialects = text),
    text("repairs", |row| (&*row.repairs).into(), |row, text| row.repairs = text),
    text("recovery", |row| (&*row.recovery).into(), |row, text| row.recovery = text),
    text("loop_stopped", |row| (&*row.loop_stopped).into(), |row, text| row.loop_stopped = text),
    text("outcome", |row| (&*row.outcome).into(), |row, text| row.outcome = text.into()),
    text("error_code", |row| (&*row.error_code).into(), |row, text| row.error_code = text),
    text("error", |row| cut_error(&row.error).into(), |row, text| row.error = text),
    text(
        "details",
        |row| write_details(&row.details),
        |row, text| row.details = serde_json::from_str(&text).unwrap_or_default(),
    ),
];

/// The columns of numbers. `prompt` is NULL where no tokens are known, and comes before the other tokens.
pub(crate) static NUMBERS: [NumberColumn; 11] = [
    number("at", |row| Some(row.at), |row, at| row.at = at.unwrap_or_default()),
    number(
        "stream",
        |row| Some(row.stream.into()),
        |row, stream| row.stream = stream.is_some_and(|it| it != 0),
    ),
    number(
        "status",
        |row| Some(row.status.into()),
        |row, status| row.status = status.and_then(|status| status.try_into().ok()).unwrap_or_default(),
    ),
    number(
        "prompt",
        |row| row.usage.map(|usage| usage.prompt),
        |row, prompt| row.usage = prompt.map(|prompt| Usage { prompt, ..Usage::default() }),
    ),
    number("cached", |row| row.usage?.cached, |row, cached| put_tokens(row, |usage| usage.cached = cached)),
    number(
        "reasoning",
        |row| row.usage?.reasoning,
        |row, reasoning| put_tokens(row, |usage| usage.reasoning = reasoning),
    ),
    number(
        "completion",
        |row| row.usage.map(|usage| usage.completion),
        |row, completion| put_tokens(row, |usage| usage.completion = completion.unwrap_or_default()),
    ),
    number(
        "first_byte",
        |row| row.first_byte.map(clock::to_millis),
        |row, time| row.first_byte = time.map(Duration::from_millis),
    ),
    number(
        "duration",
        |row| Some(clock::to_millis(row.duration)),
        |row, time| row.duration = Duration::from_millis(time.unwrap_or_default()),
    ),
    number(
        "waited",
        |row| Some(clock::to_millis(row.waited)),
        |row, time| row.waited = Duration::from_millis(time.unwrap_or_default()),
    ),
    number(
        "attempts",
        |row| Some(row.attempts.into()),
        |row, count| row.attempts = count.map_or(0, |count| count.try_into().unwrap_or(u32::MAX)),
    ),
];

fn put_tokens(row: &mut UsageRow, put: impl FnOnce(&mut Usage)) {
    if let Some(usage) = &mut row.usage {
        put(usage);
    }
}

fn cut_error(error: &str) -> &str {
    &error[..error.floor_char_boundary(LONGEST_ERROR)]
}

/// Returns the details as they are stored. Most requests have none.
fn write_details(details: &RequestDetails) -> Cow<'static, str> {
    if *details == RequestDetails::default() {
        return Cow::Borrowed("");
    }
    serde_json::to_string(details).unwrap_or_default().into()
}

/// Lists the columns of a row, texts first, as [`read_row`] reads them.
pub(crate) fn column_list() -> String {
    let texts = TEXTS.iter().map(|column| column.name);
    texts.chain(NUMBERS.iter().map(|column| column.name)).collect::<Vec<_>>().join(", ")
}

/// Reads a row whose columns are those of [`column_list`].
pub(crate) fn read_row<E>(
    text: impl Fn(usize) -> Result<String, E>,
    number: impl Fn(usize) -> Result<Option<i64>, E>,
) -> Result<UsageRow, E> {
    let mut row = UsageRow::default();
    for (index, column) in TEXTS.iter().enumerate() {
        (column.put)(&mut row, text(index)?);
    }
    for (index, column) in NUMBERS.iter().enumerate() {
        (column.put)(&mut row, number(TEXTS.len() + index)?.map(i64::unsigned_abs));
    }
    Ok(row)
}

/// The columns of a row of sums, behind those that it is grouped by, as [`read_sum`] reads them. A row of the
/// route `attempt` is an attempt that another one followed, and counts as nothing else.
pub(crate) const SUMS: &str = "model, count(*) FILTER (WHERE route NOT IN ('agent_model', 'attempt')),
    count(*) FILTER (WHERE route NOT IN ('agent_model', 'attempt') AND outcome = 'error'),
    count(*) FILTER (WHERE route NOT IN ('agent', 'attempt') AND upstream <> ''),
    CAST(coalesce(sum(attempts - 1) FILTER (WHERE attempts > 1), 0) AS bigint),
    CAST(coalesce(sum(duration) FILTER (WHERE route <> 'agent'), 0) AS bigint),
    CAST(coalesce(sum(prompt), 0) AS bigint), CAST(coalesce(sum(cached), 0) AS bigint),
    CAST(coalesce(sum(reasoning), 0) AS bigint), CAST(coalesce(sum(completion), 0) AS bigint)";

/// How many of the newest rows are looked at for the values of a column.
pub(crate) const RECENT: u32 = 10_000;
/// The text that is searched.
pub(crate) const SEARCHED: &str = "lower(concat_ws(' ', request, key, model, upstream, agent, run, dialects, repairs, recovery, outcome, error_code, error, details))";
/// The condition that a reply was repaired: calls were read from text or repaired, it was asked for again, or
/// a loop was ended.
pub(crate) const REPAIRED: &str =
    " AND (dialects NOT IN ('', 'native') OR repairs <> '' OR recovery <> '' OR loop_stopped <> '')";

/// Reads a row of sums that is grouped by `width` columns.
pub(crate) fn read_sum<E>(
    width: usize,
    text: impl Fn(usize) -> Result<String, E>,
    number: impl Fn(usize) -> Result<i64, E>,
) -> Result<UsageSum, E> {
    let whole = |index: usize| number(width + index).map(i64::unsigned_abs);
    let some = |count: u64| (count > 0).then_some(count);
    let (prompt, cached, reasoning, completion) = (whole(6)?, some(whole(7)?), some(whole(8)?), whole(9)?);
    Ok(UsageSum {
        names: (0..width).map(&text).collect::<Result<_, E>>()?,
        model: text(width)?,
        totals: UsageTotals {
            requests: whole(1)?,
            failed: whole(2)?,
            model_calls: whole(3)?,
            repeats: whole(4)?,
            busy: whole(5)?,
            usage: Usage { prompt, completion, cached, reasoning, ..Usage::default() },
        },
    })
}
