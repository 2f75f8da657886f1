//! Usage and its cost: the ledger that takes a row of each request and writes them behind the replies,
//! prices, reports by model, key, agent and day, and budgets.
//!
//! `ledger`, `records` and `running` are the only files here that act. The others are pure: they get rows,
//! sums and the time as arguments.

mod budget;
pub mod config;
mod key_tokens;
mod ledger;
mod minutes;
mod money;
mod prices;
mod records;
mod report;
mod running;

pub use budget::{DayBudget, Exhausted, Owner, Scope, Shortage};
pub use config::{BudgetsConfig, PriceConfig, UsageConfig};
pub use ledger::{Ledger, LedgerSettings, Problem};
pub use minutes::{Counts, Minutes, RequestOutcome};
pub use money::Money;
pub use prices::{Price, PriceSource, Prices};
pub use records::{Records, RunUsage, report_from_store};
pub use report::{Comparison, Report, ReportLine, UnknownDimension, make_report, parse_dimensions};
pub use running::{RunningList, RunningRequest, keep_running_list};
