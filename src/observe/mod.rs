//! What respool tells its operator: logs, metrics and the daily error report.

pub mod config;

pub use config::{Level, LogConfig, LogFormat};
