//! The table of rules: what is refused, in whose words, what is changed, what is lost. docs/requests.md and
//! the tests are generated from it.
//!
//! Sources of the words: llama.cpp's `json-schema-to-grammar.cpp` and `server-common.cpp`, the chat templates
//! of the models, vLLM's and `SGLang`'s request models, `mistral_common`, Ollama, LM Studio and OpenAI's API.

mod media;
mod messages;
mod parameters;
mod tools;

pub use parameters::{ParameterRow, UNKNOWN_WORDS};

use crate::row::Row;
use crate::rule::{Loss, Rule};

/// All rules but those about single parameters. Among rows with the same words the first that changes the
/// request counts.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    [tools::ROWS, messages::ROWS, media::ROWS].into_iter().flatten()
}

/// The row of a rule; `None` for a single parameter.
pub fn row_of(rule: &Rule) -> Option<&'static Row> {
    rows().find(|row| row.rule == *rule)
}

/// The rows about single parameters.
pub fn parameter_rows() -> &'static [ParameterRow] {
    parameters::ROWS
}

/// Says what the rule of this name changes, and what that costs, for people.
pub fn describe_rule(name: &str) -> String {
    let known = match name.parse::<Rule>() {
        Ok(Rule::Parameter(parameter)) => parameters::find_row(&parameter).map(|row| (row.change, row.lost)),
        Ok(rule) => row_of(&rule).map(|row| (row.change, row.lost)),
        Err(_) => None,
    };
    let (change, lost) = known.unwrap_or(("something that this version does not know", "unknown"));
    // In the table the parameter's name stands before.
    let change =
        change.strip_prefix("it ").map_or_else(|| change.to_owned(), |rest| format!("the parameter {rest}"));
    format!("{change} (lost: {lost})")
}

impl Rule {
    /// The part of the request's meaning that the rule costs.
    pub fn loss(&self) -> Loss {
        match self {
            Self::Parameter(parameter) => parameters::find_row(parameter).map_or(Loss::Lossy, |row| row.loss),
            rule => row_of(rule).map_or(Loss::Lossy, |row| row.loss),
        }
    }
}
