//! Alerts: what the owner must know without looking. Rules turn observations into findings, the board decides
//! which of them are sent and when they are over, and sinks deliver.
//!
//! `rule`, `board` and `message` are pure and get the time as a number; `watch` observes, `sink` sends.

mod board;
pub mod config;
#[cfg_attr(not(feature = "mail"), path = "without_mail.rs")]
mod mail;
mod message;
mod open_alert;
#[cfg(test)]
mod prometheus;
mod rule;
mod silence;
mod sink;
mod sink_error;
mod watch;

pub use config::{AlertsConfig, SinkConfig, SinkKind};
pub use open_alert::OpenAlert;
pub use rule::{Rule, Severity, UpstreamSignal};
pub use silence::{Silence, Silences, read_open};
pub use sink_error::SinkError;
pub use watch::{Alerts, Reloaded, UpstreamProbes, Watched};
