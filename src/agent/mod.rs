//! The agent: the reasoning-to-tool loop that runs inside respool.

pub mod config;

pub use config::{AgentConfig, OnDisconnect, Parser, Progress, ReadFirst};
