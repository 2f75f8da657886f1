//! `[log]`: the level, form and destination of log lines. `[capture]`: the exchanges that are kept.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use wire::units::{Size, deserialize_duration};

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
        /// The directory of agents' daily error reports, `YYYY-MM-DD-errors.md`; a relative path begins at
        /// `state_dir`.
        pub errors_dir: PathBuf = PathBuf::from("logs");
    }
}

wire::settings! {
    /// `[capture]`.
    #[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct CaptureConfig {
        /// The keys whose requests are kept with all that was sent and received for them, by their names; `*`
        /// stands for any text, and `"*"` also for requests without a key. None are kept unless you name
        /// some (docs/replay.md).
        pub keys: Vec<String> = vec![], with_example(r#"["alice"]"#);
        /// How long an exchange is kept.
        #[serde(deserialize_with = "deserialize_duration")]
        pub keep: Duration = Duration::from_hours(24);
        /// How much space all kept exchanges may take; beyond it, the oldest are deleted.
        pub max_size: Size = Size::mib(256);
        /// How much of one exchange is kept; a larger one is cut and cannot be replayed.
        pub max_exchange: Size = Size::mib(16);
    }
}
