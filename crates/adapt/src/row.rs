//! One row of the table of rules, and how rows are found.

use crate::rule::{Loss, Rule};
use crate::table::rows;

/// One rule of the table.
#[derive(Debug)]
pub struct Row {
    /// The rule.
    pub rule: Rule,
    /// The construct that servers refuse.
    pub refused: &'static str,
    /// The change.
    pub change: &'static str,
    /// The part of the meaning that is lost.
    pub loss: Loss,
    /// More about the loss, for people.
    pub lost: &'static str,
    /// Regular expressions for the words of a refusal.
    pub(crate) signs: &'static [&'static str],
    /// Refusals as servers write them: the server or template, and its words.
    pub said: &'static [(&'static str, &'static str)],
    /// An example: a request that the server refuses, and its replacement.
    pub example: (&'static str, &'static str),
}

/// The row of a rule; `None` for a single parameter.
pub fn row_of(rule: &Rule) -> Option<&'static Row> {
    rows().find(|row| row.rule == *rule)
}

/// Says what the rule of this name changes, and what that costs, for people.
pub fn describe_rule(name: &str) -> String {
    match name.parse::<Rule>().ok().as_ref().and_then(row_of) {
        Some(row) => format!("{} (lost: {})", row.change, row.lost),
        None => "one parameter is left out or changed".to_owned(),
    }
}
