//! The model server behind respool: its client, retries and health.

pub mod config;

pub use config::{Address, UpstreamConfig};
