//! Budgets: the amounts that keys, agents and all requests together may cost in one UTC day. Pure: the time
//! is an argument.

use std::collections::HashMap;

use super::config::BudgetsConfig;
use super::money::Money;

/// A day, in milliseconds.
const DAY: u64 = 86_400_000;

/// The requests that a budget covers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// All requests together.
    Everybody,
    /// One key, by its name.
    Key(String),
    /// One agent, by its name.
    Agent(String),
}

impl Scope {
    /// Describes the scope for people.
    pub fn describe(&self) -> String {
        match self {
            Self::Everybody => "all requests together".to_owned(),
            Self::Key(name) => format!("the key `{name}`"),
            Self::Agent(name) => format!("the agent `{name}`"),
        }
    }
}

/// The key and the agent of a request; empty where it has none.
#[derive(Clone, Copy, Debug, Default)]
pub struct Owner<'a> {
    /// The name of the client's key.
    pub key: &'a str,
    /// The agent.
    pub agent: &'a str,
}

impl Owner<'_> {
    fn covering_scopes(self) -> impl Iterator<Item = Scope> {
        let key = (!self.key.is_empty()).then(|| Scope::Key(self.key.to_owned()));
        let agent = (!self.agent.is_empty()).then(|| Scope::Agent(self.agent.to_owned()));
        std::iter::once(Scope::Everybody).chain(key).chain(agent)
    }
}

/// A budget that is spent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exhausted {
    /// The requests that it covers.
    pub scope: Scope,
    /// How much it was.
    pub budget: Money,
    /// The seconds until the budget begins again.
    pub wait: u64,
}

/// A budget that is nearly spent, or spent: each is reported once a day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The requests that it covers.
    pub scope: Scope,
    /// How much it is.
    pub budget: Money,
    /// The part that is spent.
    pub spent: Money,
}

/// The spending of today.
#[derive(Clone, Debug, Default)]
pub(super) struct Spending {
    day: u64,
    spent: HashMap<Scope, Money>,
    /// The reported budgets with their amounts at that time: a raised budget is reported again.
    reported: HashMap<Scope, Money>,
}

impl Spending {
    /// Counts the cost of a request. Returns the budgets that it brought to their warning mark.
    pub(super) fn add_cost(
        &mut self,
        config: &BudgetsConfig,
        owner: Owner<'_>,
        cost: Money,
        now: u64,
    ) -> Vec<Warning> {
        self.begin_day(now);
        let mut warnings = Vec::new();
        for scope in owner.covering_scopes() {
            let spent = self.spent.entry(scope.clone()).or_default();
            *spent = *spent + cost;
            let Some(budget) = daily_budget(config, &scope) else { continue };
            if has_reached(*spent, budget, config) && self.reported.get(&scope) != Some(&budget) {
                self.reported.insert(scope.clone(), budget);
                warnings.push(Warning { scope, budget, spent: *spent });
            }
        }
        warnings
    }

    /// Refuses a request whose budget is spent.
    pub(super) fn check_budgets(
        &mut self,
        config: &BudgetsConfig,
        owner: Owner<'_>,
        now: u64,
    ) -> Result<(), Exhausted> {
        self.begin_day(now);
        for scope in owner.covering_scopes() {
            let Some(budget) = daily_budget(config, &scope) else { continue };
            if self.spent.get(&scope).is_some_and(|spent| *spent >= budget) {
                let wait = (DAY - now % DAY).div_ceil(1_000).max(1);
                return Err(Exhausted { scope, budget, wait });
            }
        }
        Ok(())
    }

    /// Returns the budgets that have reached their warning mark today, with the amounts spent.
    pub(super) fn reached_budgets(&mut self, config: &BudgetsConfig, now: u64) -> Vec<Warning> {
        self.begin_day(now);
        let reached = self.spent.iter().filter_map(|(scope, &spent)| {
            let budget = daily_budget(config, scope)?;
            has_reached(spent, budget, config).then(|| Warning { scope: scope.clone(), budget, spent })
        });
        let mut reached: Vec<_> = reached.collect();
        reached.sort_by(|one, other| one.scope.cmp(&other.scope));
        reached
    }

    fn begin_day(&mut self, now: u64) {
        let day = now / DAY;
        if day > self.day {
            *self = Self { day, ..Self::default() };
        }
    }
}

fn has_reached(spent: Money, budget: Money, config: &BudgetsConfig) -> bool {
    spent.units() >= budget.units() * config.warn_at
}

fn daily_budget(config: &BudgetsConfig, scope: &Scope) -> Option<Money> {
    let amount = match scope {
        Scope::Everybody => config.day,
        Scope::Key(name) => config.keys.get(name).copied().or(config.key),
        Scope::Agent(name) => config.agents.get(name).copied().or(config.agent),
    };
    amount.map(Money::from_units)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn money(amount: f64) -> Money {
        Money::from_units(amount)
    }

    #[test]
    fn a_budget_warns_once_then_refuses() {
        let config: BudgetsConfig = toml::from_str("key = 1.0\nkeys = { bob = 2.0 }\nwarn_at = 0.5").unwrap();
        let (mut spending, now) = (Spending::default(), 20_000 * DAY + DAY - 90_000);
        let alice = Owner { key: "alice", agent: "" };
        let mut add = |owner, amount| spending.add_cost(&config, owner, money(amount), now).len();
        assert_eq!([add(alice, 0.4), add(alice, 0.2), add(alice, 0.2)], [0, 1, 0]);
        assert_eq!(add(Owner { key: "bob", agent: "" }, 1.5), 1);
        spending.check_budgets(&config, alice, now).unwrap();
        spending.add_cost(&config, alice, money(0.3), now);
        let found = spending.check_budgets(&config, alice, now).unwrap_err();
        assert_eq!(found, Exhausted { scope: Scope::Key("alice".into()), budget: money(1.0), wait: 90 });
        spending
            .check_budgets(&config, Owner { key: "bob", agent: "" }, now)
            .expect("it has a budget of its own");
        spending.check_budgets(&config, Owner::default(), now).expect("nobody has none");
        assert_eq!(spending.reached_budgets(&config, now).len(), 2);
        spending.check_budgets(&config, alice, now + 90_000).expect("another day");
        assert_eq!(spending.reached_budgets(&config, now), [], "what was said yesterday is over");
    }

    #[test]
    fn a_raised_budget_is_no_longer_reached() {
        let config = |key: f64| BudgetsConfig { key: Some(key), warn_at: 0.8, ..BudgetsConfig::default() };
        let (mut spending, now) = (Spending::default(), 20_000 * DAY);
        let alice = Owner { key: "alice", agent: "" };
        let mut add = |budget, amount| spending.add_cost(&config(budget), alice, money(amount), now).len();
        assert_eq!([add(1.0, 0.9), add(5.0, 0.1), add(5.0, 3.0), add(5.0, 0.1)], [1, 0, 1, 0]);
        let mut reached = |budget: f64| spending.reached_budgets(&config(budget), now).len();
        assert_eq!([reached(5.0), reached(6.0), reached(1.0)], [1, 0, 1]);
    }

    #[test]
    fn agents_and_everybody_have_budgets_too() {
        let config: BudgetsConfig = toml::from_str("day = 3.0\nagent = 1.0").unwrap();
        let (mut spending, now) = (Spending::default(), 20_000 * DAY);
        let helper = Owner { key: "alice", agent: "helper" };
        spending.add_cost(&config, helper, money(1.0), now);
        assert_eq!(
            spending.check_budgets(&config, helper, now).unwrap_err().scope,
            Scope::Agent("helper".into())
        );
        let alice = Owner { key: "alice", agent: "" };
        spending.check_budgets(&config, alice, now).unwrap();
        spending.add_cost(&config, alice, money(2.0), now);
        assert_eq!(
            spending.check_budgets(&config, Owner::default(), now).unwrap_err().scope,
            Scope::Everybody
        );
    }
}
