//! Alerts: what the owner must know without looking. Rules turn what is seen into findings, the board says which of them are sent, when,
//! and when they are over, and sinks deliver.
//!
//! `rule`, `board`, `message` and `quiet` are pure and get the time as a number; `watch` looks, `sink` sends.

mod board;
pub mod config;
mod message;
mod quiet;
mod rule;
mod silence;
mod sink;
mod watch;

pub use board::OpenAlert;
pub use config::{AlertsConfig, SinkConfig, SinkKind};
pub use quiet::QuietHours;
pub use rule::{Rule, Severity, UpstreamSignal};
pub use silence::{Silence, Silences, read_open};
pub use watch::{Alerts, Reloaded, UpstreamProbes, Watched};
