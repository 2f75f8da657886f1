//! Why an agent cannot have a tool that it names.

use super::gateway::known;
use super::local::agent_names;
use super::wanted::nearest_name;

/// The reason why an agent cannot have a tool that it names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnavailableTool {
    /// Its source is not configured.
    #[error("the tool {tool:?} needs {needed}")]
    Needs {
        /// The tool.
        tool: String,
        /// The source, and the key that sets it up.
        needed: String,
    },
    /// The gateway's tools are named one by one.
    #[error("{0:?} is not a tool of the gateway: write its name there after \"gateway:\", without *")]
    NotOfGateway(String),
    /// No source has a tool of this name.
    #[error(
        "nothing offers a tool {0:?}{hint} (write \"gateway:{0}\" for a tool of OpenClaw's gateway that respool does not know, \
         or \"mcp:SERVER/{0}\" for one of an MCP server)",
        hint = spelling_hint(.0)
    )]
    Unknown(String),
    /// The MCP server has no such tool.
    #[error("the MCP server offers no {tool:?}; it has {offered}", offered = .offered.join(", "))]
    NotOffered {
        /// The tool.
        tool: String,
        /// The tools that the server has.
        offered: Vec<String>,
    },
    /// The MCP server can never start.
    #[error("tools.mcp.{name}: {problem}")]
    Server {
        /// The server.
        name: String,
        /// The reason.
        problem: String,
    },
    /// Two tools have one name.
    #[error("{one:?} and {other:?} are both called {called:?}; leave one out")]
    SameName {
        /// The first by its name in the configuration.
        one: String,
        /// The second.
        other: String,
        /// The name that a model would call.
        called: String,
    },
}

fn spelling_hint(name: &str) -> String {
    let near = nearest_name(name, agent_names().chain(known::known_names()));
    near.map(|near| format!("; did you mean {near:?}?")).unwrap_or_default()
}
