//! The words for a model that is not there.

use crate::cli::failure::Failure;
use openexperts::suggest_nearest;

/// Asks for one of these models, and names the one that `wanted` may mean.
pub(super) fn ask_for_model(wanted: Option<&str>, names: &[&str]) -> Failure {
    let what = wanted.map_or_else(String::new, |name| {
        let near = suggest_nearest(name, names.iter().copied());
        format!(
            "There is no model `{name}`{}",
            if near.is_empty() { ". ".to_owned() } else { format!(": {near}") }
        )
    });
    format!("{what}Name one with --model. Available models: {}", names.join(", ")).into()
}
