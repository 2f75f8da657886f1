//! Calls that cannot be executed, but that a client can turn into a correction: it answers the model with its
//! own error ("there is no tool X", "path is missing"), and the model goes on. They leave only after all
//! second attempts have failed.
//!
//! A call that was cut never leaves, nor one whose name the client could take for another tool's: the client
//! must not execute it as another call. Pure. Called by `fault` and `relay`.

use serde_json::Value;

use tool_call_parser::Tools;
use wire::turn::{Dropped, Note, ToolCall, Turn};

/// The longest name of a tool that OpenAI's API permits.
const LONGEST_NAME: usize = 64;

/// Finds the calls of a turn that its client can turn into a correction.
pub fn correctable_calls(turn: &Turn, tools: &Tools) -> Vec<ToolCall> {
    if !turn.calls.is_empty() {
        return vec![];
    }
    let mut calls = Vec::new();
    for note in &turn.notes {
        let Note::Dropped { name, why, arguments: Some(arguments) } = note else { continue };
        let declared = || Some(tools.resolve(name).filter(|found| !found.hidden)?.tool.name.clone());
        let call = match why {
            Dropped::MissingRequired => declared().zip(whole_object(arguments)),
            Dropped::Unclosed => declared().zip(close_brackets(arguments)),
            Dropped::Undeclared => unmistakable(name, tools).zip(whole_object(arguments)),
            _ => None,
        };
        // respool's own agents are such clients: they execute no call that has problems.
        let problems = vec![format!("the call cannot be made: {}", why.as_str())];
        calls.extend(call.map(|(name, arguments)| ToolCall { id: None, name, arguments, problems }));
    }
    calls
}

fn whole_object(text: &str) -> Option<String> {
    let text = if text.trim().is_empty() { "{}" } else { text.trim() };
    serde_json::from_str::<Value>(text).is_ok_and(|value| value.is_object()).then(|| text.to_owned())
}

/// Closes arguments that lack only brackets after a whole value. An open string is never closed, because half
/// a command is another command. A number or a word at the end may be incomplete.
fn close_brackets(text: &str) -> Option<String> {
    let text = text.trim();
    if !text.ends_with(['"', '}', ']']) {
        return None;
    }
    let (mut open, mut in_string, mut escaped) = (Vec::new(), false, false);
    for sign in text.chars() {
        match sign {
            _ if escaped => escaped = false,
            '\\' if in_string => escaped = true,
            '"' => in_string = !in_string,
            _ if in_string => {}
            '{' => open.push('}'),
            '[' => open.push(']'),
            '}' | ']' if open.pop() != Some(sign) => return None,
            _ => {}
        }
    }
    let closed: String = text.chars().chain(open.into_iter().rev()).collect();
    (!in_string).then_some(closed).and_then(|text| whole_object(&text))
}

/// Returns the name if no client can take it for that of a declared tool: clients repair names too.
fn unmistakable(name: &str, tools: &Tools) -> Option<String> {
    let is_sign = |sign: char| sign.is_ascii_alphanumeric() || matches!(sign, '_' | '-');
    let is_valid = !name.is_empty() && name.len() <= LONGEST_NAME && name.chars().all(is_sign);
    let own = fold_name(name);
    let is_like = |other: &str| {
        let other = fold_name(other);
        own.contains(&other) || other.contains(&own) || strsim::levenshtein(&own, &other) <= 2
    };
    (is_valid && !tools.names().any(is_like)).then(|| name.to_owned())
}

fn fold_name(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|sign| sign.to_ascii_lowercase()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, why: Dropped, arguments: &str, expected: Option<(&str, &str)>) {
        let tools = Tools::from_json(
            r#"[{"type":"function","function":{"name":"read_file","parameters":{"type":"object","required":["path"]}}},
                {"type":"function","function":{"name":"exec"}}]"#,
        ).unwrap();
        let note = Note::Dropped { name: name.into(), why, arguments: Some(arguments.into()) };
        let turn = Turn { notes: vec![note], ..Turn::default() };
        let calls = correctable_calls(&turn, &tools);
        let found = calls.first().map(|call| (call.name.as_str(), call.arguments.as_str()));
        assert_eq!(found, expected, "{name} {why:?} {arguments}");
    }

    #[test]
    fn whole_calls_leave_for_the_client_to_answer() {
        check("read_file", Dropped::MissingRequired, r#"{"limit":3}"#, Some(("read_file", r#"{"limit":3}"#)));
        check("read_file", Dropped::MissingRequired, "", Some(("read_file", "{}")));
        check(
            "open_browser",
            Dropped::Undeclared,
            r#"{"url":"x"}"#,
            Some(("open_browser", r#"{"url":"x"}"#)),
        );
    }

    #[test]
    fn a_name_that_could_be_mistaken_never_leaves() {
        for name in ["readfile", "read_files", "exec_command", "exce", "functions.zoom", "", "a b"] {
            check(name, Dropped::Undeclared, "{}", None);
        }
    }

    #[test]
    fn only_brackets_are_added() {
        let check = |arguments: &str, expected: Option<&str>| {
            check("exec", Dropped::Unclosed, arguments, expected.map(|text| ("exec", text)));
        };
        check(r#"{"command":"ls""#, Some(r#"{"command":"ls"}"#));
        check(r#"{"a":[{"b":"}"}"#, Some(r#"{"a":[{"b":"}"}]}"#));
        for cut in [
            r#"{"command":"rm -rf /tmp"#,
            r#"{"command":"#,
            r#"{"limit":12"#,
            r#"{"all":tru"#,
            "{",
            r#"{"a":"x"]"#,
            r#"{"a""#,
        ] {
            check(cut, None);
        }
    }

    #[test]
    fn cut_and_unreadable_calls_do_not_leave() {
        check("exec", Dropped::Truncated, r#"{"command":"ls""#, None);
        check("exec", Dropped::Unreadable, "{}", None);
        check("open_browser", Dropped::Undeclared, "url=x", None);
    }
}
