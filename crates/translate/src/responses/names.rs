//! Maps the tools of a Responses request to functions of the chat API. There every tool is a function with a
//! flat name; here a tool may be in a namespace and take free text.
//!
//! Called by `tools`, `input` and `events`.

use std::collections::{BTreeMap, HashMap};

/// The kind of call that a client expects for a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolKind {
    /// `function_call` with JSON arguments.
    Function,
    /// `custom_tool_call` with free text.
    Custom,
    /// `tool_search_call`, which the client executes.
    ToolSearch,
}

/// A tool as the client named it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedTool {
    /// Its kind.
    pub kind: ToolKind,
    /// The namespace that it stands in.
    pub namespace: Option<String>,
    /// Its name there.
    pub name: String,
}

/// Maps the names in the chat request to the client's tools.
#[derive(Clone, Debug, Default)]
pub struct ToolNames {
    tools: BTreeMap<String, NamedTool>,
    /// The names in the chat request, by namespace and name.
    chat_names: HashMap<(Option<String>, String), String>,
    /// The number of tools that would have the same flat name.
    alike: HashMap<String, u32>,
}

/// OpenAI's limit for a function's name.
const LONGEST: usize = 64;

/// The most tools with the same flat name. Further ones are ignored.
const MOST_ALIKE: u32 = 1000;

/// The namespace of plain functions in gpt-oss's own prompts: it adds nothing to a name.
const PLAIN: &str = "functions";

impl ToolNames {
    /// Adds a tool and returns its name in the chat request; `None` when it is known already.
    pub(super) fn declare(&mut self, tool: NamedTool) -> Option<String> {
        let place = (tool.namespace.clone(), tool.name.clone());
        if self.chat_names.contains_key(&place) {
            return None;
        }
        let wished = flat_name(tool.namespace.as_deref(), &tool.name);
        let alike = self.alike.entry(wished.clone()).or_default();
        let name = loop {
            *alike += 1;
            let name = add_number(&wished, *alike);
            match self.tools.contains_key(&name) {
                _ if *alike > MOST_ALIKE => return None,
                true => {}
                false => break name,
            }
        };
        self.tools.insert(name.clone(), tool);
        self.chat_names.insert(place, name.clone());
        Some(name)
    }

    /// Finds the client's tool by its name in the chat request.
    pub fn client_tool(&self, chat_name: &str) -> Option<&NamedTool> {
        self.tools.get(chat_name)
    }

    /// Returns a tool's name in the chat request, even if it is no longer declared, as in an earlier call.
    pub(super) fn chat_name(&self, namespace: Option<&str>, name: &str) -> String {
        let place = (namespace.map(str::to_owned), name.to_owned());
        self.chat_names.get(&place).cloned().unwrap_or_else(|| flat_name(namespace, name))
    }
}

fn flat_name(namespace: Option<&str>, name: &str) -> String {
    let joined = match namespace {
        Some(namespace) if namespace != PLAIN => format!("{namespace}__{name}"),
        _ => name.to_owned(),
    };
    let allowed = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '_' };
    joined.chars().map(allowed).take(LONGEST).collect()
}

fn add_number(name: &str, count: u32) -> String {
    match count {
        1 => name.to_owned(),
        count => {
            let ending = format!("_{count}");
            let kept: String = name.chars().take(LONGEST - ending.len()).collect();
            kept + &ending
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(namespace: Option<&str>, name: &str) -> NamedTool {
        NamedTool { kind: ToolKind::Function, namespace: namespace.map(str::to_owned), name: name.to_owned() }
    }

    #[test]
    fn names_are_flat_unique_and_lead_back() {
        let mut names = ToolNames::default();
        let long = "x".repeat(80);
        for (original, expected) in [
            (tool(None, "read"), Some("read")),
            (tool(Some("agents"), "read"), Some("agents__read")),
            (tool(Some("functions"), "read"), Some("read_2")),
            (tool(None, "read"), None),
            (tool(None, "agents__read"), Some("agents__read_2")),
            (tool(Some("mcp.github"), "list files"), Some("mcp_github__list_files")),
            (tool(None, &long), Some(&long[..64])),
            (tool(None, &long[..70]), Some(&format!("{}_2", &long[..62]))),
        ] {
            let name = names.declare(original.clone());
            assert_eq!(name.as_deref(), expected);
            if let Some(name) = name {
                assert_eq!(names.client_tool(&name), Some(&original));
                assert_eq!(names.chat_name(original.namespace.as_deref(), &original.name), name);
            }
        }
        assert_eq!(names.chat_name(Some("gone"), "tool"), "gone__tool");
    }

    /// Each tool is looked at once: with all others looked at for each, these would take minutes.
    #[test]
    fn many_tools_are_named_in_linear_time() {
        let mut names = ToolNames::default();
        let namespace = "n".repeat(LONGEST);
        let declared = (0..200_000).filter(|number| {
            let alike = tool(Some(&namespace), &number.to_string());
            let other = names.declare(tool(None, &format!("tool{number}")));
            assert!(other.is_some() && names.chat_name(None, "tool7") == "tool7");
            names.declare(alike).is_some()
        });
        assert_eq!(declared.count(), MOST_ALIKE as usize);
    }
}
