//! The options of every command that lists, and the line that says how much was listed.

use std::time::Duration;

use clap::Args;
use serde_json::Value;

use super::failure::Failure;
use super::say::{say, say_on_stderr, say_row};
use wire::units::parse_duration;

/// How many rows are listed unless `--limit` says otherwise.
const LIMIT: usize = 50;

/// The options of a list.
#[derive(Args, Clone, Debug)]
pub(super) struct ListArgs {
    /// List at most this many
    #[arg(long, alias = "most", value_name = "COUNT", default_value_t = LIMIT)]
    pub(super) limit: usize,
    /// List only what is from within this time: 24h, 7d, 30d
    #[arg(long, value_name = "TIME", value_parser = parse_span)]
    pub(super) since: Option<Duration>,
    /// Print JSON, for programs
    #[arg(long)]
    pub(super) json: bool,
}

impl Default for ListArgs {
    fn default() -> Self {
        Self { limit: LIMIT, since: None, json: false }
    }
}

impl ListArgs {
    /// Returns true for a time, in milliseconds since 1970, that `--since` includes.
    pub(super) fn includes(&self, at: u64) -> bool {
        self.since.is_none_or(|span| at >= clock::time_ago(span))
    }

    /// Prints the rows that were asked for, as JSON or one line each, and how many of them there are.
    pub(super) fn print_rows<T>(
        &self,
        rows: Vec<T>,
        noun: Noun,
        time: impl Fn(&T) -> u64,
        json: impl Fn(&T) -> Value,
        line: impl Fn(&T) -> String,
    ) {
        self.print_blocks(rows, noun, time, json, |row| vec![line(row)]);
    }

    /// Prints the rows that were asked for as [`Self::print_rows`] does, with several lines each.
    pub(super) fn print_blocks<T>(
        &self,
        mut rows: Vec<T>,
        noun: Noun,
        time: impl Fn(&T) -> u64,
        json: impl Fn(&T) -> Value,
        lines: impl Fn(&T) -> Vec<String>,
    ) {
        rows.retain(|row| self.includes(time(row)));
        let total = rows.len();
        rows.truncate(self.limit);
        if self.json {
            say(&format!("{:#}", rows.iter().map(json).collect::<Value>()));
            return;
        }
        rows.iter().flat_map(lines).for_each(|line| say_row(&line));
        say_on_stderr(&if rows.len() == total {
            noun.count_things(total)
        } else {
            format!("{} of {}; --limit COUNT lists more", rows.len(), noun.count_things(total))
        });
    }
}

/// A noun and its plural.
#[derive(Clone, Copy)]
pub(super) struct Noun(pub(super) &'static str, pub(super) &'static str);

impl Noun {
    /// Writes a number of things: `1 message`, `2 messages`.
    pub(super) fn count_things(self, count: usize) -> String {
        format!("{count} {}", if count == 1 { self.0 } else { self.1 })
    }
}

/// Returns the lines of a table. Columns of texts are aligned to the left, the others to the right.
pub(super) fn align_rows(rows: &[Vec<String>], is_text: impl Fn(usize) -> bool) -> Vec<String> {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let align = |(cell, (column, width)): (&String, (usize, &usize))| {
        if is_text(column) { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
    };
    let line = |row: &Vec<String>| {
        let cells: Vec<String> = row.iter().zip(widths.iter().enumerate()).map(align).collect();
        cells.join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// Reads how far back to look.
pub(super) fn parse_span(text: &str) -> Result<Duration, Failure> {
    parse_duration(text).map_err(|_| "write a number and a unit, such as 24h, 7d or 30d".into())
}
