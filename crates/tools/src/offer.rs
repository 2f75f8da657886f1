//! A tool on offer, and the prefixes of tool names.

use super::contract::ToolSpec;
use wire::digest::{hex, sha256};

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

impl Offer {
    /// Returns a digest of what the tool says that it is.
    pub(super) fn digest(&self) -> String {
        let Self { spec, name } = self;
        let text = serde_json::json!([name, spec.description, spec.parameters]).to_string();
        hex(&sha256(text.as_bytes())[..16])
    }
}
