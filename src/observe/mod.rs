//! What respool tells its operator: logs, metrics, one canonical line per request, and the daily error report.

pub mod config;
mod init;
mod json;
pub mod metrics;
mod request_line;
mod writer;

pub use config::{Level, LogConfig, LogFormat};
pub use init::{Flush, init};
pub use request_line::{Outcome, RequestLine, SharedLine};
