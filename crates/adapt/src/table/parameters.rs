//! Rules about single parameters: in whose words they are refused, and what each rule costs.

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
    /// Refusals as servers write them: the server, and its words. `NAME` stands for the parameter.
    pub said: &'static [(&'static str, &'static str)],
    /// An example: fields that the server refuses, and their replacement.
    example: (&'static str, &'static str),
}

impl ParameterRow {
    /// An example for each parameter: words of a refusal, the refused fields, and their replacement.
    pub fn examples(&self) -> impl Iterator<Item = [String; 3]> {
        let names = if self.names.is_empty() { &["top_k"] } else { self.names };
        // It is renamed.
        let dropped = names.iter().filter(|name| **name != "max_completion_tokens");
        dropped.zip(self.said.iter().cycle()).map(|(name, (_, words))| {
            let (before, after) = self.example;
            [words, before, after].map(|text| text.replace("NAME", name).replace("VALUE", value_of(name)))
        })
    }
}

/// A value of this parameter that says something.
fn value_of(name: &str) -> &'static str {
    match name {
        "tool_choice" => r#""required""#,
        "response_format" => r#"{"type":"json_object"}"#,
        "stream_options" => r#"{"include_usage":true}"#,
        "store" | "parallel_tool_calls" => "false",
        _ => "7",
    }
}

/// The words for a parameter that a server does not know.
pub const UNKNOWN_WORDS: &[(&str, &str)] = &[
    ("OpenAI", "Unrecognized request argument supplied: NAME"),
    ("OpenAI", "Unsupported parameter: 'NAME' is not supported with this model."),
    ("Groq", "property 'NAME' is unsupported"),
    (
        "vLLM",
        "[{'type': 'extra_forbidden', 'loc': ('body', 'NAME'), 'msg': 'Extra inputs are not permitted'}]",
    ),
    ("Gemini", "Invalid JSON payload received. Unknown name \"NAME\": Cannot find field."),
    ("Anthropic", "NAME: Extra inputs are not permitted"),
];

const fn drop_row(names: &'static [&'static str], loss: Loss, lost: &'static str) -> ParameterRow {
    ParameterRow {
        rule: "parameter.drop",
        values: ":NAME",
        names,
        change: "it is left out",
        loss,
        lost,
        said: UNKNOWN_WORDS,
        example: (r#"{"NAME":VALUE}"#, "{}"),
    }
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
    ParameterRow {
        rule: "parameter.drop_default",
        values: ":NAME",
        names: &[],
        change: "a parameter that would need consent is left out where it has the value that it has without being named",
        loss: Loss::Lossless,
        lost: NOTHING,
        said: &[("OpenAI", "Unsupported parameter: 'tool_choice' is not supported with this model.")],
        example: (r#"{"tool_choice":"auto"}"#, "{}"),
    },
    ParameterRow {
        rule: "parameter.rename",
        values: ":FROM:TO",
        names: &[],
        change: "it goes under another name",
        loss: Loss::Lossless,
        lost: NOTHING,
        said: &[(
            "OpenAI",
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
        )],
        example: (r#"{"max_tokens":5}"#, r#"{"max_completion_tokens":5}"#),
    },
    ParameterRow {
        rule: "parameter.at_most",
        values: ":NAME:NUMBER",
        names: &[],
        change: "a number above the server's range becomes its largest one",
        loss: Loss::Minor,
        lost: "how far it lies above the range",
        said: &[(
            "llama.cpp",
            "Field 'temperature': Value must be between 0.000000 <= value <= 1.000000, but got 1.500000",
        )],
        example: (r#"{"temperature":1.5}"#, r#"{"temperature":1.000000}"#),
    },
    ParameterRow {
        rule: "parameter.limit_effort",
        values: "",
        names: &[],
        change: "`reasoning_effort` becomes low, medium or high",
        loss: Loss::Minor,
        lost: "levels between and beyond these",
        said: &[("gpt-oss", "Harmony does not support reasoning effort xhigh")],
        example: (r#"{"reasoning_effort":"xhigh"}"#, r#"{"reasoning_effort":"high"}"#),
    },
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
    use crate::{Consent, Rule, RuleSet, adapt, describe_rule, find_rule};

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
    fn each_row_is_found_by_its_words() {
        let of_rows = ROWS.iter().flat_map(|row| row.examples().map(move |example| (row.rule, example)));
        let in_all_words = UNKNOWN_WORDS.iter().map(|(_, words)| {
            let words = words.replace("NAME", "top_k");
            ("parameter.drop", [words, r#"{"top_k":7}"#.to_owned(), "{}".to_owned()])
        });
        for (rule, [words, before, after]) in of_rows.chain(in_all_words) {
            let found = find_rule(&words, None, &before, &Consent::default()).expect(&words);
            assert_eq!(found.to_string().split(':').next(), Some(rule), "{words}");
            assert_eq!(adapt(&before, &RuleSet::from([found])).body, after, "{words}");
        }
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
