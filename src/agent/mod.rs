//! The agent: the reasoning-to-tool loop that runs inside respool.

mod budget;
pub mod config;
mod context;
mod correction;
mod harmless;
mod outcome;
mod prompt;
mod reading;
mod record;
mod run;

pub use budget::Tokens;
pub use config::{AgentConfig, OnDisconnect, Parser, Progress, ReadFirst};
pub use outcome::{Limit, Outcome};
pub use record::*;
pub use run::{Misfit, ModelCall, Run, Step, Suspension, ToolCall, Why};
