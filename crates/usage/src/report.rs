//! Reports the usage of a period by model, key, agent, upstream and day, with its cost and the cost of the
//! same tokens elsewhere. Pure: the store makes the sums.

use std::collections::BTreeMap;
use std::ops::Range;

use serde_json::{Value, json};

use super::money::Money;
use super::prices::{PriceSource, Prices};
use store::{Dimension, UsageSum, UsageTotals};

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
    /// Its requests and tokens.
    pub totals: UsageTotals,
    /// Its cost.
    pub cost: Money,
    /// The cost of the same tokens elsewhere.
    pub compared: Vec<Comparison>,
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
    /// The amount's currency, if it is another one than that of the report.
    pub currency: Option<String>,
    /// The difference; negative where the other model would have been cheaper. `None` between currencies.
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
    prices: &Prices,
    compare: &[String],
) -> Report {
    let mut lines: BTreeMap<&[String], ReportLine> = BTreeMap::new();
    let mut total = ReportLine::default();
    for sum in sums {
        let line = lines.entry(&sum.names).or_default();
        line.names.clone_from(&sum.names);
        let cost = prices.cost_of(&sum.model, sum.totals.usage).unwrap_or_default();
        [line, &mut total].into_iter().for_each(|line| line.add(sum.totals, cost));
    }
    for line in lines.values_mut().chain([&mut total]) {
        line.compared = compare.iter().map(|model| compare_line(model, line, prices)).collect();
    }
    Report {
        span: (span.start, span.end),
        by: by.to_vec(),
        lines: lines.into_values().collect(),
        total,
        notes: explain_costs(prices),
    }
}

impl ReportLine {
    fn add(&mut self, totals: UsageTotals, cost: Money) {
        self.totals = self.totals.plus(totals);
        self.cost = self.cost + cost;
    }
}

fn compare_line(model: &str, line: &ReportLine, prices: &Prices) -> Comparison {
    let (price, source) = prices.comparison_price(model).unzip();
    let cost = price.map(|price| price.cost_of(line.totals.usage));
    let currency = source.as_ref().and_then(|source| prices.foreign_currency(source)).map(str::to_owned);
    let saved = cost.filter(|_| currency.is_none()).map(|cost| cost - line.cost);
    Comparison { model: model.to_owned(), source, cost, currency, saved }
}

fn explain_costs(prices: &Prices) -> Vec<String> {
    let cost = "Cost: tokens times the price in `[prices.\"MODEL\"]`; cached prompt tokens at `cached_input`. A \
                model without a price costs nothing.";
    let elsewhere = format!(
        "Elsewhere: the same tokens at your configured prices, or at public prices where you set none ({}). Another model may need more or fewer tokens.",
        prices.public_source()
    );
    let currency = "Currency: amounts are in that of `[prices]`, which `[usage] currency = \"EUR\"` names; public prices \
                    are in US dollars.";
    let repeats = "Repeated: attempts that another one followed; by upstream, each where it was made.";
    vec![cost.to_owned(), elsewhere, currency.to_owned(), repeats.to_owned()]
}

impl Report {
    /// Writes the report for programs.
    pub fn to_json(&self, costs: bool) -> Value {
        let line = |line: &ReportLine| {
            let UsageTotals { requests, failed, model_calls, repeats, usage, busy } = line.totals;
            let mut body = json!({
                "requests": requests, "failed": failed, "model_calls": model_calls, "repeats": repeats,
                "prompt_tokens": usage.prompt, "cached_tokens": usage.cached.unwrap_or_default(),
                "completion_tokens": usage.completion, "reasoning_tokens": usage.reasoning.unwrap_or_default(),
                "busy_ms": busy,
            });
            for (dimension, name) in self.by.iter().zip(&line.names) {
                body[dimension.as_str()] = name.as_str().into();
            }
            if costs {
                body["cost"] = json!({"paid": line.cost.units(), "total": line.cost.units()});
                body["compared"] = line.compared.iter().map(Comparison::to_json).collect();
            }
            body
        };
        let mut body = json!({
            "object": "usage", "since": clock::format_time(self.span.0), "until": clock::format_time(self.span.1),
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
        let mut body = json!({"model": self.model, "price": source, "cost": self.cost.map(Money::units), "saved": self.saved.map(Money::units)});
        if let Some(currency) = &self.currency {
            body["currency"] = currency.as_str().into();
        }
        body
    }
}

impl PriceSource {
    /// For people.
    pub fn describe(&self) -> String {
        match self {
            Self::Configured => "configured".to_owned(),
            Self::Public(date) => format!("public, in USD, {date}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use wire::turn::Usage;

    use super::*;

    fn sum(name: &str, model: &str, prompt: u64, completion: u64) -> UsageSum {
        let usage = Usage { prompt, completion, ..Usage::default() };
        let totals = UsageTotals { requests: 1, model_calls: 1, usage, ..UsageTotals::default() };
        UsageSum { names: vec![name.into()], model: model.into(), totals }
    }

    #[test]
    fn models_without_a_price_cost_nothing() {
        let text = "[paid]\ninput = 1.0\noutput = 10.0";
        let prices = Prices::new(&toml::from_str(text).unwrap(), None, None).unwrap();
        let sums = [
            sum("alice", "paid", 1_000_000, 0),
            sum("alice", "mine", 3_000, 0),
            sum("bob", "mine", 500, 500),
        ];
        let found =
            make_report(0..1, &[Dimension::Key], &sums, &prices, &["gpt-5-nano".into(), "nobody".into()]);
        let costs: Vec<_> =
            found.lines.iter().map(|line| (line.names[0].as_str(), line.cost.units())).collect();
        assert_eq!(costs, [("alice", 1.0), ("bob", 0.0)]);
        assert_eq!(found.total.cost, Money::from_units(1.0));
        assert_eq!((found.total.totals.requests, found.total.totals.usage.total_tokens()), (3, 1_004_000));
        let elsewhere: Vec<_> = found.total.compared.iter().map(|it| it.cost.is_some()).collect();
        assert_eq!(elsewhere, [true, false]);
        let [nano, _] = &found.total.compared[..] else { panic!("{:?}", found.total) };
        assert!(nano.saved.unwrap() < Money::default(), "it would have been cheaper");
        assert!(matches!(nano.source, Some(PriceSource::Public(_))));
        let by_line: Money = found.lines.iter().map(|line| line.compared[0].saved.unwrap()).sum();
        assert_eq!(Some(by_line), nano.saved, "each line has its difference");
    }

    /// Regression: a cost in dollars had a cost in euros subtracted.
    #[test]
    fn currencies_are_not_subtracted() {
        let configured = toml::from_str("[own]\ninput = 1.0").unwrap();
        let compared = |currency| {
            let prices = Prices::new(&configured, Some(currency), None).unwrap();
            let models = ["gpt-5-nano".to_owned(), "own".to_owned()];
            let total = make_report(0..1, &[], &[sum("a", "own", 1_000, 0)], &prices, &models).total;
            let facts = |it: &Comparison| (it.cost.is_some(), it.currency.clone(), it.saved.is_some());
            total.compared.iter().map(facts).collect::<Vec<_>>()
        };
        assert_eq!(compared("EUR"), [(true, Some("USD".into()), false), (true, None, true)]);
        assert_eq!(compared("usd"), [(true, None, true), (true, None, true)]);
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
