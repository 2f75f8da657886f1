//! The form of reports about packages.

use clap::ValueEnum;

/// How findings are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum OutputFormat {
    /// For people
    Text,
    /// For programs
    Json,
}
