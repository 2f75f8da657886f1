//! `respool keys`: shows what each key and each budget may use today, and what it has used, from the records
//! on disk, while a server may write more.

use std::collections::BTreeMap;
use std::sync::Arc;

use clap::Args;
use serde_json::{Value, json};

use super::failure::Failure;
use super::listing::{Noun, align_rows};
use super::running::warn_of_unkept_records;
use super::runtime::new_runtime;
use super::say::{flat_text, say, say_on_stderr};
use super::usage::ledger_settings;
use server::{Access, KeyQuota};
use settings::uses_own_key;
use settings::{Loaded, Settings};
use store::{Store, StoreError, UsageStore};
use usage::{DayBudget, Ledger, Scope};

/// A day, in milliseconds.
const DAY: u64 = 86_400_000;

#[derive(Args, Debug)]
pub(super) struct KeysArgs {
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

/// The limits, and how much of them is used today.
struct Use {
    quotas: Vec<KeyQuota>,
    /// The tokens of today, by key; `None` where the store cannot be read, as on a full disk.
    tokens: Option<BTreeMap<String, u64>>,
    budgets: Vec<DayBudget>,
    /// The amounts of the budgets are known: the store that counts them can be read.
    knows_spending: bool,
    currency: String,
    /// When the amounts of a day begin again.
    resets: u64,
}

/// Executes `respool keys`.
pub(super) fn show_keys(loaded: &Loaded, arguments: &KeysArgs) -> Result<(), Failure> {
    let settings = &loaded.settings;
    let access =
        Access::new(&settings.server, uses_own_key(settings)).map_err(|found| loaded.problems(found))?;
    let quotas = access.quotas();
    let names: Vec<String> = quotas.iter().map(|quota| quota.name.clone()).collect();
    let runtime = new_runtime()?;
    let (ledger, fault) = runtime.block_on(open_ledger(loaded))?;
    match &fault {
        Some(error) if settings.store.store.url.is_some() => say_on_stderr(&format!(
            "What keys used today is not known here until the database can be used; the nodes go on counting: {error}"
        )),
        Some(error) => say_on_stderr(&format!("What keys used today is not known: {error}")),
        None => runtime.block_on(warn_of_unkept_records(settings)),
    }
    let now = clock::now();
    let tokens = || names.iter().map(|name| (name.clone(), ledger.tokens_today(name))).collect();
    let used = Use {
        tokens: fault.is_none().then(tokens),
        budgets: ledger.budgets(&names),
        // Without a database, the amounts are those of `usage.db`.
        knows_spending: fault.is_none() || settings.store.store.url.is_none(),
        quotas,
        currency: ledger.currency(),
        resets: (now / DAY + 1) * DAY,
    };
    if arguments.json {
        say(&format!("{:#}", used.to_json()));
        return Ok(());
    }
    used.table_lines().iter().for_each(|line| say(&flat_text(line)));
    say_on_stderr(&used.describe());
    Ok(())
}

/// Opens the records of today, as `respool serve` reads them. Also returns why the tokens of keys cannot be
/// read.
async fn open_ledger(loaded: &Loaded) -> Result<(Ledger, Option<StoreError>), Failure> {
    let settings: &Settings = &loaded.settings;
    let terms = ledger_settings(settings).map_err(|found| loaded.problems(found))?;
    let rows = if settings.store.store.url.is_some() {
        None
    } else {
        Some(Arc::new(UsageStore::open_to_read(&settings.store.state_dir)?))
    };
    let ledger = Ledger::new(terms, rows);
    ledger.load_spending().await;
    // What shows something makes no store.
    let fault = match Store::is_present(&settings.store).then(|| Store::open_in_place(&settings.store)) {
        None => None,
        Some(Ok(store)) => {
            ledger.use_key_store(Arc::new(store)).await;
            None
        }
        Some(Err(error)) => Some(error),
    };
    Ok((ledger, fault))
}

impl Use {
    fn tokens_of(&self, name: &str) -> Option<u64> {
        self.tokens.as_ref().map(|tokens| tokens.get(name).copied().unwrap_or_default())
    }

    fn budget_of(&self, name: &str) -> Option<&DayBudget> {
        self.budgets.iter().find(|budget| budget.scope == Scope::Key(name.to_owned()))
    }

    /// The budgets of other things than the listed keys.
    fn other_budgets(&self) -> impl Iterator<Item = &DayBudget> {
        self.budgets.iter().filter(|budget| match &budget.scope {
            Scope::Key(name) => self.quotas.iter().all(|quota| quota.name != *name),
            _ => true,
        })
    }

    fn table_lines(&self) -> Vec<String> {
        if self.quotas.is_empty() && self.budgets.is_empty() {
            return Vec::new();
        }
        let limited = |used: String, limit: Option<String>| match limit {
            Some(limit) => format!("{used} of {limit}"),
            None => used,
        };
        let or_dash = |limit: Option<u32>| limit.map_or_else(|| "–".to_owned(), |limit| limit.to_string());
        let spent = |budget: &DayBudget| {
            let spent = if self.knows_spending { budget.spent.to_string() } else { "–".to_owned() };
            format!("{spent} of {}", budget.budget)
        };
        let heads = ["name", "tokens today", "requests/min", "at a time", "spent today"].map(str::to_owned);
        let keys = self.quotas.iter().map(|quota| {
            let tokens = self.tokens_of(&quota.name).map_or_else(|| "–".to_owned(), |used| used.to_string());
            vec![
                if quota.is_operator { format!("{} (operator)", quota.name) } else { quota.name.clone() },
                limited(tokens, quota.tokens_per_day.map(|limit| limit.to_string())),
                or_dash(quota.requests_per_minute),
                or_dash(quota.max_concurrency),
                self.budget_of(&quota.name).map_or_else(|| "–".to_owned(), spent),
            ]
        });
        let dash = || "–".to_owned();
        let others = self.other_budgets().map(|budget| {
            vec![budget.scope.describe().replace('`', ""), dash(), dash(), dash(), spent(budget)]
        });
        let rows: Vec<Vec<String>> = std::iter::once(heads.to_vec()).chain(keys).chain(others).collect();
        align_rows(&rows, |column| column == 0)
    }

    /// Says what the amounts are, below the table.
    fn describe(&self) -> String {
        let keys = match self.quotas.len() {
            0 => "No keys are configured, so clients need none.".to_owned(),
            count => format!("{}.", Noun("key", "keys").count_things(count)),
        };
        let currency =
            if self.currency.is_empty() { String::new() } else { format!(" in {}", self.currency) };
        let resets = clock::format_time(self.resets);
        let budgets = if self.budgets.is_empty() {
            "There are no budgets: [budgets] sets them.".to_owned()
        } else {
            format!("Amounts{currency} are at the prices of [prices].")
        };
        format!("{keys} {budgets} The amounts of a day begin again at {resets}.")
    }

    fn to_json(&self) -> Value {
        let spent = |budget: &DayBudget| {
            let spent = self.knows_spending.then(|| budget.spent.units());
            json!({"spent": spent, "limit": budget.budget.units()})
        };
        let key = |quota: &KeyQuota| {
            json!({
                "name": quota.name, "operator": quota.is_operator,
                "tokens_today": self.tokens_of(&quota.name),
                "tokens_per_day": quota.tokens_per_day, "requests_per_minute": quota.requests_per_minute,
                "max_concurrency": quota.max_concurrency, "budget": self.budget_of(&quota.name).map(spent),
            })
        };
        let other = |budget: &DayBudget| {
            let mut shown = spent(budget);
            shown["scope"] = budget.scope.describe().replace('`', "").into();
            shown
        };
        json!({
            "keys": self.quotas.iter().map(key).collect::<Vec<_>>(),
            "budgets": self.other_budgets().map(other).collect::<Vec<_>>(),
            "currency": self.currency, "resets": clock::format_time(self.resets),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use usage::Money;

    fn sample() -> Use {
        let quota = |name: &str, tokens_per_day| KeyQuota {
            name: name.into(),
            is_operator: name == "root",
            tokens_per_day,
            requests_per_minute: tokens_per_day.map(|_| 60),
            max_concurrency: None,
        };
        let budget = |scope, spent| DayBudget {
            scope,
            budget: Money::from_units(2.0),
            spent: Money::from_units(spent),
        };
        Use {
            quotas: vec![quota("alice", Some(1_000)), quota("root", None)],
            tokens: Some(BTreeMap::from([("alice".to_owned(), 250)])),
            budgets: vec![budget(Scope::Everybody, 0.5), budget(Scope::Key("alice".into()), 0.25)],
            knows_spending: true,
            currency: "EUR".into(),
            resets: 1_795_223_698_000,
        }
    }

    #[test]
    fn limits_stand_beside_what_is_used() {
        let lines = sample().table_lines();
        let cells = |line: usize| -> Vec<&str> {
            lines[line].split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()
        };
        assert_eq!(cells(1), ["alice", "250 of 1000", "60", "–", "0.250 of 2.00"]);
        assert_eq!(cells(2), ["root (operator)", "0", "–", "–", "–"]);
        assert_eq!(cells(3), ["all requests together", "–", "–", "–", "0.500 of 2.00"]);
        let unread = Use { tokens: None, knows_spending: false, ..sample() };
        let lines = unread.table_lines();
        assert!(lines[1].contains("– of 1000") && lines[1].contains("– of 2.00"), "{lines:?}");
        assert_eq!(unread.to_json()["keys"][0]["budget"], json!({"spent": null, "limit": 2.0}));
        let text = sample().describe();
        assert!(text.contains("in EUR") && text.ends_with("at 2026-11-21T01:14:58Z."), "{text}");
        let json = sample().to_json();
        assert_eq!(json["keys"][0]["budget"], json!({"spent": 0.25, "limit": 2.0}));
        assert_eq!(json["budgets"][0]["scope"], "all requests together");
    }

    #[test]
    fn without_keys_there_is_no_table() {
        let none = Use { quotas: Vec::new(), budgets: Vec::new(), ..sample() };
        assert!(none.table_lines().is_empty() && none.describe().starts_with("No keys are configured"));
    }
}
