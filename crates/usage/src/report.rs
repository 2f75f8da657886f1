//! Reports the usage of a period by model, key, agent, upstream and day, with its cost and the cost of the
//! same tokens elsewhere. Pure: the store makes the sums.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use serde_json::{Value, json};

use super::money::Money;
use super::prices::{PriceSource, Prices};
use store::{Dimension, UsageSum};
use wire::turn::Usage;

/// The usage of a period.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Its beginning and its end, in milliseconds since 1970.
    pub span: (u64, u64),
    /// The dimensions of its lines.
    pub by: Vec<Dimension>,
    /// Its lines, in the order of their names.
    pub lines: Vec<ReportLine>,
    /// The sum of all lines.
    pub total: ReportLine,
    /// Explanations of the numbers, for people.
    pub notes: Vec<String>,
}

/// One line of a report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReportLine {
    /// Its names, in the order of [`Report::by`].
    pub names: Vec<String>,
    /// Requests of clients.
    pub requests: u64,
    /// Those that failed.
    pub failed: u64,
    /// Model calls.
    pub model_calls: u64,
    /// Attempts beyond the first.
    pub repeats: u64,
    /// The tokens.
    pub usage: Usage,
    /// The duration of its model calls, in milliseconds.
    pub busy: u64,
    /// Its cost.
    pub cost: Cost,
    /// The cost of the same tokens elsewhere.
    pub compared: Vec<Comparison>,
}

/// The use of one's own hardware during a report's period, by all keys.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HardwareUse {
    /// The seconds during which it worked.
    pub busy: f64,
    /// The tokens that it read and wrote.
    pub tokens: u64,
}

/// A cost in its parts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// The part that is paid by the token.
    pub paid: Money,
    /// The share of one's own hardware and electricity.
    pub own: Money,
}

impl Cost {
    /// Returns the sum of both parts.
    pub fn total(&self) -> Money {
        self.paid + self.own
    }
}

/// The cost of the same tokens at another model.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The model.
    pub model: String,
    /// The origin of the price; `None` when no price is known.
    pub source: Option<PriceSource>,
    /// The amount.
    pub cost: Option<Money>,
    /// The difference; negative where the other model would have been cheaper.
    pub saved: Option<Money>,
}

/// A word that names no dimension.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot group by `{}`. Choose from: {}", .0.escape_default(), Dimension::ALL.map(Dimension::as_str).join(", "))]
pub struct UnknownDimension(String);

/// Reads the names of dimensions, separated by commas.
///
/// # Errors
/// When a name is unknown.
pub fn parse_dimensions(text: &str) -> Result<Vec<Dimension>, UnknownDimension> {
    let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
    words.map(|word| Dimension::named(word).ok_or_else(|| UnknownDimension(word.to_owned()))).collect()
}

/// Makes the report of a period, in milliseconds since 1970, from its sums.
pub fn make_report(
    span: Range<u64>,
    by: &[Dimension],
    sums: &[UsageSum],
    own_use: HardwareUse,
    prices: &Prices,
    compare: &[String],
) -> Report {
    let lasted = Duration::from_millis(span.end.saturating_sub(span.start));
    let own = own_cost(lasted, own_use.busy, prices);
    let mut lines: BTreeMap<Vec<String>, ReportLine> = BTreeMap::new();
    let mut total = ReportLine::default();
    for sum in sums {
        let cost = cost_of_sum(sum, own, own_use.tokens, prices);
        let line = lines.entry(sum.names.clone()).or_default();
        line.names.clone_from(&sum.names);
        [line, &mut total].into_iter().for_each(|line| line.add_sum(sum, cost));
    }
    for line in lines.values_mut().chain([&mut total]) {
        line.compared = compare.iter().map(|model| compare_line(model, line, prices)).collect();
    }
    let notes = explain_costs(lasted, own_use.busy, prices);
    Report {
        span: (span.start, span.end),
        by: by.to_vec(),
        lines: lines.into_values().collect(),
        total,
        notes,
    }
}

impl ReportLine {
    fn add_sum(&mut self, sum: &UsageSum, cost: Cost) {
        self.requests += sum.requests;
        self.failed += sum.failed;
        self.model_calls += sum.model_calls;
        self.repeats += sum.repeats;
        self.usage = self.usage.plus(sum.usage);
        self.busy += sum.busy;
        self.cost.paid = self.cost.paid + cost.paid;
        self.cost.own = self.cost.own + cost.own;
    }
}

fn own_cost(lasted: Duration, busy: f64, prices: &Prices) -> Money {
    prices.own_hardware().map_or_else(Money::default, |own| own.cost(lasted.as_secs_f64(), busy))
}

/// Returns the cost of a sum. One's own hardware is shared by the tokens that it read and wrote.
fn cost_of_sum(sum: &UsageSum, own: Money, own_tokens: u64, prices: &Prices) -> Cost {
    match prices.token_price(&sum.model) {
        Some(price) => Cost { paid: price.cost_of(sum.usage), own: Money::default() },
        None if own_tokens == 0 => Cost::default(),
        None => {
            #[expect(clippy::cast_precision_loss, reason = "counts of tokens are far below 2^53")]
            let share = sum.usage.total_tokens() as f64 / own_tokens as f64;
            Cost { paid: Money::default(), own: Money::from_units(own.units() * share) }
        }
    }
}

fn compare_line(model: &str, line: &ReportLine, prices: &Prices) -> Comparison {
    let (price, source) = prices.comparison_price(model).unzip();
    let cost = price.map(|price| price.cost_of(line.usage));
    let saved = cost.map(|cost| cost - line.cost.total());
    Comparison { model: model.to_owned(), source, cost, saved }
}

fn explain_costs(lasted: Duration, busy: f64, prices: &Prices) -> Vec<String> {
    let paid =
        "Paid: tokens times the price in `[prices.\"MODEL\"]`; cached prompt tokens at `cached_input`."
            .to_owned();
    let own = match prices.own_hardware() {
        None => "Own models: not counted; set `[prices.own]` (monthly, watts, kwh) to count hardware and electricity.".to_owned(),
        Some(own) => format!(
            "Own models: {:.2} a month for {:.1} days, plus {:.0} W at {:.2} a kWh for the {:.2} h in which a model was working; divided by tokens.",
            own.monthly,
            lasted.as_secs_f64() / 86_400.0,
            own.watts,
            own.kwh,
            busy / 3_600.0
        ),
    };
    let elsewhere = format!(
        "Elsewhere: the same tokens at your configured prices, or at public prices where you set none ({}). Another model may need more or fewer tokens.",
        prices.public_source()
    );
    vec![paid, own, elsewhere]
}

impl Report {
    /// Writes the report for programs.
    pub fn to_json(&self, costs: bool) -> Value {
        let line = |line: &ReportLine| {
            let mut body = json!({
                "requests": line.requests, "failed": line.failed, "model_calls": line.model_calls, "repeats": line.repeats,
                "prompt_tokens": line.usage.prompt, "cached_tokens": line.usage.cached.unwrap_or_default(),
                "completion_tokens": line.usage.completion, "reasoning_tokens": line.usage.reasoning.unwrap_or_default(),
                "busy_ms": line.busy,
            });
            for (dimension, name) in self.by.iter().zip(&line.names) {
                body[dimension.as_str()] = name.as_str().into();
            }
            if costs {
                body["cost"] = json!({"paid": line.cost.paid.units(), "own": line.cost.own.units(), "total": line.cost.total().units()});
                body["compared"] = line.compared.iter().map(Comparison::to_json).collect();
            }
            body
        };
        let mut body = json!({
            "object": "usage", "since": self.span.0 / 1_000, "until": self.span.1 / 1_000,
            "by": self.by.iter().map(|dimension| dimension.as_str()).collect::<Vec<_>>(),
            "data": self.lines.iter().map(line).collect::<Vec<_>>(), "total": line(&self.total),
        });
        if costs {
            body["compared"] = self.total.compared.iter().map(Comparison::to_json).collect();
            body["notes"] = self.notes.clone().into();
        }
        body
    }
}

impl Comparison {
    fn to_json(&self) -> Value {
        let source = self.source.as_ref().map(PriceSource::describe);
        json!({"model": self.model, "price": source, "cost": self.cost.map(Money::units), "saved": self.saved.map(Money::units)})
    }
}

impl PriceSource {
    /// For people.
    pub fn describe(&self) -> String {
        match self {
            Self::Configured => "configured".to_owned(),
            Self::Public(date) => format!("public, {date}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86_400_000;

    fn sum(name: &str, model: &str, prompt: u64, completion: u64) -> UsageSum {
        let usage = Usage { prompt, completion, ..Usage::default() };
        UsageSum {
            names: vec![name.into()],
            model: model.into(),
            requests: 1,
            model_calls: 1,
            usage,
            ..UsageSum::default()
        }
    }

    #[test]
    fn costs_are_paid_or_shared_by_tokens() {
        let text = "[paid]\ninput = 1.0\noutput = 10.0\n[own]\nmonthly = 365.25\nwatts = 1000.0\nkwh = 0.5";
        let prices = Prices::new(&toml::from_str(text).unwrap(), None).unwrap();
        let sums = [
            sum("alice", "paid", 1_000_000, 0),
            sum("alice", "mine", 3_000, 0),
            sum("bob", "mine", 500, 500),
        ];
        let found = make_report(
            0..DAY,
            &[Dimension::Key],
            &sums,
            HardwareUse { busy: 3_600.0, tokens: 4_000 },
            &prices,
            &["gpt-5-nano".into(), "nobody".into()],
        );
        let costs: Vec<_> = found
            .lines
            .iter()
            .map(|line| (line.names[0].as_str(), line.cost.paid.units(), line.cost.own.units()))
            .collect();
        // The box: 12 for its day and 0.5 for one hour of work, shared three to one.
        assert_eq!(costs, [("alice", 1.0, 9.375), ("bob", 0.0, 3.125)]);
        assert_eq!(found.total.cost.total(), Money::from_units(13.5));
        assert_eq!((found.total.requests, found.total.usage.total_tokens()), (3, 1_004_000));
        let elsewhere: Vec<_> = found.total.compared.iter().map(|it| it.cost.is_some()).collect();
        assert_eq!(elsewhere, [true, false]);
        let [nano, _] = &found.total.compared[..] else { panic!("{:?}", found.total) };
        assert!(nano.saved.unwrap() < Money::default(), "it would have been cheaper");
        assert!(matches!(nano.source, Some(PriceSource::Public(_))));
        let by_line: Money = found.lines.iter().map(|line| line.compared[0].saved.unwrap()).sum();
        assert_eq!(Some(by_line), nano.saved, "each line has its difference");
        assert!(found.notes.iter().any(|note| note.contains("1.00 h")), "{:?}", found.notes);
    }

    #[test]
    fn what_can_be_grouped_by() {
        assert_eq!(
            parse_dimensions("model, key,day").unwrap(),
            [Dimension::Model, Dimension::Key, Dimension::Day]
        );
        assert_eq!(parse_dimensions("").unwrap(), []);
        let error = parse_dimensions("colour").unwrap_err().to_string();
        assert!(error.contains("`colour`") && error.contains("model"), "{error}");
    }
}
