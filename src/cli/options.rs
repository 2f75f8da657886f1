//! The options that name the configuration, and notes about settings that are not read.

use std::path::PathBuf;

use clap::Args;

use super::say::say_on_stderr;
use service_manager::user_environment;
use settings::{Flags, Loaded, Misspelt, Problems};

/// The configuration of a command that asks no model server, or that names one seldom.
#[derive(Args, Debug, Default)]
pub(super) struct Configured {
    /// The configuration file [default: respool.toml in the user's or the system's configuration directory]
    #[arg(long, value_name = "FILE", global = true, help_heading = "Configuration")]
    pub(super) config: Option<PathBuf>,
    /// A model server in front of the configured upstreams
    #[arg(long, value_name = "URL", global = true, hide = true)]
    pub(super) upstream: Option<String>,
}

/// The configuration of a command that works with the model servers.
#[derive(Args, Debug, Default)]
pub(super) struct WithUpstream {
    /// The model server: the base URL of vLLM, with or without /v1, or replay:DIR for recorded replies; the
    /// configured upstreams stay and come after it
    #[arg(long, value_name = "URL", help_heading = "Configuration")]
    pub(super) upstream: Option<String>,
    /// The configuration file [default: respool.toml in the user's or the system's configuration directory]
    #[arg(long, value_name = "FILE", help_heading = "Configuration")]
    pub(super) config: Option<PathBuf>,
}

impl From<WithUpstream> for Configured {
    fn from(options: WithUpstream) -> Self {
        Self { config: options.config, upstream: options.upstream }
    }
}

impl Configured {
    /// Loads the configuration that the options name, or that of the user's service.
    pub(super) fn load(self) -> Result<Loaded, Problems> {
        Loaded::from_process(&with_service(self.into_flags(None)))
    }

    /// Loads the configuration for a command that only reads records, or with which a person decides. Its
    /// problems are named, and the command works as far as the rest says where the records are.
    pub(super) fn load_for_reading(self) -> Result<Loaded, Problems> {
        let (loaded, problems) = Loaded::records_from_process(&self.file_flags())?;
        if let Some(problems) = problems {
            let dir = loaded.settings.store.state_dir.display();
            say_on_stderr(&format!(
                "respool: warning: the configuration is wrong, and `respool serve` would not start with it. This is about what {dir} has:\n{problems}"
            ));
        }
        Ok(loaded)
    }

    /// Loads the configuration for a command that works with files and records alone.
    pub(super) fn load_files(self) -> Result<Loaded, Problems> {
        Loaded::from_process(&self.file_flags())
    }

    fn file_flags(self) -> Flags {
        with_service(Flags { uses_no_secrets: true, ..self.into_flags(None) })
    }

    pub(super) fn into_flags(self, listen: Option<String>) -> Flags {
        Flags { listen, upstream: self.upstream, config: self.config, ..Flags::default() }
    }
}

/// Adds the variables of the user's service, unless options or variables of this shell say which
/// configuration is meant: a command is about the respool that runs.
pub(super) fn with_service(flags: Flags) -> Flags {
    let is_meant = |name: &str| name == "RESPOOL_CONFIG" || name.starts_with("RESPOOL__");
    let mut names = std::env::vars_os().map(|(name, _)| name);
    let is_named = flags.config.is_some()
        || flags.upstream.is_some()
        || names.any(|name| name.to_str().is_some_and(is_meant));
    match user_environment().filter(|_| !is_named) {
        Some((_, of_service)) => Flags { of_service: Some(of_service), ..flags },
        None => flags,
    }
}

/// Says that the variables of the user's service are used.
pub(super) fn note_service(flags: &Flags) {
    if let Some((file, _)) =
        user_environment().filter(|_| flags.of_service.as_ref().is_some_and(|all| !all.is_empty()))
    {
        say_on_stderr(&format!(
            "respool: the service runs with the variables in {}, which hold here, too",
            file.display()
        ));
    }
}

/// Names settings that are not used although the user may believe they are: a `respool.toml` in the working
/// directory, and misspelt variables.
pub(super) fn unread_notes(loaded: &Loaded) -> Vec<String> {
    let file = loaded.unread.as_ref().map(|file| {
        format!(
            "{} is not read, because no option names it. To use it, add --config respool.toml",
            file.display()
        )
    });
    file.into_iter().chain(loaded.misspelt.iter().map(misspelt_note)).collect()
}

pub(super) fn misspelt_note(Misspelt { name, meant }: &Misspelt) -> String {
    format!("the environment variable {name} is not read; did you mean {meant}?")
}
