//! `[log]`: the level, form and destination of log lines.

use std::path::PathBuf;

use serde::Deserialize;

wire::string_enum! {
    /// The form of a log line.
    LogFormat {
        /// Short lines on a terminal, JSON otherwise.
        #[default]
        Auto = "auto",
        /// One JSON object per line.
        Json = "json",
        /// Text with every value.
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
        /// And problems that may become one.
        Warn = "warn",
        /// And one line per request.
        #[default]
        Info = "info",
        /// And the reasons for each decision.
        Debug = "debug",
        /// And every event.
        Trace = "trace",
    }
}

wire::settings! {
    /// `[log]`.
    #[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct LogConfig {
        /// The form of log lines on standard error: `auto` is short lines for a person on a terminal and JSON
        /// elsewhere; `text` has every value.
        pub format: LogFormat = LogFormat::Auto;
        /// The lowest level that is logged.
        pub level: Level = Level::Info;
        /// Write message text to the log.
        pub content: bool = false;
        /// A file that gets the same lines as JSON.
        pub file: Option<PathBuf> = None, when_unset("standard error only", r#""/var/log/respool.jsonl""#);
        /// The directory of agents' daily error reports, `YYYY-MM-DD-errors.md`.
        pub errors_dir: PathBuf = PathBuf::from("logs");
    }
}
