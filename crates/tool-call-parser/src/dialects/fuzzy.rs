//! Natural language: "I will search for X using `web_search`", "let me run `ls -la`". Off unless
//! `Options::fuzzy` is set.
//!
//! It guesses, so it is only for runs in which respool itself is the agent. The engine asks it at the end of
//! a turn without a call, never while text streams. The first sentence that states an intention counts, and
//! only for a declared tool.

use serde_json::{Map, Value};

use super::{Dialect, Opens, Step};
use crate::calls::RawCall;
use crate::coerce::sole_string;
use crate::tools::{Tool, Tools};

pub(super) static DIALECT: Dialect = Dialect {
    name: "fuzzy",
    models: "Any model without a tool format, in agent runs that switch it on. Never in the relay.",
    families: &[],
    grammar: "A sentence that states an intention (`I will`, `let me`, `we need to`, …) with a verb that belongs to a \
              declared tool with one required string argument, and that argument in quotes, in backticks or after the verb.",
    example: "I will search for \"rust proxies\".",
    opens: Opens::Line(&[]),
    read: |_| Step::Not(0),
};

/// Words that announce an intention.
const INTENTIONS: [&str; 14] = [
    "i will ",
    "i'll ",
    "let me ",
    "let's ",
    "i need to ",
    "i should ",
    "i would ",
    "i am going to ",
    "i'm going to ",
    "we will ",
    "we need to ",
    "we should ",
    "we would ",
    "we'll ",
];

/// Phrases with the names of tools that they may mean.
const VERBS: [(&str, &[&str]); 14] = [
    ("search the web for ", &["web_search", "search"]),
    ("search for ", &["web_search", "search"]),
    ("look up ", &["web_search", "search"]),
    ("google ", &["web_search", "search"]),
    ("fetch ", &["web_fetch", "fetch"]),
    ("open the page ", &["web_fetch", "fetch"]),
    ("read the file ", &["read", "read_file"]),
    ("read file ", &["read", "read_file"]),
    ("read ", &["read", "read_file"]),
    ("open the file ", &["read", "read_file"]),
    ("run the command ", &["exec", "shell", "bash"]),
    ("execute the command ", &["exec", "shell", "bash"]),
    ("execute ", &["exec", "shell", "bash"]),
    ("run ", &["exec", "shell", "bash"]),
];

/// Finds the call that a text announces.
pub(crate) fn find_intention(text: &str, tools: &Tools) -> Option<RawCall> {
    text.split_inclusive(['\n', '!', '?'])
        .flat_map(|line| line.split(". "))
        .find_map(|sentence| find_in_sentence(sentence, tools))
}

fn find_in_sentence(sentence: &str, tools: &Tools) -> Option<RawCall> {
    let lower = sentence.to_ascii_lowercase();
    let start = INTENTIONS.iter().filter_map(|words| Some(lower.find(words)? + words.len())).min()?;
    let (_, at, tool, length) = VERBS
        .iter()
        .filter_map(|(verb, names)| {
            let at = start + lower[start..].find(verb)?;
            let tool = names.iter().find_map(|name| tools.get(name))?;
            Some((at, verb.len(), tool))
        })
        .map(|(at, length, tool)| (at, at + length, tool, length))
        .min_by_key(|(at, _, _, length)| (*at, usize::MAX - length))?;
    debug_assert!(length > 0);
    make_call(tool, find_argument(&sentence[at..])?)
}

/// Returns the quoted text, or else the text up to the first word that begins another subject.
fn find_argument(rest: &str) -> Option<&str> {
    for quote in ['`', '"', '\''] {
        if let Some(inside) = rest.split_once(quote).and_then(|(_, after)| after.split_once(quote)) {
            return Some(inside.0).filter(|inside| !inside.is_empty());
        }
    }
    let ends = [" using ", " with ", " and ", " then ", ", ", " to see ", " so that "];
    let end = ends.iter().filter_map(|end| rest.find(end)).min().unwrap_or(rest.len());
    let bare = rest[..end].trim().trim_end_matches(['.', '!', ':', ',']);
    (!bare.is_empty() && bare.len() <= 200).then_some(bare)
}

fn make_call(tool: &Tool, argument: &str) -> Option<RawCall> {
    let name = sole_string(tool.schema())?;
    let fields = Map::from_iter([(name.to_owned(), Value::String(argument.to_owned()))]);
    Some(RawCall::from_fields(&tool.name, fields))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Option<(&str, &str)>) {
        let tool = |name: &str, key: &str| {
            format!(
                r#"{{"function":{{"name":"{name}","parameters":{{"required":["{key}"],"properties":{{"{key}":{{"type":"string"}}}}}}}}}}"#
            )
        };
        let tools = [tool("web_search", "query"), tool("read", "path"), tool("exec", "command")].join(",");
        let tools = Tools::from_json(&format!("[{tools}]")).unwrap();
        let found = find_intention(text, &tools);
        let found = found.map(|call| (call.name.clone(), format!("{:?}", call.arguments)));
        match (found, expected) {
            (None, None) => {}
            (Some((name, arguments)), Some((tool, argument))) => {
                assert!(
                    name == tool && arguments.contains(&format!("String({argument:?})")),
                    "{text}: {name} {arguments}"
                );
            }
            (found, expected) => panic!("{text}: {found:?} instead of {expected:?}"),
        }
    }

    #[test]
    fn intentions_are_read_and_statements_are_not() {
        check(
            "I will search for Claude AI 2026 using web_search, then fetch it.",
            Some(("web_search", "Claude AI 2026")),
        );
        check("Okay. Let me run `ls -la` first.", Some(("exec", "ls -la")));
        check("We need to read the file \"notes.txt\".", Some(("read", "notes.txt")));
        check("You could search for it.", None);
        check("The search for meaning goes on.", None);
        check("I will fetch https://example.org", None);
    }
}
