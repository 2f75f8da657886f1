//! The tools that respool runs itself, and the policy in front of them.

pub mod config;
pub mod contract;

pub use config::{GatewayConfig, LocalConfig, McpConfig, PolicyConfig, Rule, ToolsConfig, Verdict};
pub use contract::{Approver, Invocation, Question, ToolError, ToolOutput, ToolSpec, Tools};
