//! Amounts of money in millionths, so that sums of many small amounts are exact. The currency is that of the
//! configured prices.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, Sub};

/// An amount, in millionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Money(i64);

impl Money {
    /// Makes an amount from whole units of the currency.
    pub fn from_units(amount: f64) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a cast of a float is cut to the range, and amounts are far from it"
        )]
        Self((amount * 1_000_000.0).round() as i64)
    }

    pub(super) fn from_millionths(amount: i64) -> Self {
        Self(amount)
    }

    pub(super) fn millionths(self) -> i64 {
        self.0
    }

    /// Writes the amount with its currency, if one is known.
    pub fn with_currency(self, currency: &str) -> String {
        if currency.is_empty() { self.to_string() } else { format!("{self} {currency}") }
    }

    /// Returns the amount in whole units of the currency.
    pub fn units(self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "amounts are far below 2^53 millionths")]
        let millionths = self.0 as f64;
        millionths / 1_000_000.0
    }
}

impl fmt::Display for Money {
    /// Writes two decimal places, and more for a small amount.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places = match self.0.abs() {
            0 | 1_000_000.. => 2,
            10_000.. => 3,
            _ => 6,
        };
        write!(out, "{:.places$}", self.units())
    }
}

impl Add for Money {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Sub for Money {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Sum for Money {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::default(), Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_amounts_show_and_sums_are_exact() {
        for (amount, expected) in
            [(0.0, "0.00"), (12.345, "12.35"), (0.1234, "0.123"), (0.000_15, "0.000150"), (-3.5, "-3.50")]
        {
            assert_eq!(Money::from_units(amount).to_string(), expected);
        }
        assert_eq!(Money::from_units(1.5).with_currency("EUR"), "1.50 EUR");
        assert_eq!(Money::from_units(1.5).with_currency(""), "1.50");
        let sum: Money = std::iter::repeat_n(Money::from_units(0.000_001), 1_000_000).sum();
        assert_eq!(sum, Money::from_units(1.0));
    }
}
