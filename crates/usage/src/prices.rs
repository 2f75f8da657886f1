//! The prices of tokens: the configured ones, and a dated list of public prices for comparison. Pure.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::config::PriceConfig;
use super::money::Money;
use wire::turn::Usage;

/// The list that comes with respool.
const PUBLIC: &str = include_str!("public_prices.toml");

/// A million tokens.
const MILLION: f64 = 1_000_000.0;

/// The prices of a million tokens of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Price {
    /// The price of prompts.
    pub input: f64,
    /// The price of cached prompts.
    pub cached_input: f64,
    /// The price of replies, reasoning included.
    pub output: f64,
}

impl Price {
    /// Returns the cost of these tokens.
    pub fn cost_of(&self, usage: Usage) -> Money {
        let cached = usage.cached.unwrap_or_default().min(usage.prompt);
        let amount = to_float(usage.prompt - cached) * self.input
            + to_float(cached) * self.cached_input
            + to_float(usage.completion) * self.output;
        Money::from_units(amount / MILLION)
    }
}

fn to_float(tokens: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "counts of tokens are far below 2^53")]
    let tokens = tokens as f64;
    tokens
}

/// The origin of a price.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PriceSource {
    /// `[prices."MODEL"]`.
    Configured,
    /// The list of public prices, of this date.
    Public(String),
}

/// All prices that are known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prices {
    configured: BTreeMap<String, Price>,
    /// Aliases of models, each with the model that it stands for in the end.
    aliases: BTreeMap<String, String>,
    public: BTreeMap<String, Price>,
    date: String,
    source: String,
    /// The currency of the public prices, if it is not that of the configured ones.
    foreign_currency: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PublicList {
    date: String,
    /// Without it, the prices are in the currency of the configured ones.
    currency: Option<String>,
    source: String,
    models: BTreeMap<String, PublicPrice>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PublicPrice {
    input: f64,
    cached_input: Option<f64>,
    output: f64,
    #[serde(rename = "source")]
    _source: Option<String>,
}

impl Prices {
    /// Combines configured prices with a list of public prices; `None`: the list that comes with respool.
    /// `currency`: that of the configured prices, if it is known.
    ///
    /// # Errors
    /// When the list cannot be read.
    pub fn new(
        configured: &BTreeMap<String, PriceConfig>,
        currency: Option<&str>,
        list: Option<&str>,
    ) -> Result<Self, toml::de::Error> {
        let list: PublicList = toml::from_str(list.unwrap_or(PUBLIC))?;
        let is_foreign = |public: &String| currency.is_some_and(|own| !own.eq_ignore_ascii_case(public));
        let public = |(name, price): (String, PublicPrice)| {
            let PublicPrice { input, cached_input, output, .. } = price;
            (name, Price { input, cached_input: cached_input.unwrap_or(input), output })
        };
        let paid = |(name, price): (&String, &PriceConfig)| {
            let input = price.input.unwrap_or_default();
            let cached_input = price.cached_input.unwrap_or(input);
            (name.clone(), Price { input, cached_input, output: price.output.unwrap_or_default() })
        };
        Ok(Self {
            aliases: BTreeMap::new(),
            configured: configured.iter().map(paid).collect(),
            public: list.models.into_iter().map(public).collect(),
            foreign_currency: list.currency.filter(is_foreign),
            date: list.date,
            source: list.source,
        })
    }

    /// Adds aliases of models. An alias costs the same as its model unless it has its own price.
    #[must_use]
    pub fn with_aliases(self, aliases: BTreeMap<String, String>) -> Self {
        Self { aliases, ..self }
    }

    /// Returns the price of a model; `None` for one that costs nothing, as on one's own hardware.
    pub fn token_price(&self, model: &str) -> Option<Price> {
        let of = |model: &str| self.configured.get(model).copied();
        of(model).or_else(|| of(self.aliases.get(model)?))
    }

    /// Returns the price of a model for a comparison, and its source.
    pub fn comparison_price(&self, model: &str) -> Option<(Price, PriceSource)> {
        let public = || Some((*self.public.get(model)?, PriceSource::Public(self.date.clone())));
        self.token_price(model).map(|price| (price, PriceSource::Configured)).or_else(public)
    }

    /// Returns the currency of the prices from a source, if it is not that of the configured ones.
    pub fn foreign_currency(&self, source: &PriceSource) -> Option<&str> {
        self.foreign_currency.as_deref().filter(|_| *source != PriceSource::Configured)
    }

    /// Returns the source and date of the public prices.
    pub fn public_source(&self) -> String {
        format!("{}, {}", self.source, self.date)
    }

    /// Returns the cost of these tokens of a model; `None` without a price.
    pub fn cost_of(&self, model: &str, usage: Usage) -> Option<Money> {
        self.token_price(model).map(|price| price.cost_of(usage))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(prompt: u64, cached: Option<u64>, completion: u64) -> Usage {
        Usage { prompt, completion, cached, ..Usage::default() }
    }

    fn configured(text: &str) -> Prices {
        Prices::new(&toml::from_str(text).unwrap(), None, None).unwrap()
    }

    #[test]
    fn cached_tokens_have_their_own_price() {
        let prices = configured("[m]\ninput = 2.0\ncached_input = 0.5\noutput = 8.0");
        let check = |usage: Usage, expected: f64| {
            assert_eq!(prices.cost_of("m", usage), Some(Money::from_units(expected)), "{usage:?}");
        };
        check(usage(1_000_000, None, 0), 2.0);
        check(usage(1_000_000, Some(600_000), 0), 0.8 + 0.3);
        check(usage(0, None, 250_000), 2.0);
        check(usage(10, Some(99), 0), 0.000_005);
        assert_eq!(prices.cost_of("mine", usage(9, None, 9)), None);
    }

    #[test]
    fn configured_prices_override_the_public_list() {
        let prices = configured("[\"gpt-5-mini\"]\ninput = 9.0\noutput = 9.0");
        assert!(prices.public.len() >= 20 && prices.public_source().contains("2026"));
        for name in super::super::config::UsageConfig::default().compare {
            assert!(prices.comparison_price(&name).is_some(), "{name}");
        }
        assert!(prices.public.values().all(|price| price.input > 0.0 && price.cached_input <= price.input));
        assert_eq!(prices.comparison_price("gpt-5-mini").unwrap().1, PriceSource::Configured);
        assert!(Prices::new(&BTreeMap::new(), None, Some("date = 1")).is_err());
    }
}
