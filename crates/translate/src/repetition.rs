//! Counts repetition at the end of a list of answered calls: a cycle of one to three calls, one tool whose
//! arguments drift while its result stays the same, and calls of tools that the client does not have.
//!
//! It only counts; `loop_guard` decides what a count means. The rules for "no progress" do not take healthy
//! work for a loop: page after page with other texts, or an acknowledgement ("ok", "written", no output) for
//! one file after another.

use std::cell::OnceCell;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Number, Value};

use wire::pattern::compile_pattern;
use wire::turn::ToolCall;

/// A result longer than this, in bytes, is more than an acknowledgement: the same one for other arguments is
/// no progress.
const SUBSTANTIAL: usize = 1000;
/// A result longer than this, in bytes, is not a client's message about a missing tool.
const SHORT: usize = 400;

/// Words of a failure, or of a search without result.
static IN_VAIN: LazyLock<Regex> = LazyLock::new(|| {
    compile_pattern(
        r#"(?ix) \b(errors?|exception|fail(s|ed|ure)?|denied|refused|forbidden|invalid|unknown|cannot|can't|could\ not|unable
        |not\ (found|available|allowed|supported|permitted)|does\ not\ exist|timed?\ ?out
        |(no|0|zero)\ (such|match(es)?|results?|hits?|entries|data|files?\ found)|nothing\ found)\b
        | ^"?\s*(\[\s*\]|\{\s*\})\s*"?$ | results\\?"\s*:\s*\[\s*\]"#,
    )
});

/// Words of failure that mean success.
static NO_FAILURE: LazyLock<Regex> = LazyLock::new(|| {
    compile_pattern(
        r"(?i)\b(no|0|zero|without)( \w+)? (errors?|failures?|problems?|issues|warnings?|exceptions?)\b",
    )
});

/// Words that say that the client lacks the called tool.
static NO_TOOL: LazyLock<Regex> = LazyLock::new(|| {
    compile_pattern(
        r"(?i)\b(unknown|no such|unrecognized|nonexistent) (tool|function)\b|\b(tool|function)\b.{0,80}?\b(not found|does not exist|doesn't exist|(is )?not (available|registered|a valid tool)|unknown)\b",
    )
});

/// A call of the conversation, and the JSON text of its result.
pub(super) struct AnsweredCall<'a> {
    pub(super) call: ToolCall,
    pub(super) result: &'a str,
    normalised: OnceCell<String>,
}

impl<'a> AnsweredCall<'a> {
    pub(super) fn new(call: ToolCall, result: &'a str) -> Self {
        Self { call, result, normalised: OnceCell::new() }
    }

    fn is_repeat_of(&self, other: &Self) -> bool {
        self.result == other.result
            && self.call.name == other.call.name
            && (self.call.arguments == other.call.arguments
                || self.normalised_arguments() == other.normalised_arguments())
    }

    fn normalised_arguments(&self) -> &str {
        self.normalised.get_or_init(|| normalise_arguments(&self.call.arguments))
    }
}

/// Counts how often the last `period` calls came in a row, with the same results each time.
pub(super) fn count_cycles(calls: &[AnsweredCall<'_>], period: usize) -> usize {
    let again =
        (period..calls.len()).rev().take_while(|&at| calls[at].is_repeat_of(&calls[at - period])).count();
    if calls.len() < period { 0 } else { (again + period) / period }
}

/// Counts the last calls of one tool with the same result, regardless of their arguments, if that result
/// shows no progress.
pub(super) fn count_drifting(calls: &[AnsweredCall<'_>]) -> usize {
    let Some(last) = calls.last().filter(|last| is_no_progress(last.result)) else { return 0 };
    let alike = |call: &&AnsweredCall<'_>| call.call.name == last.call.name && call.result == last.result;
    calls.iter().rev().take_while(alike).count()
}

/// Counts the last calls for which the client had no tool.
pub(super) fn count_missing_tools(calls: &[AnsweredCall<'_>]) -> usize {
    let missing = |call: &&AnsweredCall<'_>| call.result.len() <= SHORT && NO_TOOL.is_match(call.result);
    calls.iter().rev().take_while(missing).count()
}

fn is_no_progress(result: &str) -> bool {
    result.len() > SUBSTANTIAL || (IN_VAIN.is_match(result) && !NO_FAILURE.is_match(result))
}

/// Normalises arguments, so that spaces, the order of keys and the form of numbers do not matter (JavaScript
/// writes 5.0 as 5).
pub fn normalise_arguments(arguments: &str) -> String {
    let Ok(mut value) = serde_json::from_str::<Value>(arguments) else {
        return arguments.to_owned();
    };
    value.sort_all_objects();
    use_javascript_numbers(&mut value);
    value.to_string()
}

fn use_javascript_numbers(value: &mut Value) {
    match value {
        Value::Number(number) => {
            if let Some(float) = number.as_f64().and_then(Number::from_f64) {
                *number = float;
            }
        }
        Value::Array(values) => values.iter_mut().for_each(use_javascript_numbers),
        Value::Object(fields) => fields.values_mut().for_each(use_javascript_numbers),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls<'a>(calls: &[(&str, &str, &'a str)]) -> Vec<AnsweredCall<'a>> {
        let call = |&(name, arguments, result): &(&str, &str, &'a str)| {
            let call = ToolCall { name: name.into(), arguments: arguments.into(), ..ToolCall::default() };
            AnsweredCall::new(call, result)
        };
        calls.iter().map(call).collect()
    }

    #[test]
    fn cycles_are_counted_at_the_end() {
        let (a, b, c, other) = (("a", "{}", "1"), ("b", "{}", "2"), ("c", "{}", "3"), ("b", "{}", "new"));
        for (list, period, expected) in [
            (vec![], 1, 0),
            (vec![a], 1, 1),
            (vec![a], 2, 0),
            (vec![b, a, a, a], 1, 3),
            (vec![a, b, a, b, a, b], 2, 3),
            (vec![c, a, b, a, b], 2, 2),
            (vec![b, a, b, a, b], 2, 2),
            (vec![a, b, c, a, b, c], 3, 2),
            (vec![a, b, a, other], 2, 1),
            (vec![a, b, c, a, b, c], 2, 1),
        ] {
            assert_eq!(count_cycles(&calls(&list), period), expected, "{list:?} {period}");
        }
    }

    #[test]
    fn arguments_are_compared_by_what_they_mean() {
        let same = |left: &str, right: &str| normalise_arguments(left) == normalise_arguments(right);
        assert!(same(r#"{"a":1,"b":[5.0,"x"]}"#, r#"{ "b": [5, "x"], "a": 1 }"#));
        assert!(!same(r#"{"a":1}"#, r#"{"a":"1"}"#) && !same("{\"a", "{\"b"));
    }

    #[test]
    fn what_is_no_progress() {
        let long = format!("\"{}\"", "the same page ".repeat(100));
        for result in [
            r#""No matches found""#,
            r#""rg: no such file or directory""#,
            r#""Error: ENOENT""#,
            r#""[]""#,
            r#""{\"results\":[]}""#,
            r#""Permission denied""#,
            r#""0 results""#,
            long.as_str(),
        ] {
            assert!(is_no_progress(result), "{result}");
        }
        for result in [
            r#""ok""#,
            r#""(no output)""#,
            r#""File written.""#,
            r#""All tests passed, 0 errors""#,
            r#""no lint errors""#,
            r#""""#,
            r#""Message sent""#,
            r#""{\"status\":\"running\"}""#,
        ] {
            assert!(!is_no_progress(result), "{result}");
        }
    }

    #[test]
    fn what_says_that_there_is_no_tool() {
        let is_one = |result: &str| count_missing_tools(&calls(&[("f", "{}", result)])) == 1;
        for result in [
            r#""Tool web_fetch not found""#,
            r#""{\"status\":\"error\",\"error\":\"Unknown tool: foo\"}""#,
            r#""Error: tool `x` is not available""#,
            r#""The function get_weather does not exist.""#,
        ] {
            assert!(is_one(result), "{result}");
        }
        for result in
            [r#""file not found""#, r#""bash: foo: command not found""#, r#""the tools were found""#]
        {
            assert!(!is_one(result), "{result}");
        }
        let manual = format!("\"{} if a tool is not found, …\"", "x".repeat(SHORT));
        assert!(!is_one(&manual), "a text about tools");
    }
}
