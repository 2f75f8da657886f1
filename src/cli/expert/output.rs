//! The form of reports about packages.

use clap::{Args, ValueEnum};

/// The form of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum OutputFormat {
    /// For people
    Text,
    /// For programs
    Json,
}

/// The option for the form of a report.
#[derive(Args, Clone, Copy, Debug)]
pub(in crate::cli) struct Output {
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
    /// The form of `--json` that earlier versions had
    #[arg(long, value_enum, hide = true)]
    format: Option<OutputFormat>,
}

impl Output {
    pub(in crate::cli) fn format(self) -> OutputFormat {
        if self.json { OutputFormat::Json } else { self.format.unwrap_or(OutputFormat::Text) }
    }
}
