//! Everything that an operator sees of respool: logs, metrics, one canonical line per request, kept
//! exchanges, and the daily error report.

mod account;
pub mod agent_metrics;
pub mod capture;
mod captures;
pub mod config;
mod error_report;
mod init;
mod json;
mod log_file;
pub mod metrics;
mod on_terminal;
#[cfg_attr(not(feature = "otlp"), path = "without_otlp.rs")]
pub mod otlp;
mod record;
mod redaction;
pub mod reply_text;
mod request_line;
mod request_start;
mod terminal_lines;
mod trace;
mod usage;
mod writer;

pub use account::{Account, Accounts, ReplyHead};
pub use capture::Exchange;
pub use captures::{Captures, read_exchange};
pub use config::{CaptureConfig, Level, LogConfig, LogFormat};
pub use error_report::{ErrorReport, Failure};
pub use init::{Flush, LogError, init, init_file};
pub use record::{RecordedContent, RecordedWait, RequestFacts, RequestRecord};
pub use request_line::{AttemptError, Outcome};
pub use request_start::{RequestStart, TRACEPARENT};
pub use terminal_lines::LogLine;
pub use trace::{Attributes, Span, SpanKind, SpanSink, SpanValue, TraceContext};
pub use usage::{EndedRequest, InFlight, LiveRequest, Recording, RowFacts, UsageSink};
