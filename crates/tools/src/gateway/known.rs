//! The gateway's tools that respool knows: their schemas (as OpenClaw 2026.9.6 sends them to models),
//! whether they may be repeated, and the argument names that models confuse. Any other tool is requested as
//! `gateway:NAME`. Pure.

use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use super::super::contract::ToolSpec;
use super::super::offer::Offer;

/// The prefix that requests a tool of the gateway by its name there, known or not.
pub(crate) const PREFIX: &str = "gateway:";

/// The tools that only read.
const REPEATABLE: [&str; 8] = [
    "web_search",
    "web_fetch",
    "memory_search",
    "memory_get",
    "sessions_list",
    "sessions_history",
    "sessions_search",
    "agents_list",
];

/// The tool, the argument names that models write, and the right name.
const MISNAMED: [(&str, &[&str], &str); 6] = [
    ("web_search", &["q", "search", "search_query", "text"], "query"),
    ("web_fetch", &["uri", "link", "href"], "url"),
    ("memory_search", &["q", "text"], "query"),
    ("memory_get", &["file", "file_path"], "path"),
    ("sessions_history", &["session", "session_key", "key"], "sessionKey"),
    ("sessions_send", &["text", "content"], "message"),
];

static TOOLS: LazyLock<Vec<Map<String, Value>>> =
    LazyLock::new(|| serde_json::from_str(include_str!("tools.json")).unwrap_or_default());

/// Returns the names of the known tools.
pub(crate) fn known_names() -> impl Iterator<Item = &'static str> {
    TOOLS.iter().filter_map(|tool| tool.get("name")?.as_str())
}

/// Returns true for a possible name of a tool and of a function for the model.
pub(crate) fn is_name(name: &str) -> bool {
    let fits = |c: u8| c.is_ascii_alphanumeric() || c == b'_' || c == b'-';
    (1..=64).contains(&name.len()) && name.bytes().all(fits)
}

fn find_parameters(name: &str) -> Option<&'static Map<String, Value>> {
    TOOLS.iter().find(|tool| tool.get("name").and_then(Value::as_str) == Some(name))
}

/// Returns the tool for a name of the configuration; an unknown one takes any arguments.
pub(super) fn build_offer(wanted: &str) -> Offer {
    let name = wanted.strip_prefix(PREFIX).unwrap_or(wanted);
    let of_tool = |key: &str| find_parameters(name).and_then(|tool| tool.get(key)).cloned();
    let description = of_tool("description").and_then(|text| text.as_str().map(str::to_owned));
    let spec = ToolSpec {
        name: name.to_owned(),
        description: description.unwrap_or_else(|| format!("The tool {name} of the OpenClaw gateway.")),
        parameters: of_tool("parameters")
            .unwrap_or_else(|| json!({"type": "object", "properties": {}, "additionalProperties": true})),
        is_repeatable: REPEATABLE.contains(&name),
        timeout: None,
        result_limit: None,
    };
    Offer { spec, name: wanted.to_owned() }
}

/// Returns true for a known tool and, if it has actions, a known action.
pub(super) fn is_operation(name: &str, arguments: &Map<String, Value>) -> bool {
    let Some(tool) = find_parameters(name) else { return false };
    let actions = tool.get("parameters").and_then(|schema| schema["properties"]["action"]["enum"].as_array());
    actions.is_none_or(|actions| arguments.get("action").is_none_or(|action| actions.contains(action)))
}

/// Renames arguments that models often write under wrong names.
pub(super) fn with_proper_names(name: &str, mut arguments: Map<String, Value>) -> Map<String, Value> {
    let misnamed = MISNAMED.iter().find(|(tool, ..)| *tool == name);
    if let Some((_, others, proper)) = misnamed.filter(|(.., proper)| !arguments.contains_key(*proper))
        && let Some(value) = others.iter().find_map(|other| arguments.remove(*other))
    {
        arguments.insert((*proper).to_owned(), value);
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_known_tools_have_schemas() {
        assert_eq!(known_names().count(), 13);
        for name in known_names() {
            let Offer { spec, .. } = build_offer(name);
            assert_eq!(spec.parameters["type"], "object", "{name}");
            assert!(!spec.description.is_empty(), "{name}");
        }
        for name in REPEATABLE.iter().chain(MISNAMED.iter().map(|(name, ..)| name)) {
            assert!(find_parameters(name).is_some(), "{name}");
        }
        for (name, others, proper) in MISNAMED {
            let properties = &build_offer(name).spec.parameters["properties"];
            assert!(properties.get(proper).is_some(), "{name} {proper}");
            assert!(others.iter().all(|other| properties.get(other).is_none()), "{name} {others:?}");
        }
    }

    #[test]
    fn other_tools_take_any_arguments() {
        let Offer { spec, name } = build_offer("gateway:host_exec");
        assert_eq!((spec.name.as_str(), name.as_str()), ("host_exec", "gateway:host_exec"));
        assert_eq!(spec.parameters["additionalProperties"], true);
        assert_eq!(build_offer("gateway:web_search").spec, build_offer("web_search").spec);
    }

    #[test]
    fn arguments_get_their_proper_names() {
        let check = |tool: &str, written: Value, expected: Value| {
            let Value::Object(written) = written else { panic!("an object") };
            assert_eq!(Value::Object(with_proper_names(tool, written)), expected);
        };
        check("web_search", json!({"q": "x", "count": 3}), json!({"query": "x", "count": 3}));
        check("web_search", json!({"q": "x", "query": "y"}), json!({"q": "x", "query": "y"}));
        check("agents_list", json!({"q": "x"}), json!({"q": "x"}));
    }

    #[test]
    fn operations_are_known_by_their_action() {
        let arguments = |action: &str| Map::from_iter([("action".to_owned(), json!(action))]);
        assert!(is_operation("browser", &arguments("open")));
        assert!(!is_operation("browser", &arguments("self_destruct")));
        assert!(is_operation("web_search", &Map::new()));
        assert!(!is_operation("host_exec", &Map::new()));
    }
}
