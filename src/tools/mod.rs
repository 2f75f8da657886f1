//! The tools that respool runs itself, and the policy in front of them.

pub mod config;

pub use config::{GatewayConfig, LocalConfig, McpConfig, PolicyConfig, Rule, ToolsConfig, Verdict};
