//! Reads a refusal: finds the rule that avoids its cause.
//!
//! Servers echo parts of a request in their refusals, so words that also stand in the request name no cause.
//! A rule counts only when it changes the request; so each further attempt removes one more named cause.

use std::sync::LazyLock;

use regex::Regex;
use wire::Object;
use wire::pattern::compile_pattern;

use crate::apply::adapt;
use crate::declared::EFFORT;
use crate::parameters::is_default;
use crate::rule::{Consent, Loss, Parameter, Rule, RuleSet};
use crate::table::rows;

/// The part of an error's text, in bytes, that is searched: a dump of the request may follow.
const SEARCHED: usize = 1_000;

/// The rest of a line after one of these is the server's echo of a part of the request.
const ECHOES: [&str; 3] = ["'input':", "\"input\":", "input_value="];
/// Everything after it is the server's dump of the request.
const DUMP: &str = "request body:";

/// Parameters without which there is no request.
const NEEDED: [&str; 4] = ["model", "messages", "tools", "stream"];

static SIGNS: LazyLock<Vec<(&'static Rule, Vec<Regex>)>> = LazyLock::new(|| {
    rows().map(|row| (&row.rule, row.signs.iter().map(|sign| compile_pattern(sign)).collect())).collect()
});

/// Words for a parameter that the server does not know; each captures its name.
static UNKNOWN_PARAMETER: LazyLock<Vec<Regex>> = LazyLock::new(|| {
    let patterns = [
        r"(?i)\b(?:unrecognized|unknown|unsupported|unexpected)\b[^'\x22`:\n]{0,60}[:\s]\s*['\x22`]?([a-z_][a-z0-9_]*)",
        r"(?i)['\x22`]?\b([a-z_][a-z0-9_]*)['\x22`]?\s+(?:is|are)\s+(?:not (?:supported|allowed|permitted|accepted)|unsupported|unknown)",
        r"(?i)\b([a-z_][a-z0-9_]*)['\x22`]?\s*:\s*extra inputs are not permitted",
        r"'type': 'extra_forbidden', 'loc': (?:\((?:'[a-z]+', |\d+, )*'|'(?:[a-z0-9]+\.)*)([a-z_]+)'",
    ];
    patterns.into_iter().map(compile_pattern).collect()
});

/// Words for a limit that is lower than the API's own: the name, then the number.
static LIMIT: LazyLock<Vec<Regex>> = LazyLock::new(|| {
    let patterns = [
        r"(?i)\b(temperature|top_p|top_k|n|top_logprobs|presence_penalty|frequency_penalty)['\x22`]?[^\n]{0,30}(?:must be|should be|has to be)[^\n0-9]{0,40}(?:less than or equal to|at most|<=|no more than)\s*([0-9.]+)",
        r"(?i)\b(temperature|top_p|presence_penalty|frequency_penalty)['\x22`]?[^\n]{0,30}(?:must be|should be|has to be)[^\n0-9\[]{0,20}(?:in(?: the range)?|between)\s*\[?-?[0-9.]+(?:\s*,\s*|\s+and\s+)([0-9.]+)",
        r"(?i)\b(temperature|top_p|top_k|presence_penalty|frequency_penalty)['\x22`]?: value must be between -?[0-9.]+ <= value <= ([0-9.]+)",
    ];
    patterns.into_iter().map(compile_pattern).collect()
});

static EFFORT_VALUE: LazyLock<Regex> = LazyLock::new(|| {
    compile_pattern(
        r"(?is)(?:literal_error|invalid|unsupported|must be|should be).{0,60}reasoning_effort|reasoning_effort.{0,60}(?:must be|should be|invalid|literal_error)|does not support reasoning effort|invalid reasoning value",
    )
});

/// The words of Ollama for a model that does not reason: it refuses every effort.
static NO_EFFORT: LazyLock<Regex> = LazyLock::new(|| compile_pattern(r"(?i)does not support thinking"));

static RENAMED: LazyLock<Regex> = LazyLock::new(|| {
    compile_pattern(
        r"(?i)\b(max_tokens|max_completion_tokens)\b[^\n]{0,80}\buse\s+['\x22`]?(max_tokens|max_completion_tokens)\b",
    )
});

static EXCLUSIVE: LazyLock<Regex> = LazyLock::new(|| {
    compile_pattern(
        r"(?i)\b([a-z_]+)['\x22`]?\s+and\s+['\x22`]?([a-z_]+)['\x22`]?[^\n]{0,40}(?:cannot|can't|must not|may not|are mutually)[^\n]{0,20}(?:both|together|at the same time|exclusive|specified)",
    )
});

/// The highest values that OpenAI's API itself allows: a value beyond is the client's mistake.
const API_LIMITS: [(&str, f64); 5] = [
    ("temperature", 2.0),
    ("top_p", 1.0),
    ("presence_penalty", 2.0),
    ("frequency_penalty", 2.0),
    ("top_logprobs", 20.0),
];

/// Finds the rule that avoids the cause of a refusal. `said` is the server's text, `param` the parameter that
/// its error names, `sent` the request that was refused. Among rules for the same words the first that the
/// owner allows counts; if they allow no rule, the first counts.
pub fn find_rule(said: &str, param: Option<&str>, sent: &str, consent: &Consent) -> Option<Rule> {
    let reason = &*searched_part(said);
    let changes = |rule: &Rule| !adapt(sent, &RuleSet::from([rule.clone()])).applied.is_empty();
    let is_named = |signs: &[Regex]| {
        signs.iter().any(|sign| sign.find(reason).is_some_and(|found| !sent.contains(found.as_str())))
    };
    let mut listed = SIGNS.iter().filter(|(rule, signs)| is_named(signs) && changes(rule)).peekable();
    let first = listed.peek().map(|(rule, _)| *rule);
    listed.map(|(rule, _)| *rule).find(|rule| consent.allows(rule)).or(first).cloned().or_else(|| {
        parameter_rules(reason, param, sent).into_iter().map(Rule::Parameter).find(|rule| changes(rule))
    })
}

/// Returns true when these are the words of a refusal that some rule answers, whatever status they came with.
pub fn is_known_refusal(said: &str) -> bool {
    let reason = &*searched_part(said);
    SIGNS.iter().any(|(_, signs)| signs.iter().any(|sign| sign.is_match(reason)))
}

/// Returns the beginning of the text, up to a dump of the request, without echoes of its parts.
fn searched_part(said: &str) -> String {
    let start = &said[..said.floor_char_boundary(SEARCHED)];
    let start = start.split(DUMP).next().unwrap_or_default();
    let without_echo = |line: &str| {
        let end = ECHOES.iter().filter_map(|echo| line.find(echo)).min().unwrap_or(line.len());
        line[..end].to_owned()
    };
    start.lines().map(without_echo).collect::<Vec<_>>().join("\n")
}

fn parameter_rules(reason: &str, param: Option<&str>, sent: &str) -> Vec<Parameter> {
    let Ok(object) = Object::parse(sent) else { return Vec::new() };
    let mut rules = Vec::new();
    if let Some(found) = RENAMED.captures(reason)
        && found[1] != found[2]
    {
        rules.push(Parameter::Rename(found[1].to_owned(), found[2].to_owned()));
    }
    if let Some(found) = EXCLUSIVE.captures(reason)
        && object.get(&found[1]).is_some()
    {
        rules.push(Parameter::Drop(found[2].to_owned()));
    }
    rules.extend(LIMIT.iter().filter_map(|limit| limit_rule(&limit.captures(reason)?, &object)));
    rules.extend(unknown_parameters(reason, param, &object));
    if NO_EFFORT.is_match(reason) {
        rules.extend([EFFORT, "reasoning"].map(|name| Parameter::Drop(name.to_owned())));
    }
    if EFFORT_VALUE.is_match(reason) {
        let is_usual =
            object.string(EFFORT).is_some_and(|effort| ["low", "medium", "high"].contains(&effort.as_str()));
        rules.push(if is_usual { Parameter::Drop(EFFORT.to_owned()) } else { Parameter::LimitEffort });
    }
    rules
}

fn limit_rule(found: &regex::Captures<'_>, object: &Object<'_>) -> Option<Parameter> {
    let (name, limit) = (found.get(1)?.as_str().to_lowercase(), found.get(2)?.as_str().trim_end_matches('.'));
    let value: f64 = object.get(&name)?.parse().ok()?;
    let is_valid = API_LIMITS.iter().find(|(known, _)| *known == name).is_none_or(|(_, most)| value <= *most);
    is_valid.then(|| Parameter::AtMost(name, limit.to_owned()))
}

fn unknown_parameters(reason: &str, param: Option<&str>, object: &Object<'_>) -> Vec<Parameter> {
    let captured = UNKNOWN_PARAMETER.iter().flat_map(|known| known.captures_iter(reason));
    let mut names: Vec<String> =
        captured.filter_map(|found| Some(found.get(1)?.as_str().to_owned())).collect();
    if is_refusal(reason) {
        names.extend(param.map(str::to_owned));
    }
    names.retain(|name| !NEEDED.contains(&name.as_str()) && object.get_raw(name).is_some());
    let replace = |name: String| match name.as_str() {
        "max_completion_tokens" => Parameter::Rename(name, "max_tokens".to_owned()),
        _ => drop_rule(name, object),
    };
    names.into_iter().map(replace).collect()
}

/// The rule that leaves a parameter out. Where that would need consent, a value that says nothing goes alone.
fn drop_rule(name: String, object: &Object<'_>) -> Parameter {
    let drop = Rule::Parameter(Parameter::Drop(name.clone()));
    if drop.loss() == Loss::Lossy && is_default(object, &name) {
        return Parameter::DropDefault(name);
    }
    Parameter::Drop(name)
}

fn is_refusal(reason: &str) -> bool {
    let lower = reason.to_lowercase();
    ["unrecognized", "unknown", "unsupported", "not supported", "unexpected", "not permitted", "not allowed"]
        .iter()
        .any(|word| lower.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_is_found_by_its_words() {
        for row in rows() {
            let (before, after) = row.example;
            for (server, words) in row.said {
                let consent = Consent { lossy: vec![row.rule.to_string()], ..Consent::default() };
                let found = find_rule(words, None, before, &consent);
                assert_eq!(found.as_ref(), Some(&row.rule), "{server}: {words}");
            }
            let adapted = adapt(before, &RuleSet::from([row.rule.clone()]));
            assert_eq!(adapted.body, after, "{}", row.rule);
            assert_ne!(find_rule(row.said[0].1, None, after, &Consent::default()).as_ref(), Some(&row.rule));
        }
    }

    #[test]
    fn words_in_the_request_name_no_cause() {
        let body = r#"{"messages":[{"role":"user","content":"Why 'System message must be at the beginning'?"},{"role":"system","content":"s"}]}"#;
        let said = "Bad request: System message must be at the beginning (in: Why 'System message must be at the beginning'?)";
        let none = &Consent::default();
        assert_eq!(find_rule(said, None, body, none), None);
        let dump = format!("bad value; 'input': {}", "System message must be at the beginning.");
        let other = r#"{"messages":[{"role":"user","content":"a"},{"role":"system","content":"s"}]}"#;
        assert_eq!(find_rule(&dump, None, other, none), None);
        let several = format!("{dump}\nrequest body: System message must be at the beginning.");
        assert_eq!(find_rule(&several, None, other, none), None);
    }

    fn check(said: &str, expected: &[&str]) {
        const BODY: &str = r#"{"messages":[{"role":"user","content":"x"}],"model":"m","store":false,"temperature":1.5,"top_p":0.9,
            "foo":1,"reasoning_effort":"xhigh","max_tokens":5,"tool_choice":"required"}"#;
        let (mut sent, mut found) = (BODY.to_owned(), Vec::new());
        while let Some(rule) = find_rule(said, None, &sent, &Consent::default()) {
            found.push(rule.to_string());
            sent = adapt(&sent, &RuleSet::from([rule])).body.into_owned();
        }
        assert_eq!(found, expected, "{said}");
    }

    #[test]
    fn parameters_are_found_by_name() {
        check("Unrecognized request argument supplied: store", &["parameter.drop:store"]);
        check("Unsupported parameter: 'foo' is not supported with this model.", &["parameter.drop:foo"]);
        check(
            "[{'type': 'extra_forbidden', 'loc': ('body', 'store'), 'msg': 'Extra inputs are not permitted'}]",
            &["parameter.drop:store"],
        );
        check("store: Extra inputs are not permitted", &["parameter.drop:store"]);
        check(
            "'loc': ('body', 'reasoning_effort'), literal_error: Input should be 'low'",
            &["parameter.limit_effort", "parameter.drop:reasoning_effort"],
        );
        check(
            "Harmony does not support reasoning effort xhigh",
            &["parameter.limit_effort", "parameter.drop:reasoning_effort"],
        );
        check(
            r#"invalid reasoning value: "xhigh" (must be "minimal", "low", "medium", "high", or "none")"#,
            &["parameter.limit_effort", "parameter.drop:reasoning_effort"],
        );
        check(r#""qwen2.5:7b" does not support thinking"#, &["parameter.drop:reasoning_effort"]);
        check(
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
            &["parameter.rename:max_tokens:max_completion_tokens"],
        );
        check(
            "`temperature` and `top_p` cannot both be specified for this model.",
            &["parameter.drop:top_p"],
        );
        check("temperature must be less than or equal to 1", &["parameter.at_most:temperature:1"]);
        check("temperature must be in [0, 1], got 1.5.", &["parameter.at_most:temperature:1"]);
        check("tool_choice is not supported", &["parameter.drop:tool_choice"]);
        let llama_cpp =
            "Field 'temperature': Value must be between 0.000000 <= value <= 1.000000, but got 1.500000";
        check(llama_cpp, &["parameter.at_most:temperature:1.000000"]);
    }

    #[test]
    fn a_crash_of_the_server_is_no_refusal() {
        assert!(!is_known_refusal("'NoneType' object has no attribute 'shape'"));
        assert!(is_known_refusal("System message must be at the beginning."));
    }

    #[test]
    fn a_wrong_value_is_the_clients_mistake() {
        let body = r#"{"messages":[],"temperature":9}"#;
        for said in
            ["temperature must be in [0, 2], got 9.", "Invalid value for model", "Unknown parameter: 'bar'"]
        {
            assert_eq!(find_rule(said, None, body, &Consent::default()), None, "{said}");
        }
    }
}
