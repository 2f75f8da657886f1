//! The HTTP server: routes, errors as HTTP, status.

pub mod config;

pub use config::{LimitsConfig, Listen, ServerConfig};
