//! The port of usage rows: reading them, and sharing them among several processes.

use std::fmt::Debug;

use async_trait::async_trait;

use super::error::StoreError;
use wire::UsageRow;
use wire::turn::Usage;

/// A column by which rows are grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dimension {
    /// The model that was asked for.
    Model,
    /// The name of the client's key.
    Key,
    /// The agent.
    Agent,
    /// The upstream.
    Upstream,
    /// The route.
    Route,
    /// How it ended.
    Outcome,
    /// The code of its error.
    Error,
    /// The node that it reached.
    Node,
    /// The UTC day.
    Day,
    /// The hour, in UTC.
    Hour,
}

impl Dimension {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Model,
        Self::Key,
        Self::Agent,
        Self::Upstream,
        Self::Route,
        Self::Outcome,
        Self::Error,
        Self::Node,
        Self::Day,
        Self::Hour,
    ];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Key => "key",
            Self::Agent => "agent",
            Self::Upstream => "upstream",
            Self::Route => "route",
            Self::Outcome => "outcome",
            Self::Error => "error",
            Self::Node => "node",
            Self::Day => "day",
            Self::Hour => "hour",
        }
    }

    /// The dimension of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dimension| dimension.as_str() == name)
    }
}

/// Which rows are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageQuery {
    /// From this time on, in milliseconds since 1970.
    pub since: u64,
    /// Before this time.
    pub until: u64,
    /// The columns by which they are grouped.
    pub by: Vec<Dimension>,
    /// Only those with these values.
    pub only: Vec<(Dimension, String)>,
}

/// The sum of some rows of one model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UsageSum {
    /// Their common values, in the order of [`UsageQuery::by`].
    pub names: Vec<String>,
    /// The model.
    pub model: String,
    /// Their requests and tokens.
    pub totals: UsageTotals,
}

/// The requests and tokens of some rows together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UsageTotals {
    /// Requests of clients.
    pub requests: u64,
    /// Those of them that failed.
    pub failed: u64,
    /// Calls of models.
    pub model_calls: u64,
    /// Attempts beyond the first.
    pub repeats: u64,
    /// The tokens.
    pub usage: Usage,
    /// The time that the calls took, in milliseconds.
    pub busy: u64,
}

impl UsageTotals {
    /// Adds other rows.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            requests: self.requests + other.requests,
            failed: self.failed + other.failed,
            model_calls: self.model_calls + other.model_calls,
            repeats: self.repeats + other.repeats,
            usage: self.usage.plus(other.usage),
            busy: self.busy + other.busy,
        }
    }
}

/// The order of a list of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestOrder {
    /// The newest first.
    #[default]
    Newest,
    /// The oldest first.
    Oldest,
    /// The longest first.
    Longest,
    /// Those whose first byte came last, first.
    LatestFirstByte,
    /// Those with the most tokens first.
    MostTokens,
}

impl RequestOrder {
    /// All orders.
    pub const ALL: [Self; 5] =
        [Self::Newest, Self::Oldest, Self::Longest, Self::LatestFirstByte, Self::MostTokens];

    /// Returns its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Newest => "newest",
            Self::Oldest => "oldest",
            Self::Longest => "longest",
            Self::LatestFirstByte => "first_byte",
            Self::MostTokens => "tokens",
        }
    }
}

/// Selects requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestQuery {
    /// From this time on, in milliseconds since 1970.
    pub since: u64,
    /// Only those with these values; of several values of one dimension, any. A model is that which answered,
    /// or one that was asked before it; upstreams and errors are those of all attempts.
    pub only: Vec<(Dimension, String)>,
    /// Only those that contain this text, in any case, in their id, error, repairs or names; empty: all.
    pub text: String,
    /// Only requests in which respool repaired something.
    pub repaired: bool,
    /// Their order.
    pub order: RequestOrder,
    /// How many are skipped.
    pub skip: usize,
    /// The most that are returned.
    pub most: usize,
}

/// Usage rows that can be read.
#[async_trait]
pub trait UsageRows: Debug + Send + Sync {
    /// Sums of rows, by what they have in common and by model.
    ///
    /// # Errors
    /// When the rows cannot be read.
    async fn sums(&self, query: UsageQuery) -> Result<Vec<UsageSum>, StoreError>;

    /// Returns the sums of the model calls of some runs, by run, key and model.
    ///
    /// # Errors
    /// When the rows cannot be read.
    async fn sums_of_runs(&self, runs: Vec<String>) -> Result<Vec<UsageSum>, StoreError>;

    /// Returns the requests of one run, the oldest first.
    ///
    /// # Errors
    /// When the rows cannot be read.
    async fn requests_of_run(&self, run: &str, most: usize) -> Result<Vec<UsageRow>, StoreError>;

    /// Returns the requests that a query selects.
    ///
    /// # Errors
    /// When the rows cannot be read.
    async fn find(&self, query: RequestQuery) -> Result<Vec<UsageRow>, StoreError>;

    /// Counts the requests since a time in which respool repaired something.
    ///
    /// # Errors
    /// When the rows cannot be read.
    async fn count_repaired(&self, since: u64) -> Result<u64, StoreError>;

    /// Returns the newest request with this id or, given a time, the one that arrived at that time.
    ///
    /// # Errors
    /// When the rows cannot be read.
    async fn find_one(&self, id: &str, at: Option<u64>) -> Result<Option<UsageRow>, StoreError>;

    /// Returns the values that each of these columns has in recent rows.
    ///
    /// # Errors
    /// When the rows cannot be read.
    async fn recent_values(
        &self,
        columns: Vec<Dimension>,
    ) -> Result<Vec<(Dimension, Vec<String>)>, StoreError>;
}

/// Rows of a process's own file that a database does not have yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UncopiedUsage {
    /// Stands for the file.
    pub origin: String,
    /// The rows with their numbers in the file, in this order.
    pub rows: Vec<(u64, UsageRow)>,
}

/// A scope of budgets and its cost in millionths.
pub type ScopeCost = (String, i64);

/// The usage of all processes that share a database. Each keeps its rows in a file of its own first, so
/// that no request waits for the database.
#[async_trait]
pub trait SharedUsage: UsageRows {
    /// Stands for the database among all databases.
    ///
    /// # Errors
    /// When the database cannot be used.
    async fn database_id(&self) -> Result<String, StoreError>;

    /// Adds rows of a file. Those that are there already stay, so that rows may be sent again. Returns the
    /// first number under which another row is there, as it is with a file that was set back or lives on as
    /// a copy; then nothing is added.
    ///
    /// # Errors
    /// When the database cannot be written; it may have the rows all the same.
    async fn add_rows(&self, rows: UncopiedUsage) -> Result<Option<u64>, StoreError>;

    /// Returns the number of the last row that is there of a file.
    ///
    /// # Errors
    /// When the database cannot be read.
    async fn last_row_of(&self, origin: &str) -> Result<Option<u64>, StoreError>;

    /// Deletes rows of before a time.
    ///
    /// # Errors
    /// When the database cannot be written.
    async fn forget_rows(&self, before: u64) -> Result<(), StoreError>;

    /// Sets the spending of this process on a UTC day, counted from 1970-01-01. Returns that of all others,
    /// which may be two seconds old if this process has spent nothing since it said so.
    ///
    /// # Errors
    /// When the database cannot be written.
    async fn exchange_spending(&self, day: u64, own: Vec<ScopeCost>) -> Result<Vec<ScopeCost>, StoreError>;
}
