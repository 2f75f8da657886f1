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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_model_is_named() {
        let check = |wanted, names: &[&str], expected: &str| {
            assert_eq!(ask_for_model(wanted, names).to_string(), expected);
        };
        check(None, &["a", "b"], "Name one with --model. Available models: a, b");
        let expected = "There is no model `claude`. Name one with --model. Available models: a, b";
        check(Some("claude"), &["a", "b"], expected);
        let expected = "There is no model `qwen3-32`: did you mean \"qwen3-32b\"? Name one with --model. \
                        Available models: qwen3-32b";
        check(Some("qwen3-32"), &["qwen3-32b"], expected);
    }
}
