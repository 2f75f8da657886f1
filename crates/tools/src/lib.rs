//! The tools that respool runs itself, and the policy in front of them.
//!
//! [`Sources`] are opened once from `[tools]`; [`Sources::select_tools`] gives an agent its [`ToolSet`]. The
//! sources of a set are `local` (files and commands of a workspace), `gateway` (OpenClaw's tools) and `mcp`
//! (tools of MCP servers).

pub mod audit;
pub mod config;
pub mod contract;
pub mod diff;
mod environment;
mod gateway;
mod local;
#[cfg_attr(not(feature = "mcp"), path = "without_mcp.rs")]
mod mcp;
mod offer;
mod plain;
mod policy;
mod process;
pub mod programs;
mod record;
mod sandbox;
mod server_problem;
mod set;
mod source;
mod sources;
mod unavailable;
mod wanted;

pub use audit::{AuditConfig, Caller};
pub use config::{
    GatewayConfig, LocalConfig, McpConfig, PolicyConfig, Rule, SandboxMode, ToolsConfig, Verdict,
};
pub use contract::{
    Approver, Consent, Effect, Invocation, OutputWatcher, Question, QuestionKind, Target, ToolError,
    ToolOutput, ToolSpec, Tools,
};
pub use local::{end_commands, named_subject, open_inside, put_back};
pub use plain::plain_text;
pub use policy::reach::{Restriction, find_restriction, never_allowed, rule_for};
pub use policy::{CommandPattern, ListedCommand, command_list, idle_rules, parse_pipeline, plain_words};
pub use sandbox::{
    Level, held_from_programs, launch, reached_services, remove_temporary_directories, sandbox_level,
};
pub use server_problem::{Availability, ServerProblem};
pub use set::ToolSet;
pub use sources::{Sources, StricterPolicy};
pub use unavailable::UnavailableTool;
