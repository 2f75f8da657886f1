//! Rules about single parameters: what each costs.

use crate::row::NOTHING;
use crate::rule::{Loss, Parameter};

/// One row: a change of these parameters.
#[derive(Debug)]
pub struct ParameterRow {
    /// The rule's name, without its values.
    pub rule: &'static str,
    /// The form of its values; empty for a rule without any.
    pub values: &'static str,
    /// The parameters; empty for all that no row before names.
    pub names: &'static [&'static str],
    /// The change.
    pub change: &'static str,
    /// The part of the meaning that is lost.
    pub loss: Loss,
    /// More about the loss, for people.
    pub lost: &'static str,
}

const fn drop_row(names: &'static [&'static str], loss: Loss, lost: &'static str) -> ParameterRow {
    ParameterRow { rule: "parameter.drop", values: ":NAME", names, change: "it is left out", loss, lost }
}

const fn change_row(
    rule: &'static str,
    values: &'static str,
    change: &'static str,
    loss: Loss,
    lost: &'static str,
) -> ParameterRow {
    ParameterRow { rule, values, names: &[], change, loss, lost }
}

const FORMS: &[&str] = &[
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "json_schema",
    "grammar",
    "structural_tag",
    "regex",
    "ebnf",
];
const INERT: &[&str] = &[
    "metadata",
    "user",
    "safety_identifier",
    "service_tier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prediction",
];

/// The rows about parameters.
pub(super) const ROWS: &[ParameterRow] = &[
    drop_row(&["tool_choice", "function_call"], Loss::Lossy, "whether the model calls a tool, and which one"),
    drop_row(&["functions", "mcp_servers"], Loss::Lossy, "the tools that it offers"),
    drop_row(
        &["documents", "chat_template", "continue_final_message"],
        Loss::Lossy,
        "a part of the prompt, or its form",
    ),
    drop_row(FORMS, Loss::Lossy, "the form of the answer"),
    drop_row(&["max_tokens", "max_completion_tokens"], Loss::Lossy, "the limit of the reply's length"),
    drop_row(&["stop", "stop_token_ids", "min_tokens", "ignore_eos"], Loss::Lossy, "where the reply ends"),
    drop_row(&["n"], Loss::Lossy, "all replies but one"),
    drop_row(
        &["logit_bias", "bad_words", "allowed_token_ids"],
        Loss::Lossy,
        "which words the model prefers or avoids",
    ),
    drop_row(&["logprobs", "top_logprobs", "prompt_logprobs"], Loss::Lossy, "the probabilities of tokens"),
    drop_row(
        &["modalities", "audio", "web_search_options"],
        Loss::Lossy,
        "a part of the reply: its sound, or what a search finds",
    ),
    drop_row(
        &["parallel_tool_calls"],
        Loss::Enforced,
        "the server's check; respool lets only the first call leave",
    ),
    drop_row(INERT, Loss::Lossless, NOTHING),
    drop_row(
        &["store", "provider"],
        Loss::Lossy,
        "whether the server, or one that it hands the request to, keeps the exchange",
    ),
    drop_row(
        &["stream_options"],
        Loss::Minor,
        "the server's count of a stream's tokens, which respool estimates",
    ),
    drop_row(
        &["reasoning_effort", "reasoning", "thinking", "enable_thinking", "think", "verbosity"],
        Loss::Minor,
        "how much the model reasons or says",
    ),
    drop_row(
        &[],
        Loss::Minor,
        "how the model picks its words, or something else that the parameter asks for",
    ),
    change_row(
        "parameter.drop_default",
        ":NAME",
        "a parameter that would need consent is left out where it has the value that it has without being named",
        Loss::Lossless,
        NOTHING,
    ),
    change_row("parameter.rename", ":FROM:TO", "it goes under another name", Loss::Lossless, NOTHING),
    change_row(
        "parameter.at_most",
        ":NAME:NUMBER",
        "a number above the server's range becomes its largest one",
        Loss::Minor,
        "how far it lies above the range",
    ),
    change_row(
        "parameter.limit_effort",
        "",
        "`reasoning_effort` becomes low, medium or high",
        Loss::Minor,
        "levels between and beyond these",
    ),
];

/// The row of a parameter's rule.
pub(super) fn find_row(parameter: &Parameter) -> Option<&'static ParameterRow> {
    let (rule, name) = match parameter {
        Parameter::Drop(name) => ("parameter.drop", name.as_str()),
        Parameter::DropDefault(name) => ("parameter.drop_default", name.as_str()),
        Parameter::Rename(name, _) => ("parameter.rename", name.as_str()),
        Parameter::AtMost(name, _) => ("parameter.at_most", name.as_str()),
        Parameter::LimitEffort => ("parameter.limit_effort", ""),
    };
    ROWS.iter().find(|row| row.rule == rule && (row.names.is_empty() || row.names.contains(&name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Rule, RuleSet, adapt, describe_rule};

    fn check(name: &str, loss: Loss) {
        assert_eq!(name.parse::<Rule>().unwrap().loss(), loss, "{name}");
    }

    #[test]
    fn losses_are_those_of_the_table() {
        check("parameter.drop:metadata", Loss::Lossless);
        check("parameter.drop:parallel_tool_calls", Loss::Enforced);
        for lossy in
            ["tool_choice", "logit_bias", "guided_json", "top_logprobs", "functions", "documents", "store"]
        {
            check(&format!("parameter.drop:{lossy}"), Loss::Lossy);
            check(&format!("parameter.drop_default:{lossy}"), Loss::Lossless);
        }
        for minor in [
            "drop:stream_options",
            "drop:temperature",
            "drop:of_a_later_year",
            "at_most:top_k:9",
            "limit_effort",
        ] {
            check(&format!("parameter.{minor}"), Loss::Minor);
        }
        assert_eq!(
            describe_rule("parameter.drop:stop"),
            "the parameter is left out (lost: where the reply ends)"
        );
    }

    #[test]
    fn only_values_that_mean_nothing_are_defaults() {
        let sent = |name: &str, value: &str| {
            let rules = RuleSet::from([Rule::Parameter(Parameter::DropDefault(name.to_owned()))]);
            adapt(&format!(r#"{{"model":"m","{name}":{value}}}"#), &rules).applied.is_empty()
        };
        for (name, default, other) in [
            ("tool_choice", r#""auto""#, r#""required""#),
            ("response_format", r#"{"type": "text"}"#, r#"{"type":"json_object"}"#),
            ("n", "1", "2"),
            ("logit_bias", "{}", r#"{"5":-100}"#),
            ("stop", "[]", r#"["x"]"#),
            ("logprobs", "false", "true"),
            ("top_logprobs", "0", "5"),
            ("modalities", r#"["text"]"#, r#"["audio"]"#),
            ("max_tokens", "null", "5"),
            ("store", "null", "false"),
        ] {
            assert!(!sent(name, default) && sent(name, other), "{name}");
        }
    }
}
