//! `respool usage`: shows usage and costs, from rows on disk, while a server may write more. Also builds
//! a server's ledger.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;

use super::failure::Failure;
use super::listing::{align_rows, parse_span};
use super::running::{say_shown_alone, warn_of_unkept_records};
use super::runtime::new_runtime;
use super::say::{flat_text, say, say_on_stderr};
use settings::{Loaded, Settings};
use store::{Dimension, Store, StoreError, UsageQuery, UsageStore, UsageTotals};
use usage::{
    Comparison, Ledger, LedgerSettings, PriceSource, Prices, Report, ReportLine, UnknownDimension,
    parse_dimensions, report_from_store,
};
use wire::units::UnusableSetting;

#[derive(Args, Debug)]
pub(super) struct UsageArgs {
    /// How far back to look: 24h, 7d, 30d
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = parse_span)]
    since: Duration,
    /// Group by these, separated by commas: model, key, agent, upstream, route, outcome,
    /// error, node, day, hour
    #[arg(long, value_name = "NAMES", default_value = "model", value_parser = parse_grouping)]
    by: Grouping,
    /// Show costs, what the same tokens would have cost elsewhere, and how each number is calculated
    #[arg(long)]
    costs: bool,
    /// Order by this, the most first [default: by name]
    #[arg(long, value_name = "NAME", value_parser = ["requests", "failed", "tokens", "cost"])]
    sort: Option<String>,
    /// List at most this many; sums count all
    #[arg(long, value_name = "COUNT")]
    limit: Option<usize>,
    /// Print JSON, for programs
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Print CSV, for spreadsheets
    #[arg(long)]
    csv: bool,
}

/// Names to group by.
#[derive(Clone, Debug)]
struct Grouping(Vec<Dimension>);

fn parse_grouping(text: &str) -> Result<Grouping, UnknownDimension> {
    parse_dimensions(text).map(Grouping)
}

/// Returns the ledger of a server with these settings.
///
/// # Errors
/// When the price list is unusable.
pub(super) async fn open_ledger(settings: &Settings) -> Result<Arc<Ledger>, Vec<UnusableSetting>> {
    let terms = ledger_settings(settings)?;
    let keeps_rows = !settings.usage.keep.is_zero();
    let (store, error) = match keeps_rows.then(|| UsageStore::open(&settings.store.state_dir)) {
        Some(Ok(store)) => (Some(Arc::new(store)), None),
        Some(Err(error)) => (None, Some(error)),
        None => (None, None),
    };
    let ledger = Ledger::new(terms, store);
    if let Some(error) = error {
        // Requests are answered all the same.
        tracing::error!(target: "respool::usage", %error, "usage records are not kept, and budgets and limits of tokens count from now on");
        ledger.mark_broken(format!(
            "{error}. It was so when respool started: restart respool once this is corrected. Until then, runs and responses are \
             not kept either, and budgets and `tokens_per_day` count from its start"
        ));
    }
    ledger.load_spending().await;
    ledger.load_problems().await;
    Ok(Arc::new(ledger))
}

/// Prices and budgets of these settings.
///
/// # Errors
/// When the price list is unusable.
pub(super) fn ledger_settings(settings: &Settings) -> Result<LedgerSettings, Vec<UnusableSetting>> {
    let prices = load_prices(settings)?;
    Ok(LedgerSettings { config: settings.usage.clone(), budgets: settings.budgets.clone(), prices })
}

/// Returns the prices of these settings.
///
/// # Errors
/// When the list of public prices cannot be read.
pub(super) fn load_prices(settings: &Settings) -> Result<Prices, Vec<UnusableSetting>> {
    let fault = |why: String| vec![UnusableSetting::new(&["usage", "price_list"], why)];
    let list = settings.usage.price_list.as_ref().map(|path| {
        std::fs::read_to_string(path)
            .map_err(|error| fault(format!("{} cannot be read: {error}; correct the path", path.display())))
    });
    let list = list.transpose()?;
    let relay = &settings.relay;
    let aliases = relay.models.keys().map(|id| (id.clone(), relay.target(id).to_owned()));
    let currency = settings.usage.currency.as_deref();
    let prices = Prices::new(&settings.prices, currency, list.as_deref()).map_err(|why| {
        fault(format!("the price list cannot be read: {why}; docs/operating.md shows its form"))
    })?;
    Ok(prices.with_aliases(aliases.collect()))
}

pub(super) fn run_usage(loaded: &Loaded, arguments: &UsageArgs) -> Result<(), Failure> {
    let settings = &loaded.settings;
    let prices = load_prices(settings).map_err(|found| loaded.problems(found))?;
    let by = arguments.by.0.clone();
    let query = UsageQuery { since: clock::time_ago(arguments.since), until: u64::MAX, by, only: Vec::new() };
    let currency = settings.usage.currency.as_deref().unwrap_or_default();
    let mut report = new_runtime()?.block_on(make_report(settings, query, &prices))?;
    let total = report.lines.len();
    select_lines(&mut report, arguments.sort.as_deref(), arguments.limit);
    if arguments.json {
        say(&format!("{:#}", report.to_json(arguments.costs)));
    } else if arguments.csv {
        csv_lines(&report, arguments.costs).iter().for_each(|line| say(line));
    } else if report.lines.is_empty() {
        say_on_stderr(
            "No requests in this period. `respool serve` records them unless `[usage] keep` is 0s.",
        );
    } else {
        table_lines(&report, arguments.costs, currency).iter().for_each(|line| say(&flat_text(line)));
        if report.lines.len() < total {
            say_on_stderr(&format!("{} of {total} lines; --limit COUNT lists more", report.lines.len()));
        }
    }
    Ok(())
}

/// Reports on all nodes or, while their database cannot be read, on this one.
async fn make_report(settings: &Settings, query: UsageQuery, prices: &Prices) -> Result<Report, Failure> {
    let compare = &settings.usage.compare;
    if settings.store.store.url.is_some() {
        let of_all = async {
            let store = Store::open_in_place(&settings.store)?;
            let rows =
                store.shared_usage().ok_or(StoreError("this store has no usage records".to_owned()))?;
            report_from_store(rows, query.clone(), prices, compare).await
        };
        match of_all.await {
            Ok(report) => {
                warn_of_unkept_records(settings).await;
                return Ok(report);
            }
            Err(error) => say_shown_alone(&error),
        }
    } else {
        warn_of_unkept_records(settings).await;
    }
    let store = UsageStore::open_to_read(&settings.store.state_dir)?;
    Ok(report_from_store(&store, query, prices, compare).await?)
}

/// Orders the lines of a report, the most first, and leaves out those beyond a limit.
fn select_lines(report: &mut Report, sort: Option<&str>, limit: Option<usize>) {
    let order = |one: &ReportLine, other: &ReportLine| {
        let (one_totals, other_totals) = (&one.totals, &other.totals);
        match sort {
            Some("requests") => other_totals.requests.cmp(&one_totals.requests),
            Some("failed") => other_totals.failed.cmp(&one_totals.failed),
            Some("tokens") => other_totals.usage.total_tokens().cmp(&one_totals.usage.total_tokens()),
            Some("cost") => other.cost.cmp(&one.cost),
            _ => Ordering::Equal,
        }
    };
    report.lines.sort_by(order);
    report.lines.truncate(limit.unwrap_or(usize::MAX));
}

/// Returns the headings and cells of a report.
fn report_cells(report: &Report, costs: bool) -> Vec<Vec<String>> {
    let names = report.by.iter().map(|dimension| dimension.as_str());
    let counts =
        ["requests", "failed", "model calls", "repeats", "prompt", "cached", "completion", "reasoning"];
    let money: &[&str] = if costs { &["cost"] } else { &[] };
    // What each day would have cost elsewhere, minus what it cost, if the currency is the same.
    let by_day = costs && report.by.contains(&Dimension::Day);
    let is_shown = |it: &&Comparison| by_day && (it.saved.is_some() || it.cost.is_none());
    let elsewhere = report.total.compared.iter().filter(is_shown).map(|it| format!("vs {}", it.model));
    let head = names.chain(counts).chain(money.iter().copied()).map(str::to_owned).chain(elsewhere).collect();
    let row = |line: &ReportLine| {
        let UsageTotals { requests, failed, model_calls, repeats, usage, .. } = line.totals;
        let counts = [
            requests,
            failed,
            model_calls,
            repeats,
            usage.prompt,
            usage.cached.unwrap_or_default(),
            usage.completion,
            usage.reasoning.unwrap_or_default(),
        ];
        let names = line.names.iter().map(|name| if name.is_empty() { "-".to_owned() } else { name.clone() });
        let money = costs.then(|| line.cost.to_string());
        let saved = |it: &Comparison| it.saved.map_or_else(|| "-".to_owned(), |saved| saved.to_string());
        let elsewhere = line.compared.iter().filter(is_shown).map(saved);
        names.chain(counts.iter().map(ToString::to_string)).chain(money).chain(elsewhere).collect::<Vec<_>>()
    };
    std::iter::once(head).chain(report.lines.iter().map(row)).collect()
}

/// The columns of counts in CSV.
const CSV_NAMES: [&str; 8] = [
    "requests",
    "failed",
    "model_calls",
    "repeats",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "reasoning_tokens",
];

fn csv_lines(report: &Report, costs: bool) -> Vec<String> {
    let quoted = |(column, cell): (usize, &String)| {
        // A spreadsheet would take such a name for a formula.
        let is_formula = column < report.by.len() && cell.starts_with(['=', '+', '-', '@', '\t', '\r']);
        let cell = if is_formula { format!("'{cell}") } else { cell.clone() };
        if cell.contains([',', '"', '\n', '\r']) {
            format!("\"{}\"", cell.replace('"', "\"\""))
        } else {
            cell
        }
    };
    let row = |row: &Vec<String>| row.iter().enumerate().map(quoted).collect::<Vec<_>>().join(",");
    let mut rows = report_cells(report, costs);
    // The names of the JSON form, for programs that read both.
    let names = CSV_NAMES.into_iter();
    rows[0].iter_mut().skip(report.by.len()).zip(names).for_each(|(head, name)| name.clone_into(head));
    for row in rows.iter_mut().skip(1) {
        row.iter_mut().filter(|cell| *cell == "-").for_each(String::clear);
    }
    rows.iter().map(row).collect()
}

/// Counts are shortened in a table that is wider.
const MOST_COLUMNS: usize = 80;

/// Shortens a count of at least 10,000 to three digits; leaves other cells.
fn shorten_count(cell: &str) -> String {
    let Ok(count) = cell.parse::<u64>() else { return cell.to_owned() };
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let (value, unit) = match count {
        ..10_000 => return cell.to_owned(),
        10_000..999_500 => (count as f64 / 1e3, "k"),
        999_500..999_500_000 => (count as f64 / 1e6, "M"),
        _ => (count as f64 / 1e9, "G"),
    };
    let decimals = if value < 10.0 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.decimals$}{unit}")
}

/// Removes the counts that few need, where all are 0.
fn remove_empty_counts(rows: &mut [Vec<String>], first: usize) {
    let is_empty = |column: usize| {
        let name = rows.first().map_or("", |head| &head[column]);
        ["model calls", "repeats", "cached", "reasoning"].contains(&name)
            && rows.iter().skip(1).all(|row| row[column] == "0")
    };
    let columns = rows.first().map_or(0, Vec::len);
    let empty: Vec<usize> = (first..columns).filter(|column| is_empty(*column)).collect();
    for row in rows {
        let mut columns = 0..;
        row.retain(|_| columns.next().is_some_and(|column| !empty.contains(&column)));
    }
}

/// Aligns names to the left and numbers to the right, with the sum at the bottom.
fn table_lines(report: &Report, costs: bool, currency: &str) -> Vec<String> {
    let mut rows = report_cells(report, costs);
    let total = Report {
        lines: vec![ReportLine { names: vec!["-".into(); report.by.len()], ..report.total.clone() }],
        ..report.clone()
    };
    if report.lines.len() > 1 && !report.by.is_empty() {
        let mut sum = report_cells(&total, costs).remove(1);
        "all".clone_into(&mut sum[0]);
        rows.push(sum);
    }
    let names = report.by.len();
    remove_empty_counts(&mut rows, names);
    let mut lines = align_rows(&rows, |column| column < names);
    if lines.iter().any(|line| line.chars().count() > MOST_COLUMNS) {
        rows.iter_mut().flat_map(|row| &mut row[names..]).for_each(|cell| *cell = shorten_count(cell));
        lines = align_rows(&rows, |column| column < names);
    }
    if costs {
        lines.extend(describe_comparison(report, currency));
    }
    lines
}

/// Describes the cost elsewhere, and how each number was derived.
fn describe_comparison(report: &Report, currency: &str) -> Vec<String> {
    let cost = report.total.cost.with_currency(currency);
    let mut lines = vec![String::new(), format!("It cost {cost}. The same tokens elsewhere:")];
    for it in &report.total.compared {
        let source = it.source.as_ref().map(PriceSource::describe).unwrap_or_default();
        lines.push(match (it.cost, it.saved) {
            (Some(cost), Some(saved)) => {
                format!("  {:<28} {cost:>12}   difference {saved:>12}   price: {source}", it.model)
            }
            (Some(cost), None) => {
                let cost = cost.with_currency(it.currency.as_deref().unwrap_or_default());
                format!("  {:<28} {cost:>12}   not compared: another currency   price: {source}", it.model)
            }
            _ => format!("  {:<28}   price unknown: add [prices.\"{}\"]", it.model, it.model),
        });
    }
    lines.push(String::new());
    lines.extend(report.notes.iter().cloned());
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::turn::Usage;

    fn sample() -> Report {
        let line = |name: &str, requests| {
            let totals = UsageTotals { requests, ..UsageTotals::default() };
            ReportLine { names: vec![name.into()], totals, ..ReportLine::default() }
        };
        let lines = vec![line("a,b", 1), line("=x", 22), line("-1", 0), line("", 0)];
        Report { by: vec![Dimension::Model], lines, total: line("", 23), ..Report::default() }
    }

    #[test]
    fn columns_line_up_and_the_sum_stands_below() {
        let lines = table_lines(&sample(), false, "");
        assert_eq!(lines[0], "model  requests  failed  prompt  completion");
        assert_eq!(lines[5], "all          23       0       0           0");
        assert_eq!(lines.len(), 6);
        let with_costs = table_lines(&sample(), true, "EUR");
        assert!(with_costs[0].ends_with("completion  cost"));
        assert!(with_costs.iter().any(|line| line.starts_with("It cost 0.00 EUR.")), "{with_costs:?}");
    }

    #[test]
    fn lines_are_ordered_and_limited() {
        let mut report = sample();
        select_lines(&mut report, Some("requests"), Some(2));
        let names: Vec<_> = report.lines.iter().map(|line| line.names[0].as_str()).collect();
        assert_eq!((names, report.total.totals.requests), (vec!["=x", "a,b"], 23));
        let mut report = sample();
        select_lines(&mut report, None, None);
        assert_eq!(report, sample());
    }

    #[test]
    fn a_wide_table_has_short_counts() {
        for (cell, expected) in [
            ("9999", "9999"),
            ("12345", "12.3k"),
            ("999499", "999k"),
            ("1234567", "1.23M"),
            ("12345678900", "12.3G"),
            ("1.50", "1.50"),
        ] {
            assert_eq!(shorten_count(cell), expected);
        }
        let mut report = sample();
        let usage = Usage { prompt: 123_456_789, completion: 4_567_890, ..Usage::default() };
        report.lines[0].totals.usage = usage;
        assert!(table_lines(&report, false, "")[1].contains("  123456789  "));
        report.lines[0].names = vec!["m".repeat(50)];
        let lines = table_lines(&report, false, "");
        assert!(lines[1].ends_with("  123M       4.57M") && lines[1].len() <= 100, "{}", lines[1]);
    }

    #[test]
    fn a_cell_is_no_formula_and_no_two_cells() {
        let lines = csv_lines(&sample(), false);
        assert!(lines[1].starts_with("\"a,b\",1,") && lines[2].starts_with("'=x,22,"), "{lines:?}");
        assert!(lines[3].starts_with("'-1,0,") && lines[4].starts_with(",0,"), "{lines:?}");
        assert!(
            lines[0].starts_with("model,requests,failed,model_calls,repeats,prompt_tokens,"),
            "{lines:?}"
        );
    }
}
