//! A tool on offer, and the prefixes of tool names.

use super::contract::ToolSpec;

/// The prefix of names of MCP servers' tools: `mcp:SERVER/TOOL`, with `*` for any text.
pub(super) const MCP_PREFIX: &str = "mcp:";

/// A tool on offer.
#[derive(Clone, Debug)]
pub(super) struct Offer {
    /// As the model sees it.
    pub(super) spec: ToolSpec,
    /// The name in an agent's `tools`, in rules and in the tables of timeouts and limits: `exec`,
    /// `mcp:files/read_file`.
    pub(super) name: String,
}
