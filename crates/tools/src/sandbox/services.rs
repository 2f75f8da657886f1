//! The network of commands, and the services of this machine that they reach by it.

use std::path::PathBuf;

use super::super::config::LocalConfig;
use super::super::programs::find_program;
use super::level::{self, Level};

/// The network of a sandbox's commands.
#[derive(Debug)]
pub(super) enum CommandNetwork {
    /// No network at all.
    Off,
    /// The machine's. Where commands are confined all the same, a sentence tells the owner why.
    Shared(Option<String>),
    /// One of each command's own, which this pasta makes. The TCP ports lead to the machine's loopback.
    Own { pasta: PathBuf, forwarded: Vec<u16> },
}

impl CommandNetwork {
    /// Returns the network of the commands that may have one.
    pub(super) fn find(config: &LocalConfig, level: &Level) -> Self {
        let (Some(launcher), true) = (&config.launcher, level.holds_files()) else {
            return Self::Shared(None);
        };
        let shared = |why: &str| {
            Self::Shared(Some(format!(
                "a command with the network reaches services on this machine, such as daemons of build tools, which run what they \
                 are asked to outside the sandbox: {why}"
            )))
        };
        let pasta = find_program("pasta", &config.writable_by_commands());
        let (Some(bubblewrap), Some(pasta)) = (super::bubblewrap(config, level), pasta) else {
            return shared("install bubblewrap and passt");
        };
        match level::why_pasta_fails(launcher, &bubblewrap, &pasta) {
            None => Self::Own { pasta, forwarded: config.loopback_ports.clone() },
            Some(why) => shared(&format!("pasta fails here ({why}); install passt from a current system")),
        }
    }

    /// Returns why a command reaches services of this machine although it is confined.
    pub(super) fn reached_services(&self) -> Option<&str> {
        match self {
            Self::Shared(why) => why.as_deref(),
            Self::Off | Self::Own { .. } => None,
        }
    }
}
