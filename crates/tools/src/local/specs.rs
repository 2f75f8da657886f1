//! The local tools as the model sees them, under both sets of names.

use serde_json::{Value, json};

use super::super::contract::ToolSpec;
use super::super::offer::Offer;

/// A local tool, independent of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tool {
    Exec,
    Read,
    Write,
    Edit,
    Ls,
    Search,
}

/// A set of names for the tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Naming {
    /// OpenClaw's names, for all six tools.
    Agent,
    /// The chat's names, for its four tools.
    Chat,
}

/// The agent's names, which rules, timeouts and limits also use for the tools of the chat.
const AGENT: [(Tool, &str); 6] = [
    (Tool::Exec, "exec"),
    (Tool::Read, "read"),
    (Tool::Write, "write"),
    (Tool::Edit, "edit"),
    (Tool::Ls, "ls"),
    (Tool::Search, "search"),
];

const CHAT: [(Tool, &str); 4] = [
    (Tool::Exec, "shell_command"),
    (Tool::Read, "read_file"),
    (Tool::Edit, "edit_file"),
    (Tool::Write, "write_file"),
];

/// Returns the names of the agent's tools.
pub(crate) fn agent_names() -> impl Iterator<Item = &'static str> {
    AGENT.into_iter().map(|(_, name)| name)
}

impl Naming {
    fn tool_names(self) -> &'static [(Tool, &'static str)] {
        match self {
            Self::Agent => &AGENT,
            Self::Chat => &CHAT,
        }
    }

    pub(super) fn find_tool(self, name: &str) -> Option<Tool> {
        self.tool_names().iter().find(|(_, known)| *known == name).map(|(tool, _)| *tool)
    }

    pub(super) fn offers(self) -> Vec<Offer> {
        self.tool_names().iter().map(|(tool, name)| self.build_offer(*tool, name)).collect()
    }

    fn build_offer(self, tool: Tool, name: &str) -> Offer {
        let (description, parameters) = match self {
            Self::Agent => agent_spec(tool),
            Self::Chat => chat_spec(tool),
        };
        let spec = ToolSpec {
            name: name.to_owned(),
            description: description.to_owned(),
            parameters,
            is_repeatable: matches!(tool, Tool::Read | Tool::Ls | Tool::Search),
            timeout: None,
            result_limit: None,
        };
        let known = AGENT.iter().find(|(same, _)| *same == tool).map_or(name, |(_, known)| known);
        Offer { spec, name: known.to_owned() }
    }
}

fn object_schema(properties: &Value, required: &[&str]) -> Value {
    json!({"type": "object", "properties": properties, "required": required})
}

fn text_schema(description: &str) -> Value {
    json!({"type": "string", "description": description})
}

fn count_schema(description: &str) -> Value {
    json!({"type": "integer", "minimum": 1, "description": description})
}

fn agent_spec(tool: Tool) -> (&'static str, Value) {
    let path = || text_schema("Path inside the workspace, relative or absolute.");
    match tool {
        Tool::Exec => (
            "Run a shell command in the workspace and get its output. Nothing can be typed into it; processes left in the \
             background end with it.",
            object_schema(
                &json!({
                    "command": text_schema("The shell command."),
                    "workdir": text_schema("Directory inside the workspace to run it in; default: the workspace."),
                    "timeout": count_schema("Seconds after which it is stopped."),
                }),
                &["command"],
            ),
        ),
        Tool::Read => (
            "Read a text file. Long files come in pieces: read on with offset.",
            object_schema(
                &json!({"path": path(), "offset": count_schema("First line, from 1."), "limit": count_schema("Most lines.")}),
                &["path"],
            ),
        ),
        Tool::Write => (
            "Write a file as a whole, replacing what is there. Creates directories.",
            object_schema(
                &json!({"path": path(), "content": text_schema("The whole content.")}),
                &["path", "content"],
            ),
        ),
        Tool::Edit => (
            "Replace exact text in a file. Each oldText must stand in the file exactly once, white space included; edits \
             must not overlap.",
            object_schema(
                &json!({
                    "path": path(),
                    "edits": {
                        "type": "array",
                        "description": "The replacements, all against the file as it is.",
                        "items": object_schema(
                            &json!({"oldText": text_schema("Exact text of the file."), "newText": text_schema("What replaces it.")}),
                            &["oldText", "newText"],
                        ),
                    },
                }),
                &["path", "edits"],
            ),
        ),
        Tool::Ls => (
            "List a directory.",
            object_schema(&json!({"path": text_schema("Directory; default: the workspace.")}), &[]),
        ),
        Tool::Search => (
            "Find lines that match a regular expression in the files of the workspace. Ignored files are left out.",
            object_schema(
                &json!({
                    "pattern": text_schema("Regular expression."),
                    "path": text_schema("File or directory to search; default: the workspace."),
                    "glob": text_schema("Only files that match this, as *.rs or src/**."),
                    "ignore_case": {"type": "boolean"},
                    "limit": count_schema("Most matches."),
                }),
                &["pattern"],
            ),
        ),
    }
}

/// Returns a tool of the chat: names, words and schemas are part of its specification.
fn chat_spec(tool: Tool) -> (&'static str, Value) {
    match tool {
        Tool::Exec => (
            "Execute shell commands to explore directory structure, search files, run programs",
            object_schema(&json!({"command": text_schema("Shell command to execute")}), &["command"]),
        ),
        Tool::Edit => (
            "Edit existing file by replacing old string with new string",
            object_schema(
                &json!({
                    "file_path": text_schema("Path to file to edit"),
                    "old_string": text_schema("Exact string to replace"),
                    "new_string": text_schema("New string to replace with"),
                }),
                &["file_path", "old_string", "new_string"],
            ),
        ),
        Tool::Write => (
            "Write content to a new file or overwrite existing file",
            object_schema(
                &json!({
                    "file_path": text_schema("Path to file to write"),
                    "content": text_schema("Content to write to file"),
                }),
                &["file_path", "content"],
            ),
        ),
        _ => (
            "Read contents of a specific file",
            object_schema(&json!({"file_path": text_schema("Path to file to read")}), &["file_path"]),
        ),
    }
}
