//! `[log]`: what is logged, how and where to.

use std::path::PathBuf;

use serde::Deserialize;

wire::string_enum! {
    /// How a log line looks.
    LogFormat {
        /// Text on a terminal, JSON otherwise.
        #[default]
        Auto = "auto",
        /// One JSON object per line.
        Json = "json",
        /// For people.
        Text = "text",
    }
}

wire::string_enum! {
    /// The least severe level that is logged.
    Level {
        /// Nothing.
        Off = "off",
        /// Failures.
        Error = "error",
        /// And what may become one.
        Warn = "warn",
        /// And one line per request.
        #[default]
        Info = "info",
        /// And what led to each decision.
        Debug = "debug",
        /// And every event.
        Trace = "trace",
    }
}

/// `[log]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// The form of the lines on standard error.
    pub format: LogFormat,
    /// The least severe level that is logged.
    pub level: Level,
    /// True to let message text into the log.
    pub content: bool,
    /// A file that gets the same lines as JSON.
    pub file: Option<PathBuf>,
    /// The directory of the daily error reports.
    pub errors_dir: PathBuf,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            format: LogFormat::Auto,
            level: Level::Info,
            content: false,
            file: None,
            errors_dir: PathBuf::from("logs"),
        }
    }
}
