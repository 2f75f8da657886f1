//! Sets logging up: lines on standard error (short ones on a terminal, JSON otherwise) and, if configured,
//! JSON in a file.
//!
//! Three formatters write a line: `json`, `terminal_lines`, and the library's for `text`. A change of the
//! form concerns all of them.
//!
//! A separate thread writes the lines, so a slow terminal or disk never delays a request.

use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};
use tracing_subscriber::{Layer, Registry, fmt};

use super::config::{Level, LogConfig, LogFormat};
use super::json::JsonLines;
use super::log_file::LogFile;
use super::on_terminal::TerminalWriter;
use super::terminal_lines::TerminalLines;
use super::writer::{self, Batches, LineWriter, Place};

/// Owns the writer threads; dropping it writes the waiting lines.
#[derive(Debug)]
pub struct Flush {
    _batches: Vec<Batches>,
}

/// The reason why there is no log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The log file cannot be opened.
    #[error("{path} cannot be opened: {cause}; name a file in a directory that respool may write to", path = .path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// The system's reason.
        cause: io::Error,
    },
    /// A logger is installed already.
    #[error("logging cannot be set up: {0}")]
    Installed(#[from] TryInitError),
}

/// Installs the process's logger.
///
/// # Errors
/// When the log file cannot be opened, or a logger is installed already.
pub fn init(config: &LogConfig) -> Result<Flush, LogError> {
    let (stderr, batches) = if io::stderr().is_terminal() {
        writer::start_writer(TerminalWriter(io::stderr()), Place::Stream)
    } else {
        writer::start_writer(io::stderr(), Place::Stream)
    };
    let mut all = vec![batches];
    let mut layers: Vec<Box<dyn Layer<Registry> + Send + Sync>> = vec![stderr_layer(config, stderr)];
    if let Some(path) = &config.file {
        let (file, batches) = writer::start_writer(open_log_file(path)?, Place::File);
        all.push(batches);
        layers.push(fmt::layer().event_format(JsonLines).with_writer(move || file.clone()).boxed());
    }
    let registry = tracing_subscriber::registry().with(layers.with_filter(level_filter(config.level)));
    registry.try_init()?;
    Ok(Flush { _batches: all })
}

/// Installs a logger that writes to the configured file alone, for a command whose standard error is for
/// people.
///
/// # Errors
/// As [`init`].
pub fn init_file(config: &LogConfig) -> Result<Flush, LogError> {
    let Some(path) = &config.file else { return Ok(Flush { _batches: Vec::new() }) };
    let (file, batches) = writer::start_writer(open_log_file(path)?, Place::File);
    let layer = fmt::layer().event_format(JsonLines).with_writer(move || file.clone());
    let registry = tracing_subscriber::registry().with(layer.with_filter(level_filter(config.level)));
    registry.try_init()?;
    Ok(Flush { _batches: vec![batches] })
}

fn stderr_layer(config: &LogConfig, stderr: LineWriter) -> Box<dyn Layer<Registry> + Send + Sync> {
    let terminal = io::stderr().is_terminal();
    let layer = fmt::layer().with_writer(move || stderr.clone());
    match config.format {
        LogFormat::Auto if terminal => {
            let has_colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
            layer.event_format(TerminalLines { has_colours }).boxed()
        }
        LogFormat::Auto | LogFormat::Json => layer.event_format(JsonLines).boxed(),
        LogFormat::Text => layer.with_ansi(terminal).with_target(false).boxed(),
    }
}

fn level_filter(level: Level) -> tracing_subscriber::filter::Targets {
    let level = match level {
        Level::Off => LevelFilter::OFF,
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
        Level::Trace => LevelFilter::TRACE,
    };
    // Other crates' details may hold message text, and are of no use to an operator.
    tracing_subscriber::filter::Targets::new()
        .with_default(level.min(LevelFilter::WARN))
        .with_target("respool", level)
        // Its warnings contain whole messages; `tools` logs the important facts itself.
        .with_target("rmcp", LevelFilter::OFF)
}

fn open_log_file(path: &Path) -> Result<LogFile, LogError> {
    LogFile::open(path).map_err(|cause| LogError::File { path: path.to_owned(), cause })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_without_a_directory_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let why = open_log_file(&dir.path().join("no/log")).unwrap_err().to_string();
        assert!(why.contains("no/log cannot be opened"), "{why}");
    }

    #[test]
    fn other_crates_do_not_log_messages() {
        let filter = level_filter(Level::Trace);
        let enabled = |target, level| filter.would_enable(target, &level);
        assert!(enabled("respool::relay", tracing::Level::TRACE));
        assert!(enabled("hyper", tracing::Level::WARN) && !enabled("hyper", tracing::Level::DEBUG));
        assert!(!enabled("rmcp::service", tracing::Level::ERROR));
    }
}
