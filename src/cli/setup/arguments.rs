//! The options of `respool setup`.

use clap::{Args, ValueEnum as _};

use client_settings::Client;

/// The clients, as the usage line names them.
const CLIENTS: &str = "openclaw|codex|claude-code|opencode|qwen-code|cline";

#[derive(Args, Debug)]
pub(in crate::cli) struct SetupArgs {
    /// The client
    #[arg(value_enum, value_name = CLIENTS)]
    pub(super) client: Client,
    /// The address of respool [default: where it runs, or where the configuration says that it listens]
    #[arg(long, value_name = "URL")]
    pub(super) url: Option<String>,
    /// The model [default: the only one that respool serves]
    #[arg(long)]
    pub(super) model: Option<String>,
    /// The model server, which is asked for its models (openclaw only) [default: respool is asked]
    #[arg(long, value_name = "URL")]
    pub(super) upstream: Option<String>,
    /// The environment variable with one of respool's `client_keys`
    #[arg(long, value_name = "NAME")]
    pub(super) key_env: Option<String>,
    /// Add the recommended settings to an entry of the model that lacks them, too (openclaw only)
    #[arg(long)]
    pub(super) recommended: bool,
    /// Show what would change, and change nothing
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Write the change without asking
    #[arg(long)]
    pub(super) yes: bool,
    /// Restore the settings as they were
    #[arg(long)]
    pub(super) undo: bool,
}

/// Returns the client's name, as the command line knows it.
pub(super) fn name_of(client: Client) -> String {
    client.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usage_line_names_all_clients() {
        let names: Vec<String> = Client::value_variants().iter().map(|client| name_of(*client)).collect();
        assert_eq!(names.join("|"), CLIENTS);
    }
}
