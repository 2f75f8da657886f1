//! Durable state: runs, invocations, costs.

pub mod config;

pub use config::StoreConfig;
