//! Learns from the text of a 400 which parameter an upstream refuses, so that it is left out from then on.
//!
//! Only a refusal counts ("unknown", "not supported", "extra inputs"), never a wrong value, which is the client's to know;
//! and only what a request can do without. Texts: vLLM (pydantic dumps that may echo the whole request), OpenAI, llama.cpp,
//! `SGLang`. Called by `relay`.

use std::sync::LazyLock;

use regex::Regex;

use super::outbound::{DEVELOPER, EFFORT_KEY, EFFORT_LIMITED};
use wire::ChatRequest;
use wire::Target;
use wire::pattern::pattern;

/// A request without these would be another request; they are never dropped.
const NEEDED: [&str; 9] =
    ["model", "messages", "tools", "tool_choice", "stream", "n", "response_format", "max_tokens", "logprobs"];

/// How far into an error text names are looked for: what follows may be an echo of the request.
const READ: usize = 400;

static NAMED: LazyLock<Vec<Regex>> = LazyLock::new(|| {
    let patterns = [
        r"(?i)\b(?:unrecognized|unknown|unsupported|unexpected)\b[^'\x22`:\n]{0,60}[:\s]\s*['\x22`]?([a-z_][a-z0-9_]*)",
        r"(?i)['\x22`]?\b([a-z_][a-z0-9_]*)['\x22`]?\s+(?:is|are)\s+(?:not (?:supported|allowed|permitted|accepted)|unsupported|unknown)",
        r"(?i)\b([a-z_][a-z0-9_]*)['\x22`]?\s*:\s*extra inputs are not permitted",
        r"'type': 'extra_forbidden', 'loc': (?:\((?:'[a-z]+', |\d+, )*'|'(?:[a-z0-9]+\.)*)([a-z_]+)'",
    ];
    patterns.into_iter().map(pattern).collect()
});

/// A `reasoning_effort` whose value is out of this upstream's range.
static EFFORT: LazyLock<Regex> = LazyLock::new(|| {
    pattern(
        r"(?is)(?:literal_error|invalid|unsupported|must be|should be).{0,60}reasoning_effort|reasoning_effort.{0,60}(?:must be|should be|invalid|literal_error)",
    )
});

/// Records in `target` the parameters that `message`, the text of a 400, refuses and that the request holds. Returns
/// those that are new.
pub fn learn_refusals(
    message: &str,
    param: Option<&str>,
    request: &ChatRequest<'_>,
    target: &mut Target,
) -> Vec<String> {
    let message = &message[..message.floor_char_boundary(READ)];
    let captured = NAMED.iter().flat_map(|pattern| pattern.captures_iter(message));
    let mut names: Vec<String> =
        captured.filter_map(|found| Some(found.get(1)?.as_str().to_owned())).collect();
    if is_refusal(message) {
        names.extend(param.map(str::to_owned));
        names.extend(refuses_developer(message, request).then(|| DEVELOPER.to_owned()));
    }
    names.retain(|name| name == DEVELOPER || may_go(name, request));
    if !names.iter().any(|name| name == EFFORT_KEY) && EFFORT.is_match(message) {
        names.extend(effort_refused(request).map(str::to_owned));
    }
    names.retain(|name| target.refused.insert(name.clone()));
    names
}

/// A value beyond low, medium and high is clamped from now on; when one of these is refused, the parameter goes.
fn effort_refused(request: &ChatRequest<'_>) -> Option<&'static str> {
    match request.object.string(EFFORT_KEY)?.as_str() {
        "low" | "medium" | "high" => Some(EFFORT_KEY),
        _ => Some(EFFORT_LIMITED),
    }
}

fn is_refusal(message: &str) -> bool {
    let lower = message.to_lowercase();
    ["unrecognized", "unknown", "unsupported", "not supported", "unexpected", "not permitted", "not allowed"]
        .iter()
        .any(|word| lower.contains(word))
        || (lower.contains("role")
            && (lower.contains("only") || lower.contains("invalid") || lower.contains("must be")))
}

fn refuses_developer(message: &str, request: &ChatRequest<'_>) -> bool {
    let names_it = message.to_lowercase().contains("developer") || message.to_lowercase().contains("role");
    names_it && request.messages.iter().any(|message| message.is_from("developer"))
}

fn may_go(name: &str, request: &ChatRequest<'_>) -> bool {
    let strict = name == "strict" && request.tools().is_some_and(|tools| tools.contains("\"strict\""));
    strict || (!NEEDED.contains(&name) && request.object.raw(name).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &str = r#"{"messages":[{"role":"developer","content":"x"}],"model":"m","store":false,"temperature":9,"foo":1,
        "reasoning_effort":"xhigh","tools":[{"function":{"name":"f","strict":true}}]}"#;

    fn check(message: &str, expected: &[&str]) {
        let request = ChatRequest::parse(BODY.as_bytes()).unwrap();
        let mut target = Target::default();
        let mut learnt = learn_refusals(message, None, &request, &mut target);
        learnt.sort();
        assert_eq!(learnt, expected, "{message}");
        assert!(learn_refusals(message, None, &request, &mut target).is_empty(), "known: {message}");
    }

    #[test]
    fn refusals_of_real_servers() {
        check("Unrecognized request argument supplied: store", &["store"]);
        check("Unknown parameter: 'store'.", &["store"]);
        check("Unsupported parameter: 'foo' is not supported with this model.", &["foo"]);
        check("got an unexpected keyword argument 'foo'", &["foo"]);
        check(
            "[{'type': 'extra_forbidden', 'loc': ('body', 'store'), 'msg': 'Extra inputs are not permitted'}]",
            &["store"],
        );
        check(
            "[{'type': 'extra_forbidden', 'loc': ('body', 'tools', 0, 'function', 'strict'), 'msg': 'x'}]",
            &["strict"],
        );
        check("store: Extra inputs are not permitted", &["store"]);
        check("Unknown role: developer", &[DEVELOPER]);
        check("Only user, assistant, system and tool roles are supported!", &[DEVELOPER]);
        check(
            "1 validation error:\n  {'type': 'literal_error', 'loc': ('body', 'reasoning_effort'), 'msg': \"Input should be 'low'\"}",
            &[EFFORT_LIMITED],
        );
        check(
            "1 validation error:\n  {'type': 'literal_error', 'loc': 'body.reasoning_effort', 'msg': 'x'}",
            &[EFFORT_LIMITED],
        );
        check("Unsupported parameter: 'reasoning_effort'", &[EFFORT_KEY]);
    }

    #[test]
    fn a_wrong_value_is_the_clients_to_know() {
        check("temperature must be in [0, 2], got 9.", &[]);
        check("Invalid value for model", &[]);
        check("the store is closed", &[]);
        check("Unknown parameter: 'not_in_the_request'", &[]);
        check(
            "\"auto\" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set",
            &[],
        );
    }
}
