//! Reads the rows that the ledger has written: reports, the requests that the page lists, and the costs of
//! runs.

use std::collections::BTreeMap;

use super::ledger::Ledger;
use super::money::Money;
use super::prices::Prices;
use super::report::{Report, make_report};
use store::{Dimension, RequestQuery, StoreError, UsageQuery, UsageRows};
use wire::UsageRow;

/// The tokens and the cost of the model calls of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunUsage {
    /// The names of the keys that it was for.
    pub keys: Vec<String>,
    /// The tokens that it read and wrote.
    pub tokens: u64,
    /// Its cost, if any price is known.
    pub cost: Option<Money>,
}

/// The records of a ledger.
#[derive(Clone, Copy, Debug)]
pub struct Records<'a>(&'a Ledger);

impl Ledger {
    /// Returns the records of this ledger. Rows that wait are written before they are read.
    pub fn records(&self) -> Records<'_> {
        Records(self)
    }
}

impl Records<'_> {
    /// Reports the usage.
    ///
    /// # Errors
    /// When the store cannot be read, or rows are not kept.
    pub async fn report(&self, query: UsageQuery) -> Result<Report, StoreError> {
        let none = || {
            StoreError("no rows of what is used are kept: `[usage] keep` is 0s, or the state directory cannot be used (see the log)".to_owned())
        };
        self.0.bring_up_to_date().await;
        let rows = self.0.rows().ok_or_else(none)?;
        let settings = self.0.current_settings();
        report_from_store(rows, query, &settings.prices, &settings.config.compare).await
    }

    /// Returns the cost of the model calls of a run, if the price of any of them is known.
    pub async fn run_cost(&self, run: &str) -> Option<Money> {
        self.usage_of_runs(vec![run.to_owned()]).await.remove(run)?.cost
    }

    /// Returns what the model calls of these runs used, by run. Runs without model calls are left out.
    pub async fn usage_of_runs(&self, runs: Vec<String>) -> BTreeMap<String, RunUsage> {
        self.0.bring_up_to_date().await;
        let Some(rows) = self.0.rows() else { return BTreeMap::new() };
        let prices = &self.0.current_settings().prices;
        let mut all: BTreeMap<String, RunUsage> = BTreeMap::new();
        for sum in rows.sums_of_runs(runs).await.unwrap_or_default() {
            let [run, key] = &sum.names[..] else { continue };
            let used = all.entry(run.clone()).or_default();
            used.tokens += sum.totals.usage.total_tokens();
            if !key.is_empty() && !used.keys.contains(key) {
                used.keys.push(key.clone());
            }
            if let Some(cost) = prices.cost_of(&sum.model, sum.totals.usage) {
                used.cost = Some(used.cost.unwrap_or_default() + cost);
            }
        }
        all
    }

    /// Returns the model calls of a run and the request that began it, the oldest first.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn requests_of_run(&self, run: &str, most: usize) -> Result<Vec<UsageRow>, StoreError> {
        self.0.bring_up_to_date().await;
        let Some(rows) = self.0.rows() else { return Ok(Vec::new()) };
        rows.requests_of_run(run, most).await
    }

    /// Returns the requests that a query selects.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn find_requests(&self, query: RequestQuery) -> Result<Vec<UsageRow>, StoreError> {
        self.0.bring_up_to_date().await;
        let Some(rows) = self.0.rows() else { return Ok(Vec::new()) };
        rows.find(query).await
    }

    /// Counts the requests since a time in which respool repaired something.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn count_repaired(&self, since: u64) -> Result<u64, StoreError> {
        self.0.bring_up_to_date().await;
        let Some(rows) = self.0.rows() else { return Ok(0) };
        rows.count_repaired(since).await
    }

    /// Returns the newest request with this id or, given a time, the one that arrived at that time.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn find_request(&self, id: &str, at: Option<u64>) -> Result<Option<UsageRow>, StoreError> {
        self.0.bring_up_to_date().await;
        let Some(rows) = self.0.rows() else { return Ok(None) };
        rows.find_one(id, at).await
    }

    /// Returns the values that each of these columns has in recent rows.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn recent_values<const N: usize>(
        &self,
        columns: [Dimension; N],
    ) -> Result<Vec<(Dimension, Vec<String>)>, StoreError> {
        match self.0.rows() {
            Some(rows) => rows.recent_values(columns.to_vec()).await,
            None => Ok(Vec::new()),
        }
    }

    /// Returns the cost of one request at today's prices; `None` when no price is known.
    pub fn cost_of(&self, row: &UsageRow) -> Option<Money> {
        // The model calls of a run have costs of their own.
        let usage = row.usage.filter(|_| row.route != "agent")?;
        self.0.current_settings().prices.cost_of(&row.model, usage)
    }
}

/// Reports the usage from a store, also while a server has it open.
///
/// # Errors
/// When the store cannot be read.
pub async fn report_from_store(
    store: &dyn UsageRows,
    query: UsageQuery,
    prices: &Prices,
    compare: &[String],
) -> Result<Report, StoreError> {
    let (span, by) = (query.since..query.until.min(clock::now()), query.by.clone());
    Ok(make_report(span, &by, &store.sums(query).await?, prices, compare))
}
