//! The one path to a model: a request in, turn events out.

pub mod config;

pub use config::{
    ContextConfig, ModelConfig, OnOverflow, ReasoningField, RecoveryConfig, RelayConfig, ToolParsing,
    ToolsMode,
};
