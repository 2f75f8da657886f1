//! One row of the table of rules.

use crate::rule::{Loss, Rule};

/// Stands for the loss of a lossless rule.
pub(crate) const NOTHING: &str = "nothing";

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
