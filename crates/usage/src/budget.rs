//! Budgets: the amounts that keys, agents and all requests together may cost in one UTC day. Pure: the time
//! is an argument.

use std::collections::{BTreeSet, HashMap};

use super::config::BudgetsConfig;
use super::money::Money;

/// A day, in milliseconds.
const DAY: u64 = 86_400_000;
/// How the names of agents begin that are experts.
const EXPERT: &str = "expert/";
/// The seconds after which the requests under way may have ended.
const SETTLES: u64 = 5;
/// The most models whose cost is measured.
const MODELS: usize = 1_000;

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

    /// Its kind and name, as metrics have them.
    pub(super) fn labels(&self) -> (&'static str, &str) {
        match self {
            Self::Everybody => ("all", ""),
            Self::Key(name) => ("key", name),
            Self::Agent(name) => ("agent", name),
        }
    }

    /// Its name in a database.
    pub(super) fn to_text(&self) -> String {
        match self {
            Self::Everybody => "all".to_owned(),
            Self::Key(name) => format!("key {name}"),
            Self::Agent(name) => format!("agent {name}"),
        }
    }

    pub(super) fn from_text(text: &str) -> Option<Self> {
        match text.split_once(' ') {
            None => (text == "all").then_some(Self::Everybody),
            Some(("key", name)) => Some(Self::Key(name.to_owned())),
            Some(("agent", name)) => Some(Self::Agent(name.to_owned())),
            Some(_) => None,
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
        let expert = expert_of_function(self.agent).map(|expert| Scope::Agent(expert.to_owned()));
        std::iter::once(Scope::Everybody).chain(key).chain(expert).chain(agent)
    }
}

/// Returns the agent `expert/NAME` of the agent `expert/NAME/FUNCTION`, which works for it.
fn expert_of_function(agent: &str) -> Option<&str> {
    let (expert, _) = agent.strip_prefix(EXPERT)?.split_once('/')?;
    agent.get(..EXPERT.len() + expert.len())
}

/// A request that is under way: whose it is, and its model.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnderWay<'a> {
    pub(super) owner: Owner<'a>,
    pub(super) model: &'a str,
}

/// Why a budget permits nothing more now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// It is spent.
    Spent,
    /// The requests under way will likely spend the rest.
    UnderWay,
    /// The spending of other processes is not known, and the owner wants requests to be refused then.
    Unknown,
}

/// A budget that is spent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exhausted {
    /// Why it permits nothing more.
    pub shortage: Shortage,
    /// The requests that it covers.
    pub scope: Scope,
    /// How much it was.
    pub budget: Money,
    /// The seconds until another request may pass.
    pub wait: u64,
}

/// A budget and what is spent of it today. One that is nearly spent, or spent, is reported once a day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DayBudget {
    /// The requests that it covers.
    pub scope: Scope,
    /// How much it is.
    pub budget: Money,
    /// The part that is spent.
    pub spent: Money,
}

impl DayBudget {
    /// Returns true once requests are refused.
    pub fn is_spent(&self) -> bool {
        self.spent >= self.budget
    }

    /// Says how much is spent, and what follows, for people. Alerts, the page and the log have these words.
    pub fn describe(&self) -> String {
        let Self { scope, budget, spent } = self;
        let (whose, when) =
            (scope.describe(), if self.is_spent() { "It is spent:" } else { "Once it is spent," });
        let waits = match scope {
            Scope::Everybody => ", and the events of experts wait",
            Scope::Agent(name) if name.starts_with(EXPERT) => ", and its events wait",
            _ => "",
        };
        format!(
            "Of the budget for {whose}, {spent} of {budget} is used today. {when} requests get HTTP 429 until \
             00:00 UTC{waits}, unless their model or a fallback of it has no price."
        )
    }
}

/// The spending of today.
#[derive(Clone, Debug, Default)]
pub(super) struct Spending {
    day: u64,
    spent: HashMap<Scope, Money>,
    /// The spending of other processes that share a database.
    others: HashMap<Scope, Money>,
    /// The measured cost of a request to each model.
    likely: HashMap<String, Money>,
    /// The reported budgets with their amounts at that time, and whether they were spent: a raised budget is
    /// reported again.
    reported: HashMap<Scope, (Money, bool)>,
}

impl Spending {
    /// Counts the cost of a request. Returns the budgets that it brought to their warning mark, and those
    /// that it spent.
    pub(super) fn add_cost(
        &mut self,
        config: &BudgetsConfig,
        owner: Owner<'_>,
        cost: Money,
        now: u64,
    ) -> Vec<DayBudget> {
        self.begin_day(now);
        let mut warnings = Vec::new();
        for scope in owner.covering_scopes() {
            let own = self.spent.entry(scope.clone()).or_default();
            *own = *own + cost;
            let spent = self.spent_by_all(&scope);
            let Some(budget) = daily_budget(config, &scope) else { continue };
            let warning = DayBudget { scope: scope.clone(), budget, spent };
            let stage = (budget, warning.is_spent());
            if has_reached(spent, budget, config) && self.reported.get(&scope) != Some(&stage) {
                self.reported.insert(scope, stage);
                warnings.push(warning);
            }
        }
        warnings
    }

    /// Learns the cost of requests to a model.
    pub(super) fn learn_cost(&mut self, model: &str, cost: Money) {
        if let Some(likely) = self.likely.get_mut(model) {
            *likely = Money::from_units(likely.units() * 0.875 + cost.units() * 0.125);
        } else if self.likely.len() < MODELS {
            self.likely.insert(model.to_owned(), cost);
        }
    }

    /// Returns the spending of this process today, and the day.
    pub(super) fn own_costs(&mut self, now: u64) -> (u64, Vec<(String, i64)>) {
        self.begin_day(now);
        let own = self.spent.iter().map(|(scope, spent)| (scope.to_text(), spent.millionths()));
        (self.day, own.collect())
    }

    /// Takes the spending of other processes on a day.
    pub(super) fn set_others(&mut self, day: u64, others: Vec<(String, i64)>) {
        if day == self.day {
            let known = |(text, spent): (String, i64)| {
                Some((Scope::from_text(&text)?, Money::from_millionths(spent)))
            };
            self.others = others.into_iter().filter_map(known).collect();
        }
    }

    fn spent_by_all(&self, scope: &Scope) -> Money {
        let of = |costs: &HashMap<Scope, Money>| costs.get(scope).copied().unwrap_or_default();
        of(&self.spent) + of(&self.others)
    }

    /// The likely cost of requests under way that a budget covers.
    fn reserved_cost(&self, scope: &Scope, under_way: &[UnderWay<'_>]) -> Money {
        let covered =
            under_way.iter().filter(|request| request.owner.covering_scopes().any(|it| it == *scope));
        covered.filter_map(|request| self.likely.get(request.model).copied()).sum()
    }

    /// Refuses a request whose budget is spent, or will likely be by the requests under way.
    pub(super) fn check_budgets(
        &mut self,
        config: &BudgetsConfig,
        owner: Owner<'_>,
        under_way: &[UnderWay<'_>],
        now: u64,
    ) -> Result<(), Exhausted> {
        self.begin_day(now);
        for scope in owner.covering_scopes() {
            let Some(budget) = daily_budget(config, &scope) else { continue };
            let spent = self.spent_by_all(&scope);
            let is_known = self.spent.contains_key(&scope) || self.others.contains_key(&scope);
            let (shortage, wait) = if is_known && spent >= budget {
                (Shortage::Spent, (DAY - now % DAY).div_ceil(1_000).max(1))
            } else if !under_way.is_empty() && spent + self.reserved_cost(&scope, under_way) >= budget {
                (Shortage::UnderWay, SETTLES)
            } else {
                continue;
            };
            return Err(Exhausted { shortage, scope, budget, wait });
        }
        Ok(())
    }

    /// Returns the budgets that have reached their warning mark today, with the amounts spent.
    pub(super) fn reached_budgets(&mut self, config: &BudgetsConfig, now: u64) -> Vec<DayBudget> {
        self.begin_day(now);
        let scopes: BTreeSet<&Scope> = self.spent.keys().chain(self.others.keys()).collect();
        let reached = scopes.into_iter().filter_map(|scope| {
            let spent = self.spent_by_all(scope);
            let budget = daily_budget(config, scope)?;
            has_reached(spent, budget, config).then(|| DayBudget { scope: scope.clone(), budget, spent })
        });
        reached.collect()
    }

    /// Returns all budgets that cover a request, with the amounts spent today: those of these keys, of agents
    /// with a budget of their own, and of all that spent something.
    pub(super) fn all_budgets(
        &mut self,
        config: &BudgetsConfig,
        keys: &[String],
        now: u64,
    ) -> Vec<DayBudget> {
        self.begin_day(now);
        let mut scopes: BTreeSet<Scope> = self.spent.keys().chain(self.others.keys()).cloned().collect();
        scopes.insert(Scope::Everybody);
        scopes.extend(keys.iter().chain(config.keys.keys()).cloned().map(Scope::Key));
        scopes.extend(config.agents.keys().cloned().map(Scope::Agent));
        let with_amounts = scopes.into_iter().filter_map(|scope| {
            let budget = daily_budget(config, &scope)?;
            Some(DayBudget { spent: self.spent_by_all(&scope), scope, budget })
        });
        with_amounts.collect()
    }

    fn begin_day(&mut self, now: u64) {
        let day = now / DAY;
        if day > self.day {
            *self = Self { day, likely: std::mem::take(&mut self.likely), ..Self::default() };
        }
    }
}

fn has_reached(spent: Money, budget: Money, config: &BudgetsConfig) -> bool {
    spent.units() >= budget.units() * config.warn_at
}

pub(super) fn daily_budget(config: &BudgetsConfig, scope: &Scope) -> Option<Money> {
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
        spending.check_budgets(&config, alice, &[], now).unwrap();
        let mut add = |amount| {
            let warnings = spending.add_cost(&config, alice, money(amount), now);
            warnings.iter().map(DayBudget::is_spent).collect::<Vec<_>>()
        };
        assert_eq!([add(0.3), add(0.1)], [vec![true], vec![]], "a spent budget is reported once more");
        let found = spending.check_budgets(&config, alice, &[], now).unwrap_err();
        assert_eq!(
            found,
            Exhausted {
                shortage: Shortage::Spent,
                scope: Scope::Key("alice".into()),
                budget: money(1.0),
                wait: 90
            }
        );
        spending
            .check_budgets(&config, Owner { key: "bob", agent: "" }, &[], now)
            .expect("it has a budget of its own");
        spending.check_budgets(&config, Owner::default(), &[], now).expect("nobody has none");
        assert_eq!(spending.reached_budgets(&config, now).len(), 2);
        spending.check_budgets(&config, alice, &[], now + 90_000).expect("another day");
        assert_eq!(spending.reached_budgets(&config, now), [], "what was said yesterday is over");
    }

    /// Regression: the alert said that all requests were refused, and a free fallback answered them.
    #[test]
    fn a_spent_budget_says_what_follows() {
        let scope = Scope::Key("alice".into());
        let reached = DayBudget { scope, budget: money(1.0), spent: money(0.9) };
        let text = reached.describe();
        assert!(
            text.starts_with("Of the budget for the key `alice`, 0.900 of 1.00 is used today. Once it"),
            "{text}"
        );
        let text = DayBudget { spent: money(1.5), ..reached }.describe();
        assert!(text.contains("It is spent: requests get HTTP 429") && text.contains("fallback"), "{text}");
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
            spending.check_budgets(&config, helper, &[], now).unwrap_err().scope,
            Scope::Agent("helper".into())
        );
        let function = Owner { key: "", agent: "expert/desk/judge" };
        spending.add_cost(&config, function, money(1.0), now);
        let desk = Owner { key: "", agent: "expert/desk" };
        let found = spending.check_budgets(&config, desk, &[], now).expect_err("its functions work for it");
        assert_eq!(found.scope, Scope::Agent("expert/desk".into()));
        spending = Spending::default();
        spending.add_cost(&config, helper, money(1.0), now);
        let alice = Owner { key: "alice", agent: "" };
        spending.check_budgets(&config, alice, &[], now).unwrap();
        spending.add_cost(&config, alice, money(2.0), now);
        assert_eq!(
            spending.check_budgets(&config, Owner::default(), &[], now).unwrap_err().scope,
            Scope::Everybody
        );
    }

    #[test]
    fn other_processes_count() {
        let config: BudgetsConfig = toml::from_str("day = 3.0").unwrap();
        let (mut spending, now) = (Spending::default(), 20_000 * DAY);
        let alice = Owner { key: "alice", agent: "" };
        spending.add_cost(&config, alice, money(1.0), now);
        let (day, own) = spending.own_costs(now);
        assert_eq!((day, own.len()), (20_000, 2));
        assert!(own.contains(&("key alice".to_owned(), 1_000_000)));
        spending.set_others(day, vec![("all".to_owned(), 1_500_000), ("key bob".to_owned(), 5)]);
        spending.check_budgets(&config, alice, &[], now).unwrap();
        assert_eq!(spending.reached_budgets(&config, now)[0].spent, money(2.5));
        spending.set_others(day, vec![("all".to_owned(), 2_000_000)]);
        spending.check_budgets(&config, alice, &[], now).unwrap_err();
        assert_eq!(spending.own_costs(now).1.len(), 2, "what others spent is not one's own");
        spending.set_others(day - 1, Vec::new());
        spending.check_budgets(&config, alice, &[], now).expect_err("an answer of yesterday is too late");
    }

    /// The likely cost is the measured one: a first request of a day passes, whatever it may cost.
    #[test]
    fn requests_under_way_reserve_their_likely_cost() {
        let config: BudgetsConfig = toml::from_str("day = 1.0\nkey = 0.6").unwrap();
        let (mut spending, now) = (Spending::default(), 20_000 * DAY);
        let alice = Owner { key: "alice", agent: "" };
        let request = |key| UnderWay { owner: Owner { key, agent: "" }, model: "m" };
        let busy = [request("alice"), request("bob"), request("bob")];
        spending.check_budgets(&config, alice, &busy, now).expect("nothing is known of the model");
        spending.learn_cost("m", money(0.3));
        spending.check_budgets(&config, alice, &busy, now).unwrap();
        let found = spending.check_budgets(&config, Owner { key: "bob", agent: "" }, &busy, now).unwrap_err();
        assert_eq!(
            (found.shortage, found.scope, found.wait),
            (Shortage::UnderWay, Scope::Key("bob".into()), SETTLES)
        );
        spending.learn_cost("m", money(9.0));
        spending.check_budgets(&config, alice, &[], now).expect("nothing is under way");
    }
}
